"""What each patch shows: which characters cover it, and the wordpieces that begin in it.

Characters are said for cells of a quarter of a patch's width and half of its height, each of which shows part of one
character or none: the label of a cell depends on the pixels around it, not on how many characters stand before it.

Near an edge between patches the image does not tell in which of the two a wordpiece begins: the centre of its first
character is not visible to the pixel. So its target is the patch at that edge which the encoder already scores higher
for it (`Print.placed_by`), in one row for all wordpieces of a line.

A `Sketch` is a page of such wordpieces without pixels: what a bridge would say if the encoder read without a fault. The
language model learns to answer from sketches before there is an encoder that reads, and without drawing or encoding a
page. Slips that an encoder makes are made there too: wordpieces that are missing, others in their place, a patch to the
side.

Notation: B crops or pages, G side of their grid, S slots of a patch, n characters, m wordpieces, M base tokens of 4 x 4
patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from arr_coc.data.domains.page import UNKNOWN, Line, TextPage
from arr_coc.modeling.configuration_arr_coc import COMPRESSION
from arr_coc.modeling.image_processing_arr_coc import Box
from arr_coc.modeling.wordpieces import PIECE_SLOTS, POSITIONS, SPELLED, NamedPieces, WordpieceHead

CHARACTERS = (
    "".join(map(chr, range(33, 127)))
    + "£€¥§°·•–—‘’“”ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿŒœŠšŽž©®™½²³µ×±…«»¿¡"
)
"""Characters that the encoder names, by their class less 1; class 0 is no character, and the last any other one."""

CLASSES = len(CHARACTERS) + 2
"""Classes of a character slot."""

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
    """uint8 [rows, P]: how each wordpiece is spelled, see `arr_coc.modeling.wordpieces.Spelling`.

    At position 0 stands 2 behind a space, else 1; at the last the number of characters, at most one more than fit.
    Special tokens and rows that the tokenizer lacks have no spelling.
    """
    letters = torch.zeros(rows, POSITIONS, dtype=torch.uint8)
    special = set(tokenizer.all_special_ids)
    ids = [token for token in range(min(rows, len(tokenizer))) if token not in special]
    for token, text in zip(ids, tokenizer.batch_decode([[token] for token in ids]), strict=True):
        word = text.removeprefix(" ")
        classes = [class_of(character) for character in word[:SPELLED]]
        letters[token, 0] = 2 if word != text else 1
        letters[token, 1 : 1 + len(classes)] = torch.tensor(classes, dtype=torch.uint8)
        letters[token, -1] = 1 + min(len(word), SPELLED + 1)
    return letters


CELL_ROWS, CELL_COLUMNS = 2, 4
"""Cells of a patch: at 10 px per em a digit is as wide as a cell of a patch of 16 px."""
CELLS = CELL_ROWS * CELL_COLUMNS
NEAR = 0.2
"""Of a patch's side: wordpieces that begin so near an edge may belong to the patch behind it."""


@dataclass(frozen=True)
class Print:
    """The text on B crops.

    Attributes:
        crop: [n] the crop of each character.
        line: [n] the number of its line.
        box: [n, 4] x0, y0, x1, y1, in patches.
        centre: [n, 2] (x, y), in patches; y is that of its line.
        character: [n] its class.
        first: [m] the character that each wordpiece begins with, by its index.
        piece: [m] the wordpiece's id; -1 where the edge of the crop cuts its word, or nobody
            can name a character of it.
    """

    crop: Tensor
    line: Tensor
    box: Tensor
    centre: Tensor
    character: Tensor
    first: Tensor
    piece: Tensor

    def to(self, device: torch.device) -> "Print":
        """The same on `device`."""
        return Print(*(getattr(self, each.name).to(device) for each in fields(self)))

    def nearby(self, side: int) -> Tensor:
        """[m, 4] the patch in which each wordpiece begins, and those behind near edges, numbered on over the crops."""
        centre = self.centre[self.first]
        own = centre.floor().clamp(0, side - 1)
        within = centre - own
        beyond = (own + (within > 1 - NEAR).long() - (within < NEAR).long()).clamp(0, side - 1)
        (x, y), (other_x, other_y) = own.long().unbind(1), beyond.long().unbind(1)
        patches = [y * side + x, y * side + other_x, other_y * side + x, other_y * side + other_x]
        return self.crop[self.first, None] * side**2 + torch.stack(patches, 1)

    def placed_by(self, named: NamedPieces, head: WordpieceHead, table: Tensor) -> Tensor:
        """[m] the one of the nearby patches that scores each wordpiece highest, in one row for each line.

        Args:
            named: predictions for patches [B, G, G] of `head`.
            head: which scores wordpieces.
            table: [V, D] of the language model.
        """
        patches = self.nearby(named.count.shape[1])
        if not len(patches):
            return patches[:, 0]
        with torch.no_grad():
            directions = head.scaled(named.pieces.flatten(0, 2)[patches], named.scale)  # [m, 4, S, D + E]
            wanted = head.rows(table, self.piece.clamp(min=0)).to(directions)
        score = torch.einsum("mpsd,md->mps", directions, wanted).amax(-1) * (self.piece >= 0)[:, None]
        by_row = score.view(-1, 2, 2)  # [m, row, column]
        line, best = self.line[self.first], by_row.amax(2)
        row = best.new_zeros(int(line.max()) + 1, 2).index_add_(0, line, best).argmax(1)[line]
        column = by_row.gather(1, row[:, None, None].expand(-1, 1, 2))[:, 0].argmax(1)
        return patches.gather(1, (2 * row + column)[:, None])[:, 0]

    def targets(self, crops: int, side: int, patches: Tensor) -> "Targets":
        """What each patch shows, line by line and from left to right; what is beyond the slots is dropped.

        Args:
            crops: B.
            side: G.
            patches: [m] the patch of each wordpiece.
        """
        x, y = self.centre[self.first].unbind(1)
        lower = (y - patches % side**2 // side >= 0.5).long()  # of two lines in a patch the second
        order, count = _order(patches, lower, x), crops * side**2
        pieces = _in_slots(patches[order], self.piece[order], count, -1)
        halves = _in_slots(patches[order], lower[order], count, 0)
        pieces[patches[self.piece < 0]] = -2
        shape = (crops, side, side, -1)
        return Targets(self.cells(crops, side), pieces.view(shape), halves.view(shape))

    def cells(self, crops: int, side: int) -> Tensor:
        """[B, G, G, CELLS] the class of the character over the middle of each cell, 0 for none.

        A character that is over no middle has the cell of its own centre.
        """
        scale = self.box.new_tensor([CELL_COLUMNS, CELL_ROWS])
        low, high, centre = self.box[:, :2] * scale, self.box[:, 2:] * scale, self.centre * scale
        first, last = (low - 0.5).ceil().long(), (high - 0.5).ceil().long() - 1  # columns and rows, ends included
        none = first > last
        own = centre.floor().long()
        first, last = torch.where(none, own, first), torch.where(none, own, last)
        wide, tall = side * CELL_COLUMNS, side * CELL_ROWS
        grid = torch.zeros(crops * tall * wide, dtype=torch.long, device=self.box.device)
        for small in (False, True):  # the small ones last: a neighbour may be over their cell, too
            chosen = none.any(1) == small
            if not chosen.any():
                continue
            (x0, y0), (x1, y1) = first[chosen].unbind(1), last[chosen].unbind(1)
            for row in range(int((y1 - y0).max()) + 1):
                for column in range(int((x1 - x0).max()) + 1):
                    x, y = x0 + column, y0 + row
                    inside = (x <= x1) & (y <= y1) & (x >= 0) & (x < wide) & (y >= 0) & (y < tall)
                    at = (self.crop[chosen] * tall + y) * wide + x
                    grid[at[inside]] = self.character[chosen][inside]
        cells = grid.view(crops, side, CELL_ROWS, side, CELL_COLUMNS).permute(0, 1, 3, 2, 4)
        return cells.reshape(crops, side, side, CELLS)


@dataclass(frozen=True)
class Targets:
    """What each patch of B crops shows.

    Attributes:
        characters: [B, G, G, CELLS] the class of the character over each cell, 0 for none.
        pieces: [B, G, G, PIECE_SLOTS] ids of the wordpieces that begin there, -1 for none; -2 in all slots of patches
            where a piece begins that is not known.
        lower: the same shape, 1 where a wordpiece stands in the lower half of the patch.
    """

    characters: Tensor
    pieces: Tensor
    lower: Tensor


def _order(*keys: Tensor) -> Tensor:
    """Indices that sort by the first key, then by the next."""
    return torch.from_numpy(np.lexsort([key.cpu().numpy() for key in reversed(keys)])).to(keys[0].device)


def _in_slots(patches: Tensor, values: Tensor, count: int, none: int) -> Tensor:
    """[count, PIECE_SLOTS] values of sorted patches in their slots."""
    targets = values.new_full((count, PIECE_SLOTS), none)
    slot = torch.arange(len(patches), device=patches.device) - torch.searchsorted(patches, patches)
    fits = slot < PIECE_SLOTS
    targets[patches[fits], slot[fits]] = values[fits]
    return targets


def printed(crops: Sequence[Sequence[Line]], side: float, patch: float, cut: Wordpieces) -> Print:
    """The text on square crops.

    Args:
        crops: of each its lines, whose boxes are in px from the crop's corner and may reach beyond it.
        side: of a crop, px.
        patch: side of a patch, px.
        cut: into wordpieces.
    """
    rows: list[tuple[int, int, int, float, float]] = []
    boxes: list[np.ndarray] = []
    pieces: list[tuple[int, int]] = []
    number = 0
    for crop, lines in enumerate(crops):
        for line in lines:
            x, y = (line.boxes[:, 0] + line.boxes[:, 2]) / 2, (line.boxes[:, 1] + line.boxes[:, 3]) / 2
            inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
            if not inside.any():
                continue
            middle = float(np.median(y[inside]))
            start = 0
            for word in line.text.split(" "):
                seen = inside[start : start + len(word)]
                if seen.any():
                    first = len(rows)
                    where = np.cumsum(seen) - 1  # of each character among the word's characters inside
                    for offset in np.flatnonzero(seen):
                        at = start + offset
                        rows.append((crop, number, class_of(word[offset]), float(x[at]), middle))
                        boxes.append(line.boxes[at])
                    whole = bool(seen.all()) and UNKNOWN not in word
                    for piece in cut(word):
                        if seen[piece.start]:
                            pieces.append((first + int(where[piece.start]), piece.id if whole else -1))
                start += len(word) + 1
            number += 1
    table = np.array(rows, np.float32).reshape(-1, 5)
    owner, row, character = (torch.from_numpy(table[:, column].astype(np.int64)) for column in range(3))
    box = torch.from_numpy(np.array(boxes, np.float32).reshape(-1, 4) / patch)
    begun = torch.from_numpy(np.array(pieces, np.int64).reshape(-1, 2))
    return Print(owner, row, box, torch.from_numpy(table[:, 3:5] / patch), character, *begun.unbind(1))


@dataclass(frozen=True)
class Sketch:
    """The wordpieces on a page, in reading order by patches: as the bridge packs them.

    Attributes:
        pieces: [n] ids.
        half_rows: [n] half row of patches, 0 to 2G - 1.
        columns: [n] column of patches.
        near: [n, q] whether the patch of each is one that question q asks for.
        side: G.
    """

    pieces: np.ndarray
    half_rows: np.ndarray
    columns: np.ndarray
    near: np.ndarray
    side: int

    @property
    def patches(self) -> np.ndarray:
        """[n] the patch of each, row-major."""
        return self.half_rows // 2 * self.side + self.columns

    def only(self, kept: np.ndarray) -> "Sketch":
        """Those of the wordpieces, by mask or index."""
        return Sketch(self.pieces[kept], self.half_rows[kept], self.columns[kept], self.near[kept], self.side)


def sketch(page: TextPage, boxes: Sequence[Sequence[Box]], side: int, cut: Wordpieces) -> Sketch:
    """The wordpieces of a page that is fitted into a square of `side` x `side` patches, centred.

    Args:
        page: with text.
        boxes: of each question those around its answer and what leads to it, px.
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
    near = np.zeros((len(x), len(boxes)), bool)
    for number, each in enumerate(boxes):
        for box in each:
            x0, y0, x1, y1 = (end * scale + shift[axis % 2] for axis, end in enumerate(box))
            row = half // 2
            within = (column >= int(x0)) & (column <= int(x1)) & (row >= int(y0)) & (row <= int(y1))
            near[:, number] |= within
    return Sketch(table[order, 0].astype(np.int64), half[order], column[order], near[order], side)


def fetched(rng: np.random.Generator, page: Sketch, budget: int) -> Sketch:
    """What a scorer might fetch of a page for its questions: what they ask for, and blocks of other patches.

    Args:
        rng: which other patches.
        page: all of it.
        budget: most wordpieces.
    """
    grid = np.zeros((page.side, page.side))
    for _ in range(int(rng.integers(1, 7))):
        y, x = rng.integers(page.side, size=2)
        tall, wide = int(rng.integers(1, 8)), int(rng.integers(4, 40))
        grid[max(0, y - tall) : y + tall, max(0, x - wide) : x + wide] += rng.random()
    score = grid.ravel()[page.patches] + 1e-3 * rng.random(len(page.patches)) + 10.0 * page.near.any(1)
    room = int(rng.integers(budget // 3, budget + 1))
    kept = np.zeros(len(score), bool)
    kept[np.argsort(-score, kind="stable")[:room]] = True
    return page.only(kept & ((score > 0.01) | (rng.random() < 0.5)))


def slipped(rng: np.random.Generator, page: Sketch, rate: float, vocabulary: int) -> Sketch:
    """The page with slips: of `rate` wordpieces each is missing, another one, or in the patch to the side."""
    kind = rng.random(len(page.pieces)) / max(rate, 1e-9)
    pieces = np.where(kind < 0.4, rng.integers(vocabulary, size=len(kind)), page.pieces)
    columns = np.where((kind >= 0.4) & (kind < 0.7), page.columns + rng.choice([-1, 1], len(kind)), page.columns)
    moved = Sketch(pieces, page.half_rows, columns.clip(0, page.side - 1), page.near, page.side)
    return moved.only((kind < 0.7) | (kind >= 1))


def base_mixture(page: Sketch) -> tuple[np.ndarray, np.ndarray]:
    """The base cells that hold wordpieces: [n] the cell of each wordpiece, and its weight, 1 / their number."""
    cells = page.half_rows // 2 // COMPRESSION * (page.side // COMPRESSION) + page.columns // COMPRESSION
    count = np.bincount(cells, minlength=(page.side // COMPRESSION) ** 2)
    return cells, 1.0 / count[cells]
