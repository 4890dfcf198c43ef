"""From pixels to base tokens: the same numbers as the published encoder."""

import torch
from test_grid_encoder import vision
from test_semantic_encoder import semantic
from torch import nn
from worked_cases import DEEP_ENCODER, assert_deep_encoder_agrees, deep_encoder

from arr_coc.modeling.bridges import LinearBridge
from arr_coc.modeling.configuration_arr_coc import ArrCocBridgeConfig
from arr_coc.modeling.grid_encoder import GridEncoder
from arr_coc.modeling.vision_tower import ConvCompressor, SemanticEncoder


def official_names(name: str) -> str:
    """Published names -> those of our modules."""
    for old, new in {
        "model.sam_model.net_2": "compressor.conv1",
        "model.sam_model.net_3": "compressor.conv2",
        "model.sam_model.": "grid_encoder.",
        "model.vision_model.": "semantic_encoder.",
        "model.projector.layers": "bridge.projection",
        "transformer.layers": "layers",
        ".blocks.": ".layers.",
        "patch_embed.proj.": "patch_embed.projection.",
        ".norm1.": ".layer_norm1.",
        ".norm2.": ".layer_norm2.",
        "neck.0.": "neck.conv1.",
        "neck.1.": "neck.layer_norm1.",
        "neck.2.": "neck.conv2.",
        "neck.3.": "neck.layer_norm2.",
        "embeddings.class_embedding": "class_embedding",
        "embeddings.position_embedding.weight": "position_embedding",
    }.items():
        name = name.replace(old, new)
    return name


@torch.no_grad()
def test_deepseek_ocrs_own_numbers() -> None:
    """A small case of the published code (weights by rule): neck, convolutions, CLIP, projector."""
    sizes = DEEP_ENCODER
    parts = nn.ModuleDict(
        {
            "grid_encoder": GridEncoder(
                vision(
                    image_size=sizes["image"],
                    patch_size=16,
                    hidden_size=sizes["width"],
                    num_hidden_layers=sizes["layers"],
                    num_attention_heads=sizes["heads"],
                    mlp_dim=4 * sizes["width"],
                    global_attn_indexes=sizes["whole"],
                    out_channels=256,
                )
            ),
            "compressor": ConvCompressor(vision(out_channels=256, compressed_channels=[512, 1024])),
            "semantic_encoder": SemanticEncoder(
                semantic(
                    hidden_size=1024,
                    intermediate_size=4096,
                    num_hidden_layers=sizes["semantic_layers"],
                    num_attention_heads=sizes["semantic_heads"],
                    position_grid=16,
                )
            ),
            "bridge": LinearBridge(ArrCocBridgeConfig(), vision_size=1024, text_size=sizes["projected"]),
        }
    ).eval()
    published, pixels = deep_encoder()
    weights = {}
    for name, tensor in published.items():
        if "qkv_proj" in name:
            for part, piece in zip(("q_proj", "k_proj", "v_proj"), tensor.chunk(3), strict=True):
                weights[official_names(name).replace("qkv_proj", part)] = piece
        else:
            weights[official_names(name)] = tensor
    loaded = parts.load_state_dict(weights, strict=False)
    assert loaded.missing_keys == ["semantic_encoder.saccade_embedding"]
    unused = {"model.image_newline", "model.view_seperator"}
    assert {n for n in loaded.unexpected_keys if "patch_embedding" not in n} <= unused
    features = parts["grid_encoder"](pixels)
    base = parts["compressor"](features, torch.ones(2, 256, dtype=torch.bool))
    states, _ = parts["semantic_encoder"](base.tokens, 16, None)
    tokens = parts["bridge"](states, base.tokens).tokens
    outputs = {"sam_neck": features, "sam_conv": base.compressed, "clip_out": states, "projector_out": tokens}
    assert_deep_encoder_agrees(outputs)
