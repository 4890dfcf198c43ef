"""Domain `generated`: pages of `arr_coc.pages.generator`, half of them worn (`arr_coc.pages.wear`).

They are the pages that arr-coc-135m learns from: forms, invoices, receipts, letters, tables, charts, screens and
others, of any aspect ratio. Words, wordings, formats, layouts and fonts of the splits differ. Domain `question_kinds`:
such pages with questions of each kind of `arr_coc.pages.line_questions` beside their own.
"""

from dataclasses import replace
from random import Random

import numpy as np
from PIL import Image

from ...modeling.image_processing_arr_coc import Box
from .. import generating
from ..line_questions import by_kind
from ..page import TextPage
from ..splits import Split
from ..wear import wear
from .domain import DOMAINS, Page

WORN = 0.5  # share of worn pages


@DOMAINS.register("generated")
def draw(rng: np.random.Generator, size: int, split: Split) -> Page:
    """Draws a page of any kind whose longer side is `size` px. Raises ValueError: the packages of the extra "train",
    whose words it uses, are not installed."""
    return _page(rng, size, generating().draw_page(rng, split))


@DOMAINS.register("question_kinds")
def draw_question_kinds(rng: np.random.Generator, size: int, split: Split) -> Page:
    """`draw` with questions of each kind, which are the first ones. Raises the same error."""
    page = generating().draw_page(rng, split)
    questions = by_kind(Random(int(rng.integers(2**63))), page, split)
    return _page(rng, size, replace(page, questions=questions))


def _page(rng: np.random.Generator, size: int, page: TextPage) -> Page:
    if rng.random() < WORN:
        page = wear(rng, page)
    assert page.image is not None, "draw_page draws"
    scale = size / max(page.size)
    image = page.image.resize([max(1, round(side * scale)) for side in page.size], Image.Resampling.LANCZOS)

    def scaled(box: Box) -> Box:
        x0, y0, x1, y1 = (round(edge * scale, 1) for edge in box)
        return x0, y0, x1, y1

    questions = tuple(question.moved(scaled) for question in page.questions)
    return Page(image, questions, page.source.removeprefix("generated: "), font="", tags=(("page", page.kind),))
