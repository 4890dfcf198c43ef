"""From pixels to base tokens: grid encoder, compressors, semantic encoder.

Notation: B batch, G side of the fine grid, N = G*G patches, g = G/4, M = g*g base tokens, K saccades, C feature
channels, D' semantic width. Positions are (y, x), row-major.

Sources: SAM's image encoder (Kirillov et al. 2023) and CLIP's vision transformer (Radford et al. 2021) with
DeepSeek-OCR's two-convolution compressor between them (Wei et al. 2025). Module names are those of
transformers' SAM and CLIP.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_arr_coc import COMPRESSION, ArrCocSemanticConfig, ArrCocVisionConfig
from .registry import Registry


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def resize_table(table: Tensor, side: int) -> Tensor:
    """[1, g, g, D] position table at another side: bicubic, antialiased, in float32, as DeepSeek-OCR does."""
    if table.shape[1] == side:
        return table
    resized = F.interpolate(table.permute(0, 3, 1, 2).float(), (side, side), mode="bicubic", antialias=True)
    return resized.permute(0, 2, 3, 1).to(table.dtype)


# ---- grid encoder -------------------------------------------------------------------------------------------------


STEMS: Registry[type[nn.Module]] = Registry("stem")


@STEMS.register("patchify")
class PatchifyStem(nn.Module):
    """The published stem: one convolution, stride = kernel = patch."""

    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        size = config.patch_size
        self.projection = nn.Conv2d(config.num_channels, config.hidden_size, size, stride=size)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.projection(pixel_values)


@STEMS.register("conv")
class ConvStem(nn.Module):
    """Stride-2 3x3 convolutions down to a patch: learns to read from far fewer samples than patchify."""

    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        widths = [config.num_channels, *config.stem_channels]
        steps: list[nn.Module] = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            steps += [nn.Conv2d(before, after, 3, 2, 1), LayerNorm2d(after, config.layer_norm_eps), nn.GELU()]
        self.steps = nn.Sequential(*steps)
        self.projection = nn.Conv2d(widths[-1], config.hidden_size, 3, 2, 1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.projection(self.steps(pixel_values))


class GridAttention(nn.Module):
    """Self-attention over a [S, S] grid with SAM's decomposed relative positions, without an [S*S, S*S] bias.

    The bias of query q and key (i, j) is q.Rh[i] + q.Rw[j]: a dot product. So the rows of q.Rh and q.Rw are appended
    to the query, and one-hot codes of i and j to the key; scaled-dot-product attention does the rest, exactly. With
    `attn_implementation="eager"` it is written out, which trains several times faster in bfloat16 on a CPU.
    """

    def __init__(self, config: ArrCocVisionConfig, side: int) -> None:
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // self.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * side - 1, self.head_dim))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * side - 1, self.head_dim))

    def _relative(self, table: Tensor, side: int) -> Tensor:
        """Rows of `table` for every (query, key) coordinate pair: [side, side, head_dim]."""
        if table.shape[0] != 2 * side - 1:
            table = F.interpolate(table.float().t()[None], 2 * side - 1, mode="linear")[0].t().to(table.dtype)
        at = torch.arange(side, device=table.device)
        return table[at[:, None] - at[None, :] + side - 1]

    def forward(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        qkv = self.qkv(x).view(batch, side * side, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [B, heads, S*S, head_dim]
        grid = query.reshape(batch, self.num_heads, side, side, self.head_dim)
        rows = torch.einsum("bnyxd,ykd->bnyxk", grid, self._relative(self.rel_pos_h, side))
        columns = torch.einsum("bnyxd,xkd->bnyxk", grid, self._relative(self.rel_pos_w, side))
        bias = torch.cat((rows, columns), -1).flatten(2, 3)  # [B, heads, S*S, 2S]
        eye = torch.eye(side, dtype=key.dtype, device=key.device)
        code = torch.cat((eye.repeat_interleave(side, 0), eye.repeat(side, 1)), -1)  # [S*S, 2S]: row and column
        query = torch.cat((query * self.head_dim**-0.5, bias), -1)
        key = torch.cat((key, code.expand(batch, self.num_heads, -1, -1)), -1)
        if self.config._attn_implementation == "eager":
            out = (query @ key.transpose(-1, -2)).softmax(-1) @ value
        else:
            padded = F.pad(value, (0, 2 * side))  # the fused kernels want one head width
            out = F.scaled_dot_product_attention(query, key, padded, scale=1.0)[..., : self.head_dim]
        return self.proj(out.transpose(1, 2).reshape(batch, side, side, width))


class GridMLP(nn.Module):
    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        self.lin1 = nn.Linear(config.hidden_size, config.mlp_dim)
        self.lin2 = nn.Linear(config.mlp_dim, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin2(F.gelu(self.lin1(x)))


class GridLayer(GradientCheckpointingLayer):
    """One SAM block; `window` = 0 attends over the whole grid, else within windows of that side."""

    def __init__(self, config: ArrCocVisionConfig, window: int) -> None:
        super().__init__()
        self.window = window
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.attn = GridAttention(config, window or config.grid_size)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = GridMLP(config)

    def _attend_in_windows(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        w = self.window
        pad = -side % w  # after the norm, zero and unmasked, as SAM does
        x = F.pad(x, (0, 0, 0, pad, 0, pad))
        n = (side + pad) // w
        x = x.view(batch, n, w, n, w, width).transpose(2, 3).reshape(-1, w, w, width)
        x = self.attn(x).view(batch, n, n, w, w, width).transpose(2, 3).reshape(batch, n * w, n * w, width)
        return x[:, :side, :side]

    def forward(self, x: Tensor) -> Tensor:
        normed = self.layer_norm1(x)
        x = x + (self._attend_in_windows(normed) if self.window else self.attn(normed))
        return x + self.mlp(self.layer_norm2(x))


class GridNeck(nn.Module):
    """1x1 and 3x3 convolution to C channels, each followed by a norm."""

    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        width, out = config.hidden_size, config.out_channels
        self.conv1 = nn.Conv2d(width, out, 1, bias=False)
        self.layer_norm1 = LayerNorm2d(out, config.layer_norm_eps)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.layer_norm2 = LayerNorm2d(out, config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer_norm2(self.conv2(self.layer_norm1(self.conv1(x))))


class GridEncoder(nn.Module):
    """SAM's image encoder: pixels [B, 3, S, S] -> features [B, C, G, G]; any S that is a multiple of 4 patches."""

    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        side = config.grid_size
        self.patch_embed = STEMS.named(config.stem)(config)
        self.pos_embed = nn.Parameter(torch.zeros(1, side, side, config.hidden_size))
        whole = set(config.global_attn_indexes)
        self.layers = nn.ModuleList(
            GridLayer(config, 0 if i in whole else config.window_size) for i in range(config.num_hidden_layers)
        )
        self.neck = GridNeck(config)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patch_embed(pixel_values).permute(0, 2, 3, 1)
        x = x + resize_table(self.pos_embed, x.shape[1])
        for layer in self.layers:
            x = layer(x)
        return self.neck(x.permute(0, 3, 1, 2))


# ---- compressors --------------------------------------------------------------------------------------------------


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


# ---- semantic encoder ---------------------------------------------------------------------------------------------


def eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attention written out, for `attn_implementation="eager"`: returns [B, S, heads, d] and the weights."""
    scores = query @ key.transpose(-1, -2) * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


KeyValue = tuple[Tensor, Tensor]


class SemanticAttention(nn.Module):
    """Attention of the given tokens to `past` (keys and values of tokens before them, or None) and to one another.

    Of the given tokens only those are seen that `used` [B, S] marks; None: all.
    """

    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.scaling = (width // self.num_heads) ** -0.5
        self.is_causal = False
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, past: KeyValue | None, used: Tensor | None = None) -> tuple[Tensor, KeyValue]:
        query, own_key, own_value = (
            projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        key, value = own_key, own_value
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        kind = self.config._attn_implementation or "sdpa"  # transformers hands an explicit choice down to sub-configs
        mask = None if used is None else F.pad(used, (key.shape[2] - used.shape[1], 0), value=True)
        if mask is not None and "flash" not in kind:  # which takes the mask of the keys as it is
            mask = mask[:, None, None, :]
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(kind, eager_attention)
        out, _ = attend(self, query, key, value, mask, scaling=self.scaling, dropout=0.0, is_causal=False)
        return self.out_proj(out.flatten(2)), (own_key, own_value)


class SemanticMLP(nn.Module):
    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = ACT2FN[config.hidden_act]
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class SemanticLayer(GradientCheckpointingLayer):
    """One CLIP block; also returns the keys and values of its own tokens."""

    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = SemanticAttention(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = SemanticMLP(config)

    def forward(self, x: Tensor, past: KeyValue | None, used: Tensor | None = None) -> tuple[Tensor, KeyValue]:
        out, own = self.self_attn(self.layer_norm1(x), past, used)
        x = x + out
        return x + self.mlp(self.layer_norm2(x)), own


class SemanticEncoder(nn.Module):
    """CLIP's transformer over base tokens, then over saccades that also see the base.

    Base attends to base only; a saccade attends to everything. No mask is needed: the base runs alone, then saccades
    run with the base's keys and values in front of theirs. So fetching can never change a base token.
    """

    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.config = config
        self.class_embedding = nn.Parameter(torch.zeros(config.hidden_size))
        self.position_embedding = nn.Parameter(torch.zeros(1 + config.position_grid**2, config.hidden_size))
        self.saccade_embedding = nn.Parameter(torch.zeros(config.hidden_size))
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layers = nn.ModuleList(SemanticLayer(config) for _ in range(config.num_hidden_layers))

    def _position_table(self, side: int) -> Tensor:
        grid = self.config.position_grid
        return resize_table(self.position_embedding[1:].view(1, grid, grid, -1), side)

    def _positions_at(self, indices: Tensor, side: int) -> Tensor:
        """Position table sampled at the centres of fine patches: indices [B, K] of a G grid -> [B, K, D']."""
        table = self._position_table(side // COMPRESSION).permute(0, 3, 1, 2).float()
        x, y = indices % side, indices // side
        at = (torch.stack((x, y), -1) + 0.5) * (2 / side) - 1  # grid_sample's convention: (x, y) in -1..1
        table = table.expand(indices.shape[0], -1, -1, -1)
        sampled = F.grid_sample(table, at[:, None].float(), padding_mode="border", align_corners=False)
        return sampled[:, :, 0].transpose(1, 2).to(self.position_embedding.dtype)

    def forward(
        self,
        tokens: Tensor,
        side: int,
        indices: Tensor | None,
        base: list[KeyValue] | None = None,
        used: Tensor | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """Runs base tokens (`base` is None) or saccades (`base`: keys and values of the base, per layer).

        Args:
            tokens: [B, M or K, D'].
            side: G of the fine grid that positions refer to.
            indices: [B, M or K] fine patches the tokens stand at; None: one token per 4x4 cell, in order.
            base: what an earlier call on the base tokens returned.
            used: [B, K] bool, False on saccades that only fill the rectangle: no other may see them. None: all are.

        Returns:
            States [B, M or K, D'], without CLS, and each layer's keys and values of these tokens (CLS included).
        """
        if indices is None:
            positions = self._position_table(side // COMPRESSION).flatten(1, 2)
        else:
            positions = self._positions_at(indices, side)
        x = tokens + positions
        if base is None:
            cls = (self.class_embedding + self.position_embedding[0]).expand(tokens.shape[0], 1, -1)
            x = torch.cat((cls, x), 1)
        else:
            x = x + self.saccade_embedding
        x = self.pre_layrnorm(x)
        own: list[KeyValue] = []
        for layer, past in zip(self.layers, base or (None,) * len(self.layers), strict=True):
            x, key_value = layer(x, past, used)
            own.append(key_value)
        return (x[:, 1:] if base is None else x), own
