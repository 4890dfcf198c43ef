"""What an ablation found, for people: report.html, report.md, and matplotlib's plots of accuracy against cost."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..metrics import METRICS
from .blocks import Block, Figure, Heading, Paragraph, Table, to_html, to_markdown, to_text
from .experiment import read_plan
from .plotting import pareto_front, ticks
from .report import bullets, p_value, percent, points, the_run
from .statistics import SIGNIFICANCE

MARKERS = {
    "budget": "o", "scorer": "s", "peer": "D", "allocator": "^", "overlap": "v", "compressor": "P", "bridge": "X"
}  # fmt: skip
"""Factors are told apart by shape, and by colour."""

LABEL = 7.5
"""Height of a mark's name, points."""


def check_plots() -> None:
    """Refuses where nothing can be drawn, before hours of answers.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError("plots: expected matplotlib (pip install arr-coc[eval]); got none") from error


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
            "In brackets: 95 % intervals. * significant: p (Holm, over all rows) at most "
            f"{SIGNIFICANCE:g} and an interval that leaves out 0. Times: to the first token of one image and one "
            "question, the encoder included, the arms taking turns."
        ),
        *bullets([f"{_changed(row)}: {row['note']}." for row in result["rows"] if row["note"]]),
        Heading("Accuracy against cost"),
        *_figures(result),
        *the_run(plan, result),
    ]
    (out / "report.md").write_text(to_markdown(title, blocks, out), encoding="utf-8")
    page = out / "report.html"
    page.write_text(to_html(title, blocks), encoding="utf-8")
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
        times = [f"{first[name]:.0f}" for name in ("p50", "p95", "p99")]
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
    return [Figure(f"plot-{name}", plot(rows, at, x_title=x, y_title=title), caption) for name, x, at in axes]


def plot(rows: Sequence[dict[str, Any]], at: Sequence[float], *, x_title: str, y_title: str) -> str:
    """SVG text by matplotlib: accuracy with intervals over a logarithmic cost, and the Pareto front.

    Args:
        rows: trials that were run.
        at: their costs, above 0.
        x_title, y_title: of the axes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    with rc_context({"svg.hashsalt": "arr-coc", "svg.fonttype": "none"}):  # the same file for the same numbers
        canvas = Canvas(figsize=(6.5, 5), layout="constrained")
        axes = canvas.add_subplot(xscale="log", xlabel=x_title, ylabel=y_title)
        _draw(axes, rows, at)
        canvas.draw_without_rendering()  # settles where the axes are
        _label(axes, [row["value"] for row in rows], at, [100 * row["score"]["value"] for row in rows])
        stream = io.StringIO()
        canvas.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _draw(axes: Any, rows: Sequence[dict[str, Any]], at: Sequence[float]) -> None:
    """Marks with intervals, factor by factor, and the front."""
    axes.set_xlim(min(at) / 1.15, max(at) * 1.3)  # labels stand to the right
    for factor, marker in MARKERS.items():
        inside = [i for i, row in enumerate(rows) if row["factor"] == factor]
        scores = [rows[i]["score"] for i in inside]
        values = [100 * score["value"] for score in scores]
        reach = [[100 * abs(score[end] - score["value"]) for score in scores] for end in ("low", "high")]
        if inside:
            axes.errorbar([at[i] for i in inside], values, yerr=reach, fmt=marker, elinewidth=0.6, label=factor)
    scores = [100 * row["score"]["value"] for row in rows]
    front = pareto_front(at, scores)
    axes.plot([at[i] for i in front], [scores[i] for i in front], "--", color="grey", drawstyle="steps-post")
    marks = ticks(min(at) / 1.15, max(at) * 1.15)
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def _label(axes: Any, names: Sequence[str], xs: Sequence[float], ys: Sequence[float]) -> None:
    """A name beside each mark, above those that stand there already."""
    points_per_pixel = 72 / axes.figure.dpi
    taken: list[tuple[float, float, float]] = []
    for name, x, y in zip(names, xs, ys, strict=True):
        left, bottom = axes.transData.transform((x, y)) * points_per_pixel
        lift, width = 4.0, 4.5 * len(name)
        while any(
            abs(bottom + lift - other) < LABEL and left < right and start < left + width
            for start, right, other in taken
        ):
            lift += LABEL
        taken.append((left, left + width, bottom + lift))
        axes.annotate(name, (x, y), xytext=(5, lift), textcoords="offset points", fontsize=LABEL)
