"""Characters of a PDF's page as lines: ligatures divided, accents on their letters, spaces where there are gaps."""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from PIL import Image

from ..modeling.image_processing_arr_coc import Box
from .text_page import UNKNOWN, Line

_CAP_SHARE = 0.68  # of the em: the height of a capital where a font shows nothing to tell it by
_FLAT_CAPITALS, _ASCENDERS, _TALL_DIGITS, _LOW_LETTERS = "BDEFHIKLMNPRTXZ", "bdhkl", "68", "acemnorsuvwxz"
_LOW_SHARE, _ASCENDER_SHARE = 0.7, 1.05  # of a capital's height: x-height, and the height of b and d

# All in em, which here is the height of a capital divided by _CAP_SHARE.
_SPACE = 0.13  # wider gaps are spaces, beyond the usual gap between the letters of the line
_SET_SPACE = 0.05  # wider ones are where the file has a space as well
_LINE_GAP = 1.2  # wider ones part two lines whose characters follow each other in the file
_MERGE_GAP = 0.5  # wider ones part those that do not
_BASELINES = 0.08  # baselines differ at most so much within a line
_RAISED = 0.55  # but for superscripts and subscripts, which are beside their neighbour
_TWICE = 0.06  # a character printed again as near as that is the same one, printed to look bold

_PATTERN = 4000  # segments: where more are on a page they make a pattern, and no lines
_FEW = 5  # letters, after which the gap between them is looked at
_INK = 24  # of 255: darker and lighter pixels of a printed character differ by more
_IMAGE_SHARE = 0.002  # of the page: smaller pictures are bullets, rules and letters
_CAPTION = 20  # characters: a picture with more of them on it is a background
_SPACING_MARKS = {
    "`": "\u0300", "\u00b4": "\u0301", "\u02c6": "\u0302", "^": "\u0302", "\u02dc": "\u0303", "~": "\u0303",
    "\u00af": "\u0304", "\u02d8": "\u0306", "\u02d9": "\u0307", "\u00a8": "\u0308", "\u02da": "\u030a",
    "\u00b0": "\u030a", "\u02dd": "\u030b", "\u02c7": "\u030c", "\u00b8": "\u0327", "\u02db": "\u0328",
}  # fmt: skip
_DOTLESS = {"\u0131": "i", "\u0237": "j"}


@dataclass
class Character:
    """A character as the file has it, in px of the picture: `left` to `right` is its advance."""

    text: str
    left: float
    right: float
    baseline: float
    size: float
    font: int
    ink: Box
    upright: bool
    spaced: bool  # a space of the file stands before it
    cap: float = 0.0

    @property
    def em(self) -> float:
        return self.cap / _CAP_SHARE

    @property
    def box(self) -> Box:
        return self.left, self.baseline - self.cap, self.right, self.baseline


def lines_of(
    characters: Iterable[Character], pictures: Sequence[Box], rules: Sequence[Box], image: Image.Image
) -> tuple[Line, ...]:
    """The lines of a page, in the order of the file.

    Args:
        characters: all that the file has, in its order, without spaces.
        pictures: boxes of pictures, px.
        rules: boxes of what is drawn and may be an underscore, px.
        image: the page as it is drawn.
    """
    characters = _resolved(characters)
    _set_caps(characters)
    characters = _printed(characters, image)
    upright = [char for char in characters if char.upright and char.cap > 0]
    underscores = np.array(rules).reshape(-1, 4)
    lines = [_line(segment, underscores) for segment in _merged(_segments(upright))]
    others = [char.ink for char in characters if not (char.upright and char.cap > 0)]
    others += _pictures_apart(pictures, upright, image.size)
    if others:
        lines.append(Line(UNKNOWN * len(others), _clipped(others, image.size)))
    return tuple(lines)


# Characters that are several, several that are one


def _resolved(characters: Iterable[Character]) -> list[Character]:
    """Ligatures divided, accents on their letters, characters that are printed twice once."""
    groups: list[list[Character]] = []
    for char in characters:
        last = groups[-1][-1] if groups else None
        if last is not None and (last.left, last.baseline, last.ink) == (char.left, char.baseline, char.ink):
            groups[-1].append(char)  # the file gives one shape several characters
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
    """Accents that are printed over a letter of their own, as TeX's are, become one character with it."""
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
    """Tells each character the height of a capital in its font, from what the page shows of the font."""
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
    """Characters that follow each other in the file, side by side."""
    segments: list[list[Character]] = []
    for char in characters:
        last = segments[-1][-1] if segments else None
        if last is not None and _beside(last, char, _LINE_GAP) and _same_line(last, char):
            segments[-1].append(char)
        else:
            segments.append([char])
    return segments


def _beside(one: Character, other: Character, gap: float) -> bool:
    """Whether a character stands right of another, at most so many em away."""
    em = max(one.em, other.em)
    return -0.5 * em < other.left - one.right < gap * em and other.left > one.left - 0.05 * em


def _merged(segments: list[list[Character]]) -> list[list[Character]]:
    """Segments that the file has apart, though they are side by side on one baseline, as one."""
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


def _line(segment: Sequence[Character], rules: np.ndarray) -> Line:
    """A line's text, with single spaces where there are gaps, and underscores where there are rules [n, 4] in these."""
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
    return Line("".join(text), np.array(boxes, np.float32))


def _underscored(gap: Box, em: float, rules: np.ndarray) -> bool:
    """Whether a rule fills most of a gap between two characters, at the foot of them and no wider."""
    x0, _, x1, base = gap
    inside = (
        (rules[:, 0] > x0 - 0.1 * em) & (rules[:, 2] < x1 + 0.1 * em) & (rules[:, 2] - rules[:, 0] > 0.5 * (x1 - x0))
    )
    return bool((inside & (rules[:, 1] > base - 0.1 * em) & (rules[:, 3] < base + 0.35 * em)).any())


# What the picture shows


def _printed(characters: list[Character], image: Image.Image) -> list[Character]:
    """The characters that show: not those beyond the page's edges, behind something, or in the colour of the ground."""
    grey = np.asarray(image.convert("L"))
    height, width = grey.shape
    kept = []
    for char in characters:
        x0, y0, x1, y1 = char.ink
        left, top, right, bottom = math.floor(x0), math.floor(y0), math.ceil(x1) + 1, math.ceil(y1) + 1
        if left < -1 or top < -1 or right > width + 2 or bottom > height + 2:
            continue
        part = grey[max(top, 0) : bottom, max(left, 0) : right]
        if part.size and int(part.max()) - int(part.min()) > _INK:
            kept.append(char)
    return kept


def _pictures_apart(pictures: Iterable[Box], characters: Sequence[Character], size: tuple[int, int]) -> list[Box]:
    """The pictures that are no background, as hardly any of the file's text is on them."""
    middles = np.array([((char.left + char.right) / 2, char.baseline - char.cap / 2) for char in characters])
    kept = []
    for picture in pictures:
        x0, y0, x1, y1 = np.clip(picture, 0, (*size, *size)).tolist()
        inside = (middles.reshape(-1, 2) > (x0, y0)) & (middles.reshape(-1, 2) < (x1, y1))
        large = (x1 - x0) * (y1 - y0) > _IMAGE_SHARE * size[0] * size[1]
        if large and inside.all(1).sum() < _CAPTION:
            kept.append((x0, y0, x1, y1))
    return kept


def _clipped(boxes: Sequence[Box], size: tuple[int, int]) -> np.ndarray:
    clipped: np.ndarray = np.clip(np.array(boxes, np.float32), 0, np.array((*size, *size), np.float32))
    return clipped
