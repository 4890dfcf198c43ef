"""The vision tower: from pixels to an encoded image, and from fetched patches to saccades.

Notation: P encoded images, I image slots, G side of the fine grid, N = G*G patches, M base tokens, K saccades, C
feature channels, T texture channels, D' semantic width, D language-model width.
"""

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from .compressors import COMPRESSORS, BaseTokens
from .configuration_arr_coc import ArrCocSemanticConfig, ArrCocVisionConfig
from .grid_encoder import GridEncoder
from .semantic_encoder import KeyValue, SemanticEncoder


@dataclass
class ImageEncoding:
    """Everything about images that no question changes; pass it in place of the images for any number of questions.

    Attributes:
        features: [P, C, G, G], the grid encoder's output.
        textures: [P, T, G, G].
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
        prefix_ids: [p] the prompt's tokens up to and including the base, or None where it was not prefilled.
        prefix_cache: the language model's keys and values of that prefix, per layer [P, heads, p, d].
        source_sizes: (height, width) of each source image in px, where known.
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
    prefix_ids: Tensor | None = None
    prefix_cache: list[KeyValue] | None = None
    source_sizes: list[tuple[int, int]] | None = None

    @property
    def side(self) -> int:
        """G."""
        return self.features.shape[-1]

    @property
    def base_positions(self) -> int:
        """Positions that an image takes in a prompt when nothing is fetched: M, and those of the layout."""
        return self.tokens.shape[1] + (0 if self.closing is None else self.closing.shape[1])

    def __len__(self) -> int:
        return self.features.shape[0]

    def select(self, index: Tensor) -> "ImageEncoding":
        """The encodings at `index` [I], in that order; repeats are allowed."""

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.index_select(0, index.to(value.device))
            if isinstance(value, list):
                return [tuple(pick(t) for t in pair) for pair in value]
            return value

        named = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {name: named.pop(name) for name in ("prefix_ids", "source_sizes")}
        if kept["source_sizes"] is not None:
            kept["source_sizes"] = [kept["source_sizes"][i] for i in index.tolist()]
        return ImageEncoding(**{name: pick(value) for name, value in named.items()}, **kept)


def gather_patches(features: Tensor, indices: Tensor) -> Tensor:
    """Features [B, C, G, G] at `indices` [B, K] -> [B, K, C]."""
    return features.flatten(2).gather(2, indices[:, None].expand(-1, features.shape[1], -1)).transpose(1, 2)


class SaccadeProjection(nn.Linear):
    """Features of a fetched patch -> a token; a class of its own because it starts as the compressor's twin."""


class ArrCocVisionTower(nn.Module):
    """Grid encoder, compressor and semantic encoder, and the projection that makes a patch a token."""

    def __init__(self, vision: ArrCocVisionConfig, semantic: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.grid_encoder = GridEncoder(vision)
        self.compressor = COMPRESSORS.named(vision.compressor)(vision)
        self.semantic_encoder = SemanticEncoder(semantic)
        self.saccade_projection = SaccadeProjection(vision.out_channels, semantic.hidden_size, bias=False)

    def forward(self, features: Tensor, patch_mask: Tensor) -> tuple[BaseTokens, Tensor, list[KeyValue]]:
        """Features [P, C, G, G] and mask [P, N] -> base tokens, their semantic states [P, M, D'], keys and values."""
        base = self.compressor(features, patch_mask)
        semantic, cache = self.semantic_encoder(base.tokens, features.shape[-1], base.indices)
        return base, semantic, cache

    def saccades(self, encoding: ImageEncoding, indices: Tensor, used: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Fetched patches [I, K] -> their semantic states and their projected features, each [I, K, D'].

        `used` [I, K]: see `SemanticEncoder.forward`.
        """
        projected = self.saccade_projection(gather_patches(encoding.features, indices))
        states, _ = self.semantic_encoder(projected, encoding.side, indices, encoding.semantic_cache, used)
        return states, projected
