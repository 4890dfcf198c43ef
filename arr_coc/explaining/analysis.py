"""Analysis of a data set: clusters of questions by relevance map, and scores by kind of question.

The result is one self-contained HTML file, and its numbers as JSON. Notation: n questions, S side of a map,
D = S*S, K fetched patches. Positions are (y, x), 0..1 of the image.
"""

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from ..data.records import Record
from ..evaluation.answers import open_sources
from ..evaluation.prediction_loop import predict_all
from ..evaluation.predictions import Prediction
from ..evaluation.reporting import (
    Block,
    Code,
    Figure,
    Gallery,
    Heading,
    Paragraph,
    Table,
    environment,
    percent,
    require_extra,
    shown,
    to_html,
    to_text,
)
from ..evaluation.scores import MOST_VALUES, Scored, distinct_items, question_kinds, score_arm
from ..evaluation.statistics import score_interval
from ..evaluation.strategies import check_request, strategy_arm
from ..files import write_json, write_text
from ..metrics import METRICS
from ..modeling.answers import Answer
from ..modeling.fetcher import FetchChoices
from ..modeling.image_processing_arr_coc import fit_square
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..viewing import OUTLINE_COLOUR, colours, heat
from .evidence import relevance_map, tokens_by_size

MAP_SIDE = 16
"""S: all pages are stretched to maps of this side, so that places are comparable."""

RESTARTS = 8
"""Number of runs of k-means, of which the best one counts."""

STEPS = 50
"""The most iterations of a run."""


def on_page(relevance: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Relevance [G, G] of a padded square -> [S, S] of the image alone, as means over patches.

    Args:
        relevance: float.
        size: (height, width) of the image, px.
    """
    side, step = len(relevance), 64
    placed = fit_square(*size, side * step)
    (top, left), (height, width) = placed.offset, placed.size
    box = (left / step, top / step, (left + width) / step, (top + height) / step)
    grid = Image.fromarray(np.ascontiguousarray(relevance, dtype=np.float32))
    return np.asarray(grid.resize((MAP_SIDE, MAP_SIDE), Image.Resampling.BOX, box=box))


def as_distribution(maps: np.ndarray) -> np.ndarray:
    """Maps [n, D], at least 0, divided by their sums; a map of zeros does not change."""
    total = maps.sum(1, keepdims=True)
    return np.divide(maps, total, out=np.zeros_like(maps, dtype=np.float64), where=total > 0)


def effective_share(maps: np.ndarray) -> np.ndarray:
    """[n]: the effective share of the page that relevance [n, D] covers: exp(entropy) / D; 1 is uniform."""
    share = as_distribution(maps)
    logs = np.log(np.where(share > 0, share, 1.0))
    return np.exp(-(share * logs).sum(1)) / maps.shape[1]


def cluster_maps(maps: np.ndarray, count: int, *, seed: int = 0) -> np.ndarray:
    """The cluster of each map: int [n], 0 is the largest cluster.

    This is the best of several runs of scipy's k-means with k-means++ initialisation, deterministic for a seed. It uses
    the square roots of the maps' shares: distances are then Hellinger's, and the scale of a map has no effect.

    Args:
        maps: float [n, D], at least 0.
        count: number of clusters; fewer if fewer maps differ.
        seed: seed of the initialisation.

    Raises:
        ValueError: less than one cluster, or scipy is not installed.
    """
    if count < 1:
        raise ValueError(f"clusters: expected at least 1; got {count}")
    require_extra("scipy.cluster.vq", "clusters")
    points = np.sqrt(as_distribution(maps))
    for wanted in range(min(count, len(np.unique(points, axis=0))), 1, -1):
        labels = _best_run(points, wanted, seed)
        if labels is not None:
            return _largest_first(labels)
    return np.zeros(len(maps), dtype=np.int64)


def _best_run(points: np.ndarray, count: int, seed: int) -> np.ndarray | None:
    """Labels of the run with the tightest clusters; None if every run has an empty cluster."""
    from scipy.cluster.vq import ClusterError, kmeans2

    draws: Any = np.random.default_rng(seed)
    best, least = None, np.inf
    for _ in range(RESTARTS):
        try:
            centres, labels = kmeans2(points, count, iter=STEPS, minit="++", missing="raise", seed=draws)
        except ClusterError:
            continue
        inertia = float(np.square(points - centres[labels]).sum())
        if inertia < least:
            best, least = labels, inertia
    return best


def _largest_first(labels: np.ndarray) -> np.ndarray:
    """Clusters renumbered by size; ties by the earliest member."""
    _, first, inverse, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -sizes))
    return np.argsort(order)[inverse]


def most_typical(maps: np.ndarray, members: np.ndarray, count: int) -> list[int]:
    """The `members` of a cluster (indices of `maps` [n, D]) nearest to its centre, the nearest first."""
    points = np.sqrt(as_distribution(maps[members]))
    distances = np.square(points - points.mean(0)).sum(1)
    return [int(members[place]) for place in np.argsort(distances, kind="stable")[:count]]


WORDS = "words of the question"
"""Title of the table of words; a question counts in the row of each of its words."""

MOST_WORDS = 24
LEAST_SHARE, MOST_SHARE = 0.01, 0.5
"""Bounds of the share of questions with a word; rarer and more frequent words are omitted."""

TYPICAL_WORDS = 4
"""The most words shown for a cluster."""

STANDS_OUT = 3.0
"""The least lead of a word's share over other clusters, in standard errors. With many words, smaller leads occur by
chance."""


@dataclass(frozen=True)
class Trace:
    """The kept part of an answer.

    Attributes:
        relevance: [S, S], relevance on the source with the most fetched patches.
        source: the index of this source.
        fetched: bool [S, S], True on the fetched parts of all sources.
        boxes: float32 [K, 4], x0, y0, x1, y1 of fetched tokens, 0..1 of their source.
        sources: int [K], the source of each fetched token.
        sizes: the number of tokens by their number of patches.
    """

    relevance: np.ndarray
    source: int
    fetched: np.ndarray
    boxes: np.ndarray
    sources: np.ndarray
    sizes: dict[int, int]

    @property
    def centres(self) -> np.ndarray:
        """float [K, 2]: centres of the fetched tokens."""
        return (self.boxes[:, [1, 0]] + self.boxes[:, [3, 2]]) / 2


def trace(answer: Answer, sizes: Sequence[tuple[int, int]]) -> Trace:
    """The trace of an answer about sources of (height, width) px."""
    source = int(answer.fetch.counts.argmax())
    own = np.array([origin.source for origin in answer.sources], dtype=np.int64)
    scales = np.array([(width, height, width, height) for height, width in sizes], dtype=np.float32)
    boxes = np.array([origin.box for origin in answer.sources], dtype=np.float32).reshape(-1, 4) / scales[own]
    fetched = np.zeros((MAP_SIDE, MAP_SIDE), dtype=bool)
    for x0, y0, x1, y1 in boxes.tolist():
        fetched[_cells(y0, y1), _cells(x0, x1)] = True
    relevance = on_page(relevance_map(answer.fetch, source), sizes[source])
    return Trace(relevance, source, fetched, boxes, own, tokens_by_size(answer.fetch))


def _cells(start: float, end: float) -> slice:
    first = min(MAP_SIDE - 1, round(start * MAP_SIDE))
    return slice(first, max(first + 1, round(end * MAP_SIDE)))


@dataclass(frozen=True)
class Analysis:
    """The result of an analysis.

    Attributes:
        scored: answers and scores of the n questions that count.
        records: records of these questions.
        traces: traces of these questions.
        labels: int [n], each question's cluster.
        numbers: all numbers of the page, as JSON.
        examples: indices of the most typical questions of each cluster.
    """

    scored: Scored
    records: list[Record]
    traces: list[Trace]
    labels: np.ndarray
    numbers: dict[str, Any] = field(repr=False)
    examples: list[list[int]]

    def fetched_share(self, places: np.ndarray) -> np.ndarray:
        """[S, S]: the share of the questions at `places` that fetched each part of the page."""
        return np.mean([self.traces[place].fetched for place in places], 0)

    def mean_relevance(self, places: np.ndarray) -> np.ndarray:
        """[S, S]: mean relevance of the questions at `places`."""
        return np.mean([self.traces[place].relevance for place in places], 0)


def analyse(
    model: ArrCocForConditionalGeneration,
    records: Sequence[Record],
    choices: FetchChoices,
    *,
    clusters: int = 6,
    seed: int = 0,
    examples: int = 3,
    batch_size: int = 32,
    metric: str = "exact_match",
    tiles: str | int | None = None,
    data: str | None = None,
    progress: bool = True,
) -> Analysis:
    """Asks every question, clusters the relevance maps, and summarizes scores and fetching by kind of question.

    Args:
        model: with a processor.
        records: the questions; copies are asked, but do not count.
        choices: strategy, allocator, budget, seed and number of passes.
        clusters: the most clusters of relevance maps.
        seed: seed of the clustering.
        examples: number of example questions per cluster.
        batch_size, metric, tiles, progress: see `evaluate`.
        data: the origin of the records.

    Raises:
        ValueError: see `evaluate`; clusters or examples below 1; scipy is not installed.
    """
    for name, value in (("clusters", clusters), ("examples", examples)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1; got {value}")
    require_extra("scipy.cluster.vq", "clusters")
    strategy = choices.strategy or model.config.fetcher_config.strategy
    check_request(model, records, [strategy], batch_size, choices.budget, choices.allocator, metric)
    arm, kept = strategy_arm(model, choices), dict[int, Trace]()
    said: dict[int, Prediction] = {}
    asked = predict_all(
        model, [arm], records, batch_size=batch_size, tiles=tiles, progress=progress,
        on_answer=lambda place, answer, sizes: kept.update({place: trace(answer, sizes)}),
    )  # fmt: skip
    for _, predictions in asked:
        said.update(predictions)
    rows = [said[place] for place in range(len(records))]
    items, patch = distinct_items(records, rows), model.config.vision_config.patch_size
    scored = score_arm(arm, [rows], items, metric, patch)
    traces = [kept[place] for place in items.places]
    maps = np.stack([each.relevance.ravel() for each in traces])
    labels = cluster_maps(maps, clusters, seed=seed)
    found = Analysis(scored, items.records, traces, labels, {}, _examples(maps, labels, examples))
    found.numbers.update(
        model=shown(model.config._name_or_path), data=data, strategy=strategy, allocator=arm.allocator,
        budget=arm.budget, num_passes=arm.passes, metric=metric, seed=seed, n=len(items.records),
        images=items.number_of_images, copies=items.copies, all=_summary(found, np.arange(len(traces))),
        clusters=_clusters(found, effective_share(maps)), kinds=_kinds(found, patch),
        questions=[_question(found, place) for place in range(len(traces))], **environment(model.device),
    )  # fmt: skip
    return found


def _examples(maps: np.ndarray, labels: np.ndarray, count: int) -> list[list[int]]:
    return [most_typical(maps, np.flatnonzero(labels == label), count) for label in range(labels.max() + 1)]


# ---- numbers ------------------------------------------------------------------------------------------------------


def _summary(found: Analysis, places: np.ndarray) -> dict[str, Any]:
    """Scores and fetched patches of the questions at `places`, at least one."""
    scored, images = found.scored, found.scored.images[places]
    recall = scored.recall_of(places)
    traces = [found.traces[place] for place in places]
    counts = [sum(each.sizes.values()) for each in traces]
    centres = np.concatenate([each.centres for each in traces])
    sizes: Counter[int] = Counter()
    for each in traces:
        sizes.update(each.sizes)
    return {
        "n": len(places),
        "score": asdict(score_interval(scored.mean_scores[places], images)),
        "recall": None if recall is None else asdict(recall),
        "tokens": {"least": min(counts), "mean": float(np.mean(counts)), "greatest": max(counts)},
        "share_of_tokens_by_patches": {size: sizes[size] / sum(sizes.values()) for size in sorted(sizes)},
        "centre": centres.mean(0).tolist() if len(centres) else None,
        "spread": centres.std(0).tolist() if len(centres) else None,
        "fetched": np.round(found.fetched_share(places), 4).tolist(),
    }


def _clusters(found: Analysis, effective: np.ndarray) -> list[dict[str, Any]]:
    words = [question_words(record.question) for record in found.records]
    clusters = []
    for label, examples in enumerate(found.examples):
        places = np.flatnonzero(found.labels == label)
        clusters.append(
            {
                **_summary(found, places),
                "share": len(places) / len(found.labels),
                "effective_share": float(effective[places].mean()),
                "words": typical_words(words, found.labels == label),
                "examples": [found.records[place].line for place in examples],
                "relevance": np.round(found.mean_relevance(places), 4).tolist(),
            }
        )
    return clusters


def _kinds(found: Analysis, patch_size: int) -> list[dict[str, Any]]:
    """Tables [{"by", "rows": [{"kind", and the fields of `_summary`}]}], the table of words first."""
    n = len(found.records)
    members = word_groups([question_words(record.question) for record in found.records])
    tables = [(WORDS, members)] if members else []
    for by, of in question_kinds(found.records, found.scored.predictions[0], patch_size).items():
        values = sorted(set(of) - {""})
        if 1 < len(values) <= MOST_VALUES:
            tables.append((by, {value: [place for place in range(n) if of[place] == value] for value in values}))
    return [
        {"by": by, "rows": [{"kind": kind, **_summary(found, np.array(places))} for kind, places in rows.items()]}
        for by, rows in tables
    ]


def _question(found: Analysis, place: int) -> dict[str, Any]:
    record, said, own = found.records[place], found.scored.predictions[0][place], found.traces[place]
    recall = float(found.scored.mean_recalls[place])
    return {
        "line": record.line,
        "question": record.question,
        "cluster": int(found.labels[place]) + 1,
        "answer": said.answer,
        "confidence": said.probability,
        "score": float(found.scored.mean_scores[place]),
        "recall": None if np.isnan(recall) else recall,
        "tokens_of_patches": own.sizes,
        "source": own.source,
    }


# ---- words --------------------------------------------------------------------------------------------------------


def question_words(question: str) -> set[str]:
    """The different words of a question, in lower case."""
    return set(re.findall(r"\w+", question.lower()))


def word_groups(words: Sequence[set[str]]) -> dict[str, list[int]]:
    """{words that occur in the same questions: the indices of these questions}, the most frequent words first.

    `words`: the words of each question. Very rare and very frequent words are omitted.
    """
    n, members = len(words), dict[str, list[int]]()
    for place, own in enumerate(words):
        for word in sorted(own):
            members.setdefault(word, []).append(place)
    least = max(2, LEAST_SHARE * n)
    together: dict[tuple[int, ...], list[str]] = {}
    for word, places in members.items():
        if least <= len(places) <= MOST_SHARE * n:
            together.setdefault(tuple(places), []).append(word)
    groups = sorted(together.items(), key=lambda group: (-len(group[0]), group[1]))[:MOST_WORDS]
    return {", ".join(names): list(places) for places, names in groups}


def typical_words(words: Sequence[set[str]], inside: np.ndarray) -> list[str]:
    """The few words whose share among the questions `inside` (bool [n]) most exceeds that among the others.

    `words`: the words of each question. The lead is in standard errors of the difference of two proportions.
    """
    own = Counter(word for place in np.flatnonzero(inside).tolist() for word in words[place])
    rest = Counter(word for place in np.flatnonzero(~inside).tolist() for word in words[place])
    n, others = int(inside.sum()), int((~inside).sum())
    if not n or not others:
        return []
    leads = {}
    for word, count in own.items():
        pooled = (count + rest[word]) / (n + others)
        error = (pooled * (1 - pooled) * (1 / n + 1 / others)) ** 0.5
        leads[word] = (count / n - rest[word] / others) / error if error else 0.0
    order = sorted(leads, key=lambda word: (-leads[word], word))
    return [word for word in order[:TYPICAL_WORDS] if leads[word] > STANDS_OUT]


MAP_WIDTH, THUMBNAIL = 192, 320
"""Side of a map, and longer side of a thumbnail, px."""

TYPES_SHOWN = 12
"""The most maps of kinds of questions in one table."""

FACTS = (
    "model", "data", "strategy", "allocator", "budget", "num_passes", "metric", "seed", "date", "versions", "machine",
)  # fmt: skip
"""Fields of the numbers that describe their origin."""


def write_analysis(out: Path, model: ArrCocForConditionalGeneration, found: Analysis, command: str) -> Path:
    """Writes analysis.html and analysis.json into a folder; returns the page's path.

    Args:
        out: an existing folder.
        model: its processor opens the images of the examples.
        found: the result.
        command: the command line of the analysis.

    Raises:
        ValueError: the image of an example can no longer be read.
    """
    numbers = found.numbers
    blocks = [_introduction(numbers), *_cluster_blocks(model, found), *_kind_blocks(found)]
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


def _cluster_blocks(model: ArrCocForConditionalGeneration, found: Analysis) -> list[Block]:
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


def _kind_blocks(found: Analysis) -> list[Block]:
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
    """Head and rows of a table of fetched patches and scores."""
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
    """PNG of a map [S, S], scaled to its maximum, or to 1 with `whole`."""
    most = 1.0 if whole else max(float(values.max()), 1e-9)
    drawn = Image.fromarray(colours(values / most)).resize((MAP_WIDTH, MAP_WIDTH), Image.Resampling.NEAREST)
    stream = io.BytesIO()
    drawn.quantize(64).save(stream, "PNG", optimize=True)
    return Figure(name, stream.getvalue(), caption)


def _example(model: ArrCocForConditionalGeneration, found: Analysis, place: int) -> Figure:
    """JPEG of a question's image with its relevance, and outlines of the fetched patches."""
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
    edge = ImageChops.subtract(fetched, fetched.filter(ImageFilter.MinFilter(3)))  # adjacent patches are merged
    drawn.paste(OUTLINE_COLOUR, mask=edge)
    stream = io.BytesIO()
    drawn.convert("RGB").save(stream, "JPEG", quality=75)
    right = f"score {found.scored.mean_scores[place]:.2g}"
    return Figure(f"example-{place}", stream.getvalue(), f"{record.question} → {said.answer or '(nothing)'} ({right})")
