"""Wear: the effects of printing, handling, scanning and photographing on a page. Boxes of text and questions follow.

Kinds of wear are drawn by weight, and applied in the order of this file, from the print to the scanner.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageOps

from ..modeling.checks import Registry
from ..modeling.image_processing_arr_coc import Box
from .homography import bounds_of, corners_of, homography, moved_box, moved_boxes, sample_quad
from .page import UNKNOWN, Line, TextPage

_KINDS = 4  # of wear on a page
_PLAIN_TEXT = 10.0  # px: height of capitals if a page has no text
_TURN, _BEND = 3.0, 0.03  # at most: degrees of skew, share of the sides by which corners move
_INKS = ((20, 30, 120), (25, 60, 160), (15, 15, 20), (160, 20, 30), (20, 100, 60), (90, 30, 120))


@dataclass
class WornSheet:
    """A page under wear: its picture, of constant size, and the movement of its points."""

    image: Image.Image  # the current picture, mode L while it has no colours (a third of the work), else RGB
    unit: float  # height of most capitals, px
    matrix: np.ndarray  # the homography, float64 [3, 3], from the original page
    lines: tuple[Line, ...]  # the original text, with UNKNOWN for characters that have become invisible

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), px."""
        return self.image.size

    def multiply(self, light: Image.Image) -> None:
        """Multiplies the picture by a light map of its size, L or RGB."""
        mode = "RGB" if "RGB" in (light.mode, self.image.mode) else "L"
        self.image = ImageChops.multiply(self.image.convert(mode), light.convert(mode))

    def map_levels(self, *levels: np.ndarray) -> None:
        """Maps the 256 levels of all channels, or of red, green and blue, to other levels."""
        if len(levels) == 3:
            self.image = self.image.convert("RGB")
        tables = levels * (len(self.image.getbands()) // len(levels))
        self.image = self.image.point(np.concatenate(tables).clip(0, 255).astype(np.uint8).tolist())

    def warp(self, matrix: np.ndarray, ground: int | Image.Image) -> None:
        """Warps the picture and its points by a homography; `ground`, a level or a picture, fills uncovered parts."""
        back = np.linalg.inv(matrix)
        coefficients = (back / back[2, 2]).ravel()[:8].tolist()
        straight = coefficients[6:] == [0, 0]

        def moved(image: Image.Image, level: int) -> Image.Image:
            return image.transform(
                self.size,
                Image.Transform.AFFINE if straight else Image.Transform.PERSPECTIVE,
                coefficients[:6] if straight else coefficients,
                Image.Resampling.BILINEAR,
                fillcolor=level if image.mode == "L" else (level,) * 3,
            )

        if isinstance(ground, int):
            self.image = moved(self.image, ground)
        else:
            page = moved(Image.new("L", self.size, 255), 0)
            self.image = Image.composite(moved(self.image.convert("RGB"), 0), ground.convert("RGB"), page)
        self.matrix = matrix @ self.matrix


WEARS: Registry[Callable[[np.random.Generator, WornSheet], None]] = Registry("wear")
"""All kinds, in the order in which they are applied: each wears a sheet."""
_WEIGHTS: dict[str, float] = {}


def _kind(name: str, weight: float) -> Callable[[Any], Any]:
    _WEIGHTS[name] = weight
    return WEARS.register(name)


def wear(rng: np.random.Generator, page: TextPage, *, kinds: Iterable[str] | None = None) -> TextPage:
    """A worn copy of a page, of the same size, whose usual text is still legible.

    Boxes are axis-aligned around the moved ones, clipped to the picture. Characters outside the picture are removed
    from their lines; characters that a black and white scan has erased are UNKNOWN.

    Args:
        rng: the only source of randomness.
        page: a page with an image; not changed.
        kinds: kinds of `WEARS` to apply, instead of four random ones.

    Raises:
        ValueError: a page without an image, or an unknown kind.
    """
    if page.image is None:
        raise ValueError("page: expected one with an image; got one that was laid out and not drawn")
    if kinds is None:
        rng.random()  # the pages of a seed stay as they were when the number of kinds was drawn
        weights = np.array([_WEIGHTS[name] for name in WEARS])
        kinds = rng.choice(list(WEARS), size=_KINDS, replace=False, p=weights / weights.sum()).tolist()
    chosen = {name: WEARS[name] for name in kinds}
    sheet = WornSheet(_without_colours(page.image), _unit(page.lines), np.eye(3), page.lines)
    for name in sorted(chosen, key=list(WEARS).index):
        chosen[name](rng, sheet)
    if (sheet.matrix == np.eye(3)).all():
        return replace(page, image=sheet.image.convert("RGB"), lines=sheet.lines)

    def seen(box: Box) -> Box:
        return moved_box(sheet.matrix, box, page.size)

    questions = tuple(question.moved(seen) for question in page.questions)
    marks = tuple((name, seen(box)) for name, box in page.marks)
    return replace(page, image=sheet.image.convert("RGB"), lines=_moved(sheet), questions=questions, marks=marks)


def _without_colours(image: Image.Image) -> Image.Image:
    """The picture as L if it has no colours, else as RGB."""
    red, green, blue = image.convert("RGB").split()
    same = ImageChops.difference(red, green).getbbox() is None and ImageChops.difference(red, blue).getbbox() is None
    return red if same else image.convert("RGB")


def _unit(lines: Sequence[Line]) -> float:
    heights = [line.boxes[:, 3] - line.boxes[:, 1] for line in lines if line.text.strip(UNKNOWN)]
    return max(float(np.median(np.concatenate(heights))), 1.0) if heights else _PLAIN_TEXT


def _moved(sheet: WornSheet) -> tuple[Line, ...]:
    """The lines with moved boxes."""
    moved = []
    for line in sheet.lines:
        boxes = moved_boxes(sheet.matrix, line.boxes)
        middles = (boxes[:, :2] + boxes[:, 2:]) / 2
        inside = ((middles > 0) & (middles < sheet.size)).all(1)
        text = "".join(char for char, shows in zip(line.text, inside.tolist(), strict=True) if shows)
        start = len(text) - len(text.lstrip(" "))
        text = text.strip(" ")
        if text:
            kept = boxes[inside][start : start + len(text)]
            moved.append(Line(text, kept.clip(0, (*sheet.size, *sheet.size)).astype(np.float32)))
    return tuple(moved)


def _vanished(sheet: WornSheet) -> tuple[Line, ...]:
    """The lines with UNKNOWN for characters whose boxes are all black or all white in a black and white picture."""
    if not sheet.lines:
        return ()
    counts = np.zeros((sheet.size[1] + 1, sheet.size[0] + 1), np.int32)
    (np.asarray(sheet.image) > 0).cumsum(0, out=counts[1:, 1:]).cumsum(1, out=counts[1:, 1:])
    boxes = moved_boxes(sheet.matrix, np.concatenate([line.boxes for line in sheet.lines]))
    x0, y0 = np.floor(boxes[:, :2] - 1).clip(0, sheet.size).astype(int).T
    x1, y1 = np.ceil(boxes[:, 2:] + 1).clip(0, sheet.size).astype(int).T
    white = counts[y1, x1] - counts[y0, x1] - counts[y1, x0] + counts[y0, x0]
    gone = iter(((white == 0) | (white == (x1 - x0) * (y1 - y0))).tolist())
    return tuple(
        replace(line, text="".join(UNKNOWN if next(gone) and char != " " else char for char in line.text))
        for line in sheet.lines
    )


def _field(rng: np.random.Generator, size: tuple[int, int], cells: int) -> Image.Image:
    """Smooth random levels over the picture, mode L, with about `cells` hills along its sides."""
    coarse = rng.integers(0, 256, (cells, cells), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def compressed(image: Image.Image, quality: int) -> Image.Image:
    """The image after JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert(image.mode)


def _coloured(levels: Image.Image, dark: np.ndarray, light: np.ndarray) -> Image.Image:
    """Levels, mode L, as colours between two."""
    black, white = (tuple(colour.clip(0, 255).astype(int).tolist()) for colour in (dark, light))
    return ImageOps.colorize(levels, black, white)


# The print


@_kind("inverted", 0.6)
def _invert(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Inverts to light on dark, in two colours."""
    dark, light = rng.uniform(0, 70, 3), rng.uniform(185, 255, 3)
    sheet.map_levels(*(np.linspace(high, low, 256) for low, high in zip(dark, light, strict=True)))


@_kind("ruled", 3.0)
def _rule(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Rules of forms: lines under or through the feet of text, boxes around it, and hatched bands behind it. A rule may
    touch the text and reach beyond it, as where a form is filled in by a typewriter."""
    sheet.image = sheet.image.convert("RGB")
    draw, share = ImageDraw.Draw(sheet.image), rng.uniform(0.2, 0.9)
    ink = _INKS[int(rng.integers(len(_INKS)))] if rng.random() < 0.2 else (int(rng.integers(0, 110)),) * 3
    width = max(round(sheet.unit * rng.uniform(0.02, 0.14)), 1)
    for line in sheet.lines:
        if rng.random() > share:
            continue
        begins = [0, *(at + 1 for at, char in enumerate(line.text) if char == " ")]
        first = 0 if rng.random() < 0.7 else int(rng.choice(begins))
        left, top, right, bottom = bounds_of(line.boxes[first:].reshape(-1, 2))
        left -= sheet.unit * rng.uniform(0, 2.3) ** 2  # mostly little
        right += sheet.unit * rng.uniform(0, 2.8) ** 2
        y, kind = bottom + sheet.unit * rng.uniform(-0.12, 0.5), rng.random()
        if kind < 0.6:
            draw.line((left, y, right, y), fill=ink, width=width)
        elif kind < 0.75:
            step = max(round(sheet.unit * rng.uniform(0.2, 0.6)), 2)
            for x in range(int(left), int(right), step):
                draw.line((x, y, x + step // 2, y), fill=ink, width=width)
        elif kind < 0.92:
            draw.rectangle((left, top - sheet.unit * rng.uniform(0, 0.9), right, y), outline=ink, width=width)
        else:
            step = int(rng.integers(3, 6))
            for y in range(int(top - sheet.unit * 0.3), int(bottom + sheet.unit * 0.3)):
                draw.point([(x, y) for x in range(int(left) + y % step, int(right), step)], fill=ink)


@_kind("dotted", 0.8)
def _dot(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Dot-matrix print: strokes are pale between the rows of dots, and in some print between the columns too."""
    step, darkest = sheet.unit / rng.uniform(6, 9), rng.uniform(0, 0.7)
    waves = [(1 + np.cos(2 * np.pi * (np.arange(side) / step + rng.random()))) / 2 for side in sheet.size]  # 1 on a dot
    across = waves[0] if rng.random() < 0.4 else np.ones(sheet.size[0])
    mask = 255 * (1 - darkest) * (1 - waves[1][:, None] * across) * min(step / 1.5, 1)
    white = Image.new("L", sheet.size, 255).convert(sheet.image.mode)
    sheet.image = Image.composite(white, sheet.image, Image.fromarray(mask.clip(0, 255).astype(np.uint8)))


@_kind("bled", 0.8)
def _bleed(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Ink bleed: strokes are up to a pixel wider to the right and downwards."""
    wide = ImageChops.darker(sheet.image, ImageChops.offset(sheet.image, 1, 0))
    wide = ImageChops.darker(wide, ImageChops.offset(wide, 0, 1))
    sheet.image = Image.blend(sheet.image, wide, rng.uniform(0.3, 1) * min(sheet.unit / 12, 1))


@_kind("eroded", 0.6)
def _erode(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Ink missing at the edges of strokes."""
    thin = ImageChops.lighter(sheet.image, ImageChops.offset(sheet.image, 1, 0))
    sheet.image = Image.blend(sheet.image, thin, rng.uniform(0.2, 0.7) * min(sheet.unit / 14, 1))


@_kind("faded", 1.0)
def _fade(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Thermal print: unevenly pale, with blank columns."""
    width, height = sheet.size
    most, least = rng.uniform(0.3, 0.75), rng.uniform(0, 0.3)
    mask = np.asarray(_field(rng, sheet.size, int(rng.integers(2, 5)))) * (most - least) + 255 * least
    if rng.random() < 0.4:
        columns = rng.integers(0, width, int(rng.integers(1, 7)))
        mask[:, columns] = 255 * rng.uniform(0.5, 0.9)
    faded = Image.fromarray(mask.clip(0, 255).astype(np.uint8))
    white = Image.new("L", sheet.size, 255).convert(sheet.image.mode)
    sheet.image = Image.composite(white, sheet.image, faded)


# The paper and its handling


@_kind("tinted", 1.0)
def _tint(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Coloured paper, with a grain, rules, a grid or waves, or plain."""
    width, height = sheet.size
    pattern = np.full((height, width), 255, np.uint8)
    kind, step = int(rng.integers(5)), int(sheet.unit * rng.uniform(0.7, 4)) + 2
    if kind == 1:
        pattern = np.asarray(_field(rng, sheet.size, max(width // int(rng.integers(2, 8)), 2)))
    elif kind == 2:
        pattern[::step] = 0
    elif kind == 3:
        pattern[::step] = pattern[:, ::step] = 0
    elif kind == 4:
        wave = (np.sin(np.arange(width) / step) * step).astype(int)
        pattern = np.where((np.arange(height)[:, None] + wave) % step == 0, 0, 255).astype(np.uint8)
    paper = rng.uniform(185, 255, 3)
    marks = paper - rng.uniform(10, 20 if kind == 1 else 70) * rng.uniform(0.5, 1, 3)
    sheet.multiply(_coloured(Image.fromarray(pattern), marks, paper))


@_kind("stamped", 0.7)
def _stamp(rng: np.random.Generator, sheet: WornSheet) -> None:
    """A stamp without words: rings or frames with hatching, of patchy ink, at an angle."""
    side = int(min(sheet.size) * rng.uniform(0.1, 0.3)) + 8
    layer = Image.new("L", (side, side), 0)
    draw, line = ImageDraw.Draw(layer), max(side // int(rng.integers(20, 50)), 1)
    for inset in sorted(rng.uniform(0, 0.42, int(rng.integers(1, 4))).tolist()):
        edges = (inset * side, inset * side, side - 1 - inset * side, side - 1 - inset * side)
        (draw.ellipse if rng.random() < 0.6 else draw.rectangle)(edges, outline=255, width=line)
    for y in range(int(side * 0.4), int(side * 0.6), max(3 * line, 3)):
        draw.line((side * 0.25, y, side * 0.75, y), fill=255, width=line)
    layer = ImageChops.multiply(layer, _field(rng, layer.size, 12).point(lambda level: min(2 * level, 255)))
    layer = layer.rotate(rng.uniform(-40, 40), Image.Resampling.BILINEAR)
    layer = layer.point(lambda level: int(level * 0.9))
    ink = Image.new("RGB", layer.size, _INKS[int(rng.integers(len(_INKS)))])
    at = int(rng.uniform(0, sheet.size[0] - side / 2)), int(rng.uniform(0, sheet.size[1] - side / 2))
    over = Image.new("RGB", sheet.size, (255, 255, 255))
    over.paste(ink, at, layer)
    sheet.multiply(over)


@_kind("scribbled", 0.8)
def _scribble(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Strokes of a pen: underlines, ticks, loops and scribbles like signatures."""
    sheet.image = sheet.image.convert("RGB")
    draw = ImageDraw.Draw(sheet.image)
    for _ in range(int(rng.integers(1, 5))):
        knots = rng.normal(0, 1, (int(rng.integers(2, 9)), 2)) * (rng.uniform(2, 12), rng.uniform(0.2, 3))
        points = knots * sheet.unit + rng.uniform(0, 1, 2) * sheet.size
        for _ in range(3):  # corners are cut: a quadratic curve
            points = np.stack([points[:-1] * 0.75 + points[1:] * 0.25, points[:-1] * 0.25 + points[1:] * 0.75], 1)
            points = points.reshape(-1, 2)
        ink, width = _INKS[int(rng.integers(len(_INKS)))], max(round(sheet.unit * rng.uniform(0.08, 0.25)), 1)
        draw.line([*map(tuple, points.tolist())], fill=ink, width=width, joint="curve")


def _picture(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """A picture without text: hills of several sizes in two colours, and lines, boxes and discs."""
    mixed = np.zeros((size[1], size[0]), np.float32)
    for cells in rng.choice((2, 4, 8, 16, 32, 64, 128), int(rng.integers(1, 5)), replace=False):
        mixed += np.asarray(_field(rng, size, min(int(cells), *size))) * rng.uniform(0.2, 1)
    low, high = float(mixed.min()), max(float(mixed.max()), float(mixed.min()) + 1)
    levels = Image.fromarray(((mixed - low) * (255 / (high - low))).astype(np.uint8))
    picture = _coloured(levels, *rng.integers(0, 256, (2, 3))) if rng.random() < 0.7 else levels.convert("RGB")
    draw = ImageDraw.Draw(picture)
    for _ in range(int(rng.integers(0, 25))):
        x0, x1 = sorted(rng.uniform(0, size[0], 2).tolist())
        y0, y1 = sorted(rng.uniform(0, size[1], 2).tolist())
        colour = tuple(rng.integers(0, 256, 3).tolist())
        kind, width = int(rng.integers(5)), int(rng.integers(1, 4))
        if kind < 2:
            draw.line((x0, y0, x1, y1) if kind else (x0, y1, x1, y0), fill=colour, width=width)
        elif kind < 4:
            (draw.rectangle if kind == 2 else draw.ellipse)((x0, y0, x1, y1), outline=colour, width=width)
        else:
            draw.ellipse((x0, y0, x0 + (x1 - x0) / 4, y0 + (y1 - y0) / 4), fill=colour)
    return picture


@_kind("illustrated", 1.6)
def _illustrate(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Pictures in places without text."""
    (width, height), most = sheet.size, 8
    boxes = np.concatenate([line.boxes for line in sheet.lines]) if sheet.lines else np.zeros((0, 4))
    sheet.image = sheet.image.convert("RGB")
    for _ in range(40):
        wide, tall = (int(side * rng.uniform(0.04, 0.5)) + 2 for side in sheet.size)
        x, y = int(rng.integers(0, max(width - wide, 1))), int(rng.integers(0, max(height - tall, 1)))
        margin = sheet.unit / 2
        clear = (boxes[:, 0] > x + wide + margin) | (boxes[:, 2] < x - margin)
        clear |= (boxes[:, 1] > y + tall + margin) | (boxes[:, 3] < y - margin)
        if clear.all():
            sheet.image.paste(_picture(rng, (wide, tall)), (x, y))
            most -= 1
        if not most:
            break


@_kind("folded", 0.7)
def _fold(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Folds across and along the page: a narrow dark line each, with shade on one side."""
    light = [np.ones(side) for side in sheet.size]
    for _ in range(int(rng.integers(1, 4))):
        axis = int(rng.integers(2))
        away = np.arange(sheet.size[axis]) - rng.uniform(0.1, 0.9) * sheet.size[axis]
        reach = rng.uniform(0.03, 0.2) * sheet.size[axis]
        shade = np.exp(-np.abs(away) / reach) * (away * rng.choice((-1, 1)) > 0)
        light[axis] *= 1 - (rng.uniform(0.05, 0.3) * shade + rng.uniform(0.1, 0.5) * (np.abs(away) < 1))
    levels = light[1][:, None] * light[0][None] * 255
    sheet.multiply(Image.fromarray(levels.astype(np.uint8)))


# Geometry and light


@_kind("skewed", 1.2)
def _skew(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Rotation by up to three degrees, as by a scanner's feeder."""
    angle = math.radians(rng.uniform(-_TURN, _TURN))
    width, height = sheet.size
    cos, sin, x, y = math.cos(angle), math.sin(angle), width / 2, height / 2
    matrix = np.array([(cos, -sin, x - cos * x + sin * y), (sin, cos, y - sin * x - cos * y), (0, 0, 1)])
    level = int(rng.choice((255, 255, int(rng.integers(256)), 0)))
    sheet.warp(matrix, level)


@_kind("tilted", 0.7)
def _tilt(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Perspective at a slight angle, with the whole page visible."""
    width, height = sheet.size
    quad = sample_quad(rng, width, height, turn=_TURN / 2, skew=_BEND)
    left, top, right, bottom = bounds_of(quad)
    quad = (quad - (left, top)) * (width / (right - left), height / (bottom - top))
    level = int(rng.integers(30, 256))
    sheet.warp(homography(corners_of((0, 0, width, height)), quad), level)


@_kind("on a desk", 1.2)
def _lay_on_desk(rng: np.random.Generator, sheet: WornSheet) -> None:
    """The page smaller than the picture, with a background around it."""
    share = 1 - rng.uniform(0.05, 0.3)
    x, y = (side * (1 - share) * rng.random() for side in sheet.size)
    sheet.warp(np.array([(share, 0, x), (0, share, y), (0, 0, 1)]), _picture(rng, sheet.size))


@_kind("unevenly lit", 0.8)
def _light(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Coloured, uneven light."""
    levels = _field(rng, sheet.size, int(rng.integers(2, 5)))
    bright = rng.uniform(215, 255, 3)
    dark = bright * (1 - rng.uniform(0.1, 0.45))
    sheet.multiply(_coloured(levels, dark, bright))


@_kind("shadowed", 0.8)
def _shadow(rng: np.random.Generator, sheet: WornSheet) -> None:
    """A shadow with a soft or sharp edge."""
    at = np.linspace(-1, 1, 128)
    angle, softness = rng.uniform(0, 2 * math.pi), rng.uniform(0.02, 0.4)
    away = math.cos(angle) * at[None] + math.sin(angle) * at[:, None] - rng.uniform(-0.8, 0.8)
    levels = 255 * (1 - rng.uniform(0.15, 0.55) / (1 + np.exp(-away / softness)))
    sheet.multiply(Image.fromarray(levels.astype(np.uint8)).resize(sheet.size, Image.Resampling.BILINEAR))


@_kind("pale", 1.0)
def _pale(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Less contrast: grey black and dim white."""
    low, high = rng.uniform(0, 110), 255 - rng.uniform(0, 70)
    sheet.map_levels(np.linspace(low, high, 256))


# The scanner, the camera, the file


@_kind("blurred", 0.9)
def _blur(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Defocus by up to a tenth of a capital's height."""
    radius = min(rng.uniform(0.02, 0.1) * sheet.unit, 3)
    sheet.image = sheet.image.filter(ImageFilter.GaussianBlur(radius))


@_kind("coarse", 0.9)
def _coarsen(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Low resolution, at least 7 px per capital, enlarged."""
    share = min(rng.uniform(7, 15) / sheet.unit, 1)
    small = sheet.image.resize([max(round(side * share), 1) for side in sheet.size], Image.Resampling.BOX)
    sheet.image = small.resize(sheet.size, Image.Resampling.BILINEAR)


@_kind("noisy", 0.9)
def _noise(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Sensor noise, equal in all channels."""
    width, height = sheet.size
    spread = rng.uniform(2, 18)
    levels = np.sort(rng.standard_normal(256)) * spread + 128
    grain = Image.frombytes("L", (width, height), rng.bytes(width * height))
    grain = grain.point(levels.clip(0, 255).astype(np.uint8).tolist()).convert(sheet.image.mode)
    sheet.image = ImageChops.add(sheet.image, grain, offset=-128)


@_kind("grey", 1.0)
def _grey(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Conversion to grey."""
    sheet.image = sheet.image.convert("L")


@_kind("black and white", 1.0)
def _black_and_white(rng: np.random.Generator, sheet: WornSheet) -> None:
    """A one-bit scan: by a global threshold, a local threshold, or dithered."""
    grey = sheet.image.convert("L")
    kind = rng.random()
    if kind < 0.15:
        bits = grey.convert("1")
    elif kind < 0.5:
        around = grey.filter(ImageFilter.BoxBlur(max(2 * sheet.unit, 4)))
        bits = ImageChops.subtract(around, grey, offset=-int(rng.uniform(8, 30))).point(lambda level: 255 * (not level))
    else:
        low, high = np.percentile(np.asarray(grey)[::7, ::7], (1, 60)).tolist()
        limit = low + (high - low) * rng.uniform(0.3, 0.75)
        bits = grey.point(lambda level: 255 * (level > limit))
    sheet.image = bits.convert("L")
    sheet.lines = _vanished(sheet)


@_kind("faxed", 0.6)
def _fax(rng: np.random.Generator, sheet: WornSheet) -> None:
    """A fax: black and white, with half the vertical resolution, at least 7 px per capital."""
    width, height = sheet.size
    rows = min(rng.uniform(7, 10) / sheet.unit, 1)
    low = sheet.image.convert("L").resize(
        (max(round(width * min(2 * rows, 1)), 1), max(round(height * rows), 1)), Image.Resampling.BOX
    )
    dark, paper = np.percentile(np.asarray(low), (1, 60)).tolist()
    limit = dark + (paper - dark) * rng.uniform(0.5, 0.75)
    sheet.image = low.point(lambda level: 255 * (level > limit)).resize(sheet.size, Image.Resampling.NEAREST)
    sheet.lines = _vanished(sheet)


@_kind("speckled", 0.8)
def _speckle(rng: np.random.Generator, sheet: WornSheet) -> None:
    """Dust: dots and clumps, dark and light."""
    width, height = sheet.size
    pixels = np.array(sheet.image)
    count = int(width * height * 10 ** rng.uniform(-4.5, -3)) + 1
    x, y, dark = rng.integers(0, width - 1, count), rng.integers(0, height - 1, count), rng.random(count) < 0.7
    levels = np.where(dark, rng.integers(0, 90, count), rng.integers(200, 256, count)).astype(np.uint8)
    levels = levels.reshape(count, *[1] * (pixels.ndim - 2))
    pixels[y, x] = levels
    large = rng.random(count) < 0.3
    pixels[y[large] + 1, x[large]] = pixels[y[large], x[large] + 1] = levels[large]
    sheet.image = Image.fromarray(pixels)


@_kind("compressed", 1.2)
def _compress(rng: np.random.Generator, sheet: WornSheet) -> None:
    """JPEG with a quality of 30 to 90."""
    sheet.image = compressed(sheet.image, round(rng.uniform(30, 90)))
