"""Semantic encoder: fetched tokens see the base, the base never what was fetched; positions are read where a patch
lies."""

from typing import Any

import torch
from test_grid_encoder import randomise

from arr_coc.modeling.configuration_arr_coc import ArrCocSemanticConfig
from arr_coc.modeling.vision_tower import SemanticEncoder


def semantic(**changes: Any) -> ArrCocSemanticConfig:
    sizes = {"hidden_size": 20, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ArrCocSemanticConfig(**{**sizes, "position_grid": 4, **changes})


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
