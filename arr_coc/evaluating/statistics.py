"""Intervals, paired comparisons and tests. Questions about one image are not independent: they are drawn together.

Notation: n items (questions), each with a group (its image).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959963984540054
"""Standard normal quantile of 0.975: two-sided 95 %."""

RESAMPLES = 2000
"""Bootstrap resamples: the ends of a 95 % interval then rest on 50 of them each."""

FLIPS = 9999
"""Random sign flips of a permutation test: the smallest p it can give is 1 in 10,000."""

SIGNIFICANCE = 0.02
"""Largest p (after Holm) that is called significant. At 0.05, 100 comparisons of an arm with itself would often give
six or more that are called different; at 0.02, three points on 2,000 questions are still found nearly always."""


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class McNemar:
    """Paired right-or-wrong answers: items that only the first got right, only the second, and the exact p."""

    gained: int
    lost: int
    p: float


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927): sensible also at 0 and 1 and for small n.

    Raises:
        ValueError: not 0 <= successes <= n with n > 0.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"successes: expected 0 to n, n at least 1; got {successes} of {n}")
    share = successes / n
    middle = share + Z**2 / (2 * n)
    spread = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    low, high = ((middle + sign * spread) / (1 + Z**2 / n) for sign in (-1, 1))
    return Interval(share, max(0.0, low), min(1.0, high))


def bootstrap_mean(
    values: Sequence[float] | np.ndarray,
    *,
    groups: Sequence[int] | np.ndarray | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean with a percentile bootstrap interval (Efron 1979); the same for the same values and seed.

    Args:
        values: at least one.
        groups: which values belong together (questions of one image) and are drawn together; None: each by itself.
        seed: of the resampling.
        resamples: how often the groups are drawn.

    Raises:
        ValueError: no values.
    """
    given = np.asarray(values, dtype=np.float64)
    sums, counts = _by_group(given, groups)
    # Groups that are alike need not be told apart: how often each kind is drawn is multinomial.
    kinds, copies = np.unique(np.stack((sums, counts), 1), axis=0, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(sums), copies / len(sums), size=resamples)
    means = (drawn @ kinds[:, 0]) / (drawn @ kinds[:, 1])
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(given.mean()), float(low), float(high))


def _by_group(values: np.ndarray, groups: Sequence[int] | np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the values of each group."""
    if not len(values):
        raise ValueError("values: expected at least one; got none")
    if groups is not None and len(groups) != len(values):
        raise ValueError(f"groups: expected one per value ({len(values)}); got {len(groups)}")
    _, group = np.unique(np.arange(len(values)) if groups is None else np.asarray(groups), return_inverse=True)
    return np.bincount(group, values), np.bincount(group)


def paired_difference(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    groups: Sequence[int] | np.ndarray | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean of `first` - `second` on the same items with a bootstrap interval (see `bootstrap_mean`).

    Raises:
        ValueError: unequal numbers of items, or none.
    """
    return bootstrap_mean(_paired(first, second), groups=groups, seed=seed, resamples=resamples)


def _paired(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> np.ndarray:
    ours, theirs = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"scores: expected the same items for both; got {len(ours)} and {len(theirs)}")
    return ours - theirs


def mcnemar(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> McNemar:
    """The exact test of paired right-or-wrong answers (McNemar 1947): are gains and losses equally likely? Two-sided.

    Args:
        first, second: 1 or True where the item's answer is right, the same items in both.

    Raises:
        ValueError: unequal numbers of items, a score between 0 and 1, or no scipy.
    """
    change = _paired(first, second)
    if not np.isin(np.concatenate((first, second)), (0, 1)).all():
        raise ValueError("scores: expected right or wrong (1 or 0) for McNemar's test; got graded scores")
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    if gained + lost == 0:
        return McNemar(0, 0, 1.0)
    try:
        from scipy.stats import binomtest
    except ImportError as error:
        raise ValueError("McNemar's test: expected scipy (pip install 'arr-coc[eval]'); got none") from error
    return McNemar(gained, lost, float(binomtest(gained, gained + lost).pvalue))


def sign_flip(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    groups: Sequence[int] | np.ndarray | None = None,
    seed: int = 0,
) -> float:
    """p of the permutation test of paired scores: if the two are alike, each group's difference may change its sign.

    For graded scores, and for right-or-wrong answers of which several belong to one image. Two-sided.

    Raises:
        ValueError: unequal numbers of items, or none.
    """
    sums, _ = _by_group(_paired(first, second), groups)
    kinds, copies = np.unique(np.abs(sums[sums != 0]), return_counts=True)
    # Of `copies` groups of one size, a binomial number keeps its sign.
    kept = np.random.default_rng(seed).binomial(copies, 0.5, size=(FLIPS, len(copies)))
    totals = (2 * kept - copies) @ kinds
    extreme = np.abs(totals) >= abs(sums.sum()) - 1e-9
    return float((1 + extreme.sum()) / (1 + FLIPS))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for having made all these comparisons (Holm 1979), in the given order, at most 1."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def is_significant(difference: Interval, p: float) -> bool:
    """Whether a difference is called one: p at most `SIGNIFICANCE`, and an interval that leaves out 0.

    The test of items knows nothing of images; the interval, which draws whole images, does.
    """
    return p <= SIGNIFICANCE and (difference.low > 0 or difference.high < 0)
