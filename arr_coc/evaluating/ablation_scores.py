"""From the predictions of an ablation to its table: no model is needed.

OUT/plan.yaml, predictions/, costs.json   as of an experiment; the plan has trials in place of rules
OUT/result.json, ablation.csv             one row per trial
OUT/report.html, .md                      the table, and accuracy against tokens and time
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.records import Record
from ..files import fresh_file, write_json
from .experiment import plan_arms, read_costs, read_plan
from .scores import compare_all, read_scored, summary


def rescore_ablation(out: Path, records: Sequence[Record], *, metric: str | None = None) -> dict[str, Any]:
    """The numbers from the predictions in a folder, without the model; writes result.json and ablation.csv.

    {"metric", "planned_metric", "n", "images", "copies", "subject", "rows", "costs"}; a row is a trial with the arm's
    `summary` under "score", "recall", "mean_tokens" etc., its paired "difference" to the subject with "p_holm",
    "significant" and "detectable", and its "cost". Rows of trials that could not run hold the trial alone.

    Args:
        out: the ablation's folder.
        records: of the plan.
        metric: another than the plan's.

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
"""Of ablation.csv: scores and differences in shares; empty where there is none."""


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
