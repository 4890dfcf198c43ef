"""The text on crops as targets of reading, and pages as the wordpieces that are read on them.

A page of text without pixels can be turned into the wordpieces that the model would read on it. Scorers and the
language model learn from such pages, which takes milliseconds, where drawing and encoding one takes a second. Mistakes
that reading makes are made there too (`misread`).

Notation: B crops or pages, G side of their grid, R half rows (2G) and W columns (16G) of it, n characters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import isqrt
from string import ascii_lowercase

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from arr_coc.modeling.image_processing_arr_coc import Box
from arr_coc.modeling.marks import BAR, MARKS, mark_words
from arr_coc.modeling.wordpieces import CHARACTERS, CLASSES, COLUMNS, PIECE_SLOTS, SPACE, SPELLED, Word
from arr_coc.pages.page import Line, TextPage

LEADS = 0.3
"""Relevance of what leads to an answer, such as its label; that of the answer is 1."""
_CLASS_OF = {character: number + 1 for number, character in enumerate(CHARACTERS)}


def pixels(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [3, H, W] in -1..1, as in the image processor with its default mean and std."""
    return image.astype(np.float32).transpose(2, 0, 1) / 127.5 - 1


def class_of(character: str) -> int:
    """The class of a visible character."""
    return _CLASS_OF.get(character, CLASSES - 1)


@dataclass(frozen=True)
class PieceSpan:
    """A wordpiece of a word: its id in the vocabulary, and its characters [start, end) in the word."""

    id: int
    start: int
    end: int


class Wordpieces:
    """The wordpieces of words, as the language model's tokenizer cuts them behind a space.

    Args:
        tokenizer: a fast tokenizer, whose pieces know their characters.

    Raises:
        ValueError: a slow tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise ValueError(f"tokenizer: expected a fast one; got {type(tokenizer).__name__}")
        self.tokenizer = tokenizer
        self._cut = lru_cache(maxsize=2**16)(self._pieces)

    def __call__(self, word: str) -> tuple[PieceSpan, ...]:
        """The pieces of a word without spaces, in order; bytes of one character count as pieces of it."""
        return self._cut(word)

    def _pieces(self, word: str) -> tuple[PieceSpan, ...]:
        encoded = self.tokenizer(" " + word, add_special_tokens=False, return_offsets_mapping=True)
        pieces = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        # The space is part of the first piece or, as before digits, a piece of its own where the word begins.
        return tuple(PieceSpan(i, max(0, start - 1), max(1, end - 1)) for i, (start, end) in pieces)


def spelled(tokenizer: PreTrainedTokenizerBase, rows: int) -> Tensor:
    """uint8 [rows, SPELLED]: the spelling of each wordpiece, see `arr_coc.modeling.wordpieces.TextReader`.

    Special tokens, rows that the tokenizer lacks, and wordpieces that are longer or hold other characters have none.
    """
    spellings = torch.zeros(rows, SPELLED, dtype=torch.uint8)
    special = {0, *tokenizer.all_special_ids}  # row 0 stands for no wordpiece
    ids = [token for token in range(min(rows, len(tokenizer))) if token not in special]
    for token, text in zip(ids, tokenizer.batch_decode([[token] for token in ids]), strict=True):
        classes = [SPACE if character == " " else class_of(character) for character in text]
        if len(classes) <= SPELLED and CLASSES - 1 not in classes:
            spellings[token, : len(classes)] = torch.tensor(classes, dtype=torch.uint8)
    return spellings


@dataclass(frozen=True)
class Print:
    """The text on B crops.

    Attributes:
        crop: [n] the crop of each character.
        word: [n] the number of its word; a word's characters stand one behind the other.
        box: [n, 4] x0, y0, x1, y1, in patches.
        middle: [n] of its line, y in patches.
        character: [n] its class.
        whole: [n] bool, whether its word is all on the crop, and every character of it has a class.
    """

    crop: Tensor
    word: Tensor
    box: Tensor
    middle: Tensor
    character: Tensor
    whole: Tensor

    def to(self, device: torch.device) -> "Print":
        """The same on `device`."""
        return Print(*(getattr(self, each.name).to(device) for each in fields(self)))

    def covered(self) -> tuple[Tensor, Tensor]:
        """[n, 2] the first (column, half row) whose middle each box covers, and the last.

        A box that covers no middle has the column or half row of its own one.
        """
        scale = self.box.new_tensor([COLUMNS, 2])
        low, high = self.box[:, :2] * scale, self.box[:, 2:] * scale
        first, last = (low - 0.5).ceil().long(), (high - 0.5).ceil().long() - 1
        own, none = ((low + high) / 2).floor().long(), first > last
        return torch.where(none, own, first), torch.where(none, own, last)

    def over(self, crops: int, side: int) -> Tensor:
        """[B, R, W] the character over the middle of each column of each half row, -1 for none; B crops, side G."""
        first, last = self.covered()
        wide, tall = side * COLUMNS, side * 2
        grid = torch.full((crops * tall * wide,), -1, device=self.box.device)
        (x0, y0), (x1, y1) = first.unbind(1), last.unbind(1)
        for row in range(int((y1 - y0).amax()) + 1 if len(y0) else 0):
            for column in range(int((x1 - x0).amax()) + 1):
                x, y = x0 + column, y0 + row
                inside = ((x <= x1) & (y <= y1) & (x >= 0) & (x < wide) & (y >= 0) & (y < tall)).nonzero()[:, 0]
                grid[(self.crop[inside] * tall + y[inside]) * wide + x[inside]] = inside
        return grid.view(crops, tall, wide)


def printed(crops: Sequence[Sequence[Line]], side: float, patch: float) -> Print:
    """The text on square crops.

    Args:
        crops: of each its lines, whose boxes are in px from the crop's corner and may reach beyond it.
        side: of a crop, px.
        patch: side of a patch, px.
    """
    rows: list[tuple[int, int, int, float, bool]] = []
    boxes: list[np.ndarray] = []
    number = 0
    for crop, lines in enumerate(crops):
        for line in lines:
            x, y = (line.boxes[:, 0] + line.boxes[:, 2]) / 2, (line.boxes[:, 1] + line.boxes[:, 3]) / 2
            inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
            if not inside.any():
                continue
            middle, start = float(np.median(y[inside])), 0
            for word in line.text.split(" "):
                seen = inside[start : start + len(word)]
                classes = [class_of(character) for character in word]
                whole = bool(seen.all()) and CLASSES - 1 not in classes
                for offset in np.flatnonzero(seen):
                    rows.append((crop, number, classes[offset], middle, whole))
                    boxes.append(line.boxes[start + offset])
                start += len(word) + 1
                number += 1
    table = np.array(rows, np.float64).reshape(-1, 5)
    owner, word_number, character = (torch.from_numpy(table[:, column].astype(np.int64)) for column in range(3))
    box = torch.from_numpy(np.array(boxes, np.float32).reshape(-1, 4) / patch)
    middles = torch.from_numpy((table[:, 3] / patch).astype(np.float32))
    return Print(owner, word_number, box, middles, character, torch.from_numpy(table[:, 4] > 0))


@dataclass(frozen=True)
class PageTokens:
    """The wordpieces on a page, in reading order by patches: as the bridge packs them.

    Attributes:
        pieces: [n] ids.
        half_rows: [n] half row of patches, 0 to 2G - 1.
        columns: [n] column of patches.
        side: G.
    """

    pieces: np.ndarray
    half_rows: np.ndarray
    columns: np.ndarray
    side: int

    @property
    def patches(self) -> np.ndarray:
        """[n] the patch of each, row-major."""
        return self.half_rows // 2 * self.side + self.columns

    def only(self, kept: np.ndarray) -> "PageTokens":
        """Those of the wordpieces, by mask or index."""
        return PageTokens(self.pieces[kept], self.half_rows[kept], self.columns[kept], self.side)


def page_tokens(pieces: Tensor) -> PageTokens:
    """Wordpieces [N, 2, S] that begin in each patch, -1 in empty slots, in reading order."""
    side = isqrt(len(pieces))
    rows = pieces.view(side, side, 2, -1).transpose(1, 2).reshape(2 * side, side, -1).cpu().numpy()
    half_rows, columns, _ = found = (rows >= 0).nonzero()
    return PageTokens(rows[found], half_rows, columns, side)


def read_without_pixels(
    page: TextPage,
    side: int,
    cut: Wordpieces,
    rng: np.random.Generator | None = None,
    mistakes: float = 0.0,
    marks: bool = False,
) -> Tensor:
    """int32 [N, 2, S] the wordpieces on a page that is fitted into a square of `side` x `side` patches, centred.

    Args:
        side: G.
        cut: words into wordpieces.
        rng: of mistakes.
        mistakes: share of words that are read with one.
        marks: whether it names the page's marks (`modeling.marks`), some of them wrongly.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    scale = side / max(page.size)
    shift = [(side - length * scale) / 2 for length in page.size]
    rows: list[tuple[int, float, float]] = []
    for line in page.lines:
        x = (line.boxes[:, 0] + line.boxes[:, 2]) / 2 * scale + shift[0]
        y = float(np.median(line.boxes[:, 1] + line.boxes[:, 3])) / 2 * scale + shift[1]
        start = 0
        for word in line.text.split(" "):
            read = misread(rng, word) if rng.random() < mistakes else word
            last = start + max(0, len(word) - 1)
            rows += ((piece.id, float(x[min(start + piece.start, last)]), y) for piece in (cut(read) if read else ()))
            start += len(word) + 1
    printed = len(rows)
    for mark in _mark_words(page, scale, shift, rows, rng) if marks else ():
        rows += ((piece.id, mark.columns[0] / COLUMNS, mark.row / 2) for piece in cut(mark.text))
    behind = np.arange(printed, len(rows))  # marks have what print leaves free
    for _ in range(rng.poisson(mistakes * SPECKS)):
        text = "".join(SPECK[int(number)] for number in rng.integers(len(SPECK), size=int(rng.integers(1, 4))))
        x0, y0 = rng.random(2) * side
        rows += ((piece.id, float(x0) + piece.start / 2, float(y0)) for piece in cut(text))
    table = np.array(rows, np.float64).reshape(-1, 3)
    column = table[:, 1].clip(0, side - 1e-3).astype(np.int64)
    half_row = (2 * table[:, 2]).clip(0, 2 * side - 1e-3).astype(np.int64)
    slots = np.full((side * side, 2, PIECE_SLOTS), -1, np.int32)
    for number in np.lexsort((np.arange(len(table)), table[:, 1], np.isin(np.arange(len(table)), behind))):
        held = slots[half_row[number] // 2 * side + column[number], half_row[number] % 2]
        if (free := np.flatnonzero(held < 0)).size:
            held[free[0]] = int(table[number, 0])
    return torch.from_numpy(slots)


UNSEEN, MISTAKEN, INVENTED = 0.05, 0.01, 0.7
"""Shares of marks that are not found, and that are taken for others; marks that are none, a page."""


def _mark_words(
    page: TextPage,
    scale: float,
    shift: Sequence[float],
    pieces: list[tuple[int, float, float]],
    rng: np.random.Generator,
) -> list[Word]:
    """The words that name a page's marks, beside wordpieces with places in patches."""
    found: list[tuple[str, Box]] = []
    for name, box in page.marks:
        x0, y0, x1, y1 = (2 * (at * scale + shift[axis % 2]) for axis, at in enumerate(box))
        draw = rng.random()
        if name and draw > UNSEEN:
            other = draw > 1 - MISTAKEN and name != BAR
            found.append((MARKS[int(rng.integers(len(MARKS)))] if other else name, (x0, y0, x1, y1)))
    for _ in range(rng.poisson(INVENTED)):
        x, y = rng.random(2) * 2 * max(page.size) * scale
        found.append((MARKS[int(rng.integers(len(MARKS)))], (x, y, x + 1, y + 1)))
    text = np.array([(x * COLUMNS, x * COLUMNS, 2 * y) for _, x, y in pieces]).reshape(-1, 3)
    return mark_words(found, text)


LOOK_ALIKES = (
    "0OoQDC 1lI|i!tj/ 5S$s 8B3& 2Zz 6Gb 9gqy ceo uvn mnr aoe hb ft EF PR UV MN KX 7T? 4A ., :; -~_ '\"` ([{ )]}".split()
)
"""Groups of characters that readers confuse."""


SPECKS = 60
"""Marks that are read as text on a page on which every word is misread."""
SPECK = "---__..,,''\"|/:;~*=e1iolcrtsn0237"


def misread(rng: np.random.Generator, word: str) -> str:
    """A word with one mistake: a look-alike in place of a character (six of ten), one missing, one twice, a space; or,
    of one word in ten, no character at all."""
    kind, at = rng.random(), int(rng.integers(len(word))) if word else 0
    if not word or kind > 0.9:
        return ""
    if kind > 0.8:
        return word[:at] + word[at + 1 :]
    if kind > 0.7:
        return word[:at] + word[at] + word[at:]
    if kind > 0.6:
        return f"{word[:at]} {word[at:]}".strip()
    like = "".join(group.replace(word[at], "") for group in LOOK_ALIKES if word[at] in group) or ascii_lowercase
    return word[:at] + like[int(rng.integers(len(like)))] + word[at + 1 :]
