"""Intervals, paired comparisons and tests. Questions about one image are dependent, so they are drawn together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .reporting import require_extra

RESAMPLES = 2000  # number of bootstrap resamples: 50 of them are beyond each end of a 95 % interval
FLIPS = 9999  # number of random sign flips of a permutation test: its smallest p is 1 in 10,000

SIGNIFICANCE = 0.02
"""Largest significant p (after Holm). At 0.05, 100 comparisons of an arm with itself would often give six or more
significant differences; at 0.02, a difference of three points on 2,000 questions is still found nearly always."""

FEWEST_IMAGES = 20  # with fewer images nothing is significant and no verdict is given, as intervals are unreliable
ROUNDING = 1e-9  # A smaller spread is rounding error: 0.9 - 0.3, summed in two ways, is not always the same number

Values = Sequence[float] | np.ndarray  # scores of items

Groups = Sequence[int] | np.ndarray | None
"""The group of each item, as of questions about one image; groups are drawn as a whole. None: each is a group."""


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927), valid also at 0 and 1 and for small n. Raises ValueError:
    unless 0 <= successes <= n and n > 0; or scipy is not installed."""
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"successes: expected 0 to n, n at least 1; got {successes} of {n}")
    require_extra("scipy.stats", "intervals")
    from scipy.stats import binomtest

    interval = binomtest(successes, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Interval(successes / n, float(interval.low), float(interval.high))


def bootstrap_mean(values: Values, *, groups: Groups = None) -> Interval:
    """Mean with a percentile bootstrap interval (Efron 1979), the same for the same values. Raises ValueError: no
    values."""
    items = np.asarray(values, dtype=np.float64)
    sums, counts = _by_group(items, groups)
    # Equal groups are interchangeable: how often each kind of group is drawn is multinomial.
    kinds, copies = np.unique(np.stack((sums, counts), 1), axis=0, return_counts=True)
    drawn = np.random.default_rng(0).multinomial(len(sums), copies / len(sums), size=RESAMPLES)
    means = (drawn @ kinds[:, 0]) / (drawn @ kinds[:, 1])
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(items.mean()), float(low), float(high))


def score_interval(values: Values, groups: Groups, bounds: tuple[float, float] = (0.0, 1.0)) -> Interval:
    """`bootstrap_mean` of values within `bounds`; if all are equal, it is widened by what remains open after as many
    equal groups: of scores that are all 0 or all 1, Wilson's interval for the number of images.

    Equal scores give resamples no spread, though other images could differ.

    Raises:
        ValueError: no values, or scipy is needed and not installed.
    """
    interval = bootstrap_mean(values, groups=groups)
    if interval.high - interval.low > ROUNDING:
        return interval
    number = len(values) if groups is None else len(np.unique(np.asarray(groups)))
    open_share, (least, most), value = wilson(0, number).high, bounds, interval.value
    return Interval(value, max(least, value - open_share), min(most, value + open_share))


def mean_of_intervals(intervals: Sequence[Interval]) -> Interval:
    """Mean of independent estimates, with a 95 % interval computed from theirs (MOVER, Zou and Donner 2008). Raises
    ValueError: no intervals."""
    if not intervals:
        raise ValueError("intervals: expected at least one; got none")
    value = sum(each.value for each in intervals) / len(intervals)
    below = math.hypot(*(each.value - each.low for each in intervals)) / len(intervals)
    above = math.hypot(*(each.high - each.value for each in intervals)) / len(intervals)
    return Interval(value, value - below, value + above)


def _by_group(values: np.ndarray, groups: Groups) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the values of each group."""
    if not len(values):
        raise ValueError("values: expected at least one; got none")
    if groups is not None and len(groups) != len(values):
        raise ValueError(f"groups: expected one per value ({len(values)}); got {len(groups)}")
    _, group = np.unique(np.arange(len(values)) if groups is None else np.asarray(groups), return_inverse=True)
    return np.bincount(group, values), np.bincount(group)


def paired_difference(first: Values, second: Values, *, groups: Groups = None) -> Interval:
    """Mean of `first` - `second` on the same items, with a bootstrap interval (see `bootstrap_mean`).

    If all differences are equal, the interval is widened as in `score_interval`.

    Raises:
        ValueError: unequal numbers of items, none, or scipy is needed and not installed.
    """
    return score_interval(_paired(first, second), groups, (-1.0, 1.0))


def _paired(first: Values, second: Values) -> np.ndarray:
    ours, theirs = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"scores: expected the same items for both; got {len(ours)} and {len(theirs)}")
    return ours - theirs


def sign_flip(first: Values, second: Values, *, groups: Groups = None) -> float:
    """Two-sided p of the permutation test of paired scores: under the null hypothesis all signs are equally likely.

    This is Fisher's randomisation with whole groups. It is valid for any correlation within a group; McNemar's test of
    single answers is not.

    Raises:
        ValueError: unequal numbers of items, or none.
    """
    sums, _ = _by_group(_paired(first, second), groups)
    kinds, copies = np.unique(np.abs(sums[sums != 0]), return_counts=True)
    # Of `copies` groups with the same absolute difference, a binomial number keeps the sign.
    unflipped = np.random.default_rng(0).binomial(copies, 0.5, size=(FLIPS, len(copies)))
    totals = (2 * unflipped - copies) @ kinds
    extreme = np.abs(totals) >= abs(sums.sum()) - 1e-9
    return float((1 + extreme.sum()) / (1 + FLIPS))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for multiple comparisons (Holm 1979), in the given order, at most 1."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def is_significant(difference: Interval, p: float, images: int) -> bool:
    """Whether there are enough images, p (after Holm) is at most `SIGNIFICANCE`, and the interval is without 0."""
    excludes_zero = difference.low > 0 or difference.high < 0
    return images >= FEWEST_IMAGES and p <= SIGNIFICANCE and excludes_zero


def clustered_error(first: Values, second: Values, *, groups: Groups = None) -> float:
    """Cluster-robust standard error of the mean difference of paired scores.

    If all differences are equal, it is the uncertainty that remains after as many equal groups.

    Raises:
        ValueError: unequal numbers of items, none, or scipy is needed and not installed.
    """
    differences = _paired(first, second)
    sums, counts = _by_group(differences, groups)
    residuals = sums - differences.mean() * counts
    error = math.sqrt(float((residuals**2).sum()) * len(sums) / max(1, len(sums) - 1)) / len(differences)
    return error if error > ROUNDING else wilson(0, len(sums)).high / NormalDist().inv_cdf(0.975)
