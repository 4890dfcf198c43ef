"""Grid encoder: the same numbers as the published encoder, without its memory."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.sam.configuration_sam import SamVisionConfig
from transformers.models.sam.modeling_sam import SamVisionEncoder
from worked_cases import TOLERANCE

from arr_coc.modeling import grid_encoder
from arr_coc.modeling.configuration_arr_coc import ArrCocSemanticConfig, ArrCocVisionConfig
from arr_coc.modeling.grid_encoder import GridEncoder, attend_in_blocks
from arr_coc.modeling.vision_tower import COMPRESSORS, SemanticEncoder


def vision(**changes: Any) -> ArrCocVisionConfig:
    sizes: dict[str, Any] = (
        {"image_size": 128, "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
        | {"mlp_dim": 48, "window_size": 7, "global_attn_indexes": [1], "out_channels": 12}
        | {"compressed_channels": [16, 20]}
    )
    return ArrCocVisionConfig(**{**sizes, **changes})


def randomise(module: nn.Module, std: float = 0.3) -> nn.Module:
    """Random, nowhere zero: zero relative positions or biases would agree with anything."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * std
    return module.eval()


def semantic(**changes: Any) -> ArrCocSemanticConfig:
    sizes = {"hidden_size": 20, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ArrCocSemanticConfig(**{**sizes, "position_grid": 4, **changes})


SHIFTED = {"window_size": 8, "global_attn_indexes": [2], "shifted_windows": True}


def sam(config: ArrCocVisionConfig, image_size: int) -> SamVisionEncoder:
    """transformers' encoder of the same sizes for images of `image_size`."""
    names = "hidden_size num_hidden_layers num_attention_heads patch_size window_size mlp_dim layer_norm_eps".split()
    sizes: dict[str, Any] = {name: getattr(config, name) for name in names}
    sizes |= {"global_attn_indexes": list(config.global_attn_indexes), "output_channels": config.out_channels}
    return SamVisionEncoder(SamVisionConfig(**sizes, image_size=image_size, attn_implementation="eager")).eval()


# 16 patches a side: windows of 7 need padding, windows of 8 none, windows of 20 are larger than the grid
@pytest.mark.parametrize("window", [7, 8, 20])
@torch.no_grad()
def test_the_grid_encoder_gives_sams_numbers(window: int) -> None:
    config = vision(window_size=window)
    ours, theirs = randomise(GridEncoder(config)), sam(config, 128)
    theirs.load_state_dict(ours.state_dict())
    pixels = torch.randn(2, 3, 128, 128)
    assert (ours(pixels) - theirs(pixels).last_hidden_state).abs().max() < TOLERANCE


def attention_inputs(heads: int, side: int, width: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key, value, rows and columns of that many heads, with a gradient."""
    generator = torch.Generator().manual_seed(0)
    widths = [width] * 3 + [side] * 2
    inputs = [torch.randn(heads, side * side, of, generator=generator) / of**0.25 for of in widths]
    return [tensor.to(dtype).requires_grad_() for tensor in inputs]


def straightforward(query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The formula, in float64: one bias of [S*S, S*S] for each head."""
    query, key, value, rows, columns = (x.double() for x in (query, key, value, rows, columns))
    bias = (rows[..., :, None] + columns[..., None, :]).flatten(-2)
    return (query @ key.transpose(-1, -2) + bias).softmax(-1) @ value


# All at once; several heads at a time, the last time fewer; blocks of queries, the last one shorter, as 7 and 75 do not
# divide 81. In bfloat16 a score of up to 8 is rounded to 1/64.
@pytest.mark.parametrize("at_once", [2**20, 2 * 81**2, 7 * 81 + 1, 75 * 81, 1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.04)])
@pytest.mark.parametrize("recompute", [False, True])
def test_attention_in_blocks_is_the_straightforward_formula(
    at_once: int, dtype: torch.dtype, tolerance: float, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid_encoder, "SCORES_AT_ONCE", at_once)
    inputs = attention_inputs(5, 9, 16, dtype)
    out = attend_in_blocks(*inputs, recompute=recompute)
    expected = straightforward(*inputs)
    assert out.dtype == dtype and (out - expected).abs().max() < tolerance * expected.abs().max()

    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((out * weights).sum(), inputs)
    for ours, exact in zip(gradients, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
        assert (ours - exact).abs().max() < tolerance * exact.abs().max()


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
@pytest.mark.parametrize("sizes", [{"window_size": 5}, SHIFTED])
def test_blocks_are_as_the_fused_kernel(precision: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """16 patches a side: windows of 5 need padding. The fused kernel runs on other devices and in compiled graphs."""
    config = vision(**sizes)
    encoder = randomise(GridEncoder(config), 0.1)
    pixels = torch.rand(2, 3, config.image_size, config.image_size)
    if precision == "bfloat16":
        encoder, pixels = encoder.bfloat16(), pixels.bfloat16()
    features, gradients = {}, {}
    for way in ("sdpa", "eager", "fused"):
        config._attn_implementation = "eager" if way == "eager" else "sdpa"
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda fused=way == "fused": fused)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            features[way] = encoder(pixels)
        encoder.zero_grad()
        (features[way].float() * torch.linspace(-1, 1, 16)).sum().backward()
        gradients[way] = torch.cat([parameter.grad.flatten() for parameter in encoder.parameters()]).float()
    assert not torch.equal(features["fused"], features["sdpa"]), "the other path ran"
    assert torch.equal(features["eager"], features["sdpa"]) and torch.equal(gradients["eager"], gradients["sdpa"])
    tolerance = 2e-5 if precision == "float32" else 0.05
    for of in (features, gradients):
        assert (of["sdpa"] - of["fused"]).norm() < tolerance * of["fused"].norm()


def kept_for_backward(encoder: nn.Module, pixels: Tensor) -> int:
    """Elements of all tensors that a forward pass saves for the backward pass."""
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        encoder(pixels)
    return sum(sizes)


def test_a_training_step_keeps_no_scores() -> None:
    """Only "eager" does: [N, N] for each head of a global layer, which at 1024 px in float32 would be 800 MB."""
    config = vision(image_size=256, num_hidden_layers=1, global_attn_indexes=[0])
    encoder, pixels = randomise(GridEncoder(config)), torch.rand(1, 3, 256, 256)
    scores = config.num_attention_heads * config.num_patches**2
    assert kept_for_backward(encoder, pixels) < scores
    config._attn_implementation = "eager"
    assert kept_for_backward(encoder, pixels) > scores


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
