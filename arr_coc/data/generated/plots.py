"""What charts are made of: a plot with its title and source, axes, numbers and a legend."""

# ruff: noqa: E501, SIM905 (lists are readable as running text)
from __future__ import annotations

import math
from collections.abc import Callable

from ..splits import share
from .asking import SPREAD, TWO_PLACES, boxes_of, spoken
from .page import PageMaker
from .sheet import Colour, Piece, Style, joined
from .tables import COLUMNS, row_heads

_SOURCES = (
    "Source: {}",
    "Source: {} {}",
    "Data: {}",
    "{} | {}",
    "Sources: {}",
    "© {}",
    "Based on data of {}",
    "Note: data by {}",
    "According to {}",
    "Compiled from {}",
)


_UNITS = (
    "in %",
    "in thousands",
    "in million USD",
    "Number of {}",
    "{} per year",
    "Value in EUR",
    "in tonnes",
    "{} (kg)",
    "Index",
    "{} (hours)",
    "Share of {} (%)",
    "{} in thousands",
    "Average {}",
    "{} in billion",
)


class Plot:
    """A chart's sheet, colours and styles, its title, and its data."""

    def __init__(self, maker: PageMaker, kind: str, layouts: tuple[str, ...], most: int) -> None:
        self.maker, self.random, self.values = maker, maker.random, maker.values
        random = self.random
        self.layout = maker.arrange(layouts, kind, 2)
        width, height = random.choice(((800, 560), (850, 600), (640, 480), (1024, 640), (700, 700), (600, 800)))
        self.dark = random.random() < 0.1
        self.sheet = maker.open(
            width, height, (34, 36, 44) if self.dark else (255, 255, 255) if random.random() < 0.7 else maker.tint()
        )
        maker.sharp = random.random() < 0.6
        ink: Colour = (235, 235, 235) if self.dark else random.choice(((0, 0, 0), (60, 60, 60), (90, 90, 90)))
        family = maker.family(mono=0.03)
        size = random.uniform(11, 17) * width / 800
        self.body = Style(family.regular, max(size, 10), ink)
        self.bold = Style(family.bold, self.body.size, ink)
        self.faint: Colour = (90, 92, 100) if self.dark else (215, 215, 215)
        self.colours = [self._colour() for _ in range(12)]
        head, names = row_heads(maker, random.randint(3, most))
        while max(map(len, names)) > 24:
            head, names = row_heads(maker, random.randint(3, most))
        self.head, self.names = head, names
        measures = share(COLUMNS[random.choice(("number", "amount", "percent"))], maker.split, "measure", 0)
        self.measure = random.choice(measures) if random.random() < 0.75 else maker.words.noun().capitalize()
        self.top = self._title()
        self.bottom = float(height - 16)
        self._source()

    def _colour(self) -> Colour:
        random = self.random
        base = [random.randint(20, 110), random.randint(60, 200), random.randint(120, 240)]
        random.shuffle(base)
        return (base[0], base[1], base[2])

    def _title(self) -> float:
        random, maker, size = self.random, self.maker, self.body.size
        y = float(random.randint(14, 30))
        self.title: list[Piece] = []
        if random.random() < 0.12:
            return y
        words = maker.words
        text = random.choice((f"{self.measure} by {self.head.lower()}", f"{words.adjective().capitalize()} {words.noun()}: {self.measure.lower()} per {self.head.lower()}, {self.values.year()}",
                              f"{self.measure} of {words.noun()}", f"{words.noun().capitalize()} {self.measure.lower()} {self.values.year()}"))  # fmt: skip
        style = Style(
            self.bold.face if random.random() < 0.6 else self.body.face,
            size * random.uniform(1.15, 1.6),
            self.body.colour,
        )
        align = random.choice(("left", "middle", "middle"))
        self.title, end = self.sheet.paragraph(text, 20, y + style.size, self.sheet.width - 40, style, 1.2, align)
        return end - style.size * 0.6

    def _source(self) -> None:
        random = self.random
        if random.random() < 0.6:
            return
        name = self.values.company()
        form = random.choice(share(_SOURCES, self.maker.split, "source", 2))
        text = form.replace("{}", name, 1).replace("{}", self.values.year())
        style = Style(self.body.face, max(9.5, self.body.size * 0.8), self.body.colour)
        line = self.sheet.write(text, 20, self.sheet.height - 12, style)
        printed = style.printable(name)
        if printed in line.text and line.box[2] < self.sheet.width:
            self.maker.asker.add(self.maker.asker.word("chart source"), printed, [line.part(printed).box])
        self.bottom -= style.size * 1.5

    def written(self, value: float, decimals: int, sign: str) -> str:
        return self.values.grouped(value, decimals) + sign

    def about(self, kind: str, count: int, counted: str = "how many bars") -> None:
        """Gist questions, and some about what is not there."""
        asker, random = self.maker.asker, self.random
        asker.gist("kind of chart", (kind, f"a {kind}", kind.removesuffix(" chart")))
        if random.random() < 0.5:
            asker.gist("kind of page", ("chart", "a chart", kind, f"a {kind}"))
        if self.title:
            asker.gist("title", joined(self.title), self.title)
        if random.random() < 0.6:
            asker.gist(counted, str(count))
        missing = [name for name in row_heads(self.maker, 4)[1] if name not in self.names]
        for name in missing[:2]:
            asker.absent(asker.word("chart value", category=name, measure=spoken(self.measure)))

    def compare(self, numbers: list[float], labels: list[list[Piece]], texts: list[Piece | None]) -> None:
        """Asks which is highest and lowest, and for their values where they are printed."""
        asker, measure = self.maker.asker, spoken(self.measure)
        for which, best in (("highest", max(numbers)), ("lowest", min(numbers))):
            close = [n for n in numbers if abs(n - best) < 0.04 * max(abs(best), 1e-9)]
            i, text = numbers.index(best), texts[numbers.index(best)]
            if len(close) > 1 and text is None or numbers.count(best) > 1 or not labels[i]:
                continue
            near = [text.box] if text else []
            asker.add(
                asker.word(f"chart {which}", measure=measure), joined(labels[i]), boxes_of(labels[i]), near, SPREAD
            )
            if text:
                asker.add(asker.word(f"chart {which} value"), text.text, [text.box], boxes_of(labels[i]), SPREAD)

    def ask_values(self, labels: list[list[Piece]], texts: list[Piece | None]) -> None:
        """Asks for the values that are printed, by category, and the other way round."""
        asker, random = self.maker.asker, self.random
        shown = [(label, text) for label, text in zip(labels, texts, strict=True) if text is not None and label]
        for label, text in random.sample(shown, min(5, len(shown))):
            word = asker.word("chart value", category=joined(label), measure=spoken(self.measure))
            asker.add(word, text.text, [text.box], boxes_of(label))
        said = [text.text for _, text in shown]
        for label, text in random.sample(shown, min(1, len(shown))):
            if said.count(text.text) == 1:
                asker.add(asker.word("chart category", value=text.text), joined(label), boxes_of(label), [text.box])

    def ask_axes(self, x: list[Piece], y: list[Piece]) -> None:
        for word, pieces in (("x axis", x), ("y axis", y)):
            if pieces:
                self.maker.asker.add(self.maker.asker.word(word), joined(pieces), boxes_of(pieces))
            elif self.random.random() < 0.2:
                self.maker.asker.absent(self.maker.asker.word(word))


def nice_ticks(low: float, high: float) -> tuple[list[float], int]:
    """Round numbers from at most low to at least high, and how many decimals they need."""
    span = high - low
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if span / (step * factor) <= 6)
    start = math.floor(low / step) * step
    ticks = [start + i * step for i in range(int(math.ceil((high - start) / step - 1e-9)) + 1)]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) + (
        1 if abs(step / 10 ** math.floor(math.log10(step)) - 2.5) < 1e-6 and step < 10 else 0
    )
    return ticks, decimals


def draw_numbers(plot: Plot, count: int, smooth: bool = False) -> tuple[list[float], int, str]:
    """Data, their decimals and the sign after them."""
    random = plot.random
    sign = random.choice(("", "", "%", " %", "k", "M"))
    scale = random.uniform(20, 90) if "%" in sign else 10 ** random.uniform(0.5, 5)
    decimals = random.choice((0, 1, 2)) if scale < 100 else random.choice((0, 0, 1)) if scale < 2000 else 0
    if not smooth:
        return [round(scale * random.uniform(0.08, 1), decimals) for _ in range(count)], decimals, sign
    value, numbers = random.uniform(0.3, 0.7), []
    for _ in range(count):
        value = min(1.0, max(0.05, value + random.gauss(0, 0.12)))
        numbers.append(round(scale * value, decimals))
    return numbers, decimals, sign


def axis_title(plot: Plot) -> str:
    random = plot.random
    if random.random() < 0.5:
        return plot.measure
    return random.choice(share(_UNITS, plot.maker.split, "axis", 3)).replace("{}", plot.measure.lower())


def y_axis(
    plot: Plot, area: tuple[float, float, float, float], low: float, high: float, sign: str, grid: bool
) -> tuple[Callable[[float], float], list[Piece]]:
    """Ticks at the left of the area with gridlines; gives where a value lies, and the axis' title."""
    x0, y0, x1, y1 = area
    ticks, decimals = nice_ticks(low, high)
    sheet, body = plot.sheet, plot.body
    title: list[Piece] = []
    if plot.random.random() < 0.45:
        title = [sheet.write(axis_title(plot), x0 - body.size * 0.4, y0 - body.size * 0.8, body)]
        if title[0].box[2] > sheet.width:
            title = title[:1]

    def at(value: float) -> float:
        return y1 - (value - ticks[0]) / (ticks[-1] - ticks[0]) * (y1 - y0)

    for tick in ticks:
        y = at(tick)
        if grid:
            sheet.line((x0, round(y)), (x1, round(y)), colour=plot.faint)
        sheet.write(plot.written(tick, decimals, sign), x0 - 8, y + body.cap_height / 2, body, "right")
    return at, title


def room_for_ticks(plot: Plot, high: float, sign: str) -> float:
    ticks, decimals = nice_ticks(0, high)
    return max(plot.body.width(plot.body.printable(plot.written(tick, decimals, sign))) for tick in ticks) + 24


def write_legend(plot: Plot, names: list[str], x: float, y: float, colours: list[Colour]) -> list[Piece]:
    """Squares of colour with names, in a line."""
    pieces, body = [], plot.body
    for name, colour in zip(names, colours, strict=False):
        side = body.cap_height
        plot.sheet.rectangle(x, y - side, x + side, y, fill=colour)
        piece = plot.sheet.write(name, x + side * 1.6, y, body)
        pieces.append(piece)
        x = piece.box[2] + body.size * 1.2
    if len(names) == 2:
        a, b = (piece.text for piece in pieces)
        plot.maker.asker.add(
            plot.maker.asker.word("legend"), (f"{a} and {b}", f"{a}, {b}"), boxes_of(pieces), kind=TWO_PLACES
        )
    return pieces
