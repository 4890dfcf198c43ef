"""Questions read behind an image's tokens; what several questions read alike, the language model reads once.

Notation: R distinct groups of image tokens, I questions, I / R about each, T tokens, L length of the text behind them.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from arr_coc.modeling.attention_scorer import keeps_every_position
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from .pointing import pointing


class ReadOn(NamedTuple):
    """What the language model makes of the texts behind images.

    Attributes:
        states: [I, L - 1, D] those that predict all tokens of a text but its first one.
        attention: [I, L - 1, T] that the pointing heads pay to the image's tokens there; where none is
            asked for, to no tokens.
    """

    states: Tensor
    attention: Tensor


def read_on(
    model: ArrCocForConditionalGeneration, before: Tensor, tokens: Tensor, after: Tensor, *, layer: int | None
) -> ReadOn:
    """Reads prompts [before][tokens][after], teacher-forced.

    Args:
        model: whose language model reads.
        before: [I, *] ids, the same for all that read the same tokens.
        tokens: [R, T, D] of images, each group for I / R prompts that follow each other.
        after: [I, L] ids, padded on the right; nothing predicts their first.
        layer: whose pointing heads' attention is asked for; None: none.
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
        return ReadOn(states, states[..., :0])
    return ReadOn(states, pointing(output.attentions, layer, steps=steps, tokens=slice(start, prompt.shape[1])))
