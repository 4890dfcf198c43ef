"""`arr-coc info`: what a model is made of and what it costs."""

import argparse
import json
from dataclasses import asdict

from .common import Command, add_device_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="M", nargs="?", help="folder or org/name (default: the shipped model)")
    size = "side of the image, px, for tokens, FLOPs and --stats (default: the model's)"
    parser.add_argument("--image-size", metavar="S", type=int, help=size)
    parser.add_argument("--budget", metavar="K", help="patches to fetch, for the FLOPs (default: the model's)")
    length = "length of the question, for the FLOPs (default: 16)"
    parser.add_argument("--question-tokens", metavar="L", type=int, default=16, help=length)
    stats = "run the model on a generated image: statistics of each stage, and what is out of range (reads the weights)"
    parser.add_argument("--stats", action="store_true", help=stats)
    scorers = "list every scorer with its parameters and FLOPs at this model's sizes, held by it or not"
    parser.add_argument("--scorers", action="store_true", help=scorers)
    add_device_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from arr_coc.loading import find_model, load_config, load_model
    from arr_coc.profiling.model_summary import describe_model, describe_scorers, report
    from arr_coc.profiling.stages import expected_range, stage_statistics

    if args.question_tokens < 1:
        raise ValueError(f"--question-tokens: expected at least 1; got {args.question_tokens}")
    name = find_model(args.model)
    config = load_config(name)
    description = describe_model(name, config, args.budget, args.question_tokens, args.image_size)
    if args.scorers:
        description["scorers"] = describe_scorers(config, args.question_tokens, args.image_size)
    if args.stats:
        statistics = stage_statistics(load_model(name, args.device), budget=args.budget, image_size=args.image_size)
        description["statistics"] = {
            stage: {**asdict(of), "in_range": of.within(expected_range(stage))} for stage, of in statistics.items()
        }
    print(json.dumps(description, indent=2) if args.json else report(description))


COMMAND = Command(
    name="info",
    summary="show a model's parts, tokens and cost",
    description=(
        "Parameters per part, geometry, tokens per image, and floating-point operations per stage. All of it follows\n"
        "from the config: no weights are read, and the operations are counted by running the model on shapes alone.\n"
        "With --stats the model itself runs, on an image made on the spot, and what comes out of each stage is summed\n"
        "up: the same weights give the same numbers on every machine, up to rounding."
    ),
    examples=(
        "arr-coc info hub_configs/arr-coc-tiny",
        "arr-coc info hub_configs/arr-coc-tiny --budget all --json",
        "arr-coc info hub_configs/arr-coc-tiny --scorers",
        "arr-coc info hub_configs/arr-coc-tiny --stats --image-size 256",
    ),
    add_arguments=add_arguments,
    run=run,
)
