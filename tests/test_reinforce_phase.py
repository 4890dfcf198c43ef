"""Reinforcement as a phase of a recipe: what it trains, what it logs, exact resume, and its data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import refuses, tiny_checkpoint
from trainers import PAGES, killed_at, launched, loaded, same, trainer_of, weights_of

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.adapters import part_of_parameter
from arr_coc.training.phases import AllocatorPhase

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
    lines = [line for line in trainer.state.log_history if "reinforcement/rewards" in line]
    assert len(lines) == 4 and lines[0]["reinforcement/divergence"] == 0 < lines[-1]["reinforcement/divergence"]
    for line in lines:
        rewards, correct = line["reinforcement/rewards"], line["reinforcement/correctness"]
        assert rewards == pytest.approx(correct + 0.05, abs=1e-6)
        assert 0 < line["reinforcement/entropy"] < 5.6  # log of 256 patches
        assert {"loss/reinforcement", "gradient_norm/scorer", "recall"} <= set(line)


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
