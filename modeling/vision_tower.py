"""The vision tower: from pixels to an encoded image, and from fetched patches to saccades.

Notation: P encoded images, I image slots, G side of the fine grid, N = G*G patches, M base tokens, K saccades, C
feature channels, T texture channels, D' semantic width, D language-model width.
"""

import os
from dataclasses import dataclass, field, fields, replace
from math import isqrt
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checks import refusal
from .compressors import COMPRESSORS
from .configuration_arr_coc import COMPRESSION, ArrCocSemanticConfig, ArrCocVisionConfig
from .grid_encoder import GridEncoder
from .regions import pool_regions
from .semantic_encoder import KeyValue, SemanticEncoder
from .textures import checksums, textures

if TYPE_CHECKING:
    from .modeling_arr_coc import ArrCocForConditionalGeneration


class Rows:
    """Base of dataclasses whose tensors and lists hold a row for every item of a batch."""

    def select(self, index: Tensor) -> Self:
        """The items at `index` [I], in that order; repeats are allowed. Fields marked "shared" stay as they are."""

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.index_select(0, index.to(value.device))
            if not isinstance(value, list) or not value:
                return value
            if isinstance(value[0], tuple) and isinstance(value[0][0], Tensor):  # keys and values of layers
                return [tuple(pick(tensor) for tensor in pair) for pair in value]
            return [value[i] for i in index.tolist()]

        return replace(self, **{name: pick(getattr(self, name)) for name in self._own()})  # type: ignore[type-var]

    def join(self, *others: Self) -> Self:
        """The items of all, in that order. Fields marked "shared" are taken from the first."""

        def chain(values: list[Any]) -> Any:
            if any(value is None for value in values):  # what is not known of all is not known
                return None
            if isinstance(values[0], Tensor):
                return torch.cat(values)
            if not isinstance(values[0], list) or not values[0]:
                return values[0]
            if isinstance(values[0][0], tuple) and isinstance(values[0][0][0], Tensor):  # keys and values of layers
                return [
                    tuple(torch.cat(tensors) for tensors in zip(*pairs, strict=True))
                    for pairs in zip(*values, strict=True)
                ]
            return [row for rows in values for row in rows]

        if not others:
            return self
        every = (self, *others)
        return replace(self, **{name: chain([getattr(rows, name) for rows in every]) for name in self._own()})  # type: ignore[type-var]

    def _own(self) -> list[str]:
        """Fields that hold a row for every item."""
        return [part.name for part in fields(self) if part.init and not part.metadata.get("shared")]  # type: ignore[arg-type]


@dataclass
class Tiles(Rows):
    """Tiles of encoded sources: of each what no question changes and nothing else can be made from; R of them.

    Attributes:
        features: [R, C, G, G] in bfloat16 (or half precision, where the model computes in that).
        textures: [R, T, G, G], likewise.
        patch_mask: [R, N] bool.
        seeds: [R] int64.
        sources: [R] int64, the row of the `ImageEncoding` whose source each is a part of.
        windows: [R, 4] int64, x0, y0, x1, y1 in px of the source.
    """

    features: Tensor
    textures: Tensor
    patch_mask: Tensor
    seeds: Tensor
    sources: Tensor
    windows: Tensor

    def __len__(self) -> int:
        return len(self.sources)


SEEN = (
    "features", "textures", "patch_mask", "seeds", "compressed", "base_indices", "semantic", "semantic_cache", "depths",
)  # fmt: skip
"""What of an `ImageEncoding` comes from the vision tower; the rest is the language model's side of it."""

KNOWN = ("source_sizes", "documents", "sources", "tiles", "tiling")
"""What is known of an encoding's sources, whatever reads their tokens."""


@dataclass
class ImageEncoding(Rows):
    """Everything about images that no question changes; pass it in place of the images for any number of questions.

    Attributes:
        features: [P, C, G, G], the grid encoder's output.
        textures: [P, T, G, G], the first of `textures.TEXTURES`.
        patch_mask: [P, N] bool, True on patches that hold some of the image.
        seeds: [P] int64, a checksum of the pixels (for random relevance).
        compressed: [P, D', G/4, G/4], the compressor's output.
        base_indices: [P, M] which patches the base tokens are (mask compressor), or None.
        semantic: [P, M, D'], base states after the semantic encoder, without CLS.
        semantic_cache: its keys and values of the base, per layer.
        tokens: [P, M, D], base tokens in the language model's space; where the layout puts something before or between
            them, with that: [P, positions, D].
        closing: [P, positions, D] what the layout puts behind the saccades, or None.
        quality: [P, M] of the base tokens, from bridges that score tokens, else None.
        bridge_cache: the bridge's keys and values of the base, per layer, where it attends across tokens.
        bypass: whether `tokens` come from the bridge's linear projection alone.
        pool: base cells along each axis that one of `tokens` stands for.
        prefix_ids: [p] the prompt's tokens up to and including the base, or None where it was not prefilled.
        prefix_cache: the language model's keys and values of that prefix, per layer [P, heads, p, d].
        source_sizes: (height, width) of each source image in px, where known.
        documents: the number of the document that each source is a page of, or None where each stands for itself. One
            prompt shows all sources of a document.
        sources: what was encoded, with its pixels, to run back to; None where they are not at hand.
        tiles: tiles of the sources, or None: a model without views.
        tiling: how tiles are asked for, see `views.ViewOptions`; None where all that there are were encoded.
        depths: [P, 2, W, G, G], the grid encoder's states after a third and two thirds of its layers, or None where no
            scorer of the model reads them.
        bypassed: [P] bool, True where the bridge's adapter failed, so that `tokens` are its linear projection's; None
            from bridges without an adapter.
        made_by: the model that made it (`encoding_files.maker`), or None where that is not known.
        side: G.
        base_positions: positions that an image takes in a prompt when nothing is fetched: M, and those of the layout.
    """

    features: Tensor
    textures: Tensor
    patch_mask: Tensor
    seeds: Tensor
    compressed: Tensor
    base_indices: Tensor | None
    semantic: Tensor
    semantic_cache: list[KeyValue]
    tokens: Tensor
    closing: Tensor | None = None
    quality: Tensor | None = None
    bridge_cache: list[KeyValue] | None = None
    bypass: bool = False
    pool: int = field(default=1, metadata={"shared": True})
    prefix_ids: Tensor | None = field(default=None, metadata={"shared": True})
    prefix_cache: list[KeyValue] | None = None
    source_sizes: list[tuple[int, int]] | None = None
    documents: list[int] | None = None
    sources: list[Any] | None = None
    tiles: Tiles | None = field(default=None, metadata={"shared": True})
    tiling: Any = field(default=None, metadata={"shared": True})
    depths: Tensor | None = None
    bypassed: Tensor | None = None
    made_by: tuple[str, str] | None = field(default=None, metadata={"shared": True})

    side: int = field(init=False)
    base_positions: int = field(init=False)

    def __post_init__(self) -> None:
        self.side = self.features.shape[-1]
        self.base_positions = self.tokens.shape[1] + (0 if self.closing is None else self.closing.shape[1])

    def __len__(self) -> int:
        return self.features.shape[0]

    def join(self, *others: "ImageEncoding") -> "ImageEncoding":
        """The images of all, in that order; documents stay such, and beside them each image becomes one.

        What is not known of all of them (prefix, sizes, pixels) is not known afterwards.

        Raises:
            ValueError: grids or poolings that differ, or tiles that are encoded when a question asks for them.
        """
        every = [self, *others]
        for name in ("side", "pool"):
            if len(values := {getattr(encoding, name) for encoding in every}) > 1:
                raise ValueError(f"{name}: expected encodings of one {name} to join them; got {sorted(values)}")
        if others and any(encoding.tiling is not None for encoding in every):
            raise ValueError('tiles: expected encodings that hold all of their tiles to join them; got tiles="asked"')
        if not all(_same(self.prefix_ids, encoding.prefix_ids) for encoding in others):
            every = [encoding.without_prefix() for encoding in every]
        in_views = any(encoding.documents is not None or encoding.tiles is not None for encoding in every)
        return _join_views(every) if others and in_views else Rows.join(*every)

    def save(self, path: str | os.PathLike, model: "ArrCocForConditionalGeneration") -> None:
        """Writes it to one safetensors file, for `load` with the same model: see `encoding_files`."""
        from .encoding_files import save_encoding

        save_encoding(self, path, model.model)

    @staticmethod
    def load(path: str | os.PathLike, model: "ArrCocForConditionalGeneration") -> "ImageEncoding":
        """The encoding that `save` wrote; `model` reads its prefix anew.

        Raises:
            ValueError: another file, or an encoding of another model.
            FileNotFoundError: no such file.
        """
        from .encoding_files import load_encoding
        from .prefix import with_prefix

        return with_prefix(model, model.processor, load_encoding(path, model.model))

    def check_fits(self, config: Any) -> None:
        """Raises a ValueError where a model of another width made this: `config` is an `ArrCocConfig`."""
        widths = [self.features.shape[1], self.semantic.shape[-1], self.tokens.shape[-1]]
        own = [config.vision_config.out_channels, config.semantic_config.hidden_size, config.text_config.hidden_size]
        if widths != own:
            raise ValueError(f"image: expected an encoding by a model of widths {own}; got one of {widths}")

    def without_prefix(self) -> "ImageEncoding":
        """The same without the language model's reading of it: for prompts that do not begin with it."""
        return replace(self, prefix_ids=None, prefix_cache=None)

    def without_base(self) -> "ImageEncoding":
        """The same for prompts without base tokens, and without what the layout puts around them.

        Patches are chosen and encoded beside the base as ever.
        """
        quality = None if self.quality is None else self.quality[:, :0]
        return replace(self.without_prefix(), tokens=self.tokens[:, :0], closing=None, quality=quality)


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    return first is second or (first is not None and second is not None and torch.equal(first, second))


def _join_views(every: list[ImageEncoding]) -> ImageEncoding:
    """`ImageEncoding.join` of encodings of which some have documents or tiles."""
    documents: list[int] = []
    tiles: list[Tiles] = []
    start = 0
    for encoding in every:
        number = documents[-1] + 1 if documents else 0
        documents += [number + own for own in encoding.documents or range(len(encoding))]
        if encoding.tiles is not None:
            tiles.append(replace(encoding.tiles, sources=encoding.tiles.sources + start))
        start += len(encoding)

    def listed(name: str) -> list[Any] | None:
        values = [getattr(encoding, name) for encoding in every]
        return None if None in values else [row for rows in values for row in rows]

    # What saccades see of a base is made anew for each view that is fetched from.
    bare = [
        replace(
            encoding, semantic_cache=[], bridge_cache=None, documents=None, source_sizes=None, sources=None, tiles=None
        )
        for encoding in every
    ]
    return replace(
        Rows.join(*bare), documents=documents, source_sizes=listed("source_sizes"), sources=listed("sources"),
        tiles=Rows.join(*tiles) if tiles else None,
    )  # fmt: skip


MAX_PIXEL = 1e4
"""Magnitude of a normalised pixel above which half precision would overflow soon; images are within a few units."""


def pool_cells(states: Tensor, pool: int) -> Tensor:
    """Base tokens [P, M, D'] of g rows of g, averaged over `pool` x `pool` cells, fewer at the end of a row."""
    grid = states.transpose(1, 2).unflatten(2, (isqrt(states.shape[1]), -1))
    pooled = F.avg_pool2d(grid, pool, ceil_mode=True, count_include_pad=False)
    return pooled.flatten(2).transpose(1, 2)


def gather_patches(features: Tensor, indices: Tensor) -> Tensor:
    """Features [B, C, G, G] at `indices` [B, K] -> [B, K, C]."""
    return features.flatten(2).gather(2, indices[:, None].expand(-1, features.shape[1], -1)).transpose(1, 2)


def check_pixels(pixel_values: Tensor, patch_mask: Tensor | None, config: ArrCocVisionConfig) -> None:
    """Raises a ValueError unless these are square images [P, 3, S, S], S a multiple of 4 patches, and a mask [P, N]."""
    for name, tensor in (("pixel_values", pixel_values), ("patch_mask", patch_mask)):
        sparse = isinstance(tensor, Tensor) and (tensor.layout != torch.strided or tensor.is_quantized)
        if tensor is not None and (not isinstance(tensor, Tensor) or sparse or tensor.is_complex()):
            raise refusal(name, "a dense tensor of numbers", tensor)
    if pixel_values.ndim != 4 or pixel_values.shape[1] != config.num_channels:
        expected = f"[images, {config.num_channels}, side, side]"
        raise ValueError(f"pixel_values: expected {expected}; got shape {list(pixel_values.shape)}")
    height, width = pixel_values.shape[-2:]
    unit = COMPRESSION * config.patch_size
    if height != width or height % unit or not height:
        expected = f"square images, side a multiple of {unit} px"
        raise ValueError(f"pixel_values: expected {expected}; got {height} x {width}")
    if not len(pixel_values):
        raise ValueError("pixel_values: expected at least one image; got none")
    meta = pixel_values.is_meta or torch.compiler.is_compiling()  # no values to look at
    if not meta and not pixel_values.detach().float().abs().amax() <= MAX_PIXEL:  # also of NaN
        raise ValueError(
            f"pixel_values: expected normalised numbers of at most {MAX_PIXEL:g}; got larger or no numbers"
        )
    shape = [len(pixel_values), (height // config.patch_size) ** 2]
    if patch_mask is not None and list(patch_mask.shape) != shape:
        raise ValueError(f"patch_mask: expected shape {shape}; got {list(patch_mask.shape)}")


class SaccadeProjection(nn.Linear):
    """Features of a fetched patch -> a token; starts as the compressor's twin (`ArrCocPreTrainedModel`)."""


class ArrCocVisionTower(nn.Module):
    """Grid encoder, compressor and semantic encoder, and the projection that makes a patch a token.

    Args:
        vision, semantic: their configurations.
        textures: which texture channels are made of an image, see `TEXTURE_SETS`.
        keeps_depths: whether the grid encoder's states at two depths are kept beside its output.
    """

    def __init__(
        self,
        vision: ArrCocVisionConfig,
        semantic: ArrCocSemanticConfig,
        *,
        textures: str = "light",
        keeps_depths: bool = False,
    ) -> None:
        super().__init__()
        self.config = vision
        self.texture_set, self.keeps_depths = textures, keeps_depths
        self.grid_encoder = GridEncoder(vision)
        self.compressor = COMPRESSORS[vision.compressor](vision)
        self.semantic_encoder = SemanticEncoder(semantic)
        self.saccade_projection = SaccadeProjection(vision.out_channels, semantic.hidden_size, bias=False)

    def forward(
        self,
        pixel_values: Tensor | None,
        patch_mask: Tensor | None = None,
        features: Tensor | None = None,
        depths: Tensor | None = None,
    ) -> dict[str, Any]:
        """Images -> what an `ImageEncoding` holds of them on this side of the bridge, by name.

        Args:
            pixel_values: [P, 3, S, S]; None with `features`: then what follows from these alone comes back.
            patch_mask: [P, N]; None: all hold some of the image.
            features: [P, C, G, G] of the grid encoder, where it ran before; depths: likewise, where they are kept.
        """
        if pixel_values is not None:
            check_pixels(pixel_values, patch_mask, self.config)
        if features is None:
            assert pixel_values is not None
            features, depths = self.encode_grid(pixel_values)
        if patch_mask is None:
            patch_mask = features.new_ones(len(features), features.shape[-1] ** 2)
        patch_mask = patch_mask.bool()
        base = self.compressor(features, patch_mask)
        semantic, cache = self.semantic_encoder(base.tokens, features.shape[-1], base.indices)
        seen = {
            "features": features,
            "patch_mask": patch_mask,
            "compressed": base.compressed,
            "base_indices": base.indices,
            "semantic": semantic,
            "semantic_cache": cache,
            "depths": depths,
        }
        if pixel_values is None:
            return seen
        channels = textures(pixel_values, features.shape[-1], self.texture_set, patch_mask)
        return {**seen, "textures": channels, "seeds": checksums(pixel_values)}

    def tile_features(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """What a tile is kept as, of tiles [R, 3, S, S]: features, textures, seeds by name, in half precision."""
        features = self.grid_encoder(pixel_values.to(self.saccade_projection.weight.dtype))
        kept = features.dtype if features.dtype.itemsize == 2 else torch.bfloat16
        textured = textures(pixel_values, features.shape[-1], self.texture_set)
        return {"features": features.to(kept), "textures": textured.to(kept), "seeds": checksums(pixel_values)}

    def encode_grid(self, pixel_values: Tensor) -> tuple[Tensor, Tensor | None]:
        """The grid encoder's features [P, C, G, G], and its depths [P, 2, W, G, G] if they are kept."""
        pixel_values = pixel_values.to(self.saccade_projection.weight.dtype)
        if self.keeps_depths:
            return self.grid_encoder(pixel_values, with_depths=True)
        return self.grid_encoder(pixel_values), None

    def saccades(
        self, encoding: ImageEncoding, indices: Tensor, used: Tensor | None = None, levels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Fetched patches or regions [I, K] -> their semantic states and their projected features, each [I, K, D'].

        `used`, `levels` [I, K]: see `SemanticEncoder.forward`. A region is projected from the mean of its patches.
        """
        features = encoding.features
        fetched = gather_patches(features, indices) if levels is None else pool_regions(features, indices, levels)
        projected = self.saccade_projection(fetched)
        states, _ = self.semantic_encoder(projected, encoding.side, indices, encoding.semantic_cache, used, levels)
        return states, projected
