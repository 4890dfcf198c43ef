"""Real pages as text: lines with boxes and questions, without images.

A file has one page a line, as JSON:

    {"group": "a company", "size": [1240, 1754], "lines": [["TOTAL: 9.00", 50, 372, 96, 390], ...], "questions": [
     {"label": "TOTAL", "concept": "total", "part": "", "answers": ["9.00"], "boxes": [[...]], "label_boxes": [[...]]}]}

Lines and boxes are x0, y0, x1, y1 in px of `size`; label, concept and part are those of `field_wordings.FieldAsker`, in
whose wordings a question is asked; a page without questions is asked for words behind others (`line_questions`). All
pages of a `group` (a company, a document) have one split.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ..modeling.image_processing_arr_coc import Box
from ..pages.line_questions import line_questions
from ..pages.page import Line, Question, TextPage, cells_at
from ..pages.question_writer import ABSENT, DETAIL, NOT_THERE
from ..pages.splits import Split
from .field_mining import has_type, normal
from .field_wordings import FieldAsker, concepts

HELD_OUT = 6  # one group in this number is for validation, another one for the test
ABSENT_SHARE, ABSENT_TRIES = 0.14, 6
"""Most questions for absent fields beside each question for one that is there; fields that are tried for each."""
ROUNDS = 4  # times that a page without questions is asked for words behind others
ALIKE = 0.8  # share of equal characters from which on a word may be another one, misread
_NEED_NO_LABEL = {"company", "address", "place", "company number"}
MARGIN, STRETCH = 0.12, 0.1
"""Most that is added to each side of a page in training, and most that its height is changed by, as shares."""


def split_of_group(group: str) -> Split:
    """The split of all pages of a group."""
    number = zlib.crc32(group.casefold().encode()) % HELD_OUT
    return "validation" if number == 0 else "test" if number == 1 else "train"


def line(text: str, x0: float, y0: float, x1: float, y1: float) -> Line:
    """A line whose characters share its width evenly."""
    return Line(text, cells_at(x0, np.linspace(x0, x1, len(text) + 1)[1:], y0, y1))


class RealPages(Sequence[TextPage]):
    """The pages of a split in a file, gzipped or not.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it has no page of the split, or a line that is no page.
    """

    def __init__(self, path: Path, split: Split) -> None:
        self.path, self.split = path, split
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as stream:
            self._pages = [text for text in stream if split_of_group(self._parsed(text)["group"]) == split]
        if not self._pages:
            raise ValueError(f"{path}: expected pages of the split {split!r}; got none")
        self._fields: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for text in self._pages:
            for field in self._parsed(text)["questions"]:
                self._fields[field["concept"]].append(field)

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            page = json.loads(text)
            return {name: page[name] for name in ("group", "size", "lines", "questions")}
        except (ValueError, KeyError, TypeError) as error:
            expected = 'a page a line: {"group": ..., "size": ..., "lines": ..., "questions": ...}'
            raise ValueError(f"{self.path}: expected {expected}; got {error!r}") from error

    def __len__(self) -> int:
        return len(self._pages)

    def content(self, number: int) -> dict[str, Any]:
        """A page as its file has it: group, size, lines and questions."""
        return self._parsed(self._pages[number])

    def __getitem__(self, number: int) -> TextPage:  # type: ignore[override]  # no slices
        """A page, whose wordings and absent fields depend on its number only."""
        return self.page(number, np.random.default_rng(number))

    def page(self, number: int, rng: np.random.Generator) -> TextPage:
        """A page with questions for its fields, and for some that other pages have and it has not."""
        page, asker = self.content(number), FieldAsker(Random(int(rng.integers(2**63))), self.split)
        questions = []
        for each in page["questions"]:
            boxes, labels = (tuple(tuple(box) for box in each[name]) for name in ("boxes", "label_boxes"))
            told = asker.question(each["label"], each["concept"], each["part"])
            questions.append(Question(told, tuple(each["answers"]), boxes, labels, DETAIL))
        for _ in range(ABSENT_TRIES * (1 + rng.poisson(ABSENT_SHARE * len(questions))) * bool(questions)):
            fields = list(self._fields.values())[int(rng.integers(len(self._fields)))]
            field = fields[int(rng.integers(len(fields)))]
            if sum(each.absent for each in questions) <= ABSENT_SHARE * len(questions) and self.lacks(page, field):
                told = asker.question(field["label"], field["concept"], field["part"])
                questions.append(Question(told, (NOT_THERE,), (), (), ABSENT))
        size = (int(page["size"][0]), int(page["size"][1]))
        lines = tuple(line(*each) for each in page["lines"] if each[0])
        if not page["questions"]:
            bare = TextPage(None, size, lines)
            asked = [each for _ in range(ROUNDS) for each in line_questions(asker.random, bare, self.split)]
            questions = [each for each in asked if each.kind == DETAIL]
        return TextPage(None, size, lines, tuple(questions), kind=self.path.name.split(".")[0], source=page["group"])

    @staticmethod
    def lacks(page: dict[str, Any], field: dict[str, Any]) -> bool:
        """Whether a page has no field of a concept: no label of it, misread or not, and no value of its form."""
        concept = concepts().get(field["concept"])
        if concept is None or not concept.labels or {concept.kind, concept.name} & _NEED_NO_LABEL:
            return False
        text = " ".join(each[0] for each in page["lines"])
        if concept.kind in ("date", "dates", "time", "phone") and has_type(concept.kind, text):
            return False
        labels = [normal(label).split() for label in concept.labels]
        lines = [normal(each[0]).split() for each in page["lines"]]
        return not any(
            all(get_close_matches(word, line, 1, ALIKE) for word in label) for label in labels for line in lines
        )


def moved(rng: np.random.Generator, page: TextPage) -> TextPage:
    """The page with other margins and another ratio of its sides, so that each time its text is elsewhere."""
    left, right, top, bottom = rng.uniform(0, MARGIN, 4)
    stretch = rng.uniform(1 - STRETCH, 1 + STRETCH)
    (wide, tall), scale = page.size, np.array([1, stretch] * 2, np.float32)
    shift = np.array([left * wide, top * tall * stretch] * 2, np.float32)

    def at(box: Box) -> Box:
        x0, y0, x1, y1 = (np.array(box) * scale + shift).tolist()
        return x0, y0, x1, y1

    return replace(
        page,
        size=(round(wide * (1 + left + right)), round(tall * stretch * (1 + top + bottom))),
        lines=tuple(Line(each.text, each.boxes * scale + shift) for each in page.lines),
        questions=tuple(each.moved(at) for each in page.questions),
    )
