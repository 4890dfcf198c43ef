"""Labels with their values: side by side, above each other or in boxes, in columns; and questions about them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from .fields import Field, all_fields, fields_of
from .maker import PageMaker
from .question_writer import TICK, boxes_of, is_phrase, spoken
from .sheet import Colour, Pieces, Style, joined
from .values import KINDS

_NEAR = ("after", "underlined", "leaders", "ruled")  # modes in which a value is as near to its label as it can be


@dataclass
class Shown:
    """A field on the page, and the places of its label and value; without a label its names are not asked for."""

    field: Field
    label: Pieces
    value: Pieces
    above: bool = False
    options: list[tuple[Pieces, bool]] = dataclasses.field(default_factory=list)  # and whether they are ticked

    @property
    def text(self) -> str:
        """The text of the value."""
        return joined(self.value)


@dataclass(frozen=True)
class Look:
    """The appearance of labels and values."""

    mode: str  # one of the layouts of forms without its columns, such as "left" or "boxed above"
    label: Style
    value: Style
    columns: int = 1
    case: str = "plain"  # of labels: "plain", "upper" or "title"
    colon: str = ""
    rule: Colour = (120, 120, 120)
    leading: float = 2.0  # distance of rows, em of the values
    label_share: float = 0.4  # share of a column's width for a label on the left
    mark: str = "tick"  # in a ticked box: "cross", "tick", "radio" or "fill"
    right: bool = False  # values end at the right end of their column
    whole_rows: tuple[str, ...] = ()  # kinds of fields that have a row of their own

    @property
    def above(self) -> bool:
        """Whether labels are above their values."""
        return "above" in self.mode

    @property
    def drop(self) -> float:
        """From a row's last baseline to its bottom, px."""
        return self.value.size * (self.leading / 2 - (0.2 if self.above else 0.36))


class PairWriter:
    """Writes fields in columns and records their places."""

    def __init__(self, maker: PageMaker, look: Look) -> None:
        self.maker, self.look, self.sheet, self.random = maker, look, maker.sheet, maker.random
        self.shown: list[Shown] = []
        self.gap = look.value.size * maker.random.uniform(0.4, 0.9)

    def grid(
        self,
        fields: Sequence[Field],
        x: float,
        y: float,
        width: float,
        bottom: float = math.inf,
        *,
        tall: float = 5.0,
        empty: float = 0.0,
    ) -> float:
        """Writes fields in rows of columns whose top is at y; returns their bottom. Rows end where `tall` em might not
        fit above `bottom`; a share `empty` of the fields has no value."""
        look, size = self.look, self.look.value.size
        gap = 0 if look.mode in ("boxed above", "boxed left") else size * 1.2
        room = (width - gap * (look.columns - 1)) / look.columns
        row, index = 0, 0
        while index < len(fields) and y + size * tall <= bottom:
            single = self.random.random() < 0.12 and look.columns > 1 and not look.whole_rows
            cells = takewhile(lambda each: each.kind not in look.whole_rows, fields[index:][: look.columns])
            own = fields[index : index + 1] if single else [*cells] or fields[index : index + 1]
            wide = width if single or own[0].kind in look.whole_rows else room
            start = len(self.shown)
            lefts = [x + column * (wide + gap) for column in range(len(own))]
            end = max(self._cell(field, left, y, wide, empty) for field, left in zip(own, lefts, strict=True))
            for left, shown in zip(lefts, self.shown[start:], strict=True):
                self._frame(shown, left, y, left + wide, end)
            if look.mode == "left striped" and row % 2:
                self.sheet.rectangle(x - 6, y + 1, x + width + 6, end, fill=(238, 240, 242))
            y, index, row = end, index + len(own), row + 1
        return y

    def _cell(self, field: Field, x: float, y: float, width: float, empty: float) -> float:
        """Writes one field; returns the bottom of its cell."""
        look, size = self.look, self.look.value.size
        text = cased(field.name, look.case) + look.colon
        inset = size * 0.4 if look.mode.startswith("boxed") else 0
        x, width = x + inset, width - 2 * inset
        if look.above:
            label, below = self.sheet.paragraph(text, x, y + look.label.size * 1.1, width, look.label, 1.15)
            base, left = below - look.label.size * 1.15 + size * 1.3, x
        else:
            base, near = y + size * look.leading - look.drop, look.mode in _NEAR
            room = width * look.label_share
            if near:
                room = min(look.label.width(look.label.printable(text)) + size * 0.2, width * 0.6)
            at_right = look.mode == "left right-aligned"
            room -= size * 0.3 * at_right
            label, _ = self.sheet.paragraph(text, x, base, room, look.label, 1.15, "right" if at_right else "left")
            left = (max(piece.box[2] for piece in label) if near else x + room) + self.gap
            base = label[-1].base if look.mode == "underlined" else base
        shown = Shown(field, label, [], look.above)
        self.shown.append(shown)
        options = self.maker.values.options() if field.kind == "choice" and self.random.random() < 0.6 else ()
        end, room = base, x + width - left
        if options:
            end = self._options(shown, options, left, base, room)
        elif self.random.random() >= empty:
            shown.value, after = self._value(field, left, base, room)
            end = after - size * 1.2
        return max(end, label[-1].base) + look.drop

    def _value(self, field: Field, x: float, y: float, room: float) -> tuple[Pieces, float]:
        """Writes a value; returns it and the next baseline."""
        values, pieces = self.maker.values, []
        lines: Sequence[str] = field.lines
        if not lines:
            if self.random.random() < 0.3:
                values.reformat()
            lines = values.address() if field.kind == "address" else [KINDS[field.kind](values)]
        for text in lines:
            more, y = self.sheet.paragraph(
                text, x, y, room, self.look.value, 1.2, "right" if self.look.right else "left"
            )
            pieces += more
        return pieces, y

    def _options(self, shown: Shown, options: tuple[str, ...], x: float, y: float, room: float) -> float:
        """Writes checkboxes with names, one of them ticked; returns the last baseline."""
        size, look = self.look.value.size, self.look
        printed = look.label.sized(min(size, look.label.size * 1.05))
        ticked = self.random.randrange(len(options))
        left, side = x, printed.cap_height * 1.25
        for index, text in enumerate(options):
            needed = side + size * 0.35 + printed.width(printed.printable(text))
            if left > x and left + needed > x + room:
                left, y = x, y + size * 1.4
            self._box(left, round(y - printed.cap_height) - side * 0.1, side, index == ticked)
            piece = self.sheet.write(text, left + side + size * 0.35, y, printed)
            shown.options.append(([piece], index == ticked))
            left += needed + size * 0.9
        shown.value = shown.options[ticked][0]
        return y

    def _box(self, x: float, y: float, side: float, ticked: bool) -> None:
        sheet, mark, kind = self.sheet, self.look.value.colour, self.look.mark
        (sheet.ellipse if kind == "radio" else sheet.rectangle)(x, y, x + side, y + side, outline=self.look.rule)
        names = ("()", "(o)") if kind == "radio" else ("[]", "[x]")
        sheet.mark(names[ticked], (x, y, x + side, y + side))
        if not ticked:
            return
        near, far = side * 0.22, side * 0.78
        if kind == "radio":
            sheet.ellipse(x + near, y + near, x + far, y + far, fill=mark)
        elif kind == "fill":
            sheet.rectangle(x + near, y + near, x + far, y + far, fill=mark)
        elif kind == "cross":
            sheet.line((x, y), (x + side, y + side), colour=mark, width=1.5)
            sheet.line((x, y + side), (x + side, y), colour=mark, width=1.5)
        else:
            start, middle = (x + side * 0.1, y + side * 0.5), (x + side * 0.4, y + side * 0.9)
            sheet.line(start, middle, (x + side * 1.1, y - side * 0.1), colour=mark, width=2)

    def _frame(self, shown: Shown, x: float, y: float, right: float, end: float) -> None:
        """Draws the rules of a cell."""
        look, sheet, size = self.look, self.sheet, self.look.value.size
        base, left = (shown.value or shown.label)[0].base, max(each.box[2] for each in shown.label) + 4
        if look.mode in ("boxed above", "boxed left"):
            sheet.rectangle(x, y, right, end, outline=look.rule)
        if look.mode == "boxed left":
            middle = x + size * 0.2 + (right - x) * look.label_share
            sheet.line((middle, y), (middle, end), colour=look.rule)
        elif look.mode == "underlined":
            sheet.line((left, base + 4), (right, base + 4), colour=look.rule)
        elif look.mode == "leaders" and shown.value:
            sheet.leaders(left, shown.value[0].box[0] - 4, base, look.rule)
        elif look.mode == "ruled":
            sheet.across(x, right, end, look.rule)
        elif look.mode == "boxed value":
            sheet.rectangle(x + (right - x) * look.label_share, y + 2, right, end - 2, outline=look.rule, radius=2)
        elif look.mode == "above boxed value":
            sheet.rectangle(x - size * 0.5, base - size * 1.1, right, base + size * 0.5, outline=look.rule, radius=4)


def cased(text: str, case: str) -> str:
    """A label's text unchanged ("plain"), in capitals ("upper"), or with capitalised words ("title")."""
    if case == "title":
        return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))
    return text.upper() if case == "upper" else text


def ask_fields(maker: PageMaker, shown: Sequence[Shown], domain: str) -> None:
    """Asks about fields: by name, by place, by value, two at once, and about absent ones."""
    questions, random = maker.questions, maker.random
    texts = [each.text for each in shown]
    names = [each.field.name.casefold() for each in shown]
    filled = [each for each in shown if each.value]
    plain = [each for each in filled if not each.options]
    for each in filled:
        if each.options:
            _ask_options(maker, each)
            continue
        for _ in range(1 + (random.random() < 0.3)):
            questions.value(each.field.names, each.field.kind, each.label, each.value)
    for each in random.sample(plain, min(2, len(plain))):
        if len(each.label) == 1 and names.count(each.field.name.casefold()) == 1:
            questions.beside("under" if each.above else "right", each.label[0], each.value)
    for each in random.sample(plain, min(1, len(plain))):
        if len(each.label) == 1 and texts.count(each.text) == 1 and len(each.text) > 2:
            questions.inverse(each.label[0], each.value)
    _ask_two(maker, plain)
    ask_absent(maker, [name for each in shown for name in each.field.names], domain)
    for each in shown:
        if not each.value:
            questions.absent(questions.named(each.field.name, each.field.kind, joined(each.label)))
    singular = [each for each in filled if not each.field.name.endswith("s") and not is_phrase(each.field.name)]
    if singular and random.random() < 0.3:
        each = random.choice(singular)
        questions.gist("field there", "yes", each.label, name=spoken(each.field.name))


def _ask_two(maker: PageMaker, shown: Sequence[Shown]) -> None:
    if len(shown) > 2:
        first, second = maker.random.sample(shown, 2)
        if first.text != second.text:
            maker.questions.both(*((each.field.name, each.label, each.value) for each in (first, second)))


def _ask_options(maker: PageMaker, shown: Shown) -> None:
    questions, random = maker.questions, maker.random
    label = joined(shown.label).rstrip(": ")
    ways = [questions.word("ticked", name=spoken(shown.field.name), label=label)]
    if random.random() < 0.4:
        ways.append(questions.named(shown.field.name, "choice", label))
    for text in ways:
        questions.add(text, shown.text, boxes_of(shown.value), boxes_of(shown.label))
    option, ticked = random.choice(shown.options)
    if sum(joined(each) == joined(option) for each, _ in shown.options) == 1 and random.random() < 0.5:
        text = questions.word("is ticked", option=joined(option))
        questions.add(text, "yes" if ticked else "no", boxes_of(option), boxes_of(shown.label), TICK)


_VAGUE = {"number", "no.", "date", "of", "name"}  # words that do not tell fields apart


def ask_absent(maker: PageMaker, present: Sequence[str], domain: str, count: int = 3) -> None:
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


def ask_facts(
    maker: PageMaker, shown: Sequence[Shown], wordings: Mapping[str, str], kinds: Mapping[str, str], lacks: int
) -> None:
    """Asks about facts: by what they mean, by their labels, two at once, and about absent ones.

    Args:
        wordings: by concept, the wording that asks for it without its name, if there is one.
        kinds: of absent facts, by concept.
        lacks: how many of these are asked about, at most.
    """
    questions, random = maker.questions, maker.random
    for each in shown:
        wording = wordings.get(each.field.concept)
        if wording and random.random() < 0.85:
            questions.ask(wording, each.value, each.label)
        if each.field.names and (not wording or random.random() < 0.45):
            questions.value(each.field.names, each.field.kind, each.label, each.value)
    _ask_two(maker, [each for each in shown if each.field.names and len(each.value) == 1])
    absent = [concept for concept in kinds if all(each.field.concept != concept for each in shown)]
    for concept in random.sample(absent, min(lacks, len(absent))):
        if concept in wordings:
            questions.lack(wordings[concept])
        else:
            questions.absent(questions.named(maker.term(concept)[0], kinds[concept]))
