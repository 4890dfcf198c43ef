"""Pages without pixels: where the characters of a document would stand, for training what needs no image.

Much cheaper than rendering. Widths are rough, and drawn anew for every page, so that nothing can be learnt by heart
about one font.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .domains import density
from .domains.document import Entry, cased
from .glyphs import Glyph
from .values import FIELDS, sample_pairs

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
    """Entries and glyphs of a page of up to 14 lines, as `render_document` gives them.

    Args:
        rng: the only source of randomness.
        size: side of the page, px.
        pairs: (field, value) of each line, of which those stay away that do not fit; None: drawn, of training words.
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


def sketch_density(rng: np.random.Generator, *, size: int = 256) -> Sketch:
    """Entries and glyphs of a page of any density, as `render_density` gives them, with training words.

    Arguments as in `sketch_document`.
    """
    levels = density.densities(size)
    wanted = levels[int(rng.integers(len(levels)))]
    font = density.print_size(size, wanted)
    unit, mono = font * float(rng.uniform(0.4, 0.56)), bool(rng.random() < 0.15)
    pairs = sample_pairs(rng, len(FIELDS), split="train")
    colon = ":" if rng.random() < 0.5 else ""
    inner = float(rng.uniform(*density.INNER)) * font
    said: list[tuple[str, str, str, np.ndarray, np.ndarray, float]] = []
    for (field, value), label in zip(pairs, cased(rng, [field for field, _ in pairs]), strict=True):
        advances = _widths(rng, label + colon, unit, mono=mono), _widths(rng, value, unit, mono=mono)
        run = float(advances[0].sum() + advances[1].sum()) + inner
        if density.fits(run, size, font):
            said.append((field, label, value, *advances, run))
    texts, runs = [label + colon + value for _, label, value, *_ in said], [run for *_, run in said]
    gap = float(rng.uniform(*density.OUTER)) * font
    places = density.placed(rng, texts, runs, size=size, wanted=wanted, gap=gap)
    if places is None:
        return sketch_density(rng, size=size)
    entries: list[Entry] = []
    glyphs: list[Glyph] = []
    pitch = (size - 2 * density.EDGE) / density.room(size, font)[1]
    for (field, label, value, label_widths, value_widths, _), (row, x) in zip(said, places, strict=False):
        start, centre = density.EDGE + x, density.EDGE + pitch * (row + 0.5)
        drawn, label_box = _line(label + colon, start, centre, 0.7 * font, label_widths)
        behind = start + float(label_widths.sum()) + inner
        written, value_box = _line(value, behind, centre, 0.7 * font, value_widths)
        entries.append(Entry(field, label, value, label_box, value_box))
        glyphs += drawn + written
    return tuple(entries), tuple(glyphs)


SKETCHES: Mapping[str, Callable[..., Sketch]] = {"document": sketch_document, "density": sketch_density}
"""Kinds of pages that can be sketched, by the names of `mixture.KINDS`."""
