"""The language model by itself: a plain checkpoint of transformers, for engines that take embedded prompts.

The vision half stays where prompts are embedded (`Asker.embed`); an engine that knows nothing of ARR-COC, vLLM for one,
answers them with this half (`serving.vllm_client`).
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel

from ..files import fresh_folder
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration

PROBE = 8
"""Positions that two forms of one language model are compared on."""


def plain_language_model(model: ArrCocForConditionalGeneration) -> PreTrainedModel:
    """Language model and vocabulary head as transformers' own class holds them; the weights are shared.

    Raises:
        ValueError: transformers has no such class for this language model, or one that computes other logits.
    """
    text = model.config.text_config
    try:
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(text)
    except ValueError as error:
        expected = "a language model that AutoModelForCausalLM knows"
        raise ValueError(f"text_config: expected {expected}; got {text.model_type!r}") from error
    setattr(plain, plain.base_model_prefix, model.model.language_model)
    plain.set_output_embeddings(model.lm_head)
    plain.generation_config = model.generation_config
    left = [name for name, tensor in plain.state_dict().items() if tensor.is_meta]
    if left or not _same_logits(model, plain.eval()):
        expected = "a class of transformers that is the language model and a linear vocabulary head"
        raise ValueError(f"text_config: expected {expected}; got {type(plain).__name__}")
    return plain


@torch.no_grad()
def _same_logits(model: ArrCocForConditionalGeneration, plain: PreTrainedModel) -> bool:
    """Whether both give the same logits: classes may scale or cap them, which ARR-COC's head does not."""
    vocabulary = model.config.text_config.vocab_size
    tokens = torch.linspace(0, vocabulary - 1, PROBE, device=model.model.input_device).long()[None]
    forms: tuple[Any, Any] = (model.model.language_model, plain)
    embeds = model.get_input_embeddings()(tokens)
    hidden, output = (form(inputs_embeds=embeds, use_cache=False) for form in forms)
    return torch.equal(model.lm_head(hidden.last_hidden_state), output.logits)


def export_language_model(
    model: ArrCocForConditionalGeneration, out: str | Path, *, force: bool = False, max_shard_size: str = "5GB"
) -> Path:
    """Writes the language model, its tokenizer with the chat template, and how it generates, to `out` in one step.

    Args:
        model: with its processor.
        out: the folder to make.
        force: replace `out` if it is there and not empty.
        max_shard_size: of a weight file, as "500MB".

    Returns:
        `out`, an absolute path.

    Raises:
        ValueError: the language model has no plain form (`plain_language_model`), or `out` is in the way.
    """
    out = Path(out).expanduser().absolute()
    plain, processor = plain_language_model(model), model.processor
    with fresh_folder(out, force=force) as beside:
        plain.save_pretrained(beside, max_shard_size=max_shard_size)
        own_template = processor.tokenizer.chat_template
        with processor.tokenizing.lock:
            try:
                processor.tokenizer.chat_template = processor.chat_template
                processor.tokenizer.save_pretrained(beside)
            finally:
                processor.tokenizer.chat_template = own_template
    return out
