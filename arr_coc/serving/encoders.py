"""Encoders of decoded images: an ARR-COC model, or a reader of a published model."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from PIL import Image

from ..attached import AttachedReader
from ..attached.encoding import AttachedEncoding
from ..modeling.answers import legibility_warning
from ..modeling.budgets import COMPRESSION, ViewOptions, pooling
from ..modeling.generation import encode_whole
from ..modeling.image_encoding import ImageEncoding, no_pixels
from ..modeling.image_loading import Source
from ..modeling.image_processing_arr_coc import FAR_SHRUNK, ArrCocImageProcessor, is_blank, least_scale
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.view_encoding import encode_sources, take_view_options, windows_of
from .image_workers import PreparedImage

Seen = tuple[dict[str, Any], ...]
"""For each page: size in px, number of views, warnings. ARR-COC models add the finest scale of the views, px of the
model's square per px of the page, and with a text reader the page's legibility and, if it was turned, the degrees."""


class Encoder(Protocol):
    """The interface of a model for `EncodingStore`."""

    by_prompt: ClassVar[bool]
    """Whether all images of a prompt are encoded together."""

    def encode(self, prepared: Sequence[PreparedImage]) -> tuple[Any, Seen]:
        """The encoding of a prompt's images, and the views of each page."""

    def share_a_prompt(self, encodings: Sequence[Any]) -> bool:
        """Whether images that were encoded one by one can share one prompt."""


class ModelEncoder:
    """Encodes as `generate` of ARR-COC models does."""

    by_prompt: ClassVar[bool] = False

    def __init__(self, model: ArrCocForConditionalGeneration) -> None:
        self.model, self.processor = model.model, model.processor.image_processor
        self.least_legibility = model.config.least_legibility

    @torch.no_grad()
    def encode(self, prepared: Sequence[PreparedImage]) -> tuple[ImageEncoding, Seen]:
        """The encoding of one prompt in `generate`, with all tiles at once; above `max_tiles`, fewer tiles at a smaller
        scale."""
        processor, (images, sources) = self.processor, _opened(prepared)
        options = bounded_tiles(sources, processor, take_view_options(processor.views)[0])
        if prepared[0].words != "auto":
            options = replace(options, words=prepared[0].words)
        several = len(prepared) > 1 or any(source.page is not None or source.second is not None for source in sources)
        several |= options.words not in ("auto", "network")
        if several or processor.shrinks(images, least_scale(options.tiles, options.tile_scale)):
            encoding = encode_sources(self.model, processor, [sources], options)
        else:
            encoding = encode_whole(self.model, processor, sources)
        if encoding.sources is not None:
            encoding.sources = [replace(source, load=no_pixels) for source in encoding.sources]
        return encoding, seen_pages(encoding, images, processor, self.least_legibility)

    def share_a_prompt(self, encodings: Sequence[ImageEncoding]) -> bool:
        """Whether the base tokens are pooled as for one prompt."""
        rows = self.processor.size["height"] // self.processor.patch_size // COMPRESSION
        pool = pooling(rows, sum(map(len, encodings)), take_view_options(self.processor.views)[0].max_base_tokens)
        return all(encoding.pool == pool for encoding in encodings)


class AttachedEncoder:
    """Encodes for a reader of a published model; the language model prefills the base tokens."""

    by_prompt: ClassVar[bool] = True

    def __init__(self, reader: AttachedReader) -> None:
        self.reader = reader

    def encode(self, prepared: Sequence[PreparedImage]) -> tuple[AttachedEncoding, Seen]:
        """`AttachedReader.encode_image` for one prompt with all images."""
        images, sources = _opened(prepared)
        encoding = self.reader.encode_sources([sources], words=prepared[0].words)
        (prompt,) = encoding.prompts
        prompt.sources = [replace(source, load=no_pixels) for source in sources]
        counts = [sum(view.image == number for view in prompt.views) for number in range(len(images))]
        return encoding, tuple(
            {"height": image.height, "width": image.width, "views": count, "warnings": _warnings(image)}
            for image, count in zip(images, counts, strict=True)
        )

    def share_a_prompt(self, encodings: Sequence[AttachedEncoding]) -> bool:
        """False, as the tokens of a prompt depend on all of its images."""
        return len(encodings) == 1


def _opened(prepared: Sequence[PreparedImage]) -> tuple[list[Image.Image], list[Source]]:
    """The pages of images and documents, and the source of each."""
    pages = [page for image in prepared for page in image.pages]
    images, sources = [Image.fromarray(page.pixels) for page in pages], list[Source]()
    for image, page in zip(images, pages, strict=True):
        layer = None if page.layer is None else partial(_itself, page.layer)
        sources.append(Source(image.height, image.width, partial(_itself, image), page.page, page.second, layer))
    return images, sources


def _itself(value: Any, *_: Any) -> Any:
    return value


def _warnings(image: Image.Image) -> list[str]:
    return ["blank: any answer is a guess"] if is_blank(image) else []


def bounded_tiles(sources: Sequence[Source], processor: ArrCocImageProcessor, options: ViewOptions) -> ViewOptions:
    """Options that limit the tiles of a document so that all can be encoded, as questions cannot encode more tiles."""
    if options.tiles == "never":
        return options
    options = replace(options, tiles="auto") if options.tiles == "asked" else options
    scale = least_scale(options.tiles, options.tile_scale)
    count = sum(len(windows_of(source, options, processor, scale)) for source in sources)
    return options if count <= options.max_tiles else replace(options, tiles=max(1, options.max_tiles // len(sources)))


def seen_pages(
    encoding: ImageEncoding, images: Sequence[Image.Image], processor: ArrCocImageProcessor, least_legibility: float
) -> Seen:
    """The views of each page; a page with a legibility below `least_legibility` has a warning."""
    side, seen = processor.size["height"], list[dict[str, Any]]()
    for number, image in enumerate(images):
        windows = [] if encoding.tiles is None else encoding.tiles.windows[encoding.tiles.sources == number].tolist()
        longest = min((max(x1 - x0, y1 - y0) for x0, y0, x1, y1 in windows), default=max(image.size))
        scale = side / longest
        warnings = _warnings(image)
        if scale < FAR_SHRUNK and processor.readable_px is not None:
            warnings.append(f"letters lower than {math.ceil(processor.readable_px / scale)} px are not read")
        page: dict[str, Any] = {"height": image.height, "width": image.width}
        page |= {"views": 1 + len(windows), "scale": round(scale, 3)}
        if (legibility := encoding.legibility([number])) is not None:
            page["legibility"] = round(legibility, 3)
            source, _, warning = encoding.word_sources()[number]
            page["words"] = source
            page |= {"turned": encoding.turned[number]} if encoding.turned[number] else {}
            warnings += filter(None, [legibility_warning(legibility, least_legibility), warning])
        seen.append({**page, "warnings": warnings})
    return tuple(seen)
