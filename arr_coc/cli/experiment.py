"""`arr-coc experiment` and `arr-coc ablate`: comparisons of strategies, and of the parts of a model.

The ladder, baselines, bounds, a decision under pre-registered criteria; every budget, scorer, allocator and bridge that
a checkpoint can run, one changed at a time.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import (
    METRICS,
    Command,
    add_choice_arguments,
    add_data_arguments,
    add_device_argument,
    add_model_argument,
    add_tiles_argument,
    find_source,
    reading,
)

if TYPE_CHECKING:
    from arr_coc.experiments.experiment import Settings
    from arr_coc.experiments.scoring import Entry


PLACES = ("model", "data", "out", "rules")
"""Keys of the YAML file that are paths, relative to it; `rules` may be the rules themselves, `data` a source."""

ERRORS = ("on_error", "max_errors")
"""Keys with the handling of bad records."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    arms = "arms: strategies, uniform, larger, smaller, patches_only, other_base, oracle, keep_all, peers; STRATEGY@K"
    groups = "STRATEGY+ALLOCATOR; or groups: ladder, baselines, halves, bounds, peers (default: all groups but peers)"
    parser.add_argument("--arms", metavar="A,B", help=f"{arms}, {groups}")
    trained = "arms that the weights were also trained on: larger, smaller, patches_only, keep_all (default: none)"
    parser.add_argument("--trained-on", metavar="A,B", help=trained)
    parser.add_argument("--rules", metavar="RULES.yaml", help="criteria that decide (default: those of the ladder)")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The data, the model and the output folder: the same for experiments and ablations."""
    config = "YAML file with any of the options below by name (batch_size: 32); options override it"
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help=config)
    parser.add_argument("--data", metavar="DATA", help="the questions, as for arr-coc evaluate")
    add_data_arguments(parser)
    add_model_argument(parser)
    parser.add_argument("--out", metavar="OUT", help="output folder; a killed run in it resumes")
    parser.add_argument(
        "--metric", metavar="M", help=f"metric: {METRICS} (default: the format's; exact_match for JSONL)"
    )
    add_choice_arguments(parser)
    add_tiles_argument(parser)
    parser.add_argument("--seeds", metavar="N,N", help="seeds of random relevance, one run each (default: 0,1,2)")
    parser.add_argument("--limit", metavar="N", type=int, help="ask only the first N questions (default: all)")
    parser.add_argument("--batch-size", metavar="N", type=int, help="questions per batch (default: 32)")
    parser.add_argument("--timed", metavar="N", type=int, help="number of timed questions (default: 4)")
    parser.add_argument("--rounds", metavar="N", type=int, help="timings of each (default: 3)")
    again = "recompute numbers and report from the predictions in OUT, without the model; --metric may change"
    parser.add_argument("--rescore", action="store_true", help=again)
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    from arr_coc.experiments.experiment import make_plan

    conduct(args, make_plan, finish, contests=True)


def conduct(
    args: argparse.Namespace,
    plan_for: Callable[..., dict[str, Any]],
    conclude: Callable[..., None],
    *,
    contests: bool = False,
) -> None:
    """Plans, answers and concludes, or only concludes; every process of `accelerate launch` answers its share.

    Args:
        args: of `add_run_arguments`.
        plan_for: from (model, source, records, settings, command) to a plan.
        conclude: called once with (out, records, metric or None) when all is answered.
        contests: whether arms may have weights of their own, which `plan_contest` then plans.

    Raises:
        ValueError: bad settings, a folder that holds another run, or one that another process writes.
    """
    import torch
    from accelerate import PartialState

    from arr_coc.experiments.experiment import Settings, check_data, keep_costs, keep_plan, plan_arms, read_plan
    from arr_coc.files import sole_writer

    _check_rescoring(args)
    options = read_config(args.config)
    named = (*PLACES, *ERRORS, *(field.name for field in fields(Settings)))
    options |= {name: getattr(args, name) for name in named if getattr(args, name, None) is not None}
    if options.get("data") is None and args.format is None:
        raise ValueError("--data: expected one, as an option or in CONFIG.yaml; got none")
    if options.get("out") is None:
        raise ValueError("--out: expected one, as an option or in CONFIG.yaml; got none")
    source, out = find_source(options.pop("data", None), args.format, args.fields), Path(options.pop("out"))
    model_name = options.pop("model", None)
    errors = reading(options.pop("on_error", None), options.pop("max_errors", None))
    settings = make_settings({"metric": source.metric, **options})
    records = list(source.read(limit=settings.limit, **errors))  # rendered records are drawn on every access
    if args.rescore:
        check_data(read_plan(out), source, records)
        with sole_writer(out):
            conclude(out, records, options.get("metric"))
        return
    # By default accelerate takes each of several processes on a machine without accelerators for a single one.
    state = PartialState(cpu=args.device == "cpu" or not torch.accelerator.is_available())
    many = state.num_processes > 1
    device = str(state.device) if many and args.device is None else args.device
    answering = _contest(model_name, device, settings.contest) if contests and settings.contest else None
    planned, predicted, asked = answering or _one_model(model_name, device, plan_for)
    command = "arr-coc " + shlex.join(sys.argv[1:])
    main = state.is_main_process
    with sole_writer(out) if main else nullcontext():
        with state.main_process_first():
            plan = keep_plan(out, planned(source, records, settings, command))
        shard, arms, batch_size = (state.process_index, state.num_processes), plan_arms(plan), settings.batch_size
        how = {"batch_size": batch_size, "shard": shard, "tiles": settings.tiles, "progress": main}
        predicted(arms, records, out / "predictions", **how)
        state.wait_for_everyone()
        if main:
            keep_costs(out, lambda: asked(arms), records, settings)
            conclude(out, records, None)
    if many:
        state.destroy_process_group()


def _check_rescoring(args: argparse.Namespace) -> None:
    """Refuses options that differ from those of existing predictions."""
    told = {"config", "data", "format", "fields", "out", "limit", "metric", "debug", "rescore", *ERRORS}
    given = {name for name, value in vars(args).items() if value not in (None, False) and not callable(value)}
    if args.rescore and (late := sorted(given - told - {"command"})):
        options = ", ".join("--" + name.replace("_", "-") for name in late)
        raise ValueError(f"--rescore: expected no other options than data, limit and metric; got {options}")


Answering = tuple[Callable[..., dict[str, Any]], Callable[..., int], Callable[..., Any]]
"""Functions that make a plan and answer it, and the models of its arms."""


def _one_model(name: str | None, device: str | None, plan_for: Callable[..., dict[str, Any]]) -> Answering:
    """One model answers for all arms."""
    from arr_coc.experiments.experiment import predict
    from arr_coc.publishing.building import load_model

    model = load_model(name, device)
    return partial(plan_for, model), partial(predict, model), lambda arms: [(model, arm) for arm in arms]


def _contest(name: str | None, device: str | None, entries: Sequence[Entry]) -> Answering:
    """Each arm is answered by models of its own."""
    from arr_coc.experiments.contest import first_models, plan_contest, predict_contest
    from arr_coc.publishing.building import load_model

    if name is not None:
        raise ValueError(f"model: expected none beside a contest, whose arms have their own; got {name!r}")
    load = partial(load_model, device=device)
    planned, predicted = partial(plan_contest, load, entries), partial(predict_contest, load, entries)
    return planned, predicted, partial(first_models, load, entries)


def finish(out: Path, records: Any, metric: str | None) -> None:
    """Numbers, report, and a table on standard output."""
    from arr_coc.experiments.experiment import rescore
    from arr_coc.experiments.report import table_text, write_report

    result = rescore(out, records, metric=metric)
    page = write_report(out, result, records)
    print(table_text(result))
    print(page)


def read_config(name: str | None) -> dict[str, Any]:
    """The settings in a YAML file; paths in it become relative to the current folder.

    Raises:
        ValueError: no YAML, or unknown keys.
    """
    from arr_coc.data.formats import Format, open_source
    from arr_coc.experiments.experiment import Settings
    from arr_coc.experiments.scoring import read_entries
    from arr_coc.files import read_yaml

    if name is None:
        return {}
    path = Path(name)
    content = read_yaml(path) or {}
    known = {*PLACES, *ERRORS, *(field.name for field in fields(Settings))}
    if not isinstance(content, dict) or set(content) - known:
        received = sorted(map(str, set(content) - known)) if isinstance(content, dict) else content
        raise ValueError(f"{path}: expected keys among {', '.join(sorted(known))}; got {received}")
    if isinstance(content.get("data"), dict):
        content["data"] = open_source(content["data"], folder=path.parent)
    if "contest" in content:
        content["contest"] = read_entries(content["contest"], path.parent)
    for key in PLACES:
        beside = content.get(key)
        whole = key in ("data", "rules") and isinstance(beside, dict | Format)
        if not (beside is None or isinstance(beside, str) or whole):
            raise ValueError(f"{path}: expected text for {key}; got {beside!r}")
        if isinstance(beside, str) and (key != "model" or (path.parent / beside).exists()):
            content[key] = str(path.parent / beside)
    return content


def make_settings(options: dict[str, Any]) -> Settings:
    """`Settings` from names and values, lists also as text with commas.

    Raises:
        ValueError: a list of the wrong kind, or rules that cannot be read.
    """
    from arr_coc.experiments.experiment import Settings
    from arr_coc.experiments.scoring import read_rules

    settings = dict(options)
    for name in ("arms", "seeds", "trained_on", "contest"):
        value = settings.get(name)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if value is not None and not isinstance(value, list | tuple):
            raise ValueError(f"{name}: expected a list; got {value!r}")
        if value is not None:
            settings[name] = tuple(_seed(seed) for seed in value) if name == "seeds" else tuple(value)
    if isinstance(settings.get("rules"), str):
        settings["rules"] = read_rules(Path(settings["rules"]))
    return Settings(**settings)


def _seed(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--seeds: expected whole numbers with commas between them; got {value!r}") from error


COMMAND = Command(
    name="experiment",
    summary="compare strategies with baselines of as many tokens, under pre-registered criteria",
    description=(
        "Ask every arm the same questions, with the same weights. Arms are strategies (ladder), baselines of as many\n"
        "tokens (a regular lattice; a larger image; a smaller one), halves (patches without base tokens; patches with\n"
        "another page's base tokens, and these alone) and bounds (oracle boxes; all patches). CONFIG.yaml may name\n"
        "arms with weights of their own instead (contest: {NAME: {arm: A, weights: [M, M]}}). Predictions are saved\n"
        "as they are made, so the same command resumes a killed run; under accelerate launch (on CPUs:\n"
        "torchrun --nproc_per_node N -m arr_coc.cli experiment ...) the processes share the images.\n"
        "OUT/report.html has the decision, paired differences, costs, scores by kind of question, and pictures."
    ),
    examples=(
        "arr-coc experiment --data examples/held_out/data.jsonl --out runs/experiment",
        "arr-coc experiment --data examples/held_out/data.jsonl --out runs/experiment --rescore --metric anls",
        "arr-coc experiment experiment.yaml --limit 100 --arms ladder,baselines,halves,peers",
    ),
    add_arguments=add_arguments,
    run=run,
)


def add_ablate_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--peers", action="store_true", help="also measure published pruning rules")


def run_ablate(args: argparse.Namespace) -> None:
    from arr_coc.evaluation.reporting import require_extra
    from arr_coc.experiments.ablation import plan_ablation

    require_extra("matplotlib", "plots")
    conduct(args, partial(plan_ablation, peers=args.peers), finish_ablation)


def finish_ablation(out: Path, records: Any, metric: str | None) -> None:
    """Numbers, report, and the table on standard output."""
    from arr_coc.experiments.ablation import ablation_text, rescore_ablation, write_ablation

    result = rescore_ablation(out, records, metric=metric)
    page = write_ablation(out, result)
    print(ablation_text(result))
    print(page)


ABLATE = Command(
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
    add_arguments=add_ablate_arguments,
    run=run_ablate,
)
