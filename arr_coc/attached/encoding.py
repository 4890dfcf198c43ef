"""The images of a prompt, encoded by a published model's vision tower once for all questions.

Notation: N image tokens as the plain model has them, M base tokens, D width of the language model, V views. Positions
are (y, x).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.cache_utils import Cache

from ..modeling.image_loading import Source
from ..modeling.vision_tower import luminance, magnitude, sobel
from ..modeling.word_sources import PageWords
from .families import AttachedFamily, View

TOKEN_PX = 8  # side of a token's part of the image, px, at which its saliency is computed


@dataclass(eq=False)
class EncodedPrompt:
    """The images of one prompt."""

    sources: list[Source]  # of each image: its size, its pixels, its page or second in a document
    texts: list[str]  # the processor's text for each image
    views: list[View]  # all grids of tokens, in the order of the tokens
    places: Tensor  # [N, 3] view, y, x of each token; -1 for tokens without a place
    boxes: Tensor  # [N, 4] x0, y0, x1, y1 of each token, px of its image
    saliency: Tensor  # [N] mean Sobel magnitude of the image under each token
    cells: Tensor  # [N] the base token over each token, or -1
    base_grids: list[tuple[int, int]]  # (rows, cols) of the base tokens of each view
    base: Tensor  # [M, D], and `base_planes` [M, D] for each of DeepStack's layers
    base_planes: list[Tensor]
    seen: Tensor  # [N, D] the scorers' input for each token
    tokens: Tensor | None  # [N, D], and `planes` [N, D]; None: they are encoded on demand, from `pixels`
    planes: list[Tensor]
    pixels: dict[str, Tensor]  # the vision tower's inputs, by name; empty if there are `tokens`
    inputs: dict[str, Tensor]  # the inputs of positions, see `Family.of_prompt`
    # The prompt [p] up to the last base token, and the cache of its keys and values.
    prefix: tuple[Tensor, Cache] | None = field(default=None, repr=False)
    # Likewise up to the last of all image tokens, for the layers that strategy "attention" needs.
    image: tuple[Tensor, Cache] | None = field(default=None, repr=False)
    words: list[PageWords] = field(default_factory=list, repr=False)  # of each image, for strategy "words"

    def __len__(self) -> int:
        return len(self.places)

    @property
    def owners(self) -> tuple[int, ...]:
        """The number of each view's image in the prompt."""
        return tuple(view.image for view in self.views)

    @property
    def is_place(self) -> Tensor:
        """bool [N], False on tokens without a place."""
        return self.places[:, 0] >= 0


@dataclass(eq=False)
class AttachedEncoding:
    """The result of `AttachedReader.encode_image`: the images of each prompt, and the model that encoded them."""

    prompts: list[EncodedPrompt]
    model: Any = field(repr=False)
    # Makes the model's own output, as in `mm_encoder_outputs`, from image tokens by name.
    outputs: Callable[..., dict[str, Any]] = field(repr=False)

    def __len__(self) -> int:
        return len(self.prompts)


def encode_prompts(
    family: Any,
    sources: Sequence[list[Source]],
    images: Sequence[Sequence[Image.Image]],
    texts: Sequence[list[str]],
    inputs: Mapping[str, Any],
    pool: int,
    way: str,
) -> AttachedEncoding:
    """Runs the vision tower once over the images of all prompts.

    Args:
        family: an `AttachedFamily`.
        texts: the processor's text for each image.
        inputs: the processor's outputs for all images.
        pool, way: see `AttachedReader.encode_image`.
    """
    core, first = family.model.base_model, 0
    names = inspect.signature(core.get_image_features).parameters
    tower = {name: inputs[name] for name in names if name in inputs}
    prompts = []
    for own, shown, written in zip(sources, images, texts, strict=True):
        known = family.of_prompt(inputs, first, first + len(shown))
        pixels = family.pixels(tower, first, first + len(shown)) if way == "pixels" else {}
        views = _views(family, own, written, known)
        grids = [(-(-view.rows // pool), -(-view.cols // pool)) if pool else (0, 0) for view in views]
        places, boxes, cells = places_of(views, grids)
        where = (places, boxes, saliency_of(shown, views), cells, grids)
        none = torch.zeros(0)  # until the tower has encoded the images
        prompts.append(EncodedPrompt(own, written, views, *where, none, [], none, None, [], pixels, known))
        first += len(shown)
    if way == "pixels":
        grids = [grid for prompt in prompts for grid in prompt.base_grids]
        tower = family.overviews([image for shown in images for image in shown], grids)
    outputs = core.get_image_features(**tower, return_dict=True)
    tokens, planes = flat(outputs)
    counts = [sum(r * c for r, c in prompt.base_grids) if prompt.pixels else len(prompt) for prompt in prompts]
    if sum(counts) != len(tokens):
        raise ValueError(f"processor: expected {len(tokens)} image tokens, as the model makes; got {sum(counts)}")
    parts = zip(*(values.split(counts) for values in (tokens, *planes)), strict=True)
    for prompt, (part, *layers) in zip(prompts, parts, strict=True):
        if prompt.pixels:  # an overview
            prompt.base, prompt.base_planes, prompt.seen = part, layers, part[prompt.cells.to(part.device)]
            continue
        count = sum(rows * cols for rows, cols in prompt.base_grids)
        means = [mean_over_cells(values, prompt.cells, count).to(values) for values in (part, *layers)]
        prompt.base, prompt.base_planes = means[0], means[1:]
        prompt.tokens = prompt.seen = part
        prompt.planes = layers
    kept = {name: outputs[name] for name in ("visual_indicator_features",) if name in outputs}
    return AttachedEncoding(prompts, family.model, lambda **own: {"image": type(outputs)(**own, **kept)})


def flat(outputs: Any) -> tuple[Tensor, list[Tensor]]:
    """Image tokens [N, D] and DeepStack's planes [N, D], from the nested outputs of a family."""

    def joined(tokens: Any) -> Tensor:
        return tokens.flatten(0, -2) if isinstance(tokens, Tensor) else torch.cat([joined(part) for part in tokens])

    return joined(outputs.pooler_output), [joined(plane) for plane in outputs.get("deepstack_features") or []]


def _views(
    family: AttachedFamily, sources: Sequence[Source], texts: Sequence[str], known: dict[str, Tensor]
) -> list[View]:
    views = list[View]()
    for number, (source, text) in enumerate(zip(sources, texts, strict=True)):
        count = text.count(family.image_token)
        own = family.views(number, (source.height, source.width), count, text, known)
        if sum(map(len, own)) != count:
            expected = f"views of {count} image tokens, as the processor writes"
            raise ValueError(f"{family.model.config.model_type}: expected {expected}; got {sum(map(len, own))}")
        views += own
    return views


def places_of(views: Sequence[View], grids: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """View, y, x [N, 3], the box [N, 4] in px and the base token [N] of every token of consecutive views. The base
    tokens of a view form a grid of (rows, cols), which may be empty. -1: no place, no base token."""
    places, boxes, cells, first = [], [], [], 0
    for number, (view, (rows, cols)) in enumerate(zip(views, grids, strict=True)):
        at = torch.cartesian_prod(torch.arange(view.rows), torch.arange(view.cols))
        below = first + (at[:, 0] * rows // view.rows) * cols + at[:, 1] * cols // view.cols
        places.append(view.spread(torch.nn.functional.pad(at, (1, 0), value=number), -1))
        boxes.append(view.spread(view.boxes()))
        cells.append(view.spread(below if rows else torch.full_like(below, -1), -1))
        first += rows * cols
    return torch.cat(places), torch.cat(boxes), torch.cat(cells)


def mean_over_cells(values: Tensor, cells: Tensor, count: int) -> Tensor:
    """Means of values [N, D] over the tokens of each of `count` cells [N]: [count, D], summed in float32."""
    inside = cells >= 0
    at, kept = cells[inside].to(values.device), values[inside.to(values.device)].float()
    sums = torch.zeros(count, values.shape[1], device=values.device).index_add(0, at, kept)
    return sums / torch.bincount(at, minlength=count).clamp(min=1)[:, None]


def saliency_of(images: Sequence[Image.Image], views: Sequence[View]) -> Tensor:
    """[N] mean Sobel magnitude under every token of some views; 0 for tokens without a place."""
    found = []
    for view in views:
        size = (view.cols * TOKEN_PX, view.rows * TOKEN_PX)
        part = images[view.image].convert("RGB").resize(size, Image.Resampling.BILINEAR, box=view.box)
        pixels = torch.from_numpy(np.array(part)).permute(2, 0, 1)[None].float() / 127.5 - 1
        edges = torch.nn.functional.avg_pool2d(magnitude(sobel(luminance(pixels))), TOKEN_PX).flatten()
        found.append(view.spread(edges))
    return torch.cat(found)
