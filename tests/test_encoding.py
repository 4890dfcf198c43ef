"""From pixels to base tokens: the same numbers as the published encoders, without their memory."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.sam.configuration_sam import SamVisionConfig
from transformers.models.sam.modeling_sam import SamVisionEncoder
from worked_cases import DEEP_ENCODER, TOLERANCE, assert_deep_encoder_agrees, deep_encoder

from arr_coc.modeling.bridges import LinearBridge
from arr_coc.modeling.compressors import COMPRESSORS, ConvCompressor
from arr_coc.modeling.configuration_arr_coc import ArrCocBridgeConfig, ArrCocSemanticConfig, ArrCocVisionConfig
from arr_coc.modeling.grid_encoder import STEMS, GridEncoder, resize_table
from arr_coc.modeling.semantic_encoder import SemanticEncoder

COMPRESSOR_CASES = ["conv", "mask"]
STEM_CASES = {"patchify": (), "conv": (8, 12)}  # stem_channels down to patches of 8 px


def vision(**changes: Any) -> ArrCocVisionConfig:
    sizes: dict[str, Any] = {
        "image_size": 128, "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
        "mlp_dim": 48, "window_size": 7, "global_attn_indexes": [1], "out_channels": 12,
        "compressed_channels": [16, 20],
    }  # fmt: skip
    return ArrCocVisionConfig(**{**sizes, **changes})


def semantic(**changes: Any) -> ArrCocSemanticConfig:
    sizes = {"hidden_size": 20, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ArrCocSemanticConfig(**{**sizes, "position_grid": 4, **changes})


def randomise(module: nn.Module, std: float = 0.3) -> nn.Module:
    """Random, nowhere zero: zero relative positions or biases would agree with anything."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * std
    return module.eval()


def sam(config: ArrCocVisionConfig, image_size: int) -> SamVisionEncoder:
    """transformers' encoder of the same sizes for images of `image_size`."""
    return SamVisionEncoder(
        SamVisionConfig(
            hidden_size=config.hidden_size,
            output_channels=config.out_channels,
            image_size=image_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            patch_size=config.patch_size,
            window_size=config.window_size,
            mlp_dim=config.mlp_dim,
            global_attn_indexes=list(config.global_attn_indexes),
            layer_norm_eps=config.layer_norm_eps,
            attn_implementation="eager",
        )  # fmt: skip
    ).eval()


# 16 patches a side: windows of 7 need padding, windows of 8 none, windows of 20 are larger than the grid
@pytest.mark.parametrize("window", [7, 8, 20])
@torch.no_grad()
def test_the_grid_encoder_gives_sams_numbers(window: int) -> None:
    config = vision(window_size=window)
    ours, theirs = randomise(GridEncoder(config)), sam(config, 128)
    theirs.load_state_dict(ours.state_dict())
    pixels = torch.randn(2, 3, 128, 128)
    assert (ours(pixels) - theirs(pixels).last_hidden_state).abs().max() < TOLERANCE


def test_eager_grid_attention_gives_the_numbers_of_sdpa() -> None:
    config = vision(window_size=3)
    encoder = randomise(GridEncoder(config))
    pixels = torch.rand(2, 3, config.image_size, config.image_size)
    fused = encoder(pixels)
    config._attn_implementation = "eager"
    written_out = encoder(pixels)
    assert not torch.equal(written_out, fused), "the other path ran"
    assert (written_out - fused).abs().max() < 2e-5


@pytest.mark.parametrize("size", [32, 96, 160])
@torch.no_grad()
def test_other_sides_than_the_configured_give_sams_numbers_with_resized_tables(size: int) -> None:
    """A grid of the configured side was assumed in two places, and everything else fell over or went wrong silently."""
    config = vision()
    ours, theirs = randomise(GridEncoder(config)), sam(config, size)
    weights = ours.state_dict()
    table = weights.pop("pos_embed").permute(0, 3, 1, 2)
    resized = F.interpolate(table, (size // 8, size // 8), mode="bicubic", antialias=True).permute(0, 2, 3, 1)
    for layer in theirs.layers:  # transformers resizes these by itself when the table has another length
        layer.attn.rel_pos_h, layer.attn.rel_pos_w = (nn.Parameter(torch.empty(31, 12)) for _ in range(2))
        if layer.window_size:
            layer.attn.rel_pos_h, layer.attn.rel_pos_w = (nn.Parameter(torch.empty(13, 12)) for _ in range(2))
    theirs.load_state_dict({**weights, "pos_embed": resized})
    pixels = torch.randn(1, 3, size, size)
    assert (ours(pixels) - theirs(pixels).last_hidden_state).abs().max() < TOLERANCE


class LargestTensor(TorchDispatchMode):
    """Records how many elements the largest result of any operation has."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


@torch.no_grad()
def test_no_bias_of_n_by_n_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers makes [heads, N, N] in each global layer: 800 MB at 1024 px. Nor may SDPA be handed a mask."""
    config = vision(image_size=256)
    encoder, patches = randomise(GridEncoder(config)), config.num_patches
    assert patches == 1024
    masks: list[Any] = []
    plain = F.scaled_dot_product_attention

    def watched(*args: Any, **kwargs: Any) -> Tensor:
        masks.append(args[3] if len(args) > 3 else kwargs.get("attn_mask"))
        return plain(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    with LargestTensor() as seen:
        encoder(torch.randn(1, 3, 256, 256))
    assert len(masks) == config.num_hidden_layers and set(masks) == {None}
    assert seen.largest < patches**2


@torch.no_grad()
def test_images_do_not_see_each_other() -> None:
    encoder = randomise(GridEncoder(vision()))
    pixels = torch.randn(3, 3, 128, 128)
    together = encoder(pixels)
    for i in range(3):
        assert torch.allclose(together[i : i + 1], encoder(pixels[i : i + 1]), atol=1e-5)


def test_every_stem_is_tested() -> None:
    assert set(STEM_CASES) == set(STEMS)


@pytest.mark.parametrize("stem", STEM_CASES)
@pytest.mark.parametrize("size", [64, 128])
def test_stems_give_one_feature_per_patch_and_learn(stem: str, size: int) -> None:
    encoder = GridEncoder(vision(stem=stem, stem_channels=STEM_CASES[stem]))
    features = encoder(torch.randn(1, 3, size, size))
    assert features.shape == (1, 12, size // 8, size // 8)
    randomise(encoder)(torch.randn(1, 3, size, size)).square().sum().backward()
    assert not [n for n, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]


@torch.no_grad()
def test_a_position_table_is_antialiased_at_another_side() -> None:
    table = torch.randn(1, 16, 16, 3)
    half = resize_table(table.bfloat16(), 8)
    assert half.shape == (1, 8, 8, 3) and half.dtype == torch.bfloat16
    # Without antialiasing a checkerboard of single patches would survive; with it, it averages out.
    checkers = ((torch.arange(16)[:, None] + torch.arange(16)) % 2).float().view(1, 16, 16, 1)
    assert (resize_table(checkers, 4) - 0.5).abs().max() < 0.1


# ---- compressors


def compress(kind: str, features: Tensor, mask: Tensor | None = None) -> Any:
    module = randomise(COMPRESSORS.named(kind)(vision(compressor=kind)))
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
    module = randomise(COMPRESSORS.named(kind)(vision(compressor=kind)))
    module(torch.randn(2, 12, 8, 8), torch.ones(2, 64, dtype=torch.bool)).tokens.square().sum().backward()
    assert not [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()]


def test_mask_keeps_distinct_real_patches_and_says_which() -> None:
    mask = torch.rand(2, 256) < 0.5
    base = compress("mask", torch.randn(2, 12, 16, 16), mask)
    assert (base.indices.diff(dim=1) > 0).all()
    assert mask.gather(1, base.indices).all()


def test_mask_takes_padding_only_when_too_little_else_is_left() -> None:
    mask = torch.zeros(1, 64, dtype=torch.bool)
    mask[0, [50, 60]] = True
    base = compress("mask", torch.randn(1, 12, 8, 8), mask)
    assert {50, 60} <= set(base.indices[0].tolist()) and len(set(base.indices[0].tolist())) == 4


def test_mask_breaks_ties_by_the_lower_index() -> None:
    base = compress("mask", torch.ones(1, 12, 8, 8))
    assert base.indices.tolist() == [[0, 1, 2, 3]]


@torch.no_grad()
def test_the_warm_start_is_what_two_convolutions_do_to_a_flat_neighbourhood() -> None:
    """DESIGN 5: no nonlinearity between them, so on a constant patch they equal one matrix (not at the border)."""
    module = randomise(ConvCompressor(vision()))
    colour = torch.randn(12)
    base = module(colour.view(1, 12, 1, 1).expand(1, 12, 16, 16), torch.ones(1, 256, dtype=torch.bool))
    inside = base.compressed[0, :, 1:, 1:].flatten(1).t()
    assert torch.allclose(module.warm_start() @ colour, inside[0], atol=1e-4)
    assert torch.allclose(inside, inside[:1].expand_as(inside), atol=1e-4)


@torch.no_grad()
def test_the_mask_compressors_warm_start_is_its_projection() -> None:
    module = randomise(COMPRESSORS.named("mask")(vision(compressor="mask")))
    features = torch.randn(1, 12, 8, 8)
    base = module(features, torch.ones(1, 64, dtype=torch.bool))
    patches = features.flatten(2)[0].t()[base.indices[0]]
    gate = module.score(module.layer_norm(patches)).sigmoid()
    assert torch.allclose(patches @ module.warm_start().t() * gate, base.tokens[0], atol=1e-4)


# ---- semantic encoder


@torch.no_grad()
def test_a_saccade_sees_everything_and_the_base_sees_only_the_base() -> None:
    """In one layer a saccade's state is that of joint attention; the base's must not know what was fetched."""
    encoder = randomise(SemanticEncoder(semantic(num_hidden_layers=1)))
    tokens, fetched = torch.randn(2, 4, 20), torch.randn(2, 3, 20)
    at = torch.tensor([[3, 9, 60], [0, 1, 2]])
    base, cache = encoder(tokens, 8, None)
    states, _ = encoder(fetched, 8, at, cache)
    cls = (encoder.class_embedding + encoder.position_embedding[0]).expand(2, 1, -1)
    own = fetched + encoder._positions_at(at, 8) + encoder.saccade_embedding
    joint = torch.cat((cls, tokens + encoder._position_table(2).flatten(1, 2), own), 1)
    mixed, _ = encoder.layers[0](encoder.pre_layrnorm(joint), None)
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


@torch.no_grad()
def test_eager_attention_gives_the_numbers_of_sdpa() -> None:
    config = semantic()
    encoder = randomise(SemanticEncoder(config))
    tokens, at = torch.randn(2, 4, 20), torch.tensor([[1], [7]])
    found = {}
    for kind in ("eager", "sdpa"):
        config._attn_implementation = kind
        base, cache = encoder(tokens, 8, None)
        found[kind] = torch.cat((base, encoder(tokens[:, :1], 8, at, cache)[0]), 1)
    assert torch.allclose(found["eager"], found["sdpa"], atol=1e-5)


# ---- the published shape


def official_names(name: str) -> str:
    """FACTS: published names -> those of our modules."""
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
    parts = nn.ModuleDict({
        "grid_encoder": GridEncoder(vision(
            image_size=sizes["image"], patch_size=16, hidden_size=sizes["width"], num_hidden_layers=sizes["layers"],
            num_attention_heads=sizes["heads"], mlp_dim=4 * sizes["width"], global_attn_indexes=sizes["whole"],
            out_channels=256,
        )),
        "compressor": ConvCompressor(vision(out_channels=256, compressed_channels=[512, 1024])),
        "semantic_encoder": SemanticEncoder(semantic(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=sizes["semantic_layers"],
            num_attention_heads=sizes["semantic_heads"], position_grid=16,
        )),
        "bridge": LinearBridge(ArrCocBridgeConfig(), vision_size=1024, text_size=sizes["projected"]),
    }).eval()  # fmt: skip
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
