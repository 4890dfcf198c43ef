"""Printed lines: text with the place of each character on a page, wherever the text comes from; and those of a PDF's
text layer.

A text layer, an OCR engine, the caller and the text reader all give such lines; behind them nothing knows which. Boxes
are (x0, y0, x1, y1) in px of the source. In a text layer, UNKNOWN marks places with unknown text: characters without a
code, text in other directions, and pictures in the page, which can show text. So a place without any character has no
text.
"""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from ctypes import addressof, byref, c_double, create_string_buffer
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from PIL import Image, ImageFont

from .checks import is_box, refusal
from .image_loading import reaches
from .image_processing_arr_coc import Box
from .wordpieces import CHARACTERS, COLUMNS, Word

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Stands for a printed character that is not known."""

MOST_WORDS = 100_000
"""Words of a page; more of them are a mistake."""

MOST_IN_ONE_PLACE = 500
"""Words with one box; more of them are a mistake."""


def around(boxes: np.ndarray) -> Box:
    """The box around boxes [n, 4]."""
    x0, y0 = boxes[:, :2].min(0).tolist()
    x1, y1 = boxes[:, 2:].max(0).tolist()
    return x0, y0, x1, y1


@dataclass(frozen=True, eq=False)
class PrintedLine:
    """Characters on one baseline that belong together: a line of a paragraph, a label, a cell of a table.

    Attributes:
        text: the characters in reading order, with single spaces between words; UNKNOWN for unknown ones.
        boxes: float32 [len(text), 4], each character's advance cell horizontally, from its baseline up to the height of
            a capital letter. Spaces have boxes too.
        confidence: 0..1, of the engine that read it.

    Raises:
        ValueError: boxes of another shape.
    """

    text: str
    boxes: np.ndarray
    confidence: float = 1.0

    def __post_init__(self) -> None:
        if self.boxes.shape != (len(self.text), 4):
            raise ValueError(f"boxes: expected shape {(len(self.text), 4)}; got {self.boxes.shape}")

    @property
    def box(self) -> Box:
        """Around the whole line."""
        return around(self.boxes)

    def words(self) -> Iterator[tuple[str, np.ndarray]]:
        """The words between spaces, with the boxes [n, 4] of their characters."""
        numbered = enumerate(self.text)
        for blank, run in groupby(numbered, lambda each: each[1].isspace()):
            if not blank:
                at = [number for number, _ in run]
                yield self.text[at[0] : at[-1] + 1], self.boxes[at[0] : at[-1] + 1]


@dataclass(frozen=True)
class TextLayer:
    """What a document says is printed on a page.

    Attributes:
        lines: those with visible ink, in the order of the file; UNKNOWN stands for pictures, too.
        hidden: characters without visible ink, off the page, or too small to see.
        unknown: printed characters without a known meaning, as of fonts without a Unicode map.
        pictures: the share of the page, 0..1, in pictures for which there is no text.
    """

    lines: tuple[PrintedLine, ...]
    hidden: int
    unknown: int
    pictures: float


def line_in_box(text: str, box: Sequence[float], confidence: float = 1.0) -> PrintedLine:
    """A line of `text` in a box, whose characters share its width in proportion to their widths in a plain font."""
    x0, y0, x1, y1 = map(float, box)
    ends = np.cumsum([_width(character) for character in text])
    edges = x0 + (x1 - x0) * np.concatenate(([0.0], ends / ends[-1]))
    boxes = np.stack((edges[:-1], np.full(len(text), y0), edges[1:], np.full(len(text), y1)), 1)
    return PrintedLine(text, boxes.astype(np.float32), confidence)


@cache
def _width(character: str) -> float:
    """The advance of a character in Pillow's own font, px at any one size."""
    font = ImageFont.load_default(64)
    return max(float(font.getlength(character)), 1.0)


def lines_of_caller(words: Any, height: int, width: int) -> tuple[PrintedLine, ...]:
    """The lines of words that a caller gives for a page of `height` x `width` px: [("Total", (x0, y0, x1, y1)), ...].

    Raises:
        ValueError: another structure, a box outside the page or without an area, or more words than a page holds.
    """
    lines = []
    if not isinstance(words, list | tuple):
        raise refusal("words", "a list of (text, (x0, y0, x1, y1))", words)
    if len(words) > MOST_WORDS:
        raise ValueError(f"words: expected at most {MOST_WORDS} words for a page; got {len(words)}")
    places: dict[tuple[float, ...], int] = {}
    for number, entry in enumerate(words):
        text, box = entry if isinstance(entry, list | tuple) and len(entry) == 2 else (None, ())
        if not isinstance(text, str) or not is_box(box):
            raise refusal(f"words[{number}]", "(text, (x0, y0, x1, y1)) with numbers in px of the image", entry)
        x0, y0, x1, y1 = map(float, box)
        if not (x0 < x1 and y0 < y1 and reaches((x0, y0, x1, y1), height, width)):
            expected = f"a box with x0 < x1 and y0 < y1 that reaches into the image of {width} x {height} px"
            raise ValueError(f"words[{number}]: expected {expected}; got {tuple(box)}")
        places[x0, y0, x1, y1] = places.get((x0, y0, x1, y1), 0) + 1
        if places[x0, y0, x1, y1] > MOST_IN_ONE_PLACE:
            raise ValueError(f"words: expected at most {MOST_IN_ONE_PLACE} words in one box; got more in {tuple(box)}")
        if plain := " ".join(text.split()):
            lines.append(line_in_box(plain, box))
    return tuple(lines)


# ---- from lines to the reader's words -----------------------------------------------------------------------------


@cache
def readable(character: str) -> str:
    """A character in those that the text reader has a class for: itself, its parts, its letter without accents; ""
    where there is none."""
    if character in CHARACTERS:
        return character
    for form in ("NFKC", "NFD", "NFKD"):
        parts = unicodedata.normalize(form, character)
        if kept := "".join(part for part in parts if part in CHARACTERS):
            return kept
    return _ALIKE.get(character, "")


_ALIKE = {
    "\u2010": "-", "\u2011": "-", "\u2012": "–", "\u2015": "—", "\u2212": "-", "\u201a": ",", "\u201b": "'",
    "\u2032": "'", "\u2033": '"', "\u2044": "/", "\u2215": "/", "\u25cf": "•", "\u25aa": "•", "\u2219": "·",
    "\u0131": "i", "\u0142": "l", "\u0141": "L", "\u0111": "d", "\u0110": "D", "\u00f0": "d", "\u00d0": "D",
    "\u00fe": "th", "\u00de": "Th",
}  # fmt: skip


def words_on_view(lines: Iterable[PrintedLine], square: Sequence[float], grid: int) -> list[Word]:
    """The words of lines as the text reader gives those of a view.

    Args:
        lines: of the source.
        square: (x0, y0, x1, y1) of the view in px of the source (`views.square_of`).
        grid: G, patches along a side of the view.

    Returns:
        The words that reach into the view; the columns of characters outside it are below 0 or above the last.
    """
    x0, y0, x1, y1 = square
    across, down = COLUMNS * grid / (x1 - x0), 2 * grid / (y1 - y0)
    words = []
    for line in lines:
        for text, boxes in line.words():
            middle, top, bottom = (boxes[:, 0] + boxes[:, 2]) / 2, float(boxes[:, 1].min()), float(boxes[:, 3].max())
            row = ((top + bottom) / 2 - y0) * down
            columns = (middle - x0) * across
            if not 0 <= row < 2 * grid or columns[-1] < 0 or columns[0] >= COLUMNS * grid:
                continue
            shown, places, unread = [], list[float](), []
            for character, column in zip(text, columns.tolist(), strict=True):
                parts = readable(character)
                shown.append(parts)
                places += [column] * len(parts)
                unread += [] if parts else [column]
            span = ((top - y0) * down, (bottom - y0) * down)
            confidence = line.confidence if places else 0.0
            words.append(Word("".join(shown), tuple(places), row, confidence, tuple(unread), span))
    return words


# ---- the text layer of a PDF's page ----------------------------------------------------------------------------------

_CAP_SHARE = 0.68  # share of the em: the height of a capital, if it cannot be measured
_FLAT_CAPITALS, _ASCENDERS, _TALL_DIGITS, _LOW_LETTERS = "BDEFHIKLMNPRTXZ", "bdhkl", "68", "acemnorsuvwxz"
_LOW_SHARE, _ASCENDER_SHARE = 0.7, 1.05  # shares of a capital's height: x-height, and the height of b and d

# All in em; an em here is the height of a capital divided by _CAP_SHARE.
_SPACE = 0.13  # wider gaps are spaces, in addition to the usual gap between the letters of the line
_SET_SPACE = 0.05  # the same, where the file also has a space
_LINE_GAP = 1.2  # wider gaps separate lines whose characters are consecutive in the file
_MERGE_GAP = 0.5  # wider gaps separate those that are not
_BASELINES = 0.08  # largest difference of baselines within a line
_RAISED = 0.55  # the same for superscripts and subscripts, which are beside their neighbour
_TWICE = 0.06  # a repeated character this close is the same one, printed twice to look bold

_PATTERN = 4000  # segments; more of them on a page are a pattern, not lines
_FEW = 5  # letters needed to measure the gap between letters
_INK = 24  # of 255; darker and lighter pixels of a printed character differ by more
_SMALLEST = 1.0  # px; lower capitals are invisible
_IMAGE_SHARE = 0.002  # share of the page; smaller pictures are bullets, rules and letters
_CAPTION = 20  # characters; a picture with more of them is a background
_SPACING_MARKS = {
    "`": "\u0300", "\u00b4": "\u0301", "\u02c6": "\u0302", "^": "\u0302", "\u02dc": "\u0303", "~": "\u0303",
    "\u00af": "\u0304", "\u02d8": "\u0306", "\u02d9": "\u0307", "\u00a8": "\u0308", "\u02da": "\u030a",
    "\u00b0": "\u030a", "\u02dd": "\u030b", "\u02c7": "\u030c", "\u00b8": "\u0327", "\u02db": "\u0328",
}  # fmt: skip
_DOTLESS = {"\u0131": "i", "\u0237": "j"}


@dataclass
class Character:
    """A character of the file, px of the picture; `left` to `right` is its advance."""

    text: str
    left: float
    right: float
    baseline: float
    size: float
    font: int
    ink: Box
    upright: bool
    spaced: bool  # the file has a space before it
    cap: float = 0.0

    @property
    def em(self) -> float:
        return self.cap / _CAP_SHARE

    @property
    def box(self) -> Box:
        return self.left, self.baseline - self.cap, self.right, self.baseline


def read_text_layer(sheet: Any, image: Image.Image, *, invisible: bool = True) -> TextLayer:
    """The text layer of a page of pypdfium2.

    Ligatures are split into characters, each with its part of the box; hyphens stay where they are printed. Text
    without visible ink in its place is left out.

    Args:
        sheet: the page.
        image: the same page, rendered.
        invisible: whether text that is drawn invisibly counts, such as that of an OCR engine above a scan.
    """
    frame = _Frame(sheet, *image.size)
    characters = _resolved(_characters(sheet.get_textpage(), frame, invisible=invisible))
    pictures, rules = _drawings(sheet, frame)
    _set_caps(characters)
    printed = _printed(characters, image)
    upright = [char for char in printed if char.upright and char.cap > 0]
    underscores = np.array(rules).reshape(-1, 4)
    lines = [_line(segment, underscores) for segment in _merged(_segments(upright))]
    others = [char.ink for char in printed if not (char.upright and char.cap > 0)]
    apart = _pictures_apart(pictures, upright, image.size)
    if others or apart:
        boxes = np.clip(np.array(others + apart, np.float32), 0, np.array((*image.size, *image.size), np.float32))
        lines.append(PrintedLine(UNKNOWN * len(boxes), boxes))
    area = sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in apart) / (image.width * image.height)
    unknown = sum(char.text == UNKNOWN for char in printed)
    return TextLayer(tuple(lines), len(characters) - len(printed), unknown, min(1.0, area))


# Split ligatures, merge accents and repetitions


def _resolved(characters: Iterable[Character]) -> list[Character]:
    """The characters with ligatures split, accents merged, and repetitions removed."""
    groups: list[list[Character]] = []
    for char in characters:
        last = groups[-1][-1] if groups else None
        if last is not None and (last.left, last.baseline, last.ink) == (char.left, char.baseline, char.ink):
            groups[-1].append(char)  # one shape with several characters in the file
        else:
            groups.append([char])
    kept: list[Character] = []
    seen: set[tuple[str, int, int]] = set()
    for group in groups:
        first, text = group[0], "".join(char.text for char in group)
        parts = unicodedata.normalize("NFKC", text) if text and "\ufb00" <= text[0] <= "\ufb06" else text
        unit = max(first.size * _TWICE, 1e-3)
        place = round(first.left / unit), round(first.baseline / unit)
        if any((parts, place[0] + x, place[1] + y) in seen for x in (-1, 0, 1) for y in (-1, 0, 1)):
            continue
        seen.add((parts, *place))
        if len(parts) == 1:
            first.text = parts
            kept.append(first)
            continue
        step = (first.right - first.left) / len(parts)
        for index, part in enumerate(parts):
            left = first.left + index * step
            spaced = first.spaced and index == 0
            kept.append(replace(first, text=part, left=left, right=left + step, spaced=spaced))
    return _accented(kept)


def _accented(characters: list[Character]) -> list[Character]:
    """Merges accents that are printed separately over a letter, as by TeX."""
    gone: set[int] = set()
    for index, accent in enumerate(characters):
        mark = accent.text if unicodedata.combining(accent.text) else _SPACING_MARKS.get(accent.text)
        if mark is None:
            continue
        middle = (accent.ink[0] + accent.ink[2]) / 2
        for beside in (index + 1, index - 1):
            if not 0 <= beside < len(characters) or beside in gone:
                continue
            letter = characters[beside]
            both = unicodedata.normalize("NFC", _DOTLESS.get(letter.text, letter.text) + mark)
            if len(both) == 1 and letter.ink[0] <= middle <= letter.ink[2] and _same_line(letter, accent):
                characters[beside] = replace(letter, text=both, spaced=letter.spaced or accent.spaced)
                gone.add(index)
                break
    return [char for index, char in enumerate(characters) if index not in gone]


def _same_line(one: Character, other: Character) -> bool:
    return abs(one.baseline - other.baseline) < _RAISED * max(one.size, other.size)


def _set_caps(characters: Iterable[Character]) -> None:
    """Sets the height of capitals of each character's font, measured on the page."""
    by_font: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    characters = list(characters)
    for char in characters:
        if char.upright and char.size > 0:
            by_font[char.font][char.text].append((char.baseline - char.ink[1]) / char.size)
    shares = {font: _cap_share(tops) for font, tops in by_font.items()}
    for char in characters:
        char.cap = shares.get(char.font, _CAP_SHARE) * char.size


def _cap_share(tops: dict[str, list[float]]) -> float:
    """The height of a capital from the heights of a font's characters, both as shares of its size."""
    for letters, share in (
        (_FLAT_CAPITALS, 1.0),
        (_ASCENDERS, _ASCENDER_SHARE),
        (_TALL_DIGITS, 1.0),
        (_LOW_LETTERS, _LOW_SHARE),
    ):
        heights = [top for letter in letters for top in tops.get(letter, ())]
        if heights and (height := float(np.median(heights)) / share) > 0:
            return height
    return _CAP_SHARE


# Lines


def _segments(characters: Iterable[Character]) -> list[list[Character]]:
    """Segments of characters that are consecutive in the file and side by side."""
    segments: list[list[Character]] = []
    for char in characters:
        last = segments[-1][-1] if segments else None
        if last is not None and _beside(last, char, _LINE_GAP) and _same_line(last, char):
            segments[-1].append(char)
        else:
            segments.append([char])
    return segments


def _beside(one: Character, other: Character, gap: float) -> bool:
    """Whether `other` is right of `one`, at most `gap` em away."""
    em = max(one.em, other.em)
    return -0.5 * em < other.left - one.right < gap * em and other.left > one.left - 0.05 * em


def _merged(segments: list[list[Character]]) -> list[list[Character]]:
    """Merges segments that are side by side on one baseline, but separate in the file."""
    if len(segments) > _PATTERN:
        return segments
    order = sorted(range(len(segments)), key=lambda index: segments[index][0].left)
    merged: dict[int, list[Character]] = {}
    for index in order:
        first = segments[index][0]
        for line in merged.values():
            level = abs(line[0].baseline - first.baseline) < _BASELINES * first.em
            if level and 0.8 < line[0].cap / first.cap < 1.25 and _beside(line[-1], first, _MERGE_GAP):
                line.extend(segments[index])
                break
        else:
            merged[index] = list(segments[index])
    return [merged[index] for index in sorted(merged)]


def _line(segment: Sequence[Character], rules: np.ndarray) -> PrintedLine:
    """A line's text, with single spaces for gaps, and underscores for gaps with rules [n, 4]."""
    gaps = [right.left - left.right for left, right in pairwise(segment)]
    letters = [
        gap / max(left.em, right.em)
        for gap, (left, right) in zip(gaps, pairwise(segment), strict=True)
        if left.text.isalpha() and right.text.isalpha() and not right.spaced
    ]
    usual = max(float(np.median(letters)), 0.0) if len(letters) > _FEW else 0.0
    text, boxes = [segment[0].text], [segment[0].box]
    for gap, (left, right) in zip(gaps, pairwise(segment), strict=True):
        em = max(left.em, right.em)
        if gap > (_SPACE + usual) * em or (right.spaced and gap > _SET_SPACE * em):
            base, cap = max(left.baseline, right.baseline), max(left.cap, right.cap)
            between = (left.right, base - cap, right.left, base)
            text.append("_" if _underscored(between, em, rules) else " ")
            boxes.append(between)
        text.append(right.text)
        boxes.append(right.box)
    return PrintedLine("".join(text), np.array(boxes, np.float32))


def _underscored(gap: Box, em: float, rules: np.ndarray) -> bool:
    """Whether a rule fills most of a gap between two characters, at their baseline and not wider."""
    x0, _, x1, base = gap
    inside = (
        (rules[:, 0] > x0 - 0.1 * em) & (rules[:, 2] < x1 + 0.1 * em) & (rules[:, 2] - rules[:, 0] > 0.5 * (x1 - x0))
    )
    return bool((inside & (rules[:, 1] > base - 0.1 * em) & (rules[:, 3] < base + 0.35 * em)).any())


# Visible content


def _printed(characters: list[Character], image: Image.Image) -> list[Character]:
    """The visible characters, without those outside the page, covered ones, or ones in the background's colour."""
    grey = np.asarray(image.convert("L"))
    height, width = grey.shape
    kept = []
    for char in characters:
        x0, y0, x1, y1 = char.ink
        left, top, right, bottom = math.floor(x0), math.floor(y0), math.ceil(x1) + 1, math.ceil(y1) + 1
        if left < -1 or top < -1 or right > width + 2 or bottom > height + 2 or char.cap < _SMALLEST:
            continue
        part = grey[max(top, 0) : bottom, max(left, 0) : right]
        if part.size and int(part.max()) - int(part.min()) > _INK:
            kept.append(char)
    return kept


def _pictures_apart(pictures: Iterable[Box], characters: Sequence[Character], size: tuple[int, int]) -> list[Box]:
    """The pictures that are not a background, as they have hardly any text of the file."""
    middles = np.array([((char.left + char.right) / 2, char.baseline - char.cap / 2) for char in characters])
    kept = []
    for picture in pictures:
        x0, y0, x1, y1 = np.clip(picture, 0, (*size, *size)).tolist()
        inside = (middles.reshape(-1, 2) > (x0, y0)) & (middles.reshape(-1, 2) < (x1, y1))
        large = (x1 - x0) * (y1 - y0) > _IMAGE_SHARE * size[0] * size[1]
        if large and inside.all(1).sum() < _CAPTION:
            kept.append((x0, y0, x1, y1))
    return kept


_UPRIGHT = math.radians(0.5)
_INVISIBLE = frozenset({3, 7})  # text rendering modes: neither filled nor stroked
_SYMBOLS = re.compile(  # fonts whose letters are drawings
    r"line\w?\d+$|circle|cmex|ding|symbol|icon|awesome|musi|feta|emmentaler|chess|skak|dice|domino|braille|barcode|ean13"
    r"|semaf|pigpen|rune|hiero|karta|staves|umranda|fmvr|logos|flags|emoji",
    re.IGNORECASE,
)
_PATH, _IMAGE, _DEPTH = 2, 3, 4  # kinds of page objects, and the depth of nested forms to search
_RULE = (2.0, 12.0)  # pt; the largest height and width of a rule that is an underscore, as in TeX
_PLAIN = {"\u00ad": "-", "\u0002": "-", "\ufffe": "-", "\u2010": "-", "\u2011": "-", "\r": " ", "\n": " ", "\t": " "}


class _Frame:
    """Maps points of a page (PDF units, y upwards) to its rendered picture, also of a page with /Rotate.

    Args:
        sheet: the page.
        width, height: of the picture, px.
    """

    def __init__(self, sheet: Any, width: int, height: int) -> None:
        left, bottom, right, top = sheet.get_bbox()
        self.quarters = sheet.get_rotation() // 90 % 4
        across, down = (right - left, top - bottom) if self.quarters % 2 == 0 else (top - bottom, right - left)
        a, d = width / across, height / down
        self.scale = d
        self.matrix = (  # x and y of the picture from those of the page: factors of x, of y, and what is added
            ((a, 0, -a * left), (0, -d, d * top)),
            ((0, a, -a * bottom), (d, 0, -d * left)),
            ((-a, 0, a * right), (0, d, -d * bottom)),
            ((0, -a, a * top), (-d, 0, d * right)),
        )[self.quarters]

    def point(self, x: float, y: float) -> tuple[float, float]:
        (a, b, c), (d, e, f) = self.matrix
        return a * x + b * y + c, d * x + e * y + f

    def box(self, left: float, bottom: float, right: float, top: float) -> Box:
        (x0, y0), (x1, y1) = self.point(left, bottom), self.point(right, top)
        return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)

    def is_upright(self, angle: float, matrix: Any) -> bool:
        """Whether text at an angle of the page (radians, clockwise) is level in the picture, and no mirror image."""
        turned = (angle + self.quarters * math.pi / 2) % (2 * math.pi)
        return min(turned, 2 * math.pi - turned) < _UPRIGHT and matrix.a * matrix.d > matrix.b * matrix.c


def _drawings(sheet: Any, frame: _Frame) -> tuple[list[Box], list[Box]]:
    """The boxes of pictures, and of drawings as small as an underscore."""
    pictures: dict[Box, None] = {}
    small: list[Box] = []
    outermost: Any = None  # objects in a form have other coordinates, so the form's box is used
    for item in sheet.get_objects(max_depth=_DEPTH):
        if item.level == 0:
            outermost = item
        if item.type == _IMAGE:
            pictures[frame.box(*outermost.get_bounds())] = None
        elif item.type == _PATH and item.level == 0:
            left, bottom, right, top = item.get_bounds()
            if top - bottom < _RULE[0] and right - left < _RULE[1]:
                small.append(frame.box(left, bottom, right, top))
    return list(pictures), small


def _characters(text_page: Any, frame: _Frame, *, invisible: bool) -> Iterator[Character]:
    """All characters of a page except spaces, in the order of the file; `invisible`: also those that are not drawn."""
    pdfium, raw = import_module("pypdfium2.raw"), text_page.raw
    loose, matrix, x, y = pdfium.FS_RECTF(), pdfium.FS_MATRIX(), c_double(), c_double()
    x0, y0, x1, y1 = c_double(), c_double(), c_double(), c_double()
    symbols: dict[int, bool] = {}
    spaced = False
    for index in range(text_page.count_chars()):
        char = _plain(pdfium.FPDFText_GetUnicode(raw, index))
        if char == " ":
            spaced = spaced or pdfium.FPDFText_IsGenerated(raw, index) != 1
            continue
        item = pdfium.FPDFText_GetTextObject(raw, index)
        if not item or (not invisible and pdfium.FPDFTextObj_GetTextRenderMode(item) in _INVISIBLE):
            continue
        font = pdfium.FPDFTextObj_GetFont(item)
        key = addressof(font.contents)
        if key not in symbols:
            name = create_string_buffer(256)
            pdfium.FPDFFont_GetBaseFontName(font, name, len(name))
            symbols[key] = _SYMBOLS.search(name.value.decode(errors="replace")) is not None
        if symbols[key] or pdfium.FPDFText_HasUnicodeMapError(raw, index) == 1:
            char = UNKNOWN
        pdfium.FPDFText_GetCharOrigin(raw, index, byref(x), byref(y))
        pdfium.FPDFText_GetCharBox(raw, index, byref(x0), byref(x1), byref(y0), byref(y1))
        pdfium.FPDFText_GetLooseCharBox(raw, index, byref(loose))
        pdfium.FPDFText_GetMatrix(raw, index, byref(matrix))
        left, baseline = frame.point(x.value, y.value)
        yield Character(
            text=char,
            left=left,
            right=max(frame.box(loose.left, loose.bottom, loose.right, loose.top)[2], left),
            baseline=baseline,
            size=pdfium.FPDFText_GetFontSize(raw, index) * math.hypot(matrix.c, matrix.d) * frame.scale,
            font=key,
            ink=frame.box(x0.value, y0.value, x1.value, y1.value),
            upright=frame.is_upright(pdfium.FPDFText_GetCharAngle(raw, index), matrix),
            spaced=spaced,
        )
        spaced = False


def _plain(code: int) -> str:
    """The character of a code, with plain spaces and hyphens; UNKNOWN for codes without a meaning."""
    char = chr(code) if code < 0x110000 else UNKNOWN
    char = _PLAIN.get(char, char)
    kind = unicodedata.category(char)
    return " " if kind.startswith("Z") else UNKNOWN if kind.startswith("C") else char
