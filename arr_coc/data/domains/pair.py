"""Domains `pair` and `form`: two pages of fields to compare; a page asked about several fields at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..questions import DOCUMENT_WORDINGS, Wordings, ask
from ..splits import Split
from ..values import FIELDS, KINDS, distinct, pick, sample_pairs
from .document import LAYOUTS, Document, Entry, render_document
from .page import Page, Question, register, register_sources

COMPARISONS = ("highest", "lowest")
"""Kinds of questions that all pages are needed for."""
WORDINGS: dict[str, Wordings] = {
    **{
        kind: Wordings(
            (
                f"Which {{field}} is the {kind}?", f"What is the {kind} {{field}}?", f"Find the {kind} {{field}}.",
                f"Give the {{field}} that is the {kind}.",
            ),
            (f"Give the {kind} {{field}}.", f"Find the {{field}} that is the {kind}."),
        )
        for kind in COMPARISONS
    },
    "field": DOCUMENT_WORDINGS,
}  # fmt: skip
COMPARED = ("total", "subtotal", "tax", "tip", "price")
"""Fields that are compared; their values are amounts."""

_OWN = (3, 6)
"""Fields that stand on one of the pages, from and to."""
_COMPARED_IN_TRAINING = 3
"""Fields that a training pair compares at most: comparing is learnt from many amounts."""
_ASKED = 3
"""Fields of each page that are asked for by themselves."""


@register_sources("pair", LAYOUTS, WORDINGS, least=2, most=2)
def draw_pair(rng: np.random.Generator, size: int, split: Split, count: int) -> Page:
    """As many pages as are asked for, two by default: which shows the most, and what stands on one of them?"""
    compared, contents = draw_contents(rng, split, count)
    documents = [render_document(rng, size=size, split=split, pairs=pairs) for pairs in contents]
    questions = ask_about(rng, documents, compared, split)
    order = [0, *(1 + rng.permutation(len(questions) - 1))]  # a comparison first, whatever is drawn
    if rng.random() < 0.5:
        questions[:2] = questions[1::-1]
    first, *rest = documents
    return Page(
        first.image, tuple(questions[i] for i in order), first.layout, first.font,
        others=tuple(document.image for document in rest),
    )  # fmt: skip


def draw_contents(
    rng: np.random.Generator, split: Split, count: int
) -> tuple[list[str], Iterator[list[tuple[str, str]]]]:
    """Fields that can be compared, and for each of `count` pages what it says, drawn when it is its turn."""
    several = int(rng.integers(1, _COMPARED_IN_TRAINING + 1)) if split == "train" else 1
    compared = distinct(lambda: pick(rng, COMPARED), several)
    names = [field for field in FIELDS if field not in COMPARED]
    shares = np.array_split(rng.permutation(len(names)), count)
    amounts = [_amounts(rng, split, count) for _ in compared]

    def contents() -> Iterator[list[tuple[str, str]]]:
        for share, *shown in zip(shares, *amounts, strict=True):
            own = [names[i] for i in share[: int(rng.integers(*_OWN)) + 1 - several]]
            pairs = [*sample_pairs(rng, len(own), split=split, fields=own), *zip(compared, shown, strict=True)]
            yield [pairs[i] for i in rng.permutation(len(pairs))]

    return compared, contents()


def ask_about(
    rng: np.random.Generator, documents: Sequence[Document], compared: Sequence[str], split: Split
) -> list[Question]:
    """Both comparisons of each field that is `compared`; then questions about other fields, page by page."""
    questions = [_compare(rng, documents, field, kind, split) for field in compared for kind in COMPARISONS]
    for number, document in enumerate(documents):
        own_entries = [entry for entry in document.entries if entry.field not in compared][:_ASKED]
        questions += [_single(ask(rng, entry.field, split=split), entry, number) for entry in own_entries]
    return questions


def draw_comparison(rng: np.random.Generator, split: Split, count: int = 2) -> Question:
    """What could be asked about `count` pages that are not drawn, and what is thought before the answer."""
    return _comparison(rng, pick(rng, COMPARED), pick(rng, COMPARISONS), _amounts(rng, split, count), split)


def _amounts(rng: np.random.Generator, split: Split, count: int) -> list[str]:
    """Amounts of which no two are equal."""
    amounts: list[str] = []
    while len(amounts) < count:
        amount = KINDS["amount"](rng, split)
        if _value(amount) not in map(_value, amounts):
            amounts.append(amount)
    return amounts


def _value(amount: str) -> float:
    return float(amount.replace(",", "").lstrip("$"))


def _compare(rng: np.random.Generator, documents: Sequence[Document], field: str, kind: str, split: Split) -> Question:
    """Which page's value is the highest, or the lowest? All of them must be looked at."""
    entries = [next(entry for entry in document.entries if entry.field == field) for document in documents]
    sources = tuple(range(len(documents)))
    return replace(
        _comparison(rng, field, kind, [entry.value for entry in entries], split),
        boxes=tuple(entry.value_box for entry in entries), label_boxes=tuple(entry.label_box for entry in entries),
        box_sources=sources, label_sources=sources,
    )  # fmt: skip


def _comparison(rng: np.random.Generator, field: str, kind: str, amounts: Sequence[str], split: Split) -> Question:
    """A question of which the boxes are to be added."""
    answer = sorted(amounts, key=_value)[-1 if kind == "highest" else 0]
    text = WORDINGS[kind].draw(rng, split, field=field)
    return Question(text, (answer,), (), (), kind, 2, thinking="\n".join(amounts))


def _single(text: str, entry: Entry, source: int) -> Question:
    question = Question(text, (entry.value,), (entry.value_box,), (entry.label_box,), "field")
    return replace(question, box_sources=(source,), label_sources=(source,), answer_sources=(source,))


FORM_WORDINGS: dict[int, Wordings] = {
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


@register("form", LAYOUTS, FORM_WORDINGS)
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
        else FORM_WORDINGS[count].draw(rng, split, **dict(zip(_PLACES, fields, strict=False)))
    )
    answer = "\n".join(entry.value for entry in entries)
    boxes, labels = tuple(entry.value_box for entry in entries), tuple(entry.label_box for entry in entries)
    return Question(text, (answer,), boxes, labels, "field" if count == 1 else f"{count} fields")
