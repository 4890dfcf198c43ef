"""Stand-ins that several test files share."""

from typing import Any

from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor

SIDE, PATCH, GRID = 64, 4, 16


def processor(**kwargs: Any) -> Any:
    return ArrCocImageProcessor(**{"size": {"height": SIDE, "width": SIDE}, "patch_size": PATCH, **kwargs})
