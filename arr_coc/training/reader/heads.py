"""What the encoder is trained to say of each patch: its characters, how many wordpieces begin there, and which.

Notation: B crops, G side of their grid, S slots, C channels of the features, D width of the language model, V rows of
its embedding table.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.modeling.wordpieces import NamedPieces, Spelling, WordpieceHead

from .targets import CELL_COLUMNS, CELL_ROWS, CELLS
from .vocabulary import CLASSES

NONE_WEIGHT = 0.2
"""Of the class "no character", which most cells are, and of patches where no wordpiece begins."""
NEGATIVES = 3000
"""Rows of the embedding table, besides those of the batch, that the right one is told from in a training step."""


@dataclass(frozen=True)
class Named:
    """What the heads say of patches: `pieces`, and `characters`, logits [..., CELLS, CLASSES]."""

    characters: Tensor
    pieces: NamedPieces


class RecognitionHead(nn.Module):
    """The model's own head for wordpieces, and one for characters that only training uses."""

    def __init__(self, channels: int, text_size: int, spelling: Spelling | None = None) -> None:
        super().__init__()
        self.characters = nn.Linear(channels, CELLS * CLASSES)
        self.wordpieces = WordpieceHead(channels, text_size, spelling)

    def forward(self, features: Tensor) -> Named:
        """Features [..., C] -> what they say."""
        characters = self.characters(features).unflatten(-1, (CELLS, CLASSES))
        return Named(characters, self.wordpieces(features))


class StemHead(nn.Module):
    """What the stem says of characters, two of its pixels in height and width for a patch; only training uses it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.characters = nn.Conv2d(width, CELLS // 4 * CLASSES, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, C, 2G, 2G] -> logits [B, G, G, CELLS, CLASSES]."""
        logits = self.characters(features).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        logits = logits.unflatten(1, (CELL_ROWS // 2, CELL_COLUMNS // 2, CLASSES))  # [B, r, c, classes, G, 2, G, 2]
        return logits.permute(0, 4, 6, 5, 1, 7, 2, 3).flatten(3, 6)


def character_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all cells [..., CELLS, classes], [..., CELLS]; the class 0, which most are, weighs less."""
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[0] = NONE_WEIGHT
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), weight=weight)


def count_loss(logits: Tensor, pieces: Tensor) -> Tensor:
    """Cross-entropy of how many wordpieces begin in each patch; patches with cut words do not count.

    Args:
        logits: [..., 1 + PIECE_SLOTS].
        pieces: [..., PIECE_SLOTS] ids, -1 for none, -2 for unknown ones.
    """
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[0] = NONE_WEIGHT
    counts = (pieces >= 0).sum(-1).masked_fill((pieces == -2).any(-1), -100)
    return F.cross_entropy(logits.flatten(0, -2).float(), counts.flatten(), weight=weight)


def half_loss(logits: Tensor, lower: Tensor, pieces: Tensor) -> Tensor:
    """Binary cross-entropy of which half of a patch the wordpieces in filled slots stand in; all [..., PIECE_SLOTS]."""
    filled = pieces >= 0
    if not filled.any():
        return logits.sum() * 0
    return F.binary_cross_entropy_with_logits(logits[filled].float(), lower[filled].float())


def piece_loss(
    head: WordpieceHead, directions: Tensor, pieces: Tensor, table: Tensor, generator: torch.Generator
) -> Tensor:
    """Cross-entropy of the wordpiece of each filled slot, among those of the batch and `NEGATIVES` others.

    Where wordpieces have spellings, that of the characters at their positions is added: of the other wordpieces few are
    almost alike.

    Args:
        head: what is trained.
        directions: [..., PIECE_SLOTS, D + E].
        pieces: [..., PIECE_SLOTS] ids, negative where a slot is not filled.
        table: [V, D] of the language model.
        generator: of the others.
    """
    filled = pieces >= 0
    ids = pieces[filled]
    if not len(ids):
        return directions.sum() * 0
    others = torch.randint(len(table), (NEGATIVES,), generator=generator).to(ids.device)
    rows = torch.unique(torch.cat((ids, others)))
    said = directions[filled]
    loss = F.cross_entropy(head.logits(said, head.rows(table, rows)), torch.searchsorted(rows, ids))
    if head.spelling is None:
        return loss
    spelled = head.spelling.characters(said[:, table.shape[1] :])
    return loss + F.cross_entropy(spelled.float().flatten(0, 1), head.spelling.letters[ids].long().flatten())
