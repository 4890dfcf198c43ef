"""Stages: the entries of a recipe, their registry, the state that they pass on; and what those with an own loop share.

A stage with an own loop defines a task (a module, its batches, its losses, its measurement); `ScratchStage.run` trains
it with `Loop`, or resumes a killed run. It does not use transformers' Trainer: the batches come from no data set, one
process trains, and a step has several losses that the task sums.
"""

import json
import os
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
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
    """The state that the stages of a recipe pass on.

    Attributes:
        model: after the stages so far; a stage trains it in place or replaces it.
        root: the folder that paths in a stage's data are relative to.
        adapter: the language model's LoRA adapter as stages have trained it so far, by PEFT's names; empty before.
    """

    model: ArrCocForConditionalGeneration
    processor: ArrCocProcessor
    device: torch.device = torch.device("cpu")
    root: Path = Path(".")
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
        """Trains `run.model`, or resumes a killed run.

        Args:
            run: the recipe's; the stage replaces its model and adapter by its results.
            folder: the stage's own, for its checkpoints.
        """


def check_names(known: Iterable[str], settings: Any, where: str) -> None:
    """Raises ValueError unless `settings` is a mapping of some of the `known` names."""
    if not isinstance(settings, Mapping) or set(settings) - set(known):
        received = sorted(set(settings) - set(known)) if isinstance(settings, Mapping) else settings
        raise ValueError(f"{where}: expected settings among {', '.join(known)}; got {received}")


STAGES: Registry[type[Stage]] = Registry("stage")
"""Name in a recipe -> settings."""


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
        unknown = sorted(map(str, set(settings) - set(known)))
        if unknown:
            raise ValueError(f"expected settings among {', '.join(known)}; got {unknown}")
        return kind(**{**{name: defaults[name] for name in defaults if name in known}, **settings})
    except (ValueError, TypeError, AttributeError) as error:  # the latter: a value of another type than the setting's
        raise ValueError(f"{where}: {error}") from error


logger = logging.get_logger(__name__)

CLIP = 1.0
"""Largest gradient norm."""
LOG_EVERY = 50
"""Steps between lines of the log."""


def time_left(seconds: float, done: int, left: int) -> str:
    """What a log says of the time: of a step, if `done` ones took so many seconds, and of those that are left."""
    minutes = round(seconds / done * left / 60)
    return f"{seconds / done:.3g} s a step, about {minutes // 60} h {minutes % 60:02} min left"


@dataclass
class Loop:
    """One stage of training.

    Attributes:
        module: all that is trained; its state and the optimiser's make a checkpoint.
        optimizer: of its parameters, see `OPTIMIZERS`.
        folder: of checkpoints, written at every measurement; a killed run resumes from the newest. Losses and
            measurements are written beside it, to `*.jsonl`, a line of {"step": ..., name: value} each.
        steps, warmup: of the schedule.
        evaluate_every: steps between measurements; there is one before the first step too.
        bf16: compute in bfloat16 where autocast allows it; weights and optimiser stay in float32.
    """

    name: str
    module: nn.Module
    optimizer: torch.optim.Optimizer
    folder: Path
    steps: int
    warmup: int
    evaluate_every: int
    bf16: bool = False
    schedule: LRScheduler = field(init=False)

    def __post_init__(self) -> None:
        self.schedule = warmup_cosine(self.optimizer, steps=self.steps, warmup=self.warmup)
        self._curve: list[dict[str, float]] = []
        self._sums: dict[str, list[float]] = defaultdict(list)

    def resume(self) -> int:
        """Loads the newest checkpoint and returns its step; 0 where there is none.

        Raises:
            ValueError: a checkpoint of something else, or damaged checkpoints and none that is whole.
        """
        state = load_state(self.folder)
        if state is None:
            return 0
        try:
            step, self._curve = int(state["step"]), [*state["curve"]]
            for name, part in self._parts().items() if step < self.steps else [("weights", self.module)]:
                part.load_state_dict(state[name])
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            received = " ".join(str(error).split())
            raise ValueError(f"{self.folder}: expected a checkpoint of this stage and model; got {received}") from error
        return step

    def _parts(self) -> dict[str, Any]:
        """All that a checkpoint holds the state of."""
        return {"weights": self.module, "optimizer": self.optimizer, "schedule": self.schedule}

    def run(
        self,
        first: int,
        losses: Callable[[int], Iterator[dict[str, Tensor]]],
        measure: Callable[[], Mapping[str, float]],
    ) -> None:
        """Steps `first` to `steps`.

        Args:
            losses: the losses of each part of a step: the sum of "loss" is minimised, the others are logged.
            measure: measurements on held-out data, by name.
        """
        began = time.monotonic()
        if first == 0:
            self._measure(0, measure)
        for step in range(first, self.steps):
            self._descend(losses(step))
            done = step + 1
            left = time_left(time.monotonic() - began, done - first, self.steps - done)
            if done % LOG_EVERY == 0:
                self._log(done, left)
            elif step == first:
                logger.info(f"{self.name} step {done}/{self.steps}: {left}")
            if done % self.evaluate_every == 0 or done == self.steps:
                self._measure(done, measure)
                state = {name: part.state_dict() for name, part in self._parts().items()}
                save_state(self.folder, done, {**state, "curve": self._curve})

    def _autocast(self) -> torch.autocast:
        return torch.autocast(next(self.module.parameters()).device.type, torch.bfloat16, enabled=self.bf16)

    def _descend(self, parts: Iterator[dict[str, Tensor]]) -> None:
        """One step of the optimiser; the gradients of the parts are added up."""
        self.optimizer.zero_grad()
        totals: dict[str, float] = defaultdict(float)
        while True:
            with self._autocast():
                values = next(parts, None)
            if values is None:
                break
            values["loss"].backward()
            for name, value in values.items():
                totals[name] += value.item()
        for name, total in totals.items():
            self._sums[name].append(total)
        nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
        self.optimizer.step()
        self.schedule.step()

    def _log(self, step: int, left: str) -> None:
        """Writes the means of the losses since the last time."""
        means = {name: sum(values) / len(values) for name, values in sorted(self._sums.items())}
        self._sums.clear()
        self._append(step, means)
        logger.info(f"{self.name} step {step}/{self.steps}: {_listed(means)}; {left}")

    def _measure(self, step: int, measure: Callable[[], Mapping[str, float]]) -> None:
        with self._autocast():
            scores = measure()
        self._append(step, {f"held out, {name}": score for name, score in scores.items()})
        logger.info(f"{self.name} step {step}/{self.steps}, held out: {_listed(scores)}")

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

    @abstractmethod
    def pages(self, start: int) -> Batches[Any]:
        """Endless batches to train on, from that of step `start` on."""

    def parts(self, batch: Any) -> list[Any]:
        """The parts of a batch whose gradients are computed one after the other, which takes less memory.

        It is called once a step, before `losses`.
        """
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
    """Settings that the stages from scratch share.

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
        run.model.config.require_embeds_alone(self.name)  # these stages make prompts of embeddings themselves
        torch.manual_seed(self.seed)
        run.model.to(run.device)  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
        task = self.task(run)
        optimizer = OPTIMIZERS[self.optimizer](task.groups(), self.weight_decay, task.module)
        schedule = (self.steps, self.warmup, self.evaluate_every)
        loop = Loop(self.name, task.module, optimizer, folder / self.name, *schedule, self.bf16)
        first = loop.resume()
        if first < self.steps:
            batches = prefetched(task.pages(first), self.workers)

            def losses(step: int) -> Iterator[dict[str, Tensor]]:
                parts = task.parts(next(batches))
                for part in parts:
                    yield {name: value / len(parts) for name, value in task.losses(step, part).items()}

            with eager_attention(run.model.model.language_model) if self.writes_out else nullcontext():
                loop.run(first, losses, task.measure)
        task.finish(run)
