"""Ruling lines of a page. All lengths are pixels of the final image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..modeling.image_processing_arr_coc import Box
from .rasterising import Ink


class Ruler:
    """Draws the ruling lines of a page in one hand: their width, and whether they are solid, dashed or dotted.

    `unit` is how much larger lengths are than on a page of 256 px; by default as much larger as the page.
    """

    def __init__(self, rng: np.random.Generator, ink: Ink, unit: float | None = None) -> None:
        self.ink = ink
        unit = ink.size / 256 if unit is None else unit
        self.width = max(1, round(unit * float(rng.choice([1, 1, 1, 2]))))
        pattern = int(rng.choice(3, p=[0.65, 0.2, 0.15]))
        dashes, dots = rng.uniform((2, 2), (6, 4)), (1.0, rng.uniform(1.5, 4))
        on, off = ((0.0, 0.0), dashes, dots)[pattern]  # lengths of ink and of paper; no paper for a solid line
        self.on, self.off = float(on) * unit, float(off) * unit
        self.level = int(rng.integers(120, 256))

    def horizontal(self, x0: float, x1: float, y: float) -> None:
        """A line from x0 to x1 at height y, px."""
        self._line(x0, x1, lambda a, b: (a, round(y), b, round(y) + self.width - 1))

    def vertical(self, y0: float, y1: float, x: float) -> None:
        """A line from y0 to y1 at x, px."""
        self._line(y0, y1, lambda a, b: (round(x), a, round(x) + self.width - 1, b))

    def dots(self, x0: float, x1: float, baseline: float, step: float) -> None:
        """A dotted leader on a baseline."""
        for x in np.arange(x0, x1, step).tolist():
            top = round(baseline) - self.width
            self.ink.rectangle(round(x), top, round(x) + self.width - 1, top + self.width - 1, self.level)

    def _line(self, start: float, end: float, corners: Callable[[int, int], Box]) -> None:
        if not self.off:
            self.ink.rectangle(*corners(round(start), round(end)), self.level)
            return
        for begin in np.arange(start, end, self.on + self.off).tolist():
            stop = min(end, begin + self.on - 1)
            self.ink.rectangle(*corners(round(begin), max(round(begin), round(stop))), self.level)
