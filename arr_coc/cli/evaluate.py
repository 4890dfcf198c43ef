"""`arr-coc evaluate`: how well a model answers, strategy by strategy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .common import (
    METRICS,
    Command,
    add_choice_arguments,
    add_device_argument,
    add_model_argument,
    add_passes_argument,
    add_tiles_argument,
    split_names,
    writable,
)
from .data_arguments import add_data_arguments, find_source, reading

if TYPE_CHECKING:
    from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    form = (
        'JSONL file with {"image": path, "question": str, "answers": [str], "boxes": [[x0, y0, x1, y1]]} per line, '
        "boxes optional; or a file in --format; or a YAML file with format, path and other settings"
    )
    parser.add_argument("data", metavar="DATA", nargs="?", help=form)
    add_data_arguments(parser)
    add_model_argument(parser)
    strategies = "strategies, comma-separated, or all (default: all; with oracle if every record has boxes)"
    parser.add_argument("--strategies", metavar="A,B", default="all", help=strategies)
    allocators = "allocators, comma-separated, or all: each strategy runs with each of them (default: --allocator)"
    parser.add_argument("--allocators", metavar="A,B", help=allocators)
    add_choice_arguments(parser)
    add_passes_argument(parser)
    metrics = f"metric of the answers: {METRICS} (default: the format's; exact_match for JSONL)"
    parser.add_argument("--metric", metavar="M", help=metrics)
    add_tiles_argument(parser)
    parser.add_argument("--batch-size", metavar="N", type=int, default=32, help="questions per batch (default: 32)")
    parser.add_argument("--limit", metavar="N", type=int, help="ask only the first N questions (default: all)")
    parser.add_argument("--seed", metavar="N", type=int, help="seed of random relevance (default: one per question)")
    parser.add_argument("--json", metavar="FILE", help="file for the results (default: none)")
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    from arr_coc.evaluation import evaluate
    from arr_coc.evaluation.strategies import with_allocators
    from arr_coc.files import write_json
    from arr_coc.loading import load_model
    from arr_coc.metrics import METRICS
    from arr_coc.modeling.detail_allocators import ALLOCATORS

    source = find_source(args.data, args.format, args.fields)
    metric = source.metric if args.metric is None else args.metric
    METRICS[metric]  # a ValueError before records and model are loaded
    if args.allocators is not None and args.allocator is not None:
        raise ValueError("--allocators: expected it without --allocator; got both")
    target = None if args.json is None else writable(args.json, "--json")
    records = list(source.read(limit=args.limit, **reading(args.on_error, args.max_errors)))
    model = load_model(args.model, args.device)
    every = all(record.located for record in records)
    strategies = (
        usable_strategies(model, oracle=every)
        if args.strategies == "all"
        else split_names(args.strategies, "--strategies")
    )
    if args.allocators is not None:
        every_one = args.allocators == "all"
        strategies = with_allocators(
            strategies, [*ALLOCATORS] if every_one else split_names(args.allocators, "--allocators")
        )
    result = evaluate(
        model,
        records,
        strategies,
        batch_size=args.batch_size,
        budget=args.budget,
        allocator=args.allocator,
        seed=args.seed,
        num_passes=args.passes,
        metric=metric,
        tiles=args.tiles,
        data=source.title,
    )
    print(table(result["strategies"], metric))
    if target is not None:
        write_json(target, result)


def usable_strategies(model: ArrCocForConditionalGeneration, *, oracle: bool) -> list[str]:
    """The strategies that this checkpoint can run, fixed rules and trained scorers, in the registry's order."""
    from arr_coc.modeling.scorers import SCORERS

    held = model.config.fetcher_config.scorers
    usable = [name for name, kind in SCORERS.items() if not kind.trained or name in held]
    return [name for name in usable if oracle or name != "oracle"]


def table(strategies: dict[str, dict[str, Any]], metric: str = "exact_match") -> str:
    """The results as aligned text, intervals in brackets."""
    from arr_coc.evaluation.reporting import to_text
    from arr_coc.metrics import METRICS

    head = ["strategy", METRICS[metric].title, "recall of boxed patches", "tokens", "n"]
    rows = [
        [name, _share(row[metric]), _share(row["recall"]), f"{row['tokens']:g}", str(row["n"])]
        for name, row in strategies.items()
    ]
    if any("not_on_the_page" in row for row in strategies.values()):
        head += ["precision of not on the page", "recall of not on the page"]
        for cells, row in zip(rows, strategies.values(), strict=True):
            cells += [_share(row["not_on_the_page"][name]) for name in ("precision", "recall")]
    if any("pages" in row for row in strategies.values()):
        head += ["right page: best patch", "right page: most patches"]
        for cells, row in zip(rows, strategies.values(), strict=True):
            cells += [_share(row.get("pages", {}).get(name)) for name in ("best", "most")]
    return "\n".join([to_text(head, rows), "In brackets: 95 % intervals."])


def _share(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "-"
    value, low, high = (100 * interval[name] for name in ("value", "low", "high"))
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"


COMMAND = Command(
    name="evaluate",
    summary="measure accuracy and recall on questions with known answers",
    description=(
        "Ask every question of a data set with every strategy, and print the metric, recall of the patches under the\n"
        "boxes, and image tokens per question, with 95 % intervals. Exact match ignores white space, not case. If the\n"
        'data set has questions about absent fields, the table also has precision and recall of "not on the page".\n'
        "A question may have several images, or a PDF or video: one budget covers all of them. If the page of the\n"
        "answer is known, the last columns give the share of questions whose patch of the highest relevance, and\n"
        "whose most patches, came from it; then intervals are drawn by documents."
    ),
    examples=(
        "arr-coc evaluate held_out.jsonl --strategies none,random,realizer",
        "arr-coc evaluate held_out.jsonl --strategies all --allocators all --limit 100",
        "arr-coc evaluate held_out.jsonl --model ./my-model --limit 100 --metric anls --json results.json",
        "arr-coc evaluate out/invoices/data.jsonl --strategies none,realizer --tiles asked",
        "arr-coc evaluate val.json --format textvqa --with images=train_images --with ocr=rosetta.json",
    ),
    add_arguments=add_arguments,
    run=run,
)
