"""Boxes that a call gives, for strategy "oracle": which patches of each image slot they lie on.

Notation: I image slots, N patches of a grid. Boxes are x0, y0, x1, y1 in px of the source.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .image_processing_arr_coc import ArrCocImageProcessor, Box, boxes_to_patches
from .vision_tower import ImageEncoding


def relevance_of_boxes(
    boxes: Sequence[Sequence[Box]], slots: Sequence[int], encoding: ImageEncoding, processor: ArrCocImageProcessor
) -> Tensor:
    """[I, N] 1 on the patches under the boxes of each slot, which shows the image of that number.

    Raises:
        ValueError: not as many lists as slots, or images whose size is not known.
    """
    if len(boxes) != len(slots):
        raise ValueError(f"boxes: expected one list per question and image ({len(slots)}); got {len(boxes)}")
    if encoding.source_sizes is None:
        raise ValueError("boxes: expected an image whose size is known; got an encoding of bare pixel_values")
    rows = []
    for slot, listed in zip(slots, boxes, strict=True):
        mapped = processor.map_boxes(listed, *encoding.source_sizes[slot])
        rows.append(torch.from_numpy(boxes_to_patches(mapped, encoding.side, processor.patch_size)).flatten())
    return torch.stack(rows).float().to(encoding.tokens.device)
