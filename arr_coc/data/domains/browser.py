"""Domain `browser`: pages of fields that a browser has set and rasterised, from HTML of our own.

Domain `stacked` has those of them whose labels stand above their values: there what answers is not what comes next.

Letters, their distances and their edges are those of a screenshot. It needs Chromium, on whose version it depends too
what the pages of a seed look like.
"""

from __future__ import annotations

import numpy as np

from ..browser import PlacedText, shared_browser
from ..glyphs import Glyph
from ..questions import DOCUMENT_WORDINGS
from ..rasterising import degrade
from ..splits import Split
from ..styles import MAX_FONT, MIN_FONT, check_page
from ..values import FIELDS, made_up_word, sample_pairs
from .canvas import text_unit
from .document import Document, Entry, ask_each
from .html import LAYOUTS, STACKED, HtmlLayout, cased, make_html, sample_html_style
from .page import Layouts, Page, register

_MIN_ENTRIES = 4
_MAX_ENTRIES = 14  # on a page of 256 px
_TRIALS = 200  # pages that do not fit, before something must be wrong
_DEGRADED = 0.5  # share of training pages with noise, bent letters and so on; the others are as the browser gives them


def render_browser(
    rng: np.random.Generator, *, size: int = 256, split: Split = "train", layouts: Layouts[HtmlLayout] = LAYOUTS
) -> Document:
    """A page of 4 and more fields, each with its value, as a browser shows it.

    Args:
        rng: the only source of randomness.
        size: side of the square page, px.
        split: which fonts, words and layouts it shows.
        layouts: to draw one from.

    Raises:
        FileNotFoundError: no browser, or no font of the split, is installed.
        RuntimeError: the browser does not start, stops answering, or cannot set any page.
    """
    check_page(size, split)
    browser, unit = shared_browser(), text_unit(size)
    for _ in range(_TRIALS):
        layout_name, layout = layouts.draw(rng, split)
        style = sample_html_style(rng, split)
        most = min(len(FIELDS), round(_MAX_ENTRIES * max(1.0, size / 256 / unit)))
        pairs = sample_pairs(rng, int(rng.integers(_MIN_ENTRIES, most + 1)), split=split)
        fields, values = [field for field, _ in pairs], [value for _, value in pairs]
        labels = cased(rng, fields, upper=style.upper)
        title = " ".join(made_up_word(rng) for _ in range(int(rng.integers(3))))
        least = unit * MIN_FONT / style.label_size
        pixels = float(rng.uniform(least, unit * MAX_FONT))
        html = make_html(layout, style, list(zip(labels, values, strict=True)), title=title, pixels=pixels)
        texts = browser.set_page(html, size, least)
        if texts is not None:
            break
    else:
        raise RuntimeError(f"browser: expected a page that it can set; got none in {_TRIALS} trials")
    image = browser.screenshot()
    if split == "train" and rng.random() < _DEGRADED:
        image = degrade(rng, image, split=split, unit=unit)
    placed = texts[1:] if title else texts
    entries = tuple(
        Entry(field, label.text.removesuffix(":"), value.text, label.ink, value.ink)
        for field, label, value in zip(fields, placed[::2], placed[1::2], strict=True)
    )
    glyphs = tuple(glyph for text in texts for glyph in _glyphs(text))
    return Document(image, entries, glyphs, layout_name, style.fonts)


@register("browser", LAYOUTS, {"field": DOCUMENT_WORDINGS})
def draw_browser(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_browser` with one question about each field."""
    return ask_each(rng, render_browser(rng, size=size, split=split), split, FIELDS)


@register("stacked", STACKED, {"field": DOCUMENT_WORDINGS})
def draw_stacked(rng: np.random.Generator, size: int, split: Split) -> Page:
    """The same, labels above their values."""
    return ask_each(rng, render_browser(rng, size=size, split=split, layouts=STACKED), split, FIELDS)


def _glyphs(text: PlacedText) -> list[Glyph]:
    top, bottom = text.capitals
    return [
        Glyph(char, (left, top, right, bottom))
        for char, (left, right) in zip(text.text, text.edges, strict=True)
        if char != " "
    ]
