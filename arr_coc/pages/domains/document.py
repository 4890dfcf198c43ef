"""Domains `document` and `form`: lines of `label value`. All lengths are pixels of the final image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...modeling.image_processing_arr_coc import Box
from ..fonts import FontFace
from ..page import Question
from ..splits import Split, part
from .domain import DOMAINS, Page, layouts_of
from .rasterising import MAX_FONT, MIN_FONT, Ink, Ruler, TextStyle, check_page, compose, sample_faces, sample_palette
from .values import FIELDS, TITLES, ask, made_up_word, pick, sample_pairs

_EDGE = 4.0  # px at a 256 px page kept free of text on every side
_LINE = 1.16  # least line pitch in font sizes: ascent plus descent of the tallest font in use
_RULED_LINE = 1.32  # the same with a ruling line in between

LAYOUTS = layouts_of("document")
"""By name, where values stand (directly after their labels: `left`; in a column: `spaced`; ending at the right margin:
`right`), and what is drawn: lines between rows (`rows`), around all (`frame`), between labels and values (`divider`),
under values (`underline`), or above and below the rows (`edges`), and dots from labels to values (`leaders`)."""
_PLAIN = ("left", "spaced", "right")  # layouts that come up four times as often as others


class _Plan:
    """The places of all parts of a page of `size` px, px.

    Attributes:
        label, value, heading: styles of labels, values and title.
        label_x, value_x: x of the start of every label and value.
        bounds: y of the borders between rows, one more than rows.
        left, right: x range of the block of rows.
        divider_x: x between labels and values, if values share a column.
        title: x and baseline y of the title, if there is one.
    """

    def __init__(self, rng: np.random.Generator, layout: str, size: int, supersample: int) -> None:
        self.rng, self.size, self.unit, self.supersample = rng, size, size / 256, supersample
        self.placement, *self.parts = layout.split()
        self.edge = (_EDGE + (3 if "frame" in self.parts else 0)) * self.unit
        self.available = size - 2 * self.edge
        self.ruled = "rows" in self.parts or "underline" in self.parts
        self.line = _RULED_LINE if self.ruled else _LINE

    @property
    def baselines(self) -> list[float]:
        """y of every row's baseline."""
        low = self.label.cap_height / 2
        return [(top + bottom) / 2 + low for top, bottom in zip(self.bounds, self.bounds[1:], strict=False)]

    def fits(self, faces: Sequence[FontFace], labels: list[str], values: list[str], title: str) -> bool:
        """Places labels as drawn, with their colons, and values; False if not even the smallest font fits."""
        rng, smallest = self.rng, MIN_FONT * self.unit
        ratio = float(rng.uniform(1.0, 1.35))
        title_rows = ratio * 1.45 if title else 0.0
        largest = min(MAX_FONT * self.unit, self.available / (len(labels) + title_rows) / self.line)
        if largest < smallest:
            return False
        usual = min(17 * self.unit, largest)  # mostly 11 to 17 px
        pixels = float(rng.uniform(smallest, usual if rng.random() < 0.7 else largest))
        gap_ems = float(rng.uniform(0.3, 0.6) if rng.random() < 0.5 else rng.uniform(0.6, 2.5))
        if self.placement == "right" or {"divider", "leaders"} & {*self.parts}:
            gap_ems = max(gap_ems, 1.0)
        for _ in range(4):
            sizes = (pixels, pixels, pixels * ratio)
            self.label, self.value, self.heading = (
                TextStyle(face, size, self.supersample) for face, size in zip(faces, sizes, strict=True)
            )
            label_widths = np.array([self.label.width(text) for text in labels])
            value_widths = np.array([self.value.width(text) for text in values])
            gap, spaced = gap_ems * pixels, self.placement == "spaced"
            widest = label_widths.max() + value_widths.max() if spaced else (label_widths + value_widths).max()
            needed = float(widest + gap) + 0.3 * pixels  # slant overhangs
            heading_width = self.heading.width(title) if title else 0.0
            excess = max(needed, heading_width) / self.available
            if excess <= 1:
                break
            if pixels <= smallest:
                return False
            pixels = max(smallest, 0.98 * pixels / excess)
        else:
            return False
        if self.placement == "right":  # widths are visible here, so they include kerning
            value_widths = np.array([self.value.advances(text)[-1] for text in values])
        self._place_block(needed)
        self._place_columns(label_widths, value_widths, gap)
        title_top = self._place_rows(pixels, len(labels), title_rows * pixels)
        x = self._title_start(heading_width) if title else 0.0
        self.title = (x, title_top + 0.45 * title_rows * pixels + self.heading.cap_height / 2)
        return True

    def _place_block(self, needed: float) -> None:
        """The block of rows: often the whole page between margins, else narrower at any place."""
        rng, free = self.rng, self.available - needed
        margin = min(free / 2, float(rng.uniform(0, 24)) * self.size / 256)
        self.left, self.right = self.edge + margin, self.size - self.edge - margin
        if rng.random() < 0.4:
            width = needed + float(rng.random()) * (self.right - self.left - needed)
            self.left += float(rng.random()) * (self.right - self.left - width)
            self.right = self.left + width

    def _place_columns(self, labels: np.ndarray, values: np.ndarray, gap: float) -> None:
        """Starts of labels and values of these widths, and the x of a line between them."""
        left, right = self.left + 0.1 * gap, self.right - 0.1 * gap
        self.label_x: list[float] = [left] * len(labels)
        column = left + labels.max() + gap
        if self.placement == "left":
            self.value_x, self.divider_x = [float(left + width + gap) for width in labels], column
        elif self.placement == "spaced":
            free = max(0.0, right - column - values.max())
            column += float(self.rng.random()) ** 1.5 * free
            self.value_x, self.divider_x = [float(column)] * len(labels), float((left + labels.max() + column) / 2)
        else:
            self.value_x = [float(right - width) for width in values]
            self.divider_x = float((left + labels.max() + min(self.value_x)) / 2)

    def _place_rows(self, pixels: float, count: int, title_height: float) -> float:
        """Borders of the rows: tight or loose, at the top, middle or bottom, or spread; returns the title's top."""
        rng, least = self.rng, pixels * self.line
        room = self.available - title_height
        largest = room / count
        pitch = largest if rng.random() < 0.25 else least + float(rng.beta(1, 2.5)) * (largest - least)
        heights = np.full(count, pitch)
        if not self.ruled and rng.random() < 0.2:  # groups of rows with gaps between them
            gaps = rng.random(count) < 0.3
            gaps[0] = False
            if gaps.any():
                heights = heights + 0.8 * float(rng.random()) * (room - heights.sum()) / gaps.sum() * gaps
        free = max(0.0, room - float(heights.sum()))
        top = self.edge + free * float(rng.choice([0.0, 0.5, 1.0, rng.random()], p=[0.3, 0.2, 0.15, 0.35]))
        title_top = self.edge + float(rng.random()) * (top - self.edge) if rng.random() < 0.3 else top
        self.bounds: list[float] = (top + title_height + np.concatenate([[0.0], np.cumsum(heights)])).tolist()
        return title_top

    def _title_start(self, width: float) -> float:
        """x of a title: anywhere between the page's edges, or at the left of the block if it fits there."""
        rng = self.rng
        x = self.edge + (self.available - width) * float(
            rng.choice([0.0, 0.5, 1.0, rng.random()], p=[0.2, 0.4, 0.1, 0.3])
        )
        return self.left if rng.random() < 0.3 and self.left + width < self.size - self.edge else x

    def rule(self, ink: Ink, label_ends: list[float]) -> None:
        """Draws the layout's lines; `label_ends` are the x of the drawn labels' ends."""
        ruler, parts, size = Ruler(self.rng, ink), self.parts, self.size
        x0, x1 = max(1.0, self.left - 3 * self.unit), min(size - 2.0, self.right + 3 * self.unit)
        top, bottom = max(1.0, self.bounds[0]), min(size - 2.0, self.bounds[-1])
        across = self.bounds[1:-1] if "rows" in parts else []
        for y in [*across, top, bottom] if "frame" in parts or "edges" in parts else across:
            ruler.line(x0, x1, y)
        down = [x0, x1] if "frame" in parts else []
        for x in [*down, self.divider_x] if "divider" in parts else down:
            ruler.line(top, bottom, x, down=True)
        step = float(self.rng.uniform(2.5, 6)) * self.unit
        for end, start, baseline, low in zip(label_ends, self.value_x, self.baselines, self.bounds[1:], strict=True):
            if "leaders" in parts:
                ruler.dots(end + 2 * self.unit, start - 2 * self.unit, baseline, step)
            if "underline" in parts:
                ruler.line(start, x1, low)


_MIN_ENTRIES, _MAX_ENTRIES = 4, 14


@dataclass(frozen=True)
class Entry:
    """One row: the field (lower case), its value, and tight ink boxes; the label's includes a drawn colon."""

    field: str
    value: str
    label_box: Box
    value_box: Box


def _sample_title(rng: np.random.Generator, split: Split) -> str:
    chance = rng.random()
    if chance < 0.55:
        return ""
    if chance < 0.85:
        return pick(rng, part(TITLES, split))
    return " ".join(made_up_word(rng) for _ in range(int(rng.integers(1, 3))))


def render_document(
    rng: np.random.Generator, *, size: int = 256, split: Split = "train", fields: Sequence[str] = FIELDS
) -> tuple[Page, list[Entry]]:
    """A page without questions, of 4 to 14 lines `field value` with distinct fields and distinct values.

    Args:
        rng: the only source of randomness; the same state gives the same page on a machine with the same fonts.
        size: side of the square page, px; all lengths scale with it.
        split: split of fonts, words and layouts, see `arr_coc.pages.splits`.
        fields: names to draw from (lower case, distinct), at least 4; names that `FIELDS` lacks have numbers, or
            values of any kind.

    Raises:
        ValueError: a bad `split`, a page under 64 px, or too few fields.
        FileNotFoundError: no font of the split is installed.
    """
    check_page(size, split)
    if len(set(fields)) < _MIN_ENTRIES:
        raise ValueError(f"fields: expected at least {_MIN_ENTRIES} distinct names; got {list(fields)}")
    supersample, layouts = 2 if rng.random() < 0.45 else 1, LAYOUTS[split]
    weights = np.array([4.0 if name in _PLAIN else 1.0 for name in layouts])
    while True:
        layout = list(layouts)[int(rng.choice(len(layouts), p=weights / weights.sum()))]
        faces = sample_faces(rng, split)
        pairs = sample_pairs(rng, int(rng.integers(_MIN_ENTRIES, _MAX_ENTRIES + 1)), split=split, fields=fields)
        case = (str, str.capitalize, str.upper)[int(rng.choice(3, p=[0.44, 0.46, 0.1]))]
        colon = ":" if rng.random() < 0.5 else ""
        labels, values = [case(field) + colon for field, _ in pairs], [value for _, value in pairs]
        title = _sample_title(rng, split)
        plan = _Plan(rng, layouts[layout], size, supersample)
        if plan.fits(faces, labels, values, title):
            break
    palette = sample_palette(rng)
    label_ink, rule_ink = Ink(size, supersample), Ink(size)
    value_ink = label_ink if palette.value == palette.label else Ink(size, supersample)
    # A line, and a function for the box of its ink, each.
    named = [label_ink.text(*each, plan.label) for each in zip(labels, plan.label_x, plan.baselines, strict=True)]
    told = [value_ink.text(*each, plan.value) for each in zip(values, plan.value_x, plan.baselines, strict=True)]
    headed = [label_ink.text(title, *plan.title, plan.heading)] if title else []
    entries = [
        Entry(*pair, label_box(), value_box())
        for pair, (_, label_box), (_, value_box) in zip(pairs, named, told, strict=True)
    ]
    plan.rule(rule_ink, [entry.label_box[2] for entry in entries])
    layers = [(label_ink, palette.label), (rule_ink, palette.rule), (value_ink, palette.value)]
    image = compose(rng, layers[: 2 + (value_ink is not label_ink)], palette.paper)
    lines = tuple(line for line, _ in (*named, *told, *headed))
    return Page(image, (), layout, names_of(plan.value.face, plan.label.face), lines, tuple(fields)), entries


def names_of(*faces: FontFace) -> str:
    """Family and style of some fonts, each once."""
    return " + ".join(dict.fromkeys(face.name for face in faces))


@DOMAINS.register("document")
def draw_document(rng: np.random.Generator, size: int, split: Split, fields: Sequence[str] = FIELDS) -> Page:
    """A page of `render_document` with one question about each field."""
    return ask_each(rng, *render_document(rng, size=size, split=split, fields=fields), split)


def ask_each(rng: np.random.Generator, page: Page, entries: list[Entry], split: Split) -> Page:
    """The page with one question about each of its fields, in random order."""
    order = rng.permutation(len(entries))
    return replace(page, questions=tuple(_asked(rng, [entries[int(index)]], split) for index in order))


@DOMAINS.register("form")
def draw_form(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_document`; each field has a question about it alone, and one about it and the next fields."""
    page, entries = render_document(rng, size=size, split=split)
    order = rng.permutation(len(entries))
    questions = []
    for turn in range(len(order)):
        asked = [entries[int(index)] for index in np.roll(order, -turn)]
        questions += [_asked(rng, asked[:1], split), _asked(rng, asked[: int(rng.integers(2, 4))], split)]
    return replace(page, questions=tuple(questions))


def _asked(rng: np.random.Generator, entries: list[Entry], split: Split) -> Question:
    """A question about one to three fields; the answer has a line for each."""
    text = ask(rng, *(entry.field for entry in entries), split=split)
    answer = "\n".join(entry.value for entry in entries)
    boxes, labels = tuple(entry.value_box for entry in entries), tuple(entry.label_box for entry in entries)
    return Question(text, (answer,), boxes, labels, "field" if len(entries) == 1 else f"{len(entries)} fields")
