"""Text under patches: characters, words, and the language model's wordpieces with their places on the page.

A pretrained language model reads its own wordpieces without further training, so fetched tokens are rows of its own
embedding table. Which wordpieces begin under a patch follows from characters: each half row of patches is divided into
columns of 1 px (for patches of 16 px), and for each column the head predicts whether text covers it, how far away the
middle of its line is, and which character it shows. Columns with text that touch and agree on that middle form a word.
Its characters are the best path of connectionist temporal classification (Graves et al. 2006): equal neighbours are
one character, and class 0 separates two. Byte-pair encoding divides the word into wordpieces: merges are in the order
of their ids. The tokenizer divides a few words differently, as it splits text at some punctuation before it merges.

Notation: B batch, K fetched patches, S slots of half a patch, G side of the fine grid, N = G*G patches, C channels of
the stem, D width of the language model, V rows of its embedding table, R half rows (2G), W columns (16G).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

CHARACTERS = (
    "".join(map(chr, range(33, 127)))
    + "£€¥§°·•–—‘’“”ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿŒœŠšŽž©®™½²³µ×±…«»¿¡"
)
"""Characters that have a class, from class 1 on; class 0 is what stands between two, and the last any other one."""
CLASSES = len(CHARACTERS) + 2
COLUMNS = 16
"""Columns of a patch."""
PIECE_SLOTS = 5
"""Wordpieces that may begin in half a patch; a space and digits of 10 px in a patch of 16 px need four."""
SPELLED = 20
"""Most characters of a wordpiece, with the space before it."""
SPACE = 255
"""What stands for a space in a spelling."""
_SAME_LINE = 0.6
"""Half rows by which the middles of neighbouring columns may differ within a word."""
_LONGEST = 64
"""Characters that are cut into wordpieces together: what touches over a whole page is no word."""
_WORDS_APART = 3 * COLUMNS
"""Most columns between two words of a line."""


@dataclass(frozen=True)
class Characters:
    """Predictions for the columns of half rows.

    Attributes:
        classes: logits [B, R, W, CLASSES].
        present: logits [B, R, W], whether text covers the column.
        middles: [B, R, W] from the middle of the half row to that of the character's line, in half rows.
    """

    classes: Tensor
    present: Tensor
    middles: Tensor


@dataclass(frozen=True)
class Word:
    """A word that was read.

    Attributes:
        text: its characters.
        columns: where the middle of each is, in columns.
        row: the middle of its line, in half rows.
    """

    text: str
    columns: tuple[float, ...]
    row: float


class TextReader(nn.Module):
    """Predicts characters from features of the convolutional stem, and turns them into wordpieces.

    `spellings` [V, SPELLED], the character classes of each wordpiece, is a buffer of the checkpoint, so that reading
    needs no tokenizer. A wordpiece without a spelling is never read.

    Args:
        channels: C.
        rows: V.
    """

    spellings: Tensor

    def __init__(self, channels: int, rows: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(channels, COLUMNS // 2 * (CLASSES + 2), 1)
        self.register_buffer("spellings", torch.zeros(rows, SPELLED, dtype=torch.uint8))
        self._ranks: tuple[int, int, dict[str, int]] | None = None

    def start_weights(self, std: float) -> None:
        nn.init.zeros_(self.spellings)

    def forward(self, stem: Tensor) -> Characters:
        """Features [B, C, R, R] of the stem, at half a patch's side -> predictions."""
        said = self.head(stem).unflatten(1, (COLUMNS // 2, CLASSES + 2)).permute(0, 3, 4, 1, 2).flatten(2, 3)
        return Characters(said[..., :CLASSES], said[..., CLASSES], said[..., CLASSES + 1])

    @torch.no_grad()
    def read(self, stem: Tensor) -> Tensor:
        """Features [B, C, R, R] of the stem -> int32 [B, N, 2, S]: the wordpieces that begin in the upper and in the
        lower half of each patch, from left to right, -1 in empty slots."""
        side = stem.shape[-1] // 2
        pieces = np.full((len(stem), side * side, 2, PIECE_SLOTS), -1, np.int32)
        if stem.is_meta:
            return torch.from_numpy(pieces).to(stem.device)
        for page, words in zip(pieces, words_of(self(stem)), strict=True):
            for token, half_row, column in self.pieces_of(words, side):
                slots = page[half_row // 2 * side + column, half_row % 2]
                if (free := np.flatnonzero(slots < 0)).size:
                    slots[free[0]] = token
        return torch.from_numpy(pieces).to(stem.device)

    def pieces_of(self, words: list[Word], side: int) -> Iterator[tuple[int, int, int]]:
        """The id, half row and column of patches of each wordpiece, from left to right, on a grid of `side` patches."""
        words = sorted(words, key=lambda word: word.columns[0])
        for word, half_row in zip(words, _half_rows(words, 2 * side), strict=True):
            for token, start in self.cut(word.text):
                yield token, half_row, min(int(word.columns[start]) // COLUMNS, side - 1)

    def cut(self, word: str) -> list[tuple[int, int]]:
        """The wordpieces of a word behind a space, each with the index of its first character."""
        ranks = self._known()
        parts = [(" ", 0), *((character, at) for at, character in enumerate(word) if character in ranks)]
        return [piece for start in range(0, len(parts), _LONGEST) for piece in self._merged(parts[start:][:_LONGEST])]

    def _merged(self, parts: list[tuple[str, int]]) -> list[tuple[int, int]]:
        """Wordpieces of characters and their indices: the pair with the lowest id merges first."""
        ranks, last = self._known(), len(self.spellings)
        while len(parts) > 1:
            merged = [ranks.get(a + b, last) for (a, _), (b, _) in zip(parts, parts[1:], strict=False)]
            best = min(range(len(merged)), key=merged.__getitem__)
            if merged[best] == last:
                break
            (a, start), (b, _) = parts[best : best + 2]
            parts[best : best + 2] = [(a + b, start)]
        return [(ranks[text], start) for text, start in parts if text in ranks]

    def _known(self) -> dict[str, int]:
        """Ids by spelling; made once for each state of the buffer."""
        state = self.spellings.data_ptr(), self.spellings._version
        if self._ranks is None or self._ranks[:2] != state:
            letters = dict(enumerate(CHARACTERS, 1)) | {SPACE: " "}
            rows = self.spellings.cpu().numpy()
            texts = (bytes(row).rstrip(b"\0").decode("latin-1").translate(letters) for row in rows)
            self._ranks = *state, {text: token for token, text in enumerate(texts) if text}
        return self._ranks[2]


def _linked(on: Tensor, middles: Tensor) -> list[tuple[Tensor, tuple[slice, slice], tuple[slice, slice]]]:
    """Which columns [R, W] touch one beside, below or across and agree on the line: masks, and both ends' slices."""
    every, first, rest = slice(None), slice(None, -1), slice(1, None)
    links = []
    for here, there in (
        ((every, first), (every, rest)),
        ((first, every), (rest, every)),
        ((first, first), (rest, rest)),
        ((first, rest), (rest, first)),
    ):
        links.append((on[here] & on[there] & ((middles[here] - middles[there]).abs() < _SAME_LINE), here, there))
    return links


def _components(on: Tensor, middles: Tensor) -> Tensor:
    """[R, W] a number for each set of linked columns: the least flat index among them."""
    label = torch.arange(on.numel()).view_as(on)
    links = _linked(on, middles)
    while True:
        before = label
        for linked, here, there in links:
            label = label.clone()
            least = torch.minimum(label[here], label[there])
            label[here] = torch.where(linked, least, label[here])
            label[there] = torch.where(linked, torch.minimum(least, label[there]), label[there])
        label = label.flatten()[label]  # jump to the number of the one that has it
        if torch.equal(label, before):
            return label


def words_of(said: Characters) -> list[list[Word]]:
    """The words on each of B pages."""
    parts = (part.float().cpu() for part in (said.classes, said.present, said.middles))
    return [_words(*page) for page in zip(*parts, strict=True)]


def _words(classes: Tensor, present: Tensor, middles: Tensor) -> list[Word]:
    """The words of one page. Predictions for columns above each other in one line are averaged."""
    on = present > 0
    if not on.any():
        return []
    height, width = on.shape
    middles = middles + torch.arange(height)[:, None] + 0.5
    key = (_components(on, middles) * width + torch.arange(width))[on]
    at, own = key.unique(return_inverse=True)  # by word, then by column
    count = torch.bincount(own).float()

    def mean(values: Tensor) -> Tensor:
        total = torch.zeros(len(count), *values.shape[1:]).index_add_(0, own, values)
        return total / count.view(-1, *[1] * (values.dim() - 1))

    row, best = mean(middles[on]), mean(classes[on]).argmax(-1)
    word, column = at // width, at % width + 0.5
    new = torch.ones_like(word, dtype=torch.bool)
    new[1:] = (word[1:] != word[:-1]) | (best[1:] != best[:-1])
    run = new.cumsum(0) - 1
    centre = torch.zeros(int(run[-1]) + 1).index_add_(0, run, column) / torch.bincount(run)
    letters, owner = best[new], word[new]
    known = (letters > 0) & (letters < CLASSES - 1)
    words = []
    for number in owner[known].unique().tolist():
        some = known & (owner == number)
        text = "".join(CHARACTERS[letter - 1] for letter in letters[some].tolist())
        words.append(Word(text, tuple(centre[some].tolist()), float(row[word == number].mean())))
    return words


def _half_rows(words: list[Word], count: int) -> list[int]:
    """The half row of each word: that of its middle, or that of the word before it in its line if that is near.

    Otherwise a line along the border of two half rows would be divided between them, and read in the wrong order.
    """
    rows = [0] * len(words)
    start, end, middle = (
        np.array([each[n] for each in ((w.columns[0], w.columns[-1], w.row) for w in words)]) for n in range(3)
    )
    for number in np.argsort(start, kind="stable"):
        word = words[number]
        rows[number] = min(max(int(word.row), 0), count - 1)
        gap = start[number] - end
        before = (gap > 0) & (gap < _WORDS_APART) & (abs(middle - word.row) < 0.5)
        if before.any():
            kept = rows[int(np.where(before, gap, np.inf).argmin())]
            if kept - 0.3 < word.row < kept + 1.3:
                rows[number] = kept
    return rows


class Places(nn.Module):
    """Where on the page a token stands, as an embedding: its half row of patches and its column."""

    def __init__(self, side: int, text_size: int) -> None:
        super().__init__()
        self.side = side
        self.rows = nn.Embedding(2 * side, text_size)
        self.columns = nn.Embedding(side, text_size)

    def forward(self, half_rows: Tensor, columns: Tensor, side: int) -> Tensor:
        """Half rows [...] and columns [...] of a grid of `side` patches -> [..., D]."""
        if side != self.side:
            half_rows, columns = half_rows * self.side // side, columns * self.side // side
        return self.rows(half_rows) + self.columns(columns)


def reading_order(filled: Tensor, rank: Tensor, place: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Which slots become tokens, in the order in which they stand on the page.

    Where more slots are filled than there is room for, those of the most relevant patches are kept.

    Args:
        filled: bool [B, K, S].
        rank: [B, K] relevance rank of each patch, from 0.
        place: [B, K, S] whole numbers that grow in reading order.
        room: [B] tokens of each item, at most K.

    Returns:
        Slots [B, K] of the flattened [K * S], and bool [B, K], True on those that are filled; these come first.
    """
    count, slots = filled.shape[1:]
    last = torch.iinfo(torch.int64).max
    by_rank = (rank[..., None] * slots + torch.arange(slots, device=rank.device)).masked_fill(~filled, last)
    chosen = by_rank.flatten(1).argsort(stable=True)[:, :count]
    within = torch.arange(count, device=room.device) < room[:, None]
    stands = filled.flatten(1).gather(1, chosen) & within
    order = place.flatten(1).gather(1, chosen).masked_fill(~stands, last).argsort(stable=True)
    return chosen.gather(1, order), stands.gather(1, order)
