"""Arms with weights of their own: what other trainings would give belongs to every comparison."""

import numpy as np
import pytest

from arr_coc.evaluation.arms import Arm
from arr_coc.evaluation.scores import Scored, compare_all
from arr_coc.evaluation.statistics import Interval, TrainingSpread, training_spread

IMAGES = np.repeat(np.arange(100), 3)


def arm(name: str, rows: np.ndarray) -> Scored:
    """An arm of a contest, asked about 100 images, with one row of scores for each of its trainings."""
    weights = tuple(f"{name}-{number}" for number in range(len(rows)))
    of = Arm(name, "contest", "realizer", 0, "topk", 0, 0, weights=weights)
    unknown = np.full(rows.shape, np.nan)
    return Scored(of, "exact_match", [[] for _ in rows], rows, unknown, IMAGES, np.zeros(len(IMAGES), dtype=bool))


def trained(rng: np.random.Generator, name: str, share: float, trainings: int, sd: float) -> Scored:
    """Trainings that would answer `share` of all questions, give or take `sd`, each of them a part of these 300."""
    levels = np.clip(rng.normal(share, sd, trainings), 0, 1)
    return arm(name, np.array([rng.random(len(IMAGES)) < level for level in levels], dtype=float))


def test_the_spread_is_pooled_on_a_scale_on_which_height_does_not_matter() -> None:
    low, high = training_spread([[0.08, 0.12]]), training_spread([[0.46, 0.54]])
    assert low.freedom == high.freedom == 1 and low.sd == pytest.approx(high.sd, rel=0.25)
    both = training_spread([[0.08, 0.12], [0.46, 0.54], [0.3]])
    assert both.freedom == 2 and min(low.sd, high.sd) < both.sd < max(low.sd, high.sd)
    assert high.error([0.46, 0.54]) == pytest.approx(np.std([0.46, 0.54], ddof=1) / np.sqrt(2), rel=0.01)
    assert high.error([0.0, 0.0]) == 0.0


@pytest.mark.versions
def test_intervals_take_it_in() -> None:
    spread = TrainingSpread(sd=0.1, freedom=8)
    drawn = Interval(0.1, 0.06, 0.15)
    wider = spread.widened(drawn, [0.5, 0.5], [0.4, 0.4])
    assert wider.value == 0.1 and wider.low < 0.0 < drawn.low and wider.high > 0.2
    same = TrainingSpread(sd=0.0, freedom=8).widened(drawn, [0.5, 0.5], [0.4, 0.4])
    assert (same.low, same.high) == pytest.approx((drawn.low, drawn.high))


def test_arms_that_were_trained_once_are_not_called_different() -> None:
    ones, zeros = np.ones((1, 300)), np.zeros((1, 300))
    first, second = arm("a", ones), arm("b", zeros)
    spread = training_spread([first.run_scores.tolist(), second.run_scores.tolist()])
    (compared,) = compare_all([(first, second)], spread)
    assert spread.freedom == 0 and not compared["significant"] and compared["detectable"] == 1.0
    assert compared["difference"] == {"value": 1.0, "low": -1.0, "high": 1.0} and compared["p"] == 1.0
    assert compare_all([(first, second)])[0]["significant"]


def called(seed: int, *, gain: float, sd: float, told: bool = True) -> bool:
    """Whether the first of six arms is called better than the second, as an experiment calls it."""
    rng = np.random.default_rng(seed)
    arms = [trained(rng, f"arm{number}", 0.4 + gain * (number == 0), 3 - number // 2, sd) for number in range(4)]
    spread = training_spread([each.run_scores.tolist() for each in arms]) if told else None
    pairs = [(arms[0], other) for other in arms[1:]]
    return compare_all(pairs, spread)[0]["significant"]


def test_trainings_alike_but_for_luck_are_not_called_different() -> None:
    """With five points between trainings, images alone would call every fourth pair of equal arms different."""
    assert sum(called(seed, gain=0.0, sd=0.05) for seed in range(40)) <= 2
    assert sum(called(seed, gain=0.0, sd=0.05, told=False) for seed in range(40)) >= 6
    assert sum(called(seed, gain=0.4, sd=0.05) for seed in range(10)) >= 9
