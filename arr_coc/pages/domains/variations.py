"""Pages by number, and variations of every domain: photographs, questions about absent fields, second turns.

The same (domain, seed, index, size, split) gives the same page in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from ...modeling.prompt_format import NOT_ON_THE_PAGE
from ..page import ABSENT, Question
from ..splits import Split
from .domain import DOMAINS, Page
from .glyphs import Glyph, check_page
from .photo import photograph
from .values import ask, unheard_name


def with_turns(rng: np.random.Generator, page: Page, share: float) -> Page:
    """The page, with another question and its answer before a share of its questions, if it has several."""
    questions: list[Question] = []
    for question in page.questions:
        others = [other for other in page.questions if other.text != question.text]
        if others and rng.random() < share:
            earlier = others[int(rng.integers(len(others)))]
            question = replace(question, history=((earlier.text, earlier.answers[0]),))
        questions.append(question)
    return replace(page, questions=tuple(questions))


def with_absent(rng: np.random.Generator, page: Page, share: float, split: Split, unheard: float = 0.0) -> Page:
    """The page, with a share of its questions replaced by questions about absent fields, each field once.

    Pages whose fields are not drawn from a list (`Page.fields`) do not change. A share `unheard` of these questions is
    about fields that no page has, for example a passport.
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
    """The fields that a page with these characters does not show.

    A field counts as shown if its name is anywhere, also in a word, as a subtotal could be an answer for the total.
    """
    shown = "".join(glyph.char for glyph in glyphs).lower()
    return [field for field in fields if field.lower().replace(" ", "") not in shown]


def unheard_field(rng: np.random.Generator, glyphs: Sequence[Glyph], split: Split) -> str:
    """A name that `FIELDS` lacks and that a page with these characters does not show."""
    while not (missing := missing_fields([unheard_name(rng, split)], glyphs)):
        pass
    return missing[0]


@dataclass(frozen=True)
class Variations:
    """Shares of varied pages and questions, from 0 to 1.

    Each variation has separate random numbers, so it depends neither on the others nor on the page's content.

    Attributes:
        photo: share of photographed pages.
        absent: share of questions about absent fields, on pages with fields.
        unheard: of these, share of questions about fields that no page has.
        turns: share of questions that are second in a chat, after another one about the page.

    Raises:
        ValueError: a share outside 0..1.
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
        """Varies a page as drawn by its domain; `entropy` is the seed, `split` that of the wordings."""
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
"""No variations."""


_ENTROPY: dict[Split, tuple[int, ...]] = {"train": (1,), "validation": (2,), "test": ()}


def draw_page(
    domain: str,
    seed: int,
    index: int,
    size: int,
    split: Split,
    *,
    fields: Sequence[str] | None = None,
    variations: Variations = AS_DRAWN,
) -> Page:
    """The page number `index` of a domain, whose side is `size` px; pages of two splits never share random numbers.

    Args:
        fields: the names to draw from, for domain document only; None: its default.

    Raises:
        ValueError: an unknown domain, fields for a domain other than document, photographs of pages that are not
            square, a negative number, a page under 64 px, or a bad split.
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
        raise ValueError(f"photo: expected a domain of square pages; got {domain!r}")
    page = kind.draw(rng, size, split, **({} if fields is None else {"fields": fields}))
    return variations.apply(page, entropy, split)
