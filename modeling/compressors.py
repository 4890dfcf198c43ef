"""Compressors: from the fine grid's features to base tokens, one for every 4 x 4 patches.

Notation: B batch, G side of the fine grid, N = G*G patches, g = G/4, M = g*g base tokens, C feature channels, D'
semantic width.

Source of "conv": DeepSeek-OCR (Wei et al. 2025).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from .configuration_arr_coc import COMPRESSION, ArrCocVisionConfig
from .registry import Registry

COMPRESSORS: Registry[type[nn.Module]] = Registry("compressor")


@dataclass(frozen=True)
class BaseTokens:
    """What a compressor made of the fine grid.

    `tokens` [B, M, D']; `compressed` the same as [B, D', g, g]; `indices` [B, M]: which patches they are, ascending, or
    None where a token stands for a whole 4x4 cell.
    """

    tokens: Tensor
    compressed: Tensor
    indices: Tensor | None


@COMPRESSORS.register("conv")
class ConvCompressor(nn.Module):
    """DeepSeek's compressor: two 3x3 stride-2 convolutions without bias and without a nonlinearity between them."""

    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        middle, out = config.compressed_channels
        self.conv1 = nn.Conv2d(config.out_channels, middle, 3, 2, 1, bias=False)
        self.conv2 = nn.Conv2d(middle, out, 3, 2, 1, bias=False)

    def forward(self, features: Tensor, patch_mask: Tensor) -> BaseTokens:
        compressed = self.conv2(self.conv1(features))
        return BaseTokens(compressed.flatten(2).transpose(1, 2), compressed, None)

    def warm_start(self) -> Tensor:
        """[D', C]: what the two convolutions do to a locally constant patch."""
        return self.conv2.weight.sum((2, 3)) @ self.conv1.weight.sum((2, 3))


@COMPRESSORS.register("mask")
class MaskCompressor(nn.Module):
    """The sparse learned mask: the M patches of the highest learned score, each projected and gated by its score."""

    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        middle, out = config.compressed_channels
        self.layer_norm = nn.LayerNorm(config.out_channels, config.layer_norm_eps)
        self.score = nn.Linear(config.out_channels, 1)
        self.fc1 = nn.Linear(config.out_channels, middle, bias=False)
        self.fc2 = nn.Linear(middle, out, bias=False)

    def forward(self, features: Tensor, patch_mask: Tensor) -> BaseTokens:
        side = features.shape[-1] // COMPRESSION
        patches = features.flatten(2).transpose(1, 2)
        score = self.score(self.layer_norm(patches))[..., 0].float()
        ranked = score.masked_fill(~patch_mask, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
        indices = ranked[:, : side * side].sort(-1).values
        chosen = patches.gather(1, indices[..., None].expand(-1, -1, patches.shape[-1]))
        gate = score.gather(1, indices).sigmoid().to(chosen.dtype)
        tokens = self.fc2(self.fc1(chosen)) * gate[..., None]
        return BaseTokens(tokens, tokens.transpose(1, 2).unflatten(2, (side, side)), indices)

    def warm_start(self) -> Tensor:
        """[D', C]: the projection of a kept patch, without its gate."""
        return self.fc2.weight @ self.fc1.weight
