"""The text on crops as targets of reading, and pages as perfect tokens.

A `Sketch` is a page of wordpieces without pixels: what the model would read if it made no mistake. The language model
learns to answer from sketches before there is an encoder that reads, and without drawing or encoding a page. Mistakes
that reading makes are made there too: wordpieces that are missing, others in their place, a patch to the side.

Notation: B crops or pages, G side of their grid, R half rows (2G) and W columns (16G) of it, n characters, M base
tokens of 4 x 4 patches.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from arr_coc.data.domains.page import Line, Question, TextPage
from arr_coc.modeling.configuration_arr_coc import COMPRESSION
from arr_coc.modeling.wordpieces import CHARACTERS, CLASSES, COLUMNS, FOREMOST, SPACE, SPELLED

LEAST = 0.01
"""Scores of sketched patches that stand out."""
LEADS = 0.3
"""Relevance of what leads to an answer, such as its label; that of the answer is 1."""
FOUND = 7 / 8
"""Share of questions whose patches are among the most relevant ones: scorers miss some."""

_CLASS_OF = {character: number + 1 for number, character in enumerate(CHARACTERS)}


def class_of(character: str) -> int:
    """The class of a visible character."""
    return _CLASS_OF.get(character, CLASSES - 1)


@dataclass(frozen=True)
class Piece:
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

    def __call__(self, word: str) -> tuple[Piece, ...]:
        """The pieces of a word without spaces, in order; bytes of one character count as pieces of it."""
        return self._cut(word)

    def _pieces(self, word: str) -> tuple[Piece, ...]:
        encoded = self.tokenizer(" " + word, add_special_tokens=False, return_offsets_mapping=True)
        pieces = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        # The space is part of the first piece or, as before digits, a piece of its own where the word begins.
        return tuple(Piece(i, max(0, start - 1), max(1, end - 1)) for i, (start, end) in pieces)


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
        """[B, R, W] the character over the middle of each column of each half row, -1 for none.

        Args:
            crops: B.
            side: G.
        """
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
class Sketch:
    """The wordpieces on a page, in reading order by patches: as the bridge packs them.

    Attributes:
        pieces: [n] ids.
        half_rows: [n] half row of patches, 0 to 2G - 1.
        columns: [n] column of patches.
        relevance: [n, q] of the patch of each for question q: 1 in the boxes of its answer, `LEADS` in its
            `label_boxes`, else 0.
        side: G.
    """

    pieces: np.ndarray
    half_rows: np.ndarray
    columns: np.ndarray
    relevance: np.ndarray
    side: int

    @property
    def near(self) -> np.ndarray:
        """[n, q] whether the patch of each is relevant for question q."""
        wanted: np.ndarray = self.relevance > 0
        return wanted

    @property
    def patches(self) -> np.ndarray:
        """[n] the patch of each, row-major."""
        return self.half_rows // 2 * self.side + self.columns

    def only(self, kept: np.ndarray) -> "Sketch":
        """Those of the wordpieces, by mask or index."""
        return Sketch(self.pieces[kept], self.half_rows[kept], self.columns[kept], self.relevance[kept], self.side)


def sketch(page: TextPage, questions: Sequence[Question], side: int, cut: Wordpieces) -> Sketch:
    """The wordpieces of a page that is fitted into a square of `side` x `side` patches, centred.

    Args:
        page: with text.
        questions: about it, with boxes around the answer and what leads to it, px.
        side: G.
        cut: words into wordpieces.
    """
    scale = side / max(page.size)
    shift = [(side - length * scale) / 2 for length in page.size]
    rows: list[tuple[int, float, float]] = []
    for line in page.lines:
        x = (line.boxes[:, 0] + line.boxes[:, 2]) / 2 * scale + shift[0]
        y = float(np.median(line.boxes[:, 1] + line.boxes[:, 3])) / 2 * scale + shift[1]
        start = 0
        for word in line.text.split(" "):
            rows += ((piece.id, float(x[start + piece.start]), y) for piece in cut(word))
            start += len(word) + 1
    table = np.array(rows, np.float64).reshape(-1, 3)
    x, half = table[:, 1].clip(0, side - 1e-3), (2 * table[:, 2]).clip(0, 2 * side - 1e-3).astype(np.int64)
    order = np.lexsort((np.arange(len(x)), x, half))
    column = x.astype(np.int64)
    row, relevance = half // 2, np.zeros((len(x), len(questions)), np.float32)
    for number, question in enumerate(questions):
        for value, boxes in ((LEADS, question.label_boxes), (1.0, question.boxes)):
            for box in boxes:
                x0, y0, x1, y1 = (end * scale + shift[axis % 2] for axis, end in enumerate(box))
                within = (column >= int(x0)) & (column <= int(x1)) & (row >= int(y0)) & (row <= int(y1))
                relevance[within, number] = value
    return Sketch(table[order, 0].astype(np.int64), half[order], column[order], relevance[order], side)


def fetched(rng: np.random.Generator, page: Sketch, wanted: np.ndarray, budget: int) -> np.ndarray:
    """bool [n], True on the wordpieces that might be fetched of a page: the `wanted` ones, and blocks of others.

    Args:
        rng: which others.
        page: all of it.
        wanted: bool [n].
        budget: most wordpieces.
    """
    grid = np.zeros((page.side, page.side))
    for _ in range(int(rng.integers(1, 7))):
        _raise_block(rng, grid, (1, 8), (4, 40))
    score = grid.ravel()[page.patches] + 1e-3 * rng.random(len(page.patches)) + 10.0 * wanted
    room = int(rng.integers(budget // 3, budget + 1))
    kept = np.zeros(len(score), bool)
    kept[np.argsort(-score, kind="stable")[:room]] = True
    return kept & ((score > LEAST) | (rng.random() < 0.5))


def foremost(
    rng: np.random.Generator, page: Sketch, question: int, words: Collection[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The wordpieces of the patches that a scorer might find the most relevant for a question, bool [n], and the
    relevance [n] that it might predict of each.

    They are those that it asks for, but in one of eight questions; where its own words stand; and blocks of others.

    Args:
        rng: which others, and how many patches.
        page: all of it.
        question: its column in `page.near`.
        words: wordpieces of the question.
    """
    grid = np.zeros((page.side, page.side))
    for _ in range(int(rng.integers(0, 9))):
        _raise_block(rng, grid, (1, 3), (2, 10))
    known = np.isin(page.pieces, list(words)).nonzero()[0]
    for at in rng.permutation(known)[:5]:
        y, x, wide = page.half_rows[at] // 2, page.columns[at], int(rng.integers(2, 12))
        grid[y, max(0, x - 1) : x + wide] += 1.5 * rng.random()
    predicted = rng.beta(0.4, 4.0, grid.size) * rng.random() + 0.5 * rng.random() * grid.ravel().clip(0, 1)
    if rng.random() < FOUND:
        wanted = np.zeros(grid.size)
        np.maximum.at(wanted, page.patches, page.relevance[:, question])
        near, blur = wanted > 0, rng.beta(1.0, 6.0)
        grid.ravel()[near] += 10.0
        predicted[near] = wanted[near] * (1 - blur) + rng.normal(0, 0.05 + 0.3 * blur, int(near.sum()))
    score, held = grid.ravel(), np.unique(page.patches)
    held = held[score[held] > LEAST]
    room = int(rng.integers(FOREMOST // 2, FOREMOST + 1))
    chosen = np.isin(page.patches, held[np.argsort(-score[held], kind="stable")[:room]])
    return chosen, predicted.clip(0, 1)[page.patches].astype(np.float32)


def _raise_block(rng: np.random.Generator, grid: np.ndarray, tall: tuple[int, int], wide: tuple[int, int]) -> None:
    """Adds up to 1 to a block of patches, of half a height and width between these."""
    y, x = rng.integers(len(grid), size=2)
    high, broad = int(rng.integers(*tall)), int(rng.integers(*wide))
    grid[max(0, y - high) : y + high, max(0, x - broad) : x + broad] += rng.random()


def slipped(rng: np.random.Generator, page: Sketch, rate: float, vocabulary: int) -> Sketch:
    """The page with slips: of `rate` wordpieces each is missing, another one, or in the patch to the side."""
    kind = rng.random(len(page.pieces)) / max(rate, 1e-9)
    pieces = np.where(kind < 0.4, rng.integers(vocabulary, size=len(kind)), page.pieces)
    columns = np.where((kind >= 0.4) & (kind < 0.7), page.columns + rng.choice([-1, 1], len(kind)), page.columns)
    moved = Sketch(pieces, page.half_rows, columns.clip(0, page.side - 1), page.relevance, page.side)
    return moved.only((kind < 0.7) | (kind >= 1))


def base_mixture(page: Sketch) -> tuple[np.ndarray, np.ndarray]:
    """The base cells that hold wordpieces: [n] the cell of each wordpiece, and its weight, 1 / their number."""
    cells = page.half_rows // 2 // COMPRESSION * (page.side // COMPRESSION) + page.columns // COMPRESSION
    count = np.bincount(cells, minlength=(page.side // COMPRESSION) ** 2)
    return cells, 1.0 / count[cells]
