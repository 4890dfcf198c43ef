"""The loop that the stages share: learning rates, gradient step, log, measurement, checkpoint, resume."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from transformers.utils import logging

from ...files import write_text
from ..schedules import warmup_cosine
from .checkpointing import load_state, save_state

logger = logging.get_logger(__name__)

CLIP = 1.0
"""Largest gradient norm."""
LOG_EVERY = 50
"""Steps between lines of the log."""


@dataclass
class Loop:
    """One stage of training.

    Attributes:
        name: in the log.
        module: all that is trained; its state and the optimiser's make a checkpoint.
        optimizer: of its parameters, see `OPTIMIZERS`.
        path: the checkpoint, written at every measurement; a killed run goes on from it. Losses and measurements are
            written beside it too, to `*.jsonl`, a line of {"step": ..., name: value} each.
        steps, warmup: of the schedule.
        evaluate_every: steps between measurements; there is one before the first step too.
        bf16: compute in bfloat16 where autocast allows it; weights and optimiser stay in float32.
    """

    name: str
    module: nn.Module
    optimizer: torch.optim.Optimizer
    path: Path
    steps: int
    warmup: int
    evaluate_every: int
    bf16: bool = False
    schedule: LRScheduler = field(init=False)

    def __post_init__(self) -> None:
        self.schedule = warmup_cosine(self.optimizer, steps=self.steps, warmup=self.warmup)
        self._curve = self.path.with_suffix(".jsonl")
        self._sums: dict[str, list[float]] = defaultdict(list)

    def resume(self) -> int:
        """Loads the checkpoint and returns the step it was written at; 0 where there is none.

        Raises:
            ValueError: an earlier version, which kept no schedule, began the run and did not finish it; a checkpoint of
                something else; damaged checkpoints and none that is whole.
        """
        state = load_state(self.path)
        if state is None:
            self._cut_curve(-1)
            return 0
        try:
            step = self._load(state)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            received = " ".join(str(error).split())
            raise ValueError(f"{self.path}: expected a checkpoint of this stage and model; got {received}") from error
        if step < self.steps:
            self._cut_curve(step)
        return step

    def _load(self, state: Mapping[str, Any]) -> int:
        """Takes over what a checkpoint holds; returns its step."""
        step = int(state["step"])
        self.module.load_state_dict(state["weights"])
        if step < self.steps:
            if "schedule" not in state:
                received = f"one without, of an earlier version, at step {step}"
                raise ValueError(f"{self.path}: expected a checkpoint with its learning-rate schedule; got {received}")
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
        return step

    def run(
        self, first: int, losses: Callable[[int], dict[str, Tensor]], measure: Callable[[], Mapping[str, float]]
    ) -> None:
        """Steps `first` to `steps`.

        Args:
            first: where to start.
            losses: the losses of a step: "loss" is minimised, the others are logged.
            measure: numbers about held-out data, by name.
        """
        began = time.monotonic()
        if first == 0:
            self._measure(0, measure)
        for step in range(first, self.steps):
            with self._autocast():
                values = losses(step)
            self._descend(values["loss"])
            for name, value in values.items():
                self._sums[name].append(value.item())
            done = step + 1
            if done % LOG_EVERY == 0:
                self._log(done, speed=(done - first) / (time.monotonic() - began))
            if done % self.evaluate_every == 0 or done == self.steps:
                self._measure(done, measure)
                self._save(done)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(next(self.module.parameters()).device.type, torch.bfloat16, enabled=self.bf16)

    def _descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
        self.optimizer.step()
        self.schedule.step()

    def _log(self, step: int, *, speed: float) -> None:
        """Writes the means of the losses since the last time."""
        means = {name: sum(values) / len(values) for name, values in sorted(self._sums.items())}
        self._sums.clear()
        self._append(step, means)
        logger.info(f"{self.name} step {step}/{self.steps}: {_listed(means)}; {speed:.2f} steps/s")

    def _measure(self, step: int, measure: Callable[[], Mapping[str, float]]) -> None:
        with self._autocast():
            scores = measure()
        self._append(step, {f"held out, {name}": score for name, score in scores.items()})
        logger.info(f"{self.name} step {step}/{self.steps}, held out: {_listed(scores)}")

    def _save(self, step: int) -> None:
        state = {
            "weights": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "step": step,
        }
        save_state(self.path, state)

    def _append(self, step: int, numbers: Mapping[str, float]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._curve.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, **numbers}) + "\n")

    def _cut_curve(self, step: int) -> None:
        """Removes the lines behind `step`, which a killed run wrote and which are about to be written again."""
        if self._curve.exists():
            lines = self._curve.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]  # the last one may have been cut off
            try:
                before = [line for line in whole if json.loads(line)["step"] <= step]
            except (ValueError, KeyError, TypeError) as error:
                expected = 'a line of {"step": ..., name: value} each (it can be removed)'
                raise ValueError(f"{self._curve}: expected {expected}; got {error}") from error
            write_text(self._curve, "".join(before))


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.3f}" for name, number in numbers.items())
