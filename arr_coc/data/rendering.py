"""Synthetic documents: pages of `field value` lines to ask about, and pages full of text to learn reading from.

Everything is a function of the random generator passed in, the page size, the split and the installed fonts. Boxes are
(x0, y0, x1, y1) in pixels of the final image; grids are [grid, grid], row-major, (y, x).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from PIL import Image

from .fonts import find_fonts, pick_face, sibling
from .layouts import MAX_FONT, MIN_FONT, TEST_LAYOUTS, TRAIN_LAYOUTS, Styles, draw_rules, make_plan, sample_layout
from .rasterising import MIN_STRETCH, Box, Ink, Pen, TextStyle, compose, sample_palette
from .values import CITIES, FIELDS, FIRST_NAMES, TITLES, Split, made_up_word, pick, sample_pairs, sample_value

__all__ = [
    "CHARSET", "TEST_LAYOUTS", "TRAIN_LAYOUTS", "Box", "Document", "Entry", "Glyph", "box_targets", "glyph_targets",
    "render_dense_page", "render_document",
]  # fmt: skip

_PUNCTUATION = ".,:$/-#&'"
_ALPHANUMERIC = string.digits + string.ascii_uppercase + string.ascii_lowercase
CHARSET: str = _ALPHANUMERIC + _PUNCTUATION
"""Every character other than the space that a page can show; its order defines the classes of `glyph_targets`."""

_MIN_ENTRIES, _MAX_ENTRIES = 4, 14
CONTRAST = {"train": 80.0, "test": 110.0}  # least difference in luminance (0..255) between ink and paper
_CLASS_OF = {char: index + 1 for index, char in enumerate(CHARSET)}


@dataclass(frozen=True)
class Glyph:
    """A visible character: its advance cell horizontally, baseline to capital height vertically."""

    char: str
    box: Box


@dataclass(frozen=True)
class Entry:
    """One line: the canonical field (lower case), its label as drawn less the colon, its value, and tight ink boxes.

    The label's box includes the colon where one is drawn.
    """

    field: str
    label: str
    value: str
    label_box: Box
    value_box: Box


@dataclass(frozen=True)
class Document:
    """A rendered page (RGB), what it says, the name of its layout, and the family and style of its fonts."""

    image: Image.Image
    entries: tuple[Entry, ...]
    glyphs: tuple[Glyph, ...]
    layout: str
    font: str


def check_page(size: int, split: str) -> None:
    if split not in ("train", "test"):
        raise ValueError(f'expected split "train" or "test", got {split!r}')
    if size < 64:
        raise ValueError(f"expected a size of at least 64 px, below which no text is readable; got {size}")


def sample_pen(rng: np.random.Generator, split: Split) -> Pen:
    """How a page is rasterised; training varies the weight of strokes, also unequally as in faces of high contrast."""
    supersample = 2 if rng.random() < 0.45 else 1
    if split == "test" or rng.random() < 0.5:
        return Pen(supersample)
    reach = (-0.55, 0.9) if supersample == 2 else (-0.25, 0.4)
    return Pen(supersample, (float(rng.uniform(*reach)), float(rng.uniform(*reach))))


def sample_style(rng: np.random.Generator, pen: Pen, size: int, split: Split) -> TextStyle:
    """A text style; training distorts the letters so that unseen families fall within what was seen."""
    face, pixels = pick_face(rng, find_fonts(split)), MIN_FONT * size / 256
    if split == "test":
        return TextStyle(face, pixels, pen.supersample)
    narrow = face.family.endswith(("Condensed", "Narrow"))
    stretch = float(rng.uniform(0.95 if narrow else MIN_STRETCH, 1.2)) if rng.random() < 0.55 else 1.0
    lean = (-0.05, 0.1) if face.italic else (-0.05, 0.3)
    shear = float(rng.uniform(*lean)) if rng.random() < 0.4 else 0.0
    spacing = float(rng.uniform(-0.03, 0.15)) * pixels if rng.random() < 0.12 else 0.0
    return TextStyle(face, pixels, pen.supersample, stretch, shear, spacing)


def sample_styles(rng: np.random.Generator, pen: Pen, size: int, split: Split) -> Styles:
    """Styles of labels, values and the title: mostly one face, else siblings, rarely two families."""
    faces, base = find_fonts(split), sample_style(rng, pen, size, split)

    def vary(chance: float) -> TextStyle:
        if rng.random() >= chance:
            return base
        other_family = rng.random() < 0.25
        return replace(base, face=pick_face(rng, faces) if other_family else sibling(rng, base.face, faces))

    return Styles(label=vary(0.2), value=base, heading=vary(0.5))


def _cased(rng: np.random.Generator, fields: list[str]) -> list[str]:
    """Labels of one page, all in the same case: lower, Capitalised, rarely UPPER."""
    choice = int(rng.choice(3, p=[0.44, 0.46, 0.1]))
    return [(field, field.capitalize(), field.upper())[choice] for field in fields]


def _glyphs(text: str, position: tuple[float, float], style: TextStyle, ends: np.ndarray) -> list[Glyph]:
    x, bottom = position
    top, rights = bottom - style.cap_height, (x + ends).tolist()
    return [
        Glyph(char, (left, top, right, bottom))
        for char, left, right in zip(text, [x, *rights], rights, strict=False)
        if char != " "
    ]


def _sample_title(rng: np.random.Generator) -> str:
    chance = rng.random()
    if chance < 0.55:
        return ""
    if chance < 0.85:
        return pick(rng, TITLES)
    return " ".join(made_up_word(rng) for _ in range(int(rng.integers(1, 3))))


def render_document(
    rng: np.random.Generator, *, size: int = 256, split: Split = "train", fields: Sequence[str] = FIELDS
) -> Document:
    """A page of 4 to 14 lines `field value` with distinct fields and distinct values.

    Args:
        rng: the only source of randomness; the same state gives the same document on a machine with the same fonts.
        size: side of the square page in px; all lengths scale with it.
        split: "train" or "test", which differ in fonts, layouts, held-out words, and distortions (training only).
        fields: names to draw from (lower case, distinct), at least 4; those that `FIELDS` lacks have numbers, or
            values of any kind.

    Raises:
        ValueError: a bad `split`, a page under 64 px, or too few fields.
        FileNotFoundError: no font of the split is installed.
    """
    check_page(size, split)
    if len(set(fields)) < _MIN_ENTRIES:
        raise ValueError(f"fields: expected at least {_MIN_ENTRIES} distinct names; got {list(fields)}")
    pen = sample_pen(rng, split)
    while True:
        layout_name, layout = sample_layout(rng, split)
        styles = sample_styles(rng, pen, size, split)
        pairs = sample_pairs(rng, int(rng.integers(_MIN_ENTRIES, _MAX_ENTRIES + 1)), split=split, fields=fields)
        labels = _cased(rng, [field for field, _ in pairs])
        colon = ":" if rng.random() < 0.5 else ""
        drawn, values = [label + colon for label in labels], [value for _, value in pairs]
        title = _sample_title(rng)
        plan = make_plan(rng, layout, styles, drawn, values, title, size)
        if plan is not None:
            break
    palette = sample_palette(rng, contrast=CONTRAST[split])
    label_ink, rule_ink = Ink(size, pen), Ink(size)
    value_ink = label_ink if palette.value == palette.label else Ink(size, pen)
    label_boxes, glyphs = write(label_ink, drawn, plan.label_x, plan.baselines, plan.label)
    value_boxes, value_glyphs = write(value_ink, values, plan.value_x, plan.baselines, plan.value)
    glyphs += value_glyphs
    if plan.title is not None:
        glyphs += write(label_ink, [title], [plan.title[0]], [plan.title[1]], plan.heading)[1]
    entries = tuple(
        Entry(field, label, value, label_box(), value_box())
        for (field, value), label, label_box, value_box in zip(pairs, labels, label_boxes, value_boxes, strict=True)
    )
    draw_rules(rng, rule_ink, layout, plan, [entry.label_box[2] for entry in entries])
    layers = [(label_ink, palette.label), (rule_ink, palette.rule)]
    if value_ink is not label_ink:
        layers.append((value_ink, palette.value))
    image = compose(rng, layers, palette.paper, split=split)
    names = dict.fromkeys((plan.value.face.name, plan.label.face.name))
    return Document(image, entries, tuple(glyphs), layout_name, " + ".join(names))


def write(
    ink: Ink, texts: list[str], xs: list[float], baselines: list[float], style: TextStyle
) -> tuple[list[Callable[[], Box]], list[Glyph]]:
    """Draw texts; returns what gives each one's ink box once the layer is complete, and their glyphs."""
    boxes: list[Callable[[], Box]] = []
    glyphs: list[Glyph] = []
    for text, x, y in zip(texts, xs, baselines, strict=True):
        ends = ink.text(text, (x, y), style)
        boxes.append(partial(ink.box, (x, y), style, float(ends[-1])))
        glyphs += _glyphs(text, (x, y), style, ends)
    return boxes, glyphs


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
    if choice < 0.6 and split == "test":
        return pick(rng, FIRST_NAMES + CITIES)
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
    pools = (_PUNCTUATION if kind < mark else " " if kind < mark + space else _ALPHANUMERIC for kind in kinds)
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
            glyphs += _glyphs(text, (x, y), style, ends)
        y += pitch
    layers = list(zip(inks, (palette.label, palette.value), strict=False))
    image = compose(rng, layers, palette.paper, split=split)
    return Document(image, (), tuple(glyphs), "dense", " + ".join(names))


def _check_grid(size: int, grid: int) -> None:
    if size < 1 or grid < 1:
        raise ValueError(f"expected a positive size and grid, got size={size}, grid={grid}")


def glyph_targets(glyphs: Sequence[Glyph], *, size: int, grid: int, slots: int = 3) -> np.ndarray:
    """The characters whose box centre lies in each patch, left to right; those beyond `slots` are dropped.

    Returns:
        int64 [grid, grid, slots], (y, x) row-major: 0 for none, else 1 + index in `CHARSET`.

    Raises:
        ValueError: `size`, `grid` or `slots` below 1.
    """
    _check_grid(size, grid)
    if slots < 1:
        raise ValueError(f"expected at least one slot, got {slots}")
    targets = np.zeros((grid * grid, slots), np.int64)
    if not glyphs:
        return targets.reshape(grid, grid, slots)
    boxes = np.array([glyph.box for glyph in glyphs])
    classes = np.array([_CLASS_OF[glyph.char] for glyph in glyphs])
    centre_x, centre_y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
    column, row = (np.clip(centre * grid / size, 0, grid - 1).astype(np.int64) for centre in (centre_x, centre_y))
    patch = row * grid + column
    order = np.lexsort((centre_x, patch))
    patch, classes = patch[order], classes[order]
    slot = np.arange(len(patch)) - np.searchsorted(patch, patch)  # rank within its patch
    kept = slot < slots
    targets[patch[kept], slot[kept]] = classes[kept]
    return targets.reshape(grid, grid, slots)


def box_targets(boxes: Sequence[Box], *, size: int, grid: int) -> np.ndarray:
    """Which patches show part of any box: float32 [grid, grid], (y, x), 1 where they do.

    A patch counts if the box reaches into it by 20 % of the patch side or 1.5 px, whichever is less, on both axes, or
    if it holds the box's centre line, so that very thin boxes count too.

    Raises:
        ValueError: `size` or `grid` below 1.
    """
    _check_grid(size, grid)
    targets = np.zeros((grid, grid), np.float32)
    for x0, y0, x1, y1 in boxes:
        rows, columns = _covered(y0, y1, size, grid), _covered(x0, x1, size, grid)
        targets[np.ix_(rows, columns)] = 1.0
    return targets


def _covered(low: float, high: float, size: int, grid: int) -> np.ndarray:
    """Which of `grid` equal intervals of [0, size] the range reaches into, bool [grid]."""
    side = size / grid
    starts = np.arange(grid) * side
    covered: np.ndarray = np.minimum(high, starts + side) - np.maximum(low, starts) >= min(0.2 * side, 1.5)
    covered[int(np.clip((low + high) / 2 / side, 0, grid - 1))] = True
    return covered
