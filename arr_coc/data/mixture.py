"""Mixtures of pages: what stages that train from scratch draw their pages from."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
from PIL import Image

from .domains.browser import render_browser
from .domains.dense import render_dense_page
from .domains.density import render_density
from .domains.document import Document, render_document
from .domains.html import LAYOUTS, STACKED
from .domains.photo import photograph_document
from .domains.tile import render_overview, render_tile
from .splits import SPLITS, Split
from .values import FIELDS, distinct, unheard_name

_UNHEARD = 12  # names of either sort that a page with unheard-of fields draws from
BROWSER_PAGES = 2000
"""Pages that a mixture has a browser set, which takes it longer than a training step: they come up again and again."""


class Renderer(Protocol):
    """What draws one kind of page."""

    def __call__(self, rng: np.random.Generator, *, size: int, split: Split) -> Document: ...


def _set_by_browser(rng: np.random.Generator, *, size: int, split: Split, stacked: bool = False) -> Document:
    """One of `BROWSER_PAGES` pages of a split, which are kept; `stacked` ones have labels above their values."""
    document, picture = _browser_page(int(rng.integers(BROWSER_PAGES)), size, split, stacked)
    return replace(document, image=Image.open(io.BytesIO(picture)).convert("RGB"))


@lru_cache(maxsize=2 * BROWSER_PAGES)
def _browser_page(number: int, size: int, split: Split, stacked: bool) -> tuple[Document, bytes]:
    """A page without its picture, and that as PNG, a tenth of the size."""
    rng, layouts = np.random.default_rng((number, SPLITS.index(split))), STACKED if stacked else LAYOUTS
    document = render_browser(rng, size=size, split=split, layouts=layouts)
    stream = io.BytesIO()
    document.image.save(stream, "PNG", compress_level=1)
    return replace(document, image=Image.new("RGB", (1, 1))), stream.getvalue()


def _with_unheard(rng: np.random.Generator, *, size: int, split: Split) -> Document:
    """Lines of fields, half of which have names that `FIELDS` lacks."""
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
"""Kinds of pages by name: lines of fields, text without fields, lines of fields set by a browser, the same with
labels above their values, fields all over a page, few to many, lines of fields half of which have names that no other
page has, and A4 pages as the model sees them: a tile of one, and all of one in a view."""

UNASKED = ("dense", "overview")
"""Kinds that nothing is asked about: the one has no fields, the print of the other can mostly not be read."""


def check_asked(kinds: Collection[str]) -> None:
    """Raises a ValueError if among kinds of pages there is one that nothing can be asked about."""
    unasked = [kind for kind in UNASKED if kind in kinds]
    if unasked:
        expected = "pages with fields that can be read, which can be asked about"
        raise ValueError(f"kinds: expected {expected}; got {', '.join(unasked)}")


@dataclass(frozen=True)
class Mixture:
    """Kinds of pages, and how often each is drawn.

    Attributes:
        weights: of the names in `KINDS`.
        photo: share of the pages that are photographed.

    Raises:
        ValueError: an unknown kind, weights that are negative or all 0, or a share that is none.
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
