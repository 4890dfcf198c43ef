"""Stages: the entries of a recipe, their registry, the state that they pass on; and what those with an own loop share.

A stage with an own loop defines a task (a module, its batches, its losses, its measurement); `Loop` trains it, or
resumes a killed run. It does not use transformers' Trainer: the batches come from no data set, one
process trains, and a step has several losses that the task sums.
"""

import json
import os
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers.utils import logging

from ..files import check_types, write_text
from ..modeling.checks import Registry
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.processing_arr_coc import ArrCocProcessor
from .attention import eager_attention
from .checkpoints import load_state, save_state
from .optimizers import OPTIMIZERS, warmup_cosine


@dataclass
class Run:
    """The state that the stages of a recipe pass on."""

    model: ArrCocForConditionalGeneration  # after the stages so far; a stage trains it in place or replaces it
    processor: ArrCocProcessor
    device: torch.device = torch.device("cpu")
    root: Path = Path(".")  # the folder that paths in a stage's data are relative to
    # The language model's LoRA adapter as stages have trained it so far, by PEFT's names; empty before.
    adapter: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage(ABC):
    """Settings of one stage of a recipe, registered under its name in recipes, and its training.

    Raises:
        ValueError: a value of another type than the setting's.

    A new kind of stage is a frozen dataclass too, registered with `@STAGES.register(name)` and imported in `recipe`.
    """

    from_scratch: ClassVar[bool] = False
    """Whether it runs in one process, in a loop of its own; other stages train models in several."""
    leaves_whole: ClassVar[bool] = True
    """Whether every part of the model is trained after the stage, so that a phase may follow."""

    def __post_init__(self) -> None:
        check_types(self)

    def check_counts(self, *names: str, least: int = 1) -> None:
        """Raises ValueError where one of these settings is below `least`."""
        for name in names:
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}; got {getattr(self, name)}")

    def check_shares(self, *names: str) -> None:
        """Raises ValueError where one of these settings is not in 0..1."""
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a share in 0..1; got {getattr(self, name)}")

    @abstractmethod
    def run(self, run: Run, folder: Path) -> None:
        """Trains `run.model`, or resumes a killed run. `run`: the recipe's; the stage replaces its model and adapter by
        its results. `folder`: the stage's own, for its checkpoints."""


def check_names(known: Iterable[str], settings: Any, where: str) -> None:
    """Raises ValueError unless `settings` is a mapping of some of the `known` names."""
    if not isinstance(settings, Mapping) or set(settings) - set(known):
        received = sorted(set(settings) - set(known)) if isinstance(settings, Mapping) else settings
        raise ValueError(f"{where}: expected settings among {', '.join(known)}; got {received}")


STAGES: Registry[type[Stage]] = Registry("stage")  # name in a recipe -> settings


def stage_from(spec: Any, defaults: Mapping[str, Any], where: str) -> Stage:
    """The stage of a recipe's entry, with defaults for its settings.

    Args:
        spec: its settings, and "stage", its name.
        defaults: of settings that the entry leaves out; unknown ones are ignored.

    Raises:
        ValueError: not a mapping with a stage's name; an unknown setting, or an invalid value.
    """
    if not isinstance(spec, Mapping):
        raise ValueError(f"{where}: expected a mapping with the stage's name; got {spec!r}")
    settings = dict(spec)
    name = settings.pop("stage", None)
    if not isinstance(name, str):
        raise ValueError(f"{where}: expected the name of a stage; got {name!r}")
    try:
        kind = STAGES[name]
        where += f" ({name})"
        known = [setting.name for setting in fields(kind)]
        check_names(known, settings, "settings")
        return kind(**{**{name: defaults[name] for name in defaults if name in known}, **settings})
    except (ValueError, TypeError, AttributeError) as error:  # the latter: a value of another type than the setting's
        raise ValueError(f"{where}: {error}") from error


logger = logging.get_logger(__name__)

CLIP = 1.0  # largest gradient norm
LOG_EVERY = 50  # steps between lines of the log


def time_left(seconds: float, done: int, left: int) -> str:
    """What a log says of the time: of a step, if `done` ones took so many seconds, and of those that are left."""
    minutes = round(seconds / done * left / 60)
    return f"{seconds / done:.3g} s a step, about {minutes // 60} h {minutes % 60:02} min left"


class Loop:
    """Trains a stage's task, or resumes a killed run from the newest checkpoint in `folder`.

    A checkpoint is written at every measurement. Losses and measurements are written beside the folder, to `*.jsonl`, a
    line of {"step": ..., name: value} each.
    """

    def __init__(self, stage: "ScratchStage", task: "Task", folder: Path) -> None:
        self.stage, self.task, self.folder = stage, task, folder
        self.optimizer = OPTIMIZERS[stage.optimizer](task.groups(), stage.weight_decay, task.module)
        self.schedule = warmup_cosine(self.optimizer, steps=stage.steps, warmup=min(stage.warmup, stage.steps - 1))
        self._curve: list[dict[str, float]] = []
        self._sums: dict[str, list[float]] = defaultdict(list)

    def _resume(self) -> int:
        """Loads the newest checkpoint and returns its step; 0 where there is none."""
        state = load_state(self.folder)
        if state is None:
            return 0
        try:
            step, self._curve = int(state["step"]), [*state["curve"]]
            for name, part in self._parts().items() if step < self.stage.steps else [("weights", self.task.module)]:
                part.load_state_dict(state[name])
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            received = " ".join(str(error).split())
            raise ValueError(f"{self.folder}: expected a checkpoint of this stage and model; got {received}") from error
        return step

    def _parts(self) -> dict[str, Any]:
        """All that a checkpoint holds the state of."""
        return {"weights": self.task.module, "optimizer": self.optimizer, "schedule": self.schedule}

    def run(self) -> None:
        """Runs the steps that are left. Raises ValueError: a checkpoint of something else, or damaged checkpoints and
        none that is whole."""
        first, steps = self._resume(), self.stage.steps
        if first >= steps:
            return
        batches, began = prefetched(self.task.pages(first), self.stage.workers), time.monotonic()
        if first == 0:
            self._measure(0)
        for step in range(first, steps):
            self._descend(step, batches)
            done = step + 1
            left = time_left(time.monotonic() - began, done - first, steps - done)
            if done % LOG_EVERY == 0:
                self._log(done, left)
            elif step == first:
                logger.info(f"{self.stage.name} step {done}/{steps}: {left}")
            if done % self.stage.evaluate_every == 0 or done == steps:
                self._measure(done)
                state = {name: part.state_dict() for name, part in self._parts().items()}
                save_state(self.folder, done, {**state, "curve": self._curve})

    def _autocast(self) -> torch.autocast:
        device = next(self.task.module.parameters()).device
        return torch.autocast(device.type, torch.bfloat16, enabled=self.stage.bf16)

    def _descend(self, step: int, batches: Iterator[Any]) -> None:
        """One step of the optimiser; the gradients of the parts are added up."""
        self.optimizer.zero_grad()
        totals: dict[str, float] = defaultdict(float)
        with self._autocast():
            parts = self.task.parts(next(batches))
        for part in parts:
            with self._autocast():
                values = {name: value / len(parts) for name, value in self.task.losses(step, part).items()}
            values["loss"].backward()
            for name, value in values.items():
                totals[name] += value.item()
        for name, total in totals.items():
            self._sums[name].append(total)
        nn.utils.clip_grad_norm_(self.task.module.parameters(), CLIP)
        self.optimizer.step()
        self.schedule.step()

    def _log(self, step: int, left: str) -> None:
        """Writes the means of the losses since the last time."""
        means = {name: sum(values) / len(values) for name, values in sorted(self._sums.items())}
        self._sums.clear()
        self._append(step, means)
        logger.info(f"{self.stage.name} step {step}/{self.stage.steps}: {_listed(means)}; {left}")

    def _measure(self, step: int) -> None:
        with self._autocast():
            scores = self.task.measure()
        self._append(step, {f"held out, {name}": score for name, score in scores.items()})
        logger.info(f"{self.stage.name} step {step}/{self.stage.steps}, held out: {_listed(scores)}")

    def _append(self, step: int, numbers: Mapping[str, float]) -> None:
        self._curve.append({"step": step, **{name: float(number) for name, number in numbers.items()}})
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.folder.with_suffix(".jsonl"), "".join(f"{json.dumps(line)}\n" for line in self._curve))


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.3f}" for name, number in numbers.items())


Batch = TypeVar("Batch")


class Batches(IterableDataset, ABC, Generic[Batch]):
    """Endless batches, each a function of its step.

    Attributes:
        start: the first step that is iterated over.
    """

    start: int

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        # DataLoader asks its workers in turn, so steps come out in order
        return map(self.batch, count(self.start + worker, workers))

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """The batch of a step."""


class Steps(Batches[int]):
    """The numbers of the steps, for tasks that draw what a step needs themselves."""

    def __init__(self, start: int) -> None:
        self.start = start

    def batch(self, step: int) -> int:
        return step


def prefetched(data: Batches[Any], workers: int) -> Iterator[Any]:
    """The batches of `data`, prepared ahead by worker processes; in this process without workers."""
    ahead: dict[str, Any] = {"prefetch_factor": 6, "worker_init_fn": _yield_cores} if workers else {}
    return iter(DataLoader(data, batch_size=None, num_workers=workers, **ahead))


def _yield_cores(worker: int) -> None:
    """Lowers the priority of workers: a step's threads wait for the slowest of them."""
    os.nice(10)


class Task(ABC):
    """What a stage trains, its batches, and its measurement.

    Attributes:
        stage: its settings.
        module: all trained parts, which are in the stage's checkpoint.
    """

    stage: "ScratchStage"
    module: nn.Module

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Trained parameters, each list with its learning rate."""
        return [(list(self.module.parameters()), self.stage.learning_rate)]

    def pages(self, start: int) -> Batches[Any]:
        """Endless batches to train on, from that of step `start` on; by default the numbers of the steps."""
        return Steps(start)

    def parts(self, batch: Any) -> list[Any]:
        """The parts of a batch whose gradients are computed one after the other, which takes less memory. It is called
        once a step, before `losses`."""
        return [batch]

    @abstractmethod
    def losses(self, step: int, batch: Any) -> dict[str, Tensor]:
        """The losses of one part of a step: "loss" is minimised, the others are logged."""

    @abstractmethod
    def measure(self) -> Mapping[str, float]:
        """Measurements on held-out pages, by name."""

    def finish(self, run: Run) -> None:
        """Passes trained parts that are not in the run's model to it; by default none are."""
        return


@dataclass(frozen=True)
class ScratchStage(Stage):
    """Settings that the stages with an own loop share.

    Attributes:
        steps: optimiser steps.
        learning_rate, weight_decay, warmup: of the optimiser; warm-up in steps.
        optimizer: of `OPTIMIZERS`.
        evaluate_every: steps between measurements and checkpoints.
        bf16: compute in bfloat16; on CPUs without matrix units for it, false is faster.
        seed: of new weights, pages and whatever is drawn.
        workers: processes that prepare batches.

    Raises:
        ValueError: an unknown optimiser.
    """

    name: ClassVar[str]
    """Of the folder of checkpoints and in the log."""
    from_scratch: ClassVar[bool] = True
    writes_out: ClassVar[bool] = True
    """Whether attention is explicit, which is faster on a CPU than PyTorch's own for short prompts."""

    steps: int = 3000
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    optimizer: str = "adamw"
    warmup: int = 100
    evaluate_every: int = 200
    bf16: bool = True
    seed: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer: expected one of {', '.join(OPTIMIZERS)}; got {self.optimizer!r}")

    @abstractmethod
    def task(self, run: Run) -> Task:
        """The task, started from the results of the run's earlier stages."""

    def run(self, run: Run, folder: Path) -> None:
        torch.manual_seed(self.seed)
        run.model.to(run.device)  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
        task = self.task(run)
        with eager_attention(run.model.model.language_model) if self.writes_out else nullcontext():
            Loop(self, task, folder / self.name).run()
        task.finish(run)
