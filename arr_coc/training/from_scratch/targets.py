"""What a page shows, as arrays: its pixels, and which field's name stands under each patch."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from arr_coc.data import FIELDS, Box, Entry, box_targets

SLOTS = 3
"""Characters named per patch, left to right: the narrowest letters are about a third of a patch wide."""


def fitted(image: Image.Image, side: int) -> np.ndarray:
    """A square page as uint8 [side, side, 3], resized as the image processor does."""
    page = image.convert("RGB")
    return np.asarray(page if page.width == side else page.resize((side, side), Image.Resampling.BICUBIC))


def pixels(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [3, H, W] in -1..1: what the image processor does with its default mean and std."""
    return image.astype(np.float32).transpose(2, 0, 1) / 127.5 - 1


def word_targets(
    entries: Sequence[Entry], labels: Sequence[tuple[str, Box]] = (), *, size: int, grid: int
) -> np.ndarray:
    """int64 [grid, grid]: 1 + index in `FIELDS` on the patches of a field's label, else 0.

    -100 stands on labels that `FIELDS` lacks, and everywhere without labels.

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
