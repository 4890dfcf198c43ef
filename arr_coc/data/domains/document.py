"""Domain `document`: lines of `field value`, what arr-coc-tiny is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ...modeling.image_processing_arr_coc import Box
from ..glyphs import Glyph, write
from ..pools import TITLES
from ..questions import DOCUMENT_WORDINGS, ask
from ..rasterising import Ink, compose, sample_palette
from ..splits import Split, part
from ..styles import CONTRAST, check_page, sample_pen, sample_styles
from ..values import FIELDS, made_up_word, pick, sample_pairs
from .lines import LAYOUTS, draw_rules, make_plan
from .page import Page, Question, register

_MIN_ENTRIES, _MAX_ENTRIES = 4, 14


@dataclass(frozen=True)
class Entry:
    """One line: the canonical field (lower case), its label as drawn less the colon, its value, and tight ink boxes.

    The label's box includes the colon where one is drawn.
    """

    field: str
    label: str
    value: str
    label_box: Box
    value_box: Box


@dataclass(frozen=True)
class Document:
    """A rendered page (RGB), what it says, the name of its layout, and the family and style of its fonts.

    Of a page of which it shows a part: `labels`, fields whose label it shows without their value, and that label's box;
    `elsewhere`, fields of which it shows nothing.
    """

    image: Image.Image
    entries: tuple[Entry, ...]
    glyphs: tuple[Glyph, ...]
    layout: str
    font: str
    labels: tuple[tuple[str, Box], ...] = ()
    elsewhere: tuple[str, ...] = ()


def cased(rng: np.random.Generator, fields: list[str]) -> list[str]:
    """Labels of one page, all in the same case: lower, Capitalised, rarely UPPER."""
    choice = int(rng.choice(3, p=[0.44, 0.46, 0.1]))
    return [(field, field.capitalize(), field.upper())[choice] for field in fields]


def _sample_title(rng: np.random.Generator, split: Split) -> str:
    chance = rng.random()
    if chance < 0.55:
        return ""
    if chance < 0.85:
        return pick(rng, part(TITLES, split))
    return " ".join(made_up_word(rng) for _ in range(int(rng.integers(1, 3))))


def render_document(
    rng: np.random.Generator,
    *,
    size: int = 256,
    split: Split = "train",
    fields: Sequence[str] = FIELDS,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> Document:
    """A page of 4 to 14 lines `field value` with distinct fields and distinct values.

    Args:
        rng: the only source of randomness; the same state gives the same document on a machine with the same fonts.
        size: side of the square page in px; all lengths scale with it.
        split: which fonts, words and layouts it shows, see `arr_coc.data.splits`; only training distorts its letters.
        fields: names to draw from (lower case, distinct), at least 4; those that `FIELDS` lacks have numbers, or
            values of any kind.
        pairs: fields and values, what the page says; None: drawn.

    Raises:
        ValueError: a bad `split`, a page under 64 px, or too few fields.
        FileNotFoundError: no font of the split is installed.
    """
    check_page(size, split)
    if len(set(fields)) < _MIN_ENTRIES:
        raise ValueError(f"fields: expected at least {_MIN_ENTRIES} distinct names; got {list(fields)}")
    pen = sample_pen(rng, split)
    while True:
        layout_name, layout = LAYOUTS.draw(rng, split)
        styles = sample_styles(rng, pen, size, split)
        said = pairs
        if said is None:
            said = sample_pairs(rng, int(rng.integers(_MIN_ENTRIES, _MAX_ENTRIES + 1)), split=split, fields=fields)
        labels = cased(rng, [field for field, _ in said])
        colon = ":" if rng.random() < 0.5 else ""
        drawn, values = [label + colon for label in labels], [value for _, value in said]
        title = _sample_title(rng, split)
        plan = make_plan(rng, layout, styles, drawn, values, title, size)
        if plan is not None:
            break
    palette = sample_palette(rng, contrast=CONTRAST[split])
    label_ink, rule_ink = Ink(size, pen), Ink(size)
    value_ink = label_ink if palette.value == palette.label else Ink(size, pen)
    label_boxes, glyphs = write(label_ink, drawn, plan.label_x, plan.baselines, plan.label)
    value_boxes, value_glyphs = write(value_ink, values, plan.value_x, plan.baselines, plan.value)
    glyphs += value_glyphs
    if plan.title is not None:
        glyphs += write(label_ink, [title], [plan.title[0]], [plan.title[1]], plan.heading)[1]
    entries = tuple(
        Entry(field, label, value, label_box(), value_box())
        for (field, value), label, label_box, value_box in zip(said, labels, label_boxes, value_boxes, strict=True)
    )
    draw_rules(rng, rule_ink, layout, plan, [entry.label_box[2] for entry in entries])
    layers = [(label_ink, palette.label), (rule_ink, palette.rule)]
    if value_ink is not label_ink:
        layers.append((value_ink, palette.value))
    image = compose(rng, layers, palette.paper, split=split)
    names = dict.fromkeys((plan.value.face.name, plan.label.face.name))
    return Document(image, entries, tuple(glyphs), layout_name, " + ".join(names))


@register("document", LAYOUTS, {"field": DOCUMENT_WORDINGS})
def draw_document(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_document` with one question about each field."""
    return draw_fields(rng, size, split, FIELDS)


def draw_fields(rng: np.random.Generator, size: int, split: Split, fields: Sequence[str]) -> Page:
    """`draw_document` with fields among other names."""
    return ask_each(rng, render_document(rng, size=size, split=split, fields=fields), split, fields)


def ask_each(rng: np.random.Generator, document: Document, split: Split, fields: Sequence[str]) -> Page:
    """The document with one question about each of its fields, which were drawn from `fields`, in a drawn order."""
    order = rng.permutation(len(document.entries))
    entries = [document.entries[int(index)] for index in order]
    questions = tuple(
        Question(ask(rng, entry.field, split=split), (entry.value,), (entry.value_box,), (entry.label_box,), "field")
        for entry in entries
    )
    text = "\n".join(f"{entry.label} {entry.value}" for entry in document.entries)
    return Page(document.image, questions, document.layout, document.font, document.glyphs, tuple(fields), text=text)
