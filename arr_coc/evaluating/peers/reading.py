"""What the first layers of any of transformers' language models make of a prompt: attention, keys, hidden states.

Notation: S prompt length, H heads, D language-model width, d head width.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel


@dataclass(frozen=True)
class Reading:
    """After `layer` layers of a language model.

    Attributes:
        attention: [S, S] float32, row i attends to column j: weights of the last of these layers, mean over heads.
        keys: [S, H * d] float32, its keys.
        hidden: [S, D], what it puts out.
        normed: [S, D], that behind the normalisation with which the language model ends.
    """

    attention: Tensor
    keys: Tensor
    hidden: Tensor
    normed: Tensor


class _Read(Exception):
    """Enough was read: the rest of the language model need not run."""


def read_prompt(language_model: PreTrainedModel, embeds: Tensor, layer: int) -> Reading:
    """Runs the first `layer` layers (all, if there are fewer) over one prompt's embeddings [S, D].

    The prompt may be longer than the context that the model was trained for, where positions are rotary.

    Raises:
        ValueError: positions from a table that is too short, or attention that cannot be looked into.
    """
    config = language_model.config
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and len(embeds) > limit and getattr(config, "rope_parameters", None) is None:
        raise ValueError(f"prompt: expected at most {limit} tokens, all patches among them; got {len(embeds)}")
    layers = next(part for part in language_model.children() if isinstance(part, nn.ModuleList))
    layer, norm = min(layer, len(layers)), _last_norm(language_model)
    tensors: dict[str, Tensor] = {}
    with (
        _recording(language_model, layer - 1, tensors),
        _stopping(layers[layer] if layer < len(layers) else norm, tensors),
        suppress(_Read),
    ):
        tensors["hidden"] = language_model(inputs_embeds=embeds[None], use_cache=False).last_hidden_state
    if "attention" not in tensors:
        raise ValueError(f"language model: expected attention by transformers' interface; got {config.model_type}")
    return Reading(tensors["attention"], tensors["keys"], tensors["hidden"][0], norm(tensors["hidden"])[0])


def _last_norm(language_model: PreTrainedModel) -> nn.Module:
    """The normalisation behind the last layer; nothing where there is none."""
    norms = [part for part in language_model.children() if "norm" in type(part).__name__.lower()]
    return norms[-1] if norms else nn.Identity()


@contextmanager
def _stopping(behind: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Ends the pass where the module `behind` would begin, and writes what it would read into `tensors`."""

    def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors["hidden"] = args[0] if args else kwargs["hidden_states"]
        raise _Read

    handle = behind.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _recording(language_model: PreTrainedModel, layer: int, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Writes attention and keys of layer number `layer` into `tensors`."""

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **settings: Any
    ) -> tuple[Tensor, None]:
        if module.layer_idx == layer:
            tensors["attention"] = _mean_weights(query[0], key[0], mask, settings["scaling"])
            tensors["keys"] = key[0].transpose(0, 1).flatten(1).float()
        return sdpa_attention_forward(module, query, key, value, mask, **settings)

    config = language_model.config
    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS["eager"] = attend  # in this name's place: masks are made for the names that it knows
    config._attn_implementation = "eager"
    try:
        yield
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS["eager"]


def _mean_weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention weights [S, S] of one prompt, mean over heads, one head after another: query [H, S, d]."""
    total = torch.zeros(query.shape[1], key.shape[1], device=query.device)
    for head, head_query in enumerate(query):
        logits = (head_query @ key[head * len(key) // len(query)].T).float() * scaling
        if mask is not None:
            logits = logits + mask[0, 0, :, : logits.shape[1]]
        total += logits.softmax(-1)
    return total / len(query)
