"""Which views of its sources a call encodes: the options, and the places of tiles, by the height of the print.

A source is an image, a page or a frame. Its overview is the whole source in one square; a tile is a window of it at a
finer scale. See docs/views.md.

Notation: G side of the fine grid, p side of a patch in px of the square. Windows are x0, y0, x1, y1 in px of the
source, ends exclusive.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from .configuration_arr_coc import COMPRESSION

Window = tuple[int, int, int, int]

TILING = ("auto", "asked", "all", "never")

SPREADS = ("auto", "joint", "each", "ranked")

VIEWS_AT_ONCE = 4
"""Squares that are encoded or scored at a time, which bounds the memory beside the features of all views."""


@dataclass(frozen=True)
class ViewOptions:
    """The views of a call's sources.

    Attributes:
        tiles: "auto": tiles for sources that shrink below `tile_scale` and whose text cannot be read in the overview;
            "all": the same, refused above `max_tiles`; "asked": of these, the tiles that a question asks for; a number:
            at most so many tiles per source, whatever its size; "never": overviews only.
        max_tiles: the most encoded tiles of one prompt; above it, "auto" becomes "asked" for all prompts of the call.
        asked_tiles: the most tiles that one question may ask for.
        asked_share: the least share of the overviews' relevance in each tile that a question asks for after its first.
        spread: how the sources of a prompt share its budget. "joint": one over all views; "each": each source gets its
            share; "ranked": the most relevant sources are asked one by one until one has an answer, together if none
            has; "auto": "ranked" for scorers that read text, else "joint".
        max_base_tokens: the most base tokens of all sources of a prompt; above it they are pooled; None: those of four
            images.
        tile_scale: px of the square per px of the source, below which a source gets tiles, and the finest scale of
            tiles; tiles are coarser if the text is large (`print_scale`).
        words: where the words of a page come from: a name in `word_sources.WORD_SOURCES`, the path of a file, a list of
            (text, (x0, y0, x1, y1)) in px of the source, or a list of these, one for each source.
        reread: whether words that the network reads with little confidence are read again from the original pixels, see
            `rereading`.
        dpi, max_pages, fps, max_frames: for documents, see `documents.Limits`.
    """

    tiles: str | int = "auto"
    max_tiles: int = 64
    asked_tiles: int = 4
    asked_share: float = 0.0
    spread: str = "auto"
    max_base_tokens: int | None = None
    tile_scale: float = 0.5
    words: Any = "auto"
    reread: bool = False
    dpi: float = 150.0
    max_pages: int = 200
    fps: float = 1.0
    max_frames: int = 32


VIEW_OPTIONS = frozenset(ViewOptions.__dataclass_fields__)

AS_SEEN = ViewOptions()


# ---- how high the print is ----------------------------------------------------------------------------------------

STRIPS = 24
"""Strips of columns that a page is divided into, as lines may be askew or side by side."""

FEWEST_LINES = 8
"""The least pieces of lines, one in each strip, on a page of text."""


FULLEST = 0.85
"""The largest share of rows with text over all strips; more is noise or a texture."""


def print_height(image: Image.Image, side: int) -> float | None:
    """Height of an image's lines of text, px, when its longer side is `side` px; None: no text was found.

    Text alternates between ink and paper many times along a line, and seldom between lines. In each strip, neighbouring
    rows with sharp changes of grey form a band; bands with a common height are lines.
    """
    scale = side / max(image.size)
    size = [max(1, round(length * scale)) for length in image.size]
    grey = np.asarray(image.convert("L").resize(size, Image.Resampling.BOX, reducing_gap=2.0), dtype=np.float32)
    low, high = np.percentile(grey, (1, 99))
    sharp = np.abs(np.diff(grey, axis=1, prepend=grey[:, :1])) > 0.25 * max(1.0, high - low)
    heights: list[int] = []
    filled = 0
    for strip in np.array_split(sharp, STRIPS, axis=1):
        inked = np.concatenate(([False], strip.sum(1) >= 2, [False]))
        filled += int(inked.sum())
        changes = np.flatnonzero(inked[1:] != inked[:-1])
        heights += (changes[1::2] - changes[::2]).tolist()
    lines = np.array([height for height in heights if 3 <= height <= side / 6])
    if len(lines) < FEWEST_LINES or filled > FULLEST * STRIPS * size[1]:
        return None
    middle = float(np.median(lines))
    alike = (lines > 0.6 * middle) & (lines < 1.6 * middle)
    return middle if alike.mean() >= 0.5 else None


def print_scale(image: Image.Image, side: int, finest: float, readable_px: float) -> float:
    """px of the square per px of an image at which its text is read; at most `finest`, the value without text.

    The function tries sizes from `side` px on, in steps of the root of 2, and takes the first at which it finds text.
    So the number of pixels of the image does not matter, as long as they show the text.

    Args:
        image: RGB.
        side: of the model's square, px.
        finest: px of the square per px of the image.
        readable_px: height of the smallest letters that the model reads, px of the square.

    Returns:
        0 if the text is readable in the overview.
    """
    longest, level = max(image.size), float(side)
    while level <= finest * longest:
        height = print_height(image, round(level))
        if height is not None and height >= LEGIBLE * readable_px:
            return 0.0 if level == side else min(finest, COMFORTABLE * readable_px * level / (height * longest))
        level *= math.sqrt(2)
    return finest


LEGIBLE, COMFORTABLE = 0.6, 1.25
"""Heights of lines relative to the smallest readable letters: enough in the overview, and the aim of tiles.

Most lines are measured without ascenders: pages in the training of arr-coc-tiny-2 have lines of 0.7 to 1.1.
"""


# ---- which views --------------------------------------------------------------------------------------------------


def plan_tiles(
    height: int, width: int, *, grid: int, patch_size: int, scale: float, most: int | None = None
) -> list[Window]:
    """Windows that cover a source of `height` x `width` px at `scale` px of the square per px, in reading order.

    A window is G patches of a whole number of px wide and high, or as long as the source along a shorter axis.
    Neighbours overlap by at least one base cell; windows are spread evenly from edge to edge.

    Args:
        height, width: of the source, px.
        grid: G.
        patch_size: p.
        scale: the least scale; a window is as wide as a whole number of px per patch allows.
        most: the most windows; windows become larger for it; None: no limit.

    Returns:
        No windows if the overview has that scale.
    """
    step = max(1, math.floor(patch_size / scale))  # px of the source per patch
    while True:
        side, cell = step * grid, COMPRESSION * step
        if side >= max(height, width):
            return []
        columns, rows = (_starts(length, side, cell) for length in (width, height))
        if most is None or len(columns) * len(rows) <= most:
            break
        step += 1
    return [(x, y, min(x + side, width), min(y + side, height)) for y in rows for x in columns]


def _starts(length: int, side: int, overlap: int) -> list[int]:
    """The starts of windows of `side` that cover `length`, evenly spread, overlapping by at least `overlap`."""
    if length <= side:
        return [0]
    steps = math.ceil((length - side) / (side - overlap))
    return [round(number * (length - side) / steps) for number in range(steps + 1)]
