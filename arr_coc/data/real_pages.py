"""Real pages as text: lines with boxes and questions, without images.

A file has one page a line, as JSON:

    {"group": "a company", "size": [1240, 1754], "lines": [["TOTAL: 9.00", 50, 372, 96, 390], ...],
     "questions": [{"ask": ["What is the total?", ...], "answers": ["9.00"], "boxes": [[...]], "label_boxes": [[...]]}]}

Lines and boxes are x0, y0, x1, y1 in px of `size`. All pages of a `group` (a company, a document) have one split.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .domains.page import Line, Question, TextPage
from .splits import Split

HELD_OUT = 6
"""One group in this number is for validation, another one for the test."""
MARGIN, STRETCH = 0.12, 0.1
"""Most that is added to each side of a page in training, and most that its height is changed by, as shares."""


def split_of_group(group: str) -> Split:
    """The split of all pages of a group."""
    number = zlib.crc32(group.casefold().encode()) % HELD_OUT
    return "validation" if number == 0 else "test" if number == 1 else "train"


def line(text: str, x0: float, y0: float, x1: float, y1: float) -> Line:
    """A line whose characters share its width evenly."""
    edges = np.linspace(x0, x1, len(text) + 1, dtype=np.float32)
    tops, bottoms = (np.full(len(text), y, np.float32) for y in (y0, y1))
    return Line(text, np.stack([edges[:-1], tops, edges[1:], bottoms], 1))


class RealPages(Sequence[TextPage]):
    """The pages of a split in a file, gzipped or not.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it has no page of the split, or a line that is no page.
    """

    def __init__(self, path: Path, split: Split) -> None:
        self.path = path
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as stream:
            self._pages = [text for text in stream if split_of_group(self._parsed(text)["group"]) == split]
        if not self._pages:
            raise ValueError(f"{path}: expected pages of the split {split!r}; got none")

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            page = json.loads(text)
            return {name: page[name] for name in ("group", "size", "lines", "questions")}
        except (ValueError, KeyError, TypeError) as error:
            expected = 'a page a line: {"group": ..., "size": ..., "lines": ..., "questions": ...}'
            raise ValueError(f"{self.path}: expected {expected}; got {error!r}") from error

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, number: int) -> TextPage:  # type: ignore[override]  # no slices
        """A page, each question in its first wording."""
        return self.page(number)

    def page(self, number: int, rng: np.random.Generator | None = None) -> TextPage:
        """A page; with `rng` each question is in a wording that is drawn."""
        page = self._parsed(self._pages[number])
        questions = []
        for each in page["questions"]:
            wording = 0 if rng is None else int(rng.integers(len(each["ask"])))
            boxes, labels = (tuple(tuple(box) for box in each[name]) for name in ("boxes", "label_boxes"))
            kind = "detail" if boxes else "absent"
            questions.append(Question(each["ask"][wording], tuple(each["answers"]), boxes, labels, kind))
        size = (int(page["size"][0]), int(page["size"][1]))
        lines = tuple(line(*each) for each in page["lines"] if each[0])
        return TextPage(None, size, lines, tuple(questions), kind=self.path.name.split(".")[0], source=page["group"])


def moved(rng: np.random.Generator, page: TextPage) -> TextPage:
    """The page with other margins and another ratio of its sides, so that each time its text is elsewhere."""
    left, right, top, bottom = rng.uniform(0, MARGIN, 4)
    stretch = rng.uniform(1 - STRETCH, 1 + STRETCH)
    (wide, tall), scale = page.size, np.array([1, stretch] * 2, np.float32)
    shift = np.array([left * wide, top * tall * stretch] * 2, np.float32)

    def boxes(boxes: Sequence[Sequence[float]]) -> tuple[Any, ...]:
        return tuple(tuple(row) for row in (np.array(boxes).reshape(-1, 4) * scale + shift).tolist())

    return replace(
        page,
        size=(round(wide * (1 + left + right)), round(tall * stretch * (1 + top + bottom))),
        lines=tuple(Line(each.text, each.boxes * scale + shift) for each in page.lines),
        questions=tuple(
            replace(each, boxes=boxes(each.boxes), label_boxes=boxes(each.label_boxes)) for each in page.questions
        ),
    )
