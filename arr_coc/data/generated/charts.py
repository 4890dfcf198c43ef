"""Charts: bars, lines and pies with axes, legends, gridlines or values."""

# ruff: noqa: E501, SIM905 (lists are readable as running text)
from __future__ import annotations

import math

from ..splits import share
from .asking import boxes_of
from .page import PAGES, PageMaker
from .plots import Plot, draw_numbers, nice_ticks, room_for_ticks, write_legend, y_axis
from .sheet import Piece, Style, joined

_BARS = (
    "vertical",
    "horizontal",
    "vertical values inside",
    "horizontal values outside",
    "vertical grid",
    "vertical frame",
    "horizontal plain",
    "vertical wide",
    "vertical groups",
)


_LINES = ("plain", "grid", "markers", "end labels", "frame", "markers values", "legend under")


_PIES = ("labels", "legend", "labels and shares", "ring", "legend left", "ring labels", "legend under")


@PAGES.register("bar chart")
def bar_chart(maker: PageMaker) -> None:
    """Bars, upright or lying, of one to three series."""
    plot = Plot(maker, "bar chart", _BARS, 9)
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
        series_names = [
            plot.maker.words.noun().capitalize() if random.random() < 0.5 else str(2000 + 7 * i + random.randint(0, 6))
            for i in range(several)
        ]
        legend = write_legend(plot, series_names, 30, plot.top + body.size * 0.9, plot.colours)
        top += body.size * 1.3
    left = 16 + room_for_ticks(plot, high, sign)
    right = float(sheet.width - random.randint(16, 40))
    step = (right - left) / len(names)
    longest = max(body.width(word) for name in names for word in body.printable(name).split())
    label = (
        body if longest < step * 0.94 else Style(body.face, max(8.5, body.size * step * 0.94 / longest), body.colour)
    )
    while longest * label.size / body.size > step * 0.96 and len(names) > 2:  # fewer of them
        del names[max(range(len(names)), key=lambda i: max(map(len, names[i].split())))]
        step = (right - left) / len(names)
        longest = max(body.width(word) for name in names for word in body.printable(name).split())
    series = [numbers[: len(names)] for numbers in series]
    label_lines = max(len(label.wrap(name, step * 0.96)) for name in names)
    x_title = random.random() < 0.4
    bottom = plot.bottom - body.size * (1.2 * label_lines + 0.8 + 1.5 * x_title)
    grid = random.random() < 0.6 or plot.layout == "vertical grid"
    at, y_title = y_axis(plot, (left, top, right, bottom), 0, high, sign, grid)
    width = step * (0.85 if plot.layout == "vertical wide" else random.uniform(0.5, 0.75)) / several
    printed = random.random() < 0.75 and all(
        body.width(plot.written(n, decimals, sign)) < (step if several == 1 else width * 1.15)
        for each in series
        for n in each
    )
    labels: list[list[Piece]] = []
    texts: list[list[Piece | None]] = [[] for _ in series]
    for i, name in enumerate(names):
        middle = left + (i + 0.5) * step
        for j, numbers in enumerate(series):
            x = middle + (j - several / 2) * width
            y = at(numbers[i])
            sheet.rectangle(x, round(y), x + width - 1, round(at(0)), fill=plot.colours[j])
            inside = plot.layout == "vertical values inside" and at(0) - y > body.size * 2
            style = Style(body.face, body.size, (255, 255, 255)) if inside and sum(plot.colours[j]) < 420 else body
            text = plot.written(numbers[i], decimals, sign)
            piece = (
                sheet.write(text, x + width / 2, y + body.size * 1.1 if inside else y - 4, style, "middle")
                if printed
                else None
            )
            texts[j].append(piece)
        pieces, _ = sheet.paragraph(
            name, middle - step * 0.48, bottom + body.size * 1.3, step * 0.96, label, 1.2, "middle"
        )
        labels.append(pieces)
    sheet.line((left, round(bottom)), (right, round(bottom)), colour=body.colour)
    if plot.layout == "vertical frame":
        sheet.rectangle(left, top, right, bottom, outline=body.colour)
    title = (
        [sheet.write(plot.head, (left + right) / 2, plot.bottom - body.size * 0.2, body, "middle")] if x_title else []
    )
    plot.ask_axes(title, y_title)
    _ask_series(plot, series_names, legend, series, labels, texts)
    plot.about("bar chart", len(names))


def _ask_series(
    plot: Plot,
    names: list[str],
    legend: list[Piece],
    series: list[list[float]],
    labels: list[list[Piece]],
    texts: list[list[Piece | None]],
) -> None:
    asker, random = plot.maker.asker, plot.random
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
            word = asker.word("chart series value", series=names[j], category=joined(labels[i]))
            asker.add(word, text.text, [text.box], boxes_of([*labels[i], legend[j]]))


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
    labels: list[list[Piece]] = []
    texts: list[Piece | None] = []
    for i, (name, number) in enumerate(zip(names, numbers, strict=True)):
        y = top + (i + 0.5) * step
        end = left + (right - left) * number / high
        thick = step * 0.32
        sheet.rectangle(
            left, y - thick, end, y + thick, fill=plot.colours[0 if plot.layout != "horizontal plain" else i]
        )
        lines = body.wrap(name, left - 34)
        pieces, _ = sheet.paragraph(
            name, 24, y + body.cap_height / 2 - (len(lines) - 1) * body.size * 0.55, left - 34, body, 1.1, "right"
        )
        labels.append(pieces)
        texts.append(
            sheet.write(plot.written(number, decimals, sign), end + 6, y + body.cap_height / 2, body)
            if printed
            else None
        )
    sheet.line((left, top), (left, bottom), colour=body.colour)
    plot.ask_values(labels, texts)
    plot.compare(numbers, labels, texts)
    plot.about("bar chart", len(names))


@PAGES.register("line chart")
def line_chart(maker: PageMaker) -> None:
    """One to three lines over years or months."""
    plot = Plot(maker, "line chart", _LINES, 9)
    random, sheet, body = plot.random, plot.sheet, plot.body
    first = random.randint(1960, 2015)
    plot.names = [str(first + i) for i in range(random.randint(5, 11))]
    plot.head = random.choice(
        share(("Year", "Season", "Fiscal year", "Period", "Edition"), maker.split, "head of years", 1)
    )
    several = random.choice((1, 1, 2, 2, 3))
    data = [draw_numbers(plot, len(plot.names), smooth=True) for _ in range(several)]
    decimals, sign = data[0][1], data[0][2]
    scale = max(data[0][0])
    series = [
        [round(n / max(each[0]) * scale * random.uniform(0.6, 1), decimals) for n in each[0]] if j else each[0]
        for j, each in enumerate(data)
    ]
    high = max(map(max, series)) * 1.1
    top = plot.top + body.size * 2.6
    names = [
        maker.words.noun().capitalize() if random.random() < 0.6 else plot.values.company() for _ in range(several)
    ]
    legend: list[Piece] = []
    at_ends = plot.layout == "end labels" and several > 1
    if several > 1 and not at_ends:
        legend = write_legend(plot, names, 30, plot.top + body.size * 0.9, plot.colours)
        top += body.size * 1.2
    left = 16 + room_for_ticks(plot, high, sign)
    right = sheet.width - (30 + (max(body.width(body.printable(name)) for name in names) if at_ends else 0))
    bottom = plot.bottom - body.size * 3.2
    at, y_title = y_axis(
        plot,
        (left, top, right, bottom),
        0,
        high,
        sign,
        plot.layout in ("grid", "markers", "legend under") or random.random() < 0.5,
    )
    inset = max(10.0, body.width(plot.written(scale, decimals, sign)) / 2 + 2)
    step = (right - left - inset - 10) / (len(plot.names) - 1)
    xs = [left + inset + i * step for i in range(len(plot.names))]
    every = max(1, math.ceil(body.width("00000 ") / step))
    labels = [
        [sheet.write(name, x, bottom + body.size * 1.4, body, "middle")] if i % every == 0 else []
        for i, (name, x) in enumerate(zip(plot.names, xs, strict=True))
    ]
    sheet.line((left, round(bottom)), (right, round(bottom)), colour=body.colour)
    if plot.layout == "frame":
        sheet.rectangle(left, top, right, bottom, outline=body.colour)
    printed = (
        several == 1
        and (plot.layout == "markers values" or random.random() < 0.6)
        and body.width(plot.written(max(series[0]), decimals, sign)) < step
    )
    texts: list[Piece | None] = []
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
            legend.append(sheet.write(names[j], right + 6, y, Style(body.face, body.size, plot.colours[j])))
    title = (
        [sheet.write(plot.head, (left + right) / 2, bottom + body.size * 2.9, body, "middle")]
        if random.random() < 0.5
        else []
    )
    plot.ask_axes(title, y_title)
    if several == 1:
        shown = texts or [None] * len(plot.names)
        plot.ask_values(labels, shown)
        plot.compare(series[0], labels, shown)
    plot.about(
        "line chart",
        len(plot.names) if several == 1 else several,
        "how many bars" if several == 1 and every == 1 else "how many lines",
    )


@PAGES.register("pie chart")
def pie_chart(maker: PageMaker) -> None:
    """A pie or a ring with its shares."""
    plot = Plot(maker, "pie chart", _PIES, 7)
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
    labels: list[list[Piece]] = []
    texts: list[Piece | None] = []
    for i, (name, part) in enumerate(zip(names, shares, strict=True)):
        turn = 360 * part / sum(shares)
        sheet.slice(*box, angle, angle + turn, plot.colours[i])
        direction = math.radians(angle + turn / 2)
        angle += turn
        text = plot.written(part, decimals, sign)
        if legend:
            rows = len(names)
            x = {"legend": sheet.width * 0.68, "legend left": 30.0}.get(plot.layout, sheet.width * 0.25)
            y = (
                middle[1] + (i - rows / 2) * body.size * 1.8
                if plot.layout != "legend under"
                else box[3] + body.size * (2 + 1.4 * i)
            )
            if y > plot.bottom:
                labels.append([])
                texts.append(None)
                continue
            sheet.rectangle(x, y - body.cap_height, x + body.cap_height, y, fill=plot.colours[i])
            labels.append([sheet.write(name, x + body.size * 1.3, y, body)])
            inside = part > 7
            white = Style(body.face, body.size, (255, 255, 255) if sum(plot.colours[i]) < 420 else (0, 0, 0))
            place = (
                middle[0] + math.cos(direction) * radius * 0.66,
                middle[1] + math.sin(direction) * radius * 0.66 + body.cap_height / 2,
            )
            texts.append(sheet.write(text, *place, white, "middle") if inside else None)
            continue
        x, y = (
            middle[0] + math.cos(direction) * (radius + 12),
            middle[1] + math.sin(direction) * (radius + 12) + body.cap_height / 2,
        )
        align = "left" if math.cos(direction) > 0 else "right"
        room = sheet.width - x - 4 if align == "left" else x - 4
        both = (
            plot.layout in ("labels and shares", "ring labels") and body.width(body.printable(f"{name} {text}")) < room
        )
        if body.width(body.printable(name)) > room or part < 4:
            labels.append([])
            texts.append(None)
            continue
        line = sheet.write(f"{name} {text}" if both else name, x, y, body, align)
        labels.append([line.part(body.printable(name))])
        if both:
            texts.append(line.part(body.printable(text)))
        elif part > 7:
            white = Style(body.face, body.size, (255, 255, 255) if sum(plot.colours[i]) < 420 else (0, 0, 0))
            place = (
                middle[0] + math.cos(direction) * radius * 0.72,
                middle[1] + math.sin(direction) * radius * 0.72 + body.cap_height / 2,
            )
            texts.append(sheet.write(text, *place, white, "middle"))
        else:
            texts.append(None)
    if plot.layout.startswith("ring"):
        hole = radius * 0.55
        sheet.ellipse(middle[0] - hole, middle[1] - hole, middle[0] + hole, middle[1] + hole, fill=sheet.paper)
    plot.ask_values(labels, texts)
    if all(labels):
        plot.compare(shares, labels, texts)
    plot.about("pie chart", len(names))
