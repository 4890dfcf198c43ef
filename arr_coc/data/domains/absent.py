"""Questions about fields that a page does not show: their answer is that they are not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..glyphs import Glyph
from ..questions import ask
from ..records import NOT_ON_THE_PAGE
from ..splits import Split
from ..values import unheard_name
from .page import ABSENT, Page, Question


def with_absent(rng: np.random.Generator, page: Page, share: float, split: Split, unheard: float = 0.0) -> Page:
    """The page, a share of its questions replaced by such about fields that it does not show, each field once.

    Pages that do not draw their fields from a list (`Page.fields`) stay as they are.

    Args:
        rng: the only source of randomness.
        page: of any domain.
        share: of the questions, 0 to 1.
        split: of the wordings, and of the names that no page has.
        unheard: share of these questions that ask for what no page has a field for, a passport, say.
    """
    missing = missing_fields(page.fields, page.glyphs)
    order = iter(rng.permutation(len(missing)).tolist())
    questions = []
    for question in page.questions:
        place = next(order, None) if rng.random() < share else None
        if place is not None:
            heard = not unheard or rng.random() >= unheard
            text = ask(rng, missing[place] if heard else unheard_field(rng, page.glyphs, split), split=split)
            question = Question(text, (NOT_ON_THE_PAGE,), (), (), ABSENT)
        questions.append(question)
    return replace(page, questions=tuple(questions))


def missing_fields(fields: Sequence[str], glyphs: Sequence[Glyph]) -> list[str]:
    """Those fields that a page with such characters does not show.

    One counts as shown where its name stands anywhere, also within a word: someone asked for the total could name a
    subtotal.
    """
    shown = "".join(glyph.char for glyph in glyphs).lower()
    return [field for field in fields if field.lower().replace(" ", "") not in shown]


def unheard_field(rng: np.random.Generator, glyphs: Sequence[Glyph], split: Split) -> str:
    """A name that `FIELDS` lacks and a page with such characters does not show."""
    while not (missing := missing_fields([unheard_name(rng, split)], glyphs)):
        pass
    return missing[0]
