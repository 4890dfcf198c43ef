"""Running back to the pixels: words that were read with little confidence are read again from the original image.

A page is read in a square, mostly smaller than the image itself. The lines of words below `SURE` are cropped from the
image at several scales and pasted below and beside each other on one sheet, which the stem reads at once. Where the
readings differ, they vote by their confidence.

Boxes and places are in px of the square unless stated otherwise.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .image_encoding import ImageEncoding
from .image_loading import Source
from .image_processing_arr_coc import Original, Placement
from .wordpieces import GivenWords, Word

SURE = 0.95
"""The confidence below which a word is read again."""
SCALES = (1.5, 1.3)
"""Sizes at which lines are read again, relative to the square."""
BESIDE, ABOVE = 24, 6
"""px of the page around a line that is read again."""
GAP = 8
"""px between lines on a sheet, at least; half of it has the colour of the line's paper."""
MOST = 0.6
"""px of the crops of a page, relative to its square; if there would be more, the surest words are not read again."""
_HALF_ROW = 8
"""px of a half row of a square's patches of 16 px."""
_CUT = 3
"""px from the border of a crop within which a character may be cut."""
_OVERLAP = 6
"""px by which words of two readings overlap at least if they show the same characters."""
_UNIT = 64
"""px of which the height of a sheet is a multiple, as each new shape has a cost."""


@dataclass
class Line:
    """Words in a row that are read again together: x0, y0, x1, y1, without the page around them."""

    box: tuple[float, float, float, float]

    @property
    def middle(self) -> float:
        return (self.box[1] + self.box[3]) / 2

    @property
    def height(self) -> float:
        return self.box[3] - self.box[1]

    def holds(self, word: Word) -> bool:
        """Whether the word is in this line of text."""
        return bool(word.text) and abs(word.row * _HALF_ROW - self.middle) < 0.4 * self.height + 2

    def takes(self, other: "Line") -> bool:
        """Whether one crop can hold both."""
        (_, y0, x1, y1), (left, top, _, bottom) = self.box, other.box
        least, most = sorted((self.height, other.height))
        return (
            left - x1 < 2 * BESIDE
            and abs(self.middle - other.middle) < 0.35 * most
            and max(y1, bottom) - min(y0, top) < 1.6 * least + _HALF_ROW
        )


class Crop(NamedTuple):
    """A part of the page on a sheet: the number of its line, its box, its scale, and its x, y, width and height there,
    px."""

    line: int
    box: tuple[int, int, int, int]
    scale: float
    x: int
    y: int
    width: int
    height: int


def reread(
    views: Sequence[GivenWords | None],
    stem: Callable[[Tensor], Tensor],
    read: Callable[[Tensor], list[list[Word]]],
    like: Tensor,
    pages: list[list[Word]],
) -> list[list[Word]]:
    """The words of pages, those of little confidence read again.

    Args:
        views: the `Original` of each page, if it has one.
        stem: the layers that see a sheet [1, 3, H, W], like the tensor `like`.
        read: reads what they give.
        pages: the words of each page as they were read in the square.

    Returns:
        The same words, in the same order, where there is nothing to read again; else read words are replaced in place.
    """
    # 1. Sheets with the unsure lines of each page.
    asked: list[tuple[int, Original, list[Line], list[Crop]]] = []
    for number, (view, words) in enumerate(zip(views, pages, strict=True)):
        original = None if view is None else view.original
        if original is not None and confidence(words) >= original.least:
            lines = unsure_lines(words)
            if crops := packed(lines, original.placement, original.side):
                asked.append((number, original, lines, crops))
    sheets = [sheet_of(crops, original.image, original.placement, original.side) for _, original, _, crops in asked]
    # 2. The layers that see them, one sheet at a time, as their heights differ.
    pixels, states, found = list[np.ndarray](), list[Tensor](), list[list[Word]]()
    for (_, original, _, _), sheet in zip(asked, sheets, strict=True):
        pixels.append(original.as_pixels(sheet))
    for each in pixels:
        states.append(stem(torch.from_numpy(each)[None].to(like)))
    for state in states:
        found += read(state)
    # 3. For each word the reading with the most votes.
    better = list(pages)
    for (number, original, lines, crops), words in zip(asked, found, strict=True):
        better[number] = replaced(pages[number], original.placement, lines, crops, words)
    return better


def replaced(
    words: list[Word], placement: Placement, lines: Sequence[Line], crops: Sequence[Crop], found: Sequence[Word]
) -> list[Word]:
    """The words of a page, those of `lines` replaced by what was `found` on a sheet of `crops` if it has the votes."""
    readings = [[[] for _ in SCALES] for _ in lines]  # type: list[list[list[Word]]]
    for word, crop in on_page(found, crops):
        if lines[crop.line].holds(word):
            readings[crop.line][SCALES.index(crop.scale)].append(word)
    better: dict[int, list[Word]] = {}  # by the id of the word that they replace
    for number, box in {crop.line: crop.box for crop in crops}.items():
        line = lines[number]
        first = [word for word in words if id(word) not in better and line.holds(word) and reaches(word, box)]
        for old, new in voted([first, *readings[number]], box, placement):
            better |= {id(word): [] for word in old} | {id(old[0]): new}
    return [each for word in words for each in better.get(id(word), [word])]


# ---- which lines, and where they are on a sheet ----------------------------------------------------------------------


def extent(word: Word) -> tuple[float, float]:
    """Where a word begins and ends, x."""
    at = word.columns or word.unread
    count = len(word.columns)
    half = (at[-1] - at[0]) / (count - 1) / 2 if count > 1 else (word.span[1] - word.span[0]) * _HALF_ROW / 4
    return at[0] - max(3.0, half), at[-1] + max(3.0, half)


def unsure_lines(words: Iterable[Word]) -> list[Line]:
    """The lines of words below `SURE`, those with the least confidence first."""
    unsure = [word for word in words if word.text and word.confidence < SURE]
    lines: list[tuple[Line, float]] = []
    for word in sorted(unsure, key=extent):
        (x0, x1), (y0, y1) = extent(word), (row * _HALF_ROW for row in word.span)
        one = Line((x0, y0, x1, y1))
        for number, (line, confidence) in enumerate(lines):
            if line.takes(one):
                a0, b0, a1, b1 = line.box
                both = Line((min(a0, x0), min(b0, y0), max(a1, x1), max(b1, y1)))
                lines[number] = both, min(confidence, word.confidence)
                break
        else:
            lines.append((one, word.confidence))
    return [line for line, _ in sorted(lines, key=lambda each: each[1])]


def packed(lines: Sequence[Line], placement: Placement, side: int) -> list[Crop]:
    """Crops of as many lines as fit on a sheet of `side` px, at as many `SCALES`: the highest first, in rows."""
    (top, left), (height, width) = placement.offset, placement.size
    room, crops = MOST * side * side, []
    for scale in SCALES:
        for number, line in enumerate(lines):
            x0, y0, x1, y1 = line.box
            x0, y0 = max(left, int(x0 - BESIDE)), max(top, int(y0 - ABOVE))
            x1, y1 = min(left + width, int(x1 + BESIDE) + 1), min(top + height, int(y1 + ABOVE) + 1)
            shrunk = min(scale, (side - 2 * GAP) / max(1, x1 - x0))
            size = round((x1 - x0) * shrunk), round((y1 - y0) * shrunk)
            room -= (size[0] + GAP) * (size[1] + GAP)
            if room >= 0 and min(size) >= _HALF_ROW:
                crops.append(Crop(number, (x0, y0, x1, y1), scale, 0, 0, *size))
    rows: list[list[int]] = []  # the free x, and the y of each
    placed, end = [], GAP
    for crop in sorted(crops, key=lambda crop: -crop.height):
        row = next((row for row in rows if row[0] + crop.width + GAP <= side), None)
        if row is None:
            row = [GAP, end]
            rows.append(row)
            end += crop.height + GAP
        placed.append(crop._replace(x=row[0], y=row[1]))
        row[0] += crop.width + GAP
    return placed


def sheet_of(crops: Sequence[Crop], image: Image.Image, placement: Placement, side: int) -> np.ndarray:
    """The sheet, uint8 [H, W, 3], white between crops; around each, half of `GAP` has the colour of its paper."""
    (top, left), (height, width) = placement.offset, placement.size
    across, down = image.width / width, image.height / height  # px of the image
    end = max(crop.y + crop.height for crop in crops) + GAP
    sheet = np.full((-(-end // _UNIT) * _UNIT, side, 3), 255, np.uint8)
    for crop in crops:
        x0, y0, x1, y1 = crop.box
        box = ((x0 - left) * across, (y0 - top) * down, (x1 - left) * across, (y1 - top) * down)
        box = (box[0], box[1], min(box[2], image.width), min(box[3], image.height))
        size = (crop.width, crop.height)
        pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=3.0))
        paper = np.median(np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])), 0)
        x, y, half = crop.x, crop.y, GAP // 2
        sheet[y - half : y + crop.height + half, x - half : x + crop.width + half] = paper
        sheet[y : y + crop.height, x : x + crop.width] = pixels
    return sheet


def on_page(words: Iterable[Word], crops: Sequence[Crop]) -> list[tuple[Word, Crop]]:
    """Words of a sheet at their places on the page, with the crop that each is in."""
    found = []
    for word in words:
        at = word.columns or word.unread
        x, y = (at[0] + at[-1]) / 2, word.row * _HALF_ROW
        for crop in crops:
            if crop.x <= x < crop.x + crop.width and crop.y <= y < crop.y + crop.height:
                found.append((_moved(word, crop), crop))
                break
    return found


def _moved(word: Word, crop: Crop) -> Word:
    across, down = (crop.box[2] - crop.box[0]) / crop.width, (crop.box[3] - crop.box[1]) / crop.height

    def rows(row: float) -> float:
        return (crop.box[1] + (row * _HALF_ROW - crop.y) * down) / _HALF_ROW

    columns, unread = (
        tuple(crop.box[0] + (x - crop.x) * across for x in places) for places in (word.columns, word.unread)
    )
    span = rows(word.span[0]), rows(word.span[1])
    return replace(word, columns=columns, unread=unread, row=rows(word.row), span=span)


# ---- which reading ---------------------------------------------------------------------------------------------------


def reaches(word: Word, box: tuple[int, int, int, int]) -> bool:
    """Whether a part of the word is between the left and the right side of the box."""
    start, end = extent(word)
    return end > box[0] and start < box[2]


def voted(
    readings: Sequence[Sequence[Word]], box: tuple[int, int, int, int], placement: Placement
) -> Iterator[tuple[list[Word], list[Word]]]:
    """Words of the first reading of a line, and what the readings have in their place by majority.

    Words of several readings that overlap are about the same characters. Of these, the text with the largest sum of
    confidences is taken, where its confidence is largest. A reading whose words touch the border of the crop `box` has
    no vote.
    """
    left, right = placement.offset[1], placement.offset[1] + placement.size[1]
    x0, x1 = box[0] + _CUT if box[0] > left else -np.inf, box[2] - _CUT if box[2] < right else np.inf
    for first, *again in _overlapping(readings):
        if not any(word.confidence < SURE for word in first):
            continue
        votes: defaultdict[str, list[tuple[float, list[Word]]]] = defaultdict(list)
        whole = [own for own in again if own and all(x0 <= a and b <= x1 for a, b in map(extent, own))]
        for own in (first, *whole):
            votes[" ".join(word.text for word in own)].append((confidence(own), own))
        _, best = max(max(votes.values(), key=lambda own: sum(each for each, _ in own)), key=lambda each: each[0])
        if best is not first:
            yield first, best


def _overlapping(readings: Sequence[Sequence[Word]]) -> list[list[list[Word]]]:
    """Groups of words that overlap, from left to right: for each group the words of each reading."""
    groups: list[list[list[Word]]] = []
    end = -np.inf
    every = [(*extent(word), number, word) for number, own in enumerate(readings) for word in own]
    for x0, x1, number, word in sorted(every, key=lambda each: each[:3]):
        if x0 + _OVERLAP / 2 >= end:
            groups.append([[] for _ in readings])
        groups[-1][number].append(word)
        end = max(end, x1 - _OVERLAP / 2)
    return groups


def confidence(words: Sequence[Word]) -> float:
    """Mean over characters; 0 for those without a class."""
    count = sum(len(word.text) + len(word.unread) for word in words)
    return sum(word.confidence * len(word.text) for word in words) / max(1, count)


# ---- several readings ---------------------------------------------------------------------------------------------
#
# What a text reader misreads at one size it often reads at another. So a page is encoded at other sizes too, and the
# answers vote (`answers.surest`).

MARGINS = ((1.09, 0.6), (1.04, 0.3))
"""Of each further reading: how much larger its sheet is than the page, and how much of the margin is left and above."""

READINGS = 1 + len(MARGINS)
"""The most readings of a page."""


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
        sheets.append(
            replace(source, height=height, width=width, load=partial(_sheet, source, (width, height), place), turned=0)
        )
        places.append(place)
    return sheets, torch.tensor(places)


def _sheet(source: Source, size: tuple[int, int], place: tuple[int, int]) -> Image.Image:
    """The source on a sheet of the colour of its edges, their median."""
    page = source.load()
    pixels = np.asarray(page)
    edges = np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
    sheet = Image.new("RGB", size, tuple(np.median(edges, 0).astype(int).tolist()))
    sheet.paste(page, place)
    return sheet
