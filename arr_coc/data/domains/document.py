"""Domain `document`: lines of `field value`, what arr-coc-tiny is trained on."""

from collections.abc import Sequence

import numpy as np

from ..questions import ask
from ..rendering import render_document
from ..values import FIELDS, Split
from .page import DOMAINS, Page, Question


@DOMAINS.register("document")
def draw_document(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_document` with one question about each field."""
    return draw_fields(rng, size, split, FIELDS)


def draw_fields(rng: np.random.Generator, size: int, split: Split, fields: Sequence[str]) -> Page:
    """`draw_document` with fields among other names."""
    document = render_document(rng, size=size, split=split, fields=fields)
    order = rng.permutation(len(document.entries))
    entries = [document.entries[int(index)] for index in order]
    questions = tuple(
        Question(ask(rng, entry.field, split=split), (entry.value,), (entry.value_box,), (entry.label_box,), "field")
        for entry in entries
    )
    return Page(document.image, questions, document.layout, document.font, document.glyphs)
