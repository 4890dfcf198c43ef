"""The fetcher: exactly K distinct patches, the right ones gathered, and an honest account of it."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from fetching import CHOOSE_COUNTS, FETCHING, SIDE, N, complete, context, everything, fetcher
from helpers import CARD, PAGE, PAIRS, QUESTION, loud_model, prompt, refuses, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.utils import logging

from arr_coc.model_summary import generated_image
from arr_coc.modeling.allocators import ALLOCATORS, soft_top_k
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.scorers import SCORERS, FetchContext, Scorer
from arr_coc.training.losses import efficiency_loss

EXACT = [name for name in sorted(ALLOCATORS) if name not in CHOOSE_COUNTS]
"""Allocators that fetch exactly the budget; the others are in test_allocators.py."""


@pytest.mark.parametrize("allocator", EXACT)
@pytest.mark.parametrize("strategy", FETCHING)
@torch.no_grad()
def test_what_is_said_is_what_was_done(strategy: str, allocator: str) -> None:
    done = everything()(complete(context()), 9, choices=FetchChoices(strategy=strategy, allocator=allocator))
    assert (done.budget, done.strategy, done.allocator) == (9, strategy, allocator)
    assert done.indices.shape == (2, 9) and (done.indices.diff(dim=1) > 0).all()
    assert torch.equal(done.positions[..., 0] * SIDE + done.positions[..., 1], done.indices)
    assert ((done.positions >= 0) & (done.positions < SIDE)).all()
    assert done.relevance.shape == done.scores.shape == (2, N)
    assert ((done.relevance >= 0) & (done.relevance <= 1)).all()
    assert not done.is_padding.any()


@settings(deadline=None, max_examples=40)
@given(
    data=st.data(),
    strategy=st.sampled_from([name for name in FETCHING if not SCORERS[name].reads_text]),
    allocator=st.sampled_from(EXACT),
    with_taken=st.booleans(),
)
@torch.no_grad()
def test_the_budget_is_exact_if_padded(data: st.DataObject, strategy: str, allocator: str, with_taken: bool) -> None:
    """Padding only when too few other patches are left, and then marked; what is a base token already, never."""
    given = complete(context())
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    mask = torch.rand(2, N) < data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    taken = torch.stack([torch.randperm(N)[:16].sort().values for _ in range(2)]) if with_taken else None
    budget = data.draw(st.integers(0, N - 16 if with_taken else N))
    given = replace(given, patch_mask=mask)
    done = everything()(given, budget, taken=taken, choices=FetchChoices(strategy=strategy, allocator=allocator))
    for row in range(2):
        chosen, blocked = done.indices[row].tolist(), set() if taken is None else set(taken[row].tolist())
        assert len(chosen) == budget == len(set(chosen)) and chosen == sorted(chosen)
        assert not blocked & set(chosen)
        real = sum(bool(mask[row, i]) for i in range(N) if i not in blocked)
        assert done.is_padding[row].tolist() == [not mask[row, i] for i in chosen]
        assert int(done.is_padding[row].sum()) == max(0, budget - real)


def test_what_cannot_be_fetched_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=f"^budget: expected at most {N} patches.*; got {N + 1}$"):
        fetcher()(context(), N + 1, choices=FetchChoices(strategy="saliency"))
    taken = torch.arange(4).repeat(2, 1)
    with pytest.raises(ValueError, match=f"^budget: expected at most {N - 4} patches.*; got {N - 3}$"):
        fetcher()(context(), N - 3, taken=taken, choices=FetchChoices(strategy="saliency"))
    # It filled them with the first K patches of the top rows, and called the result base only.
    refuses("none", fetcher(), context(), 3, choices=FetchChoices(strategy="none"))
    assert fetcher()(context(), 0, choices=FetchChoices(strategy="none")).indices.shape == (2, 0)
    # Of scorers with weights only those that the checkpoint holds.
    held = sorted(name for name, kind in SCORERS.items() if not kind.trained or name in ("realizer", "clip_query"))
    known = re.escape(f"{', '.join(held)} (held here)")
    with pytest.raises(ValueError, match=f"^strategy: expected one of {known}; got 'telepathy'$"):
        fetcher()(context(), 3, choices=FetchChoices(strategy="telepathy"))
    known = "adaptive, foveated, knapsack, quadtree, tiers, topk, window"
    choices = FetchChoices(allocator="greedy")
    refuses(f"^allocator: expected one of {known}; got 'greedy'$", fetcher(), context(), 3, choices=choices)
    # An untrained realizer, made on demand, would answer with noise and nobody would know.
    only = fetcher(scorers=["clip_query"], strategy="clip_query")
    choices = FetchChoices(strategy="realizer")
    refuses(r"one of attention, clip_query, .* \(held here\); got 'realizer'$", only, context(), 3, choices=choices)
    assert not [n for n, _ in only.named_parameters() if "realizer" in n]
    # It was counted as a grid of 7 patches: "budget: expected at most 7 patches".
    with pytest.raises(ValueError, match=rf"relevance.*{N}.*7|boxes.*{N}.*7"):
        fetcher()(replace(context(), relevance=torch.rand(2, 7)), 9, choices=FetchChoices(strategy="oracle"))


@torch.no_grad()
def test_relevance_of_fixed_scores_is_scaled_per_item() -> None:
    """Scaled over the batch, a faint page beside a bold one had no relevance anywhere."""
    faint = context()
    faint.textures[0] *= 1e-3
    done = fetcher()(faint, 5, choices=FetchChoices(strategy="saliency"))
    assert done.relevance.amin(1).tolist() == [0, 0] and done.relevance.amax(1).tolist() == pytest.approx([1, 1])


# ---- What stands in for a part that fails, and that the result says so
DRAWN, ASKED = generated_image(128), "What is the total?"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A registered strategy that scores every patch with the value put into it."""

    class Failing(Scorer):
        value = 0.0

        def forward(self, context: FetchContext) -> Tensor:
            return torch.full(context.patch_mask.shape, self.value)

    monkeypatch.setitem(SCORERS, "failing", Failing)
    return Failing


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    logger = type(logging.get_logger("arr_coc"))
    monkeypatch.setattr(logger, "warning_once", lambda self, message, *args: said.append(message), raising=False)
    return said


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("tiles", ["never", "all"])
def test_saliency_replaces_a_flat_map(model: Any, failing: Any, warnings: list[str], value: float, tiles: str) -> None:
    failing.value = value
    image = DRAWN.resize((400, 400)) if tiles == "all" else DRAWN
    answer = model.generate(image, ASKED, strategy="failing", return_fetch=True, tiles=tiles, max_new_tokens=1)
    salient = model.generate(image, ASKED, strategy="saliency", return_fetch=True, tiles=tiles, max_new_tokens=1)
    assert answer.fetch.fallbacks == {"scorer": 1, "bridge": 0} and salient.fetch.fallbacks["scorer"] == 0
    assert torch.equal(answer.fetch.indices, salient.fetch.indices)
    assert torch.equal(answer.fetch.relevance, salient.fetch.relevance)
    assert warnings and "Failing: NaN or a flat map" in warnings[0]


def test_training_is_not_spared_a_scorer_that_fails(model: Any, failing: Any) -> None:
    failing.value = float("nan")
    model.train()
    try:
        answer = model.generate(DRAWN, ASKED, strategy="failing", return_fetch=True, max_new_tokens=1)
    finally:
        model.eval()
    assert answer.fetch.fallbacks["scorer"] == 0 and answer.fetch.scores.isnan().all()


@pytest.mark.parametrize("kind", ["quality", "transformer"])
@pytest.mark.parametrize("value", [float("nan"), 1e9])
def test_the_projection_stands_in_for_an_adapter_that_fails(kind: str, value: float, warnings: list[str]) -> None:
    model = tiny_model(bridge={"kind": kind})
    with torch.no_grad():
        model.model.bridge.adapter.correction.bias.fill_(value)
        model.model.bridge.adapter.correction.bias[::2] = 0.0
    answer = model.generate(DRAWN, ASKED, return_fetch=True)
    plain = model.generate(DRAWN, ASKED, return_fetch=True, bypass=True)
    assert answer.fetch.fallbacks == {"scorer": 0, "bridge": 1} and plain.fetch.fallbacks["bridge"] == 0
    assert (answer.text, answer.probability) == (plain.text, plain.probability)
    assert any(said.startswith("bridge: ") for said in warnings)


# ---- How the answer's loss reaches what chooses: nothing changes in what is computed, except where it is to
def answer_batch(model: Any, *pairs: Any, **kwargs: Any) -> dict[str, Any]:
    """Inputs whose last four tokens are to be predicted."""
    inputs = dict(prompt(model, *(pairs or ((PAGE, QUESTION), (CARD, "What is that?"))), **kwargs))
    inputs["labels"] = torch.full_like(inputs["input_ids"], -100)
    inputs["labels"][:, -4:] = inputs["input_ids"][:, -4:]
    return inputs


def reached(model: Any, part: str = "fetcher.scorers.realizer.") -> bool:
    """Whether any weight of the part has a gradient."""
    named = [(n, p) for n, p in model.named_parameters() if f".{part}" in n]
    assert named, part
    return any(p.grad is not None and bool(p.grad.any()) for _, p in named)


# ---- soft top-k
@settings(deadline=None, max_examples=60)
@given(data=st.data(), temperature=st.sampled_from([0.01, 0.3, 1.0, 10.0]))
def test_the_weights_sum_to_k_and_follow_the_scores(data: st.DataObject, temperature: float) -> None:
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    scores = 3 * torch.randn(2, 40)
    scores[torch.rand(2, 40) < 0.3] = float("-inf")
    count = data.draw(st.integers(1, 15))
    weights = soft_top_k(scores, count, temperature=temperature)
    assert ((weights >= 0) & (weights <= 1)).all() and not weights[scores.isinf()].any()
    assert weights.sum(1).tolist() == pytest.approx([count, count], abs=1e-3)
    order = scores.sort(dim=1).indices
    assert (weights.gather(1, order).diff() >= 0).all()


def test_the_gradient_of_the_weights_is_that_of_tau_too() -> None:
    """Without tau's part, raising every score alike would have seemed to raise every weight."""
    scores = torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: soft_top_k(s, 4, temperature=0.7), (scores,), eps=1e-5, atol=1e-4)
    weights = soft_top_k(scores, 4, temperature=0.7)
    (gradient,) = torch.autograd.grad(weights[0, 3], scores)
    assert gradient[0, 3] > 0 and (gradient[0, [0, 1, 2, 4, 5]] < 0).all() and not gradient[1].any()
    assert gradient[0].sum().abs() < 1e-8


@pytest.mark.parametrize("budget", [3, 12])
def test_soft_weights_are_shared_by_the_patches_that_may_be_fetched_alone(budget: int) -> None:
    """Padding and base tokens took their part of K, so that the fetched patches' weights summed to less."""
    module = fetcher(scorers=["clip_query"], strategy="clip_query", gradient="soft").train()
    page, taken = context(), torch.arange(4).repeat(2, 1)
    page.patch_mask[:, 12:] = False  # 12 patches of image, 4 of them base tokens
    weights = module(page, budget, taken=taken).weights
    page.features.flatten(2)[..., torch.arange(N) >= 12] *= -5.0
    page.features.flatten(2)[..., :4] *= -5.0
    assert torch.equal(weights, module(page, budget, taken=taken).weights)
    assert budget < 8 or torch.equal(weights[:, :8], torch.ones(2, 8)) and not weights[:, 8:].any()


# ---- the answer's loss and the scorer
@pytest.mark.parametrize(("gradient", "learns"), [("none", False), ("straight_through", True), ("soft", True)])
def test_the_answer_reaches_the_scorer_in_training_only(gradient: str, learns: bool) -> None:
    model = loud_model(fetcher={"gradient": gradient})
    for training in (False, True):
        model.train(training).zero_grad()
        output = model(**answer_batch(model))
        output.loss.backward()
        assert reached(model) is (learns and training)
        assert (output.fetch.weights is not None) is (learns and training)


def test_straight_through_changes_no_bit_and_soft_only_in_training() -> None:
    outputs = {}
    for gradient in ("none", "straight_through", "soft"):
        model = loud_model(fetcher={"gradient": gradient})
        batch = answer_batch(model)
        outputs[gradient] = [model.train(training)(**batch) for training in (True, False)]
    expected = outputs["none"][0]
    for gradient, (trained, evaluated) in outputs.items():
        assert torch.equal(evaluated.logits, expected.logits)
        assert torch.equal(trained.fetch.indices, expected.fetch.indices)
        base = trained.image_tokens.shape[1] - trained.fetch.budget
        assert torch.equal(trained.image_tokens[:, :base], expected.image_tokens[:, :base]), "base tokens"
        assert torch.equal(trained.logits, expected.logits) is (gradient != "soft")


# ---- the answer's loss and learned budgets
@pytest.mark.parametrize("allocator", ["tiers", "adaptive"])
def test_efficiency_pushes_the_expected_tokens_down(allocator: str) -> None:
    module, given = fetcher(tier_choice="classifier").train(), context()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def expected() -> torch.Tensor:
        return module(given, N, choices=FetchChoices(allocator=allocator)).expected_tokens

    before = expected()
    efficiency_loss(before, 1.0).backward()
    optimizer.step()
    assert expected().mean() < before.mean()


@pytest.mark.parametrize("gradient", ["none", "straight_through", "soft"])
@pytest.mark.parametrize("allocator", ["tiers", "adaptive"])
def test_the_answers_loss_trains_what_chooses_the_budget(allocator: str, gradient: str) -> None:
    model = loud_model(fetcher={"tier_choice": "classifier", "gradient": gradient, "scorers": ["realizer"]}).train()
    output = model(**answer_batch(model, *PAIRS[:2], budget="auto"), choices={"allocator": allocator})
    output.loss.backward()
    chooser = "fetcher.budgeters.tiers." if allocator == "tiers" else "fetcher.scorers.realizer."
    assert reached(model, chooser) is (gradient != "none")
    if gradient == "none":
        assert output.fetch.counts.equal(output.fetch.wanted)
    else:
        assert output.fetch.counts.tolist() == [25, 25]
    assert output.fetch.expected_tokens.requires_grad, "the efficiency loss learns in any case"
