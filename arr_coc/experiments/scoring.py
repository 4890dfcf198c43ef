"""From the scores of an experiment's arms to the numbers of its report: no model is needed.

A curve shows scores against how much a page says: where does each arm fail, and how much does running back recover?

curve:
  by: density          # a tag of every record: visible characters on its page
  arm: running         # whose tokens the characters are counted by, and who recovers
  floor: floor         # who reads base tokens alone
  ceiling: keep_all    # who sees everything

Notation: n questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from ..data.records import Record
from ..evaluation.predictions import changed_answers, compared_halves, misallocated, swapped_pairs
from ..evaluation.scores import Items, Scored, buckets, compare_all, summary
from ..evaluation.statistics import bootstrap_ratio, paired_difference, score_interval, training_spread
from .decisions import compared, decide, margins


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


SMALLEST_GAP = 0.1
"""No share of a smaller gap between floor and ceiling is given: there is next to nothing to recover."""


@dataclass(frozen=True)
class Curve:
    """What is drawn: the tag `by` that holds a page's number of characters, and the names of three arms."""

    by: str
    arm: str
    floor: str
    ceiling: str


def read_curve(spec: Mapping[str, Any], arms: Sequence[str], records: Sequence[Record]) -> Curve:
    """The curve that a configuration asks for.

    Raises:
        ValueError: not the four names, arms that are not there, or records without a number under the tag.
    """
    known = [field.name for field in fields(Curve)]
    if not isinstance(spec, Mapping) or set(spec) != set(known) or not all(isinstance(v, str) for v in spec.values()):
        raise ValueError(f"curve: expected {', '.join(known)}, a name each; got {spec!r}")
    curve = Curve(**spec)
    if strange := sorted({curve.arm, curve.floor, curve.ceiling} - set(arms)):
        raise ValueError(f"curve: expected arms among {', '.join(arms)}; got {', '.join(strange)}")
    characters(records, curve.by)
    return curve


def characters(records: Sequence[Record], tag: str) -> np.ndarray:
    """int [n] how many the page of each record shows, as its tag says.

    Raises:
        ValueError: a record without such a tag, or with one that is no number.
    """
    said = [dict(record.tags).get(tag, "") for record in records]
    for record, text in zip(records, said, strict=True):
        if not text.isdecimal():
            raise ValueError(
                f"curve: expected a number of characters as tag {tag!r}; got {text!r} in line {record.line}"
            )
    return np.array([int(text) for text in said])


def score_curve(scored: Sequence["Scored"], records: Sequence[Record], curve: Curve) -> dict[str, Any]:
    """{"by", "arm", "floor", "ceiling", "tokens": of the arm, "levels": [...], "all": {...}}.

    A level is {"characters", "per_token", "n", "images", "scores": {arm: interval}, "gap": between floor and ceiling,
    "recovered": which share of it the arm has, or None of a gap up to `SMALLEST_GAP` or whose interval reaches 0};
    intervals are drawn by images.
    """
    by_name = {of_arm.arm.name: of_arm for of_arm in scored}
    counts = characters(records, curve.by)
    tokens = float(by_name[curve.arm].tokens.mean())
    levels = [
        {"characters": level, "per_token": level / tokens, **_level(by_name, counts == level, curve)}
        for level in np.unique(counts).tolist()
    ]
    return {**asdict(curve), "tokens": tokens, "levels": levels, "all": _level(by_name, counts >= 0, curve)}


def _level(by_name: Mapping[str, "Scored"], inside: np.ndarray, curve: Curve) -> dict[str, Any]:
    """What came of the questions where `inside` [n] is True."""
    images = by_name[curve.arm].images[inside]
    means = {name: of_arm.mean_scores[inside] for name, of_arm in by_name.items()}
    arm, floor, ceiling = (means[name] for name in (curve.arm, curve.floor, curve.ceiling))
    gap = paired_difference(ceiling, floor, groups=images)
    wide = gap.value > SMALLEST_GAP and gap.low > 0  # a mean denominator that may be 0 has no ratio
    return {
        "n": int(inside.sum()),
        "images": len(np.unique(images)),
        "scores": {name: asdict(score_interval(values, images)) for name, values in means.items()},
        "gap": asdict(gap),
        "recovered": asdict(bootstrap_ratio(arm - floor, ceiling - floor, groups=images)) if wide else None,
    }
