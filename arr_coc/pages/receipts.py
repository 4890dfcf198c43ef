"""Receipts: a shop, a date, items with prices, totals and payment."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from .maker import PAGES, PageMaker
from .question_writer import SPREAD, boxes_of, spoken
from .sheet import Piece, Style, joined
from .splits import listed


@dataclass
class _Item:
    name: str
    quantity: int
    price: float
    row: list[Piece]
    amount: Piece | None = None
    count: Piece | None = None

    @property
    def total(self) -> float:
        return round(self.price * self.quantity, 2)


class _Receipt:
    """A narrow page that grows downwards."""

    def __init__(self, maker: PageMaker) -> None:
        self.maker, self.random = maker, maker.random
        self.layout = maker.arrange("receipt")
        maker.speak()
        random = self.random
        self.width = random.choice((360, 420, 480, 540, 600))
        self.sheet = maker.open(self.width, 1024, maker.paper())
        wide = random.choice((24, 28, 32, 36, 40))  # characters per line
        self.margin = random.randint(12, 40)
        mono = random.random() < 0.6
        family = maker.fonts.draw(random, "mono") if mono else maker.family(mono=0)
        size = (self.width - 2 * self.margin) / (wide * 0.6)
        self.body = Style(family.regular, max(10.0, min(size, 24.0)), maker.ink())
        self.bold = Style(family.bold, self.body.size, self.body.colour)
        self.left, self.right = float(self.margin), float(self.width - self.margin)
        self.step = self.body.size * random.choice((1.15, 1.25, 1.4, 1.6))
        self.y = float(random.randint(16, 40))
        self.upper = random.random() < 0.5
        self.colon = random.choice((":", ":", "", " :"))
        self.plain_money = random.random() < 0.6  # no currency in the list of items
        self.entries: list[tuple[str, tuple[str, ...], list[Piece], list[Piece]]] = []

    def text(self, text: str) -> str:
        """The text, in capitals if the receipt is."""
        return text.upper() if self.upper else text

    def paragraph(self, text: str, style: Style | None = None, align: str = "middle") -> list[Piece]:
        """Writes a paragraph, by default a centred one."""
        style = style or self.body
        self.y += style.size
        pieces, end = self.sheet.paragraph(text, self.left, self.y, self.right - self.left, style, 1.2, align)
        self.y = end - style.size * 1.2 + self.step - self.body.size
        return pieces

    def rule(self) -> None:
        """Draws a rule: a stroke, or a line of characters."""
        draw = self.random.random()
        if draw < 0.35:
            self.y += self.step * 0.55
            self.sheet.across(self.left, self.right, self.y, self.body.colour)
            self.y += self.step * 0.1
        elif draw < 0.8:
            sign = self.random.choice("--=*")
            sign = self.body.printable(sign) or "-"
            self.y += self.step * 0.8
            self.sheet.write(sign * int((self.right - self.left) / self.body.width(sign)), self.left, self.y, self.body)
        else:
            self.y += self.step * 0.5

    def entry(self, concept: str, value: str, *, bold: bool = False, right: bool = True) -> None:
        """Writes a term and its value on a line; the value is at the right margin or after the term."""
        names = self.maker.term(concept)
        style = self.bold if bold else self.body
        self.y += self.step if style.size == self.body.size else style.size * 1.2
        label = self.sheet.write(self.text(names[0]) + self.colon, self.left, self.y, style)
        if right:
            room = self.right - label.box[2] - style.size * 0.4
            if style.width(style.printable(value)) > room:
                self.y += self.step
            piece = self.sheet.write(value, self.right, self.y, style, "right")
        else:
            if label.box[2] + style.size * 0.5 + style.width(style.printable(value)) > self.right:
                self.y += self.step
                piece = self.sheet.write(value, self.left, self.y, style)
            else:
                piece = self.sheet.write(value, label.box[2] + style.size * 0.5, self.y, style)
        self.entries.append((concept, names, [label], [piece]))


@PAGES.register("receipt")
def receipt(maker: PageMaker) -> None:
    """A receipt of a shop or restaurant."""
    paper, random, values = _Receipt(maker), maker.random, maker.values
    _head(paper)
    when = values.day(2005, 2029)
    _about(paper, when)
    paper.rule()
    items = _items(paper)
    paper.rule()
    total = _sums(paper, items)
    _payment(paper, total)
    if random.random() < 0.25 and any(entry[0] == "date" for entry in paper.entries) is False:
        paper.entry("date", values.date(when), right=False)
    paper.y += paper.step * 0.4
    for text in random.sample(maker.pool("greeting"), random.choice((0, 1, 1, 2))):
        paper.paragraph(paper.text(text.format(url=values.url(), code=values.code())))
    maker.sheet.height = int(paper.y + random.randint(14, 60))
    _ask(paper, items)


def _head(paper: _Receipt) -> None:
    maker, random, values = paper.maker, paper.random, paper.maker.values
    name = values.shop() if random.random() < 0.65 else values.company()
    large = random.random() < 0.6
    face = maker.family(display=0.3).bold if random.random() < 0.4 else paper.bold.face
    style = Style(face, paper.body.size * (random.uniform(1.2, 2.2) if large else 1.0), paper.body.colour)
    shop = paper.paragraph(paper.text(name), style)
    address = []
    if random.random() < 0.9:
        for line in values.address():
            address += paper.paragraph(paper.text(line))
    paper.entries.append(("shop", (), [], shop))
    if address:
        paper.entries.append(("address", (), [], address))
    if random.random() < 0.3:  # a number without a name
        paper.entries.append(("phone", (), [], paper.paragraph(values.phone())))
    elif random.random() < 0.6:
        _centred_entry(paper, "phone", values.phone())
    if random.random() < 0.35:
        _centred_entry(paper, "taxid", values.code())
    if random.random() < 0.15:
        paper.paragraph(paper.text(values.url()))
    if random.random() < 0.35:
        paper.paragraph(maker.one("receipt head"))
    if large and style.size > paper.body.size * 1.4 and random.random() < 0.5:
        maker.questions.gist("largest", joined(shop), shop)


def _centred_entry(paper: _Receipt, concept: str, value: str) -> None:
    names = paper.maker.term(concept)
    label = paper.text(names[0]) + paper.colon
    lines = paper.paragraph(f"{label} {value}")
    printed = paper.body.printable(value)
    if len(lines) == 1 and printed in lines[0].text and paper.body.printable(label) in lines[0].text:
        line = lines[0]
        paper.entries.append((concept, names, [line.part(paper.body.printable(label))], [line.part(printed)]))


def _about(paper: _Receipt, when: datetime.datetime) -> None:
    """Writes number, date, time, cashier and table in random order; sometimes the date has no label."""
    random, values = paper.random, paper.maker.values
    paper.y += paper.step * 0.3
    right = random.random() < 0.3
    shares = {
        "number": 0.7,
        "date": 0.75,
        "time": 0.45,
        "cashier": 0.5,
        "table": 0.25,
        "guests": 0.15,
        "register": 0.25,
    }
    if stamped := random.random() < 0.4:
        _stamp(paper, when)
        del shares["date"], shares["time"]
    concepts = [concept for concept, often in shares.items() if random.random() < often]
    random.shuffle(concepts)
    for concept in concepts:
        value = {
            "number": values.code,
            "date": lambda: values.date(when),
            "time": lambda: values.time(when),
            "cashier": values.first_name if random.random() < 0.7 else values.person,
            "table": lambda: random.choice(("{}", "{}", "A{}", "T{}")).format(random.randint(1, 60)),
            "guests": lambda: str(random.randint(1, 9)),
            "register": lambda: str(random.randint(1, 30)),
        }[concept]()
        paper.entry(concept, value, right=right)
    if not stamped and "date" not in concepts and random.random() < 0.8:
        paper.y += paper.step
        date = paper.sheet.write(values.date(when), paper.left, paper.y, paper.body)
        paper.entries.append(("date", (), [], [date]))
        if "time" not in concepts and random.random() < 0.7:
            at_right = random.random() < 0.5
            text = values.time(when)
            room = date.box[2] + paper.body.size + paper.body.width(paper.body.printable(text)) < paper.right
            if room:
                x = paper.right if at_right else date.box[2] + paper.body.size * 0.8
                time = paper.sheet.write(text, x, paper.y, paper.body, "right" if at_right else "left")
                paper.entries.append(("time", (), [], [time]))


def _stamp(paper: _Receipt, when: datetime.datetime) -> None:
    """Writes date and time as one text, with a label or without."""
    random, values, printable = paper.random, paper.maker.values, paper.body.printable
    date, time = printable(values.date(when)), printable(values.time(when))
    names = paper.maker.term("date") if random.random() < 0.4 else ()
    label = printable(paper.text(names[0]) + paper.colon) if names else ""
    text = random.choice(("{} {}", "{} {}", "{} {}", "{}, {}", "{} - {}", "{1} {0}")).format(date, time)
    lines = paper.paragraph(f"{label} {text}".strip(), align=random.choice(("left", "left", "middle", "right")))
    if len(lines) == 1 and all(part in lines[0].text for part in (label, date, time)):
        named = [lines[0].part(label)] if label else []
        paper.entries.append(("date", names, named, [lines[0].part(date)]))
        paper.entries.append(("time", (), [], [lines[0].part(time)]))


def _drawn_items(paper: _Receipt) -> list[_Item]:
    random, values = paper.random, paper.maker.values
    items: dict[str, _Item] = {}
    single = paper.layout in ("name price", "price left of name") or random.random() < 0.35
    for _ in range(min(random.randint(1, 9) + random.choice((0, 0, 3, 8)), 17)):
        name = paper.text(values.product())
        quantity = 1 if single else random.choice((1, 1, 1, 2, 3, random.randint(1, 12)))
        items.setdefault(name.casefold(), _Item(name, quantity, values.price(), []))
    return list(items.values())


def _items(paper: _Receipt) -> list[_Item]:
    """Writes items in the receipt's layout."""
    random, values, body = paper.random, paper.maker.values, paper.body
    items, layout, leading = _drawn_items(paper), paper.layout, paper.step / body.size
    columns = layout.startswith("columns") or (layout == "name quantity price" and random.random() < 0.5)
    number = body.width("00000")
    at = {"quantity": paper.right - 2.4 * number, "price": paper.right - 1.25 * number, "amount": paper.right}
    if columns:
        _column_heads(paper, at)
    for index, item in enumerate(items):
        money = values.money(item.total, bare=paper.plain_money)
        each = values.money(item.price, bare=True)
        paper.y += paper.step
        start, end = paper.left, paper.right - body.width(body.printable(money)) - body.size * 0.8
        name, tail = item.name, ""
        if layout == "numbered":
            paper.sheet.write(f"{index + 1}.", start, paper.y, body)
            start += body.width("00. ")
        elif layout == "quantity name price":
            item.count = paper.sheet.write(str(item.quantity), start, paper.y, body)
            start += body.width("000 ")
        elif layout == "price left of name":
            item.amount = paper.sheet.write(money, start, paper.y, body)
            start, end = item.amount.box[2] + body.size, paper.right
        elif layout == "name x quantity" and item.quantity > 1:
            tail = f" x{item.quantity}"
        elif layout == "quantity at name":
            tail = f" {item.quantity} @ {each}" if item.quantity > 1 else ""
        elif layout == "name quantity price" or layout.startswith("columns"):
            end = at["quantity"] - number * 0.7
        if layout == "columns two lines":
            item.row, paper.y = paper.sheet.paragraph(name, start, paper.y, paper.right - start, body, leading)
        else:
            room = max(end - start, body.size * 5)
            item.row, below = paper.sheet.paragraph(name, start, paper.y, room, body, leading)
            paper.y = below - paper.step
        if layout != "columns two lines" and item.row[-1].box[2] > max(end, start + body.size * 5):
            paper.y += paper.step
        _amounts(paper, item, at, money, each, tail)
    if random.random() < 0.25:
        count = str(sum(item.quantity for item in items))
        paper.rule()
        paper.entry("items sold", count, right=random.random() < 0.5)
    return items


def _column_heads(paper: _Receipt, at: dict[str, float]) -> None:
    paper.y += paper.step
    end, style = paper.left, paper.bold
    for concept in ("item", "quantity", "amount"):
        text = style.printable(paper.text(paper.maker.term(concept)[0]))
        x, align = (paper.left, "left") if concept == "item" else (at[concept], "right")
        start = x if align == "left" else x - style.width(text)
        if start >= end and text:
            end = paper.sheet.write(text, x, paper.y, style, align).box[2] + style.size * 0.4
    paper.rule()


def _amounts(paper: _Receipt, item: _Item, at: dict[str, float], money: str, each: str, tail: str) -> None:
    """Writes the amounts beside or below an item's name."""
    random, body, layout, sheet = paper.random, paper.body, paper.layout, paper.sheet
    if tail:
        last = item.row[-1]
        x = last.box[2] + body.width(" ")
        if x + body.width(body.printable(tail.strip() + money)) + body.size > paper.right:
            paper.y += paper.step
            x = paper.left + body.width("  ")
        piece = sheet.write(tail.strip(), x, paper.y, body)
        count = str(item.quantity)
        item.count = piece.part(count)
    if layout == "price left of name":
        return
    if layout in ("two lines", "code lines"):
        if layout == "code lines" or random.random() < 0.8 or item.quantity > 1:
            paper.y += paper.step
            start = paper.left + body.width("  ")
            code = f"{paper.maker.values.filled('########')} " if layout == "code lines" else ""
            times = random.choice(("x", "X", "@", "*"))
            piece = sheet.write(f"{code}{item.quantity} {times} {each}", start, paper.y, body)
            if item.count is None:
                begin = len(body.printable(code)) + bool(code)
                end = begin + len(str(item.quantity))
                item.count = Piece(piece.text[begin:end], piece.boxes[begin:end])
            if piece.box[2] + body.width(body.printable(money)) > paper.right:
                paper.y += paper.step
    elif layout == "name quantity price" or layout.startswith("columns"):
        item.count = sheet.write(str(item.quantity), at["quantity"], paper.y, body, "right")
    item.amount = sheet.write(money, paper.right, paper.y, body, "right")


def _sums(paper: _Receipt, items: list[_Item]) -> float:
    random, values = paper.random, paper.maker.values
    total = sum(item.total for item in items)
    paper.y += paper.step * 0.2

    def money(amount: float) -> str:
        return values.money(round(amount, 2), bare=paper.plain_money)

    if random.random() < 0.65:
        paper.entry("subtotal", money(total))
    if random.random() < 0.15:
        taken = total * random.choice((0.05, 0.1, 0.2))
        total -= taken
        paper.entry("discount", money(-taken if random.random() < 0.6 else taken))
    if random.random() < 0.25:
        service = total * random.choice((0.1, 0.125, 0.15))
        total += service
        paper.entry("service", money(service))
    if random.random() < 0.65:
        tax = total * random.choice((0.05, 0.06, 0.07, 0.0825, 0.19, 0.2))
        total += tax * (random.random() < 0.7)
        paper.entry("tax", money(tax))
    if random.random() < 0.12:
        paper.entry("rounding", money(random.choice((0.01, 0.02, -0.02, -0.01))))
    bold, random_bold = paper.bold, random.random()
    if random_bold < 0.35:
        paper.bold = bold.sized(min(bold.size * random.uniform(1.15, 1.6), (paper.right - paper.left) / 14))
    total = round(total, 2)
    paper.entry("total", values.money(total, bare=paper.plain_money and random.random() < 0.7), bold=random_bold < 0.6)
    paper.bold = bold
    return total


def _payment(paper: _Receipt, total: float) -> None:
    random, values = paper.random, paper.maker.values

    def money(amount: float) -> str:
        return values.money(round(amount, 2), bare=paper.plain_money)

    if random.random() < 0.15:
        tip = total * random.choice((0.1, 0.15, 0.18, 0.2))
        paper.entry("tip", money(tip))
    draw = random.random()
    if draw < 0.45:
        step = random.choice((1, 5, 10, 50, 100))
        given = (int(total / step) + 1) * step if random.random() < 0.8 else total
        paper.entry("cash", money(given))
        if random.random() < 0.9:
            paper.entry("change", money(given - total))
    elif draw < 0.75:
        paper.entry("card", money(total))
        if random.random() < 0.5:
            paper.y += paper.step
            number = values.filled(random.choice(("**** **** **** ####", "XXXXXXXXXXXX####", "************####")))
            paper.sheet.write(number, paper.left, paper.y, paper.body)


_ASKED = listed("asked of receipts")
_NAMED = {
    "table": "code",
    "guests": "count",
    **dict.fromkeys(("number", "register", "taxid"), "code"),
    "rounding": "amount",
}


def _ask(paper: _Receipt, items: list[_Item]) -> None:
    maker, questions, random = paper.maker, paper.maker.questions, paper.random
    present = {concept for concept, *_ in paper.entries}
    for concept, names, label, value in paper.entries:
        if concept in _ASKED:
            asked = concept if concept == "items sold" else f"ask {concept}"
            questions.ask(asked, value, label)
        if names and (concept in _NAMED or random.random() < 0.4):
            sum_ = concept in ("total", "subtotal", "tax", "cash", "change")
            kind = _NAMED.get(concept, "amount" if sum_ else "words")
            questions.value([name.rstrip(" @") for name in names], kind, label, value)
    _ask_items(paper, items)
    there = {*present, "shop", "total", "items sold", "cashier"}
    missing = [concept for concept in _ASKED if concept not in there]
    if "cash" in present or "card" in present:
        missing = [concept for concept in missing if concept not in ("card", "cash")]
    for concept in random.sample(missing, min(2, len(missing))):
        questions.lack(f"ask {concept}")
    absent = [concept for concept in _NAMED if concept not in present]
    for concept in random.sample(absent, min(1, len(absent))):
        questions.absent(questions.named(paper.maker.term(concept)[0], _NAMED[concept]))
    questions.gist("kind of page", ("receipt", "a receipt"))
    if random.random() < (0.1 if maker.language == "English" else 1):
        questions.gist("language", maker.language)
    if random.random() < 0.5:
        questions.gist("how many items", str(len(items)))
    first, second = random.sample(paper.entries, 2) if len(paper.entries) > 3 else (paper.entries[0], paper.entries[-1])
    if first[1] and second[1]:
        questions.both((first[1][0], first[2], first[3]), (second[1][0], second[2], second[3]))


def _ask_items(paper: _Receipt, items: list[_Item]) -> None:
    questions, random = paper.maker.questions, paper.random
    for item in random.sample(items, min(4, len(items))):
        name, said = joined(item.row), joined(item.row).lower()
        assert item.amount is not None
        text = questions.word("price", item=said if random.random() < 0.7 else name, itemlabel=name)
        questions.add(text, item.amount.text, [item.amount.box], boxes_of(item.row))
        if item.count is not None and random.random() < 0.4:
            questions.ask("quantity", item.count, item.row, item=said, itemlabel=name)
    amounts = [item.total for item in items]
    item = random.choice(items)
    if amounts.count(item.total) == 1 and random.random() < 0.4:
        assert item.amount is not None
        questions.ask("item of price", item.row, item.amount, value=item.amount.text)
    if len(items) > 2 and all(item.quantity == 1 for item in items):
        for word, best in (("dearest", max(amounts)), ("cheapest", min(amounts))):
            if amounts.count(best) == 1 and random.random() < 0.5:
                item = items[amounts.index(best)]
                assert item.amount is not None
                questions.ask(word, item.row, item.amount, kind=SPREAD)
    other = paper.maker.values.product()
    if all(word not in " ".join(i.name for i in items).lower() for word in spoken(other).split()):
        questions.lack("price", item=other.lower(), itemlabel=other)
