"""Pages by number: the same (domain, seed, index, size, split) is the same page in every process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..splits import Split
from ..styles import check_page
from .document import draw_fields
from .page import DOMAINS, Page
from .variations import AS_DRAWN, Variations

_ENTROPY: dict[Split, tuple[int, ...]] = {"train": (1,), "validation": (2,), "test": ()}


def draw_page(
    domain: str,
    seed: int,
    index: int,
    size: int,
    split: Split,
    *,
    fields: Sequence[str] | None = None,
    sources: int | None = None,
    variations: Variations = AS_DRAWN,
) -> Page:
    """The page number `index` of a domain.

    Args:
        domain: a name of `DOMAINS`.
        seed: of all pages.
        index: at least 0.
        size: side of the page, px.
        split: fonts, layouts, wordings and words; pages of two splits never share random numbers.
        fields: of domain document alone, the names to draw from; None: its own.
        sources: pages, images or frames of a domain that draws several; None: drawn.
        variations: what is done with the page and its questions.

    Raises:
        ValueError: an unknown domain, fields for another than document, sources or photographs of a domain without, a
            negative number, a page under 64 px, or a bad split.
        FileNotFoundError: no font of the split is installed.
    """
    check_page(size, split)
    if seed < 0 or index < 0:
        raise ValueError(f"expected a seed and an index of at least 0; got seed={seed}, index={index}")
    entropy = (seed, index, *_ENTROPY[split])
    kind, rng = DOMAINS[domain], np.random.default_rng(entropy)
    if fields is not None and domain != "document":
        raise ValueError(f"fields: expected domain document; got {domain!r}")
    if variations.photo and not kind.square:
        raise ValueError(f"photo: expected a domain of single square pages; got {domain!r}")
    if sources is not None:
        page = _draw_sources(domain, sources, rng, size, split)
    else:
        page = kind.draw(rng, size, split) if fields is None else draw_fields(rng, size, split, fields)
    return variations.apply(page, entropy, split)


def _draw_sources(domain: str, count: int, rng: np.random.Generator, size: int, split: Split) -> Page:
    draw = DOMAINS[domain].draw_sources
    if draw is None:
        several = ", ".join(sorted(name for name, kind in DOMAINS.items() if kind.draw_sources is not None))
        raise ValueError(f"sources: expected a domain of several ({several}); got {domain!r}")
    if count < 2:
        raise ValueError(f"sources: expected at least 2; got {count}")
    return draw(rng, size, split, count)
