"""What each patch shows: which characters cover it, and the wordpieces that begin in it.

Characters are said for cells of a quarter of a patch's width and half of its height, each of which shows part of one
character or none: the label of a cell depends on the pixels around it, not on how many characters stand before it.

Near an edge between patches the image does not tell in which of the two a wordpiece begins: the centre of its first
character is not visible to the pixel. So its target is the patch at that edge which the encoder already scores higher
for it (`Print.placed_by`), in one row for all wordpieces of a line.

Notation: B crops or pages, G side of their grid, S slots of a patch, n characters, m wordpieces.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.data.domains.page import UNKNOWN, Line
from arr_coc.modeling.wordpieces import PIECE_SLOTS, NamedPieces

from .vocabulary import Wordpieces, class_of

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

    def placed_by(self, named: NamedPieces, rows: Callable[[Tensor], Tensor]) -> Tensor:
        """[m] the one of the nearby patches that scores each wordpiece highest, in one row for each line.

        Args:
            named: predictions for patches [B, G, G].
            rows: of wordpieces [m] what directions are compared with, [m, D + E], see `WordpieceHead.rows`.
        """
        patches = self.nearby(named.count.shape[1])
        if not len(patches):
            return patches[:, 0]
        directions = F.normalize(named.pieces.detach().flatten(0, 2)[patches].float(), dim=-1)  # [m, 4, S, D]
        wanted = rows(self.piece.clamp(min=0)).detach().float()
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
