"""Text styles of a page: fonts, sizes, distortions, and the pen that all of it is drawn with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .fonts import find_fonts, pick_face, sibling
from .rasterising import MIN_STRETCH, Pen, TextStyle
from .splits import Split, check_split

MIN_FONT = 11.0  # px at a 256 px page; smaller text is outside the domain
MAX_FONT = 26.0
CONTRAST: dict[Split, float] = {"train": 80.0, "validation": 110.0, "test": 110.0}
"""Least difference in luminance (0..255) between ink and paper."""


def check_page(size: int, split: str) -> None:
    """Refuses pages that cannot be drawn.

    Raises:
        ValueError: an unknown split, or a page too small for text.
    """
    check_split(split)
    if size < 64:
        raise ValueError(f"expected a size of at least 64 px, below which no text is readable; got {size}")


@dataclass(frozen=True)
class Styles:
    """The text styles of a page before it is known how large they can be."""

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
    """How a page is rasterised; training varies the weight of strokes, also unequally as in faces of high contrast."""
    supersample = 2 if rng.random() < 0.45 else 1
    if split != "train" or rng.random() < 0.5:
        return Pen(supersample)
    reach = (-0.55, 0.9) if supersample == 2 else (-0.25, 0.4)
    return Pen(supersample, (float(rng.uniform(*reach)), float(rng.uniform(*reach))))


def sample_style(rng: np.random.Generator, pen: Pen, size: int, split: Split) -> TextStyle:
    """A text style; training distorts the letters so that unseen families fall within what was seen."""
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
