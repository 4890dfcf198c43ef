"""From predictions on disk to the numbers of a report: no model is needed.

Notation: n questions, R runs of an arm (one per seed), N patches.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from ..data.images import HeldImage
from ..data.records import Record
from ..metrics import METRICS, patch_recall
from ..modeling.image_processing_arr_coc import boxes_to_patches, map_boxes
from .arms import Arm
from .deciding import compared, decide
from .predictions import Prediction, read_run
from .spending import misallocated, query_dependence, token_ranges
from .statistics import Interval, bootstrap_mean, holm, is_significant, mcnemar, paired_difference, sign_flip, wilson

LONGEST_SHORT_ANSWERS = (3, 6)
"""Answers of up to 3 characters are short, of up to 6 medium."""

MISSED = 0.5
"""A question counts as missed when less than this share of its boxed patches was fetched."""

MOST_VALUES = 12
"""Tags with more values are names, not kinds: no table of them."""


@dataclass(frozen=True)
class Scored:
    """All of an arm's predictions with their scores.

    Attributes:
        arm: it.
        predictions: R rows of n.
        scores: float64 [R, n] in 0..1.
        recalls: float64 [R, n], NaN where a record has no boxes.
    """

    arm: Arm
    predictions: list[list[Prediction]]
    scores: np.ndarray
    recalls: np.ndarray

    @cached_property
    def tokens(self) -> np.ndarray:
        """int [R, n]: positions that the image took in the prompt."""
        return np.array([[prediction.tokens for prediction in row] for row in self.predictions])

    @cached_property
    def mean_scores(self) -> np.ndarray:
        """[n], over the runs."""
        return self.scores.mean(0)


def score_arm(folder: Path, arm: Arm, records: Sequence[Record], metric: str, patch_size: int) -> Scored:
    """Reads and scores the predictions of all runs of an arm.

    Raises:
        ValueError: predictions are missing, or answers that the metric cannot score.
    """
    rows = []
    for run in arm.runs:
        found = read_run(folder, run)
        missing = [record.line for record in records if record.line not in found]
        if missing:
            expected = f"a prediction of {run} for each of {len(records)} records"
            raise ValueError(f"{folder}: expected {expected}; got none for {len(missing)}, e.g. line {missing[0]}")
        rows.append([found[record.line] for record in records])
    score = METRICS.named(metric).score
    scores = [[float(score(p.answer, r.answers)) for p, r in zip(row, records, strict=True)] for row in rows]
    recalls = [[_recall(p, r, patch_size) for p, r in zip(row, records, strict=True)] for row in rows]
    return Scored(arm, rows, np.array(scores), np.array(recalls))


def _recall(prediction: Prediction, record: Record, patch_size: int) -> float:
    if not record.boxes:
        return float("nan")
    mapped = map_boxes(record.boxes, *prediction.size, prediction.grid * patch_size)
    boxed = boxes_to_patches(mapped, prediction.grid, patch_size)
    if not boxed.any():
        raise ValueError(f"line {record.line}: boxes: expected boxes that reach into the image; got {record.boxes}")
    return patch_recall(prediction.indices, boxed)


def group_numbers(records: Sequence[Record]) -> np.ndarray:
    """int64 [n]: the number of each record's image."""
    numbers: dict[Path | HeldImage, int] = {}
    return np.array([numbers.setdefault(record.image, len(numbers)) for record in records])


def summary(scored: Scored, groups: np.ndarray, graded: bool) -> dict[str, Any]:
    """Score and recall with intervals, each run's mean and their spread, tokens, the share of questions that were
    missed, and how far what is fetched depends on the question."""
    score = bootstrap_mean(scored.mean_scores, groups=groups)
    if not graded and score.value in (0, 1):  # resampling shows no spread where Wilson's interval still does
        score = wilson(round(scored.mean_scores.sum()), len(groups))
    recalls = scored.recalls.mean(0)
    boxed = ~np.isnan(recalls)
    return {
        **asdict(scored.arm),
        "score": asdict(score),
        "runs": scored.scores.mean(1).tolist(),
        "seed_sd": float(scored.scores.mean(1).std(ddof=1)) if len(scored.scores) > 1 else None,
        "query_dependence": query_dependence(scored.predictions, groups),
        "recall": asdict(bootstrap_mean(recalls[boxed], groups=groups[boxed])) if boxed.any() else None,
        "missed": float((scored.recalls[:, boxed] < MISSED).mean()) if boxed.any() else None,
        "mean_tokens": float(scored.tokens.mean()),
    }


def compare(first: Scored, second: Scored, groups: np.ndarray, graded: bool) -> dict[str, Any]:
    """Paired difference of two arms (means over their runs) and a test.

    Right-or-wrong answers: McNemar's exact test of every pair of runs, of which the largest p counts. Graded ones: sign
    flips of whole images.
    """
    difference = paired_difference(first.mean_scores, second.mean_scores, groups=groups)
    found: dict[str, Any] = {
        "first": first.arm.name,
        "second": second.arm.name,
        "difference": asdict(difference),
        "test": "sign flips" if graded else "McNemar",
    }
    if graded:
        return {**found, "p": sign_flip(first.mean_scores, second.mean_scores, groups=groups)}
    tests = [mcnemar(ours, theirs) for ours, theirs in product(first.scores, second.scores)]
    return {**found, **asdict(max(tests, key=lambda test: test.p))}


def score_experiment(
    scored: Sequence[Scored], records: Sequence[Record], metric: str, rules: dict[str, Any], patch_size: int
) -> dict[str, Any]:
    """{"arms", "comparisons", "decision", "buckets", "n", "images"} of an experiment whose arms are all answered.

    Comparisons: each rung with the one before, what the rules compare, and the last rung with every other arm but
    ablations; all of them are one family for Holm's correction.
    """
    graded, groups = METRICS.named(metric).graded, group_numbers(records)
    by_name = {one.arm.name: one for one in scored}
    rungs = [one.arm.name for one in scored if one.arm.role == "ladder"]
    fixed = [one.arm.name for one in scored if one.arm.role != "ablation"]
    others = [(rungs[-1], name) for name in fixed if name != rungs[-1]] if rungs else []
    pairs = [(upper, lower) for lower, upper in pairwise(rungs)]
    pairs += [pair for pair in compared(rules) if set(pair) <= set(by_name)] + others
    comparisons = [compare(by_name[a], by_name[b], groups, graded) for a, b in dict.fromkeys(pairs)]
    for one, p in zip(comparisons, holm([one["p"] for one in comparisons]), strict=True):
        one["p_holm"], one["significant"] = p, is_significant(Interval(**one["difference"]), p)

    known = {(one["first"], one["second"]): one for one in comparisons}
    arms = {name: summary(one, groups, graded) for name, one in by_name.items()}
    hard = _hard(records, by_name)
    for name, arm in arms.items():
        arm["misallocated"] = misallocated(by_name[name].predictions, hard)
    return {
        "n": len(records),
        "images": int(groups.max()) + 1,
        "arms": arms,
        "comparisons": comparisons,
        "decision": decide(rules, list(by_name), lambda first, second: known[first, second]),
        "buckets": buckets(scored, records, groups, patch_size),
    }


def _hard(records: Sequence[Record], by_name: dict[str, Scored]) -> np.ndarray:
    """bool [n]: questions whose tag `difficulty` says so; without such tags, those that the base does not answer."""
    tags = [dict(record.tags).get("difficulty") for record in records]
    if "hard" in tags:
        return np.array([tag == "hard" for tag in tags])
    return by_name["none"].mean_scores < 0.5 if "none" in by_name else np.zeros(len(records), dtype=bool)


# ---- by bucket ----------------------------------------------------------------------------------------------------


def buckets(
    scored: Sequence[Scored], records: Sequence[Record], groups: np.ndarray, patch_size: int
) -> list[dict[str, Any]]:
    """Tables [{"by", "rows": [{"bucket", "n", "scores": {arm: interval}, "tokens": {arm: mean}}]}] by kind of question.

    `tokens` has the arms that give questions different numbers of them.
    """
    first = scored[0].predictions[0]
    kinds: dict[str, list[str]] = {
        "first word of the question": [record.question.split()[0].lower() for record in records],
        "length of the answer": [_length(record) for record in records],
        "height of the print": [_height(r, p, patch_size) for r, p in zip(records, first, strict=True)],
        "difficulty": _difficulty(scored),
    }
    for tag in dict.fromkeys(name for record in records for name, _ in record.tags):
        kinds[tag] = [dict(record.tags).get(tag, "") for record in records]
    tables = []
    for by, of in kinds.items():
        values = sorted(set(of) - {""})
        if 1 < len(values) <= MOST_VALUES:
            rows = [_bucket(value, np.array([one == value for one in of]), scored, groups) for value in values]
            tables.append({"by": by, "rows": rows})
    return tables + _by_tokens(scored, groups)


def _by_tokens(scored: Sequence[Scored], groups: np.ndarray) -> list[dict[str, Any]]:
    """A table for each arm that gives its questions different numbers of tokens: of that arm's scores (first run)."""
    tables = []
    for one in scored:
        of = token_ranges(one.predictions[0])
        values = sorted(set(of) - {""})
        rows = [_bucket(value, np.array([found == value for found in of]), [one], groups) for value in values]
        tables += [{"by": f"image tokens of {one.arm.name}", "rows": rows}] if rows else []
    return tables


def _bucket(value: str, inside: np.ndarray, scored: Sequence[Scored], groups: np.ndarray) -> dict[str, Any]:
    scores = {one.arm.name: asdict(bootstrap_mean(one.mean_scores[inside], groups=groups[inside])) for one in scored}
    tokens = {one.arm.name: one.tokens for one in scored}
    spent = {name: float(rows[:, inside].mean()) for name, rows in tokens.items() if (rows != rows[:, :1]).any()}
    return {"bucket": value, "n": int(inside.sum()), "scores": scores, "tokens": spent}


def _length(record: Record) -> str:
    length, (short, medium) = min(len(answer) for answer in record.answers), LONGEST_SHORT_ANSWERS
    if length <= short:
        return f"1 to {short} characters"
    return f"{short + 1} to {medium} characters" if length <= medium else f"more than {medium} characters"


def _height(record: Record, prediction: Prediction, patch_size: int) -> str:
    """How many patches high the answer stands, as the model sees it."""
    if not record.boxes:
        return ""
    side = prediction.grid * patch_size
    heights = [y1 - y0 for _, y0, _, y1 in map_boxes(record.boxes, *prediction.size, side)]
    share = min(heights) / patch_size
    if share <= 1:
        return "up to 1 patch"
    return "1 to 2 patches" if share <= 2 else "more than 2 patches"


def _difficulty(scored: Sequence[Scored]) -> list[str]:
    """By what the floor and the oracle can answer; empty without them."""
    by_name = {one.arm.name: one.mean_scores for one in scored}
    if not {"none", "oracle"} <= set(by_name):
        return [""] * len(scored[0].mean_scores)
    floors, bounds = by_name["none"], by_name["oracle"]
    return [_tier(floor, bound) for floor, bound in zip(floors, bounds, strict=True)]


def _tier(floor: float, bound: float) -> str:
    if floor >= 0.5:
        return "the base suffices"
    return "needs patches" if bound >= 0.5 else "not even with the oracle"


def worst(scored: Sequence[Scored], records: Sequence[Record], subject: str, count: int) -> list[int]:
    """Places of the records that the arm `subject` did worst on: behind the other arms, then missed, then confident."""
    by_name = {one.arm.name: one for one in scored}
    ours = by_name[subject]
    rest = [one.mean_scores for name, one in by_name.items() if name != subject]
    best = np.max(rest, 0) if rest else np.ones(len(records))
    recalls = np.nan_to_num(ours.recalls[0], nan=1.0)
    confidence = np.array([prediction.probability for prediction in ours.predictions[0]])
    order = np.lexsort((-confidence, recalls, ours.mean_scores - best))
    return [int(i) for i in order if ours.mean_scores[i] < 1][:count]
