"""Stand-ins that several test files share."""

from typing import Any

import numpy as np
from PIL import Image

from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor

SIDE, PATCH, GRID = 64, 4, 16


def processor(**kwargs: Any) -> Any:
    return ArrCocImageProcessor(**{"size": {"height": SIDE, "width": SIDE}, "patch_size": PATCH, **kwargs})


def noise(height: int = 20, width: int = 30, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)
