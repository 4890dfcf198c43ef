"""Boxes that a call gives, for strategy "oracle": which patches of each image slot they lie on.

Notation: I image slots, N patches of a grid. Boxes are x0, y0, x1, y1 in px of the source.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .image_processing_arr_coc import ArrCocImageProcessor, Box, boxes_to_patches
from .vision_tower import ImageEncoding


def relevance_of_boxes(
    boxes: Sequence[Sequence[Box]], slots: Sequence[int], encoding: ImageEncoding, processor: ArrCocImageProcessor
) -> Tensor:
    """[I, N] 1 on the patches under the boxes of each slot, which shows the image of that number.

    Raises:
        ValueError: images whose size is not known.
    """
    if encoding.source_sizes is None:
        raise ValueError("boxes: expected an image whose size is known; got an encoding of bare pixel_values")
    rows = []
    for slot, listed in zip(slots, boxes, strict=True):
        mapped = processor.map_boxes(listed, *encoding.source_sizes[slot])
        rows.append(torch.from_numpy(boxes_to_patches(mapped, encoding.side, processor.patch_size)).flatten())
    return torch.stack(rows).float().to(encoding.tokens.device)


def boxes_per_slot(boxes: Any, slots: int) -> list[Any]:
    """A list of boxes for one slot, or a list of such lists -> one list of boxes per slot.

    Raises:
        ValueError: not as many lists as slots.
    """
    rows = list(boxes)
    single = not rows or any(len(row) and not hasattr(row[0], "__len__") for row in rows)
    nested = [rows] if single else rows
    if len(nested) != slots:
        raise ValueError(f"boxes: expected one list per question and image ({slots}); got {len(nested)}")
    return nested
