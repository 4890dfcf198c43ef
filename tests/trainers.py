"""Trainers of tiny models, for tests."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_model
from torch import Tensor
from transformers import Trainer, TrainingArguments

from arr_coc import ArrCocForConditionalGeneration, ArrCocProcessor
from arr_coc.adapters import adapt, save_adapter
from arr_coc.data.collator import QuestionCollator
from arr_coc.data.formats import open_records
from arr_coc.data.records import Record
from arr_coc.training.phases import JointPhase, Phase, make_trainer
from arr_coc.training.trainer import ArrCocTrainer

PAGES = {"format": "rendered", "pages": 3, "questions": 2, "size": 128, "split": "train"}
PHASE = JointPhase(
    data=PAGES,
    held_out={**PAGES, "pages": 1, "seed": 9},
    strategies={"realizer": 1.0, "clip_query": 1.0, "none": 0.5},
    budgets={"standard": 1.0, 5: 1.0},
    **{"steps": 5, "warmup": 2, "batch_size": 2, "evaluate_every": 2, "log_every": 2, "learning_rate": 1e-3},
)
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]


def loaded(checkpoint: Path) -> tuple[ArrCocForConditionalGeneration, ArrCocProcessor]:
    return (ArrCocForConditionalGeneration.from_pretrained(checkpoint), ArrCocProcessor.from_pretrained(checkpoint))


def trainer_of(checkpoint: Path, folder: Path, phase: Phase = PHASE, **changes: Any) -> ArrCocTrainer:
    model, processor = loaded(checkpoint)
    return make_trainer(model, processor, replace(phase, **changes), folder, device=CPU, root=folder)


def weights_of(trainer: ArrCocTrainer) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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


def write_adapter(folder: Path, *, part: str = "scorer", seed: int = 0) -> Path:
    """An adapter of `tiny_model()` that changes what is fetched."""
    adapted = adapt(tiny_model(), (part,), r=2)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    save_adapter(adapted, folder)
    return folder


def records_of(seed: int) -> list[Record]:
    return list(open_records({**PAGES, "pages": 1, "questions": 3, "seed": seed}))


def standard_trainer(model: Any, out: Path, **settings: Any) -> Trainer:
    arguments = TrainingArguments(
        str(out),
        per_device_train_batch_size=3,
        per_device_eval_batch_size=3,
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        **settings,
    )
    collate = QuestionCollator(model.processor, model.config)
    return Trainer(model, arguments, data_collator=collate, train_dataset=records_of(0), eval_dataset=records_of(1))


CONFIGS = ROOT / "examples" / "accelerate"


def launched(config: str, *command: str) -> None:
    """Runs `accelerate launch` with a shipped config, two processes on this machine's CPU."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*launch, "--main_process_port", "0", *command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
