"""`arr-coc experiment`: does running back help? The ladder, fair baselines, bounds; a decision by rules made before."""

import argparse
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from accelerate import PartialState

from ..data.records import read_records
from ..evaluating.deciding import read_rules
from ..evaluating.experiment import (
    Settings,
    check_data,
    keep_costs,
    keep_plan,
    make_plan,
    plan_arms,
    predict,
    read_plan,
    rescore,
)
from ..evaluating.metrics import METRICS
from ..evaluating.report import table_text, write_report
from .common import Command, add_choice_arguments, add_device_argument, add_model_argument, load_model

PLACES = ("model", "data", "out", "rules")
"""Keys of the YAML file that are paths, relative to it; `rules` may be the rules themselves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config = "any of the options below by name (batch_size: 32), and rules; options win"
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help=config)
    parser.add_argument("--data", metavar="DATA.jsonl", help="the questions, as for evaluate")
    add_model_argument(parser)
    parser.add_argument("--out", metavar="OUT", help="folder for all that is written; goes on where it stopped")
    arms = "strategies, uniform, larger, smaller, oracle, keep_all (default: all that can run); STRATEGY@K"
    parser.add_argument("--arms", metavar="A,B", help=arms)
    parser.add_argument("--metric", metavar="M", help=f"{', '.join(METRICS)} (default: exact_match)")
    add_choice_arguments(parser)
    parser.add_argument("--seeds", metavar="N,N", help="of random relevance, one run each (default: 0,1,2)")
    parser.add_argument("--rules", metavar="RULES.yaml", help="what will decide (default: those of the ladder)")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N questions")
    parser.add_argument("--batch-size", metavar="N", type=int, help="questions at a time (default: 32)")
    parser.add_argument("--timed", metavar="N", type=int, help="questions that are timed (default: 4)")
    parser.add_argument("--rounds", metavar="N", type=int, help="how often each is timed (default: 3)")
    again = "numbers and report from the predictions in OUT, without the model; --metric may be another"
    parser.add_argument("--rescore", action="store_true", help=again)
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    given = read_config(args.config)
    named = (*PLACES, "arms", "metric", "budget", "allocator", "seeds", "limit", "batch_size", "timed", "rounds")
    given |= {name: getattr(args, name) for name in named if getattr(args, name) is not None}
    for name in ("data", "out"):
        if given.get(name) is None:
            raise ValueError(f"--{name}: expected one, as an option or in CONFIG.yaml; got none")
    data, out = Path(given.pop("data")), Path(given.pop("out"))
    model_name = given.pop("model", None)
    settings = make_settings(given)
    records = read_records(data, limit=settings.limit)
    if args.rescore:
        check_data(read_plan(out), data, records)
        finish(out, records, given.get("metric"))
        return
    state = PartialState()
    many = state.num_processes > 1
    model = load_model(model_name, str(state.device) if many and args.device is None else args.device)
    command = "arr-coc " + shlex.join(sys.argv[1:])
    with state.main_process_first():
        plan = keep_plan(out, make_plan(model, data, records, settings, command))
    shard = (state.process_index, state.num_processes)
    arms, batch_size = plan_arms(plan), settings.batch_size
    predict(model, arms, records, out / "predictions", batch_size=batch_size, shard=shard)
    state.wait_for_everyone()
    if state.is_main_process:
        keep_costs(out, model, arms, records, settings)
        finish(out, records, None)


def finish(out: Path, records: Any, metric: str | None) -> None:
    """Numbers, report, and a table on standard output."""
    result = rescore(out, records, metric=metric)
    page = write_report(out, result, records)
    print(table_text(result))
    print(page)


def read_config(name: str | None) -> dict[str, Any]:
    """The settings in a YAML file, paths in it made relative to where we are.

    Raises:
        ValueError: no YAML, or keys that mean nothing.
    """
    if name is None:
        return {}
    path = Path(name)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected YAML; got {error}") from error
    known = {*PLACES, *(field.name for field in fields(Settings))}
    if not isinstance(content, dict) or set(content) - known:
        received = sorted(set(content) - known) if isinstance(content, dict) else content
        raise ValueError(f"{path}: expected keys among {', '.join(sorted(known))}; got {received}")
    for key in PLACES:
        beside = content.get(key)
        if isinstance(beside, str) and (key != "model" or (path.parent / beside).exists()):
            content[key] = str(path.parent / beside)
    return content


def make_settings(given: dict[str, Any]) -> Settings:
    """`Settings` from names and values, lists also as text with commas.

    Raises:
        ValueError: a list of the wrong kind, or rules that cannot be read.
    """
    made = dict(given)
    for name in ("arms", "seeds"):
        value = made.get(name)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if value is not None:
            made[name] = tuple(value) if name == "arms" else tuple(_seed(one) for one in value)
    if isinstance(made.get("rules"), str):
        made["rules"] = read_rules(Path(made["rules"]))
    return Settings(**made)


def _seed(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--seeds: expected whole numbers with commas between them; got {value!r}") from error


COMMAND = Command(
    name="experiment",
    summary="compare strategies with fair baselines, and decide by rules made before",
    description=(
        "Answer the same questions by every arm with the same weights: the ladder of strategies, baselines of as many\n"
        "tokens (a regular lattice; a larger image; a smaller one), bounds (oracle boxes; all patches). Predictions\n"
        "are kept as they are made, so the same command goes on with a run that was killed; under accelerate launch\n"
        "the processes share the images. OUT/report.html has the decision, paired differences, costs and pictures."
    ),
    examples=(
        "arr-coc experiment --data examples/held_out/data.jsonl --out runs/experiment",
        "arr-coc experiment --data examples/held_out/data.jsonl --out runs/experiment --rescore --metric anls",
        "arr-coc experiment experiment.yaml --limit 100",
    ),
    add_arguments=add_arguments,
    run=run,
)
