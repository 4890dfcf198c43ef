"""Patches as wordpieces: which pieces of the language model's vocabulary begin under a patch, and in which order they
stand in the prompt.

A language model that was trained on text reads its own wordpieces at once. So what is fetched becomes rows of the
model's own embedding table, mixed by how probable each wordpiece is, with the place on the page added.

Notation: B batch, K fetched patches, S slots of a patch, G side of the fine grid, C width of a state, D width of
the language model, V rows of its embedding table, n filled slots.

Source: the mixture of a table's rows is Ovis' visual embedding table (Lu et al. 2024); here the table is the language
model's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

PIECE_SLOTS = 5
"""Wordpieces that may begin in one patch; a line and digits of 10 px in a patch of 16 px need four."""
_SCALE = 3.0
"""Logarithm of what cosines are multiplied by before training."""


@dataclass(frozen=True)
class NamedPieces:
    """What a head says of patches.

    Attributes:
        count: logits [..., 1 + S] of how many wordpieces begin.
        pieces: [..., S, D] a direction in the language model's embedding space for each slot.
        lower: [..., S] logits of whether the wordpiece stands in the lower half of the patch.
        scale: [] logarithm of what cosines with rows of the table are multiplied by.
    """

    count: Tensor
    pieces: Tensor
    lower: Tensor
    scale: Tensor


def piece_logits(directions: Tensor, table: Tensor, scale: Tensor) -> Tensor:
    """Directions [n, D] and rows [V, D] -> float32 logits [n, V]: scaled cosines.

    Args:
        directions: of any length.
        table: whose rows are of length 1, or of those by which `scale` is divided.
        scale: [] or [V], what products of unit directions with rows are multiplied by.
    """
    products = F.normalize(directions.float(), dim=-1).to(table.dtype) @ table.T
    return products.float() * scale


class WordpieceHead(nn.Module):
    """Linear heads on the state of a patch."""

    def __init__(self, width: int, text_size: int) -> None:
        super().__init__()
        self.text_size = text_size
        self.count = nn.Linear(width, 1 + PIECE_SLOTS)
        self.pieces = nn.Linear(width, PIECE_SLOTS * text_size)
        self.lower = nn.Linear(width, PIECE_SLOTS)
        self.scale = nn.Parameter(torch.tensor(_SCALE))

    def start_weights(self, std: float) -> None:
        initialization.constant_(self.scale, _SCALE)

    def forward(self, states: Tensor) -> NamedPieces:
        """States [..., C] -> what they say."""
        pieces = self.pieces(states).unflatten(-1, (PIECE_SLOTS, self.text_size))
        return NamedPieces(self.count(states), pieces, self.lower(states), self.scale)

    def logits(self, directions: Tensor, table: Tensor) -> Tensor:
        """`piece_logits` of rows of length 1 with the head's own scale."""
        return piece_logits(directions, table, self.scale.exp())


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
