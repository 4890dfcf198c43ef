"""Ink on a page: text runs with distorted letter shapes, their boxes, and the colours, noise and blur around them.

All positions are (x, y) in pixels of the final image, as in PIL; boxes are (x0, y0, x1, y1).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

from ...modeling.image_processing_arr_coc import Box
from ..fonts import FontFace, load_font
from ..splits import Split

Colour = tuple[float, float, float]  # red, green, blue in 0..255

_WARPED = 0.65  # share of training pages whose letters are bent
_MESH = 28  # cells of the mesh per side: about one per letter
MIN_STRETCH = 0.8  # narrower letters would need a wider page to draw on
_INK_THRESHOLD = 64  # of 255: fainter pixels (interpolation, dilation) do not count as visible ink
_RAMP = np.linspace(0.0, 1.0, 256)  # the levels of coverage as fractions
# Normal quantiles at the 256 byte values: table lookup of random bytes is ten times faster than normal draws.
_NORMAL = np.array([NormalDist().inv_cdf((byte + 0.5) / 256) for byte in range(256)], np.float32)


# Extent of a line of text above and below its baseline, in font sizes; their sum is the least line pitch.
_ABOVE, _BELOW = 0.91, 0.25


@dataclass(frozen=True)
class Pen:
    """The rasterisation of all text of one page.

    Attributes:
        supersample: 1 draws hinted glyphs at the final size; 2 draws at twice the size and averages.
        weight: thickening (> 0) or thinning (< 0) of vertical and horizontal strokes, -1 to 1.
    """

    supersample: int = 1
    weight: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class TextStyle:
    """The shape of a run of text of `pixels` px per em.

    `supersample` is the pen's value, because the hinted widths of letters depend on it; `stretch` the horizontal scale
    of letters; `shear` px to the right per px upwards, about the middle of the line; `spacing` extra px between
    letters.
    """

    face: FontFace
    pixels: float
    supersample: int = 1
    stretch: float = 1.0
    shear: float = 0.0
    spacing: float = 0.0

    @cached_property
    def font(self) -> ImageFont.FreeTypeFont:
        """The PIL font at the supersampled size."""
        return load_font(self.face, self.pixels * self.supersample)

    @cached_property
    def cap_height(self) -> float:
        """Height of a capital letter, px."""
        return -float(self.font.getbbox("H", anchor="ls")[1]) / self.supersample

    def with_pixels(self, pixels: float) -> TextStyle:
        """The same style at another size, its letter spacing scaled with it."""
        return replace(self, pixels=pixels, spacing=self.spacing * pixels / self.pixels)

    def advances(self, text: str) -> np.ndarray:
        """Right ends of the characters' advance cells from the start of the text, px, float64 [len(text)]."""
        widths = np.cumsum([*map(self.font.getlength, text)])
        if len(text) > 1 and not self.spacing:
            widths *= self.font.getlength(text) / max(widths[-1], 1e-6)  # distributes kerning, a fraction of a pixel
        return widths * (self.stretch / self.supersample) + self.spacing * np.arange(1, len(text) + 1)

    def width(self, text: str) -> float:
        """Advance width of a text without kerning, px."""
        return sum(map(self.font.getlength, text)) * self.stretch / self.supersample + self.spacing * len(text)


class Ink:
    """A layer of coverage of a side in px: 0 no ink, 255 full ink, uint8 [size, size].

    Text is first drawn straight and supersampled; `finish` then stretches and slants all of it at once.
    """

    def __init__(self, size: int, pen: Pen | None = None) -> None:
        self.size, self.pen = size, pen or Pen()
        scale = self.pen.supersample
        self._raw = Image.new("L", (math.ceil(size * scale / MIN_STRETCH), size * scale))
        self._draw = ImageDraw.Draw(self._raw)
        self._lines: dict[tuple[float, float, float], tuple[int, int]] = {}
        self._bent = False
        self._image: Image.Image | None = None
        self._coverage = np.zeros((0, 0), np.uint8)

    def text(self, text: str, position: tuple[float, float], style: TextStyle) -> np.ndarray:
        """Draws `text` from `position` (x of its start, y of its baseline); returns `style.advances(text)`.

        Texts on the same baseline must share stretch and shear.
        """
        assert style.supersample == self.pen.supersample and style.stretch >= MIN_STRETCH and self._image is None
        scale, font, (x, y) = self.pen.supersample, style.font, position
        top, bottom = max(0, math.floor(y - _ABOVE * style.pixels)), math.ceil(y + _BELOW * style.pixels)
        ends = style.advances(text)
        pen_x, pen_y = x * scale / style.stretch, y * scale
        if style.spacing:
            starts = [0.0, *(ends[:-1] * (scale / style.stretch)).tolist()]
            for char, start in zip(text, starts, strict=True):
                self._draw.text((pen_x + start, pen_y), char, fill=255, font=font, anchor="ls")
        else:
            self._draw.text((pen_x, pen_y), text, fill=255, font=font, anchor="ls")
        self._bent |= style.stretch != 1.0 or style.shear != 0.0
        line = (y - 0.5 * style.cap_height, style.stretch, style.shear)
        known_top, known_bottom = self._lines.get(line, (top, bottom))
        self._lines[line] = min(top, known_top), min(self.size, max(bottom, known_bottom))
        return ends

    def rectangle(self, x0: float, y0: float, x1: float, y1: float, level: int) -> None:
        """Fills a rectangle of a layer without text, corners included, px."""
        assert self.pen.supersample == 1 and not self._lines
        self._draw.rectangle((x0, y0, x1, y1), level)

    def finish(self) -> Image.Image:
        """The layer, grey, with strokes thickened, letters stretched and slanted; nothing can be added afterwards."""
        if self._image is None:
            self._image = self._bend(_reweigh(self._raw, self.pen.weight))
            self._coverage = np.asarray(self._image)
        return self._image

    def _bend(self, raw: Image.Image) -> Image.Image:
        scale, size = self.pen.supersample, self.size
        if not self._bent:
            raw = raw.crop((0, 0, size * scale, size * scale))
            return raw.reduce(scale) if scale > 1 else raw
        strips = []
        for (middle, stretch, shear), (top, bottom) in self._lines.items():
            # A point y of the strip comes from x - shear * (middle - y), then unstretched: corners, counter-clockwise.
            left_top, left_bottom = (shear * (y - middle) * scale / stretch for y in (top, bottom))
            width, y0, y1 = size * scale / stretch, top * scale, bottom * scale
            quad = (left_top, y0, left_bottom, y1, left_bottom + width, y1, left_top + width, y0)
            strips.append(((0, top, size, bottom), quad))
        # At twice the size, bilinear samples between four pixels average them.
        resample = Image.Resampling.BICUBIC if scale == 1 else Image.Resampling.BILINEAR
        return raw.transform((size, size), Image.Transform.MESH, strips, resample=resample)

    def box(self, position: tuple[float, float], style: TextStyle, width: float) -> Box:
        """The box of the visible ink of a text of this advance width, px, with a pixel of slack, within the page."""
        self.finish()
        (x, y), overhang = position, 0.15 * style.pixels + 1
        x0, y0 = x - overhang, y - _ABOVE * style.pixels
        x1, y1 = x + width + overhang, y + _BELOW * style.pixels
        left, right, top, bottom = max(0, math.floor(x0)), math.ceil(x1), max(0, math.floor(y0)), math.ceil(y1)
        ink = self._coverage[top:bottom, left:right] >= _INK_THRESHOLD
        columns, rows = np.flatnonzero(ink.any(axis=0)), np.flatnonzero(ink.any(axis=1))
        if not len(columns):
            return float(left), float(top), float(min(right, self.size)), float(min(bottom, self.size))
        return (
            max(0.0, float(left + columns[0] - 1)),
            max(0.0, float(top + rows[0] - 1)),
            min(float(self.size), float(left + columns[-1] + 2)),
            min(float(self.size), float(top + rows[-1] + 2)),
        )


def _reweigh(image: Image.Image, weight: tuple[float, float]) -> Image.Image:
    """Blends coverage with a copy moved by a pixel: the maximum of both thickens strokes, the minimum thins them."""
    for amount, shift in zip(weight, ((1, 0), (0, 1)), strict=True):
        if amount:
            combine = ImageChops.lighter if amount > 0 else ImageChops.darker
            image = Image.blend(image, combine(image, ImageChops.offset(image, *shift)), abs(amount))
    return image


@dataclass(frozen=True)
class Palette:
    """Colours of a page: its background, labels (and titles), values, and ruling lines."""

    paper: Colour
    label: Colour
    value: Colour
    rule: Colour


def _tinted(rng: np.random.Generator, grey: float, tint: float) -> np.ndarray:
    return np.clip(grey + tint * rng.uniform(-1, 1, 3), 0, 255)


def luminance(colour: np.ndarray | Colour) -> float:
    """Rec. 601 luma of a colour, 0..255."""
    return float(np.dot(colour, (0.299, 0.587, 0.114)))


def _ink_colour(rng: np.random.Generator, paper: np.ndarray, dark: bool, contrast: float) -> np.ndarray:
    """A random grey or coloured ink whose luminance differs from the paper's by at least `contrast`."""
    grey = rng.uniform(0, 70) if dark else rng.uniform(185, 255)
    colour = _tinted(rng, float(grey), float(rng.choice([0, 25, 90], p=[0.4, 0.3, 0.3])))
    end = 0.0 if dark else 255.0
    while abs(luminance(colour) - luminance(paper)) < contrast:
        colour = colour + 0.3 * (end - colour)
        if abs(end - luminance(colour)) < 2:
            break
    return colour


def sample_palette(rng: np.random.Generator, *, contrast: float) -> Palette:
    """Dark on light (two thirds) or light on dark; `contrast` is the least difference in luminance (0..255)."""
    dark_ink = bool(rng.random() < 0.67)
    grey = 255.0 - rng.triangular(0, 5, 75) if dark_ink else rng.triangular(0, 20, 90)
    paper = _tinted(rng, float(grey), float(rng.choice([0, 12, 45], p=[0.45, 0.35, 0.2])))
    label = _ink_colour(rng, paper, dark_ink, contrast)
    value = _ink_colour(rng, paper, dark_ink, contrast) if rng.random() < 0.25 else label
    rule = label + rng.uniform(0, 0.75) * (paper - label)
    return Palette(*(tuple(float(part) for part in colour) for colour in (paper, label, value, rule)))  # type: ignore[arg-type]


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


def _blurred(image: Image.Image, sigma: float) -> Image.Image:
    if sigma > 0.9:
        return image.filter(ImageFilter.GaussianBlur(sigma))
    side = math.exp(-0.5 / sigma**2)  # a 3x3 kernel is sufficient for such a small sigma, and much faster
    row = (side, 1.0, side)
    return image.filter(ImageFilter.Kernel((3, 3), [a * b for a in row for b in row]))


def _unevenness(rng: np.random.Generator, size: int, train: bool) -> np.ndarray | None:
    """Shading of the paper and sensor noise to add to a page, int16 [size, size, 1 or 3]; None for nothing."""
    total: np.ndarray | None = None
    if rng.random() < 0.6:
        channels = 3 if rng.random() < 0.35 else 1
        table = np.round(_NORMAL * rng.uniform(1, 12 if train else 7)).astype(np.int16)
        total = table[np.frombuffer(rng.bytes(size * size * channels), np.uint8)].reshape(size, size, channels)
    if rng.random() < (0.3 if train else 0.2):
        shading = _shading(rng, size, float(rng.uniform(2, 16 if train else 8))).astype(np.int16)[:, :, None]
        total = shading if total is None else total + shading
    return total


def _warped(rng: np.random.Generator, page: Image.Image, strength: float) -> Image.Image:
    """The page with every letter distorted differently, by a mesh whose corners move by about `strength` px."""
    size, cells = page.width, _MESH
    at = np.linspace(0, size, cells + 1)
    corners = np.stack(np.meshgrid(at, at), -1)
    corners[1:-1, 1:-1] += strength * rng.standard_normal((cells - 1, cells - 1, 2))
    # The source quadrilateral of each cell: upper left, lower left, lower right, upper right.
    quads = np.concatenate((corners[:-1, :-1], corners[1:, :-1], corners[1:, 1:], corners[:-1, 1:]), -1)
    edges = at.round().astype(int).tolist()
    mesh = [
        ((edges[x], edges[y], edges[x + 1], edges[y + 1]), tuple(quads[y, x].tolist()))
        for y in range(cells)
        for x in range(cells)
    ]
    return page.transform(page.size, Image.Transform.MESH, mesh, Image.Resampling.BILINEAR)


def compose(rng: np.random.Generator, layers: list[tuple[Ink, Colour]], paper: Colour, *, split: Split) -> Image.Image:
    """The RGB page: ink layers, the first at the bottom, over the paper; blurred, then `degrade`d."""
    train = split == "train"
    unit = layers[0][0].size / 256
    blur = unit * float(rng.uniform(0.3, 0.8 if train else 0.5)) if rng.random() < 0.3 else 0.0
    gamma = float(np.exp(rng.uniform(-0.45, 0.3))) if train and rng.random() < 0.4 else 1.0
    page: Image.Image | None = None
    for ink, colour in layers:
        mask = _blurred(ink.finish(), blur) if blur else ink.finish()
        ramp = _RAMP**gamma
        if page is None:  # coverage as index into a palette from paper to ink: four times as fast as pasting
            palette = np.asarray(paper) + ramp[:, None] * (np.asarray(colour) - np.asarray(paper))
            page = mask.copy()
            page.putpalette(np.round(palette).clip(0, 255).astype(np.uint8).tobytes())
            page = page.convert("RGB")
        elif (box := mask.getbbox()) is not None:
            inked = mask.crop(box)
            if gamma != 1.0:
                inked = inked.point(np.round(255 * ramp).astype(int).tolist())
            page.paste(_as_bytes(colour), box, inked)
    assert page is not None, "a page has at least one layer"
    return degrade(rng, page, split=split, unit=unit)


def degrade(rng: np.random.Generator, page: Image.Image, *, split: Split, unit: float) -> Image.Image:
    """The square RGB page with shading and noise; in training also distorted letters and JPEG.

    `unit` is the scale of text relative to a page of 256 px, which determines the distortion.
    """
    train = split == "train"
    uneven = _unevenness(rng, page.width, train)
    if uneven is not None:
        pixels = np.asarray(page) + uneven
        page = Image.fromarray(np.clip(pixels, 0, 255, out=pixels).astype(np.uint8))
    if train and rng.random() < _WARPED:
        page = _warped(rng, page, unit * float(rng.uniform(0.25, 1.0)))
    if train and rng.random() < 0.08:
        page = compressed(page, int(rng.integers(35, 90)))
    return page


def compressed(image: Image.Image, quality: int) -> Image.Image:
    """The image after JPEG, RGB."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def _as_bytes(colour: Colour) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, round(part))) for part in colour)
    return red, green, blue


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

    def horizontal(self, x0: float, x1: float, y: float) -> None:
        """Draws a line from x0 to x1 at height y, px."""
        self._line(x0, x1, lambda a, b: (a, round(y), b, round(y) + self.width - 1))

    def vertical(self, y0: float, y1: float, x: float) -> None:
        """Draws a line from y0 to y1 at x, px."""
        self._line(y0, y1, lambda a, b: (round(x), a, round(x) + self.width - 1, b))

    def dots(self, x0: float, x1: float, baseline: float, step: float) -> None:
        """Draws a dotted leader on a baseline."""
        for x in np.arange(x0, x1, step).tolist():
            top = round(baseline) - self.width
            self.ink.rectangle(round(x), top, round(x) + self.width - 1, top + self.width - 1, self.level)

    def _line(self, start: float, end: float, corners: Callable[[int, int], Box]) -> None:
        if not self.off:
            self.ink.rectangle(*corners(round(start), round(end)), self.level)
            return
        for begin in np.arange(start, end, self.on + self.off).tolist():
            stop = min(end, begin + self.on - 1)
            self.ink.rectangle(*corners(round(begin), max(round(begin), round(stop))), self.level)
