"""How far trainings of one arm differ: what other images would not tell about arms with weights of their own.

Few trainings of each arm say little about their spread, many arms together more. Scores are shares, which spread less
near 0 and 1; on the scale 2 arcsin sqrt(share) they spread alike at any height (Bartlett 1936), and are pooled there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .extras import require_extra
from .statistics import Interval, detectable

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
