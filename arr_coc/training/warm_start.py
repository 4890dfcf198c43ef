"""Warm start: a larger model takes over a smaller one's weights, and begins by computing what that computes.

Larger may be: the number of language layers, the units of their MLPs, the widths of the grid encoder, and those of base
tokens until they are bridged. The image may have another size: position tables are resized, as they are for one image
of that size.

Two parts of a model widen by themselves: the grid encoder, and all that is as wide as base tokens: compressor, semantic
encoder, and what the bridge reads. Every channel is there several times: what reads it splits its weight among the
copies, at random, so that they do not learn the same from then on. Norms over copies are the norms over what was copied
(Net2Net, Chen et al. 2016, with the shares drawn anew for each weight).
"""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from arr_coc.loading import load_config

from ..modeling.configuration_arr_coc import ArrCocConfig, ArrCocSemanticConfig, ArrCocVisionConfig
from ..modeling.grid_encoder import RELATIVE, resize_table
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration

WIDTHS = ("hidden_size", "num_attention_heads", "mlp_dim", "stem_channels")
"""Settings of a grid encoder that may grow."""

BASE_WIDTHS = ("hidden_size", "num_attention_heads", "intermediate_size")
"""Settings of a semantic encoder that may grow; the compressor's channels grow along."""

COPIED, SPLIT = "copied", "split"
_QUERY_OR_VALUE, _KEY = (COPIED, COPIED, SPLIT), (COPIED, SPLIT, SPLIT)  # [heads, channels of a head, *]

_AXES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"pos_embed", (SPLIT, SPLIT, SPLIT, COPIED)),  # batch and places have one length always
    (r"patch_embed\.(steps\.\d+|projection)\.weight", (COPIED, SPLIT, SPLIT, SPLIT)),
    (r"neck\.conv\d\.weight", (COPIED, SPLIT, SPLIT, SPLIT)),
    (r".*attn\.rel_pos_[hw]", (COPIED, SPLIT)),
    (r".*\.mlp\.(lin|fc)\d\.weight", (COPIED, SPLIT)),
    (r"compressor\.conv\d\.weight", (COPIED, SPLIT, SPLIT, SPLIT)),
    (r"compressor\.fc\d\.weight", (COPIED, SPLIT)),
)
"""What is done along the axes of a weight that are longer than they were."""


EncoderConfig = ArrCocVisionConfig | ArrCocSemanticConfig


def wider(before: EncoderConfig, after: EncoderConfig) -> bool:
    """Whether an encoder of `after` has more room than one of `before`, which is of the same type."""
    widths = WIDTHS if isinstance(after, ArrCocVisionConfig) else BASE_WIDTHS
    return any(getattr(before, name) != getattr(after, name) for name in widths)


def widened(
    weights: dict[str, Tensor],
    before: EncoderConfig,
    after: EncoderConfig,
    like: dict[str, Tensor],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """The weights of encoders of `after` that compute what those of `before` with `weights` compute.

    Args:
        weights: by name in the grid encoder; or what is as wide as base tokens, by name in the model.
        before, after: the grid encoder's configurations, or the semantic encoder's, which differ in widths only.
        like: weights of encoders of `after`, for their shapes.
        generator: of the shares.

    Raises:
        ValueError: a width that is no multiple of what it was, or fewer heads.
    """
    return {name: _widened(name, weight, before, after, like[name], generator) for name, weight in weights.items()}


def _widened(
    name: str, weight: Tensor, before: EncoderConfig, after: EncoderConfig, like: Tensor, generator: torch.Generator
) -> Tensor:  # fmt: skip
    heads = [(c.num_attention_heads, c.hidden_size // c.num_attention_heads) for c in (before, after)]

    def by_head(part: Tensor, kind: str) -> Tensor:
        """Queries, keys or values [heads, channels of a head, *]."""
        axes, scale = _QUERY_OR_VALUE, 1.0
        if kind == "k":  # scores are divided by the root of a head's channels
            axes, scale = _KEY, (heads[1][1] / heads[0][1]) ** 0.5
        return _grown(part, (*heads[1], *like.shape[1:]), axes[: part.dim()], generator) * scale

    if ".attn.qkv." in name:
        parts = zip(weight.unflatten(0, (3, *heads[0])), "qkv", strict=True)
        return torch.stack([by_head(part, kind) for part, kind in parts]).flatten(0, 2)
    if projection := re.search(r"self_attn\.([qkv])_proj\.", name):
        return by_head(weight.unflatten(0, heads[0]), projection[1]).flatten(0, 1)
    if name.endswith(("attn.proj.weight", "attn.out_proj.weight")):
        apart, shape = weight.unflatten(1, heads[0]), (like.shape[0], *heads[1])
        return _grown(apart, shape, (COPIED, SPLIT, SPLIT), generator).flatten(1)
    if name.startswith("bridge."):  # it reads a semantic state with a compressed feature behind it, or one of them
        reads = weight.shape[-1] // before.hidden_size
        apart, shape = weight.unflatten(-1, (reads, -1)), (*like.shape[:-1], reads, like.shape[-1] // reads)
        how = COPIED if weight.dim() == 1 else SPLIT
        return _grown(apart, shape, (COPIED,) * weight.dim() + (how,), generator).flatten(-2)
    axes = next((axes for pattern, axes in _AXES if re.fullmatch(pattern, name)), (COPIED,) * weight.dim())
    return _grown(weight, like.shape, axes[: weight.dim()], generator)


def _grown(weight: Tensor, shape: Sequence[int], axes: Sequence[str], generator: torch.Generator) -> Tensor:
    """`weight` of a larger shape, each axis that is longer being copied, or split into shares that sum to it."""
    for axis, (length, how) in enumerate(zip(shape, axes, strict=True)):
        copies, rest = divmod(length, weight.shape[axis])
        if rest or not copies:
            raise ValueError(f"width: expected a multiple of {weight.shape[axis]}; got {length}")
        several = weight.unsqueeze(axis).repeat_interleave(copies, axis)
        if how == SPLIT and copies > 1:
            shares = torch.rand(several.shape, generator=generator) + 0.1
            several = several * (shares / shares.sum(axis, keepdim=True)).to(several)
        weight = several.flatten(axis, axis + 1)
    return weight


UNITS = "intermediate_size"
"""A language model's setting: units of its MLPs."""


def load_warm_start(model: ArrCocForConditionalGeneration, start: Path, seed: int) -> set[str]:
    """Loads the weights of a trained model that is as large, or smaller as the module says.

    Args:
        model: with new weights. What the trained one knows nothing of keeps them.
        start: the trained model's folder.
        seed: of what tells copies apart.

    Returns:
        Names of the weights that the trained one knows nothing of.

    Raises:
        ValueError: a width that is no multiple of what it was, or fewer units.
    """
    config, before = model.config, load_config(str(start))
    known = config.to_dict()
    visions = (before.vision_config, config.vision_config)
    semantics = (before.semantic_config, config.semantic_config)
    sees_anew, says_more = wider(*visions) or visions[0].grid_size != visions[1].grid_size, wider(*semantics)
    if sees_anew or says_more:
        known["vision_config"] = before.vision_config.to_dict()
    if says_more:
        known["semantic_config"] = before.semantic_config.to_dict()
    units = [getattr(part.text_config, UNITS, None) for part in (before, config)]
    if units[0] != units[1]:
        known["text_config"][UNITS] = units[0]
    trained, loading = ArrCocForConditionalGeneration.from_pretrained(
        start, config=ArrCocConfig.from_dict(known), output_loading_info=True
    )
    state, like = trained.state_dict(), model.state_dict()
    if sees_anew:
        state |= _encoder(trained, model, seed)
    if units[0] != units[1]:
        spoken = {name: weight for name, weight in state.items() if ".language_model." in name and ".mlp." in name}
        state |= {name: _with_units(weight, like[name]) for name, weight in spoken.items()}
    if says_more:
        state |= _base(state, like, *semantics, seed)
    model.load_state_dict(state)
    missing = set(loading["missing_keys"])
    _pass_through(model.model.language_model, missing)
    return missing


def _encoder(
    trained: ArrCocForConditionalGeneration, model: ArrCocForConditionalGeneration, seed: int
) -> dict[str, Tensor]:
    """The grid encoder's weights as `model` has them, computing what the trained one's compute."""
    configs = (trained.config.vision_config, model.config.vision_config)
    weights, like = (each.model.vision_tower.grid_encoder.state_dict() for each in (trained, model))
    for name, weight in weights.items():
        if name == "pos_embed":
            weights[name] = resize_table(weight, like[name].shape[1])
        elif name.endswith(("rel_pos_h", "rel_pos_w")):
            weights[name] = RELATIVE[configs[1].relative_positions](weight, len(like[name]))
    if wider(*configs):
        weights = widened(weights, *configs, like, torch.Generator().manual_seed(seed))
    return {f"model.vision_tower.grid_encoder.{name}": weight for name, weight in weights.items()}


def _base(
    state: dict[str, Tensor], like: dict[str, Tensor], before: EncoderConfig, after: EncoderConfig, seed: int
) -> dict[str, Tensor]:
    """The weights of what is as wide as base tokens, computing what narrower ones do.

    Raises:
        ValueError: weights as wide that this cannot widen.
    """
    named = {name: re.sub(r"^model\.(vision_tower\.)?", "", name) for name in state}
    narrow = {name: part for name, part in named.items() if state[name].shape != like[name].shape}
    if stray := [name for name, part in narrow.items() if not re.match(r"compressor|semantic|saccade_p|bridge", part)]:
        raise ValueError(f"semantic_config: expected a model whose {stray[0]} is no wider than it was")
    if any(".latent." in name for name in narrow):
        raise ValueError("semantic_config: expected no latent_size where it is wider than it was")
    weights, shapes = ({part: each[name] for name, part in narrow.items()} for each in (state, like))
    wide = widened(weights, before, after, shapes, torch.Generator().manual_seed(seed))
    return {name: wide[part] for name, part in narrow.items()}


def _with_units(weight: Tensor, like: Tensor) -> Tensor:
    """A language layer's MLP weight with new units, which nothing reads: those that leave an MLP get weight 0."""
    if weight.shape == like.shape:
        return weight
    if any(new < old for new, old in zip(like.shape, weight.shape, strict=True)):
        raise ValueError(f"{UNITS}: expected at least {min(weight.shape)}; got {min(like.shape)}")
    new = like.clone() if weight.shape[0] < like.shape[0] else torch.zeros_like(like)
    new[tuple(map(slice, weight.shape))] = weight
    return new


def _pass_through(language_model: nn.Module, missing: set[str]) -> None:
    """Sets new language layers to change nothing: a start with fewer layers then answers as it did.

    Args:
        language_model: with its layers in `layers`.
        missing: names of the weights that the start did not have.
    """
    layers = language_model.get_submodule("layers")
    for number, layer in layers.named_children():
        if any(f"language_model.layers.{number}.self_attn.o_proj.weight" in name for name in missing):
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                nn.init.zeros_(layer.get_submodule(name).get_parameter("weight"))
