"""Balancing: shares that sum to one, from the question and from what the maps look like."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_scorers import SIDE, C, D, config, context

from arr_coc.families.map_scorers import ContextNetwork, TensionBalancer, shares, statistics
from arr_coc.modeling.allocators import TierClassifier
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig

N = SIDE * SIDE
WAYS = [
    {"balancer_aggregation": aggregation, "balancer_weights": weights}
    for aggregation in ("statistics", "learned")
    for weights in ("sigmoid", "softmax")
]


def maps(batch: int = 3) -> torch.Tensor:
    return torch.rand(batch, 3, N, generator=torch.Generator().manual_seed(5))


def balancer(**changes: str) -> TensionBalancer:
    torch.manual_seed(0)
    return TensionBalancer(config(**changes), maps=3, text_size=D)


@pytest.mark.parametrize("kind", ["sigmoid", "softmax"])
def test_shares_sum_to_one_in_each_item_however_extreme(kind: str) -> None:
    """After a sigmoid the sketch took a softmax: shares of 0 and 1 became 0.27 and 0.73 (DESIGN 5)."""
    logits = torch.tensor([[0.0, 0.0, 0.0], [9.0, -9.0, -9.0], [-200.0, -200.0, -200.0]])
    weights = shares(logits, kind)
    assert weights.isfinite().all() and (weights >= 0).all()
    assert weights[:2].sum(1).tolist() == pytest.approx([1, 1]) and weights[0].tolist() == pytest.approx([1 / 3] * 3)
    assert weights[1, 0] > 0.99
    assert torch.equal(weights[1:2], shares(logits[1:2], kind)), "no item changes another's"


def test_statistics_are_those_of_the_real_patches() -> None:
    values, mask = maps(), context().patch_mask
    known = statistics(values, mask).view(3, 3, 3).numpy()  # item, statistic, map
    for item, number in np.ndindex(3, 3):
        own = values[item, number][mask[item]].double().numpy()
        expected = [own.mean(), own.max(), np.sqrt(own.var() + 1e-6)]
        assert known[item, :, number] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("ways", WAYS)
def test_a_balancer_weighs_by_question_and_maps(ways: dict[str, str]) -> None:
    model, whole, values = balancer(**ways), context(), maps()
    weights = model(values, whole)
    assert weights.shape == (3, 3) and weights.dtype == torch.float32
    assert weights.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert not torch.allclose(weights, model(values.flip(1), whole), atol=1e-5)
    assert not torch.allclose(weights, model(values, replace(whole, query=whole.query.flip(0))), atol=1e-5)
    weights[:, 0].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("ways", WAYS)
@torch.no_grad()
def test_padding_and_neighbours_change_no_share(ways: dict[str, str]) -> None:
    model, whole, values = balancer(**ways), context(), maps()
    weights = model(values, whole)
    loud = torch.where(whole.patch_mask[:, None], values, 50.0)
    assert torch.allclose(weights, model(loud, whole), atol=1e-6)
    for item in range(3):
        alone = replace(whole, **{n: t[item : item + 1] for n, t in vars(whole).items() if isinstance(t, torch.Tensor)})
        assert torch.allclose(weights[item], model(values[item : item + 1], alone)[0], atol=1e-6)


@pytest.mark.parametrize("aggregation", ["statistics", "learned"])
def test_at_published_sizes_it_has_about_200_thousand_weights(aggregation: str) -> None:
    model = TensionBalancer(ArrCocFetcherConfig(balancer_aggregation=aggregation), maps=3, text_size=1024)
    assert 180_000 < sum(parameter.numel() for parameter in model.parameters()) < 220_000


def test_the_context_network_reads_gestalt_and_question() -> None:
    torch.manual_seed(0)
    network, whole = ContextNetwork(16, 3, feature_size=C, text_size=D), context()
    logits = network(whole)
    assert logits.shape == (3, 3) and logits.dtype == torch.float32
    for changed in (replace(whole, features=whole.features.flip(0)), replace(whole, query=whole.query.flip(0))):
        assert not torch.allclose(logits, network(changed), atol=1e-5)


def test_the_tier_classifier_is_one_and_its_weights_have_the_names_of_old_checkpoints() -> None:
    names = {name.split(".")[0] for name, _ in TierClassifier(config(), feature_size=C, text_size=D).named_parameters()}
    assert names == {"text_norm", "text_projection", "gestalt_norm", "gestalt_projection", "hidden", "head"}


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("balancer_weights", "relu", "balancer_weights: expected one of sigmoid, softmax; got 'relu'"),
        ("balancer_aggregation", "sum", "balancer_aggregation: expected one of statistics, learned; got 'sum'"),
        ("balancer_size", 0, "balancer_size: expected a whole number from 1 to 16384; got 0"),
        ("sjv_weights", [1, 0], r"sjv_weights: expected 3 numbers from 0 to 1000000, one above 0; got \[1, 0\]"),
        ("textures", "all", "textures: expected one of light, basic, full, or None; got 'all'"),
        ("attention_layers", [0.5, 0.5], r"attention_layers: expected two increasing numbers from 0 to 1; got"),
        ("latent_size", 0, "latent_size: expected a whole number from 1 to 16384, or None; got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArrCocFetcherConfig(**{setting: value})
