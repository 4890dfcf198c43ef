"""`arr-coc ablate`: every budget, scorer, allocator and bridge that a checkpoint can run, one changed at a time."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from .common import Command
from .experiment import add_run_arguments, conduct


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--peers", action="store_true", help="also measure published pruning rules")


def run(args: argparse.Namespace) -> None:
    from arr_coc.evaluation.reporting import require_extra
    from arr_coc.experiments.ablation import plan_ablation

    require_extra("matplotlib", "plots")
    conduct(args, partial(plan_ablation, peers=args.peers), finish)


def finish(out: Path, records: Any, metric: str | None) -> None:
    """Numbers, report, and the table on standard output."""
    from arr_coc.experiments.ablation import ablation_text, rescore_ablation, write_ablation

    result = rescore_ablation(out, records, metric=metric)
    page = write_ablation(out, result)
    print(ablation_text(result))
    print(page)


COMMAND = Command(
    name="ablate",
    summary="measure each part: budgets, scorers, allocators, bridges",
    description=(
        "Answer the same questions with one part of the model changed at a time: the budget, and every registered\n"
        "scorer, allocator, compressor and bridge that the checkpoint can run. A killed run resumes, and several\n"
        "processes can share the work, as in arr-coc experiment. OUT/report.html has the table and plots of accuracy\n"
        "against tokens and time. OUT/ablation.csv and OUT/result.json have the numbers."
    ),
    examples=(
        "arr-coc ablate --data examples/held_out/data.jsonl --out runs/ablation --limit 300",
        "arr-coc ablate --data examples/held_out/data.jsonl --out runs/ablation --limit 300 --peers",
        "arr-coc ablate --data examples/held_out/data.jsonl --out runs/ablation --limit 300 --rescore --metric anls",
    ),
    add_arguments=add_arguments,
    run=run,
)
