"""Domain `receipt`: line items with quantities and prices, their sum, and a few lines about the sale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..questions import Wordings
from ..splits import Split
from ..values import KINDS, pick
from .canvas import Canvas, Role, least_pixels
from .page import Asker, Layouts, Page, Question, Span, interleave, register
from .rows import Align, Row, Ruling, draw_rows, plan_rows, rule_rows
from .words import ITEMS, SHOPS, sample_words


@dataclass(frozen=True)
class Layout:
    """The order of the columns (n: name, q: quantity, p: price), where other lines stand, and the lines drawn."""

    columns: str
    header: bool = False
    details: Align = "left"
    ruling: Ruling = Ruling()


LAYOUTS = Layouts(
    train={
        "nqp": Layout("nqp"),
        "qnp": Layout("qnp", details="centre"),
        "nqp_header": Layout("nqp", header=True, ruling=Ruling(header=True)),
        "qnp_header": Layout("qnp", header=True, ruling=Ruling(header=True)),
        "nqp_rows": Layout("nqp", ruling=Ruling(rows=True), details="right"),
        "np": Layout("np", details="centre"),
        "np_leaders": Layout("np", ruling=Ruling(leaders=True)),
        "qnp_zebra": Layout("qnp", ruling=Ruling(zebra=True)),
    },
    test={
        "nqp_frame": Layout("nqp", ruling=Ruling(frame=True)),
        "qnp_table": Layout("qnp", header=True, ruling=Ruling(frame=True, rows=True, columns=True)),
        "nqp_zebra_header": Layout("nqp", header=True, ruling=Ruling(zebra=True, header=True), details="centre"),
        "qnp_rows": Layout("qnp", ruling=Ruling(rows=True), details="right"),
        "np_frame": Layout("np", ruling=Ruling(frame=True)),
    },
)

WORDINGS: dict[str, Wordings] = {
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
_ROW_HEIGHT = 1.7  # of a page full of rows, in font sizes
_HEADERS = {"n": ("Item", "Product", "Article"), "q": ("Qty", "Quantity", "No"), "p": ("Price", "Amount", "Cost")}
_ALIGNS: dict[str, Align] = {"n": "left", "q": "right", "p": "right"}


@dataclass(frozen=True)
class Sale:
    """What a receipt says: items as (name, quantity, price), and named lines above and below them."""

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
    """The rows of a receipt, and where in them items begin and end."""

    rows: list[Row]
    first: int
    last: int


def _rows(rng: np.random.Generator, sale: Sale, layout: Layout) -> _Lines:
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


def _roles(layout: Layout, role: Role, **others: Role) -> tuple[Role, ...]:
    return tuple(others.get(column, role) for column in layout.columns)


@register("receipt", LAYOUTS, WORDINGS)
def draw_receipt(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A receipt of 3 to 14 items, fewer on small pages."""
    canvas = Canvas(rng, size, split)
    most = min(_MAX_ITEMS, int(size / (_ROW_HEIGHT * least_pixels(size))) - 5)
    while True:
        name, layout = LAYOUTS.draw(rng, split)
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
    ask = Asker(WORDINGS, rng, split)
    questions = [*_ask_items(ask, columns), *_ask_fields(ask, sale, texts)]
    return Page(image, interleave(rng, questions), name, canvas.font, tuple(canvas.glyphs))


def _ask_fields(ask: Asker, sale: Sale, texts: list[Span]) -> Iterator[Question]:
    for field, _ in [*sale.details, *sale.sums]:
        label = next(i for i, span in enumerate(texts) if span.text.rstrip(":") == field.capitalize())
        yield ask("field", texts[label + 1], [texts[label]], field=field)


def _ask_items(ask: Asker, items: list[dict[str, Span]]) -> Iterator[Question]:
    """Questions about one item each; those that name a quantity or a price only where no other item has it."""
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
