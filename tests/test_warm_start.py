"""A widened grid encoder computes what the narrower one did, with copies that do not learn the same."""

import pytest
import torch

from arr_coc.modeling.configuration_arr_coc import ArrCocVisionConfig
from arr_coc.modeling.grid_encoder import GridEncoder
from arr_coc.training.warm_start import widened, wider

NARROW = {
    "hidden_size": 32, "mlp_dim": 48, "num_attention_heads": 2, "num_hidden_layers": 2, "global_attn_indexes": [1],
    "image_size": 64, "patch_size": 8, "window_size": 4, "stem": "conv", "stem_channels": [8, 16], "out_channels": 24,
}  # fmt: skip


def encoder(**settings: object) -> tuple[ArrCocVisionConfig, GridEncoder]:
    config = ArrCocVisionConfig(**{**NARROW, **settings})
    torch.manual_seed(0)
    made = GridEncoder(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return config, made


def grown(**settings: object) -> tuple[GridEncoder, GridEncoder]:
    before, small = encoder()
    after, large = encoder(**settings)
    assert wider(before, after)
    generator = torch.Generator().manual_seed(1)
    large.load_state_dict(widened(small.state_dict(), before, after, large.state_dict(), generator))
    return small, large


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden_size": 64, "mlp_dim": 96, "stem_channels": [16, 32]},
        {"hidden_size": 96, "num_attention_heads": 6},
        {"hidden_size": 128, "num_attention_heads": 4},
        {"mlp_dim": 144},
        {"stem_channels": [24, 16]},
    ],
)
def test_a_wider_encoder_computes_the_same(settings: dict[str, object]) -> None:
    small, large = grown(**settings)
    pixels = torch.randn(2, 3, 64, 64)
    expected = small(pixels)
    assert torch.allclose(large(pixels), expected, atol=1e-4 * float(expected.detach().abs().max()))
    assert sum(p.numel() for p in large.parameters()) > sum(p.numel() for p in small.parameters())


def test_copies_do_not_learn_the_same() -> None:
    _, large = grown(hidden_size=64, mlp_dim=96)
    large(torch.randn(2, 3, 64, 64)).square().sum().backward()
    gradient = large.layers[0].mlp.lin1.weight.grad
    assert gradient is not None
    first, second = gradient.chunk(2)
    assert not torch.allclose(first, second, rtol=0.05)


@pytest.mark.parametrize("settings", [{"hidden_size": 48}, {"hidden_size": 64, "mlp_dim": 24}])
def test_what_is_no_multiple_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"width: expected a multiple of \d+; got \d+"):
        grown(**settings)
