"""The grid encoder: pixels -> features of the fine grid; and regions, squares of patches of this grid.

Notation: B batch, G side of the fine grid, N = G*G patches, g = G/4, M = g*g base tokens, K fetched tokens, C feature
channels, D' semantic width. Positions are (y, x), row-major.

Sources: SAM's image encoder (Kirillov et al. 2023) and CLIP's vision transformer (Radford et al. 2021) with
DeepSeek-OCR's two-convolution compressor between them (Wei et al. 2025). Module names are those of
transformers' SAM and CLIP.
"""

from collections.abc import Collection
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import initialization
from transformers.modeling_layers import GradientCheckpointingLayer

from .checks import Registry
from .configuration_arr_coc import ArrCocVisionConfig


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def resize_table(table: Tensor, side: int) -> Tensor:
    """[1, g, g, D] position table at another side: bicubic, antialiased, in float32, as DeepSeek-OCR does."""
    resized = F.interpolate(table.permute(0, 3, 1, 2).float(), (side, side), mode="bicubic", antialias=True)
    return resized.permute(0, 2, 3, 1).to(table.dtype)


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


class ConvBlock(nn.Module):
    """A residual block of two 3x3 convolutions, each behind a norm (He et al. 2016, with LayerNorm)."""

    def __init__(self, config: ArrCocVisionConfig, width: int) -> None:
        super().__init__()
        self.layer_norm1 = LayerNorm2d(width, config.layer_norm_eps)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.layer_norm2 = LayerNorm2d(width, config.layer_norm_eps)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv1(F.gelu(self.layer_norm1(x)))
        return x + self.conv2(F.gelu(self.layer_norm2(hidden)))


class WideBlock(nn.Module):
    """A depthwise convolution, wider than tall as words are, and an MLP on each pixel (Liu et al. 2022, ConvNeXt)."""

    def __init__(self, config: ArrCocVisionConfig, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, (3, 11), padding=(1, 5), groups=width)
        self.layernorm = nn.LayerNorm(width, config.layer_norm_eps)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.pwconv1(self.layernorm(self.dwconv(x).permute(0, 2, 3, 1)))
        return x + self.pwconv2(F.gelu(hidden)).permute(0, 3, 1, 2)


@STEMS.register("conv")
class ConvStem(nn.Module):
    """Stride-2 3x3 convolutions down to a patch; needs far fewer samples than "patchify" to learn to read.

    With wide blocks, which read whole words, the last convolution has a 2x2 kernel, so patches do not overlap. Without
    layers behind the stem a patch is the mean of its cells.
    """

    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        widths = [config.num_channels, *config.stem_channels]
        steps: list[nn.Module] = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            steps += [nn.Conv2d(before, after, 3, 2, 1), LayerNorm2d(after, config.layer_norm_eps), nn.GELU()]
        steps += [ConvBlock(config, widths[-1]) for _ in range(config.stem_blocks)]
        steps += [WideBlock(config, widths[-1]) for _ in range(config.stem_wide_blocks)]
        self.steps = nn.Sequential(*steps)
        kernel, padding = (2, 0) if config.stem_wide_blocks else (3, 1)
        self.projection: nn.Module = nn.AvgPool2d(2)
        if config.num_hidden_layers:
            self.projection = nn.Conv2d(widths[-1], config.hidden_size, kernel, 2, padding)

    def forward(self, pixel_values: Tensor) -> Tensor:
        patches: Tensor = self.projection(self.steps(pixel_values))
        return patches


SCORES_AT_ONCE = 2**20
"""Attention scores in memory at a time: 2^18 to 2^22 are equally fast on a CPU, more exceed its caches."""


def _with_positions(query: Tensor, key: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key with 2S more channels, whose dot product includes the position term. The term of query q and key
    (i, j) is rows[q, i] + columns[q, j]: the query gets its `rows` and `columns`, the key one-hot codes of i and j."""
    side = rows.shape[-1]
    eye = torch.eye(side, dtype=key.dtype, device=key.device)
    code = torch.cat((eye.repeat_interleave(side, 0), eye.repeat(side, 1)), -1)  # [S*S, 2S]: row and column
    wide_key = torch.cat((key, code.expand(len(key), -1, -1)), -1)
    return torch.cat((query, rows, columns), -1), wide_key


def attend_fused(query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`attend_in_blocks` with PyTorch's own kernel, which needs query, key and value of one width."""
    side, width = rows.shape[-1], value.shape[-1]
    query, key = _with_positions(query, key, rows, columns)
    padded = F.pad(value, (0, 2 * side))
    return F.scaled_dot_product_attention(query[None], key[None], padded[None], scale=1.0)[0, ..., :width]


def _attend_block(query: Tensor, key: Tensor, value: Tensor, *terms: Tensor) -> Tensor:
    """Some queries over all keys; `terms` [n, Q, S, 1] or [n, Q, 1, S] are added to the scores in place."""
    scores = query @ key.transpose(1, 2)
    for term in terms:
        side = max(term.shape[-2:])
        scores.unflatten(-1, (side, side)).add_(term)
    return scores.softmax(-1) @ value


def attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, *, recompute: bool = False
) -> Tensor:
    """Attention with position terms, [n, Q, d]: `SCORES_AT_ONCE` scores at a time, never all [n, Q, S*S] in memory.

    In half precision the terms become channels (`_with_positions`): a CPU multiplies faster than it adds in half
    precision, and each score is rounded once.

    Args:
        query: [n, Q, d] for n heads of images or windows, scaled; key, value: [n, S*S, d].
        rows, columns: [n, Q, S] for each query, the term of a key's row and of its column.
        recompute: compute scores again in the backward pass instead of keeping them.
    """
    keys = key.shape[1]
    if query.dtype.itemsize < 4:
        query, key = _with_positions(query, key, rows, columns)
        terms = []
    else:
        terms = [rows.unsqueeze(-1), columns.unsqueeze(-2)]

    def attend(queries: Tensor, key: Tensor, value: Tensor, *terms: Tensor) -> Tensor:
        if not (recompute and torch.is_grad_enabled()):
            return _attend_block(queries, key, value, *terms)
        block = checkpoint(_attend_block, queries, key, value, *terms, use_reentrant=False, preserve_rng_state=False)
        return cast(Tensor, block)

    several = max(1, SCORES_AT_ONCE // (query.shape[1] * keys))  # heads whose scores fit at once
    length = max(1, SCORES_AT_ONCE // keys)
    out = []
    for head_key, head_value, *of_queries in zip(*(x.split(several) for x in (key, value, query, *terms)), strict=True):
        blocks = zip(*(x.split(length, 1) for x in of_queries), strict=True)
        out.append(torch.cat([attend(queries, head_key, head_value, *term) for queries, *term in blocks], 1))
    return torch.cat(out)


class GridAttention(nn.Module):
    """Self-attention over a [S, S] grid with SAM's decomposed relative positions, without an [S*S, S*S] bias.

    On a CPU it runs in blocks and computes scores again for the backward pass. `attn_implementation="eager"` keeps the
    scores, which is a little faster and takes [S*S, S*S] memory. On other devices, and in compiled or exported graphs,
    PyTorch's fused kernel runs, with the position terms as channels of query and key.
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

    def start_weights(self, std: float) -> None:
        initialization.zeros_(self.rel_pos_h)
        initialization.zeros_(self.rel_pos_w)

    def _relative(self, table: Tensor, side: int) -> Tensor:
        """Rows of `table` for each (query, key) coordinate pair: [side, side, head_dim]. At another side it is resized
        linearly, in float32, as SAM does."""
        if table.shape[0] != 2 * side - 1:
            resized = F.interpolate(table.float().t()[None], 2 * side - 1, mode="linear")[0].t()
            table = resized.to(table.dtype)
        at = torch.arange(side, device=table.device)
        return table[at[:, None] - at[None] + side - 1]

    def forward(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        qkv = self.qkv(x).view(batch, side * side, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).flatten(1, 2)  # each [B*heads, S*S, head_dim]
        grid = query.unflatten(1, (side, side))
        rows = torch.einsum("nyxd,ykd->nyxk", grid, self._relative(self.rel_pos_h, side)).flatten(1, 2)
        columns = torch.einsum("nyxd,xkd->nyxk", grid, self._relative(self.rel_pos_w, side)).flatten(1, 2)
        query = query * self.head_dim**-0.5
        keeps = self.config._attn_implementation == "eager"
        if keeps or (query.device.type == "cpu" and not torch.compiler.is_compiling()):
            out = attend_in_blocks(query, key, value, rows, columns, recompute=not keeps)
        else:
            out = attend_fused(query, key, value, rows, columns)
        out = out.view(batch, self.num_heads, side * side, self.head_dim)
        return self.proj(out.transpose(1, 2).reshape(batch, side, side, width))


class GridMLP(nn.Sequential):
    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        assert config.mlp_dim is not None, "the config sets it"
        self.lin1 = nn.Linear(config.hidden_size, config.mlp_dim)
        self.gelu = nn.GELU()
        self.lin2 = nn.Linear(config.mlp_dim, config.hidden_size)


class GridLayer(GradientCheckpointingLayer):
    """One SAM block; `window` = 0 attends over the whole grid, else within windows of that side. The first windows
    begin `shift` patches before the grid (Liu et al. 2021, Swin transformer)."""

    def __init__(self, config: ArrCocVisionConfig, window: int, shift: int = 0) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.attn = GridAttention(config, window or config.grid_size)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = GridMLP(config)

    def _attend_in_windows(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        w, before = self.window, self.shift
        after = -(side + before) % w  # padded after the norm, zero and unmasked, as SAM does
        x = F.pad(x, (0, 0, before, after, before, after))
        n = (before + side + after) // w
        x = x.view(batch, n, w, n, w, width).transpose(2, 3).reshape(-1, w, w, width)
        x = self.attn(x).view(batch, n, n, w, w, width).transpose(2, 3).reshape(batch, n * w, n * w, width)
        return x[:, before : before + side, before : before + side]

    def forward(self, x: Tensor) -> Tensor:
        normed = self.layer_norm1(x)
        x = x + (self._attend_in_windows(normed) if self.window else self.attn(normed))
        return x + self.mlp(self.layer_norm2(x))


class GridNeck(nn.Sequential):
    """1x1 and 3x3 convolution to C channels, each followed by a norm."""

    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        out = config.out_channels
        self.conv1 = nn.Conv2d(config.hidden_size, out, 1, bias=False)
        self.layer_norm1 = LayerNorm2d(out, config.layer_norm_eps)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.layer_norm2 = LayerNorm2d(out, config.layer_norm_eps)


COARSE = (0.5, 0.25)  # sizes of an image at which large print is read, relative to the size at which all print is


class GridEncoder(nn.Module):
    """SAM's image encoder: pixels [B, 3, S, S] -> features [B, C, G, G]; any S that is a multiple of 4 patches."""

    def __init__(self, config: ArrCocVisionConfig) -> None:
        super().__init__()
        side, self.patch_size = config.grid_size, config.patch_size
        self.patch_embed = STEMS[config.stem](config)
        self.layers = nn.ModuleList()
        if not config.num_hidden_layers:  # the stem alone
            return
        self.pos_embed = nn.Parameter(torch.zeros(1, side, side, config.hidden_size))
        for number in range(config.num_hidden_layers):
            window = 0 if number in config.global_attn_indexes else config.window_size
            self.layers.append(GridLayer(config, window, window // 2 if config.shifted_windows and number % 2 else 0))
        self.neck = GridNeck(config)

    def start_weights(self, std: float) -> None:
        if self.layers:
            initialization.normal_(self.pos_embed, std=std)

    def forward(self, pixel_values: Tensor, also: Collection[str] = ()) -> Tensor | dict[str, Any]:
        """Features [B, C, G, G]; with names in `also`, a dictionary of "features" and these outputs.

        Args:
            pixel_values: [B, 3, S, S].
            also: "depths": [B, 2, W, G, G], states after 1/3 and 2/3 of the layers; "stem": [B, C', 2G, 2G], the
                features before the last convolution of a convolutional stem; "coarse": a list of these features of
                the images at `COARSE` of their size.
        """
        outputs: dict[str, Any] = {}
        stem: Any = self.patch_embed
        if "stem" in also:
            assert isinstance(stem, ConvStem), "the configuration checks it"
            outputs["stem"] = stem.steps(pixel_values)
            x = stem.projection(outputs["stem"])
        else:
            x = stem(pixel_values)
        if "coarse" in also:
            outputs["coarse"] = []
            for scale in COARSE:
                side = round(pixel_values.shape[-1] * scale) // self.patch_size * self.patch_size
                if side:
                    size = (side, side)
                    images = F.interpolate(pixel_values.float(), size, mode="bilinear", antialias=True)
                    outputs["coarse"].append(stem.steps(images.to(pixel_values)))
        if not self.layers:
            return {"features": x, **outputs} if also else x
        x = x.permute(0, 2, 3, 1)
        same = self.pos_embed.shape[1] == x.shape[1]
        x = x + (self.pos_embed if same else resize_table(self.pos_embed, x.shape[1]))
        states = []
        for layer in self.layers:
            x = layer(x)
            if "depths" in also:
                states.append(x)
        features: Tensor = self.neck(x.permute(0, 3, 1, 2))
        if "depths" in also:
            depths = [states[max(1, third * len(states) // 3) - 1] for third in (1, 2)]
            outputs["depths"] = torch.stack(depths, 1).movedim(-1, 2)
        return {"features": features, **outputs} if also else features


LEVELS = 3  # levels of detail: 1, 2x2 and 4x4 patches per token


def region_boxes(indices: Tensor, levels: Tensor, side: int) -> Tensor:
    """[B, K, 4] y0, x0, y1, x1 in patches, ends exclusive, of regions [B, K] on a grid of width `side`."""
    y, x, span = indices // side, indices % side, 1 << levels
    return torch.stack((y, x, y + span, x + span), -1)


def pool_regions(grid: Tensor, indices: Tensor, levels: Tensor) -> Tensor:
    """The mean over each region [B, K] of a grid [B, C, H, G]: [B, K, C]."""
    pyramid = torch.cat([F.avg_pool2d(grid, 1 << level).flatten(2) for level in range(LEVELS)], -1)
    places = _places(indices, levels, *grid.shape[-2:])
    return pyramid.gather(2, places[:, None].expand(-1, grid.shape[1], -1)).transpose(1, 2)


def spread_regions(values: Tensor, indices: Tensor, levels: Tensor, shape: tuple[int, int]) -> Tensor:
    """Values of regions [B, K] -> [B, N] on a grid of `shape` (rows, width): on all patches of a region, else 0."""
    height, width = shape
    sizes = [(height >> level) * (width >> level) for level in range(LEVELS)]
    flat = values.new_zeros(len(values), sum(sizes)).scatter_add(1, _places(indices, levels, height, width), values)
    patches = values.new_zeros(len(values), height, width)
    for level, nodes in enumerate(flat.split(sizes, 1)):
        grid = nodes.unflatten(1, (height >> level, width >> level))
        patches = patches + grid.repeat_interleave(1 << level, 1).repeat_interleave(1 << level, 2)
    return patches.flatten(1)


def _places(indices: Tensor, levels: Tensor, height: int, width: int) -> Tensor:
    """The numbers of regions among all regions of a grid: those of level 0 first, then of level 1 and 2."""
    starts = torch.tensor([0, height * width, height * width * 5 // 4], device=indices.device)
    y, x = indices // width, indices % width
    return starts[levels] + (y >> levels) * (width >> levels) + (x >> levels)


def in_tree(values: Tensor, side: int) -> Tensor:
    """Values of patches [B, N] by cell, quarter of the cell and patch of the quarter: [B, M, 4, 4], row-major."""
    batch, cells = len(values), values.shape[1] // side // 4
    grid = values.reshape(batch, cells, 2, 2, side // 4, 2, 2)  # cell row, quarter's, patch's; and columns
    return grid.permute(0, 1, 4, 2, 5, 3, 6).reshape(batch, -1, 4, 4)


def out_of_tree(values: Tensor, side: int) -> Tensor:
    """The inverse of `in_tree`: [B, M, 4, 4] -> [B, N]."""
    batch = len(values)
    grid = values.reshape(batch, -1, side // 4, 2, 2, 2, 2).permute(0, 1, 3, 5, 2, 4, 6)
    return grid.reshape(batch, -1)
