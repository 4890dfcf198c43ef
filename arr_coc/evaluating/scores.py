"""From predictions to the numbers of a report: no model is needed.

Notation: n questions, R runs of an arm (one per seed), N patches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

from ..data.records import NOT_ON_THE_PAGE, Record
from ..metrics import METRICS
from .arms import Arm
from .buckets import buckets
from .decisions import compared, decide, margins
from .halves import changed_answers, compared_halves, swapped_pairs
from .predictions import Prediction, read_run, recall
from .spending import misallocated, query_dependence
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
from .trainings import TrainingSpread, training_spread
from .view_asking import right_source, view_recall

logger = logging.get_logger(__name__)

MISSED = 0.5
"""A question counts as missed when less than this share of its boxed patches was fetched."""


@dataclass(frozen=True)
class Items:
    """The questions of a data set that count: of copies (the same pixels, question and answers) only the first one.

    Attributes:
        records: n of them.
        places: int [n], where each stood among all records.
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
        """bool [R, n], True on answers that say that it is not on the page."""
        answers = [[" ".join(prediction.answer.split()) for prediction in row] for row in self.predictions]
        return np.array(answers) == NOT_ON_THE_PAGE

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


def score_experiment(
    scored: Sequence[Scored], items: Items, rules: dict[str, Any], patch_size: int, *, reference: str | None = None
) -> dict[str, Any]:
    """{"arms", "comparisons", "trainings", "decision", "halves", "buckets", "n", "images", "copies"} of what is all
    answered.

    Comparisons: each rung with the one before, what the rules compare, what shows the contribution of base and patches,
    and the last rung (in a contest its reference) with every other arm but ablations; all of them are one family for
    Holm's correction. Where arms have weights of their own, all arms' trainings say how far trainings differ.
    """
    by_name = {of_arm.arm.name: of_arm for of_arm in scored}
    rungs = [name for name, of_arm in by_name.items() if of_arm.arm.role == "ladder"]
    fixed = [name for name, of_arm in by_name.items() if of_arm.arm.role not in ("ablation", "half")]
    pairs = [(upper, lower) for lower, upper in pairwise(rungs)]
    pairs += [pair for pair in compared(rules) if set(pair) <= set(by_name)]
    pairs += compared_halves([of_arm.arm for of_arm in scored])
    subject = rungs[-1] if reference is None and rungs else reference
    pairs += [(subject, name) for name in fixed if name != subject] if subject else []
    own = [of_arm.run_scores.tolist() for of_arm in scored if of_arm.arm.weights]
    spread = training_spread(own) if own else None
    named = [(by_name[first], by_name[second]) for first, second in dict.fromkeys(pairs)]
    comparisons = compare_all(named, spread, margins(rules))
    known = {(comparison["first"], comparison["second"]): comparison for comparison in comparisons}
    arms = {name: summary(of_arm) for name, of_arm in by_name.items()}
    hard = _hard(items.records, by_name)
    for name, arm in arms.items():
        arm["misallocated"] = misallocated(by_name[name].predictions, hard)
    images = items.number_of_images
    return {
        "n": len(items.records),
        "images": images,
        "copies": items.copies,
        "arms": arms,
        "comparisons": comparisons,
        "trainings": None if spread is None else {"freedom": spread.freedom},
        "decision": decide(rules, list(by_name), lambda first, second: known[first, second], images=images),
        "halves": [
            {
                "patches": other.budget,
                "own": own.name,
                "other": other.name,
                "changed": asdict(
                    changed_answers(by_name[own.name].predictions[0], by_name[other.name].predictions[0], items.images)
                ),
            }
            for own, other in swapped_pairs([of_arm.arm for of_arm in scored])
        ],
        "buckets": buckets(scored, items.records, patch_size),
    }


def _hard(records: Sequence[Record], by_name: Mapping[str, Scored]) -> np.ndarray:
    """bool [n]: questions whose tag `difficulty` says so; without such tags, those that the base does not answer."""
    tags = [dict(record.tags).get("difficulty") for record in records]
    if "hard" in tags:
        return np.array([tag == "hard" for tag in tags])
    return by_name["none"].mean_scores < 0.5 if "none" in by_name else np.zeros(len(records), dtype=bool)


def worst(scored: Sequence[Scored], subject: str, count: int) -> list[int]:
    """Places of the items that the arm `subject` did worst on: behind the other arms, then missed, then confident."""
    by_name = {of_arm.arm.name: of_arm for of_arm in scored}
    ours = by_name[subject]
    rest = [of_arm.mean_scores for name, of_arm in by_name.items() if name != subject]
    best = np.max(rest, 0) if rest else np.ones(len(ours.mean_scores))
    recalls = np.nan_to_num(ours.recalls[0], nan=1.0)
    confidence = np.array([prediction.probability for prediction in ours.predictions[0]])
    order = np.lexsort((-confidence, recalls, ours.mean_scores - best))
    return [int(place) for place in order if ours.mean_scores[place] < 1][:count]
