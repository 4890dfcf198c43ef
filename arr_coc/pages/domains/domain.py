"""A domain: a kind of page that `arr-coc render` draws, with questions and the boxes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

import numpy as np
from PIL import Image

from ...modeling.checks import Registry
from ..page import Question
from ..splits import Split
from .glyphs import Glyph
from .values import WORDS, pick

CHARACTERS = {"under 120": 120, "120 to 299": 300, "300 or more": inf}
"""Kinds of pages by number of characters, with exclusive upper limits."""


@dataclass(frozen=True)
class Page:
    """An RGB page, square in most domains, with questions, the names of its layout and fonts, and its characters.

    `fields`: the names from which its fields are drawn; empty for pages without fields.
    `tags`: names and values that distinguish kinds of pages.
    `text`: all text, a line per label and value; "" if unknown.
    """

    image: Image.Image
    questions: tuple[Question, ...]
    layout: str
    font: str
    glyphs: tuple[Glyph, ...] = ()
    fields: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    text: str = field(default="", repr=False)

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

    @classmethod
    def of_words(
        cls, domain: str, parse: Callable[[str], Layout], weights: Mapping[str, float] | None = None
    ) -> Layouts[Layout]:
        """The layouts of a domain in words.txt, each `name=words`."""
        items = (WORDS[f"{split} layouts of {domain}"] for split in ("train", "test"))
        train, test = ({name: parse(text) for name, text in (item.split("=") for item in own)} for own in items)
        return cls(train, test, weights or {})

    def of(self, split: Split) -> Mapping[str, Layout]:
        """The layouts of a split."""
        return self.test if split == "test" else self.train

    def only(self, chosen: Callable[[Layout], bool]) -> Layouts[Layout]:
        """The layouts for which `chosen` is true."""
        train, test = ({name: each for name, each in own.items() if chosen(each)} for own in (self.train, self.test))
        return Layouts(train, test)

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
"""Draws a page: `draw(rng, size, split)`; `size` is its longer side, px; `rng` is the only source of randomness."""


@dataclass(frozen=True)
class Domain:
    """A kind of page: the function that draws one, and whether it is square."""

    draw: Draw
    square: bool


DOMAINS: Registry[Domain] = Registry("domain")


def register(name: str, *, square: bool = True) -> Callable[[Draw], Draw]:
    """Registers a domain with the function that it decorates, which draws its pages; ValueError if it is taken."""

    def add(draw: Draw) -> Draw:
        DOMAINS.register(name)(Domain(draw, square))
        return draw

    return add
