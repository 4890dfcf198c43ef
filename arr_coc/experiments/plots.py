"""Plots by matplotlib: accuracy against cost with the Pareto front; labels do not overlap."""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..evaluation.reporting import require_extra

LABEL = 8
"""Font size of a mark's name, points."""

MARKS = "osD^vPX*"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#5f5f5f", "#b58900", "#56b4e9", "#000000")
"""Shape and colour of each kind (colours by Okabe and Ito, safe for colour-blind readers)."""

SIZES = ((7.0, 5.2), (8.5, 6.5), (10.0, 8.0), (12.0, 10.0))
"""Width and height in inches; the first size on which all names fit is used."""

_REACHES = (9, 14, 20, 30, 42, 56, 72, 90, 110, 130)
"""The largest distance between a name and its mark."""

_DIRECTIONS = 16
_MARK = 6
"""Half the side of the square around a mark in which no name is placed."""

Extent = tuple[float, float, float, float]
"""x0, y0, x1, y1."""


@dataclass(frozen=True)
class Point:
    """A mark with its name; `low` to `high` is its interval in y, `kind` gives its shape and colour."""

    name: str
    x: float
    y: float
    low: float
    high: float
    kind: str


def scatter(points: Sequence[Point], *, x_title: str, y_title: str) -> str:
    """SVG text of the points with intervals over a logarithmic x axis, with the Pareto front.

    Args:
        points: at least one; x above 0.
        x_title, y_title: titles of the axes.

    Raises:
        ValueError: matplotlib is not installed.
    """
    return as_svg(lambda: draw_scatter(points, x_title=x_title, y_title=y_title))


def as_svg(draw: Callable[[], Any]) -> str:
    """SVG text of the matplotlib figure that `draw` makes, the same for the same numbers.

    Raises:
        ValueError: matplotlib is not installed.
    """
    require_extra("matplotlib", "plots")
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "arr-coc", "svg.fonttype": "none"}):
        figure = draw()
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def draw_scatter(points: Sequence[Point], *, x_title: str, y_title: str) -> Any:
    """The matplotlib figure of `scatter`, in the smallest of `SIZES` on which every name fits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    for size in SIZES:
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)  # measures texts
        axes = figure.add_subplot(xscale="log", xlabel=x_title, ylabel=y_title)
        _draw_marks(axes, points)
        _set_ticks(axes, min(point.x for point in points), max(point.x for point in points))
        figure.draw_without_rendering()  # fixes the positions of the axes
        figure.set_layout_engine("none")
        if _write_names(axes, points):
            break
    return figure


def _draw_marks(axes: Any, points: Sequence[Point]) -> None:
    """Draws marks with intervals, kind by kind, the Pareto front, and a legend above the axes."""
    kinds = list(dict.fromkeys(point.kind for point in points))
    for number, kind in enumerate(kinds):
        alike = [point for point in points if point.kind == kind]
        reach = [[point.y - point.low for point in alike], [point.high - point.y for point in alike]]
        axes.errorbar(
            [point.x for point in alike], [point.y for point in alike], yerr=np.maximum(reach, 0),
            fmt=MARKS[number % len(MARKS)], color=COLOURS[number % len(COLOURS)], elinewidth=0.7, markersize=6,
            label=kind,
        )  # fmt: skip
    front = [points[place] for place in pareto_front([p.x for p in points], [p.y for p in points])]
    axes.plot(
        [p.x for p in front], [p.y for p in front], "--", color="grey", linewidth=0.9, drawstyle="steps-post", zorder=1
    )
    top = max(max(point.high, point.y) for point in points) or 1.0
    axes.set_ylim(-0.03 * top, 1.08 * top)  # so that marks at 0 are not cut off
    axes.set_xlim(min(point.x for point in points) / 1.25, max(point.x for point in points) * 1.35)
    axes.grid(axis="y", linewidth=0.3)
    axes.figure.legend(loc="outside upper center", ncols=min(4, len(kinds)), fontsize=LABEL, frameon=False)


def pareto_front(xs: Sequence[float], ys: Sequence[float]) -> list[int]:
    """Indices of the points, by rising x, whose y no other point of lower or equal x reaches."""
    front: list[int] = []
    for place in sorted(range(len(xs)), key=lambda i: (xs[i], -ys[i])):
        if not front or ys[place] > ys[front[-1]]:
            front.append(place)
    return front


# ---- labels -------------------------------------------------------------------------------------------------------


def _set_ticks(axes: Any, low: float, high: float) -> None:
    """Sets short numbers on the logarithmic axis, as many as fit without overlap."""
    axes.minorticks_off()
    for marks in _tick_candidates(low / 1.25, high * 1.35):
        axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
        axes.figure.draw_without_rendering()
        extents = [label.get_window_extent().extents for label in axes.get_xticklabels()]
        if all(right[0] - left[2] > 4 for left, right in zip(extents, extents[1:], strict=False)):
            return


def _tick_candidates(low: float, high: float) -> Iterator[list[float]]:
    """Ticks between two positive numbers, from many to few; finally one."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (range(10, 100), range(10, 100, 5), (10, 15, 20, 30, 50, 70), (10, 20, 50), (10, 30), (10,)):
        marks = [step * 10.0 ** (power - 1) for power in powers for step in steps]
        inside = [mark for mark in marks if low <= mark <= high]
        if 2 <= len(inside) <= 12:
            yield inside
    yield [float(f"{math.sqrt(low * high):.2g}")]


def _write_names(axes: Any, points: Sequence[Point]) -> bool:
    """Places each point's name where it overlaps no other name and no mark; False if a name has no such place."""
    renderer = axes.figure.canvas.get_renderer()
    frame = tuple(axes.get_window_extent(renderer).extents)
    centres = [tuple(axes.transData.transform((point.x, point.y))) for point in points]
    marks: list[Extent] = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in centres]
    bars: list[Extent] = []
    for point in points:
        (x, low), (_, high) = (axes.transData.transform((point.x, end)) for end in (point.low, point.high))
        bars.append((x - 1, low, x + 1, high))
    names: list[Extent] = []
    for point, (x, y) in zip(points, centres, strict=True):
        text = axes.annotate(point.name, (point.x, point.y), fontsize=LABEL, ha="center", va="center")
        x0, y0, x1, y1 = text.get_window_extent(renderer).extents
        text.remove()
        width, height = x1 - x0 + 2, y1 - y0 + 2
        places = [place for place in _places(x, y, width, height) if _inside(_around(*place, width, height), frame)]
        free = [place for place in places if not _hits(_around(*place, width, height), [*marks, *names])]
        clear = [place for place in free if not _hits(_around(*place, width, height), bars)]
        if not free:
            return False
        # Prefer places off the intervals, unless they are far away.
        centre = clear[0] if clear and math.dist(clear[0], (x, y)) < 2 * math.dist(free[0], (x, y)) else free[0]
        names.append(_around(*centre, width, height))
        scale = 72 / axes.figure.dpi
        far = math.dist(centre, (x, y)) > width / 2 + height
        axes.annotate(
            point.name, (point.x, point.y), ((centre[0] - x) * scale, (centre[1] - y) * scale),
            textcoords="offset points", fontsize=LABEL, ha="center", va="center",
            bbox={"boxstyle": "square,pad=0", "facecolor": "white", "edgecolor": "none", "alpha": 0.7},
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": "grey", "shrinkB": 3} if far else None,
        )  # fmt: skip
    return True


def _places(x: float, y: float, width: float, height: float) -> Iterator[tuple[float, float]]:
    """Centres of a label around a mark: the nearest first, the right side before others."""
    for reach in _REACHES:
        for turn in range(_DIRECTIONS):
            # right, upper right, lower right, and so on to the left
            angle = 2 * math.pi / _DIRECTIONS * ((turn + 1) // 2) * (-1 if turn % 2 else 1)
            yield x + math.cos(angle) * (reach + width / 2), y + math.sin(angle) * (reach + height / 2)


def _around(x: float, y: float, width: float, height: float) -> Extent:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _inside(extent: Extent, frame: Extent) -> bool:
    return extent[0] >= frame[0] and extent[1] >= frame[1] and extent[2] <= frame[2] and extent[3] <= frame[3]


def _hits(extent: Extent, others: Sequence[Extent]) -> bool:
    x0, y0, x1, y1 = extent
    return any(x0 < right and left < x1 and y0 < top and bottom < y1 for left, bottom, right, top in others)
