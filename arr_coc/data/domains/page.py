"""A domain, and the pages that it draws, with questions and the boxes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from PIL import Image

from ...modeling.config_fields import Registry
from ...modeling.image_processing_arr_coc import Box
from ...modeling.printed_lines import UNKNOWN as UNKNOWN
from ...modeling.printed_lines import PrintedLine as Line
from ..glyphs import Glyph
from ..questions import Wordings
from ..splits import Split
from ..values import pick

Difficulty = Literal["easy", "hard"]

ABSENT = "absent"
"""The kind of questions about absent fields."""

CHARACTERS = {"under 120": 120, "120 to 299": 300, "300 or more": inf}
"""Kinds of pages by number of characters, with exclusive upper limits."""

_EASY_BOXES = 3  # that of the answer, and up to two of its labels, such as the names of its row and column
_EASY_LENGTH = 12  # characters


@dataclass(frozen=True)
class Question:
    """A question whose answer is on the page, or about an absent field.

    Attributes:
        text: the question.
        answers: the right answers.
        boxes: (x0, y0, x1, y1) around the answer, px; empty for absent fields.
        label_boxes: boxes of the labels that lead to the answer, the one that the question names first.
        kind: kind of the answer, such as "price" or "cell"; "absent" for absent fields.
        hops: 2 if the question names neither the answer's label nor its row, but something that leads there.
        history: earlier questions about the page and their answers in the chat.
        box_sources, label_sources: the source of each box, from 0; empty: the first.
        answer_sources: the sources that each have the answer; empty if the answer needs several, or there is only one.
    """

    text: str
    answers: tuple[str, ...]
    boxes: tuple[Box, ...]
    label_boxes: tuple[Box, ...]
    kind: str
    hops: int = 1
    history: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # not in digests, to keep old ones
    box_sources: tuple[int, ...] = field(default=(), repr=False)
    label_sources: tuple[int, ...] = field(default=(), repr=False)
    answer_sources: tuple[int, ...] = field(default=(), repr=False)

    @property
    def absent(self) -> bool:
        """Whether it asks for an absent field."""
        return self.kind == ABSENT

    @property
    def turn(self) -> str:
        """Its position in the chat."""
        return "second" if self.history else "first"

    @property
    def difficulty(self) -> Difficulty:
        """Hard: two hops, a long answer, or more boxes than a value and its labels."""
        short = max(map(len, self.answers)) <= _EASY_LENGTH
        few = len(self.boxes) + len(self.label_boxes) <= _EASY_BOXES
        return "easy" if self.hops == 1 and short and few else "hard"


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


@dataclass(frozen=True, eq=False)
class TextPage:
    """A page of any aspect ratio, its printed text, and questions about it.

    Attributes:
        image: RGB; None if the page is laid out but not drawn.
        size: (width, height), px.
        lines: all text on the page, in reading order.
        questions: questions with answers, and the boxes of answers and labels.
        kind: kind of page, such as "receipt".
        source: origin of the page: a generator and layout, or a package and file.
    """

    image: Image.Image | None
    size: tuple[int, int]
    lines: tuple[Line, ...]
    questions: tuple[Question, ...] = ()
    kind: str = ""
    source: str = field(default="", repr=False)
