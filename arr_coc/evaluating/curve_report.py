"""The density curve for people: a plot of scores against characters per token, and its numbers as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from .blocks import Block, Figure, Heading, Paragraph, Table
from .curves import SMALLEST_GAP
from .number_texts import percent, points
from .plots import COLOURS, LABEL, MARKS, as_svg

SIZE = (7.0, 4.8)
"""Width and height in inches."""

_STEP = 0.012
"""How far apart the marks of neighbouring arms stand, in widths of the axis: intervals do not cover each other."""


def curve_blocks(result: Mapping[str, Any], *, metric: str) -> list[Block]:
    """The section of a report, or nothing where no curve was asked for.

    Args:
        result: of the experiment, with "curve" (see `score_curve`) and "arms".
        metric: title of what is measured.
    """
    curve = result.get("curve")
    if curve is None:
        return []
    names = list(result["arms"])
    bound = [name for name, arm in result["arms"].items() if arm["role"] == "bound"]
    tokens = {name: arm["mean_tokens"] for name, arm in result["arms"].items()}
    svg = as_svg(lambda: draw_curve(curve, tokens, bound, y_title=f"{metric}, %"))
    caption = (
        f"{metric} against characters per token of {curve['arm']}. Bars: 95 % intervals by images; dashed: bounds."
    )
    sentence = (
        f"Recovered: which share of the gap between {curve['floor']} and {curve['ceiling']} {curve['arm']} closes, "
        f"where that gap is above {100 * SMALLEST_GAP:g} points. Characters: as many as pages of a level are drawn to "
        "hold. In brackets: 95 % intervals from a bootstrap that draws whole images; they leave open what other "
        f"trainings would give. Above 100 %: {curve['ceiling']}, which reads more, has learnt less."
    )
    return [
        Heading("The density curve"), Figure("curve", svg, caption), _scores(curve, names), _shares(curve),
        Paragraph(sentence),
    ]  # fmt: skip


def _scores(curve: Mapping[str, Any], names: Sequence[str]) -> Table:
    rows = [
        [*_level_cells(level), *(percent(level["scores"][name]) for name in names)]
        for level in (*curve["levels"], {"characters": None, **curve["all"]})
    ]
    return Table(["characters", "per token", "questions", "images", *(f"{name}, %" for name in names)], rows)


def _shares(curve: Mapping[str, Any]) -> Table:
    rows = [
        [_level_cells(level)[0], points(level["gap"]), percent(level["recovered"])]
        for level in (*curve["levels"], {"characters": None, **curve["all"]})
    ]
    return Table(["characters", f"{curve['ceiling']} - {curve['floor']}, points", "recovered, %"], rows)


def _level_cells(level: Mapping[str, Any]) -> list[str]:
    counts = [str(level["n"]), str(level["images"])]
    if level["characters"] is None:
        return ["all", "-", *counts]
    return [str(level["characters"]), f"{level['per_token']:.2f}", *counts]


def draw_curve(curve: Mapping[str, Any], tokens: Mapping[str, float], bounds: Sequence[str], *, y_title: str) -> Any:
    """matplotlib's figure: a line for each arm, characters per token below and characters above.

    Args:
        curve: see `score_curve`.
        tokens: of each arm, for its name in the legend.
        bounds: arms whose lines are dashed.
        y_title: of the axis of scores.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    figure = Drawing(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel=f"characters per token of {curve['arm']}", ylabel=y_title)
    places = [level["per_token"] for level in curve["levels"]]
    for number, name in enumerate(tokens):
        shift = (number - (len(tokens) - 1) / 2) * _STEP * max(places)
        scores = [level["scores"][name] for level in curve["levels"]]
        values, lows, highs = ([100 * score[key] for score in scores] for key in ("value", "low", "high"))
        reach = [
            [v - low for v, low in zip(values, lows, strict=True)],
            [h - v for v, h in zip(values, highs, strict=True)],
        ]
        axes.errorbar(
            [place + shift for place in places], values, yerr=reach, label=f"{name} ({tokens[name]:.4g} tokens)",
            fmt=MARKS[number % len(MARKS)], linestyle="--" if name in bounds else "-",
            color=COLOURS[number % len(COLOURS)], linewidth=2.2 if name == curve["arm"] else 1.2, elinewidth=0.8,
            markersize=5,
        )  # fmt: skip
    top = max(100 * score["high"] for level in curve["levels"] for score in level["scores"].values())
    axes.set_ylim(-0.03 * top, 1.05 * top)
    axes.grid(axis="y", linewidth=0.3)
    above = axes.secondary_xaxis("top", functions=(lambda x: x * curve["tokens"], lambda x: x / curve["tokens"]))
    above.set_xlabel("characters on the page")
    above.set_xticks([level["characters"] for level in curve["levels"]])
    figure.legend(loc="outside lower center", ncols=3, fontsize=LABEL, frameon=False)
    return figure
