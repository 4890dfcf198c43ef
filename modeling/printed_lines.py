"""Printed lines: text with the place of each character on a page, wherever the text comes from.

A text layer, an OCR engine, the caller and the text reader all give such lines; behind them nothing knows which. Boxes
are (x0, y0, x1, y1) in px of the source.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
from PIL import ImageFont

from .checks import refusal
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
        if not isinstance(text, str) or not _is_box(box):
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


def _is_box(box: Any) -> bool:
    numbers = list(box) if isinstance(box, list | tuple | np.ndarray) else []
    return len(numbers) == 4 and all(
        isinstance(edge, int | float | np.number) and not isinstance(edge, bool) and abs(float(edge)) < 1e7
        for edge in numbers
    )


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
_ALIKE |= {mark: CHARACTERS[CHARACTERS.index(plain)] for mark, plain in zip("‘’“”", "''\"\"", strict=True)
           if mark not in CHARACTERS}  # fmt: skip


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
