"""Receipts: a shop, a date, items with prices, totals and payment."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .fields import Field
from .maker import PAGES, PageMaker
from .pairs import Look, PairWriter, Shown, ask_facts
from .question_writer import SPREAD, spoken
from .sheet import Piece, Pieces, Style, joined
from .splits import listed, pairs

_NEXT = 99  # beside what comes before
_COLUMNS = {"name": 0, "quantity": -13, "amount": -1}
_ITEMS: dict[str, tuple[dict[str, int], ...]] = {
    "name price": ({"name": 0, "amount": -1},),
    "quantity name price": ({"quantity": 0, "name": 4, "amount": -1},),
    "numbered": ({"number": 0, "name": 4, "amount": -1},),
    "price left of name": ({"amount": 0, "name": 9},),
    "name x quantity": ({"name": 0, "x": _NEXT, "amount": -1},),
    "quantity at name": ({"name": 0, "at": _NEXT, "amount": -1},),
    "two lines": ({"name": 0}, {"times": 2, "amount": -1}),
    "code lines": ({"name": 0}, {"code": 2, "times": 11, "amount": -1}),
    "columns two lines": ({"name": 0}, {"quantity": -13, "amount": -1}),
    **dict.fromkeys(("name quantity price", "columns", "columns with rules"), (_COLUMNS,)),
}
"""The lines of an item by layout: the characters before each part, or negative, those after it and one more."""


@dataclass
class _Item:
    name: str
    quantity: int
    price: float
    parts: dict[str, list[Piece]] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return round(self.price * self.quantity, 2)

    @property
    def count(self) -> Piece | None:
        """Where the quantity is printed."""
        shown = next((self.parts[part] for part in ("quantity", "times", "x", "at") if part in self.parts), None)
        return shown[0].part(str(self.quantity)) if shown else None


class _Receipt:
    """A narrow page that grows downwards; `y` is the last baseline."""

    def __init__(self, maker: PageMaker) -> None:
        self.maker, self.random = maker, maker.random
        self.layout = maker.arrange("receipt")
        maker.speak()
        random = self.random
        width = random.choice((360, 420, 480, 540, 600))
        self.sheet = maker.open(width, 1024, maker.paper())
        wide = random.choice((24, 28, 32, 36, 40))  # characters per line
        self.left = float(random.randint(12, 40))
        self.right = width - self.left
        family = maker.fonts.draw(random, "mono") if random.random() < 0.6 else maker.family(mono=0)
        size = (self.right - self.left) / (wide * 0.6)
        self.body, self.bold = maker.styles(family, max(10.0, min(size, 24.0)))
        self.step = self.body.size * random.choice((1.15, 1.25, 1.4, 1.6))
        self.y = float(random.randint(16, 40))
        self.upper = random.random() < 0.5
        self.colon = random.choice((":", ":", "", " :"))
        self.bare = random.random() < 0.6  # no currency in the list of items
        self.shown: list[Shown] = []

    def text(self, text: str) -> str:
        """The text, in capitals if the receipt is."""
        return text.upper() if self.upper else text

    def money(self, amount: float) -> str:
        """An amount as in the list of items."""
        return self.maker.values.money(round(amount, 2), bare=self.bare)

    def paragraph(self, text: str, style: Style | None = None, align: str = "middle") -> list[Piece]:
        """Writes a paragraph, by default a centred one."""
        style = style or self.body
        top = self.y + style.size + self.step - self.body.size
        pieces, _ = self.sheet.paragraph(text, self.left, top, self.right - self.left, style, 1.2, align)
        self.y = pieces[-1].base
        return pieces

    def rule(self) -> None:
        """Draws a rule: a stroke, or a line of characters."""
        draw = self.random.random()
        if draw < 0.35:
            self.y += self.step * 0.65
            self.sheet.across(self.left, self.right, self.y - self.step * 0.1, self.body.colour)
        elif draw < 0.8:
            sign = self.body.printable(self.random.choice("--=*")) or "-"
            self.y += self.step * 0.8
            self.sheet.write(sign * int((self.right - self.left) / self.body.width(sign)), self.left, self.y, self.body)
        else:
            self.y += self.step * 0.5

    def entry(self, concept: str, value: str, style: Style | None = None, *, right: bool = True) -> None:
        """Writes a term and its value on a line; the value is at the right margin or after the term."""
        style, case = style or self.body, "upper" if self.upper else "plain"
        leading = self.step / self.body.size
        look = Look("after", style, style, case=case, colon=self.colon, leading=leading, right=right)
        writer, fact = PairWriter(self.maker, look), self.maker.fact(concept, value, _KIND.get(concept, "words"))
        self.y = writer.grid([fact], self.left, self.y + look.drop, self.right - self.left) - look.drop
        self.shown += writer.shown

    def line(self, text: str, align: str, names: tuple[str, ...], **values: str) -> None:
        """Writes a line with values by concept, after a term for the first one if there are `names` for it."""
        printable = self.body.printable
        label = printable(self.text(names[0]) + self.colon) if names else ""
        line, *more = self.paragraph(f"{label} {text}".strip(), align=align)
        if more or not all(printable(part) in line.text for part in (label, *values.values())):
            return
        for concept, value in values.items():
            labels = [line.part(label)] if label and names else []
            named = Field(names, _KIND.get(concept, "words"), concept)
            self.shown.append(Shown(named, labels, [line.part(printable(value))]))
            names = ()


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
    _payment(paper, _sums(paper, sum(item.total for item in items)))
    if random.random() < 0.25 and all(each.field.concept != "date" for each in paper.shown):
        paper.entry("date", values.date(when), right=False)
    paper.y += paper.step * 0.4
    for text in random.sample(maker.pool("greeting"), random.choice((0, 1, 1, 2))):
        paper.paragraph(paper.text(text.format(url=values.url(), code=values.code())))
    maker.sheet.height = int(paper.y + random.randint(14, 60))
    _ask(paper, items)


def _head(paper: _Receipt) -> None:
    maker, random, values = paper.maker, paper.random, paper.maker.values
    large = random.random() < 0.6
    face = maker.family(display=0.3).bold if random.random() < 0.4 else paper.bold.face
    style = Style(face, paper.body.size * (random.uniform(1.2, 2.2) if large else 1.0), paper.body.colour)
    shop = paper.paragraph(paper.text(values.shop() if random.random() < 0.65 else values.company()), style)
    paper.shown.append(Shown(Field((), "company", "shop"), [], shop))
    if random.random() < 0.9:
        address = [piece for line in values.address() for piece in paper.paragraph(paper.text(line))]
        paper.shown.append(Shown(Field((), "address", "address"), [], address))
    for concept, draw, often in (("phone", values.phone, 0.7), ("taxid", values.code, 0.35)):
        if random.random() < often:
            named, value = concept != "phone" or random.random() < 0.6, draw()  # some numbers have no name
            paper.line(value, "middle", maker.term(concept) if named else (), **{concept: value})
    if random.random() < 0.15:
        paper.paragraph(paper.text(values.url()))
    if random.random() < 0.35:
        paper.paragraph(maker.one("receipt head"))
    if large and style.size > paper.body.size * 1.4 and random.random() < 0.5:
        maker.questions.gist("largest", joined(shop), shop)


def _about(paper: _Receipt, when: datetime.datetime) -> None:
    """Writes number, date, time, cashier and table in random order; sometimes date and time as one text."""
    random, values = paper.random, paper.maker.values
    paper.y += paper.step * 0.3
    right, stamped = random.random() < 0.3, random.random() < 0.5
    table = random.choice(("{}", "{}", "A{}", "T{}")).format(random.randint(1, 60))
    entries = [("number", values.code(), 0.7), ("table", table, 0.25), ("guests", str(random.randint(1, 9)), 0.15)]
    entries += [("cashier", random.choice((values.first_name, values.person))(), 0.5)]
    entries += [("register", str(random.randint(1, 30)), 0.25)]
    date, time = values.date(when), values.time(when)
    if not stamped:
        entries += [("date", date, 0.9), ("time", time, 0.45)]
    elif random.random() < 0.8:
        form = random.choice(("{} {}", "{} {}", "{} {}", "{}, {}", "{} - {}", "{1} {0}"))
        names = paper.maker.term("date") if random.random() < 0.4 else ()
        align = random.choice(("left", "left", "middle", "right"))
        paper.line(form.format(date, time), align, names, date=date, time=time)
    else:  # date and time at both ends of a line
        paper.line(date, "left", (), date=date)
        if paper.body.width(paper.body.printable(date + time)) < paper.right - paper.left - paper.body.size:
            piece = paper.sheet.write(time, paper.right, paper.y, paper.body, "right")
            paper.shown.append(Shown(Field((), "time", "time"), [], [piece]))
    random.shuffle(entries)
    for concept, value, often in entries:
        if random.random() < often:
            paper.entry(concept, value, right=right)


def _items(paper: _Receipt) -> list[_Item]:
    """Writes items in the receipt's layout."""
    random, values = paper.random, paper.maker.values
    items: dict[str, _Item] = {}
    single = paper.layout in ("name price", "price left of name") or random.random() < 0.35
    for _ in range(min(random.randint(1, 9) + random.choice((0, 0, 3, 8)), 17)):
        name = paper.text(values.product())
        quantity = 1 if single else random.choice((1, 1, 1, 2, 3, random.randint(1, 12)))
        items.setdefault(name.casefold(), _Item(name, quantity, values.price()))
    if paper.layout.startswith("columns") or (paper.layout == "name quantity price" and random.random() < 0.5):
        end, style, cell = paper.left, paper.bold, paper.body.width("0")
        paper.y += paper.step
        for concept, at in zip(("item", "quantity", "amount"), _COLUMNS.values(), strict=True):
            text = style.printable(paper.text(paper.maker.term(concept)[0]))
            x = paper.right + (at + 1) * cell - style.width(text) if at < 0 else paper.left
            if x >= end and text:
                end = paper.sheet.write(text, x, paper.y, style).box[2] + style.size * 0.4
        paper.rule()
    sign = random.choice(("x", "X", "@", "*"))
    for number, item in enumerate(items.values(), 1):
        each, code = values.money(item.price, bare=True), values.filled("########")
        texts = {"name": item.name, "quantity": str(item.quantity), "amount": paper.money(item.total), "code": code}
        texts |= {"number": f"{number}.", "times": f"{item.quantity} {sign} {each}"}
        if item.quantity > 1:
            texts |= {"x": f"x{item.quantity}", "at": f"{item.quantity} @ {each}"}
        _write_item(paper, item, texts)
    if random.random() < 0.25:
        paper.rule()
        paper.entry("items sold", str(sum(item.quantity for item in items.values())), right=random.random() < 0.5)
    return list(items.values())


def _write_item(paper: _Receipt, item: _Item, texts: dict[str, str]) -> None:
    body, cell = paper.body, paper.body.width("0")

    def left_of(part: str, at: int) -> float:
        wide = body.width(body.printable(texts[part]))
        return paper.right + (at + 1) * cell - wide if at < 0 else paper.left + at * cell

    for line in _ITEMS[paper.layout]:
        paper.y += paper.step
        taken = paper.left
        for part, at in line.items():
            if part not in texts:
                continue
            x = taken if at == _NEXT else left_of(part, at)
            if part == "name":
                x = max(x, taken)
                end = min((left_of(*other) for other in line.items() if other[1] < 0), default=paper.right)
                room = max(end - x - body.size * 0.8, body.size * 5)
                pieces, _ = paper.sheet.paragraph(texts[part], x, paper.y, room, body, paper.step / body.size)
                paper.y = pieces[-1].base
            else:
                if x < taken or x + body.width(body.printable(texts[part])) > paper.right + 1:
                    paper.y += paper.step
                    x = x if at < 0 else paper.left + cell * 2
                pieces = [paper.sheet.write(texts[part], x, paper.y, body)]
            item.parts[part], taken = pieces, pieces[-1].box[2] + body.size * 0.5


def _sums(paper: _Receipt, total: float) -> float:
    """Writes what is added to the sum of the items, and the total; returns it."""
    random = paper.random
    paper.y += paper.step * 0.2
    if random.random() < 0.65:
        paper.entry("subtotal", paper.money(total))
    tax = random.choice((0.05, 0.06, 0.07, 0.0825, 0.19, 0.2))
    rates = {"discount": (0.15, -random.choice((0.05, 0.1, 0.2))), "service": (0.25, random.choice((0.1, 0.125, 0.15)))}
    for concept, (often, rate) in {**rates, "tax": (0.65, tax)}.items():
        if random.random() < often:
            amount = total * rate
            total += amount * (concept != "tax" or random.random() < 0.7)  # or it is included
            paper.entry(concept, paper.money(abs(amount) if random.random() < 0.4 else amount))
    if random.random() < 0.12:
        paper.entry("rounding", paper.money(random.choice((0.01, 0.02, -0.02, -0.01))))
    style = random.choice((paper.body, paper.bold))
    if random.random() < 0.35:
        style = paper.bold.sized(min(style.size * random.uniform(1.15, 1.6), (paper.right - paper.left) / 14))
    bare = paper.bare and random.random() < 0.7
    paper.entry("total", paper.maker.values.money(round(total, 2), bare=bare), style)
    return round(total, 2)


def _payment(paper: _Receipt, total: float) -> None:
    random = paper.random
    if random.random() < 0.15:
        paper.entry("tip", paper.money(total * random.choice((0.1, 0.15, 0.18, 0.2))))
    draw = random.random()
    if draw < 0.45:
        step = random.choice((1, 5, 10, 50, 100))
        given = (int(total / step) + 1) * step if random.random() < 0.8 else total
        paper.entry("cash", paper.money(given))
        if random.random() < 0.9:
            paper.entry("change", paper.money(given - total))
    elif draw < 0.75:
        paper.entry("card", paper.money(total))
        if random.random() < 0.5:
            paper.y += paper.step
            form = random.choice(("**** **** **** ####", "XXXXXXXXXXXX####", "************####"))
            paper.sheet.write(paper.maker.values.filled(form), paper.left, paper.y, paper.body)


_SPECIAL = {each: each if each == "items sold" else f"ask {each}" for each in listed("asked of receipts")}
_KIND = pairs("kinds of facts of receipts")


def _ask(paper: _Receipt, items: list[_Item]) -> None:
    maker, questions, random = paper.maker, paper.maker.questions, paper.random
    kinds = {concept: kind for concept, kind in _KIND.items() if concept not in ("cashier", "items sold")}
    if {"card", "cash"} & {each.field.concept for each in paper.shown}:  # one is absent as the other is there
        del kinds["card"], kinds["cash"]
    ask_facts(maker, paper.shown, _SPECIAL, kinds, 3)
    parts = [{**item.parts, "quantity": [item.count] if item.count else []} for item in items]
    ask_items(maker, parts, [item.total for item in items])
    if random.random() < 0.5:
        questions.gist("how many items", str(len(items)))


def ask_items(maker: PageMaker, items: Sequence[Mapping[str, Pieces]], totals: Sequence[float]) -> None:
    """Asks what items cost: of each, the parts "name", "amount" and perhaps "quantity", and its total."""
    questions, random = maker.questions, maker.random
    for parts in random.sample(items, min(4, len(items))):
        name = joined(parts["name"])
        said = name.lower() if random.random() < 0.7 else name
        questions.ask("price", parts["amount"], parts["name"], item=said, itemlabel=name)
        if parts.get("quantity") and random.random() < 0.4:
            questions.ask("quantity", parts["quantity"], parts["name"], item=name.lower(), itemlabel=name)
    i = random.randrange(len(items))
    if totals.count(totals[i]) == 1 and random.random() < 0.4:
        amount = items[i]["amount"]
        questions.ask("item of price", items[i]["name"], amount, value=joined(amount))
    single = all(joined(parts["quantity"]) == "1" for parts in items if parts.get("quantity"))
    for word, best in (("dearest", max(totals)), ("cheapest", min(totals))):
        if single and totals.count(best) == 1 and len(items) > 2 and random.random() < 0.5:
            parts = items[totals.index(best)]
            questions.ask(word, parts["name"], parts["amount"], kind=SPREAD)
    other, names = maker.values.product(), " ".join(joined(parts["name"]) for parts in items).lower()
    if all(word not in names for word in spoken(other).split()):
        questions.lack("price", item=other.lower(), itemlabel=other)
