"""Characters on a page: their boxes, their patches, and their text styles.

Boxes are (x0, y0, x1, y1) in pixels of the final image; grids are [grid, grid], row-major, (y, x).
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...modeling.image_processing_arr_coc import Box
from ..fonts import find_fonts, pick_face, sibling
from ..splits import Split, check_split
from .rasterising import MIN_STRETCH, Ink, Pen, TextStyle

CHARSET = string.digits + string.ascii_uppercase + string.ascii_lowercase + ".,:$/-#&'"
"""All characters of drawn pages except the space."""


@dataclass(frozen=True)
class Glyph:
    """A visible character; its box is the advance cell horizontally, and baseline to capital height vertically."""

    char: str
    box: Box


def write(
    ink: Ink, texts: list[str], xs: list[float], baselines: list[float], style: TextStyle
) -> tuple[list[Callable[[], Box]], list[Glyph]]:
    """Draws texts; returns functions for their ink boxes, valid when the layer is complete, and their glyphs."""
    boxes: list[Callable[[], Box]] = []
    glyphs: list[Glyph] = []
    for text, x, y in zip(texts, xs, baselines, strict=True):
        ends = ink.text(text, (x, y), style)
        boxes.append(partial(ink.box, (x, y), style, float(ends[-1])))
        rights = (x + ends).tolist()
        cells = zip(text, [x, *rights], rights, strict=False)
        glyphs += [Glyph(char, (left, y - style.cap_height, right, y)) for char, left, right in cells if char != " "]
    return boxes, glyphs


MIN_FONT = 11.0  # px at a 256 px page; smaller text is outside the domain
MAX_FONT = 26.0
CONTRAST: dict[Split, float] = {"train": 80.0, "validation": 110.0, "test": 110.0}
"""Least difference in luminance (0..255) between ink and paper."""


def text_unit(size: int) -> float:
    """The scale of text on a page of `size` px, relative to a page of 256 px.

    It grows with the square root, so that larger pages hold more text, not only larger text.
    """
    return size / 256 if size < 256 else (size / 256) ** 0.5


def check_page(size: int, split: str) -> None:
    """Refuses, by a ValueError, an unknown split, or a page too small for text."""
    check_split(split)
    if size < 64:
        raise ValueError(f"expected a size of at least 64 px, below which no text is readable; got {size}")


@dataclass(frozen=True)
class Styles:
    """The text styles of a page before their sizes are known."""

    label: TextStyle
    value: TextStyle
    heading: TextStyle

    def scaled(self, pixels: float, heading_ratio: float) -> Styles:
        """All three at a new size; the heading `heading_ratio` times larger."""
        return Styles(
            self.label.with_pixels(pixels),
            self.value.with_pixels(pixels),
            self.heading.with_pixels(pixels * heading_ratio),
        )


def sample_pen(rng: np.random.Generator, split: Split) -> Pen:
    """A random pen; training varies the weight of strokes, also unequally as in high-contrast faces."""
    supersample = 2 if rng.random() < 0.45 else 1
    if split != "train" or rng.random() < 0.5:
        return Pen(supersample)
    reach = (-0.55, 0.9) if supersample == 2 else (-0.25, 0.4)
    return Pen(supersample, (float(rng.uniform(*reach)), float(rng.uniform(*reach))))


def sample_style(rng: np.random.Generator, pen: Pen, size: int, split: Split) -> TextStyle:
    """A random text style; training distorts letters, so that shapes of unseen families are covered."""
    face, pixels = pick_face(rng, find_fonts(split)), MIN_FONT * size / 256
    if split != "train":
        return TextStyle(face, pixels, pen.supersample)
    narrow = face.family.endswith(("Condensed", "Narrow"))
    stretch = float(rng.uniform(0.95 if narrow else MIN_STRETCH, 1.2)) if rng.random() < 0.55 else 1.0
    lean = (-0.05, 0.1) if face.italic else (-0.05, 0.3)
    shear = float(rng.uniform(*lean)) if rng.random() < 0.4 else 0.0
    spacing = float(rng.uniform(-0.03, 0.15)) * pixels if rng.random() < 0.12 else 0.0
    return TextStyle(face, pixels, pen.supersample, stretch, shear, spacing)


def sample_styles(rng: np.random.Generator, pen: Pen, size: int, split: Split) -> Styles:
    """Styles of labels, values and the title: mostly one face, else siblings, rarely two families."""
    faces, base = find_fonts(split), sample_style(rng, pen, size, split)

    def vary(chance: float) -> TextStyle:
        if rng.random() >= chance:
            return base
        other_family = rng.random() < 0.25
        return replace(base, face=pick_face(rng, faces) if other_family else sibling(rng, base.face, faces))

    return Styles(label=vary(0.2), value=base, heading=vary(0.5))
