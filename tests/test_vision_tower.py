"""From features to base and fetched tokens. For the published encoder's numbers see test_assembling.py."""

from typing import Any

import pytest
import torch
from encoders import randomise, semantic, vision
from torch import Tensor

from arr_coc.modeling.vision_tower import COMPRESSORS, SemanticEncoder

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
