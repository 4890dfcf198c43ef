"""Generated pages with questions: forms, receipts, invoices, tables, letters, screens, charts and more.

    page = draw_page(np.random.default_rng(0), "train", "receipt")
    page.image, page.lines, page.questions

`layout_page` generates the same page without its image, which is faster.
"""

from __future__ import annotations

from random import Random

import numpy as np

from . import cards, charts, forms, invoices, letters, manuals, marked, receipts, screens, tables
from .fonts import find_fonts
from .maker import PAGES, PageMaker, fonts_of
from .page import TextPage
from .splits import Split, check_split, pairs

__all__ = ["KINDS", "draw_page", "layout_page"]

KINDS = {kind: float(weight) for kind, weight in pairs("kinds of pages").items()}  # kinds of pages, and their weights
_QUESTIONS = 14  # the most questions of a page
_ABSENT = 0.12  # share of the questions

# Each registers its kinds.
_MODULES = (cards, charts, forms, invoices, letters, manuals, marked, receipts, screens, tables)
assert set(KINDS) == set(PAGES)


def layout_page(rng: np.random.Generator, split: Split, kind: str | None = None) -> TextPage:
    """Generates a page with its text, boxes and questions, without an image.

    Args:
        rng: the only source of randomness; one integer is drawn.
        split: split of words, wordings, formats, layouts and font families.
        kind: one of `KINDS`; None: random by weight.

    Raises:
        ValueError: an unknown split or kind.
        FileNotFoundError: no font of the split is installed.
    """
    return _page(rng, split, kind, drawn=False)


def draw_page(rng: np.random.Generator, split: Split, kind: str | None = None) -> TextPage:
    """The page of `layout_page` with the same arguments, with its RGB image. Raises the same errors."""
    return _page(rng, split, kind, drawn=True)


def _page(rng: np.random.Generator, split: Split, kind: str | None, drawn: bool) -> TextPage:
    check_split(split)
    random = Random(int(rng.integers(2**63)))
    any_kind = random.choices(list(KINDS), list(KINDS.values()))[0]
    maker = PageMaker(random, split, fonts_of(find_fonts(split)))
    maker.kind = kind or any_kind
    PAGES[maker.kind](maker)
    maker.ask_whole()
    return TextPage(
        image=maker.sheet.draw(scale=1 if maker.sharp else 2) if drawn else None,
        size=maker.sheet.size,
        lines=maker.sheet.lines,
        questions=maker.questions.ordered(_QUESTIONS, _ABSENT),
        kind=maker.kind,
        source=f"generated: {maker.kind}, {maker.layout}",
        marks=tuple(maker.sheet.marks),
    )
