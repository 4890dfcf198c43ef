"""`arr-coc reference`: how a model fetches on usual questions, for a server to compare its traffic with."""

import argparse
from pathlib import Path

from .common import Command, add_device_argument
from .data_arguments import add_data_arguments, find_source, reading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="folder of the model; the file is written into it")
    parser.add_argument("data", metavar="DATA", nargs="?", help="typical questions, as for arr-coc evaluate")
    add_data_arguments(parser)
    parser.add_argument(
        "--limit", metavar="N", type=int, default=500, help="ask only the first N questions (default: 500)"
    )
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    from arr_coc.evaluation.fetch_reference import REFERENCE, measure_reference
    from arr_coc.loading import load_model

    folder = Path(args.model).expanduser()
    if not folder.is_dir():
        raise ValueError(f"model: expected a folder, to write {REFERENCE} into; got {args.model!r}")
    source = find_source(args.data, args.format, args.fields)
    records = list(source.read(limit=args.limit, **reading(args.on_error, args.max_errors)))
    reference = measure_reference(load_model(args.model, args.device), records)
    reference.save(folder / REFERENCE)
    for name, own in reference.statistics.items():
        print(f"{name:18} {own.mean:8.4f}")
    print(f"{folder / REFERENCE}: {reference.questions} images of questions, strategy {reference.strategy}")


COMMAND = Command(
    name="reference",
    summary="save what a model fetches on typical questions, to monitor drift in arr-coc serve",
    description=(
        "Ask typical questions without generating answers, and save the distributions of relevance and of the\n"
        "bridge's tokens beside the weights. arr-coc serve compares its traffic with them: metric arr_coc_drift."
    ),
    examples=(
        "arr-coc reference hub_configs/arr-coc-tiny examples/held_out/data.jsonl",
        "arr-coc reference MODEL --format rendered --with pages=100 --limit 1000",
    ),
    add_arguments=add_arguments,
    run=run,
)
