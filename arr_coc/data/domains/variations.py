"""Pages by number, and variations of every domain: photographed, asked for what is not there, asked in a second turn.

The same (domain, seed, index, size, split) is the same page in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from ..glyphs import Glyph, check_page
from ..questions import ask
from ..records import NOT_ON_THE_PAGE
from ..splits import Split
from ..values import unheard_name
from .document import draw_fields
from .page import ABSENT, DOMAINS, Page, Question
from .photo import photograph


def with_turns(rng: np.random.Generator, page: Page, share: float) -> Page:
    """The page, a share of its questions with another question and its answer before them.

    Args:
        rng: the only source of randomness.
        page: of any domain; with one question it stays as it is.
        share: of the questions, 0 to 1.
    """
    questions: list[Question] = []
    for place, question in enumerate(page.questions):
        others = [
            other for other in page.questions[:place] + page.questions[place + 1 :] if other.text != question.text
        ]
        if others and rng.random() < share:
            earlier = others[int(rng.integers(len(others)))]
            question = replace(question, history=((earlier.text, earlier.answers[0]),))
        questions.append(question)
    return replace(page, questions=tuple(questions))


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

    One counts as shown where its name is anywhere, also within a word: someone asked for the total could name a
    subtotal.
    """
    shown = "".join(glyph.char for glyph in glyphs).lower()
    return [field for field in fields if field.lower().replace(" ", "") not in shown]


def unheard_field(rng: np.random.Generator, glyphs: Sequence[Glyph], split: Split) -> str:
    """A name that `FIELDS` lacks and a page with such characters does not show."""
    while not (missing := missing_fields([unheard_name(rng, split)], glyphs)):
        pass
    return missing[0]


@dataclass(frozen=True)
class Variations:
    """How often pages and questions are varied; shares from 0 to 1.

    Each has random numbers of its own: what one of them does, and what a page shows, does not depend on the others.

    Attributes:
        photo: pages that are photographed.
        absent: questions about fields that the page does not show, on pages that show fields.
        unheard: of these, questions about what no page has a field for.
        turns: questions that come second in a chat, after another one about the page.

    Raises:
        ValueError: a share that is none.
    """

    photo: float = 0.0
    absent: float = 0.0
    turns: float = 0.0
    unheard: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            share = getattr(self, field.name)
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise ValueError(f"{field.name}: expected a share from 0 to 1; got {share!r}")

    def apply(self, page: Page, entropy: tuple[int, ...], split: Split) -> Page:
        """The page, varied.

        Args:
            page: as its domain drew it.
            entropy: what its own random numbers come from.
            split: of wordings.
        """
        photo, absent, turns = (
            partial(np.random.default_rng, np.random.SeedSequence(entropy, spawn_key=(key,))) for key in range(3)
        )
        if self.photo and (rng := photo()).random() < self.photo:
            page = photograph(rng, page)
        if self.absent:
            page = with_absent(absent(), page, self.absent, split, self.unheard)
        if self.turns:
            page = with_turns(turns(), page, self.turns)
        return page


AS_DRAWN = Variations()
"""Pages as their domains draw them."""


_ENTROPY: dict[Split, tuple[int, ...]] = {"train": (1,), "validation": (2,), "test": ()}


def draw_page(
    domain: str,
    seed: int,
    index: int,
    size: int,
    split: Split,
    *,
    fields: Sequence[str] | None = None,
    sources: int | None = None,
    variations: Variations = AS_DRAWN,
) -> Page:
    """The page number `index` of a domain.

    Args:
        domain: a name of `DOMAINS`.
        seed: of all pages.
        index: at least 0.
        size: side of the page, px.
        split: fonts, layouts, wordings and words; pages of two splits never share random numbers.
        fields: of domain document alone, the names to draw from; None: its own.
        sources: pages, images or frames of a domain that draws several; None: drawn.
        variations: what is done with the page and its questions.

    Raises:
        ValueError: an unknown domain, fields for another than document, sources or photographs of a domain without, a
            negative number, a page under 64 px, or a bad split.
        FileNotFoundError: no font of the split is installed.
    """
    check_page(size, split)
    if seed < 0 or index < 0:
        raise ValueError(f"expected a seed and an index of at least 0; got seed={seed}, index={index}")
    entropy = (seed, index, *_ENTROPY[split])
    kind, rng = DOMAINS[domain], np.random.default_rng(entropy)
    if fields is not None and domain != "document":
        raise ValueError(f"fields: expected domain document; got {domain!r}")
    if variations.photo and not kind.square:
        raise ValueError(f"photo: expected a domain of single square pages; got {domain!r}")
    if sources is not None:
        page = _draw_sources(domain, sources, rng, size, split)
    else:
        page = kind.draw(rng, size, split) if fields is None else draw_fields(rng, size, split, fields)
    return variations.apply(page, entropy, split)


def _draw_sources(domain: str, count: int, rng: np.random.Generator, size: int, split: Split) -> Page:
    draw = DOMAINS[domain].draw_sources
    if draw is None:
        several = ", ".join(sorted(name for name, kind in DOMAINS.items() if kind.draw_sources is not None))
        raise ValueError(f"sources: expected a domain of several ({several}); got {domain!r}")
    if count < 2:
        raise ValueError(f"sources: expected at least 2; got {count}")
    return draw(rng, size, split, count)
