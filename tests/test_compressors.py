"""Compressors: a sixteenth of the patches stays, each image by itself, and every weight learns."""

from typing import Any

import pytest
import torch
from test_grid_encoder import randomise, vision
from torch import Tensor

from arr_coc.modeling.vision_tower import COMPRESSORS, ConvCompressor

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
    module = randomise(COMPRESSORS["mask"](vision(compressor="mask")))
    features = torch.randn(1, 12, 8, 8)
    base = module(features, torch.ones(1, 64, dtype=torch.bool))
    patches = features.flatten(2)[0].t()[base.indices[0]]
    gate = module.score(module.layer_norm(patches)).sigmoid()
    assert torch.allclose(patches @ module.warm_start().t() * gate, base.tokens[0], atol=1e-4)
