"""A sheet with texts and shapes: geometry first, pixels on demand.

Every character is placed by its advance, so that the pixels of `Sheet.draw` match the boxes of `Sheet.lines`.
Coordinates are px of the final page, x to the right, y down; a text's y is its baseline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from ..modeling.image_processing_arr_coc import Box
from .fonts import FontFace, open_font
from .page import Line, cells_at
from .splits import pairs

Colour = tuple[int, int, int]

_MEASURED = 64  # px per em at which advances and missing glyphs are measured
_PLAIN = pairs("replacement")  # what is written for characters that a face lacks
_DESCENT = 0.25  # how far an answer's box reaches below the baseline, as a share of the capital height


class _Advances(dict[str, float]):
    """Advances of a face in em, measured on first use; 0 for missing characters."""

    def __init__(self, path: str) -> None:
        self._font = open_font(path, _MEASURED)
        self._notdef = self._shape("\U0010ffff")
        left, top, right, bottom = self._font.getbbox("H", anchor="ls")
        self.cap_height = max(-top, 1) / _MEASURED

    def _shape(self, char: str) -> bytes:
        left, top, right, bottom = (int(side) for side in self._font.getbbox(char, anchor="ls"))
        if right <= left or bottom <= top:
            return b""
        image = Image.new("L", (right - left, bottom - top))
        ImageDraw.Draw(image).text((-left, -top), char, fill=255, font=self._font, anchor="ls")
        return image.tobytes() + image.width.to_bytes(4, "big") if image.getbbox() else b""

    def __missing__(self, char: str) -> float:
        shape = b" " if char == " " else self._shape(char)
        has = bool(shape) and shape != self._notdef
        self[char] = self._font.getlength(char) / _MEASURED if has else 0.0
        return self[char]


@lru_cache(maxsize=2048)
def advances(path: str) -> _Advances:
    """Advances of the face in a file, by character, in em, and its `cap_height`; 0 for missing characters."""
    return _Advances(path)


@dataclass(frozen=True)
class Style:
    """The style of a text: face, size in px per em (rounded to 0.25), colour."""

    face: FontFace
    size: float
    colour: Colour = (0, 0, 0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", round(self.size * 4) / 4)

    @property
    def cap_height(self) -> float:
        """Height of a capital letter, px."""
        return advances(self.face.path).cap_height * self.size

    def printable(self, text: str) -> str:
        """The text with single spaces, without characters that the face lacks."""
        known = advances(self.face.path)
        if not all(known[char] for char in text):
            text = "".join(char if known[char] else _PLAIN.get(char, char) for char in text)
            text = "".join(char for char in text if known[char])
        return re.sub(" +", " ", text).strip()

    def width(self, text: str) -> float:
        """Width of a printable text, px."""
        known = advances(self.face.path)
        return sum(known[char] for char in text) * self.size

    def wrap(self, text: str, width: float) -> list[str]:
        """The text in lines of at most `width` px; a wider word is a separate line."""
        lines: list[str] = []
        space, taken = self.width(" "), 0.0
        for word in self.printable(text).split():
            size = self.width(word)
            if lines and taken + space + size <= width:
                lines[-1], taken = f"{lines[-1]} {word}", taken + space + size
            else:
                lines.append(word)
                taken = size
        return lines

    def sized(self, size: float) -> Style:
        """The same at another size, px per em."""
        return Style(self.face, size, self.colour)

    def inked(self, colour: Colour) -> Style:
        """The same in another colour."""
        return Style(self.face, self.size, colour)

    def __mul__(self, factor: float) -> Style:
        return self.sized(self.size * factor)


@dataclass(frozen=True, eq=False)
class Piece:
    """Placed characters: a line, or a part of it."""

    text: str
    boxes: np.ndarray

    @property
    def box(self) -> Box:
        """The tight box of the characters, with room for descenders."""
        x0, y0 = self.boxes[:, :2].min(0)
        x1, y1 = self.boxes[:, 2:].max(0)
        return (float(x0), float(y0), float(x1), float(y1 + _DESCENT * (y1 - y0)))

    @property
    def base(self) -> float:
        """y of the baseline."""
        return float(self.boxes[0, 3])

    def part(self, text: str) -> Piece:
        """The first part of the piece with the characters `text`; a ValueError if there is none."""
        start = self.text.find(text)
        if start < 0 or not text:
            raise ValueError(f"expected a part of {self.text!r}; got {text!r}")
        return Piece(text, self.boxes[start : start + len(text)])


Pieces = Sequence[Piece]


def joined(pieces: Piece | Pieces) -> str:
    """The text of a piece, or of consecutive ones."""
    return pieces.text if isinstance(pieces, Piece) else " ".join(piece.text for piece in pieces)


def find(pieces: Pieces, text: str) -> list[Piece]:
    """The part of consecutive lines with the text `text`, a piece per line; empty if it is not there."""
    start = joined(pieces).find(text)
    if start < 0:
        return []
    parts, end = [], start + len(text)
    for piece in pieces:
        low, high = max(start, 0), min(end, len(piece.text))
        if low < high and piece.text[low:high].strip():
            said = piece.text[low:high]
            low += len(said) - len(said.lstrip())
            said = said.strip()
            parts.append(Piece(said, piece.boxes[low : low + len(said)]))
        start, end = start - len(piece.text) - 1, end - len(piece.text) - 1
    return parts


class _Shape(NamedTuple):
    method: str  # of ImageDraw
    points: tuple[tuple[float, float], ...]
    options: Mapping[str, Any]


class Sheet:
    """A page under construction."""

    def __init__(self, width: int, height: int, paper: Colour = (255, 255, 255)) -> None:
        self.width, self.height, self.paper = width, height, paper
        self.pieces: list[Piece] = []
        self._styles: list[Style] = []
        self._shapes: list[_Shape] = []
        self.marks: list[tuple[str, Box]] = []

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), px."""
        return self.width, self.height

    @property
    def lines(self) -> tuple[Line, ...]:
        """All text in the order of writing."""
        return tuple(Line(piece.text, piece.boxes) for piece in self.pieces)

    def write(self, text: str, x: float, y: float, style: Style, align: str = "left") -> Piece:
        """Writes one line of text with its left end, middle or right end at x, and its baseline at y. Raises
        ValueError: the face has none of the characters."""
        text = style.printable(text)
        if not text:
            raise ValueError(f"text: expected characters that {style.face.name} has; got none")
        known = advances(style.face.path)
        ends = np.cumsum([known[char] for char in text]) * style.size
        x -= {"left": 0.0, "middle": ends[-1] / 2, "right": ends[-1]}[align]
        y = round(y)
        piece = Piece(text, cells_at(x, ends + x, y - style.cap_height, y))
        self.pieces.append(piece)
        self._styles.append(style)
        return piece

    def paragraph(
        self, text: str, x: float, y: float, width: float, style: Style, leading: float = 1.3, align: str = "left"
    ) -> tuple[list[Piece], float]:
        """Writes lines of at most `width` px from the baseline y on; returns them and the next baseline. A text with a
        wider word is written smaller."""
        longest = max((style.width(word) for word in style.printable(text).split()), default=0.0)
        if longest > width > 0:
            factor = max(width / longest, 0.4)
            style, leading = style * factor, leading / factor
        pieces, anchor = [], {"left": x, "middle": x + width / 2, "right": x + width}[align]
        for line in style.wrap(text, width):
            pieces.append(self.write(line, anchor, y, style, align))
            y += style.size * leading
        return pieces, y

    def lines_from(
        self, texts: Sequence[str], x: float, y: float, style: Style, leading: float, align: str = "left"
    ) -> list[Piece]:
        """Writes texts below each other, the first with its baseline at y."""
        step = style.size * leading
        return [self.write(text, x, y + number * step, style, align) for number, text in enumerate(texts)]

    def line(self, *points: tuple[float, float], colour: Colour = (0, 0, 0), width: float = 1) -> None:
        """Draws straight strokes from point to point."""
        self._shapes.append(_Shape("line", points, {"fill": colour, "width": width}))

    def across(self, x0: float, x1: float, y: float, colour: Colour = (0, 0, 0), width: float = 1) -> None:
        """Draws a horizontal stroke at a whole pixel."""
        self.line((x0, round(y)), (x1, round(y)), colour=colour, width=width)

    def leaders(self, x0: float, x1: float, y: float, colour: Colour) -> None:
        """Draws dots on a baseline."""
        for x in range(round(x0), round(x1), 5):
            self.rectangle(x, y - 1, x + 0.5, y, fill=colour)

    def rectangle(self, x0: float, y0: float, x1: float, y1: float, **options: Any) -> None:
        """Draws a rectangle; options: `fill`, `outline`, `width` and `radius`."""
        corners = (x0, y0), (max(x1, x0), max(y1, y0))
        self._shapes.append(_Shape("rounded_rectangle", corners, {"width": 1, **options}))

    def ellipse(self, x0: float, y0: float, x1: float, y1: float, **options: Any) -> None:
        """Draws an ellipse in a box, with the same options but `radius`."""
        self._shapes.append(_Shape("ellipse", ((x0, y0), (x1, y1)), {"width": 1, **options}))

    def slice(self, x0: float, y0: float, x1: float, y1: float, start: float, end: float, fill: Colour) -> None:
        """Draws a slice of the ellipse in a box between two angles in degrees, clockwise from the right."""
        self._shapes.append(_Shape("pieslice", ((x0, y0), (x1, y1)), {"start": start, "end": end, "fill": fill}))

    def polygon(self, *points: tuple[float, float], fill: Colour) -> None:
        """Draws a filled polygon."""
        self._shapes.append(_Shape("polygon", points, {"fill": fill}))

    def mark(self, name: str, box: Box) -> None:
        """Records that what is drawn in a box is one of `modeling.marks.MARKS`; "": it may be taken for one."""
        self.marks.append((name, box))

    def draw(self, *, scale: int = 1) -> Image.Image:
        """Draws the page in RGB; with a scale above 1, drawn larger and then reduced, as scanned print."""
        image = self._drawn_shapes()
        for colour in dict.fromkeys(style.colour for style in self._styles):
            image.paste(colour, (0, 0), self._coverage(colour, scale))
        return image

    def _drawn_shapes(self) -> Image.Image:
        """The page without texts; curves and slanted strokes are smoothed."""
        scale = 1 if all(map(_straight, self._shapes)) else 2
        image = Image.new("RGB", (self.width * scale, self.height * scale), self.paper)
        canvas = ImageDraw.Draw(image)
        for shape in self._shapes:
            points = [(round(x * scale), round(y * scale)) for x, y in shape.points]
            options = dict(shape.options)
            for name in {"width", "radius"} & options.keys():
                options[name] = round(options[name] * scale)
            getattr(canvas, shape.method)(points, **options)
        return image if scale == 1 else image.reduce(scale)

    def _coverage(self, colour: Colour, scale: int) -> Image.Image:
        """The coverage of each pixel by the texts of a colour, mode L."""
        margin = 64 * scale
        canvas = np.zeros((self.height * scale + 2 * margin, self.width * scale + 2 * margin), np.uint8)
        by_style: dict[Style, list[Piece]] = {}
        for piece, style in zip(self.pieces, self._styles, strict=True):
            if style.colour == colour:
                by_style.setdefault(style, []).append(piece)
        for style, pieces in by_style.items():
            _stamp(canvas, style, pieces, scale, margin)
        image = Image.fromarray(canvas[margin:-margin, margin:-margin])
        return image if scale == 1 else image.reduce(scale)


def _straight(shape: _Shape) -> bool:
    """Whether all strokes are horizontal or vertical."""
    turns = zip(shape.points, shape.points[1:], strict=False)
    return shape.method == "rounded_rectangle" or (
        shape.method == "line" and all(a[0] == b[0] or a[1] == b[1] for a, b in turns)
    )


def _stamp(canvas: np.ndarray, style: Style, pieces: Pieces, scale: int, margin: int) -> None:
    """Adds texts to the coverage; each distinct character is rasterised once per quarter pixel."""
    steps = 4 // scale
    text = "".join(piece.text for piece in pieces)
    boxes = np.concatenate([piece.boxes for piece in pieces]).astype(np.float64) * scale
    xs = np.round(boxes[:, 0] * steps).astype(np.int64)
    whole, fraction = xs // steps + margin, xs % steps
    bottoms = np.round(boxes[:, 3]).astype(np.int64) + margin
    keys = list(zip(text, fraction.tolist(), strict=True))
    distinct = [key for key in dict.fromkeys(keys) if key[0] != " "]
    size = style.size * scale
    pad, ascent, descent = int(size * 0.5) + 1, int(size * 1.25) + 1, int(size * 0.5) + 1
    known = advances(style.face.path)
    widths = [int(known[char] * size) + 2 * pad + 2 for char, _ in distinct]
    starts = np.cumsum([0, *widths]).tolist()
    strip = Image.new("L", (max(starts[-1], 1), ascent + descent))
    write, font = ImageDraw.Draw(strip), open_font(style.face.path, size)
    for (char, step), start in zip(distinct, starts, strict=False):
        write.text((start + pad + step / steps, ascent), char, fill=255, font=font, anchor="ls")
    drawn = np.asarray(strip)
    glyphs = {key: drawn[:, x : x + w] for key, x, w in zip(distinct, starts, widths, strict=False)}
    height, width = canvas.shape
    for key, x, y in zip(keys, whole.tolist(), bottoms.tolist(), strict=True):
        glyph = glyphs.get(key)
        if glyph is None:
            continue
        left, top = x - pad, y - ascent
        if left < 0 or top < 0 or left + glyph.shape[1] > width or top + glyph.shape[0] > height:
            continue
        place = canvas[top : top + glyph.shape[0], left : left + glyph.shape[1]]
        np.maximum(place, glyph, out=place)
