"""The learned tempering policy: it learns what pays, goes on where it was killed, and stays with its checkpoint."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_model

from arr_coc.families.tempering import FIRST, SHARES, TemperingPolicy
from arr_coc.model_summary import generated_image
from arr_coc.modeling.answers import Pass
from arr_coc.training.recipe import load_recipe
from arr_coc.training.stages import Run
from arr_coc.training.tempering import Tempering, tempering_loss

ROOT = Path(__file__).parents[1]
LEARNING = {"learned_exploration": True}


def after(*uncertainties: float) -> list[Pass]:
    return [Pass("", 1.0, uncertainty, 0.1, None) for uncertainty in uncertainties]  # type: ignore[arg-type]


def untrained() -> TemperingPolicy:
    torch.manual_seed(0)
    policy = TemperingPolicy()
    policy.start_weights(0.02)
    return policy


def test_it_learns_a_toys_shares_from_rewards_alone() -> None:
    """Paid are a half after an unsure answer, and little after a surer one; nothing else."""
    policy, generator = untrained(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.02, weight_decay=0.0)

    def play(uncertainty: float, right: float) -> float:
        return float(policy.share(after(uncertainty)) == right)

    questions = [lambda number: play(0.9, 0.5), lambda number: play(0.2, 0.05)]
    means = []
    for _ in range(120):
        loss, rewards = tempering_loss(policy, questions, draws=12, generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        means.append(float(rewards.mean()))
    assert sum(means[:10]) / 10 < 0.4 and sum(means[-10:]) / 10 > 0.8
    assert (policy.share(after(0.9)), policy.share(after(0.2))) == (0.5, 0.05)


def test_untrained_it_takes_a_tenth_whatever_was_answered() -> None:
    policy = untrained()
    assert [policy.share(after(*said)) for said in ((), (0.9,), (0.1, 0.8))] == [SHARES[FIRST]] * 3 == [0.1] * 3


def test_drawn_decisions_have_the_log_probabilities_that_they_were_drawn_by() -> None:
    policy, state = untrained(), torch.tensor([1.0, 0.0])
    with policy.drawing(torch.Generator().manual_seed(0)) as drawn:
        numbers = [SHARES.index(policy.share([])) for _ in range(2000)]
    assert [number for _, number in drawn] == numbers and torch.equal(drawn[0][0], state)
    expected = policy(state[None])[0].softmax(-1)
    counted = torch.bincount(torch.tensor(numbers), minlength=len(SHARES)) / len(numbers)
    assert (counted - expected).abs().max() < 0.05
    assert policy.log_probability(drawn[:2]).item() == pytest.approx(sum(expected[n].log() for n in numbers[:2]).item())
    assert policy.share([]) == 0.1, "outside it is the most likely one again"


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    generated_image(128).save(tmp_path / "page.png")
    lines = [{"image": "page.png", "question": question, "answers": ["x"]} for question in ("What?", "Which one?")]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return {"path": "data.jsonl"}


def trained(data: dict[str, Any], root: Path, folder: Path, steps: int) -> Any:
    model = tiny_model(fetcher=LEARNING)
    stage = Tempering(data=data, steps=steps, batch_size=1, draws=2, budget=4, log_every=1, save_every=1)
    stage.run(Run(model, model.processor, root=root), folder)
    return model


def test_a_run_that_was_killed_goes_on_to_the_same_weights(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second episode of every question is the right one: a model of random weights answers them all alike."""
    correct = cycle((0.0, 1.0))
    monkeypatch.setattr("arr_coc.training.tempering.answer_correctness", lambda text, answers: next(correct))
    begun = tiny_model(fetcher=LEARNING).model.fetcher.tempering
    trained(data, tmp_path, tmp_path / "killed", 1)
    resumed, whole = (trained(data, tmp_path, tmp_path / name, 2) for name in ("killed", "whole"))
    ours, theirs = (model.model.fetcher.tempering.state_dict() for model in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert any(not torch.equal(ours[name], tensor) for name, tensor in begun.state_dict().items())


def test_a_checkpoint_with_the_policy_follows_it_unless_told_otherwise(tmp_path: Path) -> None:
    model = tiny_model(fetcher=LEARNING)
    with torch.no_grad():
        model.model.fetcher.tempering.head.bias.copy_(torch.tensor([0.0, 0, 0, 0, 9]))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    again.processor = model.processor
    asked = {"num_passes": 2, "budget": 8, "return_fetch": True, "max_new_tokens": 2}
    shares = [
        [each.share for each in again.generate(generated_image(128), "What?", **asked, **chosen).passes]
        for chosen in ({}, {"exploration": "none"})
    ]
    assert shares == [[0.5, 0.5], [0.0, 0.0]]


def test_the_recipe_asks_for_the_policy_and_a_model_without_it_is_refused(data: dict[str, Any], tmp_path: Path) -> None:
    recipe = load_recipe(ROOT / "examples" / "tempering.yaml")
    assert recipe.config().fetcher_config.learned_exploration and isinstance(recipe.stages[0], Tempering)
    model = tiny_model()
    with pytest.raises(ValueError, match="expected fetcher_config.learned_exploration: true; got false"):
        Tempering(data=data).run(Run(model, model.processor, root=tmp_path), tmp_path / "out")
    with pytest.raises(ValueError, match="draws: expected at least 2; got 1"):
        Tempering(data=data, draws=1)
    with pytest.raises(ValueError, match=r"rewards: expected settings among .*; got \['speed'\]"):
        Tempering(data=data, rewards={"speed": 1.0})
