"""Invoices: two parties, numbers and dates, items in a table, totals, payment."""

from __future__ import annotations

import datetime

from .maker import PAGES, PageMaker
from .question_writer import SPREAD, boxes_of, spoken
from .sheet import Piece, Style, joined
from .splits import listed, pairs
from .tables import TableLook, write_table

Row = list[list[Piece]]
Items = tuple[Row, list[Row], list[float], dict[str, int]]
Entry = tuple[str, tuple[str, ...], list[Piece], list[Piece]]
_KIND, _SPECIAL = pairs("kinds of facts of invoices"), pairs("wordings of facts of invoices")


class _Invoice:
    def __init__(self, maker: PageMaker) -> None:
        self.maker, self.random, self.values = maker, maker.random, maker.values
        width, height = self.random.choice(((724, 1024), (724, 1024), (791, 1024)))
        self.sheet = maker.open(width, height, maker.paper())
        self.layout = maker.arrange("invoice")
        maker.speak()
        family = maker.family(mono=0.1)
        size = self.random.uniform(10.5, 15)
        self.body = maker.style(family.regular, size)
        self.bold = Style(family.bold, size, self.body.colour)
        self.accent = maker.accent() if self.random.random() < 0.5 else self.body.colour
        self.label = self.bold if self.random.random() < 0.4 else self.body
        self.colon, self.upper = self.random.choice((":", ":", "")), self.random.random() < 0.25
        self.left = float(self.random.randint(30, 64))
        self.right = width - self.left
        self.y = float(self.random.randint(26, 56))
        self.step = size * self.random.uniform(1.25, 1.55)
        self.entries: list[Entry] = []
        self.period: list[str] = []  # its first and last day as printed

    def label_text(self, name: str) -> str:
        return (name.upper() if self.upper else name) + self.colon

    def block(
        self, lines: list[str], x: float, y: float, style: Style, align: str = "left"
    ) -> tuple[list[Piece], float]:
        """Writes lines below each other; returns them and the next baseline."""
        pieces = []
        for line in lines:
            pieces.append(self.sheet.write(line, x, y, style, align))
            y += self.step
        return pieces, y

    def fact(self, concept: str, value: str, x: float, y: float, room: float, *, right: bool = False) -> float:
        """Writes a term with its value after it, at a distance, or right-aligned."""
        names = self.maker.term(concept)
        label = self.sheet.write(self.label_text(names[0]), x, y, self.label)
        needed = self.body.width(self.body.printable(value))
        at = max(x + room * 0.5, label.box[2] + self.body.size * 0.5)
        if right and label.box[2] + needed + self.body.size * 0.5 > x + room:
            y += self.step
        elif not right and at + needed > x + room + 2:
            y += self.step
            at = x
        piece = self.sheet.write(value, x + room if right else at, y, self.body, "right" if right else "left")
        self.entries.append((concept, names, [label], [piece]))
        return y + self.step

    def stacked(self, concept: str, value: str, x: float, y: float) -> float:
        """Writes a term with its value below it."""
        names = self.maker.term(concept)
        label = self.sheet.write(self.label_text(names[0]), x, y, self.label.sized(max(9.0, self.body.size * 0.85)))
        piece = self.sheet.write(value, x, y + self.step * 0.95, self.body)
        self.entries.append((concept, names, [label], [piece]))
        return y + self.step * 2.2


@PAGES.register("invoice")
def invoice(maker: PageMaker) -> None:
    """An invoice of one company to a person or another company."""
    paper = _Invoice(maker)
    random, sheet = maker.random, maker.sheet
    title = _head(paper)
    _parties_and_facts(paper)
    if random.random() < 0.2:
        text, width = maker.words.text(random.randint(1, 2)), paper.right - paper.left
        _, paper.y = sheet.paragraph(text, paper.left, paper.y + paper.step * 0.5, width, paper.body)
    items = _items(paper)
    _sums(paper, items[2])
    _foot(paper)
    _ask(paper, items, title)
    if paper.y < sheet.height * 0.8 and random.random() < 0.4:
        sheet.height = int(paper.y + random.randint(20, 60))


def _head(paper: _Invoice) -> list[Piece]:
    random, sheet, maker = paper.random, paper.sheet, paper.maker
    seller, address = paper.values.company(), paper.values.address()
    lines = len(address)
    if random.random() < 0.5:
        address.append(paper.values.email() if random.random() < 0.5 else paper.values.url())
    title_text = maker.shown(paper.maker.term("invoice")[0], upper=0.4)
    face = maker.family(display=0.1).bold if random.random() < 0.4 else paper.bold.face
    large = Style(face, random.uniform(18, 34), paper.accent)
    name = Style(paper.bold.face, paper.body.size * random.uniform(1.1, 1.8), paper.accent)
    middle = (paper.left + paper.right) / 2
    y = paper.y + large.size
    if paper.layout == "letterhead middle":
        shop, y = [sheet.write(seller, middle, y, name, "middle")], y + name.size * 1.2
        where, y = paper.block(address, middle, y, paper.body, "middle")
        y += large.size
        title = [sheet.write(title_text, middle, y, large, "middle")]
        y += paper.step
    elif paper.layout == "title right":
        title = [sheet.write(title_text, paper.right, y, large, "right")]
        shop = [sheet.write(seller, paper.left, y, name.sized(min(name.size, 16)))]
        where, y = paper.block(address, paper.left, y + paper.step * 1.1, paper.body)
    else:
        title = [sheet.write(title_text, paper.left, y, large)]
        align = random.choice(("right", "left"))
        x = paper.right if align == "right" else paper.left
        if align == "left":
            y += large.size
        shop = [sheet.write(seller, x, y, name.sized(min(name.size, 17)), align)]
        where, y = paper.block(address, x, y + paper.step * 1.1, paper.body, align)
    paper.entries += [("seller", (), [], shop), ("seller address", (), [], where[:lines])]
    paper.y = y + paper.step * 0.3
    if random.random() < 0.3:
        sheet.across(paper.left, paper.right, paper.y - paper.step * 0.5, paper.accent, random.choice((1, 2)))
        paper.y += paper.step * 0.4
    return title


def _facts(paper: _Invoice) -> list[tuple[str, str]]:
    random, values = paper.random, paper.values
    when = values.day(2000, 2029)
    facts = [("invoice number", values.code()), ("invoice date", values.date(when))]
    if random.random() < 0.6:
        facts.append(("due date", values.date(when + datetime.timedelta(days=random.choice((7, 10, 14, 30, 60))))))
    if random.random() < 0.25:
        end = when + datetime.timedelta(days=random.choice((1, 6, 13, 27, random.randint(2, 90))))
        paper.period = [paper.body.printable(values.date(day)) for day in (when, end)]
        facts.append(("period", random.choice(("{}-{}", "{} - {}", "{} to {}")).format(*paper.period)))
    more = {"order number": 0.4, "customer number": 0.4, "terms": 0.3, "contact": 0.35, "taxid": 0.3}
    for concept, often in more.items():
        if random.random() < often:
            drawn = {"terms": lambda: paper.maker.one("payment terms"), "contact": values.person}
            value = drawn.get(concept, values.code)()
            facts.append((concept, value))
    if random.random() < 0.4:
        random.shuffle(facts)
    return facts


def _party(paper: _Invoice, concept: str, x: float, y: float) -> float:
    random, values = paper.random, paper.values
    names = paper.maker.term(concept)
    lines = [values.company() if random.random() < 0.7 else values.person()]
    if random.random() < 0.2:
        lines.append(values.person())
    address = values.address()
    label = paper.sheet.write(paper.label_text(names[0]), x, y, paper.label)
    pieces, y = paper.block([*lines, *address], x, y + paper.step, paper.body)
    paper.entries.append((concept, names, [label], pieces[:1]))
    paper.entries.append((f"{concept} address", names, [label], pieces[len(lines) :]))
    return y


def _parties_and_facts(paper: _Invoice) -> None:
    random, layout, width = paper.random, paper.layout, paper.right - paper.left
    facts, y = _facts(paper), paper.y + paper.step
    second = random.random() < 0.3
    half = paper.left + width * 0.52
    if layout in ("facts under", "facts grid", "facts boxed", "parties stacked"):
        end = _party(paper, "customer", paper.left, y)
        if second and layout == "parties stacked":
            end = _party(paper, "ship to", paper.left, end + paper.step * 0.5)
        elif second:
            end = max(end, _party(paper, "ship to", half, y))
        y = end + paper.step * 0.6
        if layout in ("facts grid", "facts boxed"):
            paper.y = _fact_grid(paper, facts, y)
            return
        for concept, value in facts:
            y = paper.fact(concept, value, paper.left, y, width * 0.6)
        paper.y = y
        return
    left_facts = layout == "facts left"
    fact_x, party_x = (paper.left, half) if left_facts else (half, paper.left)
    end = _party(paper, "customer", party_x, y)
    if second:
        end = _party(paper, "ship to", party_x, end + paper.step * 0.5)
    for concept, value in facts:
        y = paper.fact(concept, value, fact_x, y, width * 0.48, right=layout in ("title right", "facts between"))
    paper.y = max(y, end)


def _fact_grid(paper: _Invoice, facts: list[tuple[str, str]], y: float) -> float:
    """Writes facts in cells side by side, terms above values."""
    columns = min(len(facts), paper.random.choice((3, 4)))
    room = (paper.right - paper.left) / columns
    bottom = y
    for start in range(0, len(facts), columns):
        top = y - paper.step
        for i, (concept, value) in enumerate(facts[start : start + columns]):
            if paper.body.width(paper.body.printable(value)) > room - 10:
                value = value[: max(4, int(room / paper.body.size * 1.4))].strip()
            x = paper.left + i * room
            bottom = max(bottom, paper.stacked(concept, value, x + 5, y))
            if paper.layout == "facts boxed":
                paper.sheet.rectangle(x, top, x + room, y + paper.step * 1.4, outline=(110, 110, 110))
        y = bottom + paper.step * 0.3
    return y


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
    width, top = paper.right - paper.left, paper.y + paper.step * 0.4
    first, cells, bottom = write_table(paper.sheet, look, texts, aligns, paper.left, top, width)
    paper.y = bottom
    return first, cells, amounts, names


def _sums(paper: _Invoice, amounts: list[float]) -> None:
    random, values = paper.random, paper.values
    total = sum(amounts)
    room = (paper.right - paper.left) * random.uniform(0.35, 0.5)
    y = paper.y + paper.step * 1.3
    lines: list[tuple[str, float]] = []
    if random.random() < 0.75:
        lines.append(("subtotal", total))
    tax = random.choice((0.06, 0.07, 0.19, 0.2, 0.21, 0.0825))
    for concept, often, part in (("discount", 0.15, -0.1), ("shipping", 0.25, 0.05), ("tax", 0.75, tax)):
        if random.random() < often:
            lines.append((concept, total * part))
            total += round(total * part, 2)
    lines.append(("total", total))
    if random.random() < 0.2:
        paid = round(total * random.choice((0.2, 0.5)), 2)
        lines += [("paid", paid), ("balance", total - paid)]
    at = paper.right - room
    strong = random.random() < 0.6
    for concept, amount in lines:
        label, body = paper.label, paper.body
        if concept in ("total", "balance") and strong:
            paper.label = paper.body = paper.bold
        y = paper.fact(concept, values.money(round(amount, 2)), at, y, room, right=True)
        if concept == "total" and random.random() < 0.25:
            _write_count(paper)
        paper.label, paper.body = label, body
    paper.y = y


def _write_count(paper: _Invoice) -> None:
    """A number of pieces between the word "Total" and the amount, as on orders."""
    _, _, (label,), (amount,) = paper.entries[-1]
    text, end, gap = str(paper.random.randint(2, 400)), amount.box[0], paper.body.size
    if label.box[2] + gap < end - gap - paper.body.width(text) and abs(label.box[3] - amount.box[3]) < gap / 2:
        paper.sheet.write(
            text, end - gap * paper.random.uniform(0.5, 1.0), float(amount.boxes[0, 3]), paper.body, "right"
        )


def _foot(paper: _Invoice) -> None:
    random, values, sheet = paper.random, paper.values, paper.sheet
    y = paper.y + paper.step
    if random.random() < 0.5 and y + paper.step * 6 < sheet.height:
        facts = [("bank", f"{values.last_name()} Bank"), ("iban", values.iban()), ("phone", values.phone())]
        for concept, value in facts[: random.randint(1, 3)] if random.random() < 0.5 else facts[1:]:
            y = paper.fact(concept, value, paper.left, y, (paper.right - paper.left) * 0.5)
    if random.random() < 0.6 and y + paper.step * 4 < sheet.height:
        text = paper.maker.one("closing")
        names = {"company": values.company(), "phone": values.phone(), "email": values.email()}
        text = text.format(**names, percent=values.percent()).replace("..", ".")
        _, y = sheet.paragraph(text, paper.left, y + paper.step, paper.right - paper.left, paper.body)
    paper.y = y


def _ask(paper: _Invoice, items: Items, title: list[Piece]) -> None:
    maker, questions, random = paper.maker, paper.maker.questions, paper.random
    present = {concept for concept, *_ in paper.entries}
    for concept, names, label, value in paper.entries:
        if concept == "period":
            for end, day in zip(("start", "end"), paper.period, strict=True):
                if day in value[0].text:
                    questions.ask(f"period {end}", value[0].part(day), label, name=spoken(names[0]))
        if concept in _SPECIAL and random.random() < 0.8:
            questions.ask(_SPECIAL[concept], value, label)
        if names and not concept.endswith("address") and (concept not in _SPECIAL or random.random() < 0.5):
            questions.value(names, _KIND.get(concept, "words"), label, value)
    _ask_items(paper, *items)
    absent = [concept for concept in _KIND if concept not in present and concept != "phone"]
    for concept in random.sample(absent, min(3, len(absent))):
        special = _SPECIAL.get(concept)
        if concept == "balance":
            continue
        if special:
            questions.lack(special)
        else:
            questions.absent(questions.named(paper.maker.term(concept)[0], _KIND[concept]))
    questions.gist("kind of page", ("invoice", "an invoice"))
    if random.random() < (0.1 if maker.language == "English" else 1):
        questions.gist("language", maker.language)
    questions.gist("title", joined(title), title)
    if random.random() < 0.4:
        questions.gist("how many items", str(len(items[2])))
    if random.random() < 0.3:
        questions.gist("table there", "yes")
    facts = [entry for entry in paper.entries if entry[1] and not entry[0].endswith("address") and len(entry[3]) == 1]
    first, second = random.sample(facts, 2)
    questions.both((first[1][0], first[2], first[3]), (second[1][0], second[2], second[3]))


def _ask_items(paper: _Invoice, heads: Row, cells: list[Row], amounts: list[float], at: dict[str, int]) -> None:
    questions, random = paper.maker.questions, paper.random
    for row in random.sample(cells, min(3, len(cells))):
        item, amount = row[at["item"]], row[at["amount"]]
        name = joined(item)
        if "price" not in at:
            questions.ask("price", amount, item, item=name.lower(), itemlabel=name)
            continue
        concept = random.choice(("quantity", "price", "amount"))
        cell, head = row[at[concept]], heads[at[concept]]
        if concept == "quantity" and random.random() < 0.6:
            questions.ask("quantity", cell, [*item, *head], item=name.lower(), itemlabel=name)
        else:
            told = joined(head)
            said = f'"{told}"' if questions.quotes else told.lower()
            text = questions.word("cell", column=said, row=name, columnlabel=told, rowlabel=name)
            questions.add(text, joined(cell), boxes_of(cell), boxes_of([*item, *head]))
    if len(amounts) > 2 and amounts.count(max(amounts)) == 1 and "price" not in at and random.random() < 0.6:
        row = cells[amounts.index(max(amounts))]
        questions.ask("dearest", row[at["item"]], row[at["amount"]], kind=SPREAD)
