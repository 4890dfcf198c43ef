"""A domain: a kind of page that `arr-coc render` draws, with questions and the boxes of their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from PIL import Image

from ...modeling.checks import Registry
from ..page import Question
from ..splits import Split
from .glyphs import Glyph
from .values import WORDS

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


def layouts_of(domain: str, parse: Callable[[str], Layout]) -> dict[Split, dict[str, Layout]]:
    """By split, a domain's layouts of words.txt by name, each `name=words`. Those of the test split are its own."""
    items = (WORDS[f"{split} layouts of {domain}"] for split in ("train", "test"))
    train, test = ({name: parse(text) for name, text in (item.split("=") for item in own)} for own in items)
    return {"train": train, "validation": train, "test": test}


Draw = Callable[..., Page]
"""Draws a page: `draw(rng, size, split)`; `size` is its longer side, px; `rng` is the only source of randomness.
That of `document` takes `fields` too, the names to draw from."""


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
