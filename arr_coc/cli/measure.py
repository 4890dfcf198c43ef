"""`arr-coc measure`: all that a card says of a checkpoint, from the data sets of a suite."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import Command, add_device_argument, add_model_argument, writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", metavar="SUITE", help="YAML file with data sets, the arms that answer, and what by")
    add_model_argument(parser)
    splits = "of rendered pages, in place of the file's: validation to decide, test to report"
    parser.add_argument("--split", choices=("train", "validation", "test"), help=splits)
    parser.add_argument("--sets", metavar="A,B", help="only these of its sets")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N questions of each set")
    parser.add_argument("--batch-size", metavar="N", type=int, default=32, help="questions at a time (default: 32)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    from arr_coc.evaluating.suite import measure_suite, read_suite, suite_text
    from arr_coc.files import write_json
    from arr_coc.loading import load_model

    sets = read_suite(Path(args.suite), args.split)
    if args.sets is not None:
        wanted = [name.strip() for name in args.sets.split(",")]
        known = {each.name: each for each in sets}
        if unknown := sorted(set(wanted) - set(known)):
            raise ValueError(f"--sets: expected names among {', '.join(known)}; got {', '.join(unknown)}")
        sets = [known[name] for name in wanted]
    target = None if args.json is None else writable(args.json, "--json")
    model = load_model(args.model, args.device)
    result = measure_suite(model, sets, limit=args.limit, batch_size=args.batch_size)
    print(suite_text(result))
    if target is not None:
        write_json(target, result)


COMMAND = Command(
    name="measure",
    summary="measure a checkpoint on several data sets in one run",
    description=(
        "Ask all questions of the data sets that a YAML file names, by the arms that it names for each (as in arr-coc\n"
        'experiment), and print one table: what is right, recall of the boxed patches, tokens; how often "not on the\n'
        'page" is right and of how many such questions it is said; the right page of several. Then tables by tags of\n'
        "the records, and what another page's base tokens change. Intervals are 95 %, drawn by images or documents."
    ),
    examples=(
        "arr-coc measure examples/measured.yaml --split validation --limit 60",
        "arr-coc measure examples/measured.yaml --model runs/floor/model --json measured.json",
    ),
    add_arguments=add_arguments,
    run=run,
)
