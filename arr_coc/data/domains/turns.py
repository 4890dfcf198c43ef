"""Second turns of a chat: questions that come after another one about the same page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .page import Page, Question


def with_turns(rng: np.random.Generator, page: Page, share: float) -> Page:
    """The page, a share of its questions with another question and its answer before them.

    Args:
        rng: the only source of randomness.
        page: of any domain; with one question it stays as it is.
        share: of the questions, 0 to 1.
    """
    questions: list[Question] = []
    for place, question in enumerate(page.questions):
        others = [
            other for other in page.questions[:place] + page.questions[place + 1 :] if other.text != question.text
        ]
        if others and rng.random() < share:
            earlier = others[int(rng.integers(len(others)))]
            question = replace(question, history=((earlier.text, earlier.answers[0]),))
        questions.append(question)
    return replace(page, questions=tuple(questions))
