"""Recipes: a YAML file that says which stages make a checkpoint, from nothing to its weights.

model: .                   # folder with config.json and the tokenizer, relative to the recipe
seed: 0
stages:
  - stage: reading         # see ReadingStage
    steps: 2400
  - stage: answering       # see AnsweringStage
    steps: 3000
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers.utils import logging

from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor
from arr_coc.training.answering import ANSWERED, AnsweringStage, train_answering
from arr_coc.training.checkpointing import load_weights, save_learner
from arr_coc.training.copying import COPIED, CopyingStage, train_copying
from arr_coc.training.reading import READ, ReadingStage, train_reading

logger = logging.get_logger(__name__)

STAGES: dict[str, type] = {"reading": ReadingStage, "copying": CopyingStage, "answering": AnsweringStage}
Stage = ReadingStage | CopyingStage | AnsweringStage


@dataclass(frozen=True)
class Recipe:
    """What to train.

    Attributes:
        model: the configuration's folder.
        stages: settings in the order they run.
        seed: of the initial weights.
        start: a trained model's folder (with its `LEARNER`) to go on from, or None: from nothing.
    """

    model: Path
    stages: tuple[Stage, ...]
    seed: int = 0
    start: Path | None = None


def _stage(number: int, given: Any) -> Stage:
    if not isinstance(given, dict) or given.get("stage") not in STAGES:
        received = given.get("stage") if isinstance(given, dict) else given
        raise ValueError(f"stages[{number}]: expected stage to be one of {', '.join(STAGES)}; got {received!r}")
    settings = {key: value for key, value in given.items() if key != "stage"}
    kind = STAGES[given["stage"]]
    unknown = set(settings) - {field.name for field in fields(kind)}
    if unknown:
        known = ", ".join(field.name for field in fields(kind))
        raise ValueError(f"stages[{number}] ({given['stage']}): expected settings among {known}; got {sorted(unknown)}")
    return kind(**settings)


def _override(stages: list[Any], setting: str) -> None:
    """Applies "2.steps=100" to the stage of that number."""
    key, equals, value = setting.partition("=")
    number, dot, name = key.partition(".")
    if not (equals and dot and number.isdecimal() and int(number) < len(stages)):
        raise ValueError(f"setting: expected STAGE.NAME=VALUE with a stage of 0 to {len(stages) - 1}; got {setting!r}")
    stages[int(number)][name] = yaml.safe_load(value)


def load_recipe(path: Path, settings: Sequence[str] = ()) -> Recipe:
    """Reads a recipe.

    Args:
        path: the YAML file.
        settings: overrides such as "2.steps=100": the stage's number, the setting, the value.

    Raises:
        ValueError: unknown stages or settings, or no stages.
    """
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict) or not given.get("stages"):
        raise ValueError(f"{path}: expected a mapping with a list of stages; got {type(given).__name__}")
    for setting in settings:
        _override(given["stages"], setting)
    stages = tuple(_stage(number, stage) for number, stage in enumerate(given["stages"]))
    start = None if given.get("start") is None else path.parent / given["start"]
    return Recipe(path.parent / given.get("model", "."), stages, int(given.get("seed", 0)), start)


def train(recipe: Recipe, out: Path, device: torch.device | str = "cpu") -> None:
    """Runs a recipe, or goes on with one that was killed: every stage keeps its checkpoints in `out`.

    Writes the trained checkpoint to `out/model`: weights, configuration, processor, and what training it further needs.
    """
    config = ArrCocConfig.from_pretrained(recipe.model)
    processor = ArrCocProcessor.from_pretrained(recipe.model)
    torch.manual_seed(recipe.seed)
    model = ArrCocForConditionalGeneration(config)
    model.to(torch.device(device))  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
    done: list[Path] = [] if recipe.start is None else [recipe.start]
    for number, stage in enumerate(recipe.stages):
        folder = out / f"stage{number}"
        logger.info(f"stage {number}: {stage}")
        if isinstance(stage, ReadingStage):
            train_reading(config.vision_config, stage, folder, _last(done, READ), device)
            done.append(folder / READ)
        elif isinstance(stage, CopyingStage):
            train_copying(model, processor.tokenizer, stage, folder, _last(done, COPIED))
            done.append(folder / COPIED)
        else:
            train_answering(model, processor.tokenizer, stage, folder, done)
            done.append(folder / ANSWERED)
    model.save_pretrained(out / "model")
    processor.save_pretrained(out / "model")
    if done and done[-1].name == ANSWERED:
        save_learner(load_weights(done[-1]), out / "model")


def _last(done: list[Path], name: str) -> Path | None:
    """The last checkpoint of that name, or the folder that all began with."""
    return next((path for path in done[::-1] if path.name == name or path.is_dir()), None)
