"""Ovis2.5 (AIDC-AI/Ovis2.5-2B, -9B): a Qwen3 language model and a visual embedding table.

Its own vision encoder is left out: images are read by DeepSeek-OCR's. The table's head reads that encoder's 2x2-merged
features; it is loaded where ours are as wide, else it starts anew.
"""

from typing import Any

from .families import FAMILIES, Family, Shapes, as_text_config, map_decoder
from .mapping import Mapping
from .sources import Source

TABLE = "vte.weight"
HEAD = "model.bridge.head.0.weight"


@FAMILIES.register("ovis2_5")
class Ovis(Family):
    """The language model under `llm.`, and for bridge "vet" the table and its head."""

    roles = ("llm",)

    def text_config(self, source: Source) -> dict[str, Any]:
        published = source.field("llm_config")
        if not isinstance(published, dict) or published.get("model_type") != "qwen3":
            raise ValueError(
                f"{source}: expected llm_config of model_type 'qwen3' in config.json; got {published!r:.80}"
            )
        return as_text_config(published, "qwen3")

    def bridge_config(self, source: Source, kind: str) -> dict[str, Any]:
        if kind != "vet":
            return {}
        rows = source.shape(TABLE)[0]
        source.agree("rows of the visual embedding table", rows, source.field("visual_vocab_size", rows))
        return {"table_size": rows, "layout": "indicators"}

    def map(self, source: Source, roles: set[str], wanted: Shapes) -> Mapping:
        mapping = Mapping(source)
        map_decoder(mapping, wanted, "llm.")
        if HEAD in wanted:
            mapping.take("model.bridge.table.weight", TABLE)
            mapping.rename({r"visual_tokenizer\.head\.1\.(\w+)": r"model.bridge.head.1.\1"})
            head, ours = "visual_tokenizer.head.0.weight", wanted[HEAD][1]
            theirs = source.shape(head)[1]
            if theirs == ours:
                mapping.take(HEAD, head)
            else:
                mapping.leave_out(
                    r"visual_tokenizer\.head\.0\.weight", f"reads {theirs} features of its own encoder, not our {ours}"
                )
        mapping.leave_out(
            r"visual_tokenizer\.head\..+|vte\.weight", 'the visual table of bridge "vet", which is not asked for'
        )
        mapping.leave_out(r"visual_tokenizer\.vit\..+", "its own vision encoder: images are read by another")
        return mapping
