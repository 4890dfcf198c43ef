"""A contact sheet of a document that was asked about: pages that were fetched from, large and outlined; thumbnails."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from .modeling.asker import Answer
from .modeling.image_loading import Source
from .viewing import INK, MARGIN, PAPER, SOFT_INK, caption_below, outline

LARGE, SMALL = 900, 180  # px of the longer side of a page
COLUMNS = 3  # large pages beside one another
WIDEST = 40
"""Thumbnails in a sheet; more pages are said, but not drawn."""


def draw_sheet(sources: Sequence[Source], answer: Answer, *, question: str) -> Image.Image:
    """The sheet: pages that the answer's patches came from, then the others, and below them question and answer.

    Args:
        sources: what was asked about, all pages or frames of it (`ImageEncoding.sources`).
        answer: of `generate(..., return_fetch=True)`.
        question: for the caption.

    Raises:
        ValueError: an answer about other sources.
    """
    fetched: dict[int, list[tuple[float, ...]]] = {}
    for origin in answer.sources:
        fetched.setdefault(origin.source, []).append(origin.box)
    if fetched and max(fetched) >= len(sources):
        raise ValueError(f"answer: expected one about {len(sources)} sources; got source {max(fetched)}")
    large = [_outlined(sources[number], fetched[number]) for number in sorted(fetched)]
    others = [number for number in range(len(sources)) if number not in fetched]
    small = [_named(_shrunk(sources[number], SMALL)[0], _name(sources[number])) for number in others[:WIDEST]]
    rows = [_rows(large, COLUMNS * LARGE), _rows(small, max(COLUMNS * SMALL, *(page.width for page in large), 0))]
    sheet = _stacked([row for part in rows for row in part] or [Image.new("RGB", (SMALL, SMALL), PAPER)])
    return caption_below(sheet, answer, question=question)


def _name(source: Source) -> str:
    if source.second is not None:
        return f"{source.second:g} s"
    return "" if source.page is None else f"page {source.page}"


def _shrunk(source: Source, longest: int) -> tuple[Image.Image, float]:
    """The page at `longest` px at most, and its scale."""
    scale = min(1.0, longest / max(source.height, source.width))
    size = (max(1, round(source.width * scale)), max(1, round(source.height * scale)))
    return source.load().resize(size, Image.Resampling.LANCZOS), scale


def _outlined(source: Source, boxes: Sequence[tuple[float, ...]]) -> Image.Image:
    page, scale = _shrunk(source, LARGE)
    layer = Image.new("RGBA", page.size)
    outline(layer, [tuple(round(edge * scale) for edge in box) for box in boxes], 2)
    drawn = page.convert("RGBA")
    drawn.alpha_composite(layer)
    return _named(drawn.convert("RGB"), _name(source))


def _named(page: Image.Image, name: str) -> Image.Image:
    """The page in a thin frame, its name below it."""
    font = ImageFont.load_default(size=14)
    framed = Image.new("RGB", (page.width + 2, page.height + 2 + (20 if name else 0)), PAPER)
    draw = ImageDraw.Draw(framed)
    draw.rectangle((0, 0, page.width + 1, page.height + 1), outline=SOFT_INK)
    framed.paste(page, (1, 1))
    draw.text((2, page.height + 3), name, INK, font)
    return framed


def _rows(pages: Sequence[Image.Image], width: int) -> list[Image.Image]:
    """Pages side by side in rows of at most `width` px."""
    rows: list[list[Image.Image]] = []
    for page in pages:
        used = sum(other.width + MARGIN for other in rows[-1]) if rows else 0
        if rows and used + page.width <= width:
            rows[-1].append(page)
        else:
            rows.append([page])
    return [_beside(row) for row in rows]


def _beside(pages: Sequence[Image.Image]) -> Image.Image:
    size = (sum(page.width for page in pages) + MARGIN * (len(pages) - 1), max(page.height for page in pages))
    row, x = Image.new("RGB", size, PAPER), 0
    for page in pages:
        row.paste(page, (x, 0))
        x += page.width + MARGIN
    return row


def _stacked(rows: Sequence[Image.Image]) -> Image.Image:
    size = (max(row.width for row in rows), sum(row.height for row in rows) + MARGIN * (len(rows) - 1))
    sheet, y = Image.new("RGB", size, PAPER), 0
    for row in rows:
        sheet.paste(row, (0, y))
        y += row.height + MARGIN
    return sheet
