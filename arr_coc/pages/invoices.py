"""Invoices: two parties, numbers and dates, items in a table, totals, payment."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from .fields import Field
from .maker import PAGES, PageMaker
from .pairs import Look, PairWriter, Shown, ask_facts
from .question_writer import spoken
from .receipts import ask_items
from .sheet import Piece, Style, joined
from .splits import listed, pairs
from .tables import TableLook, write_table

Row = list[list[Piece]]
Items = tuple[Row, list[Row], list[float], dict[str, int]]
_KIND, _SPECIAL = pairs("kinds of facts of invoices"), pairs("wordings of facts of invoices")


class _Invoice:
    """A page that is written from `y`, the top of what comes next, downwards."""

    def __init__(self, maker: PageMaker) -> None:
        self.maker, self.random, self.values = maker, maker.random, maker.values
        width, height = self.random.choice(((724, 1024), (724, 1024), (791, 1024)))
        self.sheet = maker.open(width, height, maker.paper())
        self.layout = maker.arrange("invoice")
        maker.speak()
        family = maker.family(mono=0.1)
        self.body, self.bold = maker.styles(family, self.random.uniform(10.5, 15))
        self.accent = maker.accent() if self.random.random() < 0.5 else self.body.colour
        self.label = self.bold if self.random.random() < 0.4 else self.body
        self.colon, self.upper = self.random.choice((":", ":", "")), self.random.random() < 0.25
        self.left = float(self.random.randint(30, 64))
        self.width = width - 2 * self.left
        self.y = float(self.random.randint(16, 46))
        self.leading = self.random.uniform(1.25, 1.55)
        self.step = self.body.size * self.leading
        self.shown: list[Shown] = []
        self.period: list[str] = []  # its first and last day as printed

    def facts(
        self, facts: Sequence[Field], x: float, y: float, width: float, *, right: bool = False, strong: bool = False
    ) -> float:
        """Writes terms with their values after them, or at the right end; returns the bottom."""
        label, value = (self.bold, self.bold) if strong else (self.label, self.body)
        look = Look("after" if right else "left", label, value, label_share=0.46, leading=self.leading, right=right)
        return self.write(look, facts, x, y, width)

    def write(self, look: Look, facts: Sequence[Field], x: float, y: float, width: float) -> float:
        """Writes facts in a look; returns the bottom."""
        look = dataclasses.replace(look, case="upper" if self.upper else "plain", colon=self.colon)
        writer = PairWriter(self.maker, look)
        bottom = writer.grid(facts, x, y, width)
        self.shown += writer.shown
        return bottom


@PAGES.register("invoice")
def invoice(maker: PageMaker) -> None:
    """An invoice of one company to a person or another company."""
    paper = _Invoice(maker)
    random, sheet = maker.random, maker.sheet
    _head(paper)
    _parties_and_facts(paper)
    if random.random() < 0.2:
        text = maker.words.text(random.randint(1, 2))
        _, paper.y = sheet.paragraph(text, paper.left, paper.y + paper.step * 1.2, paper.width, paper.body)
        paper.y -= paper.body.size
    items = _items(paper)
    _sums(paper, items[2])
    _foot(paper)
    _ask(paper, items)
    if paper.y < sheet.height * 0.8 and random.random() < 0.4:
        sheet.height = int(paper.y + random.randint(20, 60))


def _head(paper: _Invoice) -> None:
    random, sheet, maker, values = paper.random, paper.sheet, paper.maker, paper.values
    seller, address = values.company(), values.address()
    more = [values.email() if random.random() < 0.5 else values.url()] if random.random() < 0.5 else []
    face = maker.family(display=0.1).bold if random.random() < 0.4 else paper.bold.face
    large = Style(face, random.uniform(18, 34), paper.accent)
    name = paper.bold.inked(paper.accent) * random.uniform(1.1, 1.6)
    at = {"left": paper.left, "middle": sheet.width / 2, "right": paper.left + paper.width}
    title_at, shop_at = {"letterhead middle": ("middle", "middle"), "title right": ("right", "left")}.get(
        paper.layout, ("left", random.choice(("right", "left")))
    )
    text = maker.shown(maker.term("invoice")[0], upper=0.4)
    title_y = shop_y = paper.y + large.size
    if title_at == "middle":
        title_y += name.size * 1.2 + paper.step * len([*address, *more]) + large.size
    elif title_at == shop_at or large.width(large.printable(text)) + name.width(seller) > paper.width - 20:
        shop_y += large.size
    maker.title = [sheet.write(text, at[title_at], title_y, large, title_at)]
    shop = [sheet.write(seller, at[shop_at], shop_y, name, shop_at)]
    leading, top = paper.leading, shop_y + max(name.size, paper.step) * 1.1
    where = sheet.lines_from([*address, *more], at[shop_at], top, paper.body, leading, shop_at)
    paper.shown.append(Shown(Field((), "company", "seller"), [], shop))
    paper.shown.append(Shown(Field((), "address", "seller address"), [], where[: len(address)]))
    paper.y = max(where[-1].base, title_y) + paper.step * 0.9
    if random.random() < 0.3:
        sheet.across(paper.left, at["right"], paper.y, paper.accent, random.choice((1, 2)))
        paper.y += paper.step * 0.6


def _facts(paper: _Invoice) -> list[Field]:
    random, values, maker = paper.random, paper.values, paper.maker
    when = values.day(2000, 2029)
    facts = [("invoice number", values.code()), ("invoice date", values.date(when))]
    if random.random() < 0.6:
        facts.append(("due date", values.date(when + datetime.timedelta(days=random.choice((7, 10, 14, 30, 60))))))
    if random.random() < 0.25:
        end = when + datetime.timedelta(days=random.choice((1, 6, 13, 27, random.randint(2, 90))))
        paper.period = [paper.body.printable(values.date(day)) for day in (when, end)]
        facts.append(("period", random.choice(("{}-{}", "{} - {}", "{} to {}")).format(*paper.period)))
    special = {"terms": lambda: maker.one("payment terms"), "contact": values.person}
    more = {"order number": 0.4, "customer number": 0.4, "terms": 0.3, "contact": 0.35, "taxid": 0.3}
    facts += [
        (concept, special.get(concept, values.code)()) for concept, often in more.items() if random.random() < often
    ]
    if random.random() < 0.4:
        random.shuffle(facts)
    return [maker.fact(concept, value, _KIND.get(concept, "words")) for concept, value in facts]


def _party(paper: _Invoice, concept: str, x: float, y: float) -> float:
    """Writes a term and the name and address of a party below it; returns the bottom."""
    random, values = paper.random, paper.values
    names = paper.maker.term(concept)
    lines = [values.company() if random.random() < 0.7 else values.person()]
    if random.random() < 0.2:
        lines.append(values.person())
    text = (names[0].upper() if paper.upper else names[0]) + paper.colon
    label = [paper.sheet.write(text, x, y + paper.body.size, paper.label)]
    top = y + paper.body.size + paper.step
    pieces = paper.sheet.lines_from([*lines, *values.address()], x, top, paper.body, paper.leading)
    paper.shown.append(Shown(Field(names, "words", concept), label, pieces[:1]))
    paper.shown.append(Shown(Field((), "address", f"{concept} address"), label, pieces[len(lines) :]))
    return pieces[-1].base + paper.step * 0.5


def _parties_and_facts(paper: _Invoice) -> None:
    random, layout, left, y = paper.random, paper.layout, paper.left, paper.y
    facts, second, half = _facts(paper), random.random() < 0.3, left + paper.width * 0.52
    under = layout in ("facts under", "facts grid", "facts boxed", "parties stacked")
    party_x = half if layout == "facts left" else left
    end = _party(paper, "customer", party_x, y)
    if second and under and layout != "parties stacked":
        end = max(end, _party(paper, "ship to", half, y))
    elif second:
        end = _party(paper, "ship to", party_x, end + paper.step * 0.3)
    if layout in ("facts grid", "facts boxed"):
        small, columns = paper.label.sized(max(9.0, paper.body.size * 0.85)), min(len(facts), random.choice((3, 4)))
        look = Look(
            "above" if layout == "facts grid" else "boxed above", small, paper.body, columns, rule=(110, 110, 110)
        )
        paper.y = paper.write(look, facts, left, end + paper.step * 0.3, paper.width)
    elif under:
        paper.y = paper.facts(facts, left, end + paper.step * 0.3, paper.width * 0.6)
    else:
        x, right = left if party_x == half else half, layout in ("title right", "facts between")
        paper.y = max(end, paper.facts(facts, x, y, paper.width * 0.48, right=right))


def _items(paper: _Invoice) -> Items:
    random, values, maker = paper.random, paper.values, paper.maker
    order = ["item", "quantity", "price", "amount"]
    extra = random.random()
    if extra < 0.25:
        order = ["number", *order]
    elif extra < 0.4:
        order = ["quantity", "item", "price", "amount"]
    elif extra < 0.5:
        order = ["item", "amount"]
    heads, names = [], {}
    for concept in order:
        if concept == "number":
            text = random.choice(("No.", "#", "Pos.", "Line"))
        else:
            text = next(term for term in paper.maker.term(concept) if term not in heads)
        heads.append(text)
        names[concept] = len(heads) - 1
    rows, amounts, taken = [], [], set()
    bare = random.random() < 0.6
    for i in range(random.randint(1, random.choice((4, 8, 13)))):
        name = values.product() + (f" {maker.words.noun()}" if random.random() < 0.2 else "")
        if name.casefold() in taken:
            continue
        taken.add(name.casefold())
        quantity = random.choice((1, 1, 2, 3, 5, 10, random.randint(1, 60)))
        price = round(values.price() * random.choice((1, 1, 10, 40)), 2)
        amounts.append(round(price * quantity, 2))
        cell = {"item": name, "quantity": str(quantity), "price": values.money(price, bare=bare), "number": str(i + 1)}
        cell["amount"] = values.money(amounts[-1], bare=bare)
        rows.append([cell[concept] for concept in order])
    layout = random.choice(listed("rulings of invoices"))
    dark = layout in ("shaded head", "boxed") and random.random() < 0.5
    white = dark and paper.accent != paper.body.colour
    rule = random.choice(((0, 0, 0), (130, 130, 130), (190, 190, 190)))
    shade = paper.accent if white else maker.tint()
    aligns = ["left" if concept in ("item", "number") else "right" for concept in order]
    texts = [[maker.shown(text, upper=paper.upper) for text in heads], *rows]
    head, body = paper.bold.inked((255, 255, 255) if white else paper.body.colour), paper.body
    look = TableLook(layout, rule, shade, 0.5, head, body, body, random.uniform(1.4, 2.0))
    top = paper.y + paper.step * 0.6
    first, cells, paper.y = write_table(paper.sheet, look, texts, aligns, paper.left, top, paper.width)
    return first, cells, amounts, names


def _sums(paper: _Invoice, amounts: list[float]) -> None:
    random, values = paper.random, paper.values
    total, lines, strong = sum(amounts), dict[str, float](), random.random() < 0.6
    if random.random() < 0.75:
        lines["subtotal"] = total
    tax = random.choice((0.06, 0.07, 0.19, 0.2, 0.21, 0.0825))
    for concept, often, part in (("discount", 0.15, -0.1), ("shipping", 0.25, 0.05), ("tax", 0.75, tax)):
        if random.random() < often:
            lines[concept] = total * part
            total += round(total * part, 2)
    lines["total"] = total
    if random.random() < 0.2:
        lines["paid"] = round(total * random.choice((0.2, 0.5)), 2)
        lines["balance"] = total - lines["paid"]
    room = paper.width * random.uniform(0.35, 0.5)
    paper.y += paper.step * 0.5
    for concept, amount in lines.items():
        fact = paper.maker.fact(concept, values.money(round(amount, 2)), "amount")
        x, bold = paper.left + paper.width - room, strong and concept in ("total", "balance")
        paper.y = paper.facts([fact], x, paper.y, room, right=True, strong=bold)
        if concept == "total" and random.random() < 0.25:
            _write_count(paper, paper.bold if strong else paper.body)


def _write_count(paper: _Invoice, style: Style) -> None:
    """A number of pieces between the word "Total" and the amount, as on orders."""
    label, amount = paper.shown[-1].label[-1], paper.shown[-1].value[0]
    text, end = str(paper.random.randint(2, 400)), amount.box[0] - style.size * paper.random.uniform(0.5, 1.0)
    if label.box[2] + style.size < end - style.width(text) and label.base == amount.base:
        paper.sheet.write(text, end, amount.base, style, "right")


def _foot(paper: _Invoice) -> None:
    random, values, sheet, maker = paper.random, paper.values, paper.sheet, paper.maker
    paper.y += paper.step
    if random.random() < 0.5 and paper.y + paper.step * 6 < sheet.height:
        facts = [("bank", f"{values.last_name()} Bank"), ("iban", values.iban()), ("phone", values.phone())]
        chosen = facts[: random.randint(1, 3)] if random.random() < 0.5 else facts[1:]
        fields = [maker.fact(concept, value, _KIND[concept]) for concept, value in chosen]
        paper.y = paper.facts(fields, paper.left, paper.y, paper.width * 0.6)
    if random.random() < 0.6 and paper.y + paper.step * 4 < sheet.height:
        names = {"company": values.company(), "phone": values.phone(), "email": values.email()}
        text = maker.one("closing").format(**names, percent=values.percent()).replace("..", ".")
        _, paper.y = sheet.paragraph(text, paper.left, paper.y + paper.step * 1.5, paper.width, paper.body)


def _ask(paper: _Invoice, items: Items) -> None:
    maker, questions, random = paper.maker, paper.maker.questions, paper.random
    for each in paper.shown:
        if each.field.concept == "period":
            for end, day in zip(("start", "end"), paper.period, strict=True):
                if day in each.value[0].text:
                    name = spoken(each.field.name)
                    questions.ask(f"period {end}", each.value[0].part(day), each.label, name=name)
    kinds = {concept: kind for concept, kind in _KIND.items() if concept not in ("phone", "balance")}
    ask_facts(maker, paper.shown, _SPECIAL, kinds, 3)
    _ask_items(paper, *items)
    if random.random() < 0.4:
        questions.gist("how many items", str(len(items[2])))
    if random.random() < 0.3:
        questions.gist("table there", "yes")


def _ask_items(paper: _Invoice, heads: Row, cells: list[Row], amounts: list[float], at: dict[str, int]) -> None:
    questions, random = paper.maker.questions, paper.random
    if "price" not in at:
        ask_items(paper.maker, [{"name": row[at["item"]], "amount": row[at["amount"]]} for row in cells], amounts)
        return
    for row in random.sample(cells, min(3, len(cells))):
        concept, item, name = random.choice(("quantity", "price", "amount")), row[at["item"]], joined(row[at["item"]])
        cell, labels, told = row[at[concept]], [*item, *heads[at[concept]]], joined(heads[at[concept]])
        if concept == "quantity" and random.random() < 0.6:
            questions.ask("quantity", cell, labels, item=name.lower(), itemlabel=name)
        else:
            said = f'"{told}"' if questions.quotes else told.lower()
            questions.ask("cell", cell, labels, column=said, row=name, columnlabel=told, rowlabel=name)
