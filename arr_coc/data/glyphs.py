"""Characters on a page: where each stands, which patch it belongs to, and writing that keeps track of them.

Boxes are (x0, y0, x1, y1) in pixels of the final image; grids are [grid, grid], row-major, (y, x).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..modeling.image_processing_arr_coc import Box
from .rasterising import Ink, TextStyle

PUNCTUATION = ".,:$/-#&'"
ALPHANUMERIC = string.digits + string.ascii_uppercase + string.ascii_lowercase
CHARSET: str = ALPHANUMERIC + PUNCTUATION
"""Every character other than the space that a page can show; its order defines the classes of `glyph_targets`."""

_CLASS_OF = {char: index + 1 for index, char in enumerate(CHARSET)}


def class_of(char: str) -> int:
    """1 + index in `CHARSET`."""
    return _CLASS_OF[char]


@dataclass(frozen=True)
class Glyph:
    """A visible character: its advance cell horizontally, baseline to capital height vertically."""

    char: str
    box: Box


def glyphs_of(text: str, position: tuple[float, float], style: TextStyle, ends: np.ndarray) -> list[Glyph]:
    """The visible characters of a text at (x of its start, y of its baseline); `ends`: of their advance cells, px."""
    x, bottom = position
    top, rights = bottom - style.cap_height, (x + ends).tolist()
    return [
        Glyph(char, (left, top, right, bottom))
        for char, left, right in zip(text, [x, *rights], rights, strict=False)
        if char != " "
    ]


def write(
    ink: Ink, texts: list[str], xs: list[float], baselines: list[float], style: TextStyle
) -> tuple[list[Callable[[], Box]], list[Glyph]]:
    """Draw texts; returns what gives each one's ink box once the layer is complete, and their glyphs."""
    boxes: list[Callable[[], Box]] = []
    glyphs: list[Glyph] = []
    for text, x, y in zip(texts, xs, baselines, strict=True):
        ends = ink.text(text, (x, y), style)
        boxes.append(partial(ink.box, (x, y), style, float(ends[-1])))
        glyphs += glyphs_of(text, (x, y), style, ends)
    return boxes, glyphs


def _check_grid(size: int, grid: int) -> None:
    if size < 1 or grid < 1:
        raise ValueError(f"expected a positive size and grid, got size={size}, grid={grid}")


def glyph_targets(glyphs: Sequence[Glyph], *, size: int, grid: int, slots: int = 3) -> np.ndarray:
    """The characters whose box centre lies in each patch, left to right; those beyond `slots` are dropped.

    Returns:
        int64 [grid, grid, slots], (y, x) row-major: 0 for none, else 1 + index in `CHARSET`.

    Raises:
        ValueError: `size`, `grid` or `slots` below 1.
    """
    _check_grid(size, grid)
    if slots < 1:
        raise ValueError(f"expected at least one slot, got {slots}")
    boxes = np.array([glyph.box for glyph in glyphs]).reshape(-1, 4)
    classes = np.array([class_of(glyph.char) for glyph in glyphs], np.int64)
    centre_x, centre_y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
    column, row = (np.clip(centre * grid / size, 0, grid - 1).astype(np.int64) for centre in (centre_x, centre_y))
    return in_slots(row * grid + column, classes, centre_x, grid * grid, slots).reshape(grid, grid, slots)


def in_slots(patches: np.ndarray, classes: np.ndarray, x: np.ndarray, count: int, slots: int) -> np.ndarray:
    """The classes of what each of `count` patches holds, by x; what is beyond `slots` is dropped.

    Args:
        patches, classes, x: [n] of each character.

    Returns:
        int64 [count, slots], 0 for none.
    """
    targets = np.zeros((count, slots), np.int64)
    order = np.lexsort((x, patches))
    patches, classes = patches[order], classes[order]
    slot = np.arange(len(patches)) - np.searchsorted(patches, patches)  # rank within its patch
    fits = slot < slots
    targets[patches[fits], slot[fits]] = classes[fits]
    return targets


def box_targets(boxes: Sequence[Box], *, size: int, grid: int) -> np.ndarray:
    """Which patches show part of any box: float32 [grid, grid], (y, x), 1 where they do.

    A patch counts if the box reaches into it by 20 % of the patch side or 1.5 px, whichever is less, on both axes, or
    if it holds the box's centre line, so that very thin boxes count too.

    Raises:
        ValueError: `size` or `grid` below 1.
    """
    _check_grid(size, grid)
    targets = np.zeros((grid, grid), np.float32)
    for x0, y0, x1, y1 in boxes:
        rows, columns = _covered(y0, y1, size, grid), _covered(x0, x1, size, grid)
        targets[np.ix_(rows, columns)] = 1.0
    return targets


def _covered(low: float, high: float, size: int, grid: int) -> np.ndarray:
    """Which of `grid` equal intervals of [0, size] the range reaches into, bool [grid]."""
    side = size / grid
    starts = np.arange(grid) * side
    covered: np.ndarray = np.minimum(high, starts + side) - np.maximum(low, starts) >= min(0.2 * side, 1.5)
    covered[int(np.clip((low + high) / 2 / side, 0, grid - 1))] = True
    return covered
