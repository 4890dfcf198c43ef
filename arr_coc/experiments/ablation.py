"""Ablations: arms that change one part of a model at a time, their scores and report.

OUT/plan.yaml, predictions/, costs.json   as for an experiment; the plan has trials in place of rules
OUT/result.json, ablation.csv             one row per trial
OUT/report.html, .md                      the table, and accuracy against tokens and time

Notation: K fetched patches, N patches.
"""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..data.formats import Format
from ..data.records import Record
from ..evaluation.peer_rules import PEERS
from ..evaluation.reporting import (
    Block,
    Figure,
    Heading,
    Paragraph,
    Table,
    milliseconds,
    p_value,
    percent,
    points,
    to_html,
    to_markdown,
    to_text,
)
from ..evaluation.scores import compare_all, read_scored, summary
from ..evaluation.statistics import FEWEST_IMAGES, SIGNIFICANCE
from ..files import fresh_file, write_json, write_text
from ..metrics import METRICS
from ..modeling.allocators import ALLOCATORS, chooses_counts
from ..modeling.bridges import BRIDGES, LinearBridge
from ..modeling.configuration_arr_coc import ArrCocConfig, scaled_budget
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.scorers import SCORERS
from ..modeling.vision_tower import COMPRESSORS
from .experiment import Settings, plan_arms, plan_run, read_costs, read_plan
from .plots import Point, scatter
from .report import bullets, the_run

BUDGETS = (0, 64, 100, 150, 200, 273, 400, "all")
"""Fetched tokens at `REFERENCE_PATCHES` patches; scaled with N on other grids."""

ABSENT = "not in this checkpoint"


@dataclass(frozen=True)
class Trial:
    """One value of one factor.

    Attributes:
        factor: "budget", "scorer", "peer", "allocator", "overlap", "compressor" or "bridge".
        value: the factor's value.
        arm: name of its arm (see `make_arms`); "" if this checkpoint cannot run it.
        note: the reason for that, or the meaning of the value; the report adds the arm's note.
    """

    factor: str
    value: str
    arm: str = ""
    note: str = ""


def make_trials(config: ArrCocConfig, *, peers: bool = False, boxed: bool = True) -> list[Trial]:
    """Trials of every budget and every registered scorer, allocator, compressor and bridge; all else is as configured.

    Args:
        config: config of the model.
        peers: whether to add the published rules.
        boxed: whether every record has boxes, which "oracle" needs.
    """
    subject, patches = config.fetcher_config.strategy, config.vision_config.num_patches
    trials = []
    for budget in BUDGETS:
        scaled = budget if isinstance(budget, str) or not budget else scaled_budget(budget, patches)
        note = "" if scaled == budget else f"{scaled} of {patches} patches here"
        trials.append(Trial("budget", str(budget), f"{subject}@{scaled}", note))
    for name, kind in SCORERS.items():
        if kind.trained and name not in config.fetcher_config.scorers:
            trials.append(Trial("scorer", name, note=ABSENT))
        elif name == "oracle" and not boxed:
            trials.append(Trial("scorer", name, note="not every question has boxes"))
        else:
            trials.append(Trial("scorer", name, name))
    trials += [Trial("peer", name, name) for name in PEERS if peers]
    for name in ALLOCATORS:
        free = "chooses how many, up to the largest tier" if chooses_counts(name) else ""
        trials.append(Trial("allocator", name, f"{subject}+{name}{'@auto' if free else ''}", free))
    return trials + _structure(config, subject)


def _structure(config: ArrCocConfig, subject: str) -> list[Trial]:
    """Trials of choices that the weights were trained for; few of them can be changed later."""
    compressor, bridge = config.vision_config.compressor, config.bridge_config.kind
    trials = [
        Trial("overlap", value, f"{subject}+{value}" if compressor == "mask" else "", "" if compressor == "mask" else
              "base tokens are no patches here")
        for value in ("exclude", "allow")
    ]  # fmt: skip
    for name in COMPRESSORS:
        own = name == compressor
        trials.append(Trial("compressor", name, subject if own else "", "" if own else ABSENT))
    for name in BRIDGES:
        own = name == bridge
        trials.append(Trial("bridge", name, subject if own else "", "" if own else ABSENT))
    if bridge in BRIDGES and issubclass(BRIDGES[bridge], LinearBridge) and BRIDGES[bridge] is not LinearBridge:
        trials.append(Trial("bridge", f"{bridge}, bypassed", f"{subject}+bypass", "its linear projection alone"))
    return trials


def trial_arms(config: ArrCocConfig, trials: Sequence[Trial]) -> list[str]:
    """The distinct arms of the trials. The first is the configured one, to which all others are compared."""
    return list(dict.fromkeys([config.fetcher_config.strategy, *(trial.arm for trial in trials if trial.arm)]))


def plan_ablation(
    model: ArrCocForConditionalGeneration, source: Format, records: Sequence[Record], settings: Settings, command: str,
    *, peers: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """As `make_plan`, with the trials of `make_trials` in place of rules (`peers`: with the published rules).

    Raises:
        ValueError: bad settings, including any arms or rules; or a metric that cannot score the answers.
    """
    for name in ("arms", "rules", "contest"):
        if getattr(settings, name) is not None:
            raise ValueError(f"{name}: expected none for an ablation, which has its own; got {getattr(settings, name)}")
    trials = make_trials(model.config, peers=peers, boxed=all(record.located for record in records))
    settings = replace(settings, arms=tuple(trial_arms(model.config, trials)))
    return {**plan_run(model, source, records, settings, command), "trials": [asdict(trial) for trial in trials]}


def rescore_ablation(out: Path, records: Sequence[Record], *, metric: str | None = None) -> dict[str, Any]:
    """Computes the numbers from the predictions in a folder, without the model; writes result.json and ablation.csv.

    {"metric", "planned_metric", "n", "images", "copies", "subject", "rows", "costs"}; a row is a trial with the arm's
    `summary` under "score", "recall", "mean_tokens" etc., its paired "difference" to the subject with "p_holm",
    "significant" and "detectable", and its "cost". Rows of trials that could not run hold the trial only.

    Args:
        out: the ablation's folder.
        records: of the plan.
        metric: a metric in place of the plan's.

    Raises:
        ValueError: the folder holds no ablation, or predictions are missing.
    """
    plan = read_plan(out)
    if plan.get("trials") is None:
        raise ValueError(f"{out}: expected the folder of an ablation; got an experiment's")
    used = plan["metric"] if metric is None else metric
    scored, items = read_scored(out / "predictions", plan_arms(plan), records, used, plan["patch_size"])
    subject, others = scored[0], scored[1:]
    arms = {of_arm.arm.name: summary(of_arm) for of_arm in scored}
    for comparison in compare_all([(other, subject) for other in others]):
        names = ("difference", "p_holm", "significant", "detectable")
        arms[comparison["first"]].update({name: comparison[name] for name in names})
    measured = read_costs(out)
    of_arm_costs = measured["arms"] if measured else {}
    result = {
        "metric": used,
        "planned_metric": plan["metric"],
        "n": len(items.records),
        "images": items.number_of_images,
        "copies": items.copies,
        "subject": subject.arm.name,
        "rows": [_row(trial, arms.get(trial["arm"]), of_arm_costs.get(trial["arm"])) for trial in plan["trials"]],
        "costs": measured,
    }
    write_json(out / "result.json", result)
    _write_csv(out / "ablation.csv", result["rows"])
    return result


def _row(trial: dict[str, Any], arm: dict[str, Any] | None, cost: dict[str, Any] | None) -> dict[str, Any]:
    if arm is None:
        return trial
    names = (
        "budget", "score", "runs", "recall", "missed", "mean_tokens", "difference", "p_holm", "significant",
        "detectable",
    )  # fmt: skip
    note = "; ".join(filter(None, dict.fromkeys((trial["note"], arm["note"]))))
    return {**trial, "note": note, **{name: arm.get(name) for name in names}, "cost": cost}


COLUMNS = (
    "factor", "value", "arm", "note", "score", "low", "high", "recall", "tokens", "gflop", "p50_ms", "p95_ms", "p99_ms",
    "peak_mb", "difference", "difference_low", "difference_high", "p_holm",
)  # fmt: skip
"""Columns of ablation.csv: scores and differences in shares; empty without a value."""


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with fresh_file(path) as beside, beside.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_flat(row) for row in rows)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {name: row[name] for name in ("factor", "value", "arm", "note")}
    if not row["arm"]:
        return cells
    cells.update(score=row["score"]["value"], low=row["score"]["low"], high=row["score"]["high"])
    cells.update(tokens=row["mean_tokens"], recall=row["recall"]["value"] if row["recall"] else None)
    if row["difference"] is not None:
        of = row["difference"]
        cells.update(difference=of["value"], difference_low=of["low"], difference_high=of["high"], p_holm=row["p_holm"])
    if row["cost"] is not None:
        first = row["cost"]["first_token_ms"]
        cells.update({f"{name}_ms": first[name] for name in ("p50", "p95", "p99")})
        cells.update(gflop=row["cost"]["flops"] / 1e9, peak_mb=row["cost"]["peak_bytes"] / 1e6)
    return cells


def write_ablation(out: Path, result: dict[str, Any]) -> Path:
    """Writes report.html and report.md (with its plots) into the ablation's folder; returns the page's path."""
    plan = read_plan(out)
    title = f"Ablations of {plan['model']} on {plan['data']}"
    head, rows = ablation_rows(result)
    blocks: list[Block] = [
        Paragraph(
            f"{METRICS[result['metric']].title} on {result['n']} questions about {result['images']} images; same "
            f"weights, same questions, one factor changed at a time. Difference: paired, to {result['subject']}, the "
            "checkpoint's own choices."
        ),
        Table(head, rows),
        Paragraph(
            "In brackets: 95 % intervals, drawn by images. * significant: p (sign flips of whole images; Holm, over "
            f"all rows) at most {SIGNIFICANCE:g}, an interval that leaves out 0, and at least {FEWEST_IMAGES} images. "
            "Times: to the first token of one image and one question, the encoder included, the arms taking turns."
        ),
        *bullets([f"{_changed(row)}: {row['note']}." for row in result["rows"] if row["note"]]),
        Heading("Accuracy against cost"),
        *_figures(result),
        *the_run(plan, result),
    ]
    write_text(out / "report.md", to_markdown(title, blocks, out))
    page = out / "report.html"
    write_text(page, to_html(title, blocks))
    return page


def ablation_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the table."""
    metric = METRICS[result["metric"]].title
    head = ["what is changed", f"{metric}, %", "difference, points", "p (Holm)", "recall of boxes, %", "tokens"]
    head += ["GFLOP", "p50, ms", "p95, ms", "p99, ms", "MB"]
    return head, [_cells(row) for row in result["rows"]]


def _cells(row: dict[str, Any]) -> list[str]:
    if not row["arm"]:
        return [_changed(row), "not run", *["-"] * 9]
    difference = p = "-"
    if row["difference"] is not None:
        difference, p = points(row["difference"]) + ("*" if row["significant"] else ""), p_value(row["p_holm"])
    spent = ["-"] * 5
    if row["cost"] is not None:
        first = row["cost"]["first_token_ms"]
        times = [milliseconds(first[name]) for name in ("p50", "p95", "p99")]
        spent = [f"{row['cost']['flops'] / 1e9:.2f}", *times, f"{row['cost']['peak_bytes'] / 1e6:.1f}"]
    numbers = [percent(row["score"]), difference, p, percent(row["recall"]), f"{row['mean_tokens']:.4g}"]
    return [_changed(row), *numbers, *spent]


def _changed(row: dict[str, Any]) -> str:
    return f"{row['factor']} {row['value']}"


def ablation_text(result: dict[str, Any]) -> str:
    """The table as aligned text, for the terminal."""
    return "\n".join([to_text(*ablation_rows(result)), "In brackets: 95 % intervals; * significant."])


def _figures(result: dict[str, Any]) -> list[Block]:
    """One plot per measured cost; trials of the same arm share a mark."""
    run = {row["arm"]: row for row in reversed(result["rows"]) if row["arm"]}  # the first of its trials names the arm
    rows = list(reversed(run.values()))
    axes = [("tokens", "image tokens", [row["mean_tokens"] for row in rows])]
    if all(row["cost"] is not None for row in rows):
        times = [row["cost"]["first_token_ms"]["p50"] for row in rows]
        axes.append(("time", "time to the first token, ms (p50)", times))
    title = f"{METRICS[result['metric']].title}, %"
    caption = "Bars: 95 % intervals; dashed: the Pareto front, what no cheaper arm matches."
    return [
        Figure(f"plot-{name}", scatter(_marks(rows, at), x_title=x_title, y_title=title), caption)
        for name, x_title, at in axes
    ]


def _marks(rows: Sequence[dict[str, Any]], at: Sequence[float]) -> list[Point]:
    """A point for each trial that was run, at its cost."""
    marks = []
    for row, cost in zip(rows, at, strict=True):
        value, low, high = (100 * row["score"][key] for key in ("value", "low", "high"))
        marks.append(Point(row["value"], cost, value, low, high, row["factor"]))
    return marks
