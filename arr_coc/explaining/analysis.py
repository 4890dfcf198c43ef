"""Analysis of a data set: in which ways its questions look at their images, and what each kind of question gets.

Relevance maps are clustered. Notation: n questions, S side of a map, D = S*S, K fetched patches. Positions are (y, x),
0..1 of the image.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from ..data.records import Record
from ..evaluation.prediction_loop import predict_all
from ..evaluation.predictions import Prediction
from ..evaluation.reporting import environment, require_extra, shown
from ..evaluation.scores import MOST_VALUES, Scored, distinct_items, question_kinds, score_arm
from ..evaluation.statistics import score_interval
from ..evaluation.strategies import check_request, strategy_arm
from ..modeling.answers import Answer
from ..modeling.fetcher import FetchChoices
from ..modeling.image_processing_arr_coc import fit_square
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .evidence import relevance_map, tokens_by_size

MAP_SIDE = 16
"""S: pages of all shapes are stretched to maps of this side, so that a place on one is a place on all."""

RESTARTS = 8
"""Runs of k-means, of which the best counts."""

STEPS = 50
"""Of one run, at most."""


def on_page(relevance: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Relevance [G, G] of a padded square -> [S, S] of the image alone, each the mean of what lies under it.

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
    """Maps [n, D], at least 0, as shares of their sums; a map of zeros stays one."""
    total = maps.sum(1, keepdims=True)
    return np.divide(maps, total, out=np.zeros_like(maps, dtype=np.float64), where=total > 0)


def effective_share(maps: np.ndarray) -> np.ndarray:
    """[n] over how much of the page relevance [n, D] spreads: e to its entropy, over D. 1: evenly everywhere."""
    share = as_distribution(maps)
    logs = np.log(np.where(share > 0, share, 1.0))
    return np.exp(-(share * logs).sum(1)) / maps.shape[1]


def cluster_maps(maps: np.ndarray, count: int, *, seed: int = 0) -> np.ndarray:
    """Which cluster each map is in: int [n], 0 the largest cluster.

    k-means (scipy's, begun by k-means++) on the roots of the maps' shares, so that distances are Hellinger's and the
    scale of a map does not count; the best of several runs, the same for the same seed.

    Args:
        maps: float [n, D], at least 0.
        count: clusters; fewer where fewer maps differ.
        seed: of where the runs begin.

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
    """Labels of the run whose clusters are tightest; None where each run left a cluster empty."""
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
    """Clusters renumbered by size; of equal ones that of the earliest member first."""
    _, first, inverse, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -sizes))
    return np.argsort(order)[inverse]


def most_typical(maps: np.ndarray, members: np.ndarray, count: int) -> list[int]:
    """Of a cluster's `members` (places in `maps` [n, D]) those nearest to its centre, the nearest first."""
    points = np.sqrt(as_distribution(maps[members]))
    distances = np.square(points - points.mean(0)).sum(1)
    return [int(members[place]) for place in np.argsort(distances, kind="stable")[:count]]


WORDS = "words of the question"
"""What the table of words is called; a question is in a row for each of its words."""

MOST_WORDS = 24
LEAST_SHARE, MOST_SHARE = 0.01, 0.5
"""Of the questions that a word stands in: rarer ones say little, others do not tell questions apart."""

TYPICAL_WORDS = 4
"""Named of a cluster."""

STANDS_OUT = 3.0
"""Standard errors by which a word's share is above that of other clusters: one of many words may be so by chance."""


@dataclass(frozen=True)
class Trace:
    """What is kept of an answer.

    Attributes:
        relevance: [S, S] of the source that most was fetched from.
        source: that one's number.
        fetched: bool [S, S], where something was fetched from any source.
        boxes: float32 [K, 4] x0, y0, x1, y1 of what was fetched, 0..1 of its source.
        sources: int [K], the source of each.
        sizes: tokens by how many patches they hold.
    """

    relevance: np.ndarray
    source: int
    fetched: np.ndarray
    boxes: np.ndarray
    sources: np.ndarray
    sizes: dict[int, int]

    @property
    def centres(self) -> np.ndarray:
        """float [K, 2] of what was fetched."""
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
    """What was found.

    Attributes:
        scored: the answers of the questions that count, with their scores.
        records: of these questions, n.
        traces: likewise.
        labels: int [n], each question's cluster.
        numbers: all that the page says, as JSON.
        examples: of each cluster the places of its most typical questions.
    """

    scored: Scored
    records: list[Record]
    traces: list[Trace]
    labels: np.ndarray
    numbers: dict[str, Any] = field(repr=False)
    examples: list[list[int]]

    def fetched_share(self, places: np.ndarray) -> np.ndarray:
        """[S, S] of the questions at `places` the share that fetched there."""
        return np.mean([self.traces[place].fetched for place in places], 0)

    def mean_relevance(self, places: np.ndarray) -> np.ndarray:
        """[S, S] over the questions at `places`."""
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
    """Asks every question, clusters the relevance maps, and sums up what kinds of questions get.

    Args:
        model: with a processor.
        records: the questions; copies of one are asked, but do not count.
        choices: strategy, allocator, budget, seed and number of passes.
        clusters: of relevance maps, at most.
        seed: of the clusters.
        examples: questions named of each cluster.
        batch_size, metric, tiles, progress: see `evaluate`.
        data: where the records come from.

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
    """Scores and what was fetched of the questions at `places`, at least one."""
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
    """Tables [{"by", "rows": [{"kind", and what `_summary` says}]}], the words first."""
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
    """{words that stand in the same questions: the places of these questions}, the most frequent words first.

    `words`: of each question. Words that nearly none or most questions have are left out.
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
    """Words whose share of the questions `inside` (bool [n]) is well above that of the others, at most a few.

    `words`: of each question. The lead is counted in standard errors of the difference of two proportions.
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
