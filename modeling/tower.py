"""The vision tower: from pixels to base tokens, and from fetched patches to saccades.

Notation: P images, I image slots, G side of the fine grid, N = G*G patches, M base tokens, K saccades, C feature
channels, D' semantic width.
"""

from torch import Tensor, nn

from .configuration_arr_coc import ArrCocSemanticConfig, ArrCocVisionConfig
from .encoding import COMPRESSORS, BaseTokens, GridEncoder, KeyValue, SemanticEncoder
from .fetching import gather_patches
from .image_encoding import ImageEncoding


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
