"""Domains `document` and `form`: lines of `label value`.

Layouts and their plans are here too. All lengths are pixels of the final image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from ...modeling.image_processing_arr_coc import Box
from ..page import Question
from ..splits import Split, part
from .domain import Page, layouts_of, register
from .glyphs import CONTRAST, MAX_FONT, MIN_FONT, Glyph, Styles, check_page, sample_pen, sample_styles, write
from .rasterising import Ink, Ruler, compose, sample_palette
from .values import FIELDS, TITLES, ask, made_up_word, pick, sample_pairs

_EDGE = 4.0  # px at a 256 px page kept free of text on every side
_LINE = 1.16  # least line pitch in font sizes: ascent plus descent of the tallest font in use
_RULED_LINE = 1.32  # the same with a ruling line in between


@dataclass(frozen=True)
class DocumentLayout:
    """A layout of `label value` lines.

    `placement`: value directly after its label, in a column shared by all lines, or ending at the right margin. Lines
    are between rows, around all (`frame`), between labels and values (`divider`), under values, or above and below the
    rows (`edges`); `leaders` are dots from a label to its value.
    """

    placement: Literal["left", "spaced", "right"]
    rows: bool = False
    frame: bool = False
    divider: bool = False
    leaders: bool = False
    underline: bool = False
    edges: bool = False

    @property
    def ruled(self) -> bool:
        """Whether rows must leave room for a line between them."""
        return self.rows or self.underline


def _layout(text: str) -> DocumentLayout:
    placement, *parts = text.split()
    return DocumentLayout(placement, **dict.fromkeys(parts, True))  # type: ignore[arg-type]


LAYOUTS = layouts_of("document", _layout)
_PLAIN = ("left", "spaced", "right")  # layouts that come up four times as often as others


@dataclass(frozen=True)
class DocumentPlan:
    """The plan of a page that fits: styles at final size, and the places of all parts, px.

    Attributes:
        styles: of labels, values and title.
        label_x, value_x: x of the start of every label and value.
        bounds: y of the borders between rows, one more than rows.
        left, right: x range of the block of rows.
        divider_x: x between labels and values, if values share a column.
        title: x and baseline y of the title, if there is one.
    """

    styles: Styles
    label_x: list[float]
    value_x: list[float]
    bounds: list[float]
    left: float
    right: float
    divider_x: float
    title: tuple[float, float]

    @property
    def baselines(self) -> list[float]:
        """y of every row's baseline."""
        low = self.styles.label.cap_height / 2
        return [(top + bottom) / 2 + low for top, bottom in zip(self.bounds, self.bounds[1:], strict=False)]


class _Planner:
    """Places lines on a page of `size` px."""

    def __init__(self, rng: np.random.Generator, layout: DocumentLayout, size: int) -> None:
        self.rng, self.layout, self.size, self.unit = rng, layout, size, size / 256
        self.edge = (_EDGE + (3 if layout.frame else 0)) * self.unit
        self.available = size - 2 * self.edge
        self.line = _RULED_LINE if layout.ruled else _LINE

    def plan(self, styles: Styles, labels: list[str], values: list[str], title: str) -> DocumentPlan | None:
        """Places labels as drawn, with their colons, and values; None if they do not fit even in the smallest font."""
        rng, layout = self.rng, self.layout
        ratio = float(rng.uniform(1.0, 1.35))
        title_rows = ratio * 1.45 if title else 0.0
        pixels = self._font_size(self.available / (len(labels) + title_rows))
        if pixels is None:
            return None
        gap_ems = float(rng.uniform(0.3, 0.6) if rng.random() < 0.5 else rng.uniform(0.6, 2.5))
        gap_ems = max(gap_ems, 1.0) if layout.divider or layout.leaders or layout.placement == "right" else gap_ems
        for _ in range(4):
            styles = styles.scaled(pixels, ratio)
            label_widths = np.array([styles.label.width(text) for text in labels])
            value_widths = np.array([styles.value.width(text) for text in values])
            gap, spaced = gap_ems * pixels, layout.placement == "spaced"
            widest = label_widths.max() + value_widths.max() if spaced else (label_widths + value_widths).max()
            needed = float(widest + gap) + 0.3 * pixels  # slant overhangs
            heading_width = styles.heading.width(title) if title else 0.0
            excess = max(needed, heading_width) / self.available
            if excess <= 1:
                break
            if pixels <= MIN_FONT * self.unit:
                return None
            pixels = max(MIN_FONT * self.unit, 0.98 * pixels / excess)
        else:
            return None
        if layout.placement == "right":  # widths are visible here, so they include kerning
            value_widths = np.array([styles.value.advances(text)[-1] for text in values])
        left, right = self._block_range(needed)
        label_x, value_x, divider_x = self._columns(label_widths, value_widths, left, right, gap)
        bounds, title_top = self._rows(pixels, len(labels), title_rows * pixels)
        x = self._title_start(left, heading_width) if title else 0.0
        place = (x, title_top + 0.45 * title_rows * pixels + styles.heading.cap_height / 2)
        return DocumentPlan(styles, label_x, value_x, bounds, left, right, divider_x, place)

    def _font_size(self, height_per_row: float) -> float | None:
        """A font size in px that lets rows fit, mostly 11 to 17 px; None if not even 11 px does."""
        largest, smallest = min(MAX_FONT * self.unit, height_per_row / self.line), MIN_FONT * self.unit
        if largest < smallest:
            return None
        usual = min(17 * self.unit, largest)
        return float(self.rng.uniform(smallest, usual if self.rng.random() < 0.7 else largest))

    def _title_start(self, left: float, width: float) -> float:
        """x of a title: anywhere between the page's edges, or at the left of the block if it fits there."""
        rng, spare = self.rng, self.size - 2 * self.edge - width
        x = self.edge + spare * float(rng.choice([0.0, 0.5, 1.0, rng.random()], p=[0.2, 0.4, 0.1, 0.3]))
        return left if rng.random() < 0.3 and left + width < self.size - self.edge else x

    def _block_range(self, needed: float) -> tuple[float, float]:
        """x range of the block: often the whole page between margins, else narrower at any place."""
        rng, free = self.rng, self.size - 2 * self.edge - needed
        margin = min(free / 2, float(rng.uniform(0, 24)) * self.size / 256)
        left, right = self.edge + margin, self.size - self.edge - margin
        if rng.random() < 0.4:
            width = needed + float(rng.random()) * (right - left - needed)
            left += float(rng.random()) * (right - left - width)
            right = left + width
        return left, right

    def _columns(
        self, labels: np.ndarray, values: np.ndarray, left: float, right: float, gap: float
    ) -> tuple[list[float], list[float], float]:
        """Starts of labels and values, and the x of a line between them."""
        left, right = left + 0.1 * gap, right - 0.1 * gap
        starts = [left] * len(labels)
        column = left + labels.max() + gap
        if self.layout.placement == "left":
            return starts, [float(left + width + gap) for width in labels], column
        if self.layout.placement == "spaced":
            free = max(0.0, right - column - values.max())
            column += float(self.rng.random()) ** 1.5 * free
            middle = (left + labels.max() + column) / 2
            return starts, [float(column)] * len(labels), float(middle)
        ends = [float(right - width) for width in values]
        return starts, ends, float((left + labels.max() + min(ends)) / 2)

    def _rows(self, pixels: float, count: int, title_height: float) -> tuple[list[float], float]:
        """Borders of the rows and the top of the title: tight or loose, at the top, middle or bottom, or spread."""
        rng, least = self.rng, pixels * self.line
        room = self.size - 2 * self.edge - title_height
        largest = room / count
        pitch = largest if rng.random() < 0.25 else least + float(rng.beta(1, 2.5)) * (largest - least)
        heights = np.full(count, pitch)
        if not self.layout.ruled and rng.random() < 0.2:  # groups of rows with gaps between them
            gaps = rng.random(count) < 0.3
            gaps[0] = False
            if gaps.any():
                heights = heights + 0.8 * float(rng.random()) * (room - heights.sum()) / gaps.sum() * gaps
        free = max(0.0, room - float(heights.sum()))
        top = self.edge + free * float(rng.choice([0.0, 0.5, 1.0, rng.random()], p=[0.3, 0.2, 0.15, 0.35]))
        title_top = self.edge + float(rng.random()) * (top - self.edge) if rng.random() < 0.3 else top
        bounds = top + title_height + np.concatenate([[0.0], np.cumsum(heights)])
        return [float(bound) for bound in bounds], title_top


def draw_rules(
    rng: np.random.Generator, ink: Ink, layout: DocumentLayout, plan: DocumentPlan, label_ends: list[float]
) -> None:
    """Draws a layout's lines; `label_ends` are the x of the drawn labels' ends."""
    ruler = Ruler(rng, ink)
    size = ink.size
    unit, pad = size / 256, 3 * size / 256
    x0, x1 = max(1.0, plan.left - pad), min(size - 2.0, plan.right + pad)
    top, bottom = max(1.0, plan.bounds[0]), min(size - 2.0, plan.bounds[-1])
    across = plan.bounds[1:-1] if layout.rows else []
    across = [*across, top, bottom] if layout.frame or layout.edges else across
    down = [x0, x1] if layout.frame else []
    for y in across:
        ruler.horizontal(x0, x1, y)
    for x in [*down, plan.divider_x] if layout.divider else down:
        ruler.vertical(top, bottom, x)
    step = float(rng.uniform(2.5, 6)) * unit
    for end, start, baseline, low in zip(label_ends, plan.value_x, plan.baselines, plan.bounds[1:], strict=True):
        if layout.leaders:
            ruler.dots(end + 2 * unit, start - 2 * unit, baseline, step)
        if layout.underline:
            ruler.horizontal(start, x1, low)


_MIN_ENTRIES, _MAX_ENTRIES = 4, 14


@dataclass(frozen=True)
class Entry:
    """One line: the canonical field (lower case), its label as drawn without colon, its value, and tight ink boxes.

    The label's box includes a drawn colon.
    """

    field: str
    label: str
    value: str
    label_box: Box
    value_box: Box


@dataclass(frozen=True)
class Document:
    """A rendered page (RGB), its text, the name of its layout, and the family and style of its fonts."""

    image: Image.Image
    entries: tuple[Entry, ...]
    glyphs: tuple[Glyph, ...]
    layout: str
    font: str


def cased(rng: np.random.Generator, fields: list[str]) -> list[str]:
    """The labels of one page, all in the same case: lower, Capitalised, rarely UPPER."""
    choice = int(rng.choice(3, p=[0.44, 0.46, 0.1]))
    return [(field, field.capitalize(), field.upper())[choice] for field in fields]


def _sample_title(rng: np.random.Generator, split: Split) -> str:
    chance = rng.random()
    if chance < 0.55:
        return ""
    if chance < 0.85:
        return pick(rng, part(TITLES, split))
    return " ".join(made_up_word(rng) for _ in range(int(rng.integers(1, 3))))


def render_document(
    rng: np.random.Generator, *, size: int = 256, split: Split = "train", fields: Sequence[str] = FIELDS
) -> Document:
    """A page of 4 to 14 lines `field value` with distinct fields and distinct values.

    Args:
        rng: the only source of randomness; the same state gives the same document on a machine with the same fonts.
        size: side of the square page, px; all lengths scale with it.
        split: split of fonts, words and layouts, see `arr_coc.pages.splits`; only training distorts letters.
        fields: names to draw from (lower case, distinct), at least 4; names that `FIELDS` lacks have numbers, or
            values of any kind.

    Raises:
        ValueError: a bad `split`, a page under 64 px, or too few fields.
        FileNotFoundError: no font of the split is installed.
    """
    check_page(size, split)
    if len(set(fields)) < _MIN_ENTRIES:
        raise ValueError(f"fields: expected at least {_MIN_ENTRIES} distinct names; got {list(fields)}")
    pen, layouts = sample_pen(rng, split), LAYOUTS[split]
    weights = np.array([4.0 if name in _PLAIN else 1.0 for name in layouts])
    while True:
        layout_name = list(layouts)[int(rng.choice(len(layouts), p=weights / weights.sum()))]
        layout = layouts[layout_name]
        styles = sample_styles(rng, pen, size, split)
        said = sample_pairs(rng, int(rng.integers(_MIN_ENTRIES, _MAX_ENTRIES + 1)), split=split, fields=fields)
        labels = cased(rng, [field for field, _ in said])
        colon = ":" if rng.random() < 0.5 else ""
        drawn, values = [label + colon for label in labels], [value for _, value in said]
        title = _sample_title(rng, split)
        plan = _Planner(rng, layout, size).plan(styles, drawn, values, title)
        if plan is not None:
            break
    palette = sample_palette(rng, contrast=CONTRAST[split])
    label_ink, rule_ink = Ink(size, pen), Ink(size)
    value_ink = label_ink if palette.value == palette.label else Ink(size, pen)
    label_boxes, glyphs = write(label_ink, drawn, plan.label_x, plan.baselines, plan.styles.label)
    value_boxes, value_glyphs = write(value_ink, values, plan.value_x, plan.baselines, plan.styles.value)
    glyphs += value_glyphs
    if title:
        glyphs += write(label_ink, [title], [plan.title[0]], [plan.title[1]], plan.styles.heading)[1]
    entries = tuple(
        Entry(field, label, value, label_box(), value_box())
        for (field, value), label, label_box, value_box in zip(said, labels, label_boxes, value_boxes, strict=True)
    )
    draw_rules(rng, rule_ink, layout, plan, [entry.label_box[2] for entry in entries])
    layers = [(label_ink, palette.label), (rule_ink, palette.rule)]
    if value_ink is not label_ink:
        layers.append((value_ink, palette.value))
    image = compose(rng, layers, palette.paper, split=split)
    names = dict.fromkeys((plan.styles.value.face.name, plan.styles.label.face.name))
    return Document(image, entries, tuple(glyphs), layout_name, " + ".join(names))


@register("document")
def draw_document(rng: np.random.Generator, size: int, split: Split, fields: Sequence[str] = FIELDS) -> Page:
    """A page of `render_document` with one question about each field."""
    return ask_each(rng, render_document(rng, size=size, split=split, fields=fields), split, fields)


def ask_each(rng: np.random.Generator, document: Document, split: Split, fields: Sequence[str]) -> Page:
    """The document with one question about each of its fields, in random order; the fields are drawn from `fields`."""
    order = rng.permutation(len(document.entries))
    questions = tuple(_asked(rng, [document.entries[int(index)]], split) for index in order)
    text = "\n".join(f"{entry.label} {entry.value}" for entry in document.entries)
    return Page(document.image, questions, document.layout, document.font, document.glyphs, tuple(fields), text=text)


@register("form")
def draw_form(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_document`; each field has a question about it alone, and one about it and the next fields."""
    document = render_document(rng, size=size, split=split)
    order = rng.permutation(len(document.entries))
    questions = []
    for turn in range(len(order)):
        entries = [document.entries[int(index)] for index in np.roll(order, -turn)]
        questions += [_asked(rng, entries[:1], split), _asked(rng, entries[: int(rng.integers(2, 4))], split)]
    return Page(document.image, tuple(questions), document.layout, document.font, document.glyphs, FIELDS)


def _asked(rng: np.random.Generator, entries: list[Entry], split: Split) -> Question:
    """A question about one to three fields; the answer has a line for each."""
    text = ask(rng, *(entry.field for entry in entries), split=split)
    answer = "\n".join(entry.value for entry in entries)
    boxes, labels = tuple(entry.value_box for entry in entries), tuple(entry.label_box for entry in entries)
    return Question(text, (answer,), boxes, labels, "field" if len(entries) == 1 else f"{len(entries)} fields")
