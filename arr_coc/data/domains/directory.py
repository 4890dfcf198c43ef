"""Domain `directory`: people or departments with a room, a phone and so on, as a list or as cards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..pools import FIRST_NAMES
from ..questions import Wordings
from ..splits import Split
from ..values import KINDS, distinct, pick
from .canvas import Canvas, Role, least_pixels
from .page import Asker, Layouts, Page, Question, Span, interleave, register
from .rows import Align, Row, Ruling, draw_rows, plan_rows, rule_rows
from .words import DEPARTMENTS, sample_words


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
    """What a directory says: the noun of its entries, field names, and per entry a name and the fields' values."""

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
    """All rows, and the index of the first that is no title."""
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
    """Where an entry stands: its name, and its field labels (those of the header in a list) and values."""

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
    questions = _questions(Asker(WORDINGS, rng, split), listing, cards)
    return Page(image, interleave(rng, questions), name, canvas.font, tuple(canvas.glyphs))


def _questions(ask: Asker, listing: Listing, cards: list[_Card]) -> Iterator[Question]:
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
