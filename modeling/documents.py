"""Documents: the pages of a PDF, the frames of a video, the images of a file that holds several.

The packages that read PDFs and videos are imported when the first one is opened.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import Any

from PIL import Image

from .budgets import ViewOptions
from .image_loading import Encoded, Source, check_size, corruption_refused, count_pages, decode, open_encoded

POINTS = 72
"""PDF units per inch."""

_PDFIUM = threading.Lock()
"""PDFium is not thread-safe, not even across documents."""


def open_document(encoded: Encoded, options: ViewOptions, max_image_pixels: int) -> list[Source]:
    """The pages or frames of a document, in order; `max_image_pixels`: of each.

    Raises:
        ValueError: an encrypted, broken or empty document, more pages than `max_pages`, or a page that is too large.
        ImportError: the package that reads it is not installed.
    """
    openers = {"pdf": _open_pdf, "video": _open_video, "pages": _open_pages}
    return openers[encoded.kind](encoded, options, max_image_pixels)


class MissingPackage(ImportError, ValueError):
    """Raised when a package that reads a kind of document is not installed."""


def _package(name: str, extra: str, source: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        expected = f'expected {name} to read it (pip install "arr-coc[{extra}]")'
        raise MissingPackage(f"{source}: {expected}; got none installed") from error


def _check_pages(count: int, name: str, most: int) -> None:
    if not 1 <= count <= most:
        raise ValueError(f"{name}: expected 1 to {most} pages (max_pages); got {count}")


# ---- PDF ----------------------------------------------------------------------------------------------------------


def _open_pdf(encoded: Encoded, options: ViewOptions, max_image_pixels: int) -> list[Source]:
    pdfium = _package("pypdfium2", "documents", encoded.name)
    with _PDFIUM:
        try:
            pdf = _pdf(pdfium, encoded)  # opened for each page: its last use is not known
        except pdfium.PdfiumError as error:
            expected, received = "a PDF that can be opened", "a broken or empty one"
            if "password" in str(error).lower() and b"/Encrypt" in encoded.content:  # else of an earlier document
                expected = "the password of an encrypted PDF (password=, or --password-file of ask and extract)"
                received = "none" if encoded.password is None else "another"
            raise ValueError(f"{encoded.name}: expected {expected}; got {received}") from None
        with closing(pdf):
            _check_pages(len(pdf), encoded.name, options.max_pages)
            scale = options.dpi / POINTS * (1 - 1e-6)  # 595.2 points are held as a little more: 1241 px at 150 dpi
            sources = []
            for number in range(len(pdf)):
                with _whole_page(pdfium, encoded, number):
                    size, has_text = pdf.get_page_size(number), _may_have_text(pdfium, pdf[number])
                width, height = (math.ceil(side * scale) for side in size)  # as pypdfium2 rounds
                glance = partial(_render, pdfium, encoded, number, scale, (width, height))
                layer = partial(_text_layer, pdfium, encoded, number) if has_text else None
                load = partial(glance, sharp=True)
                sources.append(Source(height, width, load, page=number + 1, layer=layer, glance=glance))
    try:
        for page in sources:
            check_size(page.height, page.width, f"{encoded.name}, page {page.page}", max_image_pixels)
    except ValueError as error:
        raise ValueError(f"{error}; a lower dpi than {options.dpi:g} makes it smaller") from None
    return sources


def _may_have_text(pdfium: Any, page: Any) -> bool:
    """Whether a page has characters, or annotations, which may show some: a scan need not be rendered twice."""
    with closing(page), closing(page.get_textpage()) as text:
        return bool(text.count_chars() or pdfium.raw.FPDFPage_GetAnnotCount(page))


def _text_layer(pdfium: Any, encoded: Encoded, number: int, image: Image.Image) -> Any:
    """The `TextLayer` of a page that is rendered as `image`, with what is filled into its form and shown by its
    annotations; None for one that PDFium cannot read."""
    from .printed_lines import read_text_layer

    with _PDFIUM, suppress(pdfium.PdfiumError), closing(_with_forms(pdfium, encoded)) as pdf:
        with closing(pdf[number]) as page:  # drawn into the page, annotations are text as any other
            pdfium.raw.FPDFPage_Flatten(page, pdfium.raw.FLAT_NORMALDISPLAY)
        with closing(pdf[number]) as page:
            return read_text_layer(page, image)
    return None


@contextmanager
def _whole_page(pdfium: Any, encoded: Encoded, number: int) -> Iterator[None]:
    try:
        yield
    except pdfium.PdfiumError:
        expected = f"page {number + 1} of the PDF to be whole"
        raise ValueError(f"{encoded.name}: expected {expected}; got a broken one") from None


SHARP, MOST_RENDERED = 150 / POINTS, 2**24
"""px per point below which a page is rendered finer and then reduced, and the most px that are rendered for that.

PDFium leaves out rows and columns where it reduces an image far, as that of a scan in a page at 72 dpi.
"""


def _pdf(pdfium: Any, encoded: Encoded) -> Any:
    return pdfium.PdfDocument(encoded.content, password=encoded.password)


def _with_forms(pdfium: Any, encoded: Encoded) -> Any:
    """The PDF, whose form fields are drawn with what is filled in."""
    pdf = _pdf(pdfium, encoded)
    with suppress(pdfium.PdfiumError):  # a broken form leaves the pages as they are
        pdf.init_forms()
    return pdf


def _render(
    pdfium: Any, encoded: Encoded, number: int, scale: float, size: tuple[int, int], *, sharp: bool = False
) -> Image.Image:
    times = 1
    while sharp and scale * times < SHARP and size[0] * size[1] * (times + 1) ** 2 <= MOST_RENDERED:
        times += 1
    with (
        _PDFIUM,
        _whole_page(pdfium, encoded, number),
        closing(_with_forms(pdfium, encoded)) as pdf,
        closing(pdf[number]) as page,
        closing(page.render(scale=scale * times)) as bitmap,
    ):
        image = bitmap.to_pil().convert("RGB")
        if times > 1:
            return image.resize(size, Image.Resampling.LANCZOS)
        return image.copy()  # the bitmap's memory is PDFium's


# ---- image files of several pages ---------------------------------------------------------------------------------


def _open_pages(encoded: Encoded, options: ViewOptions, max_image_pixels: int) -> list[Source]:
    with open_encoded(BytesIO(encoded.content), encoded.name, max_image_pixels) as image:
        count = count_pages(image, encoded.name)
        _check_pages(count, encoded.name, options.max_pages)
        sources = []
        for number in range(count):
            name = f"{encoded.name}, page {number + 1}"
            with corruption_refused(name):
                image.seek(number)
            check_size(image.height, image.width, name, max_image_pixels)
            load = partial(_page_of, encoded, number, max_image_pixels)
            sources.append(Source(image.height, image.width, load, page=number + 1))
    return sources


def _page_of(encoded: Encoded, number: int, limit: int) -> Image.Image:
    with open_encoded(BytesIO(encoded.content), encoded.name, limit) as image:
        name = f"{encoded.name}, page {number + 1}"
        with corruption_refused(name):
            image.seek(number)
        return decode(image, name, limit)


# ---- video --------------------------------------------------------------------------------------------------------


@contextmanager
def _video(encoded: Encoded) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream; translates PyAV's errors."""
    av = _package("av", "video", encoded.name)
    try:
        with av.open(BytesIO(encoded.content)) as container:
            if not container.streams.video:
                raise ValueError(f"{encoded.name}: expected a video with frames; got one without a video stream")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise ValueError(f"{encoded.name}: expected a video of a known codec; got another")
            yield container, stream
    except av.error.FFmpegError as error:
        raise ValueError(f"{encoded.name}: expected a whole video; got a broken one ({type(error).__name__})") from None


def _open_video(encoded: Encoded, options: ViewOptions, max_image_pixels: int) -> list[Source]:
    with _video(encoded) as (container, stream):
        height, width = stream.height, stream.width
        check_size(height, width, encoded.name, max_image_pixels)
        shown = [
            (float(packet.pts * stream.time_base), float((packet.duration or 0) * stream.time_base))
            for packet in container.demux(stream)
            if packet.pts is not None
        ]
    if not shown:
        raise ValueError(f"{encoded.name}: expected a video with frames; got none")
    begin = min(start for start, _ in shown)
    length = max(start + duration for start, duration in shown) - begin
    step = max(1 / options.fps, length / options.max_frames)
    count = min(options.max_frames, max(1, math.ceil(length / step - 1e-6)))
    if _first_rotation(encoded) % 180:
        height, width = width, height
    return [
        Source(height, width, partial(_frame, encoded, begin + number * step), second=number * step)
        for number in range(count)
    ]


def _first_rotation(encoded: Encoded) -> int:
    """Degrees by which the frames have to be turned, as phones store them; 0: none."""
    with _video(encoded) as (container, stream):
        return next((frame.rotation for frame in container.decode(stream)), 0)


def _frame(encoded: Encoded, second: float) -> Image.Image:
    """The first frame at or after `second`, upright; the last frame if there is none."""
    with _video(encoded) as (container, stream):
        container.seek(int(second / stream.time_base), stream=stream)
        frame = None
        for frame in container.decode(stream):  # noqa: B007 (the last one is looked at)
            if frame.time is not None and frame.time >= second - 1e-3:
                break
        if frame is None:
            raise ValueError(f"{encoded.name}: expected a frame at {second:.1f} s; got none")
        return frame.to_image().convert("RGB").rotate(frame.rotation, expand=True)
