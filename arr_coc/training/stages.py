"""Stages: the entries of a recipe, their registry, and the state that one stage passes to the next."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
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
