"""Reference pages: manuals with steps and code, programmes, directories, tables of contents."""

from __future__ import annotations

import datetime

from .fields import Field
from .letters import TextColumn, write_number
from .maker import PAGES, PageMaker
from .pairs import Look, PairWriter
from .question_writer import SPREAD
from .sheet import Pieces, Style, find, joined
from .tables import TableLook, write_table


@PAGES.register("manual")
def manual(maker: PageMaker) -> None:
    """A page of a manual, a report or a book."""
    random, words = maker.random, maker.words
    width, height = random.choice(((724, 1024), (724, 1024), (791, 1024), (680, 1024)))
    sheet = maker.open(width, height, maker.paper())
    layout, questions = maker.arrange("manual"), maker.questions
    family = maker.family(mono=0.05)
    two = layout == "two columns"
    body, head = maker.styles(family, random.uniform(10, 12) if two else random.uniform(10.5, 15))
    head = head if random.random() < 0.6 else Style(maker.family(mono=0).bold, body.size, body.colour)
    head = head.inked(maker.accent()) if random.random() < 0.3 else head
    margin, top = float(random.randint(40, 80)), float(random.randint(50, 80))
    if random.random() < 0.5:  # a running head
        small = body.sized(max(9.5, body.size * 0.85))
        sheet.write(words.thing().title(), margin, 36, small)
        if random.random() < 0.5:
            sheet.write(maker.values.company(), width - margin, 36, small, "right")
        sheet.across(margin, width - margin, 44, small.colour)
        top = 74.0
    left = margin + (90 if layout == "wide margin" else 0)
    inner = width - margin - left
    flow = _Flow(maker, body, head * random.uniform(1.15, 1.5), left, top, inner, random.choice((1.2, 1.3, 1.4, 1.5)))
    if random.random() < 0.55:
        text = f"{words.adjective()} {words.noun()}".title() if random.random() < 0.7 else words.thing().capitalize()
        maker.title = flow.write(text, flow.bold * random.uniform(1.3, 1.7), after=0.3)
    flow.width = (inner - 24) / 2 if two else inner
    for x, y in ((left, flow.y), (left + flow.width + 24, flow.y))[: 1 + two]:
        flow.x, flow.y = x, y
        while flow.section():
            pass
    flow.ask()
    align = random.choice(("left", "middle", "right"))
    write_number(maker, body, {"left": margin, "middle": width / 2, "right": width - margin}[align], align, 0.8)
    flow.lack(2)
    questions.gist("table there", "no")


class _Flow(TextColumn):
    """Writes sections in a column."""

    def __init__(
        self, maker: PageMaker, body: Style, head: Style, x: float, y: float, width: float, leading: float
    ) -> None:
        super().__init__(maker, body, head, x, y, width, leading)
        self.bottom = maker.sheet.height - 60
        self.number, self.sub = maker.random.randint(1, 9), 0
        self.numbered = maker.layout == "numbered" or maker.random.random() < 0.4
        self.headings: list[tuple[str, Pieces]] = []
        self.steps: list[Pieces] = []
        self.notes, self.names = (maker.random.sample(pool, len(pool)) for pool in map(maker.pool, ("note", "heading")))
        self.coded = False

    def section(self) -> bool:
        """Writes a heading and its section; False if there is no room left."""
        random, head = self.maker.random, self.bold
        if self.y + head.size * 2 + self.step * 4 > self.bottom:
            return False
        self.sub += 1
        number = f"{self.number}.{self.sub}"
        text = self.names.pop() if self.names and random.random() < 0.5 else self.maker.words.thing().capitalize()
        self.y += head.size * 0.6
        pieces = self.write(f"{number} {text}" if self.numbered else text, head, after=0.2)
        if self.maker.layout == "ruled heads":
            y = pieces[-1].base + head.size * 0.35
            self.maker.sheet.across(self.x, self.x + self.width, y, self.body.colour)
        self.headings.append((number, pieces))
        for _ in range(random.randint(1, 3)):
            draw = random.random()
            if draw < 0.6:
                if self.tell(random.choice((0, 0, 1)), self.bottom):
                    self.y += self.step * 0.45
            elif draw < 0.8 and not self.steps:
                self._list()
            elif draw < 0.9 and not self.coded and self.y + self.step * 5 < self.bottom:
                self._code()
            else:
                self._note()
        return True

    def _list(self) -> None:
        random, words, sheet, indent = self.maker.random, self.maker.words, self.maker.sheet, self.body.size * 2
        for i in range(random.randint(3, 7)):
            names = {"n": words.noun(), "m": words.noun(), "a": words.adjective(), "k": random.randint(2, 90)}
            text = self.maker.one("step").format(**names)
            if self.y + len(self.body.wrap(text, self.width - indent)) * self.step > self.bottom:
                break
            sheet.write(f"{i + 1}.", self.x + indent * 0.15, self.y, self.body)
            place = self.x + indent, self.y, self.width - indent
            pieces, self.y = sheet.paragraph(text, *place, self.body, self.leading)
            self.steps.append(pieces)
        self.y += self.step * 0.4

    def _code(self) -> None:
        maker, random, self.coded = self.maker, self.maker.random, True
        mono = Style(maker.fonts.draw(random, "mono").regular, self.body.size * 0.95, (20, 20, 20))
        name, other = maker.words.noun(), maker.words.noun()
        function = f"{maker.words.verb()}_{name}"
        lines = [f"def {function}({other}):", f"{name} = {other}[{random.randint(0, 99)}]"]
        lines.append(f"return {name} * {random.randint(2, 99)}")
        step, top = mono.size * 1.35, self.y - mono.size * 1.2
        maker.sheet.rectangle(self.x, top, self.x + self.width, top + step * 3 + mono.size * 0.8, fill=(240, 240, 242))
        for i, line in enumerate(lines):
            x = self.x + 8 + (i > 0) * 4 * mono.width("0")
            piece = maker.sheet.write(mono.wrap(line, self.width)[0], x, self.y, mono)
            if function in piece.text:
                maker.questions.ask("code shown", piece.part(function))
            self.y += step
        self.y += self.step * 0.9

    def _note(self) -> None:
        if not self.notes:
            return
        mark, sheet, width = self.notes.pop(), self.maker.sheet, self.width - 20
        text = f"{mark}: {self.maker.words.sentence()}"
        if self.y + self.step * (len(self.body.wrap(text, width)) + 1) > self.bottom:
            return
        top = self.y - self.body.size * 1.2
        pieces, self.y = sheet.paragraph(text, self.x + 10, self.y, width, self.body, self.leading)
        if self.maker.layout == "boxed notes":
            bottom = pieces[-1].base + self.body.size * 0.7
            sheet.rectangle(self.x, top, self.x + self.width, bottom, outline=self.body.colour)
        self.y += self.step * 0.7
        label, note = pieces[0].part(mark), find(pieces, joined(pieces)[len(mark) + 2 :])
        self.maker.questions.ask("quoted", note, label, label=mark)

    def ask(self) -> None:
        """Asks about headings and steps by number."""
        questions, random = self.maker.questions, self.maker.random
        if self.numbered:
            for number, pieces in random.sample(self.headings, min(2, len(self.headings))):
                rest = find(pieces, joined(pieces)[len(number) + 1 :])
                questions.ask("section after", rest, pieces[0].part(number), number=number)
            questions.lack("section after", number=f"{self.number}.{self.sub + random.randint(3, 9)}")
        for i in random.sample(range(len(self.steps)), min(2, len(self.steps))):
            questions.ask("step of list", self.steps[i], number=str(i + 1))
        if self.steps:
            questions.gist("how many steps", str(len(self.steps)))
        elif random.random() < 0.5:
            questions.lack("step of list", number=str(random.randint(1, 5)))


@PAGES.register("schedule")
def schedule(maker: PageMaker) -> None:
    """A programme by time, with or without rooms."""
    random, values, words = maker.random, maker.values, maker.words
    layout, questions = maker.arrange("schedule"), maker.questions
    column = _listing(maker, "schedule title")
    sheet, body, leading = maker.sheet, column.body, random.uniform(1.7, 2.8)
    day = values.day(2015, 2029).replace(hour=random.randint(6, 10), minute=random.choice((0, 15, 30)))
    rooms, form = layout in ("rooms", "ruled") or random.random() < 0.4, maker.one("room")
    drawn: dict[str, tuple[str, str, str]] = {}  # time, name and room
    for _ in range(min(random.randint(6, 16), int((sheet.height - column.y) / (body.size * leading)) - 1)):
        both, talk = f"{words.adjective()} {words.noun()}".capitalize(), f"{values.person()}: {words.noun()}"
        name = random.choice((words.thing().capitalize(), talk, both, values.city()))
        room = form.format(n=random.randint(1, 40), l=random.choice("ABCDEF"))
        drawn.setdefault(name.casefold(), (values.time(day), name, room))
        day += datetime.timedelta(minutes=random.choice((15, 30, 45, 60, 90)))
    order: tuple[int, ...] = {"time right": (1, 2, 0), "two lines": (0, 2, 1)}.get(layout, (0, 1, 2))
    order = tuple(part for part in order if rooms or part != 2)
    texts = [[entry[part] for part in order] for entry in drawn.values()]
    ruling = {"ruled": "horizontal rules", "boxed": "boxed", "dotted": "dotted"}.get(layout, "plain")
    look = TableLook(ruling, (170, 170, 170), sheet.paper, 0.4, body, body, body, leading, random.random() < 0.7)
    aligns = ["right" if layout == "time right" and part == 0 else "left" for part in order]
    first, rest, bottom = write_table(sheet, look, texts, aligns, column.x, column.y - body.size, column.width)
    _finish(maker, bottom)
    entries = [dict(zip(order, row, strict=True)) for row in (first, *rest)]
    times = [joined(entry[0]) for entry in entries]
    for entry in random.sample(entries, min(5, len(entries))):
        when, text, name = entry[0], entry[1], joined(entry[1])
        questions.ask("event time", when, text, name=name)
        if rooms and random.random() < 0.6:
            questions.ask("event place", entry[2], text, name=name)
        if times.count(joined(when)) == 1 and random.random() < 0.5:
            questions.ask("event at", text, when, time=joined(when))
    for word, entry in (("event first", entries[0]), ("event last", entries[-1])):
        questions.ask(word, entry[1], entry[0], kind=SPREAD)
    questions.lack("event time", name=words.thing())
    if not rooms:
        questions.lack("event place", name=joined(entries[0][1]))
    questions.gist("how many entries", str(len(entries)))


@PAGES.register("directory")
def directory(maker: PageMaker) -> None:
    """Names with numbers: telephone numbers, or pages of chapters."""
    random, values = maker.random, maker.values
    layout, questions = maker.arrange("directory"), maker.questions
    chapters = random.random() < 0.35
    column = _listing(maker, "contents title" if chapters else "directory title")
    body, columns = column.body, 2 if layout == "two columns" else 1
    mode = layout if layout in ("leaders", "ruled") else "after"
    look = Look(mode, body, body, columns, leading=random.uniform(1.4, 2.2), right=layout != "near")
    person, page, names = random.random() < 0.7, random.randint(1, 9), dict[str, str]()
    for _ in range(random.randint(6, 30) * columns):
        page += random.randint(1, 14)
        name = maker.words.thing().capitalize() if chapters else values.person() if person else values.company()
        names[body.printable(name)] = str(page) if chapters else values.phone()
    *told, (other, _), (missing, _) = names.items()
    form = "{n}. {name}" if layout == "numbered" else "{name}"
    fields = [Field((form.format(n=n + 1, name=name),), "", name, (number,)) for n, (name, number) in enumerate(told)]
    writer, width = PairWriter(maker, look), column.width
    room = width if columns > 1 else min(width, body.size * random.uniform(26, 44))
    bottom = writer.grid(fields, column.x, column.y - body.size, room, maker.sheet.height - 20, tall=3)
    _finish(maker, bottom)
    numbers = [each.text for each in writer.shown]
    wording = "chapter page" if chapters else "listed number"
    for each in random.sample(writer.shown, min(6, len(writer.shown))):
        who = find(each.label, each.field.concept)
        questions.ask(wording, each.value, who, name=each.field.concept)
        if numbers.count(each.text) == 1 and not chapters and random.random() < 0.4:
            questions.ask("number of whom", who, each.value, number=each.text)
    questions.lack(wording, name=other)
    questions.lack(wording, name=missing)
    questions.gist("how many entries", str(len(writer.shown)))
    maker.called = ("contents", "table of contents") if chapters else ()


def _listing(maker: PageMaker, titles: str) -> TextColumn:
    """Opens a sheet with a title; returns its column."""
    random = maker.random
    width, height = random.choice(((724, 1024), (800, 800), (1024, 640), (600, 900)))
    maker.open(width, height, maker.paper())
    family = maker.family(mono=0.1)
    (body, bold), margin = maker.styles(family, random.uniform(11, 17)), random.randint(30, 80)
    column = TextColumn(maker, body, bold, margin, random.randint(40, 70), width - 2 * margin, 1.4)
    words = maker.one(titles) if random.random() < 0.6 else f"{maker.words.noun()} {maker.one(titles)}".title()
    face = maker.family(display=0.2).bold if random.random() < 0.5 else family.bold
    style = Style(face, body.size * random.uniform(1.3, 2.1), maker.accent() if random.random() < 0.3 else body.colour)
    maker.title = column.write(words, style, random.choice(("left", "middle")), after=1)
    if random.random() < 0.4:
        column.write(maker.values.date(), after=0.5)
    return column


def _finish(maker: PageMaker, y: float) -> None:
    if y + 20 > maker.sheet.height or y < maker.sheet.height * 0.85 and maker.random.random() < 0.6:
        maker.sheet.height = int(y + 30)
