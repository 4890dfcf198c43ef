"""A page of text, and questions about it with the boxes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from PIL import Image

from ..modeling.image_processing_arr_coc import Box
from ..modeling.printed_lines import UNKNOWN as UNKNOWN
from ..modeling.printed_lines import PrintedLine as Line

Difficulty = Literal["easy", "hard"]

ABSENT = "absent"  # the kind of questions about absent fields
_EASY_BOXES = 3  # that of the answer, and up to two of its labels, such as the names of its row and column
_EASY_LENGTH = 12  # characters


@dataclass(frozen=True)
class Question:
    """A question whose answer is on the page, or about an absent field."""

    text: str  # the question
    answers: tuple[str, ...]  # the right answers
    boxes: tuple[Box, ...]  # (x0, y0, x1, y1) around the answer, px; empty for absent fields
    label_boxes: tuple[Box, ...]  # boxes of the labels that lead to the answer, the one that the question names first
    kind: str  # kind of the answer, such as "price" or "cell"; "absent" for absent fields
    # Earlier questions about the page and their answers in the chat.
    history: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # not in digests, to keep old ones
    # Of how many answers the page leaves one as likely as the other without its marks; 0: not counted.
    choices: int = field(default=0, repr=False)

    @property
    def absent(self) -> bool:
        """Whether it asks for an absent field."""
        return self.kind == ABSENT

    def moved(self, move: Callable[[Box], Box]) -> Question:
        """The question with all boxes moved."""
        return replace(self, boxes=tuple(map(move, self.boxes)), label_boxes=tuple(map(move, self.label_boxes)))

    @property
    def turn(self) -> str:
        """Its position in the chat."""
        return "second" if self.history else "first"

    @property
    def difficulty(self) -> Difficulty:
        """Hard: a long answer, or more boxes than a value and its labels."""
        short = max(map(len, self.answers)) <= _EASY_LENGTH
        few = len(self.boxes) + len(self.label_boxes) <= _EASY_BOXES
        return "easy" if short and few else "hard"


@dataclass(frozen=True, eq=False)
class TextPage:
    """A page of any aspect ratio, its printed text, and questions about it."""

    image: Image.Image | None  # RGB; None if the page is laid out but not drawn
    size: tuple[int, int]  # (width, height), px
    lines: tuple[Line, ...]  # all text on the page, in reading order
    questions: tuple[Question, ...] = ()  # questions with answers, and the boxes of answers and labels
    kind: str = ""  # kind of page, such as "receipt"
    source: str = field(default="", repr=False)  # origin of the page: a generator and layout, or a package and file
    # What is drawn beside words, by its name in `modeling.marks.MARKS` ("": it may be taken for one), and its box, px;
    # known for generated pages only.
    marks: tuple[tuple[str, Box], ...] = field(default=(), repr=False)


def cells_at(x: float, ends: np.ndarray, top: float, bottom: float) -> np.ndarray:
    """Boxes of a line's characters, float32 [n, 4]: the first begins at x, each other where the one before it ends."""
    boxes = np.empty((len(ends), 4), np.float32)
    boxes[:, 2] = ends
    boxes[0, 0], boxes[1:, 0] = x, boxes[:-1, 2]
    boxes[:, 1], boxes[:, 3] = top, bottom
    return boxes


def plain(text: str) -> str:
    """The text in lower case, with single spaces."""
    return " ".join(text.casefold().split())


def told_apart(pages: Sequence[TextPage]) -> Iterator[tuple[int, Question]]:
    """The questions that only one of some pages can answer, with the number of the page. The words by which a question
    names its field are on no other page together, and its answer is on no other page."""
    texts = [plain(" ".join(line.text for line in page.lines)) for page in pages]
    for number, page in enumerate(pages):
        others = [text for other, text in enumerate(texts) if other != number]
        for question in page.questions:
            if question.absent or question.history or len(question.answers) != 1 or not question.label_boxes:
                continue
            words = {word.strip('?.,:"') for word in plain(question.text).split()}
            named = [word for word in words if len(word) > 3 and word in texts[number]]
            elsewhere = any(all(word in text for word in named) for text in others)
            if named and not elsewhere and not any(plain(question.answers[0]) in text for text in others):
                yield number, question
