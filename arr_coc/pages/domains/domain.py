"""A domain, and the pages that it draws, with questions and the boxes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Generic, TypeVar

import numpy as np
from PIL import Image

from ...modeling.config_fields import Registry
from ..page import Question
from ..splits import Split
from .glyphs import Glyph
from .values import pick
from .wordings import Wordings

CHARACTERS = {"under 120": 120, "120 to 299": 300, "300 or more": inf}
"""Kinds of pages by number of characters, with exclusive upper limits."""


@dataclass(frozen=True)
class Page:
    """An RGB page, square in most domains, with questions, the names of its layout and fonts, and its characters.

    `fields`: the names from which its fields are drawn; empty for pages without fields.
    `tags`: names and values that distinguish kinds of pages.
    `text`: all text, a line per label and value; "" if unknown.
    `others`: the sources after `image` that the questions are also about: pages, images or frames. `glyphs` and
    `fields` are then empty.
    """

    image: Image.Image
    questions: tuple[Question, ...]
    layout: str
    font: str
    glyphs: tuple[Glyph, ...] = ()
    fields: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    others: tuple[Image.Image, ...] = ()
    text: str = field(default="", repr=False)

    @property
    def sources(self) -> tuple[Image.Image, ...]:
        """All sources of the questions, in order."""
        return (self.image, *self.others)

    @property
    def told(self) -> dict[str, str]:
        """The tags, and "characters" (a kind of `CHARACTERS`) if the characters are known."""
        shown = len(self.glyphs)
        counted = {"characters": next(name for name, below in CHARACTERS.items() if shown < below)} if shown else {}
        return {**counted, **dict(self.tags)}


Layout = TypeVar("Layout")


@dataclass(frozen=True)
class Layouts(Generic[Layout]):
    """The named layouts of a domain's pages. Training and validation have other layouts than the test split.

    Attributes:
        train, test: layouts by name; no name is in both.
        weights: relative frequencies of layouts, 1 by default.
    """

    train: Mapping[str, Layout]
    test: Mapping[str, Layout]
    weights: Mapping[str, float] = field(default_factory=dict)

    def of(self, split: Split) -> Mapping[str, Layout]:
        """The layouts of a split."""
        return self.test if split == "test" else self.train

    def only(self, chosen: Callable[[Layout], bool]) -> Layouts[Layout]:
        """The layouts for which `chosen` is true."""
        train, test = ({name: each for name, each in own.items() if chosen(each)} for own in (self.train, self.test))
        return replace(self, train=train, test=test)

    def draw(self, rng: np.random.Generator, split: Split) -> tuple[str, Layout]:
        """A layout of the split and its name."""
        layouts = self.of(split)
        names = list(layouts)
        if not self.weights:
            name = pick(rng, names)
        else:
            weights = np.array([self.weights.get(name, 1.0) for name in names])
            name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        return name, layouts[name]


Draw = Callable[[np.random.Generator, int, Split], Page]
"""Draws a page: `draw(rng, size, split)`; `size` is its side, px; `rng` is the only source of randomness."""

DrawSources = Callable[[np.random.Generator, int, Split, int], Page]
"""`Draw` of a page with a number of sources."""


@dataclass(frozen=True)
class Domain:
    """A kind of page that can be drawn and asked about, such as receipts.

    Attributes:
        draw: draws one page with its questions.
        layouts: layouts of its pages, by split.
        wordings: wordings of its questions, by kind of question.
        draw_sources: draws a page with a number of sources; None if pages have one source.
        square: whether a page is one square image.
    """

    draw: Draw
    layouts: Layouts[Any]
    wordings: Mapping[Any, Wordings]
    draw_sources: DrawSources | None = None
    square: bool = True


DOMAINS: Registry[Domain] = Registry("domain")


def register(
    name: str, layouts: Layouts[Any], wordings: Mapping[Any, Wordings], *, square: bool = True
) -> Callable[[Draw], Draw]:
    """Decorator that registers a domain with the function that draws its pages.

    Raises:
        ValueError: the name is taken.
    """

    def add(draw: Draw) -> Draw:
        DOMAINS.register(name)(Domain(draw, layouts, wordings, square=square))
        return draw

    return add


def register_sources(
    name: str, layouts: Layouts[Any], wordings: Mapping[Any, Wordings], *, least: int, most: int
) -> Callable[[DrawSources], DrawSources]:
    """`register` for a function that draws `least` to `most` sources, or a given number.

    Raises:
        ValueError: the name is taken.
    """

    def add(draw: DrawSources) -> DrawSources:
        def draw_any(rng: np.random.Generator, size: int, split: Split) -> Page:
            return draw(rng, size, split, int(rng.integers(least, most + 1)))

        DOMAINS.register(name)(Domain(draw_any, layouts, wordings, draw, square=False))
        return draw

    return add
