"""Patches as wordpieces: which pieces of the language model's vocabulary begin under a patch, and in which order they
stand in the prompt.

A language model that was trained on text reads its own wordpieces at once. So what is fetched becomes rows of the
model's own embedding table, mixed by how probable each wordpiece is, with the place on the page added.

A wordpiece is told from others by its embedding, and by its spelling: the sum of a code for each of its characters at
its position. So a head that has learnt characters names wordpieces that training never showed.

Notation: B batch, K fetched patches, S slots of a patch, G side of the fine grid, C width of a state, D width of
the language model, V rows of its embedding table, E width of a spelling, P its positions, n filled slots.

Source: the mixture of a table's rows is Ovis' visual embedding table (Lu et al. 2024); here the table is the language
model's.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

PIECE_SLOTS = 5
"""Wordpieces that may begin in one patch; a line and digits of 10 px in a patch of 16 px need four."""
SPELLED = 12
"""Characters of a wordpiece that its spelling holds."""
POSITIONS = SPELLED + 2
"""P: whether a space stands before the wordpiece, its characters, and their number."""
LETTERS = 256
"""Classes of what stands at a position; 0 is nothing."""
_SCALE = 3.0
"""Logarithm of what cosines are multiplied by before training."""


@dataclass(frozen=True)
class NamedPieces:
    """What a head says of patches.

    Attributes:
        count: logits [..., 1 + S] of how many wordpieces begin.
        pieces: [..., S, D + E] for each slot a direction in the language model's embedding space, and a spelling.
        lower: [..., S] logits of whether the wordpiece stands in the lower half of the patch.
        scale: logarithms of what cosines of directions and, if there are any, of spellings are multiplied by, [1] or
            [2]: as the head's weights may be offloaded, they are here.
    """

    count: Tensor
    pieces: Tensor
    lower: Tensor
    scale: Tensor


class Spelling(nn.Module):
    """How the wordpieces of a vocabulary are spelled.

    `letters` [V, P], what stands at each position, is a part of the checkpoint: the tokenizer is not asked again.
    """

    letters: Tensor

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(POSITIONS, LETTERS, size) * size**-0.5)
        self.register_buffer("letters", torch.zeros(rows, POSITIONS, dtype=torch.uint8))

    def start_weights(self, std: float) -> None:
        initialization.normal_(self.codes, std=self.codes.shape[-1] ** -0.5)
        initialization.zeros_(self.letters)

    def forward(self, ids: Tensor | None = None) -> Tensor:
        """Spellings [n, E] of wordpieces [n], or of all V, of length 1."""
        letters = (self.letters if ids is None else self.letters[ids]).long()
        at = letters + LETTERS * torch.arange(POSITIONS, device=letters.device)
        return F.normalize(F.embedding_bag(at, self.codes.flatten(0, 1), mode="sum").float(), dim=-1)

    def characters(self, spelled: Tensor) -> Tensor:
        """Scaled spellings [..., E] -> logits [..., P, LETTERS] of what stands at each position."""
        return (spelled @ self.codes.to(spelled.dtype).flatten(0, 1).T).unflatten(-1, (POSITIONS, LETTERS))


class WordpieceHead(nn.Module):
    """Linear heads on the state of a patch.

    Args:
        width: C.
        text_size: D.
        spelling: whose spellings tell wordpieces apart, beside their embeddings.
    """

    def __init__(self, width: int, text_size: int, spelling: Spelling | None = None) -> None:
        super().__init__()
        self.spelling, self.text_size = spelling, text_size
        self.piece_size = text_size + (0 if spelling is None else spelling.codes.shape[-1])
        self.count = nn.Linear(width, 1 + PIECE_SLOTS)
        self.pieces = nn.Linear(width, PIECE_SLOTS * self.piece_size)
        self.lower = nn.Linear(width, PIECE_SLOTS)
        self.scale = nn.Parameter(torch.full((1 if spelling is None else 2,), _SCALE))
        self._kept: tuple[list[Any], list[Tensor], Tensor] | None = None

    def start_weights(self, std: float) -> None:
        initialization.constant_(self.scale, _SCALE)

    def forward(self, states: Tensor) -> NamedPieces:
        """States [..., C] -> what they say."""
        pieces = self.pieces(states).unflatten(-1, (PIECE_SLOTS, self.piece_size))
        return NamedPieces(self.count(states), pieces, self.lower(states), self.scale)

    def rows(self, table: Tensor, ids: Tensor | None = None) -> Tensor:
        """What directions are compared with: [n, D + E] of the wordpieces `ids` [n], or of all V; parts of length 1.

        Those of all are kept from call to call while nothing is trained: to make them takes as long as to use them.

        Args:
            table: [V, D] the language model's embeddings; rows of 0, which padding has, stay so.
            ids: of wordpieces.
        """
        if ids is not None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._made(table, ids)
        parts = [table] if self.spelling is None else [table, self.spelling.codes, self.spelling.letters]
        made_of = [(part.data_ptr(), part._version, part.dtype, part.shape) for part in parts]
        if self._kept is None or self._kept[0] != made_of:
            self._kept = made_of, parts, self._made(table, None)  # the parts too: no other tensor gets their memory
        return self._kept[2]

    def _made(self, table: Tensor, ids: Tensor | None) -> Tensor:
        own = F.normalize(table if ids is None else table[ids], dim=-1, eps=1e-6)  # representable in half precision
        if self.spelling is None:
            return own
        return torch.cat((own, self.spelling(ids).to(own)), -1)

    def scaled(self, directions: Tensor, scale: Tensor) -> Tensor:
        """Directions [..., D + E] of any length -> float32, each part as long as its `scale` (`NamedPieces`) says."""
        parts = directions.float().tensor_split([self.text_size], -1)
        lengths = scale.float().exp()
        return torch.cat([F.normalize(part, dim=-1) * length for part, length in zip(parts, lengths, strict=False)], -1)

    def logits(self, directions: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
        """Directions [n, D + E] of any length and `rows` [m, D + E] -> float32 logits [n, m]."""
        return (self.scaled(directions, scale).to(rows.dtype) @ rows.T).float()


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
