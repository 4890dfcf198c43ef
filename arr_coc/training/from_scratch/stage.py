"""What the stages from scratch have in common: settings, a task to train on, and how it is run or gone on with."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..attention import all_eager_attention
from ..stages import Run, Stage
from .loop import Loop
from .optimizers import OPTIMIZERS, check_optimizer
from .streaming import Batches, prefetched


class Task(ABC):
    """What a stage trains, on what, and how that is measured.

    Attributes:
        module: all that is trained, and in the stage's checkpoint.
    """

    module: nn.Module

    @abstractmethod
    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Trained parameters, each list with its learning rate."""

    @abstractmethod
    def pages(self, start: int) -> Batches[Any]:
        """Endless batches to train on, from that of step `start` on."""

    @abstractmethod
    def losses(self, step: int, batch: Any) -> dict[str, Tensor]:
        """The losses of one step: "loss" is minimised, the others are logged."""

    @abstractmethod
    def measure(self) -> Mapping[str, float]:
        """Numbers about held-out pages, by name."""

    @abstractmethod
    def finish(self, run: Run) -> None:
        """Hands what was trained to the run."""


@dataclass(frozen=True)
class ScratchStage(Stage):
    """Settings that the stages from scratch share.

    Attributes:
        steps: optimiser steps.
        learning_rate, weight_decay, warmup: of the optimiser; warm-up in steps.
        optimizer: of `OPTIMIZERS`.
        evaluate_every: steps between measurements and checkpoints.
        bf16: compute in bfloat16; on CPUs without matrix units for it, false is faster.
        seed: of new weights, pages and whatever is drawn.
        workers: processes that prepare batches.
        image_size: side of the square that pages are fitted into, px; None: the model's, which pages are drawn at.
        averaged: share in what is handed on of the weights as the stage found them: an average of both often does what
            either does (Wortsman et al. 2022, Robust fine-tuning of zero-shot models).

    Raises:
        ValueError: a share outside 0..1, or an optimiser that is unknown or that torch does not have.
    """

    name: ClassVar[str]
    """Of the checkpoint's file and in the log."""
    from_scratch: ClassVar[bool] = True
    needs_learner: ClassVar[bool] = True

    steps: int = 3000
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    optimizer: str = "adamw"
    warmup: int = 100
    evaluate_every: int = 200
    bf16: bool = True
    seed: int = 0
    workers: int = 1
    image_size: int | None = None
    averaged: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("averaged")
        check_optimizer(self.optimizer)

    def check_counts(self, *names: str) -> None:
        """Raises ValueError where one of these settings is below 1."""
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1; got {getattr(self, name)}")

    def check_shares(self, *names: str) -> None:
        """Raises ValueError where one of these settings is not in 0..1."""
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a share in 0..1; got {getattr(self, name)}")

    @abstractmethod
    def task(self, run: Run) -> Task:
        """The task, begun with what the run's stages have trained so far."""

    def run(self, run: Run, folder: Path) -> None:
        torch.manual_seed(self.seed)
        run.model.to(run.device)  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
        task = self.task(run)
        found = {name: weight.detach().clone() for name, weight in task.module.named_parameters() if self.averaged}
        loop = Loop(
            self.name, task.module, OPTIMIZERS[self.optimizer](task.groups(), self.weight_decay, task.module),
            folder / f"{self.name}.pt", self.steps, self.warmup, self.evaluate_every, self.bf16,
        )  # fmt: skip
        first = loop.resume()
        if first < self.steps:
            batches = prefetched(task.pages(first), self.workers)
            with all_eager_attention(run.model):
                loop.run(first, lambda step: task.losses(step, next(batches)), task.measure)
        with torch.no_grad():
            for name, weight in found.items():
                task.module.get_parameter(name).lerp_(weight, self.averaged)
        task.finish(run)


def uniform_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform numbers in 0..1 of the tensor's shape, the same on every device."""
    return torch.rand(tensor.shape, generator=generator).to(tensor.device)
