"""Running text with facts: letters, memos, agreements and emails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .maker import PAGES, PageMaker
from .pairs import Look, PairWriter
from .question_writer import TWO_PLACES, boxes_of
from .sheet import Piece, Pieces, Style, find, joined
from .splits import listed, share
from .values import KINDS, MONTHS, Values


@dataclass(frozen=True)
class _Fact:
    template: str
    questions: tuple[tuple[str, tuple[str, ...]], ...]  # by slot

    def __str__(self) -> str:
        return self.template

    def filled(self, values: Values) -> dict[str, str]:
        """Values for its slots."""
        return {slot: _SLOTS[slot](values) for slot in re.findall(r"\{(\w+)\}", self.template)}


def _parsed(line: str) -> _Fact:
    template, *asked = line.split(" # ")
    questions = (part.split(":", 1) for part in asked)
    return _Fact(template, tuple((slot.strip(), tuple(map(str.strip, own.split(";")))) for slot, own in questions))


FACTS = tuple(map(_parsed, Path(__file__).with_name("facts.txt").read_text(encoding="utf-8").splitlines()))
"""Sentences with slots for values, and questions about the values."""


_SLOTS: dict[str, Callable[[Values], str]] = {
    **KINDS,
    "month": lambda values: values.random.choice(MONTHS),
    "term": lambda values: duration(values),
    "noun": lambda values: values.words.noun(),
    "count": lambda values: str(values.random.randint(2, 999)),
    "amount": lambda values: values.money(10 ** values.random.uniform(1, 6), values.random.choice((0, 2))),
}


_NUMBERS = (1, 2, 3, 5, 10, 6, 12, 18, 30, 60, 90)


def duration(values: Values) -> str:
    """Such as `two (2) years`, `30 days`."""
    number = values.random.choice(_NUMBERS)
    unit = "days" if number >= 30 else "months" if number in (6, 12, 18) else "years"
    word = dict(zip(_NUMBERS, listed("numbers of durations"), strict=True))[number]
    unit = unit[:-1] if number == 1 else unit
    return values.random.choice((f"{number} {unit}", f"{word} ({number}) {unit}", f"{word} {unit}"))


class TextColumn:
    """A column of running text, written from `y`, the next baseline, downwards; it asks about the facts in it."""

    def __init__(
        self, maker: PageMaker, body: Style, bold: Style, x: float, y: float, width: float, leading: float
    ) -> None:
        self.maker, self.body, self.bold, self.leading = maker, body, bold, leading
        self.x, self.y, self.width = x, y, width
        self.step = body.size * leading
        self.facts = list(share(FACTS, maker.split, "fact"))
        maker.random.shuffle(self.facts)

    def write(self, text: str, style: Style | None = None, align: str = "left", after: float = 0.0) -> list[Piece]:
        """Writes a paragraph, and leaves `after` lines empty."""
        style = style or self.body
        self.y += max(0.0, style.size - self.body.size)
        pieces, _ = self.maker.sheet.paragraph(text, self.x, self.y, self.width, style, self.leading, align)
        self.y = pieces[-1].base + self.step * (1 + after)
        return pieces

    def tell(self, facts: int, bottom: float) -> bool:
        """Writes a paragraph with `facts` facts; False if there is no room for it above `bottom`."""
        random, values, questions = self.maker.random, self.maker.values, self.maker.questions
        sentences = [self.maker.words.sentence() for _ in range(random.randint(1, 4))]
        told = []
        for _ in range(min(facts, len(self.facts))):
            fact = self.facts.pop()
            filled = fact.filled(values)
            sentences.append(fact.template.format(**filled))
            told.append((fact, filled, sentences[-1]))
        random.shuffle(sentences)
        text = " ".join(sentences)
        if self.y + len(self.body.wrap(text, self.width)) * self.step > bottom:
            return False
        pieces = self.write(text)
        for fact, filled, sentence in told:
            there = find(pieces, self.body.printable(sentence))
            for slot, wordings in fact.questions:
                if answer := find(there, self.body.printable(filled[slot])):
                    asked = random.choice(wordings).format(**filled)
                    questions.add(asked, joined(answer), boxes_of(answer), boxes_of(there[:1]))
        return True

    def tell_several(self, paragraphs: int, facts: tuple[int, ...], bottom: float) -> None:
        """Writes up to `paragraphs` paragraphs, each with one of the numbers of facts, and asks for absent ones."""
        for _ in range(paragraphs):
            if self.tell(self.maker.random.choice(facts), bottom):
                self.y += self.step * 0.6
        self.lack(2)

    def lack(self, count: int) -> None:
        """Asks about facts that are absent."""
        for fact in self.facts[:count]:
            _, wordings = self.maker.random.choice(fact.questions)
            self.maker.questions.absent(self.maker.random.choice(wordings).format(**fact.filled(self.maker.values)))

    def sign(self, name: str) -> None:
        """Signs by hand above the next line."""
        hand = Style(self.maker.fonts.draw(self.maker.random, "hand").regular, self.body.size * 1.6, (20, 30, 110))
        self.maker.sheet.write(name, self.x + 4, self.y - self.step * 1.1, hand)


def open_page(maker: PageMaker) -> TextColumn:
    """Opens a sheet for text; returns its column."""
    random = maker.random
    width, height = random.choice(((724, 1024), (724, 1024), (791, 1024)))
    maker.open(width, height, maker.paper())
    family = maker.family(mono=0.2)
    body, bold = maker.styles(family, random.uniform(10.5, 17))
    margin, leading = float(random.randint(36, 96)), random.choice((1.2, 1.3, 1.4, 1.6))
    return TextColumn(maker, body, bold, margin, random.randint(36, 80), width - 2 * margin, leading)


@PAGES.register("letter")
def letter(maker: PageMaker) -> None:
    """A letter of a person or a company."""
    column, layout = open_page(maker), maker.arrange("letter")
    random, values, questions, step = maker.random, maker.values, maker.questions, column.step
    style = column.bold * random.uniform(1.2, 2.0)
    aligns = {"letterhead middle": "middle", "two-line head": "middle", "letterhead right": "right"}
    align = aligns.get(layout, "left")
    shop = column.write(values.company(), style.inked(maker.accent()) if random.random() < 0.4 else style, align)
    questions.ask("letter company", shop)
    for line in [", ".join(values.address())] if layout == "two-line head" else values.address():
        column.write(line, align=align)
    column.y += step * random.uniform(0.2, 2)
    at, after = "right" if layout == "date right" else "left", random.uniform(0.2, 1.4)
    questions.ask("letter date", column.write(values.date(values.day(1985, 2029)), align=at, after=after))
    first, last, title = values.first_name(), values.last_name(), random.choice(("Mr.", "Ms.", "Mrs.", "Dr."))
    receiver = column.write(f"{title} {first} {last}" if random.random() < 0.5 else f"{first} {last}")
    questions.ask("letter receiver", receiver)
    address = [piece for line in values.address() for piece in column.write(line)]
    questions.ask("letter address", address, receiver)
    column.y += step
    if random.random() < 0.55:
        label = maker.term("memo subject")[0] + ": " if random.random() < 0.6 else ""
        text = maker.words.thing().capitalize()
        text = text if random.random() < 0.6 else f"{maker.names.invented().name} {values.code()}"
        subject = column.write(label + text, column.bold, after=1)
        questions.ask("letter subject", find(subject, column.bold.printable(text)))
    else:
        questions.lack("letter subject")
    column.write(maker.one("salutation").format(title=title, first=first, last=last), after=0.6)
    column.tell_several(random.randint(1, 7), (1, 1, 2), maker.sheet.height - step * 9)
    column.write(maker.one("ending"), after=2)
    writer = values.person()
    if random.random() < 0.3:
        column.sign(writer)
    signed = column.write(writer)
    questions.ask("letter writer", signed)
    if random.random() < 0.6:
        questions.ask("letter position", column.write(values.job()), signed)
    else:
        questions.lack("letter position")


@PAGES.register("memo")
def memo(maker: PageMaker) -> None:
    """A memo: sender, recipient, date, subject, and a few paragraphs."""
    column, layout = open_page(maker), maker.arrange("memo")
    random, sheet = maker.random, maker.sheet
    if random.random() < 0.5:
        column.write(maker.shown(maker.values.company(), upper=0.5), column.bold, after=0.5)
    align = "middle" if layout == "head middle" else "left"
    maker.title = column.write(maker.one("memo"), column.bold * random.uniform(1.2, 2.0), align, after=0.4)
    head_fields(column, layout, "memo")
    if layout == "ruled" or random.random() < 0.4:
        y = column.y - column.step * 1.2
        sheet.across(column.x, column.x + column.width, y, column.body.colour, random.choice((1, 2)))
    column.tell_several(random.randint(1, 5), (0, 1, 2), sheet.height - column.step * 3)
    if column.y < sheet.height * 0.75 and random.random() < 0.5:
        sheet.height = int(column.y + 60)


_ASKED = {"memo from": "writer", "memo to": "receiver", "memo date": "date", "memo subject": "subject"}


def head_fields(column: TextColumn, layout: str, what: str) -> None:
    """Writes to, from, date and subject; asks about them and about absent ones."""
    maker, questions, body = column.maker, column.maker.questions, column.body
    random, values = maker.random, maker.values
    facts = [maker.fact(f"memo {word}", values.person(), "words") for word in ("to", "from")]
    facts += [maker.fact("memo date", values.date(), "date")]
    facts += [maker.fact("memo subject", maker.words.thing().capitalize())]
    if random.random() < 0.3:
        facts.insert(3, maker.fact("memo cc", values.person(), "person"))
    else:
        questions.absent(questions.named("cc", "words", maker.term("memo cc")[0]))
    if random.random() < 0.3:
        random.shuffle(facts)
    columns, label = 2 if layout == "two by two" else 1, random.choice((body, column.bold))
    mode, case = "after" if layout == "stacked" else "left", "upper" if random.random() < 0.4 else "plain"
    label_share = columns * body.size * random.uniform(6, 9) / column.width
    look = Look(mode, label, body, columns, case, ":", leading=column.leading * 1.15, label_share=label_share)
    writer, top = PairWriter(maker, look), column.y - body.size
    bottom = writer.grid(facts, column.x, top, column.width)
    if layout == "boxed":
        maker.sheet.rectangle(column.x - 8, top - 6, column.x + column.width + 8, bottom + 6, outline=body.colour)
    for each in writer.shown:
        questions.value(each.field.names, each.field.kind, each.label, each.value)
        if each.field.concept in _ASKED and random.random() < 0.5:
            text = questions.word(f"letter {_ASKED[each.field.concept]}").replace("letter", what)
            questions.add(text, each.text, boxes_of(each.value), boxes_of(each.label))
    column.y = bottom + column.step * 1.8


@PAGES.register("agreement")
def agreement(maker: PageMaker) -> None:
    """A page of an agreement between two parties."""
    column = open_page(maker)
    random, values, sheet, questions = maker.random, maker.values, maker.sheet, maker.questions
    maker.arrange("agreement")
    name = maker.one("agreement")
    short = "Contract" if "ontract" in name else "Agreement"
    maker.title = column.write(maker.shown(name, upper=0.5), column.bold * random.uniform(1.1, 1.6), "middle", after=1)
    one, two, state = values.company(), values.company(), values.state()
    date = values.date(values.day(1990, 2029))
    if random.random() < 0.15:
        date = f"the {random.randint(4, 20)}th day of {random.choice(MONTHS)}, {random.randint(1990, 2029)}"
    text = maker.one("opening").format(T=name, a=short, date=date, one=one, two=two, state=values.state())
    opening = column.write(text, after=0.6)
    dated, first, second = (find(opening, column.body.printable(value)) for value in (date, one, two))
    if dated:
        questions.ask("agreement date", dated)
    if first and second:
        questions.ask("other party", second, first, first=one)
        both = tuple(joined(first) + sign + joined(second) for sign in (" and ", ", "))
        questions.add(questions.word("agreement parties"), both, boxes_of([*first, *second]), (), TWO_PLACES)
    _clauses(column, short, state)
    if random.random() < 0.6 and column.y + column.step * 9 < sheet.height:
        _signatures(column, one, two)
    write_number(maker, column.body, column.x + column.width / 2, "middle", 0.5)


def _clauses(column: TextColumn, short: str, state: str) -> None:
    maker, questions = column.maker, column.maker.questions
    random = maker.random
    length, notice = duration(maker.values), f"{random.choice((10, 14, 30, 60, 90))} days"
    clauses: list[tuple[str, str, str]] = []
    for word, value, often in (
        ("governing law", state, 0.75),
        ("agreement term", length, 0.6),
        ("notice period", notice, 0.5),
    ):
        if random.random() < often:
            clauses.append((maker.one(word), word, value))
        else:
            questions.lack(word)
    plain = maker.pool("clause")
    clauses += [(text, "", "") for text in random.sample(plain, min(len(plain), random.randint(2, 8)))]
    clauses += [(maker.words.text(random.randint(1, 3)), "", "") for _ in range(random.randint(0, 4))]
    random.shuffle(clauses)
    numbering = {"numbered": "{n}. ", "articles": "Article {n}. ", "bold numbers": "{n}.0 ", "lettered": "({l}) "}
    for i, (text, word, value) in enumerate(clauses):
        filled = text.format(a=short, state=state, term=length, notice=notice)
        if random.random() < 0.4 and word:
            filled = f"{maker.words.sentence()} {filled}"
        filled = numbering.get(maker.layout, "").format(n=i + 1, l=chr(97 + i % 26)) + filled
        if column.y + (len(column.body.wrap(filled, column.width)) + 1) * column.step > maker.sheet.height - 60:
            if word:
                questions.lack(word)
            continue
        if maker.layout == "justified heads" and random.random() < 0.6:
            column.write(f"{i + 1}. {maker.words.noun().capitalize()}", column.bold)
        pieces = column.write(filled, after=0.5)
        if word and (answer := find(pieces, column.body.printable(value))):
            questions.ask(word, answer)


def _signatures(column: TextColumn, *companies: str) -> None:
    """Both parties' signature blocks beside each other."""
    maker, questions, body, step = column.maker, column.maker.questions, column.body, column.step
    top, room = column.y + step, column.width * 0.46
    for left, company in zip((column.x, column.x + column.width * 0.53), companies, strict=True):
        own = TextColumn(maker, body, column.bold, left, top, room, column.leading)
        named = own.write(company, after=2)
        maker.sheet.across(left, left + room * 0.87, own.y - step * 0.8, body.colour)
        name = maker.values.person()
        if maker.random.random() < 0.5:
            own.sign(name)
        signer = _after(own, maker.random.choice(("By:", "Name:")), name)
        questions.ask("who signs", signer, named, name=joined(named))
        job = _after(own, "Title:", maker.values.job())
        if maker.random.random() < 0.5:
            questions.ask("title of", job, signer, name=joined(signer))


def _after(column: TextColumn, label: str, text: str) -> Pieces:
    """Writes a text after a label; returns its pieces."""
    pieces = column.write(f"{label} {text}", after=0.2)
    return find(pieces, column.body.printable(text))


def write_number(maker: PageMaker, style: Style, x: float, align: str, often: float) -> None:
    """Writes a page number at the bottom, with a probability, and asks for it."""
    if maker.random.random() > often:
        maker.questions.lack("page number")
        return
    number = str(maker.random.randint(1, 400))
    form = maker.random.choice(("{}", "{}", "- {} -", "Page {}", f"{{}} | {maker.words.noun().title()}"))
    piece = maker.sheet.write(form.format(number), x, maker.sheet.height - 26, style, align)
    maker.questions.ask("page number", piece.part(number))


@PAGES.register("email")
def email(maker: PageMaker) -> None:
    """An e-mail on a screen or printed."""
    random, values, words = maker.random, maker.values, maker.words
    layout = maker.arrange("email")
    width, height = random.choice(((1024, 640), (1024, 768), (724, 1024), (900, 700)))
    app = layout in ("app", "card", "pane")
    dark = random.random() < 0.25 and app
    paper, ink = ((32, 33, 36), (228, 228, 232)) if dark else ((255, 255, 255), (20, 20, 20))
    sheet = maker.open(width, height, paper)
    maker.sharp = True
    family = maker.family(mono=0.5 if layout == "plain text" else 0.05)
    body, bold = maker.styles(family, random.uniform(11.5, 16), ink)
    margin, side, leading = random.randint(24, 70), 190 if layout == "pane" else 0, random.choice((1.3, 1.4, 1.5))
    place = margin + side, random.randint(30, 56), width - side - 2 * margin
    column = TextColumn(maker, body, bold, *place, leading)
    if layout == "pane":
        _folders(maker, body, height)
    if app:
        about, thing = random.choice(("Re", "Fwd", "Invoice", "Question", "Update")), words.thing()
        _app_head(column, thing.capitalize() if random.random() < 0.5 else f"{about}: {thing}")
    else:
        head_fields(column, "stacked" if layout == "plain text" else "columns", "e-mail")
    sheet.across(column.x, column.x + column.width, column.y - column.step * 1.2, (150, 150, 150))
    greeting = maker.one("salutation").format(title="Mr.", first=values.first_name(), last=values.last_name())
    column.write(greeting, after=0.5)
    column.tell_several(random.randint(1, 4), (1, 1, 2), height - column.step * 3)
    column.write(maker.one("ending"))
    column.write(values.first_name())


def _folders(maker: PageMaker, body: Style, height: int) -> None:
    red, green, blue = (max(0, c - 12) if maker.sheet.paper[0] > 128 else c + 12 for c in maker.sheet.paper)
    maker.sheet.rectangle(0, 0, 190, height, fill=(red, green, blue))
    for i, name in enumerate(("Inbox", "Sent", "Drafts", "Archive", "Spam", "Trash")):
        piece = maker.sheet.write(name, 20, 50 + i * body.size * 2.2, body)
        if name in ("Inbox", "Drafts", "Spam"):
            count = maker.sheet.write(str(maker.random.randint(1, 99)), 172, 50 + i * body.size * 2.2, body, "right")
            maker.questions.ask("folder", count, piece, name=name)


def _app_head(column: TextColumn, subject: str) -> None:
    """The head of a mail app: subject in large print, sender with a round picture, time at the right."""
    maker, questions, sheet, body = column.maker, column.maker.questions, column.maker.sheet, column.body
    values, side = maker.values, body.size * 2.6
    title = column.write(subject, column.bold * 1.5, after=0.3)
    x, y = column.x, column.y
    sheet.ellipse(x, y - body.size, x + side, y - body.size + side, fill=maker.accent())
    sender = sheet.write(values.person(), x + side + 10, y, column.bold)
    address = sheet.write(values.email(), x + side + 10, y + column.step, body)
    when = values.time() if maker.random.random() < 0.6 else values.date()
    time = sheet.write(when, x + column.width, y, body, "right")
    for word, pieces in (("writer", [sender]), ("subject", title)):
        questions.add(questions.word(f"letter {word}").replace("letter", "e-mail"), joined(pieces), boxes_of(pieces))
    questions.ask("sender's address", address, sender)
    questions.ask("mail time", time)
    questions.lack("attached")
    column.y += column.step * 3.6
