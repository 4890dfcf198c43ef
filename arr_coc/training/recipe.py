"""Recipes: a YAML file that says which stages make a checkpoint, from nothing or from a trained one.

model: .                   # folder with config.json and the tokenizer, relative to the recipe
start: .                   # a trained model's folder to go on from; none: from nothing
config: {fetcher_config: {allocator: tiers}}   # what shall differ from config.json
seed: 0
defaults: {bf16: true}     # settings of every stage that knows them and does not say otherwise
stages:
  - stage: reading         # see ReadingStage
    steps: 2400
  - stage: allocator       # see AllocatorPhase
    steps: 3000
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import PartialState
from transformers.utils import logging

from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor
from arr_coc.training.answering import ANSWERED, AnsweringStage, train_answering
from arr_coc.training.checkpointing import load_weights, save_learner
from arr_coc.training.copying import COPIED, CopyingStage, train_copying
from arr_coc.training.phases import PHASES, Phase, train_phase
from arr_coc.training.reading import READ, ReadingStage, train_reading
from arr_coc.training.resuming import replace_folder

logger = logging.get_logger(__name__)

STAGES: dict[str, type] = {"reading": ReadingStage, "copying": CopyingStage, "answering": AnsweringStage, **PHASES}
Stage = ReadingStage | CopyingStage | AnsweringStage | Phase

_TOP = ("model", "start", "seed")
_KEYS = (*_TOP, "config", "defaults", "stages")


@dataclass(frozen=True)
class Recipe:
    """What to train.

    Attributes:
        model: the configuration's folder.
        stages: settings in the order they run.
        seed: of the initial weights.
        start: a trained model's folder (with its `LEARNER`, for the first three stages) to go on from; None: nothing.
        root: what paths in the stages' data are relative to.
        changes: settings that differ from the configuration's, parts of it as mappings.
    """

    model: Path
    stages: tuple[Stage, ...]
    seed: int = 0
    start: Path | None = None
    root: Path = Path(".")
    changes: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> ArrCocConfig:
        """The configuration with its changes.

        Raises:
            ValueError: a change of what no configuration has, or to what it may not be.
        """
        known = ArrCocConfig.from_pretrained(self.model).to_dict()
        return ArrCocConfig.from_dict(_changed(known, self.changes, "config"))


def _changed(known: Mapping[str, Any], changes: Any, where: str) -> dict[str, Any]:
    """A mapping with changes, inside its mappings too."""
    if not isinstance(changes, Mapping) or set(changes) - set(known):
        received = sorted(set(changes) - set(known)) if isinstance(changes, Mapping) else changes
        raise ValueError(f"{where}: expected settings among {', '.join(known)}; got {received}")
    inner = {name: isinstance(known[name], Mapping) for name in changes}
    made = {k: _changed(known[k], v, f"{where}.{k}") if inner[k] else v for k, v in changes.items()}
    return {**known, **made}


def _stage(number: int, given: Any, defaults: Mapping[str, Any]) -> Stage:
    if not isinstance(given, dict) or given.get("stage") not in STAGES:
        received = given.get("stage") if isinstance(given, dict) else given
        raise ValueError(f"stages[{number}]: expected stage to be one of {', '.join(STAGES)}; got {received!r}")
    settings = {key: value for key, value in given.items() if key != "stage"}
    kind = STAGES[given["stage"]]
    known = [one.name for one in fields(kind)]
    unknown = set(settings) - set(known)
    if unknown:
        expected = f"settings among {', '.join(known)}"
        raise ValueError(f"stages[{number}] ({given['stage']}): expected {expected}; got {sorted(unknown)}")
    try:
        return kind(**{key: value for key, value in defaults.items() if key in known}, **settings)
    except ValueError as error:
        raise ValueError(f"stages[{number}] ({given['stage']}): {error}") from error


def _override(recipe: dict[str, Any], setting: str) -> None:
    """Applies a setting such as those of `load_recipe`.

    Raises:
        ValueError: no NAME=VALUE, or nothing has such a setting.
    """
    key, equals, value = setting.partition("=")
    places, path = _places(recipe, key.split("."))
    if not (equals and places and path and all(path)):
        stages = f"a stage of 0 to {len(recipe['stages']) - 1} or its name"
        expected = f"STAGE.NAME=VALUE with {stages}, or NAME=VALUE of {', '.join(_TOP)} or what a stage has"
        raise ValueError(f"setting: expected {expected}; got {setting!r}")
    defaults = recipe.get("defaults") or {}
    for place in places:
        for name in path[:-1]:
            inner = place.get(name, defaults.get(name))
            place[name] = dict(inner) if isinstance(inner, dict) else {}
            place = place[name]
        place[path[-1]] = yaml.safe_load(value)


def _places(recipe: dict[str, Any], path: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The recipe itself or those of its stages that a dotted name means, and what of the name is left."""
    stages = [stage for stage in recipe["stages"] if isinstance(stage, dict)]
    first, rest = path[0], path[1:]
    if first in _TOP and not rest:
        return [recipe], path
    if first.isdecimal():
        return recipe["stages"][int(first) : int(first) + 1], rest
    named = [stage for stage in stages if stage.get("stage") == first]
    return (named, rest) if named else ([stage for stage in stages if _knows(stage, first)], path)


def _knows(stage: Any, name: str) -> bool:
    kind = STAGES.get(str(stage.get("stage"))) if isinstance(stage, dict) else None
    return kind is not None and name in {one.name for one in fields(kind)}


def load_recipe(path: Path, settings: Sequence[str] = ()) -> Recipe:
    """Reads a recipe.

    Args:
        path: the YAML file.
        settings: overrides: "2.steps=100" or "joint.steps=100" of a stage by number or name, "steps=100" of all that
            have such a setting, "2.data.path=pages.jsonl" inside one, "seed=1" of the recipe.

    Raises:
        ValueError: unknown stages or settings, or no stages.
    """
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict) or not isinstance(given.get("stages"), list) or not given["stages"]:
        raise ValueError(f"{path}: expected a mapping with a list of stages; got {type(given).__name__}")
    unknown = sorted(set(given) - set(_KEYS))
    if unknown:
        raise ValueError(f"{path}: expected {', '.join(_KEYS)}; got {', '.join(unknown)}")
    for setting in settings:
        _override(given, setting)
    defaults = given.get("defaults") or {}
    _check_defaults(defaults, given["stages"])
    stages = tuple(_stage(number, stage, _left(defaults, stage)) for number, stage in enumerate(given["stages"]))
    start = None if given.get("start") is None else path.parent / given["start"]
    model, seed, changes = path.parent / given.get("model", "."), int(given.get("seed", 0)), given.get("config") or {}
    return Recipe(model, stages, seed, start, path.parent, changes)


def _left(defaults: Mapping[str, Any], stage: Any) -> dict[str, Any]:
    """The defaults that a stage leaves standing."""
    return {name: value for name, value in defaults.items() if not (isinstance(stage, dict) and name in stage)}


def _check_defaults(defaults: Any, stages: list[Any]) -> None:
    strange = sorted(name for name in defaults if not any(_knows(stage, name) for stage in stages))
    if strange:
        raise ValueError(f"defaults: expected settings that a stage has; got {', '.join(strange)}")


def train(recipe: Recipe, out: Path, device: torch.device | str = "cpu") -> None:
    """Runs a recipe, or goes on with one that was killed: every stage keeps its checkpoints in `out`.

    Writes the trained checkpoint to `out/model`: weights, configuration, processor, and what training it further needs.

    Raises:
        ValueError: several processes for stages that know one only; a device that Trainer cannot be told.
    """
    config = recipe.config()
    processor = ArrCocProcessor.from_pretrained(recipe.model)
    state = PartialState(cpu=torch.device(device).type == "cpu")
    if state.num_processes > 1 and not all(isinstance(stage, Phase) for stage in recipe.stages):
        raise ValueError(f"stages: expected {', '.join(PHASES)} only, with {state.num_processes} processes; got others")
    torch.manual_seed(recipe.seed)
    model = ArrCocForConditionalGeneration(config)
    done: list[Path] = [] if recipe.start is None else [recipe.start]
    for number, stage in enumerate(recipe.stages):
        folder = out / f"stage{number}"
        if state.is_main_process:
            logger.info(f"stage {number}: {stage}")
        if isinstance(stage, Phase):
            _begin_with(model, done)
            made = train_phase(model, processor, stage, folder, device=torch.device(device), root=recipe.root)
            model = ArrCocForConditionalGeneration.from_pretrained(made)
            done.append(made)
            continue
        model.to(torch.device(device))  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
        if isinstance(stage, ReadingStage):
            train_reading(config.vision_config, stage, folder, _last(done, READ), device)
            done.append(folder / READ)
        elif isinstance(stage, CopyingStage):
            train_copying(model, processor.tokenizer, stage, folder, _last(done, COPIED))
            done.append(folder / COPIED)
        else:
            train_answering(model, processor.tokenizer, stage, folder, done)
            done.append(folder / ANSWERED)
    if state.is_main_process:
        beside = out / "model.tmp"
        model.save_pretrained(beside)
        processor.save_pretrained(beside)
        if done and done[-1].name == ANSWERED:
            save_learner(load_weights(done[-1]), beside)
        replace_folder(beside, out / "model")
    state.wait_for_everyone()


def _begin_with(model: ArrCocForConditionalGeneration, done: Sequence[Path]) -> None:
    """Takes over the folder that all began with; what later stages made is in the model already.

    Raises:
        ValueError: the stage before has not trained a whole model.
    """
    if done and done[-1].name in (READ, COPIED):
        raise ValueError(f"stages: expected a phase after a phase or after answering; got one after {done[-1].stem}")
    if len(done) == 1 and done[0].is_dir():
        # With this configuration: what it adds to the one that was trained with begins untrained.
        trained = ArrCocForConditionalGeneration.from_pretrained(done[0], config=model.config)
        model.load_state_dict(trained.state_dict())


def _last(done: list[Path], name: str) -> Path | None:
    """The last checkpoint of that name, or the folder that all began with."""
    return next((path for path in done[::-1] if path.name == name or path.is_dir()), None)
