"""Recipes: a YAML file that says which stages make a checkpoint, from nothing to its weights.

model: .                   # folder with config.json and the tokenizer, relative to the recipe
seed: 0
stages:
  - stage: reading         # see ReadingStage
    steps: 2400
  - stage: answering       # see AnsweringStage
    steps: 3000
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers.utils import logging

from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor
from arr_coc.training.answering import AnsweringStage, train_answering
from arr_coc.training.reading import ReadingStage, train_reading

logger = logging.get_logger(__name__)

STAGES: dict[str, type] = {"reading": ReadingStage, "answering": AnsweringStage}


@dataclass(frozen=True)
class Recipe:
    """`model`: the configuration's folder; `stages`: settings in the order they run; `seed`: of the initial weights."""

    model: Path
    stages: tuple[ReadingStage | AnsweringStage, ...]
    seed: int = 0


def _stage(number: int, given: Any) -> ReadingStage | AnsweringStage:
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


def load_recipe(path: Path) -> Recipe:
    """Reads a recipe.

    Raises:
        ValueError: unknown stages or settings, or no stages.
    """
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict) or not given.get("stages"):
        raise ValueError(f"{path}: expected a mapping with a list of stages; got {type(given).__name__}")
    stages = tuple(_stage(number, stage) for number, stage in enumerate(given["stages"]))
    return Recipe(path.parent / given.get("model", "."), stages, int(given.get("seed", 0)))


def train(recipe: Recipe, out: Path) -> None:
    """Runs a recipe, or goes on with one that was killed: every stage keeps its checkpoints in `out`.

    Writes the trained checkpoint (weights, configuration, processor) to `out/model`.
    """
    config = ArrCocConfig.from_pretrained(recipe.model)
    processor = ArrCocProcessor.from_pretrained(recipe.model)
    torch.manual_seed(recipe.seed)
    model = ArrCocForConditionalGeneration(config)
    before: Path | None = None
    for number, stage in enumerate(recipe.stages):
        folder = out / f"stage{number}"
        logger.info(f"stage {number}: {stage}")
        if isinstance(stage, ReadingStage):
            train_reading(config.vision_config, stage, folder, before)
            before = folder / "reading.pt"
        else:
            train_answering(model, processor.tokenizer, stage, folder, before)
            before = folder / "answering.pt"
    model.save_pretrained(out / "model")
    processor.save_pretrained(out / "model")
