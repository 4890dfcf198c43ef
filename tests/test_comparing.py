"""What is said about a model before and after a training."""

from arr_coc.evaluating.comparing import describe, describe_change
from arr_coc.evaluating.evaluation import Tally
from arr_coc.evaluating.statistics import mcnemar, paired_difference


def tally(scores: list[float], recall: float | None = None) -> Tally:
    made = Tally("exact_match")
    for number, score in enumerate(scores):
        made.add(score, 100, recall, number // 2)
    return made


def test_a_tally_is_described_with_its_intervals() -> None:
    assert describe(tally([1.0, 0.0] * 20)) == "exact match 50.0 [35.2, 64.8] %, 100.0 tokens, n = 40"
    assert "recall 50.0 [50.0, 50.0] %" in describe(tally([1.0, 0.0] * 20, recall=0.5))


def test_a_change_is_paired() -> None:
    before, after = [0.0] * 30 + [1.0] * 2, [1.0] * 20 + [0.0] * 11 + [1.0]
    difference = paired_difference(after, before, groups=[number // 2 for number in range(32)])
    assert difference.low > 0 and mcnemar(after, before).p < 0.001
    expected = f"+{100 * 19 / 32:.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}] points"
    assert describe_change(tally(before), tally(after)) == f"{expected}, 20 gained, 1 lost, McNemar p < 0.001"
    assert describe_change(tally(after), tally(before)).startswith("-59.4 [")
    same = describe_change(tally(before), tally(before))
    assert same == "+0.0 [+0.0, +0.0] points, 0 gained, 0 lost, McNemar p 1.000"
