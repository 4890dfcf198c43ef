"""Scores against how much a page says: where does each arm begin to forget, and how much does running back recover?

curve:
  by: density          # a tag of every record: visible characters on its page
  arm: running         # whose tokens the characters are counted by, and who recovers
  floor: floor         # who forgets
  ceiling: keep_all    # who sees everything

Notation: n questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.records import Record
from .statistics import bootstrap_ratio, paired_difference, score_interval

if TYPE_CHECKING:
    from .scores import Scored

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
