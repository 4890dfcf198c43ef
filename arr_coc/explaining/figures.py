"""Figures of evidence, by matplotlib: the maps and tokens of a question, its passes, strategies side by side.

A sheet has rows of panels, each as wide as the sheet, and lines of text between them. Lengths are in inches. All maps
show the part of the grid that the image covers.
"""

import io
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..files import fresh_file
from ..modeling.answers import Pass
from ..modeling.fetcher import FetchResult
from ..modeling.image_processing_arr_coc import fit_square
from ..modeling.passes import UNSURE
from ..viewing import heat
from .evidence import AnswerEvidence, PatchMap, SeenImage, as_grid, tokens_by_size

LEVEL_COLOURS = {1: "#d55e00", 4: "#0072b2", 16: "#cc79a7"}
"""Colours of tokens by their number of patches (by Okabe and Ito, safe for colour-blind readers)."""

MARGIN, GAP = 0.15, 0.12
WIDTH = 9.0
"""Width of a sheet."""

ABOVE = 0.07
"""Space above and below a row."""

TALLEST = 4.2
"""The largest height of a panel."""

MOST_COLUMNS = 4
"""The most passes or strategies in a row."""

TEXT, SMALL = 10.5, 8.5  # points
INK, SOFT = "#141414", "#5a5a5a"

_LETTER = 0.56
"""Mean width of a letter, relative to its size."""


@dataclass(frozen=True)
class Panel:
    """Axes that `draw` fills, and lines of text above them."""

    title: tuple[str, ...]
    draw: Callable[[Any], None]


@dataclass(frozen=True)
class FigureRow:
    """Panels side by side, each 1 / `columns` of the sheet wide; `height` of each, or None for the image's shape."""

    panels: tuple[Panel, ...]
    columns: int
    height: float | None = None


@dataclass(frozen=True)
class FigureText:
    """Text across the sheet."""

    text: str
    size: float = SMALL
    ink: str = SOFT
    bold: bool = False


@dataclass(frozen=True)
class Legend:
    """The colour bar of relevance, and the meaning of the tokens' outlines."""

    outlines: tuple[tuple[str, str], ...]


def save(figure: Any, path: Path) -> None:
    """Writes a figure atomically as PNG with 256 colours, which is a third of the size."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # are drawn as boxes
        figure.savefig(stream, format="png", dpi=110)
    with fresh_file(path) as beside, Image.open(stream) as drawn:
        drawn.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1).save(beside, optimize=True)


# ---- the three figures --------------------------------------------------------------------------------------------


def draw_evidence(seen: SeenImage, evidence: AnswerEvidence) -> Any:
    """The matplotlib figure of one question: image, relevance, fetched tokens, maps, textures."""
    fetch = evidence.fetch
    first = (
        Panel(("image",), lambda axes: _draw_image(axes, seen)),
        Panel((f"relevance ({_title(evidence)})",), lambda axes: _draw_relevance(axes, seen, evidence.relevance)),
        Panel(("tokens that were chosen",), lambda axes: _draw_tokens(axes, seen, fetch)),
    )
    rows: list[Any] = [*_head(evidence), *_part(seen), FigureRow(first, 3), _legend(fetch)]
    if evidence.inner:
        rows += [FigureText(f"{evidence.inner_note}:")]
        rows += [FigureRow(tuple(_map_panel(seen, each) for each in evidence.inner), max(3, len(evidence.inner)))]
    if evidence.textures:
        note = "textures of the image, whatever is asked (in all maps, dark to light is least to greatest):"
        rows += [FigureText(note)]
        rows += _in_rows([_map_panel(seen, each) for each in evidence.textures], 6)
    return _draw(rows, seen)


def draw_passes(seen: SeenImage, evidence: AnswerEvidence) -> Any:
    """The matplotlib figure of the passes of one question: map, fetched tokens, answer and uncertainty of each.

    Raises:
        ValueError: the answer has a single pass.
    """
    passes = evidence.answer.passes
    if not passes:
        raise ValueError("evidence: expected an answer in passes (num_passes); got a single one")
    panels, taken = [], np.zeros(seen.patch_mask.shape, dtype=bool)
    for number, one_pass in enumerate(passes, 1):
        panels.append(_pass_panel(seen, number, one_pass, taken.copy()))
        taken |= one_pass.fetch.covered()[0].cpu().numpy().reshape(taken.shape)
    rows: list[Any] = [*_head(evidence), *_part(seen), *_in_rows(panels, _columns(panels))]
    rows += [_legend(evidence.fetch), FigureText("grey: fetched by an earlier pass")]
    title = (f"uncertainty of the answer after each pass; dashed: {UNSURE}, above which --passes auto goes on",)
    chart = Panel(title, lambda axes: _draw_uncertainties(axes, [one_pass.uncertainty for one_pass in passes]))
    return _draw([*rows, FigureRow((chart,), 1, 1.2)], seen)


def draw_strategies(seen: SeenImage, evidence: Sequence[AnswerEvidence]) -> Any:
    """The matplotlib figure of one question with several strategies: relevance, tokens and answer of each."""
    rows: list[Any] = [FigureText(evidence[0].question, TEXT, INK, bold=True), *_part(seen)]
    columns = _columns(evidence)
    for start in range(0, len(evidence), columns):
        part = evidence[start : start + columns]
        rows += [FigureRow(tuple(_strategy_panel(seen, each) for each in part), columns)]
        rows += [FigureRow(tuple(_tokens_panel(seen, each) for each in part), columns)]
    sizes = {size for each in evidence for size in tokens_by_size(each.fetch)}
    outlines = tuple((LEVEL_COLOURS[size], _token_of(size)) for size in sorted(sizes))
    return _draw([*rows, Legend(outlines)], seen)


# ---- parts --------------------------------------------------------------------------------------------------------


def _head(evidence: AnswerEvidence) -> list[FigureText]:
    """Question, answer, and the number of fetched tokens."""
    answer = evidence.answer
    sure = f"confidence {answer.probability:.1%}, uncertainty {evidence.uncertainty:.3f}"
    said = f"{answer.text or '(nothing)'}   ({sure})"
    fetch = evidence.fetch
    fetched = f"{int(fetch.tokens.sum())} tokens fetched from {fetch.scores.shape[-1]} patches"
    lines = [
        FigureText(evidence.question, TEXT, INK, bold=True),
        FigureText(said, TEXT, INK),
        FigureText(f"{fetch.strategy}, {fetch.allocator}: {fetched}"),
    ]
    failed = [part for part, count in fetch.fallbacks.items() if count]
    return [*lines, *(FigureText(f"The {part} fell back on a simpler part.", SMALL, "#b00020") for part in failed)]


def _part(seen: SeenImage) -> list[FigureText]:
    """A line that names the view, if there are several."""
    part = seen.part
    if part is None:
        return []
    shown = f"This is the view that most was fetched from, {part.share:.0%} over {part.views} views: {part}."
    return [
        FigureText(shown),
        FigureText(f"Asked by itself here; over all views the answer is: {part.answer or '(nothing)'}"),
    ]


def _title(evidence: AnswerEvidence) -> str:
    return f"{evidence.fetch.strategy}, untrained" if evidence.untrained else evidence.fetch.strategy


def _columns(panels: Sequence[Any]) -> int:
    return min(MOST_COLUMNS, max(2, len(panels)))


def _in_rows(panels: Sequence[Panel], columns: int) -> list[FigureRow]:
    return [FigureRow(tuple(panels[start : start + columns]), columns) for start in range(0, len(panels), columns)]


def _map_panel(seen: SeenImage, each: PatchMap) -> Panel:
    real = each.values[seen.patch_mask]
    low, high = (float(real.min()), float(real.max())) if real.size else (0.0, 0.0)
    weight = "" if each.weight is None else f" × {each.weight:.2f}"
    title = (f"{each.name}{weight}", *([each.source] if each.source else []), f"{low:.2g} to {high:.2g}")
    return Panel(title, lambda axes: _draw_map(axes, seen, each.values, low, high))


def _pass_panel(seen: SeenImage, number: int, one_pass: Pass, taken: np.ndarray) -> Panel:
    def draw(axes: Any) -> None:
        _draw_relevance(axes, seen, as_grid(one_pass.fetch.relevance[0]), hidden=taken)
        _outline(axes, one_pass.fetch)

    drawn = f", {one_pass.share:.0%} of them drawn" if one_pass.share else ""
    title = (
        f"pass {number}: {int(one_pass.fetch.tokens.sum())} tokens{drawn}",
        one_pass.text or "(nothing)",
        f"uncertainty {one_pass.uncertainty:.3f}, confidence {one_pass.probability:.1%}",
    )
    return Panel(title, draw)


def _strategy_panel(seen: SeenImage, evidence: AnswerEvidence) -> Panel:
    answer = evidence.answer
    title = (_title(evidence), answer.text or "(nothing)", f"confidence {answer.probability:.1%}")
    return Panel(title, lambda axes: _draw_relevance(axes, seen, evidence.relevance if evidence.fetch.budget else None))


def _tokens_panel(seen: SeenImage, evidence: AnswerEvidence) -> Panel:
    fetch = evidence.fetch
    title = f"{int(fetch.tokens.sum())} tokens, {fetch.allocator}" if fetch.budget else "base tokens alone"
    return Panel((title,), lambda axes: _draw_tokens(axes, seen, fetch))


def _token_of(size: int) -> str:
    return "token of 1 patch" if size == 1 else f"token of {size} patches"


def _legend(fetch: FetchResult) -> Legend:
    counts = tokens_by_size(fetch).items()
    return Legend(tuple((LEVEL_COLOURS[size], f"{_token_of(size)}: {count}") for size, count in counts))


# ---- contents of axes ---------------------------------------------------------------------------------------------


def _window(seen: SeenImage) -> tuple[float, float, float, float]:
    """Left, right, top and bottom of the image on the grid, patches."""
    side = seen.encoding.side
    placed = fit_square(seen.image.height, seen.image.width, side * _FINE)
    (top, left), (height, width) = placed.offset, placed.size
    return left / _FINE, (left + width) / _FINE, top / _FINE, (top + height) / _FINE


_FINE = 64
"""The place of an image is rounded to this fraction of a patch."""


def _draw_image(axes: Any, seen: SeenImage, opacity: float = 1.0) -> None:
    left, right, top, bottom = _window(seen)
    image = seen.image
    if max(image.size) > 1200:
        image = image.copy()
        image.thumbnail((1200, 1200))
    axes.imshow(np.asarray(image), extent=(left, right, bottom, top), alpha=opacity, interpolation="antialiased")


def _draw_relevance(axes: Any, seen: SeenImage, relevance: np.ndarray | None, hidden: np.ndarray | None = None) -> None:
    """Draws the image under its heat map, grey where `hidden`; None: nothing was scored."""
    _draw_image(axes, seen)
    if relevance is None:
        return
    side, layer = seen.encoding.side, heat(relevance)
    if hidden is not None:
        layer[hidden] = (90, 90, 90, 150)
    axes.imshow(layer, extent=(0, side, side, 0), interpolation="nearest")


def _draw_map(axes: Any, seen: SeenImage, values: np.ndarray, low: float, high: float) -> None:
    side = seen.encoding.side
    shown = np.ma.masked_where(~seen.patch_mask, values)
    scale = {"vmin": low, "vmax": max(high, low + 1e-9), "cmap": "viridis", "interpolation": "nearest"}
    axes.imshow(shown, extent=(0, side, side, 0), **scale)


def _draw_tokens(axes: Any, seen: SeenImage, fetch: FetchResult) -> None:
    _draw_image(axes, seen, opacity=0.85)
    _outline(axes, fetch)


def _outline(axes: Any, fetch: FetchResult) -> None:
    """Draws each token as a square in the colour of its size, large tokens first."""
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    regions = fetch.regions()[fetch.used].tolist()
    for size in sorted(tokens_by_size(fetch), reverse=True):
        squares = [Rectangle((x0, y0), x1 - x0, y1 - y0) for y0, x0, y1, x1 in regions if (y1 - y0) * (x1 - x0) == size]
        colour = LEVEL_COLOURS[size]
        axes.add_collection(PatchCollection(squares, facecolor=to_rgba(colour, 0.12), edgecolor=colour, linewidth=0.7))


def _draw_uncertainties(axes: Any, values: Sequence[float]) -> None:
    numbers = range(1, len(values) + 1)
    axes.axis("on")
    axes.plot(numbers, values, "o-", color=LEVEL_COLOURS[4], linewidth=1.2, markersize=5)
    axes.axhline(UNSURE, color=SOFT, linestyle="--", linewidth=0.8)
    axes.set_xlim(0.7, len(values) + 0.3)
    axes.set_ylim(0, max(1.15 * max(values), 1.5 * UNSURE))
    axes.set_xticks(list(numbers), [f"pass {number}" for number in numbers])
    axes.tick_params(labelsize=SMALL)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


# ---- the sheet ----------------------------------------------------------------------------------------------------


def _draw(rows: Sequence[FigureRow | FigureText | Legend], seen: SeenImage) -> Any:
    """The matplotlib figure of rows, lines and legends, from top to bottom."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    left, right, top, bottom = _window(seen)
    shape = (bottom - top) / (right - left)
    heights = [_height(row, shape) for row in rows]
    figure = Figure(figsize=(WIDTH, sum(heights) + 2 * MARGIN), facecolor="white")
    FigureCanvasAgg(figure)
    at = figure.get_figheight() - MARGIN
    for row, height in zip(rows, heights, strict=True):
        if isinstance(row, FigureRow):
            _place(figure, row, at, shape, (left, right, top, bottom))
        elif isinstance(row, FigureText):
            _write(figure, _wrapped(row), MARGIN, at, row)
        else:
            _draw_legend(figure, row, at)
        at -= height
    return figure


def _height(row: FigureRow | FigureText | Legend, shape: float) -> float:
    if isinstance(row, FigureRow):
        return 2 * ABOVE + _titles(row) + _panel_height(row, shape)
    if isinstance(row, FigureText):
        return len(_wrapped(row)) * _step(row.size) + 0.03
    return 0.28


def _step(size: float) -> float:
    """Height of a line of text of `size` points."""
    return 1.35 * size / 72


def _panel_width(row: FigureRow) -> float:
    return (WIDTH - 2 * MARGIN - (row.columns - 1) * GAP) / row.columns


def _panel_height(row: FigureRow, shape: float) -> float:
    return min(TALLEST, _panel_width(row) * shape) if row.height is None else row.height + 0.3  # axis numbers


def _title_lines(panel: Panel, width: float) -> list[str]:
    return [line for text in panel.title for line in _wrap(text, SMALL, width)[:3]]


def _titles(row: FigureRow) -> float:
    """Height of the tallest title of a row."""
    return max(len(_title_lines(panel, _panel_width(row))) for panel in row.panels) * _step(SMALL) + 0.04


def _wrap(text: str, size: float, width: float) -> list[str]:
    letters = max(8, int(width * 72 / (size * _LETTER)))
    return textwrap.wrap(text, letters, break_long_words=True) or [""]


def _wrapped(line: FigureText) -> list[str]:
    return _wrap(line.text, line.size * (1.08 if line.bold else 1.0), WIDTH - 2 * MARGIN)


def _write(figure: Any, lines: Sequence[str], x: float, y: float, style: FigureText) -> None:
    """Writes lines of text below `y` literally: a dollar sign does not start a formula."""
    height = figure.get_figheight()
    look = {"size": style.size, "color": style.ink, "weight": "bold" if style.bold else "normal"}
    for number, text in enumerate(lines):
        place = (x / WIDTH, (y - number * _step(style.size)) / height)
        figure.text(*place, text, va="top", parse_math=False, **look)


def _place(figure: Any, row: FigureRow, at: float, shape: float, window: tuple[float, float, float, float]) -> None:
    """Places a row's panels below `at`, with their titles at the same height."""
    width, height = _panel_width(row), figure.get_figheight()
    tall, titles = _panel_height(row, shape), _titles(row)
    left, right, top, bottom = window
    at -= ABOVE
    for number, panel in enumerate(row.panels):
        x = MARGIN + number * (width + GAP)
        _write(figure, _title_lines(panel, width), x, at, FigureText("", SMALL, INK))
        inside = (0.45, 0.3) if row.height is not None else (0.0, 0.0)  # room for the numbers of an axis
        box = (x + inside[0], at - titles - tall + inside[1], width - inside[0], tall - inside[1])
        axes = figure.add_axes((box[0] / WIDTH, box[1] / height, box[2] / WIDTH, box[3] / height))
        axes.axis("off")
        panel.draw(axes)
        if row.height is None:
            axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", anchor="NW")


def _draw_legend(figure: Any, legend: Legend, at: float) -> None:
    from matplotlib.colors import to_rgba

    height, middle = figure.get_figheight(), at - 0.12
    length, thick = 1.2, 0.11
    x = MARGIN
    figure.text(x / WIDTH, middle / height, "relevance  0", size=SMALL, color=SOFT, va="center")
    x += _width("relevance  0")
    axes = figure.add_axes((x / WIDTH, (middle - thick / 2) / height, length / WIDTH, thick / height))
    axes.imshow(heat(np.linspace(0, 1, 100))[None], aspect="auto")
    axes.set(xticks=[], yticks=[])
    x += length + 0.08
    figure.text(x / WIDTH, middle / height, "1", size=SMALL, color=SOFT, va="center")
    x += 0.35
    for colour, text in legend.outlines:
        mark = figure.add_axes((x / WIDTH, (middle - thick / 2) / height, thick / WIDTH, thick / height))
        mark.set(xticks=[], yticks=[], facecolor=to_rgba(colour, 0.12))
        for spine in mark.spines.values():
            spine.set(color=colour, linewidth=1.2)
        figure.text((x + 0.18) / WIDTH, middle / height, text, size=SMALL, color=SOFT, va="center")
        x += 0.18 + _width(text) + 0.2


def _width(text: str) -> float:
    """The approximate width of a short text."""
    return len(text) * _LETTER * SMALL / 72 + 0.08
