"""Domain `chart`: bar charts with named bars, a labelled axis, and optionally a number at every bar.

Bars without numbers end at a tick of the axis, so that every value is on the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...modeling.image_processing_arr_coc import Box
from ..glyphs import MAX_FONT, Styles
from ..questions import Wordings
from ..splits import Split
from ..values import CITIES, DAYS, DEPARTMENTS, MONTHS, PRODUCTS, REGIONS, pick, sample_words
from .canvas import Canvas, least_pixels, text_unit
from .page import Layouts, Page, Question, QuestionWriter, Span, interleave, register


@dataclass(frozen=True)
class Layout:
    """Vertical or horizontal bars; a number at every bar, or grid lines; a colour for each bar; a frame."""

    lying: bool = False
    labelled: bool = True
    coloured: bool = False
    frame: bool = False


LAYOUTS = Layouts(
    train={
        "upright": Layout(),
        "upright_coloured": Layout(coloured=True),
        "upright_grid": Layout(labelled=False),
        "lying": Layout(lying=True),
        "lying_coloured": Layout(lying=True, coloured=True),
        "lying_grid": Layout(lying=True, labelled=False),
    },
    test={
        "upright_frame": Layout(frame=True),
        "upright_coloured_grid": Layout(labelled=False, coloured=True),
        "lying_frame": Layout(lying=True, frame=True),
        "lying_coloured_grid": Layout(lying=True, labelled=False, coloured=True),
    },
)

WORDINGS: dict[str, Wordings] = {
    "value": Wordings(
        (
            "What is the value of {name}?", "What value does the bar {name} have?",
            "What does the chart show for {name}?", "Find the value of {name}.",
        ),
        ("What value does {name} have?", "What is the value of the bar {name}?", "Find the value of the bar {name}."),
    ),
    "name_of_value": Wordings(
        ("Which {noun} has the value {value}?", "What is the {noun} with the value {value}?"),
        ("Find the {noun} with the value {value}.",),
    ),
    "highest": Wordings(
        ("Which {noun} has the highest value?", "Which bar is the highest?", "What {noun} is highest?"),
        ("Which {noun} is the highest?", "Which bar has the highest value?"),
    ),
    "lowest": Wordings(
        ("Which {noun} has the lowest value?", "Which bar is the lowest?", "What {noun} is lowest?"),
        ("Which {noun} is the lowest?", "Which bar has the lowest value?"),
    ),
    "value_of_highest": Wordings(
        ("What is the highest value?", "What value does the highest {noun} have?"),
        ("What is the value of the highest {noun}?",),
    ),
}  # fmt: skip

_CATEGORIES = (
    ("month", MONTHS), ("day", DAYS), ("region", REGIONS), ("department", DEPARTMENTS), ("product", PRODUCTS),
    ("city", tuple(city for city in CITIES if " " not in city)),
)  # fmt: skip
_CLOSED = ("month", "day")  # words with a fixed order, none held out
_STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000)
_MIN_BARS, _MAX_BARS = 3, 9
_CONTRAST = 45.0  # least difference in luminance (0..255) between bars and paper


@dataclass(frozen=True)
class Series:
    """The content of a chart: a title (or ""), the noun of the bars, their names and values, and the axis' ticks."""

    title: str
    noun: str
    names: list[str]
    values: list[int]
    ticks: list[int]


@dataclass(frozen=True)
class Plot:
    """The plan of a chart that fits: styles, area of the bars, right and top including numbers, width of the bars.

    `share` is the bars' share of their slots; the title's place is x of its start and y of its baseline.
    """

    styles: Styles
    area: Box
    outer: tuple[float, float]
    share: float
    title: tuple[float, float] | None


def _sample_series(rng: np.random.Generator, layout: Layout, split: Split) -> Series:
    noun, pool = _CATEGORIES[int(rng.integers(len(_CATEGORIES)))]
    count = int(rng.integers(_MIN_BARS, _MAX_BARS + 1))
    if noun in _CLOSED:
        first = int(rng.integers(len(pool) - min(count, len(pool)) + 1))
        names = list(pool[first : first + count])
    else:
        names = sample_words(rng, pool, count, split)
    step, intervals = int(rng.choice(_STEPS)), int(rng.integers(3, 7))
    if layout.labelled:
        values = rng.integers(max(1, step * intervals // 10), step * intervals + 1, len(names))
    else:
        values = step * rng.integers(1, intervals + 1, len(names))
    title = pick(rng, ("{noun} chart", "Values by {noun}", "Results by {noun}")).format(noun=noun)
    title = title[0].upper() + title[1:] if rng.random() < 0.6 else ""
    return Series(title, noun, names, values.tolist(), [step * i for i in range(intervals + 1)])


def _plan(rng: np.random.Generator, styles: Styles, series: Series, layout: Layout, size: int) -> Plot | None:
    """Sizes and places that fit, or None."""
    unit = text_unit(size)
    edge = float(rng.uniform(4, 14)) * unit
    pixels = least_pixels(size) * float(rng.uniform(1.0, min(1.6, MAX_FONT * unit / least_pixels(size))))
    styles = styles.scaled(pixels, float(rng.uniform(1.0, 1.3)))
    gap = float(rng.uniform(0.4, 0.7)) * pixels
    tick = max(styles.label.width(str(value)) for value in series.ticks)
    name = max(styles.label.width(text) for text in series.names)
    number = max(styles.value.width(str(value)) for value in series.values) if layout.labelled else 0.0
    line = 1.3 * pixels
    heading = 1.6 * styles.heading.pixels if series.title else 0.0
    left = edge + (name if layout.lying else tick) + gap
    right = size - edge - (number + gap if layout.lying and layout.labelled else tick / 2)
    top = edge + heading + (0.6 * pixels if layout.lying or not layout.labelled else line)
    bottom = size - edge - line - 0.3 * pixels
    width, height, bars = right - left, bottom - top, len(series.names)
    slot, needed = (height / bars, 1.3 * pixels) if layout.lying else (width / bars, max(name, number) + 0.5 * pixels)
    interval, least = (width, tick + 0.6 * pixels) if layout.lying else (height, 1.2 * pixels)
    if (
        slot < needed
        or interval / (len(series.ticks) - 1) < least
        or styles.heading.width(series.title) > size - 2 * edge
    ):
        return None
    room = size - 2 * edge - styles.heading.width(series.title)
    title = (edge + room * float(rng.choice([0.0, 0.5])), edge + styles.heading.pixels) if series.title else None
    outer = (size - edge + 2 * unit, edge + heading)
    return Plot(styles, (left, top, right, bottom), outer, float(rng.uniform(0.4, 0.85)), title)


@dataclass(frozen=True)
class _Bars:
    """The drawn names, the texts of the values, and the bars as spans without text."""

    names: list[Span]
    values: list[Span]
    bars: list[Span]


class _Drawing:
    """Draws a chart; values run along the bars, slots across them."""

    def __init__(self, canvas: Canvas, plot: Plot, series: Series, layout: Layout) -> None:
        self.canvas, self.plot, self.series, self.layout = canvas, plot, series, layout
        self.gap = 0.35 * plot.styles.label.pixels
        self.cap = plot.styles.label.cap_height

    def draw(self) -> _Bars:
        ticks = self._axes()
        boxes = [self._bar(i, value) for i, value in enumerate(self.series.values)]
        colours = 1 if not self.layout.coloured else len(boxes)
        for i in range(colours):
            self.canvas.fill(boxes[i::colours], self.canvas.shade(_CONTRAST))
        names = [self._name(i, text) for i, text in enumerate(self.series.names)]
        if self.layout.labelled:
            values = [self._number(box, str(value)) for box, value in zip(boxes, self.series.values, strict=True)]
        else:
            values = [ticks[self.series.ticks.index(value)] for value in self.series.values]
        if self.plot.title is not None:
            self.canvas.write(self.series.title, self.plot.title, self.plot.styles.heading, "heading")
        return _Bars(names, values, [_area(box) for box in boxes])

    def _along(self, value: float) -> float:
        """x (horizontal bars) or y (vertical bars) of a value."""
        left, top, right, bottom = self.plot.area
        share = value / self.series.ticks[-1]
        return left + share * (right - left) if self.layout.lying else bottom - share * (bottom - top)

    def _middle(self, index: int) -> float:
        """y (horizontal bars) or x (vertical bars) of the middle of a bar."""
        left, top, right, bottom = self.plot.area
        low, high = (top, bottom) if self.layout.lying else (left, right)
        return low + (index + 0.5) * (high - low) / len(self.series.names)

    def _bar(self, index: int, value: int) -> Box:
        left, top, right, bottom = self.plot.area
        length = (bottom - top) if self.layout.lying else (right - left)
        half, middle = 0.5 * self.plot.share * length / len(self.series.names), self._middle(index)
        if self.layout.lying:
            return left, middle - half, self._along(value), middle + half
        return middle - half, self._along(value), middle + half, bottom

    def _axes(self) -> list[Span]:
        """Draws axes, ticks and the optional grid; returns the ticks' labels."""
        left, top, right, bottom = self.plot.area
        ruler, style, spans = self.canvas.ruler, self.plot.styles.label, []
        for value in self.series.ticks:
            at, text = self._along(value), str(value)
            if self.layout.lying:
                place = (at - style.width(text) / 2, bottom + self.gap + self.cap)
            else:
                place = (left - self.gap - style.width(text), at + self.cap / 2)
            spans.append(self.canvas.write(text, place, style, "label"))
            if self.layout.labelled:
                continue
            if self.layout.lying:
                ruler.vertical(top, bottom, at)
            else:
                ruler.horizontal(left, right, at)
        ruler.vertical(top, bottom, left)
        ruler.horizontal(left, right, bottom)
        if self.layout.frame:
            far, high = self.plot.outer
            ruler.vertical(high, bottom, far)
            ruler.horizontal(left, far, high)
            ruler.vertical(high, top, left)
            ruler.horizontal(right, far, bottom)
        return spans

    def _name(self, index: int, text: str) -> Span:
        left, _, _, bottom = self.plot.area
        style, middle = self.plot.styles.label, self._middle(index)
        if self.layout.lying:
            place = (left - self.gap - style.width(text), middle + self.cap / 2)
        else:
            place = (middle - style.width(text) / 2, bottom + self.gap + self.cap)
        return self.canvas.write(text, place, style, "label")

    def _number(self, box: Box, text: str) -> Span:
        style = self.plot.styles.value
        x0, y0, x1, y1 = box
        if self.layout.lying:
            return self.canvas.write(text, (x1 + self.gap, (y0 + y1 + self.cap) / 2), style)
        return self.canvas.write(text, ((x0 + x1 - style.width(text)) / 2, y0 - self.gap), style)


def _area(box: Box) -> Span:
    return Span("", lambda: box)


@register("chart", LAYOUTS, WORDINGS)
def draw_chart(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A chart of 3 to 9 bars, as many as fit."""
    canvas = Canvas(rng, size, split, upright=True)
    while True:
        name, layout = LAYOUTS.draw(rng, split)
        series = _sample_series(rng, layout, split)
        plot = _plan(rng, canvas.styles, series, layout, size)
        if plot is not None:
            break
    drawn = _Drawing(canvas, plot, series, layout).draw()
    image = canvas.finish()
    questions = _questions(QuestionWriter(WORDINGS, rng, split), series, layout, drawn)
    return Page(image, interleave(rng, questions), name, canvas.font, tuple(canvas.glyphs))


def _questions(ask: QuestionWriter, series: Series, layout: Layout, drawn: _Bars) -> Iterator[Question]:
    """Questions about a chart. A value read off the axis takes one more hop: from the bar to the tick."""
    counts = Counter(series.values)
    for index, name in enumerate(drawn.names):
        value, bar = drawn.values[index], drawn.bars[index]
        between, hops = ([], 1) if layout.labelled else ([bar], 2)
        yield ask("value", value, [name, *between], hops, name=name.text)
        if counts[series.values[index]] == 1:
            yield ask("name_of_value", name, [value, *between], hops, noun=series.noun, value=value.text)
    for kind, extreme in (("highest", max(series.values)), ("lowest", min(series.values))):
        if counts[extreme] == 1:
            yield ask(kind, drawn.names[series.values.index(extreme)], drawn.bars, noun=series.noun)
    highest = drawn.values[series.values.index(max(series.values))]
    yield ask("value_of_highest", highest, drawn.bars, 2, noun=series.noun)
