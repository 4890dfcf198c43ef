"""Attention written out for a while: its weights can be looked at, and on a CPU it trains faster in bfloat16.

Notation: B rows, H heads, S positions, d channels of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration

WRITTEN_OUT = "arr_coc_written_out"
"""Name of `written_out` among transformers' attention functions."""


def written_out(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention as "eager" writes it, which goes over the [B, H, S, S] scores half as often: they stay in their type.

    Dropout of attention is left out: no language model that is trained from scratch here has any.

    Args:
        module: whose attention it is.
        query: [B, H, S, d].
        key, value: [B, key heads, keys, d].
        attention_mask: [B, 1, S, keys], added to the scores, or None.
        scaling: of the scores; None: 1 / sqrt(d).

    Returns:
        [B, S, H, d], and the weights [B, H, S, keys].
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    scaled = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scaled @ key.transpose(2, 3)
    if attention_mask is not None:
        least = torch.finfo(scores.dtype).min  # a row of padding alone would be all -inf, and then no numbers
        scores += attention_mask.clamp(min=least).to(scores.dtype)
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


ALL_ATTENTION_FUNCTIONS.register(WRITTEN_OUT, written_out)
ALL_MASK_ATTENTION_FUNCTIONS.register(WRITTEN_OUT, eager_mask)


@contextmanager
def eager_attention(language_model: PreTrainedModel) -> Iterator[None]:
    """A language model's attention gives its weights inside; afterwards, whatever happens, it is what it was before."""
    configured = language_model.config._attn_implementation
    free = language_model._supports_attention_backend and not getattr(language_model.config, "attention_dropout", 0.0)
    language_model.set_attn_implementation(WRITTEN_OUT if free else "eager")
    try:
        yield
    finally:
        language_model.set_attn_implementation(configured)


@contextmanager
def all_eager_attention(model: ArrCocForConditionalGeneration) -> Iterator[None]:
    """The same for the language model, the grid encoder and the semantic encoder."""
    configs = (model.config.vision_config, model.config.semantic_config)
    configured = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        with eager_attention(model.model.language_model):
            yield
    finally:
        for config, implementation in zip(configs, configured, strict=True):
            config._attn_implementation = implementation
