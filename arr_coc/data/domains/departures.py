"""Domain `departures`: two lists, of which the first says where in the second an answer stands.

The first list has the destination of each flight, the second its gate and time, in another order: the gate of the
flight to a city stands where only who has read the flight's number can look.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..questions import Wordings
from ..splits import Split
from ..values import KINDS, distinct, letters, pick
from .canvas import Canvas, least_pixels
from .page import Asker, Layouts, Page, Question, Span, interleave, register
from .rows import Align, Row, Ruling, draw_rows, plan_rows, rule_rows


@dataclass(frozen=True)
class Layout:
    """The lines of both lists, and how their second and third columns are aligned."""

    ruling: Ruling
    align: Align = "left"


LAYOUTS = Layouts(
    train={
        "plain": Layout(Ruling()),
        "header": Layout(Ruling(header=True)),
        "rows": Layout(Ruling(rows=True)),
        "zebra_right": Layout(Ruling(zebra=True), "right"),
    },
    test={
        "frame": Layout(Ruling(frame=True)),
        "header_right": Layout(Ruling(header=True), "right"),
        "columns": Layout(Ruling(columns=True, header=True)),
    },
)

WORDINGS: dict[str, Wordings] = {
    "of_city": Wordings(
        ("What is the {field} of the flight to {city}?", "Which {field} does the flight to {city} have?"),
        ("Give the {field} of the flight to {city}.",),
    ),
    "of_flight": Wordings(
        ("What is the {field} of flight {flight}?", "Give the {field} of flight {flight}."),
        ("Which {field} does flight {flight} have?",),
    ),
    "city": Wordings(
        ("What is the city of flight {flight}?", "Give the city of flight {flight}."),
        ("Which city does flight {flight} have?",),
    ),
}

_TITLES = ("Departures", "Flights today", "Outbound flights", "Flight plan")
_FIELDS = ("gate", "time")
_MIN_FLIGHTS, _MAX_FLIGHTS = 3, 12
_ROW_HEIGHT = 1.5  # of a page full of rows, in font sizes


@dataclass(frozen=True)
class Flight:
    """What both lists say of a flight."""

    number: str
    city: str
    gate: str
    time: str


def _sample_flights(rng: np.random.Generator, size: int, split: Split) -> list[Flight]:
    lines = int(size / (_ROW_HEIGHT * least_pixels(size))) - 3  # beside a title and two headers
    count = int(rng.integers(_MIN_FLIGHTS, max(_MIN_FLIGHTS, min(_MAX_FLIGHTS, lines // 2)) + 1))
    numbers = distinct(lambda: letters(rng, string.ascii_uppercase, 2) + str(rng.integers(100, 1000)), count)
    cities = distinct(lambda: KINDS["city"](rng, split), count)
    gates = distinct(lambda: pick(rng, "ABCDEFGH") + str(rng.integers(1, 60)), count)
    times = distinct(lambda: KINDS["time"](rng, split), count)
    return [Flight(*of) for of in zip(numbers, cities, gates, times, strict=True)]


@register("departures", LAYOUTS, WORDINGS)
def draw_departures(rng: np.random.Generator, size: int, split: Split) -> Page:
    """Two lists of 3 to 12 flights, fewer on small pages."""
    canvas = Canvas(rng, size, split)
    while True:
        name, layout = LAYOUTS.draw(rng, split)
        flights = _sample_flights(rng, size, split)
        order = rng.permutation(len(flights)).tolist()
        rows = [Row((pick(rng, _TITLES),), ("heading",), "left"), Row.of(("Flight", "City", ""), "label", "label")]
        rows += [Row.of((flight.number, flight.city, ""), "label", "value") for flight in flights]
        rows.append(Row.of(("Flight", "Gate", "Time"), "label", "label"))
        rows += [Row.of((flights[i].number, flights[i].gate, flights[i].time), "label", "value") for i in order]
        aligns: list[Align] = ["left", layout.align, layout.align]
        plan = plan_rows(rng, rows, aligns, canvas.styles, size, ruled=layout.ruling.ruled)
        if plan is not None:
            break
    second = 2 + len(flights)
    for first, last in ((1, second), (second, len(rows))):
        rule_rows(canvas, layout.ruling, rows, plan, first, last)
    spans = [[span for span in row if span is not None] for row in draw_rows(canvas, rows, plan)]
    image = canvas.finish()
    gates = {row[0].text: row for row in spans[second + 1 :]}
    questions = _questions(Asker(WORDINGS, rng, split), spans[2:second], spans[second], gates)
    return Page(image, interleave(rng, questions), name, canvas.font, tuple(canvas.glyphs))


def _questions(
    ask: Asker, cities: list[list[Span]], header: list[Span], gates: dict[str, list[Span]]
) -> Iterator[Question]:
    """`cities`: number and city of each flight; `gates`: number, gate and time, by number."""
    for number, city in cities:
        row = gates[number.text]
        for column, field in enumerate(_FIELDS, 1):
            path = [city, number, row[0], header[column]]
            yield ask("of_city", row[column], path, 2, field=field, city=city.text)
            yield ask("of_flight", row[column], [row[0], header[column]], field=field, flight=number.text)
        yield ask("city", city, [number], flight=number.text)
