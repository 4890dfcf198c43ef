"""Domain `pages`: documents of 2 to 20 A4 pages; and A4 pages as the model sees them, whole or a tile.

What they show is that of domain `invoice`. Each question about a document asks for a field of one of its pages alone.
A tile's print is what scaling leaves of it, not what a font is drawn at. Lengths are px; windows and boxes of the page
are in its own px, those of a `Document` in px of the view.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from PIL import Image

from ...modeling.image_processing_arr_coc import Box, fit_square, map_boxes
from ...modeling.views import ViewOptions, Window, plan_tiles
from ..glyphs import Glyph
from ..questions import DOCUMENT_WORDINGS, ask
from ..splits import Split
from .document import Document, Entry
from .invoice import ASPECT, LAYOUTS, REFERENCES, SUMS, Sheet, draw_sheet, question_about, sample_fields
from .page import Page, register_sources

_ASKED = 6
"""Fields at most that are asked for; the others may stand on several pages."""
_SHOWN = (4, 9)
"""Other fields on a page, from and to."""


@register_sources("pages", LAYOUTS, {"field": DOCUMENT_WORDINGS}, least=2, most=20, paged=True)
def draw_pages(rng: np.random.Generator, size: int, split: Split, count: int) -> Page:
    """A document of `count` pages `size` px wide, as the invoices of several companies that were scanned together."""
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
"""Width of a page by the side of a view: A4 at 150 dpi for a model of 320 px."""
READABLE = 7.0 / 320
"""Height of the lowest capitals that are to be read, by the side of a view: those of domain `density`."""

_WIDTHS = (0.9, 1.2)
"""Widths of pages, from and to, as shares of `PAGE`."""
_TILE_SHOWN = (4, 10)
"""Fields of a page of a document, from and to, as in domain `pages`."""
_PAPER = 127
"""What is beside a page in its view: the mean that the image processor subtracts."""
_GRID = 40
"""Patches of a view's side: with other grids tiles overlap a little more or less."""
_MARGIN = 0.03
"""By which more than a tile is drawn on every side, as a share of the tile: letters that reach over its edge."""
_COMPRESSED, _QUALITY = 0.5, (70, 96)
"""Share of the pages that were stored as JPEG, and its quality."""


def render_tile(rng: np.random.Generator, *, size: int = 320, split: Split = "train") -> Document:
    """A tile of an A4 page, `size` px a side, with a field or more, as `views.plan_tiles` and the processor cut it.

    Args:
        rng: the only source of randomness.
        size: side of the view, px.
        split: of fonts, words and layouts.

    Returns:
        The entries that lie wholly in the tile; the characters of the others too where they do; `Document.labels` and
        `Document.elsewhere`, which the page shows on other tiles alone.

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
    """Chooses one of `windows` that show a field; `chance`, from 0 to 1, says which."""

    def __init__(self, windows: Sequence[Window], chance: float) -> None:
        self.windows, self.chance = windows, chance
        self.window = windows[0]

    @property
    def margin(self) -> int:
        """By which more is drawn on every side, px."""
        return round(_MARGIN * (self.window[2] - self.window[0]))

    def __call__(self, places: dict[str, tuple[Box, Box]]) -> tuple[int, int, int]:
        """See `invoice.Choose`."""
        shows = [own for own in self.windows if any(_holds(own, *boxes) for boxes in places.values())]
        self.window = shows[int(self.chance * len(shows))] if shows else self.windows[0]
        x, y, end, _ = self.window
        return x - self.margin, y - self.margin, end - x + 2 * self.margin


def render_overview(rng: np.random.Generator, *, size: int = 320, split: Split = "train") -> Document:
    """All of an A4 page in a view of `size` px a side; arguments and errors as of `render_tile`.

    Returns:
        All entries of the page, though their print can mostly not be read; characters only where it can.
    """
    drawn = round(2 * size / ASPECT)  # half the pixels of a side: what shrinks further looks alike
    sheet = draw_sheet(rng, drawn, split, _sample_fields(rng))
    page = _stored(rng, sheet.image)
    placed = fit_square(page.height, page.width, size)
    image = Image.new("RGB", (size, size), (_PAPER,) * 3)
    (height, width), (top, left) = placed.size, placed.offset
    image.paste(page.resize((width, height), Image.Resampling.BICUBIC), (left, top))
    return _seen(sheet, image, lambda box: map_boxes([box], page.height, page.width, size)[0], size)


def _sample_fields(rng: np.random.Generator) -> Sequence[str]:
    """Those of an invoice, or of a page of a document of domain `pages`."""
    if rng.random() < 0.5:
        return sample_fields(rng)
    names = (*REFERENCES, *SUMS)
    return [names[i] for i in rng.permutation(len(names))[: int(rng.integers(*_TILE_SHOWN))]]


def _stored(rng: np.random.Generator, page: Image.Image) -> Image.Image:
    """The page as it comes out of a file."""
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
    """What a view of a page shows; `place` takes boxes of the page to the view."""
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
