"""`arr-coc analyse`: in which ways a model looks at the images of a data set."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from .common import (
    METRICS,
    Command,
    add_choice_arguments,
    add_device_argument,
    add_model_argument,
    add_passes_argument,
    add_tiles_argument,
)
from .data_arguments import add_data_arguments, find_source, reading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", nargs="?", help="the questions, as for arr-coc evaluate")
    add_data_arguments(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="output folder for analysis.html and analysis.json")
    add_model_argument(parser)
    parser.add_argument("--strategy", metavar="S", help="strategy that scores the patches (default: the model's)")
    add_choice_arguments(parser)
    add_passes_argument(parser)
    parser.add_argument("--clusters", metavar="N", type=int, default=6, help="number of clusters (default: 6)")
    parser.add_argument("--examples", metavar="N", type=int, default=3, help="questions shown per cluster (default: 3)")
    metrics = f"metric of the answers: {METRICS} (default: the format's; exact_match for JSONL)"
    parser.add_argument("--metric", metavar="M", help=metrics)
    add_tiles_argument(parser)
    parser.add_argument("--batch-size", metavar="N", type=int, default=32, help="questions per batch (default: 32)")
    parser.add_argument("--limit", metavar="N", type=int, help="ask only the first N questions (default: all)")
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="seed of clusters and random relevance (default: 0)"
    )
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    from arr_coc.explaining.analysis import analyse
    from arr_coc.explaining.page import clusters_text, write_analysis
    from arr_coc.loading import load_model
    from arr_coc.modeling.fetcher import FetchChoices

    source, out = find_source(args.data, args.format, args.fields), Path(args.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: expected a folder; got a file: {args.out}")
    records = list(source.read(limit=args.limit, **reading(args.on_error, args.max_errors)))
    model = load_model(args.model, args.device)
    choices = FetchChoices(
        strategy=args.strategy, allocator=args.allocator, budget=args.budget, seed=args.seed, num_passes=args.passes
    )
    found = analyse(
        model,
        records,
        choices,
        clusters=args.clusters,
        seed=args.seed,
        examples=args.examples,
        batch_size=args.batch_size,
        metric=source.metric if args.metric is None else args.metric,
        tiles=args.tiles,
        data=source.title,
    )
    out.mkdir(parents=True, exist_ok=True)
    page = write_analysis(out, model, found, "arr-coc " + shlex.join(sys.argv[1:]))
    print(f"{clusters_text(found.numbers)}\n{page}")


COMMAND = Command(
    name="analyse",
    summary="cluster the relevance maps of a data set, and report by kind of question",
    description=(
        "Ask every question of a data set, cluster the relevance maps by k-means, and write a self-contained page,\n"
        "analysis.html. It shows each cluster with its mean map and its most typical questions. It also shows what\n"
        "questions with the same words or tags fetch and from where, with scores, recall and 95 % intervals.\n"
        "analysis.json holds the numbers. Needs scipy (pip install 'arr-coc[eval]')."
    ),
    examples=(
        "arr-coc analyse held_out.jsonl --out why",
        "arr-coc analyse held_out.jsonl --allocator knapsack --clusters 8 --limit 200 --out why",
        "arr-coc analyse --format rendered --with pages=40 --with domains=receipt,table --with size=320 --out why",
    ),
    add_arguments=add_arguments,
    run=run,
)
