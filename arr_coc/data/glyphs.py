"""Characters on a page: their boxes, their patches, and their text styles.

Boxes are (x0, y0, x1, y1) in pixels of the final image; grids are [grid, grid], row-major, (y, x).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from ..modeling.image_processing_arr_coc import Box
from .fonts import find_fonts, pick_face, sibling
from .rasterising import MIN_STRETCH, Ink, Pen, TextStyle
from .splits import Split, check_split

PUNCTUATION = ".,:$/-#&'"
ALPHANUMERIC = string.digits + string.ascii_uppercase + string.ascii_lowercase
CHARSET: str = ALPHANUMERIC + PUNCTUATION
"""All characters of pages except the space; the order defines the classes of `glyph_targets`."""

_CLASS_OF = {char: index + 1 for index, char in enumerate(CHARSET)}


def class_of(char: str) -> int:
    """1 + index in `CHARSET`."""
    return _CLASS_OF[char]


@dataclass(frozen=True)
class Glyph:
    """A visible character; its box is the advance cell horizontally, and baseline to capital height vertically."""

    char: str
    box: Box


def glyphs_of(text: str, position: tuple[float, float], style: TextStyle, ends: np.ndarray) -> list[Glyph]:
    """The visible characters of a text at (x of start, y of baseline); `ends`: right ends of advance cells, px."""
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
    """Draws texts; returns functions for their ink boxes, valid when the layer is complete, and their glyphs."""
    boxes: list[Callable[[], Box]] = []
    glyphs: list[Glyph] = []
    for text, x, y in zip(texts, xs, baselines, strict=True):
        ends = ink.text(text, (x, y), style)
        boxes.append(partial(ink.box, (x, y), style, float(ends[-1])))
        glyphs += glyphs_of(text, (x, y), style, ends)
    return boxes, glyphs


def _check_grid(size: int, grid: int) -> None:
    if size < 1 or grid < 1:
        raise ValueError(f"expected a positive size and grid; got size={size}, grid={grid}")


def glyph_targets(glyphs: Sequence[Glyph], *, size: int, grid: int, slots: int = 3) -> np.ndarray:
    """The characters whose box centre is in each patch, left to right, at most `slots`.

    Returns:
        int64 [grid, grid, slots], (y, x) row-major: 0 for none, else 1 + index in `CHARSET`.

    Raises:
        ValueError: `size`, `grid` or `slots` below 1.
    """
    _check_grid(size, grid)
    if slots < 1:
        raise ValueError(f"expected at least one slot; got {slots}")
    boxes = np.array([glyph.box for glyph in glyphs]).reshape(-1, 4)
    classes = np.array([class_of(glyph.char) for glyph in glyphs], np.int64)
    centre_x, centre_y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
    column, row = (np.clip(centre * grid / size, 0, grid - 1).astype(np.int64) for centre in (centre_x, centre_y))
    return in_slots(row * grid + column, classes, centre_x, grid * grid, slots).reshape(grid, grid, slots)


def in_slots(patches: np.ndarray, classes: np.ndarray, x: np.ndarray, count: int, slots: int) -> np.ndarray:
    """The classes of the characters in each of `count` patches, ordered by x, at most `slots`.

    Args:
        patches, classes, x: [n], patch, class and position of each character.

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
    """The patches that show part of any box: float32 [grid, grid], (y, x), 1 on these patches.

    A patch counts if the box overlaps it by 20 % of the patch side or 1.5 px, whichever is less, on both axes, or if it
    contains the box's centre line, so that very thin boxes count too.

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
    """bool [grid]: True for those of `grid` equal intervals of [0, size] that the range overlaps."""
    side = size / grid
    starts = np.arange(grid) * side
    covered: np.ndarray = np.minimum(high, starts + side) - np.maximum(low, starts) >= min(0.2 * side, 1.5)
    covered[int(np.clip((low + high) / 2 / side, 0, grid - 1))] = True
    return covered


MIN_FONT = 11.0  # px at a 256 px page; smaller text is outside the domain
MAX_FONT = 26.0
CONTRAST: dict[Split, float] = {"train": 80.0, "validation": 110.0, "test": 110.0}
"""Least difference in luminance (0..255) between ink and paper."""


def check_page(size: int, split: str) -> None:
    """Refuses pages that cannot be drawn.

    Raises:
        ValueError: an unknown split, or a page too small for text.
    """
    check_split(split)
    if size < 64:
        raise ValueError(f"expected a size of at least 64 px, below which no text is readable; got {size}")


@dataclass(frozen=True)
class Styles:
    """The text styles of a page before their sizes are known."""

    label: TextStyle
    value: TextStyle
    heading: TextStyle

    def scaled(self, pixels: float, heading_ratio: float) -> Styles:
        """All three at a new size; the heading `heading_ratio` times larger."""
        return Styles(
            self.label.with_pixels(pixels),
            self.value.with_pixels(pixels),
            self.heading.with_pixels(pixels * heading_ratio),
        )


def sample_pen(rng: np.random.Generator, split: Split) -> Pen:
    """A random pen; training varies the weight of strokes, also unequally as in high-contrast faces."""
    supersample = 2 if rng.random() < 0.45 else 1
    if split != "train" or rng.random() < 0.5:
        return Pen(supersample)
    reach = (-0.55, 0.9) if supersample == 2 else (-0.25, 0.4)
    return Pen(supersample, (float(rng.uniform(*reach)), float(rng.uniform(*reach))))


def sample_style(rng: np.random.Generator, pen: Pen, size: int, split: Split) -> TextStyle:
    """A random text style; training distorts letters, so that shapes of unseen families are covered."""
    face, pixels = pick_face(rng, find_fonts(split)), MIN_FONT * size / 256
    if split != "train":
        return TextStyle(face, pixels, pen.supersample)
    narrow = face.family.endswith(("Condensed", "Narrow"))
    stretch = float(rng.uniform(0.95 if narrow else MIN_STRETCH, 1.2)) if rng.random() < 0.55 else 1.0
    lean = (-0.05, 0.1) if face.italic else (-0.05, 0.3)
    shear = float(rng.uniform(*lean)) if rng.random() < 0.4 else 0.0
    spacing = float(rng.uniform(-0.03, 0.15)) * pixels if rng.random() < 0.12 else 0.0
    return TextStyle(face, pixels, pen.supersample, stretch, shear, spacing)


def sample_styles(rng: np.random.Generator, pen: Pen, size: int, split: Split) -> Styles:
    """Styles of labels, values and the title: mostly one face, else siblings, rarely two families."""
    faces, base = find_fonts(split), sample_style(rng, pen, size, split)

    def vary(chance: float) -> TextStyle:
        if rng.random() >= chance:
            return base
        other_family = rng.random() < 0.25
        return replace(base, face=pick_face(rng, faces) if other_family else sibling(rng, base.face, faces))

    return Styles(label=vary(0.2), value=base, heading=vary(0.5))


def flow(
    rng: np.random.Generator, widths: Sequence[float], *, width: float, rows: int, gap: float
) -> list[tuple[int, float]] | None:
    """Row and x of every run, in reading order; None if they do not fit.

    On a sparse page lines break early, can be in any of the rows, and have wider gaps.

    Args:
        rng: the only source of randomness.
        widths: widths of the runs; a run stays on one line.
        width: width of a line.
        rows: the most lines.
        gap: least distance of two runs on a line.
    """
    least = sum(widths) / rows
    lines = _broken(widths, width, gap, enough=float(rng.uniform(least, max(least, width))))
    if len(lines) > rows:
        lines = _broken(widths, width, gap, enough=width)
    if len(lines) > rows or max(widths) > width:
        return None
    places: list[tuple[int, float]] = []
    for row, line in zip(np.sort(rng.permutation(rows)[: len(lines)]).tolist(), lines, strict=True):
        spare = width - sum(line) - gap * (len(line) - 1)
        shifts = np.sort(rng.uniform(0, spare, len(line))).tolist()
        starts = accumulate(line[:-1], lambda x, run: x + run + gap, initial=0.0)
        places += [(row, start + shift) for start, shift in zip(starts, shifts, strict=True)]
    return places


def _broken(widths: Sequence[float], width: float, gap: float, *, enough: float) -> list[list[float]]:
    """The runs in lines; a line breaks when it is full, or when its runs are `enough` wide."""
    lines: list[list[float]] = []
    for run in widths:
        line = lines[-1] if lines else []
        if not line or sum(line) >= enough or sum(line) + gap * len(line) + run > width:
            lines.append([run])
        else:
            line.append(run)
    return lines
