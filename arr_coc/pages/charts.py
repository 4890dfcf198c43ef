"""Charts: bars, lines and pies, with title and source, axes, a legend, gridlines or values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..modeling.image_processing_arr_coc import Box
from ..modeling.marks import BAR
from .maker import PAGES, PageMaker, on
from .question_writer import SPREAD, TWO_PLACES, boxes_of, spoken
from .sheet import Colour, Piece, Pieces, Style, joined
from .splits import pools, share
from .tables import row_heads

Texts = list[Piece | None]
Numbers = list[list[float]]  # by series


class Plot:
    """A chart's sheet, colours and styles, its title, and its data."""

    def __init__(self, maker: PageMaker, kind: str, most: int) -> None:
        self.maker, self.random, self.values, self.kind = maker, maker.random, maker.values, kind
        random = self.random
        self.layout = maker.arrange(kind)
        width, height = random.choice(((800, 560), (850, 600), (640, 480), (1024, 640), (700, 700), (600, 800)))
        dark = random.random() < 0.1
        paper = (34, 36, 44) if dark else (255, 255, 255) if random.random() < 0.7 else maker.tint()
        self.sheet = maker.open(width, height, paper)
        maker.sharp = random.random() < 0.6
        ink: Colour = (235, 235, 235) if dark else random.choice(((0, 0, 0), (60, 60, 60), (90, 90, 90)))
        family = maker.family(mono=0.03)
        self.body, self.bold = maker.styles(family, max(random.uniform(11, 17) * width / 800, 10), ink)
        self.faint: Colour = (90, 92, 100) if dark else (215, 215, 215)
        self.colours = [self._colour() for _ in range(12)]
        self.head, self.names = self._categories(most)
        measures = share(pools()[f"column {random.choice(('number', 'amount', 'percent'))}"][1], maker.split, "measure")
        self.measure = random.choice(measures) if random.random() < 0.75 else maker.words.noun().capitalize()
        self.sign = random.choice(("", "", "%", " %", "k", "M"))
        self.scale = random.uniform(20, 90) if "%" in self.sign else 10 ** random.uniform(0.5, 5)
        fine, coarse = random.choice((0, 1, 2)), random.choice((0, 0, 1))
        self.decimals = fine if self.scale < 100 else coarse if self.scale < 2000 else 0
        self.top, self.bottom = self._title(), float(height - 16)
        if random.random() > 0.6:
            self._source()

    def _categories(self, most: int) -> tuple[str, list[str]]:
        """What the categories are, and their names; for lines and some bars, consecutive years."""
        random, count = self.random, self.random.randint(3, most)
        if self.kind == "line chart" or self.kind == "bar chart" and random.random() < 0.3:
            bars = self.kind == "bar chart"
            form = random.choice(("{}", "{}", "{}*", "{}/{:02}")) if bars else "{}"
            count, head = (count, "Year") if bars else (count + 2, self.maker.one("head of years"))
            first = random.randint(1960, 2026 - count)
            return head, [form.format(year, (year + 1) % 100) for year in range(first, first + count)]
        while max(map(len, (drawn := row_heads(self.maker, count))[1])) > 24:
            pass
        return drawn

    def _colour(self) -> Colour:
        red, green, blue = self.random.sample(
            [self.random.randint(*ends) for ends in ((20, 110), (60, 200), (120, 240))], 3
        )
        return red, green, blue

    def _title(self) -> float:
        random, words = self.random, self.maker.words
        y = float(random.randint(14, 30))
        if random.random() < 0.12:
            return y
        noun, measure, head, year = words.noun, self.measure.lower(), self.head.lower(), self.values.year
        long = f"{words.adjective().capitalize()} {noun()}: {measure} per {head}, {year()}"
        of, dated = f"{self.measure} of {noun()}", f"{noun().capitalize()} {measure} {year()}"
        text = random.choice((f"{self.measure} by {head}", long, of, dated))
        style = (self.bold if random.random() < 0.6 else self.body) * random.uniform(1.15, 1.6)
        align = random.choice(("left", "middle", "middle"))
        self.maker.title, end = self.sheet.paragraph(text, 20, y + style.size, self.sheet.width - 40, style, 1.2, align)
        return end - style.size * 0.6

    def _source(self) -> None:
        name, style = self.values.company(), self.body.sized(max(9.5, self.body.size * 0.8))
        text = self.maker.one("source").replace("{}", name, 1).replace("{}", self.values.year())
        line = self.sheet.write(text, 20, self.sheet.height - 12, style)
        printed = style.printable(name)
        if printed in line.text and line.box[2] < self.sheet.width:
            self.maker.questions.ask("chart source", line.part(printed))
        self.bottom -= style.size * 1.5

    def numbers(self, count: int, smooth: bool = False) -> list[float]:
        """Random data that are not all 0; smooth ones differ little from their neighbours."""
        random, value, numbers = self.random, self.random.uniform(0.3, 0.7), []
        for _ in range(count):
            value = min(1.0, max(0.05, value + random.gauss(0, 0.12))) if smooth else random.uniform(0.08, 1)
            numbers.append(round(self.scale * value, self.decimals))
        return numbers if any(numbers) else [1.0, *numbers[1:]]

    def written(self, value: float, decimals: int | None = None) -> str:
        """A number with its unit."""
        return self.values.grouped(value, self.decimals if decimals is None else decimals) + self.sign

    def wide(self, text: str) -> float:
        """The width of a text in the body style."""
        return self.body.width(self.body.printable(text))

    def legend(self, names: Sequence[str], x: float, y: float, down: float = 0.0) -> list[Piece]:
        """Writes coloured squares with names in a line, or `down` below each other, as far as there is room."""
        pieces, body, side = list[Piece](), self.body, self.body.cap_height
        for name, colour in zip(names, self.colours, strict=False):
            if y > self.bottom:
                break
            self.sheet.rectangle(x, y - side, x + side, y, fill=colour)
            self.sheet.mark("", (x, y - side, x + side, y))
            pieces.append(self.sheet.write(name, x + side * 1.6, y, body))
            x, y = (x, y + down) if down else (pieces[-1].box[2] + body.size * 1.2, y)
        return pieces

    # questions

    def wording(self, kind: str, **names: str) -> str:
        """A question about the chart; of some, with a topic and a place that it does not name, as people ask."""
        words, values, random = self.maker.words, self.maker.values, self.random
        if random.random() < 0.4:
            noun, long, double = words.noun(), f"{words.adjective()} {words.noun()}", f"{words.noun()} {words.noun()}"
            topic = random.choice((noun, long, double, spoken(self.measure)))
            place = random.choice((values.country, values.city, values.company))()
            kind, names = f"{kind} in context", {**names, "topic": topic.removesuffix("s"), "place": place}
        return self.maker.questions.word(kind, **names)

    def about(self, count: int, counted: str = "how many bars") -> None:
        """Asks about the whole chart, and about absent things."""
        questions, random, kind = self.maker.questions, self.random, self.kind
        questions.gist("kind of chart", (kind, f"a {kind}", kind.removesuffix(" chart")))
        if random.random() < 0.6:
            questions.gist(counted, str(count))
        missing = [name for name in row_heads(self.maker, 4)[1] if name not in self.names]
        for name in missing[:2]:
            questions.absent(self.wording("chart value", category=name, measure=spoken(self.measure)))

    def ask(self, numbers: Sequence[float], labels: Sequence[Pieces], texts: Texts) -> None:
        """Asks for printed values by category, for categories by value, and for the highest and lowest ones."""
        questions, random, measure = self.maker.questions, self.random, spoken(self.measure)
        shown = [(label, text) for label, text in zip(labels, texts, strict=True) if text is not None and label]
        for label, text in random.sample(shown, min(5, len(shown))):
            word = self.wording("chart value", category=joined(label).rstrip("*"), measure=measure)
            questions.add(word, text.text, [text.box], boxes_of(label))
        said = [text.text for _, text in shown]
        for label, text in random.sample(shown, min(1, len(shown))):
            if said.count(text.text) == 1:
                questions.ask("chart category", label, text, value=text.text)
        for which, best in (("highest", max(numbers)), ("lowest", min(numbers))):
            close = [n for n in numbers if abs(n - best) < 0.04 * max(abs(best), 1e-9)]
            label, best_text = labels[numbers.index(best)], texts[numbers.index(best)]
            if len(close) > 1 and best_text is None or numbers.count(best) > 1 or not label:
                continue
            near = [best_text.box] if best_text else []
            word = self.wording(f"chart {which}", head=spoken(self.head), measure=measure)
            questions.add(word, joined(label), boxes_of(label), near, SPREAD)
            if best_text:
                questions.ask(f"chart {which} value", best_text, label, kind=SPREAD)


def nice_ticks(high: float) -> tuple[list[float], int]:
    """Round numbers from 0 to at least `high`, and their number of decimals."""
    step = 10 ** math.floor(math.log10(high / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if high / (step * factor) <= 6)
    ticks = [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]
    quarters = step < 10 and abs(step / 10 ** math.floor(math.log10(step)) - 2.5) < 1e-6
    return ticks, max(0, -math.floor(math.log10(step) + 1e-9)) + quarters


def _axes(plot: Plot, area: Box, high: float, grid: bool, x_title: float | None) -> float:
    """Draws ticks at the left of the area, gridlines and titles of the axes; returns the height of 1 px."""
    x0, y0, x1, y1 = area
    (ticks, decimals), sheet, body, random, maker = nice_ticks(high), plot.sheet, plot.body, plot.random, plot.maker
    for tick in ticks:
        y = y1 - tick / ticks[-1] * (y1 - y0)
        if grid:
            sheet.across(x0, x1, y, plot.faint)
        sheet.write(plot.written(tick, decimals), x0 - 8, y + body.cap_height / 2, body, "right")
    sheet.across(x0, x1, y1, body.colour)
    if "frame" in plot.layout:
        sheet.rectangle(x0, y0, x1, y1, outline=body.colour)
    titles: dict[str, Pieces] = {"x axis": [], "y axis": []}
    if x_title is not None:
        titles["x axis"] = [sheet.write(plot.head, (x0 + x1) / 2, x_title, body, "middle")]
    if random.random() < 0.45:
        text = plot.measure if random.random() < 0.5 else maker.one("axis").replace("{}", plot.measure.lower())
        titles["y axis"] = [sheet.write(text, x0 - body.size * 0.4, y0 - body.size * 0.8, body)]
    for word, pieces in titles.items():
        if pieces:
            maker.questions.ask(word, pieces)
        elif random.random() < 0.2:
            maker.questions.lack(word)
    return ticks[-1] / (y1 - y0)


def _several(plot: Plot, count: int, lines: bool) -> tuple[Numbers, list[str]]:
    """Series of numbers of one scale, and their names."""
    random, noun, company = plot.random, plot.maker.words.noun, plot.values.company
    series = [plot.numbers(len(plot.names), lines) for _ in range(count)]
    most = max(map(max, series))
    if lines:
        factors = [1.0, *(random.uniform(0.6, 1) * most / max(each) for each in series[1:])]
        series = [[round(n * f, plot.decimals) for n in each] for each, f in zip(series, factors, strict=True)]
    names: dict[str, None] = {}
    while len(names) < count:
        other = company() if lines else str(2000 + 7 * len(names) + random.randint(0, 6))
        names[noun().capitalize() if random.random() < 0.55 else other] = None
    return series, list(names)


def _fitted(plot: Plot, room: float) -> Style:
    """A style in which each word of the categories' names fits, some of which are left out if need be."""
    body, names = plot.body, plot.names
    while True:
        step = room / len(names)
        longest = max(body.width(word) for name in names for word in body.printable(name).split())
        style = body if longest < step * 0.94 else body.sized(max(8.5, body.size * step * 0.94 / longest))
        if longest * style.size / body.size <= step * 0.96 or len(names) < 3:
            return style
        del names[max(range(len(names)), key=lambda i: max(map(len, names[i].split())))]


def _upright(plot: Plot, lines: bool) -> None:
    """Bars or lines of one to three series over categories."""
    random, sheet, body, layout = plot.random, plot.sheet, plot.body, plot.layout
    several = random.choice((1, 1, 2, 2, 3) if lines else (2, 2, 3))
    if not lines and layout != "vertical groups" and random.random() < 0.7:
        several = 1
    del plot.names[5 if several > 1 and not lines else 99 :]
    widest = 16 + max(plot.wide(plot.written(plot.scale * factor)) for factor in (1, 1.25)) + 24
    left, right = widest, float(sheet.width - random.randint(16, 40))
    style = body if lines else _fitted(plot, right - left)
    series, series_names = _several(plot, several, lines)
    at_ends = layout == "end labels" and several > 1
    right -= max(map(plot.wide, series_names)) if at_ends else 0
    top, legend = plot.top + body.size * 2.6, list[Piece]()
    if several > 1 and not at_ends:
        legend = plot.legend(series_names, 30, plot.top + body.size * 0.9)
        top += body.size * 1.3
    inset = max(10.0, plot.wide(plot.written(plot.scale)) / 2) if lines else 0.0
    step = (right - left - 2 * inset) / (len(plot.names) - lines)
    xs = [left + inset + (i + (not lines) / 2) * step for i in range(len(plot.names))]
    rows = max(len(style.wrap(name, step * 0.96)) for name in plot.names) if not lines else 1
    x_title = plot.bottom - body.size * 0.2 if random.random() < 0.45 else None
    bottom = plot.bottom - body.size * (1.2 * rows + 0.8 + 1.5 * (x_title is not None))
    grid = random.random() < 0.55 or layout in ("vertical grid", "grid", "markers", "legend under")
    pixel = _axes(plot, (left, top, right, bottom), max(map(max, series)) * 1.12, grid, x_title)
    every = max(1, math.ceil(body.width("00000 ") / step)) if lines else 1
    labels: list[Pieces] = [[] for _ in xs]
    for i in range(0, len(xs), every):
        room = step * 0.96 * every
        labels[i], _ = sheet.paragraph(
            plot.names[i], xs[i] - room / 2, bottom + body.size * 1.3, room, style, 1.2, "middle"
        )
    width = step * (0.85 if layout == "vertical wide" else random.uniform(0.5, 0.75)) / several
    room = width if several > 1 else step
    printed = random.random() < 0.75 and all(plot.wide(plot.written(n)) < room for each in series for n in each)
    printed = printed and (several == 1 or not lines)
    texts: list[Texts] = []
    for j, (numbers, colour) in enumerate(zip(series, plot.colours, strict=False)):
        places = [
            (x + (0 if lines else (j - several / 2 + 0.5) * width), bottom - n / pixel)
            for x, n in zip(xs, numbers, strict=True)
        ]
        if lines:
            sheet.line(*places, colour=colour, width=random.choice((1.5, 2, 3)))
        shown: Texts = []
        for (x, y), number in zip(places, numbers, strict=True):
            inside = layout == "vertical values inside" and bottom - y > body.size * 2
            if not lines:
                bar = (x - width / 2, round(y), x + width / 2 - 1, round(bottom))
                sheet.rectangle(*bar, fill=colour)
                sheet.mark(BAR, bar)
            elif printed or "markers" in layout:
                sheet.ellipse(x - 3, y - 3, x + 3, y + 3, fill=colour)
            ink = body.inked(on(colour)) if inside else body
            base = y + body.size * 1.1 if inside else y - (8 if lines else 4)
            shown.append(sheet.write(plot.written(number), x, base, ink, "middle") if printed else None)
        texts.append(shown)
        if at_ends:
            y = places[-1][1] + body.cap_height / 2
            while any(abs(y - other.base) < body.size for other in legend):
                y -= body.size * 0.5
            legend.append(sheet.write(series_names[j], right + 6, y, body.inked(colour)))
    _ask_series(plot, series_names, legend, series, labels, texts)
    if not lines or several == 1 == every:
        plot.about(len(plot.names))
    else:
        plot.about(several, "how many lines")


def _ask_series(
    plot: Plot, names: list[str], legend: list[Piece], series: Numbers, labels: list[Pieces], texts: list[Texts]
) -> None:
    questions, random = plot.maker.questions, plot.random
    if len(series) == 1:
        plot.ask(series[0], labels, texts[0])
        return
    if len(names) == 2:
        answers = tuple(names[0] + sign + names[1] for sign in (" and ", ", "))
        questions.add(questions.word("legend"), answers, boxes_of(legend), (), TWO_PLACES)
    for _ in range(6):
        j, i = random.randrange(len(series)), random.randrange(len(labels))
        if text := texts[j][i]:
            word = plot.wording("chart series value", series=names[j], category=joined(labels[i]).rstrip("*"))
            questions.add(word, text.text, [text.box], boxes_of([*labels[i], legend[j]]))


def _lying(plot: Plot) -> None:
    """Horizontal bars with names at their left."""
    random, sheet, body, names, layout = plot.random, plot.sheet, plot.body, plot.names, plot.layout
    numbers = plot.numbers(len(names))
    if random.random() < 0.5:
        numbers.sort(reverse=True)
    left = 34 + min(max(map(plot.wide, names)), sheet.width * 0.35)
    right = sheet.width - 36 - plot.wide(plot.written(max(numbers)))
    axis = layout == "horizontal" and random.random() < 0.6
    top, bottom = plot.top + body.size * 1.2, plot.bottom - body.size * (1.2 + 1.6 * axis)
    step = min((bottom - top) / len(names), 70)
    bottom, (ticks, decimals) = top + step * len(names), nice_ticks(max(numbers))
    pixel = (ticks[-1] if axis else max(numbers)) / (right - left)
    for tick in ticks if axis else ():
        x = left + tick / pixel
        sheet.line((round(x), top), (round(x), bottom), colour=plot.faint)
        sheet.write(plot.written(tick, decimals), x, bottom + body.size * 1.4, body, "middle")
    printed = not axis or random.random() < 0.6
    labels, texts = list[Pieces](), Texts()
    for i, (name, number) in enumerate(zip(names, numbers, strict=True)):
        y, end = top + (i + 0.5) * step, left + number / pixel
        colour, base = plot.colours[i if layout == "horizontal plain" else 0], y + body.cap_height / 2
        bar = (left, y - step * 0.32, end, y + step * 0.32)
        sheet.rectangle(*bar, fill=colour)
        sheet.mark(BAR, bar)
        first = base - (len(body.wrap(name, left - 34)) - 1) * body.size * 0.55
        labels.append(sheet.paragraph(name, 24, first, left - 34, body, 1.1, "right")[0])
        texts.append(sheet.write(plot.written(number), end + 6, base, body) if printed else None)
    sheet.line((left, top), (left, bottom), colour=body.colour)
    plot.ask(numbers, labels, texts)
    plot.about(len(names))


@PAGES.register("bar chart")
def bar_chart(maker: PageMaker) -> None:
    """Vertical or horizontal bars of one to three series."""
    plot = Plot(maker, "bar chart", 9)
    if plot.layout.startswith("horizontal"):
        _lying(plot)
    else:
        _upright(plot, lines=False)


@PAGES.register("line chart")
def line_chart(maker: PageMaker) -> None:
    """One to three lines over years."""
    _upright(Plot(maker, "line chart", 9), lines=True)


@PAGES.register("pie chart")
def pie_chart(maker: PageMaker) -> None:
    """A pie or a ring with its shares."""
    plot = Plot(maker, "pie chart", 7)
    random, sheet, body, names, layout = plot.random, plot.sheet, plot.body, plot.names, plot.layout
    parts = [random.uniform(0.4, 2) ** 2 for _ in names]
    plot.decimals, plot.sign = random.choice((0, 0, 1)), random.choice(("%", "%", " %"))
    shares = [round(100 * part / sum(parts), plot.decimals) for part in parts]
    legend = layout.startswith("legend")
    radius = min(sheet.width * (0.3 if legend else 0.26), (plot.bottom - plot.top) * (0.4 if legend else 0.33))
    x0, y0 = sheet.width * {"legend": 0.36, "legend left": 0.66}.get(layout, 0.5), (plot.top + plot.bottom) / 2 + 8
    labels: list[Pieces] = [[] for _ in names]
    if legend:
        x, y = {"legend": sheet.width * 0.68, "legend left": 30.0}.get(layout, sheet.width * 0.25), y0
        y -= len(names) * body.size * 0.9
        if layout == "legend under":
            radius, y0 = radius * 0.8, plot.top + radius * 0.9 + 10
            y = y0 + radius + body.size * 2
        pieces = plot.legend(names, x, y, body.size * (1.4 if layout == "legend under" else 1.8))
        labels[: len(pieces)] = [[piece] for piece in pieces]
    angle, texts = random.uniform(-90, 0), Texts()
    for i, (name, part) in enumerate(zip(names, shares, strict=True)):
        turn = 360 * part / sum(shares)
        sheet.slice(x0 - radius, y0 - radius, x0 + radius, y0 + radius, angle, angle + turn, plot.colours[i])
        across, down = math.cos(math.radians(angle + turn / 2)), math.sin(math.radians(angle + turn / 2))
        angle, low, text, both = angle + turn, body.cap_height / 2, plot.written(part), False
        if not legend:
            x, y = x0 + across * (radius + 12), y0 + down * (radius + 12) + low
            room = (sheet.width - x if across > 0 else x) - 4
            both = layout in ("labels and shares", "ring labels") and plot.wide(f"{name} {text}") < room
            if plot.wide(name) > room or part < 4:
                texts.append(None)
                continue
            line = sheet.write(f"{name} {text}" if both else name, x, y, body, "left" if across > 0 else "right")
            labels[i] = [line.part(body.printable(name))]
            if both:
                texts.append(line.part(body.printable(text)))
        if not both:
            x, y = x0 + across * radius * 0.7, y0 + down * radius * 0.7 + low
            inside = part > 7 and bool(labels[i])
            texts.append(sheet.write(text, x, y, body.inked(on(plot.colours[i])), "middle") if inside else None)
    if layout.startswith("ring"):
        hole = radius * 0.55
        sheet.ellipse(x0 - hole, y0 - hole, x0 + hole, y0 + hole, fill=sheet.paper)
    plot.ask(shares, labels, texts)
    plot.about(len(names))
