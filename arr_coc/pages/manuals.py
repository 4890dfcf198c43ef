"""Reference pages: manuals with steps and code, programmes, directories, tables of contents."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from .letters import Writing
from .maker import PAGES, PageMaker
from .question_writer import SPREAD, boxes_of
from .sheet import Piece, Sheet, Style, joined


@PAGES.register("manual")
def manual(maker: PageMaker) -> None:
    """A page of a manual, a report or a book."""
    random = maker.random
    width, height = random.choice(((724, 1024), (724, 1024), (791, 1024), (680, 1024)))
    sheet = maker.open(width, height, maker.paper())
    layout, questions = maker.arrange("manual"), maker.questions
    family = maker.family(mono=0.05)
    two = layout == "two columns"
    body = maker.style(family.regular, random.uniform(10, 12) if two else random.uniform(10.5, 15))
    head_face = family.bold if random.random() < 0.6 else maker.family(mono=0).bold
    head = Style(head_face, body.size * random.uniform(1.15, 1.5))
    head = head.inked(maker.accent() if random.random() < 0.3 else body.colour)
    margin = float(random.randint(40, 80))
    left = margin + (90 if layout == "wide margin" else 0)
    inner = width - margin - left
    column = (inner - 24) / 2 if two else inner
    leading = random.choice((1.2, 1.3, 1.4, 1.5))
    step = body.size * leading
    top = _running_head(maker, body, margin, width)
    y = top
    if random.random() < 0.55:
        big = Style(head_face, head.size * random.uniform(1.3, 1.7), head.colour)
        two_words = random.random() < 0.7
        text = (
            f"{maker.words.adjective()} {maker.words.noun()}".title() if two_words else maker.words.thing().capitalize()
        )
        title, y = sheet.paragraph(text, left, y + big.size * 0.6, inner, big, 1.2)
        questions.gist("title", joined(title), title)
        top = y = y + step * 0.3
    flow = _Flow(Writing(maker, body, left, column, leading), head, left, y, height - 60, step)
    flow.section()
    while flow.section():
        pass
    if two:
        flow.writing.x, flow.x, flow.y = left + column + 24, left + column + 24, top
        while flow.section():
            pass
    flow.ask()
    if random.random() < 0.8:
        number = str(random.randint(2, 400))
        form = random.choice(("{}", "{}", "- {} -", "Page {}", f"{{}} | {maker.words.noun().title()}"))
        align = random.choice(("left", "middle", "right"))
        at = {"left": margin, "middle": width / 2, "right": width - margin}[align]
        piece = sheet.write(form.format(number), at, height - 26, body, align)
        questions.add(questions.word("page number"), number, [piece.part(number).box])
    else:
        questions.lack("page number")
    flow.writing.absent(2)
    questions.gist("kind of page", ("page of a manual", "manual", "a page of a manual", "a page of text"))
    questions.gist("language", "English")
    questions.gist("table there", "no")


def _running_head(maker: PageMaker, body: Style, margin: float, width: int) -> float:
    if maker.random.random() < 0.5:
        return float(maker.random.randint(50, 80))
    small = body.sized(max(9.5, body.size * 0.85))
    maker.sheet.write(maker.words.thing().title(), margin, 36, small)
    if maker.random.random() < 0.5:
        maker.sheet.write(maker.values.company(), width - margin, 36, small, "right")
    maker.sheet.across(margin, width - margin, 44, small.colour)
    return 74.0


class _Flow:
    """Writes sections in a column."""

    def __init__(self, writing: Writing, head: Style, x: float, y: float, bottom: float, step: float) -> None:
        self.writing, self.head, self.x, self.y, self.bottom, self.step = writing, head, x, y, bottom, step
        self.maker = maker = writing.maker
        self.layout = layout = maker.layout
        random = maker.random
        self.number, self.sub = random.randint(1, 9), 0
        self.numbered = layout == "numbered" or random.random() < 0.4
        self.headings: list[tuple[str, list[Piece]]] = []
        self.steps: list[list[Piece]] = []
        self.notes = list(maker.pool("note"))
        random.shuffle(self.notes)
        self.coded = False
        self.names = list(maker.pool("heading"))
        random.shuffle(self.names)

    def section(self) -> bool:
        """Writes a heading and its section; False if there is no room left."""
        random, style = self.maker.random, self.writing.style
        if self.y + self.head.size * 2 + self.step * 4 > self.bottom:
            return False
        self.sub += 1
        number = f"{self.number}.{self.sub}"
        text = self.names.pop() if self.names and random.random() < 0.5 else self.maker.words.thing().capitalize()
        self.y += self.head.size * 1.2
        text, width = f"{number} {text}" if self.numbered else text, self.writing.width
        pieces, self.y = self.maker.sheet.paragraph(text, self.x, self.y, width, self.head, 1.2)
        if self.layout == "ruled heads":
            self.maker.sheet.across(self.x, self.x + self.writing.width, self.y - self.head.size * 0.8, style.colour)
        self.headings.append((number, pieces))
        self.y += self.step * 0.25
        for _ in range(random.randint(1, 3)):
            draw = random.random()
            if draw < 0.6:
                end = self.writing.paragraph(self.y, self.bottom, random.choice((0, 0, 1)))
                self.y = end + self.step * 0.45 if end > self.y else self.y
            elif draw < 0.8 and not self.steps:
                self._list()
            elif draw < 0.9:
                self._code()
            else:
                self._note()
        return True

    def _list(self) -> None:
        random, words, style = self.maker.random, self.maker.words, self.writing.style
        forms = self.maker.pool("step")
        for i in range(random.randint(3, 7)):
            text = random.choice(forms)
            names = {"n": words.noun(), "m": words.noun(), "a": words.adjective(), "k": random.randint(2, 90)}
            text = text.format(**names)
            lines = style.wrap(text, self.writing.width - style.size * 2)
            if self.y + len(lines) * self.step > self.bottom:
                break
            self.maker.sheet.write(f"{i + 1}.", self.x + style.size * 0.3, self.y, style)
            x, width = self.x + style.size * 2, self.writing.width - style.size * 2
            pieces, self.y = self.maker.sheet.paragraph(text, x, self.y, width, style, self.step / style.size)
            self.steps.append(pieces)
        self.y += self.step * 0.4

    def _code(self) -> None:
        maker, random = self.maker, self.maker.random
        mono = Style(maker.fonts.draw(random, "mono").regular, self.writing.style.size * 0.95, (20, 20, 20))
        name, other = maker.words.noun(), maker.words.noun()
        function = f"{maker.words.verb()}_{name}"
        lines = [f"def {function}({other}):", f"    {name} = {other}[{random.randint(0, 99)}]"]
        lines.append(f"    return {name} * {random.randint(2, 99)}")
        step = mono.size * 1.35
        if self.coded or self.y + step * 4 > self.bottom:
            return
        self.coded = True
        top = self.y - mono.size * 1.2
        right, bottom = self.x + self.writing.width, top + step * 3 + mono.size * 0.8
        maker.sheet.rectangle(self.x, top, right, bottom, fill=(240, 240, 242))
        for i, line in enumerate(lines):
            indent = (len(line) - len(line.lstrip())) * mono.width("0")
            piece = maker.sheet.write(mono.wrap(line, self.writing.width)[0], self.x + 8 + indent, self.y, mono)
            if i == 0 and function in piece.text:
                maker.questions.add(maker.questions.word("code shown"), function, [piece.part(function).box])
            self.y += step
        self.y += self.step * 0.9

    def _note(self) -> None:
        maker, style = self.maker, self.writing.style
        mark = self.notes.pop() if self.notes else ""
        text = maker.words.sentence()
        rows = len(style.wrap(f"{mark}: {text}", self.writing.width - 20))
        if not mark or self.y + self.step * (rows + 1) > self.bottom:
            return
        if self.layout == "boxed notes":
            top, bottom = self.y - style.size * 1.2, self.y + self.step * (rows - 1) + style.size * 0.7
            maker.sheet.rectangle(self.x, top, self.x + self.writing.width, bottom, outline=style.colour)
        width, leading = self.writing.width - 20, self.step / style.size
        pieces, self.y = maker.sheet.paragraph(f"{mark}: {text}", self.x + 10, self.y, width, style, leading)
        self.y += self.step * 0.7
        maker.questions.ask("quoted", _after(pieces, len(mark) + 2), pieces[0].part(mark), label=mark)

    def ask(self) -> None:
        """Asks about headings and steps by number."""
        questions, random = self.maker.questions, self.maker.random
        if self.numbered:
            for number, pieces in random.sample(self.headings, min(2, len(self.headings))):
                rest = _after(pieces, len(number) + 1)
                questions.ask("section after", rest, pieces[0].part(number), number=number)
            questions.lack("section after", number=f"{self.number}.{self.sub + random.randint(3, 9)}")
        for i in random.sample(range(len(self.steps)), min(2, len(self.steps))):
            questions.ask("step of list", self.steps[i], number=str(i + 1))
        if self.steps:
            questions.gist("how many steps", str(len(self.steps)))
        elif random.random() < 0.5:
            questions.lack("step of list", number=str(random.randint(1, 5)))


def _after(pieces: list[Piece], start: int) -> list[Piece]:
    """The lines without the first `start` characters."""
    first = pieces[0]
    if start >= len(first.text):
        return list(pieces[1:])
    return [Piece(first.text[start:], first.boxes[start:]), *pieces[1:]]


@PAGES.register("schedule")
def schedule(maker: PageMaker) -> None:
    """A programme by time, with or without rooms."""
    random, values = maker.random, maker.values
    layout, questions = maker.arrange("schedule"), maker.questions
    sheet, body, bold, x, width, y = _listing(maker, "schedule title")
    day = values.day(2015, 2029).replace(hour=random.randint(6, 10), minute=random.choice((0, 15, 30)))
    rooms = layout in ("rooms", "ruled") or random.random() < 0.4
    form = maker.one("room")
    entries: list[tuple[Piece, list[Piece], Piece | None]] = []
    step = body.size * random.uniform(1.7, 2.8)
    taken: set[str] = set()
    while y + step < sheet.height - 30 and len(entries) < random.randint(6, 16):
        words = maker.words
        thing, talk = words.thing().capitalize(), f"{values.person()}: {words.noun()}"
        both = f"{words.adjective()} {words.noun()}".capitalize()
        name = random.choice((thing, talk, both, values.city()))
        if name.casefold() in taken:
            continue
        taken.add(name.casefold())
        time = values.time(day)
        day += datetime.timedelta(minutes=random.choice((15, 30, 45, 60, 90)))
        room_x = x + width * 0.78
        if layout == "time right":
            when = sheet.write(time, x + width, y, body, "right")
            start, room_x = x, x + width * 0.6
        else:
            when = sheet.write(time, x, y, bold)
            start = x + max(body.size * 7, when.box[2] - x + body.size)
        end = room_x if rooms else when.box[0] if layout == "time right" else x + width
        text, end = sheet.paragraph(name, start, y, end - start - 14, body, 1.2)
        place = None
        if rooms:
            where = form.format(n=random.randint(1, 40), l=random.choice("ABCDEF"))
            if layout == "two lines":
                place = sheet.write(where, start, end, body * 0.85)
                end += body.size * 1.2
            else:
                place = sheet.write(where, room_x, y, body)
        entries.append((when, text, place))
        if layout in ("ruled", "boxed"):
            sheet.across(x, x + width, max(end - body.size * 0.6, y + step * 0.4), (170, 170, 170))
        y = max(y + step, end + body.size * 0.5)
    _finish(maker, y)
    times = [when.text for when, _, _ in entries]
    for when, text, place in random.sample(entries, min(5, len(entries))):
        name = joined(text)
        questions.ask("event time", when, text, name=name)
        if place and random.random() < 0.6:
            questions.ask("event place", place, text, name=name)
        if times.count(when.text) == 1 and random.random() < 0.5:
            questions.add(questions.word("event at", time=when.text), name, boxes_of(text), [when.box])
    for word, (when, text, _) in (("event first", entries[0]), ("event last", entries[-1])):
        questions.ask(word, text, when, kind=SPREAD)
    questions.lack("event time", name=maker.words.thing())
    if not rooms:
        questions.lack("event place", name=joined(entries[0][1]))
    questions.gist("how many entries", str(len(entries)))
    questions.gist("kind of page", ("schedule", "a schedule", "programme", "timetable"))


@PAGES.register("directory")
def directory(maker: PageMaker) -> None:
    """Names with numbers: telephone numbers, or pages of chapters."""
    random, values = maker.random, maker.values
    layout, questions = (maker.arrange("directory"), maker.questions)
    chapters = random.random() < 0.35
    sheet, body, _, x, width, top = _listing(maker, "contents title" if chapters else "directory title")
    columns = 2 if layout == "two columns" else 1
    room = (width - 30 * (columns - 1)) / columns
    if columns == 1:
        room = min(room, body.size * random.uniform(26, 44))
    step = body.size * random.uniform(1.4, 2.2)
    entries: list[tuple[Piece, Piece]] = []
    page, bottom = random.randint(1, 9), top
    name_of: Callable[[], str] = lambda: maker.words.thing().capitalize()  # noqa: E731
    if not chapters:
        name_of = values.person if random.random() < 0.7 else values.company
    for column in range(columns):
        left, y = x + column * (room + 30), top
        for _ in range(random.randint(6, 30)):
            name = name_of()
            number = str(page) if chapters else values.phone()
            page += random.randint(1, 14)
            start = left
            if layout == "numbered":
                start = left + body.size * 2
            wide = body.width(body.printable(name + number)) + body.size * 4
            if y > sheet.height - 40 or wide > room or any(name == one.text for one, _ in entries):
                continue
            if layout == "numbered":
                sheet.write(f"{len(entries) + 1}.", left, y, body)
            who = sheet.write(name, start, y, body)
            at, align = (who.box[2] + body.size, "left") if layout == "near" else (left + room, "right")
            what = sheet.write(number, at, y, body, align)
            if layout == "leaders":
                for dot in range(round(who.box[2] + 6), round(what.box[0] - 6), 6):
                    sheet.rectangle(dot, y - 1, dot + 0.6, y, fill=body.colour)
            elif layout == "ruled":
                sheet.across(left, left + room, y + step * 0.3, (180, 180, 180))
            entries.append((who, what))
            y += step
        bottom = max(bottom, y)
    _finish(maker, bottom)
    numbers = [what.text for _, what in entries]
    for who, what in random.sample(entries, min(6, len(entries))):
        questions.ask("chapter page" if chapters else "listed number", what, who, name=who.text)
        if numbers.count(what.text) == 1 and not chapters and random.random() < 0.4:
            questions.ask("number of whom", who, what, number=what.text)
    for _ in range(2):
        other = name_of()
        if all(other != who.text for who, _ in entries):
            questions.lack("chapter page" if chapters else "listed number", name=other)
    questions.gist("how many entries", str(len(entries)))
    names = ("contents", "table of contents") if chapters else ("directory", "a directory", "list", "a list")
    questions.gist("kind of page", names)


def _listing(maker: PageMaker, titles: str) -> tuple[Sheet, Style, Style, float, float, float]:
    """Opens a sheet with a title; returns it, body style, bold style, left margin, width and first baseline."""
    random = maker.random
    width, height = random.choice(((724, 1024), (800, 800), (1024, 640), (600, 900)))
    sheet = maker.open(width, height, maker.paper())
    family = maker.family(mono=0.1)
    body = maker.style(family.regular, random.uniform(11, 17))
    margin = float(random.randint(30, 80))
    y = float(random.randint(40, 70))
    words = maker.one(titles) if random.random() < 0.6 else f"{maker.words.noun()} {maker.one(titles)}".title()
    face = maker.family(display=0.2).bold if random.random() < 0.5 else family.bold
    style = Style(face, body.size * random.uniform(1.3, 2.1))
    style = style.inked(maker.accent() if random.random() < 0.3 else body.colour)
    title, y = sheet.paragraph(words, margin, y, width - 2 * margin, style, 1.2, random.choice(("left", "middle")))
    maker.questions.gist("title", joined(title), title)
    if random.random() < 0.4:
        sheet.write(maker.values.date(), margin, y, body)
        y += body.size * 1.4
    return sheet, body, Style(family.bold, body.size, body.colour), margin, width - 2 * margin, y + body.size * 0.8


def _finish(maker: PageMaker, y: float) -> None:
    if y < maker.sheet.height * 0.85 and maker.random.random() < 0.6:
        maker.sheet.height = int(y + 30)
