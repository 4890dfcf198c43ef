"""Stand-ins that several test files share."""

from typing import Any

import torch
from torch import nn

from arr_coc.modeling.configuration_arr_coc import ArrCocSemanticConfig, ArrCocVisionConfig


def vision(**changes: Any) -> ArrCocVisionConfig:
    sizes: dict[str, Any] = (
        {"image_size": 128, "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
        | {"mlp_dim": 48, "window_size": 7, "global_attn_indexes": [1], "out_channels": 12}
        | {"compressed_channels": [16, 20]}
    )
    return ArrCocVisionConfig(**{**sizes, **changes})


def randomise(module: nn.Module, std: float = 0.3) -> nn.Module:
    """Random, nowhere zero: zero relative positions or biases would agree with anything."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * std
    return module.eval()


def semantic(**changes: Any) -> ArrCocSemanticConfig:
    sizes = {"hidden_size": 20, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ArrCocSemanticConfig(**{**sizes, "position_grid": 4, **changes})
