"""Marked pages: lists whose answers are drawn and not printed, such as ticks, switches, colours, icons and bars.

A page has groups of named items. Each group is of one kind, and its marks are labels for `modeling.marks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..modeling.checks import Registry
from ..modeling.image_processing_arr_coc import Box
from ..modeling.marks import BAR, COLOURS
from .maker import PAGES, PageMaker
from .marked_sheet import (
    BARS,
    BOXES,
    DOTS,
    LOCKS,
    PENS,
    RADIOS,
    SIGNATURES,
    STAMPS,
    STARS,
    STRIKES,
    SWITCHES,
    TICKS,
    MarkedSheet,
)
from .question_writer import boxes_of
from .sheet import Colour, Piece

KINDS = (
    *("ticked", "is ticked", "chosen", "switch", "colour", "of colour", "highlighted", "starred", "locked"),
    *("signed", "stamped"),
)
"""Kinds of questions about marks."""

ASKED = 2
"""Items of a group that questions of one kind are about."""

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
    if kind in KINDS:
        page.ask(kind, piece.text, boxes_of(piece), [box] if wide else [], len(items), head=head)


def _each(
    page: MarkedSheet, kind: str, answers: tuple[str, str], draw: Callable[[Box, bool], str], wide: float
) -> None:
    """A group in which any items are marked: is this one?"""
    drawn = page.rows(page.random.randint(2, 5), wide, page.side)
    items = drawn[1] if drawn else []
    asked = page.random.sample(range(len(items)), ASKED) if items else []
    for number, (piece, box) in enumerate(items):
        on = page.random.random() < 0.5
        page.sheet.mark(draw(box, on), box)
        if number in asked:
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
    across = wide * (shape[1] if isinstance(shape, tuple) and isinstance(shape[0], float) else 1)
    drawn = page.rows(page.random.randint(2, 5), across, wide)
    if drawn is None:
        return
    head, items = drawn
    names = page.random.sample(COLOURS, len(items))
    asked = page.random.sample(range(len(items)), ASKED)
    for number, ((piece, box), name) in enumerate(zip(items, names, strict=True)):
        x0, y0, x1, y1 = box
        shade, sheet = page.colour(name), page.sheet
        if isinstance(shape, str):
            sheet.ellipse(*box, **({"outline": shade, "width": wide * 0.25} if shape == "ring" else {"fill": shade}))
        elif isinstance(shape[0], float):
            sheet.rectangle(*box, fill=shade, radius=shape[0] * min(wide, across))
        else:
            corners, x, y = shape[0], (x0 + x1) / 2, (y0 + y1) / 2
            turns = [2 * math.pi * (number + shape[1]) / corners for number in range(corners)]
            sheet.polygon(*((x + wide / 2 * math.sin(t), y - wide / 2 * math.cos(t)) for t in turns), fill=shade)
        sheet.mark(f"[{name}]", box)
        if number not in asked:
            continue
        page.ask("colour", name, [box], boxes_of(piece), len(items), name=piece.text)
        page.ask("of colour", piece.text, boxes_of(piece), [box], len(items), head=head, colour=name)


@GROUPS.register("struck")
def struck(page: MarkedSheet) -> None:
    """Items of which one is struck out, which nothing is asked about: it is not read."""
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
    random, reach = page.random, page.random.choice((2, 4, 8))
    pen = tuple(min(shade + random.randint(-14, 14), 255) for shade in page.look(PENS, "highlighters"))
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
    """Bars without values, which nothing is asked about."""
    look, count, random = page.look(BARS, "bars"), page.random.randint(3, 5), page.random
    high = random.uniform(90, 200)
    head = page.heading(high + page.body.size * 2.5)
    if head is None:
        return
    upright, thickness, outlined = look
    parts = [0.15 + 0.85 * (place + random.uniform(0, 0.4)) / count for place in range(count)]
    random.shuffle(parts)
    x, y, step = page.x, page.y + 6, (page.room if upright else high) / count
    thick = step * thickness
    fill = page.colour(random.choice(COLOURS)) if random.random() < 0.7 else page.rule
    style = {"outline": fill, "width": 2} if outlined else {"fill": fill}
    pieces, boxes, low = list[Piece](), list[Box](), max(parts)
    for number, part in enumerate(parts):
        centre = (number + 0.5) * step
        if upright:
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


@GROUPS.register("signed")
def signed(page: MarkedSheet) -> None:
    """A line with a signature or without."""
    labels = ("Signature", "Signed", "Sign here", "Signature of applicant")
    _present(page, "signed", labels, page.look(SIGNATURES, "signatures"))


@GROUPS.register("stamped")
def stamped(page: MarkedSheet) -> None:
    """A place for a stamp, with one or without."""
    _present(page, "stamped", ("Stamp", "Seal", "Official stamp", "Stamp here"), page.look(STAMPS, "stamps"))


def _present(page: MarkedSheet, kind: str, labels: Sequence[str], look: Any) -> None:
    random, sheet, tall = page.random, page.sheet, page.random.uniform(36, 70)
    if page.heading(tall) is None:
        return
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


def _stamp(page: MarkedSheet, box: Box, look: tuple[str, bool, int], ink: Colour) -> None:
    (shape, double, lines), sheet, (x0, y0, x1, y1) = look, page.sheet, box
    if shape == "circle":
        x0, x1 = (x0 + x1 - y1 + y0) / 2, (x0 + x1 + y1 - y0) / 2
    draw = sheet.rectangle if shape in ("box", "rounded") else sheet.ellipse
    corner = {"radius": 9} if shape == "rounded" else {}
    for inset in (0.0, 6.0)[: 1 + double]:
        width = page.stroke * (1.5 if not inset else 1)
        draw(x0 + inset, y0 + inset, x1 - inset, y1 - inset, outline=ink, width=width, **corner)
    for number in range(lines):  # that cannot be read
        y, inset = y0 + (y1 - y0) * (0.34 + 0.4 * number / lines), (x1 - x0) * page.random.uniform(0.24, 0.34)
        sheet.line((x0 + inset, y), (x1 - inset, y), colour=ink, width=2)


@PAGES.register("marked page")
def marked_page(maker: PageMaker) -> None:
    """Groups in random order, as many as there is room for; more often those that ask for one of their items."""
    page = MarkedSheet(maker)
    names = [*GROUPS, "colour", *2 * ("ticked", "chosen", "highlighted")]
    for name in page.random.sample(names, len(names)):
        GROUPS[name](page)
