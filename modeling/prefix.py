"""What prompts begin with: the tokens that a language model has read of an image before a question came.

Notation: B prompts, S their length, p tokens of the prefix.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from .processing_arr_coc import ArrCocProcessor
from .vision_tower import ImageEncoding

if TYPE_CHECKING:
    from .base_model import ArrCocModel
    from .modeling_arr_coc import ArrCocForConditionalGeneration


def keeps_every_position(cache: Cache) -> bool:
    """Whether a cache keeps the keys and values of all positions, as only full attention does."""
    return all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)


@torch.no_grad()
def with_prefix(
    model: "ArrCocForConditionalGeneration", processor: ArrCocProcessor, encoding: ImageEncoding
) -> ImageEncoding:
    """Prefills the language model with the prompt up to and including the base tokens, where that can be kept.

    Only full-attention language models keep a plain cache of every position.
    """
    cache = DynamicCache(config=model.config.text_config)
    if not keeps_every_position(cache):
        return encoding
    text = processor.prompt("?")
    before = text[: text.index(processor.image_token)]
    with processor.tokenizing.lock:
        ids = processor.tokenizer(before, add_special_tokens=False, return_tensors="pt").input_ids[0].long()
    embeds = model.get_input_embeddings()(ids.to(encoding.tokens.device))
    base = encoding.tokens.to(embeds)
    prompt = torch.cat((embeds.expand(len(encoding), -1, -1), base), 1)
    model.model(inputs_embeds=prompt, cache=cache, use_cache=True)
    placeholders = torch.full((base.shape[1],), model.config.image_token_id)
    layers = [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[union-attr]
    return replace(encoding, prefix_ids=torch.cat((ids, placeholders)), prefix_cache=layers)  # type: ignore[arg-type]


def cached_prefix(core: "ArrCocModel", encoding: ImageEncoding, rows: Tensor) -> DynamicCache:
    """A cache holding the language model's reading of the encoded images numbered `rows` [B]."""
    cache = DynamicCache(config=core.config.text_config)
    for layer, (key, value) in enumerate(encoding.prefix_cache or ()):
        at = rows.to(key.device)
        cache.update(key[at], value[at], layer)
    return cache


def holds_prefix(encoding: ImageEncoding, inputs: dict[str, Tensor]) -> bool:
    """Whether every left-padded prompt begins with the tokens that the encoding holds keys and values of.

    `inputs`: input_ids and attention_mask [B, S], and perhaps others.
    """
    prefix, input_ids = encoding.prefix_ids, inputs["input_ids"]
    if prefix is None or encoding.prefix_cache is None:
        return False
    pads = (inputs["attention_mask"] == 0).sum(1, keepdim=True)
    at = pads + torch.arange(len(prefix), device=input_ids.device)
    if int(at.max()) >= input_ids.shape[1]:
        return False
    return bool((input_ids.gather(1, at) == prefix.to(input_ids.device)).all())


def pad_after_prefix(inputs: dict[str, Tensor], prefix: int) -> dict[str, Tensor]:
    """[pad][prefix][rest] -> [prefix][pad][rest], so that one cached prefix serves prompts of any length."""
    pads = (inputs["attention_mask"] == 0).sum(1).tolist()

    def move(rows: Tensor) -> Tensor:
        return torch.stack(
            [
                torch.cat((row[pad : pad + prefix], row[:pad], row[pad + prefix :]))
                for row, pad in zip(rows, pads, strict=True)
            ]
        )

    return {name: move(tensor) for name, tensor in inputs.items()}
