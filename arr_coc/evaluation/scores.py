"""From predictions to scores of all questions, and by kind.

Notation: n questions, R runs of an arm (one per seed), N patches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from transformers.utils import logging

from ..data.records import Record, says_absent
from ..metrics import METRICS
from .arms import Arm
from .calibration import calibration
from .predictions import Prediction, recall, right_source, view_recall
from .statistics import (
    Interval,
    bootstrap_mean,
    clustered_error,
    detectable_difference,
    holm,
    is_significant,
    paired_difference,
    score_interval,
    sign_flip,
)


def kinds_table(by: str, kinds: Sequence[str], scored: Sequence["Scored"]) -> dict[str, Any]:
    """The scores of each kind of question; "" is no kind.

    Returns:
        {"by", "rows": [{"bucket", "n", "scores": {arm: interval}, "tokens": {arm: mean}}]}; `tokens` holds only arms
        whose number of tokens depends on the question.
    """
    rows = []
    for value in sorted(set(kinds) - {""}, key=lambda kind: (int(kind), "") if kind.isdecimal() else (math.inf, kind)):
        inside = np.array([kind == value for kind in kinds])
        intervals = {own.arm.name: score_interval(own.mean_scores[inside], own.images[inside]) for own in scored}
        scores = {name: asdict(interval) for name, interval in intervals.items()}
        spent = {own.arm.name: own.tokens[:, inside] for own in scored if (own.tokens != own.tokens[:, :1]).any()}
        tokens = {name: float(positions.mean()) for name, positions in spent.items()}
        rows.append({"bucket": value, "n": int(inside.sum()), "scores": scores, "tokens": tokens})
    return {"by": by, "rows": rows}


logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Items:
    """The distinct questions of a data set: of copies (same pixels, question and answers) only the first counts.

    Attributes:
        places: int [n], the index of each among all records.
        images: int [n], the index of each record's image; images with the same pixels have the same index.
        copies: the number of records that do not count.
    """

    records: list[Record]
    places: np.ndarray
    images: np.ndarray
    copies: int

    @property
    def number_of_images(self) -> int:
        """The number of different images that the questions are about."""
        return len(np.unique(self.images))


def distinct_items(records: Sequence[Record], predictions: Sequence[Prediction]) -> Items:
    """The records that count; the predictions of any run hold the digests of their images.

    Without a digest (in predictions of older versions), images are distinguished by their files.
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
    """Refuses reference answers that the metric cannot score, before any question is asked.

    Raises:
        ValueError: an unknown metric, or an answer that it cannot score; the message names the record's line.
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
        predictions: R rows of n.
        scores: float64 [R, n] in 0..1.
        recalls: float64 [R, n], NaN for records without boxes.
        images: int [n], the index of each question's image.
        absent: bool [n], True on questions whose field is not on the page.
        pages: float64 [2, R, n], whether the best patch, and whether most patches, came from a source with the answer
            (see `right_source`); NaN if unknown. None if unknown for all questions.
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
        """int [R, n]: positions of the image in the prompt."""
        return np.array([[prediction.tokens for prediction in row] for row in self.predictions])

    @cached_property
    def mean_scores(self) -> np.ndarray:
        """[n]: mean score of each question over the arm's runs."""
        return self.scores.mean(0)

    @cached_property
    def mean_recalls(self) -> np.ndarray:
        """[n]: mean recall of each question over the runs; NaN for records without boxes."""
        return self.recalls.mean(0)

    @property
    def told(self) -> list[dict[str, Any]]:
        """Each answer, run by run: {"line": of its record, "answer", "probability", "score": 0 to 1}."""
        return [
            {"line": said.line, "answer": said.answer, "probability": said.probability, "score": float(score)}
            for row, scores in zip(self.predictions, self.scores, strict=True)
            for said, score in zip(row, scores, strict=True)
        ]

    @property
    def score(self) -> Interval:
        """Mean score; its interval is drawn by images."""
        return score_interval(self.mean_scores, self.images)

    @property
    def recall(self) -> Interval | None:
        """Mean recall of the questions with boxes; its interval is drawn by images. None without boxes."""
        return self.recall_of(np.arange(len(self.images)))

    def recall_of(self, places: np.ndarray) -> Interval | None:
        """`recall` of the questions at `places`. If nothing is fetched it is exactly 0."""
        boxed = places[~np.isnan(self.mean_recalls[places])]
        if not len(boxed):
            return None
        drawn = score_interval if self.arm.budget else bootstrap_mean
        return drawn(self.mean_recalls[boxed], groups=self.images[boxed])

    @property
    def right_pages(self) -> dict[str, Interval] | None:
        """Share of the questions whose best patch, and whose most patches, came from a page with the answer.

        Intervals are drawn by documents. None if no question has a known source of the answer.
        """
        if self.pages is None or not (known := ~np.isnan(self.pages[0]).any(0)).any():
            return None
        best, most = self.pages.mean(1)[:, known]
        images = self.images[known]
        return {"best": score_interval(best, images), "most": score_interval(most, images)}

    @cached_property
    def refused(self) -> np.ndarray:
        """bool [R, n]: True on answers "not on the page"."""
        return np.array([[says_absent(prediction.answer) for prediction in row] for row in self.predictions])

    @property
    def calibration(self) -> dict[str, Any]:
        """The `calibration.calibration` of all runs' answers."""
        probabilities = np.array([[prediction.probability for prediction in row] for row in self.predictions])
        return calibration(probabilities.ravel(), self.scores.ravel(), self.refused.ravel())

    @property
    def refusals(self) -> dict[str, Interval | None] | None:
        """Precision of the answers "not on the page", and their recall over the questions about absent fields.

        Intervals are drawn by images. None without questions about absent fields; the precision is None without answers
        "not on the page".
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
    """Scores the predictions of an arm's R runs, each with one for every record of the data.

    Raises:
        ValueError: answers that the metric cannot score, or boxes outside their image.
    """
    score = METRICS[metric].score
    counted = [[row[place] for place in items.places] for row in rows]
    pairs = [list(zip(row, items.records, strict=True)) for row in counted]
    scores = [[float(score(said.answer, record.answers)) for said, record in row] for row in pairs]
    recalls = [
        [view_recall(*pair) if pair[0].over_views else recall(*pair, patch_size) for pair in row] for row in pairs
    ]
    pages = np.moveaxis(np.array([[right_source(said, record) for said, record in row] for row in pairs]), -1, 0)
    absent = np.array([record.absent for record in items.records])
    return Scored(arm, metric, counted, np.array(scores), np.array(recalls), items.images, absent, pages)


def compare(first: Scored, second: Scored) -> dict[str, Any]:
    """Paired difference of two arms (means over their runs), with p by sign flips of whole images.

    `gained` and `lost`: the questions on which the first arm scores higher and lower.
    """
    ours, theirs, images = first.mean_scores, second.mean_scores, first.images
    difference, p = paired_difference(ours, theirs, groups=images), sign_flip(ours, theirs, groups=images)
    return {
        "first": first.arm.name,
        "second": second.arm.name,
        "difference": asdict(difference),
        "gained": int((ours > theirs).sum()),
        "lost": int((ours < theirs).sum()),
        "p": p,
    }


def compare_all(
    pairs: Sequence[tuple[Scored, Scored]], wanted: Mapping[tuple[str, str], float]
) -> list[dict[str, Any]]:
    """Compares all pairs as one family, with Holm's p, significance and the detectable difference.

    `wanted`: by pair of names, the share by which a criterion requires the first arm to exceed the second.
    """
    comparisons = [compare(first, second) for first, second in pairs]
    adjusted = holm([comparison["p"] for comparison in comparisons])
    for comparison, (first, second), p in zip(comparisons, pairs, adjusted, strict=True):
        difference, images = Interval(**comparison["difference"]), len(np.unique(first.images))
        error = clustered_error(first.mean_scores, second.mean_scores, groups=first.images)
        beyond = wanted.get((first.arm.name, second.arm.name), 0.0)
        comparison["p_holm"] = p
        comparison["significant"] = is_significant(difference, p, images)
        comparison["detectable"] = detectable_difference(error, comparisons=len(pairs), beyond=beyond)
    return comparisons
