"""Lines of `label value` on a page: their layouts, and the plan that makes them fit.

All lengths are pixels of the final image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..rasterising import Ink, TextStyle
from ..ruling import Ruler
from ..styles import MAX_FONT, MIN_FONT, Styles
from .page import Layouts

_EDGE = 4.0  # px at a 256 px page kept free of text on every side
_LINE = 1.16  # least line pitch in font sizes: ascent plus descent of the tallest font in use
_RULED_LINE = 1.32  # the same with a ruling line in between


@dataclass(frozen=True)
class Layout:
    """A way to set `label value` lines.

    Attributes:
        placement: value directly after its label, at a column shared by all lines, or ending at the right margin.
        rows: lines between rows.
        frame: a box around all rows.
        divider: a vertical line between labels and values.
        leaders: dots from a label to its value.
        underline: a line under every value.
        edges: lines above the first and below the last row.
    """

    placement: Literal["left", "spaced", "right"]
    rows: bool = False
    frame: bool = False
    divider: bool = False
    leaders: bool = False
    underline: bool = False
    edges: bool = False

    @property
    def ruled(self) -> bool:
        """Whether rows must leave room for a line between them."""
        return self.rows or self.underline


LAYOUTS = Layouts(
    train={
        "left": Layout("left"),
        "left_rows": Layout("left", rows=True),
        "left_frame": Layout("left", frame=True),
        "left_underline": Layout("left", underline=True),
        "spaced": Layout("spaced"),
        "spaced_rows": Layout("spaced", rows=True),
        "spaced_table": Layout("spaced", rows=True, frame=True, divider=True),
        "spaced_leaders": Layout("spaced", leaders=True),
        "spaced_divider": Layout("spaced", divider=True),
        "spaced_edges": Layout("spaced", edges=True),
        "right": Layout("right"),
        "right_rows": Layout("right", rows=True, edges=True),
        "right_frame": Layout("right", frame=True),
    },
    test={
        "left_edges": Layout("left", edges=True),
        "left_framed_rows": Layout("left", rows=True, frame=True),
        "spaced_frame": Layout("spaced", frame=True),
        "spaced_underline": Layout("spaced", underline=True),
        "right_leaders": Layout("right", leaders=True),
        "right_table": Layout("right", rows=True, frame=True, divider=True),
        "right_edges": Layout("right", edges=True),
    },
    weights={"left": 4.0, "spaced": 4.0, "right": 4.0},  # plain pages are the commonest ones
)


@dataclass(frozen=True)
class Plan:
    """A page that fits: styles at their final size, and the place of everything.

    Attributes:
        label_x, value_x: x of the start of every label and value.
        baselines: y of every row's baseline.
        bounds: y of the borders between rows, one more than rows.
        left, right: x range of the block of rows.
        divider_x: x between labels and values, where values share a column.
        title: x and baseline y of the title, or None.
    """

    label: TextStyle
    value: TextStyle
    heading: TextStyle
    label_x: list[float]
    value_x: list[float]
    baselines: list[float]
    bounds: list[float]
    left: float
    right: float
    divider_x: float
    title: tuple[float, float] | None


def sample_font_size(rng: np.random.Generator, *, size: int, height_per_row: float, ruled: bool) -> float | None:
    """A font size in px that lets rows of `height_per_row` px fit, mostly 11 to 17 px; None if not even 11 px does."""
    unit = size / 256
    largest = min(MAX_FONT * unit, height_per_row / (_RULED_LINE if ruled else _LINE))
    smallest = MIN_FONT * unit
    if largest < smallest:
        return None
    usual = min(17 * unit, largest)
    return float(rng.uniform(smallest, usual if rng.random() < 0.7 else largest))


def _needed_width(layout: Layout, labels: np.ndarray, values: np.ndarray, gap: float) -> float:
    widest = labels.max() + values.max() if layout.placement == "spaced" else (labels + values).max()
    return float(widest + gap)


def make_plan(
    rng: np.random.Generator,
    layout: Layout,
    styles: Styles,
    labels: list[str],
    values: list[str],
    title: str,
    size: int,
) -> Plan | None:
    """Place lines on a page of `size` px; None if they do not fit even at the smallest font.

    `labels` are as drawn, with their colons; an empty `title` means none.
    """
    unit, count = size / 256, len(labels)
    edge = (_EDGE + (3 if layout.frame else 0)) * unit
    ratio = float(rng.uniform(1.0, 1.35))
    title_rows = ratio * 1.45 if title else 0.0
    height = size - 2 * edge
    pixels = sample_font_size(rng, size=size, height_per_row=height / (count + title_rows), ruled=layout.ruled)
    if pixels is None:
        return None
    gap_ems = float(rng.uniform(0.3, 0.6) if rng.random() < 0.5 else rng.uniform(0.6, 2.5))
    gap_ems = max(gap_ems, 1.0) if layout.divider or layout.leaders or layout.placement == "right" else gap_ems
    available = size - 2 * edge
    for _ in range(4):
        styles = styles.scaled(pixels, ratio)
        label_widths = np.array([styles.label.width(text) for text in labels])
        value_widths = np.array([styles.value.width(text) for text in values])
        gap = gap_ems * pixels
        needed = _needed_width(layout, label_widths, value_widths, gap) + 0.3 * pixels  # slant overhangs
        heading_width = styles.heading.width(title) if title else 0.0
        excess = max(needed, heading_width) / available
        if excess <= 1:
            break
        if pixels <= MIN_FONT * unit:
            return None
        pixels = max(MIN_FONT * unit, 0.98 * pixels / excess)
    else:
        return None
    if layout.placement == "right":  # here widths show, so they include kerning
        value_widths = np.array([styles.value.advances(text)[-1] for text in values])
    left, right = _block_range(rng, layout, needed, edge, size)
    label_x, value_x, divider_x = _columns(rng, layout, label_widths, value_widths, left, right, gap)
    bounds, title_top = _rows(rng, layout, pixels, count, title_rows * pixels, edge, size)
    cap = styles.label.cap_height
    baselines = [(top + bottom) / 2 + cap / 2 for top, bottom in zip(bounds, bounds[1:], strict=False)]
    place = None
    if title:
        x = _title_start(rng, left, heading_width, edge, size)
        place = (x, title_top + 0.45 * title_rows * pixels + styles.heading.cap_height / 2)
    return Plan(
        styles.label, styles.value, styles.heading, label_x, value_x, baselines, bounds, left, right, divider_x, place
    )


def _title_start(rng: np.random.Generator, left: float, width: float, edge: float, size: int) -> float:
    """x of a title: somewhere between the page's edges, or at the left of the block where it fits there."""
    spare = size - 2 * edge - width
    x = edge + spare * float(rng.choice([0.0, 0.5, 1.0, rng.random()], p=[0.2, 0.4, 0.1, 0.3]))
    return left if rng.random() < 0.3 and left + width < size - edge else x


def _block_range(
    rng: np.random.Generator, layout: Layout, needed: float, edge: float, size: int
) -> tuple[float, float]:
    """x range of the block: often the whole page between margins, else narrower and anywhere."""
    free = size - 2 * edge - needed
    margin = min(free / 2, float(rng.uniform(0, 24)) * size / 256)
    left, right = edge + margin, size - edge - margin
    if rng.random() < 0.4:
        width = needed + float(rng.random()) * (right - left - needed)
        left += float(rng.random()) * (right - left - width)
        right = left + width
    return left, right


def _columns(
    rng: np.random.Generator,
    layout: Layout,
    labels: np.ndarray,
    values: np.ndarray,
    left: float,
    right: float,
    gap: float,
) -> tuple[list[float], list[float], float]:
    """Starts of labels and values, and the x of a line between them."""
    left, right = left + 0.1 * gap, right - 0.1 * gap
    starts = [left] * len(labels)
    column = left + labels.max() + gap
    if layout.placement == "left":
        return starts, [float(left + width + gap) for width in labels], column
    if layout.placement == "spaced":
        free = max(0.0, right - column - values.max())
        column += float(rng.random()) ** 1.5 * free
        middle = (left + labels.max() + column) / 2
        return starts, [float(column)] * len(labels), float(middle)
    ends = [float(right - width) for width in values]
    return starts, ends, float((left + labels.max() + min(ends)) / 2)


def _rows(
    rng: np.random.Generator, layout: Layout, pixels: float, count: int, title_height: float, edge: float, size: int
) -> tuple[list[float], float]:
    """Borders of the rows and the top of the title: tight or airy, at the top, the middle, the bottom, or spread."""
    least = pixels * (_RULED_LINE if layout.ruled else _LINE)
    room = size - 2 * edge - title_height
    largest = room / count
    spread = rng.random() < 0.25
    pitch = largest if spread else least + float(rng.beta(1, 2.5)) * (largest - least)
    heights = np.full(count, pitch)
    if not layout.ruled and rng.random() < 0.2:  # groups of rows with gaps between them
        gaps = rng.random(count) < 0.3
        gaps[0] = False
        if gaps.any():
            heights = heights + 0.8 * float(rng.random()) * (room - heights.sum()) / gaps.sum() * gaps
    free = max(0.0, room - float(heights.sum()))
    top = edge + free * float(rng.choice([0.0, 0.5, 1.0, rng.random()], p=[0.3, 0.2, 0.15, 0.35]))
    title_top = edge + float(rng.random()) * (top - edge) if rng.random() < 0.3 else top
    bounds = top + title_height + np.concatenate([[0.0], np.cumsum(heights)])
    return [float(bound) for bound in bounds], title_top


def draw_rules(rng: np.random.Generator, ink: Ink, layout: Layout, plan: Plan, label_ends: list[float]) -> None:
    """Draw a layout's lines; `label_ends` are the x where the drawn labels end."""
    ruler = Ruler(rng, ink)
    size = ink.size
    unit, pad = size / 256, 3 * size / 256
    x0, x1 = max(1.0, plan.left - pad), min(size - 2.0, plan.right + pad)
    top, bottom = max(1.0, plan.bounds[0]), min(size - 2.0, plan.bounds[-1])
    if layout.rows:
        for y in plan.bounds[1:-1]:
            ruler.horizontal(x0, x1, y)
    if layout.frame or layout.edges:
        ruler.horizontal(x0, x1, top)
        ruler.horizontal(x0, x1, bottom)
    if layout.frame:
        ruler.vertical(top, bottom, x0)
        ruler.vertical(top, bottom, x1)
    if layout.divider:
        ruler.vertical(top, bottom, plan.divider_x)
    step = float(rng.uniform(2.5, 6)) * unit
    for end, start, baseline, low in zip(label_ends, plan.value_x, plan.baselines, plan.bounds[1:], strict=True):
        if layout.leaders:
            ruler.dots(end + 2 * unit, start - 2 * unit, baseline, step)
        if layout.underline:
            ruler.horizontal(start, x1, low)
