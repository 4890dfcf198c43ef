"""Domain `clip`: frames of a camera that passes signs; each sign shows in a few frames that follow one another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from ...modeling.image_processing_arr_coc import Box
from ..rasterising import Ink, degrade
from ..splits import Split
from ..styles import sample_pen, sample_style
from .canvas import text_unit
from .page import Asker, Page, Question, interleave, register_sources
from .scene import SCENES
from .sign import WORDINGS, Panel, Shown, ask_about, lay_out, paint, place_panels, sample_signs

_DRIFT = 0.1
"""How far the camera moves, as a share of a frame's side."""
_LONGEST = 8
"""A sign shows in at most one of so many frames of its clip, and in one at least."""


@dataclass(frozen=True)
class Passing:
    """A sign as it passes: the scene with it, what it says there, and the frames that show it."""

    scene: Image.Image
    shown: Shown
    frames: range


@register_sources("clip", SCENES, WORDINGS, least=4, most=30)
def draw_clip(rng: np.random.Generator, size: int, split: Split, count: int) -> Page:
    """`count` frames of one scene with as many signs, one after the other, as there are frames for."""
    name, scene = SCENES.draw(rng, split)
    drift = round(_DRIFT * size)
    world, pen = scene(rng, size + drift), sample_pen(rng, split)
    path = rng.uniform(0, drift, (2, 2))
    corners = (path[0] + np.linspace(0, 1, count)[:, None] * (path[1] - path[0])).round().astype(int).tolist()
    style = sample_style(rng, pen, size, split)
    signs = sample_signs(rng, split, size)
    passing: list[Passing] = []
    for own in np.array_split(np.arange(count), min(len(signs), count)):
        sign, length = signs[len(passing)], min(len(own), int(rng.integers(1, max(1, count // _LONGEST) + 1)))
        start = int(own[0] + rng.integers(len(own) - length + 1))
        panel = lay_out(rng, sign, style, size)
        quad = _within(rng, panel, size - drift, split) + drift
        painted = world.copy()
        shown, _ = paint(rng, painted, panel, quad, Ink(max(panel.width, panel.height), pen))
        passing.append(Passing(painted, shown, range(start, start + length)))
    frames = []
    for number, (x, y) in enumerate(corners):
        seen = next((one.scene for one in passing if number in one.frames), world)
        frames.append(degrade(rng, seen.crop((x, y, x + size, y + size)), split=split, unit=text_unit(size)))
    asker = Asker(WORDINGS, rng, split)
    colours = [one.shown.sign.colour for one in passing]
    questions = [
        _over_frames(question, one.frames, corners)
        for one in passing
        for question in ask_about(asker, [one.shown])
        if question.kind != "colour" or colours.count(one.shown.sign.colour) == 1
    ]
    first, *rest = frames
    tags = (("frames", str(count)),)
    return Page(first, interleave(rng, questions), name, style.face.name, tags=tags, others=tuple(rest))


def _within(rng: np.random.Generator, panel: Panel, side: int, split: Split) -> np.ndarray:
    """Corners [4, 2] of a sign in a square of `side` px."""
    while (quads := place_panels(rng, [panel], side, split)) is None:
        pass
    return quads[0]


def _over_frames(question: Question, frames: range, corners: list[list[int]]) -> Question:
    """A question about a scene as one about those of its frames that show the sign; `corners`: theirs in the scene."""

    def moved(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
        shifts = [corners[frame] for frame in frames]
        return tuple((x0 - x, y0 - y, x1 - x, y1 - y) for x, y in shifts for x0, y0, x1, y1 in boxes)

    def numbers(boxes: tuple[Box, ...]) -> tuple[int, ...]:
        return tuple(frame for frame in frames for _ in boxes)

    return replace(
        question, boxes=moved(question.boxes), label_boxes=moved(question.label_boxes),
        box_sources=numbers(question.boxes), label_sources=numbers(question.label_boxes),
        answer_sources=tuple(frames),
    )  # fmt: skip
