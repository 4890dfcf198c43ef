"""A model before and after a training, in words: what it gets right, what it fetches, and whether that changed."""

from dataclasses import asdict

from .evaluation import Tally
from .report import p_value, percent, points
from .statistics import mcnemar, paired_difference


def describe(tally: Tally) -> str:
    """ "exact match 43.1 [40.2, 46.0] %, recall 61.0 [58.1, 63.9] %, 107.0 tokens, n = 160"."""
    measures = tally.summary()
    shown = f"{tally.metric.replace('_', ' ')} {percent(measures[tally.metric])} %"
    if measures["recall"] is not None:
        shown += f", recall {percent(measures['recall'])} %"
    return f"{shown}, {measures['tokens']:.1f} tokens, n = {measures['n']}"


def describe_change(before: Tally, after: Tally) -> str:
    """ "+4.3 [+3.2, +5.5] points, 12 gained, 3 lost, McNemar p 0.035": of two tallies of the same questions.

    The interval draws whole images, p is McNemar's exact one, for right-or-wrong metrics.

    Raises:
        ValueError: unequal numbers of questions, a graded metric, or no scipy.
    """
    change = paired_difference(after.scores, before.scores, groups=after.images)
    test = mcnemar(after.scores, before.scores)
    shown = points(asdict(change))
    return f"{shown} points, {test.gained} gained, {test.lost} lost, McNemar p {p_value(test.p)}"
