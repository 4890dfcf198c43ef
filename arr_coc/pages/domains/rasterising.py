"""Ink on a page: texts and rules in layers, their boxes, and the colours, noise and shading around them.

All positions are (x, y) in pixels of the final image, as in PIL; boxes are (x0, y0, x1, y1).
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import NormalDist

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from ...modeling.image_processing_arr_coc import Box
from ..fonts import FontFace, find_fonts, load_font, pick_face, sibling
from ..page import Line, cells_at
from ..splits import Split, check_split

Colour = tuple[float, float, float]  # red, green, blue in 0..255

CHARSET = string.digits + string.ascii_uppercase + string.ascii_lowercase + ".,:$/-#&'"
"""All characters of documents and browser pages except the space."""
MIN_FONT, MAX_FONT = 11.0, 26.0  # px at a 256 px page; smaller text is outside the domain
_CONTRAST = 110.0  # least difference in luminance (0..255) between ink and paper
_INK_THRESHOLD = 64  # of 255: fainter pixels (interpolation) do not count as visible ink
_ABOVE, _BELOW = 0.91, 0.25  # extent of a line of text above and below its baseline, in font sizes
# Normal quantiles at the 256 byte values: table lookup of random bytes is ten times faster than normal draws.
_NORMAL = np.array([NormalDist().inv_cdf((byte + 0.5) / 256) for byte in range(256)], np.float32)


def text_unit(size: int) -> float:
    """The scale of text on a page of `size` px, relative to a page of 256 px. It grows with the square root, so that
    larger pages hold more text, not only larger text."""
    return size / 256 if size < 256 else (size / 256) ** 0.5


def check_page(size: int, split: str) -> None:
    """Refuses, by a ValueError, an unknown split, or a page too small for text."""
    check_split(split)
    if size < 64:
        raise ValueError(f"expected a size of at least 64 px, below which no text is readable; got {size}")


@dataclass(frozen=True)
class TextStyle:
    """A face at `pixels` px per em; letters are drawn `supersample` times as large (1 or 2), hinted, and averaged."""

    face: FontFace
    pixels: float
    supersample: int

    @cached_property
    def font(self) -> ImageFont.FreeTypeFont:
        """The PIL font at the supersampled size."""
        return load_font(self.face, self.pixels * self.supersample)

    @cached_property
    def cap_height(self) -> float:
        """Height of a capital letter, px."""
        return -float(self.font.getbbox("H", anchor="ls")[1]) / self.supersample

    def advances(self, text: str) -> np.ndarray:
        """Right ends of the characters' advance cells from the start of the text, px, float64 [len(text)]."""
        widths = np.cumsum([*map(self.font.getlength, text)])
        if len(text) > 1:
            widths *= self.font.getlength(text) / max(widths[-1], 1e-6)  # distributes kerning, a fraction of a pixel
        return widths / self.supersample

    def width(self, text: str) -> float:
        """Advance width of a text without kerning, px."""
        return sum(map(self.font.getlength, text)) / self.supersample


def sample_faces(rng: np.random.Generator, split: Split) -> tuple[FontFace, FontFace, FontFace]:
    """Faces of labels, values and the title: mostly one face, else siblings, rarely two families."""
    faces = find_fonts(split)
    base = pick_face(rng, faces)

    def vary(chance: float) -> FontFace:
        if rng.random() >= chance:
            return base
        return pick_face(rng, faces) if rng.random() < 0.25 else sibling(rng, base, faces)

    return vary(0.2), base, vary(0.5)


class Ink:
    """A layer of coverage of a side in px: 0 no ink, 255 full ink, mode L; drawn supersampled."""

    def __init__(self, size: int, supersample: int = 1) -> None:
        self.size, self.supersample = size, supersample
        self._raw = Image.new("L", (size * supersample, size * supersample))
        self._draw = ImageDraw.Draw(self._raw)

    @cached_property
    def image(self) -> Image.Image:
        """The layer at the final size; nothing can be added afterwards."""
        return self._raw.reduce(self.supersample) if self.supersample > 1 else self._raw

    def text(self, text: str, x: float, y: float, style: TextStyle) -> tuple[Line, Callable[[], Box]]:
        """Draws a text from x with its baseline at y.

        Returns:
            Its line, and a function for the box of its ink, which is valid when the layer is complete.
        """
        place = x * self.supersample, y * self.supersample
        self._draw.text(place, text, fill=255, font=style.font, anchor="ls")
        ends = style.advances(text)
        line = Line(text, cells_at(x, x + ends, y - style.cap_height, y))
        return line, partial(self._box, x, y, style, float(ends[-1]))

    def rectangle(self, x0: float, y0: float, x1: float, y1: float, level: int) -> None:
        """Fills a rectangle of a layer without text, corners included, px."""
        self._draw.rectangle((x0, y0, x1, y1), level)

    def _box(self, x: float, y: float, style: TextStyle, width: float) -> Box:
        """The box of the visible ink of a text of this advance width, px, with a pixel of slack, within the page."""
        overhang = 0.15 * style.pixels + 1
        left, right = max(0, math.floor(x - overhang)), min(self.size, math.ceil(x + width + overhang))
        top = max(0, math.floor(y - _ABOVE * style.pixels))
        bottom = min(self.size, math.ceil(y + _BELOW * style.pixels))
        ink = np.asarray(self.image.crop((left, top, right, bottom))) >= _INK_THRESHOLD
        columns, rows = np.flatnonzero(ink.any(axis=0)), np.flatnonzero(ink.any(axis=1))
        if not len(columns):
            return float(left), float(top), float(right), float(bottom)
        return (
            max(0.0, float(left + columns[0] - 1)),
            max(0.0, float(top + rows[0] - 1)),
            min(float(self.size), float(left + columns[-1] + 2)),
            min(float(self.size), float(top + rows[-1] + 2)),
        )


class Ruler:
    """Draws the ruling lines of a page in one style: width, and solid, dashed or dotted."""

    def __init__(self, rng: np.random.Generator, ink: Ink) -> None:
        self.ink, unit = ink, ink.size / 256
        self.width = max(1, round(unit * float(rng.choice([1, 1, 1, 2]))))
        pattern = int(rng.choice(3, p=[0.65, 0.2, 0.15]))
        dashes, dots = rng.uniform((2, 2), (6, 4)), (1.0, rng.uniform(1.5, 4))
        on, off = ((0.0, 0.0), dashes, dots)[pattern]  # lengths of ink and of paper; no paper for a solid line
        self.on, self.off = float(on) * unit, float(off) * unit
        self.level = int(rng.integers(120, 256))

    def line(self, start: float, end: float, at: float, *, down: bool = False) -> None:
        """Draws a line between two x at height `at`, or `down` between two y at the x `at`, px."""
        low, high = round(at), round(at) + self.width - 1
        for begin in np.arange(start, end, self.on + self.off).tolist() if self.off else [start]:
            stop = min(end, begin + self.on - 1) if self.off else end
            first, last = round(begin), max(round(begin), round(stop))
            x0, y0, x1, y1 = (low, first, high, last) if down else (first, low, last, high)
            self.ink.rectangle(x0, y0, x1, y1, self.level)

    def dots(self, x0: float, x1: float, baseline: float, step: float) -> None:
        """Draws a dotted leader on a baseline."""
        for x in np.arange(x0, x1, step).tolist():
            top = round(baseline) - self.width
            self.ink.rectangle(round(x), top, round(x) + self.width - 1, top + self.width - 1, self.level)


@dataclass(frozen=True)
class Palette:
    """Colours of a page: its background, labels (and titles), values, and ruling lines."""

    paper: Colour
    label: Colour
    value: Colour
    rule: Colour


def as_bytes(colour: Colour) -> tuple[int, int, int]:
    """The colour in whole levels."""
    red, green, blue = (min(255, max(0, round(part))) for part in colour)
    return red, green, blue


def _tinted(rng: np.random.Generator, grey: float, tint: float) -> np.ndarray:
    return np.clip(grey + tint * rng.uniform(-1, 1, 3), 0, 255)


def _luminance(colour: np.ndarray) -> float:
    """Rec. 601 luma of a colour, 0..255."""
    return float(np.dot(colour, (0.299, 0.587, 0.114)))


def _ink_colour(rng: np.random.Generator, paper: np.ndarray, dark: bool) -> np.ndarray:
    """A random grey or coloured ink whose luminance differs enough from the paper's."""
    grey = rng.uniform(0, 70) if dark else rng.uniform(185, 255)
    colour = _tinted(rng, float(grey), float(rng.choice([0, 25, 90], p=[0.4, 0.3, 0.3])))
    end = 0.0 if dark else 255.0
    while abs(_luminance(colour) - _luminance(paper)) < _CONTRAST and abs(end - _luminance(colour)) >= 2:
        colour = colour + 0.3 * (end - colour)
    return colour


def sample_palette(rng: np.random.Generator) -> Palette:
    """Dark on light (two thirds) or light on dark."""
    dark_ink = bool(rng.random() < 0.67)
    grey = 255.0 - rng.triangular(0, 5, 75) if dark_ink else rng.triangular(0, 20, 90)
    paper = _tinted(rng, float(grey), float(rng.choice([0, 12, 45], p=[0.45, 0.35, 0.2])))
    label = _ink_colour(rng, paper, dark_ink)
    value = _ink_colour(rng, paper, dark_ink) if rng.random() < 0.25 else label
    rule = label + rng.uniform(0, 0.75) * (paper - label)
    return Palette(*(tuple(float(part) for part in colour) for colour in (paper, label, value, rule)))  # type: ignore[arg-type]


def compose(rng: np.random.Generator, layers: Sequence[tuple[Ink, Colour]], paper: Colour) -> Image.Image:
    """The RGB page: ink layers, the first at the bottom, over the paper; some pages with blur, noise and shading."""
    size = layers[0][0].size
    blur = size / 256 * float(rng.uniform(0.3, 0.5)) if rng.random() < 0.3 else 0.0
    page, *masks = (_blurred(ink.image, blur) for ink, _ in layers)
    first, *colours = (colour for _, colour in layers)
    # Coverage is an index into a palette from paper to ink: four times as fast as pasting.
    levels = np.asarray(paper) + np.linspace(0.0, 1.0, 256)[:, None] * (np.asarray(first) - np.asarray(paper))
    page.putpalette(np.round(levels).clip(0, 255).astype(np.uint8).tobytes())
    page = page.convert("RGB")
    for mask, colour in zip(masks, colours, strict=True):
        if (box := mask.getbbox()) is not None:
            page.paste(as_bytes(colour), box, mask.crop(box))
    uneven = np.zeros((1, 1, 1), np.int16)
    if rng.random() < 0.6:  # sensor noise
        channels = 3 if rng.random() < 0.35 else 1
        table = np.round(_NORMAL * rng.uniform(1, 7)).astype(np.int16)
        uneven = table[np.frombuffer(rng.bytes(size * size * channels), np.uint8)].reshape(size, size, channels)
    if rng.random() < 0.2:
        uneven = uneven + _shading(rng, size, float(rng.uniform(2, 8))).astype(np.int16)[:, :, None]
    return Image.fromarray((np.asarray(page) + uneven).clip(0, 255).astype(np.uint8))


def _blurred(image: Image.Image, sigma: float) -> Image.Image:
    """A blurred copy."""
    if not sigma:
        return image.copy()
    if sigma > 0.9:
        return image.filter(ImageFilter.GaussianBlur(sigma))
    side = math.exp(-0.5 / sigma**2)  # a 3x3 kernel is sufficient for such a small sigma, and much faster
    row = (side, 1.0, side)
    return image.filter(ImageFilter.Kernel((3, 3), [a * b for a in row for b in row]))


def _shading(rng: np.random.Generator, size: int, strength: float) -> np.ndarray:
    """A mild gradient or cloudy texture of the paper, float32 [size, size] within +-strength."""
    if rng.random() < 0.5:
        axis = np.linspace(-1, 1, size, dtype=np.float32)
        angle = rng.uniform(0, 2 * math.pi)
        ramp = math.cos(angle) * axis[None, :] + math.sin(angle) * axis[:, None]
        return (ramp * (strength / 1.5)).astype(np.float32)
    cells = int(rng.integers(3, 24))
    coarse = Image.fromarray(rng.uniform(-1, 1, (cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BILINEAR)) * strength
