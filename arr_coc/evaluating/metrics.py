"""Exact match and recall of boxed patches, with 95 % intervals. Shares are in 0..1."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959963984540054
"""Standard normal quantile of 0.975: two-sided 95 %."""

RESAMPLES = 2000
"""Bootstrap resamples: the ends of a 95 % interval then rest on 50 of them each."""


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def normalise(text: str) -> str:
    """What exact match compares: stripped, runs of white space as one space; case matters."""
    return " ".join(text.split())


def exact_match(text: str, answers: Iterable[str]) -> bool:
    """Whether `text` is one of `answers`, but for white space."""
    return normalise(text) in {normalise(answer) for answer in answers}


def patch_recall(fetched: Iterable[int], boxed: np.ndarray) -> float:
    """Share of the patches True in `boxed` [G, G] or [N] (at least one) that are among the `fetched` indices."""
    wanted = set(np.flatnonzero(boxed).tolist())
    if not wanted:
        raise ValueError("boxed: expected at least one patch; got none")
    return len(wanted.intersection(fetched)) / len(wanted)


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


def bootstrap_mean(values: Sequence[float], *, groups: Sequence[int] | None = None, seed: int = 0) -> Interval:
    """Mean with a percentile bootstrap interval (Efron 1979); the same for the same values and seed.

    Args:
        values: at least one.
        groups: which values belong together (questions of one image) and are drawn together; None: each by itself.
        seed: of the resampling.

    Raises:
        ValueError: no values.
    """
    if not len(values):
        raise ValueError("values: expected at least one; got none")
    given = np.asarray(values, dtype=np.float64)
    _, group = np.unique(np.arange(len(given)) if groups is None else np.asarray(groups), return_inverse=True)
    sums, counts = np.bincount(group, given), np.bincount(group)
    rng = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        drawn = rng.integers(len(sums), size=len(sums))
        means[i] = sums[drawn].sum() / counts[drawn].sum()
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(given.mean()), float(low), float(high))
