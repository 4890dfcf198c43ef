"""A training's before and after, in words."""

import numpy as np

from arr_coc.evaluation.arms import Arm
from arr_coc.evaluation.predictions import Prediction
from arr_coc.evaluation.scores import Scored
from arr_coc.evaluation.statistics import bootstrap_mean, paired_difference
from arr_coc.evaluation.strategies import describe, describe_change

ARM = Arm("realizer", "ladder", "realizer", 17, "topk", 64, 100)


def scored(scores: list[float], recall: float = np.nan) -> Scored:
    """Two questions per image."""
    said = Prediction(1, "", 0.5, 100, 4, (9, 9), "")
    images = np.arange(len(scores)) // 2
    return Scored(
        ARM,
        "exact_match",
        [[said] * len(scores)],
        np.array([scores]),
        np.full((1, len(scores)), recall),
        images,
        np.zeros(len(scores), dtype=bool),
    )


def test_scores_are_described_with_their_intervals() -> None:
    halves = [1.0, 1.0, 0.0, 0.0] * 10
    interval = bootstrap_mean(halves, groups=np.arange(40) // 2)
    expected = f"50.0 [{100 * interval.low:.1f}, {100 * interval.high:.1f}] %"
    assert describe(scored(halves)) == f"exact match {expected}, 100.0 tokens, n = 40"
    assert "recall 50.0 [33.9, 66.1] %" in describe(scored(halves, recall=0.5))


def test_a_change_is_paired_and_by_images() -> None:
    before, after = [0.0] * 30 + [1.0] * 2, [1.0] * 20 + [0.0] * 11 + [1.0]
    difference = paired_difference(after, before, groups=[number // 2 for number in range(32)])
    assert difference.low > 0
    expected = f"+{100 * 19 / 32:.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}] points"
    assert describe_change(scored(before), scored(after)).startswith(f"{expected}, 20 gained, 1 lost, p 0.0")
    assert describe_change(scored(after), scored(before)).startswith("-59.4 [")
    same = describe_change(scored(before), scored(before))
    assert same == "+0.0 [-19.4, +19.4] points, 0 gained, 0 lost, p 1.000"
