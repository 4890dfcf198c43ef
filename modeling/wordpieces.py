"""Text under patches: characters, words, and the language model's wordpieces with their places on the page.

A pretrained language model reads its own wordpieces without further training, so fetched tokens are rows of its own
embedding table. Which wordpieces begin under a patch follows from characters: each half row of patches is divided into
columns of 1 px (for patches of 16 px). For each column one head predicts whether text covers it and how far away the
middle of its line is. Columns with text that touch and agree on that middle form a word. From the mean features of a
word's height the other head predicts which character each column shows. The characters of a word are the best path of
connectionist temporal classification (Graves et al. 2006): equal neighbours are one character, and class 0 separates
two. Byte-pair encoding divides the word into wordpieces: merges are in the order
of their ids. The tokenizer divides a few words differently, as it splits text at some punctuation before it merges.

Notation: B batch, K fetched patches, S slots of half a patch, G side of the fine grid, N = G*G patches, C channels of
the stem, D width of the language model, V rows of its embedding table, R half rows (2G), W columns (16G).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CHARACTERS = (
    "".join(map(chr, range(33, 127)))
    + "£€¥§°·•–—‘’“”ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿŒœŠšŽž©®™½²³µ×±…«»¿¡"
)
"""Characters with a class, from class 1 on; class 0 is the space between two, and the last class any other one."""
CLASSES = len(CHARACTERS) + 2
COLUMNS = 16
"""Columns of a patch."""
CELL_COLUMNS = COLUMNS // 2
"""Columns of half a patch, for which the stem has one feature vector."""
PIECE_SLOTS = 5
"""The most wordpieces that begin in half a patch; a space and digits of 10 px in a patch of 16 px need four."""
SPELLED = 20
"""The most characters of a wordpiece, with the space before it."""
SPACE = 255
"""The class of a space in a spelling."""
_SAME_LINE = 0.6
"""Half rows by which the middles of neighbouring columns may differ within a word."""
_LONGEST = 64
"""The most characters of a word; connected marks over a whole page are not a word."""
_KEPT_CUTS = 2**16
"""The most words whose wordpieces a reader keeps."""
_GUESS = 0.3
"""The confidence below which a word is a guess, such as text read in lines of a drawing: it gives no wordpieces."""
_SURE = 0.7
"""The least confidence of a word that is read at a smaller size."""
_MARGIN = 0.1
"""By how much its confidence has to exceed that of what is read in its place at full size."""
_PAIRS = 30
"""The fewest pairs of words that tell the slope of lines."""
_LEVEL, _STEEP = 0.0005, 0.01
"""Slopes of lines, half rows per column, that are corrected: from 0.2 to 4.6 degrees."""
_WORDS_APART = 3 * COLUMNS
"""The most columns between two words of a line."""


@dataclass(frozen=True)
class Lines:
    """Predictions of text for the columns of half rows.

    Attributes:
        present: logits [B, R, W], whether text covers the column.
        middles: [B, R, W] from the middle of the half row to that of the character's line, in half rows.
    """

    present: Tensor
    middles: Tensor


@dataclass(frozen=True)
class Word:
    """A predicted word.

    Attributes:
        text: its characters.
        columns: the middle of each character, in columns.
        row: the middle of its line, in half rows.
        confidence: 0..1, exp of the mean log probability of its characters. That of one character is the mean over its
            columns, so that large print does not get less than small print.
        unread: the middle of each character without a class of its own, in columns.
        span: the half rows, from and to, that it covers.
        mark: whether it names what is drawn there (`marks.py`), and is not printed.
    """

    text: str
    columns: tuple[float, ...]
    row: float
    confidence: float = 1.0
    unread: tuple[float, ...] = ()
    span: tuple[float, float] = (0.0, 0.0)
    mark: bool = False

    def enlarged(self, scale: float) -> "Word":
        """The same word where its page is `scale` times as large."""
        columns, unread = (tuple(each * scale for each in at) for at in (self.columns, self.unread))
        span = self.span[0] * scale, self.span[1] * scale
        return Word(self.text, columns, self.row * scale, self.confidence, unread, span)


@dataclass(frozen=True)
class GivenWords:
    """The words of a view from elsewhere than the text reader; `partial`: the reader reads where none of them is;
    `original`: what it reads unsure words from once more, see `rereading.Original`."""

    words: list[Word]
    partial: bool = False
    original: Any = None

    def with_read(self, words: list[Word]) -> list[Word]:
        """All words of the view, from those that the reader read."""
        return merged(self.words, words) if self.partial else self.words


class TextReader(nn.Module):
    """Predicts characters from features of the convolutional stem, and turns them into wordpieces.

    `spellings` [V, SPELLED], the character classes of each wordpiece, is a buffer of the checkpoint, so that reading
    needs no tokenizer. A wordpiece without a spelling is never read.

    Args:
        channels: C.
        rows: V.
        mark_head: names what is drawn beside words (`marks.MarkHead`); None: it is left out.
    """

    spellings: Tensor

    def __init__(self, channels: int, rows: int, mark_head: Any = None) -> None:
        super().__init__()
        self.mark_head = mark_head
        self.line_head = nn.Conv2d(channels, 2 * CELL_COLUMNS, 1)
        self.character_head = nn.Linear(channels, CELL_COLUMNS * CLASSES)
        self.register_buffer("spellings", torch.zeros(rows, SPELLED, dtype=torch.uint8))
        self._ranks: tuple[int, int, dict[str, int]] | None = None
        self._cuts: dict[str, list[tuple[int, int]]] = {}  # of this page and of pages before

    def start_weights(self, std: float) -> None:
        nn.init.zeros_(self.spellings)

    def forward(self, stem: Tensor) -> Lines:
        """Features [B, C, R, R] of the stem, at half a patch's side -> predictions of text."""
        predicted = self.line_head(stem).unflatten(1, (2, CELL_COLUMNS)).permute(1, 0, 3, 4, 2).flatten(3)
        return Lines(predicted[0], predicted[1])

    def characters(self, features: Tensor) -> Tensor:
        """Features [n, C] of half a patch's side -> logits [n, CELL_COLUMNS, CLASSES] of its columns."""
        classes: Tensor = self.character_head(features)
        return classes.unflatten(-1, (CELL_COLUMNS, CLASSES))

    @torch.no_grad()
    def read(
        self,
        stem: Tensor,
        coarse: Sequence[Tensor] = (),
        words: Sequence[GivenWords | None] | None = None,
        again: Callable[[list[list[Word]]], list[list[Word]]] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Features [B, C, R, R] of the stem -> wordpieces, and the confidence of characters.

        Args:
            stem: of the images.
            coarse: of the same images at smaller sizes [B, C, r, r], on which large print is read (`either`).
            words: those of each image from elsewhere, None where the stem is read; None: it is read for all.
            again: reads the unsure words of all images once more (`rereading.reread`).

        Returns:
            See `spread`.
        """
        given = [None] * len(stem) if words is None else words
        pages: list[list[Word]] = [[] for _ in stem]
        if not stem.is_meta and any(each is None or each.partial for each in given):
            pages = self.scales(stem, coarse)
            pages = pages if again is None else again(pages)
        pages = [own if each is None else each.with_read(own) for each, own in zip(given, pages, strict=True)]
        pieces, characters, _ = self.spread(pages, stem.shape[-1] // 2)
        return pieces.to(stem.device), characters.to(stem.device)

    def spread(self, pages: Sequence[list[Word]], side: int) -> tuple[Tensor, Tensor, list[int]]:
        """The words of B pages over the patches of a grid of `side` patches.

        Returns:
            int32 [B, N, 2, S]: the wordpieces that begin in the upper and in the lower half of each patch, from left to
            right, without words that are guesses, -1 in empty slots; float32 [B, N, 2] of each patch: the number of
            characters whose middle it holds, and the sum of their words' confidence, 0 for characters without a class;
            and the number of wordpieces of each page for which there was no slot.
        """
        pieces = np.full((len(pages), side * side, 2, PIECE_SLOTS), -1, np.int32)
        characters = np.zeros((len(pages), side * side, 2), np.float32)
        without_slot = [0] * len(pages)
        for number, (page, held, words) in enumerate(zip(pieces, characters, pages, strict=True)):
            rows = sorted(placed(words, 2 * side), key=lambda row: row[0].mark)  # marks have what print leaves free
            for token, half_row, column in self.pieces_of([row for row in rows if row[0].confidence > _GUESS], side):
                slots = page[half_row // 2 * side + column, half_row % 2]
                if (free := np.flatnonzero(slots < 0)).size:
                    slots[free[0]] = token
                else:
                    without_slot[number] += 1
            for word, half_row in (row for row in rows if not row[0].mark):
                _count_characters(held.reshape(side, side, 2)[half_row // 2], word)
        return torch.from_numpy(pieces), torch.from_numpy(characters), without_slot

    def scales(self, stem: Tensor, coarse: Sequence[Tensor]) -> list[list[Word]]:
        """The words of each page, of those at several sizes."""
        pages = self._pages(stem)
        for smaller in coarse:
            scale = stem.shape[-1] / smaller.shape[-1]
            large = ([word.enlarged(scale) for word in words] for words in self._pages(smaller))
            pages = [either(*both) for both in zip(pages, large, strict=True)]
        return pages

    @torch.no_grad()
    def words(self, stem: Tensor) -> list[list[Word]]:
        """Features [B, C, R, R] of the stem -> the words on each of B pages."""
        return [[word for word in words if word.text] for words in self._pages(stem)]

    def _pages(self, stem: Tensor) -> list[list[Word]]:
        """`words`, and those without a predicted character."""
        lines = self(stem)
        pages = zip(lines.present.float().cpu(), lines.middles.float().cpu(), stem, strict=True)
        return [self._words(*page) for page in pages]

    def _words(self, present: Tensor, middles: Tensor, stem: Tensor) -> list[Word]:
        """The words of one page; features [C, R, R] that are above each other in one word are averaged."""
        on = present > 0
        if not on.any():
            return []
        height, width = on.shape
        middles = middles + torch.arange(height)[:, None] + 0.5
        label = connected(on, middles)[on]
        row, column = on.nonzero().unbind(1)
        at, own = (label * width + column).unique(return_inverse=True)  # columns of words, from the left in each
        word, column = at // width, at % width
        cell, cell_of = (word * width + column // CELL_COLUMNS).unique(return_inverse=True)
        covered = (cell_of[own] * height + row).unique()  # each half row of a cell counts once
        part, row = covered // height, covered % height
        features = _means(stem[:, row, cell[part] % width].t().float(), part, len(cell))
        best = self.characters(features.to(stem)).float().log_softmax(-1).max(-1)
        score, letter = (each.cpu()[cell_of, column % CELL_COLUMNS] for each in best)
        row = on.nonzero()[:, 0]
        first = torch.full((len(at),), height).scatter_reduce(0, own, row, "amin")
        last = torch.zeros(len(at), dtype=torch.long).scatter_reduce(0, own, row, "amax")
        return words_of(
            word, column, letter, _means(middles[on], own, len(at)), score, torch.stack((first, last + 1), 1)
        )

    def pieces_of(self, rows: list[tuple[Word, int]], side: int) -> Iterator[tuple[int, int, int]]:
        """The id, half row and column of patches of each wordpiece, from left to right, on a grid of `side` patches.

        `rows`: what `placed` returned.
        """
        for word, half_row in rows:
            for token, start in self.cut(word.text) if word.text else ():
                if -1 < word.columns[start] < COLUMNS * side + 1:  # of words that go beyond the view, those within
                    yield token, half_row, min(int(word.columns[start]) // COLUMNS, side - 1)

    def cut(self, word: str) -> list[tuple[int, int]]:
        """The wordpieces of a word behind a space, each with the index of its first character."""
        ranks = self._known()
        if (pieces := self._cuts.get(word)) is None:
            parts = [(" ", 0), *((character, at) for at, character in enumerate(word) if character in ranks)]
            starts = range(0, len(parts), _LONGEST)
            pieces = [piece for start in starts for piece in self._merged(parts[start:][:_LONGEST])]
            if len(self._cuts) >= _KEPT_CUTS:
                self._cuts.clear()
            self._cuts[word] = pieces
        return pieces

    def _merged(self, parts: list[tuple[str, int]]) -> list[tuple[int, int]]:
        """Wordpieces of characters and the index of the first character of each: the pair with the lowest id merges
        first."""
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
        """Ids by spelling; computed once for each state of the buffer."""
        state = self.spellings.data_ptr(), self.spellings._version
        if self._ranks is None or self._ranks[:2] != state:
            letters = dict(enumerate(CHARACTERS, 1)) | {SPACE: " "}
            rows = self.spellings.cpu().numpy()
            texts = (bytes(row).rstrip(b"\0").decode("latin-1").translate(letters) for row in rows)
            self._ranks = *state, {text: token for token, text in enumerate(texts) if text}
            self._cuts.clear()
        return self._ranks[2]


def _linked(on: Tensor, middles: Tensor) -> list[tuple[Tensor, tuple[slice, slice], tuple[slice, slice]]]:
    """Links between columns [R, W] with text that touch beside, below or across and agree on the line: masks and
    slices."""
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


def connected(on: Tensor, middles: Tensor) -> Tensor:
    """[R, W] a number for each set of linked columns: the smallest flat index among them."""
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


def _means(values: Tensor, group: Tensor, count: int) -> Tensor:
    """Means [count, ...] of values [n, ...] by the number of each one's group [n]."""
    group = group.to(values.device)
    total = torch.zeros(count, *values.shape[1:], dtype=values.dtype, device=values.device)
    size = torch.bincount(group, minlength=count).to(values)
    return total.index_add_(0, group, values) / size.view(-1, *[1] * (values.dim() - 1))


def words_of(word: Tensor, column: Tensor, letter: Tensor, middle: Tensor, score: Tensor, span: Tensor) -> list[Word]:
    """The words of one page: the best path of each.

    Args:
        word: [n] the number of each column's word, ascending.
        column: [n] the number of each column on the page, ascending within a word.
        letter: [n] its class.
        middle: [n] of its line, in half rows from the top.
        score: [n] log probability of its class.
        span: [n, 2] the half rows, from and to, that it covers.
    """
    new = torch.ones_like(word, dtype=torch.bool)
    new[1:] = (word[1:] != word[:-1]) | (letter[1:] != letter[:-1])
    run = new.cumsum(0) - 1
    count, letters, owner = int(run[-1]) + 1, letter[new], word[new]
    centre, score = _means(column + 0.5, run, count), _means(score, run, count)
    known, other = (letters > 0) & (letters < CLASSES - 1), letters == CLASSES - 1
    words = []
    numbers = owner[letters > 0].unique()
    parts, columns = (  # where each word begins and ends
        torch.stack(
            [torch.searchsorted(each.contiguous(), numbers, right=right) for right in (False, True)], 1
        ).tolist()
        for each in (owner, word)
    )
    for (start, end), (left, right) in zip(parts, columns, strict=True):
        some, unread = (start + each[start:end].nonzero()[:, 0] for each in (known, other))
        text = "".join(CHARACTERS[each - 1] for each in letters[some].tolist())
        confidence = float(score[some].mean().exp()) if text else 0.0
        at, others = centre[some].tolist(), centre[unread].tolist()
        covered = float(span[left:right, 0].min()), float(span[left:right, 1].max())
        row = float(middle[left:right].mean())
        words.append(Word(text, tuple(at), row, confidence, tuple(others), covered))
    return words


def either(fine: list[Word], coarse: list[Word]) -> list[Word]:
    """The words of a page that was read at two sizes; of what lies in one place, what was read with more confidence.

    Args:
        fine: words at full size.
        coarse: words at a smaller size, enlarged (`Word.enlarged`).
    """
    kept = list(fine)
    for word in sorted(coarse, key=lambda word: -word.confidence):
        if not word.text or word.confidence < _SURE:
            continue
        left, right = word.columns[0], word.columns[-1]
        here = [
            other
            for other in kept
            if word.span[0] <= other.row <= word.span[1]
            and (at := other.columns or other.unread)
            and at[0] - COLUMNS / 2 <= right
            and at[-1] + COLUMNS / 2 >= left
        ]
        count = sum(len(other.text) + len(other.unread) for other in here)
        before = sum(other.confidence * len(other.text) for other in here) / max(1, count)
        if word.confidence > before + _MARGIN:
            kept = [other for other in kept if other not in here] + [word]
    return kept


def merged(given: Sequence[Word], read: Sequence[Word]) -> list[Word]:
    """Given words, and those that the network read where none of them is."""
    kept = list(given)
    for word in read:
        at = word.columns or word.unread
        taken = any(
            other.span[0] - 0.5 <= word.row <= other.span[1] + 0.5
            and (there := other.columns or other.unread)
            and there[0] - COLUMNS / 2 <= at[-1]
            and there[-1] + COLUMNS / 2 >= at[0]
            for other in given
        )
        if at and not taken:
            kept.append(word)
    return kept


def _count_characters(held: np.ndarray, word: Word) -> None:
    """Adds the characters of a word to the counts of each patch in its row [G, 2], see `TextReader.read`."""
    for columns, value in ((word.columns, (1.0, word.confidence)), (word.unread, (1.0, 0.0))):
        patches = np.array(columns, np.float32).astype(np.int64) // COLUMNS
        within = (patches >= 0) & (patches <= len(held))
        np.add.at(held, patches[within].clip(max=len(held) - 1), value)


def _centre(word: Word) -> float:
    columns = word.columns or word.unread
    return (columns[0] + columns[-1]) / 2 if columns else 0.0


def line_slope(words: list[Word]) -> float:
    """By how many half rows the lines of a page fall in a column; 0 for level lines, or if there are too few.

    It is the median over pairs of words in one line: first of neighbours, then of words that are farther apart.
    """
    some = [word for word in words if len(word.columns) > 1]
    if len(some) < _PAIRS:
        return 0.0
    start, end, row = (
        np.array(each) for each in zip(*((w.columns[0], w.columns[-1], w.row) for w in some), strict=True)
    )
    centre = (start + end) / 2
    gap, apart, fall = (np.subtract.outer(*each).T for each in ((start, end), (centre, centre), (row, row)))
    slope, pairs = 0.0, (gap > 0) & (apart > 0) & (gap < _WORDS_APART) & (abs(fall) < 0.8)
    for _ in range(3):
        if pairs.sum() < _PAIRS:
            return 0.0
        slope = float(np.median(fall[pairs] / apart[pairs]))
        pairs = (gap > 0) & (apart > 60) & (apart < 500) & (abs(fall - slope * apart) < 0.6)
    return slope if _LEVEL < abs(slope) < _STEEP else 0.0


def placed(words: list[Word], count: int) -> list[tuple[Word, int]]:
    """Words from left to right, each with its half row of `count`; then those without a predicted character.

    Lines that rise or fall (`line_slope`) are turned about the middle of the page, so that each is in one half row. The
    half row is that of the word's middle, or that of the word before it in its line if it is near. Otherwise a line
    along the border of two half rows would be divided between them, and read in the wrong order.
    """
    slope = line_slope(words)
    if slope:
        words = [replace(word, row=word.row - slope * (_centre(word) - count * COLUMNS / 4)) for word in words]
    read = sorted((word for word in words if word.text), key=lambda word: word.columns[0])
    ordered = [*read, *(word for word in words if not word.text)]
    rows = [min(max(int(word.row), 0), count - 1) for word in ordered]
    start, end, middle = (
        np.array([each[n] for each in ((w.columns[0], w.columns[-1], w.row) for w in read)]) for n in range(3)
    )
    for number, word in enumerate(read):
        gap = start[number] - end
        before = (gap > 0) & (gap < _WORDS_APART) & (abs(middle - word.row) < 0.5)
        if before.any():
            kept = rows[int(np.where(before, gap, np.inf).argmin())]
            if kept - 0.3 < word.row < kept + 1.3:
                rows[number] = kept
    return list(zip(ordered, rows, strict=True))
