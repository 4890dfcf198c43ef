"""The language model's attention as explicit weights, and its distillation into the scorer.

Explicit attention gives access to its weights, and trains faster in bfloat16 on a CPU. For relevance without boxes the
model fetches every patch and gets the answer; the scorer learns the model's attention to the patches.

Notation: B prompts or rows, H heads, S positions or a prompt's length, d channels of a head, I image slots, N patches,
K fetched tokens.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.fetcher import FetchResult
from ..modeling.prompt_format import LAYOUTS

WRITTEN_OUT = "arr_coc_written_out"  # name of `written_out` among transformers' attention functions


def written_out(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    spans: Sequence[tuple[int, int]] = (),
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention like "eager", with half as many passes over the [B, H, S, S] scores, which keep their dtype.

    It has no attention dropout, as no language model that is trained from scratch here uses it.

    Args:
        query: [B, H, S, d].
        key, value: [B, key heads, keys, d].
        attention_mask: [B, 1, S, keys], added to the scores, or None.
        scaling: of the scores; None: 1 / sqrt(d).
        spans: [start, end) of a prefix, and of sequences behind it that attend to it and to themselves: their scores
            for each other are not computed. Empty: all scores are.

    Returns:
        [B, S, H, d], and the weights [B, H, S, keys]; None with spans.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    scaled = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if not spans:
        return _attend(scaled, key, value, attention_mask)
    (_, end), parts = spans[0], []
    for start, stop in spans:
        seen = [slice(0, end), *([slice(start, stop)] if start else [])]
        keys, values = (torch.cat([x[:, :, each] for each in seen], 2) for x in (key, value))
        mask = attention_mask
        if mask is not None:
            mask = torch.cat([mask[:, :, start:stop, each] for each in seen], -1)
        parts.append(_attend(scaled[:, :, start:stop], keys, values, mask)[0])
    return torch.cat(parts, 1), None


def _attend(scaled: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    scores = scaled @ key.transpose(2, 3)
    if attention_mask is not None:
        least = torch.finfo(scores.dtype).min  # a row of padding alone would be all -inf, which gives NaN
        scores += attention_mask.clamp(min=least).to(scores.dtype)
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


ALL_ATTENTION_FUNCTIONS.register(WRITTEN_OUT, written_out)
ALL_MASK_ATTENTION_FUNCTIONS.register(WRITTEN_OUT, eager_mask)


@contextmanager
def eager_attention(language_model: PreTrainedModel) -> Iterator[None]:
    """A language model's attention returns its weights within the context; afterwards its implementation is
    restored."""
    configured = language_model.config._attn_implementation
    free = language_model._supports_attention_backend and not getattr(language_model.config, "attention_dropout", 0.0)
    language_model.set_attn_implementation(WRITTEN_OUT if free else "eager")
    try:
        yield
    finally:
        language_model.set_attn_implementation(configured)


_ATTENTION = re.compile(r"(?:^|\.)layers\.\d+\.self_attn$")


@contextmanager
def answer_attention(language_model: PreTrainedModel, predicting: Tensor) -> Iterator[list[Tensor]]:
    """Collects the attention of the positions that predict the answer, while the model runs.

    Attention is explicit within the context. Only these rows are kept, not the whole [S, S] of every layer.

    Args:
        predicting: bool [B, S], positions that predict answer tokens.

    Yields:
        A list that gets one [B, S] per layer: attention to all positions, mean over heads and predicting positions.

    Raises:
        ValueError: a decoder whose attention is not `layers.i.self_attn`, as elsewhere in transformers.
    """
    share = predicting.float() / predicting.sum(1, keepdim=True).clamp(min=1)
    collected: list[Tensor] = []

    def collect(module: nn.Module, arguments: object, output: tuple[Tensor, Tensor]) -> None:
        collected.append(torch.einsum("bs,bst->bt", share, output[1].float().mean(1)))

    modules = [module for name, module in language_model.named_modules() if _ATTENTION.search(name)]
    if not modules:
        received = type(language_model).__name__
        raise ValueError(f"distillation: expected a decoder with layers.i.self_attn; got {received}")
    hooks = [module.register_forward_hook(collect) for module in modules]
    try:
        with eager_attention(language_model):
            yield collected
    finally:
        for hook in hooks:
            hook.remove()


def patch_attention(collected: Sequence[Tensor], input_ids: Tensor, fetch: FetchResult, config: ArrCocConfig) -> Tensor:
    """The share [I, N] of the answer's attention on each patch; it sums to 1 over an image's fetched patches.

    Args:
        collected: from `answer_attention`, [B, S] per layer.
        input_ids: [B, S], the prompts.
        fetch: the fetched patches: all patches, for a target.
    """
    slots, patches = fetch.scores.shape
    rows, columns = (each.view(slots, -1) for each in (input_ids == config.image_token_id).nonzero(as_tuple=True))
    _, behind = LAYOUTS[config.bridge_config.layout].positions(1)
    end = columns.shape[1] - behind  # of the fetched tokens, the last of an image but for the layout's end
    columns = columns[:, end - fetch.indices.shape[1] : end]
    paid = torch.stack(list(collected)).mean(0)[rows[:, 0]].gather(1, columns)  # [I, K]
    paid = paid.masked_fill(fetch.is_padding, 0.0)
    target = paid.new_zeros(slots, patches).scatter(1, fetch.indices, paid)
    return target / target.sum(1, keepdim=True).clamp(min=1e-12)


def distillation_loss(scores: Tensor, target: Tensor, patch_mask: Tensor) -> Tensor:
    """Kullback-Leibler divergence [I] of the softmax of logits [I, N] from `target` [I, N], which sums to 1 per slot.
    Padding patches, False in `patch_mask` [I, N], do not count."""
    logits = scores.float().masked_fill(~patch_mask, torch.finfo(torch.float32).min)
    return F.kl_div(logits.log_softmax(1), target, reduction="none").masked_fill(~patch_mask, 0.0).sum(1)
