"""A wider grid encoder that computes what a trained narrower one does: to go on with more room from where that one is.

Every channel is there several times: what reads it splits its weight among the copies, at random, so that they do not
learn the same from then on. Norms over copies are the norms over what was copied.

Source: Net2Net (Chen et al. 2016), with the shares drawn anew for each weight.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from ..modeling.configuration_arr_coc import ArrCocVisionConfig

WIDTHS = ("hidden_size", "num_attention_heads", "mlp_dim", "stem_channels")
"""Settings that may grow."""

COPIED, SPLIT = "copied", "split"
_QUERY_OR_VALUE, _KEY = (COPIED, COPIED, SPLIT), (COPIED, SPLIT, SPLIT)  # [heads, channels of a head, *]

_AXES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"pos_embed", (SPLIT, SPLIT, SPLIT, COPIED)),  # batch and places have one length always
    (r"patch_embed\.(steps\.\d+|projection)\.weight", (COPIED, SPLIT, SPLIT, SPLIT)),
    (r"neck\.conv\d\.weight", (COPIED, SPLIT, SPLIT, SPLIT)),
    (r".*attn\.rel_pos_[hw]", (COPIED, SPLIT)),
    (r".*\.mlp\.lin\d\.weight", (COPIED, SPLIT)),
)
"""What is done along the axes of a weight that are longer than they were."""


def wider(before: ArrCocVisionConfig, after: ArrCocVisionConfig) -> bool:
    """Whether an encoder of `after` has more room than one of `before`."""
    return any(getattr(before, name) != getattr(after, name) for name in WIDTHS)


def widened(
    weights: dict[str, Tensor],
    before: ArrCocVisionConfig,
    after: ArrCocVisionConfig,
    like: dict[str, Tensor],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """The weights of a grid encoder of `after` that computes what one of `before` with `weights` computes.

    Args:
        weights: by name in the encoder.
        before, after: their configurations, which differ in `WIDTHS` only.
        like: weights of an encoder of `after`, for their shapes.
        generator: of the shares.

    Raises:
        ValueError: a width that is no multiple of what it was, or fewer heads.
    """
    return {name: _widened(name, weight, before, after, like[name], generator) for name, weight in weights.items()}


def _widened(
    name: str, weight: Tensor, before: ArrCocVisionConfig, after: ArrCocVisionConfig, like: Tensor,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    heads = [(c.num_attention_heads, c.hidden_size // c.num_attention_heads) for c in (before, after)]
    if ".attn.qkv." in name:
        parts = weight.unflatten(0, (3, *heads[0]))
        shape = (*heads[1], *like.shape[1:])
        query, key, value = (
            _grown(part, shape, axes[: part.dim()], generator)
            for part, axes in zip(parts, (_QUERY_OR_VALUE, _KEY, _QUERY_OR_VALUE), strict=True)
        )
        scale = (heads[1][1] / heads[0][1]) ** 0.5  # scores are divided by the root of a head's channels
        return torch.stack((query, key * scale, value)).flatten(0, 2)
    if name.endswith("attn.proj.weight"):
        apart, shape = weight.unflatten(1, heads[0]), (like.shape[0], *heads[1])
        return _grown(apart, shape, (COPIED, SPLIT, SPLIT), generator).flatten(1)
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
