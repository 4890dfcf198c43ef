"""Pages full of text lines, for learning to read: nothing is asked about them."""

from __future__ import annotations

import numpy as np

from ..glyphs import ALPHANUMERIC, PUNCTUATION, Glyph, glyphs_of
from ..pools import CITIES, FIRST_NAMES, LAST_NAMES
from ..rasterising import Ink, compose, sample_palette
from ..splits import Split, part
from ..styles import CONTRAST, MAX_FONT, MIN_FONT, check_page, sample_pen, sample_style
from ..values import FIELDS, made_up_word, pick, sample_value
from .document import Document


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
    """A page full of text lines, without entries, for learning to read: letters and digits about equally often.

    Arguments and errors as in `render_document`; the layout is named "dense".
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
