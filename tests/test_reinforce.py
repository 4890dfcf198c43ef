"""Reinforcement: exact probabilities of drawn sets, an unbiased gradient, and what is trained by it."""

from copy import deepcopy
from itertools import combinations, permutations
from typing import Any

import pytest
import torch
from helpers import refuses, tiny_model
from torch import Tensor

from arr_coc.training.reinforce import (
    DrawnQuestions,
    ReinforceSettings,
    RewardWeights,
    draw_divergence,
    draw_entropy,
    draw_orders,
    group_advantages,
    reinforcement_loss,
    reward,
    set_log_probability,
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


def order_log_probability(logits: Tensor, order: Tensor) -> Tensor:
    """Log-probability of drawing exactly this sequence: logits [..., N], order [..., K] -> [...]."""
    left = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, True)
    rest = logits.masked_fill(left, -torch.inf).logsumexp(-1, keepdim=True)
    drawn = logits.gather(-1, order)
    return (drawn - torch.logaddexp(drawn.flip(-1).logcumsumexp(-1).flip(-1), rest)).sum(-1)


# ---- drawing
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0, 60.0])
@pytest.mark.parametrize(("count", "drawn"), [(5, 2), (6, 4), (4, 4), (7, 1)])
def test_probabilities_are_those_of_drawing_one_by_one(scale: float, count: int, drawn: int) -> None:
    logits = logits_of(scale, count)
    sets = torch.tensor(list(combinations(range(count), drawn)))
    expected = torch.stack(
        [
            torch.stack([step_by_step(logits, order) for order in permutations(members)]).logsumexp(0)
            for members in sets.tolist()
        ]
    )
    found = set_log_probability(logits.expand(len(sets), -1), sets)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize("count", [0, N + 1])
def test_more_patches_than_there_are_cannot_be_drawn(count: int) -> None:
    refuses(f"expected 1 to {N} patches; got {count}", draw_orders, logits_of(), count, generator=torch.Generator())


# ---- the estimator
def exact_gradient(logits: Tensor, rewards: dict[tuple[int, ...], float]) -> Tensor:
    """Of the expected reward, every sequence enumerated."""
    logits = logits.double().requires_grad_()
    orders = permutations(range(N), K)
    expected = torch.stack([step_by_step(logits, o).exp() * rewards[tuple(sorted(o))] for o in orders]).sum()
    return torch.autograd.grad(expected, logits)[0]


def estimates(log_probability: Any, groups: int = 20_000, draws: int = 3) -> tuple[Tensor, Tensor]:
    """Mean and standard error [N] of the policy gradient's estimate over many groups, and the exact gradient."""
    logits = logits_of()
    values = {members: float(index) for index, members in enumerate(combinations(range(N), K))}
    orders = draw_orders(logits.expand(groups, draws, -1), K, generator=torch.Generator().manual_seed(1))
    members = orders.sort(-1).values
    rewards = torch.zeros(groups, draws)
    for chosen, value in values.items():
        rewards[(members == torch.tensor(chosen)).all(-1)] = value
    copies = logits.expand(groups, draws, -1).clone().requires_grad_()
    objective = (group_advantages(rewards) * log_probability(copies, orders)).sum()
    (gradient,) = torch.autograd.grad(objective, copies)
    return gradient.mean(1), exact_gradient(logits, values)


def test_the_estimator_is_unbiased_and_the_sets_probability_makes_it_vary_less() -> None:
    spread = {}
    for log_probability in (set_log_probability, order_log_probability):
        gradient, exact = estimates(log_probability)
        error = gradient.std(0) / len(gradient) ** 0.5
        assert float(exact.abs().max()) > 20 * float(error.max()), "the test can tell a wrong gradient from noise"
        assert bool(((gradient.mean(0) - exact).abs() < 4 * error).all())
        spread[log_probability] = float(gradient.var(0).sum())
    assert spread[set_log_probability] < spread[order_log_probability]


def test_a_scorer_learns_to_fetch_the_patch_that_holds_the_answer() -> None:
    """32 patches with random features; the one that matches the question's vector holds the answer; K = 4, no box."""
    generator = torch.Generator().manual_seed(0)
    scorer = torch.nn.Bilinear(6, 6, 1)
    with torch.no_grad():
        scorer.weight.zero_()
    optimizer = torch.optim.Adam(scorer.parameters(), lr=0.05)

    def case(count: int) -> tuple[Tensor, Tensor]:
        patches = torch.nn.functional.normalize(torch.randn(count, 32, 6, generator=generator), dim=-1)
        place = torch.randint(32, (count,), generator=generator)
        question = patches[torch.arange(count), place][:, None].expand(-1, 32, -1)
        return scorer(patches, question.contiguous()).squeeze(-1), place

    def hits(logits: Tensor, place: Tensor) -> float:
        return (logits.topk(4).indices == place[:, None]).any(-1).float().mean().item()

    before = hits(*case(500))
    for _ in range(150):
        logits, place = case(16)
        logits = logits[:, None].expand(-1, 8, -1)
        drawn = draw_orders(logits, 4, generator=generator)
        correct = (drawn == place[:, None, None]).any(-1).float()
        advantages = group_advantages(reward(correct, fetched=4, budget=4, weights=RewardWeights()))
        loss = -(advantages * set_log_probability(logits, drawn)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = hits(*case(500))
    assert before < 0.3 and after > 0.95


# ---- the driver ---------------------------------------------------------------------------------------------------
QUESTIONS = ("What is the total?", "the date")


def batch_of(
    model: Any, *, padding_side: str = "right", answers: tuple[str, str] = ("12.50", "New York")
) -> dict[str, Tensor]:
    """Two questions about one image, with their answers as labels."""
    processor, tokenizer = model.processor, model.processor.tokenizer
    image = torch.rand(3, 128, 128, generator=torch.Generator().manual_seed(1))
    pixels = processor.image_processor([image], return_tensors="pt")
    rows = []
    for question, answer in zip(QUESTIONS, answers, strict=True):
        turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
        text = processor.apply_chat_template(turn, add_generation_prompt=True)
        prompt = tokenizer(text.replace(processor.image_token, processor.image_token * (16 + 17))).input_ids
        rows.append((prompt, tokenizer(answer).input_ids + [tokenizer.eos_token_id]))
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    columns: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for prompt, answer in rows:
        pads = length - len(prompt) - len(answer)
        fill = [("input_ids", tokenizer.pad_token_id), ("attention_mask", 0), ("labels", -100)]
        row = {
            "input_ids": prompt + answer,
            "attention_mask": [1] * (length - pads),
            "labels": [-100] * len(prompt) + answer,
        }
        for name, value in fill:
            padding = [value] * pads
            columns[name].append(row[name] + padding if padding_side == "right" else padding + row[name])
    batch = {name: torch.tensor(values) for name, values in columns.items()}
    return {
        **batch,
        "pixel_values": pixels["pixel_values"],
        "patch_mask": pixels["patch_mask"],
        "image_index": torch.zeros(2, dtype=torch.long),
        "query_mask": processor.query_mask(batch["input_ids"]) & (batch["labels"] == -100),
    }


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
    assert made.sets.shape == (2, 3, 17) and made.rewards.shape == (2, 3)
    made.loss.backward()
    touched = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert touched and all(name.startswith("model.fetcher.scorers.realizer.") for name in touched)
    assert made.divergence == 0  # nothing was learnt yet


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_rewards_are_those_of_answers_from_the_drawn_patches(padding_side: str) -> None:
    model = tiny_model()
    batch = batch_of(model, padding_side=padding_side)
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
    labelled = batch_of(model, padding_side=padding_side, answers=(said[0][0], said[0][1]))
    made = reinforcement_loss(model, labelled, settings, generator=torch.Generator().manual_seed(0), encoding=encoding)
    assert made.sets.equal(probe.sets)
    right, others = made.correctness.unbind(1)
    assert bool((right > 0.5).all()) and bool((others <= right).all()) and bool((others < right).any())
    torch.testing.assert_close(made.rewards, made.correctness + 0.05)


@pytest.mark.parametrize(
    ("changes", "strategy", "message"),
    [
        ({}, "saliency", "expected a scorer with weights"),
        ({"labels": None}, "realizer", "expected input_ids, attention_mask and labels; got none of labels"),
    ],
)
def test_what_cannot_be_trained_is_refused(changes: Any, strategy: str, message: str) -> None:
    model = tiny_model()
    model.config.fetcher_config.strategy = strategy
    with pytest.raises(ValueError, match=message):
        reinforcement_loss(model, {**batch_of(model), **changes}, ReinforceSettings(), generator=torch.Generator())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draws": 1}, "at least 2"),
    ],
)
def test_settings_are_checked(settings: Any, message: str) -> None:
    refuses(message, ReinforceSettings, **settings)


def test_questions_in_a_batch_are_answered_as_alone() -> None:
    model = tiny_model()
    batch = batch_of(model)
    drawn = draw_orders(torch.zeros(2, 3, 256), 17, generator=torch.Generator().manual_seed(0))
    together = DrawnQuestions.of(model, batch).correctness(drawn)
    kept: list[Tensor] = []
    hook = model.model.fetcher.register_forward_hook
    hook(lambda _m, _i, fetch: kept.extend(row.sort().values for row in fetch.indices))
    for b in range(2):
        alone = {name: batch[name][b : b + 1] for name in ("input_ids", "attention_mask", "labels", "query_mask")}
        one = DrawnQuestions.of(model, {**batch, **alone, "image_index": torch.zeros(1, dtype=torch.long)})
        for g in range(3):
            kept.clear()
            assert one.correctness(drawn[b : b + 1, g : g + 1]).item() == pytest.approx(together[b, g].item())
            assert kept[0].tolist() == sorted(drawn[b, g].tolist())


def test_entropy_and_divergence_leave_padding_out() -> None:
    logits, mask = torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]])
    kept = torch.distributions.Categorical(logits=logits[:, :2])
    torch.testing.assert_close(draw_entropy(logits, mask), kept.entropy())
    other = torch.tensor([[0.5, -1.0, 3.0]])
    expected = torch.distributions.kl_divergence(kept, torch.distributions.Categorical(logits=other[:, :2]))
    torch.testing.assert_close(draw_divergence(logits, other, mask), expected)
