"""From pixels to base tokens: the same numbers as the published encoder."""

from typing import Any

import pytest
import torch
from encoders import randomise, semantic, vision
from torch import Tensor, nn
from worked_cases import DEEP_ENCODER, assert_deep_encoder_agrees, deep_encoder

from arr_coc.modeling.bridges import LinearBridge
from arr_coc.modeling.configuration_arr_coc import ArrCocBridgeConfig
from arr_coc.modeling.grid_encoder import GridEncoder
from arr_coc.modeling.vision_tower import COMPRESSORS, ConvCompressor, SemanticEncoder


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
    grid = {"image_size": sizes["image"], "patch_size": 16, "hidden_size": sizes["width"], "out_channels": 256}
    grid |= {"num_hidden_layers": sizes["layers"], "num_attention_heads": sizes["heads"], "mlp_dim": 4 * sizes["width"]}
    clip = {"hidden_size": 1024, "intermediate_size": 4096, "position_grid": 16}
    clip |= {"num_hidden_layers": sizes["semantic_layers"], "num_attention_heads": sizes["semantic_heads"]}
    parts = nn.ModuleDict(
        {
            "grid_encoder": GridEncoder(vision(**grid, global_attn_indexes=sizes["whole"])),
            "compressor": ConvCompressor(vision(out_channels=256, compressed_channels=[512, 1024])),
            "semantic_encoder": SemanticEncoder(semantic(**clip)),
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


# ---- Compressors: a sixteenth of the patches stays, each image by itself, and every weight learns
COMPRESSOR_CASES = ["conv", "mask"]


def compress(kind: str, features: Tensor, mask: Tensor | None = None) -> Any:
    module = randomise(COMPRESSORS[kind](vision(compressor=kind)))
    mask = torch.ones(features.shape[0], features.shape[-1] ** 2, dtype=torch.bool) if mask is None else mask
    return module(features, mask)


def test_every_compressor_is_tested() -> None:
    assert set(COMPRESSOR_CASES) == set(COMPRESSORS)


@pytest.mark.parametrize("kind", COMPRESSOR_CASES)
@pytest.mark.parametrize("side", [4, 8, 16])
def test_a_sixteenth_of_the_patches_stays(kind: str, side: int) -> None:
    base = compress(kind, torch.randn(2, 12, side, side))
    small = side // 4
    assert base.tokens.shape == (2, small**2, 20) and base.compressed.shape == (2, 20, small, small)
    assert torch.equal(base.compressed.flatten(2).transpose(1, 2), base.tokens)


@pytest.mark.parametrize("kind", COMPRESSOR_CASES)
@torch.no_grad()
def test_base_tokens_of_an_image_are_its_own(kind: str) -> None:
    features = torch.randn(3, 12, 8, 8)
    together = compress(kind, features)
    for i in range(3):
        alone = compress(kind, features[i : i + 1])
        assert torch.allclose(together.tokens[i], alone.tokens[0], atol=1e-5)


@pytest.mark.parametrize("kind", COMPRESSOR_CASES)
def test_gradients_reach_every_weight_of_a_compressor(kind: str) -> None:
    """A hard top-M gives its score no gradient: the kept tokens are gated by it, so that it learns."""
    module = randomise(COMPRESSORS[kind](vision(compressor=kind)))
    module(torch.randn(2, 12, 8, 8), torch.ones(2, 64, dtype=torch.bool)).tokens.square().sum().backward()
    assert not [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()]


def test_mask_keeps_distinct_real_patches_and_says_which() -> None:
    mask = torch.rand(2, 256) < 0.5
    base = compress("mask", torch.randn(2, 12, 16, 16), mask)
    assert (base.indices.diff(dim=1) > 0).all()
    assert mask.gather(1, base.indices).all()


@torch.no_grad()
def test_the_warm_start_is_what_two_convolutions_do_to_a_flat_neighbourhood() -> None:
    """DESIGN 5: no nonlinearity between them, so on a constant patch they equal one matrix (not at the border)."""
    module = randomise(ConvCompressor(vision()))
    colour = torch.randn(12)
    base = module(colour.view(1, 12, 1, 1).expand(1, 12, 16, 16), torch.ones(1, 256, dtype=torch.bool))
    inside = base.compressed[0, :, 1:, 1:].flatten(1).t()
    assert torch.allclose(module.warm_start() @ colour, inside[0], atol=1e-4)
    assert torch.allclose(inside, inside[:1].expand_as(inside), atol=1e-4)


# ---- Semantic encoder: fetched tokens see the base, the base never what was fetched; positions are read where a patc
@torch.no_grad()
def test_a_fetched_token_sees_everything_and_the_base_sees_only_the_base() -> None:
    """In one layer a fetched token's state is that of joint attention; the base's must not know what was fetched."""
    encoder = randomise(SemanticEncoder(semantic(num_hidden_layers=1)))
    tokens, fetched = torch.randn(2, 4, 20), torch.randn(2, 3, 20)
    at = torch.tensor([[3, 9, 60], [0, 1, 2]])
    base, cache = encoder(tokens, 8, None)
    states, _ = encoder(fetched, 8, at, cache)
    cls = (encoder.class_embedding + encoder.position_embedding[0]).expand(2, 1, -1)
    own = fetched + encoder._positions_at(at, 8) + encoder.saccade_embedding
    joint = torch.cat((cls, tokens + encoder._position_table(2).flatten(1, 2), own), 1)
    mixed, *_ = encoder.layers[0](encoder.pre_layrnorm(joint), None, None)
    assert torch.allclose(states, mixed[:, 5:], atol=1e-5)
    assert not torch.allclose(base, mixed[:, 1:5], atol=1e-2)


@torch.no_grad()
def test_positions_are_read_at_the_patchs_own_y_and_x() -> None:
    """Swapped axes or a shift of half a patch are invisible in every shape."""
    encoder = SemanticEncoder(semantic())
    y, x = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    encoder.position_embedding.zero_()
    encoder.position_embedding[1:, 0], encoder.position_embedding[1:, 1] = y.flatten(), x.flatten()
    at = torch.tensor([[8 * 16 + 3, 2 * 16 + 13]])  # (8, 3) and (2, 13) of a 16 x 16 grid
    found = encoder._positions_at(at, 16)[0, :, :2]
    expected = torch.tensor([[8.5 / 4 - 0.5, 3.5 / 4 - 0.5], [2.5 / 4 - 0.5, 13.5 / 4 - 0.5]])
    assert torch.allclose(found, expected, atol=1e-5)
