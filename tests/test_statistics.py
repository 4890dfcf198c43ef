"""Intervals and tests: values from the literature, clusters, and how often they err on simulated runs."""

import numpy as np
import pytest
from helpers import refuses

from arr_coc.evaluation.statistics import (
    SIGNIFICANCE,
    bootstrap_mean,
    clustered_error,
    holm,
    is_significant,
    paired_difference,
    score_interval,
    sign_flip,
    wilson,
)


def paired(gained: int, lost: int, same: int = 0) -> tuple[np.ndarray, np.ndarray]:
    first = np.array([1] * gained + [0] * lost + [1] * same)
    return first, np.array([0] * gained + [1] * lost + [1] * same)


def test_sign_flip_by_hand() -> None:
    """9 gained, 1 lost: 2 * (1 + 10) / 2^10, which sign flips approach."""
    assert sign_flip(*paired(9, 1, same=50)) == pytest.approx(22 / 1024, abs=0.004)
    assert sign_flip(*paired(5, 5)) == 1.0 == sign_flip([1, 0], [1, 0])
    refuses("scores: expected the same items for both; got 1 and 2", sign_flip, [1], [1, 0])
    # Ten questions that go together are one piece of evidence.
    first, second = paired(20, 0)
    assert sign_flip(first, second) < 0.001
    assert sign_flip(first, second, groups=np.repeat([0, 1], 10)) == pytest.approx(0.5, abs=0.02)


def test_holm_by_hand() -> None:
    """0.01 * 3, 0.03 * 2; 0.04 * 1 may not fall below 0.06."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    refuses("values: expected at least one; got none", bootstrap_mean, [])
    refuses(r"groups: expected one per value \(2\); got 1", bootstrap_mean, [1, 2], groups=[0])


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


# ---- simulated runs: how often is a comparison called significant?
def called(first: np.ndarray, second: np.ndarray, images: np.ndarray) -> bool:
    """As the experiment calls it."""
    p = sign_flip(first, second, groups=images)
    difference = paired_difference(first, second, groups=images)
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


def finds_something(answers: np.ndarray, images: np.ndarray) -> bool:
    """Whether any comparison of the first arm with the others is called significant, as the experiment calls it."""
    p_values = [sign_flip(answers[0], other, groups=images) for other in answers[1:]]
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
