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
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.prompt_format import LAYOUTS

WRITTEN_OUT = "arr_coc_written_out"
"""Name of `written_out` among transformers' attention functions."""


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
        module: the attention module.
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


_ATTENTION = re.compile(r"(?:^|\.)layers\.(\d+)\.self_attn$")


def placeholder_columns(input_ids: Tensor, slots: int, image_token_id: int) -> tuple[Tensor, Tensor]:
    """The place of each image slot: its prompt [I] and the columns of its placeholders [I, M + K]."""
    rows, columns = (input_ids == image_token_id).nonzero(as_tuple=True)
    return rows.view(slots, -1)[:, 0], columns.view(slots, -1)


def fetched_columns(columns: Tensor, config: ArrCocConfig, num_fetched: int) -> Tensor:
    """The columns [I, K] of fetched tokens among those of whole images [I, positions]: the last before the layout's
    end."""
    _, behind = LAYOUTS[config.bridge_config.layout].positions(1)
    end = columns.shape[1] - behind
    return columns[:, end - num_fetched : end]


def attention_layers(language_model: nn.Module, layers: Sequence[int] | None) -> list[nn.Module]:
    """The attention modules of a decoder, `layers.i.self_attn` as everywhere in transformers.

    Args:
        language_model: the decoder.
        layers: their numbers; None: all. Negative numbers count from the last.

    Raises:
        ValueError: a layer that the decoder does not have, or no layers.
    """
    modules = {int(m[1]): module for name, module in language_model.named_modules() if (m := _ATTENTION.search(name))}
    wanted = range(len(modules)) if layers is None else layers
    if not modules or not wanted or not all(-len(modules) <= number < len(modules) for number in wanted):
        raise ValueError(f"distillation_layers: expected numbers of {len(modules)} layers, from 0; got {layers}")
    return [modules[number] for number in sorted({number % len(modules) for number in wanted})]


@contextmanager
def answer_attention(
    language_model: PreTrainedModel, predicting: Tensor, layers: Sequence[int] | None
) -> Iterator[list[Tensor]]:
    """Collects the attention of the positions that predict the answer, while the model runs.

    Attention is explicit within the context. Only these rows are kept, not the whole [S, S] of every layer.

    Args:
        language_model: the decoder.
        predicting: bool [B, S], positions that predict answer tokens.
        layers: see `attention_layers`.

    Yields:
        A list that gets one [B, S] per layer: attention to all positions, mean over heads and predicting positions.
    """
    share = predicting.float() / predicting.sum(1, keepdim=True).clamp(min=1)
    collected: list[Tensor] = []

    def collect(module: nn.Module, arguments: object, output: tuple[Tensor, Tensor]) -> None:
        collected.append(torch.einsum("bs,bst->bt", share, output[1].float().mean(1)))

    hooks = [module.register_forward_hook(collect) for module in attention_layers(language_model, layers)]
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
        config: the model's.
    """
    slots, patches = fetch.scores.shape
    rows, columns = placeholder_columns(input_ids, slots, config.image_token_id)
    columns = fetched_columns(columns, config, fetch.indices.shape[1])
    paid = torch.stack(list(collected)).mean(0)[rows].gather(1, columns)  # [I, K]
    paid = paid.masked_fill(fetch.is_padding, 0.0)
    target = paid.new_zeros(slots, patches).scatter(1, fetch.indices, paid)
    return target / target.sum(1, keepdim=True).clamp(min=1e-12)


def distillation_loss(scores: Tensor, target: Tensor, patch_mask: Tensor) -> Tensor:
    """Kullback-Leibler divergence [I] of a scorer's softmax over patches from `target`.

    Args:
        scores: logits [I, N].
        target: [I, N], 1 in all per slot.
        patch_mask: bool [I, N], False on padding patches, which do not count.
    """
    logits = scores.float().masked_fill(~patch_mask, torch.finfo(torch.float32).min)
    return F.kl_div(logits.log_softmax(1), target, reduction="none").masked_fill(~patch_mask, 0.0).sum(1)
