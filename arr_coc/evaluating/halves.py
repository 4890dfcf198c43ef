"""What each half of an image's tokens contributes, base and patches, by exchanging the base for another page's.

Notation: n questions.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .arms import HALVES, Arm
from .predictions import Prediction
from .statistics import Interval, score_interval


def swapped_pairs(arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    """(the arm with its own base, the same with another page's), the most patches first; those that are both there."""
    swapped = sorted((arm for arm in arms if arm.rule == "other_base"), key=lambda arm: -arm.budget)
    pairs = [(next((own for own in arms if _is_own(own, other)), None), other) for other in swapped]
    return [(own, other) for own, other in pairs if own is not None]


def _is_own(own: Arm, other: Arm) -> bool:
    """Whether `own` reads what `other` does, but for the base tokens."""
    if own.rule in HALVES or own.rule != own.strategy or own.overlap or own.bypass or own.side != other.side:
        return False
    if own.weights != other.weights:
        return False
    same_patches = own.strategy == other.strategy and own.allocator == other.allocator
    return own.budget == other.budget and (same_patches or not own.budget)


def compared_halves(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """The pairs of arms whose difference is what a half contributes: the base, then the patches, each both ways."""
    pairs = swapped_pairs(arms)
    base = [(own.name, other.name) for own, other in pairs]
    patches = [(more.name, fewer.name) for bases in zip(*pairs, strict=True) for more, fewer in pairwise(bases)]
    return [*base, *patches]


def changed_answers(
    own: Sequence[Prediction], other: Sequence[Prediction], images: Sequence[int] | np.ndarray
) -> Interval:
    """Share of n questions that are answered otherwise, its interval drawn by `images` [n]."""
    changed = [float(first.answer != second.answer) for first, second in zip(own, other, strict=True)]
    return score_interval(changed, images)
