"""Domain `density`: fields and values that fill a page; with more characters, print is smaller.

Pages differ only in the density of their text, to measure how many characters a fixed number of tokens can hold. So all
splits have the same single layout. Dense pages are full of text lines and have no questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from ..glyphs import (
    ALPHANUMERIC,
    CONTRAST,
    MAX_FONT,
    MIN_FONT,
    PUNCTUATION,
    Glyph,
    Styles,
    check_page,
    flow,
    glyphs_of,
    sample_pen,
    sample_style,
    sample_styles,
    write,
)
from ..questions import DOCUMENT_WORDINGS
from ..rasterising import Ink, compose, sample_palette
from ..splits import Split, part
from ..values import CITIES, FIELDS, FIRST_NAMES, LAST_NAMES, made_up_word, pick, sample_pairs, sample_value
from .document import Document, Entry, ask_each, cased
from .page import Layouts, Page, register

SMALLEST, LARGEST = 10.0, 20.0
"""Font sizes of the densest and of the sparsest pages, px."""
_LINE = 1.16
"""Least line pitch in font sizes, that of the tallest font."""
EDGE = 3.0
"""px kept free of text on every side."""
STEP = 50
"""Step between densities, characters."""

_MOST_ON = 192
_MOST = 350
"""Characters that fit on a page of 192 px in nearly every font."""
_MOST_FIELDS = 400
"""Characters that all fields together nearly always have, as each field is on a page only once."""
_FILLED = 0.93
"""Factor of the font size that a page would have room for if lines broke anywhere."""
INNER, OUTER = (0.3, 0.6), (1.0, 1.6)
"""Ranges of the gap between label and value, and between value and next label, in font sizes."""


def densities(size: int) -> tuple[int, ...]:
    """The possible numbers of visible characters on a page of `size` px, from 50 on."""
    most = min(_MOST * size**2 // _MOST_ON**2, _MOST_FIELDS)
    return tuple(range(STEP, max(STEP, most) + 1, STEP))


def shown(texts: Sequence[str], characters: int) -> int:
    """The number of first texts whose visible characters are closest to `characters`; at least one."""
    counts = np.cumsum([_visible(text) for text in texts])
    return 1 + int(np.abs(counts - characters).argmin())


def print_size(size: int, characters: int) -> float:
    """Font size, px, at which `characters` fill a page of `size` px."""
    return min(LARGEST, max(SMALLEST, _FILLED * SMALLEST * sqrt(densities(size)[-1] / characters)))


def room(size: int, font: float) -> tuple[float, int]:
    """Width and number of the lines on a page of `size` px, in print of `font` px."""
    return size - 2 * EDGE, int((size - 2 * EDGE) // (_LINE * font))


def fits(run: float, size: int, font: float) -> bool:
    """Whether an entry that is `run` px wide in print of `font` px fits on a line in the largest print."""
    return run * LARGEST <= room(size, font)[0] * font


def placed(
    rng: np.random.Generator, texts: Sequence[str], runs: Sequence[float], *, size: int, wanted: int, gap: float
) -> list[tuple[int, float]] | None:
    """Row and x of the first entries, with about `wanted` visible characters; None if they do not fit.

    Also None if the entries of the densest page do not fit in its print, so that redraws do not depend on `wanted`.

    Args:
        rng: the only source of randomness.
        texts: texts of the entries.
        runs: their widths, px, in the print of a page of `wanted` characters.
        size: side of the page, px.
        wanted: number of visible characters.
        gap: least distance of two entries on a line, px.
    """
    font, most = print_size(size, wanted), densities(size)[-1]
    if sum(_visible(text) for text in texts) < most:
        return None
    (width, rows), smaller = room(size, SMALLEST), SMALLEST / font
    densest = [run * smaller for run in runs[: shown(texts, most)]]
    if flow(rng, densest, width=width, rows=rows, gap=gap * smaller) is None:
        return None
    width, rows = room(size, font)
    return flow(rng, runs[: shown(texts, wanted)], width=width, rows=rows, gap=gap)


def render_density(
    rng: np.random.Generator, *, size: int = 256, split: Split = "train", characters: int | None = None
) -> Document:
    """A page of running `field value` entries with about `characters` visible characters.

    Fonts, fields and values are drawn for the densest page and for lines of the largest print; then the wanted number
    is shown. So pages of different density differ in nothing else.

    Args:
        rng: the only source of randomness.
        size: side of the page, px; a larger page holds more text, not larger print.
        split: split of fonts and words, see `arr_coc.data.splits`.
        characters: one of `densities`; None: random.

    Returns:
        The page, with entries in reading order.

    Raises:
        ValueError: a bad `split`, a page under 64 px, or a density that is not among `densities`.
        FileNotFoundError: no font of the split is installed.
    """
    check_page(size, split)
    levels = densities(size)
    if characters is not None and characters not in levels:
        raise ValueError(f"characters: expected one of {', '.join(map(str, levels))} on {size} px; got {characters}")
    wanted = levels[int(rng.integers(len(levels)))] if characters is None else characters
    font = print_size(size, wanted)
    pen = sample_pen(rng, split)
    while True:
        styles = sample_styles(rng, pen, size, split).scaled(font, 1.0)
        pairs = sample_pairs(rng, len(FIELDS), split=split)
        colon = pick(rng, ("", ":"))
        named = cased(rng, [field for field, _ in pairs])
        inner, outer = (font * float(rng.uniform(*gaps)) for gaps in (INNER, OUTER))
        said = [
            (field, label, value, run)
            for (field, value), label in zip(pairs, named, strict=True)
            if fits(run := _width(styles, label + colon, value, font) + inner, size, font)
        ]
        texts, runs = [label + colon + value for _, label, value, _ in said], [run for *_, run in said]
        places = placed(rng, texts, runs, size=size, wanted=wanted, gap=outer)
        if places is not None:
            break
    labels, values = [label + colon for _, label, _, _ in said], [value for _, _, value, _ in said]
    palette = sample_palette(rng, contrast=CONTRAST[split])
    label_ink = Ink(size, pen)
    value_ink = label_ink if palette.value == palette.label else Ink(size, pen)
    pitch = (size - 2 * EDGE) / room(size, font)[1]
    baselines = [EDGE + pitch * (row + 0.5) + styles.value.cap_height / 2 for row, _ in places]
    starts = [EDGE + x for _, x in places]
    ends = [x + styles.label.width(label) + inner for x, label in zip(starts, labels, strict=False)]
    label_boxes, glyphs = write(label_ink, labels[: len(places)], starts, baselines, styles.label)
    value_boxes, value_glyphs = write(value_ink, values[: len(places)], ends, baselines, styles.value)
    entries = tuple(
        Entry(field, label, value, label_box(), value_box())
        for (field, label, value, _), label_box, value_box in zip(said, label_boxes, value_boxes, strict=False)
    )
    inks = [(label_ink, palette.label), *([] if value_ink is label_ink else [(value_ink, palette.value)])]
    names = dict.fromkeys((styles.value.face.name, styles.label.face.name))
    image = compose(rng, inks, palette.paper, split=split)
    return Document(image, entries, (*glyphs, *value_glyphs), "flow", " + ".join(names))


def _visible(text: str) -> int:
    return len(text.replace(" ", ""))


def _width(styles: Styles, label: str, value: str, font: float) -> float:
    """The width of an entry without its inner gap; slanted letters can reach a little further."""
    return styles.label.width(label) + styles.value.width(value) + 0.1 * font


@register("density", Layouts({"flow": None}, {"flow": None}), {"field": DOCUMENT_WORDINGS})
def draw_density(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_density` with a question about each field; its tag `density` is the number of characters."""
    levels = densities(size)
    characters = levels[int(rng.integers(len(levels)))]
    document = render_density(rng, size=size, split=split, characters=characters)
    return replace(ask_each(rng, document, split, FIELDS), tags=(("density", str(characters)),))


def _dense_word(rng: np.random.Generator, split: Split) -> str:
    """A token of running text: a field, name, city, made-up word or value."""
    choice = rng.random()
    field = pick(rng, FIELDS)
    if choice < 0.25:
        word = (field, field.capitalize(), field.upper())[int(rng.integers(3))]
        return word + (":" if rng.random() < 0.3 else "")
    if choice < 0.5:
        word = made_up_word(rng)
        return (word, word.lower(), word.upper())[int(rng.choice(3, p=[0.5, 0.3, 0.2]))]
    if choice < 0.6 and split != "train":
        return pick(rng, part(FIRST_NAMES + LAST_NAMES + CITIES, split))
    return sample_value(rng, field, split=split)


def _dense_line(rng: np.random.Generator, split: Split, length: int) -> str:
    """About `length` characters: half of the lines uniform letters and digits with some punctuation, half words."""
    if rng.random() < 0.5:
        words: list[str] = []
        room = length
        while room > 0:
            words.append(_dense_word(rng, split))
            room -= len(words[-1]) + 1
        return " ".join(words)
    space, mark = float(rng.uniform(0.05, 0.2)), float(rng.uniform(0.02, 0.2))
    kinds, indices = rng.random(length).tolist(), rng.integers(1 << 30, size=length).tolist()
    pools = (PUNCTUATION if kind < mark else " " if kind < mark + space else ALPHANUMERIC for kind in kinds)
    text = "".join(pool[index % len(pool)] for pool, index in zip(pools, indices, strict=True))
    return " ".join(text.split())


def render_dense_page(rng: np.random.Generator, *, size: int = 256, split: Split = "train") -> Document:
    """A page full of text lines, without entries, to learn reading; letters and digits are about equally frequent.

    Arguments and errors are as in `render_document`; the layout is named "dense".
    """
    check_page(size, split)
    unit, pen = size / 256, sample_pen(rng, split)
    pixels = unit * float(rng.uniform(MIN_FONT, 17) if rng.random() < 0.8 else rng.uniform(17, MAX_FONT))
    style = sample_style(rng, pen, size, split).with_pixels(pixels)
    mixed = rng.random() < 0.3
    palette = sample_palette(rng, contrast=CONTRAST[split])
    inks = [Ink(size, pen)] if palette.value == palette.label else [Ink(size, pen), Ink(size, pen)]
    glyphs: list[Glyph] = []
    names: dict[str, None] = {}
    pitch = float(rng.uniform(1.16, 1.5)) * pixels
    y = float(rng.uniform(2, 8)) * unit + pixels
    while y + 0.3 * pixels < size - 1:
        if mixed:
            style = sample_style(rng, pen, size, split).with_pixels(pixels)
        names[style.face.name] = None
        x = float(rng.uniform(3, 9)) * unit + (float(rng.uniform(0, 60)) * unit if rng.random() < 0.15 else 0.0)
        room = size - x - 6 * unit - abs(style.shear) * pixels
        text = style.fitting(_dense_line(rng, split, int((size - x) / (0.4 * pixels))), room)
        if text:
            ends = inks[int(rng.integers(len(inks)))].text(text, (x, y), style)
            glyphs += glyphs_of(text, (x, y), style, ends)
        y += pitch
    layers = list(zip(inks, (palette.label, palette.value), strict=False))
    image = compose(rng, layers, palette.paper, split=split)
    return Document(image, (), tuple(glyphs), "dense", " + ".join(names))
