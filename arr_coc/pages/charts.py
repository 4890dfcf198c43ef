"""Charts: bars, lines and pies, with title and source, axes, a legend, gridlines or values."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..modeling.image_processing_arr_coc import Box
from .maker import PAGES, PageMaker, on
from .question_writer import SPREAD, TWO_PLACES, boxes_of, spoken
from .sheet import Colour, Piece, Style, joined
from .splits import pools, share
from .tables import row_heads

Labels = list[list[Piece]]
Texts = list[Piece | None]


class Plot:
    """A chart's sheet, colours and styles, its title, and its data."""

    def __init__(self, maker: PageMaker, kind: str, most: int) -> None:
        self.maker, self.random, self.values = maker, maker.random, maker.values
        random = self.random
        self.layout = maker.arrange(kind)
        width, height = random.choice(((800, 560), (850, 600), (640, 480), (1024, 640), (700, 700), (600, 800)))
        self.dark = random.random() < 0.1
        paper = (34, 36, 44) if self.dark else (255, 255, 255) if random.random() < 0.7 else maker.tint()
        self.sheet = maker.open(width, height, paper)
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
        if kind == "bar chart" and random.random() < 0.3:
            head, names = "Year", self._years(len(names))
        self.head, self.names = head, names
        measures = share(pools()[f"column {random.choice(('number', 'amount', 'percent'))}"][1], maker.split, "measure")
        self.measure = random.choice(measures) if random.random() < 0.75 else maker.words.noun().capitalize()
        self.top = self._title()
        self.bottom = float(height - 16)
        self._source()

    def _years(self, count: int) -> list[str]:
        first, form = self.random.randint(1985, 2026 - count), self.random.choice(("{}", "{}", "{}*", "{}/{:02}"))
        return [form.format(year, (year + 1) % 100) for year in range(first, first + count)]

    def wording(self, kind: str, **names: str) -> str:
        """A question about the chart; of some, with a topic and a place that it does not name, as people ask."""
        words, values, random = self.maker.words, self.maker.values, self.random
        if random.random() < 0.4:
            noun, long, double = words.noun(), f"{words.adjective()} {words.noun()}", f"{words.noun()} {words.noun()}"
            topic = random.choice((noun, long, double, spoken(self.measure)))
            place = random.choice((values.country, values.city, values.company))()
            kind, names = f"{kind} in context", {**names, "topic": topic.removesuffix("s"), "place": place}
        return self.maker.questions.word(kind, **names)

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
        noun, measure, head, year = words.noun, self.measure.lower(), self.head.lower(), self.values.year
        long = f"{words.adjective().capitalize()} {noun()}: {measure} per {head}, {year()}"
        of, dated = f"{self.measure} of {noun()}", f"{noun().capitalize()} {measure} {year()}"
        text = random.choice((f"{self.measure} by {head}", long, of, dated))
        face = (self.bold if random.random() < 0.6 else self.body).face
        style = Style(face, size * random.uniform(1.15, 1.6), self.body.colour)
        align = random.choice(("left", "middle", "middle"))
        self.title, end = self.sheet.paragraph(text, 20, y + style.size, self.sheet.width - 40, style, 1.2, align)
        return end - style.size * 0.6

    def _source(self) -> None:
        random = self.random
        if random.random() < 0.6:
            return
        name = self.values.company()
        form = self.maker.one("source")
        text = form.replace("{}", name, 1).replace("{}", self.values.year())
        style = self.body.sized(max(9.5, self.body.size * 0.8))
        line = self.sheet.write(text, 20, self.sheet.height - 12, style)
        printed = style.printable(name)
        if printed in line.text and line.box[2] < self.sheet.width:
            self.maker.questions.add(self.maker.questions.word("chart source"), printed, [line.part(printed).box])
        self.bottom -= style.size * 1.5

    def written(self, value: float, decimals: int, sign: str) -> str:
        return self.values.grouped(value, decimals) + sign

    def about(self, kind: str, count: int, counted: str = "how many bars") -> None:
        """Asks about the whole chart, and about absent things."""
        questions, random = self.maker.questions, self.random
        questions.gist("kind of chart", (kind, f"a {kind}", kind.removesuffix(" chart")))
        if random.random() < 0.5:
            questions.gist("kind of page", ("chart", "a chart", kind, f"a {kind}"))
        if self.title:
            questions.gist("title", joined(self.title), self.title)
        if random.random() < 0.6:
            questions.gist(counted, str(count))
        missing = [name for name in row_heads(self.maker, 4)[1] if name not in self.names]
        for name in missing[:2]:
            questions.absent(self.wording("chart value", category=name, measure=spoken(self.measure)))

    def compare(self, numbers: list[float], labels: Labels, texts: Texts) -> None:
        """Asks for the highest and lowest category, and for their values if these are printed."""
        questions, measure = self.maker.questions, spoken(self.measure)
        for which, best in (("highest", max(numbers)), ("lowest", min(numbers))):
            close = [n for n in numbers if abs(n - best) < 0.04 * max(abs(best), 1e-9)]
            i, text = numbers.index(best), texts[numbers.index(best)]
            if len(close) > 1 and text is None or numbers.count(best) > 1 or not labels[i]:
                continue
            near = [text.box] if text else []
            word = self.wording(f"chart {which}", head=spoken(self.head), measure=measure)
            questions.add(word, joined(labels[i]), boxes_of(labels[i]), near, SPREAD)
            if text:
                questions.ask(f"chart {which} value", text, labels[i], kind=SPREAD)

    def ask_values(self, labels: Labels, texts: Texts) -> None:
        """Asks for printed values by category, and for categories by value."""
        questions, random = self.maker.questions, self.random
        shown = [(label, text) for label, text in zip(labels, texts, strict=True) if text is not None and label]
        for label, text in random.sample(shown, min(5, len(shown))):
            category = joined(label).rstrip("*")
            word = self.wording("chart value", category=category, measure=spoken(self.measure))
            questions.add(word, text.text, [text.box], boxes_of(label))
        said = [text.text for _, text in shown]
        for label, text in random.sample(shown, min(1, len(shown))):
            if said.count(text.text) == 1:
                questions.ask("chart category", label, text, value=text.text)

    def ask_axes(self, x: list[Piece], y: list[Piece]) -> None:
        for word, pieces in (("x axis", x), ("y axis", y)):
            if pieces:
                self.maker.questions.ask(word, pieces)
            elif self.random.random() < 0.2:
                self.maker.questions.lack(word)


def nice_ticks(low: float, high: float) -> tuple[list[float], int]:
    """Round numbers from at most `low` to at least `high`, and their number of decimals."""
    span = high - low
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if span / (step * factor) <= 6)
    start = math.floor(low / step) * step
    ticks = [start + i * step for i in range(int(math.ceil((high - start) / step - 1e-9)) + 1)]
    quarters = step < 10 and abs(step / 10 ** math.floor(math.log10(step)) - 2.5) < 1e-6
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) + quarters
    return ticks, decimals


def draw_numbers(plot: Plot, count: int, smooth: bool = False) -> tuple[list[float], int, str]:
    """Random data that are not all 0, their decimals and the unit sign."""
    random = plot.random
    sign = random.choice(("", "", "%", " %", "k", "M"))
    scale = random.uniform(20, 90) if "%" in sign else 10 ** random.uniform(0.5, 5)
    decimals = random.choice((0, 1, 2)) if scale < 100 else random.choice((0, 0, 1)) if scale < 2000 else 0
    if not smooth:
        numbers = [round(scale * random.uniform(0.08, 1), decimals) for _ in range(count)]
        return numbers if any(numbers) else [1.0, *numbers[1:]], decimals, sign
    value, numbers = random.uniform(0.3, 0.7), []
    for _ in range(count):
        value = min(1.0, max(0.05, value + random.gauss(0, 0.12)))
        numbers.append(round(scale * value, decimals))
    return numbers, decimals, sign


def axis_title(plot: Plot) -> str:
    random = plot.random
    if random.random() < 0.5:
        return plot.measure
    return plot.maker.one("axis").replace("{}", plot.measure.lower())


def y_axis(plot: Plot, area: Box, high: float, sign: str, grid: bool) -> tuple[Callable[[float], float], list[Piece]]:
    """Draws ticks at the left of the area with gridlines; returns the map from values to y, and the axis' title."""
    x0, y0, x1, y1 = area
    ticks, decimals = nice_ticks(0, high)
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
            sheet.across(x0, x1, y, plot.faint)
        sheet.write(plot.written(tick, decimals, sign), x0 - 8, y + body.cap_height / 2, body, "right")
    return at, title


def room_for_ticks(plot: Plot, high: float, sign: str) -> float:
    ticks, decimals = nice_ticks(0, high)
    return max(plot.body.width(plot.body.printable(plot.written(tick, decimals, sign))) for tick in ticks) + 24


def write_legend(plot: Plot, names: list[str], x: float, y: float, colours: list[Colour]) -> list[Piece]:
    """Writes coloured squares with names in a line."""
    pieces, body = [], plot.body
    for name, colour in zip(names, colours, strict=False):
        side = body.cap_height
        plot.sheet.rectangle(x, y - side, x + side, y, fill=colour)
        piece = plot.sheet.write(name, x + side * 1.6, y, body)
        pieces.append(piece)
        x = piece.box[2] + body.size * 1.2
    if len(names) == 2:
        a, b = (piece.text for piece in pieces)
        word = plot.maker.questions.word("legend")
        plot.maker.questions.add(word, (f"{a} and {b}", f"{a}, {b}"), boxes_of(pieces), (), TWO_PLACES)
    return pieces


@PAGES.register("bar chart")
def bar_chart(maker: PageMaker) -> None:
    """Vertical or horizontal bars of one to three series."""
    plot = Plot(maker, "bar chart", 9)
    if plot.layout.startswith("horizontal"):
        _lying(plot)
    else:
        _upright(plot)


def _upright(plot: Plot) -> None:
    random, sheet, body, names = plot.random, plot.sheet, plot.body, plot.names
    several = random.choice((2, 2, 3)) if plot.layout == "vertical groups" or random.random() < 0.3 else 1
    if several > 1:
        plot.names = names = names[:5]
    data = [draw_numbers(plot, len(names)) for _ in range(several)]
    decimals, sign = data[0][1], data[0][2]
    scale = max(data[0][0]) / max(max(max(each[0]) for each in data), 1e-9)
    series = [[round(n * scale, decimals) for n in each[0]] for each in data]
    high = max(map(max, series)) * 1.12
    top = plot.top + body.size * 2.6
    series_names: list[str] = []
    legend: list[Piece] = []
    if several > 1:
        for i in range(several):
            noun = random.random() < 0.5
            year = "" if noun else str(2000 + 7 * i + random.randint(0, 6))
            series_names.append(plot.maker.words.noun().capitalize() if noun else year)
        legend = write_legend(plot, series_names, 30, plot.top + body.size * 0.9, plot.colours)
        top += body.size * 1.3
    left = 16 + room_for_ticks(plot, high, sign)
    right = float(sheet.width - random.randint(16, 40))
    step = (right - left) / len(names)
    longest = max(body.width(word) for name in names for word in body.printable(name).split())
    label = body if longest < step * 0.94 else body.sized(max(8.5, body.size * step * 0.94 / longest))
    while longest * label.size / body.size > step * 0.96 and len(names) > 2:  # fewer names
        del names[max(range(len(names)), key=lambda i: max(map(len, names[i].split())))]
        step = (right - left) / len(names)
        longest = max(body.width(word) for name in names for word in body.printable(name).split())
    series = [numbers[: len(names)] for numbers in series]
    label_lines = max(len(label.wrap(name, step * 0.96)) for name in names)
    x_title = random.random() < 0.4
    bottom = plot.bottom - body.size * (1.2 * label_lines + 0.8 + 1.5 * x_title)
    grid = random.random() < 0.6 or plot.layout == "vertical grid"
    at, y_title = y_axis(plot, (left, top, right, bottom), high, sign, grid)
    width = step * (0.85 if plot.layout == "vertical wide" else random.uniform(0.5, 0.75)) / several
    wide, every = step if several == 1 else width * 1.15, [n for each in series for n in each]
    printed = random.random() < 0.75 and all(body.width(plot.written(n, decimals, sign)) < wide for n in every)
    labels: Labels = []
    texts: list[Texts] = [[] for _ in series]
    for i, name in enumerate(names):
        middle = left + (i + 0.5) * step
        for j, numbers in enumerate(series):
            x = middle + (j - several / 2) * width
            y = at(numbers[i])
            sheet.rectangle(x, round(y), x + width - 1, round(at(0)), fill=plot.colours[j])
            inside = plot.layout == "vertical values inside" and at(0) - y > body.size * 2
            style = body.inked((255, 255, 255)) if inside and sum(plot.colours[j]) < 420 else body
            text = plot.written(numbers[i], decimals, sign)
            base = y + body.size * 1.1 if inside else y - 4
            texts[j].append(sheet.write(text, x + width / 2, base, style, "middle") if printed else None)
        base = bottom + body.size * 1.3
        pieces, _ = sheet.paragraph(name, middle - step * 0.48, base, step * 0.96, label, 1.2, "middle")
        labels.append(pieces)
    sheet.across(left, right, bottom, body.colour)
    if plot.layout == "vertical frame":
        sheet.rectangle(left, top, right, bottom, outline=body.colour)
    base, title = plot.bottom - body.size * 0.2, list[Piece]()
    if x_title:
        title = [sheet.write(plot.head, (left + right) / 2, base, body, "middle")]
    plot.ask_axes(title, y_title)
    _ask_series(plot, series_names, legend, series, labels, texts)
    plot.about("bar chart", len(names))


def _ask_series(
    plot: Plot, names: list[str], legend: list[Piece], series: list[list[float]], labels: Labels, texts: list[Texts]
) -> None:
    questions, random = plot.maker.questions, plot.random
    if len(series) == 1:
        plot.ask_values(labels, texts[0])
        plot.compare(series[0], labels, texts[0])
        return
    if len(set(names)) < len(names):
        return
    for _ in range(6):
        j, i = random.randrange(len(series)), random.randrange(len(labels))
        text = texts[j][i]
        if text is not None:
            filled = {"series": names[j], "category": joined(labels[i]).rstrip("*")}
            word = plot.wording("chart series value", **filled)
            questions.add(word, text.text, [text.box], boxes_of([*labels[i], legend[j]]))


def _lying(plot: Plot) -> None:
    random, sheet, body, names = plot.random, plot.sheet, plot.body, plot.names
    numbers, decimals, sign = draw_numbers(plot, len(names))
    if random.random() < 0.5:
        numbers.sort(reverse=True)
    longest = max(body.width(body.printable(name)) for name in names)
    left = 24 + min(longest, sheet.width * 0.35) + 10
    right = sheet.width - 30 - body.width(plot.written(max(numbers), decimals, sign)) - 6
    top, bottom = plot.top + body.size * 1.2, plot.bottom - body.size * 1.2
    axis = plot.layout == "horizontal" and random.random() < 0.6
    if axis:
        bottom -= body.size * 1.6
    step = min((bottom - top) / len(names), 70)
    bottom = top + step * len(names)
    ticks, tick_decimals = nice_ticks(0, max(numbers))
    high = ticks[-1] if axis else max(numbers)
    if axis:
        for tick in ticks:
            x = left + (right - left) * tick / high
            sheet.line((round(x), top), (round(x), bottom), colour=plot.faint)
            sheet.write(plot.written(tick, tick_decimals, sign), x, bottom + body.size * 1.4, body, "middle")
    printed = not axis or random.random() < 0.6
    labels: Labels = []
    texts: Texts = []
    for i, (name, number) in enumerate(zip(names, numbers, strict=True)):
        y = top + (i + 0.5) * step
        end = left + (right - left) * number / high
        thick = step * 0.32
        colour = plot.colours[i if plot.layout == "horizontal plain" else 0]
        sheet.rectangle(left, y - thick, end, y + thick, fill=colour)
        lines = body.wrap(name, left - 34)
        base = y + body.cap_height / 2
        first = base - (len(lines) - 1) * body.size * 0.55
        pieces, _ = sheet.paragraph(name, 24, first, left - 34, body, 1.1, "right")
        labels.append(pieces)
        texts.append(sheet.write(plot.written(number, decimals, sign), end + 6, base, body) if printed else None)
    sheet.line((left, top), (left, bottom), colour=body.colour)
    plot.ask_values(labels, texts)
    plot.compare(numbers, labels, texts)
    plot.about("bar chart", len(names))


@PAGES.register("line chart")
def line_chart(maker: PageMaker) -> None:
    """One to three lines over years or months."""
    plot = Plot(maker, "line chart", 9)
    random, sheet, body = plot.random, plot.sheet, plot.body
    first = random.randint(1960, 2015)
    plot.names = [str(first + i) for i in range(random.randint(5, 11))]
    plot.head = maker.one("head of years")
    several = random.choice((1, 1, 2, 2, 3))
    data = [draw_numbers(plot, len(plot.names), smooth=True) for _ in range(several)]
    decimals, sign = data[0][1], data[0][2]
    scale = max(data[0][0])
    series = [data[0][0]]
    for each, *_ in data[1:]:
        series.append([round(n / max(each) * scale * random.uniform(0.6, 1), decimals) for n in each])
    high = max(map(max, series)) * 1.1
    top = plot.top + body.size * 2.6
    noun, company = maker.words.noun, plot.values.company
    names = [noun().capitalize() if random.random() < 0.6 else company() for _ in range(several)]
    legend: list[Piece] = []
    at_ends = plot.layout == "end labels" and several > 1
    if several > 1 and not at_ends:
        legend = write_legend(plot, names, 30, plot.top + body.size * 0.9, plot.colours)
        top += body.size * 1.2
    left = 16 + room_for_ticks(plot, high, sign)
    right = sheet.width - (30 + (max(body.width(body.printable(name)) for name in names) if at_ends else 0))
    bottom = plot.bottom - body.size * 3.2
    grid = plot.layout in ("grid", "markers", "legend under") or random.random() < 0.5
    at, y_title = y_axis(plot, (left, top, right, bottom), high, sign, grid)
    inset = max(10.0, body.width(plot.written(scale, decimals, sign)) / 2 + 2)
    step = (right - left - inset - 10) / (len(plot.names) - 1)
    xs = [left + inset + i * step for i in range(len(plot.names))]
    every = max(1, math.ceil(body.width("00000 ") / step))
    labels: Labels = [[] for _ in xs]
    for i in range(0, len(xs), every):
        labels[i] = [sheet.write(plot.names[i], xs[i], bottom + body.size * 1.4, body, "middle")]
    sheet.across(left, right, bottom, body.colour)
    if plot.layout == "frame":
        sheet.rectangle(left, top, right, bottom, outline=body.colour)
    printed = several == 1 and (plot.layout == "markers values" or random.random() < 0.6)
    printed = printed and body.width(plot.written(max(series[0]), decimals, sign)) < step
    texts: Texts = []
    for j, numbers in enumerate(series):
        points = [(x, at(number)) for x, number in zip(xs, numbers, strict=True)]
        sheet.line(*points, colour=plot.colours[j], width=random.choice((1.5, 2, 3)))
        for (x, y), number in zip(points, numbers, strict=True):
            if "markers" in plot.layout or printed:
                sheet.ellipse(x - 3, y - 3, x + 3, y + 3, fill=plot.colours[j])
            if printed:
                texts.append(sheet.write(plot.written(number, decimals, sign), x, y - 8, body, "middle"))
        if at_ends:
            y = points[-1][1] + body.cap_height / 2
            while any(abs(y - float(other.boxes[0, 3])) < body.size for other in legend):
                y -= body.size * 0.5
            legend.append(sheet.write(names[j], right + 6, y, body.inked(plot.colours[j])))
    base, title = bottom + body.size * 2.9, list[Piece]()
    if random.random() < 0.5:
        title = [sheet.write(plot.head, (left + right) / 2, base, body, "middle")]
    plot.ask_axes(title, y_title)
    if several == 1:
        shown = texts or [None] * len(plot.names)
        plot.ask_values(labels, shown)
        plot.compare(series[0], labels, shown)
    count = len(plot.names) if several == 1 else several
    plot.about("line chart", count, "how many bars" if several == 1 and every == 1 else "how many lines")


@PAGES.register("pie chart")
def pie_chart(maker: PageMaker) -> None:
    """A pie or a ring with its shares."""
    plot = Plot(maker, "pie chart", 7)
    random, sheet, body, names = plot.random, plot.sheet, plot.body, plot.names
    parts = [random.uniform(0.4, 2) ** 2 for _ in names]
    decimals = random.choice((0, 0, 1))
    shares = [round(100 * part / sum(parts), decimals) for part in parts]
    sign = random.choice(("%", "%", " %"))
    middle = (sheet.width / 2, (plot.top + plot.bottom) / 2 + 8)
    legend = plot.layout.startswith("legend")
    radius = min(sheet.width * (0.26 if not legend else 0.3), (plot.bottom - plot.top) * (0.33 if not legend else 0.4))
    if plot.layout == "legend under":
        middle, radius = (middle[0], plot.top + radius * 0.9 + 10), radius * 0.8
    elif legend:
        middle = (sheet.width * (0.36 if plot.layout == "legend" else 0.66), middle[1])
    box = (middle[0] - radius, middle[1] - radius, middle[0] + radius, middle[1] + radius)
    angle = random.uniform(-90, 0)
    labels: Labels = []
    texts: Texts = []
    for i, (name, part) in enumerate(zip(names, shares, strict=True)):
        turn = 360 * part / sum(shares)
        sheet.slice(*box, angle, angle + turn, plot.colours[i])
        direction = math.radians(angle + turn / 2)
        angle += turn

        def at(distance: float, direction: float = direction) -> tuple[float, float]:
            x, y = math.cos(direction) * distance, math.sin(direction) * distance
            return middle[0] + x, middle[1] + y + body.cap_height / 2

        text = plot.written(part, decimals, sign)
        if legend:
            rows = len(names)
            x = {"legend": sheet.width * 0.68, "legend left": 30.0}.get(plot.layout, sheet.width * 0.25)
            y = middle[1] + (i - rows / 2) * body.size * 1.8
            if plot.layout == "legend under":
                y = box[3] + body.size * (2 + 1.4 * i)
            if y > plot.bottom:
                labels.append([])
                texts.append(None)
                continue
            sheet.rectangle(x, y - body.cap_height, x + body.cap_height, y, fill=plot.colours[i])
            labels.append([sheet.write(name, x + body.size * 1.3, y, body)])
            inside = part > 7
            white = body.inked(on(plot.colours[i]))
            x, y = at(radius * 0.66)
            texts.append(sheet.write(text, x, y, white, "middle") if inside else None)
            continue
        x, y = at(radius + 12)
        align = "left" if math.cos(direction) > 0 else "right"
        room = sheet.width - x - 4 if align == "left" else x - 4
        wide = body.width(body.printable(f"{name} {text}"))
        both = plot.layout in ("labels and shares", "ring labels") and wide < room
        if body.width(body.printable(name)) > room or part < 4:
            labels.append([])
            texts.append(None)
            continue
        line = sheet.write(f"{name} {text}" if both else name, x, y, body, align)
        labels.append([line.part(body.printable(name))])
        if both:
            texts.append(line.part(body.printable(text)))
        elif part > 7:
            white = body.inked(on(plot.colours[i]))
            x, y = at(radius * 0.72)
            texts.append(sheet.write(text, x, y, white, "middle"))
        else:
            texts.append(None)
    if plot.layout.startswith("ring"):
        hole = radius * 0.55
        sheet.ellipse(middle[0] - hole, middle[1] - hole, middle[0] + hole, middle[1] + hole, fill=sheet.paper)
    plot.ask_values(labels, texts)
    if all(labels):
        plot.compare(shares, labels, texts)
    plot.about("pie chart", len(names))
