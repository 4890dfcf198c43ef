"""A model before and after a training, in words: what it gets right, what it fetches, and whether that changed."""

from .evaluation import measures
from .number_texts import p_value, percent, points
from .scores import Scored, compare


def describe(scored: Scored) -> str:
    """ "exact match 43.1 [40.2, 46.0] %, recall 61.0 [58.1, 63.9] %, 107.0 tokens, n = 160"."""
    measured = measures(scored)
    text = f"{scored.metric.replace('_', ' ')} {percent(measured[scored.metric])} %"
    if measured["recall"] is not None:
        text += f", recall {percent(measured['recall'])} %"
    return f"{text}, {measured['tokens']:.1f} tokens, n = {measured['n']}"


def describe_change(before: Scored, after: Scored) -> str:
    """ "+4.3 [+3.2, +5.5] points, 12 gained, 3 lost, p 0.035": of answers to the same questions.

    The interval draws whole images, and p is that of flipping the signs of whole images.

    Raises:
        ValueError: unequal numbers of questions.
    """
    change = compare(after, before)
    difference = points(change["difference"])
    return f"{difference} points, {change['gained']} gained, {change['lost']} lost, p {p_value(change['p'])}"
