"""Bridges: vision tokens -> language-model embeddings.

Notation: B batch, S tokens (M base tokens of an image, or its K fetched tokens), D' semantic width, D language-model
width, V rows of a table, W visual words of a place.

Base tokens pass first and alone. Fetched tokens may attend to them (`Bridged.cache`), never the reverse, so base tokens
do not depend on what is fetched.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from .checks import Registry
from .configuration_arr_coc import COMPRESSION, INDICATORS, ArrCocBridgeConfig
from .image_encoding import KeyValue
from .wordpieces import PIECE_SLOTS

BRIDGES: Registry[type["Bridge"]] = Registry("bridge")


@dataclass(frozen=True)
class Bridged:
    """The output of a bridge."""

    tokens: Tensor  # [B, S, D]
    cache: list[KeyValue] = field(default_factory=list)  # of these tokens, for each layer of attention across tokens
    # [B] bool, True where an adapter failed its check and the linear projection replaced it; None without an adapter.
    failed: Tensor | None = None
    # [B, S] int64, the number of the fetched patch that each token comes from; -1 on empty tokens, which are 0 and do
    # not go into the prompt. None: token and patch have the same number.
    source: Tensor | None = None


@dataclass(frozen=True)
class ReadPatches:
    """The wordpieces that were read in the patches of tokens."""

    pieces: Tensor  # [B, N, 2, S] of all patches for base tokens, [B, K, 2, S] of fetched ones, see `TextReader.read`
    table: Tensor  # [V, D] the language model's embeddings
    side: int  # G
    opens: Tensor | None = None  # bool [V], True on wordpieces that begin a word; None: not known, no token is marked
    indices: Tensor | None = None  # [B, K] numbers of fetched patches, row-major
    rank: Tensor | None = None  # [B, K] their rank by relevance, from 0
    relevance: Tensor | None = None  # [B, K] in 0..1, predicted by a trained scorer; None: not known
    room: Tensor | None = None  # [B] the most tokens of each item, at most K; None: one for each patch that is used
    # [B, K] the view of each fetched patch, if there are several, whose texts follow one another.
    view: Tensor | None = None


class Bridge(nn.Module):
    """Base class: maps base tokens, then fetched tokens, to the language model's width."""

    # Whether pooling averages the states of cells before the bridge; else their tokens behind it.
    reads_pooled: ClassVar[bool] = True
    # Whether tokens are made of wordpieces (`ReadPatches`) alone, in places of their own (`Bridged.source`): the model
    # then has a text reader, and neither compressor nor semantic encoder.
    places_tokens: ClassVar[bool] = False

    def forward(
        self,
        semantic: Tensor,
        compressed: Tensor,
        *,
        base: list[KeyValue] | None = None,
        bypass: bool = False,
        used: Tensor | None = None,
    ) -> Bridged:
        """Semantic states and compressed features (fetched tokens: projected ones), each [B, S, D'] -> tokens.

        `base`: None for base tokens; for fetched tokens, the `cache` of their base tokens, which may be []; `bypass`:
        use the linear projection alone; `used`: [B, S] bool, False on fetched tokens that only fill the rectangle: no
        token attends to them; None: all are used.

        Raises:
            ValueError: `bypass` for a bridge without a linear projection.
        """
        raise NotImplementedError

    def indicators(self, device: torch.device) -> Tensor | None:
        """[4, D] image-start, image-end, video-start, video-end; None from bridges without such rows."""
        return None


@BRIDGES.register("linear")
class LinearBridge(Bridge):
    """DeepSeek's projector: one linear layer over [semantic state, compressed feature]."""

    def __init__(self, config: ArrCocBridgeConfig, *, vision_size: int, text_size: int) -> None:
        super().__init__()
        self.projection = nn.Linear(2 * vision_size, text_size)

    def forward(self, semantic: Tensor, compressed: Tensor, **_: Any) -> Bridged:
        return Bridged(self.projection(torch.cat((semantic, compressed), -1)))


class Correction(nn.Linear):
    """The last layer of a correction; it starts at zero, so that it changes nothing at first."""

    def start_weights(self, std: float) -> None:
        initialization.zeros_(self.weight)


# ---- visual embedding table ---------------------------------------------------------------------------------------


class VisualEmbeddingTable(nn.Embedding):
    """Ovis' table of visual words [V, D]; the last rows are indicators, which no probabilities refer to."""

    def forward(self, words: Tensor) -> Tensor:
        """Row numbers [...] -> those rows; probabilities [..., V - 4] -> their mixture of rows, each [..., D]."""
        if not words.is_floating_point():
            return super().forward(words)
        return words.to(self.weight.dtype) @ self.weight[: words.shape[-1]]


@BRIDGES.register("vet")
class VisualTableBridge(Bridge):
    """Ovis2.5's visual tokenizer: probabilities of visual words, and the mixture of a table's rows by them.

    Source: Ovis (Lu et al. 2024): Linear, LayerNorm, softmax in float32, table.
    """

    def __init__(self, config: ArrCocBridgeConfig, *, vision_size: int, text_size: int) -> None:
        super().__init__()
        words = config.table_size - INDICATORS
        self.head = nn.Sequential(nn.Linear(2 * vision_size, words, bias=False), nn.LayerNorm(words))
        self.table = VisualEmbeddingTable(config.table_size, text_size)

    def forward(self, semantic: Tensor, compressed: Tensor, *, bypass: bool = False, **_: Any) -> Bridged:
        if bypass:
            raise ValueError('bridge_bypass: expected a bridge with a linear projection; got "vet"')
        logits = self.head(torch.cat((semantic, compressed), -1))
        return Bridged(self.table(logits.softmax(-1, dtype=torch.float32)))

    def indicators(self, device: torch.device) -> Tensor:
        rows = self.table.num_embeddings
        return self.table(torch.arange(rows - INDICATORS, rows, device=device))


@BRIDGES.register("cells")
class CellBridge(LinearBridge):
    """Base tokens from visual words for each place of their cell; fetched tokens from the linear projection.

    A base token represents 4x4 patches, too many for one mixture of rows. So each place of its cell has vocabularies of
    its own (`place_words`), with one softmax each. The token is the sum of all their mixtures and of a linear
    projection for the rest. The language model then reads a few table rows that name characters and their places.

    Source: Ovis' table of visual words (Lu et al. 2024), here one for each place; sums of vectors bound to places are
    tensor products (Smolensky 1990).
    """

    reads_pooled: ClassVar[bool] = False

    def __init__(self, config: ArrCocBridgeConfig, *, vision_size: int, text_size: int) -> None:
        super().__init__(config, vision_size=vision_size, text_size=text_size)
        self.place_words = list(config.place_words)
        rows = COMPRESSION**2 * sum(self.place_words)
        self.norm = nn.LayerNorm(2 * vision_size)
        self.head = nn.Linear(2 * vision_size, rows)
        self.table = VisualEmbeddingTable(rows, text_size)
        self.rest = nn.Linear(2 * vision_size, text_size)

    def words(self, semantic: Tensor, compressed: Tensor) -> Tensor:
        """Logits [B, M, 16, W] of the words at each place of a base token's cell, row by row, all vocabularies' W."""
        logits: Tensor = self.head(self.norm(torch.cat((semantic, compressed), -1)))
        return logits.unflatten(-1, (COMPRESSION**2, -1))

    def forward(
        self,
        semantic: Tensor,
        compressed: Tensor,
        *,
        base: list[KeyValue] | None = None,
        bypass: bool = False,
        **_: Any,
    ) -> Bridged:
        if bypass or base is not None:
            return super().forward(semantic, compressed)
        words = self.words(semantic, compressed).split(self.place_words, -1)
        mixture = torch.cat([logits.softmax(-1, dtype=torch.float32) for logits in words], -1)
        return Bridged(self.table(mixture.flatten(2)) + self.rest(torch.cat((semantic, compressed), -1)))


# ---- the language model's own wordpieces ----------------------------------------------------------------------------


_BREAK = 6  # patches between wordpieces in a line beyond which the next one begins another column of the page
FOREMOST = 48  # the number of most relevant patches whose tokens come once more, right before the question


class Places(nn.Module):
    """Embedding of a token's place: its half row, its column, and whether it begins a line or a table cell
    (`line_breaks`). `mark`, `best`, `first` and `last` are added in proportion to `word_marks`; they start at
    zero."""

    def __init__(self, side: int, text_size: int) -> None:
        super().__init__()
        self.side = side
        self.rows = nn.Embedding(2 * side, text_size)
        self.columns = nn.Embedding(side, text_size)
        self.line_break = nn.Parameter(torch.zeros(text_size))
        self.mark, self.best, self.first, self.last = (nn.Parameter(torch.zeros(text_size)) for _ in range(4))

    def start_weights(self, std: float) -> None:
        for each in (self.line_break, self.mark, self.best, self.first, self.last):
            nn.init.zeros_(each)

    def forward(
        self, half_rows: Tensor, columns: Tensor, side: int, breaks: Tensor | None = None, marks: Tensor | None = None
    ) -> Tensor:
        """Half rows [...] and columns [...] of a grid of `side` patches, `breaks` bool [...], and `marks` [..., 4] in
        0..1 (`word_marks`) -> [..., D]."""
        if side != self.side:
            half_rows, columns = half_rows * self.side // side, columns * self.side // side
        placed: Tensor = self.rows(half_rows) + self.columns(columns)
        if breaks is not None:
            placed = placed + breaks[..., None] * self.line_break
        if marks is None:
            return placed
        return placed + marks @ torch.stack((self.mark, self.best, self.first, self.last))


def line_breaks(half_rows: Tensor, columns: Tensor) -> Tensor:
    """bool [..., K], True on tokens in reading order that do not directly follow the token before them."""
    breaks = torch.ones_like(half_rows, dtype=torch.bool)
    gap = columns[..., 1:] - columns[..., :-1]
    breaks[..., 1:] = (half_rows[..., 1:] != half_rows[..., :-1]) | (gap > _BREAK) | (gap < 0)
    return breaks


def word_marks(relevance: Tensor, opens: Tensor, breaks: Tensor, question: Tensor | None = None) -> Tensor:
    """What marks tokens in reading order: [..., K, 4] in 0..1.

    The first is the mean relevance of a token's word. The second is its odds (relevance / (1 - relevance)) relative to
    those of the best word of the question. The third, on the first token of a word, says by how much these exceed those
    of the word before it, the fourth, on the last token, those of the word behind it. So the language model sees where
    a run of relevant words begins and ends. A word at the end of a line has no neighbour there: 0.

    `relevance`: [..., K] in 0..1, of each token's patch; `opens`: bool [..., K], True on tokens that begin a word;
    `breaks`: see `line_breaks`; `question`: int64 [..., K] from 0, that of each token; None: all are of one.
    """
    first = opens | breaks
    last, ends = F.pad(first[..., 1:], (0, 1), value=True), F.pad(breaks[..., 1:], (0, 1), value=True)
    word = first.long().cumsum(-1)
    empty = relevance.new_zeros(*word.shape[:-1], word.shape[-1] + 1)
    count = empty.scatter_add(-1, word, torch.ones_like(relevance)).clamp(min=1)
    mean = (empty.scatter_add(-1, word, relevance) / count).gather(-1, word)
    odds = mean / (1 - mean).clamp(min=1e-4)
    question = torch.zeros_like(word) if question is None else question
    best = empty.scatter_reduce(-1, question, odds, "amax").gather(-1, question)
    share = odds / best.clamp(min=1e-6)
    before, behind = F.pad(share[..., :-1], (1, 0)) * ~breaks, F.pad(share[..., 1:], (0, 1)) * ~ends
    rise, fall = ((share - other).clamp(min=0) for other in (before, behind))
    return torch.stack((mean, share, rise * first, fall * last), -1)


def reading_order(filled: Tensor, rank: Tensor, place: Tensor, room: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The slots that become tokens, in reading order; behind them those of the `FOREMOST` patches once more.

    The language model reads the text as it is printed, and right before the question what is most relevant for it. If
    there is no room for all slots, those of the most relevant patches are kept.

    `filled`: bool [B, K, S]; `rank`: [B, K] relevance rank of each patch, from 0; `place`: [B, K, S] whole numbers that
    grow in reading order; `room`: [B] tokens of each item, at most K.

    Returns:
        Slots [B, K] of the flattened [K * S], bool [B, K], True on those that are filled; these come first; and bool
        [B, K], True on those that come once more.
    """
    count, slots = filled.shape[1:]
    last = torch.iinfo(torch.int64).max
    by_rank = (rank[..., None] * slots + torch.arange(slots, device=rank.device)).masked_fill(~filled, last)
    best = by_rank.flatten(1).argsort(stable=True)[:, :count]
    again = (filled & (rank < FOREMOST)[..., None]).flatten(1).sum(1).minimum(room)
    number = torch.arange(count, device=room.device)
    places, stands = place.flatten(1).gather(1, best), filled.flatten(1).gather(1, best)
    kept = torch.cat([stands & (number < some[:, None]) for some in (room - again, again)], 1)
    behind = place.amax() + 1 if place.numel() else 0
    order = torch.cat((places, places + behind), 1).masked_fill(~kept, last).argsort(stable=True)[:, :count]
    return best.repeat(1, 2).gather(1, order), kept.gather(1, order), order >= count


@BRIDGES.register("wordpieces")
class WordpieceBridge(Bridge):
    """Tokens from the wordpieces that `TextReader` read in their patches: rows of the language model's own table.

    Several wordpieces or none may begin in a patch: the tokens of K patches are the filled slots of all, in reading
    order, at most K. A base token is the mean of the wordpieces of its cell. The embedding of its place on the page is
    added to each token. Those of the `FOREMOST` most relevant patches come once more, marked by the relevance of their
    words (`word_marks`).
    """

    reads_pooled: ClassVar[bool] = False
    places_tokens: ClassVar[bool] = True

    def __init__(self, config: ArrCocBridgeConfig, *, vision_size: int, text_size: int) -> None:
        super().__init__()
        self.places = Places(config.places, text_size)

    def forward(
        self,
        semantic: Tensor,
        compressed: Tensor,
        *,
        base: list[KeyValue] | None = None,
        bypass: bool = False,
        used: Tensor | None = None,
        patches: ReadPatches | None = None,
    ) -> Bridged:
        if bypass:
            raise ValueError('bridge_bypass: expected a bridge with a linear projection; got "wordpieces"')
        assert patches is not None, "bridges that place tokens take patches"
        if base is None:
            cells = patches.side // COMPRESSION
            return Bridged(self.mixtures(patches, cells) + self.cell_places(cells, patches.pieces.device))
        assert patches.indices is not None and patches.rank is not None, "fetched tokens have indices and ranks"
        pieces = patches.pieces.flatten(2)  # [B, K, 2S]
        filled, slots = pieces >= 0, pieces.shape[2]
        room = torch.full((len(filled),), filled.shape[1], device=filled.device)
        if used is not None:
            filled, room = filled & used[..., None], used.sum(1)
        room = room if patches.room is None else patches.room
        side, index = patches.side, patches.indices[..., None]
        slot = torch.arange(slots, device=filled.device)
        half_rows = 2 * (index // side) + slot // PIECE_SLOTS
        columns = (index % side).expand_as(half_rows)
        line = half_rows if patches.view is None else half_rows + 2 * side * patches.view[..., None]
        place = (line * side + columns) * PIECE_SLOTS + slot % PIECE_SLOTS
        chosen, filled_slots, again = reading_order(filled, patches.rank, place, room)
        ids, half_rows, columns = (values.flatten(1).gather(1, chosen) for values in (pieces, half_rows, columns))
        source = chosen // slots
        tokens = patches.table[ids.clamp(min=0)].to(self.places.line_break.dtype)
        again &= filled_slots
        breaks, marks = line_breaks(half_rows, columns) | (again & ~F.pad(again, (1, 0))[:, :-1]), None
        if patches.relevance is not None and patches.opens is not None:
            relevance = patches.relevance.gather(1, source) * again
            marks = word_marks(relevance, patches.opens[ids] | ~filled_slots, breaks).to(tokens)
        tokens = tokens + self.places(half_rows, columns, side, breaks, marks)
        source = source.masked_fill(~filled_slots, -1)
        return Bridged(tokens * filled_slots[..., None], source=source)

    def mixtures(self, patches: ReadPatches, cells: int) -> Tensor:
        """[B, M, D]: the mean of the wordpieces of each of `cells` x `cells` cells; 0 without any."""
        pieces = patches.pieces.flatten(2).unflatten(1, (cells, COMPRESSION, cells, COMPRESSION))
        ids = pieces.transpose(2, 3).reshape(len(pieces) * cells**2, -1).clamp(min=0).long()  # [B M, 32 S]
        means = F.embedding_bag(ids, patches.table, mode="mean", padding_idx=0)  # row 0 is never read
        return means.unflatten(0, (len(pieces), -1)).to(self.places.line_break.dtype)

    def cell_places(self, cells: int, device: torch.device) -> Tensor:
        """[M, D]: the embeddings of the places of base tokens, the middles of their `cells` x `cells` cells."""
        middle = torch.arange(cells, device=device) * COMPRESSION + COMPRESSION // 2
        rows, columns = torch.meshgrid(middle, middle, indexing="ij")
        return self.places(2 * rows.flatten(), columns.flatten(), cells * COMPRESSION)


# ---- planes for the language model's first layers -----------------------------------------------------------------


class DepthMerger(nn.Sequential):
    """States of one depth of the grid encoder [..., width] -> [..., D]; starts at zero, so it adds nothing at first."""

    def __init__(self, width: int, text_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, 1e-6)
        self.fc1 = nn.Linear(width, width)
        self.gelu = nn.GELU()
        self.fc2 = Correction(width, text_size)


class DeepStack(nn.Module):
    """The grid encoder's states at three depths; one of the language model's first layers adds each of them.

    Source: Meng et al. 2024 (DeepStack), as in Qwen3-VL. The depths are those of scorer "hierarchical".
    """

    def __init__(self, depth_size: int, feature_size: int, text_size: int) -> None:
        super().__init__()
        widths = {"low": depth_size, "mid": depth_size, "high": feature_size}
        self.levels = nn.ModuleDict({name: DepthMerger(width, text_size) for name, width in widths.items()})

    def forward(self, depths: list[Tensor]) -> Tensor:
        """States [B, S, width] at each depth (`ArrCocVisionTower.depths`) -> planes [B, S, 3, D]."""
        return torch.stack([merge(states) for merge, states in zip(self.levels.values(), depths, strict=True)], 2)
