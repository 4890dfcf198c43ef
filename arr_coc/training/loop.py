"""The loop that the stages share: learning rates, gradient step, log, measurement, checkpoint, resume."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from arr_coc.training.checkpointing import load_state, save_state
from arr_coc.training.schedules import warmup_cosine

logger = logging.get_logger(__name__)

CLIP = 1.0
"""Largest gradient norm."""
LOG_EVERY = 50
"""Steps between lines of the log."""


def adamw(groups: list[tuple[list[nn.Parameter], float]], weight_decay: float) -> torch.optim.AdamW:
    """AdamW over (parameters, learning rate) groups; only matrices decay. Each group keeps its rate as `base_lr`."""
    settings: list[dict[str, Any]] = []
    for parameters, rate in groups:
        for matrices in (True, False):
            chosen = [parameter for parameter in parameters if (parameter.ndim > 1) == matrices]
            decay = weight_decay if matrices else 0.0
            settings.append({"params": chosen, "weight_decay": decay, "lr": rate, "base_lr": rate})
    return torch.optim.AdamW(settings, betas=(0.9, 0.98))


@dataclass
class Loop:
    """One stage of training.

    Attributes:
        name: in the log.
        module: all that is trained; its state and the optimiser's make a checkpoint.
        optimizer: from `adamw`.
        path: the checkpoint, written at every measurement; a killed run goes on from it.
        steps, warmup: of the schedule.
        evaluate_every: steps between measurements.
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

    def _autocast(self) -> torch.autocast:
        return torch.autocast(next(self.module.parameters()).device.type, torch.bfloat16, enabled=self.bf16)

    def resume(self) -> int | None:
        """Loads the checkpoint and returns the step it was written at; None where there is none."""
        state = load_state(self.path)
        if state is None:
            return None
        self.module.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def run(self, first: int, losses: Callable[[int], dict[str, Tensor]], evaluate: Callable[[], str]) -> None:
        """Steps `first` to `steps`.

        Args:
            first: where to start.
            losses: the losses of a step: "loss" is minimised, the others are logged.
            evaluate: measures on held-out data and says what came out.
        """
        began = time.monotonic()
        sums: dict[str, list[float]] = defaultdict(list)
        for step in range(first, self.steps):
            factor = warmup_cosine(step, steps=self.steps, warmup=self.warmup)
            for group in self.optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            with self._autocast():
                values = losses(step)
            self.optimizer.zero_grad()
            values["loss"].backward()
            nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
            self.optimizer.step()
            for name, value in values.items():
                sums[name].append(value.item())
            if (step + 1) % LOG_EVERY == 0:
                speed = (step + 1 - first) / (time.monotonic() - began)
                means = ", ".join(f"{name} {sum(sums[name]) / len(sums[name]):.3f}" for name in sorted(sums))
                logger.info(f"{self.name} step {step + 1}/{self.steps}: {means}; {speed:.2f} steps/s")
                sums.clear()
            if (step + 1) % self.evaluate_every == 0 or step + 1 == self.steps:
                with self._autocast():
                    score = evaluate()
                logger.info(f"{self.name} step {step + 1}/{self.steps}, held out: {score}")
                state = {"weights": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}
                save_state(self.path, {**state, "step": step + 1})
