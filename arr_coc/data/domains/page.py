"""What a domain is, and what it draws: a page, and questions about it with the boxes that answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import inf
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from PIL import Image

from ...modeling.answers import THINKS, THOUGHT
from ...modeling.config_fields import Registry
from ...modeling.image_processing_arr_coc import Box
from ..glyphs import Glyph
from ..questions import Wordings
from ..splits import Split
from ..values import pick

Difficulty = Literal["easy", "hard"]

ABSENT = "absent"
"""The kind of questions about what a page does not show."""

CHARACTERS = {"under 120": 120, "120 to 299": 300, "300 or more": inf}
"""Kinds of pages by how many characters they show, and what those stay below."""

_EASY_BOXES = 3  # the answer's, and up to two of what leads to it, such as the names of its row and column
_EASY_LENGTH = 12  # characters


@dataclass(frozen=True)
class Span:
    """A text on the page; its ink box can be asked for once the page is drawn."""

    text: str
    locate: Callable[[], Box]

    @property
    def box(self) -> Box:
        """(x0, y0, x1, y1) of its ink, px."""
        return self.locate()


@dataclass(frozen=True)
class Question:
    """A question whose answer is on the page, or that asks for what is not there.

    Attributes:
        text: the question.
        answers: strings that count as right.
        boxes: (x0, y0, x1, y1) in px around the answer; none of what is not there.
        label_boxes: around what leads to it, what the question names first.
        kind: what is asked for, such as "price" or "cell"; "absent" for what is not there.
        hops: 2 where the question names neither the answer's label nor its row, but something that leads there.
        history: earlier questions about the page and their answers, which are before it in the chat.
        box_sources, label_sources: of each box the source that it lies on, from 0; empty where that is the first one.
        answer_sources: any of these sources answers it; none where it takes several, or there is but one.
        thinking: what a model that is trained on it writes before the answer: what has to be read for it.
    """

    text: str
    answers: tuple[str, ...]
    boxes: tuple[Box, ...]
    label_boxes: tuple[Box, ...]
    kind: str
    hops: int = 1
    history: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # the digests of old pages are of the rest
    box_sources: tuple[int, ...] = field(default=(), repr=False)
    label_sources: tuple[int, ...] = field(default=(), repr=False)
    answer_sources: tuple[int, ...] = field(default=(), repr=False)
    thinking: str = field(default="", repr=False)

    @property
    def written(self) -> str:
        """What such a model writes: the answer, and what it thought before, marked as `split_thinking` splits it."""
        return f"{THINKS}{self.thinking}{THOUGHT}{self.answers[0]}" if self.thinking else self.answers[0]

    @property
    def absent(self) -> bool:
        """Whether it asks for what the page does not show."""
        return self.kind == ABSENT

    @property
    def turn(self) -> str:
        """Where in a chat it is."""
        return "second" if self.history else "first"

    @property
    def difficulty(self) -> Difficulty:
        """Hard: two hops, a long answer, or more to look at than a value and what names it."""
        short = max(map(len, self.answers)) <= _EASY_LENGTH
        few = len(self.boxes) + len(self.label_boxes) <= _EASY_BOXES
        return "easy" if self.hops == 1 and short and few else "hard"


@dataclass(frozen=True)
class Page:
    """An RGB page, square in most domains, questions about it, the names of its layout and fonts, and its characters.

    `fields`: the names that it draws its fields from, some of which it does not show; none where it shows other things.
    `tags`: names and values that tell kinds of its pages apart.
    `text`: all that it says, a line per label and value; "" where that is not known.
    `others`: the sources behind `image` that the questions are about too: pages, images or frames. `glyphs` and
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
        """All that the questions are about, in order."""
        return (self.image, *self.others)

    @property
    def told(self) -> dict[str, str]:
        """The tags, and of pages whose characters are known "characters": which of `CHARACTERS` it shows."""
        shown = len(self.glyphs)
        counted = {"characters": next(name for name, below in CHARACTERS.items() if shown < below)} if shown else {}
        return {**counted, **dict(self.tags)}


Layout = TypeVar("Layout")


@dataclass(frozen=True)
class Layouts(Generic[Layout]):
    """The named layouts of a domain's pages: training and validation show other ones than the test split.

    Attributes:
        train, test: by name; no name is in both.
        weights: how often a layout is drawn against the others, where not once; empty: all alike.
    """

    train: Mapping[str, Layout]
    test: Mapping[str, Layout]
    weights: Mapping[str, float] = field(default_factory=dict)

    def of(self, split: Split) -> Mapping[str, Layout]:
        """The layouts of a split."""
        return self.test if split == "test" else self.train

    def only(self, chosen: Callable[[Layout], bool]) -> Layouts[Layout]:
        """Those of the layouts that are chosen."""
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
"""Draws a page: `draw(rng, size, split)`, size in px of its side; all randomness comes from `rng`."""

DrawSources = Callable[[np.random.Generator, int, Split, int], Page]
"""`Draw` of a page with so many sources."""


@dataclass(frozen=True)
class Domain:
    """A kind of page that can be drawn and asked about, such as receipts.

    Attributes:
        draw: makes one page with its questions.
        layouts: arrangements of its pages, by split.
        wordings: ways to put its questions, by kind of question.
        draw_sources: the same with a number of sources; None where a page is the only one.
        paged: whether the sources are pages of one document.
        square: whether a page is one square image.
    """

    draw: Draw
    layouts: Layouts[Any]
    wordings: Mapping[Any, Wordings]
    draw_sources: DrawSources | None = None
    paged: bool = False
    square: bool = True


DOMAINS: Registry[Domain] = Registry("domain")


def register(
    name: str, layouts: Layouts[Any], wordings: Mapping[Any, Wordings], *, square: bool = True
) -> Callable[[Draw], Draw]:
    """Decorator that makes a domain of the function that draws its pages.

    Raises:
        ValueError: the name is taken.
    """

    def add(draw: Draw) -> Draw:
        DOMAINS.register(name)(Domain(draw, layouts, wordings, square=square))
        return draw

    return add


def register_sources(
    name: str, layouts: Layouts[Any], wordings: Mapping[Any, Wordings], *, least: int, most: int, paged: bool = False
) -> Callable[[DrawSources], DrawSources]:
    """`register` for a function that draws `least` to `most` sources, or as many as are asked for.

    Raises:
        ValueError: the name is taken.
    """

    def add(draw: DrawSources) -> DrawSources:
        def draw_any(rng: np.random.Generator, size: int, split: Split) -> Page:
            return draw(rng, size, split, int(rng.integers(least, most + 1)))

        DOMAINS.register(name)(Domain(draw_any, layouts, wordings, draw, paged, square=False))
        return draw

    return add


@dataclass(frozen=True)
class QuestionWriter:
    """Puts questions about texts of a page in the wordings of a split."""

    wordings: Mapping[str, Wordings]
    rng: np.random.Generator
    split: Split

    def __call__(self, kind: str, answer: Span, path: Sequence[Span], hops: int = 1, /, **names: str) -> Question:
        """The question that `answer` answers and that the texts of `path` lead to; `names` go into its wording."""
        text = self.wordings[kind].draw(self.rng, self.split, **names)
        return Question(text, (answer.text,), (answer.box,), tuple(span.box for span in path), kind, hops)


def interleave(rng: np.random.Generator, questions: Iterable[Question]) -> tuple[Question, ...]:
    """All questions in a drawn order in which the kinds take turns, so that the first few differ in kind."""
    kinds: dict[str, list[Question]] = {}
    for question in questions:
        kinds.setdefault(question.kind, []).append(question)
    groups = list(kinds.values())
    shuffled = [[group[i] for i in rng.permutation(len(group))] for group in groups]
    turns = zip_longest(*(shuffled[i] for i in rng.permutation(len(groups))))
    return tuple(question for turn in turns for question in turn if question is not None)


UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Stands in a line for what nobody can name: its box says where there may be text of any kind."""


@dataclass(frozen=True, eq=False)
class Line:
    """Characters on one baseline that belong together: a line of a paragraph, a label, a cell of a table.

    Attributes:
        text: the characters in reading order, with single spaces between words; UNKNOWN for what cannot be named.
        boxes: float32 [len(text), 4], each character's advance cell horizontally, from its baseline up to the height of
            a capital letter. Spaces have boxes too.

    Raises:
        ValueError: boxes of another shape.
    """

    text: str
    boxes: np.ndarray

    def __post_init__(self) -> None:
        if self.boxes.shape != (len(self.text), 4):
            raise ValueError(f"boxes: expected shape {(len(self.text), 4)}; got {self.boxes.shape}")


@dataclass(frozen=True, eq=False)
class TextPage:
    """A page of any aspect ratio, the text that is printed on it, and questions about it.

    Attributes:
        image: RGB; None where a page was laid out and not drawn.
        size: (width, height), px.
        lines: all text on the page, in reading order.
        questions: each with its answers and the boxes of the answer and of what leads to it.
        kind: of the page, such as "receipt".
        source: where it comes from: a generator and layout, or a package and file.
    """

    image: Image.Image | None
    size: tuple[int, int]
    lines: tuple[Line, ...]
    questions: tuple[Question, ...] = ()
    kind: str = ""
    source: str = field(default="", repr=False)
