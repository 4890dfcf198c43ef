"""Intervals, paired comparisons and tests, and how far trainings of one arm differ.

Questions about one image are not independent: they are drawn together. A few trainings of each arm give a poor estimate
of their spread; those of many arms together give a better one. Scores are shares, which spread less near 0 and 1; on
the scale 2 arcsin sqrt(share) they spread alike at any height (Bartlett 1936), and are pooled there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .reporting import require_extra

RESAMPLES = 2000
"""Bootstrap resamples: the ends of a 95 % interval then rest on 50 of them each."""

FLIPS = 9999
"""Random sign flips of a permutation test: the smallest p it can give is 1 in 10,000."""

SIGNIFICANCE = 0.02
"""Largest p (after Holm) that is called significant. At 0.05, 100 comparisons of an arm with itself would often give
six or more that are called different; at 0.02, three points on 2,000 questions are still found nearly always."""

FEWEST_IMAGES = 20
"""With fewer images nothing is called significant and no verdict is given: such an interval means little."""

ROUNDING = 1e-9
"""Less spread than this is of rounding: 0.9 - 0.3, summed in two ways, is not always the same number."""

POWER = 0.8
"""The chance with which a difference that "could have been seen" is seen."""


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927): sensible also at 0 and 1 and for small n.

    Raises:
        ValueError: not 0 <= successes <= n with n > 0, or scipy is not installed.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"successes: expected 0 to n, n at least 1; got {successes} of {n}")
    require_extra("scipy.stats", "intervals")
    from scipy.stats import binomtest

    interval = binomtest(successes, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Interval(successes / n, float(interval.low), float(interval.high))


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
    items = np.asarray(values, dtype=np.float64)
    sums, counts = _by_group(items, groups)
    # Groups that are alike need not be told apart: how often each kind is drawn is multinomial.
    kinds, copies = np.unique(np.stack((sums, counts), 1), axis=0, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(sums), copies / len(sums), size=resamples)
    means = (drawn @ kinds[:, 0]) / (drawn @ kinds[:, 1])
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(items.mean()), float(low), float(high))


def bootstrap_ratio(
    numerators: Sequence[float] | np.ndarray,
    denominators: Sequence[float] | np.ndarray,
    *,
    groups: Sequence[int] | np.ndarray | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Ratio of two means over the same items with a percentile bootstrap interval (see `bootstrap_mean`).

    Where resamples come upon a denominator of 0 or below, the interval reaches very far: the ratio is then not known.

    Args:
        numerators, denominators: of each item; the latter's mean is above 0.
        groups, seed, resamples: see `bootstrap_mean`.

    Raises:
        ValueError: unequal numbers of items, none, or a mean denominator of at most 0.
    """
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if above.shape != below.shape:
        raise ValueError(f"denominators: expected one per numerator ({len(above)}); got {len(below)}")
    (sums, _), (parts, _) = _by_group(above, groups), _by_group(below, groups)
    if parts.sum() <= 0:
        raise ValueError(f"denominators: expected a mean above 0; got {below.mean():g}")
    drawn = np.random.default_rng(seed).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=resamples)
    ratios = (drawn @ sums) / np.maximum(drawn @ parts, 1e-9)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Interval(float(sums.sum() / parts.sum()), float(low), float(high))


def score_interval(values: Sequence[float] | np.ndarray, groups: Sequence[int] | np.ndarray | None) -> Interval:
    """`bootstrap_mean` of scores in 0..1; where nothing or everything is right, Wilson's interval of as many images.

    Resampling shows no spread there, though other images would.

    Raises:
        ValueError: no values, or scipy is needed and not installed.
    """
    return _with_spread(bootstrap_mean(values, groups=groups), _count_groups(values, groups), (0.0, 1.0))


def mean_of_intervals(intervals: Sequence[Interval]) -> Interval:
    """Mean of independent estimates with a 95 % interval from theirs (MOVER, Zou and Donner 2008).

    Raises:
        ValueError: no intervals.
    """
    if not intervals:
        raise ValueError("intervals: expected at least one; got none")
    value = sum(each.value for each in intervals) / len(intervals)
    below = math.hypot(*(each.value - each.low for each in intervals)) / len(intervals)
    above = math.hypot(*(each.high - each.value for each in intervals)) / len(intervals)
    return Interval(value, value - below, value + above)


def _with_spread(interval: Interval, groups: int, bounds: tuple[float, float]) -> Interval:
    """An interval without extent, widened by what as many groups that are all alike leave open."""
    if interval.high - interval.low > ROUNDING:
        return interval
    open_share, (least, most) = wilson(0, groups).high, bounds
    value = interval.value
    return Interval(value, max(least, value - open_share), min(most, value + open_share))


def _count_groups(values: Sequence[float] | np.ndarray, groups: Sequence[int] | np.ndarray | None) -> int:
    return len(values) if groups is None else len(np.unique(np.asarray(groups)))


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

    Where all differences are alike, other images might still differ: as in `score_interval`.

    Raises:
        ValueError: unequal numbers of items, none, or scipy is needed and not installed.
    """
    differences = _paired(first, second)
    interval = bootstrap_mean(differences, groups=groups, seed=seed, resamples=resamples)
    return _with_spread(interval, _count_groups(differences, groups), (-1.0, 1.0))


def _paired(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> np.ndarray:
    ours, theirs = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"scores: expected the same items for both; got {len(ours)} and {len(theirs)}")
    return ours - theirs


def sign_flip(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    groups: Sequence[int] | np.ndarray | None = None,
    seed: int = 0,
    flips: int = FLIPS,
) -> float:
    """p of the permutation test of paired scores: if the two are alike, each group's difference may change its sign.

    Two-sided. Fisher's randomisation of whole groups: it holds however much the items of a group go together, where
    McNemar's test of single answers does not.

    Raises:
        ValueError: unequal numbers of items, or none.
    """
    sums, _ = _by_group(_paired(first, second), groups)
    kinds, copies = np.unique(np.abs(sums[sums != 0]), return_counts=True)
    # Of `copies` groups of one size, a binomial number keeps its sign.
    unflipped = np.random.default_rng(seed).binomial(copies, 0.5, size=(flips, len(copies)))
    totals = (2 * unflipped - copies) @ kinds
    extreme = np.abs(totals) >= abs(sums.sum()) - 1e-9
    return float((1 + extreme.sum()) / (1 + flips))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for having made all these comparisons (Holm 1979), in the given order, at most 1."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def is_significant(difference: Interval, p: float, images: int) -> bool:
    """Whether a difference is called one: enough images, p at most `SIGNIFICANCE`, and an interval that leaves out 0.

    Args:
        difference: drawn by images.
        p: after Holm.
        images: how many there were.
    """
    excludes_zero = difference.low > 0 or difference.high < 0
    return images >= FEWEST_IMAGES and p <= SIGNIFICANCE and excludes_zero


def clustered_error(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    *,
    groups: Sequence[int] | np.ndarray | None = None,
) -> float:
    """Standard error of the mean difference of paired scores, robust to how the items of a group go together.

    Where all differences are alike, what as many groups that are all alike leave open.

    Raises:
        ValueError: unequal numbers of items, none, or scipy is needed and not installed.
    """
    differences = _paired(first, second)
    sums, counts = _by_group(differences, groups)
    residuals = sums - differences.mean() * counts
    error = math.sqrt(float((residuals**2).sum()) * len(sums) / max(1, len(sums) - 1)) / len(differences)
    return error if error > ROUNDING else wilson(0, len(sums)).high / NormalDist().inv_cdf(0.975)


def detectable_difference(image_error: float, *, comparisons: int = 1, beyond: float = 0.0) -> float:
    """The smallest true difference that would have been called one with a chance of `POWER`.

    By the normal approximation.

    Args:
        image_error: standard error of the mean difference, see `clustered_error`.
        comparisons: how many are made, among which `SIGNIFICANCE` is shared out (Holm's first step).
        beyond: where a rule asks for more than this, the 95 % interval has to end above it, too.
    """
    return detectable(image_error, NormalDist().inv_cdf, comparisons=comparisons, beyond=beyond)


def detectable(error: float, quantile: Callable[[float], float], *, comparisons: int, beyond: float) -> float:
    """`detectable_difference` with an error whose distribution has these quantiles."""
    significant = (quantile(1 - SIGNIFICANCE / (2 * comparisons)) + quantile(POWER)) * error
    return max(significant, beyond + (quantile(0.975) + quantile(POWER)) * error) if beyond else significant


Shares = Sequence[float] | np.ndarray
"""Scores of an arm's trainings, in 0..1."""


@dataclass(frozen=True)
class TrainingSpread:
    """The spread of the scores of one arm's trainings.

    Attributes:
        sd: between trainings, on the scale 2 arcsin sqrt(share), pooled over arms.
        freedom: degrees of freedom of `sd`; 0: no arm was trained twice, and nothing is known.
    """

    sd: float
    freedom: int

    def error(self, *arms: Shares) -> float:
        """Standard error of the sum or difference of these arms' mean scores, from the scores of their trainings."""
        return self.sd * math.sqrt(sum(_slope(float(np.mean(runs))) ** 2 / len(runs) for runs in arms))

    def quantile(self, share: float) -> float:
        """Of Student's t.

        Raises:
            ValueError: scipy is not installed.
        """
        require_extra("scipy.stats", "intervals")
        from scipy.stats import t

        return float(t.ppf(share, self.freedom)) if self.freedom else math.inf

    def widened(self, difference: Interval, first: Shares, second: Shares) -> Interval:
        """A difference whose interval was drawn by images, with what other trainings would give.

        Args:
            difference: first - second.
            first, second: scores of their trainings.
        """
        if not self.freedom:
            return Interval(difference.value, -1.0, 1.0)
        value, reach = difference.value, self.quantile(0.975) * self.error(first, second)
        low = value - math.hypot(value - difference.low, reach)
        return Interval(value, max(-1.0, low), min(1.0, value + math.hypot(difference.high - value, reach)))

    def p(self, difference: float, image_error: float, first: Shares, second: Shares) -> float:
        """Two-sided p of Welch's kind: images and trainings as two sources of error, at the degrees of the latter."""
        if not self.freedom:
            return 1.0
        error = math.hypot(image_error, self.error(first, second))
        require_extra("scipy.stats", "intervals")
        from scipy.stats import t

        return float(2 * t.sf(abs(difference) / error, self.freedom))

    def detectable_difference(
        self, image_error: float, first: Shares, second: Shares, *, comparisons: int, beyond: float
    ) -> float:
        """`statistics.detectable_difference` where trainings differ too; at most 1."""
        if not self.freedom:
            return 1.0
        error = math.hypot(image_error, self.error(first, second))
        return min(1.0, detectable(error, self.quantile, comparisons=comparisons, beyond=beyond))


def training_spread(arms: Sequence[Shares]) -> TrainingSpread:
    """The spread between trainings, pooled over arms.

    Args:
        arms: for each the scores, in 0..1, of its trainings.
    """
    scaled = [2 * np.arcsin(np.sqrt(np.asarray(runs, dtype=np.float64))) for runs in arms]
    freedom = sum(len(runs) - 1 for runs in scaled)
    squares = sum(float(((runs - runs.mean()) ** 2).sum()) for runs in scaled)
    return TrainingSpread(math.sqrt(squares / freedom) if freedom else math.inf, freedom)


def _slope(share: float) -> float:
    """Of a share by its arcsine scale."""
    return math.sqrt(share * (1 - share))
