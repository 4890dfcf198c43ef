"""Domains `table` and `receipt`: numbers by row and column name; line items with quantities and prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..questions import Wordings
from ..splits import Split
from ..values import (
    DAYS,
    DEPARTMENTS,
    ITEMS,
    KINDS,
    MEASURES,
    MONTHS,
    PRODUCTS,
    QUARTERS,
    REGIONS,
    SHOPS,
    SIZES,
    pick,
    sample_words,
)
from .canvas import Align, Canvas, Role, Row, Ruling, draw_rows, least_pixels, plan_rows, rule_rows
from .page import Layouts, Page, Question, QuestionWriter, Span, interleave, register


@dataclass(frozen=True)
class Layout:
    """The lines of a table, the alignment of its numbers, and the place of its title."""

    ruling: Ruling
    numbers: Align = "right"
    title: Align = "left"


LAYOUTS = Layouts(
    train={
        "plain": Layout(Ruling()),
        "plain_centred": Layout(Ruling(), "centre", "centre"),
        "header": Layout(Ruling(header=True)),
        "header_centred": Layout(Ruling(header=True), "centre", "centre"),
        "rows": Layout(Ruling(rows=True)),
        "full": Layout(Ruling(frame=True, rows=True, columns=True), "centre", "centre"),
        "zebra": Layout(Ruling(zebra=True)),
        "columns": Layout(Ruling(columns=True), "left"),
    },
    test={
        "frame": Layout(Ruling(frame=True), "right", "centre"),
        "header_columns": Layout(Ruling(header=True, columns=True)),
        "zebra_header": Layout(Ruling(zebra=True, header=True), "centre"),
        "full_left": Layout(Ruling(frame=True, rows=True, columns=True), "left"),
        "rows_centred": Layout(Ruling(rows=True), "centre", "centre"),
    },
)

WORDINGS: dict[str, Wordings] = {
    "cell": Wordings(
        (
            "What is the {column} value of {row}?", "What is {column} for {row}?", "Give the {column} value of {row}.",
            "What does the table show for {row} and {column}?", "Find {column} of {row}.",
        ),
        ("What is the value of {row} for {column}?", "Find the {column} value of {row}.", "What is {column} of {row}?"),
    ),
    "row_of_value": Wordings(
        ("Which {noun} has {value} in {column}?", "What {noun} has the {column} value {value}?"),
        ("Which {noun} has the {column} value {value}?", "Find the {noun} that has {value} in {column}."),
    ),
    "cell_of_value": Wordings(
        (
            "What is the {other} value of the {noun} with {value} in {column}?",
            "Find {other} for the {noun} that has {value} in {column}.",
        ),
        ("Find the {other} value of the {noun} with {value} in {column}.",),
    ),
    "highest": Wordings(
        ("Which {noun} has the highest {column} value?", "What {noun} is highest in {column}?"),
        ("Which {noun} is highest in {column}?",),
    ),
}  # fmt: skip

_ROWS = (("region", REGIONS), ("department", DEPARTMENTS), ("product", PRODUCTS))
_COLUMNS = (MONTHS, QUARTERS, SIZES, MEASURES, DAYS)
_MIN_ROWS, _MAX_ROWS = 3, 14
_MAX_COLUMNS = {256: 4, 512: 6}  # of numbers, from this page size on
_ROW_HEIGHT = 1.5  # of a page full of rows, in font sizes
_TITLES = ("{noun} report", "By {noun}", "{noun} summary", "Values by {noun}", "Annual {noun} data")


def _most(size: int) -> int:
    return max((count for least, count in _MAX_COLUMNS.items() if size >= least), default=3)


def _sample_numbers(rng: np.random.Generator, rows: int, columns: int) -> list[list[str]]:
    """Numbers of one form: 1 to 4 digits, or with one decimal."""
    digits = int(rng.integers(2, 5))
    numbers = rng.integers(10 ** (digits - 2), 10**digits, (rows, columns))
    if rng.random() < 0.25:
        return [[f"{number / 10:.1f}" for number in row] for row in numbers.tolist()]
    return [[str(number) for number in row] for row in numbers.tolist()]


def _sample_rows(rng: np.random.Generator, size: int, split: Split, layout: Layout) -> tuple[list[Row], str]:
    """A title (or none), the header and the body; and the noun of the rows."""
    noun, pool = _ROWS[int(rng.integers(len(_ROWS)))]
    most = min(_MAX_ROWS, int(size / (_ROW_HEIGHT * least_pixels(size))) - 3)
    names = sample_words(rng, pool, int(rng.integers(_MIN_ROWS, max(_MIN_ROWS, most) + 1)), split)
    columns = _COLUMNS[int(rng.integers(len(_COLUMNS)))]
    count = min(len(columns), int(rng.integers(2, _most(size) + 1)))
    first = int(rng.integers(len(columns) - count + 1))
    header = columns[first : first + count]
    corner = noun.capitalize() if rng.random() < 0.7 else ""
    rows: list[Row] = []
    if rng.random() < 0.6:
        title = pick(rng, _TITLES).format(noun=noun)
        rows.append(Row((title[0].upper() + title[1:],), ("heading",), layout.title))
    rows.append(Row.of((corner, *header), "label", "label"))
    numbers = _sample_numbers(rng, len(names), count)
    rows += [Row.of((name, *line), "label", "value") for name, line in zip(names, numbers, strict=True)]
    return rows, noun


@register("table", LAYOUTS, WORDINGS)
def draw_table(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A table of 3 to 14 rows and 2 to 6 columns of numbers, fewer on small pages."""
    canvas = Canvas(rng, size, split)
    while True:
        name, layout = LAYOUTS.draw(rng, split)
        rows, noun = _sample_rows(rng, size, split, layout)
        aligns: list[Align] = ["left", *[layout.numbers] * (len(rows[-1].texts) - 1)]
        plan = plan_rows(rng, rows, aligns, canvas.styles, size, ruled=layout.ruling.ruled)
        if plan is not None:
            break
    start = int(rows[0].span is not None)
    rule_rows(canvas, layout.ruling, rows, plan, start, len(rows))
    spans = draw_rows(canvas, rows, plan)[start:]
    image = canvas.finish()
    header = [span for span in spans[0][1:] if span is not None]
    body = [[span for span in row if span is not None] for row in spans[1:]]
    questions = _questions(QuestionWriter(WORDINGS, rng, split), noun, header, body)
    return Page(image, interleave(rng, questions), name, canvas.font, tuple(canvas.glyphs))


def _questions(ask: QuestionWriter, noun: str, header: list[Span], body: list[list[Span]]) -> Iterator[Question]:
    """Look-ups of cells and rows; `body` holds a row's name, then its numbers."""
    for column, head in enumerate(header, 1):
        counts = Counter(row[column].text for row in body)
        for row in body:
            cell = row[column]
            yield ask("cell", cell, [row[0], head], row=row[0].text, column=head.text)
            if counts[cell.text] > 1:
                continue
            names = {"noun": noun, "column": head.text, "value": cell.text}
            yield ask("row_of_value", row[0], [cell, head], **names)
            other = 1 + column % len(header)  # the next column
            path = [cell, head, header[other - 1]]
            yield ask("cell_of_value", row[other], path, 2, other=header[other - 1].text, **names)
        ranked = sorted((row[column].text for row in body), key=float, reverse=True)
        if ranked[0] != ranked[1]:
            best = next(row for row in body if row[column].text == ranked[0])
            yield ask("highest", best[0], [head, *(row[column] for row in body)], noun=noun, column=head.text)


@dataclass(frozen=True)
class ReceiptLayout:
    """The order of the columns (n: name, q: quantity, p: price), the places of other lines, and the rules."""

    columns: str
    header: bool = False
    details: Align = "left"
    ruling: Ruling = Ruling()


RECEIPT_LAYOUTS = Layouts(
    train={
        "nqp": ReceiptLayout("nqp"),
        "qnp": ReceiptLayout("qnp", details="centre"),
        "nqp_header": ReceiptLayout("nqp", header=True, ruling=Ruling(header=True)),
        "qnp_header": ReceiptLayout("qnp", header=True, ruling=Ruling(header=True)),
        "nqp_rows": ReceiptLayout("nqp", ruling=Ruling(rows=True), details="right"),
        "np": ReceiptLayout("np", details="centre"),
        "np_leaders": ReceiptLayout("np", ruling=Ruling(leaders=True)),
        "qnp_zebra": ReceiptLayout("qnp", ruling=Ruling(zebra=True)),
    },
    test={
        "nqp_frame": ReceiptLayout("nqp", ruling=Ruling(frame=True)),
        "qnp_table": ReceiptLayout("qnp", header=True, ruling=Ruling(frame=True, rows=True, columns=True)),
        "nqp_zebra_header": ReceiptLayout("nqp", header=True, ruling=Ruling(zebra=True, header=True), details="centre"),
        "qnp_rows": ReceiptLayout("qnp", ruling=Ruling(rows=True), details="right"),
        "np_frame": ReceiptLayout("np", ruling=Ruling(frame=True)),
    },
)

RECEIPT_WORDINGS: dict[str, Wordings] = {
    "price": Wordings(
        (
            "What is the price of {item}?", "How much is {item}?", "What does {item} cost?",
            "Find the price of {item}.", "What price is given for {item}?",
        ),
        ("How much does {item} cost?", "Give the price of {item}.", "What is given for the price of {item}?"),
    ),
    "quantity": Wordings(
        (
            "How many {item} were bought?", "What is the quantity of {item}?", "Give the quantity of {item}.",
            "What quantity of {item} is on the receipt?", "How many {item} are there?",
        ),
        ("What quantity of {item} was bought?", "How many {item} are on the receipt?"),
    ),
    "field": Wordings(
        ("What is the {field}?", "Find the {field}.", "What is the {field} on the receipt?", "Give the {field}."),
        ("What {field} is on the receipt?", "What {field} is given?"),
    ),
    "item_of_price": Wordings(
        ("Which item costs {price}?", "What was bought for {price}?", "Find the item that costs {price}."),
        ("What costs {price}?", "Which item was bought for {price}?"),
    ),
    "price_of_quantity": Wordings(
        (
            "What is the price of the item with quantity {quantity}?",
            "What does the item with quantity {quantity} cost?",
            "Find the price of the item with quantity {quantity}.",
        ),
        (
            "How much is the item with quantity {quantity}?",
            "What price is given for the item with quantity {quantity}?",
        ),
    ),
    "quantity_of_price": Wordings(
        ("What is the quantity of the item that costs {price}?", "How many of the item for {price} were bought?"),
        ("What quantity of the item that costs {price} was bought?",),
    ),
    "priciest": Wordings(
        ("Which item has the highest price?", "What is the item with the highest price?"),
        ("Find the item with the highest price.",),
    ),
}  # fmt: skip

_MIN_ITEMS, _MAX_ITEMS = 3, 14
_RECEIPT_ROW_HEIGHT = 1.7  # of a page full of rows, in font sizes
_HEADERS = {"n": ("Item", "Product", "Article"), "q": ("Qty", "Quantity", "No"), "p": ("Price", "Amount", "Cost")}
_ALIGNS: dict[str, Align] = {"n": "left", "q": "right", "p": "right"}


@dataclass(frozen=True)
class Sale:
    """The content of a receipt: items as (name, quantity, price), and named lines above and below them."""

    shop: str
    items: list[tuple[str, str, str]]
    details: list[tuple[str, str]]
    sums: list[tuple[str, str]]


def _sample_sale(rng: np.random.Generator, split: Split, items: int) -> Sale:
    names = sample_words(rng, ITEMS, items, split)
    cents = [int(rng.integers(50, 2000 if rng.random() < 0.7 else 10000)) for _ in names]
    quantities = [str(rng.integers(1, 4) if rng.random() < 0.6 else rng.integers(2, 25)) for _ in names]
    sign = "$" if rng.random() < 0.3 else ""
    tax = round(sum(cents) * float(rng.choice([0.05, 0.07, 0.1, 0.19, 0.2])))
    sums = [("total", sum(cents) + tax)]
    if rng.random() < 0.6:
        sums = [("subtotal", sum(cents)), ("tax", tax), *sums]
    details = [("date", KINDS["date"](rng, split))]
    for field, kind in (("time", "time"), ("order", "number"), ("cashier", "name"), ("table", "seat")):
        if rng.random() < 0.35:
            details.append((field, KINDS[kind](rng, split)))
    lines = [(name, number, _money(price)) for name, number, price in zip(names, quantities, cents, strict=True)]
    shop = sample_words(rng, SHOPS, 1, split, made_up=False)[0]
    return Sale(shop, lines, details, [(field, sign + _money(amount)) for field, amount in sums])


def _money(cents: int) -> str:
    return f"{cents // 100:,}.{cents % 100:02d}"


@dataclass(frozen=True)
class _Lines:
    """The rows of a receipt, with the range of its items."""

    rows: list[Row]
    first: int
    last: int


def _rows(rng: np.random.Generator, sale: Sale, layout: ReceiptLayout) -> _Lines:
    colon = ":" if rng.random() < 0.6 else ""
    rows = [Row((sale.shop,), ("heading",), "centre")] if rng.random() < 0.8 else []
    details = [
        Row((field.capitalize() + colon, value), ("label", "value"), layout.details) for field, value in sale.details
    ]
    below = rng.random() < 0.25
    rows += [] if below else details
    first = len(rows)
    if layout.header:
        rows.append(Row(tuple(pick(rng, _HEADERS[column]) for column in layout.columns), _roles(layout, "label")))
    for item in sale.items:
        cells = dict(zip("nqp", item, strict=True))
        roles: tuple[Role, ...] = tuple("label" if column == "n" else "value" for column in layout.columns)
        rows.append(Row(tuple(cells[column] for column in layout.columns), roles))
    last = len(rows)
    for field, amount in sale.sums:
        cells = {"n": field.capitalize() + colon, "q": "", "p": amount}
        rows.append(Row(tuple(cells[column] for column in layout.columns), _roles(layout, "label", p="value")))
    return _Lines(rows + (details if below else []), first, last)


def _roles(layout: ReceiptLayout, role: Role, **others: Role) -> tuple[Role, ...]:
    return tuple(others.get(column, role) for column in layout.columns)


@register("receipt", RECEIPT_LAYOUTS, RECEIPT_WORDINGS)
def draw_receipt(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A receipt of 3 to 14 items, fewer on small pages."""
    canvas = Canvas(rng, size, split)
    most = min(_MAX_ITEMS, int(size / (_RECEIPT_ROW_HEIGHT * least_pixels(size))) - 5)
    while True:
        name, layout = RECEIPT_LAYOUTS.draw(rng, split)
        sale = _sample_sale(rng, split, int(rng.integers(_MIN_ITEMS, max(_MIN_ITEMS, most) + 1)))
        lines = _rows(rng, sale, layout)
        aligns = [_ALIGNS[column] for column in layout.columns]
        plan = plan_rows(rng, lines.rows, aligns, canvas.styles, size, ruled=layout.ruling.ruled)
        if plan is not None:
            break
    rule_rows(canvas, layout.ruling, lines.rows, plan, lines.first, lines.last)
    spans = draw_rows(canvas, lines.rows, plan)
    image = canvas.finish()
    texts = [span for row in spans for span in row if span is not None]
    items = spans[lines.last - len(sale.items) : lines.last]
    columns = [
        {column: span for column, span in zip(layout.columns, row, strict=True) if span is not None} for row in items
    ]
    ask = QuestionWriter(RECEIPT_WORDINGS, rng, split)
    questions = [*_ask_items(ask, columns), *_ask_fields(ask, sale, texts)]
    return Page(image, interleave(rng, questions), name, canvas.font, tuple(canvas.glyphs))


def _ask_fields(ask: QuestionWriter, sale: Sale, texts: list[Span]) -> Iterator[Question]:
    for field, _ in [*sale.details, *sale.sums]:
        label = next(i for i, span in enumerate(texts) if span.text.rstrip(":") == field.capitalize())
        yield ask("field", texts[label + 1], [texts[label]], field=field)


def _ask_items(ask: QuestionWriter, items: list[dict[str, Span]]) -> Iterator[Question]:
    """Questions about one item each; a question names a quantity or price only if it is unique."""
    prices = Counter(item["p"].text for item in items)
    quantities = Counter(item["q"].text for item in items if "q" in item)
    for item in items:
        name, price = item["n"], item["p"]
        unique = prices[price.text] == 1
        yield ask("price", price, [name], item=name.text)
        if unique:
            yield ask("item_of_price", name, [price], price=price.text)
        if "q" not in item:
            continue
        quantity = item["q"]
        yield ask("quantity", quantity, [name], item=name.text)
        if quantities[quantity.text] == 1:
            yield ask("price_of_quantity", price, [quantity], 2, quantity=quantity.text)
        if unique:
            yield ask("quantity_of_price", quantity, [price], 2, price=price.text)
    ranked = sorted(items, key=lambda item: _cents(item["p"].text), reverse=True)
    if _cents(ranked[0]["p"].text) > _cents(ranked[1]["p"].text):
        yield ask("priciest", ranked[0]["n"], [item["p"] for item in items])


def _cents(price: str) -> int:
    return int(price.replace(",", "").replace(".", ""))
