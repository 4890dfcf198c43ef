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

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from string import ascii_lowercase, digits

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
_BREAK = 6
"""Patches between wordpieces in a line beyond which the next one begins another column of the page."""
FOREMOST = 48
"""The number of most relevant patches whose tokens come last, right before the question."""
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
    """

    text: str
    columns: tuple[float, ...]
    row: float
    confidence: float = 1.0
    unread: tuple[float, ...] = ()


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
        self.line_head = nn.Conv2d(channels, 2 * CELL_COLUMNS, 1)
        self.character_head = nn.Linear(channels, CELL_COLUMNS * CLASSES)
        self.register_buffer("spellings", torch.zeros(rows, SPELLED, dtype=torch.uint8))
        self._ranks: tuple[int, int, dict[str, int]] | None = None

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
    def read(self, stem: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, C, R, R] of the stem -> wordpieces, and the confidence of characters.

        Returns:
            int32 [B, N, 2, S]: the wordpieces that begin in the upper and in the lower half of each patch, from left to
            right, -1 in empty slots; and float32 [B, N, 2] of each patch: the number of characters whose middle it
            holds, and the sum of their words' confidence, 0 for characters without a class.
        """
        side = stem.shape[-1] // 2
        pieces = np.full((len(stem), side * side, 2, PIECE_SLOTS), -1, np.int32)
        characters = np.zeros((len(stem), side * side, 2), np.float32)
        for page, held, words in zip(pieces, characters, [] if stem.is_meta else self._pages(stem), strict=False):
            rows = placed(words, 2 * side)
            for token, half_row, column in self.pieces_of(rows, side):
                slots = page[half_row // 2 * side + column, half_row % 2]
                if (free := np.flatnonzero(slots < 0)).size:
                    slots[free[0]] = token
            for word, half_row in rows:
                _count_characters(held.reshape(side, side, 2)[half_row // 2], word)
        return torch.from_numpy(pieces).to(stem.device), torch.from_numpy(characters).to(stem.device)

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
        label = _components(on, middles)[on]
        row, column = on.nonzero().unbind(1)
        at, own = (label * width + column).unique(return_inverse=True)  # columns of words, from the left in each
        word, column = at // width, at % width
        cell, cell_of = (word * width + column // CELL_COLUMNS).unique(return_inverse=True)
        covered = (cell_of[own] * height + row).unique()  # each half row of a cell counts once
        part, row = covered // height, covered % height
        features = _means(stem[:, row, cell[part] % width].t().float(), part, len(cell))
        best = self.characters(features.to(stem)).float().log_softmax(-1).max(-1)
        score, letter = (each.cpu()[cell_of, column % CELL_COLUMNS] for each in best)
        return words_of(word, column, letter, _means(middles[on], own, len(at)), score)

    def pieces_of(self, rows: list[tuple[Word, int]], side: int) -> Iterator[tuple[int, int, int]]:
        """The id, half row and column of patches of each wordpiece, from left to right, on a grid of `side` patches.

        `rows`: what `placed` returned.
        """
        for word, half_row in rows:
            for token, start in self.cut(word.text) if word.text else ():
                yield token, half_row, min(int(word.columns[start]) // COLUMNS, side - 1)

    def cut(self, word: str) -> list[tuple[int, int]]:
        """The wordpieces of a word behind a space, each with the index of its first character."""
        ranks = self._known()
        parts = [(" ", 0), *((character, at) for at, character in enumerate(word) if character in ranks)]
        return [piece for start in range(0, len(parts), _LONGEST) for piece in self._merged(parts[start:][:_LONGEST])]

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


def _components(on: Tensor, middles: Tensor) -> Tensor:
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


def words_of(word: Tensor, column: Tensor, letter: Tensor, middle: Tensor, score: Tensor) -> list[Word]:
    """The words of one page: the best path of each.

    Args:
        word: [n] the number of each column's word, ascending.
        column: [n] the number of each column on the page, ascending within a word.
        letter: [n] its class.
        middle: [n] of its line, in half rows from the top.
        score: [n] log probability of its class.
    """
    new = torch.ones_like(word, dtype=torch.bool)
    new[1:] = (word[1:] != word[:-1]) | (letter[1:] != letter[:-1])
    run = new.cumsum(0) - 1
    count, letters, owner = int(run[-1]) + 1, letter[new], word[new]
    centre, score = _means(column + 0.5, run, count), _means(score, run, count)
    known, other = (letters > 0) & (letters < CLASSES - 1), letters == CLASSES - 1
    words = []
    for number in owner[letters > 0].unique().tolist():
        some, unread = known & (owner == number), other & (owner == number)
        text = "".join(CHARACTERS[each - 1] for each in letters[some].tolist())
        confidence = float(score[some].mean().exp()) if text else 0.0
        row, columns, others = float(middle[word == number].mean()), centre[some].tolist(), centre[unread].tolist()
        words.append(Word(text, tuple(columns), row, confidence, tuple(others)))
    return words


def _count_characters(held: np.ndarray, word: Word) -> None:
    """Adds the characters of a word to the counts of each patch in its row [G, 2], see `TextReader.read`."""
    for columns, value in ((word.columns, (1.0, word.confidence)), (word.unread, (1.0, 0.0))):
        patches = np.array(columns, np.float32).astype(np.int64) // COLUMNS
        np.add.at(held, patches.clip(max=len(held) - 1), value)


def placed(words: list[Word], count: int) -> list[tuple[Word, int]]:
    """Words from left to right, each with its half row of `count`; then those without a predicted character.

    The half row is that of the word's middle, or that of the word before it in its line if it is near. Otherwise a line
    along the border of two half rows would be divided between them, and read in the wrong order.
    """
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


class Places(nn.Module):
    """Embedding of a token's place: its half row, its column, and whether it begins a line or a table cell
    (`line_breaks`). `mark` is added in proportion to a token's relevance; it starts at zero."""

    def __init__(self, side: int, text_size: int) -> None:
        super().__init__()
        self.side = side
        self.rows = nn.Embedding(2 * side, text_size)
        self.columns = nn.Embedding(side, text_size)
        self.line_break = nn.Parameter(torch.zeros(text_size))
        self.mark = nn.Parameter(torch.zeros(text_size))

    def start_weights(self, std: float) -> None:
        nn.init.zeros_(self.line_break)
        nn.init.zeros_(self.mark)

    def forward(
        self, half_rows: Tensor, columns: Tensor, side: int, breaks: Tensor | None = None,
        relevance: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Half rows [...] and columns [...] of a grid of `side` patches, `breaks` bool [...], and `relevance` [...] in
        0..1 -> [..., D]."""
        if side != self.side:
            half_rows, columns = half_rows * self.side // side, columns * self.side // side
        placed: Tensor = self.rows(half_rows) + self.columns(columns)
        if breaks is not None:
            placed = placed + breaks[..., None] * self.line_break
        return placed if relevance is None else placed + relevance[..., None] * self.mark


def line_breaks(half_rows: Tensor, columns: Tensor) -> Tensor:
    """bool [..., K], True on tokens in reading order that do not directly follow the token before them."""
    breaks = torch.ones_like(half_rows, dtype=torch.bool)
    gap = columns[..., 1:] - columns[..., :-1]
    breaks[..., 1:] = (half_rows[..., 1:] != half_rows[..., :-1]) | (gap > _BREAK) | (gap < 0)
    return breaks


def reading_order(filled: Tensor, rank: Tensor, place: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """The slots that become tokens, in reading order; those of the `FOREMOST` most relevant patches come last.

    If more slots are filled than there is room for, those of the most relevant patches are kept.

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
    filled_slots = filled.flatten(1).gather(1, chosen) & within
    behind = place + (rank < FOREMOST)[..., None] * (place.amax() + 1 if place.numel() else 0)
    order = behind.flatten(1).gather(1, chosen).masked_fill(~filled_slots, last).argsort(stable=True)
    return chosen.gather(1, order), filled_slots.gather(1, order)


def _folded() -> np.ndarray:
    """[256] each character class without case and accents: 1 to 26 for letters, 27 to 36 for digits, else 0."""
    codes = np.zeros(256, np.int64)
    for number, character in enumerate(CHARACTERS, 1):
        plain = unicodedata.normalize("NFD", character)[0].lower()
        if plain in ascii_lowercase:
            codes[number] = ord(plain) - ord("a") + 1
        elif plain in digits:
            codes[number] = ord(plain) - ord("0") + 27
    return codes


_FOLDED = _folded()
_CODES = 37
_REACH = 9
"""Characters over which matches are averaged."""


def spelling_match(pieces: Tensor, question_ids: Tensor, question_mask: Tensor, spellings: Tensor) -> Tensor:
    """How much of the text about each patch is spelled as in the question: [B, N, 2] in 0..1.

    The unit is three neighbouring letters or digits, so that a match survives other wordpieces, such as those of
    capitals, and characters that are read wrongly. The first channel is the share of matches about a patch; in the
    second a match counts less the more often its letters are on the page. A patch gets the greatest value of its
    characters. In a compiled graph, whose shapes no data may decide, nothing matches.

    Args:
        pieces: [B, N, 2, S] wordpieces of a page, -1 in empty slots.
        question_ids: [B, L] tokens of the question, where `question_mask` [B, L] is True.
        spellings: [V, SPELLED], see `TextReader`.
    """
    count, patches, _, slots = pieces.shape
    if torch.compiler.is_compiling() or pieces.is_meta:
        return torch.zeros(count, patches, 2, device=pieces.device)
    side, table = isqrt(patches), spellings.cpu().numpy()
    order = np.arange(patches).reshape(side, 1, side, 1)
    patch = np.broadcast_to(order, (side, 2, side, slots)).ravel()  # of the slots in reading order
    rows = pieces.view(count, side, side, 2, slots).transpose(2, 3).flatten(1).cpu().numpy()
    matches = np.zeros((count, patches, 2), np.float32)
    asked = (question_ids * question_mask).cpu().numpy()
    for row, question, out in zip(rows, asked, matches, strict=True):
        filled = np.flatnonzero(row >= 0)
        codes, owner = _codes(table[row[filled]])
        wanted, _ = _codes(table[question])
        if len(codes) < 3 or len(wanted) < 3:
            continue
        units = _trigrams(codes)
        _, same, often = np.unique(units, return_inverse=True, return_counts=True)
        hits = np.isin(units, _trigrams(wanted)) & (units >= 0)
        at = patch[filled[owner]]
        for channel, weight in enumerate((np.ones(len(units)), often[same] ** -0.5)):
            begins = np.pad(hits * weight, (0, 2))  # a unit covers three characters
            covers = np.maximum(begins, np.maximum(np.roll(begins, 1), np.roll(begins, 2)))
            about = np.convolve(covers, np.full(_REACH, 1 / _REACH), "same")[: len(at)]
            np.maximum.at(out[:, channel], at, about * (covers > 0))
    return torch.from_numpy(matches).to(pieces.device)


def _codes(spelled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Folded characters of wordpieces [n, SPELLED], one 0 for all that stands between words, and whose each is."""
    written = spelled > 0
    codes, owner = _FOLDED[spelled[written]], np.repeat(np.arange(len(spelled)), written.sum(1))
    kept = np.ones(len(codes), bool)
    kept[1:] = (codes[1:] > 0) | (codes[:-1] > 0)
    return codes[kept], owner[kept]


def _trigrams(codes: np.ndarray) -> np.ndarray:
    """[n - 2] a number for each three neighbours; -1 where two of them are no letters or digits."""
    first, middle, last = codes[:-2], codes[1:-1], codes[2:]
    numbers = (first * _CODES + middle) * _CODES + last
    few = np.minimum(first, 1) + np.minimum(middle, 1) + np.minimum(last, 1) < 2
    return np.where(few, -1, numbers)
