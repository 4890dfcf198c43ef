"""What each patch shows: the characters whose centres are in it, and the wordpieces that begin with one of them.

Near an edge between patches it is a coin's toss which of the two shows a character: whoever sees only the picture
cannot know its centre to the pixel. So the encoder is told that a character belongs to whichever of the patches about
the edge names it with more conviction already (`Print.placed_by`), one row for all characters of a line.

Notation: B crops or pages, G side of their grid, S slots of a patch, n characters, m wordpieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from arr_coc.data.text_page import UNKNOWN, Line
from arr_coc.modeling.wordpieces import PIECE_SLOTS

from .vocabulary import Wordpieces, class_of

CHARACTER_SLOTS = 5
"""Characters named per patch; at 11 px per em a patch of 16 px holds three digits."""
NEAR = 0.2
"""Of a patch's side: characters whose centre is so near an edge may belong to the patch behind it."""


@dataclass(frozen=True)
class Print:
    """The text on B crops.

    Attributes:
        crop: [n] the crop of each character.
        line: [n] the number of its line.
        centre: [n, 2] (x, y), in patches.
        character: [n] its class.
        first: [m] the character that each wordpiece begins with, by its index.
        piece: [m] the wordpiece's id; -1 where the edge of the crop cuts its word, or nobody
            can name a character of it.
    """

    crop: Tensor
    line: Tensor
    centre: Tensor
    character: Tensor
    first: Tensor
    piece: Tensor

    def to(self, device: torch.device) -> "Print":
        """The same on `device`."""
        return Print(*(getattr(self, each.name).to(device) for each in fields(self)))

    def nearby(self, side: int) -> Tensor:
        """[n, 4] the patch of each character's centre and those behind near edges, numbered on over the crops."""
        own = self.centre.floor().clamp(0, side - 1)
        within = self.centre - own
        beyond = (own + (within > 1 - NEAR).long() - (within < NEAR).long()).clamp(0, side - 1)
        (x, y), (other_x, other_y) = own.long().unbind(1), beyond.long().unbind(1)
        patches = [y * side + x, y * side + other_x, other_y * side + x, other_y * side + other_x]
        return self.crop[:, None] * side**2 + torch.stack(patches, 1)

    def placed_by(self, logits: Tensor) -> Tensor:
        """[n] the one of the nearby patches where each character is named with most conviction, a row for each line.

        Args:
            logits: [B, G, G, S, classes] of characters.
        """
        patches = self.nearby(logits.shape[1])
        if not len(patches):
            return patches[:, 0]
        named = logits.detach().float().log_softmax(-1).flatten(0, 2)  # [B*G*G, S, classes]
        classes = self.character[:, None, None, None].expand(-1, 4, named.shape[1], 1)
        conviction = named[patches].gather(-1, classes).amax((2, 3)).view(-1, 2, 2)  # [n, row, column]
        rows = conviction.amax(2)
        row = rows.new_zeros(int(self.line.max()) + 1, 2).index_add_(0, self.line, rows).argmax(1)[self.line]
        column = conviction.gather(1, row[:, None, None].expand(-1, 1, 2))[:, 0].argmax(1)
        return patches.gather(1, (2 * row + column)[:, None])[:, 0]

    def targets(self, crops: int, side: int, patches: Tensor) -> "Targets":
        """What each patch shows, line by line and from left to right; what is beyond the slots is dropped.

        Args:
            crops: B.
            side: G.
            patches: [n] the patch of each character.
        """
        count = crops * side**2
        lower = (self.centre[:, 1] - patches % side**2 // side >= 0.5).long()  # of two lines in a patch the second
        order = _order(patches, lower, self.centre[:, 0])
        characters = _in_slots(patches[order], self.character[order], count, CHARACTER_SLOTS, 0)
        at = patches[self.first]
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        by_place = rank[self.first].argsort(stable=True)  # pieces of one character stay in their order
        pieces = _in_slots(at[by_place], self.piece[by_place], count, PIECE_SLOTS, -1)
        halves = _in_slots(at[by_place], lower[self.first[by_place]], count, PIECE_SLOTS, 0)
        pieces[at[self.piece < 0]] = -2
        return Targets(*(each.view(crops, side, side, -1) for each in (characters, pieces, halves)))


@dataclass(frozen=True)
class Targets:
    """What each patch of B crops shows.

    Attributes:
        characters: [B, G, G, CHARACTER_SLOTS] their classes, 0 for none.
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


def _in_slots(patches: Tensor, classes: Tensor, count: int, slots: int, none: int) -> Tensor:
    """[count, slots] classes of sorted patches in their slots."""
    targets = classes.new_full((count, slots), none)
    slot = torch.arange(len(patches), device=patches.device) - torch.searchsorted(patches, patches)
    fits = slot < slots
    targets[patches[fits], slot[fits]] = classes[fits]
    return targets


def printed(crops: Sequence[Sequence[Line]], side: float, patch: float, cut: Wordpieces) -> Print:
    """The text on square crops.

    Args:
        crops: of each its lines, whose boxes are in px from the crop's corner and may reach beyond it.
        side: of a crop, px.
        patch: side of a patch, px.
        cut: into wordpieces.
    """
    rows: list[tuple[int, int, float, float, int]] = []
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
                        rows.append((crop, number, float(x[start + offset]), middle, class_of(word[offset])))
                    whole = bool(seen.all()) and UNKNOWN not in word
                    for piece in cut(word):
                        if seen[piece.start]:
                            pieces.append((first + int(where[piece.start]), piece.id if whole else -1))
                start += len(word) + 1
            number += 1
    table = np.array(rows, np.float32).reshape(-1, 5)
    owner, row, character = (torch.from_numpy(table[:, column].astype(np.int64)) for column in (0, 1, 4))
    begun = torch.from_numpy(np.array(pieces, np.int64).reshape(-1, 2))
    return Print(owner, row, torch.from_numpy(table[:, 2:4] / patch), character, *begun.unbind(1))
