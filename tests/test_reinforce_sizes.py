"""Reinforcement where the allocator chooses how much it fetches: sizes of sets are drawn, and fewer tokens win."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from helpers import tiny_model
from test_reinforce import batch_of
from torch import Tensor

from arr_coc.modeling.allocators import budgets_from_mass, budgets_from_tiers
from arr_coc.training.plackett_luce import (
    draw_orders,
    draw_sizes,
    set_log_probability,
    size_log_probability,
    size_probabilities,
)
from arr_coc.training.reinforce import (
    AnsweredPrompts,
    DrawnQuestions,
    ReinforceSettings,
    RewardWeights,
    group_advantages,
    reinforcement_loss,
    reward,
)

N, SIZES = 4, torch.tensor([1, 2, 3])
PATCHES, TIERS = torch.tensor([0.3, -1.0, 0.5, 0.1]), torch.tensor([0.2, -0.4, 0.6])
"""Logits of patches and of tiers."""
ALL = [(size, members) for size in SIZES.tolist() for members in combinations(range(N), size)]
"""Every set that may be drawn."""


def survival(tiers: Tensor) -> Tensor:
    return budgets_from_tiers(tiers.softmax(-1), SIZES).survival


def log_probabilities(tiers: Tensor, patches: Tensor) -> Tensor:
    """Of every set in `ALL`."""
    found = []
    for size, members in ALL:
        others = [patch for patch in range(N) if patch not in members]
        drawn = torch.tensor([*members, *others])[: int(SIZES.max())]
        inside = set_log_probability(patches[None], drawn[None], sizes=torch.tensor([size]))[0]
        found.append(size_log_probability(survival(tiers[None]), torch.tensor([[size]]))[0, 0] + inside)
    return torch.stack(found)


def test_probabilities_of_all_sets_of_all_sizes_sum_to_one() -> None:
    probabilities = log_probabilities(TIERS, PATCHES).exp()
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-5)
    by_size = [sum(p for p, (size, _) in zip(probabilities, ALL, strict=True) if size == k) for k in (1, 2, 3)]
    torch.testing.assert_close(torch.stack(by_size), TIERS.softmax(0), atol=1e-5, rtol=1e-4)  # type: ignore[arg-type]


def test_sizes_are_as_likely_as_the_allocator_deems_them() -> None:
    merged = budgets_from_tiers(torch.tensor([[0.5, 0.2, 0.3]]), torch.tensor([2, 4, 4])).survival
    torch.testing.assert_close(size_probabilities(merged), torch.tensor([[0.0, 0.5, 0.0, 0.5]]))
    mass = torch.rand(3, 12, generator=torch.Generator().manual_seed(0))
    soft = budgets_from_mass(mass, 0.5, least=2, most=9).survival
    probabilities = size_probabilities(soft)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))
    assert bool((probabilities[:, 0] == 0).all()), "never less than the least"
    drawn = draw_sizes(soft, 20_000, generator=torch.Generator().manual_seed(0))
    shares = torch.stack([(drawn == size).float().mean(1) for size in range(1, 10)], 1)
    torch.testing.assert_close(shares, probabilities, atol=0.02, rtol=0)


def values(correct: Tensor, sizes: Tensor) -> Tensor:
    return reward(correct, fetched=sizes, budget=int(SIZES.max()), weights=RewardWeights(efficiency=1.0))


def test_the_estimated_gradient_is_that_of_all_sets_enumerated_and_favours_fewer_tokens() -> None:
    """All answers are right: only the number of tokens tells the draws apart."""
    tiers, patches = TIERS.clone().requires_grad_(), PATCHES.clone().requires_grad_()
    worth = values(torch.ones(len(ALL)), torch.tensor([size for size, _ in ALL]))
    exact = torch.autograd.grad((log_probabilities(tiers, patches).exp() * worth).sum(), (tiers, patches))
    assert exact[0][0] > 0 > exact[0][2] and bool((exact[1].abs() < 1e-5).all())
    groups, draws, generator = 20_000, 4, torch.Generator().manual_seed(0)
    copies = TIERS.expand(groups, -1).clone().requires_grad_()
    chances = survival(copies)
    sizes = draw_sizes(chances, draws, generator=generator)
    logits = PATCHES.expand(groups, draws, -1).clone().requires_grad_()
    sets = draw_orders(logits, int(SIZES.max()), generator=generator)
    log_p = size_log_probability(chances, sizes) + set_log_probability(logits, sets, sizes=sizes)
    objective = (group_advantages(values(torch.ones(groups, draws), sizes)) * log_p).sum() / draws
    gradients = torch.autograd.grad(objective, (copies, logits))
    for found, expected in zip((gradients[0], gradients[1].sum(1)), exact, strict=True):
        error = found.std(0) / groups**0.5
        assert bool(((found.mean(0) - expected).abs() < 4 * error + 1e-6).all())
    assert float(exact[0].abs().max()) > 10 * float((gradients[0].std(0) / groups**0.5).max())


# ---- the model ----------------------------------------------------------------------------------------------------


def choosing(allocator: str) -> Any:
    """A model whose allocator deems several sizes likely."""
    model = tiny_model(fetcher={"tier_choice": "classifier", "allocator": allocator, "adaptive_share": 0.12})
    with torch.no_grad():
        for weight in model.model.fetcher.budgeters.parameters():
            weight.div_(10)
    return model


def loss_of(model: Any, *, draws: int = 12, seed: int = 0, **settings: Any) -> Any:
    return reinforcement_loss(
        model,
        batch_of(model),
        ReinforceSettings(draws=draws, answering="forced", **settings),
        generator=torch.Generator().manual_seed(seed),
    )


def all_right(asked: AnsweredPrompts, drawn: Tensor, how: str) -> Tensor:
    return torch.ones(len(asked.batch["input_ids"]))


def test_with_equal_answers_the_classifier_learns_to_fetch_less(monkeypatch: pytest.MonkeyPatch) -> None:
    model = choosing("tiers")
    monkeypatch.setattr(AnsweredPrompts, "answered", all_right)
    classifier = model.model.fetcher.budgeters["tiers"].classifier
    made = loss_of(model, weights=RewardWeights(efficiency=1.0), entropy_weight=0.0)
    assert len(made.sizes.unique()) > 1 and made.correctness.eq(1).all()
    cheapest = made.sizes == made.sizes.amin(1, keepdim=True)
    assert bool((made.rewards[cheapest].min() > made.rewards[~cheapest].max()).all())
    optimizer = torch.optim.SGD(classifier.parameters(), lr=2.0)
    expected = []
    for step in range(12):
        made = loss_of(model, seed=step, weights=RewardWeights(efficiency=1.0), entropy_weight=0.0)
        expected.append(
            DrawnQuestions.of(model, batch_of(model)).fetch("realizer", "tiers").expected_tokens.mean().item()
        )
        optimizer.zero_grad()
        made.loss.backward()
        optimizer.step()
    assert expected[-1] < 0.8 * expected[0]


@pytest.mark.parametrize(("allocator", "learning"), [("tiers", "budgeters.tiers"), ("adaptive", "scorers.realizer")])
def test_the_chooser_gets_the_gradient_of_sizes(allocator: str, learning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of the reward that only sizes decide; the sets' own part is taken out."""
    model = choosing(allocator)
    monkeypatch.setattr(AnsweredPrompts, "answered", all_right)
    monkeypatch.setattr("arr_coc.training.reinforce.set_log_probability", lambda logits, *_, **__: logits[..., 0] * 0)
    made = loss_of(model, draws=32, weights=RewardWeights(efficiency=1.0), entropy_weight=0.0)
    assert len(made.sizes.unique()) > 1
    made.loss.backward()
    touched = {n for n, weight in model.named_parameters() if weight.grad is not None and bool(weight.grad.any())}
    assert touched and all(f"fetcher.{learning}." in name for name in touched)


@pytest.mark.parametrize("how", ["forced", "generate"])
def test_answers_from_sets_of_unequal_sizes_are_those_of_each_alone(how: str) -> None:
    model = tiny_model()
    batch = batch_of(model)
    drawn = draw_orders(torch.zeros(2, 3, 256), 17, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor([[17, 3, 5], [2, 3, 17]])
    asked = DrawnQuestions.of(model, batch)
    together = asked.correctness(drawn, sizes, how)
    kept: list[Tensor] = []
    hook = model.model.fetcher.register_forward_hook
    hook(lambda _m, _i, fetch: kept.extend(row.sort().values for row in fetch.indices))
    for b in range(2):
        alone = {name: batch[name][b : b + 1] for name in ("input_ids", "attention_mask", "labels", "query_mask")}
        alone |= {"image_index": torch.zeros(1, dtype=torch.long)}
        one = DrawnQuestions.of(model, {**batch, **alone})
        for g in range(3):
            kept.clear()
            found = one.correctness(drawn[b : b + 1, g : g + 1], sizes[b : b + 1, g : g + 1], how)
            assert found.item() == pytest.approx(together[b, g].item())
            assert kept[0].tolist() == sorted(drawn[b, g, : sizes[b, g]].tolist())


def test_images_of_one_prompt_must_get_equally_much() -> None:
    model = tiny_model()
    asked = DrawnQuestions.of(model, batch_of(model))
    asked = replace(asked, selected=replace(asked.selected, rows=torch.zeros(2, dtype=torch.long)))
    with pytest.raises(ValueError, match="batch: expected one image per prompt; got several, and an allocator"):
        asked.correctness(torch.zeros(2, 1, 17, dtype=torch.long), torch.tensor([[2], [3]]), "forced")
