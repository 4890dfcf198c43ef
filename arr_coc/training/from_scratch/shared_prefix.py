"""Prompts that share the tokens of an image between several questions, and the attention of pointing heads to them.

The language model reads common tokens once. Its pointing heads are trained to attend to the token that shows the next
character: the character's patch if it was fetched, else the base token of its cell.

Notation: R distinct groups of image tokens, I questions or image slots, I / R about each, L length of the text behind
the image, S steps that predict a token, M base tokens, K patches fetched; T image tokens, or predicted tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import DynamicCache

from arr_coc.modeling.attention_scorer import keeps_every_position
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from .patch_language import cell_of

POINTING_LAYER, POINTING_HEADS = -2, 2
"""The pointing heads: the first heads of a layer, by default the last but one."""

POINTER_WEIGHT = 0.5
"""Weight of the pointing loss, beside that of copied or compared tokens."""


def check_layer(layer: int, config: PretrainedConfig) -> None:
    """Raises a ValueError unless the language model has such a layer; negative ones count from the last."""
    layers = config.num_hidden_layers
    if not -layers <= layer < layers:
        raise ValueError(f"pointing_layer: expected {-layers} to {layers - 1}; got {layer}")


def right_rows(logits: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """[I] True where every predicted token of a row is right: teacher-forced, the same as an exact greedy answer.

    `logits` [T, vocabulary] and `targets` [T] of the T places where `chosen` [I, S] is True.
    """
    rows = torch.arange(len(chosen), device=chosen.device)[:, None].expand_as(chosen)[chosen]
    wrong = (logits.argmax(-1) != targets).float()
    return torch.zeros(len(chosen), device=chosen.device).index_add_(0, rows, wrong) == 0


def pointing(attentions: tuple[Tensor, ...], layer: int, *, steps: slice, tokens: slice) -> Tensor:
    """The attention [I, S, M + K] of the pointing heads to an image's tokens at the steps that predict."""
    return attentions[layer][:, :POINTING_HEADS, steps, tokens].mean(1)


def shown_by(places: Tensor, indices: Tensor, *, side: int, base: int) -> Tensor:
    """The image token that shows the character of each step: bool [I, S, M + K], at most one in a row.

    Args:
        places: [I, S] the patch that shows it, -1: none.
        indices: [I, K] patches fetched.
        side: G.
        base: M, or 0 without base tokens before the patches.
    """
    patches = indices[:, None] == places[..., None]
    cells = torch.arange(base, device=places.device) == cell_of(places, side)[..., None]
    return torch.cat((cells & ~patches.any(-1, keepdim=True), patches), -1)


def pointer_loss(attention: Tensor, match: Tensor) -> Tensor:
    """Minus the log of each step's attention to the token that shows its character.

    Args:
        attention: [I, S, M + K] of steps to an image's tokens.
        match: bool, of the same shape, from `shown_by`; steps without such a token do not count.
    """
    known = match.any(-1)
    paid = (attention.float() * match).sum(-1)[known]
    return -paid.clamp(min=1e-6).log().mean() if len(paid) else attention.sum() * 0


class ReadPrompts(NamedTuple):
    """The outputs of the language model for the texts behind images.

    Attributes:
        states: [I, L - 1, D] those that predict all tokens of a text but its first one.
        attention: [I, L - 1, T] that the pointing heads pay to the image's tokens there; without a
            `layer`, to no tokens.
    """

    states: Tensor
    attention: Tensor


def read_prompts(
    model: ArrCocForConditionalGeneration, before: Tensor, tokens: Tensor, after: Tensor, *, layer: int | None
) -> ReadPrompts:
    """Reads prompts [before][tokens][after], teacher-forced.

    Args:
        model: whose language model reads.
        before: [I, *] ids, the same for all that read the same tokens.
        tokens: [R, T, D] of images, each group for I / R prompts that follow each other.
        after: [I, L] ids, padded on the right; nothing predicts their first.
        layer: the layer of the pointing heads; None: no attention is returned.
    """
    core, embed = model.model, model.get_input_embeddings()
    repeats, start = len(after) // len(tokens), before.shape[1]
    text, shown = embed(after[:, :-1]), layer is not None
    prompt = torch.cat((embed(before[::repeats]), tokens), 1)
    cache = DynamicCache(config=model.config.text_config)
    if repeats > 1 and keeps_every_position(cache):
        core(inputs_embeds=prompt, cache=cache, use_cache=True)
        cache.batch_repeat_interleave(repeats)
        output = core(inputs_embeds=text, cache=cache, use_cache=True, output_attentions=shown)
    else:
        whole = torch.cat((prompt.repeat_interleave(repeats, 0), text), 1)
        output = core(inputs_embeds=whole, use_cache=False, output_attentions=shown)
    steps = slice(-text.shape[1], None)
    states = output.last_hidden_state[:, steps]
    if layer is None:
        return ReadPrompts(states, states[..., :0])
    return ReadPrompts(states, pointing(output.attentions, layer, steps=steps, tokens=slice(start, prompt.shape[1])))
