"""Scores by kind of question: its first word, the length of its answer, the height of the print, tags, tokens."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.records import Record
from ..modeling.image_processing_arr_coc import map_boxes
from .predictions import Prediction
from .spending import token_ranges
from .statistics import score_interval

if TYPE_CHECKING:
    from .scores import Scored

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
    """How many patches high the answer stands, as the model sees it."""
    if not record.boxes or prediction.over_views:  # which are of several scales
        return ""
    side = prediction.grid * patch_size
    heights = [y1 - y0 for _, y0, _, y1 in map_boxes(record.boxes, *prediction.size, side)]
    share = min(heights) / patch_size
    if share <= 1:
        return "up to 1 patch"
    return "1 to 2 patches" if share <= 2 else "more than 2 patches"


def _difficulty(scored: Sequence["Scored"]) -> list[str]:
    """By what the floor and the oracle can answer; empty without them."""
    by_name = {of_arm.arm.name: of_arm.mean_scores for of_arm in scored}
    if not {"none", "oracle"} <= set(by_name):
        return [""] * len(scored[0].mean_scores)
    floors, bounds = by_name["none"], by_name["oracle"]
    return [_tier(floor, bound) for floor, bound in zip(floors, bounds, strict=True)]


def _tier(floor: float, bound: float) -> str:
    if floor >= 0.5:
        return "the base suffices"
    return "needs patches" if bound >= 0.5 else "not even with the oracle"
