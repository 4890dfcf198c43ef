"""What is promoted: better on feedback and no worse on the rest, both by tests that draw whole images."""

import json
from typing import Any

import numpy as np
import pytest

from arr_coc.evaluation.arms import Arm
from arr_coc.evaluation.scores import Scored
from arr_coc.learning.learn import decide

ARM = Arm("realizer", "ladder", "realizer", 17, "topk", 128, 33, ())


def scored(values: Any, images: Any = None) -> Scored:
    scores = np.asarray(values, dtype=float)[None]
    numbers = np.arange(scores.size) if images is None else np.asarray(images)
    return Scored(ARM, "exact_match", [], scores, np.full_like(scores, np.nan), numbers, np.zeros(scores.size, bool))


def changed(n: int, gained: int, lost: int) -> tuple[Scored, Scored]:
    """Answers of the new scorer and the one in use, half of which right, and so many of them changed."""
    used = np.tile([0.0, 1.0], n // 2)
    new = used.copy()
    new[0 : 2 * gained : 2] = 1.0
    new[1 : 1 + 2 * lost : 2] = 0.0
    return scored(new), scored(used)


BETTER, SAME = changed(60, 20, 1), changed(1200, 8, 8)


def test_better_there_and_the_same_here_is_promoted() -> None:
    decision = decide(BETTER, SAME)
    assert decision.promoted and not decision.reasons
    assert (decision.feedback["gained"], decision.feedback["lost"], decision.feedback["n"]) == (20, 1, 60)
    assert decision.p_margin < 0.02 < 0.5 < decision.rest["p"]
    lines = decision.lines()
    assert lines[0].startswith("held-out feedback: 50.0 [") and "+31.7 [" in lines[0] and len(lines) == 3
    assert json.loads(json.dumps(decision.content()))["promoted"] is True


@pytest.mark.parametrize(
    ("feedback", "rest", "reason"),
    [
        (changed(60, 4, 3), SAME, "feedback: expected a gain with p at most 0.02; got +1.7 points, p 1.000, n = 60"),
        (changed(60, 1, 20), SAME, "feedback: expected a gain with p at most 0.02; got -31.7 points"),
        (changed(18, 9, 0), SAME, "feedback: expected at least 20 images to test on; got 18"),
        (BETTER, changed(1200, 8, 26), "rest: expected a loss of 1 points excluded with p at most 0.02; got -1.5 poi"),
        (BETTER, changed(200, 0, 0), None),
        (BETTER, changed(200, 4, 4), "rest: expected a loss of 1 points excluded with p at most 0.02; got +0.0 points"),
        (BETTER, changed(18, 0, 0), "rest: expected at least 20 images to test on; got 18"),
    ],
)  # fmt: skip
def test_whatever_is_not_shown_is_a_reason(feedback: Any, rest: Any, reason: str | None) -> None:
    """Too few questions show nothing: to be no worse has to be shown, too."""
    reasons = decide(feedback, rest).reasons
    assert (not reasons) if reason is None else any(text.startswith(reason) for text in reasons), reasons


def test_questions_of_one_image_go_together() -> None:
    """Sixty answers gained on three pages are three observations, not sixty."""
    n, images = 60, np.arange(60) // 20
    decision = decide((scored(np.ones(n), images), scored(np.zeros(n), images)), SAME)
    assert not decision.promoted and decision.feedback["images"] == 3


def test_margins() -> None:
    assert not decide(BETTER, changed(1200, 0, 17)).promoted
    assert decide(BETTER, changed(1200, 0, 17), margin=0.03).promoted
    with pytest.raises(ValueError, match="margin: expected a share above 0, at most 1; got 0"):
        decide(BETTER, SAME, margin=0)
