"""Stage: several stages at once, so that what one teaches another does not undo (multi-task training).

The language model forgets what a stage does not ask for: answering undoes copying, multi-view training undoes both.
Here each step is one of every part, on a batch of its own, and their losses are summed (rehearsal, as in Robins 1995,
Catastrophic forgetting, rehearsal and pseudorehearsal).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn

from ..stages import STAGES, Run, stage_from
from .stage import Batches, ScratchStage, Task

_SHARED = ("steps", "warmup", "evaluate_every", "bf16", "weight_decay", "optimizer", "workers", "averaged")
"""Settings that the stage sets for all of its parts."""


@STAGES.register("multi_task")
@dataclass(frozen=True)
class MultiTaskStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        parts: settings of stages from scratch, by their names, with learning rates of their own, and possibly an own
            seed and image_size. A weight of several parts has the learning rate of the first; a weight that one part
            freezes stays frozen.
        every: by the name of a costly part, the steps from one of its steps to the next (default: 1).

    Raises:
        ValueError: fewer than two parts, a part that is not a stage from scratch, or one with a common setting;
            `every` for an unknown part, below 1, or for the first part.
    """

    name: ClassVar[str] = "multi_task"
    leaves_whole: ClassVar[bool] = False

    parts: Mapping[str, Any] = field(default_factory=dict)
    every: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(steps < 1 for steps in self.every.values()):
            raise ValueError(f"every: expected at least 1; got {dict(self.every)}")
        names = [part.name for part in self.stages]
        if len(names) < 2:
            raise ValueError(f"parts: expected two or more stages; got {', '.join(names) or 'none'}")
        if set(self.every) - set(names[1:]):
            raise ValueError(f"every: expected steps of {', '.join(names[1:])}; got {dict(self.every)}")

    @cached_property
    def stages(self) -> tuple[ScratchStage, ...]:
        """The parts' settings."""
        return tuple(self._part(name, settings) for name, settings in self.parts.items())

    def _part(self, name: str, settings: Any) -> ScratchStage:
        if not isinstance(settings, Mapping):
            raise ValueError(f"parts: expected settings of {name}; got {settings!r}")
        if own := [shared for shared in _SHARED if shared in settings]:
            raise ValueError(f"parts: expected {', '.join(own)} beside the parts, for all of them; got that of {name}")
        part = stage_from({"stage": name, **settings}, {"seed": self.seed, "image_size": self.image_size}, "parts")
        if not isinstance(part, ScratchStage) or isinstance(part, MultiTaskStage):
            raise ValueError(f"parts: expected stages from scratch; got {name}")
        shared = {name: getattr(self, name) for name in _SHARED}
        return replace(part, **{**shared, "steps": -(-self.steps // self.every.get(name, 1))})

    def task(self, run: Run) -> "MultiTask":
        return MultiTask(self, run)


class PartBatches(Batches[list[Any]]):
    """For each step a batch of every part, or None if the step has none of it."""

    def __init__(self, parts: Sequence[tuple[Batches[Any], int]], start: int) -> None:
        self.parts, self.start = parts, start

    def batch(self, step: int) -> list[Any]:
        return [None if step % every else part.batch(step // every) for part, every in self.parts]


class MultiTask(Task):
    """The parts' tasks, on one run."""

    def __init__(self, stage: MultiTaskStage, run: Run) -> None:
        self.tasks = {part.name: part.task(run) for part in stage.stages}
        self.every = {name: stage.every.get(name, 1) for name in self.tasks}
        self.module = nn.ModuleDict({name: task.module for name, task in self.tasks.items()})

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        groups, known = [], set[int]()
        for task in self.tasks.values():
            for weights, rate in task.groups():
                own = [weight for weight in weights if weight.requires_grad and id(weight) not in known]
                known |= {id(weight) for weight in own}
                groups.append((own, rate))
        return groups

    def pages(self, start: int) -> PartBatches:
        parts = [(task.pages(-(-start // self.every[name])), self.every[name]) for name, task in self.tasks.items()]
        return PartBatches(parts, start)

    def losses(self, step: int, batch: Sequence[Any]) -> dict[str, Tensor]:
        total: list[Tensor] = []
        logged: dict[str, Tensor] = {}
        for (name, task), own in zip(self.tasks.items(), batch, strict=True):
            if own is None:
                continue
            losses = task.losses(step // self.every[name], own)
            total.append(losses.pop("loss"))
            logged |= {f"{name}: {part}": loss for part, loss in losses.items()}
        return {"loss": sum(total[1:], total[0]), **logged}

    def measure(self) -> dict[str, float]:
        return {f"{name}: {part}": value for name, task in self.tasks.items() for part, value in task.measure().items()}

    def finish(self, run: Run) -> None:
        for task in self.tasks.values():
            task.finish(run)
