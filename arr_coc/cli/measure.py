"""`arr-coc measure`: all that a card says of a checkpoint, from the data sets of a suite."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .common import Command, add_device_argument, add_model_argument, share_or_number, tiles_of, writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    suite = "YAML file with data sets, their arms, and tags to report by"
    parser.add_argument("suite", metavar="SUITE", nargs="?", help=suite)
    bench = "instead of SUITE: a folder of sources, each a folder with data.jsonl and its images"
    parser.add_argument("--bench", metavar="DIR", help=bench)
    parser.add_argument("--sources", metavar="NAME", nargs="+", help="names of sources in DIR (default: all)")
    tiles = "with --bench, tiles of large images: auto, all, asked, never, or a number (default: the model's)"
    parser.add_argument("--tiles", metavar="T", type=tiles_of, help=tiles)
    strategies = "with --bench, what decides what is fetched (default: the model's)"
    parser.add_argument("--strategy", metavar="S", help=strategies)
    budgets = (
        "with --bench, patches to fetch: a number or a name; of a published model also a share of its image tokens"
    )
    parser.add_argument("--budget", metavar="K", help=f"{budgets} (default: the model's, or 0.25)")
    answers = "with --bench, JSONL file of the answers; a run resumes after those that it holds (default: none)"
    parser.add_argument("--predictions", metavar="FILE", help=answers)
    add_model_argument(parser)
    splits = "split of rendered pages: validation to decide, test to report (default: the suite's)"
    parser.add_argument("--split", choices=("train", "validation", "test"), help=splits)
    parser.add_argument("--sets", metavar="A,B", help="names of sets in SUITE (default: all)")
    parser.add_argument("--limit", metavar="N", type=int, help="ask only the first N questions of each set or source")
    size = "questions per batch of a suite (default: 32; --bench asks one at a time)"
    parser.add_argument("--batch-size", metavar="N", type=int, help=size)
    parser.add_argument("--json", metavar="FILE", help="file for the results (default: none)")
    add_device_argument(parser)


_OF_A_SUITE = ("split", "sets", "batch_size")
_OF_A_BENCH = ("sources", "tiles", "strategy", "budget", "predictions")


def run(args: argparse.Namespace) -> None:
    if (args.suite is None) == (args.bench is None):
        raise ValueError(f"measure: expected SUITE or --bench DIR; got {'both' if args.suite else 'neither'}")
    for name in _OF_A_BENCH if args.bench is None else _OF_A_SUITE:
        if getattr(args, name) is not None:
            needed = "--bench DIR" if args.bench is None else "SUITE"
            raise ValueError(f"--{name.replace('_', '-')}: expected it with {needed}; got it without")
    target = None if args.json is None else writable(args.json, "--json")
    result, text = _of_suite(args) if args.bench is None else _of_bench(args)
    print(text)
    if target is not None:
        from arr_coc.files import write_json

        write_json(target, result)


def _of_suite(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from arr_coc.evaluation.suite import measure_suite, read_suite, suite_text
    from arr_coc.loading import load_model

    sets = read_suite(Path(args.suite), args.split)
    if args.sets is not None:
        wanted = [name.strip() for name in args.sets.split(",")]
        known = {each.name: each for each in sets}
        if unknown := sorted(set(wanted) - set(known)):
            raise ValueError(f"--sets: expected names among {', '.join(known)}; got {', '.join(unknown)}")
        sets = [known[name] for name in wanted]
    model = load_model(args.model, args.device)
    size = 32 if args.batch_size is None else args.batch_size
    result = measure_suite(model, sets, limit=args.limit, batch_size=size)
    return result, suite_text(result)


def _of_bench(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from arr_coc.attached.loading import load_reader
    from arr_coc.evaluation.bench import ModelReader, ask_bench, bench_text, read_bench, score_bench
    from arr_coc.evaluation.reporting import environment, require_extra, shown
    from arr_coc.loading import load_model

    require_extra("scipy.stats", "intervals")
    bench = read_bench(Path(args.bench), args.sources, limit=args.limit)
    predictions = None if args.predictions is None else writable(args.predictions, "--predictions")
    reader = load_reader(args.model, args.device)
    model: Any = load_model(args.model, args.device) if reader is None else reader.model
    if reader is not None and args.tiles is not None:
        raise ValueError(f"--tiles: expected none with a {model.config.model_type} model; got {args.tiles}")
    named = {"strategy": args.strategy, "budget": args.budget}
    choices: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if reader is not None and args.budget is not None:
        choices["budget"] = share_or_number(args.budget)
    name = shown(model.config._name_or_path)
    asked = ModelReader(reader or model, args.tiles, **choices)
    answers = ask_bench(asked, name, bench, predictions=predictions)
    result = {**score_bench(bench, answers), "model": name, **environment(model.device)}
    return result, bench_text(result)


COMMAND = Command(
    name="measure",
    summary="measure a checkpoint on several data sets in one run, or on a bench of real pages",
    description=(
        "Ask all questions of the data sets in SUITE with the arms that it names for each (as in arr-coc experiment),\n"
        'and print one table: accuracy, recall of the boxed patches, tokens, precision and recall of "not on the\n'
        'page", and the right page of several. Then print tables by tags of the records, and the effect of another\n'
        "page's base tokens. Intervals are 95 %, drawn by images or documents. With --bench: ask about real pages as\n"
        "a user would, and print by source and on average exact match (by each record's `match`: alnum, relaxed, or\n"
        "ignoring case) and ANLS, seconds, and how well the confidence predicts right answers."
    ),
    examples=(
        "arr-coc measure examples/measured.yaml --split validation --limit 60",
        "arr-coc measure examples/measured.yaml --model runs/floor/model --json measured.json",
        "arr-coc measure --bench ../bench --sources sroie funsd --limit 20 --predictions answers.jsonl",
        "arr-coc measure --bench ../bench --model Qwen/Qwen3-VL-2B-Instruct --budget 0.25",
    ),
    add_arguments=add_arguments,
    run=run,
)
