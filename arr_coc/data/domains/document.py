"""Domain `document`: lines of `field value`, what arr-coc-tiny is trained on."""

from collections.abc import Sequence

import numpy as np

from ..questions import ask
from ..rendering import render_document
from ..values import FIELDS, Split
from .page import DOMAINS, Page, Question


@DOMAINS.register("document")
def draw_document(rng: np.random.Generator, size: int, split: Split, *, fields: Sequence[str] = FIELDS) -> Page:
    """A page of `render_document`, its fields among `fields`, with one question about each."""
    document = render_document(rng, size=size, split=split, fields=fields)
    order = rng.permutation(len(document.entries))
    entries = [document.entries[int(index)] for index in order]
    questions = tuple(
        Question(ask(rng, entry.field, split=split), (entry.value,), (entry.value_box,), (entry.label_box,), "field")
        for entry in entries
    )
    return Page(document.image, questions, document.layout, document.font, document.glyphs)
