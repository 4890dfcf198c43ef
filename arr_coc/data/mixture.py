"""Mixtures of pages for the stages from scratch, and sketched pages without pixels.

Sketched pages have only the places of a document's characters, which is much faster than rendering. Widths are
approximate and random for every page, so that no font can be memorised.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
from PIL import Image

from .domains.browser import LAYOUTS, STACKED, render_browser
from .domains.density import render_dense_page, render_density
from .domains.document import Document, Entry, render_document
from .domains.invoice import render_overview, render_tile
from .domains.photo import photograph_document
from .glyphs import Glyph
from .splits import SPLITS, Split
from .values import FIELDS, distinct, sample_pairs, unheard_name

_UNHEARD = 12  # number of known and of unknown names from which a page with unknown fields draws
BROWSER_PAGES = 2000
"""Number of browser pages of a mixture; they are reused, since rendering one takes longer than a training step."""


class Renderer(Protocol):
    """Draws one kind of page."""

    def __call__(self, rng: np.random.Generator, *, size: int, split: Split) -> Document: ...


def _set_by_browser(rng: np.random.Generator, *, size: int, split: Split, stacked: bool = False) -> Document:
    """One of `BROWSER_PAGES` cached pages of a split; `stacked`: labels above their values."""
    document, picture = _browser_page(int(rng.integers(BROWSER_PAGES)), size, split, stacked)
    return replace(document, image=Image.open(io.BytesIO(picture)).convert("RGB"))


@lru_cache(maxsize=2 * BROWSER_PAGES)
def _browser_page(number: int, size: int, split: Split, stacked: bool) -> tuple[Document, bytes]:
    """A page without its picture, and the picture as PNG, a tenth of the size."""
    rng, layouts = np.random.default_rng((number, SPLITS.index(split))), STACKED if stacked else LAYOUTS
    document = render_browser(rng, size=size, split=split, layouts=layouts)
    stream = io.BytesIO()
    document.image.save(stream, "PNG", compress_level=1)
    return replace(document, image=Image.new("RGB", (1, 1))), stream.getvalue()


def _with_unheard(rng: np.random.Generator, *, size: int, split: Split) -> Document:
    """A page of lines of fields; half of the fields have names that `FIELDS` lacks."""
    unheard = distinct(lambda: unheard_name(rng, split), _UNHEARD)
    known = (FIELDS[place] for place in rng.permutation(len(FIELDS))[:_UNHEARD])
    return render_document(rng, size=size, split=split, fields=tuple(dict.fromkeys((*known, *unheard))))


KINDS: Mapping[str, Renderer] = {
    "document": render_document,
    "dense": render_dense_page,
    "browser": _set_by_browser,
    "stacked": partial(_set_by_browser, stacked=True),
    "density": render_density,
    "unheard": _with_unheard,
    "tile": render_tile,
    "overview": render_overview,
}
"""Kinds of pages by name: lines of fields; text without fields; lines of fields rendered by a browser; the same with
labels above values; few to many fields all over a page; lines of fields of which half have unknown names; a tile of an
A4 page; a whole A4 page in one view."""

UNASKED = ("dense", "overview")
"""Kinds without questions: one has no fields, the text of the other is mostly illegible."""


def check_asked(kinds: Collection[str]) -> None:
    """Raises ValueError if a kind of pages has no questions."""
    unasked = [kind for kind in UNASKED if kind in kinds]
    if unasked:
        expected = "pages with fields that can be read, which can be asked about"
        raise ValueError(f"kinds: expected {expected}; got {', '.join(unasked)}")


@dataclass(frozen=True)
class Mixture:
    """Kinds of pages and their weights.

    Attributes:
        weights: weights of names in `KINDS`.
        photo: share of photographed pages.

    Raises:
        ValueError: an unknown kind, weights that are negative or all 0, or a share outside 0..1.
    """

    weights: Mapping[str, float]
    photo: float = 0.0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.weights) - set(KINDS))
        if unknown:
            raise ValueError(f"pages: expected kinds among {', '.join(KINDS)}; got {', '.join(unknown)}")
        if not self.weights or min(self.weights.values()) < 0 or not sum(self.weights.values()) > 0:
            raise ValueError(f"pages: expected weights of at least 0, one of them above; got {dict(self.weights)}")
        if not 0 <= self.photo <= 1:
            raise ValueError(f"photo: expected a share from 0 to 1; got {self.photo}")

    def draw(self, rng: np.random.Generator, *, size: int, split: Split) -> Document:
        """One page of `size` px a side; see `render_document` for errors."""
        weights = np.array(list(self.weights.values()), float)
        kind = list(self.weights)[int(rng.choice(len(weights), p=weights / weights.sum()))]
        document = KINDS[kind](rng, size=size, split=split)
        return photograph_document(rng, document) if rng.random() < self.photo else document


Sketch = tuple[tuple[Entry, ...], tuple[Glyph, ...]]
"""Entries and glyphs of a page."""

_NARROW, _WIDE = frozenset("ijltfrI1.,:;'()-/ "), frozenset("mwMW@%")


def _widths(rng: np.random.Generator, text: str, unit: float, *, mono: bool) -> np.ndarray:
    """Advance widths in px."""
    factors = [1.0 if mono else 0.55 if char in _NARROW else 1.45 if char in _WIDE else 1.0 for char in text]
    return unit * np.array(factors) * (1.0 if mono else rng.uniform(0.92, 1.08, len(text)))


def _line(
    text: str, start: float, centre: float, height: float, widths: np.ndarray
) -> tuple[list[Glyph], tuple[float, float, float, float]]:
    ends = start + widths.cumsum()
    starts = ends - widths
    top, bottom = centre - height / 2, centre + height / 2
    glyphs = [
        Glyph(char, (float(x0), top, float(x1), bottom))
        for char, x0, x1 in zip(text, starts, ends, strict=True)
        if char != " "
    ]
    return glyphs, (start, top, float(ends[-1]), bottom)


def sketch_document(
    rng: np.random.Generator, *, size: int = 256, pairs: Sequence[tuple[str, str]] | None = None
) -> Sketch:
    """Entries and glyphs of a page of up to 14 lines, as from `render_document`.

    Args:
        rng: the only source of randomness.
        size: side of the page, px.
        pairs: (field, value) of each line; pairs that do not fit are omitted. None: random, of training words.
    """
    scale = size / 256
    count = int(rng.integers(4, 15)) if pairs is None else len(pairs)
    font = float(rng.uniform(11, 12 + 40 / count)) * scale
    pitch = min(float(rng.uniform(1.2, 2.2)) * font, (size - 8 * scale) / count)
    unit, mono = font * float(rng.uniform(0.45, 0.6)), bool(rng.random() < 0.25)
    top = float(rng.uniform(0, max(0.0, size - pitch * count)))
    left, align = float(rng.uniform(4, 40)) * scale, int(rng.integers(3))
    case = int(rng.choice(3, p=[0.45, 0.45, 0.1]))
    colon = ":" if rng.random() < 0.5 else ""
    column = left + unit * float(rng.uniform(9, 12))
    entries: list[Entry] = []
    glyphs: list[Glyph] = []
    drawn_pairs = sample_pairs(rng, count, split="train") if pairs is None else pairs
    for number, (field, value) in enumerate(drawn_pairs):
        label = (field, field.capitalize(), field.upper())[case]
        centre = top + pitch * (number + 0.5)
        label_widths = _widths(rng, label + colon, unit, mono=mono)
        value_widths = _widths(rng, value, unit, mono=mono)
        behind = left + float(label_widths.sum()) + unit
        right = size - left - float(value_widths.sum())
        start = max(behind, (behind, column, right)[align])
        if start + value_widths.sum() > size - 2:
            continue
        drawn, label_box = _line(label + colon, left, centre, 0.7 * font, label_widths)
        written, value_box = _line(value, start, centre, 0.7 * font, value_widths)
        entries.append(Entry(field, label, value, label_box, value_box))
        glyphs += drawn + written
    if len(entries) < 2:
        return sketch_document(rng, size=size, pairs=pairs)
    return tuple(entries), tuple(glyphs)
