"""Tables with heads of columns and rows, numbers in many formats and optional rules; and pages with a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .fonts import FontFace
from .maker import PAGES, PageMaker
from .question_writer import SPREAD, spoken
from .sheet import Colour, Piece, Sheet, Style, joined
from .splits import listed
from .values import KINDS, MONTHS

_COLUMNS = listed("kinds of columns")
_HEADS = ("country", "city", "person", "product", "words", "company", "year", "month", "code", "job")

Cell = list[Piece]
Texts = Sequence[Sequence[str]]  # by row


@dataclass(frozen=True)
class TableLook:
    """The appearance of a table: rules and shading, styles, and whether it has the whole width."""

    layout: str
    rule: Colour
    shade: Colour
    padding: float  # beside a cell, in em
    head: Style
    body: Style
    first: Style  # of the first column
    leading: float = 1.5
    full: bool = True


def write_table(
    sheet: Sheet, look: TableLook, texts: Texts, aligns: Sequence[str], x: float, y: float, width: float
) -> tuple[list[Cell], list[list[Cell]], float]:
    """Writes a table whose top is at y; the first row of `texts` has the heads, `aligns` is that of each column.

    Returns:
        The pieces of the heads, the pieces of each cell by row and column (empty for empty cells), and the bottom, px.
    """
    padding, space = look.padding * look.body.size, look.leading
    widths = _widths(look, texts, width, padding)
    lefts = [x + sum(widths[:i]) for i in range(len(widths) + 1)]
    tops, cells = [y], list[list[Cell]]()
    for row in texts:
        bottom, own = tops[-1] + look.body.size * space, list[Cell]()
        for i, text in enumerate(row):
            style = look.head if not cells else look.body if i else look.first
            base, room = tops[-1] + style.size * (space / 2 + 0.35), widths[i] - 2 * padding
            place = lefts[i] + padding, base, room, style, 1.15, aligns[i]
            own.append(sheet.paragraph(text, *place)[0] if style.printable(text) else [])
            if own[-1]:
                bottom = max(bottom, own[-1][-1].base + style.size * (space / 2 - 0.35))
        cells.append(own)
        tops.append(bottom)
    _rule(sheet, look, lefts, tops, lefts[-1])
    return cells[0], cells[1:], tops[-1]


def _widths(look: TableLook, texts: Texts, width: float, padding: float) -> list[float]:
    """Widths of columns: as needed for one line per cell, reduced if too wide, extended to fill the width."""
    (heads, *rows), head, natural, least = texts, look.head, [], []
    for i, text in enumerate(heads):
        style = look.body if i else look.first
        longest = max((style.width(style.printable(row[i])) for row in rows), default=0.0)
        words = [head.width(word) for word in head.printable(text).split()] or [0.0]
        needed = min(head.width(head.printable(text)), max(longest * 1.3, *words))
        natural.append(max(longest, needed) + 2 * padding + 1)
        own = [style.width(word) for row in rows for word in style.printable(row[i]).split()]
        least.append(max([*own, *words]) + 2 * padding + 1)
    total = sum(natural)
    if total > width:
        spare, short = [n - low for n, low in zip(natural, least, strict=True)], total - width
        part = min(1.0, short / max(sum(spare), 1e-6))
        return [n - part * s for n, s in zip(natural, spare, strict=True)]
    return [n + (width - total) / len(heads) for n in natural] if look.full else natural


def _rule(sheet: Sheet, ruling: TableLook, lefts: list[float], tops: list[float], right: float) -> None:
    left, layout, rule = lefts[0], ruling.layout, ruling.rule
    if layout in ("shaded head", "boxed", "striped", "wide"):
        sheet.rectangle(left, tops[0], right, tops[1], fill=ruling.shade)
    if layout == "striped":
        for top, bottom in list(zip(tops[1:], tops[2:], strict=False))[1::2]:
            sheet.rectangle(left, top, right, bottom, fill=ruling.shade)
    across = {
        "ruled": tops,
        "horizontal rules": tops,
        "head rule": [tops[1]],
        "boxed": [tops[0], tops[1], tops[-1]],
        "columns ruled": [tops[0], tops[1], tops[-1]],
        "shaded head": [tops[-1]],
        "bold row heads": [tops[0], tops[1], tops[-1]],
        "double rule": [tops[0], tops[0] + 3, tops[1], tops[-1], tops[-1] + 3],
        "wide": tops[1:],
    }.get(layout, [])
    for y in across:
        sheet.across(left, right, y, rule)
    if layout == "dotted":
        for y in tops[1:]:
            for dot in range(round(left), round(right), 4):
                sheet.across(dot, dot + 1, y, rule)
    down = {"ruled": [*lefts, right], "boxed": [left, right], "columns ruled": [*lefts, right]}.get(layout, [])
    for x in down:
        sheet.line((round(x), tops[0]), (round(x), tops[-1]), colour=rule)


@dataclass
class Column:
    """The content of a column."""

    name: str
    kind: str
    texts: list[str]
    numbers: list[float]  # empty if they are not compared


_NUMBERS = ("amount", "number", "percent", "count")


def draw_column(maker: PageMaker, rows: int, taken: set[str]) -> Column:
    """A random column whose head is not in `taken`; its numbers share a format."""
    random, values = maker.random, maker.values
    kind = random.choice((*_NUMBERS, "number", *_COLUMNS))
    name = maker.one(f"column {kind}")
    draw = random.random()
    if draw < 0.2:
        name = maker.names.invented().name
    elif draw < 0.35 and kind in _NUMBERS:
        quarter, fiscal = f"Q{random.randint(1, 4)}", f"FY{random.randint(10, 29)}"
        name = random.choice((quarter, values.year(), f"{name} {values.year()}", fiscal, random.choice(MONTHS)[:3]))
    if name.casefold() in taken:
        return draw_column(maker, rows, taken)
    if kind not in _NUMBERS:
        return Column(name, kind, [KINDS[kind](values) for _ in range(rows)], [])
    negative = 0.3 if random.random() < 0.2 and kind != "count" else 0.0
    scale = 10 ** random.uniform(0.7, 6) if kind in ("amount", "number") else 30.0
    decimals = {"count": 0, "amount": random.choice((0, 2, 2))}.get(kind, random.choice((0, 0, 1, 2)))
    drawn = (scale * random.lognormvariate(0, 0.8) for _ in range(rows))
    numbers = [round(-number if random.random() < negative else number, decimals) for number in drawn]
    bare, sign = random.random() < 0.6, random.choice(("%", " %", "")) if kind == "percent" else ""
    if kind == "amount":
        return Column(name, kind, [values.money(number, decimals, bare=bare) for number in numbers], numbers)
    return Column(name, kind, [values.grouped(number, decimals) + sign for number in numbers], numbers)


def row_heads(maker: PageMaker, count: int) -> tuple[str, list[str]]:
    """The head of the first column and distinct names of rows."""
    random, values = maker.random, maker.values
    kind = random.choice(_HEADS)
    name = maker.one(f"head {kind}")
    if kind == "year":
        start = random.randint(1960, 2029 - count)
        return name, [str(start + i) for i in range(count)]
    if kind == "month":
        start = random.randrange(12)
        return name, [MONTHS[(start + i) % 12] for i in range(min(count, 12))]
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[KINDS[kind](values)] = None
    return name, list(texts)


class DrawnTable:
    """A random table with heads of columns and rows: its content, and once written, the places of its cells."""

    def __init__(self, maker: PageMaker, columns: int, rows: int) -> None:
        self.maker = maker
        self.corner, self.names = row_heads(maker, rows)
        self.columns: list[Column] = []
        for _ in range(columns):
            taken = {self.corner.casefold(), *(column.name.casefold() for column in self.columns)}
            self.columns.append(draw_column(maker, len(self.names), taken))
        self.heads: list[Cell] = []
        self.cells: list[list[Cell]] = []

    def write(
        self,
        look: TableLook,
        x: float,
        y: float,
        width: float,
        aligns: Sequence[str],
        *,
        corner: str | None = None,
        case: Callable[[str], str] = str,
        total: Sequence[str] = (),
    ) -> float:
        """Writes it as `write_table` does, with another corner, or a last row; returns the bottom."""
        names, columns = [self.corner if corner is None else corner, *self.names], self.columns
        rows = [[*row] for row in zip(names, *([each.name, *each.texts] for each in columns), strict=True)]
        texts = [[case(text) for text in rows[0]], *rows[1:], *([total] if total else [])]
        self.heads, self.cells, bottom = write_table(self.maker.sheet, look, texts, aligns, x, y, width)
        return bottom

    def ask(self) -> None:
        """Asks for cells by row and column, for rows by value, for the highest value, and for absent cells."""
        maker, questions, random, count = self.maker, self.maker.questions, self.maker.random, len(self.names)
        columns, cells, heads, who = self.columns, self.cells, self.heads, _said(self.corner)
        names = [joined(row[0]) for row in cells]
        for _ in range(7):
            i, j = random.randrange(len(cells)), random.randrange(len(columns))
            cell, row, head = cells[i][j + 1], cells[i][0], heads[j + 1]
            if cell and row and head and names.count(names[i]) == 1:
                names_of = {"row": names[i], "columnlabel": joined(head), "rowlabel": names[i]}
                questions.ask("cell", cell, [*row, *head], column=_said(columns[j].name), **names_of)
        i, j = random.randrange(count), random.randrange(len(columns))
        texts = [joined(row[j + 1]) for row in cells]
        if texts.count(texts[i]) == 1 and cells[i][j + 1] and random.random() < 0.6:
            names_of = {"value": texts[i], "column": _said(columns[j].name), "head": who}
            questions.ask("row of", cells[i][0], [*cells[i][j + 1], *heads[j + 1]], **names_of)
        compared = [j for j, column in enumerate(columns) if column.numbers and not column.name[-1].isdigit()]
        for j, numbers in [(j, columns[j].numbers) for j in compared[:2]]:
            for word, best in (("highest", max(numbers)), ("lowest", min(numbers))):
                if numbers.count(best) == 1 and random.random() < 0.5:
                    own, column = cells[numbers.index(best)], _said(columns[j].name)
                    leads = [*heads[j + 1], *own[j + 1]]
                    questions.ask(word, own[0], leads, SPREAD, head=who, column=column)
        if random.random() < 0.4:
            questions.gist("how many rows", str(count), head=who)
        if random.random() < 0.3:
            questions.gist("how many columns", str(len(columns) + 1))
        i = random.randrange(len(cells) - 1)
        for where, beside in (("under", cells[i + 1][0]), ("right", cells[i][1])):
            if names.count(names[i]) == len(cells[i][0]) == 1 and beside and random.random() < 0.35:
                questions.beside(where, cells[i][0][0], beside)
        for _ in range(2):  # a row or a column that the table does not have
            name, missing = random.choice(columns).name, random.choice(names)
            if random.random() < 0.5:
                name = draw_column(maker, 1, {each.name.casefold() for each in columns}).name
            else:
                missing = random.choice([each for each in row_heads(maker, 5)[1] if each not in names] or [""])
            if missing:
                questions.lack("cell", column=_said(name), row=missing, columnlabel=name, rowlabel=missing)


@PAGES.register("table")
def table(maker: PageMaker) -> None:
    """A page with a table, its caption and sometimes text around it."""
    random = maker.random
    columns = random.randint(2, 7)
    many = ((724, 1024), (791, 1024), (1024, 724), (1024, 640))
    width, height = random.choice(many if columns > 3 else ((724, 1024), (600, 700), (800, 600)))
    sheet = maker.open(width, height, maker.paper())
    layout = maker.arrange("table")
    family = maker.family(mono=0.12)
    size = random.uniform(10, 13) if columns > 5 else random.uniform(11, 17)
    body, bold = maker.styles(family, size)
    dark = layout in ("shaded head", "boxed", "wide") and random.random() < 0.3
    head = (bold if random.random() < 0.75 else body) * random.choice((1.0, 1.0, 0.92))
    head = head.inked((255, 255, 255)) if dark else head
    first = bold if layout == "bold row heads" or random.random() < 0.15 else body
    rule = random.choice(((0, 0, 0), (110, 110, 110), (190, 190, 190)))
    shade, padding = maker.accent() if dark else maker.tint(), random.uniform(0.35, 0.9)
    margin = random.randint(24, 70)
    x, y, inner = float(margin), float(random.randint(30, 70)), float(width - 2 * margin)
    leading = random.uniform(1.3, 2.1)
    drawn = DrawnTable(maker, columns, min(random.randint(3, 22), int((height - 230) / (size * leading))))
    y = _caption(maker, family.bold, body, drawn.corner, x, y, inner)
    if random.random() < 0.3:
        _, y = sheet.paragraph(maker.words.text(random.randint(1, 4)), x, y + size * 0.6, inner, body)
    total = _total_row(maker, drawn.columns) if random.random() < 0.2 else []
    numeric = random.choice(("right", "right", "middle", "left"))
    words = (random.choice(("left", "left", "middle")) for _ in drawn.columns)
    aligns = ["left", *(numeric if each.numbers else word for each, word in zip(drawn.columns, words, strict=True))]
    look = TableLook(layout, rule, shade, padding, head, body, first, leading, random.random() < 0.8)
    corner = "" if random.random() < 0.25 else None
    bottom = drawn.write(look, x, y + size * 0.8, inner, aligns, corner=corner, total=total)
    sheet.height = max(sheet.height, int(bottom + 20))
    _rest(maker, body, x, bottom, inner)
    drawn.ask()
    maker.questions.gist("table there", "yes")


def _caption(maker: PageMaker, bold: FontFace, body: Style, corner: str, x: float, y: float, width: float) -> float:
    random = maker.random
    if random.random() < 0.2:
        return y
    words = maker.words
    if random.random() < 0.5:
        name = words.thing().capitalize()
    else:
        name = f"{words.noun().capitalize()} {maker.one('column number').lower()}"
    text = maker.one("caption").format(n=random.randint(1, 19), t=name, y=maker.values.year(), h=corner.lower())
    style = Style(random.choice((bold, body.face)), body.size * random.uniform(1.0, 1.8), body.colour)
    align = random.choice(("left", "left", "middle"))
    maker.title, end = maker.sheet.paragraph(text, x, y + style.size, width, style, 1.2, align)
    return end - style.size * 0.5


def _total_row(maker: PageMaker, columns: list[Column]) -> list[str]:
    values = maker.values
    texts = [maker.one("total row")]
    for column in columns:
        if not column.numbers or column.kind == "percent":
            texts.append("")
            continue
        whole = all(number == int(number) for number in column.numbers)
        texts.append(values.grouped(sum(column.numbers), 0 if whole else 2))
    return texts if any(texts[1:]) else []


def _rest(maker: PageMaker, body: Style, x: float, y: float, width: float) -> None:
    """Writes notes or paragraphs below the table; sometimes the page ends at the table."""
    random, sheet = maker.random, maker.sheet
    y += body.size * 1.6
    if y + body.size * 3 < sheet.height and random.random() < 0.4:
        note = body.sized(max(9.0, body.size * 0.82))
        text = random.choice(("Source: {}", "Note: {}", "* {}", "1) {}"))
        text = text.format(maker.words.sentence() if random.random() < 0.6 else maker.values.company())
        _, y = sheet.paragraph(text, x, y, width, note)
    while y + body.size * 5 < sheet.height and random.random() < 0.45:
        _, y = sheet.paragraph(maker.words.text(random.randint(2, 5)), x, y + body.size * 0.6, width, body)
    if y < sheet.height * 0.85 and random.random() < 0.6:
        sheet.height = int(y + random.randint(10, 60))


def _said(name: str) -> str:
    return f'"{name}"' if any(c.isdigit() for c in name) or "(" in name else spoken(name)
