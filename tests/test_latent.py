"""Keys and values through a latent: the option of the scorers' and the bridges' attention."""

import pytest
import torch
from helpers import tiny_model
from test_scorers import build, context
from torch import nn

from arr_coc.model_summary import generated_image
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.vision_tower import KeyValueProjection, key_value_projection


def test_without_a_latent_it_is_the_linear_layer_of_every_checkpoint() -> None:
    plain = key_value_projection(16, None)
    assert type(plain) is nn.Linear and plain.weight.shape == (32, 16)
    assert {name for name in build("realizer").state_dict() if "latent" in name or ".up." in name} == set()


def test_keys_and_values_are_made_of_the_latent_alone() -> None:
    torch.manual_seed(0)
    projection = key_value_projection(16, 3)
    assert isinstance(projection, KeyValueProjection)
    key_value = projection(torch.randn(50, 16))
    centred = key_value - key_value.mean(0)
    assert key_value.shape == (50, 32) and torch.linalg.matrix_rank(centred, atol=1e-4) <= 3


@pytest.mark.parametrize("name", ["realizer", "experts"])
def test_a_narrow_latent_has_fewer_weights_and_all_of_them_learn(name: str) -> None:
    plain, latent = build(name), build(name, latent_size=4)
    count = [sum(parameter.numel() for parameter in scorer.parameters()) for scorer in (plain, latent)]
    assert count[1] < count[0]
    scores = latent(context())
    assert scores.shape == plain(context()).shape and not torch.allclose(scores, plain(context()))
    nn.functional.binary_cross_entropy_with_logits(scores, torch.rand(scores.shape)).backward()
    assert all(p.grad is not None and p.grad.any() for n, p in latent.named_parameters() if "latent" in n or "up" in n)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["transformer"])
def test_a_bridge_with_a_latent_keeps_base_tokens_whatever_is_fetched(kind: str) -> None:
    model = tiny_model(bridge={"kind": kind, "num_layers": 1, "num_heads": 2, "latent_size": 6})
    names = [name for name, _ in model.model.bridge.named_parameters() if "latent" in name]
    assert names and model.model.bridge.layers[0].self_attn.k_proj.weight.shape == (24, 6)
    encoding = model.encode_image(generated_image(128))
    model.generate(encoding, "What is it?", max_new_tokens=1)
    answers = [model.generate(encoding, "What is it?", budget=budget, return_fetch=True) for budget in (0, 17)]
    assert answers[1].fetch.indices.shape == (1, 17)
    again = model.encode_image(generated_image(128))
    assert torch.equal(again.tokens, encoding.tokens)


def test_the_semantic_encoder_is_as_published_unless_told_otherwise() -> None:
    plain = tiny_model().model.vision_tower.semantic_encoder
    assert not [name for name in plain.state_dict() if "latent" in name]
    latent = tiny_model(semantic={"latent_size": 5}).model.vision_tower.semantic_encoder
    assert latent.layers[0].self_attn.v_proj.weight.shape == (32, 5)


@pytest.mark.parametrize("part", ["semantic_config", "bridge_config", "fetcher_config"])
def test_a_latent_without_channels_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="latent_size: expected a whole number from 1 to 16384, or None; got -1"):
        ArrCocConfig(**{part: {"latent_size": -1}})
