"""Several readings of a page: it is encoded at other sizes too, and the answer that most of them give is taken.

What a text reader misreads at one size it often reads at another. Answers that are sure already are not asked again.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from .answers import Answer
from .image_encoding import ImageEncoding
from .image_loading import Source
from .joint_allocation import JointFetch

MARGINS = ((1.09, 0.6), (1.04, 0.3))
"""Of each further reading: how much larger its sheet is than the page, and how much of the margin is left and above."""

READINGS = 1 + len(MARGINS)
"""The most readings of a page."""

SURE = 0.8
"""Probability from which on an answer is not asked again."""


@dataclass
class Reading:
    """A further reading of an encoding's sources; it is encoded when the first question needs it.

    Attributes:
        encode: encodes the sources on their sheets.
        places: [P, 2] (x, y) of each source on its sheet, px.
    """

    encode: Callable[[], ImageEncoding]
    places: Tensor
    _encoding: ImageEncoding | None = field(default=None, repr=False)

    @property
    def encoding(self) -> ImageEncoding:
        """Of the sheets."""
        if self._encoding is None:
            self._encoding = self.encode()
        return self._encoding


def on_sheets(sources: Sequence[Source], reading: int) -> tuple[list[Source], Tensor]:
    """The sources on larger sheets, for a further reading (from 1), and [P, 2] the (x, y) of each on its sheet, px."""
    factor, share = MARGINS[reading - 1]
    sheets, places = [], []
    for source in sources:
        width, height = round(factor * source.width), round(factor * source.height)
        place = (round(share * (width - source.width)), round(share * (height - source.height)))
        sheets.append(replace(source, height=height, width=width, load=partial(_sheet, source, (width, height), place)))
        places.append(place)
    return sheets, torch.tensor(places)


def _sheet(source: Source, size: tuple[int, int], place: tuple[int, int]) -> Image.Image:
    """The source on a sheet of the colour of its upper left corner."""
    page = source.load()
    sheet = Image.new("RGB", size, page.getpixel((0, 0)))
    sheet.paste(page, place)
    return sheet


def surest(
    answers: Sequence[Answer], again: Sequence[Callable[[list[int]], Sequence[Answer]]], least: float = SURE
) -> list[Answer]:
    """The answer to each question that its readings agree on most.

    Args:
        answers: of the first reading.
        again: of each further reading, answers to the questions of these numbers.
        least: probability from which on a question is not asked again.
    """
    given = [[answer] for answer in answers]
    for ask in again:
        unsure = [number for number, own in enumerate(given) if all(answer.probability < least for answer in own)]
        if not unsure:
            break
        for number, answer in zip(unsure, ask(unsure), strict=True):
            given[number].append(answer)
    return [agreed(own) for own in given]


def agreed(answers: Sequence[Answer]) -> Answer:
    """Of the answers of several readings to a question the one whose text has the largest sum of probabilities.

    Its probability becomes the mean of its own and of that sum divided by the number of readings: an answer that
    other readings do not give is less sure. Case and white space of texts are ignored.
    """
    by_text = defaultdict[str, list[Answer]](list)
    for answer in answers:
        by_text[" ".join(answer.text.casefold().split())].append(answer)
    best = max(by_text.values(), key=lambda own: sum(answer.probability for answer in own))
    first, share = max(best, key=lambda answer: answer.probability), sum(answer.probability for answer in best)
    return replace(first, probability=(first.probability + share / len(answers)) / 2)


def on_page(answer: Answer, sources: Sequence[Source], places: Tensor, of_slots: Tensor) -> Answer:
    """An answer about sheets as one about the pages on them.

    Args:
        answer: about the sheets `on_sheets` made of `sources`, the pages of its prompt.
        places: [P, 2] of these pages on their sheets.
        of_slots: [I, 2] the same of the image slots of all prompts that were answered together.
    """
    moved = []
    for origin in answer.sources:
        source, (x, y) = sources[origin.source], places[origin.source].tolist()
        x0, y0, x1, y1 = origin.box
        box = (
            max(0.0, x0 - x), max(0.0, y0 - y), min(float(source.width), x1 - x), min(float(source.height), y1 - y),
        )  # fmt: skip
        moved.append(replace(origin, box=box))
    fetch: Any = answer.fetch
    if isinstance(fetch, JointFetch):
        views = fetch.seen.views
        windows = views.windows - of_slots[views.slots].repeat(1, 2)
        fetch = replace(fetch, seen=replace(fetch.seen, views=replace(views, windows=windows)))
    return replace(answer, sources=tuple(moved), fetch=fetch)
