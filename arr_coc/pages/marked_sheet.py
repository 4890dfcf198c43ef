"""A sheet of groups of named items, and the looks of the marks beside them.

Sizes, strokes, shapes, palettes and layouts are divided into splits as words and fonts are.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from itertools import product
from typing import Any, TypeVar

from ..modeling.image_processing_arr_coc import Box
from ..modeling.marks import COLOURS
from .maker import PageMaker
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
    "dash": (((0.2, 0.5), (0.8, 0.5)),),
    "backslash": (((0.1, 0.1), (0.9, 0.9)),),
    "two slashes": (((0.1, 0.9), (0.6, 0.1)), ((0.4, 0.9), (0.9, 0.1))),
    "asterisk": (((0.5, 0.1), (0.5, 0.9)), ((0.12, 0.3), (0.88, 0.7)), ((0.12, 0.7), (0.88, 0.3))),
    "hatch": tuple(((0.08, y + 0.15), (0.92, y - 0.15)) for y in (0.2, 0.35, 0.5, 0.65, 0.8)),
    "wide tick": (((-0.1, 0.35), (0.35, 0.9), (1.15, 0.1)),),
    "hook": (((0.2, 0.2), (0.22, 0.75), (0.45, 0.85), (0.85, 0.15)),),
    "loop": (((0.1, 0.55), (0.35, 0.9), (0.75, 0.2), (0.5, 0.1), (0.4, 0.35), (0.9, 0.75)),),
    "scrawl": (((0.05, 0.8), (0.25, 0.1), (0.4, 0.9), (0.55, 0.1), (0.7, 0.9), (0.95, 0.2)),),
}
"""Strokes of ticks by look, in a box of side 1; "fill" and "inverted tick" fill the box."""
BOXES = ("square", "rounded", "thick", "grey", "double", "faint")
DOTS: tuple[Any, ...] = (
    "dot",
    "ring",
    *product((0.0, 0.15, 0.3, 0.5), (0.5, 1.0, 1.5, 2.0)),
    *product((3, 4, 5, 6, 8), (0.0, 0.5)),
)
"""Dots of a colour: a rectangle's radius and width, of its height, or a polygon's corners and turn, of one of them."""
RADIOS = tuple(product((0.18, 0.22, 0.26, 0.3, 0.36), (1.0, 1.5, 2.0), (False, True)))
"""Inset of the dot, width of the ring, and whether the chosen disc is filled about a white dot."""
SWITCHES = tuple(product((0.5, 0.35, 0.2, 0.08), (1.0, 0.8, 0.6), (False, True)))
"""Radius and height of the track, of the height of the knob, and whether it is an outline."""
STRIKES = tuple(product((1, 2, 3), (0.4, 0.45, 0.5, 0.55, 0.6), (False, True)))
"""Number of lines, their height of that of capitals, and whether they have a colour of their own."""
PENS: tuple[Colour, ...] = (
    *((255, 240, 90), (180, 250, 160), (255, 190, 220), (165, 225, 255), (255, 205, 120), (215, 195, 255)),
    *((255, 255, 150), (150, 240, 220), (255, 225, 60), (140, 255, 140), (255, 160, 190), (190, 235, 255)),
)
"""Colours of highlighters."""
STARS = tuple(0.32 + 0.02 * number for number in range(14))
"""Inner radius of a star, of its outer one."""
LOCKS = tuple(product((0, 1, 2, 3), ("up", "aside", "cut")))
"""Radius of the body's corners and how an open shackle stands."""
SIGNATURES = tuple(product((5, 7, 9, 11, 14, 18), (0.4, 0.6, 0.8, 1.0, 1.2)))
"""Waves of a signature, and how far they loop."""
STAMPS = tuple(product(("circle", "oval", "box", "rounded"), (False, True), (2, 3, 4)))
"""Shape of a stamp, whether its outline is double, and its lines."""
BARS = tuple(product((True, False), (0.3, 0.42, 0.55, 0.65, 0.75), (False, True)))
"""Whether bars are upright, their thickness of their distance, and whether they are outlines."""
PALETTES = tuple(product((-0.07, -0.04, 0.0, 0.03, 0.05), (0.7, 0.8, 0.9, 1.0)))
"""Change of lightness, and saturation, of all colours."""
SIDES, STROKES = tuple(range(11, 41)), (1.0, 1.5, 2.0, 2.5, 3.0, 1.25, 1.75)
"""Sides of marks and widths of strokes, px."""
_HUES = {
    **{"red": (0, 0.48), "orange": (29, 0.52), "yellow": (52, 0.52), "green": (130, 0.38), "blue": (217, 0.48)},
    **{"purple": (275, 0.45), "pink": (332, 0.74)},
}
"""Hue in degrees and lightness of each of `COLOURS`."""


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
        step, gap = (
            max(tall * self.random.uniform(1.15, 1.5), tall + 10, self.body.size * 1.7),
            self.body.size * 0.5 * (wide > 0),
        )
        head = self.heading(count * step)
        if head is None:
            return None
        form = next(form for form in ("rows", "inline", "grid") if form in self.layout)
        cell = self.room / self.random.choice((2, 3)) if form == "grid" else 0.0
        items, left, after = list[tuple[Piece, Box]](), self.x, "right" in self.layout
        column = self.x + self.room * self.random.uniform(0.55, 0.98) - wide
        y = self.y + step / 2
        for _ in range(count):
            name = self.name(self.room * 0.5 if form != "grid" else max(cell - wide - 2 * gap, self.body.size * 5))
            width = self.body.width(self.body.printable(name))
            needed = width + wide + gap
            if items and (form == "rows" or left + max(needed, cell) > self.x + self.room + 1):
                left, y = self.x, y + step
            at = (left + width + gap if form != "rows" else max(left + width + gap, column)) if after else left
            piece = self.sheet.write(
                name, left if after else left + wide + gap, y + self.body.cap_height / 2, self.body
            )
            items.append((piece, (at, y - tall / 2, at + wide, y + tall / 2)))
            left += max(needed + self.body.size * 1.5 * (form != "grid"), cell)
        if "ruled" in self.layout:
            self.sheet.across(self.x, self.x + self.room, y + step / 2, self.rule)
        self.y = y + step / 2
        return head, items

    def strokes(self, strokes: Strokes, box: Box, colour: Colour, width: float) -> None:
        """Draws strokes that are given in a box of side 1, as by hand."""
        x0, y0, x1, y1 = box
        turn, size = self.random.gauss(0, 0.12), self.random.uniform(0.75, 1.15)
        sine, cosine = size * math.sin(turn), size * math.cos(turn)
        for stroke in strokes:
            points = []
            for x, y in stroke:
                x, y = (at - 0.5 + self.random.uniform(-0.05, 0.05) for at in (x, y))
                x, y = 0.5 + cosine * x - sine * y, 0.5 + sine * x + cosine * y
                points.append((x0 + x * (x1 - x0), y0 + y * (y1 - y0)))
            self.sheet.line(*points, colour=colour, width=width)

    def ask(
        self, kind: str, answer: str, boxes: Sequence[Box], labels: Sequence[Box], choices: int, **names: str
    ) -> None:
        """Asks in a wording of the kind "mark KIND"."""
        text = self.questions.word(f"mark {kind}", **names)
        self.questions.add(text, answer, boxes, labels, kind, choices=choices)
