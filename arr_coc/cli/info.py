"""`arr-coc info`: what a model is made of and what it costs."""

import argparse
import json
from dataclasses import asdict

from .common import Command, add_device_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="M", nargs="?", help="folder, or org/name on the Hub (default: the shipped one)"
    )
    size = "side of the image in px, for tokens, FLOPs and --stats (default: the model's)"
    parser.add_argument("--image-size", metavar="S", type=int, help=size)
    parser.add_argument("--budget", metavar="K", help="number of fetched tokens, for the FLOPs (default: the model's)")
    length = "length of the question in tokens, for the FLOPs (default: 16)"
    parser.add_argument("--question-tokens", metavar="L", type=int, default=16, help=length)
    stats = "run the model on a generated image: statistics of each stage, and values out of range (reads the weights)"
    parser.add_argument("--stats", action="store_true", help=stats)
    scorers = "list every registered scorer with its parameters and FLOPs at this model's sizes"
    parser.add_argument("--scorers", action="store_true", help=scorers)
    add_device_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from arr_coc.loading import find_model, load_config, load_model
    from arr_coc.model_summary import describe_model, describe_scorers, expected_range, report, stage_statistics

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
    summary="print a model's parts, tokens and cost",
    description=(
        "Print parameters per part, geometry, tokens per image, and floating-point operations (FLOPs) per stage. All\n"
        "of it follows from the config: no weights are read, and FLOPs are counted on the meta device. With --stats\n"
        "the model runs on a generated image, and the output of each stage is summarized: the same weights give the\n"
        "same numbers on every machine, up to rounding."
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
