"""The vision tower: behind the grid encoder, a text reader, or the compressor and the semantic encoder.

Notation: P encoded images, I image slots, G side of the fine grid, N = G*G patches, M base tokens, K fetched tokens, C
feature channels, T texture channels, D' semantic width, D language-model width.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.clip.modeling_clip import CLIPMLP

from .checks import Registry, refusal
from .configuration_arr_coc import COMPRESSION, ArrCocSemanticConfig, ArrCocVisionConfig
from .grid_encoder import LEVELS, ConvStem, GridEncoder, pool_regions, resize_table
from .image_encoding import ImageEncoding, KeyValue
from .marks import MarkHead, found_marks, with_marks
from .rereading import reread
from .wordpieces import GivenWords, TextReader, Word

# ---- textures: cheap, fixed, and computed once per image ----------------------------------------------------------

TEXTURE_SETS: dict[str, tuple[str, ...]] = {"light": ("luminance", "edge_magnitude")}
"""The channels of each set, from the smallest to the largest. A set begins with those of the sets before it, so that a
channel has the same number in all. Package arr-coc adds "basic" and "full"."""

RICHER_TEXTURES: Registry[Callable[..., list[Tensor]]] = Registry("textures")
"""Functions that compute the channels of a set beyond "light": `textures` says from what."""


def luminance(pixel_values: Tensor) -> Tensor:
    """Rec. 601 luma of normalised RGB [B, 3, S, S] -> [B, 1, S, S], float32."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=pixel_values.device)
    return (pixel_values.float() * weights.view(1, 3, 1, 1)).sum(1, keepdim=True)


def sobel(luma: Tensor) -> Tensor:
    """Gradient of [B, 1, S, S] along x and y: [B, 2, S, S]; the border is replicated, so it shows no edge."""
    kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], device=luma.device) / 8
    kernels = torch.stack((kernel, kernel.t()))[:, None]
    return F.conv2d(F.pad(luma, (1, 1, 1, 1), mode="replicate"), kernels)


def magnitude(gradient: Tensor) -> Tensor:
    """Length of a gradient [B, 2, S, S] -> [B, 1, S, S]."""
    return gradient.square().sum(1, keepdim=True).sqrt()


def textures(pixel_values: Tensor, side: int, kind: str = "light", patch_mask: Tensor | None = None) -> Tensor:
    """The channels `TEXTURE_SETS[kind]` of each patch: [B, 3, S, S] -> [B, T, G, G], float32.

    "light": means over the patch's pixels, which are -1 (black) to 1 (white), of luminance and of edge_magnitude, the
    gradient's length. For the others see families/relevance_maps.py; they take the image's mean colour from the patches
    in `patch_mask` [B, N].
    """
    luma = luminance(pixel_values)
    gradient = sobel(luma)
    light = F.adaptive_avg_pool2d(torch.cat((luma, magnitude(gradient)), 1), side)
    if kind == "light":
        return light
    return torch.cat((light, *RICHER_TEXTURES[kind](pixel_values.float(), light, gradient, luma, patch_mask)), 1)


def clear_of_padding(values: Tensor, patch_mask: Tensor) -> Tensor:
    """Values [B, G, G], 0 on patches next to padding, whose border would be the strongest edge of a page. An image too
    thin for any other patch keeps its values; `patch_mask` [B, N]."""
    padding = (~patch_mask).view(values.shape).float()
    inner = F.max_pool2d(padding[:, None], 3, stride=1, padding=1)[:, 0] == 0
    inner = inner | ~inner.any((1, 2), keepdim=True)
    return torch.where(inner, values, 0.0)


def checksums(pixel_values: Tensor) -> Tensor:
    """[P] int64 for [P, 3, S, S]: a checksum of each image's pixels, for random relevance."""
    return (pixel_values.float() * 127.5).round().long().sum((1, 2, 3))


# ---- compressors --------------------------------------------------------------------------------------------------

COMPRESSORS: Registry[type[nn.Module]] = Registry("compressor")


@dataclass(frozen=True)
class BaseTokens:
    """The output of a compressor."""

    tokens: Tensor  # [B, M, D']
    compressed: Tensor  # the same as [B, D', g, g]
    indices: Tensor | None  # [B, M] their patches, ascending; None: a token represents a whole 4x4 cell


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
        """[D', C]: the two convolutions as one matrix, exact for a locally constant patch."""
        return self.conv2.weight.sum((2, 3)) @ self.conv1.weight.sum((2, 3))


MAX_PIXEL = 1e4
"""The largest magnitude of a normalised pixel; larger ones may overflow half precision. Images have a few units."""


def pool_cells(states: Tensor, pool: int) -> Tensor:
    """Base tokens [P, M, D'] of g rows of g, averaged over `pool` x `pool` cells, or fewer at the edges."""
    grid = states.transpose(1, 2).unflatten(2, (isqrt(states.shape[1]), -1))
    pooled = F.avg_pool2d(grid, pool, ceil_mode=True, count_include_pad=False)
    return pooled.flatten(2).transpose(1, 2)


def gather_patches(features: Tensor, indices: Tensor) -> Tensor:
    """Features [B, C, G, G] at `indices` [B, K] -> [B, K, C]."""
    return features.flatten(2).gather(2, indices[:, None].expand(-1, features.shape[1], -1)).transpose(1, 2)


def states_at(grid: Tensor, indices: Tensor, levels: Tensor | None = None) -> Tensor:
    """States of a grid [B, C, G, G] at patches, or with levels [B, K] averaged over regions: [B, K, C]."""
    return gather_patches(grid, indices) if levels is None else pool_regions(grid, indices, levels)


def base_states(grid: Tensor, base_indices: Tensor | None, pool: int) -> Tensor:
    """States of a grid [B, C, G, G] averaged over the patches of each base token: [B, M, C] (see `ImageEncoding`)."""
    if base_indices is not None:
        return gather_patches(grid, base_indices)
    return pool_cells(F.avg_pool2d(grid, COMPRESSION).flatten(2).transpose(1, 2), pool)


def check_pixels(pixel_values: Tensor, patch_mask: Tensor | None, config: ArrCocVisionConfig) -> None:
    """Raises a ValueError unless these are square images [P, 3, S, S], S a multiple of 4 patches, and a mask [P, N]."""
    for name, tensor in (("pixel_values", pixel_values), ("patch_mask", patch_mask)):
        sparse = isinstance(tensor, Tensor) and (tensor.layout != torch.strided or tensor.is_quantized)
        if tensor is not None and (not isinstance(tensor, Tensor) or sparse or tensor.is_complex()):
            raise refusal(name, "a dense tensor of numbers", tensor)
    shape, unit = list(pixel_values.shape), COMPRESSION * config.patch_size
    if len(shape) != 4 or shape[1] != config.num_channels:
        raise ValueError(f"pixel_values: expected [images, {config.num_channels}, side, side]; got shape {shape}")
    images, _, height, width = shape
    if height != width or height % unit or not height:
        raise ValueError(f"pixel_values: expected square images, side a multiple of {unit} px; got {height} x {width}")
    if not images:
        raise ValueError("pixel_values: expected at least one image; got none")
    meta = pixel_values.is_meta or torch.compiler.is_compiling()  # the values are not known
    if not meta and not pixel_values.detach().float().abs().amax() <= MAX_PIXEL:  # also of NaN
        raise ValueError(f"pixel_values: expected normalised numbers of at most {MAX_PIXEL:g}; got larger ones or NaN")
    shape = [images, (height // config.patch_size) ** 2]
    if patch_mask is not None and list(patch_mask.shape) != shape:
        raise ValueError(f"patch_mask: expected shape {shape}; got {list(patch_mask.shape)}")


class FetchedProjection(nn.Linear):
    """Features of a fetched patch -> a token; starts as the compressor's matrix (`ArrCocPreTrainedModel`)."""


class ArrCocVisionTower(nn.Module):
    """Grid encoder, and behind it a text reader, or compressor, semantic encoder and the projection of fetched patches.

    Args:
        vision, semantic: their configurations.
        textures: the set of texture channels, see `TEXTURE_SETS`.
        keeps_depths: whether to keep the grid encoder's states at two depths beside its output.
        vocabulary: rows of the language model's table for a `TextReader`, of whose wordpieces all tokens are made; 0:
            no reader.
    """

    def __init__(
        self,
        vision: ArrCocVisionConfig,
        semantic: ArrCocSemanticConfig,
        *,
        textures: str = "light",
        keeps_depths: bool = False,
        vocabulary: int = 0,
    ) -> None:
        super().__init__()
        self.config = vision
        self.texture_set, self.keeps_depths = textures, keeps_depths
        self.grid_encoder = GridEncoder(vision)
        self.text_reader = None
        if vocabulary:
            channels = vision.stem_channels[-1]
            self.text_reader = TextReader(channels, vocabulary, MarkHead(channels) if vision.marks else None)
        if not vocabulary:
            self.compressor = COMPRESSORS[vision.compressor](vision)
            self.semantic_encoder = SemanticEncoder(semantic)
            # Published weights are stored under this name (and `saccade_embedding` below), so it stays.
            self.saccade_projection = FetchedProjection(vision.out_channels, semantic.hidden_size, bias=False)

    def forward(
        self,
        pixel_values: Tensor | None,
        patch_mask: Tensor | None = None,
        features: Tensor | None = None,
        words: Sequence[GivenWords | None] | None = None,
        **kept: Tensor | None,
    ) -> dict[str, Any]:
        """Images -> the fields of an `ImageEncoding` before the bridge, by name.

        Args:
            pixel_values: [P, 3, S, S]; None with `features`: then only the fields that follow from these.
            patch_mask: [P, N], False on padding patches; None: there are none.
            features: [P, C, G, G] of the grid encoder, if it ran before; `kept`: the other outputs of `encode_grid`.
            words: see `encode_grid`.
        """
        images, side = features, 0 if features is None else features.shape[-1]
        if pixel_values is not None:
            check_pixels(pixel_values, patch_mask, self.config)
            images, side = pixel_values, pixel_values.shape[-1] // self.config.patch_size
        assert images is not None
        patch_mask = (images.new_ones(len(images), side**2) if patch_mask is None else patch_mask).bool()
        if pixel_values is not None:
            kept["textures"] = textures(pixel_values, side, self.texture_set, patch_mask)
            kept["seeds"] = checksums(pixel_values)
        if features is None:
            assert pixel_values is not None
            kept |= self.encode_grid(pixel_values, words)
            features = kept.pop("features")
            assert features is not None
        if self.text_reader is None:
            base = self.compressor(features, patch_mask)
            semantic, cache = self.semantic_encoder(base.tokens, side, base.indices)
        else:
            cells = side // COMPRESSION
            semantic, cache = features.new_zeros(len(features), cells**2, 0), []
            base = BaseTokens(semantic, features.new_zeros(len(features), 0, cells, cells), None)
        return {
            "features": features,
            "patch_mask": patch_mask,
            "compressed": base.compressed,
            "base_indices": base.indices,
            "semantic": semantic,
            "semantic_cache": cache,
            **kept,
        }

    def unseen_fields(self, words: Sequence[GivenWords], patches: int) -> dict[str, Tensor]:
        """The fields of R views of N = `patches` whose words are all known: "pieces" and "characters"; "features",
        "textures" and "seeds", which need pixels, are 0."""
        assert self.text_reader is not None, "only models that read text are given words"
        side, weight = isqrt(patches), next(self.parameters())
        channels = {"features": self.config.out_channels, "textures": len(TEXTURE_SETS[self.texture_set])}
        empty = {name: weight.new_zeros(len(words), count, side, side) for name, count in channels.items()}
        pieces, characters, _ = self.text_reader.spread([each.words for each in words], side)
        seeds = torch.zeros(len(words), dtype=torch.int64)
        fields = {"pieces": pieces, "characters": characters, "seeds": seeds}
        return {**empty, **{name: field.to(weight.device) for name, field in fields.items()}}

    def tile_features(
        self, pixel_values: Tensor, words: Sequence[GivenWords | None] | None = None
    ) -> dict[str, Tensor]:
        """The fields that are kept of tiles [R, 3, S, S]: seeds, and in half precision textures and `encode_grid`."""
        grid = self.encode_grid(pixel_values, words)
        features = grid["features"]
        kept = features.dtype if features.dtype.itemsize == 2 else torch.bfloat16
        grid["textures"] = textures(pixel_values, features.shape[-1], self.texture_set)
        whole = ("pieces", "characters")
        tiles = {name: field if name in whole else field.to(kept) for name, field in grid.items()}
        return {**tiles, "seeds": checksums(pixel_values)}

    def encode_grid(self, pixel_values: Tensor, words: Sequence[GivenWords | None] | None = None) -> dict[str, Tensor]:
        """The grid encoder's "features" [P, C, G, G]; its "depths" [P, 2, W, G, G] if they are kept; "pieces" [P, N, 2,
        S] and "characters" [P, N, 2] if there is a text reader, see `TextReader.spread`.

        `words`: those of each image from elsewhere, None where the text reader reads; None: it reads all.
        """
        pixel_values = pixel_values.to(next(self.parameters()).dtype)
        also, again = ["depths"] * self.keeps_depths, None
        if self.text_reader is not None:
            if words is not None and any(each is not None and each.original for each in words):
                stem = self.grid_encoder.patch_embed
                assert isinstance(stem, ConvStem), "the configuration checks it"
                again = partial(reread, words, stem.steps, self.text_reader.words, pixel_values)
            reads = words is None or any(each is None or each.partial for each in words)
            also += ["stem"] + ["coarse"] * reads
        grid = self.grid_encoder(pixel_values, also)
        if self.text_reader is None:
            return grid if also else {"features": grid}
        stem, coarse = grid.pop("stem"), grid.pop("coarse", ())
        if (head := self.text_reader.mark_head) is not None:
            again = partial(_with_marks, head, stem, pixel_values, again)
        grid["pieces"], grid["characters"] = self.text_reader.read(stem, coarse, words, again)
        return grid

    def stem(self, pixel_values: Tensor) -> Tensor:
        """Pixels [P, 3, height, width], multiples of half a patch -> features of the stem [P, C', rows, columns]."""
        stem = self.grid_encoder.patch_embed
        assert isinstance(stem, ConvStem), "the configuration checks it"
        return stem.steps(pixel_values.to(next(self.parameters())))

    def fetched_states(
        self, encoding: ImageEncoding, indices: Tensor, used: Tensor | None = None, levels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Fetched patches or regions [I, K] -> their semantic states and their projected features, each [I, K, D'].
        `used`, `levels` [I, K]: see `SemanticEncoder.forward`. A region is projected from the mean of its patches."""
        features = encoding.features
        projected = self.saccade_projection(states_at(features, indices, levels))
        states, _ = self.semantic_encoder(projected, features.shape[-1], indices, encoding.semantic_cache, used, levels)
        return states, projected


def _with_marks(
    head: MarkHead, stem: Tensor, pixel_values: Tensor, again: Callable | None, pages: list[list[Word]]
) -> list[list[Word]]:
    """The words that were read, and `again` where that is given, with those that name marks."""
    pages = pages if again is None else again(pages)
    marks = found_marks(head(head.inputs(stem, pixel_values)))
    return [with_marks(*page) for page in zip(pages, marks, strict=True)]


class Latent(nn.Sequential):
    """Tokens [..., H] -> their latent [..., R]: projected and normalised."""

    def __init__(self, size: int, latent_size: int) -> None:
        super().__init__(nn.Linear(size, latent_size, bias=False), nn.LayerNorm(latent_size))


def key_value_projection(size: int, latent_size: int | None) -> nn.Module:
    """A layer from tokens [..., H] to keys and values [..., 2 H]: linear, or both made of one latent."""
    if latent_size is None:
        return nn.Linear(size, 2 * size)
    return nn.Sequential(OrderedDict(latent=Latent(size, latent_size), up=nn.Linear(latent_size, 2 * size)))


def eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attention written out, for `attn_implementation="eager"`: returns [B, S, heads, d] and the weights."""
    scores = query @ key.transpose(-1, -2) * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


class SemanticAttention(nn.Module):
    """Attention of tokens to `past` (keys and values of tokens before them, or None) and to each other. `used` [B, S]:
    True on tokens that others attend to; None: all."""

    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.scaling = (width // self.num_heads) ** -0.5
        self.is_causal = False
        source = width if config.latent_size is None else config.latent_size
        self.latent = nn.Identity() if config.latent_size is None else Latent(width, source)
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(source, width)
        self.v_proj = nn.Linear(source, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, past: KeyValue | None, used: Tensor | None = None) -> tuple[Tensor, KeyValue]:
        source = self.latent(x)
        query, own_key, own_value = (
            projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projected in (self.q_proj(x), self.k_proj(source), self.v_proj(source))
        )
        key, value = own_key, own_value
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        kind = self.config._attn_implementation or "sdpa"  # transformers hands an explicit choice down to sub-configs
        mask = None if used is None else F.pad(used, (key.shape[2] - used.shape[1], 0), value=True)
        if mask is not None and "flash" not in kind:  # flash attention takes the mask of the keys
            mask = mask[:, None, None, :]
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(kind, eager_attention)
        out, _ = attend(self, query, key, value, mask, scaling=self.scaling, dropout=0.0, is_causal=False)
        return self.out_proj(out.flatten(2)), (own_key, own_value)


class SemanticLayer(GradientCheckpointingLayer):
    """One CLIP block; also returns the keys and values of its own tokens. It takes and returns tensors one by one:
    reentrant checkpointing loses gradients of tensors in tuples."""

    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = SemanticAttention(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = CLIPMLP(config)

    def forward(
        self, x: Tensor, past_key: Tensor | None, past_value: Tensor | None, used: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        past = None if past_key is None or past_value is None else (past_key, past_value)
        out, (key, value) = self.self_attn(self.layer_norm1(x), past, used)
        x = x + out
        return x + self.mlp(self.layer_norm2(x)), key, value


def run_layers(
    layers: Iterable[nn.Module], x: Tensor, base: Sequence[KeyValue] | None, used: Tensor | None
) -> tuple[Tensor, list[KeyValue]]:
    """Tokens x [B, S, D'] through `SemanticLayer`s, behind the keys and values of `base`, a pair for each layer.

    Returns:
        States [B, S, D'], and the keys and values of these tokens for each layer.
    """
    own: list[KeyValue] = []
    for number, layer in enumerate(layers):
        x, key, value = layer(x, *(base[number] if base else (None, None)), used)
        own.append((key, value))
    return x, own


class LevelEmbedding(nn.Embedding):
    """Embedding of a token's level of detail; starts at zero."""

    def start_weights(self, std: float) -> None:
        initialization.zeros_(self.weight)


class SemanticEncoder(nn.Module):
    """CLIP's transformer over base tokens, then over fetched tokens that also attend to the base tokens.

    Base tokens attend to base tokens only; a fetched token attends to all. This needs no mask: base tokens run alone,
    then fetched tokens run with the keys and values of the base tokens in front of theirs. So fetching cannot change a
    base token.
    """

    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.config = config
        self.class_embedding = nn.Parameter(torch.zeros(config.hidden_size))
        self.position_embedding = nn.Parameter(torch.zeros(1 + config.position_grid**2, config.hidden_size))
        self.saccade_embedding = nn.Parameter(torch.zeros(config.hidden_size))
        self.level_embedding = LevelEmbedding(LEVELS, config.hidden_size) if config.level_embedding else None
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layers = nn.ModuleList(SemanticLayer(config) for _ in range(config.num_hidden_layers))

    def start_weights(self, std: float) -> None:
        initialization.normal_(self.class_embedding, std=self.config.initializer_range)
        initialization.normal_(self.position_embedding, std=self.config.initializer_range)
        initialization.zeros_(self.saccade_embedding)

    def _position_table(self, side: int) -> Tensor:
        grid = self.config.position_grid
        table = self.position_embedding[1:].view(1, grid, grid, -1)
        return table if grid == side else resize_table(table, side)

    def _positions_at(self, indices: Tensor, side: int, levels: Tensor | None = None) -> Tensor:
        """Position table sampled at the centres of regions of a G grid: indices, levels [B, K] -> [B, K, D']."""
        table = self._position_table(side // COMPRESSION).permute(0, 3, 1, 2).float()
        x, y = indices % side, indices // side
        half = 0.5 if levels is None else 0.5 * (1 << levels)[..., None]  # of a region's side, patches
        at = (torch.stack((x, y), -1) + half) * (2 / side) - 1  # grid_sample's convention: (x, y) in -1..1
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
        levels: Tensor | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """Runs base tokens (`base` is None) or fetched tokens (`base`: keys and values of the base, per layer).

        Args:
            tokens: [B, M or K, D'].
            side: G of the fine grid that positions refer to.
            indices: [B, M or K] the fine patch of each token; None: one token per 4x4 cell, in order.
            used: [B, K] bool, False on fetched tokens that only fill the rectangle: no token attends to them.
            levels: [B, K] the level of detail of each fetched token, see grid_encoder.py; None: all are patches.

        Returns:
            States [B, M or K, D'], without CLS, and each layer's keys and values of these tokens (CLS included).
        """
        if indices is None:
            positions = self._position_table(side // COMPRESSION).flatten(1, 2)
        else:
            positions = self._positions_at(indices, side, levels)
        x = tokens + positions
        if base is None:
            cls = (self.class_embedding + self.position_embedding[0]).expand(tokens.shape[0], 1, -1)
            x = torch.cat((cls, x), 1)
        else:
            x = x + self.saccade_embedding
            if self.level_embedding is not None:
                singly = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
                x = x + self.level_embedding(singly if levels is None else levels)
        x = self.pre_layrnorm(x)
        x, own = run_layers(self.layers, x, base, used)
        return (x[:, 1:] if base is None else x), own
