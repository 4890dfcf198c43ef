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

WIDTH, MARGIN = 9.0, 0.15  # width of a sheet, and of the space around its rows and between panels
TALLEST = 4.2  # the largest height of a panel
MOST_COLUMNS = 4  # the most passes or strategies in a row
TEXT, SMALL = 10.5, 8.5  # points
INK, SOFT = "#141414", "#5a5a5a"


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
    """The colours of relevance and of the tokens' outlines; `sizes`: numbers of patches, and what is written behind."""

    sizes: dict[int, str]


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
        Panel((f"relevance ({_strategy(evidence)})",), lambda axes: _draw_relevance(axes, seen, evidence.relevance)),
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
    """The matplotlib figure of the passes of one question: map, fetched tokens, answer and uncertainty of each. Raises
    ValueError: the answer has a single pass."""
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
    return _draw([*rows, FigureRow((chart,), 1, 1.5)], seen)


def draw_strategies(seen: SeenImage, evidence: Sequence[AnswerEvidence]) -> Any:
    """The matplotlib figure of one question with several strategies: relevance, tokens and answer of each."""
    rows: list[Any] = [FigureText(evidence[0].question, TEXT, INK, bold=True), *_part(seen)]
    columns = _columns(evidence)
    above = _in_rows([_strategy_panel(seen, each) for each in evidence], columns)
    below = _in_rows([_tokens_panel(seen, each) for each in evidence], columns)
    for pair in zip(above, below, strict=True):
        rows += pair
    sizes = {size for each in evidence for size in tokens_by_size(each.fetch)}
    return _draw([*rows, Legend(dict.fromkeys(sorted(sizes), ""))], seen)


# ---- parts --------------------------------------------------------------------------------------------------------


def _head(evidence: AnswerEvidence) -> list[FigureText]:
    """Question, answer, and the number of fetched tokens."""
    answer, fetch = evidence.answer, evidence.fetch
    sure = f"confidence {answer.probability:.1%}, uncertainty {evidence.uncertainty:.3f}"
    fetched = f"{int(fetch.tokens.sum())} tokens fetched from {fetch.scores.shape[-1]} patches"
    lines = [
        FigureText(evidence.question, TEXT, INK, bold=True),
        FigureText(f"{answer.text or '(nothing)'}   ({sure})", TEXT, INK),
        FigureText(f"{fetch.strategy}, {fetch.allocator}: {fetched}"),
    ]
    failed = [part for part, count in fetch.fallbacks.items() if count]
    return [*lines, *(FigureText(f"The {part} fell back on a simpler part.", SMALL, "#b00020") for part in failed)]


def _part(seen: SeenImage) -> list[FigureText]:
    """A line that names the view, if there are several."""
    if (part := seen.part) is None:
        return []
    shown = f"This is the view that most was fetched from, {part.share:.0%} over {part.views} views: {part}."
    asked = f"Asked by itself here; over all views the answer is: {part.answer or '(nothing)'}"
    return [FigureText(shown), FigureText(asked)]


def _strategy(evidence: AnswerEvidence) -> str:
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
    title = (_strategy(evidence), answer.text or "(nothing)", f"confidence {answer.probability:.1%}")
    return Panel(title, lambda axes: _draw_relevance(axes, seen, evidence.relevance if evidence.fetch.budget else None))


def _tokens_panel(seen: SeenImage, evidence: AnswerEvidence) -> Panel:
    fetch = evidence.fetch
    title = f"{int(fetch.tokens.sum())} tokens, {fetch.allocator}" if fetch.budget else "base tokens alone"
    return Panel((title,), lambda axes: _draw_tokens(axes, seen, fetch))


def _legend(fetch: FetchResult) -> Legend:
    return Legend({size: f": {count}" for size, count in tokens_by_size(fetch).items()})


# ---- contents of axes ---------------------------------------------------------------------------------------------


def _window(seen: SeenImage) -> tuple[float, float, float, float]:
    """Left, right, top and bottom of the image on the grid, patches."""
    side = seen.encoding.side
    placed = fit_square(seen.image.height, seen.image.width, side * _FINE)
    (top, left), (height, width) = placed.offset, placed.size
    return left / _FINE, (left + width) / _FINE, top / _FINE, (top + height) / _FINE


_FINE = 64  # the place of an image is rounded to this fraction of a patch


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
    parts: Any = figure.subfigures(len(rows) + 2, 1, height_ratios=(MARGIN, *heights, MARGIN), hspace=0)
    for part, row, height in zip(parts[1:-1], rows, heights, strict=True):
        if isinstance(row, FigureRow):
            _place(part, row, height, seen)
        elif isinstance(row, FigureText):
            weight = "bold" if row.bold else "normal"
            look = {"size": row.size, "color": row.ink, "weight": weight, "parse_math": False}  # a dollar is a dollar
            part.text(MARGIN / WIDTH, 1, _wrapped(row.text, row.size, WIDTH - 2 * MARGIN), va="top", **look)
        else:
            _draw_legend(part, row)
    return figure


def _height(row: FigureRow | FigureText | Legend, shape: float) -> float:
    if isinstance(row, FigureText):
        return _text_height(_wrapped(row.text, row.size, WIDTH - 2 * MARGIN), row.size)
    if isinstance(row, Legend):
        return 0.28
    panel = min(TALLEST, _panel_width(row) * shape) if row.height is None else row.height
    return panel + _title_height(row) + MARGIN


def _text_height(text: str, size: float) -> float:
    """Of a text of `size` points, with some space below."""
    return (text.count("\n") + 1) * 1.45 * size / 72 + 0.03


def _panel_width(row: FigureRow) -> float:
    return (WIDTH - MARGIN) / row.columns - MARGIN


def _title(panel: Panel, width: float) -> str:
    return "\n".join(_wrapped(text, SMALL, width, most=3) for text in panel.title)


def _title_height(row: FigureRow) -> float:
    """Height of the tallest title of a row."""
    return max(_text_height(_title(panel, _panel_width(row)), SMALL) for panel in row.panels) + 0.05


def _wrapped(text: str, size: float, width: float, most: int | None = None) -> str:
    """A text as lines of `width`, by the mean width of a bold letter; the first `most` of them."""
    letters = max(8, int(width * 72 / (size * 0.6)))
    return "\n".join((textwrap.wrap(text, letters, break_long_words=True) or [""])[:most])


def _place(part: Any, row: FigureRow, height: float, seen: SeenImage) -> None:
    """Draws a row's panels into its part of the figure, their axes at the same height."""
    left, right, top, bottom = _window(seen)
    width, numbers = _panel_width(row), 0.3 if row.height is not None else 0.0  # room for the numbers of an axis
    grid = {"left": (MARGIN + numbers) / WIDTH, "right": 1 - MARGIN / WIDTH, "wspace": MARGIN / width}
    grid |= {"top": 1 - _title_height(row) / height, "bottom": (MARGIN / 2 + numbers) / height}
    cells = part.subplots(1, row.columns, squeeze=False, gridspec_kw=grid)[0]
    for number, axes in enumerate(cells):
        axes.axis("off")
        if number >= len(row.panels):
            continue
        panel = row.panels[number]
        axes.set_title(_title(panel, width), loc="left", size=SMALL, color=INK, parse_math=False)
        panel.draw(axes)
        if row.height is None:
            axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", anchor="SW", xticks=[], yticks=[])


def _draw_legend(part: Any, legend: Legend) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    shades: Any = heat(np.array((0, 0.5, 1))) / 255
    levels = [Patch(facecolor=shades[n], label=f"relevance {n / 2:g}") for n in range(3)]
    for size, behind in legend.sizes.items():
        colour, text = LEVEL_COLOURS[size], f"token of {size} patch{'' if size == 1 else 'es'}{behind}"
        levels.append(Patch(facecolor=to_rgba(colour, 0.12), edgecolor=colour, label=text))
    look: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "labelcolor": SOFT, "borderaxespad": 0, "borderpad": 0}
    part.legend(handles=levels, ncols=len(levels), loc="center left", bbox_to_anchor=(MARGIN / WIDTH, 0.5), **look)
