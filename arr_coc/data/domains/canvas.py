"""A page to draw on: texts with their boxes, rectangles and ruling lines, in the colours and fonts of a split."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from PIL import Image

from ...modeling.image_processing_arr_coc import Box
from ..glyphs import Glyph, write
from ..rasterising import Colour, Ink, Pen, TextStyle, compose, luminance, sample_palette
from ..ruling import Ruler
from ..splits import Split
from ..styles import CONTRAST, MIN_FONT, Styles, check_page, sample_pen, sample_styles
from .page import Span

Role = Literal["label", "value", "heading"]


def text_unit(size: int) -> float:
    """How much larger text is on a page of `size` px than on one of 256.

    It grows with the square root: larger pages hold more text, not just larger text.
    """
    return size / 256 if size < 256 else (size / 256) ** 0.5


def least_pixels(size: int) -> float:
    """The smallest font size on a page of `size` px, in px."""
    return MIN_FONT * text_unit(size)


class Canvas:
    """Collects layers of ink: filled shapes at the bottom, then ruling lines, then text.

    Args:
        rng: the only source of randomness.
        size: side of the page, px.
        split: fonts, contrast and distortions.
        upright: letters are neither stretched nor slanted, as they must be where texts do not stand in rows.
        window: (x, y, side) of the square part of the page that is drawn, px; None: all of it. Positions and boxes are
            the page's.
    """

    def __init__(
        self, rng: np.random.Generator, size: int, split: Split, *, upright: bool = False,
        window: tuple[int, int, int] | None = None,
    ) -> None:  # fmt: skip
        check_page(size, split)
        self.rng, self.size, self.split = rng, size, split
        self.pen = sample_pen(rng, split)
        self.styles = sample_styles(rng, self.pen, size, split).scaled(least_pixels(size), 1.0)
        if upright:
            self.styles = Styles(*(replace(style, stretch=1.0, shear=0.0) for style in vars(self.styles).values()))
        self.palette = sample_palette(rng, contrast=CONTRAST[split])
        self.glyphs: list[Glyph] = []
        self._fills: list[tuple[Ink, Colour]] = []
        self._side = size if window is None else window[2]
        self._corner = None if window is None else window[:2]
        self._rules = self._layer()
        self.ruler = Ruler(rng, self._rules, text_unit(size))
        self._inks = {"label": self._layer(self.pen)}
        same = self.palette.value == self.palette.label
        self._inks["value"] = self._inks["label"] if same else self._layer(self.pen)

    def _layer(self, pen: Pen | None = None) -> Ink:
        return Ink(self._side, pen, self._corner)

    def write(self, text: str, position: tuple[float, float], style: TextStyle, role: Role = "value") -> Span:
        """Draw a text from `position` (x of its start, y of its baseline) in the colour of its role."""
        ink = self._inks["value" if role == "value" else "label"]
        boxes, glyphs = write(ink, [text], [position[0]], [position[1]], style)
        self.glyphs += glyphs
        return Span(text, boxes[0])

    def fill(self, boxes: list[Box], colour: Colour) -> None:
        """Fill rectangles below all text."""
        ink = self._layer()
        for box in boxes:
            ink.rectangle(*box, 255)
        self._fills.append((ink, colour))

    def tint(self, strength: float) -> Colour:
        """The paper's colour moved by a share of the way towards the labels' ink."""
        paper, ink = np.asarray(self.palette.paper), np.asarray(self.palette.label)
        red, green, blue = (paper + strength * (ink - paper)).tolist()
        return red, green, blue

    def shade(self, contrast: float) -> Colour:
        """Any colour that differs from the paper by at least `contrast` in luminance (0..255)."""
        while True:
            red, green, blue = self.rng.uniform(0, 255, 3).tolist()
            if abs(luminance((red, green, blue)) - luminance(self.palette.paper)) >= contrast:
                return red, green, blue

    def finish(self) -> Image.Image:
        """The page; nothing can be added afterwards."""
        layers = [*self._fills, (self._rules, self.palette.rule), (self._inks["label"], self.palette.label)]
        if self._inks["value"] is not self._inks["label"]:
            layers.append((self._inks["value"], self.palette.value))
        unit, part = text_unit(self.size), self._side / self.size
        return compose(self.rng, layers, self.palette.paper, split=self.split, unit=unit, part=part)

    @property
    def font(self) -> str:
        """Family and style of the page's fonts."""
        return " + ".join(dict.fromkeys((self.styles.value.face.name, self.styles.label.face.name)))
