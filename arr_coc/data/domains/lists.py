"""Domains `directory` and `departures`: people with a room, a phone and so on; two lists that refer to each other."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..questions import Wordings
from ..splits import Split
from ..values import DEPARTMENTS, FIRST_NAMES, KINDS, distinct, letters, pick, sample_words
from .canvas import Align, Canvas, Role, Row, Ruling, draw_rows, least_pixels, plan_rows, rule_rows
from .page import Layouts, Page, Question, QuestionWriter, Span, interleave, register


@dataclass(frozen=True)
class Layout:
    """A list with a header, or cards: a name, and below it pairs of field and value, `wide` ones side by side."""

    cards: bool = False
    wide: bool = False
    align: Align = "left"
    ruling: Ruling = Ruling()


LAYOUTS = Layouts(
    train={
        "list": Layout(),
        "list_header": Layout(ruling=Ruling(header=True)),
        "list_rows": Layout(ruling=Ruling(rows=True)),
        "list_zebra": Layout(ruling=Ruling(zebra=True)),
        "cards": Layout(cards=True),
        "cards_wide": Layout(cards=True, wide=True),
    },
    test={
        "list_frame": Layout(ruling=Ruling(frame=True)),
        "list_right": Layout(align="right", ruling=Ruling(header=True)),
        "list_columns": Layout(ruling=Ruling(columns=True, header=True)),
        "cards_centred": Layout(cards=True, align="centre"),
        "cards_wide_right": Layout(cards=True, wide=True, align="right"),
    },
)

WORDINGS: dict[str, Wordings] = {
    "value": Wordings(
        ("What is the {field} of {name}?", "Find the {field} of {name}.", "Which {field} does {name} have?"),
        ("Which {field} is given with {name}?", "Give the {field} of {name}."),
    ),
    "name_of_value": Wordings(
        (
            "Which {noun} has the {field} {value}?", "Give the {noun} with the {field} {value}.",
            "Which {noun} is given with {field} {value}?",
        ),
        ("Find the {noun} with the {field} {value}.", "Which {noun} has {field} {value}?"),
    ),
    "value_of_value": Wordings(
        (
            "What is the {other} of the {noun} whose {field} is {value}?",
            "Find the {other} of the {noun} with {field} {value}.",
        ),
        (
            "What is the {other} of the {noun} with {field} {value}?",
            "Find the {other} of the {noun} whose {field} is {value}.",
        ),
    ),
}  # fmt: skip

_FIELDS = {"room": "number", "phone": "phone", "code": "code", "city": "city", "desk": "seat", "start": "date"}
_NOUNS = (("person", FIRST_NAMES), ("department", DEPARTMENTS))
_TITLES = ("Directory", "Contacts", "Staff list", "Who is where", "Phone list", "Offices")
_MIN_ENTRIES, _MAX_ENTRIES = 2, 10
_ROW_HEIGHT = 1.5  # of a page full of rows, in font sizes


@dataclass(frozen=True)
class Listing:
    """The content of a directory: the noun of its entries, field names, and per entry a name and the fields' values."""

    noun: str
    fields: list[str]
    entries: list[tuple[str, list[str]]]


def _sample_listing(rng: np.random.Generator, size: int, split: Split, layout: Layout) -> Listing:
    noun, pool = _NOUNS[int(rng.integers(len(_NOUNS)))]
    most_fields = 2 if size < 320 and not layout.cards else 3 if size < 512 else 4
    fields = [list(_FIELDS)[i] for i in rng.permutation(len(_FIELDS))[: int(rng.integers(2, most_fields + 1))]]
    per_entry = 1 if not layout.cards else 2 if layout.wide else 1 + len(fields)
    lines = int(size / (_ROW_HEIGHT * least_pixels(size))) - 2
    most = max(_MIN_ENTRIES, min(_MAX_ENTRIES, lines // per_entry))
    names = sample_words(rng, pool, int(rng.integers(_MIN_ENTRIES, most + 1)), split)
    columns = [distinct(partial(_value, rng, field, split), len(names)) for field in fields]
    return Listing(noun, fields, [(name, list(line)) for name, *line in zip(names, *columns, strict=True)])


def _value(rng: np.random.Generator, field: str, split: Split) -> str:
    return str(rng.integers(1, 500)) if field == "room" else KINDS[_FIELDS[field]](rng, split)


def _rows(rng: np.random.Generator, listing: Listing, layout: Layout) -> tuple[list[Row], int]:
    """All rows, and the index of the first row after the title."""
    rows = [Row((pick(rng, _TITLES),), ("heading",), layout.align)] if rng.random() < 0.6 else []
    start, count = len(rows), len(listing.fields)
    heads = [field.capitalize() for field in listing.fields]
    if not layout.cards:
        rows.append(Row.of((listing.noun.capitalize(), *heads), "label", "label"))
        rows += [Row.of((name, *line), "label", "value") for name, line in listing.entries]
        return rows, start
    colon = ":" if rng.random() < 0.6 else ""
    pair: tuple[Role, ...] = ("label", "value")
    for name, line in listing.entries:
        rows.append(Row((name,), ("heading",), layout.align))
        pieces = [(head + colon, value) for head, value in zip(heads, line, strict=True)]
        if layout.wide:
            rows.append(Row(sum(pieces, ()), pair * count, layout.align))
        else:
            rows += [Row(texts, pair, layout.align) for texts in pieces]
    return rows, start


@dataclass(frozen=True)
class _Card:
    """The spans of an entry: its name, its field labels (of the header in a list) and values."""

    name: Span
    labels: list[Span]
    values: list[Span]


def _cards(spans: list[list[Span]], listing: Listing, layout: Layout) -> list[_Card]:
    if not layout.cards:
        header = spans[0][1:]
        return [_Card(row[0], header, row[1:]) for row in spans[1:]]
    flat = [span for row in spans for span in row]
    each = 1 + 2 * len(listing.fields)
    parts = [flat[i : i + each] for i in range(0, len(flat), each)]
    return [_Card(part[0], part[1::2], part[2::2]) for part in parts]


@register("directory", LAYOUTS, WORDINGS)
def draw_directory(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A directory of 2 to 10 entries with 2 to 4 fields each, fewer on small pages."""
    canvas = Canvas(rng, size, split)
    while True:
        name, layout = LAYOUTS.draw(rng, split)
        listing = _sample_listing(rng, size, split, layout)
        rows, start = _rows(rng, listing, layout)
        aligns: list[Align] = ["left", *[layout.align] * len(listing.fields)]
        plan = plan_rows(rng, rows, aligns, canvas.styles, size, ruled=layout.ruling.ruled)
        if plan is not None:
            break
    rule_rows(canvas, layout.ruling, rows, plan, start, len(rows))
    spans = draw_rows(canvas, rows, plan)[start:]
    image = canvas.finish()
    cards = _cards([[span for span in row if span is not None] for row in spans], listing, layout)
    questions = _questions(QuestionWriter(WORDINGS, rng, split), listing, cards)
    return Page(image, interleave(rng, questions), name, canvas.font, tuple(canvas.glyphs))


def _questions(ask: QuestionWriter, listing: Listing, cards: list[_Card]) -> Iterator[Question]:
    count = len(listing.fields)
    for card in cards:
        for here, field in enumerate(listing.fields):
            label, value = card.labels[here], card.values[here]
            yield ask("value", value, [card.name, label], field=field, name=card.name.text)
            names = {"noun": listing.noun, "field": field, "value": value.text}
            yield ask("name_of_value", card.name, [value, label], **names)
            there = (here + 1) % count
            path = [value, label, card.labels[there]]
            yield ask("value_of_value", card.values[there], path, 2, other=listing.fields[there], **names)


@dataclass(frozen=True)
class DeparturesLayout:
    """The lines of both lists, and the alignment of their second and third columns."""

    ruling: Ruling
    align: Align = "left"


DEPARTURES_LAYOUTS = Layouts(
    train={
        "plain": DeparturesLayout(Ruling()),
        "header": DeparturesLayout(Ruling(header=True)),
        "rows": DeparturesLayout(Ruling(rows=True)),
        "zebra_right": DeparturesLayout(Ruling(zebra=True), "right"),
    },
    test={
        "frame": DeparturesLayout(Ruling(frame=True)),
        "header_right": DeparturesLayout(Ruling(header=True), "right"),
        "columns": DeparturesLayout(Ruling(columns=True, header=True)),
    },
)

DEPARTURES_WORDINGS: dict[str, Wordings] = {
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

_DEPARTURES_TITLES = ("Departures", "Flights today", "Outbound flights", "Flight plan")
_DEPARTURES_FIELDS = ("gate", "time")
_MIN_FLIGHTS, _MAX_FLIGHTS = 3, 12
_DEPARTURES_ROW_HEIGHT = 1.5  # of a page full of rows, in font sizes


@dataclass(frozen=True)
class Flight:
    """The content of both lists about a flight."""

    number: str
    city: str
    gate: str
    time: str


def _sample_flights(rng: np.random.Generator, size: int, split: Split) -> list[Flight]:
    lines = int(size / (_DEPARTURES_ROW_HEIGHT * least_pixels(size))) - 3  # without a title and two headers
    count = int(rng.integers(_MIN_FLIGHTS, max(_MIN_FLIGHTS, min(_MAX_FLIGHTS, lines // 2)) + 1))
    numbers = distinct(lambda: letters(rng, string.ascii_uppercase, 2) + str(rng.integers(100, 1000)), count)
    cities = distinct(lambda: KINDS["city"](rng, split), count)
    gates = distinct(lambda: pick(rng, "ABCDEFGH") + str(rng.integers(1, 60)), count)
    times = distinct(lambda: KINDS["time"](rng, split), count)
    return [Flight(*of) for of in zip(numbers, cities, gates, times, strict=True)]


@register("departures", DEPARTURES_LAYOUTS, DEPARTURES_WORDINGS)
def draw_departures(rng: np.random.Generator, size: int, split: Split) -> Page:
    """Two lists of 3 to 12 flights, fewer on small pages."""
    canvas = Canvas(rng, size, split)
    while True:
        name, layout = DEPARTURES_LAYOUTS.draw(rng, split)
        flights = _sample_flights(rng, size, split)
        order = rng.permutation(len(flights)).tolist()
        rows = [
            Row((pick(rng, _DEPARTURES_TITLES),), ("heading",), "left"),
            Row.of(("Flight", "City", ""), "label", "label"),
        ]
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
    questions = _departures_questions(
        QuestionWriter(DEPARTURES_WORDINGS, rng, split), spans[2:second], spans[second], gates
    )
    return Page(image, interleave(rng, questions), name, canvas.font, tuple(canvas.glyphs))


def _departures_questions(
    ask: QuestionWriter, cities: list[list[Span]], header: list[Span], gates: dict[str, list[Span]]
) -> Iterator[Question]:
    """`cities`: number and city of each flight; `gates`: number, gate and time, by number."""
    for number, city in cities:
        row = gates[number.text]
        for column, field in enumerate(_DEPARTURES_FIELDS, 1):
            path = [city, number, row[0], header[column]]
            yield ask("of_city", row[column], path, 2, field=field, city=city.text)
            yield ask("of_flight", row[column], [row[0], header[column]], field=field, flight=number.text)
        yield ask("city", city, [number], flight=number.text)
