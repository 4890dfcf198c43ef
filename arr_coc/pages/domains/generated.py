"""Domain `generated`: pages of `arr_coc.pages.generator`, half of them worn (`arr_coc.pages.wear`).

They are the pages that arr-coc-135m learns from: forms, invoices, receipts, letters, tables, charts, screens and
others, of any aspect ratio. Words, wordings, formats, layouts and fonts of the splits differ. Domain `question_kinds`:
such pages with questions of each kind of `arr_coc.pages.line_questions` beside their own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from ..page import Question, TextPage
from ..splits import Split
from .domain import Layouts, Page, register

WORN = 0.5
"""Share of worn pages."""


@register("generated", Layouts({}, {}), {}, square=False)
def draw(rng: np.random.Generator, size: int, split: Split) -> Page:
    """Draws a page of any kind whose longer side is `size` px.

    Raises:
        ValueError: the packages of the extra "train", whose words it uses, are not installed.
    """
    generated, wear = _modules("generator", "wear")
    return _page(rng, size, generated.draw_page(rng, split), wear)


@register("question_kinds", Layouts({}, {}), {}, square=False)
def draw_question_kinds(rng: np.random.Generator, size: int, split: Split) -> Page:
    """`draw` with questions of each kind, which are the first ones. Raises the same error."""
    generated, asked, wear = _modules("generator", "line_questions", "wear")
    page = generated.draw_page(rng, split)
    questions = asked.by_kind(Random(int(rng.integers(2**63))), page, split)
    return _page(rng, size, replace(page, questions=questions), wear)


def _modules(*names: str) -> list[Any]:
    try:
        return [import_module(f"arr_coc.pages.{name}") for name in names]
    except ImportError as error:
        raise ValueError(
            f'domain: expected the packages of generated pages (pip install "arr-coc[train]"); got {error}'
        ) from error


def _page(rng: np.random.Generator, size: int, page: TextPage, wear: Any) -> Page:
    if rng.random() < WORN:
        page = wear.wear(rng, page)
    assert page.image is not None, "draw_page draws"
    scale = size / max(page.size)
    image = page.image.resize([max(1, round(side * scale)) for side in page.size], Image.Resampling.LANCZOS)

    def at_size(boxes: Iterable[Sequence[float]]) -> tuple[tuple[float, float, float, float], ...]:
        return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in ([round(edge * scale, 1) for edge in box] for box in boxes))

    def scaled(question: Question) -> Question:
        boxes, labels = at_size(question.boxes), at_size(question.label_boxes)
        return Question(question.text, question.answers, boxes, labels, question.kind, question.hops)

    return Page(
        image,
        tuple(map(scaled, page.questions)),
        layout=page.source.removeprefix("generated: "),
        font="",
        tags=(("page", page.kind),),
        text="\n".join(line.text for line in page.lines),
    )
