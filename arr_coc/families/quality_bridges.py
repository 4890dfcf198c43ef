"""Bridges "quality" and "transformer": corrections of the linear projection, weighed by quality.

Notation: B batch, S tokens, D language-model width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils import logging

from ..modeling.bridges import BRIDGES, Bridged, Correction, LinearBridge
from ..modeling.configuration_arr_coc import ArrCocBridgeConfig, ArrCocSemanticConfig
from ..modeling.image_encoding import KeyValue
from ..modeling.vision_tower import LevelEmbedding, SemanticLayer, run_layers

logger = logging.get_logger(__name__)


def like_text(tokens: Tensor, mean: float, std: float) -> Tensor:
    """Tokens [..., D], each shifted and scaled to this mean and standard deviation over its channels."""
    return (F.layer_norm(tokens.float(), tokens.shape[-1:], eps=1e-12) * std + mean).to(tokens.dtype)


MOST_DISTORTION = 100.0
"""The largest ratio between the standard deviations of corrected and projected tokens, in either direction."""


def distorted(projected: Tensor, corrected: Tensor) -> Tensor:
    """[B] bool, True where corrected tokens [B, S, D] hold NaN, or their spread is more than `MOST_DISTORTION` off."""
    ratio = corrected.float().flatten(1).std(1) / projected.float().flatten(1).std(1).clamp(min=1e-12)
    return ~((ratio >= 1 / MOST_DISTORTION) & (ratio <= MOST_DISTORTION))  # also where the ratio is NaN


class QualityAdapter(nn.Module):
    """Corrects projected tokens: x + (1 - quality) * gate * correction; quality per token, gate per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)
        self.gate = nn.Linear(width, width)
        self.correction = Correction(width, width)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        """Tokens `x` and their states, each [B, S, D] -> corrected tokens [B, S, D]."""
        hidden = F.gelu(self.hidden(self.norm(states)))
        weight = (1 - self.score(hidden).sigmoid()) * self.gate(hidden).sigmoid()
        return x + weight * self.correction(hidden)


@BRIDGES.register("quality")
class QualityBridge(LinearBridge):
    """The linear projection; an adapter corrects each token by its quality, and its statistics become those of text."""

    def __init__(self, config: ArrCocBridgeConfig, *, vision_size: int, text_size: int) -> None:
        super().__init__(config, vision_size=vision_size, text_size=text_size)
        self.config = config
        self.adapter = QualityAdapter(text_size)

    def states(
        self, projected: Tensor, base: list[KeyValue] | None, used: Tensor | None
    ) -> tuple[Tensor, list[KeyValue]]:
        """The adapter's inputs [B, S, D], and keys and values for the tokens behind these."""
        return projected, []

    def forward(
        self,
        semantic: Tensor,
        compressed: Tensor,
        *,
        base: list[KeyValue] | None = None,
        bypass: bool = False,
        used: Tensor | None = None,
        **_: Any,
    ) -> Bridged:
        projected = super().forward(semantic, compressed).tokens
        if bypass:
            return Bridged(projected)
        states, cache = self.states(projected, base, used)
        tokens = self.adapter(projected, states)
        failed = distorted(projected, tokens) & (not self.training)  # in training, failures must show
        mean, std = self.config.text_embedding_mean, self.config.text_embedding_std
        if mean is not None and std is not None:
            tokens = like_text(tokens, mean, std)
        if not (torch.compiler.is_compiling() or failed.is_meta) and failed.any():
            logger.warning_once("bridge: the adapter's output is NaN or out of scale; using the linear projection")
        return Bridged(torch.where(failed[:, None, None], projected, tokens), cache, failed)


@BRIDGES.register("transformer")
class TransformerBridge(QualityBridge):
    """As "quality", with attention across tokens: base tokens attend to base tokens, fetched tokens to all."""

    def __init__(self, config: ArrCocBridgeConfig, *, vision_size: int, text_size: int) -> None:
        super().__init__(config, vision_size=vision_size, text_size=text_size)
        sizes = ArrCocSemanticConfig(
            hidden_size=text_size,
            intermediate_size=text_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            hidden_act="gelu",
            latent_size=config.latent_size,
        )
        sizes._attn_implementation = config._attn_implementation
        self.norm = nn.LayerNorm(text_size)
        self.level = LevelEmbedding(2, text_size)  # 0: base, 1: fetched token
        self.layers = nn.ModuleList(SemanticLayer(sizes) for _ in range(config.num_layers))

    def states(
        self, projected: Tensor, base: list[KeyValue] | None, used: Tensor | None
    ) -> tuple[Tensor, list[KeyValue]]:
        level = torch.full((1,), int(base is not None), device=projected.device)
        x = self.norm(projected) + self.level(level)
        return run_layers(self.layers, x, base, used)
