"""Bridges: vision tokens to language-model embeddings, each token by itself."""

import pytest
import torch
from torch import nn

from arr_coc.modeling.bridging import BRIDGES
from arr_coc.modeling.configuration_arr_coc import ArrCocBridgeConfig

BRIDGE_CASES = ["linear"]


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return BRIDGES.named(kind)(ArrCocBridgeConfig(kind=kind), vision_size=8, text_size=6)


def test_every_bridge_is_tested() -> None:
    assert set(BRIDGE_CASES) == set(BRIDGES)


@pytest.mark.parametrize("kind", BRIDGE_CASES)
def test_shapes_and_gradients(kind: str) -> None:
    bridge = build(kind)
    out = bridge(torch.randn(2, 5, 8), torch.randn(2, 5, 8))
    assert out.shape == (2, 5, 6)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in bridge.parameters())


@pytest.mark.parametrize("kind", BRIDGE_CASES)
def test_base_tokens_through_the_bridge_do_not_depend_on_what_is_fetched(kind: str) -> None:
    """A bridge that mixed tokens, or normalised over them, would lift the floor when something is fetched."""
    bridge = build(kind)
    semantic, compressed = torch.randn(2, 9, 8), torch.randn(2, 9, 8)
    assert torch.equal(bridge(semantic[:, :4], compressed[:, :4]), bridge(semantic, compressed)[:, :4])


def test_linear_reads_the_semantic_state_first() -> None:
    """DeepSeek's projector is trained on [CLIP, conv] in this order; swapped, its weights read noise."""
    bridge = build("linear")
    semantic, compressed = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    weight, bias = bridge.projection.weight, bridge.projection.bias
    by_hand = semantic @ weight[:, :8].t() + compressed @ weight[:, 8:].t() + bias
    assert torch.allclose(bridge(semantic, compressed), by_hand, atol=1e-6)
