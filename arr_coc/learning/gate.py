"""Whether a new scorer takes the place of the one in use: two paired tests, by flipping the signs of whole images.

Better: on held-out feedback it answers more questions, and that is significant. Not worse: on the rest it loses less
than a margin. That too is a test, whose null hypothesis is a loss of the whole margin: where there are too few
questions to exclude it, nothing is promoted.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..evaluation.reporting import p_value, percent, points
from ..evaluation.scores import Scored, compare
from ..evaluation.statistics import FEWEST_IMAGES, SIGNIFICANCE, Interval, is_significant, sign_flip

MARGIN = 0.01
"""Largest loss on the rest that is put up with: a point."""


@dataclass(frozen=True)
class Decision:
    """What two paired tests said.

    Attributes:
        promoted: whether both say so.
        reasons: what does not, in words; empty where all is well.
        feedback, rest: comparisons of the new scorer (first) with the one in use, see `evaluation.scores.compare`, with
            each one's score and the numbers of questions and images.
        margin: of the rest.
        p_margin: p of the test that the loss on the rest is less than the margin.
    """

    promoted: bool
    reasons: tuple[str, ...]
    feedback: dict[str, Any]
    rest: dict[str, Any]
    margin: float
    p_margin: float

    def content(self) -> dict[str, Any]:
        """The decision as JSON has it."""
        return asdict(self)

    def lines(self) -> list[str]:
        """What was measured, and what came of it."""
        tested = (("held-out feedback", self.feedback), ("the rest", self.rest))
        excluded = f"a loss of {100 * self.margin:g} points on the rest is excluded with p {p_value(self.p_margin)}"
        measured = [f"{name}: {_measured(compared)}" for name, compared in tested]
        return [*measured, excluded, *(f"not promoted: {reason}" for reason in self.reasons)]


def _measured(compared: dict[str, Any]) -> str:
    scores = f"{percent(compared['used'])} % before, {percent(compared['new'])} % after"
    change = f"{points(compared['difference'])} points, p {p_value(compared['p'])}"
    counts = f"{compared['gained']} gained, {compared['lost']} lost, n = {compared['n']}, {compared['images']} images"
    return f"{scores}, {change} ({counts})"


def decide(
    feedback: tuple[Scored, Scored], rest: tuple[Scored, Scored], *, margin: float = MARGIN, fewest: int = FEWEST_IMAGES
) -> Decision:
    """Compares a new scorer with the one in use.

    Args:
        feedback: what the new one and the one in use answer to held-out feedback.
        rest: likewise, to questions that shall not be forgotten.
        margin: the loss on the rest that is put up with, in 0..1.
        fewest: images below which nothing is promoted.

    Raises:
        ValueError: unequal questions, or a margin that is not above 0.
    """
    if not 0 < margin <= 1:
        raise ValueError(f"margin: expected a share above 0, at most 1; got {margin}")
    better, kept = _compared(*feedback), _compared(*rest)
    p_margin = _p_of_margin(*rest, margin)
    reasons = []
    for name, compared in (("feedback", better), ("rest", kept)):
        if compared["images"] < fewest:
            reasons.append(f"{name}: expected at least {fewest} images to test on; got {compared['images']}")
    difference = Interval(**better["difference"])
    if not (difference.value > 0 and is_significant(difference, better["p"], better["images"])):
        reasons.append(f"feedback: expected a gain with p at most {SIGNIFICANCE}; got {_said(better, better['p'])}")
    if p_margin > SIGNIFICANCE:
        expected = f"a loss of {100 * margin:g} points excluded with p at most {SIGNIFICANCE}"
        reasons.append(f"rest: expected {expected}; got {_said(kept, p_margin)}")
    return Decision(not reasons, tuple(reasons), better, kept, margin, p_margin)


def _compared(new: Scored, used: Scored) -> dict[str, Any]:
    scores = {"new": asdict(new.score), "used": asdict(used.score)}
    return {**compare(new, used), **scores, "n": len(new.images), "images": len(np.unique(new.images))}


def _p_of_margin(new: Scored, used: Scored, margin: float) -> float:
    """One-sided p of the loss being no less than the margin: sign flips of differences that are counted from there."""
    above = new.mean_scores - used.mean_scores + margin
    if above.mean() <= 0:
        return 1.0
    return sign_flip(above, np.zeros_like(above), groups=new.images) / 2


def _said(compared: dict[str, Any], p: float) -> str:
    return f"{100 * compared['difference']['value']:+.1f} points, p {p:.3f}, n = {compared['n']}"
