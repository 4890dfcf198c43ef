"""What a published model's vision tower made of the images of a prompt, which no question changes.

Notation: N image tokens as the plain model has them, M base tokens, D width of the language model, V views. Positions
are (y, x).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.cache_utils import Cache

from ..modeling.textures import luminance, magnitude, sobel
from .families import View

TOKEN_PX = 8
"""Side of a token's part of the image, px, from which its saliency is taken."""


@dataclass(eq=False)
class EncodedPrompt:
    """The images of one prompt.

    Attributes:
        texts: what the processor writes in each image's place.
        views: all grids of tokens, in the order of the tokens.
        places: [N, 3] view, y, x of each token; -1 where it stands for no place.
        boxes: [N, 4] x0, y0, x1, y1 of each, px of its image.
        saliency: [N] mean Sobel magnitude of the image under each token.
        cells: [N] the base token that stands for each token, or -1.
        base_grids: (rows, cols) of the base tokens of each view.
        base: [M, D], and `base_planes` [M, D] for each of DeepStack's layers.
        seen: [N, D] what scorers see of each token.
        tokens: [N, D], and `planes` [N, D]; None: they are encoded when they are asked for, from `pixels`.
        pixels: what the vision tower takes, by name.
        inputs: what positions depend on, see `Family.of_prompt`.
        prefix_ids: [p] the prompt up to the last base token, of which `prefix` holds keys and values.
    """

    texts: list[str]
    views: list[View]
    places: Tensor
    boxes: Tensor
    saliency: Tensor
    cells: Tensor
    base_grids: list[tuple[int, int]]
    base: Tensor
    base_planes: list[Tensor]
    seen: Tensor
    tokens: Tensor | None
    planes: list[Tensor]
    pixels: dict[str, Tensor]
    inputs: dict[str, Tensor]
    prefix_ids: Tensor | None = None
    prefix: Cache | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def is_place(self) -> Tensor:
        """bool [N], False on tokens that stand for no place."""
        return self.places[:, 0] >= 0


@dataclass(eq=False)
class AttachedEncoding:
    """What `AttachedReader.encode_image` returns: the images of each prompt.

    Attributes:
        prompts: of each prompt, its images.
        model: the model that made it.
        outputs: makes the model's own output of image tokens.
    """

    prompts: list[EncodedPrompt]
    model: Any = field(repr=False)
    outputs: Any = field(repr=False)

    def __len__(self) -> int:
        return len(self.prompts)


def places_of(views: Sequence[View]) -> tuple[Tensor, Tensor]:
    """View, y, x [N, 3] and the box [N, 4] in px of every token of views that stand one behind the other."""
    places, boxes = [], []
    for number, view in enumerate(views):
        own = torch.full((len(view), 3), -1)
        y, x = torch.meshgrid(torch.arange(view.rows), torch.arange(view.cols), indexing="ij")
        at = view.numbers().flatten()
        own[at] = torch.stack((torch.full_like(y, number), y, x), -1).flatten(0, 1)
        places.append(own)
        boxes.append(torch.zeros(len(view), 4).index_copy(0, at, view.boxes()))
    return torch.cat(places), torch.cat(boxes)


def cells_of(places: Tensor, views: Sequence[View], grids: Sequence[tuple[int, int]]) -> Tensor:
    """[N] the base token over each token, where each view's base tokens lie on a grid of (rows, cols); -1: none."""
    cells, first = torch.full((len(places),), -1), 0
    for number, (view, (rows, cols)) in enumerate(zip(views, grids, strict=True)):
        inside = (places[:, 0] == number).nonzero().flatten()
        y, x = places[inside, 1], places[inside, 2]
        cells[inside] = first + (y * rows // view.rows) * cols + x * cols // view.cols
        first += rows * cols
    return cells


def mean_over_cells(values: Tensor, cells: Tensor, count: int) -> Tensor:
    """Means of values [N, D] over the tokens of each of `count` cells [N]: [count, D], summed in float32."""
    inside = cells >= 0
    at, kept = cells[inside].to(values.device), values[inside.to(values.device)].float()
    sums = torch.zeros(count, values.shape[1], device=values.device).index_add(0, at, kept)
    return sums / torch.bincount(at, minlength=count).clamp(min=1)[:, None]


def saliency_of(images: Sequence[Image.Image], views: Sequence[View]) -> Tensor:
    """[N] mean Sobel magnitude under every token of some views; 0 where a token stands for no place."""
    found = []
    for view in views:
        size = (view.cols * TOKEN_PX, view.rows * TOKEN_PX)
        part = images[view.image].convert("RGB").resize(size, Image.Resampling.BILINEAR, box=view.box)
        pixels = torch.from_numpy(np.array(part)).permute(2, 0, 1)[None].float() / 127.5 - 1
        edges = torch.nn.functional.avg_pool2d(magnitude(sobel(luminance(pixels))), TOKEN_PX).flatten()
        found.append(torch.zeros(len(view)).index_copy(0, view.numbers().flatten(), edges))
    return torch.cat(found)
