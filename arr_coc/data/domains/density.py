"""Domain `density`: fields and values that fill a page to a wanted number of characters, all at one print size.

How much a page says is then all that differs from page to page: where does a fixed number of tokens begin to forget?
There is one layout, the same in every split, as another one would differ in more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..flowing import flow
from ..glyphs import write
from ..questions import DOCUMENT_WORDINGS
from ..rasterising import Ink, compose, sample_palette
from ..splits import Split
from ..styles import CONTRAST, Styles, check_page, sample_pen, sample_styles
from ..values import FIELDS, pick, sample_pairs
from .document import Document, Entry, ask_each, cased
from .page import Layouts, Page, register

PRINT = 10.0
"""Font size on every page, px."""
LINE = 1.16 * PRINT
"""Least line pitch, px: that of the tallest font in use."""
EDGE = 3.0
"""px kept free of text on every side."""
STEP = 50
"""Characters from one density to the next."""

_MOST_ON = 192
_MOST = 350
"""Characters that fit on a page of 192 px in nearly every font."""
_MOST_FIELDS = 400
"""Characters that all fields together nearly always have: each stands on a page once."""
INNER, OUTER = (0.3, 0.6), (1.0, 1.6)
"""Gaps, from and to, between a label and its value, and between one value and the next label, in font sizes."""


def densities(size: int) -> tuple[int, ...]:
    """Numbers of visible characters, from 50 on, that a page of `size` px is drawn with."""
    most = min(_MOST * size**2 // _MOST_ON**2, _MOST_FIELDS)
    return tuple(range(STEP, max(STEP, most) + 1, STEP))


def shown(texts: Sequence[str], characters: int) -> int:
    """How many of the texts, the first ones, come nearest to so many visible characters; at least one."""
    counts = np.cumsum([len(text.replace(" ", "")) for text in texts])
    return 1 + int(np.abs(counts - characters).argmin())


def room(size: int) -> tuple[float, int]:
    """Width of the lines of a page of `size` px, and how many there are."""
    return size - 2 * EDGE, int((size - 2 * EDGE) // LINE)


def render_density(
    rng: np.random.Generator, *, size: int = 256, split: Split = "train", characters: int | None = None
) -> Document:
    """A page of `field value` after `field value` with about so many visible characters.

    Fonts, fields and values are drawn as if every page were to be as full as can be, and then as many are shown as are
    wanted: so pages of different density differ in nothing else.

    Args:
        rng: the only source of randomness.
        size: side of the page, px; a larger page holds more, its print is no larger.
        split: of fonts and words, see `arr_coc.data.splits`.
        characters: of `densities`; None: drawn.

    Returns:
        The page, its entries in reading order.

    Raises:
        ValueError: a bad `split`, a page under 64 px, or a density that such a page is not drawn with.
        FileNotFoundError: no font of the split is installed.
    """
    check_page(size, split)
    levels = densities(size)
    if characters is not None and characters not in levels:
        raise ValueError(f"characters: expected one of {', '.join(map(str, levels))} on {size} px; got {characters}")
    wanted = levels[int(rng.integers(len(levels)))] if characters is None else characters
    pen = sample_pen(rng, split)
    while True:
        styles = sample_styles(rng, pen, size, split).scaled(PRINT, 1.0)
        pairs = sample_pairs(rng, len(FIELDS), split=split)
        colon = pick(rng, ("", ":"))
        labels = [label + colon for label in cased(rng, [field for field, _ in pairs])]
        values = [value for _, value in pairs]
        inner, outer = (PRINT * float(rng.uniform(*gaps)) for gaps in (INNER, OUTER))
        texts = [label + value for label, value in zip(labels, values, strict=True)]
        widths = [_width(styles, *both) + inner for both in zip(labels, values, strict=True)]
        (width, rows), full, count = room(size), shown(texts, levels[-1]), shown(texts, wanted)
        if flow(rng, widths[:full], width=width, rows=rows, gap=outer) is None:
            continue
        places = flow(rng, widths[:count], width=width, rows=rows, gap=outer)
        if places is not None:
            break
    palette = sample_palette(rng, contrast=CONTRAST[split])
    label_ink = Ink(size, pen)
    value_ink = label_ink if palette.value == palette.label else Ink(size, pen)
    pitch = (size - 2 * EDGE) / rows
    baselines = [EDGE + pitch * (row + 0.5) + styles.value.cap_height / 2 for row, _ in places]
    starts = [EDGE + x for _, x in places]
    ends = [x + styles.label.width(label) + inner for x, label in zip(starts, labels, strict=False)]
    label_boxes, glyphs = write(label_ink, labels[:count], starts, baselines, styles.label)
    value_boxes, value_glyphs = write(value_ink, values[:count], ends, baselines, styles.value)
    entries = tuple(
        Entry(field, label.removesuffix(colon), value, label_box(), value_box())
        for (field, value), label, label_box, value_box in zip(pairs, labels, label_boxes, value_boxes, strict=False)
    )
    inks = [(label_ink, palette.label), *([] if value_ink is label_ink else [(value_ink, palette.value)])]
    names = dict.fromkeys((styles.value.face.name, styles.label.face.name))
    image = compose(rng, inks, palette.paper, split=split)
    return Document(image, entries, (*glyphs, *value_glyphs), "flow", " + ".join(names))


def _width(styles: Styles, label: str, value: str) -> float:
    """Of an entry without the gap inside; a slant may reach a little further."""
    return styles.label.width(label) + styles.value.width(value) + 0.1 * PRINT


@register("density", Layouts({"flow": None}, {"flow": None}), {"field": DOCUMENT_WORDINGS})
def draw_density(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_density` with one question about each field; its tag `density` says how many characters."""
    levels = densities(size)
    characters = levels[int(rng.integers(len(levels)))]
    document = render_density(rng, size=size, split=split, characters=characters)
    return replace(ask_each(rng, document, split, FIELDS), tags=(("density", str(characters)),))
