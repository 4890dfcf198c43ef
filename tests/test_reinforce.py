"""Reinforcement: exact probabilities of what is drawn, an unbiased gradient, what it trains; as a phase too."""

from copy import deepcopy
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import noise, refuses, tiny_checkpoint, tiny_model
from torch import Tensor
from trainers import PAGES, killed_at, launched, loaded, same, trainer_of, weights_of

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.adapters import part_of_parameter
from arr_coc.data.collator import QuestionCollator
from arr_coc.data.records import Record
from arr_coc.training.phases import AllocatorPhase
from arr_coc.training.reinforce import (
    DrawnQuestions,
    ReinforceSettings,
    draw_log_probability,
    draw_orders,
    group_advantages,
    one_draw,
    reinforcement_loss,
)

N, K = 5, 2


def logits_of(scale: float = 1.0, count: int = N) -> Tensor:
    return scale * torch.randn(count, generator=torch.Generator().manual_seed(3))


def step_by_step(logits: Tensor, order: tuple[int, ...]) -> Tensor:
    """Log-probability of a sequence, one softmax per draw, in float64."""
    left, total = list(range(len(logits))), torch.zeros((), dtype=torch.float64)
    for patch in order:
        total = total + logits.double()[left].log_softmax(0)[left.index(patch)]
        left.remove(patch)
    return total


# ---- drawing
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0, 60.0])
@pytest.mark.parametrize(("count", "drawn"), [(5, 2), (6, 4), (4, 4), (7, 1)])
def test_probabilities_are_those_of_drawing_one_by_one(scale: float, count: int, drawn: int) -> None:
    logits = logits_of(scale, count)
    orders = torch.tensor(list(permutations(range(count), drawn)))
    expected = torch.stack([step_by_step(logits, tuple(order)) for order in orders.tolist()])
    found = draw_log_probability(logits.expand(len(orders), -1), orders)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-6)


def test_what_only_fills_up_counts_as_certain_and_has_a_gradient() -> None:
    logits, mask = logits_of().requires_grad_(), torch.tensor([True, False, True, False, False])
    order = draw_orders(logits, 4, mask=mask, generator=torch.Generator().manual_seed(0))
    expected = logits.detach()[[0, 2]].log_softmax(0)[[0, 2].index(int(order[0]))]
    found = draw_log_probability(logits, order, mask)
    torch.testing.assert_close(found.detach(), expected)
    (gradient,) = torch.autograd.grad(found, logits)
    assert not gradient[[1, 3, 4]].any() and gradient[0].item() == pytest.approx(-gradient[2].item()) != 0


@pytest.mark.parametrize("count", [0, N + 1])
def test_more_patches_than_there_are_cannot_be_drawn(count: int) -> None:
    refuses(f"expected 1 to {N} patches; got {count}", draw_orders, logits_of(), count, generator=torch.Generator())
    refuses("at least 2", ReinforceSettings, draws=1)


# ---- the estimator
def exact_gradient(logits: Tensor, rewards: dict[tuple[int, ...], float]) -> Tensor:
    """Of the expected reward, every sequence enumerated."""
    logits = logits.double().requires_grad_()
    orders = permutations(range(N), K)
    expected = torch.stack([step_by_step(logits, o).exp() * rewards[tuple(sorted(o))] for o in orders]).sum()
    return torch.autograd.grad(expected, logits)[0]


def estimates(groups: int = 20_000, draws: int = 3) -> tuple[Tensor, Tensor]:
    """The policy gradient's estimates [groups, N], and the exact gradient."""
    logits = logits_of()
    values = {members: float(index) for index, members in enumerate(combinations(range(N), K))}
    orders = draw_orders(logits.expand(groups, draws, -1), K, generator=torch.Generator().manual_seed(1))
    members = orders.sort(-1).values
    rewards = torch.zeros(groups, draws)
    for chosen, value in values.items():
        rewards[(members == torch.tensor(chosen)).all(-1)] = value
    copies = logits.expand(groups, draws, -1).clone().requires_grad_()
    objective = (group_advantages(rewards) * draw_log_probability(copies, orders)).sum()
    (gradient,) = torch.autograd.grad(objective, copies)
    return gradient.mean(1), exact_gradient(logits, values)


def test_the_estimator_is_unbiased() -> None:
    gradient, exact = estimates()
    error = gradient.std(0) / len(gradient) ** 0.5
    assert float(exact.abs().max()) > 20 * float(error.max()), "the test can tell a wrong gradient from noise"
    assert bool(((gradient.mean(0) - exact).abs() < 4 * error).all())


# ---- the driver ---------------------------------------------------------------------------------------------------
QUESTIONS = ("What is the total?", "the date")


def batch_of(model: Any, *, left: bool = False, answers: tuple[str, str] = ("12.50", "New York")) -> dict[str, Tensor]:
    """Two questions about one image, with their answers as labels, padded on either side."""
    image = noise(128, 128, 1)
    records = [Record(image, text, (answer,)) for text, answer in zip(QUESTIONS, answers, strict=True)]
    batch = QuestionCollator(model.processor, model.config)(records)
    if not left:
        pads = (batch["attention_mask"] == 0).sum(1).tolist()
        for name in ("input_ids", "attention_mask", "labels", "query_mask"):
            batch[name] = torch.stack([row.roll(-pad) for row, pad in zip(batch[name], pads, strict=True)])
    return batch


def test_only_scorers_get_a_gradient_and_images_are_read_once() -> None:
    model = tiny_model()
    calls = []
    encoder = model.model.vision_tower.grid_encoder
    encoder.register_forward_pre_hook(lambda *_: calls.append(1))
    settings = ReinforceSettings(draws=3)
    before = deepcopy(model.model.fetcher.scorer("realizer"))
    made = reinforcement_loss(
        model, batch_of(model), settings, generator=torch.Generator().manual_seed(0), reference=before
    )
    assert len(calls) == 1
    assert made.sets.shape == (2, 3, 17) and made.correctness.shape == (2, 3)
    made.loss.backward()
    touched = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert touched and all(name.startswith("model.fetcher.scorers.realizer.") for name in touched)
    assert made.divergence == 0  # nothing was learnt yet


@pytest.mark.parametrize("left", [True, False])
def test_rewards_are_those_of_answers_from_the_drawn_patches(left: bool) -> None:
    model = tiny_model()
    batch = batch_of(model, left=left)
    encoding = model.model.encode_image(batch["pixel_values"], batch["patch_mask"])
    settings, longest = ReinforceSettings(draws=2), int((batch["labels"] != -100).sum(1).max())
    probe = reinforcement_loss(model, batch, settings, generator=torch.Generator().manual_seed(0), encoding=encoding)
    said = []
    for g in range(2):
        boxes = [
            [((i % 16) * 8, (i // 16) * 8, (i % 16) * 8 + 8, (i // 16) * 8 + 8) for i in row]
            for row in probe.sets[:, g].tolist()
        ]
        seen = model.encode_image(pixel_values=batch["pixel_values"], patch_mask=batch["patch_mask"])
        seen.source_sizes = [(128, 128)]
        twice, choices = seen.select(torch.zeros(2, dtype=torch.long)), {"strategy": "oracle", "allocator": "topk"}
        said.append(model.generate(twice, list(QUESTIONS), boxes=boxes, max_new_tokens=longest, **choices))
    assert said[0] != said[1], "the test can tell one set from another"
    labelled = batch_of(model, left=left, answers=(said[0][0], said[0][1]))
    made = reinforcement_loss(model, labelled, settings, generator=torch.Generator().manual_seed(0), encoding=encoding)
    assert made.sets.equal(probe.sets)
    right, others = made.correctness.unbind(1)
    assert bool((right > 0.5).all()) and bool((others <= right).all()) and bool((others < right).any())


def test_a_scorer_without_weights_is_refused() -> None:
    model = tiny_model()
    model.config.fetcher_config.strategy = "saliency"
    with pytest.raises(ValueError, match="expected a scorer with weights"):
        reinforcement_loss(model, batch_of(model), ReinforceSettings(), generator=torch.Generator())


def test_questions_in_a_batch_are_answered_as_alone() -> None:
    model = tiny_model()
    batch = batch_of(model)
    drawn = draw_orders(torch.zeros(2, 3, 256), 17, generator=torch.Generator().manual_seed(0))
    together = DrawnQuestions(model, batch).correctness(drawn)
    kept: list[Tensor] = []
    hook = model.model.fetcher.register_forward_hook
    hook(lambda _m, _i, fetch: kept.extend(row.sort().values for row in fetch.indices))
    for b in range(2):
        alone = {name: batch[name][b : b + 1] for name in ("input_ids", "attention_mask", "labels", "query_mask")}
        one = DrawnQuestions(model, {**batch, **alone, "image_index": torch.zeros(1, dtype=torch.long)})
        for g in range(3):
            kept.clear()
            assert one.correctness(drawn[b : b + 1, g : g + 1]).item() == pytest.approx(together[b, g].item())
            assert kept[0].tolist() == sorted(drawn[b, g].tolist())


def test_entropy_and_divergence_leave_padding_out() -> None:
    logits, mask = torch.tensor([[1.0, 2.0, 9.0]], requires_grad=True), torch.tensor([[True, True, False]])
    other = torch.tensor([[0.5, -1.0, 3.0]])
    kept, before = (torch.distributions.Categorical(logits=each[:, :2]) for each in (logits, other))
    draw = one_draw(logits, mask)
    expected = kept.entropy() + torch.distributions.kl_divergence(kept, before)
    found = draw.entropy() + torch.distributions.kl_divergence(draw, one_draw(other, mask))
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each.sum(), logits)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


# ---- as a phase
SIZES: dict[str, Any] = {"steps": 4, "warmup": 1, "batch_size": 2, "learning_rate": 3e-3}
PHASE = AllocatorPhase(
    **SIZES,
    data=PAGES,
    trained=("scorer",),
    evaluate_every=2,
    log_every=1,
    gradient="reinforcement",
    losses={"answer": 0.0, "relevance": 0.0},
    reinforcement={"draws": 3, "kl_weight": 1.0},
)


def test_resume_is_exact_and_keeps_the_scorer_that_the_phase_began_with(checkpoint: Path, tmp_path: Path) -> None:
    whole = trainer_of(checkpoint, tmp_path / "whole", PHASE, accumulation=2)
    whole.train()
    killed_at(trainer_of(checkpoint, tmp_path / "killed", PHASE, accumulation=2), 3)
    resumed = trainer_of(checkpoint, tmp_path / "killed", PHASE, accumulation=2)
    resumed.train()
    assert same(weights_of(whole), weights_of(resumed))
    before = loaded(checkpoint)[0].model.fetcher.scorer("realizer").state_dict()
    assert same(resumed.references["realizer"].state_dict(), before)
    assert not same(resumed.model.model.fetcher.scorer("realizer").state_dict(), before)


def test_the_scorer_is_trained_alone_and_the_run_says_how_it_fares(checkpoint: Path, tmp_path: Path) -> None:
    trainer = trainer_of(checkpoint, tmp_path, PHASE)
    before = weights_of(trainer)
    trainer.train()
    changed = {part_of_parameter(n) for n, weight in weights_of(trainer).items() if not torch.equal(weight, before[n])}
    assert changed == {"scorer"}
    lines = [line for line in trainer.state.log_history if "reinforcement/correctness" in line]
    assert len(lines) == 4 and lines[0]["reinforcement/divergence"] == 0 < lines[-1]["reinforcement/divergence"]
    for line in lines:
        assert 0 < line["reinforcement/entropy"] < 5.6  # log of 256 patches
        assert {"loss/reinforcement", "grad_norm", "recall"} <= set(line)


def test_an_allocator_that_chooses_the_number_is_refused(tiered_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allocator: expected one that fetches exactly the budget; got 'tiers'"):
        trainer_of(tiered_checkpoint, tmp_path, PHASE, allocator="tiers").train()


@pytest.mark.slow
def test_two_processes_reinforce_one_scorer(tmp_path: Path) -> None:
    """Two scorers are held, of which one is used."""
    tiny_checkpoint(tmp_path / "tiny")
    stage = (
        {"stage": "allocator", "trained": ["scorer"], "data": PAGES, "steps": 3}
        | {"warmup": 0, "batch_size": 2, "log_every": 1, "gradient": "reinforcement", "reinforcement": {"draws": 3}}
        | {"losses": {"answer": 0.0, "relevance": 0.0}}
    )
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"model": "tiny", "start": "tiny", "stages": [stage]}))
    launched("ddp.yaml", "-m", "arr_coc.cli", "train", str(recipe), "--out", str(tmp_path / "out"))
    made = ArrCocForConditionalGeneration.from_pretrained(tmp_path / "out" / "model").state_dict()
    before = loaded(tmp_path / "tiny")[0].state_dict()
    changed = [name for name in before if not torch.equal(made[name], before[name])]
    assert {part_of_parameter(name) for name in changed} == {"scorer"}
    assert not any("clip_query" in name for name in changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient": "hope"}, "gradient: expected one of none, straight_through, soft, reinforcement; got 'hope'"),
        ({"gradient": "soft"}, "reinforcement: expected gradient: reinforcement beside it; got soft"),
        ({"reinforcement": {"luck": 1}}, r"reinforcement: expected settings among draws, .*; got \['luck'\]"),
        ({"reinforcement": {"draws": 1}}, "draws: expected at least 2"),
        ({"best": "accuracy"}, "best: expected one of loss, answer_loss, exact, recall; got 'accuracy'"),
        ({"strategies": {"none": 1.0}}, "strategies: expected scorers with weights, to be reinforced; got none"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    refuses(message, replace, PHASE, **changes)
