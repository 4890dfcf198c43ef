"""From predictions to scores, of all questions and by kind: first word, length of the answer, height of the print.

Notation: n questions, R runs of an arm (one per seed), N patches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

from ..data.records import NOT_ON_THE_PAGE, Record
from ..metrics import METRICS
from ..modeling.image_processing_arr_coc import map_boxes
from .arms import Arm
from .calibration import calibration
from .predictions import (
    Prediction,
    query_dependence,
    read_run,
    recall,
    right_source,
    token_ranges,
    view_recall,
)
from .statistics import (
    Interval,
    TrainingSpread,
    bootstrap_mean,
    clustered_error,
    detectable_difference,
    holm,
    is_significant,
    paired_difference,
    score_interval,
    sign_flip,
)

LONGEST_SHORT_ANSWERS = (3, 6)
"""Answers of up to 3 characters are short, of up to 6 medium."""

MOST_VALUES = 12
"""Tags with more values are names, not kinds: no table of them."""


def buckets(scored: Sequence["Scored"], records: Sequence[Record], patch_size: int) -> list[dict[str, Any]]:
    """Tables [{"by", "rows": [{"bucket", "n", "scores": {arm: interval}, "tokens": {arm: mean}}]}] by kind of question.

    `tokens` has the arms that give questions different numbers of them.
    """
    kinds = question_kinds(records, scored[0].predictions[0], patch_size, difficulty=_difficulty(scored))
    tables = []
    for by, of in kinds.items():
        if 1 < len(set(of) - {""}) <= MOST_VALUES:
            tables.append(kinds_table(by, of, scored))
    return tables + _by_tokens(scored)


def kinds_table(by: str, kinds: Sequence[str], scored: Sequence["Scored"]) -> dict[str, Any]:
    """The scores of each kind of question, "" being none: {"by", "rows"}, see `buckets`."""
    values = sorted(set(kinds) - {""}, key=lambda kind: (int(kind), "") if kind.isdecimal() else (math.inf, kind))
    rows = [_bucket(value, np.array([kind == value for kind in kinds]), scored) for value in values]
    return {"by": by, "rows": rows}


def question_kinds(
    records: Sequence[Record], predictions: Sequence[Prediction], patch_size: int, **more: list[str]
) -> dict[str, list[str]]:
    """What kind of question each record asks, by several criteria; "" where that is not known.

    The record's own tags win over `more` criteria of the same name.
    """
    kinds: dict[str, list[str]] = {
        "first word of the question": [record.question.split()[0].lower() for record in records],
        "length of the answer": [_length(record) for record in records],
        "height of the print": [_height(r, p, patch_size) for r, p in zip(records, predictions, strict=True)],
        **more,
    }
    for tag in dict.fromkeys(name for record in records for name, _ in record.tags):
        kinds[tag] = [dict(record.tags).get(tag, "") for record in records]
    return kinds


def _by_tokens(scored: Sequence["Scored"]) -> list[dict[str, Any]]:
    """A table for each arm that gives its questions different numbers of tokens: of that arm's scores (first run)."""
    tables = []
    for of_arm in scored:
        table = kinds_table(f"image tokens of {of_arm.arm.name}", token_ranges(of_arm.predictions[0]), [of_arm])
        tables += [table] if table["rows"] else []
    return tables


def _bucket(value: str, inside: np.ndarray, scored: Sequence["Scored"]) -> dict[str, Any]:
    intervals = {
        of_arm.arm.name: score_interval(of_arm.mean_scores[inside], of_arm.images[inside]) for of_arm in scored
    }
    scores = {name: asdict(interval) for name, interval in intervals.items()}
    tokens = {of_arm.arm.name: of_arm.tokens for of_arm in scored}
    spent = {name: float(rows[:, inside].mean()) for name, rows in tokens.items() if (rows != rows[:, :1]).any()}
    return {"bucket": value, "n": int(inside.sum()), "scores": scores, "tokens": spent}


def _length(record: Record) -> str:
    length, (short, medium) = min(len(answer) for answer in record.answers), LONGEST_SHORT_ANSWERS
    if length <= short:
        return f"1 to {short} characters"
    return f"{short + 1} to {medium} characters" if length <= medium else f"more than {medium} characters"


def _height(record: Record, prediction: Prediction, patch_size: int) -> str:
    """The height of the answer in patches of the model's grid."""
    if not record.boxes or prediction.over_views:  # which are of several scales
        return ""
    side = prediction.grid * patch_size
    heights = [y1 - y0 for _, y0, _, y1 in map_boxes(record.boxes, *prediction.size, side)]
    share = min(heights) / patch_size
    if share <= 1:
        return "up to 1 patch"
    return "1 to 2 patches" if share <= 2 else "more than 2 patches"


def _difficulty(scored: Sequence["Scored"]) -> list[str]:
    """Tiers by the scores of base tokens only and of the oracle; empty without them."""
    by_name = {of_arm.arm.name: of_arm.mean_scores for of_arm in scored}
    if not {"none", "oracle"} <= set(by_name):
        return [""] * len(scored[0].mean_scores)
    base_only_scores, bounds = by_name["none"], by_name["oracle"]
    return [_tier(base_only, bound) for base_only, bound in zip(base_only_scores, bounds, strict=True)]


def _tier(base_only: float, bound: float) -> str:
    if base_only >= 0.5:
        return "base tokens suffice"
    return "needs patches" if bound >= 0.5 else "not even with the oracle"


logger = logging.get_logger(__name__)

MISSED = 0.5
"""A question counts as missed when less than this share of its boxed patches was fetched."""


@dataclass(frozen=True)
class Items:
    """The questions of a data set that count: of copies (the same pixels, question and answers) only the first one.

    Attributes:
        records: n of them.
        places: int [n], where each was among all records.
        images: int [n], the number of each one's image; images with the same pixels are one.
        copies: how many records do not count.
    """

    records: list[Record]
    places: np.ndarray
    images: np.ndarray
    copies: int

    @property
    def number_of_images(self) -> int:
        """How many different images the questions are about."""
        return len(np.unique(self.images))


def distinct_items(records: Sequence[Record], predictions: Sequence[Prediction]) -> Items:
    """The records that count, by what any run's predictions say of their images' pixels.

    Predictions without a digest (of older runs) tell images by their files.
    """
    numbers: dict[Any, int] = {}
    first: dict[Any, Record] = {}
    places, images = [], []
    for place, (record, said) in enumerate(zip(records, predictions, strict=True)):
        image = numbers.setdefault(said.image or record.images, len(numbers))
        item = (image, record.question, record.answers, record.history)
        if item not in first:
            first[item] = record
            places.append(place)
            images.append(image)
    copies = len(predictions) - len(places)
    if copies:
        logger.warning(f"{copies} of {len(predictions)} questions are copies of others, which count once")
    return Items(list(first.values()), np.array(places), np.array(images), copies)


def check_answers(records: Sequence[Record], metric: str) -> None:
    """Refuses right answers that the metric cannot score, before any question is asked.

    Raises:
        ValueError: an unknown metric, or such answers; the message names the record's line.
    """
    scored = METRICS[metric]
    for record in records:
        try:
            scored.score(record.answers[0], record.answers)
        except ValueError as error:
            raise ValueError(f"line {record.line}: {error}") from error


@dataclass(frozen=True)
class Scored:
    """An arm's predictions for the items that count, with their scores.

    Attributes:
        arm: whose they are.
        metric: of `METRICS`.
        predictions: R rows of n.
        scores: float64 [R, n] in 0..1.
        recalls: float64 [R, n], NaN where a record has no boxes.
        images: int [n], the number of each question's image.
        absent: bool [n], True on questions about what their image does not show.
        pages: float64 [2, R, n], whether what was fetched came from a source that answers: the best patch, and the most
            of them (see `right_source`); NaN where that is not known. None: of none.
    """

    arm: Arm
    metric: str
    predictions: list[list[Prediction]]
    scores: np.ndarray
    recalls: np.ndarray
    images: np.ndarray
    absent: np.ndarray
    pages: np.ndarray | None = None

    @cached_property
    def tokens(self) -> np.ndarray:
        """int [R, n]: positions that the image took in the prompt."""
        return np.array([[prediction.tokens for prediction in row] for row in self.predictions])

    @cached_property
    def mean_scores(self) -> np.ndarray:
        """[n] score of each question, mean over the arm's runs."""
        return self.scores.mean(0)

    @cached_property
    def mean_recalls(self) -> np.ndarray:
        """[n], over the runs; NaN where a record has no boxes."""
        return self.recalls.mean(0)

    @cached_property
    def run_scores(self) -> np.ndarray:
        """[R] mean score of each run."""
        return self.scores.mean(1)

    @property
    def score(self) -> Interval:
        """Mean score, its interval drawn by images."""
        return score_interval(self.mean_scores, self.images)

    @property
    def recall(self) -> Interval | None:
        """Mean recall of the questions with boxes, its interval drawn by images; None where none has boxes."""
        return self.recall_of(np.arange(len(self.images)))

    def recall_of(self, places: np.ndarray) -> Interval | None:
        """`recall` of the questions at `places`. It is 0, whatever the images, where nothing is fetched."""
        boxed = places[~np.isnan(self.mean_recalls[places])]
        if not len(boxed):
            return None
        drawn = score_interval if self.arm.budget else bootstrap_mean
        return drawn(self.mean_recalls[boxed], groups=self.images[boxed])

    @property
    def right_pages(self) -> dict[str, Interval] | None:
        """Share of the questions whose best fetched patch, and whose most, came from a page that answers.

        Intervals are drawn by documents. None where no question says which of its sources answers.
        """
        known = np.zeros(0, dtype=bool) if self.pages is None else ~np.isnan(self.pages[0]).any(0)
        if self.pages is None or not known.any():
            return None
        best, most = self.pages.mean(1)[:, known]
        images = self.images[known]
        return {"best": score_interval(best, images), "most": score_interval(most, images)}

    @cached_property
    def refused(self) -> np.ndarray:
        """bool [R, n], True on answers "not on the page"."""
        answers = [[" ".join(prediction.answer.split()) for prediction in row] for row in self.predictions]
        return np.array(answers) == NOT_ON_THE_PAGE

    @property
    def calibration(self) -> dict[str, Any]:
        """Of all runs' answers: see `calibration.calibration`."""
        probabilities = np.array([[prediction.probability for prediction in row] for row in self.predictions])
        return calibration(probabilities.ravel(), self.scores.ravel(), self.refused.ravel())

    @property
    def refusals(self) -> dict[str, Interval | None] | None:
        """Precision (of the answers that say "not on the page") and recall (of the questions about what is not there).

        Intervals are drawn by images. None where every question is about what is there; without such an answer there is
        no precision.
        """
        if not self.absent.any():
            return None
        absent, images = (np.broadcast_to(values, self.refused.shape) for values in (self.absent, self.images))
        right = self.refused & absent
        return {
            name: score_interval(right[among].astype(float), images[among]) if among.any() else None
            for name, among in (("precision", self.refused), ("recall", absent))
        }


def score_arm(arm: Arm, rows: Sequence[Sequence[Prediction]], items: Items, metric: str, patch_size: int) -> Scored:
    """Scores the predictions of all runs of an arm.

    Args:
        arm: whose they are.
        rows: R of predictions, one for every record of the data.
        items: those that count.
        metric: of `METRICS`.
        patch_size: px.

    Raises:
        ValueError: answers that the metric cannot score, or boxes outside their image.
    """
    score = METRICS[metric].score
    counted = [[row[place] for place in items.places] for row in rows]
    pairs = [list(zip(row, items.records, strict=True)) for row in counted]
    scores = [[float(score(said.answer, record.answers)) for said, record in row] for row in pairs]
    recalls = [[_recall(said, record, patch_size) for said, record in row] for row in pairs]
    pages = np.moveaxis(np.array([[right_source(said, record) for said, record in row] for row in pairs]), -1, 0)
    absent = np.array([record.absent for record in items.records])
    return Scored(arm, metric, counted, np.array(scores), np.array(recalls), items.images, absent, pages)


def _recall(said: Prediction, record: Record, patch_size: int) -> float:
    return view_recall(said, record) if said.over_views else recall(said, record, patch_size)


def read_scored(
    folder: Path, arms: Sequence[Arm], records: Sequence[Record], metric: str, patch_size: int
) -> tuple[list[Scored], Items]:
    """Reads and scores the predictions of all arms in a folder.

    Raises:
        ValueError: predictions are missing, or answers that the metric cannot score.
    """
    lines = [record.line for record in records]
    rows = {arm.name: [_read_row(folder, run, lines) for run in arm.runs] for arm in arms}
    items = distinct_items(records, rows[arms[0].name][0])
    return [score_arm(arm, rows[arm.name], items, metric, patch_size) for arm in arms], items


def _read_row(folder: Path, run: str, lines: Sequence[int]) -> list[Prediction]:
    predictions = read_run(folder, run)
    missing = [line for line in lines if line not in predictions]
    if missing:
        expected = f"a prediction of {run} for each of {len(lines)} records"
        raise ValueError(f"{folder}: expected {expected}; got none for {len(missing)}, e.g. line {missing[0]}")
    return [predictions[line] for line in lines]


def summary(scored: Scored) -> dict[str, Any]:
    """Score and recall with intervals, each run's mean and their spread, tokens, the share of questions that were
    missed, and how far what is fetched depends on the question."""
    run_means, overlap = scored.run_scores, scored.recall
    boxed = ~np.isnan(scored.mean_recalls)
    return {
        **asdict(scored.arm),
        "score": asdict(scored.score),
        "runs": run_means.tolist(),
        "seed_sd": float(run_means.std(ddof=1)) if len(run_means) > 1 else None,
        "query_dependence": query_dependence(scored.predictions, scored.images),
        "recall": None if overlap is None else asdict(overlap),
        **({} if scored.right_pages is None else {"pages": _shown_pages(scored)}),
        "missed": float((scored.recalls[:, boxed] < MISSED).mean()) if boxed.any() else None,
        "mean_tokens": float(scored.tokens.mean()),
    }


def _shown_pages(scored: Scored) -> dict[str, Any]:
    return {name: asdict(interval) for name, interval in (scored.right_pages or {}).items()}


def compare(first: Scored, second: Scored, spread: TrainingSpread | None = None) -> dict[str, Any]:
    """Paired difference of two arms (means over their runs), and p by sign flips of whole images.

    `gained` and `lost`: questions on which the first scores higher and lower. Between arms whose trainings differ by
    `spread`, interval and p take in what other trainings would give.
    """
    ours, theirs, images = first.mean_scores, second.mean_scores, first.images
    difference, p = paired_difference(ours, theirs, groups=images), sign_flip(ours, theirs, groups=images)
    if spread is not None:
        runs, error = (first.run_scores, second.run_scores), clustered_error(ours, theirs, groups=images)
        difference, p = spread.widened(difference, *runs), max(p, spread.p(difference.value, error, *runs))
    return {
        "first": first.arm.name,
        "second": second.arm.name,
        "difference": asdict(difference),
        "gained": int((ours > theirs).sum()),
        "lost": int((ours < theirs).sum()),
        "p": p,
    }


def compare_all(
    pairs: Sequence[tuple[Scored, Scored]],
    spread: TrainingSpread | None = None,
    wanted: Mapping[tuple[str, str], float] | None = None,
) -> list[dict[str, Any]]:
    """`compare` of all pairs as one family: with Holm's p, whether it is significant, and what could have been seen.

    Args:
        pairs: of arms.
        spread: see `compare`.
        wanted: shares by which a rule wants the first of two arms, by their names, above the second.
    """
    comparisons = [compare(first, second, spread) for first, second in pairs]
    adjusted = holm([comparison["p"] for comparison in comparisons])
    for comparison, (first, second), p in zip(comparisons, pairs, adjusted, strict=True):
        difference, images = Interval(**comparison["difference"]), len(np.unique(first.images))
        error = clustered_error(first.mean_scores, second.mean_scores, groups=first.images)
        beyond = (wanted or {}).get((first.arm.name, second.arm.name), 0.0)
        comparison["p_holm"] = p
        comparison["significant"] = is_significant(difference, p, images)
        comparison["detectable"] = (
            detectable_difference(error, comparisons=len(pairs), beyond=beyond)
            if spread is None
            else spread.detectable_difference(
                error, first.run_scores, second.run_scores, comparisons=len(pairs), beyond=beyond
            )
        )
    return comparisons
