"""Domain `pages`: documents of 2 to 20 A4 pages; each question asks for a field that stands on one of them alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..questions import DOCUMENT_WORDINGS, ask
from ..splits import Split
from .invoice import LAYOUTS, REFERENCES, SUMS, draw_sheet, question_about
from .page import Page, register_sources

_ASKED = 6
"""Fields at most that are asked for; the others may stand on several pages."""
_SHOWN = (4, 9)
"""Other fields on a page, from and to."""


@register_sources("pages", LAYOUTS, {"field": DOCUMENT_WORDINGS}, least=2, most=20, paged=True)
def draw_pages(rng: np.random.Generator, size: int, split: Split, count: int) -> Page:
    """A document of `count` pages `size` px wide, as the invoices of several companies that were scanned together."""
    names = [(*REFERENCES, *SUMS)[i] for i in rng.permutation(len(REFERENCES) + len(SUMS))]
    asked, others = names[: min(count, _ASKED)], names[_ASKED:]
    places = dict(zip(rng.permutation(count).tolist(), asked, strict=False))
    sheets, questions = [], {}
    for number in range(count):
        fields = [others[i] for i in rng.permutation(len(others))[: int(rng.integers(*_SHOWN))]]
        if number in places:
            fields.append(places[number])
        sheet = draw_sheet(rng, size, split, fields)
        sheets.append(sheet)
        if number in places:
            question = question_about(sheet, places[number], ask(rng, places[number], split=split))
            questions[places[number]] = replace(
                question, box_sources=(number,), label_sources=(number,), answer_sources=(number,)
            )
    first, *rest = sheets
    return Page(
        first.image, tuple(questions[field] for field in asked), first.layout, first.font,
        tags=(("pages", str(count)),), others=tuple(sheet.image for sheet in rest),
    )  # fmt: skip
