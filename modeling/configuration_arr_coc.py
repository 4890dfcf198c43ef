"""All config fields of ARR-COC, validated, with their units.

Notation (the same letters in every file): B batch, G side of the fine grid, N = G*G patches, M = (G/4)^2 base tokens,
K fetched tokens, C feature channels, T texture channels, L question tokens, D hidden width. Positions are (y, x),
row-major.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import PretrainedConfig

from .budgets import AUTO as AUTO
from .budgets import COMPRESSION as COMPRESSION
from .budgets import NAMED_BUDGETS as NAMED_BUDGETS
from .budgets import TIERS as TIERS
from .budgets import grid_size as grid_size
from .budgets import resolve_budget as resolve_budget
from .budgets import scaled_budget as scaled_budget
from .checks import (
    FAMILIES,
    FETCHING,
    MAX_ID,
    SEEDS,
    ValidatedConfig,
    checked_field,
    choice,
    make_part,
    make_text_config,
    member,
    number,
    refusal,
    require,
    validated,
    whole,
    wholes,
    write_members,
)
from .prompt_format import count_vision_tokens as count_vision_tokens

MAX_SIDE, MAX_PATCHES = 8192, 2**18
"""Bounds of an image's side, px, and of its patches: larger values are typos that would fill the memory."""

MAX_WIDTH, MAX_MLP, MAX_LAYERS, MAX_HEADS = 2**14, 2**17, 512, 1024
"""Bounds of the parts' sizes, several times those of the largest models there are."""

SPATIAL_MODELS = ("qwen3_vl_text", "qwen3_vl_moe_text")
"""Text models that take two-dimensional positions (M-RoPE) and planes (DeepStack)."""

AUTO_MODELS = ("AutoModel", "AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForCausalLM")
"""The Auto classes that return an `ArrCocForConditionalGeneration`; each of them can `generate`."""

PROCESSOR_MAP = {
    "AutoProcessor": "processing_arr_coc.ArrCocProcessor",
    "AutoImageProcessor": "image_processing_arr_coc.ArrCocImageProcessor",
}
AUTO_MAP = {
    "AutoConfig": "configuration_arr_coc.ArrCocConfig",
    **dict.fromkeys(AUTO_MODELS, "modeling_arr_coc.ArrCocForConditionalGeneration"),
    **PROCESSOR_MAP,
}


GRADIENTS = ("none", "straight_through", "soft")
FOVEA_MAPPINGS = ("linear", "exponential", "sigmoid")


def budget_field(default: str) -> Any:
    """A field for a budget that is valid on some grid; `ArrCocConfig` checks it on the model's grid."""

    def holds(value: int | str) -> bool:
        with suppress(ValueError):
            return resolve_budget(value, MAX_PATCHES) >= 0
        return False

    names = (*NAMED_BUDGETS, AUTO, "all", *(f"tier:{tier}" for tier in TIERS))
    return checked_field(f"a number of patches or one of {', '.join(names)}", holds, default)


def trained_scorers() -> list[str]:
    """The names of the registered scorers with weights."""
    return [name for name, scorer in FAMILIES.get("strategy", {}).items() if scorer.trained]


def are_trained(names: Sequence[str]) -> bool:
    """Whether they are different, and those of scorers with weights, if any is imported."""
    trained = trained_scorers()
    return len(set(names)) == len(names) and (not trained or set(names) <= set(trained))


def require_heads(config: PretrainedConfig, field: str) -> None:
    """Requires a width that is a multiple of the attention heads in `field`."""
    heads = getattr(config, field)
    require(config.hidden_size % heads == 0, "hidden_size", f"a multiple of {heads} heads", config.hidden_size)


@validated
class ArrCocFetcherConfig(ValidatedConfig):
    """The fetcher: scorers, allocator, budget, and what the loss of the answer does to them."""

    model_type = "arr_coc_fetcher"
    base_config_key = "fetcher_config"
    retired = MappingProxyType(
        {"balancer_aggregation": "statistics", "balancer_weights": "sigmoid", "sjv_weights": [0.3, 0.2, 0.5]}
        | dict.fromkeys(("attention_layers", "glance_layers"), [0.25, 0.75])
    )

    strategy: str = member("strategy", default="realizer")  # the default scorer
    # Scorers with weights that this checkpoint holds; those without weights are always available.
    scorers: list[str] | tuple[str, ...] = checked_field(
        lambda: f"distinct scorers with weights ({', '.join(trained_scorers())})",
        are_trained,
        ("realizer", "clip_query"),
    )
    # Chooses patches by relevance. "topk" and "window" fetch exactly the budget; "tiers" and "adaptive" choose the
    # number of patches of each item, up to the budget; "quadtree", "foveated" and "knapsack" fetch exactly the budget
    # as regions of 1, 4 or 16 patches, each pooled into one token.
    allocator: str = member("allocator", default="topk")
    budget: int | str = budget_field("standard")  # default number of fetched tokens: see `resolve_budget`
    # With the mask compressor: "exclude" never fetches a patch that is already a base token, "allow" may.
    overlap: str = choice(("exclude", "allow"), default="exclude")
    # Sizes of "realizer" and "words".
    hidden_size: int = whole(2, MAX_WIDTH, default=256)
    num_heads: int = whole(1, MAX_HEADS, default=4)
    num_layers: int = whole(0, MAX_LAYERS, default=2)
    position_size: int = whole(4, 4096, default=32)  # channels of the realizer's 2-D position term per head
    # Patches along a row over which the realizer averages the keys of its patch attention (1: none).
    key_pool: int = whole(1, 512, default=4)
    # Width in which "words" compares the wordpieces in a patch with the question's tokens; 0 without that scorer.
    match_size: int = whole(0, MAX_WIDTH, default=0)
    # Width of the space that patches and questions share in clip_query and in the query similarity maps.
    shared_size: int = whole(1, MAX_WIDTH, default=256)
    # Width of the latent for keys and values in the attention of "realizer" and "experts"; None: no latent.
    latent_size: int | None = whole(1, MAX_WIDTH, default=None)
    # The set of texture channels, see `TEXTURE_SETS`; None: those that the scorers read.
    textures: str | None = choice(("light", "basic", "full"), default=None)
    balancer_size: int = whole(1, MAX_WIDTH, default=160)  # hidden width of the tension balancer
    # The "window" allocator's neighbourhood in patches, and how much neighbours gain.
    window_size: int = checked_field(
        "an odd number of patches up to 127", lambda size: size in range(1, 128, 2), default=3
    )
    window_gain: int | float = number(-100.0, 100.0, default=0.5)
    quadtree_spread: int | float = number(0.0, 1.0, default=0.1)  # deviation of relevance above which regions divide
    # For "foveated": the most peaks of relevance, a in the resolution 1 / (1 + a r^2) at r patches from a peak, and the
    # mapping from resolution to tokens per base cell.
    fovea_peaks: int = whole(1, 256, default=4)
    fovea_falloff: int | float = number(0.0, 1e6, default=0.02)
    fovea_mapping: str = choice(FOVEA_MAPPINGS, default="exponential")
    # For "knapsack": the share of its patches' relevance that a token of 16 patches captures, and one of 4 patches; a
    # token of one patch captures all.
    pooled_shares: list[int | float] | tuple[int | float, ...] = checked_field(
        "two increasing numbers from 0 to 1", lambda ends: len(ends) == 2 and 0 <= ends[0] < ends[1] <= 1, (0.25, 0.5)
    )
    # How "tiers" chooses: by the length of the question, without weights, or by a trained classifier of the question
    # and the image's mean feature; and for "heuristic" the least question tokens of each tier after the first.
    tier_choice: str = choice(("heuristic", "classifier"), default="heuristic")
    tier_lengths: list[int] | tuple[int, ...] = wholes(1, 2**20, default=(8, 12, 16, 24))
    # For "adaptive": the share of the item's relevance mass in the fetched patches.
    adaptive_share: int | float = number(0.0, 1.0, above=True, default=0.9)
    # How the answer's loss reaches scorers (and learned budgets) in training mode. "none": it does not;
    # "straight_through": fetched tokens do not change, their gradient is that of tokens weighted by relevance; "soft":
    # they are weighted by a soft top-K. In evaluation mode tokens have no weights.
    gradient: str = choice(GRADIENTS, default="straight_through")
    # For "soft", in units of the score, at the start; a trainer sets `RunningBackFetcher.temperature`.
    temperature: int | float = number(0.0, 1e6, above=True, default=1.0)
    # Whether the checkpoint holds a trained policy (`TemperingPolicy`) for the share of drawn patches in each of
    # several passes; it is then the default.
    learned_exploration: bool = False
    seed: int = whole(0, 2**32 - 1, default=0)  # of random relevance
    initializer_range: int | float = number(0.0, 10.0, default=0.02)

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        require_heads(self, "num_heads")
        require(self.hidden_size % 2 == 0, "hidden_size", "an even width (sines and cosines)", self.hidden_size)
        require(self.position_size % 4 == 0, "position_size", "a multiple of 4", self.position_size)
        lengths = list(self.tier_lengths)
        steps = len(lengths) == len(TIERS) - 1 and lengths == sorted(set(lengths))
        require(steps, "tier_lengths", f"{len(TIERS) - 1} increasing numbers of question tokens", self.tier_lengths)


INDICATORS = 4
"""The last rows of a visual embedding table, which are not visual words: start and end of an image and a video."""


@validated
class ArrCocVisionConfig(ValidatedConfig):
    """The grid encoder (SAM ViT) and the compressor. Defaults: DeepSeek-OCR's published sizes."""

    model_type = "arr_coc_vision"
    base_config_key = "vision_config"
    retired = MappingProxyType({"global_pool": 1, "relative_positions": "resize"})

    # Side of the square image for the stored position table, px; other sides are allowed.
    image_size: int = whole(1, MAX_SIDE, default=1024)
    patch_size: int = whole(1, 256, default=16)  # side of a patch, px
    num_channels: int = checked_field("3 (red, green, blue: luminance reads them)", lambda value: value == 3, default=3)
    # The transformer's sizes; 0 layers: the stem alone, without position table and neck.
    hidden_size: int = whole(1, MAX_WIDTH, default=768)
    num_hidden_layers: int = whole(0, MAX_LAYERS, default=12)
    num_attention_heads: int = whole(1, MAX_HEADS, default=12)
    mlp_dim: int | None = whole(1, MAX_MLP, default=None)
    window_size: int = whole(1, MAX_SIDE, default=14)  # side of a local attention window, patches
    # Layers that attend over the whole grid.
    global_attn_indexes: list[int] | tuple[int, ...] = wholes(0, MAX_LAYERS - 1, default=(2, 5, 8, 11))
    shifted_windows: bool = False  # every second layer's windows begin half a window earlier, as in Swin transformers
    out_channels: int = whole(1, MAX_WIDTH, default=256)  # C, channels after the neck
    layer_norm_eps: int | float = number(0.0, 1.0, above=True, default=1e-6)
    # "patchify" (one convolution, as published) or "conv" (stride-2 3x3 convolutions, to train from scratch), for which
    # the others are: output channels of each stride-2 convolution before the last; residual blocks of 3x3 convolutions
    # before the last stride, at half a patch's side; and ConvNeXt blocks behind these, 11 pixels wide, to read words.
    stem: str = member("stem", default="patchify")
    stem_channels: list[int] | tuple[int, ...] = wholes(1, MAX_WIDTH, default=())
    stem_blocks: int = whole(0, MAX_LAYERS, default=0)
    stem_wide_blocks: int = whole(0, MAX_LAYERS, default=0)
    # Whether a model that reads text also names what is drawn beside words, such as ticked boxes (marks.py).
    marks: bool = False
    # "conv" (DeepSeek's two stride-2 convolutions) or "mask" (top-M of a learned score); channels after its two stages.
    compressor: str = member("compressor", default="conv")
    compressed_channels: list[int] | tuple[int, ...] = wholes(1, MAX_WIDTH, default=(512, 1024))
    initializer_range: int | float = number(0.0, 10.0, default=0.02)

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.mlp_dim = 4 * self.hidden_size if self.mlp_dim is None else self.mlp_dim
        unit = COMPRESSION * self.patch_size
        require(self.image_size % unit == 0, "image_size", f"a multiple of {unit} px (4 patches)", self.image_size)
        require(self.num_patches <= MAX_PATCHES, "image_size", f"at most {MAX_PATCHES} patches", self.image_size)
        require_heads(self, "num_attention_heads")
        layers = self.num_hidden_layers
        expected = f"at least 1 where out_channels ({self.out_channels}) is not hidden_size"
        require(layers > 0 or self.out_channels == self.hidden_size, "num_hidden_layers", expected, layers)
        outside = [i for i in self.global_attn_indexes if i >= layers]
        require(not outside, "global_attn_indexes", f"layer numbers below {layers}", self.global_attn_indexes)
        if self.stem == "conv":
            strides = 2 ** (len(self.stem_channels) + 1)
            expected = f"one entry fewer than the stride-2 steps to a patch of {self.patch_size} px"
            require(strides == self.patch_size, "stem_channels", expected, self.stem_channels)
            expected = f"hidden_size ({self.hidden_size}) last, as no layer is behind the stem"
            fits = layers > 0 or [*self.stem_channels][-1:] == [self.hidden_size]
            require(fits, "stem_channels", expected, self.stem_channels)
        require(len(self.compressed_channels) == 2, "compressed_channels", "two entries", self.compressed_channels)

    @property
    def grid_size(self) -> int:
        """Side G of the fine grid at `image_size`."""
        return grid_size(self.image_size, self.patch_size)

    @property
    def num_patches(self) -> int:
        """N at `image_size`."""
        return self.grid_size**2


@validated
class ArrCocSemanticConfig(ValidatedConfig):
    """The semantic encoder (CLIP ViT-L without its patch embedding). Defaults: DeepSeek-OCR's published sizes."""

    model_type = "arr_coc_semantic"
    base_config_key = "semantic_config"

    hidden_size: int = whole(1, MAX_WIDTH, default=1024)  # D', equals the compressor's last channel count
    intermediate_size: int = whole(1, MAX_MLP, default=4096)
    num_hidden_layers: int = whole(1, MAX_LAYERS, default=24)
    num_attention_heads: int = whole(1, MAX_HEADS, default=16)
    position_grid: int = whole(1, 512, default=16)  # side of the stored position table; a CLS row stands in front
    hidden_act: str = choice(ACT2FN, default="quick_gelu")
    layer_norm_eps: int | float = number(0.0, 1.0, above=True, default=1e-5)
    # Of position table and CLS; larger values help positions to count in a training from scratch.
    initializer_range: int | float = number(0.0, 10.0, default=0.02)
    # Width of the latent for keys and values; None: no latent, as published.
    latent_size: int | None = whole(1, MAX_WIDTH, default=None)
    # Whether fetched tokens get an embedding of their level of detail (1, 4 or 16 patches), which starts at zero; for
    # checkpoints that are trained with an allocator that chooses levels.
    level_embedding: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        require_heads(self, "num_attention_heads")


@validated
class ArrCocBridgeConfig(ValidatedConfig):
    """How vision tokens become language-model embeddings.

    Parameters, by their names in the whole model's state dict: every bridge but "vet" has `model.bridge.projection`;
    "quality" and "transformer" add `model.bridge.adapter.{norm,hidden,score,gate,correction}`, "transformer" also
    `model.bridge.{norm,level,layers.i}`, "cells" `model.bridge.{norm,head,table,rest}`, "wordpieces"
    only `model.bridge.places` and `model.vision_tower.text_reader.{line_head,character_head,spellings}`, with `marks`
    also `text_reader.mark_head`; "vet" has `model.bridge.head.0` (no bias), `model.bridge.head.1` and
    `model.bridge.table`; layout "rows" has `model.layout.image_newline` and `model.layout.view_seperator`, each [D].
    """

    model_type = "arr_coc_bridge"
    base_config_key = "bridge_config"
    retired = MappingProxyType({"lookup": "soft", "fetched_words": False})

    # "linear": DeepSeek's projector; "quality": the projector, with a correction of each token by its quality;
    # "transformer": the same with attention across tokens; "vet": Ovis' visual embedding table; "cells": such a table
    # for each place of a base token's cell, and the projector for fetched tokens; "wordpieces": tokens from the
    # language model's wordpieces in their patches, read character by character from a convolutional stem.
    kind: str = member("bridge", default="linear")
    # Tokens between and around those of an image. "plain": nothing; "rows": DeepSeek-OCR's `image_newline` after each
    # row of base tokens and `view_seperator` after the last, fetched tokens behind it (256 base tokens take 273
    # positions); "indicators": Ovis' image-start before the base and image-end behind the fetched tokens, rows of
    # `table`; "fetched": no base tokens, fetched tokens alone; "qwen3_vl": nothing, and each token's position is its
    # row and column in the image, on the fine grid, for Qwen3-VL's text models.
    layout: str = member("layout", default="plain")
    # Whether the first three layers of the language model, one of Qwen3-VL's text models, add the grid encoder's states
    # at three depths to image tokens; to fetched tokens only the depths with the highest score from scorer
    # "hierarchical", or all three with another scorer. Adds `model.deepstack.levels.{low,mid,high}.{norm,fc1,fc2}`.
    deepstack: bool = False
    bypass: bool = False  # whether "quality", "transformer" and "cells" use their linear projection alone by default
    # Of the attention in "transformer", and the width of its latent for keys and values; None: no latent.
    num_layers: int = whole(1, MAX_LAYERS, default=4)
    num_heads: int = whole(1, MAX_HEADS, default=8)
    latent_size: int | None = whole(1, MAX_WIDTH, default=None)
    # V, rows of the table of "vet"; the last 4 are indicators (start and end of an image, of a video).
    table_size: int = whole(INDICATORS + 1, 2**20, default=65536)
    # For "cells": the sizes of the vocabularies of each place in a cell.
    place_words: list[int] | tuple[int, ...] = wholes(2, 2**16, default=(256,))
    places: int = whole(1, 512, default=64)  # for "wordpieces": side of the grid of position embeddings on the page
    # Over all weights of the language model's text embeddings; "quality" and "transformer" give each token this mean
    # and standard deviation over its channels. None: tokens do not change.
    text_embedding_mean: int | float | None = number(-1e3, 1e3, default=None)
    text_embedding_std: int | float | None = number(0.0, 1e3, above=True, default=None)
    initializer_range: int | float = number(0.0, 10.0, default=0.02)

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        vet = self.kind == "vet"
        require(vet or self.layout != "indicators", "layout", '"indicators" with bridge "vet" only', self.layout)
        require(not (vet and self.bypass), "bypass", 'a bridge with a linear projection, not "vet"', self.bypass)
        require(len(self.place_words) > 0, "place_words", "at least one vocabulary", self.place_words)
        mean, std = self.text_embedding_mean, self.text_embedding_std
        both = (mean is None) == (std is None)
        require(both, "text_embedding_mean", "a number beside text_embedding_std, or None for both", mean)


_PARTS = {
    "vision_config": ArrCocVisionConfig,
    "semantic_config": ArrCocSemanticConfig,
    "fetcher_config": ArrCocFetcherConfig,
    "bridge_config": ArrCocBridgeConfig,
}


_OF_ALL = ("transformers_version", "_name_or_path")
"""Fields of the whole model's saved config that the configs of its parts leave out."""


def are_markers(value: dict[str, Any]) -> bool:
    """Whether they are the markers of `prompt.query_markers`."""
    turns, texts = ("start_id", "end_id"), ("role_ids", "newline_ids", "ignored_ids")
    if set(value) != {*turns, *texts} or not all(isinstance(value[name], list) for name in texts):
        return False
    ids = [value[name] for name in turns if value[name] is not None]
    ids += [index for name in texts for index in value[name]]
    return all(type(index) is int and 0 <= index <= MAX_ID for index in ids)


def are_calibration_weights(value: dict[str, Any]) -> bool:
    """Whether they are the weights of `answers.calibrated`; earlier versions had fewer."""
    lows = {**dict.fromkeys(("logit", "legibility", "characters"), 0.0), "words": -1e3, "refused": -1e3, "bias": -1e3}
    numbers = all(isinstance(weight, int | float) and not isinstance(weight, bool) for weight in value.values())
    named = set(lows) - {"characters", "refused"} <= set(value) <= set(lows)
    return named and numbers and all(lows[name] <= weight <= 1e3 for name, weight in value.items())


@validated
class ArrCocConfig(ValidatedConfig):
    """The whole model."""

    model_type = "arr_coc"
    _auto_class = "AutoConfig"
    sub_configs = {**_PARTS, "text_config": AutoConfig}
    # Trainer gathers all other outputs over batches. These are not tensors, or differ in shape between batches.
    keys_to_ignore_at_inference = ["cache", "fetch", "image_tokens", "relevance_loss", "scores"]

    # The parts: dicts, configs or None for defaults.
    vision_config: Any = None
    semantic_config: Any = None
    fetcher_config: Any = None
    bridge_config: Any = None
    text_config: Any = None  # any causal language model's config; Qwen3 by default
    image_token_id: int = whole(0, MAX_ID, default=151655)  # the placeholder's id in the tokenizer
    # The tokenizer's ids that mark questions in a chat. With them the model finds the question without a `query_mask`.
    query_markers: dict[str, Any] | None = checked_field(
        "ids start_id, end_id (or None) and lists of ids role_ids, newline_ids, ignored_ids", are_markers, default=None
    )
    tie_word_embeddings: bool = False
    # Of the scorers' relevance loss, if `relevance_targets` are given; and of relevant patches in it, as few patches
    # are relevant; others have 1.
    relevance_loss_weight: int | float = number(0.0, 1e6, default=1.0)
    relevance_positive_weight: int | float = number(0.0, 1e6, default=4.0)
    # Weights of `answers.calibrated`, which computes an answer's probability from that of its tokens and from the
    # legibility of its patches; None: it is that of its tokens.
    calibration: dict[str, Any] | None = checked_field(
        "a number up to 1000 for each of logit, legibility, characters, words, refused, bias, from 0 or, of the"
        " last three, from -1000",
        are_calibration_weights,
        default=None,
    )
    # `Answer.legibility` below which answers have a warning. At 0.5 the mean probability of the predicted characters is
    # one half.
    least_legibility: int | float = number(0.0, 1.0, default=0.5)
    initializer_range: int | float = number(0.0, 10.0, default=0.02)

    def __post_init__(self, **kwargs: Any) -> None:
        for name, part in _PARTS.items():
            setattr(self, name, make_part(name, part, getattr(self, name)))
        self.text_config = make_text_config(self.text_config)
        super().__post_init__(**kwargs)
        # transformers ties by the top-level field only, so it gets the language model's own value.
        self.tie_word_embeddings = bool(getattr(self.text_config, "tie_word_embeddings", self.tie_word_embeddings))
        for holds, field, expected, received in self._conditions():
            require(holds, field, expected, received)
        patches, budget = self.vision_config.num_patches, self.fetcher_config.budget
        resolve_budget(budget, patches, taken=patches // COMPRESSION**2 if self.excludes_base else 0)

    def _conditions(self) -> Iterator[tuple[bool, str, str, Any]]:
        """What must hold between the parts: a condition, its field, the expected and the received value."""
        vision, fetcher, bridge, text = self.vision_config, self.fetcher_config, self.bridge_config, self.text_config
        last, semantic, vocabulary = vision.compressed_channels[-1], self.semantic_config.hidden_size, text.vocab_size
        expected = f"the compressor's last channel count ({last}), which the semantic encoder reads directly"
        yield semantic == last, "semantic_config.hidden_size", expected, semantic
        yield 0 <= self.image_token_id < vocabulary, "image_token_id", f"0 to {vocabulary - 1}", self.image_token_id
        kind, layout, compressor = bridge.kind, bridge.layout, vision.compressor
        has_cells = compressor == "conv"
        expected = f'"plain" with compressor "{compressor}" (no rows)'
        yield has_cells or layout not in ("rows", "fetched"), "bridge_config.layout", expected, layout
        reads_base = bridge.deepstack or fetcher.strategy == "attention"
        expected = 'one with base tokens for deepstack and strategy "attention"'
        yield layout != "fetched" or not reads_base, "bridge_config.layout", expected, layout
        expected = f'no "cells" or "wordpieces" with compressor "{compressor}" (no cells)'
        yield has_cells or kind not in ("cells", "wordpieces"), "bridge_config.kind", expected, kind
        fits = kind != "transformer" or text.hidden_size % bridge.num_heads == 0
        expected = f"a divisor of the language model's width {text.hidden_size}"
        yield fits, "bridge_config.num_heads", expected, bridge.num_heads
        reads, stem, scorers = kind == "wordpieces", vision.stem, list(fetcher.scorers)
        yield not reads or stem == "conv", "vision_config.stem", '"conv" with bridge "wordpieces"', stem
        expected = f'false with bridge "{kind}", which reads no words'
        yield reads or not vision.marks, "vision_config.marks", expected, vision.marks
        words = "words" in scorers
        expected = f'no "words" with bridge "{kind}", which reads no words'
        yield reads or not words, "fetcher_config.scorers", expected, scorers
        expected = f'{"above 0 with" if words else "0 without"} scorer "words"'
        yield words == bool(fetcher.match_size), "fetcher_config.match_size", expected, fetcher.match_size
        spatial, expected = text.model_type in SPATIAL_MODELS, f"a language model among {', '.join(SPATIAL_MODELS)} for"
        for needs, setting in ((layout == "qwen3_vl", 'layout "qwen3_vl"'), (bridge.deepstack, "deepstack")):
            yield spatial or not needs, "text_config.model_type", f"{expected} {setting}", text.model_type
        layers, expected = text.num_hidden_layers, "at least 3 for deepstack, which adds behind each"
        yield layers >= 3 or not bridge.deepstack, "text_config.num_hidden_layers", expected, layers

    def require_embeds_alone(self, name: str) -> None:
        """Raises a ValueError, for the caller `name`, unless embeddings are the language model's only input: no
        two-dimensional positions, no planes."""
        bridge = self.bridge_config
        expected = 'a model whose prompts are embeddings alone (no layout "qwen3_vl", no deepstack)'
        if bridge.layout == "qwen3_vl" or bridge.deepstack:
            received = f"layout {bridge.layout!r}, deepstack {bridge.deepstack}"
            raise ValueError(f"{name}: expected {expected}; got {received}")

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """As in transformers; the saved config names the class of each Auto class, whose code is saved beside it."""
        self.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
        write_members(Path(save_directory), self.members())

    def members(self) -> list[Any]:
        """The members of families, as far as these are imported, whose code a checkpoint needs."""
        fetcher = self.fetcher_config
        named = [("bridge", self.bridge_config.kind), *(("strategy", name) for name in fetcher.scorers)]
        named += [("compressor", self.vision_config.compressor)]
        named += [("tier_choice", fetcher.tier_choice)] * (fetcher.tier_choice != "heuristic")
        named += [("exploration", "learned")] * fetcher.learned_exploration
        named += [("textures", fetcher.textures)] * (fetcher.textures not in (None, "light"))
        return [FAMILIES[noun][name] for noun, name in named if name in FAMILIES.get(noun, ())]

    def to_diff_dict(self) -> dict[str, Any]:
        """The fields to save: also of the parts only those that differ from transformers' defaults."""
        saved = super().to_diff_dict()
        for name in self.sub_configs:
            saved[name] = {
                key: value for key, value in getattr(self, name).to_diff_dict().items() if key not in _OF_ALL
            }
        return saved

    @property
    def padding_id(self) -> int:
        """The id of padding in prompts: the language model's own, or 0 if its vocabulary has none."""
        own = getattr(self.text_config, "pad_token_id", None)
        return own if own is not None and 0 <= own < self.text_config.vocab_size else 0

    @property
    def excludes_base(self) -> bool:
        """Whether base tokens are patches (mask compressor) that are never fetched again."""
        return self.vision_config.compressor == "mask" and self.fetcher_config.overlap == "exclude"

    def vision_tokens(
        self,
        image_size: int | None = None,
        budget: int | str | None = None,
        *,
        strategy: str | None = None,
        overlap: str | None = None,
    ) -> tuple[int, int]:
        """(base, K) of one image of this model: `count_vision_tokens` with the configured sizes and defaults."""
        budget = self.fetcher_config.budget if budget is None else budget
        strategy = self.fetcher_config.strategy if strategy is None else strategy
        side = self.vision_config.image_size if image_size is None else image_size
        patch, layout = self.vision_config.patch_size, self.bridge_config.layout
        overlap = self.fetcher_config.overlap if overlap is None else overlap
        excludes = self.vision_config.compressor == "mask" and overlap == "exclude"
        return count_vision_tokens(side, patch, budget, strategy=strategy, excludes_base=excludes, layout=layout)


# ---- how one call fetches --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FetchChoices:
    """How one call fetches. None leaves a choice to the configuration.

    Example:
        >>> model.generate("receipt.png", "What is the total?", choices=FetchChoices(strategy="saliency", budget=64))
    """

    strategy: str | None = None  # the scorer
    allocator: str | None = None  # chooses patches by relevance
    # See `resolve_budget`. In `forward` it has to agree with the placeholders of the prompts.
    budget: int | str | None = None
    seed: int | None = None  # of random relevance
    # "exclude" or "allow": whether patches that are base tokens already may be fetched again.
    overlap: str | None = None
    # Whether the bridge uses its linear projection alone; None: as configured, or as encoded.
    bypass: bool | None = None
    # [I, K] patches to fetch for each image slot, whatever their relevance; no scorer runs.
    patches: Tensor | None = None
    relevance: Tensor | None = None  # [I, N] given relevance, by which strategy "oracle" fetches
    all_scores: bool = False  # whether all trained scorers run, not only the strategy's
    # Runs back for each question (default 1), or "auto": up to 4, while the answer is unsure.
    num_passes: int | str | None = None
    # With several passes, the policy for the share of drawn patches: a name in `fetcher.EXPLORATION`.
    exploration: str | None = None

    def __post_init__(self) -> None:
        for name, (kinds, expected) in FETCHING.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool)):
                raise refusal(name, expected, value)
        if self.seed is not None and not -SEEDS <= self.seed <= SEEDS:
            raise refusal("seed", FETCHING["seed"][1], self.seed)
        for name in ("patches", "relevance"):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.ndim != 2 or tensor.layout != torch.strided or tensor.is_quantized):
                raise refusal(name, FETCHING[name][1], tensor)

    @classmethod
    def of(cls, choices: "FetchChoices | Mapping[str, Any] | None") -> "FetchChoices":
        """`FetchChoices` from themselves, from a mapping of their fields, or from None: as configured. Raises
        ValueError: an unknown field."""
        if type(choices).__name__ == cls.__name__:  # by name: remote code may load a class twice
            return choices  # type: ignore[return-value]
        if choices is None:
            return AS_CONFIGURED
        if not isinstance(choices, Mapping):
            raise refusal("choices", "FetchChoices, or a mapping of their names", choices)
        field_names = [*cls.__dataclass_fields__]
        if unknown := sorted(map(str, set(choices) - set(field_names))):
            raise ValueError(f"choices: expected names among {', '.join(field_names)}; got {', '.join(unknown)}")
        return cls(**choices)


AS_CONFIGURED = FetchChoices()
