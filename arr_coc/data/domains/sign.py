"""Domain `sign`: signs in a drawn scene, turned and in perspective: shops, streets, directions, gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from ...modeling.image_processing_arr_coc import Box
from ..glyphs import Glyph, write
from ..pools import CITIES, FIRST_NAMES
from ..questions import Wordings
from ..rasterising import Ink, TextStyle, degrade, luminance
from ..splits import Split
from ..styles import MAX_FONT, sample_pen, sample_style
from ..values import KINDS, pick
from .canvas import least_pixels, text_unit
from .page import Asker, Page, Question, Span, interleave, register
from .scene import SCENES, Fill
from .warping import bounds_of, corners_of, homography, ink_box, paste_warped, project, sample_quad
from .words import STREETS, TRADES, sample_words

WORDINGS: dict[str, Wordings] = {
    "shop": Wordings(
        ("What is the name of the {trade}?", "What is the {trade} called?", "Read the name of the {trade}."),
        ("Find the name of the {trade}.", "Read what the {trade} is called."),
    ),
    "opening": Wordings(
        ("When does the {trade} open?", "At what time does the {trade} open?"),
        ("What time does the {trade} open at?", "Find the time when the {trade} opens."),
    ),
    "name_of_opening": Wordings(
        ("What is the name of the shop that opens at {time}?", "Find the name of the shop that opens at {time}."),
        ("Read the name of the shop that opens at {time}.",),
    ),
    "street": Wordings(
        ("Which street is this?", "What is the name of the street?", "Read the street sign."),
        ("What street is this?", "Read the name of the street."),
    ),
    "distance": Wordings(
        ("How far is it to {city}?", "What is the distance to {city}?", "Find the distance to {city}."),
        ("How far is {city}?", "Read the distance to {city}."),
    ),
    "city_of_distance": Wordings(
        ("Which city is {distance} away?", "What city is at a distance of {distance}?"),
        ("Which city is at a distance of {distance}?",),
    ),
    "place": Wordings(
        ("What is the {place}?", "Which {place} does the sign show?", "Read the {place}.", "Find the {place}."),
        ("What {place} is this?", "What {place} does the sign show?"),
    ),
    "colour": Wordings(
        ("What does the {colour} sign say?", "Read the {colour} sign.", "What is written on the {colour} sign?"),
        ("What is on the {colour} sign?", "Find what is written on the {colour} sign."),
    ),
}

_COLOURS: dict[str, Fill] = {
    "red": (175, 30, 35), "blue": (25, 70, 160), "green": (20, 105, 60), "yellow": (240, 205, 50),
    "white": (242, 242, 238), "black": (28, 28, 30), "brown": (100, 65, 40), "orange": (235, 130, 30),
}  # fmt: skip
_PLACES = {"gate": "seat", "platform": "number", "room": "number", "exit": "seat", "parking": "amount", "bus": "number"}
_TURN: dict[Split, float] = {"train": 12.0, "validation": 12.0, "test": 15.0}  # degrees
_SKEW: dict[Split, float] = {"train": 0.15, "validation": 0.15, "test": 0.18}
_MAX_SIGNS = {256: 4, 512: 6}  # by the page sizes from which on they fit
_TRIES = 40  # places tried for a sign before all are drawn anew


@dataclass(frozen=True)
class Sign:
    """What a sign says: lines of one or two texts (the latter at both ends), its kind, and its colour's name."""

    kind: str
    lines: tuple[tuple[str, ...], ...]
    colour: str


@dataclass(frozen=True)
class Panel:
    """A sign laid out flat: its size in px, the size of its letters, and x and baseline y of every text."""

    sign: Sign
    style: TextStyle
    width: int
    height: int
    places: list[list[tuple[float, float]]]


@dataclass(frozen=True)
class Shown:
    """A sign on the page: a span per text, as in its lines, and one without text for its whole panel."""

    sign: Sign
    spans: list[list[Span]]
    panel: Span


def _sample_sign(rng: np.random.Generator, kind: str, split: Split, colour: str) -> Sign:
    if kind == "shop":
        lines: list[tuple[str, ...]] = [
            (sample_words(rng, TRADES, 1, split, made_up=False)[0],),
            (sample_words(rng, FIRST_NAMES, 1, split)[0],),
        ]
        if rng.random() < 0.7:
            lines.append(("Opens", f"{rng.integers(6, 13):02d}:{pick(rng, ('00', '15', '30', '45'))}"))
        return Sign(kind, tuple(lines), colour)
    if kind == "distance":
        cities = sample_words(rng, CITIES, int(rng.integers(2, 5)), split)
        return Sign(kind, tuple((city, f"{rng.integers(2, 400)} km") for city in cities), colour)
    if kind == "street":
        name = sample_words(rng, STREETS, 1, split)[0]
        return Sign(kind, ((f"{name} {pick(rng, ('Street', 'Road', 'Lane'))}",),), colour)
    value = KINDS[_PLACES[kind]](rng, split)
    return Sign("place", ((kind.capitalize(), value),), colour)


def sample_signs(rng: np.random.Generator, split: Split, size: int) -> list[Sign]:
    """Three to six signs: one of a shop or of distances, and others, each kind once."""
    kinds = [pick(rng, ("shop", "distance"))]
    others = [kind for kind in ("shop", "distance", "street", "street", *_PLACES) if kind not in kinds]
    most = max((count for least, count in _MAX_SIGNS.items() if size >= least), default=3)
    count = int(rng.integers(2, most))
    kinds += list(dict.fromkeys(others[i] for i in rng.permutation(len(others))))[:count]
    return [_sample_sign(rng, kind, split, pick(rng, list(_COLOURS))) for kind in kinds]


def lay_out(rng: np.random.Generator, sign: Sign, style: TextStyle, size: int) -> Panel:
    """A sign laid out flat, its letters of a size that is drawn for a page of `size` px."""
    most = min(1.8, MAX_FONT * text_unit(size) / least_pixels(size))
    style = style.with_pixels(least_pixels(size) * float(rng.uniform(1.2, most)))
    pad, gap, pitch = 0.6 * style.pixels, 1.2 * style.pixels, 1.35 * style.pixels
    widths = [[style.width(text) for text in line] for line in sign.lines]
    inner = max(sum(line) + gap * (len(line) - 1) for line in widths)
    places = []
    for row, line in enumerate(widths):
        baseline = pad + row * pitch + 0.5 * (pitch + style.cap_height)
        starts = [pad + 0.5 * (inner - line[0])] if len(line) == 1 else [pad, pad + inner - line[1]]
        places.append([(x, baseline) for x in starts])
    return Panel(sign, style, round(inner + 2 * pad), round(len(widths) * pitch + 2 * pad), places)


def place_panels(rng: np.random.Generator, panels: list[Panel], size: int, split: Split) -> list[np.ndarray] | None:
    """Corners [4, 2] of every panel on the page, apart from one another; None if that takes too many tries."""
    quads: list[np.ndarray] = []
    taken: list[Box] = []
    margin = 0.01 * size
    for panel in panels:
        for _ in range(_TRIES):
            quad = sample_quad(rng, panel.width, panel.height, turn=_TURN[split], skew=_SKEW[split])
            quad = quad + rng.uniform(0, size, 2)
            x0, y0, x1, y1 = bounds_of(quad)
            inside = min(x0, y0) >= margin and max(x1, y1) <= size - margin
            if inside and all(x1 < a or c < x0 or y1 < b or d < y0 for a, b, c, d in taken):
                quads.append(quad)
                taken.append((x0 - margin, y0 - margin, x1 + margin, y1 + margin))
                break
        else:
            return None
    return quads


def paint(
    rng: np.random.Generator, page: Image.Image, panel: Panel, quad: np.ndarray, ink: Ink
) -> tuple[Shown, list[Glyph]]:
    """Draw a sign, with a post perhaps, on the page."""
    flat = (0.0, 0.0, float(panel.width), float(panel.height))
    matrix = homography(corners_of(flat), quad)
    boxes, glyphs = [], []
    for line, places in zip(panel.sign.lines, panel.places, strict=True):
        written, drawn = write(ink, list(line), [x for x, _ in places], [y for _, y in places], panel.style)
        boxes.append(written)
        glyphs += drawn
    mask = ink.finish().crop((0, 0, panel.width, panel.height))
    base = _COLOURS[panel.sign.colour]
    letters: Fill = (245, 245, 240) if luminance(base) < 128 else (20, 20, 24)
    face, alpha = Image.new("RGB", mask.size, base), Image.new("L", mask.size)
    outline = (1, 1, panel.width - 2, panel.height - 2)
    radius = panel.height * float(rng.choice([0.0, 0.1, 0.2]))
    ImageDraw.Draw(alpha).rounded_rectangle(outline, radius, 255)
    if rng.random() < 0.6:
        ImageDraw.Draw(face).rounded_rectangle(outline, radius, outline=letters, width=max(1, panel.height // 40))
    face.paste(letters, (0, 0), mask)
    if rng.random() < 0.4:
        _post(page, quad)
    paste_warped(page, face, alpha, matrix)
    coverage = np.asarray(mask)
    spans = [
        [_span(text, ink_box(coverage, box(), matrix, page.width)) for text, box in zip(line, line_boxes, strict=True)]
        for line, line_boxes in zip(panel.sign.lines, boxes, strict=True)
    ]
    moved = [Glyph(glyph.char, bounds_of(project(matrix, corners_of(glyph.box)))) for glyph in glyphs]
    return Shown(panel.sign, spans, _span("", bounds_of(quad))), moved


def _span(text: str, box: Box) -> Span:
    return Span(text, lambda: box)


def _post(page: Image.Image, quad: np.ndarray) -> None:
    """A post from the middle of a sign down to the edge of the page."""
    x, y = quad.mean(axis=0).tolist()
    half = max(1.0, 0.008 * page.width)
    ImageDraw.Draw(page).rectangle((x - half, y, x + half, page.width), (105, 108, 112))


@register("sign", SCENES, WORDINGS)
def draw_sign(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A scene with three to six signs, fewer on small pages."""
    name, scene = SCENES.draw(rng, split)
    page, pen = scene(rng, size), sample_pen(rng, split)
    while True:
        style = sample_style(rng, pen, size, split)
        panels = [lay_out(rng, sign, style, size) for sign in sample_signs(rng, split, size)]
        quads = place_panels(rng, panels, size, split)
        if quads is not None:
            break
    shown, glyphs = [], []
    for panel, quad in sorted(zip(panels, quads, strict=True), key=lambda pair: float(pair[1][:, 1].min())):
        ink = Ink(max(panel.width, panel.height), pen)
        sign, drawn = paint(rng, page, panel, quad, ink)
        shown.append(sign)
        glyphs += drawn
    page = degrade(rng, page, split=split, unit=text_unit(size))
    questions = ask_about(Asker(WORDINGS, rng, split), shown)
    return Page(page, interleave(rng, questions), name, style.face.name, tuple(glyphs))


def ask_about(ask: Asker, shown: list[Shown]) -> Iterator[Question]:
    """Every question about the signs of a scene."""
    colours = Counter(sign.sign.colour for sign in shown)
    for sign in shown:
        kind, spans = sign.sign.kind, sign.spans
        if kind == "shop":
            yield from _ask_shop(ask, spans)
        elif kind == "distance":
            counts = Counter(line[1].text for line in spans)
            for city, distance in spans:
                yield ask("distance", distance, [city], city=city.text)
                if counts[distance.text] == 1:
                    yield ask("city_of_distance", city, [distance], distance=distance.text)
        elif kind == "street":
            yield ask("street", spans[0][0], [sign.panel])
            if colours[sign.sign.colour] == 1:
                yield ask("colour", spans[0][0], [sign.panel], colour=sign.sign.colour)
        else:
            place, value = spans[0]
            yield ask("place", value, [place], place=place.text.lower())


def _ask_shop(ask: Asker, spans: list[list[Span]]) -> Iterator[Question]:
    trade, name = spans[0][0], spans[1][0]
    yield ask("shop", name, [trade], trade=trade.text.lower())
    for opens, time in spans[2:]:
        yield ask("opening", time, [trade, opens], trade=trade.text.lower())
        yield ask("name_of_opening", name, [time], 2, time=time.text)
