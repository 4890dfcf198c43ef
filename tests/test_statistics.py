"""Intervals and tests: values from the literature, clusters, and how often they err on simulated runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.evaluation.statistics import (
    SIGNIFICANCE,
    bootstrap_mean,
    clustered_error,
    detectable_difference,
    holm,
    is_significant,
    paired_difference,
    score_interval,
    sign_flip,
    training_spread,
    wilson,
)

RIGHT = st.lists(st.booleans(), min_size=1, max_size=30)


def paired(gained: int, lost: int, same: int = 0) -> tuple[np.ndarray, np.ndarray]:
    first = np.array([1] * gained + [0] * lost + [1] * same)
    return first, np.array([0] * gained + [1] * lost + [1] * same)


def test_sign_flip_by_hand() -> None:
    """9 gained, 1 lost: 2 * (1 + 10) / 2^10, which sign flips approach."""
    assert sign_flip(*paired(9, 1, same=50)) == pytest.approx(22 / 1024, abs=0.004)
    assert sign_flip(*paired(5, 5)) == 1.0 == sign_flip([1, 0], [1, 0])
    with pytest.raises(ValueError, match="scores: expected the same items for both; got 1 and 2"):
        sign_flip([1], [1, 0])


@given(RIGHT, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_sign_flip_is_symmetric(first: list[bool], random: object) -> None:
    second = [bool(random.getrandbits(1)) for _ in first]  # type: ignore[attr-defined]
    assert sign_flip(first, second, flips=99) == sign_flip(second, first, flips=99)


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


def test_the_test_the_interval_and_the_number_of_images_must_agree() -> None:
    first, second = paired(20, 0)
    difference = paired_difference(first, second)
    assert is_significant(difference, 1e-6, 20)
    assert not is_significant(difference, 0.03, 20)
    assert not is_significant(difference, 1e-6, 19)
    assert not is_significant(paired_difference([1] * 19 + [0], [0] * 19 + [1], groups=[0] * 19 + [1]), 1e-6, 20)


def test_what_no_image_shows_is_not_ruled_out() -> None:
    """Resampling nothing but zeros says 0 [0, 0]; Wilson's interval of 30 images leaves 11 points open."""
    images = np.repeat(np.arange(30), 5)
    zeros = np.zeros(150)
    assert score_interval(zeros, images).high == wilson(0, 30).high == pytest.approx(0.1135, abs=1e-3)
    assert score_interval(zeros + 1, images).low == pytest.approx(wilson(30, 30).low)
    same = paired_difference(zeros, zeros, groups=images)
    assert (same.low, same.value, same.high) == (-wilson(0, 30).high, 0.0, wilson(0, 30).high)
    groups = [0, 0, 0, 1, 2, 2, 3]  # sums of 0.9 - 0.3 over these differ by rounding
    alike = paired_difference([0.9] * 7, [0.3] * 7, groups=groups)
    assert alike.low == pytest.approx(0.6 - wilson(0, 4).high) and alike.high == 1.0
    assert clustered_error([0.9] * 7, [0.3] * 7, groups=groups) > 0.1


def test_the_detectable_difference_is_the_one_that_is_found() -> None:
    """Simulated runs with just that gain are called significant about four times of five, and it shrinks with n."""
    first, second, images = simulated(0, 0.0)
    error = clustered_error(first, second, groups=images)
    smallest = detectable_difference(error)
    assert sum(called(*simulated(2000 + seed, smallest)) for seed in range(60)) / 60 == pytest.approx(0.8, abs=0.2)
    assert detectable_difference(error, comparisons=18) > 1.2 * smallest
    assert clustered_error(first[:500], second[:500], groups=images[:500]) == pytest.approx(2 * error, rel=0.2)
    assert detectable_difference(clustered_error([1.0] * 30, [1.0] * 30)) > 0.1, (
        "no difference seen is no proof of none"
    )


def test_a_rule_that_asks_for_more_than_a_difference_sees_less() -> None:
    error = 0.01
    assert detectable_difference(error, beyond=0.02) == pytest.approx(0.02 + 2.8 * error, abs=2e-4)
    assert detectable_difference(error, comparisons=100, beyond=1e-6) == detectable_difference(error, comparisons=100)


# ---- simulated runs: how often is a comparison called significant? -------------------------------------------------


def called(first: np.ndarray, second: np.ndarray, images: np.ndarray) -> bool:
    """As the experiment calls it."""
    p = sign_flip(first, second, groups=images, flips=1999)
    difference = paired_difference(first, second, groups=images, resamples=500)
    return is_significant(difference, p, len(np.unique(images)))


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


def finds_something(answers: np.ndarray, images: np.ndarray) -> bool:
    """Whether any comparison of the first arm with the others is called significant, as the experiment calls it."""
    p_values = [sign_flip(answers[0], other, groups=images, flips=1999) for other in answers[1:]]
    return any(
        p <= SIGNIFICANCE
        and is_significant(paired_difference(answers[0], other, groups=images), p, len(np.unique(images)))
        for p, other in zip(holm(p_values), answers[1:], strict=True)
    )


def test_eighteen_comparisons_on_grouped_answers_hardly_ever_find_what_is_not_there() -> None:
    """20 images of 15 questions: each arm is good or bad at whole images, and all arms are alike on average.

    Taking 300 such questions for independent, as McNemar's test does, finds a difference more often than not.
    """
    rng = np.random.default_rng(0)
    images = np.repeat(np.arange(20), 15)
    experiments, wrong, wrong_by_question = 100, 0, 0
    for number in range(experiments):
        skills = rng.beta(0.5, 0.5, size=(19, 20))
        answers = (rng.random((19, 300)) < np.repeat(skills, 15, axis=1)).astype(float)
        wrong += finds_something(answers, images)
        wrong_by_question += number < 20 and finds_something(answers, np.arange(300))
    assert wrong / experiments <= 0.03
    assert wrong_by_question > 10


def test_the_spread_is_pooled_on_a_scale_on_which_height_does_not_matter() -> None:
    low, high = training_spread([[0.08, 0.12]]), training_spread([[0.46, 0.54]])
    assert low.freedom == high.freedom == 1 and low.sd == pytest.approx(high.sd, rel=0.25)
    both = training_spread([[0.08, 0.12], [0.46, 0.54], [0.3]])
    assert both.freedom == 2 and min(low.sd, high.sd) < both.sd < max(low.sd, high.sd)
    assert high.error([0.46, 0.54]) == pytest.approx(np.std([0.46, 0.54], ddof=1) / np.sqrt(2), rel=0.01)
    assert high.error([0.0, 0.0]) == 0.0
