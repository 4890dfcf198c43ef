"""Forms: labels and values side by side, above each other or in boxes, with checkboxes, in one to three columns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .fields import Field, all_fields, fields_of
from .maker import PAGES, PageMaker
from .question_writer import DETAIL, TICK, boxes_of, is_phrase, spoken
from .sheet import Colour, Piece, Style, joined
from .values import KINDS

_CASES = ("plain", "plain", "upper", "title")


def cased(text: str, case: str) -> str:
    """A label's text unchanged, in capitals, or with capitalised words."""
    if case == "title":
        return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))
    return text.upper() if case == "upper" else text


@dataclass
class Shown:
    """A field on the page: its names, the printed one first, and the places of label and value."""

    field: Field
    label: list[Piece]
    value: list[Piece]
    mode: str
    options: list[tuple[str, Piece, bool]] = dataclasses.field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of the value."""
        return joined(self.value)


@dataclass(frozen=True)
class Look:
    """The appearance of a form's fields."""

    mode: str
    columns: int
    label: Style
    value: Style
    case: str
    colon: str
    rule: Colour
    leading: float
    label_share: float  # of a column's width, for a label on the left
    mark: str  # in a ticked box
    hand: bool  # whether values are written by hand


class FormWriter:
    """Writes fields in columns and records their places."""

    def __init__(self, maker: PageMaker, look: Look) -> None:
        self.maker, self.look, self.sheet, self.random = maker, look, maker.sheet, maker.random
        self.shown: list[Shown] = []

    def grid(self, fields: list[Field], x: float, y: float, width: float, bottom: float, empty: float = 0.05) -> float:
        """Writes fields in rows of columns from y to `bottom` at most; returns the y of the next row."""
        look = self.look
        gap = 0 if look.mode.startswith("boxed") and look.mode != "boxed value" else look.value.size * 1.2
        room = (width - gap * (look.columns - 1)) / look.columns
        row, index = 0, 0
        while index < len(fields):
            height = self.look.value.size * 5
            if y + height > bottom:
                break
            count = 1 if look.columns > 1 and self.random.random() < 0.12 else look.columns
            wide = width if count == 1 else room
            ends = []
            cells = fields[index : index + count]
            start = len(self.shown)
            for column, each in enumerate(cells):
                ends.append(self._cell(each, x + column * (wide + gap), y, wide, empty))
            end = max(ends)
            self._frame(start, x, y, wide, gap, end, width, row)
            y, index, row = end, index + count, row + 1
        return y

    def _cell(self, field: Field, x: float, y: float, width: float, empty: float) -> float:
        """Writes one field; returns the bottom of its cell."""
        look, size = self.look, self.look.value.size
        label_text = cased(field.name, look.case) + look.colon
        options = self.maker.values.options() if field.kind == "choice" and self.random.random() < 0.6 else ()
        inset = size * 0.4 if look.mode.startswith("boxed") else 0
        x, width = x + inset, width - 2 * inset
        if look.mode in ("above", "boxed above"):
            label, below = self.sheet.paragraph(label_text, x, y + look.label.size * 1.1, width, look.label, 1.15)
            base = below - look.label.size * 1.15 + size * 1.35
            left, room = x, width
        else:
            base = y + size * 1.25
            if look.mode in ("after", "underlined", "leaders"):
                room = min(look.label.width(look.label.printable(label_text)) + size * 0.2, width * 0.6)
            else:
                room = width * look.label_share
            right_aligned = look.mode == "left right-aligned"
            align = "right" if right_aligned else "left"
            inner = room - size * 0.3 * right_aligned
            label, _ = self.sheet.paragraph(label_text, x, base, inner, look.label, 1.15, align)
            gap = size * self.random.uniform(0.4, 0.9)
            near = look.mode in ("after", "underlined", "leaders")
            left = x + (max(piece.box[2] - x for piece in label) if near else room) + gap
            room = width - (left - x)
            base = float(label[-1].boxes[0, 3]) if look.mode == "underlined" else base
        shown = Shown(field, label, [], look.mode)
        self.shown.append(shown)
        if options:
            end = self._options(shown, options, left, base, room)
        elif self.random.random() < empty:
            end = base + size * 0.4
        else:
            end = self._value(shown, left, base, room)
        space = 0.45 if look.mode.startswith("boxed") else look.leading - 1 + 0.1
        return max(end, float(label[-1].boxes[0, 3])) + size * space

    def _value(self, shown: Shown, x: float, y: float, room: float) -> float:
        values, look = self.maker.values, self.look
        kind = shown.field.kind
        if self.random.random() < 0.3:
            values.reformat()
        texts = values.address() if kind == "address" and self.random.random() < 0.7 else [KINDS[kind](values)]
        step = look.value.size * 1.2
        for text in texts:
            pieces, y = self.sheet.paragraph(text, x, y, room, look.value, 1.2)
            shown.value += pieces
        return y - step + look.value.size * 0.3

    def _options(self, shown: Shown, options: tuple[str, ...], x: float, y: float, room: float) -> float:
        """Writes checkboxes with names, one of them ticked."""
        size, look = self.look.value.size, self.look
        printed = look.label.sized(min(size, look.label.size * 1.05))
        ticked = self.random.randrange(len(options))
        left = x
        for index, text in enumerate(options):
            side = printed.cap_height * 1.25
            needed = side + size * 0.35 + printed.width(printed.printable(text))
            if left > x and left + needed > x + room:
                left, y = x, y + size * 1.4
            top = round(y - printed.cap_height) - side * 0.1
            self._box(left, top, side, index == ticked)
            piece = self.sheet.write(text, left + side + size * 0.35, y, printed)
            shown.options.append((piece.text, piece, index == ticked))
            if index == ticked:
                shown.value = [piece]
            left += needed + size * 0.9
        return y + size * 0.3

    def _box(self, x: float, y: float, side: float, ticked: bool) -> None:
        colour, mark = self.look.rule, self.look.value.colour
        if self.look.mark == "radio":
            self.sheet.ellipse(x, y, x + side, y + side, outline=colour)
            if ticked:
                self.sheet.ellipse(x + side * 0.25, y + side * 0.25, x + side * 0.75, y + side * 0.75, fill=mark)
            return
        self.sheet.rectangle(x, y, x + side, y + side, outline=colour)
        if not ticked:
            return
        if self.look.mark == "cross":
            self.sheet.line((x, y), (x + side, y + side), colour=mark, width=1.5)
            self.sheet.line((x, y + side), (x + side, y), colour=mark, width=1.5)
        elif self.look.mark == "tick":
            start, middle = (x + side * 0.1, y + side * 0.5), (x + side * 0.4, y + side * 0.9)
            self.sheet.line(start, middle, (x + side * 1.1, y - side * 0.1), colour=mark, width=2)
        else:
            self.sheet.rectangle(x + side * 0.2, y + side * 0.2, x + side * 0.8, y + side * 0.8, fill=mark)

    def _frame(
        self, start: int, x: float, y: float, wide: float, gap: float, end: float, width: float, row: int
    ) -> None:
        """Draws rules and shading of a row of cells."""
        look, sheet = self.look, self.sheet
        if look.mode in ("boxed above", "boxed left"):
            for column in range(len(self.shown) - start):
                left = x + column * (wide + gap)
                sheet.rectangle(left, y, left + wide, end, outline=look.rule)
                if look.mode == "boxed left":
                    middle = left + look.value.size * 0.2 + wide * look.label_share
                    sheet.line((middle, y), (middle, end), colour=look.rule)
        elif look.mode == "left striped" and row % 2:
            sheet.rectangle(x - 6, y + 1, x + width + 6, end, fill=(238, 240, 242))
        elif look.mode in ("underlined", "leaders", "boxed value"):
            for column, shown in enumerate(self.shown[start:]):
                left = max(piece.box[2] for piece in shown.label) + 4
                right = x + column * (wide + gap) + wide
                base = float((shown.value or shown.label)[0].boxes[0, 3])
                if look.mode == "underlined":
                    sheet.line((left, base + 4), (right, base + 4), colour=look.rule)
                elif look.mode == "leaders" and shown.value:
                    stop = shown.value[0].box[0] - 4
                    dots = [left + 5 * step for step in range(int(max(stop - left, 0) // 5))]
                    for dot in dots:
                        sheet.rectangle(dot, base - 1, dot + 0.5, base, fill=look.rule)
                elif look.mode == "boxed value":
                    left = x + column * (wide + gap) + wide * look.label_share
                    sheet.rectangle(left, y + 2, right, end - 2, outline=look.rule, radius=2)


def draw_look(maker: PageMaker, layout: str, size: float) -> Look:
    """A random appearance for a layout: one family for labels, the same or another for values."""
    random = maker.random
    family = maker.family(mono=0.12)
    columns = 2 if layout.startswith("two") else 3 if layout.startswith("three") else 1
    mode = layout.split("columns ")[-1]
    ink = maker.ink()
    draw = random.random()
    face, colour, factor = family.regular, ink, 1.0
    if draw < 0.15:
        face, factor = maker.fonts.draw(random, "hand").regular, 1.2
        colour = random.choice(((20, 30, 120), (10, 10, 10), (30, 60, 150)))
    elif draw < 0.4:
        face = maker.fonts.draw(random, "mono").regular
    elif draw < 0.5:
        face = maker.family().regular
    elif draw < 0.62:
        face = family.bold
    label_face = family.bold if face is not family.bold and random.random() < 0.35 else family.regular
    small = random.uniform(0.7, 0.95) if mode.endswith("above") else random.choice((1.0, 1.0, 0.9))
    return Look(
        mode=mode,
        columns=columns,
        case=random.choice(_CASES),
        label=Style(label_face, max(size * small, 9), random.choice((ink, ink, maker.accent()))),
        value=Style(face, size * factor, colour),
        colon=random.choice(("", "", ":") if mode.startswith("boxed a") else (":", ":", "", "", " :")),
        rule=random.choice(((0, 0, 0), (120, 120, 120), (180, 180, 180), maker.accent())),
        leading=random.uniform(1.25, 2.0),
        label_share=random.uniform(0.28, 0.42) if columns == 1 else random.uniform(0.36, 0.5),
        mark=random.choice(("cross", "tick", "radio", "fill")),
        hand=maker.fonts.use(face.family) == "hand",
    )


@PAGES.register("form")
def form(maker: PageMaker) -> None:
    """A form of a random domain with filled fields."""
    random = maker.random
    width, height = random.choice(((724, 1024), (724, 1024), (791, 1024), (1024, 724), (640, 1024), (800, 620)))
    sheet = maker.open(width, height, maker.paper())
    layout = maker.arrange("form")
    size = random.choice((11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 18.0, 20.0))
    size = min(size, 15.0) if "two" in layout else min(size, 13.0) if "three" in layout else size
    look = draw_look(maker, layout, size)
    domain = maker.names.domain()
    margin = random.randint(24, 70)
    x, y, inner = float(margin), float(random.randint(24, 60)), float(width - 2 * margin)
    title, y = _heading(maker, look, domain, x, y, inner)
    writer = FormWriter(maker, look)
    bottom = height - random.randint(50, 100)
    count = random.randint(6, 24) * (look.columns if look.columns < 3 else 2)
    fields = maker.names.draw(domain, count)
    while fields and y + size * 5 < bottom:
        size_of_part = random.randint(3, 9) * look.columns
        part, fields = fields[:size_of_part], fields[size_of_part:]
        y = _section(maker, look, x, y, inner, first=not writer.shown)
        before = len(writer.shown)
        y = writer.grid(part, x, y, inner, bottom) + size * random.uniform(0.4, 1.6)
        if len(writer.shown) == before:
            break
    if random.random() < 0.35 and y + size * 4 < bottom:
        note = maker.style(look.label.face, max(9, size * 0.8), look.label.colour)
        _, y = sheet.paragraph(maker.words.text(random.randint(1, 5)), x, y + size * 1.2, inner, note)
    if y < height * 0.8 and random.random() < 0.75:
        sheet.height = int(max(y + size * random.uniform(3, 6), width * 0.45))
    _footer(maker, look, x, sheet.height - 16, inner)
    ask_fields(maker, writer.shown, domain)
    maker.questions.gist("kind of page", ("form", "a form"))
    if random.random() < (0.6 if look.hand else 0.12):
        maker.questions.gist("handwriting there", "yes" if look.hand else "no")
    if title:
        maker.questions.gist("title", joined(title), title)
    if random.random() < 0.5 and not any(shown.options for shown in writer.shown):
        maker.questions.gist("how many fields", str(len(writer.shown)))


def _heading(maker: PageMaker, look: Look, domain: str, x: float, y: float, width: float) -> tuple[list[Piece], float]:
    """Writes an organisation's name, the title and a line of explanation; returns the title and the next y."""
    random, sheet, size = maker.random, maker.sheet, look.value.size
    align = random.choice(("left", "middle", "middle"))
    anchor = x if align == "left" else x + width / 2
    face = look.label.face if random.random() < 0.6 else maker.family(display=0.2).bold
    heading = Style(face, random.uniform(1.3, 2.0) * min(size, 16), look.label.colour)
    small = look.label.sized(max(9.0, size * 0.8))
    if random.random() < 0.4:
        y += small.size
        sheet.write(maker.values.company(), anchor, y, small, align)
        y += small.size * 0.4
    title: list[Piece] = []
    if random.random() < 0.93:
        text = maker.names.title(domain)
        y += heading.size * 1.1
        title, y = sheet.paragraph(text.upper() if random.random() < 0.35 else text, x, y, width, heading, 1.2, align)
        y -= heading.size * 0.8
    if random.random() < 0.3:
        pieces, y = sheet.paragraph(maker.words.sentence(), x, y + small.size * 0.8, width, small, 1.25, align)
        y -= small.size * 0.6
    if random.random() < 0.4:
        y += size * 0.5
        sheet.line((x, y), (x + width, y), colour=look.rule, width=random.choice((1, 2, 3)))
    return title, y + size * 0.8


def _section(maker: PageMaker, look: Look, x: float, y: float, width: float, first: bool) -> float:
    """Writes an optional section heading; returns the y of its fields."""
    random, size = maker.random, look.value.size
    if random.random() < (0.6 if first else 0.25):
        return y
    text = maker.one("section")
    style = look.label.sized(min(size, 16) * random.uniform(1.0, 1.25))
    base = y + style.size * 1.1
    if random.random() < 0.35:
        maker.sheet.rectangle(x, y, x + width, base + style.size * 0.5, fill=maker.tint())
        maker.sheet.write(text, x + 6, base, style.inked((0, 0, 0)))
    else:
        maker.sheet.write(text.upper() if look.case == "upper" else text, x, base, style)
        if random.random() < 0.5:
            maker.sheet.line((x, base + 5), (x + width, base + 5), colour=look.rule)
    return base + style.size * 0.8


def _footer(maker: PageMaker, look: Look, x: float, y: float, width: float) -> None:
    random, values = maker.random, maker.values
    if random.random() < 0.5:
        return
    text = maker.one("footer")
    numbers = {"n": random.randint(1, 3), "m": random.randint(3, 9), "code": values.code(), "date": values.date()}
    firm = {"company": values.company(), "phone": values.phone(), "url": values.url()}
    text = text.format(**numbers, **firm)
    align = random.choice(("left", "middle", "right"))
    anchor = {"left": x, "middle": x + width / 2, "right": x + width}[align]
    maker.sheet.write(text, anchor, y, look.label.sized(10), align)


def ask_fields(maker: PageMaker, shown: list[Shown], domain: str) -> None:
    """Asks about fields: by name, by place, by value, two at once, and about absent ones."""
    questions, random = maker.questions, maker.random
    texts = [each.text for each in shown]
    names = [each.field.name.casefold() for each in shown]
    filled = [each for each in shown if each.value]
    for each in filled:
        if each.options:
            _ask_options(maker, each)
        else:
            questions.value(each.field.names, each.field.kind, each.label, each.value)
            if random.random() < 0.3:
                questions.value(each.field.names, each.field.kind, each.label, each.value)
    for each in random.sample(filled, min(2, len(filled))):
        if len(each.label) == 1 and not each.options and names.count(each.field.name.casefold()) == 1:
            questions.beside("under" if each.mode.endswith("above") else "right", each.label[0], each.value)
    for each in random.sample(filled, min(1, len(filled))):
        if len(each.label) == 1 and texts.count(each.text) == 1 and not each.options and len(each.text) > 2:
            questions.inverse(each.label[0], each.value)
    plain = [each for each in filled if not each.options]
    if len(plain) > 2:
        first, second = random.sample(plain, 2)
        if first.text != second.text:
            questions.both(*((each.field.name, each.label, each.value) for each in (first, second)))
    ask_absent(maker, [name for each in shown for name in each.field.names], domain)
    for each in shown:
        if not each.value:
            questions.absent(questions.named(each.field.name, each.field.kind, joined(each.label)))
    singular = [each for each in filled if not each.field.name.endswith("s") and not is_phrase(each.field.name)]
    if singular and random.random() < 0.3:
        each = random.choice(singular)
        questions.gist("field there", "yes", each.label, name=spoken(each.field.name))


def _ask_options(maker: PageMaker, shown: Shown) -> None:
    questions, random = maker.questions, maker.random
    label = joined(shown.label).rstrip(": ")
    ways = [questions.word("ticked", name=spoken(shown.field.name), label=label)]
    if random.random() < 0.4:
        ways.append(questions.named(shown.field.name, "choice", label))
    for text in ways:
        questions.add(text, shown.text, boxes_of(shown.value), boxes_of(shown.label), DETAIL)
    text, piece, ticked = random.choice(shown.options)
    if sum(each == text for each, _, _ in shown.options) == 1 and random.random() < 0.5:
        answer, said = "yes" if ticked else "no", questions.word("is ticked", option=text)
        questions.add(said, answer, boxes_of(piece), boxes_of(shown.label), TICK)


_VAGUE = {"number", "no.", "date", "of", "name"}
"""Words that do not tell fields apart."""


def ask_absent(maker: PageMaker, present: list[str], domain: str, count: int = 3) -> None:
    """Asks for fields that are plausible on the page, but absent."""
    questions, random = maker.questions, maker.random
    there = {word for name in present for word in spoken(name).split()} - _VAGUE
    pool = (*fields_of(domain, maker.split), *fields_of("general", maker.split), *all_fields(maker.split)[::7])
    for _ in range(count):
        missing = random.choice(pool) if random.random() < 0.85 else maker.names.invented()
        words = {word for name in missing.names for word in spoken(name).split()} - _VAGUE
        if words & there or not words:
            continue
        name = random.choice(missing.names)
        if random.random() < 0.12 and not name.endswith("s") and not is_phrase(name):
            questions.gist("field there", "no", name=spoken(name))
        else:
            questions.absent(questions.named(name, missing.kind))
