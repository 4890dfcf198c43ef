"""Compressor "mask": base tokens are single patches.

Notation: B batch, C feature channels, D' semantic width, M base tokens.
"""

from torch import Tensor, nn

from ..modeling.configuration_arr_coc import COMPRESSION, ArrCocVisionConfig
from ..modeling.vision_tower import COMPRESSORS, BaseTokens


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
