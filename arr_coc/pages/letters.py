"""Running text with facts: letters and memos."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .fields import term
from .maker import PAGES, PageMaker
from .question_writer import boxes_of
from .sheet import Piece, Pieces, Style, find, joined
from .splits import listed, share
from .values import KINDS, MONTHS, Values


@dataclass(frozen=True)
class _Fact:
    template: str
    questions: tuple[tuple[str, tuple[str, ...]], ...]  # by slot

    def __str__(self) -> str:
        return self.template


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


class Writing:
    """Writes paragraphs with facts in a column, and asks about these facts."""

    def __init__(self, maker: PageMaker, style: Style, x: float, width: float, leading: float) -> None:
        self.maker, self.style, self.x, self.width, self.leading = maker, style, x, width, leading
        self.facts = list(share(FACTS, maker.split, "fact"))
        maker.random.shuffle(self.facts)

    def write(self, text: str, y: float) -> tuple[list[Piece], float]:
        """Writes a paragraph; returns its pieces and the next baseline."""
        return self.maker.sheet.paragraph(text, self.x, y, self.width, self.style, self.leading)

    def paragraph(self, y: float, bottom: float, facts: int) -> float:
        """Writes a paragraph with `facts` facts; returns the baseline after it, or y if it does not fit."""
        random, values = self.maker.random, self.maker.values
        sentences, asked = [], []
        for _ in range(random.randint(1, 4)):
            sentences.append(self.maker.words.sentence())
        for _ in range(min(facts, len(self.facts))):
            fact = self.facts.pop()
            filled = {slot: _SLOTS[slot](values) for slot in re.findall(r"\{(\w+)\}", fact.template)}
            text = fact.template.format(**filled)
            sentences.append(text)
            asked.append((fact, filled, text))
        random.shuffle(sentences)
        text = " ".join(sentences)
        lines = self.style.wrap(text, self.width)
        if y + len(lines) * self.style.size * self.leading > bottom:
            return y
        pieces, end = self.write(text, y)
        for fact, filled, sentence in asked:
            self._ask(fact, filled, find(pieces, self.style.printable(sentence)))
        return end

    def paragraphs(self, count: int, y: float, bottom: float, facts: tuple[int, ...], gap: float) -> float:
        """Writes up to `count` paragraphs, each with one of the numbers of facts; returns the next baseline."""
        for _ in range(count):
            end = self.paragraph(y, bottom, self.maker.random.choice(facts))
            y = end + gap if end > y else y
        return y

    def _ask(self, fact: _Fact, filled: dict[str, str], sentence: Pieces) -> None:
        questions, random = self.maker.questions, self.maker.random
        for slot, wordings in fact.questions:
            answer = find(sentence, self.style.printable(filled[slot]))
            if answer:
                questions.add(
                    random.choice(wordings).format(**filled), joined(answer), boxes_of(answer), boxes_of(sentence[:1])
                )

    def absent(self, count: int) -> None:
        """Asks about facts that are absent."""
        random, values = self.maker.random, self.maker.values
        for fact in self.facts[:count]:
            _, wordings = random.choice(fact.questions)
            filled = {slot: _SLOTS[slot](values) for slot in re.findall(r"\{(\w+)\}", fact.template)}
            self.maker.questions.absent(random.choice(wordings).format(**filled))


def open_page(maker: PageMaker) -> tuple[Style, Style, float, float, float]:
    """Opens a sheet for text; returns body style, bold style, left margin, width, and leading in em."""
    random = maker.random
    width, height = random.choice(((724, 1024), (724, 1024), (791, 1024)))
    maker.open(width, height, maker.paper())
    family = maker.family(mono=0.2)
    size = random.uniform(10.5, 17)
    body = maker.style(family.regular, size)
    margin = float(random.randint(36, 96))
    return body, Style(family.bold, size, body.colour), margin, width - 2 * margin, random.choice((1.2, 1.3, 1.4, 1.6))


@PAGES.register("letter")
def letter(maker: PageMaker) -> None:
    """A letter of a person or a company."""
    random, values = maker.random, maker.values
    body, bold, x, width, leading = open_page(maker)
    sheet, layout = maker.sheet, maker.arrange("letter")
    step, y = body.size * leading, float(random.randint(36, 70))
    questions, middle, right = maker.questions, x + width / 2, x + width
    company = values.company()
    style = bold * random.uniform(1.2, 2.0)
    head = style.inked(maker.accent() if random.random() < 0.4 else body.colour)
    anchor, align = {"letterhead middle": (middle, "middle"), "two-line head": (middle, "middle")}.get(
        layout, (x, "left")
    )
    if layout == "letterhead right":
        anchor, align = right, "right"
    shop = [sheet.write(company, anchor, y, head, align)]
    questions.ask("letter company", shop)
    for line in [", ".join(values.address())] if layout == "two-line head" else values.address():
        y += step
        sheet.write(line, anchor, y, body, align)
    y += step * random.uniform(1.2, 3)
    at, to = (right, "right") if layout == "date right" else (x, "left")
    date = [sheet.write(values.date(values.day(1985, 2029)), at, y, body, to)]
    questions.ask("letter date", date)
    y += step * random.uniform(1.2, 2.4)
    first, last = values.first_name(), values.last_name()
    title = random.choice(("Mr.", "Ms.", "Mrs.", "Dr."))
    receiver = [sheet.write(f"{title} {first} {last}" if random.random() < 0.5 else f"{first} {last}", x, y, body)]
    questions.ask("letter receiver", receiver)
    address = []
    for line in values.address():
        y += step
        address.append(sheet.write(line, x, y, body))
    questions.ask("letter address", address, receiver)
    y += step * 2
    subject: list[Piece] = []
    if random.random() < 0.55:
        label = term(random, "memo subject", maker.split)[0] + ":" if random.random() < 0.6 else ""
        short = random.random() < 0.6
        text = maker.words.thing().capitalize() if short else f"{maker.names.invented().name} {values.code()}"
        shown, y = sheet.paragraph(f"{label} {text}".strip(), x, y, width, bold, leading)
        subject = find(shown, bold.printable(text))
        questions.ask("letter subject", subject)
        y += step
    salutation = maker.one("salutation").format(title=title, first=first, last=last)
    sheet.write(salutation, x, y, body)
    y += step * 1.6
    writing = Writing(maker, body, x, width, leading)
    y = writing.paragraphs(random.randint(1, 7), y, sheet.height - step * 9, (1, 1, 2), step * 0.6)
    sheet.write(maker.one("ending"), x, y + step * 0.5, body)
    y += step * 3.5
    writer = values.person()
    if random.random() < 0.3:
        hand = Style(maker.fonts.draw(random, "hand").regular, body.size * 1.7, (20, 30, 110))
        sheet.write(writer, x, y - step * 1.2, hand)
    signed = [sheet.write(writer, x, y, body)]
    questions.ask("letter writer", signed)
    if random.random() < 0.6:
        job = [sheet.write(values.job(), x, y + step, body)]
        questions.ask("letter position", job, signed)
    else:
        questions.lack("letter position")
    if not subject:
        questions.lack("letter subject")
    writing.absent(2)
    questions.gist("kind of page", ("letter", "a letter"))
    questions.gist("language", "English")


@PAGES.register("memo")
def memo(maker: PageMaker) -> None:
    """A memo: sender, recipient, date, subject, and a few paragraphs."""
    random, values = maker.random, maker.values
    body, bold, x, width, leading = open_page(maker)
    sheet, layout, questions = maker.sheet, maker.arrange("memo"), maker.questions
    step, y = body.size * leading, float(random.randint(40, 80))
    if random.random() < 0.5:
        sheet.write(maker.shown(values.company(), upper=0.5), x, y, bold)
        y += step * 1.5
    text = maker.one("memo")
    style = Style(bold.face, body.size * random.uniform(1.2, 2.0), body.colour)
    at, to = (x + width / 2, "middle") if layout == "head middle" else (x, "left")
    title = [sheet.write(text, at, y + style.size * 0.6, style, to)]
    y += style.size + step * 1.2
    y = head_fields(maker, body, bold, layout, x, y, width, step, "memo")
    if layout == "ruled" or random.random() < 0.4:
        sheet.across(x, x + width, y - step * 0.5, body.colour, random.choice((1, 2)))
    y += step
    writing = Writing(maker, body, x, width, leading)
    y = writing.paragraphs(random.randint(1, 5), y, sheet.height - step * 3, (0, 1, 2), step * 0.6)
    writing.absent(2)
    questions.gist("kind of page", ("memo", "a memo", "memorandum"))
    questions.gist("title", joined(title), title)
    if y < sheet.height * 0.75 and random.random() < 0.5:
        sheet.height = int(y + 60)


def head_fields(
    maker: PageMaker, body: Style, bold: Style, layout: str, x: float, y: float, width: float, step: float, what: str
) -> float:
    """Writes to, from, date and subject; asks about them and about absent ones."""
    random, values, questions, sheet = maker.random, maker.values, maker.questions, maker.sheet
    fields = [("memo to", values.person()), ("memo from", values.person()), ("memo date", values.date())]
    fields.append(("memo subject", maker.words.thing().capitalize()))
    if random.random() < 0.3:
        fields.insert(3, ("memo cc", values.person()))
    else:
        questions.absent(questions.named("cc", "words", term(random, "memo cc", maker.split)[0]))
    if random.random() < 0.3:
        random.shuffle(fields)
    label_style = bold if random.random() < 0.5 else body
    upper = random.random() < 0.4
    stop = body.size * random.uniform(5, 9)
    half = width / 2
    top = lowest = y
    for i, (concept, value) in enumerate(fields):
        left = x + (i % 2) * half if layout == "two by two" else x
        names = term(random, concept, maker.split)
        printed = (names[0].upper() if upper else names[0]).rstrip(":") + ":"
        label = sheet.write(printed, left, y, label_style)
        start = max(left + (stop if layout != "stacked" else 0), label.box[2] + body.size * 0.6)
        room = (left + half - 12 if layout == "two by two" else x + width) - start
        shown, end = sheet.paragraph(value, start, y, room, body, 1.25)
        kind = {"memo date": "date", "memo cc": "person"}.get(concept, "words")
        questions.value([names[0].rstrip(":")], kind, [label], shown)
        if random.random() < 0.5:
            word = {"from": "writer", "to": "receiver", "date": "date", "subject": "subject"}.get(concept.split()[1])
            if word:
                questions.add(
                    questions.word(f"letter {word}").replace("letter", what),
                    joined(shown),
                    boxes_of(shown),
                    [label.box],
                )
        lowest = max(lowest, end, y + step)
        if layout != "two by two" or i % 2 or i == len(fields) - 1:
            y = lowest + step * 0.25
    if layout == "boxed":
        sheet.rectangle(x - 8, top - step, x + width + 8, y - step * 0.8, outline=body.colour)
    return y
