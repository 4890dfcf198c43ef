"""Relevance without boxes: where the model itself looks when it has fetched every patch and is told the answer.

Notation: B prompts, S their length, I image slots, N patches, K saccades.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..modeling.allocators import FetchResult
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.prompt_format import layout_positions
from .attention import eager_attention

_ATTENTION = re.compile(r"(?:^|\.)layers\.(\d+)\.self_attn$")


def placeholder_columns(input_ids: Tensor, slots: int, image_token_id: int) -> tuple[Tensor, Tensor]:
    """Where each image slot stands: its prompt [I] and the columns of its placeholders [I, M + K]."""
    rows, columns = (input_ids == image_token_id).nonzero(as_tuple=True)
    return rows.view(slots, -1)[:, 0], columns.view(slots, -1)


def saccade_columns(columns: Tensor, config: ArrCocConfig, saccades: int) -> Tensor:
    """The columns [I, K] of the saccades among those of whole images [I, positions]: last, before the layout's end."""
    _, behind = layout_positions(config.bridge_config.layout, rows=1)
    end = columns.shape[1] - behind
    return columns[:, end - saccades : end]


def attention_layers(language_model: nn.Module, layers: Sequence[int] | None) -> list[nn.Module]:
    """The attention modules of a decoder, called `layers.i.self_attn` as everywhere in transformers.

    Args:
        language_model: the decoder.
        layers: which ones; None: all. Negative numbers count from the last.

    Raises:
        ValueError: the decoder lacks one of `layers`, or no layer is named.
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
    """Collects what the positions that predict the answer attend to, while the model runs.

    Attention is written out meanwhile. Only these rows are kept, not the whole [S, S] of every layer.

    Args:
        language_model: the decoder.
        predicting: bool [B, S], positions that predict answer tokens.
        layers: see `attention_layers`.

    Yields:
        A list that gets one [B, S] per layer: attention to all positions, averaged over heads and over those that
        predict.
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
    """The share [I, N] of the answer's attention that each patch gets, 1 in all over an image's fetched patches.

    Args:
        collected: of `answer_attention`, [B, S] per layer.
        input_ids: [B, S], the prompts that ran.
        fetch: what was fetched: every patch, for a target.
        config: the model's.
    """
    slots, patches = fetch.scores.shape
    rows, columns = placeholder_columns(input_ids, slots, config.image_token_id)
    columns = saccade_columns(columns, config, fetch.indices.shape[1])
    paid = torch.stack(list(collected)).mean(0)[rows].gather(1, columns)  # [I, K]
    paid = paid.masked_fill(fetch.is_padding, 0.0)
    target = paid.new_zeros(slots, patches).scatter(1, fetch.indices, paid)
    return target / target.sum(1, keepdim=True).clamp(min=1e-12)


def distillation_loss(scores: Tensor, target: Tensor, patch_mask: Tensor) -> Tensor:
    """Kullback-Leibler divergence [I] of a scorer's softmax over patches from `target`.

    Args:
        scores: logits [I, N].
        target: [I, N], 1 in all per slot.
        patch_mask: bool [I, N], True on patches that hold some of the image; others do not count.
    """
    logits = scores.float().masked_fill(~patch_mask, torch.finfo(torch.float32).min)
    return F.kl_div(logits.log_softmax(1), target, reduction="none").masked_fill(~patch_mask, 0.0).sum(1)
