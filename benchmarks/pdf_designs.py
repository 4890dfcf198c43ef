"""The designs of drawn PDFs: invoices, statements, forms, text in two columns, tables over two pages, wide tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from random import Random
from typing import Any

from faker import Faker
from reportlab.lib.utils import simpleSplit

from .pdf_drawing import GREY, MARGIN, WHITE, Design, Document, Sheet, Spec, hyphenated, with_ligatures

Pairs = Sequence[tuple[str, str]]
QUESTIONS = 3  # of each document


def draw(
    spec: Spec,
    fonts: tuple[str, str] | None = None,
    encode: Callable[[str], str] | None = None,
    under: Callable[[Sheet], None] | None = None,
) -> tuple[Sheet, list[tuple[str, str]]]:
    """Draws a document; gives its sheet and three questions with answers.

    Args:
        spec: the document.
        fonts, encode: see `Sheet`.
        under: draws on the first page before the document.
    """
    random, fake = Random(spec.seed), Faker(spec.locale)
    fake.seed_instance(spec.seed)
    sheet = Sheet(spec, fonts, encode or (with_ligatures if spec.variant == "ligatures" else None))
    if under is not None:
        under(sheet)
    questions = DESIGNS[spec.design](sheet, fake, random)
    return sheet, questions[:QUESTIONS]


def drawn(spec: Spec) -> Document:
    """A document whose layer says what it shows."""
    sheet, questions = draw(spec)
    return Document(sheet.finish(), sheet.words, [], questions)


def ask(label: str) -> str:
    """Asks for a field by its printed name."""
    name = label if label[1].isupper() else label[0].lower() + label[1:]
    return f"What is the {name}?"


def ask_cell(row: str, column: str) -> str:
    """Asks for a cell by the printed names of its row and column."""
    return f'What is the "{column}" of "{row}"?'


def _fields(sheet: Sheet, x: float, y: float, pairs: Pairs, style: int) -> float:
    """Labels and values: on one line, in two columns, or the value under its label. Gives the next free y."""
    step, names = 1.55 * sheet.spec.size, [f"{label}:" if style == 0 else label for label, _ in pairs]
    column = x + max(sheet.measure(name, bold=True) for name in names) + 1.2 * sheet.spec.size
    for name, (_, value) in zip(names, pairs, strict=True):
        end = sheet.text(x, y, name, bold=style != 1)
        if style == 2:
            y += 1.15 * sheet.spec.size
        sheet.text((end + 0.4 * sheet.spec.size, column, x)[style], y, value)
        y += step
    return y + 0.5 * step


def _grid(sheet: Sheet, y: float, head: Sequence[str], rows: Sequence[Sequence[str]], *, by_column: bool) -> float:
    """A table over the width of the page, numbers to the right; in the file row by row or column by column."""
    size, step, right = sheet.spec.size, 1.6 * sheet.spec.size, sheet.width - MARGIN
    widths = [
        max(sheet.measure(head[column], bold=True), *(sheet.measure(row[column]) for row in rows))
        for column in range(len(head))
    ]
    gap = (right - MARGIN - sum(widths)) / max(len(head) - 1, 1)
    if gap < 0.5 * size:
        raise ValueError(f"{sheet.spec.name}: expected a table that fits the page; got columns of {sum(widths):.0f} pt")
    sheet.box(MARGIN - 4, y - 1.1 * size, right + 4, y + 0.5 * size, GREY)
    starts = [MARGIN + sum(widths[:column]) + column * gap for column in range(len(head))]
    cells = [(row, column) for row in range(len(rows) + 1) for column in range(len(head))]
    for row, column in sorted(cells, key=lambda cell: cell[::-1]) if by_column else cells:
        text = head[column] if row == 0 else rows[row - 1][column]
        number = rows[0][column].lstrip("-")[:1].isdigit() and column > 0
        x = starts[column] + widths[column] if number else starts[column]
        sheet.text(x, y + row * step, text, bold=row == 0, align="right" if number else "left")
    y += (len(rows) + 0.35) * step
    sheet.rule(MARGIN - 4, y, right + 4, y)
    return y + 1.5 * step


def _title(sheet: Sheet, text: str, *, band: bool = False) -> float:
    """A title, white on a dark band or black; gives the next free y."""
    size = 1.7 * sheet.spec.size
    if band:
        sheet.box(0, MARGIN - 1.5 * size, sheet.width, MARGIN + 0.7 * size, (0.1, 0.2, 0.4))
    sheet.text(MARGIN, MARGIN, text, size=size, bold=True, colour=WHITE if band else (0.0, 0.0, 0.0))
    return MARGIN + 2 * size


def _amount(random: Random, low: float = 5, high: float = 4000) -> str:
    return f"{random.uniform(low, high):,.2f}"


def _items(fake: Any, count: int) -> list[str]:
    """Different names of things, of two words."""
    names = dict[str, None]()
    while len(names) < count:
        first, second = fake.words(2, unique=True)
        if min(len(first), len(second)) > 3 and len(first + second) <= 18:
            names[f"{first.capitalize()} {second}"] = None
    return list(names)


def _date(fake: Any, pattern: str) -> str:
    """A date of 1990 to 2025; faker's own depend on today and on the time zone."""
    first, last = date(1990, 1, 1).toordinal(), date(2025, 12, 31).toordinal()
    return date.fromordinal(fake.random_int(first, last)).strftime(pattern)


def _street(fake: Any) -> str:
    return str(fake.street_address()).replace("\n", ", ")


def _mixed(random: Random, fields: Pairs, cells: Pairs, count: int = 2) -> list[tuple[str, str]]:
    """Two questions for fields, and one for a cell (or another `count` of fields)."""
    return [*random.sample([*fields], count), *random.sample([*cells], QUESTIONS - count)]


def _invoice(sheet: Sheet, fake: Any, random: Random) -> list[tuple[str, str]]:
    style, sign = random.randrange(3), random.choice("$€£")
    y = _title(sheet, fake.company(), band=sheet.spec.seed % 3 == 0)
    sheet.text(sheet.width - MARGIN, y, "INVOICE", size=1.4 * sheet.spec.size, bold=True, align="right")
    left = [
        ("Invoice number", fake.bothify("??-#####").upper()),
        ("Invoice date", _date(fake, random.choice(DATES))),
        ("Customer number", fake.numerify("######")),
        ("Purchase order", fake.bothify("PO#####?").upper()),
    ]
    right = [
        ("Customer", fake.name()),
        ("Street", _street(fake)),
        ("City", fake.city()),
        ("Payment term", f"{random.choice((10, 14, 21, 30, 60))} days"),
    ]
    below = max(_fields(sheet, x, y + 24, pairs, style) for x, pairs in ((MARGIN, left), (0.54 * sheet.width, right)))
    head, rows = ("Description", "Quantity", "Unit price", "Amount"), []
    for item in _items(fake, random.randint(4, 9)):
        rows.append([item, str(random.randint(1, 60)), _amount(random), _amount(random)])
    y = _grid(sheet, below, head, rows, by_column=sheet.spec.seed % 2 == 1)
    totals = [(name, sign + _amount(random, 100, 9000)) for name in ("Subtotal", "Shipping", "Sales tax", "Total due")]
    y = _fields(sheet, 0.6 * sheet.width, y, totals, 1)
    bank = [("IBAN", fake.iban()), ("Tax number", fake.numerify("##/###/#####")), ("Telephone", fake.phone_number())]
    _fields(sheet, MARGIN, y, bank, style)
    fields = [(ask(label), value) for label, value in [*left, *right, *totals, *bank]]
    return _mixed(random, fields, [(ask_cell(row[0], head[3]), row[3]) for row in rows])


def _statement(sheet: Sheet, fake: Any, random: Random) -> list[tuple[str, str]]:
    y = _title(sheet, f"{fake.last_name()} & {fake.last_name()} Bank")
    sheet.text(MARGIN, y, "Statement of account", bold=True)
    holder = [
        ("Account holder", fake.name()),
        ("Account number", fake.numerify("#### #### ##")),
        ("Branch", fake.city()),
        ("Statement number", fake.numerify("###/2026")),
    ]
    sums = [
        ("Opening balance", _amount(random)),
        ("Money in", _amount(random)),
        ("Money out", _amount(random)),
        ("Closing balance", _amount(random)),
    ]
    style = random.randrange(3)
    below = max(_fields(sheet, x, y + 24, pairs, style) for x, pairs in ((MARGIN, holder), (0.58 * sheet.width, sums)))
    head, rows, day = ("Date", "Description", "Reference", "Amount", "Balance"), [], random.randint(1, 4)
    room = int((sheet.height - below - 2 * MARGIN) / (1.6 * sheet.spec.size))
    for item in _items(fake, min(room, random.randint(14, 28))):
        amount = random.choice(("-", "")) + _amount(random, 2, 900)
        rows.append([f"{day:02} Mar", item, fake.bothify("?###??").upper(), amount, _amount(random)])
        day = min(day + random.randint(0, 2), 31)
    _grid(sheet, below, head, rows, by_column=sheet.spec.seed % 2 == 1)
    cells = [(ask_cell(row[1], head[column]), row[column]) for row in rows for column in (2, 4)]
    return _mixed(random, [(ask(label), value) for label, value in [*holder, *sums]], cells)


def _form(sheet: Sheet, fake: Any, random: Random) -> list[tuple[str, str]]:
    """Fields to be filled in, and filled in: the values are no text of the page."""
    size, y = sheet.spec.size, _title(sheet, f"Application for a {fake.word()} permit")
    values = {
        "Applicant": [
            ("Surname", fake.last_name()),
            ("Given name", fake.first_name()),
            ("Birth date", _date(fake, DATES[0])),
            ("Place of birth", fake.city()),
            ("Passport number", fake.bothify("?########").upper()),
        ],
        "Contact": [
            ("Street", _street(fake)),
            ("Town", fake.city()),
            ("Postcode", fake.postcode()),
            ("Mobile", fake.phone_number()),
            ("Email", fake.email()),
        ],
        "Request": [
            ("Reference", fake.bothify("??/####/##").upper()),
            ("Occupation", fake.job()),
            ("Employer", fake.company()),
            ("Fee paid", _amount(random, 20, 300)),
            ("Expiry date", _date(fake, DATES[1])),
        ],
    }
    above = sheet.spec.seed % 2 == 1
    for section, pairs in values.items():
        sheet.text(MARGIN, y, section, bold=True, size=1.2 * size)
        y += 2.4 * size
        for label, value in pairs:
            x = MARGIN if above else MARGIN + 11 * size
            sheet.text(MARGIN, y, label)
            y += 1.5 * size if above else 0
            sheet.field(x, y, min(26 * size, sheet.width - MARGIN - x), f"{section}.{label}", value)
            y += (2.1 if above else 2.5) * size
        y += 0.6 * size
    sheet.tick(MARGIN, y, "agreed", random.random() < 0.5)
    sheet.text(MARGIN + 2 * size, y, "I have read the notes overleaf.")
    pairs = [pair for pairs in values.values() for pair in pairs]
    return [(ask(label), value) for label, value in random.sample(pairs, QUESTIONS)]


def _columns(sheet: Sheet, fake: Any, random: Random) -> list[tuple[str, str]]:
    """A newsletter: two columns of prose, with lines that say where, when and who."""
    size, asked = sheet.spec.size, list[tuple[str, str]]()
    top = _title(sheet, f"The {fake.city()} Courier")
    width, bottom = (sheet.width - 3 * MARGIN) / 2, sheet.height - MARGIN
    labels = [
        ("Venue", lambda: _street(fake)),
        ("Speaker", fake.name),
        ("Contact", fake.email),
        ("Office", fake.city),
        ("Booking code", lambda: fake.bothify("??##??").upper()),
        ("Hall", lambda: fake.numerify("Hall ##")),
        ("Telephone", fake.phone_number),
        ("Chair", fake.name),
        ("Entry fee", lambda: f"${_amount(random, 3, 90)}"),
        ("Deadline", lambda: _date(fake, DATES[0])),
    ]
    random.shuffle(labels)
    for column in range(2):
        x, y = MARGIN + column * (width + MARGIN), top
        while True:
            text = fake.paragraph(nb_sentences=random.randint(4, 8))
            lines = hyphenated(sheet, simpleSplit(text, sheet.plain[0], size, width), width)
            if y + (len(lines) + 3) * 1.35 * size > bottom:
                break
            for line in lines:
                sheet.text(x, y, line)
                y += 1.35 * size
            if labels:
                label, value = labels.pop()
                asked.append((ask(label), said := str(value())))
                sheet.text(sheet.text(x, y + 0.3 * size, f"{label}:", bold=True) + 0.4 * size, y + 0.3 * size, said)
                y += 1.35 * size
            y += 0.8 * size
    return random.sample(asked, QUESTIONS)


def _table(sheet: Sheet, fake: Any, random: Random) -> list[tuple[str, str]]:
    """A list that goes on on a second page: asked for a row of each, and for what is printed behind the last one."""
    y = _title(sheet, f"Price list of {fake.company()}")
    y = _fields(sheet, MARGIN, y, [("Valid from", _date(fake, DATES[0])), ("Warehouse", fake.city())], 0)
    room = int((sheet.height - y - MARGIN) / (1.6 * sheet.spec.size)) - 1
    head, rows = ("Article", "Code", "Colour", "In stock", "Price"), []
    for item in _items(fake, room + random.randint(6, room - 8)):
        code, stock = fake.bothify("??-###").upper(), str(random.randint(1, 990))
        rows.append([item, code, fake.safe_color_name(), stock, _amount(random)])
    by_column = sheet.spec.seed % 2 == 1
    _grid(sheet, y, head, rows[:room], by_column=by_column)
    sheet.next_page()
    y = _grid(sheet, MARGIN, head, rows[room:], by_column=by_column)
    last = [("Person responsible", fake.name()), ("Stock value", "$" + _amount(random, 10_000, 90_000))]
    _fields(sheet, MARGIN, y, last, 0)
    upper, lower = random.choice(rows[:room]), random.choice(rows[room:])
    label, value = random.choice(last)
    return [(ask_cell(upper[0], head[4]), upper[4]), (ask_cell(lower[0], head[1]), lower[1]), (ask(label), value)]


def _wide(sheet: Sheet, fake: Any, random: Random) -> list[tuple[str, str]]:
    """A wide table with a column for each month."""
    y = _title(sheet, f"Sales of {fake.company()}, in thousands")
    fields = [
        ("Prepared by", fake.name()),
        ("Approval date", _date(fake, DATES[1])),
        ("Sheet", fake.bothify("?-##").upper()),
    ]
    y = _fields(sheet, MARGIN, y, fields, 0)
    head = ("Region", "January", "February", "March", "April", "May", "June", "July", "August")
    room = int((sheet.height - y - MARGIN) / (1.6 * sheet.spec.size)) - 2
    towns = sorted(sorted({fake.city() for _ in range(60)}), key=len)  # short names
    rows = [
        [town, *(f"{random.uniform(1, 999):.1f}" for _ in head[1:])]
        for town in random.sample(towns[:30], min(room, random.randint(9, 20)))
    ]
    _grid(sheet, y, head, rows, by_column=sheet.spec.seed % 2 == 1)
    cells = [(ask_cell(row[0], head[column]), row[column]) for row in rows for column in range(1, len(head))]
    return _mixed(random, [(ask(label), value) for label, value in fields], cells, 1)


DATES = ("%d %B %Y", "%Y-%m-%d", "%m/%d/%Y")
DESIGNS: dict[str, Design] = {
    "invoice": _invoice,
    "statement": _statement,
    "form": _form,
    "columns": _columns,
    "table": _table,
} | {"wide": _wide}
