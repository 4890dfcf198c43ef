"""Stage: several stages at once, so that what one teaches another does not undo.

The language model forgets what a stage does not ask for: answering undoes copying, gathering undoes both. Here each
step is one of every part, on a batch of its own, and their losses are summed (rehearsal, as in Robins 1995,
Catastrophic forgetting, rehearsal and pseudorehearsal).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.utils.data import IterableDataset

from ..stages import STAGES, Run, stage_from
from .stage import ScratchStage, Task

_SHARED = ("steps", "warmup", "evaluate_every", "bf16", "weight_decay", "workers", "averaged")
"""What the stage says for all of its parts."""


@STAGES.register("together")
@dataclass(frozen=True)
class TogetherStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        parts: stages from scratch, each as a recipe lists it, with learning rates and a seed (default: the stage's) of
            its own. A weight that several train has the learning rate of the first; one that any holds stays as it is.

    Raises:
        ValueError: fewer than two parts, two of one name, one that is no stage from scratch, or one that says what all
            have in common.
    """

    name: ClassVar[str] = "together"
    leaves_whole: ClassVar[bool] = False

    parts: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [part.name for part in self.stages]
        if len(names) < 2 or len(names) != len(set(names)):
            raise ValueError(f"parts: expected two or more different stages; got {', '.join(names) or 'none'}")

    @cached_property
    def stages(self) -> tuple[ScratchStage, ...]:
        """The parts' settings."""
        return tuple(self._part(number, spec) for number, spec in enumerate(self.parts))

    def _part(self, number: int, spec: Any) -> ScratchStage:
        where = f"parts[{number}]"
        part = stage_from(spec, {"seed": self.seed}, where)
        if not isinstance(part, ScratchStage) or isinstance(part, TogetherStage):
            raise ValueError(f"{where}: expected a stage from scratch; got {spec['stage']!r}")
        own = [name for name in _SHARED if name in spec]
        if own:
            raise ValueError(f"{where}: expected {', '.join(own)} beside the parts, for all of them; got its own")
        return replace(part, **{name: getattr(self, name) for name in _SHARED})

    def task(self, run: Run) -> "Together":
        return Together(self, run)


class Batches(IterableDataset):
    """For each step a batch of every part."""

    def __init__(self, parts: Sequence[IterableDataset]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.parts, strict=True)


class Together(Task):
    """The parts' tasks, on one run."""

    def __init__(self, stage: TogetherStage, run: Run) -> None:
        self.tasks = {part.name: part.task(run) for part in stage.stages}
        self.module = nn.ModuleDict({name: task.module for name, task in self.tasks.items()})

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        groups, known = [], set[int]()
        for task in self.tasks.values():
            for weights, rate in task.groups():
                own = [weight for weight in weights if weight.requires_grad and id(weight) not in known]
                known |= {id(weight) for weight in own}
                groups.append((own, rate))
        return groups

    def pages(self, start: int) -> Batches:
        return Batches([task.pages(start) for task in self.tasks.values()])

    def losses(self, step: int, batch: Sequence[Any]) -> dict[str, Tensor]:
        total: list[Tensor] = []
        logged: dict[str, Tensor] = {}
        for (name, task), own in zip(self.tasks.items(), batch, strict=True):
            losses = task.losses(step, own)
            total.append(losses.pop("loss"))
            logged |= {f"{name}: {part}": loss for part, loss in losses.items()}
        return {"loss": sum(total[1:], total[0]), **logged}

    def measure(self) -> dict[str, float]:
        return {f"{name}: {part}": value for name, task in self.tasks.items() for part, value in task.measure().items()}

    def finish(self, run: Run) -> None:
        for task in self.tasks.values():
            task.finish(run)
