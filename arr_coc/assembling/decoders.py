"""Decoders whose names are transformers' own: Qwen3, Qwen2, and Llama and those of its form, as SmolLM2."""

from typing import Any

from .families import FAMILIES, Family, Shapes, as_text_config, map_decoder
from .mapping import Mapping
from .sources import Source


@FAMILIES.register("llama")
@FAMILIES.register("qwen2")
@FAMILIES.register("qwen3")
class Decoder(Family):
    """The language model, its tokenizer, its ChatML."""

    roles = ("llm",)

    def text_config(self, source: Source) -> dict[str, Any]:
        return as_text_config(source.config, source.field("model_type"))

    def map(self, source: Source, roles: set[str], wanted: Shapes) -> Mapping:
        mapping = Mapping(source)
        map_decoder(mapping, wanted)
        return mapping
