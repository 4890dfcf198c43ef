"""Grid encoder: the same numbers as the published encoder, without its memory."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from encoders import randomise, vision
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.sam.configuration_sam import SamVisionConfig
from transformers.models.sam.modeling_sam import SamVisionEncoder
from worked_cases import TOLERANCE

from arr_coc.modeling import grid_encoder
from arr_coc.modeling.configuration_arr_coc import ArrCocVisionConfig
from arr_coc.modeling.grid_encoder import SCORES_AT_ONCE, STEMS, GridEncoder, attend_in_blocks

STEM_CASES = {"patchify": (), "conv": (8, 12)}  # stem_channels down to patches of 8 px

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
def test_no_bias_of_n_by_n_is_ever_made() -> None:
    """transformers makes [heads, N, N] in each global layer: 800 MB at 1024 px."""
    config = vision(image_size=512)
    encoder, patches = randomise(GridEncoder(config)), config.num_patches
    assert patches == 4096
    with LargestTensor() as seen:
        encoder(torch.randn(1, 3, 512, 512))
    assert seen.largest == SCORES_AT_ONCE == patches**2 // 16


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
