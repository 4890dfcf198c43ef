"""Photographed pages: a page of any domain seen at an angle, in uneven light, a little out of focus, and compressed.

Boxes follow. Positions are (x, y) in px.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image, ImageFilter

from ...modeling.image_processing_arr_coc import Box
from ..glyphs import Glyph
from .canvas import text_unit
from .document import Document
from .page import Page
from .warping import bounds_of, corners_of, homography, paste_warped, project, sample_quad

_TURN, _SKEW = 5.0, 0.05  # at most: degrees of rotation, share of the sides by which corners move
_FILLED = (0.9, 1.0)  # share of the room between the picture's edges that the page takes
_SHADOW = 0.45  # at most: share of the light that a shadow takes
_BLUR = 0.6  # px at most on a page of 256 px, whose letters are 11 px high at least
_NOISE = 6.0  # of 255, at most
_QUALITY = (40, 90)  # of JPEG


def photograph(rng: np.random.Generator, page: Page) -> Page:
    """A photograph of a square page, of the same size; its questions' boxes and its characters' are where they show.

    The boxes are upright ones around the corners of what they were, clipped to the picture.
    """
    picture, seen = _taken(rng, page.image)
    questions = tuple(
        replace(
            question,
            boxes=tuple(map(seen, question.boxes)),
            label_boxes=tuple(map(seen, question.label_boxes)),
        )
        for question in page.questions
    )
    return replace(page, image=picture, questions=questions, glyphs=_glyphs(page.glyphs, seen))


def photograph_document(rng: np.random.Generator, document: Document) -> Document:
    """`photograph` of a document: its entries' boxes are where they show."""
    picture, seen = _taken(rng, document.image)
    entries = tuple(
        replace(entry, label_box=seen(entry.label_box), value_box=seen(entry.value_box)) for entry in document.entries
    )
    labels = tuple((field, seen(box)) for field, box in document.labels)
    return replace(document, image=picture, entries=entries, glyphs=_glyphs(document.glyphs, seen), labels=labels)


def _taken(rng: np.random.Generator, page: Image.Image) -> tuple[Image.Image, Callable[[Box], Box]]:
    """A photograph of a page, and where a box of the page shows on it."""
    size, unit = page.width, text_unit(page.width)
    matrix = _view(rng, size)
    picture = _ground(rng, size)
    paste_warped(picture, page.convert("RGB"), _cover(size), matrix)
    picture = _lit(rng, picture)
    picture = picture.filter(ImageFilter.GaussianBlur(unit * float(rng.uniform(0, _BLUR))))
    picture = _compressed(rng, _noisy(rng, picture))

    def seen(box: Box) -> Box:
        return bounds_of(project(matrix, corners_of(box)).clip(0, size))

    return picture, seen


def _glyphs(glyphs: Sequence[Glyph], seen: Callable[[Box], Box]) -> tuple[Glyph, ...]:
    return tuple(Glyph(glyph.char, seen(glyph.box)) for glyph in glyphs)


def _cover(size: int) -> Image.Image:
    """Where the page covers what it lies on: but for its last pixels, so that its edge is no staircase."""
    cover = Image.new("L", (size, size), 0)
    cover.paste(255, (1, 1, size - 1, size - 1))
    return cover


def _view(rng: np.random.Generator, size: int) -> np.ndarray:
    """The homography from page to picture: all of the page is in the picture, most of which it fills."""
    quad = sample_quad(rng, size, size, turn=_TURN, skew=_SKEW)
    left, top, right, bottom = bounds_of(quad)
    quad *= float(rng.uniform(*_FILLED)) * size / max(right - left, bottom - top)
    left, top, right, bottom = bounds_of(quad)
    x, y = float(rng.uniform(-left, size - right)), float(rng.uniform(-top, size - bottom))
    return homography(corners_of((0, 0, size, size)), quad + (x, y))


def _ground(rng: np.random.Generator, size: int) -> Image.Image:
    """What the page lies on: a muted colour with a coarse texture."""
    cells = int(rng.integers(4, 20))
    colour = rng.uniform(20, 235) + rng.uniform(-30, 30, 3)
    texture = colour + rng.uniform(5, 30) * rng.standard_normal((cells, cells, 1))
    coarse = Image.fromarray(texture.clip(0, 255).astype(np.uint8))
    return coarse.resize((size, size), Image.Resampling.BICUBIC)


def _lit(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    """Light that falls off across the picture, has a colour, and is kept off by something with a soft edge, or not."""
    size = picture.width
    at = np.linspace(-1, 1, size)
    across, along = np.meshgrid(at, at)

    def distance() -> np.ndarray:
        """[size, size] from a line in a drawn direction through the picture's middle, -1.4 to 1.4."""
        angle = float(rng.uniform(0, 2 * math.pi))
        return math.cos(angle) * across + math.sin(angle) * along

    light = 1 - float(rng.uniform(0, 0.15)) * (distance() + 1.4) / 2.8
    if rng.random() < 0.6:
        edge, softness = float(rng.uniform(-0.8, 0.8)), float(rng.uniform(0.02, 0.3))
        light *= 1 - float(rng.uniform(0.1, _SHADOW)) / (1 + np.exp(-(distance() - edge) / softness))
    colour = 1 - rng.uniform(0, 0.12, 3)
    return _from_levels(np.asarray(picture) * light[:, :, None] * colour)


def _noisy(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    strength = float(rng.uniform(0, _NOISE))
    return _from_levels(np.asarray(picture) + strength * rng.standard_normal((picture.height, picture.width, 1)))


def _compressed(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=int(rng.integers(*_QUALITY)))
    return Image.open(buffer).convert("RGB")


def _from_levels(levels: np.ndarray) -> Image.Image:
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))
