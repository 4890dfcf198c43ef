"""Wider encoders that compute what trained narrower ones do: to go on with more room from where those are.

Two parts of a model widen by themselves: the grid encoder, and all that is as wide as base tokens: compressor, semantic
encoder, and what the bridge reads.

Every channel is there several times: what reads it splits its weight among the copies, at random, so that they do not
learn the same from then on. Norms over copies are the norms over what was copied.

Source: Net2Net (Chen et al. 2016), with the shares drawn anew for each weight.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from ..modeling.configuration_arr_coc import ArrCocSemanticConfig, ArrCocVisionConfig

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
