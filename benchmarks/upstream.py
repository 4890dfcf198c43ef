"""Stand-ins for published checkpoints: the same tensor names and configs at any size, with random weights.

The defaults are the published sizes: DeepSeek-OCR's vision encoder and language model, Qwen3-0.6B, Ovis2.5-2B and
Qwen3-VL-2B's vision encoders.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.torch import save_file

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Upstream:
    """config.json, and the shape of each tensor."""

    config: dict[str, Any]
    shapes: Shapes

    def __or__(self, other: "Upstream") -> "Upstream":
        """One checkpoint with the configs and tensors of both."""
        return Upstream(self.config | other.config, self.shapes | other.shapes)


def _linear(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _grid_encoder(
    side: int, patch: int, width: int, layers: int, heads: int, whole: tuple[int, ...], window: int
) -> Shapes:
    """SAM's encoder for `side` x `side` patches: layers in `whole` use global attention, others windows."""
    sam = "model.sam_model."
    shapes: Shapes = {
        sam + "pos_embed": (1, side, side, width),
        sam + "patch_embed.proj.weight": (width, 3, patch, patch),
        sam + "patch_embed.proj.bias": (width,),
    }
    for i in range(layers):
        block, reach = f"{sam}blocks.{i}.", side if i in whole else window
        shapes |= _norm(block + "norm1", width) | _norm(block + "norm2", width)
        shapes |= _linear(block + "attn.qkv", 3 * width, width) | _linear(block + "attn.proj", width, width)
        shapes |= {f"{block}attn.rel_pos_{axis}": (2 * reach - 1, width // heads) for axis in "hw"}
        shapes |= _linear(block + "mlp.lin1", 4 * width, width) | _linear(block + "mlp.lin2", width, 4 * width)
    return shapes


def _compressor(width: int, channels: int, compressed: tuple[int, int]) -> Shapes:
    """The grid encoder's neck and the two stride-2 convolutions after it."""
    sam = "model.sam_model."
    return {
        sam + "neck.0.weight": (channels, width, 1, 1),
        **_norm(sam + "neck.1", channels),
        sam + "neck.2.weight": (channels, channels, 3, 3),
        **_norm(sam + "neck.3", channels),
        sam + "net_2.weight": (compressed[0], channels, 3, 3),
        sam + "net_3.weight": (compressed[1], compressed[0], 3, 3),
    }


def _semantic_encoder(width: int, layers: int, grid: int) -> Shapes:
    """CLIP's encoder, with its unused patch embedding."""
    clip = "model.vision_model."
    shapes: Shapes = {
        clip + "embeddings.class_embedding": (width,),
        clip + "embeddings.patch_embedding.weight": (width, 3, 14, 14),
        clip + "embeddings.position_embedding.weight": (grid * grid + 1, width),
        **_norm(clip + "pre_layrnorm", width),
    }
    for i in range(layers):
        layer = f"{clip}transformer.layers.{i}."
        shapes |= _norm(layer + "layer_norm1", width) | _norm(layer + "layer_norm2", width)
        shapes |= _linear(layer + "self_attn.qkv_proj", 3 * width, width)
        shapes |= _linear(layer + "self_attn.out_proj", width, width)
        shapes |= _linear(layer + "mlp.fc1", 4 * width, width)
        shapes |= _linear(layer + "mlp.fc2", width, 4 * width)
    return shapes


def deepseek_vision(
    *,
    image: int = 1024,
    patch: int = 16,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    whole: tuple[int, ...] = (2, 5, 8, 11),
    window: int = 14,
    channels: int = 256,
    compressed: tuple[int, int] = (512, 1024),
    semantic_layers: int = 24,
    semantic_heads: int = 16,
    grid: int = 16,
    projected: int = 1280,
) -> Upstream:
    """DeepSeek-OCR's vision encoder and projector; `grid`: side of the semantic encoder's position table."""
    semantic = compressed[1]
    shapes = {
        **_grid_encoder(image // patch, patch, width, layers, heads, whole, window),
        **_compressor(width, channels, compressed),
        **_semantic_encoder(semantic, semantic_layers, grid),
        **_linear("model.projector.layers", projected, 2 * semantic),
        "model.image_newline": (projected,),
        "model.view_seperator": (projected,),
    }
    sizes = {
        "clip-l-14-224": {
            "heads": semantic_heads,
            "image_size": 14 * grid,
            "layers": semantic_layers,
            "patch_size": 14,
            "width": semantic,
        },
        "sam_vit_b": {
            "downsample_channels": list(compressed),
            "global_attn_indexes": list(whole),
            "heads": heads,
            "layers": layers,
            "width": width,
        },
    }
    config = {
        "model_type": "deepseek_vl_v2",
        "projector_config": {"input_dim": 2 * semantic, "n_embed": projected, "projector_type": "linear"},
        "vision_config": {"image_size": image, "mlp_ratio": 3.7362, "model_name": "deeplip_b_l", "width": sizes},
    }
    return Upstream(config, shapes)


def deepseek_language(
    *,
    width: int = 1280,
    vocabulary: int = 129280,
    layers: int = 12,
    heads: int = 10,
    inner: int = 6848,
    expert: int = 896,
    experts: int = 64,
    active: int = 6,
    shared: int = 2,
    dense: int = 1,
) -> Upstream:
    """DeepSeek-OCR's mixture of experts: `inner` wide in its `dense` first layers, then `experts` of width `expert`."""
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocabulary, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (vocabulary, width),
    }

    def mlp(name: str, size: int) -> Shapes:
        narrow = {f"{name}.{part}_proj.weight": (size, width) for part in ("gate", "up")}
        return {**narrow, f"{name}.down_proj.weight": (width, size)}

    for i in range(layers):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}self_attn.{part}_proj.weight": (width, width) for part in "qkvo"}
        shapes |= {f"{layer}{part}_layernorm.weight": (width,) for part in ("input", "post_attention")}
        if i < dense:
            shapes |= mlp(layer + "mlp", inner)
            continue
        shapes[layer + "mlp.gate.weight"] = (experts, width)
        shapes |= mlp(layer + "mlp.shared_experts", shared * expert)
        for number in range(experts):
            shapes |= mlp(f"{layer}mlp.experts.{number}", expert)
    language = (
        {"hidden_size": width, "vocab_size": vocabulary, "intermediate_size": inner}
        | {"moe_intermediate_size": expert, "num_hidden_layers": layers, "num_attention_heads": heads}
        | {"num_key_value_heads": heads, "n_routed_experts": experts, "num_experts_per_tok": active}
        | {"n_shared_experts": shared, "first_k_dense_replace": dense, "max_position_embeddings": 8192, "n_group": 1}
        | {"topk_group": 1, "topk_method": "greedy", "use_mla": False}
    )
    return Upstream({"model_type": "deepseek_vl_v2", "language_config": language}, shapes)


def qwen3(
    *,
    width: int = 1024,
    vocabulary: int = 151936,
    layers: int = 28,
    heads: int = 16,
    groups: int = 8,
    head: int = 128,
    inner: int = 3072,
    prefix: str = "",
    tied: bool = True,
    stored_head: bool = True,
) -> Upstream:
    """Qwen3; `groups`: key-value heads; `tied`: the embeddings are the head; `stored_head`: the file has a head."""
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, width), "model.norm.weight": (width,)}
    if stored_head:
        shapes["lm_head.weight"] = (vocabulary, width)
    for i in range(layers):
        layer, attention = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
        shapes |= {f"{layer}{part}_layernorm.weight": (width,) for part in ("input", "post_attention")}
        shapes |= {f"{attention}{part}_norm.weight": (head,) for part in "qk"}
        shapes |= {f"{attention}{part}_proj.weight": (groups * head, width) for part in "kv"}
        shapes |= {attention + "q_proj.weight": (heads * head, width)}
        shapes |= {attention + "o_proj.weight": (width, heads * head)}
        shapes |= {f"{layer}mlp.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        shapes[layer + "mlp.down_proj.weight"] = (width, inner)
    config = (
        {"model_type": "qwen3", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
        | {"num_key_value_heads": groups, "head_dim": head, "intermediate_size": inner, "vocab_size": vocabulary}
        | {"rms_norm_eps": 1e-6, "rope_theta": 1000000, "max_position_embeddings": 40960, "attention_bias": False}
        | {"tie_word_embeddings": tied}
    )
    return Upstream(config, {prefix + name: shape for name, shape in shapes.items()})


def ovis(
    language: Upstream, *, width: int = 1152, layers: int = 27, inner: int = 4304, side: int = 32, rows: int = 65536
) -> Upstream:
    """Ovis2.5 around `qwen3(prefix="llm.", stored_head=False)`; `width`: of its encoder; `rows`: of its table."""
    vit, head = "visual_tokenizer.vit.vision_model.", "visual_tokenizer.head."
    shapes: Shapes = {
        head + "0.weight": (rows - 4, 4 * width),
        **_norm(head + "1", rows - 4),
        "vte.weight": (rows, language.config["hidden_size"]),
        vit + "embeddings.patch_embedding.weight": (width, 3, 16, 16),
        vit + "embeddings.patch_embedding.bias": (width,),
        vit + "embeddings.position_embedding.weight": (side * side, width),
        **_norm(vit + "post_layernorm", width),
    }
    for i in range(layers):
        layer = f"{vit}encoder.layers.{i}."
        shapes |= _norm(layer + "layer_norm1", width) | _norm(layer + "layer_norm2", width)
        for part in ("k_proj", "out_proj", "q_proj", "v_proj"):
            shapes |= _linear(f"{layer}self_attn.{part}", width, width)
        shapes |= _linear(layer + "mlp.fc1", inner, width) | _linear(layer + "mlp.fc2", width, inner)
    config = {"model_type": "ovis2_5", "llm_config": language.config, "visual_vocab_size": rows}
    return Upstream(config, shapes | language.shapes)


def qwen3_vl(
    language: Upstream,
    *,
    width: int = 1024,
    layers: int = 24,
    heads: int = 16,
    inner: int = 4096,
    grid: int = 48,
    depths: tuple[int, ...] = (5, 11, 17),
    experts: tuple[int, int, int] | None = None,
) -> Upstream:
    """Qwen3-VL around `qwen3(stored_head=False)`; `width`: of its encoder, whose layers `depths` give planes.

    `experts`: for a mixture of experts, the number of experts, experts per token, and their width.
    """
    visual, text = "model.visual.", dict(language.config)
    wide = text["hidden_size"]
    shapes: Shapes = {
        visual + "patch_embed.proj.weight": (width, 3, 2, 16, 16),
        visual + "patch_embed.proj.bias": (width,),
        visual + "pos_embed.weight": (grid**2, width),
    }
    for i in range(layers):
        block = f"{visual}blocks.{i}."
        shapes |= _norm(block + "norm1", width) | _norm(block + "norm2", width)
        shapes |= _linear(block + "attn.qkv", 3 * width, width) | _linear(block + "attn.proj", width, width)
        shapes |= _linear(block + "mlp.linear_fc1", inner, width) | _linear(block + "mlp.linear_fc2", width, inner)
    for merger in ("merger", *(f"deepstack_merger_list.{i}" for i in range(len(depths)))):
        shapes |= _norm(f"{visual}{merger}.norm", width if merger == "merger" else 4 * width)
        shapes |= _linear(f"{visual}{merger}.linear_fc1", 4 * width, 4 * width)
        shapes |= _linear(f"{visual}{merger}.linear_fc2", wide, 4 * width)
    half = text["head_dim"] // 2
    sections = [half - 2 * (half * 5 // 16), half * 5 // 16, half * 5 // 16]  # [24, 20, 20] of 64, as published
    rotary = {"mrope_interleaved": True, "mrope_section": sections, "rope_type": "default"}
    text |= {"model_type": "qwen3_vl_text", "rope_scaling": rotary, "rope_theta": 5000000, "bos_token_id": 151643}
    text |= {"eos_token_id": 151645, "max_position_embeddings": 262144, "hidden_act": "silu", "use_cache": True}
    text |= {"attention_dropout": 0.0, "initializer_range": 0.02, "dtype": "bfloat16"}
    config: dict[str, Any] = {
        "model_type": "qwen3_vl",
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "image_token_id": 151655,
        "video_token_id": 151656,
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "vision_config": (
            {"model_type": "qwen3_vl", "depth": layers, "hidden_size": width, "intermediate_size": inner}
            | {"num_heads": heads, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2}
            | {"temporal_patch_size": 2, "num_position_embeddings": grid**2, "out_hidden_size": wide}
            | {"hidden_act": "gelu_pytorch_tanh", "initializer_range": 0.02}
            | {"deepstack_visual_indexes": list(depths)}
        ),
    }
    inside = {name.replace("model.", "model.language_model.", 1): shape for name, shape in language.shapes.items()}
    if experts is not None:
        count, active, narrow = experts
        text |= {"model_type": "qwen3_vl_moe_text", "num_experts": count, "num_experts_per_tok": active}
        text |= {"moe_intermediate_size": narrow, "decoder_sparse_step": 1, "mlp_only_layers": []}
        config["model_type"] = config["vision_config"]["model_type"] = "qwen3_vl_moe"
        inside = {name: shape for name, shape in inside.items() if ".mlp." not in name}
        for i in range(text["num_hidden_layers"]):
            part = f"model.language_model.layers.{i}.mlp."
            inside[part + "gate.weight"] = (count, wide)
            inside[part + "experts.gate_up_proj"] = (count, wide, 2 * narrow)
            inside[part + "experts.down_proj"] = (count, narrow, wide)
    return Upstream(config, shapes | inside)


def write_upstream(
    folder: Path,
    upstream: Upstream,
    *,
    tokenizer: Path | None = None,
    special_tokens: dict[str, str] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    max_shard_size: int | str = "5GB",
    std: float = 0.02,
) -> Path:
    """Writes a stand-in with random weights, one shard in memory at a time; returns `folder`.

    Args:
        folder: the folder to write.
        upstream: config and tensor shapes.
        tokenizer: a folder whose tokenizer is copied.
        special_tokens: entries of its tokenizer_config.json, as {"bos_token": "<s>"}.
        dtype: dtype of the weights.
        max_shard_size: bytes, or a text as "5GB".
        std: standard deviation of the weights; those of norms are around 1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(upstream.config))
    if tokenizer is not None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tokenizer / name, folder / name)
        settings = json.loads((folder / "tokenizer_config.json").read_text()) | (special_tokens or {})
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    split = split_state_dict_into_shards_factory(
        dict(sorted(upstream.shapes.items())),  # the splitter needs shapes only
        get_storage_size=lambda shape: torch.Size(shape).numel() * dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    generator = torch.Generator().manual_seed(0)
    for file, names in split.filename_to_tensors.items():
        shard = {}
        for name in names:
            shape = upstream.shapes[name]
            tensor = torch.empty(shape, dtype=dtype).normal_(0.0, std, generator=generator)
            shard[name] = tensor + 1 if len(shape) == 1 and name.endswith("weight") else tensor
        save_file(shard, folder / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
