"""`arr-coc train`: runs a recipe, from a configuration to weights."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .common import Command

if TYPE_CHECKING:
    from arr_coc.data.records import Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE.yaml", help="recipe: the stages and their settings")
    out = "output folder for checkpoints and the trained model (default: runs/train)"
    parser.add_argument("--out", metavar="OUT", default="runs/train", help=out)
    parser.add_argument("--device", default="cpu", help="device, as PyTorch names it (default: cpu)")
    adapter = "train only a LoRA adapter of this rank (8 if none is given), on the parts of the recipe's one phase"
    parser.add_argument("--adapter", metavar="RANK", type=int, nargs="?", const=8, help=adapter)
    settings = "override: steps=100 in all stages, 2.steps=100 or joint.steps=100 in one, joint.data.path=x nested"
    parser.add_argument("settings", metavar="SETTING", nargs="*", help=settings)


def run(args: argparse.Namespace) -> None:
    import torch
    from accelerate import PartialState

    from arr_coc.data.sources import open_records
    from arr_coc.training.adapter import train_adapter
    from arr_coc.training.recipe import load_recipe, train

    recipe = load_recipe(Path(args.recipe), args.settings)
    try:
        device = torch.empty(0, device=args.device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device: expected a device of this machine; got {args.device!r}") from error
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("arr_coc.training")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    trained = Path(args.out) / "model"
    try:
        if args.adapter is None:
            usual = None if recipe.reference is None else open_records(recipe.reference, folder=recipe.root)
            train(recipe, Path(args.out), device)
            if usual is not None and PartialState().is_main_process:
                _save_reference(trained, usual, args.device)
        else:
            trained = train_adapter(recipe, Path(args.out), device, rank=args.adapter)
    finally:
        logger.removeHandler(handler)
    state = PartialState()
    if state.is_main_process:
        print(trained)
    if state.num_processes > 1:
        state.destroy_process_group()


def _save_reference(folder: Path, records: "Sequence[Record]", device: str) -> None:
    """Saves beside a trained model how it fetches on usual questions."""
    from arr_coc.evaluation.fetch_reference import REFERENCE, measure_reference
    from arr_coc.loading import load_model

    measure_reference(load_model(str(folder), device), records).save(folder / REFERENCE)


COMMAND = Command(
    name="train",
    summary="train a model by a recipe; a killed run resumes",
    description=(
        "Run the stages of a recipe. Every stage keeps a checkpoint in its own folder of OUT, so the same command\n"
        "resumes a killed run. The trained model is written to OUT/model, with what it fetches on the recipe's\n"
        "`reference` questions (see arr-coc reference). On several devices:\n"
        "accelerate launch --config_file examples/accelerate/ddp.yaml -m arr_coc.cli train RECIPE.yaml ..."
    ),
    examples=(
        "arr-coc train hub_configs/arr-coc-tiny/train.yaml --out runs/tiny",
        "arr-coc train examples/phases.yaml joint.learning_rate=5e-5 --out runs/phases",
        "arr-coc train examples/adapter.yaml data.path=my.jsonl --adapter --out runs/adapter",
        "arr-coc train hub_configs/arr-coc-tiny/train.yaml 0.steps=10 1.steps=10 2.steps=10 3.steps=10 --out runs/try",
    ),
    add_arguments=add_arguments,
    run=run,
)
