"""Domains `invoice` and `pages`: an A4 page of fields, line items and sums; documents of 2 to 20 such pages.

All lengths are px; `size` is the width of a page, its height is sqrt(2) times that. Print is about 34 px high on a page
1240 px wide. Each question about a document asks for a field of one page. A4 pages are also rendered as views of the
model, as a whole or as a tile; the print of a tile is scaled, not drawn at its final size.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from PIL import Image

from ...modeling.image_processing_arr_coc import Box, fit_square, map_boxes
from ...modeling.views import ViewOptions, Window, plan_tiles
from ..glyphs import Glyph, Styles
from ..questions import DOCUMENT_WORDINGS, ask
from ..splits import Split, part
from ..values import CITIES, COMPANIES, FIELDS, FIRST_NAMES, ITEMS, KINDS, pick, sample_pairs, sample_words
from .canvas import Canvas
from .document import Document, Entry, cased
from .page import Layouts, Page, Question, Span, register, register_sources

ASPECT = 2**0.5
"""Height of a page of the A series by its width."""
PRINT = 34 / 1240
"""Font size as a share of the width, varied by `_VARIED`: 16 pt on A4."""
SUMS = ("subtotal", "tax", "total")
"""Fields below the items, in this order."""
REFERENCES = tuple(field for field in FIELDS if field not in (*SUMS, "price", "quantity"))
"""Fields above the items, without the names of the items' columns."""

_VARIED = 0.1
_MARGIN = (0.055, 0.085)
"""Range of the margin, as a share of the width; ranges below likewise."""
_PITCH = (1.5, 1.9)
_HEADING = (1.3, 1.7)
_LABEL_GAP = (0.4, 1.2)
"""Gap between a label and its value, in font sizes."""
_ITEMS = (2, 7)
_HEADERS = (("Item", "Product", "Article"), ("Qty", "Quantity", "No"), ("Amount", "Cost", "Each"))
_QUANTITY_END = 0.72
"""Right end of the column of quantities, as a share of the width between the margins."""


@dataclass(frozen=True)
class Layout:
    """The layout of a page.

    Attributes:
        columns: number of columns of the fields above the items.
        spaced: values share a start; else each is beside its label.
        sums: start of the sums, as a share of the width between the margins.
        ruled: lines around the items' header and above the sums.
        zebra: every other item is tinted.
    """

    columns: int
    spaced: bool
    sums: float = 0.5
    ruled: bool = False
    zebra: bool = False


LAYOUTS = Layouts(
    train={
        "one": Layout(1, False),
        "one_spaced": Layout(1, True, ruled=True),
        "two": Layout(2, False, ruled=True),
        "two_spaced": Layout(2, True),
        "two_left": Layout(2, False, sums=0.0, zebra=True),
    },
    test={
        "one_zebra": Layout(1, False, zebra=True),
        "one_spaced_left": Layout(1, True, sums=0.0, ruled=True),
        "two_zebra": Layout(2, False, sums=0.4, zebra=True, ruled=True),
        "two_spaced_ruled": Layout(2, True, ruled=True),
    },
)


@dataclass(frozen=True)
class Sheet:
    """A drawn page: picture, label and value of each field by name, layout, font and characters.

    If only a window is drawn, the picture shows the window; all else is about the page.
    """

    image: Image.Image
    fields: dict[str, tuple[Span, Span]]
    layout: str
    font: str
    glyphs: tuple[Glyph, ...]


Choose = Callable[[dict[str, tuple[Box, Box]]], tuple[int, int, int]]
"""Maps approximate boxes of each field's label and value on a page to a window (x, y, side), px."""


def question_about(sheet: Sheet, field: str, text: str) -> Question:
    """The question `text` about a field of the sheet."""
    label, value = sheet.fields[field]
    return Question(text, (value.text,), (value.box,), (label.box,), "field")


@register("invoice", LAYOUTS, {"field": DOCUMENT_WORDINGS}, square=False)
def draw_invoice(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page `size` px wide with 5 to 10 fields and sums, and a question about each."""
    sheet = draw_sheet(rng, size, split, sample_fields(rng))
    order = [list(sheet.fields)[i] for i in rng.permutation(len(sheet.fields))]
    questions = tuple(question_about(sheet, field, ask(rng, field, split=split)) for field in order)
    return Page(sheet.image, questions, sheet.layout, sheet.font, sheet.glyphs, tuple(FIELDS))


def sample_fields(rng: np.random.Generator) -> list[str]:
    """The fields of an invoice: 5 to 10, and one or all of `SUMS`."""
    references = [REFERENCES[i] for i in rng.permutation(len(REFERENCES))[: int(rng.integers(5, 11))]]
    return [*references, *(SUMS if rng.random() < 0.6 else SUMS[2:])]


def draw_sheet(
    rng: np.random.Generator, width: int, split: Split, fields: Sequence[str], *, choose: Choose | None = None
) -> Sheet:
    """A page with the given fields, at most ten and those of `SUMS`, which are below a list of items.

    Args:
        rng: the only source of randomness.
        width: width of the page, px.
        split: split of fonts, words and layouts.
        fields: names of `REFERENCES` and `SUMS`.
        choose: chooses the window to draw, which is faster; None: the whole page.

    Raises:
        ValueError: a page under 64 px, or an unknown split.
        FileNotFoundError: no font of the split is installed.
    """
    window = None
    if choose is not None:  # the page is laid out twice, first on a minimal canvas
        state = rng.bit_generator.state
        _, planned, _ = _write_sheet(rng, width, split, fields, (-1, -1, 1))
        rng.bit_generator.state = state
        window = choose({field: (label.box, value.box) for field, (label, value) in planned.items()})
    canvas, spans, layout = _write_sheet(rng, width, split, fields, window)
    image = canvas.finish()
    if window is None:
        image = image.crop((0, 0, width, round(ASPECT * width)))
    return Sheet(image, spans, layout, canvas.font, tuple(canvas.glyphs))


def _write_sheet(
    rng: np.random.Generator, width: int, split: Split, fields: Sequence[str], window: tuple[int, int, int] | None
) -> tuple[Canvas, dict[str, tuple[Span, Span]], str]:
    """A canvas with a page, its fields, and its layout's name."""
    height = round(ASPECT * width)
    canvas = Canvas(rng, height, split, window=window)
    while True:
        name, layout = LAYOUTS.draw(rng, split)
        print_size = PRINT * width * float(rng.uniform(1 - _VARIED, 1 + _VARIED))
        styles = canvas.styles.scaled(print_size, float(rng.uniform(*_HEADING)))
        writer = _Writer(canvas, styles, width, print_size, float(rng.uniform(*_MARGIN)) * width)
        entries = dict(sample_pairs(rng, len(fields), split=split, fields=fields))
        entries |= {field: KINDS["amount"](rng, split) for field in SUMS if field in entries}
        labels = dict(zip(entries, cased(rng, list(entries)), strict=True))
        colon = pick(rng, ("", ":"))
        texts = {field: (labels[field] + colon, value) for field, value in entries.items()}
        rows = [field for field in entries if field not in SUMS]
        sums = [field for field in SUMS if field in entries]
        items = int(rng.integers(*_ITEMS)) if sums or rng.random() < 0.7 else 0
        lines = 2 + -(-len(rows) // layout.columns) + (1 + items if items else 0) + len(sums)
        room = height - 2 * writer.margin - 3 * print_size  # three gaps of at least a font size
        pitch = print_size * float(rng.uniform(*_PITCH))
        if lines * pitch <= room and writer.fits([texts[field] for field in rows], layout):
            break
    writer.pitch, spare = pitch, room - lines * pitch
    writer.gaps = iter((print_size + spare * rng.dirichlet(np.ones(4))[:3]).tolist())
    writer.write_heading(rng, split)
    spans = writer.write_fields(rng, rows, texts, layout)
    if items:
        writer.write_items(rng, items, layout, split)
    spans |= writer.write_sums(rng, sums, texts, layout)
    return canvas, spans, name


class _Writer:
    """Writes blocks of a page from top to bottom.

    Args:
        canvas: the canvas.
        styles: text styles at their size.
        width: width of the page; the canvas can be wider.
        print_size: the font size.
        margin: free space on every side.

        Attributes:
            pitch: line pitch.
            gaps: gaps between blocks.
            y: top of the next line.
    """

    def __init__(self, canvas: Canvas, styles: Styles, width: int, print_size: float, margin: float) -> None:
        self.canvas, self.styles, self.print_size, self.margin = canvas, styles, print_size, margin
        self.left, self.right = margin, width - margin
        self.pitch, self.y = 0.0, margin
        self.gaps: Iterator[float] = iter(())

    def _line(self) -> float:
        """The baseline of a new line."""
        self.y += self.pitch
        return self.y - 0.5 * (self.pitch - self.styles.value.cap_height)

    def fits(self, texts: Sequence[tuple[str, str]], layout: Layout) -> bool:
        """Whether fields fit side by side in the layout's columns with the widest gap."""
        labels = [self.styles.label.width(label) for label, _ in texts]
        values = [self.styles.value.width(value) for _, value in texts]
        widest = max(labels) + max(values) if layout.spaced else max(map(sum, zip(labels, values, strict=True)))
        return widest + (_LABEL_GAP[1] + 0.5) * self.print_size <= (self.right - self.left) / layout.columns

    def write_heading(self, rng: np.random.Generator, split: Split) -> None:
        """Writes the name of a company, and a line with a person and a city."""
        name, heading = pick(rng, part(COMPANIES, split)), self.styles.heading
        indent = float(rng.choice([0.0, 0.5, 1.0])) * max(0.0, self.right - self.left - 1.1 * heading.width(name))
        self.canvas.write(name, (self.left + indent, self._line()), heading, "heading")
        place = f"{pick(rng, part(FIRST_NAMES, split))}, {pick(rng, part(CITIES, split))}"
        self.canvas.write(place, (self.left, self._line()), self.styles.label, "label")
        self.y += next(self.gaps)

    def write_fields(
        self, rng: np.random.Generator, rows: Sequence[str], texts: dict[str, tuple[str, str]], layout: Layout
    ) -> dict[str, tuple[Span, Span]]:
        """Writes fields in columns, row by row."""
        gap = float(rng.uniform(*_LABEL_GAP)) * self.print_size
        column = (self.right - self.left) / layout.columns
        widest = max(self.styles.label.width(texts[field][0]) for field in rows)
        spans, baseline = {}, 0.0
        for place, field in enumerate(rows):
            number = place % layout.columns
            baseline = self._line() if number == 0 else baseline
            label, value = texts[field]
            x = self.left + number * column
            at = x + gap + (widest if layout.spaced else self.styles.label.width(label))
            spans[field] = self._pair(label, value, x, at, baseline)
        self.y += next(self.gaps)
        return spans

    def _pair(self, label: str, value: str, x: float, at: float, baseline: float) -> tuple[Span, Span]:
        written = self.canvas.write(label, (x, baseline), self.styles.label, "label")
        return written, self.canvas.write(value, (at, baseline), self.styles.value, "value")

    def write_items(self, rng: np.random.Generator, count: int, layout: Layout, split: Split) -> None:
        """Writes a header and rows of items with quantity and price."""
        rows = [tuple(pick(rng, names) for names in _HEADERS)]
        for name in sample_words(rng, ITEMS, count, split):
            rows.append((name, str(rng.integers(1, 25)), KINDS["amount"](rng, split)))
        ends = (0.0, self.left + _QUANTITY_END * (self.right - self.left), self.right)
        for number, row in enumerate(rows):
            top, baseline = self.y, self._line()
            style, role = (self.styles.label, "label") if number == 0 else (self.styles.value, "value")
            if layout.zebra and number % 2:
                self.canvas.fill([(self.left, top, self.right, self.y)], self.canvas.tint(0.1))
            starts = [self.left, *(end - style.width(text) for text, end in zip(row[1:], ends[1:], strict=True))]
            for text, x in zip(row, starts, strict=True):
                self.canvas.write(text, (x, baseline), style, "label" if role == "label" else "value")
            if layout.ruled and number == 0:
                self.canvas.ruler.horizontal(self.left, self.right, self.y)
        self.y += next(self.gaps)

    def write_sums(
        self, rng: np.random.Generator, fields: Sequence[str], texts: dict[str, tuple[str, str]], layout: Layout
    ) -> dict[str, tuple[Span, Span]]:
        """Writes sums, with values one below the other."""
        if not fields:
            return {}
        if layout.ruled:
            self.canvas.ruler.horizontal(self.left, self.right, self.y)
        gap = float(rng.uniform(*_LABEL_GAP)) * self.print_size
        x = self.left + layout.sums * (self.right - self.left)
        at = x + gap + max(self.styles.label.width(texts[field][0]) for field in fields)
        return {field: self._pair(*texts[field], x, at, self._line()) for field in fields}


_ASKED = 6
"""The most fields with questions; other fields can be on several pages."""
_SHOWN = (4, 9)
"""Range of the number of other fields on a page."""


@register_sources("pages", LAYOUTS, {"field": DOCUMENT_WORDINGS}, least=2, most=20, paged=True)
def draw_pages(rng: np.random.Generator, size: int, split: Split, count: int) -> Page:
    """A document of `count` pages `size` px wide, as if invoices of several companies were scanned together."""
    names = [(*REFERENCES, *SUMS)[i] for i in rng.permutation(len(REFERENCES) + len(SUMS))]
    asked, others = names[: min(count, _ASKED)], names[_ASKED:]
    places = dict(zip(rng.permutation(count).tolist(), asked, strict=False))
    sheets, questions = [], {}
    for number in range(count):
        fields = [others[i] for i in rng.permutation(len(others))[: int(rng.integers(*_SHOWN))]]
        if number in places:
            fields.append(places[number])
        sheet = draw_sheet(rng, size, split, fields)
        sheets.append(sheet)
        if number in places:
            question = question_about(sheet, places[number], ask(rng, places[number], split=split))
            questions[places[number]] = replace(
                question, box_sources=(number,), label_sources=(number,), answer_sources=(number,)
            )
    first, *rest = sheets
    return Page(
        first.image, tuple(questions[field] for field in asked), first.layout, first.font,
        tags=(("pages", str(count)),), others=tuple(sheet.image for sheet in rest),
    )  # fmt: skip


PAGE = 1240 / 320
"""Width of a page relative to the side of a view: A4 at 150 dpi for a model of 320 px."""
READABLE = 7.0 / 320
"""Least height of legible capitals, relative to the side of a view; as in domain `density`."""

_WIDTHS = (0.9, 1.2)
"""Range of page widths, as shares of `PAGE`."""
_TILE_SHOWN = (4, 10)
"""Range of the number of fields on a page of a document, as in domain `pages`."""
_PAPER = 127
"""Colour of the padding of a view: the mean that the image processor subtracts."""
_GRID = 40
"""Patches along a view's side; with other grids tiles overlap a little more or less."""
_TILE_MARGIN = 0.03
"""Margin around a tile that is also drawn, as a share of the tile, for letters that cross its edge."""
_COMPRESSED, _QUALITY = 0.5, (70, 96)
"""Share of pages with JPEG compression, and its quality."""


def render_tile(rng: np.random.Generator, *, size: int = 320, split: Split = "train") -> Document:
    """A tile of an A4 page, `size` px a side, with at least one field, cut as by `views.plan_tiles` and the processor.

    Args:
        rng: the only source of randomness.
        size: side of the view, px.
        split: split of fonts, words and layouts.

    Returns:
        The entries that are completely in the tile, all characters in the tile, and `Document.labels` and
        `Document.elsewhere` for entries in other tiles.

    Raises:
        ValueError: an unknown split, or a view too small for text.
        FileNotFoundError: no font of the split is installed.
    """
    while True:
        width = round(PAGE * size * float(rng.uniform(*_WIDTHS)))
        windows = plan_tiles(
            round(ASPECT * width), width, grid=_GRID, patch_size=max(1, size // _GRID), scale=ViewOptions.tile_scale
        )
        choice = _Choice(windows, float(rng.random()))
        sheet = draw_sheet(rng, width, split, _sample_fields(rng), choose=choice)
        x, y, end, _ = choice.window
        side, margin = end - x, choice.margin
        crop = _stored(rng, sheet.image).crop((margin, margin, margin + side, margin + side))
        image = crop.resize((size, size), Image.Resampling.BICUBIC)
        document = _seen(sheet, image, partial(_moved, corner=(x, y), scale=size / side), size)
        if document.entries:
            return document


class _Choice:
    """Chooses one of `windows` that show a field, by `chance` from 0 to 1."""

    def __init__(self, windows: Sequence[Window], chance: float) -> None:
        self.windows, self.chance = windows, chance
        self.window = windows[0]

    @property
    def margin(self) -> int:
        """Margin that is drawn on every side, px."""
        return round(_TILE_MARGIN * (self.window[2] - self.window[0]))

    def __call__(self, places: dict[str, tuple[Box, Box]]) -> tuple[int, int, int]:
        """See `invoice.Choose`."""
        shows = [own for own in self.windows if any(_holds(own, *boxes) for boxes in places.values())]
        self.window = shows[int(self.chance * len(shows))] if shows else self.windows[0]
        x, y, end, _ = self.window
        return x - self.margin, y - self.margin, end - x + 2 * self.margin


def render_overview(rng: np.random.Generator, *, size: int = 320, split: Split = "train") -> Document:
    """A whole A4 page in a view of `size` px a side; arguments and errors are as in `render_tile`.

    Returns:
        All entries of the page, though most are not legible; characters only if legible.
    """
    drawn = round(2 * size / ASPECT)  # twice the final size is enough; more pixels look the same after scaling
    sheet = draw_sheet(rng, drawn, split, _sample_fields(rng))
    page = _stored(rng, sheet.image)
    placed = fit_square(page.height, page.width, size)
    image = Image.new("RGB", (size, size), (_PAPER,) * 3)
    (height, width), (top, left) = placed.size, placed.offset
    image.paste(page.resize((width, height), Image.Resampling.BICUBIC), (left, top))
    return _seen(sheet, image, lambda box: map_boxes([box], page.height, page.width, size)[0], size)


def _sample_fields(rng: np.random.Generator) -> Sequence[str]:
    """Fields of an invoice, or of a page of domain `pages`."""
    if rng.random() < 0.5:
        return sample_fields(rng)
    names = (*REFERENCES, *SUMS)
    return [names[i] for i in rng.permutation(len(names))[: int(rng.integers(*_TILE_SHOWN))]]


def _stored(rng: np.random.Generator, page: Image.Image) -> Image.Image:
    """The page, with or without JPEG compression."""
    if rng.random() >= _COMPRESSED:
        return page
    stream = io.BytesIO()
    page.save(stream, "JPEG", quality=int(rng.integers(*_QUALITY)))
    return Image.open(stream).convert("RGB")


def _moved(box: Box, *, corner: tuple[int, int], scale: float) -> Box:
    (x0, y0, x1, y1), (x, y) = box, corner
    return (x0 - x) * scale, (y0 - y) * scale, (x1 - x) * scale, (y1 - y) * scale


def _holds(window: Box, *boxes: Box) -> bool:
    x0, y0, x1, y1 = window
    return all(x0 <= a and y0 <= b and c <= x1 and d <= y1 for a, b, c, d in boxes)


def _seen(sheet: Sheet, image: Image.Image, place: Callable[[Box], Box], size: int) -> Document:
    """The content of a view of a page; `place` maps boxes of the page to the view."""
    entries, labels, elsewhere = [], [], []
    for field, (label, value) in sheet.fields.items():
        label_box, value_box = place(label.box), place(value.box)
        if _inside(label_box, size) and _inside(value_box, size):
            entries.append(Entry(field, label.text.removesuffix(":"), value.text, label_box, value_box))
        elif _inside(label_box, size):
            labels.append((field, label_box))
        elif not (_touches(label_box, size) or _touches(value_box, size)):
            elsewhere.append(field)
    placed = [Glyph(glyph.char, place(glyph.box)) for glyph in sheet.glyphs]
    shown = [g for g in placed if _inside(g.box, size) and g.box[3] - g.box[1] >= READABLE * size]
    return Document(image, tuple(entries), tuple(shown), sheet.layout, sheet.font, tuple(labels), tuple(elsewhere))


def _inside(box: Box, size: int) -> bool:
    return _holds((0, 0, size, size), box)


def _touches(box: Box, size: int) -> bool:
    return box[2] > 0 and box[3] > 0 and box[0] < size and box[1] < size
