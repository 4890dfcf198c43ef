"""`arr-coc render` and `arr-coc train`: pages with questions, and recipes from a configuration to weights."""

import argparse
from pathlib import Path

from .common import command, training_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", metavar="RECIPE.yaml", help="recipe: the stages and their settings")
    out = "output folder for checkpoints and the trained model (default: runs/train)"
    add("--out", metavar="OUT", default="runs/train", help=out)
    add("--device", default="cpu", help="device, as PyTorch names it (default: cpu)")
    adapter = "train only a LoRA adapter of this rank (8 if none is given), on the parts of the recipe's one phase"
    add("--adapter", metavar="RANK", type=int, nargs="?", const=8, help=adapter)
    settings = "override: steps=100 in all stages, 2.steps=100 or joint.steps=100 in one, joint.data.path=x nested"
    add("settings", metavar="SETTING", nargs="*", help=settings)


@command("train", "train a model by a recipe; a killed run resumes", add_arguments)
def train_command(args: argparse.Namespace) -> None:
    """Run the stages of a recipe. Every stage keeps a checkpoint in its own folder of OUT, so the same command
    resumes a killed run. The trained model is written to OUT/model, with what it fetches on the recipe's
    `reference` questions (see arr-coc reference). On several devices:
    accelerate launch --config_file examples/accelerate/ddp.yaml -m arr_coc.cli train RECIPE.yaml ...
    A recipe with the stage attached_scorer trains the scorer of a published model (Qwen3-VL, ...); other
    commands take OUT/model for that model with its scorer.

    Examples:
        arr-coc train examples/phases.yaml joint.learning_rate=5e-5 --out runs/phases
        arr-coc train examples/adapter.yaml 'data={format: jsonl, path: ../my.jsonl}' --adapter --out runs/adapter
        arr-coc train examples/attached.yaml model=Qwen/Qwen3-VL-2B-Instruct --device cuda --out runs/attached
        arr-coc train examples/phases.yaml steps=2 data.pages=4 held_out.pages=2 --out runs/try
    """
    from accelerate import PartialState

    from arr_coc.data.formats import check_files, open_records
    from arr_coc.evaluation.fetch_reference import REFERENCE, measure_reference
    from arr_coc.loading import find_device, load_model
    from arr_coc.training.recipe import load_recipe, train, train_adapter

    if args.adapter is not None and args.adapter < 1:
        raise ValueError(f"--adapter: expected a rank from 1; got {args.adapter}")
    device, recipe = find_device(args.device), load_recipe(Path(args.recipe), args.settings)
    for stage in recipe.stages:
        for name in ("data", "held_out"):
            check_files(getattr(stage, name, None), recipe.root)
    trained = Path(args.out) / "model"
    with training_log():
        if args.adapter is None:
            usual = None if recipe.reference is None else open_records(recipe.reference, folder=recipe.root)
            train(recipe, Path(args.out), device)
            if usual is not None and PartialState().is_main_process:  # how the model fetches on usual questions
                measure_reference(load_model(str(trained), args.device), usual).save(trained / REFERENCE)
        else:
            trained = train_adapter(recipe, Path(args.out), device, rank=args.adapter)
    state = PartialState()
    if state.is_main_process:
        print(trained)
    if state.num_processes > 1:
        state.destroy_process_group()


DOMAINS = "browser, document, form, generated, question_kinds, stacked"
VARIATIONS = {
    "photo": "share of pages as simulated photographs: at an angle, in uneven light, compressed",
    "absent": "share of questions about fields that the page does not show",
    "unheard": "share of these that are about names that no page has as a field",
    "turns": "share of questions in the second turn of a chat about the page",
}


def add_render_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", metavar="OUT", help="output folder for data.jsonl and images/; must be empty or not exist")
    add("--pages", metavar="N", type=int, default=400, help="number of pages (default: 400)")
    add("--questions", metavar="N", type=int, default=3, help="questions per page, at most (default: 3)")
    add("--seed", metavar="N", type=int, default=2026, help="seed of the pages (default: 2026)")
    add("--size", metavar="PX", type=int, default=256, help="side of a page in px (default: 256)")
    domain = f"kinds of pages, drawn in turn: {DOMAINS} (default: document)"
    add("--domain", metavar="NAME[,NAME]", default="document", help=domain)
    split = "split of fonts, layouts, wordings and words; validation has train's layouts (default: test)"
    add("--split", choices=("train", "validation", "test"), default="test", help=split)
    for name, what in VARIATIONS.items():
        add(f"--{name}", metavar="SHARE", type=float, default=0.0, help=f"{what} (default: 0)")
    add("--force", action="store_true", help="replace OUT if it has files")


@command("render", "draw pages with questions, answers and boxes", add_render_arguments)
def render_command(args: argparse.Namespace) -> None:
    """Write pages as images, and a JSONL file of questions, answers and boxes. The default domain is lines of
    `field value`; the fonts, layouts and words of --split test are in no training. --domain chooses other kinds
    of pages. The same options and fonts give the same files.
    OUT is written in one step or not at all.

    Examples:
        arr-coc render out/pages --pages 100
        arr-coc render out/train --split train --seed 1
        arr-coc render out/mixed --domain document,form,browser --size 768
        arr-coc render out/photos --domain browser --photo 1 --absent 0.2 --turns 0.3
    """
    from arr_coc.data.formats import Rendered
    from arr_coc.data.writing import write_questions

    if args.unheard and not args.absent:
        raise ValueError(f"--unheard: expected --absent above 0, of which it is a share; got {args.absent:g}")
    same = {name: getattr(args, name) for name in ("pages", "questions", "seed", "size", "split", *VARIATIONS)}
    print(write_questions(Path(args.out), Rendered(domains=args.domain, **same), force=args.force))
