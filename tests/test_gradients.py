"""How the answer's loss reaches what chooses: nothing changes in what is computed, except where it is to."""

from typing import Any

import pytest
import torch
from fetching import N, context, fetcher
from helpers import CARD, PAGE, PAIRS, QUESTION, loud_model, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.modeling.allocators import soft_top_k
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.training.losses import efficiency_loss


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
