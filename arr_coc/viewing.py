"""Pictures of an answer: the image, its base grid, the fetched patches, and the relevance of all patches.

For a document it is a contact sheet: pages with fetched patches, large, with relevance, and thumbnails of the others.

Notation: G side of the fine grid, N = G*G patches, K fetched patches. Positions are (y, x), row-major.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .modeling.configuration_arr_coc import COMPRESSION
from .modeling.fetcher import FetchResult
from .modeling.generation import Answer
from .modeling.grid_encoder import LEVELS
from .modeling.image_loading import Source, turn_box
from .modeling.image_processing_arr_coc import Box, Placement, fit_square, load_image, map_boxes, square_of
from .modeling.views import JointFetch

Window = tuple[float, ...]

SHORTEST, LONGEST = 768, 1536  # bounds on the longer side of the drawn image, px

VIRIDIS = ("440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725")
"""Ten evenly spaced colours of matplotlib's viridis (CC0), low to high: perceptually even, also in grey."""

CLEAREST, DENSEST = 0.15, 0.6  # opacity of the heat map at relevance 0 and 1: irrelevant parts stay readable
GRID_COLOUR, SEAM_COLOUR = (128, 128, 128, 130), (255, 64, 0, 110)
OUTLINE_COLOUR, HALO_COLOUR = (255, 64, 0, 255), (255, 255, 255, 200)
PAPER, INK, SOFT_INK = (255, 255, 255), (20, 20, 20), (90, 90, 90)
MARGIN, BAR_HEIGHT, NARROWEST = 16, 14, 520  # px

CAPTION_FONTS = ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "Arial.ttf", "Helvetica.ttc")
"""Fonts of the system for captions: Pillow's own, which is used without them, has no signs of currencies."""


@lru_cache
def caption_font(size: int) -> Any:
    """The first of `CAPTION_FONTS` that is installed, `size` px high; else Pillow's own."""
    for name in CAPTION_FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def draw_answer(image: Any, answer: Answer, *, question: str) -> Image.Image:
    """`draw_fetch` for the result of `generate(..., return_fetch=True)`, for one image and one question."""
    boxes = [origin.box for origin in answer.sources] or None
    said: Any = {"question": question, "text": answer.text, "probability": answer.probability}
    return draw_fetch(image, answer.fetch, **said, boxes=boxes, turned=sum(answer.turned))


def draw_fetch(
    image: Any,
    fetch: FetchResult,
    *,
    question: str = "",
    text: str | None = None,
    probability: float | None = None,
    boxes: Sequence[Box] | None = None,
    turned: int = 0,
) -> Image.Image:
    """The image with relevance as a heat map, the base grid faint, fetched patches outlined, and a caption below.

    Args:
        image: the source image, in any form that `generate` takes (the padding to a square is undone here).
        fetch: the fetched patches of this image; one item (see `FetchResult.select`).
        question, text, probability: for the caption; `text` is the answer, `probability` in 0..1.
        boxes: what is outlined instead of the patches, px of the image: the places of the answer's tokens
            (`Answer.sources`), which are words for models that read text.
        turned: degrees by which the image was turned to read it (`Answer.turned`).

    Returns:
        RGB, the image at `SHORTEST` to `LONGEST` px along its longer side.

    Raises:
        ValueError: an image that cannot be read, or more or fewer than one item.
    """
    given = load_image(image)
    source = given.rotate(turned, expand=True)
    items, patches = fetch.relevance.shape
    if items != 1:
        expected = "the result of one image and question (take it by select(torch.tensor([i])))"
        raise ValueError(f"fetch: expected {expected}; got {items}")
    side = math.isqrt(patches)
    cell = math.ceil(min(max(SHORTEST, *source.size), LONGEST) / side)  # px of a patch as drawn
    placed = fit_square(source.height, source.width, cell * side)
    canvas = source.resize(placed.size[::-1], Image.Resampling.LANCZOS).convert("RGBA")
    if fetch.budget:
        relevance = fetch.relevance[0].float().cpu().numpy().reshape(side, side)
        layer = Image.fromarray(heat(relevance)).resize((cell * side,) * 2, Image.Resampling.NEAREST)
        canvas.alpha_composite(layer.crop(_window(placed)))
    if boxes is not None:
        boxes = [turn_box(box, turned, given.height, given.width) for box in boxes]
    elif isinstance(fetch, JointFetch):  # whose regions are those of overview and tiles
        boxes = [tuple(box) for box in fetch.boxes()[0][fetch.used[0].cpu()].tolist()]
    drawn: list[tuple[int, ...]]
    if boxes is None:
        drawn = [(x0 * cell, y0 * cell, x1 * cell, y1 * cell) for y0, x0, y1, x1 in fetch.regions()[0].tolist()]
    else:
        drawn = [tuple(map(round, box)) for box in map_boxes(boxes, source.height, source.width, cell * side)]
    canvas.alpha_composite(_lines(drawn, side, cell, placed, grid=fetch.base != 0))
    canvas = canvas.rotate(-turned, expand=True)
    return _with_caption(canvas.convert("RGB"), fetch, question, text, probability, bool(fetch.budget))


def colours(values: np.ndarray) -> np.ndarray:
    """Viridis of values in 0..1 (others are clipped): [...] -> uint8 [..., 3]."""
    table = np.array([[int(code[i : i + 2], 16) for i in (0, 2, 4)] for code in VIRIDIS], dtype=np.float64)
    at = np.linspace(0, 1, len(table))
    channels = [np.interp(np.clip(values, 0, 1), at, table[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, -1)).astype(np.uint8)


def heat(relevance: np.ndarray) -> np.ndarray:
    """The heat map's colour and opacity: [...] in 0..1 -> uint8 RGBA [..., 4]."""
    opacity = CLEAREST + (DENSEST - CLEAREST) * np.clip(relevance, 0, 1)
    return np.concatenate((colours(relevance), np.rint(255 * opacity).astype(np.uint8)[..., None]), -1)


def _lines(boxes: Sequence[tuple[int, ...]], side: int, cell: int, placed: Placement, *, grid: bool) -> Image.Image:
    """The base grid, faint, and an outline around the fetched patches, as a layer over the image inside the square.
    `boxes`: x0, y0, x1, y1 of each token in px of the square; `grid`: whether there are base tokens."""
    layer = Image.new("RGBA", (cell * side,) * 2)
    draw = ImageDraw.Draw(layer)
    for at in range(COMPRESSION * cell, side * cell, COMPRESSION * cell) if grid else ():
        draw.line((at, 0, at, side * cell), GRID_COLOUR)
        draw.line((0, at, side * cell, at), GRID_COLOUR)
    for box in boxes:
        draw.rectangle(box, outline=SEAM_COLOUR)
    outline(layer, boxes, max(2, cell // 8))
    return layer.crop(_window(placed))


def outline(layer: Image.Image, boxes: Sequence[tuple[int, ...]], width: int) -> None:
    """Draws a line of `width` px around the union of boxes (x0, y0, x1, y1)."""
    inside = np.zeros(layer.size[::-1], dtype=bool)
    for x0, y0, x1, y1 in boxes:
        inside[max(0, y0) : y1, max(0, x0) : x1] = True
    for colour, reach in ((HALO_COLOUR, width + 1), (OUTLINE_COLOUR, width)):  # a halo, visible on any background
        layer.paste(colour, mask=Image.fromarray(inside & ~_eroded(inside, reach)))


def _eroded(mask: np.ndarray, reach: int) -> np.ndarray:
    """Pixels of `mask` farther than `reach` from all others and from the edge; gaps are at least `reach` wide."""
    height, width = mask.shape
    padded, inner = np.pad(mask, reach), mask.copy()
    for top in (0, reach, 2 * reach):
        for left in (0, reach, 2 * reach):
            inner &= padded[top : top + height, left : left + width]
    return inner


def _window(placed: Placement) -> tuple[int, int, int, int]:
    (top, left), (height, width) = placed.offset, placed.size
    return left, top, left + width, top + height


# ---- caption ------------------------------------------------------------------------------------------------------


def _with_caption(
    picture: Image.Image, fetch: FetchResult, question: str, text: str | None, probability: float | None, heated: bool
) -> Image.Image:
    """The picture on paper; below it a colour bar if `heated`, question, answer, confidence and a summary of the
    fetched patches."""
    width = max(picture.width, NARROWEST)
    large, small = caption_font(22), caption_font(16)
    said = [f"Q: {question}"] if question.strip() else []
    if text is not None:
        confidence = "" if probability is None else f"   (confidence {probability:.1%})"
        said.append(f"A: {text or '(nothing)'}{confidence}")
    lines = [(line, large, INK) for entry in said for line in wrap(entry, large, width)]
    lines += [(line, small, SOFT_INK) for line in wrap(describe(fetch), small, width)]
    heights = [font.size * 1.35 for _, font, _ in lines]
    bar = round(BAR_HEIGHT + 2.2 * small.size) if heated else 0
    height = 3 * MARGIN + picture.height + bar + round(sum(heights))
    page = Image.new("RGB", (width + 2 * MARGIN, height), PAPER)
    page.paste(picture, (MARGIN + (width - picture.width) // 2, MARGIN))
    y: float = 2 * MARGIN + picture.height
    if heated:
        _draw_bar(page, round(y), width, small)
        y += bar
    draw = ImageDraw.Draw(page)
    for (line, font, ink), step in zip(lines, heights, strict=True):
        draw.text((MARGIN, y), line, ink, font)
        y += step
    return page


def describe(fetch: FetchResult, *, drawn: bool = True) -> str:
    """One sentence: strategy, budget, and the number of padding patches; `drawn`: and what outlines and grid show."""
    patches = fetch.relevance.shape[-1]
    base = patches // COMPRESSION**2 if fetch.base is None else fetch.base  # a published model may have several views
    if not fetch.budget:
        return f"strategy {fetch.strategy}: the {base} base tokens only, nothing fetched of {patches} patches"
    padding = int((fetch.is_padding & fetch.used).sum())
    if isinstance(fetch, JointFetch):
        counts = ((len(fetch.seen.views.slots), "view"), (len(fetch.counts), "source"))
        views, sources = (f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
        each = "" if counts[0][0] == 1 else " each"
        origin, held = f"{views} of {sources}", fetch.counts.nonzero()[:, 0].tolist()
        if len(held) == 1 < len(fetch.counts):  # as of a document whose most relevant page is asked
            origin, each = f"source {held[0] + 1} of {len(fetch.counts)}", " a view"
        fetched = f"{_amount(fetch)} fetched{' (outlined)' if drawn else ''} from {origin}"
        return f"strategy {fetch.strategy}, allocator {fetch.allocator}: {fetched}, of {patches} patches{each}"
    notes = ["outlined"] * drawn + [f"{padding} of them padding"] * bool(padding)
    said = f" ({', '.join(notes)})" if notes else ""
    amount = str(fetch.budget) if fetch.levels is None else _amount(fetch)
    beside = f", beside {base} base tokens{' (grid)' if drawn else ''}" if base else ""
    return (
        f"strategy {fetch.strategy}, allocator {fetch.allocator}: {amount} of {patches} patches fetched{said}{beside}"
    )


def _amount(fetch: FetchResult) -> str:
    """The number of fetched tokens, and their levels of detail."""
    if fetch.levels is None:
        return f"{int(fetch.counts.sum())} patches"
    levels = fetch.levels[fetch.used]
    counts = [(4**level, int((levels == level).sum())) for level in range(LEVELS)]
    shown = ", ".join(f"{count} of {patches}" for patches, count in counts if count)
    return f"{len(levels)} tokens ({shown} patches)"


def _draw_bar(page: Image.Image, y: int, width: int, font: Any) -> None:
    """A horizontal colour bar with 0, 0.5 and 1 under it, and the name of its quantity."""
    draw = ImageDraw.Draw(page)
    label = "relevance"
    start = MARGIN + round(draw.textlength(label, font)) + 12
    length = min(320, width + MARGIN - start - 16)
    draw.text((MARGIN, y + BAR_HEIGHT / 2), label, SOFT_INK, font, anchor="lm")
    strip = Image.fromarray(np.repeat(heat(np.linspace(0, 1, length))[None], BAR_HEIGHT, 0))
    page.paste(strip, (start, y), strip)  # as over white
    draw.rectangle((start - 1, y - 1, start + length, y + BAR_HEIGHT), outline=SOFT_INK)
    for value in (0.0, 0.5, 1.0):
        at = (start + value * (length - 1), y + BAR_HEIGHT + 3)
        draw.text(at, f"{value:g}", SOFT_INK, font, anchor="ma")


def wrap(text: str, font: Any, width: float) -> list[str]:
    """Lines of at most `width` px: broken between words, and inside a word that is wider than a line."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        if font.getlength(joined) <= width:
            lines[-1] = joined
            continue
        lines += [""] if lines[-1] else []
        for character in word:
            if lines[-1] and font.getlength(lines[-1] + character) > width:
                lines.append("")
            lines[-1] += character
    return lines


LARGE, SMALL = 900, 180  # px of the longer side of a page
COLUMNS = 3  # large pages beside one another
WIDEST = 40  # thumbnails in a sheet; the number of further pages is given as text


def draw_sheet(sources: Sequence[Source], answer: Answer, *, question: str) -> Image.Image:
    """The sheet: pages with the answer's patches, then the others, and below them question and answer.

    `sources`: all pages or frames (`ImageEncoding.sources`); `answer`: from `generate(..., return_fetch=True)`.

    Raises:
        ValueError: an answer about other sources.
    """
    fetched: dict[int, list[tuple[float, ...]]] = {}
    for origin in answer.sources:
        fetched.setdefault(origin.source, []).append(origin.box)
    if fetched and max(fetched) >= len(sources):
        raise ValueError(f"answer: expected one about {len(sources)} sources; got source {max(fetched)}")
    heated = _heated_views(sources, answer.fetch)
    large = [_outlined(sources[number], fetched[number], heated.get(number, [])) for number in sorted(fetched)]
    others = [number for number in range(len(sources)) if number not in fetched]
    small = [_named(_shrunk(sources[number], SMALL)[0], _name(sources[number])) for number in others[:WIDEST]]
    rows = [_rows(large, COLUMNS * LARGE), _rows(small, max(COLUMNS * SMALL, *(page.width for page in large), 0))]
    pictures = [row for part in rows for row in part] or [Image.new("RGB", (SMALL, SMALL), PAPER)]
    sheet = _joined(pictures, down=True)
    return _with_caption(sheet, answer.fetch, question, answer.text, answer.probability, bool(heated))


def _heated_views(sources: Sequence[Source], fetch: Any) -> dict[int, list[tuple[Window, np.ndarray]]]:
    """By number of the source, the square of each of its views in px of it, and the view's relevance [G, G].

    The overview comes before its tiles. Empty if nothing was fetched by relevance, and for the fetches of published
    models, whose views have any shape.
    """
    if type(fetch) not in (FetchResult, JointFetch) or not fetch.budget:
        return {}
    squares = [square_of((0, 0, source.width, source.height)) for source in sources]
    slots, relevance = [*range(len(sources))], fetch.relevance
    if isinstance(fetch, JointFetch):
        views, relevance = fetch.seen.views, fetch.seen.relevance
        slots, squares = views.slots.tolist(), views.windows.tolist()
    side, heated = math.isqrt(relevance.shape[-1]), dict[int, list[tuple[Window, np.ndarray]]]()
    for slot, square, own in zip(slots, squares, relevance.float().cpu().numpy(), strict=True):
        heated.setdefault(slot, []).append((tuple(square), own.reshape(side, side)))
    return heated


def _name(source: Source) -> str:
    if source.second is not None:
        return f"{source.second:g} s"
    return "" if source.page is None else f"page {source.page}"


def _shrunk(source: Source, longest: int) -> tuple[Image.Image, float]:
    """The page at `longest` px at most, and its scale."""
    scale = min(1.0, longest / max(source.height, source.width))
    size = (max(1, round(source.width * scale)), max(1, round(source.height * scale)))
    return source.load().resize(size, Image.Resampling.LANCZOS), scale


def _outlined(
    source: Source, boxes: Sequence[tuple[float, ...]], heated: Sequence[tuple[Window, np.ndarray]]
) -> Image.Image:
    """The page with the relevance of its views, that of tiles over that of the overview, and outlined boxes."""
    page, scale = _shrunk(source, LARGE)
    layer = Image.new("RGBA", page.size)
    for square, relevance in heated:
        x0, y0, x1, y1 = (round(edge * scale) for edge in square)
        layer.paste(Image.fromarray(heat(relevance)).resize((x1 - x0, y1 - y0), Image.Resampling.NEAREST), (x0, y0))
    drawn = page.convert("RGBA")
    drawn.alpha_composite(layer)
    drawn = drawn.rotate(-source.turned, expand=True)  # as the page was given, as the boxes are
    layer = Image.new("RGBA", drawn.size)
    outline(layer, [tuple(round(edge * scale) for edge in box) for box in boxes], 2)
    drawn.alpha_composite(layer)
    return _named(drawn.convert("RGB"), _name(source))


def _named(page: Image.Image, name: str) -> Image.Image:
    """The page in a thin frame, its name below it."""
    font = caption_font(14)
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
    return [_joined(row, down=False) for row in rows]


def _joined(pictures: Sequence[Image.Image], *, down: bool) -> Image.Image:
    """Pictures side by side, or below one another if `down`, with margins between them."""
    widths, heights = ([picture.size[axis] for picture in pictures] for axis in (0, 1))
    gaps = MARGIN * (len(pictures) - 1)
    size = (max(widths), sum(heights) + gaps) if down else (sum(widths) + gaps, max(heights))
    joined, at = Image.new("RGB", size, PAPER), 0
    for picture in pictures:
        joined.paste(picture, (0, at) if down else (at, 0))
        at += picture.size[down] + MARGIN
    return joined
