"""Stages: what a recipe lists, the registry of them, and what one stage hands to the next."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..files import check_types
from ..modeling.config_fields import Registry
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.processing_arr_coc import ArrCocProcessor


@dataclass
class Run:
    """What the stages of a recipe work on, one after the other.

    Attributes:
        model: as the stages so far have left it; a stage trains it in place or puts another in its place.
        processor: the model's.
        device: where to train.
        root: the folder that paths in a stage's data are relative to.
        learner: states of what only training uses, by their names in a `Learner`: "reading", "visual_pretraining" and
            "language"; empty before a stage has trained them.
    """

    model: ArrCocForConditionalGeneration
    processor: ArrCocProcessor
    device: torch.device = torch.device("cpu")
    root: Path = Path(".")
    learner: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage(ABC):
    """Settings of one stage of a recipe, registered under the name that recipes call it by, and what the stage does.

    Raises:
        ValueError: a value of another type than the setting's.

    A new kind of stage is a frozen dataclass too, registered with `@STAGES.register(name)` and imported in `recipe`.
    """

    from_scratch: ClassVar[bool] = False
    """Whether it uses the run's `learner`, and therefore runs in one process; others train whole models in several."""
    needs_learner: ClassVar[bool] = False
    """Whether a start has to bring the run's `learner`."""
    leaves_whole: ClassVar[bool] = True
    """Whether every part of the model is trained once the stage is done, so that a phase may follow."""

    def __post_init__(self) -> None:
        check_types(self)

    @abstractmethod
    def run(self, run: Run, folder: Path) -> None:
        """Trains `run.model`, or goes on where a killed run stopped.

        Args:
            run: the recipe's, whose model and learner are replaced by what the stage has made of them.
            folder: the stage's own, for its checkpoints.
        """


STAGES: Registry[type[Stage]] = Registry("stage")
"""Name in a recipe -> settings."""


def stage_from(spec: Any, defaults: Mapping[str, Any], where: str) -> Stage:
    """The stage that a recipe lists, with those defaults that it knows.

    Args:
        spec: its settings, and "stage", its name.
        defaults: settings that it does not say.
        where: it is listed, for the messages.

    Raises:
        ValueError: no mapping with a stage's name; a setting that the stage does not have, or may not be so.
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
