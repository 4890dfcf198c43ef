"""Families of published models: CLIP's words, decoders, Qwen3-VL (dense and MoE), DeepSeek-OCR and Ovis2.5."""

import re
from math import isqrt
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..files import read_json
from ..modeling.prompt_format import render_macro
from .families import (
    FAMILIES,
    Mapping,
    PromptTokens,
    PublishedFamily,
    Shapes,
    TensorRows,
    as_text_config,
    inner_config,
    map_decoder,
)
from .sources import WeightsSource

# ---- CLIP's word embeddings (openai/clip-vit-large-patch14) start the question's projection of scorer "clip_query".
#
# The scorer's shared space is trained. CLIP's embeddings are a good start, as similar words are close together. The
# projection is fitted to map the language model's embedding of a word to CLIP's embedding of the same word.
#
# Notation: W words in common, D language-model width, S width of the shared space (CLIP's).


CLIP_TEXT = "clip-text"
CLIP_RECIPE = "fitted: from the language model's embeddings of words to CLIP's (ridge regression)"
WORDS = "text_model.embeddings.token_embedding.weight"
QUESTION = "model.fetcher.scorers.clip_query.text_projection.weight"
RIDGE = 0.1  # penalty per word, against normalised embeddings of unit variance


@FAMILIES.register("clip")
class Clip(PublishedFamily):
    """CLIP, of which only the word embeddings are read; the checkpoint holds none of its tensors."""

    roles = (CLIP_TEXT,)

    def map(self, mapping: Mapping, roles: set[str], wanted: Shapes) -> None:
        mapping.leave_out(re.escape(WORDS), "read, to fit how scorer clip_query starts")
        mapping.leave_out(r"text_model\..+|text_projection\.weight|logit_scale", "its text encoder: words are enough")
        seen = r"vision_model\..+|visual_projection\.weight"
        mapping.leave_out(seen, "its vision encoder: images are read by another")


FAMILIES.register("clip_text_model")(Clip)


def words_in_common(source: WeightsSource, tokenizer: Any) -> list[tuple[int, int]]:
    """(row of the language model, row of CLIP) of each lower-case word that is one token for both. Raises ValueError:
    the two have no word in common, or `source` has no tokenizer of CLIP's form."""
    known = tokenizer.get_vocab()
    vocabulary = read_json(source.file("tokenizer.json")).get("model", {}).get("vocab", {})
    words = {token: row for token, row in vocabulary.items() if re.fullmatch(r"[a-z]+</w>", token)}
    spaced = [("Ġ" + token.removesuffix("</w>"), row) for token, row in words.items()]  # Ġ: a space before it
    pairs = sorted((known[word], row) for word, row in spaced if word in known)
    if not pairs:
        raise ValueError(f"{source}: expected words that the language model's tokenizer knows too; got none")
    return pairs


@torch.no_grad()
def fit(source: WeightsSource, embeddings: TensorRows, tokenizer: Any) -> Tensor:
    """[S, D] float32: maps the normalised embedding of a word to CLIP's, centred."""
    pairs = torch.tensor(words_in_common(source, tokenizer))
    table = source.shape(WORDS)
    embedded = _gather(embeddings, pairs[:, 0])
    order = pairs[:, 1].argsort()
    asked = torch.empty(len(pairs), table[1])
    asked[order] = _gather(TensorRows(source, WORDS, 0, table[0]), pairs[order, 1])
    asked = asked - asked.mean(0)
    embedded = F.layer_norm(embedded, embedded.shape[-1:])
    square = (embedded.T @ embedded).double()
    square += RIDGE * len(pairs) * torch.eye(len(square), dtype=torch.float64)
    return torch.linalg.solve(square, (embedded.T @ asked).double()).T.float()


def _gather(rows: TensorRows, wanted: Tensor) -> Tensor:
    """Rows `wanted` (ascending) of a table as [W, width] float32, without loading the whole table."""
    gathered = torch.empty(len(wanted), rows.info.shape[1])
    for first, block in rows.blocks():
        here = (wanted >= first) & (wanted < first + len(block))
        gathered[here] = block[wanted[here] - first].float()
    return gathered


# ---- Decoders with transformers' own tensor names: Qwen3, Qwen2, Llama and models of its form, as SmolLM2.


@FAMILIES.register("llama")
@FAMILIES.register("qwen2")
@FAMILIES.register("qwen3")
class Decoder(PublishedFamily):
    """The language model, its tokenizer and ChatML."""

    roles = ("llm",)

    def text_config(self, source: WeightsSource) -> dict[str, Any]:
        return as_text_config(source.config, source.field("model_type"))

    def map(self, mapping: Mapping, roles: set[str], wanted: Shapes) -> None:
        map_decoder(mapping, wanted)


# ---- Qwen3-VL (Qwen/Qwen3-VL-2B-Instruct, -4B-, ...): a text model with 2-D positions (M-RoPE) and planes (DeepStack).
#
# Its vision encoder and the mergers of its planes are left out. DeepSeek-OCR's encoder reads images, with new mergers
# that start at zero.


@FAMILIES.register("qwen3_vl")
class Qwen3Vl(PublishedFamily):
    """The language model under `model.language_model.`, its tokenizer, ChatML, layout and planes."""

    roles = ("llm",)
    text_type: ClassVar[str] = "qwen3_vl_text"

    def text_config(self, source: WeightsSource) -> dict[str, Any]:
        published = inner_config(source, "text_config", self.text_type)
        tied = source.field("tie_word_embeddings", published.get("tie_word_embeddings", False))
        return {**as_text_config(published, self.text_type), "tie_word_embeddings": tied}

    def bridge_config(self, source: WeightsSource, kind: str) -> dict[str, Any]:
        return {**super().bridge_config(source, kind), "layout": "qwen3_vl", "deepstack": True}

    def map(self, mapping: Mapping, roles: set[str], wanted: Shapes) -> None:
        map_decoder(mapping, wanted, decoder="model.language_model.")
        mapping.leave_out(r"model\.visual\..+", "its own vision encoder: images are read by another")


@FAMILIES.register("qwen3_vl_moe")
class Qwen3VlMoe(Qwen3Vl):
    """Qwen3-VL with a mixture of experts (Qwen/Qwen3-VL-30B-A3B-Instruct, ...)."""

    text_type: ClassVar[str] = "qwen3_vl_moe_text"

    def map(self, mapping: Mapping, roles: set[str], wanted: Shapes) -> None:
        """Transposes the stacks of experts, published as [E, H, 2I] and [E, I, H]; transformers has [E, 2I, H] and
        [E, H, I]."""
        super().map(mapping, roles, wanted)
        for target in [name for name in wanted if name.endswith((".experts.gate_up_proj", ".experts.down_proj"))]:
            mapping.take(target, target, transposed=True)


# ---- DeepSeek-OCR (deepseek-ai/DeepSeek-OCR): vision encoder, projector, and a mixture-of-experts language model.
#
# Notation: G side of the grid, D' semantic width. `sam_model` is our grid encoder and, with its last two
# convolutions, our compressor; `vision_model` is our semantic encoder.


_GRID, _SEMANTIC = "model.vision_tower.grid_encoder.", "model.vision_tower.semantic_encoder."
_COMPRESSOR = "model.vision_tower.compressor."
_SAM, _CLIP = r"model\.sam_model\.", r"model\.vision_model\."

VISION = {
    _SAM + r"patch_embed\.proj\.(weight|bias)": _GRID + r"patch_embed.projection.\1",
    _SAM + r"pos_embed": _GRID + r"pos_embed",
    _SAM + r"blocks\.(\d+)\.norm([12])\.(weight|bias)": _GRID + r"layers.\1.layer_norm\2.\3",
    _SAM + r"blocks\.(\d+)\.(attn|mlp)\.(.+)": _GRID + r"layers.\1.\2.\3",
    _SAM + r"neck\.0\.weight": _GRID + r"neck.conv1.weight",
    _SAM + r"neck\.1\.(weight|bias)": _GRID + r"neck.layer_norm1.\1",
    _SAM + r"neck\.2\.weight": _GRID + r"neck.conv2.weight",
    _SAM + r"neck\.3\.(weight|bias)": _GRID + r"neck.layer_norm2.\1",
    _SAM + r"net_2\.weight": _COMPRESSOR + "conv1.weight",
    _SAM + r"net_3\.weight": _COMPRESSOR + "conv2.weight",
    _CLIP + r"embeddings\.class_embedding": _SEMANTIC + "class_embedding",
    _CLIP + r"embeddings\.position_embedding\.weight": _SEMANTIC + "position_embedding",
    _CLIP + r"pre_layrnorm\.(weight|bias)": _SEMANTIC + r"pre_layrnorm.\1",
    _CLIP + r"transformer\.layers\.(\d+)\.(layer_norm[12]|mlp\.fc[12]|self_attn\.out_proj)\.(weight|bias)": (
        _SEMANTIC + r"layers.\1.\2.\3"
    ),
}
FUSED = _CLIP + r"transformer\.layers\.(\d+)\.self_attn\.qkv_proj\.(weight|bias)"
SPLIT = [_SEMANTIC + rf"layers.\1.self_attn.{part}_proj.\2" for part in "qkv"]

# Its prompts are plain: no roles, the image first. It was trained on "<image>\nFree OCR."
CHAT_TEMPLATE = (
    render_macro(r"<image>\n")
    + """\
{{- bos_token -}}
{%- for message in messages -%}
  {%- if message['role'] == 'assistant' -%}
    {%- generation -%}
      {{- render(message['content']) + eos_token -}}
    {%- endgeneration -%}
  {%- else -%}
    {{- render(message['content']) -}}
  {%- endif -%}
{%- endfor -%}
"""
)


@FAMILIES.register("deepseek_vl_v2")
class DeepseekOcr(PublishedFamily):
    """The vision encoder with projector, and the language model with the embeddings that end an image's rows."""

    roles = ("vision", "llm")
    prompting = PromptTokens(image_token="<image>", needed=(), added=("<image>",), chat_template=CHAT_TEMPLATE)

    def vision_configs(self, source: WeightsSource) -> tuple[dict[str, Any], dict[str, Any]]:
        semantic = _semantic_config(source)
        rows, columns = source.shape("model.projector.layers.weight")
        source.agree("projector_config.input_dim", columns, source.field("projector_config.input_dim"))
        source.agree("projector_config.n_embed", rows, source.field("projector_config.n_embed"))
        return _grid_config(source), semantic

    def text_config(self, source: WeightsSource) -> dict[str, Any]:
        return _text_config(source)

    def bridge_config(self, source: WeightsSource, kind: str) -> dict[str, Any]:
        return {**super().bridge_config(source, kind), "layout": "rows"}

    def map(self, mapping: Mapping, roles: set[str], wanted: Shapes) -> None:
        if "vision" in roles:
            mapping.rename(VISION)
            mapping.split(FUSED, SPLIT)
            _map_projector(mapping, wanted, own="llm" in roles)
            mapping.leave_out(_CLIP + r"embeddings\.patch_embedding\.weight", "stored, but never used")
        else:
            names = _SAM + ".+|" + _CLIP + r".+|model\.projector\..+"
            mapping.leave_out(names, "its vision encoder, which is not asked for")
        if "llm" in roles:
            _map_experts(mapping, wanted)
            map_decoder(mapping, wanted)
            mapping.rename({r"model\.(image_newline|view_seperator)": r"model.layout.\1"})
        else:
            names = r"model\.(embed_tokens|norm|layers)\..+|lm_head\.weight"
            mapping.leave_out(names, "its language model, which is not asked for")
            mapping.leave_out(r"model\.(image_newline|view_seperator)", "only its own language model reads it")


def _grid_config(source: WeightsSource) -> dict[str, Any]:
    """Sizes of the grid encoder and compressor: window and grid from the position tables, heads from their width."""
    published = "vision_config.width.sam_vit_b."
    prefix = "model.sam_model."
    _, side, other, width = source.shape(prefix + "pos_embed", 4)
    source.agree("the sides of pos_embed", side, other)
    patch = source.shape(prefix + "patch_embed.proj.weight", 4)[-1]
    layers = _count(source, prefix + "blocks.{}.attn.qkv.weight")
    tables = [source.shape(f"{prefix}blocks.{i}.attn.rel_pos_h", 2) for i in range(layers)]
    whole = [int(i) for i in source.field(published + "global_attn_indexes")]
    reach = {(rows + 1) // 2 for i, (rows, _) in enumerate(tables) if i in whole}
    source.agree("the side of the grid (relative position tables)", sorted(reach), [side] * bool(whole))
    windows = {(rows + 1) // 2 for i, (rows, _) in enumerate(tables) if i not in whole}
    if len(windows) > 1:
        raise ValueError(f"{source}: expected one window size in the relative position tables; got {sorted(windows)}")
    head = tables[0][1]
    channels = [source.shape(f"{prefix}{name}.weight", 4)[0] for name in ("net_2", "net_3")]
    heads = source.agree("grid encoder heads", width / head, source.field(published + "heads"))
    return {
        "image_size": source.agree("image size", side * patch, source.field("vision_config.image_size")),
        "patch_size": patch,
        "hidden_size": source.agree("grid encoder width", width, source.field(published + "width")),
        "num_hidden_layers": source.agree("grid encoder layers", layers, source.field(published + "layers")),
        "num_attention_heads": int(heads),
        "mlp_dim": source.shape(prefix + "blocks.0.mlp.lin1.weight", 2)[0],
        "window_size": windows.pop() if windows else side,
        "global_attn_indexes": whole,
        "out_channels": source.shape(prefix + "neck.0.weight", 4)[0],
        "compressed_channels": source.agree(
            "compressor channels", channels, list(source.field(published + "downsample_channels"))
        ),
        "compressor": "conv",
        "stem": "patchify",
    }


def _semantic_config(source: WeightsSource) -> dict[str, Any]:
    """Sizes of the semantic encoder; only the number of heads cannot be derived from its tensors."""
    published = "vision_config.width.clip-l-14-224."
    prefix = "model.vision_model."
    rows, width = source.shape(prefix + "embeddings.position_embedding.weight", 2)
    layers = _count(source, prefix + "transformer.layers.{}.self_attn.qkv_proj.weight")
    side = source.field(published + "image_size") // source.field(published + "patch_size")
    source.agree("rows of the semantic position table (a square and a class token)", rows, side * side + 1)
    return {
        "hidden_size": source.agree("semantic encoder width", width, source.field(published + "width")),
        "intermediate_size": source.shape(prefix + "transformer.layers.0.mlp.fc1.weight", 2)[0],
        "num_hidden_layers": source.agree("semantic encoder layers", layers, source.field(published + "layers")),
        "num_attention_heads": source.field(published + "heads"),
        "position_grid": isqrt(rows - 1),
        "hidden_act": "quick_gelu",
    }


_TEXT = (
    ("hidden_size", "vocab_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers")
    + ("num_attention_heads", "num_key_value_heads", "n_routed_experts", "num_experts_per_tok", "n_shared_experts")
    + ("max_position_embeddings",)
)
"""Required fields of `language_config`."""
_DEFAULTS = (
    {"n_group": 1, "topk_group": 1, "topk_method": "greedy", "routed_scaling_factor": 1.0, "rms_norm_eps": 1e-6}
    | {"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "bos_token_id": 0}
    | {"eos_token_id": 1, "pad_token_id": None}
)
"""Optional fields, with the defaults of DeepSeek's code."""


def _text_config(source: WeightsSource) -> dict[str, Any]:
    part = "language_config."
    if source.field(part + "use_mla", False):
        raise ValueError(f"{source}: expected plain attention (use_mla false) in language_config; got use_mla true")
    fields = {name: source.field(part + name) for name in _TEXT}
    fields.update({name: source.field(part + name, default) for name, default in _DEFAULTS.items()})
    dense, layers = source.field(part + "first_k_dense_replace"), fields["num_hidden_layers"]
    theta = source.field(part + "rope_theta", 10000.0)
    return {
        **fields,
        "model_type": "deepseek_ocr2_text",
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (layers - dense),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(theta)},
    }


def _map_projector(mapping: Mapping, wanted: Shapes, *, own: bool) -> None:
    """Maps the projector, if the bridge has a place for it and the language model has its width. Raises ValueError: the
    language model is also of this source (`own`), but has another width."""
    target = "model.bridge.projection.weight"
    rows, columns = mapping.source.shape("model.projector.layers.weight")
    ours = wanted.get(target)
    if ours is not None and (own or (rows, columns) == ours):
        mapping.rename({r"model\.projector\.layers\.(weight|bias)": r"model.bridge.projection.\1"})
        return
    why = f"leads to {rows} channels, not to the {ours[0]} of this LLM" if ours else "this bridge has no projection"
    mapping.leave_out(r"model\.projector\.layers\.(weight|bias)", why)


def _map_experts(mapping: Mapping, wanted: Shapes) -> None:
    """Maps single experts to transformers' stacks: [E, 2I, H] with gate above up, and [E, H, I] of down."""
    for target in [name for name in wanted if name.endswith((".experts.gate_up_proj", ".experts.down_proj"))]:
        path, _, kind = target.removeprefix("model.language_model.").rpartition(".")
        parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
        experts = range(wanted[target][0])
        mapping.take(target, *(f"model.{path}.{i}.{part}.weight" for i in experts for part in parts))


def _count(source: WeightsSource, pattern: str) -> int:
    """The number of consecutive layers from 0 on."""
    count = 0
    while pattern.format(count) in source.tensors:
        count += 1
    if not count:
        raise ValueError(f"{source}: expected tensor {pattern.format(0)}; got none")
    return count


# ---- Ovis2.5 (AIDC-AI/Ovis2.5-2B, -9B): a Qwen3 language model and a visual embedding table.
#
# Its vision encoder is left out; DeepSeek-OCR's encoder reads images. The table's head reads 2x2-merged features of
# Ovis's encoder; it is loaded if our features have the same width, else it is new.


TABLE = "vte.weight"
HEAD = "model.bridge.head.0.weight"


@FAMILIES.register("ovis2_5")
class Ovis(PublishedFamily):
    """The language model under `llm.`, and the table and its head for bridge "vet"."""

    roles = ("llm",)

    def text_config(self, source: WeightsSource) -> dict[str, Any]:
        return as_text_config(inner_config(source, "llm_config", "qwen3"), "qwen3")

    def bridge_config(self, source: WeightsSource, kind: str) -> dict[str, Any]:
        if kind != "vet":
            return {}
        rows = source.shape(TABLE)[0]
        source.agree("rows of the visual embedding table", rows, source.field("visual_vocab_size", rows))
        return {"table_size": rows, "layout": "indicators"}

    def map(self, mapping: Mapping, roles: set[str], wanted: Shapes) -> None:
        map_decoder(mapping, wanted, "llm.")
        if HEAD in wanted:
            mapping.take("model.bridge.table.weight", TABLE)
            mapping.rename({r"visual_tokenizer\.head\.1\.(\w+)": r"model.bridge.head.1.\1"})
            head, ours = "visual_tokenizer.head.0.weight", wanted[HEAD][1]
            theirs = mapping.source.shape(head)[1]
            if theirs == ours:
                mapping.take(HEAD, head)
            mapping.leave_out(re.escape(head), f"reads {theirs} features of its own encoder, not our {ours}")
        rest = r"visual_tokenizer\.head\..+|vte\.weight"
        mapping.leave_out(rest, 'the visual table of bridge "vet", which is not asked for')
        mapping.leave_out(r"visual_tokenizer\.vit\..+", "its own vision encoder: images are read by another")
