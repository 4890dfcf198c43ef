"""Domain `form`: pages of `document`, asked about one field and about several at once, in turn.

So one page has questions that a few patches answer, and questions that need two or three times as many.
"""

from __future__ import annotations

import numpy as np

from ..questions import Wordings, ask
from ..splits import Split
from ..values import FIELDS
from .document import Entry, render_document
from .lines import LAYOUTS
from .page import Page, Question, register

WORDINGS: dict[int, Wordings] = {
    2: Wordings(
        (
            "What are the {first} and the {second}?", "Find the {first} and the {second}.",
            "Read the {first} and the {second}.", "{first} and {second}?",
        ),
        ("What are the {first} and {second}?", "Give me the {first} and the {second}."),
    ),
    3: Wordings(
        (
            "What are the {first}, the {second} and the {third}?", "Find the {first}, the {second} and the {third}.",
            "Read the {first}, the {second} and the {third}.", "{first}, {second} and {third}?",
        ),
        ("What are the {first}, {second} and {third}?", "Give me the {first}, the {second} and the {third}."),
    ),
}  # fmt: skip
"""By how many fields a question asks for; their values are answered in its order, one per line."""

_PLACES = ("first", "second", "third")


@register("form", LAYOUTS, WORDINGS)
def draw_form(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_document`; for each field a question about it alone, then one about it and the next ones."""
    document = render_document(rng, size=size, split=split)
    order = rng.permutation(len(document.entries))
    questions = []
    for turn in range(len(order)):
        entries = [document.entries[int(index)] for index in np.roll(order, -turn)]
        questions += [_asked(rng, entries[:1], split), _asked(rng, entries[: int(rng.integers(2, 4))], split)]
    return Page(document.image, tuple(questions), document.layout, document.font, document.glyphs, FIELDS)


def _asked(rng: np.random.Generator, entries: list[Entry], split: Split) -> Question:
    count, fields = len(entries), [entry.field for entry in entries]
    text = (
        ask(rng, fields[0], split=split)
        if count == 1
        else WORDINGS[count].draw(rng, split, **dict(zip(_PLACES, fields, strict=False)))
    )
    answer = "\n".join(entry.value for entry in entries)
    boxes, labels = tuple(entry.value_box for entry in entries), tuple(entry.label_box for entry in entries)
    return Question(text, (answer,), boxes, labels, "field" if count == 1 else f"{count} fields")
