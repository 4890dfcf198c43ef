"""What an ablation found, for people: report.html, report.md, and plots of accuracy against cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import write_text
from ..metrics import METRICS
from .blocks import Block, Figure, Heading, Paragraph, Table, to_html, to_markdown, to_text
from .experiment import read_plan
from .number_texts import milliseconds, p_value, percent, points
from .plots import Point, scatter
from .report import bullets, the_run
from .statistics import FEWEST_IMAGES, SIGNIFICANCE


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
    """One plot per cost that was measured; trials that one arm runs share a mark."""
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
    """A point for each of the trials that were run, at their costs."""
    marks = []
    for row, cost in zip(rows, at, strict=True):
        value, low, high = (100 * row["score"][key] for key in ("value", "low", "high"))
        marks.append(Point(row["value"], cost, value, low, high, row["factor"]))
    return marks
