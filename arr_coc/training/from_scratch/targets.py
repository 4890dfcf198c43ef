"""The content of a page as arrays: pixels, the field's name in each patch, and the characters of each patch.

A character belongs to the patch of its centre; near an edge, to the patch in which an encoder predicts it. The centre
of a character is half its advance and half the height of its line's capitals, which no ink marks exactly. Near an edge
the picture does not decide between two patches, and an encoder that is trained on one of them learns both: copies, or
gaps. So its target is the patch at the edge in which it already predicts more of the character, and none of the others.
The characters of a line stay in one row of patches: between two rows, their order would be lost.

Notation: P pages, G side of the grid, n characters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arr_coc.data import FIELDS, Box, Entry, Glyph, box_targets
from arr_coc.data.glyphs import class_of, in_slots

SLOTS = 3
"""Most characters of a patch, left to right: the narrowest letters are about a third of a patch wide."""


def fitted(image: Image.Image, side: int) -> np.ndarray:
    """A square page as uint8 [side, side, 3], resized as the image processor does."""
    page = image.convert("RGB")
    return np.asarray(page if page.width == side else page.resize((side, side), Image.Resampling.BICUBIC))


def pixels(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [3, H, W] in -1..1, as in the image processor with its default mean and std."""
    return image.astype(np.float32).transpose(2, 0, 1) / 127.5 - 1


def word_targets(
    entries: Sequence[Entry], labels: Sequence[tuple[str, Box]] = (), *, size: int, grid: int
) -> np.ndarray:
    """int64 [grid, grid]: 1 + index in `FIELDS` on the patches of a field's label, else 0.

    It is -100 on labels outside `FIELDS`, and everywhere without labels.

    Args:
        entries: fields with their labels.
        labels: further fields and the boxes of their labels.
        size: side of the page, px.
        grid: of patches.
    """
    named = [*((entry.field, entry.label_box) for entry in entries), *labels]
    targets = np.full((grid, grid), 0 if named else -100, np.int64)
    for field, box in named:
        targets[box_targets([box], size=size, grid=grid) > 0] = 1 + FIELDS.index(field) if field in FIELDS else -100
    return targets


NEAR = 0.2
"""Share of a patch's side: characters whose centre is so near an edge may belong to the next patch."""


@dataclass(frozen=True)
class Shown:
    """The characters on P pages.

    Attributes:
        pages: [n] page of each.
        classes: [n] 1 + index in `CHARSET`.
        centres: [n, 2] (x, y), in patches.
    """

    pages: Tensor
    classes: Tensor
    centres: Tensor

    def nearby(self, side: int) -> Tensor:
        """[n, 4] the patch of each character's centre, and those behind near edges, numbered over the pages.

        Without a near edge, or at the page's edge, a patch comes twice.
        """
        own = self.centres.floor().clamp(0, side - 1)
        within = self.centres - own
        beyond = own + (within > 1 - NEAR).long() - (within < NEAR).long()
        (x, y), (other_x, other_y) = own.long().unbind(1), beyond.clamp(0, side - 1).long().unbind(1)
        patches = [y * side + x, y * side + other_x, other_y * side + x, other_y * side + other_x]
        return self.pages[:, None] * side**2 + torch.stack(patches, 1)

    @property
    def lines(self) -> Tensor:
        """[n] the number of each character's line: lines have centres of equal height."""
        heights = (self.centres[:, 1].double() * 1000).round().long()
        return torch.unique(self.pages * 10**9 + heights, return_inverse=True)[1]

    def put_by(self, logits: Tensor) -> Tensor:
        """[n] the nearby patch in which each character is predicted with the highest confidence, line by line.

        Args:
            logits: [P, G, G, SLOTS, 1 + characters] of a `ReadingHead`.
        """
        patches = self.nearby(logits.shape[1])
        if not len(patches):
            return patches[:, 0]
        named = logits.detach().float().log_softmax(-1).flatten(0, 2)  # [P*G*G, SLOTS, classes]
        classes = self.classes[:, None, None, None].expand(-1, 4, SLOTS, 1)
        conviction = named[patches].gather(-1, classes).amax((2, 3)).view(-1, 2, 2)  # [n, row, column]
        lines, rows = self.lines, conviction.amax(2)
        row = rows.new_zeros(int(lines.max()) + 1, 2).index_add_(0, lines, rows).argmax(1)[lines]
        column = conviction.gather(1, row[:, None, None].expand(-1, 1, 2))[:, 0].argmax(1)
        return patches.gather(1, (2 * row + column)[:, None])[:, 0]

    def named(self, logits: Tensor) -> Tensor:
        """[n] the confidence of each character's prediction on the nearby patches, summed over their slots, at most 1.

        Args:
            logits: [P, G, G, SLOTS, 1 + characters] of a `ReadingHead`.
        """
        patches = self.nearby(logits.shape[1])
        confidence = logits.float().softmax(-1).sum(-2).flatten(0, 2)  # [P*G*G, classes]
        again = (patches[:, :, None] == patches[:, None]).tril(-1).any(2)  # predicted before, in the same row
        return confidence[patches, self.classes[:, None]].masked_fill(again, 0.0).sum(1)

    def put_anywhere(self, side: int, generator: torch.Generator) -> Tensor:
        """[n] the nearby patches of characters after a small random shift of each line."""
        lines = self.lines
        drawn = torch.rand((int(lines.max()) + 1 if len(lines) else 0, 2), generator=generator).to(self.centres)
        x, y = (self.centres + NEAR * (2 * drawn - 1)[lines]).floor().clamp(0, side - 1).long().unbind(1)
        return self.pages * side**2 + y * side + x

    def targets(self, pages: int, side: int, patches: Tensor | None = None) -> Tensor:
        """int64 [P, G, G, SLOTS]: the characters of each patch from left to right, 0 for none.

        Args:
            pages: P.
            side: G.
            patches: [n] the patch of each; None: that of its centre.
        """
        at = self.nearby(side)[:, 0] if patches is None else patches
        x = self.centres[:, 0]
        filled = in_slots(at.cpu().numpy(), self.classes.cpu().numpy(), x.cpu().numpy(), pages * side**2, SLOTS)
        return torch.from_numpy(filled).view(pages, side, side, SLOTS).to(self.pages.device)

    def targets_for(self, logits: Tensor) -> Tensor:
        """`targets`, with the characters in the patches that such logits choose (`put_by`)."""
        return self.targets(len(logits), logits.shape[1], self.put_by(logits))

    def to(self, device: torch.device) -> "Shown":
        """The same on `device`."""
        return Shown(self.pages.to(device), self.classes.to(device), self.centres.to(device))


def shown(pages: Sequence[Sequence[Glyph]], patch: float) -> Shown:
    """The characters of pages, page by page.

    Args:
        pages: the characters of each.
        patch: side of a patch, in px of the glyphs' boxes.
    """
    glyphs = [glyph for page in pages for glyph in page]
    boxes = np.array([glyph.box for glyph in glyphs], np.float32).reshape(-1, 4)
    owners = np.repeat(np.arange(len(pages)), [len(page) for page in pages])
    classes = np.array([class_of(glyph.char) for glyph in glyphs], np.int64)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2 / patch
    return Shown(torch.from_numpy(owners), torch.from_numpy(classes), torch.from_numpy(centres))
