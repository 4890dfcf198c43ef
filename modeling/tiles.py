"""Tiles of large sources: their places, by the height of the print, and those that a question asks for.

Notation: I image slots, N patches of a grid, G its side, p side of a patch in px of the square. Windows are x0, y0, x1,
y1 in px of the source, ends exclusive.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .budgets import COMPRESSION, Window
from .image_encoding import ImageEncoding, Tiles
from .image_processing_arr_coc import square_of
from .views import Views

# ---- how high the print is ----------------------------------------------------------------------------------------

STRIPS = 24
"""Strips of columns that a page is divided into, as lines may be askew or side by side."""

FEWEST_LINES = 8
"""The least pieces of lines, one in each strip, on a page of text."""


FULLEST = 0.85
"""The largest share of rows with text over all strips; more is noise or a texture."""


def print_height(image: Image.Image, side: int) -> float | None:
    """Height of an image's lines of text, px, when its longer side is `side` px; None: no text was found.

    Text alternates between ink and paper many times along a line, and seldom between lines. In each strip, neighbouring
    rows with sharp changes of grey form a band; bands with a common height are lines.
    """
    scale = side / max(image.size)
    size = [max(1, round(length * scale)) for length in image.size]
    grey = np.asarray(image.convert("L").resize(size, Image.Resampling.BOX, reducing_gap=2.0), dtype=np.float32)
    low, high = np.percentile(grey, (1, 99))
    sharp = np.abs(np.diff(grey, axis=1, prepend=grey[:, :1])) > 0.25 * max(1.0, high - low)
    heights: list[int] = []
    filled = 0
    for strip in np.array_split(sharp, STRIPS, axis=1):
        inked = np.concatenate(([False], strip.sum(1) >= 2, [False]))
        filled += int(inked.sum())
        changes = np.flatnonzero(inked[1:] != inked[:-1])
        heights += (changes[1::2] - changes[::2]).tolist()
    lines = np.array([height for height in heights if 3 <= height <= side / 6])
    if len(lines) < FEWEST_LINES or filled > FULLEST * STRIPS * size[1]:
        return None
    middle = float(np.median(lines))
    alike = (lines > 0.6 * middle) & (lines < 1.6 * middle)
    return middle if alike.mean() >= 0.5 else None


def print_scale(image: Image.Image, side: int, finest: float, readable_px: float) -> float:
    """px of the square per px of an image at which its text is read; at most `finest`, the value without text.

    The function tries sizes from `side` px on, in steps of the root of 2, and takes the first at which it finds text.
    So the number of pixels of the image does not matter, as long as they show the text.

    Args:
        image: RGB.
        side: of the model's square, px.
        finest: px of the square per px of the image.
        readable_px: height of the smallest letters that the model reads, px of the square.

    Returns:
        0 if the text is readable in the overview.
    """
    longest, level = max(image.size), float(side)
    while level <= finest * longest:
        height = print_height(image, round(level))
        if height is not None and height >= LEGIBLE * readable_px:
            return 0.0 if level == side else min(finest, COMFORTABLE * readable_px * level / (height * longest))
        level *= math.sqrt(2)
    return finest


LEGIBLE, COMFORTABLE = 0.6, 1.25
"""Heights of lines relative to the smallest readable letters: enough in the overview, and the aim of tiles.

Most lines are measured without ascenders: pages in the training of arr-coc-tiny-2 have lines of 0.7 to 1.1.
"""


# ---- which views --------------------------------------------------------------------------------------------------


def plan_tiles(
    height: int, width: int, *, grid: int, patch_size: int, scale: float, most: int | None = None
) -> list[Window]:
    """Windows that cover a source of `height` x `width` px at `scale` px of the square per px, in reading order.

    A window is G patches of a whole number of px wide and high, or as long as the source along a shorter axis.
    Neighbours overlap by at least one base cell; windows are spread evenly from edge to edge.

    Args:
        height, width: of the source, px.
        grid: G.
        patch_size: p.
        scale: the least scale; a window is as wide as a whole number of px per patch allows.
        most: the most windows; windows become larger for it; None: no limit.

    Returns:
        No windows if the overview has that scale.
    """
    step = max(1, math.floor(patch_size / scale))  # px of the source per patch
    while True:
        side, cell = step * grid, COMPRESSION * step
        if side >= max(height, width):
            return []
        columns, rows = (_starts(length, side, cell) for length in (width, height))
        if most is None or len(columns) * len(rows) <= most:
            break
        step += 1
    return [(x, y, min(x + side, width), min(y + side, height)) for y in rows for x in columns]


def _starts(length: int, side: int, overlap: int) -> list[int]:
    """The starts of windows of `side` that cover `length`, evenly spread, overlapping by at least `overlap`."""
    if length <= side:
        return [0]
    steps = math.ceil((length - side) / (side - overlap))
    return [round(number * (length - side) / steps) for number in range(steps + 1)]


# ---- which tiles a question asks for ---------------------------------------------------------------------------------


class Turns:
    """A lock for what threads share, such as a tokenizer's padding. A copy, also a pickled one, is a new lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __reduce__(self) -> Any:
        return type(self), ()


@dataclass
class Tiling:
    """The tiles that questions may encode; encodings of the same sources share one.

    Attributes:
        windows: of every source, all tiles that it can have.
        asked_tiles, asked_share: limits for one question, see `ViewOptions`.
        encode: (source row, window) of some tiles -> these tiles.
        rows: (source row, window) of encoded tiles -> their row in `tiles`.
        tiles: the encoded tiles; None: none yet.
        turns: its lock is held while tiles are encoded, as several threads may use one encoding.
    """

    windows: list[list[Window]]
    asked_tiles: int
    asked_share: float
    encode: Callable[[list[tuple[int, Window]]], Tiles]
    rows: dict[tuple[int, Window], int] = field(default_factory=dict)
    tiles: Tiles | None = None
    turns: Turns = field(default_factory=Turns)


def ask_tiles(encoding: ImageEncoding, shown: Sequence[Sequence[int]], relevance: Tensor) -> list[list[int]]:
    """The tiles that questions ask for, encoded if they were not yet: rows of `encoding.tiles` for each slot.

    Args:
        encoding: with a `Tiling`, which keeps the tiles.
        shown: the sources that each prompt shows; I of all prompts.
        relevance: [I, N] of their overviews, 0 on padding.
    """
    tiling: Tiling = encoding.tiling
    keys: list[list[tuple[int, Window]]] = []
    for sources in shown:
        keys += _most_relevant(encoding, sources, relevance[len(keys) : len(keys) + len(sources)])
    with tiling.turns.lock:
        missing = list(dict.fromkeys(key for own in keys for key in own if key not in tiling.rows))
        if missing:
            tiles = tiling.encode(missing)
            tiling.tiles = tiles if tiling.tiles is None else tiling.tiles.join(tiles)
            tiling.rows.update({key: len(tiling.rows) + number for number, key in enumerate(missing)})
        encoding.tiles = tiling.tiles
    return [[tiling.rows[key] for key in own] for own in keys]


def _most_relevant(
    encoding: ImageEncoding, sources: Sequence[int], relevance: Tensor
) -> list[list[tuple[int, Window]]]:
    """The tiles that one question asks for of each source, in reading order, at most `asked_tiles` of all sources.

    Each step takes the window with the most `relevance` [sources, N] outside earlier windows, as long as it holds
    `asked_share` of all relevance.
    """
    remaining, inside = relevance.detach().float().cpu().clone(), []
    tiling: Tiling = encoding.tiling
    least = tiling.asked_share * float(remaining.sum())
    for slot, number in enumerate(sources):
        x, y = _overview(encoding, number).centres(encoding.side)[0].unbind(-1)
        for window in tiling.windows[number]:
            x0, y0, x1, y1 = window
            inside.append((slot, (number, window), (x >= x0) & (x < x1) & (y >= y0) & (y < y1)))
    taken: list[int] = []
    for _ in range(min(tiling.asked_tiles, len(inside))):
        held = [
            -1.0 if at in taken else float(remaining[slot][within].sum()) for at, (slot, _, within) in enumerate(inside)
        ]
        if taken and max(held) < least:
            break
        taken.append(held.index(max(held)))
        slot, _, within = inside[taken[-1]]
        remaining[slot][within] = 0.0
    return [[inside[at][1] for at in sorted(taken) if inside[at][0] == slot] for slot in range(len(sources))]


def _overview(encoding: ImageEncoding, number: int) -> Views:
    height, width = encoding.read_sizes[number]
    square = torch.tensor([square_of((0, 0, width, height))])
    return Views(torch.zeros(1, dtype=torch.int64), square, torch.zeros(0, dtype=torch.int64), None, "joint")
