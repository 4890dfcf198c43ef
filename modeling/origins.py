"""Origins: where the patches that were fetched for an answer stand, in px of what was asked about.

Notation: I image slots, K saccades.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .fetcher import FetchResult
from .image_processing_arr_coc import Box
from .joint_allocation import JointFetch
from .views import Views, square_of
from .vision_tower import ImageEncoding


@dataclass(frozen=True)
class Origin:
    """Where one saccade was fetched from.

    Attributes:
        source: which of the sources that the prompt shows, from 0.
        page: of a document, from 1, or None.
        second: of a video, or None.
        box: x0, y0, x1, y1 in px of the source, within it.
    """

    source: int
    page: int | None
    second: float | None
    box: Box


def origins_of(fetch: FetchResult, encoding: ImageEncoding, images: Sequence[int]) -> tuple[Origin, ...]:
    """The origin of each saccade of a prompt that shows the sources `images` [I], in the order of the prompt.

    Empty where the sources' sizes are not known; padding, which holds nothing of a source, has none.
    """
    if encoding.source_sizes is None:
        return ()
    sizes = [encoding.source_sizes[number] for number in images]
    boxes = fetch.boxes() if isinstance(fetch, JointFetch) else _boxes(fetch, sizes)
    known = encoding.sources
    origins = []
    for slot, at in (fetch.used & ~fetch.is_padding).nonzero().tolist():
        height, width = sizes[slot]
        x0, y0, x1, y1 = boxes[slot, at].tolist()
        box = (max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1))
        source = None if known is None else known[images[slot]]
        page, second = (None, None) if source is None else (source.page, source.second)
        origins.append(Origin(slot, page, second, box))
    return tuple(origins)


def _boxes(fetch: FetchResult, sizes: Sequence[tuple[int, int]]) -> Tensor:
    """`JointFetch.boxes` of what was fetched from overviews of sources of (height, width) px alone."""
    slots, squares = torch.arange(len(sizes)), [square_of((0, 0, width, height)) for height, width in sizes]
    views = Views(slots, torch.tensor(squares), torch.zeros(0, dtype=torch.int64), None, "each")
    side = math.isqrt(fetch.scores.shape[1])
    numbers = slots[:, None].expand(fetch.indices.shape).flatten()
    return views.boxes(numbers, fetch.regions().flatten(0, 1), side).view(*fetch.indices.shape, 4)
