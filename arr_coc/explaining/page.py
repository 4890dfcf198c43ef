"""The page of an analysis: one HTML file that needs nothing else, and its numbers as JSON beside it."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from ..evaluation.answers import open_sources
from ..evaluation.reporting import Block, Code, Figure, Gallery, Heading, Paragraph, Table, percent, to_html, to_text
from ..files import write_json, write_text
from ..metrics import METRICS
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..viewing import OUTLINE_COLOUR, colours, heat
from .analysis import WORDS, Analysis

MAP_WIDTH, THUMBNAIL = 192, 320
"""px of a map's side, and of a thumbnail's longer one."""

TYPES_SHOWN = 12
"""Maps of what kinds of questions fetched, of one table."""

FACTS = (
    "model", "data", "strategy", "allocator", "budget", "num_passes", "metric", "seed", "date", "versions", "machine",
)  # fmt: skip
"""Of the numbers those that say how they were made."""


def write_analysis(out: Path, model: ArrCocForConditionalGeneration, found: Analysis, command: str) -> Path:
    """Writes analysis.html and analysis.json into a folder; returns the page's path.

    Args:
        out: the folder, which is there.
        model: that was asked: its processor opens the images of the examples.
        found: what is told.
        command: the command line that found it.

    Raises:
        ValueError: an image of an example that cannot be read any more.
    """
    numbers = found.numbers
    blocks = [_introduction(numbers), *_clusters(model, found), *_kinds(found)]
    facts = {name: numbers[name] for name in FACTS}
    blocks += [Heading("The run"), Code(command), Code(yaml.safe_dump(facts, sort_keys=False).strip())]
    write_json(out / "analysis.json", numbers)
    page = out / "analysis.html"
    write_text(page, to_html(f"Where {numbers['strategy']} looks: {numbers['data']}", blocks))
    return page


def clusters_text(numbers: dict[str, Any]) -> str:
    """The table of clusters as aligned text, for the terminal."""
    return "\n".join([to_text(*_cluster_rows(numbers)), "In brackets: 95 % intervals."])


# ---- parts --------------------------------------------------------------------------------------------------------


def _introduction(numbers: dict[str, Any]) -> Block:
    whole = numbers["all"]
    recall = "" if whole["recall"] is None else f", recall of boxed patches {percent(whole['recall'])} %"
    copies = f" {numbers['copies']} more were copies of these and do not count." if numbers["copies"] else ""
    metric = METRICS[numbers["metric"]].title
    return Paragraph(
        f"{numbers['n']} questions about {numbers['images']} images, asked with strategy {numbers['strategy']}, "
        f"allocator {numbers['allocator']} and a budget of {numbers['budget']} tokens: {metric} "
        f"{percent(whole['score'])} %{recall}. In brackets: 95 % intervals, drawn by images.{copies}"
    )


def _clusters(model: ArrCocForConditionalGeneration, found: Analysis) -> list[Block]:
    blocks: list[Block] = [
        Heading("Clusters of relevance maps"),
        Paragraph(
            "k-means on the shares of relevance, each page stretched to a square; the largest first. Spread: over how "
            "much of the page relevance is spread (e to its entropy, as a share of the page)."
        ),
        Table(*_cluster_rows(found.numbers)),
    ]
    for label, cluster in enumerate(found.numbers["clusters"]):
        places = np.flatnonzero(found.labels == label)
        words = f"; words that stand out: {', '.join(cluster['words'])}" if cluster["words"] else ""
        relevance, fetched = found.mean_relevance(places), found.fetched_share(places)
        figures = [
            _map("relevance", relevance, f"Mean relevance, up to {relevance.max():.2f}"),
            _map("fetched", fetched, f"Fetched there, up to {fetched.max():.0%} of its questions"),
            *(_example(model, found, place) for place in found.examples[label]),
        ]
        title = f"Cluster {label + 1}: {cluster['n']} questions"
        blocks += [Heading(title), Paragraph(f"{cluster['share']:.0%} of all{words}."), Gallery(figures)]
    return blocks


def _cluster_rows(numbers: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    head, rows = _table("cluster", [{"kind": str(n), **row} for n, row in enumerate(numbers["clusters"], 1)], numbers)
    for row, cluster in zip(rows, numbers["clusters"], strict=True):
        row.append(f"{100 * cluster['effective_share']:.1f}")
    return [*head, "spread of relevance (%)"], rows


def _kinds(found: Analysis) -> list[Block]:
    blocks: list[Block] = []
    for table in found.numbers["kinds"]:
        by, rows = table["by"], table["rows"]
        blocks += [Heading(f"By {by}"), Table(*_table(by, rows, found.numbers))]
        if by == WORDS:
            blocks.insert(
                -1, Paragraph("A question is in the row of each of its words; words of the same questions share one.")
            )
        shown = sorted(rows, key=lambda row: -row["n"])[:TYPES_SHOWN]
        maps = [(row["kind"], np.array(row["fetched"])) for row in shown if row["tokens"]["greatest"]]
        if maps:
            title = "Where these questions fetched, of the most frequent ones; yellow: all of them did."
            blocks += [Paragraph(title), Gallery([_map(kind, fetched, kind, whole=True) for kind, fetched in maps])]
    return blocks


def _table(by: str, rows: Sequence[dict[str, Any]], numbers: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A head and rows of what was fetched and how well it was answered."""
    sizes = sorted({size for row in rows for size in row["share_of_tokens_by_patches"]})
    varies = any(row["tokens"]["least"] != row["tokens"]["greatest"] for row in rows)
    head = [by, "n", f"{METRICS[numbers['metric']].title} (%)", "recall (%)", "tokens"]
    head += [f"of {size} {'patch' if size == 1 else 'patches'} (%)" for size in sizes if len(sizes) > 1]
    head += ["from the top (%)", "from the left (%)"]
    lines = []
    for row in rows:
        tokens, shares = row["tokens"], row["share_of_tokens_by_patches"]
        span = f" ({tokens['least']} to {tokens['greatest']})" if varies else ""
        spent = f"{tokens['mean']:.4g}{span}"
        line = [row["kind"], str(row["n"]), percent(row["score"]), percent(row["recall"]), spent]
        line += [f"{100 * shares.get(size, 0):.0f}" for size in sizes if len(sizes) > 1]
        places = zip(row["centre"], row["spread"], strict=True) if row["centre"] else ()
        line += [f"{100 * centre:.0f} ± {100 * spread:.0f}" for centre, spread in places] or ["-", "-"]
        lines.append(line)
    return head, lines


# ---- pictures -----------------------------------------------------------------------------------------------------


def _map(name: str, values: np.ndarray, caption: str, *, whole: bool = False) -> Figure:
    """PNG of a map [S, S], scaled to its own greatest value, or `whole`: to 1."""
    most = 1.0 if whole else max(float(values.max()), 1e-9)
    drawn = Image.fromarray(colours(values / most)).resize((MAP_WIDTH, MAP_WIDTH), Image.Resampling.NEAREST)
    stream = io.BytesIO()
    drawn.quantize(64).save(stream, "PNG", optimize=True)
    return Figure(name, stream.getvalue(), caption)


def _example(model: ArrCocForConditionalGeneration, found: Analysis, place: int) -> Figure:
    """JPEG of the image of a question with its relevance, and what was fetched outlined."""
    record, said, own = found.records[place], found.scored.predictions[0][place], found.traces[place]
    image = open_sources(model, record)[0][own.source].load().convert("RGB")
    scale = THUMBNAIL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    drawn = image.resize(size, Image.Resampling.LANCZOS).convert("RGBA")
    layer = Image.fromarray(heat(own.relevance / max(float(own.relevance.max()), 1e-9)))
    drawn.alpha_composite(layer.resize(size, Image.Resampling.BILINEAR))
    fetched = Image.new("L", size)
    for x0, y0, x1, y1 in np.rint(own.boxes[own.sources == own.source] * (*size, *size)).tolist():
        ImageDraw.Draw(fetched).rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), fill=255)
    edge = ImageChops.subtract(fetched, fetched.filter(ImageFilter.MinFilter(3)))  # patches side by side are one
    drawn.paste(OUTLINE_COLOUR, mask=edge)
    stream = io.BytesIO()
    drawn.convert("RGB").save(stream, "JPEG", quality=75)
    right = f"score {found.scored.mean_scores[place]:.2g}"
    return Figure(f"example-{place}", stream.getvalue(), f"{record.question} → {said.answer or '(nothing)'} ({right})")
