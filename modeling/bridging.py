"""Bridges: vision tokens -> language-model embeddings.

Notation: B batch, S tokens, D' semantic width, D language-model width.
"""

import torch
from torch import Tensor, nn

from .configuration_arr_coc import ArrCocBridgeConfig
from .registry import Registry

BRIDGES: Registry[type[nn.Module]] = Registry("bridge")


@BRIDGES.register("linear")
class LinearBridge(nn.Module):
    """DeepSeek's projector: one linear layer over [semantic state, compressed feature]."""

    def __init__(self, config: ArrCocBridgeConfig, *, vision_size: int, text_size: int) -> None:
        super().__init__()
        self.projection = nn.Linear(2 * vision_size, text_size)

    def forward(self, semantic: Tensor, compressed: Tensor) -> Tensor:
        """Semantic states and compressed features, each [B, S, D'] -> [B, S, D]."""
        return self.projection(torch.cat((semantic, compressed), -1))
