"""Qwen3 (Qwen/Qwen3-0.6B to 8B): a language model; names are transformers' own."""

from typing import Any

from .families import FAMILIES, Family, Shapes, as_text_config, map_decoder
from .mapping import Mapping
from .sources import Source


@FAMILIES.register("qwen3")
class Qwen3(Family):
    """The language model, its tokenizer, its ChatML."""

    roles = ("llm",)

    def text_config(self, source: Source) -> dict[str, Any]:
        return as_text_config(source.config, "qwen3")

    def map(self, source: Source, roles: set[str], wanted: Shapes) -> Mapping:
        mapping = Mapping(source)
        map_decoder(mapping, wanted)
        return mapping
