"""Intervals and tests: values from the literature, clusters, and how often they err on simulated runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.evaluating.statistics import bootstrap_mean, holm, is_significant, mcnemar, paired_difference, sign_flip

RIGHT = st.lists(st.booleans(), min_size=1, max_size=30)


def paired(gained: int, lost: int, same: int = 0) -> tuple[np.ndarray, np.ndarray]:
    first = np.array([1] * gained + [0] * lost + [1] * same)
    return first, np.array([0] * gained + [1] * lost + [1] * same)


def test_mcnemar_by_hand() -> None:
    """9 gained, 1 lost: 2 * (1 + 10) / 2^10."""
    found = mcnemar(*paired(9, 1, same=50))
    assert (found.gained, found.lost, found.p) == (9, 1, pytest.approx(22 / 1024))
    assert mcnemar(*paired(5, 5)).p == 1.0
    assert mcnemar(*paired(0, 0, same=3)).p == 1.0
    with pytest.raises(ValueError, match="expected right or wrong .* got graded scores"):
        mcnemar([0.5], [1])
    with pytest.raises(ValueError, match="scores: expected the same items for both; got 1 and 2"):
        mcnemar([1], [1, 0])


@given(RIGHT, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_mcnemar_is_symmetric(first: list[bool], random: object) -> None:
    second = [bool(random.getrandbits(1)) for _ in first]  # type: ignore[attr-defined]
    ours, theirs = mcnemar(first, second), mcnemar(second, first)
    assert (ours.gained, ours.lost, ours.p) == (theirs.lost, theirs.gained, theirs.p)


def test_sign_flip_agrees_with_mcnemar_where_both_apply() -> None:
    for gained, lost in ((9, 1), (6, 4), (30, 12), (0, 5)):
        first, second = paired(gained, lost, same=20)
        assert sign_flip(first, second) == pytest.approx(mcnemar(first, second).p, abs=0.015)
    assert sign_flip([1, 0], [1, 0]) == 1.0


def test_sign_flip_flips_whole_images() -> None:
    """Ten questions that go together are one piece of evidence."""
    first, second = paired(20, 0)
    assert sign_flip(first, second) < 0.001
    assert sign_flip(first, second, groups=np.repeat([0, 1], 10)) == pytest.approx(0.5, abs=0.02)


def test_holm_by_hand() -> None:
    """0.01 * 3, 0.03 * 2; 0.04 * 1 may not fall below 0.06."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_helps_and_keeps_the_order(p: list[float]) -> None:
    adjusted = holm(p)
    assert all(a >= b for a, b in zip(adjusted, p, strict=True)) and max(adjusted) <= 1
    assert [adjusted[i] for i in np.argsort(p, kind="stable")] == sorted(adjusted)


def test_paired_difference_is_tighter_than_two_intervals() -> None:
    rng = np.random.default_rng(0)
    second = rng.random(300) < 0.5
    first = np.where(rng.random(300) < 0.05, True, second)
    found = paired_difference(first, second)
    assert found.value == pytest.approx(first.mean() - second.mean()) and found.low > 0
    assert found.high - found.low < bootstrap_mean(first.astype(float)).high - bootstrap_mean(first.astype(float)).low
    swapped = paired_difference(second, first)
    assert (swapped.low, swapped.high) == (pytest.approx(-found.high, abs=3e-3), pytest.approx(-found.low, abs=3e-3))


def test_bad_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="values: expected at least one; got none"):
        bootstrap_mean([])
    with pytest.raises(ValueError, match=r"groups: expected one per value \(2\); got 1"):
        bootstrap_mean([1, 2], groups=[0])


def test_both_the_test_and_the_interval_must_agree() -> None:
    first, second = paired(20, 0)
    images = np.repeat([0, 1], [19, 1])
    assert is_significant(paired_difference(first, second), 1e-6)
    assert not is_significant(paired_difference(first, second), 0.03)
    mixed = paired_difference([1] * 19 + [0], [0] * 19 + [1], groups=images)
    assert not is_significant(mixed, mcnemar([1] * 19 + [0], [0] * 19 + [1]).p)


# ---- simulated runs: how often is a comparison called significant? -------------------------------------------------


def called(first: np.ndarray, second: np.ndarray, images: np.ndarray) -> bool:
    """As the experiment calls it."""
    difference = paired_difference(first, second, groups=images, resamples=500)
    return is_significant(difference, mcnemar(first, second).p)


def simulated(seed: int, gain: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """2,000 questions about 500 images: half is right for both; of the rest some are gained, some lost, by chance.

    15 % of the questions are answered differently, as by two strategies that look at different patches.
    """
    rng = np.random.default_rng(seed)
    second = rng.random(2000) < 0.5
    flipped = rng.random(2000) < np.where(second, 0.15 - gain, 0.15 + gain)
    return second ^ flipped, second, np.repeat(np.arange(500), 4)


def test_the_same_arm_twice_is_not_called_different() -> None:
    assert sum(called(*simulated(seed, 0.0)) for seed in range(100)) <= 5


def test_three_points_are_found() -> None:
    """A gain of 3 points: half the questions are lost at 12 %, half are won at 18 %."""
    first, second, _ = simulated(0, 0.03)
    assert abs(first.mean() - second.mean() - 0.03) < 0.03
    assert sum(called(*simulated(1000 + seed, 0.03)) for seed in range(100)) >= 80
