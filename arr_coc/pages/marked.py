"""Marked pages: lists whose answers are drawn and not printed, such as ticks, switches, colours, icons and bars.

A page has groups of named items. Each group is of one kind, and its marks are labels for `modeling.marks`. Sizes,
strokes, shapes, palettes and layouts are divided into splits as words and fonts are.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..modeling.config_fields import Registry
from ..modeling.image_processing_arr_coc import Box
from ..modeling.marks import BAR, COLOURS
from .maker import PAGES, PageMaker
from .question_writer import boxes_of
from .sheet import Colour, Piece
from .splits import share

T = TypeVar("T")
Strokes = Sequence[Sequence[tuple[float, float]]]

TICKS: dict[str, Strokes] = {
    "cross": (((0.15, 0.15), (0.85, 0.85)), ((0.15, 0.85), (0.85, 0.15))),
    "tick": (((0.12, 0.5), (0.4, 0.85), (0.95, 0.05)),),
    "hand tick": (((0.05, 0.45), (0.3, 0.7), (0.38, 0.95), (1.25, -0.25)),),
    "hand cross": (((-0.15, -0.1), (1.1, 1.15)), ((-0.05, 1.1), (1.15, -0.2))),
    "slash": (((0.1, 0.95), (0.95, 0.05)),),
    "small tick": (((0.25, 0.5), (0.45, 0.72), (0.8, 0.25)),),
    "plus": (((0.5, 0.1), (0.5, 0.9)), ((0.1, 0.5), (0.9, 0.5))),
    "scribble": (((0.1, 0.4), (0.9, 0.1), (0.15, 0.6), (0.9, 0.4), (0.2, 0.85), (0.9, 0.7)),),
    "small cross": (((0.27, 0.27), (0.73, 0.73)), ((0.27, 0.73), (0.73, 0.27))),
    "fill": (),
    "inverted tick": (((0.2, 0.5), (0.42, 0.75), (0.82, 0.22)),),
}
"""Strokes of ticks by look, in a box of side 1; "fill" and "inverted tick" fill the box."""
BOXES = ("square", "rounded", "thick", "grey", "double", "faint")
DOTS = ("dot", "square", "rounded", "pill", "bar", "diamond", "ring")
RADIOS = ((0.25, 1.0, 0), (0.32, 1.0, 0), (0.2, 1.5, 0), (0.25, 2.0, 0), (0.3, 1.0, 1), (0.18, 2.0, 1), (0.38, 1.5, 0))
"""Inset of the dot, width of the ring, and whether the chosen disc is filled about a white dot."""
SWITCHES = ((0.5, 1.0, 0), (0.5, 0.8, 0), (0.5, 0.6, 0), (0.15, 1.0, 0), (0.3, 1.0, 0), (0.5, 1.0, 1), (0.2, 0.8, 1))
"""Radius and height of the track, of the height of the knob, and whether it is an outline."""
STRIKES = ((1, 0.5, 0), (1, 0.45, 1), (2, 0.5, 0), (1, 0.55, 1), (2, 0.45, 1), (1, 0.4, 0), (3, 0.5, 1), (1, 0.6, 0))
"""Number of lines, their height of that of capitals, and whether they have a colour of their own."""
PENS: tuple[Colour, ...] = (
    *((255, 240, 90), (180, 250, 160), (255, 190, 220), (165, 225, 255), (255, 205, 120), (215, 195, 255)),
    *((255, 255, 150), (150, 240, 220)),
)
"""Colours of highlighters."""
STARS = (0.38, 0.42, 0.45, 0.5, 0.34, 0.55)
"""Inner radius of a star, of its outer one."""
LOCKS = ((0, "up"), (0, "aside"), (2, "up"), (2, "cut"), (0, "cut"), (2, "aside"), (1, "up"), (1, "cut"))
"""Radius of the body's corners and how an open shackle stands."""
SIGNATURES = ((9, 0.5), (14, 0.8), (7, 1.2), (18, 0.4), (11, 1.0), (5, 0.9))
"""Waves of a signature, and how far they loop."""
STAMPS = ("circle", "double circle", "oval", "box", "rounded", "double box")
BARS = ("upright", "lying", "upright wide", "lying thin", "upright thin", "upright outlined", "lying wide")
PALETTES = ((0, 0.9), (-0.04, 0.8), (0.03, 1.0), (-0.07, 1.0), (0.05, 0.75), (0, 0.7))
"""Change of lightness, and saturation, of all colours."""
SIDES, STROKES = tuple(range(11, 41)), (1.0, 1.5, 2.0, 2.5, 3.0, 1.25, 1.75)
"""Sides of marks and widths of strokes, px."""
_HUES = {
    **{"red": (0, 0.48), "orange": (29, 0.52), "yellow": (52, 0.52), "green": (130, 0.38), "blue": (217, 0.48)},
    **{"purple": (275, 0.45), "pink": (332, 0.74)},
}
"""Hue in degrees and lightness of each of `COLOURS`."""


KINDS = (
    *("ticked", "is ticked", "chosen", "switch", "colour", "of colour", "struck", "highlighted", "starred", "locked"),
    *("tallest", "shortest", "signed", "stamped"),
)
"""Kinds of questions about marks."""


class MarkedSheet:
    """A sheet of groups, the looks of its marks, and the place of the next group."""

    def __init__(self, maker: PageMaker) -> None:
        self.maker, self.random, self.questions = maker, maker.random, maker.questions
        random = self.random
        self.layout = maker.arrange("marked page")
        width, height = random.choice(((724, 1024), (724, 1024), (1024, 768), (560, 1024), (800, 700), (640, 560)))
        dark = random.random() < 0.15
        self.paper: Colour = (34, 36, 44) if dark else maker.paper()
        self.ink: Colour = (235, 235, 235) if dark else maker.ink()
        self.rule: Colour = (120, 122, 130) if dark else random.choice(((0, 0, 0), (110, 110, 110), (150, 150, 155)))
        self.sheet = maker.open(width, height, self.paper)
        family, size = maker.family(mono=0.06), random.uniform(12, 20)
        self.body, self.bold = maker.styles(family, size, self.ink)
        self.side = float(self.look(SIDES, "sides of marks"))
        self.stroke = self.look(STROKES, "strokes of marks") * (1.4 if self.side > 26 else 1)
        self.accent = self.colour(random.choice(COLOURS)) if random.random() < 0.6 else self.ink
        self.names: set[str] = set()
        self.margin, self.column = random.uniform(24, 60), 0
        self.columns = 2 if "two columns" in self.layout and width > 600 else 1
        self.room = (width - 2 * self.margin) / self.columns - 16 * (self.columns - 1)
        title = self.bold * random.uniform(1.2, 1.8)
        text = maker.words.thing().title()
        maker.title, end = self.sheet.paragraph(text, self.margin, 20 + title.size, width - 2 * self.margin, title)
        self.top = self.y = end
        self.x = self.margin

    def look(self, pool: Sequence[T], name: str) -> T:
        """One of the split's items of a pool of looks."""
        return self.random.choice(share(tuple(pool), self.maker.split, name))

    def colour(self, name: str) -> Colour:
        """A shade of one of `COLOURS`."""
        hue, light = _HUES[name]
        change, saturation = self.look(PALETTES, "palettes of marks")
        shade = light + change + self.random.uniform(-0.03, 0.03)
        red, green, blue = colorsys.hls_to_rgb((hue + self.random.uniform(-6, 6)) % 360 / 360, shade, saturation)
        return round(255 * red), round(255 * green), round(255 * blue)

    def name(self, width: float) -> str:
        """A name of at most `width` px that the page does not have."""
        while True:
            name = self.maker.words.thing().capitalize()
            if name not in self.names and self.body.width(self.body.printable(name)) <= width:
                self.names.add(name)
                return name

    def heading(self, height: float) -> str | None:
        """Writes a heading and returns it; None where the page has no room for it and `height` px of a group."""
        if self.y + height + self.body.size * 3 > self.sheet.height - 20:
            self.column += 1
            if self.column >= self.columns or height + self.top + self.body.size * 3 > self.sheet.height - 20:
                return None
            self.x, self.y = self.x + self.room + 32, self.top
        text = self.name(self.room * 0.8)
        self.y += self.body.size * 2
        self.sheet.write(text + self.random.choice(("", ":")), self.x, self.y, self.bold)
        self.y += self.body.size * 0.5
        return text

    def rows(self, count: int, wide: float, tall: float) -> tuple[str, list[tuple[Piece, Box]]] | None:
        """Writes a heading and `count` names, each with room for a mark of `wide` x `tall` px at the returned box."""
        step, gap = max(tall * self.random.uniform(1.15, 1.5), self.body.size * 1.7), self.body.size * 0.5 * (wide > 0)
        head = self.heading(count * step)
        if head is None:
            return None
        items, left, inline = list[tuple[Piece, Box]](), self.x, "inline" in self.layout
        column = self.x + self.room * self.random.uniform(0.55, 0.98) - wide
        y = self.y + step / 2
        for _ in range(count):
            name = self.name(self.room * 0.5)
            width = self.body.width(self.body.printable(name))
            needed = width + wide + gap
            if items and (not inline or left + needed > self.x + self.room):
                left, y = self.x, y + step
            after = "right" in self.layout
            at = max(left + width + gap, column) if after and not inline else left + width + gap if after else left
            piece = self.sheet.write(
                name, left if after else left + wide + gap, y + self.body.cap_height / 2, self.body
            )
            items.append((piece, (at, y - tall / 2, at + wide, y + tall / 2)))
            left += needed + self.body.size * 1.5
        self.y = y + step / 2
        return head, items

    def strokes(self, strokes: Strokes, box: Box, colour: Colour, width: float) -> None:
        """Draws strokes that are given in a box of side 1."""
        x0, y0, x1, y1 = box
        for stroke in strokes:
            points = [(x0 + x * (x1 - x0), y0 + y * (y1 - y0)) for x, y in stroke]
            self.sheet.line(*points, colour=colour, width=width)

    def ask(
        self, kind: str, answer: str, boxes: Sequence[Box], labels: Sequence[Box], choices: int, **names: str
    ) -> None:
        """Asks in a wording of the kind "mark KIND"."""
        text = self.questions.word(f"mark {kind}", **names)
        self.questions.add(text, answer, boxes, labels, kind, choices=choices)


Group = Callable[[MarkedSheet], None]
GROUPS: Registry[Group] = Registry("group of marks")
"""Draws a group of items with marks of one kind, and asks about them."""


def _one_of(page: MarkedSheet, kind: str, draw: Callable[[Box, bool], str], wide: float, tall: float) -> None:
    """A group of which one item is marked: which one is it?"""
    drawn = page.rows(page.random.randint(2, 5), wide, tall)
    if drawn is None:
        return
    head, items = drawn
    chosen = page.random.randrange(len(items))
    for number, (piece, box) in enumerate(items):
        space = box if wide else piece.box
        if name := draw(space, number == chosen):
            page.sheet.mark(name, space)
    piece, box = items[chosen]
    page.ask(kind, piece.text, boxes_of(piece), [box] if wide else [], len(items), head=head)


def _each(
    page: MarkedSheet, kind: str, answers: tuple[str, str], draw: Callable[[Box, bool], str], wide: float
) -> None:
    """A group in which any items are marked: is this one?"""
    drawn = page.rows(page.random.randint(2, 5), wide, page.side)
    for piece, box in drawn[1] if drawn else ():
        on = page.random.random() < 0.5
        page.sheet.mark(draw(box, on), box)
        page.ask(kind, answers[not on], [box], boxes_of(piece), 2, name=piece.text)


def _box_drawer(page: MarkedSheet) -> Callable[[Box, bool], str]:
    shape, tick, fill = page.look(BOXES, "boxes"), page.look(tuple(TICKS), "ticks"), page.accent

    def draw(box: Box, on: bool) -> str:
        sheet, filled = page.sheet, on and tick in ("fill", "inverted tick")
        options: dict[str, Any] = {"outline": page.rule, "width": page.stroke * (1.8 if shape == "thick" else 1)}
        options |= {"radius": page.side * 0.2 * (shape == "rounded")}
        if shape == "grey":
            options["fill"] = (225, 226, 230)
        if filled and tick == "inverted tick":
            options["fill"] = fill
        sheet.rectangle(*box, **options)
        inset = page.side * 0.2
        if shape == "double" or (filled and tick == "fill"):
            inner = (box[0] + inset, box[1] + inset, box[2] - inset, box[3] - inset)
            sheet.rectangle(*inner, fill=fill) if filled else sheet.rectangle(*inner, outline=page.rule)
        if on:
            ink = page.paper if tick == "inverted tick" else fill
            page.strokes(TICKS[tick], box, ink, max(page.stroke * 1.3, page.side * 0.1))
        return "[x]" if on else "[]"

    return draw


@GROUPS.register("ticked")
def ticked(page: MarkedSheet) -> None:
    """Boxes of which one is ticked."""
    _one_of(page, "ticked", _box_drawer(page), page.side, page.side)


@GROUPS.register("is ticked")
def is_ticked(page: MarkedSheet) -> None:
    """Boxes of which any are ticked."""
    _each(page, "is ticked", ("yes", "no"), _box_drawer(page), page.side)


@GROUPS.register("chosen")
def chosen(page: MarkedSheet) -> None:
    """Radio buttons."""
    inset, ring, filled = page.look(RADIOS, "radio buttons")

    def draw(box: Box, on: bool) -> str:
        x0, y0, x1, y1 = box
        page.sheet.ellipse(
            *box, outline=page.rule, width=page.stroke * ring, fill=page.accent if on and filled else None
        )
        if on:
            near = page.side * inset
            dot = page.paper if filled else page.accent
            page.sheet.ellipse(x0 + near, y0 + near, x1 - near, y1 - near, fill=dot)
        return "(o)" if on else "()"

    _one_of(page, "chosen", draw, page.side, page.side)


@GROUPS.register("switch")
def switch(page: MarkedSheet) -> None:
    """Switches that are on or off."""
    radius, height, outlined = page.look(SWITCHES, "switches")
    lit, off = page.colour(page.random.choice(COLOURS)), page.random.choice(((150, 150, 155), (185, 186, 192)))

    def draw(box: Box, on: bool) -> str:
        x0, y0, x1, y1 = box
        tall, sheet = y1 - y0, page.sheet
        inset, colour = tall * (1 - height) / 2, lit if on else off
        track = {"outline": colour, "width": 2} if outlined else {"fill": colour}
        sheet.rectangle(x0, y0 + inset, x1, y1 - inset, radius=radius * tall * height, **track)
        near = 2.0 if height == 1 else 0.0
        start = x1 - tall + near if on else x0 + near
        knob: Colour = colour if outlined or height < 0.7 else (255, 255, 255)
        corner = {} if radius == 0.5 else {"radius": radius * tall}
        shape = sheet.ellipse if radius == 0.5 else sheet.rectangle
        shape(start, y0 + near, start + tall - 2 * near, y1 - near, fill=knob, **corner)
        return "[on]" if on else "[off]"

    _each(page, "switch", ("on", "off"), draw, page.side * page.random.uniform(1.7, 2.1))


@GROUPS.register("colour")
def colour(page: MarkedSheet) -> None:
    """Items with a dot of one colour each."""
    shape, wide = page.look(DOTS, "dots"), page.side * 0.8
    across = wide * {"pill": 1.9, "bar": 0.5}.get(shape, 1)
    drawn = page.rows(page.random.randint(2, 5), across, wide)
    if drawn is None:
        return
    head, items = drawn
    names = page.random.sample(COLOURS, len(items))
    for (piece, box), name in zip(items, names, strict=True):
        x0, y0, x1, y1 = box
        shade, sheet = page.colour(name), page.sheet
        if shape == "diamond":
            x, y = (x0 + x1) / 2, (y0 + y1) / 2
            sheet.polygon((x, y0), (x1, y), (x, y1), (x0, y), fill=shade)
        elif shape in ("dot", "ring"):
            sheet.ellipse(*box, **({"outline": shade, "width": wide * 0.25} if shape == "ring" else {"fill": shade}))
        else:
            sheet.rectangle(*box, fill=shade, radius={"rounded": 0.25, "pill": 0.5}.get(shape, 0) * wide)
        sheet.mark(f"[{name}]", box)
        page.ask("colour", name, [box], boxes_of(piece), len(items), name=piece.text)
        page.ask("of colour", piece.text, boxes_of(piece), [box], len(items), head=head, colour=name)


@GROUPS.register("struck")
def struck(page: MarkedSheet) -> None:
    """Items of which one is struck out."""
    lines, height, own = page.look(STRIKES, "strikes")
    ink = page.colour(page.random.choice(("red", "blue"))) if own else page.ink

    def draw(box: Box, on: bool) -> str:
        x0, y0, x1, y1 = box
        cap = page.body.cap_height
        for number in range(lines if on else 0):
            y = y0 + cap * (1 - height) + (number - (lines - 1) / 2) * max(3, cap * 0.35)
            slant = cap * 0.25 * own
            page.sheet.line((x0 - 2, y + slant), (x1 + 2, y - slant), colour=ink, width=max(1, page.body.size * 0.08))
        return "[struck]" if on else ""

    _one_of(page, "struck", draw, 0, 0)


@GROUPS.register("highlighted")
def highlighted(page: MarkedSheet) -> None:
    """Items of which one is highlighted."""
    pen, reach = page.look(PENS, "highlighters"), page.random.choice((2, 4, 8))
    if sum(page.paper) < 300:
        return  # light print would vanish on it

    def draw(box: Box, on: bool) -> str:
        if on:
            page.sheet.rectangle(box[0] - reach, box[1] - 3, box[2] + reach, box[3] + 1, fill=pen)
        return "[highlight]" if on else ""

    _one_of(page, "highlighted", draw, 0, 0)


@GROUPS.register("starred")
def starred(page: MarkedSheet) -> None:
    """Stars that are filled or hollow."""
    inner, gold = (
        page.look(STARS, "stars"),
        page.random.choice((page.ink, page.colour("orange"), page.colour("yellow"))),
    )

    def draw(box: Box, on: bool) -> str:
        x, y, radius = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2, (box[3] - box[1]) / 2
        turns = [(math.pi * n / 5 - math.pi / 2, radius * (inner if n % 2 else 1)) for n in range(10)]
        points = [(x + r * math.cos(turn), y + r * math.sin(turn)) for turn, r in turns]
        if on:
            page.sheet.polygon(*points, fill=gold)
        else:
            page.sheet.line(*points, points[0], colour=gold if sum(gold) < 400 else page.rule, width=page.stroke)
        return "[starred]" if on else "[hollow]"

    _each(page, "starred", ("yes", "no"), draw, page.side)


@GROUPS.register("locked")
def locked(page: MarkedSheet) -> None:
    """Padlocks that are closed or open."""
    radius, way = page.look(LOCKS, "locks")
    ink = page.random.choice((page.ink, page.rule, page.accent))

    def draw(box: Box, on: bool) -> str:
        x0, y0, x1, y1 = box
        wide, tall, width = x1 - x0, y1 - y0, max(1.5, page.side * 0.1)
        left, right, middle = x0 + wide * 0.12, x1 - wide * 0.12, y0 + tall * 0.48
        page.sheet.rectangle(left, middle, right, y1, fill=ink, radius=radius * tall * 0.08)
        shift = 0 if on else {"aside": wide * 0.45, "up": 0, "cut": 0}[way]
        rise = 0 if on or way != "up" else tall * 0.14
        a, b = left + wide * 0.12 + shift, right - wide * 0.12 + shift
        arc = [(-math.cos(math.pi * n / 8), -math.sin(math.pi * n / 8)) for n in range(9)]
        curve = [((a + b) / 2 + (b - a) / 2 * x, y0 + tall * 0.3 - rise + tall * 0.26 * y) for x, y in arc]
        end = curve if not on and way != "aside" else [*curve, (b, middle)]
        page.sheet.line((a, middle), *(end if on or way != "aside" else curve), colour=ink, width=width)
        return "[locked]" if on else "[unlocked]"

    _each(page, "locked", ("locked", "unlocked"), draw, page.side)


@GROUPS.register("bars")
def bars(page: MarkedSheet) -> None:
    """Bars without values: which is the highest, and which the lowest?"""
    look, count, random = page.look(BARS, "bars"), page.random.randint(3, 5), page.random
    high = random.uniform(90, 200)
    head = page.heading(high + page.body.size * 2.5)
    if head is None:
        return
    parts = [0.15 + 0.85 * (place + random.uniform(0, 0.4)) / count for place in range(count)]
    random.shuffle(parts)
    x, y, step = page.x, page.y + 6, (page.room if look.startswith("upright") else high) / count
    thick = step * (0.75 if "wide" in look else 0.3 if "thin" in look else 0.55)
    fill = page.colour(random.choice(COLOURS)) if random.random() < 0.7 else page.rule
    style = {"outline": fill, "width": 2} if "outlined" in look else {"fill": fill}
    pieces, boxes, low = list[Piece](), list[Box](), max(parts)
    for number, part in enumerate(parts):
        centre = (number + 0.5) * step
        if look.startswith("upright"):
            name = page.name(step * 0.95)
            box = (x + centre - thick / 2, y + high * (1 - part / low), x + centre + thick / 2, y + high)
            piece = page.sheet.write(name, x + centre, y + high + page.body.size * 1.3, page.body, "middle")
        else:
            base = y + centre + page.body.cap_height / 2
            piece = page.sheet.write(page.name(page.room * 0.35), x + page.room * 0.36, base, page.body, "right")
            start = x + page.room * 0.38
            box = (start, y + centre - thick / 2, start + page.room * 0.6 * part / low, y + centre + thick / 2)
        page.sheet.rectangle(*box, **style)
        page.sheet.mark(BAR, box)
        pieces.append(piece)
        boxes.append(box)
    page.y = y + high + page.body.size * 1.6
    for kind, best in (("tallest", max(parts)), ("shortest", min(parts))):
        number = parts.index(best)
        page.ask(kind, pieces[number].text, boxes_of(pieces[number]), [boxes[number]], count, head=head)


@GROUPS.register("signed")
def signed(page: MarkedSheet) -> None:
    """A line with a signature or without."""
    waves, loop = page.look(SIGNATURES, "signatures")
    _present(page, "signed", ("Signature", "Signed", "Sign here", "Signature of applicant"), (waves, loop))


@GROUPS.register("stamped")
def stamped(page: MarkedSheet) -> None:
    """A place for a stamp, with one or without."""
    _present(page, "stamped", ("Stamp", "Seal", "Official stamp", "Stamp here"), page.look(STAMPS, "stamps"))


def _present(page: MarkedSheet, kind: str, labels: Sequence[str], look: Any) -> None:
    random, sheet, tall = page.random, page.sheet, page.random.uniform(36, 70)
    if kind in page.names or page.heading(tall) is None:
        return
    page.names.add(kind)
    label = sheet.write(random.choice(labels), page.x, page.y + tall, page.body)
    x, y, there = label.box[2] + 12, page.y + 4, random.random() < 0.5
    wide = random.uniform(1.2, 1.8) * tall if kind == "stamped" else random.uniform(2, 3) * tall
    box = (x, y, min(x + wide, page.x + page.room), y + tall)
    ink = page.random.choice(((20, 30, 120), (10, 10, 10), (180, 30, 40), (30, 60, 150)))
    if sum(page.paper) < 300:
        ink = (150, 190, 255)
    sheet.across(x, page.x + page.room, y + tall, page.rule)
    page.y += tall + page.body.size
    if there:
        (_scribble if kind == "signed" else _stamp)(page, box, look, ink)
        sheet.mark("[signed]" if kind == "signed" else "[stamp]", box)
    page.ask(kind, "yes" if there else "no", [box], boxes_of(label), 2)


def _scribble(page: MarkedSheet, box: Box, look: tuple[float, float], ink: Colour) -> None:
    (waves, loop), random, (x0, y0, x1, y1) = look, page.random, box
    phase, other = random.uniform(0, 6), random.uniform(0.3, 0.7)
    middle, high = (y0 + y1) / 2, (y1 - y0) * 0.45
    points = []
    for n in range(120):
        t = n / 119
        turn = 2 * math.pi * waves * t * 0.6 + phase
        size = (0.3 + 0.7 * abs(math.sin(3 * other * 2 * math.pi * t + phase))) * (1 - 0.4 * t)
        x = x0 + (x1 - x0) * (0.05 + 0.85 * t) + loop * high * 0.5 * math.cos(turn)
        points.append((min(max(x, x0), x1), middle + high * size * math.sin(turn)))
    page.sheet.line(*points, colour=ink, width=page.stroke)


def _stamp(page: MarkedSheet, box: Box, look: str, ink: Colour) -> None:
    sheet, (x0, y0, x1, y1) = page.sheet, box
    if "circle" in look:
        x0, x1 = (x0 + x1 - y1 + y0) / 2, (x0 + x1 + y1 - y0) / 2
    shape = sheet.rectangle if look.endswith(("box", "rounded")) else sheet.ellipse
    corner = {"radius": 9} if look == "rounded" else {}
    shape(x0, y0, x1, y1, outline=ink, width=page.stroke * 1.5, **corner)
    if look.startswith("double"):
        shape(x0 + 6, y0 + 6, x1 - 6, y1 - 6, outline=ink, width=page.stroke)
    for n in range(3):  # of lines that cannot be read
        y, inset = y0 + (y1 - y0) * (0.36 + 0.14 * n), (x1 - x0) * (0.26 + 0.06 * abs(n - 1))
        sheet.line((x0 + inset, y), (x1 - inset, y), colour=ink, width=2)


@PAGES.register("marked page")
def marked_page(maker: PageMaker) -> None:
    """Groups of all kinds in random order, as many as there is room for."""
    page = MarkedSheet(maker)
    kinds = [GROUPS[name] for name in GROUPS]
    for draw in page.random.sample(kinds, len(kinds)):
        draw(page)
