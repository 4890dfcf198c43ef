"""Running text with facts: letters and memos."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .maker import PAGES, PageMaker
from .pairs import Look, PairWriter
from .question_writer import boxes_of
from .sheet import Piece, Style, find, joined
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


def _parsed() -> tuple[_Fact, ...]:
    facts = []
    for line in Path(__file__).with_name("facts.txt").read_text(encoding="utf-8").splitlines():
        template, *asked = line.split(" # ")
        pairs = (part.split(":", 1) for part in asked)
        questions_of = ((slot.strip(), tuple(q.strip() for q in questions.split(";"))) for slot, questions in pairs)
        facts.append(_Fact(template, tuple(questions_of)))
    return tuple(facts)


FACTS = _parsed()
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


class Column:
    """A column of running text, written from `y`, the next baseline, downwards; it asks about the facts in it.

    Args:
        body, bold: styles.
        x, y, width: px.
        leading: em.
    """

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


def open_page(maker: PageMaker) -> Column:
    """Opens a sheet for text; returns its column."""
    random = maker.random
    width, height = random.choice(((724, 1024), (724, 1024), (791, 1024)))
    maker.open(width, height, maker.paper())
    family = maker.family(mono=0.2)
    body = maker.style(family.regular, random.uniform(10.5, 17))
    margin, top, leading = (
        float(random.randint(36, 96)),
        float(random.randint(36, 80)),
        random.choice((1.2, 1.3, 1.4, 1.6)),
    )
    bold = Style(family.bold, body.size, body.colour)
    return Column(maker, body, bold, margin, top, width - 2 * margin, leading)


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
    questions.gist("kind of page", ("letter", "a letter"))
    questions.gist("language", "English")


@PAGES.register("memo")
def memo(maker: PageMaker) -> None:
    """A memo: sender, recipient, date, subject, and a few paragraphs."""
    column, layout = open_page(maker), maker.arrange("memo")
    random, sheet, questions = maker.random, maker.sheet, maker.questions
    if random.random() < 0.5:
        column.write(maker.shown(maker.values.company(), upper=0.5), column.bold, after=0.5)
    align = "middle" if layout == "head middle" else "left"
    title = column.write(maker.one("memo"), column.bold * random.uniform(1.2, 2.0), align, after=0.4)
    head_fields(column, layout, "memo")
    if layout == "ruled" or random.random() < 0.4:
        y = column.y - column.step * 1.2
        sheet.across(column.x, column.x + column.width, y, column.body.colour, random.choice((1, 2)))
    column.tell_several(random.randint(1, 5), (0, 1, 2), sheet.height - column.step * 3)
    questions.gist("kind of page", ("memo", "a memo", "memorandum"))
    questions.gist("title", joined(title), title)
    if column.y < sheet.height * 0.75 and random.random() < 0.5:
        sheet.height = int(column.y + 60)


_ASKED = {"memo from": "writer", "memo to": "receiver", "memo date": "date", "memo subject": "subject"}


def head_fields(column: Column, layout: str, what: str) -> None:
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
