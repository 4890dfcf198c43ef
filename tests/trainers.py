"""Trainers of tiny models, for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_checkpoint
from torch import Tensor

from arr_coc import ArrCocForConditionalGeneration, ArrCocProcessor
from arr_coc.training.phases import JointPhase, Phase, make_trainer
from arr_coc.training.trainer import ArrCocTrainer

PAGES = {"format": "rendered", "pages": 3, "questions": 2, "size": 128, "split": "train"}
PHASE = JointPhase(
    data=PAGES,
    held_out={**PAGES, "pages": 1, "seed": 9},
    steps=5,
    warmup=2,
    batch_size=2,
    evaluate_every=2,
    log_every=2,
    learning_rate=1e-3,
    strategies={"realizer": 1.0, "clip_query": 1.0, "none": 0.5},
    budgets={"standard": 1.0, 5: 1.0},
)
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]


def loaded(checkpoint: Path) -> tuple[ArrCocForConditionalGeneration, ArrCocProcessor]:
    return (
        ArrCocForConditionalGeneration.from_pretrained(checkpoint),
        ArrCocProcessor.from_pretrained(checkpoint),
    )


def trainer_of(checkpoint: Path, folder: Path, phase: Phase = PHASE, **changes: Any) -> ArrCocTrainer:
    model, processor = loaded(checkpoint)
    return make_trainer(model, processor, replace(phase, **changes), folder, device=CPU, root=folder)


def weights_of(trainer: ArrCocTrainer) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def tiered_checkpoint(folder: Path) -> Path:
    """One whose tiers are learned, so that every part has weights."""
    return tiny_checkpoint(folder, fetcher={"tier_choice": "classifier"})


class Killed(Exception):
    pass


def killed_at(trainer: ArrCocTrainer, step: int) -> None:
    """Trains until the loss of `step` is asked for."""
    inner = trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == step:
            raise Killed
        return inner(*args, **kwargs)

    trainer.compute_loss = compute_loss  # type: ignore[method-assign]
    with pytest.raises(Killed):
        trainer.train()
