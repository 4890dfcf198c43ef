"""A page to draw on, and rows of cells that share columns, for receipts, tables and lists.

Texts have boxes; colours and fonts are those of a split. All lengths are pixels of the final image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from PIL import Image

from ...modeling.image_processing_arr_coc import Box
from ..glyphs import CONTRAST, MAX_FONT, MIN_FONT, Glyph, Styles, check_page, sample_pen, sample_styles, write
from ..rasterising import Colour, Ink, Pen, Ruler, TextStyle, compose, luminance, sample_palette
from ..splits import Split
from .page import Span

Role = Literal["label", "value", "heading"]


def text_unit(size: int) -> float:
    """The scale of text on a page of `size` px, relative to a page of 256 px.

    It grows with the square root, so that larger pages hold more text, not only larger text.
    """
    return size / 256 if size < 256 else (size / 256) ** 0.5


def least_pixels(size: int) -> float:
    """The smallest font size on a page of `size` px, in px."""
    return MIN_FONT * text_unit(size)


class Canvas:
    """Collects layers of ink: filled shapes at the bottom, then ruling lines, then text.

    Args:
        rng: the only source of randomness.
        size: side of the page, px.
        split: split of fonts, contrast and distortions.
        upright: letters are neither stretched nor slanted, as is necessary for texts that are not in rows.
        window: (x, y, side) of the square part of the page to draw, px; None: all of it. Positions and boxes are
            relative to the page.
    """

    def __init__(
        self, rng: np.random.Generator, size: int, split: Split, *, upright: bool = False,
        window: tuple[int, int, int] | None = None,
    ) -> None:  # fmt: skip
        check_page(size, split)
        self.rng, self.size, self.split = rng, size, split
        self.pen = sample_pen(rng, split)
        self.styles = sample_styles(rng, self.pen, size, split).scaled(least_pixels(size), 1.0)
        if upright:
            self.styles = Styles(*(replace(style, stretch=1.0, shear=0.0) for style in vars(self.styles).values()))
        self.palette = sample_palette(rng, contrast=CONTRAST[split])
        self.glyphs: list[Glyph] = []
        self._fills: list[tuple[Ink, Colour]] = []
        self._side = size if window is None else window[2]
        self._corner = None if window is None else window[:2]
        self._rules = self._layer()
        self.ruler = Ruler(rng, self._rules, text_unit(size))
        self._inks = {"label": self._layer(self.pen)}
        same = self.palette.value == self.palette.label
        self._inks["value"] = self._inks["label"] if same else self._layer(self.pen)

    def _layer(self, pen: Pen | None = None) -> Ink:
        return Ink(self._side, pen, self._corner)

    def write(self, text: str, position: tuple[float, float], style: TextStyle, role: Role = "value") -> Span:
        """Draws a text from `position` (x of its start, y of its baseline) in the colour of its role."""
        ink = self._inks["value" if role == "value" else "label"]
        boxes, glyphs = write(ink, [text], [position[0]], [position[1]], style)
        self.glyphs += glyphs
        return Span(text, boxes[0])

    def fill(self, boxes: list[Box], colour: Colour) -> None:
        """Fills rectangles below all text."""
        ink = self._layer()
        for box in boxes:
            ink.rectangle(*box, 255)
        self._fills.append((ink, colour))

    def tint(self, strength: float) -> Colour:
        """The paper's colour, moved by a share towards the labels' ink."""
        paper, ink = np.asarray(self.palette.paper), np.asarray(self.palette.label)
        red, green, blue = (paper + strength * (ink - paper)).tolist()
        return red, green, blue

    def shade(self, contrast: float) -> Colour:
        """A random colour that differs from the paper by at least `contrast` in luminance (0..255)."""
        while True:
            red, green, blue = self.rng.uniform(0, 255, 3).tolist()
            if abs(luminance((red, green, blue)) - luminance(self.palette.paper)) >= contrast:
                return red, green, blue

    def finish(self) -> Image.Image:
        """The page; nothing can be added afterwards."""
        layers = [*self._fills, (self._rules, self.palette.rule), (self._inks["label"], self.palette.label)]
        if self._inks["value"] is not self._inks["label"]:
            layers.append((self._inks["value"], self.palette.value))
        unit, part = text_unit(self.size), self._side / self.size
        return compose(self.rng, layers, self.palette.paper, split=self.split, unit=unit, part=part)

    @property
    def font(self) -> str:
        """Family and style of the page's fonts."""
        return " + ".join(dict.fromkeys((self.styles.value.face.name, self.styles.label.face.name)))


Align = Literal["left", "centre", "right"]

_PITCH, _RULED_PITCH = 1.18, 1.36  # least line pitch in font sizes, without and with a line between rows
_HEADING_PITCH = 1.5
_EDGE = 4.0  # px at a 256 px page kept free of text on every side
_GAP = 1.0  # least gap between columns, in font sizes
_INLINE = 0.5  # space between the pieces of a spanning row, in font sizes
_SLANT = 0.3  # how far slanted letters can reach out of their cell, in font sizes
_SHRINKINGS = 4
_SHARE = {"left": 0.0, "centre": 0.5, "right": 1.0}


@dataclass(frozen=True)
class Row:
    """Texts and their roles: one per column ("" for none), or with `span` pieces of a line across all columns."""

    texts: tuple[str, ...]
    roles: tuple[Role, ...]
    span: Align | None = None

    @classmethod
    def of(cls, texts: Sequence[str], first: Role, others: Role) -> Row:
        """A row of cells whose first cell has another role."""
        return cls(tuple(texts), (first, *(others for _ in texts[1:])))


@dataclass(frozen=True)
class Ruling:
    """The lines and fills of a block of rows.

    Attributes:
        frame: a box around the rows.
        rows, columns: lines between them.
        header: a line under the first row.
        zebra: every other row tinted.
        leaders: dots from the first column's texts to the next column's.
    """

    frame: bool = False
    rows: bool = False
    columns: bool = False
    header: bool = False
    zebra: bool = False
    leaders: bool = False

    @property
    def ruled(self) -> bool:
        """Whether rows must leave room for a line between them."""
        return self.rows or self.header


@dataclass(frozen=True)
class RowsPlan:
    """The plan of rows that fit: styles at final size, x of every text, baselines, borders of rows and columns."""

    styles: Styles
    x: list[list[float]]
    baselines: list[float]
    bounds: list[float]
    columns: list[float]


def _style(styles: Styles, role: Role) -> TextStyle:
    style: TextStyle = getattr(styles, role)
    return style


def _widths(rows: Sequence[Row], styles: Styles) -> list[list[float]]:
    return [
        [_style(styles, role).width(text) if text else 0.0 for text, role in zip(row.texts, row.roles, strict=True)]
        for row in rows
    ]


def _needed(rows: Sequence[Row], widths: list[list[float]], pixels: float) -> tuple[np.ndarray, float]:
    """Widths of the columns, and the width that they and the spanning rows need."""
    cells = [line for row, line in zip(rows, widths, strict=True) if row.span is None]
    columns = np.max(cells, axis=0) if cells else np.zeros(1)
    table = columns.sum() + _GAP * pixels * (len(columns) - 1)
    spans = [
        sum(line) + _INLINE * pixels * (len(line) - 1)
        for row, line in zip(rows, widths, strict=True)
        if row.span is not None
    ]
    return columns, float(max([table, *spans]) + _SLANT * pixels)


def plan_rows(
    rng: np.random.Generator,
    rows: Sequence[Row],
    aligns: Sequence[Align],
    styles: Styles,
    size: int,
    *,
    ruled: bool = False,
) -> RowsPlan | None:
    """Places rows on a page of `size` px; None if they do not fit even in the smallest font.

    Args:
        rng: the only source of randomness.
        rows: from top to bottom.
        aligns: alignment of each column.
        styles: at any size.
        size: side of the page, px.
        ruled: rows leave room for a line between them.
    """
    unit, least = text_unit(size), least_pixels(size)
    edge = (_EDGE + 3) * unit
    ratio = float(rng.uniform(1.0, 1.3))
    pitch = _RULED_PITCH if ruled else _PITCH
    lines = np.array([_HEADING_PITCH * ratio if "heading" in row.roles else pitch for row in rows])
    available = size - 2 * edge
    largest = min(MAX_FONT * unit, available / lines.sum())
    if largest < least:
        return None
    usual = min(17 * unit, largest)
    pixels = float(rng.uniform(least, usual if rng.random() < 0.7 else largest))
    for _ in range(_SHRINKINGS):
        styles = styles.scaled(pixels, ratio)
        widths = _widths(rows, styles)
        columns, needed = _needed(rows, widths, pixels)
        if needed <= available:
            break
        if pixels <= least:
            return None
        pixels = max(least, 0.98 * pixels * available / needed)
    else:
        return None
    starts, borders = _columns(rng, columns, needed, pixels, size, edge)
    x = [_places(row, line, starts, borders, aligns, columns, pixels) for row, line in zip(rows, widths, strict=True)]
    bounds = _bounds(rng, lines * pixels, edge, size)
    middles = [(top + bottom) / 2 for top, bottom in zip(bounds, bounds[1:], strict=False)]
    caps = [_style(styles, row.roles[0]).cap_height for row in rows]
    baselines = [middle + cap / 2 for middle, cap in zip(middles, caps, strict=True)]
    return RowsPlan(styles, x, baselines, bounds, borders)


def _columns(
    rng: np.random.Generator, columns: np.ndarray, needed: float, pixels: float, size: int, edge: float
) -> tuple[list[float], list[float]]:
    """Starts of the columns and borders around them: the whole width of the page, or narrower at any place."""
    spare = size - 2 * edge - needed
    used = spare * float(1.0 if rng.random() < 0.4 else rng.random())
    left = edge + 0.5 * _SLANT * pixels + (spare - used) * float(rng.choice([0.0, 0.5, 1.0, rng.random()]))
    inner = needed + used - _SLANT * pixels
    gap = (inner - float(columns.sum())) / max(1, len(columns) - 1)
    starts = (left + np.concatenate([[0.0], np.cumsum(columns[:-1] + gap)])).tolist()
    between = [start - gap / 2 for start in starts[1:]]
    margin = 0.35 * pixels
    return starts, [left - margin, *between, left + inner + margin]


def _places(
    row: Row,
    widths: list[float],
    starts: list[float],
    borders: list[float],
    aligns: Sequence[Align],
    columns: np.ndarray,
    pixels: float,
) -> list[float]:
    """x of every text of a row."""
    if row.span is None:
        free = [column - width for column, width in zip(columns.tolist(), widths, strict=True)]
        return [start + _SHARE[align] * room for start, align, room in zip(starts, aligns, free, strict=True)]
    gap, margin = _INLINE * pixels, 0.35 * pixels
    total = sum(widths) + gap * (len(widths) - 1)
    x = borders[0] + margin + _SHARE[row.span] * (borders[-1] - borders[0] - 2 * margin - total)
    return [x + sum(widths[:i]) + gap * i for i in range(len(widths))]


def _bounds(rng: np.random.Generator, heights: np.ndarray, edge: float, size: int) -> list[float]:
    """Borders between rows: tight or loose, at the top, in the middle, at the bottom or anywhere."""
    spare = size - 2 * edge - float(heights.sum())
    heights = heights * (1 + float(rng.beta(1, 2)) * spare / heights.sum())
    free = size - 2 * edge - float(heights.sum())
    top = edge + free * float(rng.choice([0.0, 0.5, 1.0, rng.random()], p=[0.3, 0.3, 0.1, 0.3]))
    return [float(bound) for bound in top + np.concatenate([[0.0], np.cumsum(heights)])]


def draw_rows(canvas: Canvas, rows: Sequence[Row], plan: RowsPlan) -> list[list[Span | None]]:
    """Writes all rows; None for empty texts."""
    return [
        [
            canvas.write(text, (x, baseline), _style(plan.styles, role), role) if text else None
            for text, role, x in zip(row.texts, row.roles, places, strict=True)
        ]
        for row, places, baseline in zip(rows, plan.x, plan.baselines, strict=True)
    ]


def rule_rows(canvas: Canvas, ruling: Ruling, rows: Sequence[Row], plan: RowsPlan, first: int, last: int) -> None:
    """Draws the lines of rows `first` to `last` (exclusive) of a plan."""
    left, right, size = max(1.0, plan.columns[0]), min(canvas.size - 2.0, plan.columns[-1]), canvas.size
    bounds = [min(size - 2.0, bound) for bound in plan.bounds[first : last + 1]]
    ruler = canvas.ruler
    if ruling.zebra:
        tinted = [(left, top, right, low) for top, low in list(zip(bounds, bounds[1:], strict=False))[1::2]]
        canvas.fill(tinted, canvas.tint(0.1))
    if ruling.rows or ruling.header:
        for y in bounds[1:-1] if ruling.rows else bounds[1:2]:
            ruler.horizontal(left, right, y)
    if ruling.frame:
        ruler.horizontal(left, right, bounds[0])
        ruler.horizontal(left, right, bounds[-1])
        ruler.vertical(bounds[0], bounds[-1], left)
        ruler.vertical(bounds[0], bounds[-1], right)
    if ruling.columns:
        for x in plan.columns[1:-1]:
            ruler.vertical(bounds[0], bounds[-1], x)
    if ruling.leaders:
        _lead(canvas, rows, plan, first, last)


def _lead(canvas: Canvas, rows: Sequence[Row], plan: RowsPlan, first: int, last: int) -> None:
    unit = text_unit(canvas.size)
    step = float(canvas.rng.uniform(2.5, 6)) * unit
    for row, places, baseline in list(zip(rows, plan.x, plan.baselines, strict=True))[first:last]:
        filled = [i for i, text in enumerate(row.texts) if text]
        if row.span is not None or len(filled) < 2:
            continue
        here, following = filled[0], filled[1]
        end = places[here] + _style(plan.styles, row.roles[here]).width(row.texts[here])
        canvas.ruler.dots(end + 3 * unit, places[following] - 3 * unit, baseline, step)
