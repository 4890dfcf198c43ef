"""Encoding of views: the pages or frames of documents, the overviews of all sources, and their tiles.

Notation: P sources, I image slots, N patches of a grid. Windows are x0, y0, x1, y1 in px of the source.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeGuard

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from transformers.utils import logging

from .budgets import AS_SEEN, SPREADS, TILING, UNPOOLED, VIEW_OPTIONS, VIEWS_AT_ONCE, ViewOptions, Window, pooling
from .configuration_arr_coc import COMPRESSION
from .documents import open_document
from .image_encoding import READ_WELL, ImageEncoding, Tiles, Tiling, confidence_of, no_pixels
from .image_loading import Encoded, Loaded, Source, boxes_on_image, check_print, turn_box
from .image_processing_arr_coc import (
    ArrCocImageProcessor,
    Box,
    boxes_to_patches,
    patches_of_placement,
    plan_tiles,
    print_scale,
    warn_of_blank,
)
from .pretrained import device_of
from .printed_lines import TextLayer
from .vision_tower import checksums, textures
from .word_sources import PageToRead, PageWords, check_words, given_words, read_strips, words_of_each, words_of_page
from .wordpieces import GivenWords

UPRIGHT, AHEAD, FEWEST = 0.85, 0.1, 4
"""The least legibility of an upright page; by how much a turned page has to exceed its own; the fewest characters."""

LARGE, LEAST_OF_LARGE = 1.25, 0.5
"""Characters in a patch with text, at most, of large print, and its least legibility when worn. On the pages of
`READ_WELL`: 1.0 to 1.1 characters with lines of 30 px, 1.2 to 1.5 of 16 to 20 px, 2.3 of 9 px; print of 3 px, which is
not seen as text, has 1.0 to 1.8 with a legibility of 0.1 to 0.3."""

PATIENCE = 2.0  # seconds of encoding after which a progress bar is shown
_COUNTS = ("max_tiles", "asked_tiles", "max_base_tokens", "max_pages", "max_frames")
_MEASURES = ("tile_scale", "dpi", "fps")


def take_view_options(kwargs: Mapping[str, Any]) -> tuple[ViewOptions, dict[str, Any]]:
    """The `ViewOptions` among arguments by name, checked, and the other arguments. Raises ValueError: an option with an
    invalid value."""
    named = {name: kwargs[name] for name in VIEW_OPTIONS & kwargs.keys() if kwargs[name] is not None}
    options = replace(AS_SEEN, **named)
    counted = isinstance(options.tiles, int) and not isinstance(options.tiles, bool) and options.tiles > 0
    if not counted and options.tiles not in TILING:
        expected = f"{', '.join(TILING)} or a positive number"
        raise ValueError(f"tiles: expected {expected}; got {options.tiles!r}")
    if options.spread not in SPREADS:
        raise ValueError(f"spread: expected one of {', '.join(SPREADS)}; got {options.spread!r}")
    check_words(options.words)
    for name in (*_COUNTS, *_MEASURES):
        value = getattr(options, name)
        if value is not None and not (_is_number(value, whole=name in _COUNTS) and 0 < value < math.inf):
            raise ValueError(f"{name}: expected a positive number; got {value!r}")
    if not (_is_number(options.asked_share) and 0 <= options.asked_share < 1):
        raise ValueError(f"asked_share: expected a share from 0 to below 1; got {options.asked_share!r}")
    if not isinstance(options.reread, bool):
        raise ValueError(f"reread: expected True or False; got {options.reread!r}")
    return options, {name: value for name, value in kwargs.items() if name not in VIEW_OPTIONS}


def _is_number(value: Any, *, whole: bool = False) -> bool:
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)


def encode_sources(
    core: Any, processor: ArrCocImageProcessor, documents: Sequence[Sequence[Source]], options: ViewOptions
) -> ImageEncoding:
    """Encodes the overviews of all sources, and the tiles of large ones, in chunks of bounded memory.

    `documents`: the sources that each prompt shows, page by page.

    Raises:
        ValueError: more tiles than `max_tiles`, more sources than fit, or documents whose base tokens would be pooled
            differently.
    """
    sources = [source for document in documents for source in document]
    vision = core.config.vision_config
    grid = processor.size["height"] // vision.patch_size
    scale, pools = options.least_scale, list[int]()
    for document in documents:
        many = len(document) > UNPOOLED or options.max_base_tokens is not None
        pools.append(pooling(grid // COMPRESSION, len(document), options.max_base_tokens) if many else 1)
    pool = pools[0]
    if len(set(pools)) > 1:
        expected = "prompts of about as many pages in one call, or a call for each"
        raise ValueError(f"images: expected {expected}; got {[len(document) for document in documents]}")
    if pool > 1 and vision.compressor != "conv":
        raise ValueError(
            f"max_base_tokens: expected base tokens in rows to pool them; got compressor {vision.compressor!r}"
        )
    most, rows = max(map(len, documents)), math.ceil(grid // COMPRESSION / pool)
    base = most * (rows**2 * core.layout.shows_base + (sum(core.layout.positions(rows)) if core.layout.adds else 0))
    limit = getattr(core.config.text_config, "max_position_embeddings", None)
    if limit is not None and base >= limit:
        expected = f"sources whose base tokens leave room in {limit} tokens of context"
        raise ValueError(f"images: expected {expected}; got {most} of {base} together")
    read = sources
    if len(sources) <= VIEWS_AT_ONCE:  # their pixels stay in memory once they were loaded
        read = [replace(source, load=cache(source.load)) for source in sources]
    pages = words_of_sources(core, processor, read, options.words)
    windows = [
        windows_of(source, options, processor, scale)
        if page.lines is None or options.tiles == "never" or isinstance(options.tiles, int)
        else _windows_of_words(core, page, source)
        for source, page in zip(read, pages, strict=True)
    ]
    count = _most_tiles(windows, documents)
    if options.tiles not in ("asked", "auto") and count > options.max_tiles:
        raise ValueError(f"max_tiles: expected at most {options.max_tiles} tiles of a prompt; got {count}")
    followed = options.tiles in ("auto", "all", "asked")  # sources without tiles show all of their text in the overview
    seen = [followed or bool(own) for own in windows]
    tiled = [bool(own) for own in windows] if options.reread else None
    encoding = _encode_overviews(core, processor, read, seen, pool, pages, tiled)
    del read
    if not isinstance(options.tiles, int):
        for row, page in enumerate(pages):
            if page.lines is None and _reads_well(encoding.characters, row):  # tiles would show nothing new
                windows[row] = []
    if any(page != PageWords() for page in pages):
        encoding.words = [(page.source, page.engine, page.warning) for page in pages]
        encoding.unseen = any(_need_no_pixels([_given(core, page, (0, 0, 1, 1))], core) for page in pages)
    encoding.documents = [number for number, document in enumerate(documents) for _ in document]
    encoding.sources = sources
    encode = partial(_encode_tiles, core, processor, sources, pages, reread=options.reread)
    wanted = [(row, window) for row, own in enumerate(windows) for window in own]
    if options.tiles == "asked" or _most_tiles(windows, documents) > options.max_tiles:
        encoding.tiling = Tiling(windows, options.asked_tiles, options.asked_share, encode)
    elif wanted:
        encoding.tiles = encode(wanted)

    def again(turned: Sequence[Source]) -> ImageEncoding:
        rest = iter(turned)
        pages_of = [[next(rest) for _ in document] for document in documents]
        return encode_sources(core, processor, pages_of, replace(options, words=pages))

    return upright(core, processor, encoding, sources, again)


def _reads_well(characters: Tensor | None, row: int) -> bool:
    """Whether a text reader read the overview of a source well, or large print."""
    if characters is None:
        return False
    count, total = characters[row].sum(0).tolist()
    large = count <= LARGE * int((characters[row, :, 0] > 0).sum())
    return bool(count and total >= (LEAST_OF_LARGE if large else READ_WELL) * count)


def may_be_turned(encoding: ImageEncoding, row: int) -> bool:
    """Whether the network read a source, and less well than an upright page."""
    if encoding.characters is None or (encoding.words is not None and encoding.words[row][0] != "network"):
        return False
    if encoding.tiling is not None and encoding.tiling.windows[row]:  # the overview does not show the print
        return False
    views, tiles = encoding.characters[row : row + 1], encoding.tiles
    if tiles is not None and tiles.characters is not None and (tiles.sources == row).any():
        views = tiles.characters[(tiles.sources == row).to(tiles.characters.device)]
    count, total = views.sum((0, 1)).tolist()
    enough = encoding.characters[row, :, 0].sum() >= FEWEST
    return bool(enough and (not count or total < UPRIGHT * count))


def upright(
    core: Any,
    processor: ArrCocImageProcessor,
    encoding: ImageEncoding,
    sources: Sequence[Source],
    encode: Callable[[Sequence[Source]], ImageEncoding],
) -> ImageEncoding:
    """The encoding of `sources`, or what `encode` makes of them once those that are not upright are turned. A page that
    looks mirrored gets a warning in `ImageEncoding.words`."""
    given_sizes = encoding.source_sizes = [(source.height, source.width) for source in sources]
    if core.vision_tower.text_reader is None or any(source.turned for source in sources):
        return encoding
    known, turned = encoding.words or [("network", "", "")] * len(sources), [*sources]
    words, turns = [*known], False
    for row, source in enumerate(sources):
        if source.second is None and may_be_turned(encoding, row):
            degrees, warning = _turn_of(core, processor, encoding, row, source)
            turned[row], turns = source.turn(degrees), turns or degrees != 0
            words[row] = (*words[row][:2], "; ".join(filter(None, (words[row][2], warning))))
    if turns:
        encoding = encode(turned)
        encoding.sources, encoding.source_sizes = turned, given_sizes
    if words != known:
        encoding.words = words
    return encoding


def _turn_of(
    core: Any, processor: ArrCocImageProcessor, encoding: ImageEncoding, row: int, source: Source
) -> tuple[int, str]:
    """The degrees by which a source has to be turned, as its view with the most text reads best, and a warning."""
    assert encoding.characters is not None
    views, window, tiles = encoding.characters[row : row + 1], (0, 0, source.width, source.height), encoding.tiles
    if tiles is not None and tiles.characters is not None and (tiles.sources == row).any():
        own = (tiles.sources == row).nonzero()[:, 0]
        views = tiles.characters[own.to(tiles.characters.device)]
        window = tuple(tiles.windows[own[int(views[..., 0].sum(1).argmax())]].tolist())
    seen = max(views.sum(1).cpu(), key=lambda total: float(total[0]))
    image, degrees = source.load().crop(window), 0

    def read(*images: Image.Image) -> list[Tensor]:
        """The number of characters in each image and the sum of their confidence, [2]."""
        pixels = processor(images, return_tensors="pt", readable_px=None)["pixel_values"].to(core.input_device)
        return [*core.vision_tower.encode_grid(pixels)["characters"].sum(1).cpu()]

    def is_better(total: Tensor) -> bool:
        return confidence_of(total) >= confidence_of(seen) + AHEAD and bool(total[1] > seen[1])

    tried = {angle: image.rotate(angle, expand=True) for angle in (90, 180, 270)}
    best, total = max(zip(tried, read(*tried.values()), strict=True), key=lambda pair: float(pair[1][1]))
    if is_better(total):
        degrees, seen, image = best, total, tried[best]
    if not core.config.least_legibility <= confidence_of(seen) < UPRIGHT:
        return degrees, ""
    name = f"image {row + 1}" if source.page is None else f"page {source.page}"
    mirrored = any(map(is_better, read(ImageOps.mirror(image), ImageOps.flip(image))))
    return degrees, f"{name} looks mirrored: any answer may be wrong" if mirrored else ""


def _most_tiles(windows: Sequence[Sequence[Window]], documents: Sequence[Sequence[Source]]) -> int:
    """The most tiles of one document, from the windows of all sources."""
    planned = iter(windows)
    return max(sum(len(next(planned)) for _ in document) for document in documents)


def windows_of(source: Source, options: ViewOptions, processor: ArrCocImageProcessor, scale: float) -> list[Window]:
    """The tiles that a source can have at the `scale`; reads its pixels only if its size asks for tiles."""
    side = processor.size["height"]
    if side >= scale * max(source.height, source.width):
        return []
    most = options.tiles if isinstance(options.tiles, int) else None
    if most is None and processor.readable_px is not None:
        scale = print_scale(source.load(), side, scale, processor.readable_px)
        if not scale:
            return []
    patch_size = processor.patch_size
    return plan_tiles(
        source.height, source.width, grid=side // patch_size, patch_size=patch_size, scale=scale, most=most
    )


def _encode_overviews(
    core: Any,
    processor: ArrCocImageProcessor,
    sources: Sequence[Source],
    seen: Sequence[bool],
    pool: int,
    pages: Sequence[PageWords],
    tiled: Sequence[bool] | None,
) -> ImageEncoding:
    """Overviews [P]; with several sources, without the states for fetched tokens, which are computed on demand.
    `tiled`: see `ArrCocImageProcessor.with_originals`; None: no words are read again."""
    parts = []
    for start in _starts(len(sources), "page"):
        chunk = slice(start, start + VIEWS_AT_ONCE)
        some, words = sources[chunk], list[GivenWords | None]()
        for page, source in zip(pages[chunk], some, strict=True):
            words.append(_given(core, page, (0, 0, source.width, source.height)))
        if _need_no_pixels(words, core):
            mask = patch_masks(processor, [(source.height, source.width) for source in some])
            known = core.vision_tower.unseen_fields(words, mask.shape[1])
            parts.append(replace(core.encode_image(None, mask, pool=pool, **known), unseen=True))
            continue
        images = [source.load() for source in some]
        _warn(processor, images, seen[chunk], alone=len(sources) == 1)
        if tiled is not None:
            words = processor.with_originals(words, images, tiled[chunk])
        inputs = processor(Loaded(images), return_tensors="pt", readable_px=None)
        parts.append(core.encode_image(inputs["pixel_values"], inputs["patch_mask"], pool=pool, words=words))
    if len(sources) > 1:
        parts = [replace(part, semantic_cache=[], bridge_cache=None) for part in parts]
    return parts[0] if len(parts) == 1 else replace(parts[0].join(*parts[1:]), joined=False)


# ---- words from elsewhere -----------------------------------------------------------------------------------------


def words_of_sources(
    core: Any, processor: ArrCocImageProcessor, sources: Sequence[Source], words: Any
) -> list[PageWords]:
    """The words of each source by the option `words` (see `ViewOptions`); the network's from models that read no text.

    Raises:
        ValueError: words from elsewhere for a model without a text reader, or another number of lists than sources; see
            `words_of_page` too.
    """
    tower = core.vision_tower
    if words == "network" or (words == "auto" and not any(source.layer for source in sources)):
        return [PageWords()] * len(sources)
    each = words_of_each(words, len(sources))
    if tower.text_reader is None:
        if not all(isinstance(one, TextLayer) or one in ("auto", "network") for one in each):
            expected = "auto or network, as the model has no text reader"
            raise ValueError(f"words: expected {expected}; got {words!r:.80}")
        return [PageWords()] * len(sources)
    pages = []
    for source, one in zip(sources, each, strict=True):
        if isinstance(one, TextLayer):
            source, one = replace(source, layer=partial(_itself, one)), "auto"
        has_layer = one in ("auto", "text_layer") and source.layer is not None
        if one == "network" or (one == "auto" and not has_layer):
            pages.append(PageWords())
            continue
        if has_layer:
            image = (source.glance or source.load)()
        else:
            image = source.load() if one == "ocr" else Image.new("RGB", (1, 1))
        pages.append(words_of_page(one, PageToRead(source, image, partial(read_strips, tower, processor, image))))
    return pages


def _need_no_pixels(words: Sequence[GivenWords | None], core: Any) -> TypeGuard[list[GivenWords]]:
    """Whether all words of views are known, and the model by itself reads nothing else."""
    known = not core.vision_tower.keeps_depths and not any(each is None or each.partial for each in words)
    return known and core.bridge.places_tokens


def _given(core: Any, page: PageWords, window: Window) -> GivenWords | None:
    if page.lines is None:
        return None
    vision = core.config.vision_config
    return given_words(page, window, vision.image_size // vision.patch_size)


SMALLEST_CAPITAL = 4.5  # px of the square; with lower capitals, two lines may share half a row of patches
CROWDED = 0.005  # the largest share of a view's wordpieces that find no slot


def _windows_of_words(core: Any, page: PageWords, source: Source) -> list[Window]:
    """The tiles of a source with known words: the fewest in which each wordpiece finds a slot; none if the overview
    is enough."""
    vision, reader = core.config.vision_config, core.vision_tower.text_reader
    grid, whole = vision.image_size // vision.patch_size, (0, 0, source.width, source.height)
    assert reader is not None and page.lines is not None
    heights = [height for line in page.lines for height in (line.boxes[:, 3] - line.boxes[:, 1]).tolist()]
    if not heights:
        return []
    windows: list[Window] = []
    scale, middle = vision.image_size / max(source.height, source.width), float(np.median(heights))
    for _ in range(8):
        shown = [_given(core, page, window) for window in windows or [whole]]
        pieces, _, lost = reader.spread([view.words for view in shown if view is not None], grid)
        if middle * scale >= SMALLEST_CAPITAL and sum(lost) <= CROWDED * int((pieces >= 0).sum()):
            break
        scale *= math.sqrt(2)
        windows = plan_tiles(source.height, source.width, grid=grid, patch_size=vision.patch_size, scale=scale)
    return windows


@torch.no_grad()
def with_features(core: Any, processor: ArrCocImageProcessor, encoding: ImageEncoding) -> ImageEncoding:
    """The encoding with the features of pages that were not looked at, for scorers that read them. Raises ValueError:
    an encoding that holds no pixels, such as one from a file."""
    sources, tower = encoding.sources, core.vision_tower
    if sources is None or any(source.load is no_pixels for source in sources):
        expected = 'one that reads words, as the page was not looked at and its pixels are gone (words="network" looks)'
        raise ValueError(f"strategy: expected {expected}; got another")

    def look(squares: Iterable[Image.Image], like: Tensor) -> dict[str, Any]:
        rows = []
        for square in squares:
            pixels, mask = processor(square, return_tensors="pt", readable_px=None).values()
            features = tower.grid_encoder(pixels.to(encoding.features))
            channels = textures(pixels, encoding.side, tower.texture_set, mask.bool())
            rows.append((features.to(like), channels.to(like), checksums(pixels)))
        return {name: torch.cat(parts) for name, *parts in zip(("features", "textures", "seeds"), *rows, strict=True)}

    seen = replace(encoding, unseen=False, **look((source.load() for source in sources), encoding.features))
    if (tiles := encoding.tiles) is not None:
        wanted = zip(tiles.sources.tolist(), tiles.windows.tolist(), strict=True)
        squares = (sources[number].load().crop(tuple(window)) for number, window in wanted)
        seen.tiles = replace(tiles, **look(squares, tiles.features))
    return seen


def patch_masks(processor: ArrCocImageProcessor, sizes: Iterable[tuple[int, int]]) -> Tensor:
    """bool [n, N] of images of (height, width) `sizes`, False on padding patches."""
    side, patch = processor.size["height"], processor.patch_size
    placed = (processor.place(size, side, bool(processor.do_resize)) for size in sizes)
    masks = [patches_of_placement(each, side // patch, patch) for each in placed]
    return torch.from_numpy(np.stack(masks)).flatten(1)


def _warn(processor: ArrCocImageProcessor, images: Sequence[Image.Image], seen: Sequence[bool], *, alone: bool) -> None:
    """Warns of small letters in images that neither tiles nor overviews cover, and of a blank image that is `alone`.
    Where there are several, `answers.blank_warning` says which is blank."""
    side, do_resize = processor.size["height"], bool(processor.do_resize)
    for image, is_seen in zip(images, seen, strict=True):
        if not is_seen:
            placed = processor.place((image.height, image.width), side, do_resize)
            processor.warn_of_letters(image, placed, side, processor.readable_px)
        if alone:
            warn_of_blank(image)


def _starts(views: int, unit: str) -> Iterator[int]:
    """Where each chunk of views starts, with a progress bar over the views on a terminal if they take long."""
    shown: dict[str, Any] = {"desc": f"Encoding {unit}s", "unit": unit, "delay": PATIENCE, "leave": False}
    with logging.tqdm(total=views, disable=None, **shown) as bar:
        for start in range(0, views, VIEWS_AT_ONCE):
            yield start
            bar.update(min(VIEWS_AT_ONCE, views - start))


def _encode_tiles(
    core: Any,
    processor: ArrCocImageProcessor,
    sources: Sequence[Source],
    pages: Sequence[PageWords],
    wanted: list[tuple[int, Window]],
    reread: bool = False,
) -> Tiles:
    """Tiles (source row, window), grouped by source, so that each source is opened once."""
    parts, row, image = [], -1, None
    tower = core.vision_tower
    device = device_of(tower)
    for start in _starts(len(wanted), "tile"):
        some, squares = wanted[start : start + VIEWS_AT_ONCE], []
        words = [_given(core, pages[number], window) for number, window in some]
        if _need_no_pixels(words, core):
            mask = patch_masks(processor, [(bottom - top, right - left) for _, (left, top, right, bottom) in some])
            fields = tower.unseen_fields(words, mask.shape[1])
        else:
            for number, window in some:
                if number != row or image is None:
                    row, image = number, sources[number].load()
                squares.append(image.crop(window))
            if reread:
                words = processor.with_originals(words, squares)
            inputs = processor(Loaded(squares), return_tensors="pt", readable_px=None)
            mask, fields = inputs["patch_mask"].bool(), tower.tile_features(inputs["pixel_values"].to(device), words)
        parts.append(
            Tiles(
                **fields,
                patch_mask=mask.to(device),
                sources=torch.tensor([number for number, _ in some]),
                windows=torch.tensor([window for _, window in some]),
            )
        )
    return parts[0].join(*parts[1:])


def sources_of(image: Image.Image | Encoded, options: ViewOptions, max_image_pixels: int) -> list[Source]:
    """The pages or frames of a loaded source; an image is its own page. Raises ValueError: see `open_document` and
    `check_print`."""
    if not isinstance(image, Image.Image):  # remote code may load a class twice: this makes the class of this module
        sources = open_document(image, options, max_image_pixels)
    else:
        sources = [Source(image.height, image.width, partial(_itself, image))]
    for source in sources:
        check_print(source.height, source.width)
    return sources


def _itself(value: Any, *_: Any) -> Any:
    return value


# ---- ground truth -------------------------------------------------------------------------------------------------


def boxes_on_images(boxes: Sequence[Sequence[Box]], batch: Any) -> list[list[Box]]:
    """The parts of the boxes of each slot that are on its image. Raises ValueError: not one list for each slot, a
    prompt without a box, images of unknown size, or a box that ends before it starts or is wholly outside its image."""
    if len(boxes) != len(batch.slots):
        raise ValueError(f"boxes: expected one list per question and image ({len(batch.slots)}); got {len(boxes)}")
    if batch.encoding.source_sizes is None:
        raise ValueError("boxes: expected an image whose size is known; got an encoding of bare pixel_values")
    rest = iter(boxes)
    for number, images in enumerate(batch.images):
        if not any([next(rest) for _ in images]):
            raise ValueError(f"boxes: expected at least one for each question; got none for question {number + 1}")
    sizes = [batch.encoding.source_sizes[slot] for slot in batch.slots]
    turned = [batch.encoding.turned[slot] for slot in batch.slots]
    return [
        [turn_box(box, degrees, *size) for box in boxes_on_image(own, *size)]
        for own, size, degrees in zip(boxes, sizes, turned, strict=True)
    ]


def relevance_of_boxes(batch: Any, processor: ArrCocImageProcessor) -> Tensor:
    """[I, N] 1 on the patches under the boxes of each slot."""
    rows, encoding = [], batch.encoding
    sources = encoding.known_sources() or []
    for slot, slot_boxes in zip(batch.slots, batch.boxes or (), strict=True):
        mapped = processor.map_boxes(slot_boxes, sources[slot].height, sources[slot].width)
        rows.append(torch.from_numpy(boxes_to_patches(mapped, encoding.side, processor.patch_size)).flatten())
    return torch.stack(rows).float().to(encoding.tokens.device)
