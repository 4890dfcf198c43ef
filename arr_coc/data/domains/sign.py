"""Domains `sign` and `clip`: rotated signs in a scene in perspective; frames of a camera that passes them.

Lengths are px; a background fills a square page. In a clip each sign is visible in a few consecutive frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw

from ...modeling.image_processing_arr_coc import Box
from ..glyphs import MAX_FONT, Glyph, sample_pen, sample_style, write
from ..questions import Wordings
from ..rasterising import Ink, TextStyle, degrade, luminance
from ..splits import Split
from ..values import CITIES, FIRST_NAMES, KINDS, STREETS, TRADES, pick, sample_words
from .canvas import least_pixels, text_unit
from .page import Layouts, Page, Question, QuestionWriter, Span, interleave, register, register_sources
from .photo import bounds_of, corners_of, homography, ink_box, paste_warped, project, sample_quad

Fill = tuple[int, int, int]
Scene = Callable[[np.random.Generator, int], Image.Image]


def _near(rng: np.random.Generator, base: Fill, spread: int = 20) -> Fill:
    """A colour that differs from `base` by up to `spread` in each channel."""
    red, green, blue = np.clip(np.asarray(base) + rng.integers(-spread, spread + 1, 3), 0, 255).tolist()
    return red, green, blue


def _gradient(rng: np.random.Generator, size: int, top: Fill, bottom: Fill) -> Image.Image:
    """A page that fades from one colour to another."""
    share = np.linspace(0, 1, size)[:, None, None]
    ends = np.asarray(_near(rng, top)), np.asarray(_near(rng, bottom))
    rows = (1 - share) * ends[0] + share * ends[1]
    return Image.fromarray(np.broadcast_to(rows, (size, size, 3)).round().astype(np.uint8))


def _house(
    rng: np.random.Generator, draw: ImageDraw.ImageDraw, left: float, right: float, top: float, low: float
) -> None:
    """A front with rows of windows."""
    wall = _near(rng, (150, 130, 115), 60)
    draw.rectangle((left, top, right, low), wall)
    columns, rows = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    pane = _near(rng, (70, 85, 105), 40)
    wide, high = (right - left) / columns, (low - top) / rows
    for x in range(columns):
        for y in range(rows):
            x0, y0 = left + (x + 0.25) * wide, top + (y + 0.25) * high
            draw.rectangle((x0, y0, x0 + 0.5 * wide, y0 + 0.5 * high), pane)


def _tree(rng: np.random.Generator, draw: ImageDraw.ImageDraw, x: float, low: float, height: float) -> None:
    """A trunk and a crown of overlapping circles."""
    draw.rectangle((x - 0.04 * height, low - 0.5 * height, x + 0.04 * height, low), _near(rng, (90, 65, 45)))
    leaves = _near(rng, (60, 110, 55), 30)
    for _ in range(7):
        radius = height * float(rng.uniform(0.12, 0.2))
        cx, cy = x + height * float(rng.uniform(-0.18, 0.18)), low - height * float(rng.uniform(0.5, 0.85))
        draw.ellipse((cx - radius, cy - radius, cx + radius, cy + radius), _near(rng, leaves, 10))


def _car(rng: np.random.Generator, draw: ImageDraw.ImageDraw, x: float, low: float, length: float) -> None:
    """A car from the side."""
    paint, height = _near(rng, (130, 90, 90), 90), 0.22 * length
    draw.rectangle((x, low - 1.2 * height, x + length, low - 0.2 * height), paint)
    draw.polygon(
        [(x + 0.2 * length, low - 1.2 * height), (x + 0.32 * length, low - 2 * height)]
        + [(x + 0.7 * length, low - 2 * height), (x + 0.85 * length, low - 1.2 * height)],
        paint,
    )
    for wheel in (0.22, 0.78):
        cx, radius = x + wheel * length, 0.3 * height
        draw.ellipse((cx - radius, low - 2 * radius, cx + radius, low), (35, 35, 38))


def street(rng: np.random.Generator, size: int) -> Image.Image:
    """Houses behind a pavement, cars in front of it."""
    page = _gradient(rng, size, (140, 175, 215), (205, 220, 230))
    draw, ground = ImageDraw.Draw(page), size * float(rng.uniform(0.7, 0.85))
    left = 0.0
    while left < size:
        right = left + size * float(rng.uniform(0.18, 0.4))
        _house(rng, draw, left, right, size * float(rng.uniform(0.05, 0.4)), ground)
        left = right
    draw.rectangle((0, ground, size, size), _near(rng, (125, 125, 125)))
    for _ in range(int(rng.integers(0, 3))):
        _car(rng, draw, size * float(rng.uniform(-0.1, 0.9)), size * float(rng.uniform(0.88, 0.98)), 0.3 * size)
    return page


def park(rng: np.random.Generator, size: int) -> Image.Image:
    """Trees on grass under a sky."""
    page = _gradient(rng, size, (120, 170, 225), (215, 230, 240))
    draw, ground = ImageDraw.Draw(page), size * float(rng.uniform(0.5, 0.75))
    draw.rectangle((0, ground, size, size), _near(rng, (105, 150, 80)))
    for _ in range(int(rng.integers(3, 9))):
        low = float(rng.uniform(ground, size))
        _tree(rng, draw, size * float(rng.random()), low, size * float(rng.uniform(0.2, 0.5)))
    return page


def _masonry(rng: np.random.Generator, size: int, base: Fill, wide: float, high: float, shift: float) -> Image.Image:
    """A wall of stones of one size, every other row shifted by a share of a stone."""
    page = Image.new("RGB", (size, size), _near(rng, (190, 185, 178)))
    draw, joint = ImageDraw.Draw(page), max(1.0, 0.06 * high)
    for row, y in enumerate(np.arange(0, size, high).tolist()):
        for x in np.arange(-(row % 2) * shift * wide, size, wide).tolist():
            draw.rectangle((x, y, x + wide - joint, y + high - joint), _near(rng, base, 9))
    return page


def bricks(rng: np.random.Generator, size: int) -> Image.Image:
    """A brick wall, sometimes with a door."""
    high = size * float(rng.uniform(0.03, 0.07))
    page = _masonry(rng, size, _near(rng, (150, 85, 65), 25), 2.4 * high, high, 0.5)
    if rng.random() < 0.6:
        left = size * float(rng.uniform(0.0, 0.7))
        box = (left, 0.45 * size, left + 0.28 * size, size)
        ImageDraw.Draw(page).rectangle(box, _near(rng, (90, 75, 60), 40), (40, 35, 30), max(1, size // 128))
    return page


def tiles(rng: np.random.Generator, size: int) -> Image.Image:
    """A tiled wall over a platform."""
    side = size * float(rng.uniform(0.05, 0.1))
    page = _masonry(rng, size, _near(rng, (205, 205, 195), 25), side, side, 0.0)
    draw, ground = ImageDraw.Draw(page), size * float(rng.uniform(0.75, 0.9))
    draw.rectangle((0, ground, size, size), _near(rng, (90, 90, 95)))
    draw.rectangle((0, ground, size, ground + 0.02 * size), _near(rng, (215, 185, 60)))
    return page


def road(rng: np.random.Generator, size: int) -> Image.Image:
    """A road that runs to the horizon between fields and hills."""
    page = _gradient(rng, size, (110, 150, 205), (225, 225, 220))
    draw, horizon = ImageDraw.Draw(page), size * float(rng.uniform(0.45, 0.6))
    for _ in range(3):
        radius, x = size * float(rng.uniform(0.2, 0.5)), size * float(rng.random())
        draw.ellipse((x - radius, horizon - 0.4 * radius, x + radius, horizon + radius), _near(rng, (95, 125, 110)))
    draw.rectangle((0, horizon, size, size), _near(rng, (140, 150, 85)))
    far = size * float(rng.uniform(0.3, 0.7))
    near = [(0.05 * size, size), (0.95 * size, size)]
    draw.polygon([(far - 0.02 * size, horizon), *near, (far + 0.02 * size, horizon)], _near(rng, (95, 95, 98)))
    for start in (0.15, 0.4, 0.75):
        ends = [(far + t * (0.5 * size - far), horizon + t * (size - horizon)) for t in (start, start + 0.15)]
        draw.line(ends, (235, 235, 230), max(1, round(0.015 * size * start * 2)))
    return page


SCENES: Layouts[Scene] = Layouts(
    train={"street": street, "park": park, "bricks": bricks}, test={"road": road, "tiles": tiles}
)


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
_MAX_SIGNS = {256: 4, 512: 6}  # by least page size
_TRIES = 40  # places tried for a sign before all signs are placed again


@dataclass(frozen=True)
class Sign:
    """The content of a sign: lines of one text, or two texts at both ends, its kind, and its colour's name."""

    kind: str
    lines: tuple[tuple[str, ...], ...]
    colour: str


@dataclass(frozen=True)
class Panel:
    """The flat layout of a sign: its size in px, its font size, and x and baseline y of every text."""

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
    """Three to six signs of different kinds, one of them of a shop or of distances."""
    kinds = [pick(rng, ("shop", "distance"))]
    others = [kind for kind in ("shop", "distance", "street", "street", *_PLACES) if kind not in kinds]
    most = max((count for least, count in _MAX_SIGNS.items() if size >= least), default=3)
    count = int(rng.integers(2, most))
    kinds += list(dict.fromkeys(others[i] for i in rng.permutation(len(others))))[:count]
    return [_sample_sign(rng, kind, split, pick(rng, list(_COLOURS))) for kind in kinds]


def lay_out(rng: np.random.Generator, sign: Sign, style: TextStyle, size: int) -> Panel:
    """The flat layout of a sign, with a random font size for a page of `size` px."""
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
    """Corners [4, 2] of every panel on the page, without overlap; None after too many attempts."""
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
    """Draws a sign on the page, sometimes with a post."""
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
    questions = ask_about(QuestionWriter(WORDINGS, rng, split), shown)
    return Page(page, interleave(rng, questions), name, style.face.name, tuple(glyphs))


def ask_about(ask: QuestionWriter, shown: list[Shown]) -> Iterator[Question]:
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


def _ask_shop(ask: QuestionWriter, spans: list[list[Span]]) -> Iterator[Question]:
    trade, name = spans[0][0], spans[1][0]
    yield ask("shop", name, [trade], trade=trade.text.lower())
    for opens, time in spans[2:]:
        yield ask("opening", time, [trade, opens], trade=trade.text.lower())
        yield ask("name_of_opening", name, [time], 2, time=time.text)


_DRIFT = 0.1
"""Camera movement, as a share of a frame's side."""
_LONGEST = 8
"""A sign is visible in at most 1 / this of the frames of its clip, and in at least one."""


@dataclass(frozen=True)
class Passing:
    """A sign in a clip: the scene with it, its texts there, and the frames that show it."""

    scene: Image.Image
    shown: Shown
    frames: range


@register_sources("clip", SCENES, WORDINGS, least=4, most=30)
def draw_clip(rng: np.random.Generator, size: int, split: Split, count: int) -> Page:
    """`count` frames of one scene, with as many signs in turn as the frames allow."""
    name, scene = SCENES.draw(rng, split)
    drift = round(_DRIFT * size)
    world, pen = scene(rng, size + drift), sample_pen(rng, split)
    path = rng.uniform(0, drift, (2, 2))
    corners = (path[0] + np.linspace(0, 1, count)[:, None] * (path[1] - path[0])).round().astype(int).tolist()
    style = sample_style(rng, pen, size, split)
    signs = sample_signs(rng, split, size)
    passing: list[Passing] = []
    for own in np.array_split(np.arange(count), min(len(signs), count)):
        sign, length = signs[len(passing)], min(len(own), int(rng.integers(1, max(1, count // _LONGEST) + 1)))
        start = int(own[0] + rng.integers(len(own) - length + 1))
        panel = lay_out(rng, sign, style, size)
        quad = _within(rng, panel, size - drift, split) + drift
        painted = world.copy()
        shown, _ = paint(rng, painted, panel, quad, Ink(max(panel.width, panel.height), pen))
        passing.append(Passing(painted, shown, range(start, start + length)))
    frames = []
    for number, (x, y) in enumerate(corners):
        seen = next((one.scene for one in passing if number in one.frames), world)
        frames.append(degrade(rng, seen.crop((x, y, x + size, y + size)), split=split, unit=text_unit(size)))
    writer = QuestionWriter(WORDINGS, rng, split)
    colours = [one.shown.sign.colour for one in passing]
    questions = [
        _over_frames(question, one.frames, corners)
        for one in passing
        for question in ask_about(writer, [one.shown])
        if question.kind != "colour" or colours.count(one.shown.sign.colour) == 1
    ]
    first, *rest = frames
    tags = (("frames", str(count)),)
    return Page(first, interleave(rng, questions), name, style.face.name, tags=tags, others=tuple(rest))


def _within(rng: np.random.Generator, panel: Panel, side: int, split: Split) -> np.ndarray:
    """Corners [4, 2] of a sign in a square of `side` px."""
    while (quads := place_panels(rng, [panel], side, split)) is None:
        pass
    return quads[0]


def _over_frames(question: Question, frames: range, corners: list[list[int]]) -> Question:
    """A question about a scene as a question about the frames with the sign; `corners`: the frames' in the scene."""

    def moved(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
        shifts = [corners[frame] for frame in frames]
        return tuple((x0 - x, y0 - y, x1 - x, y1 - y) for x, y in shifts for x0, y0, x1, y1 in boxes)

    def numbers(boxes: tuple[Box, ...]) -> tuple[int, ...]:
        return tuple(frame for frame in frames for _ in boxes)

    return replace(
        question, boxes=moved(question.boxes), label_boxes=moved(question.label_boxes),
        box_sources=numbers(question.boxes), label_sources=numbers(question.label_boxes),
        answer_sources=tuple(frames),
    )  # fmt: skip
