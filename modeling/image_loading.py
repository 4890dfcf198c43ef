"""Loading images: any source -> an upright 8-bit RGB image; PDFs, multi-page images and videos -> pages or frames.

What `image_sources` opens, an array, tensor or Pillow image comes in; a Pillow image goes out, or a ValueError of one
line.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from transformers.image_utils import ChannelDimension

from .checks import is_dense, refusal
from .image_sources import MAX_BYTES, SourcePolicy, open_source, source_policy

MAX_IMAGE_PIXELS = 89_478_485
"""Pixels; Pillow's own limit against decompression bombs (a quarter of 2^30 bytes at 3 bytes a pixel)."""

MAX_IMAGE_SIDE = 65_535
"""px; JPEG's own limit. A longer line of pixels is no image that anybody asks about."""

WHITES = (1.0, 255.0, 1023.0, 4095.0, 16383.0, 65535.0)
"""The largest value of floats and of 8, 10, 12, 14 and 16 bits: scanners and cameras put fewer bits into 16."""

DARKEST = 16
"""Levels of 8 bits: an image whose brightest pixel is below holds 12 bits in 16, or is black to the eye."""

VISIBLE = 64
"""Levels by which ink that is read differs from what is under it."""

SAMPLED = 512
"""px a side of the sample that is looked at for an image's ink."""

BAND = 256
"""Rows that are converted at a time, where a conversion takes several times the memory of the image."""

PAGED = ("TIFF", "GIF")
"""Of these formats, files of several images are documents of several pages."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Pillow's names of the formats that are decoded. Others start programs (EPS) or are hardly ever looked at."""


@dataclass(frozen=True)
class Source:
    """An image, a page or a frame: its size in px, its pixels when they are needed, and where in a document it stands.

    `page` counts from 1; `second` is of a video's frame.
    """

    height: int
    width: int
    load: Callable[[], Image.Image]
    page: int | None = None
    second: float | None = None

    @property
    def caption(self) -> str:
        """What stands before it in a prompt: a frame's second."""
        return "" if self.second is None else f"{self.second:g} s "


@dataclass(frozen=True)
class Encoded:
    """The bytes of a document: "pdf", "video", or "pages" (an image file that holds several); `name` is for errors."""

    kind: str
    content: bytes
    name: str


def load_source(source: Any, **options: Any) -> Image.Image | Encoded:
    """`load_image`, or the bytes of a document where the source is one; `options` are those of `load_image`."""
    if isinstance(source, Encoded):
        return source
    if isinstance(source, Image.Image | torch.Tensor | np.ndarray):
        return load_image(source, **options)
    limit = options.get("max_image_pixels", MAX_IMAGE_PIXELS)
    stream, name = open_source(source, source_policy(options.get("sources", "any")), options.get("timeout", 30.0))
    with stream:
        kind = document_kind(stream.read(1024))
        if kind is None:
            with open_encoded(stream, name, limit) as image:
                if count_pages(image, name) == 1:
                    return decode(image, name, limit)
        stream.seek(0)
        content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"{name}: expected at most {MAX_BYTES} bytes; got more")
        return Encoded(kind or "pages", content, name)


def count_pages(image: Image.Image, name: str) -> int:
    """Images in an opened file of one of the formats `PAGED`; 1 in others."""
    with _corruption_refused(name):
        return getattr(image, "n_frames", 1) if image.format in PAGED else 1


def seek_page(image: Image.Image, number: int, name: str) -> None:
    """Goes to a page of an opened file, from 0; a ValueError where it is broken."""
    with _corruption_refused(name):
        image.seek(number)


def document_kind(head: bytes) -> str | None:
    """ "pdf" or "video" by a file's first bytes, else None."""
    if b"%PDF-" in head:
        return "pdf"
    still = head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis", b"heic", b"heix", b"mif1")
    box = head[4:8] == b"ftyp" and not still  # MP4 and MOV
    riff = head[:4] == b"RIFF" and head[8:12] == b"AVI "
    return "video" if box or riff or head.startswith((b"\x1aE\xdf\xa3", b"OggS", b"FLV")) else None


def load_image(
    source: Any,
    *,
    max_image_pixels: int = MAX_IMAGE_PIXELS,
    timeout: float | None = 30.0,
    input_data_format: str | ChannelDimension | None = None,
    sources: str | SourcePolicy = "any",
) -> Image.Image:
    """Upright RGB image from any source. Transparency is laid on white, or where the ink is nearly
    white on black or grey; 16-bit and float modes are scaled to 8 bit.

    Args:
        source: PIL image, path (str, Path, file://; "~" is the home folder), http(s) URL, data: URL, base64 text,
            bytes, binary file object, a data set's {"bytes": ..., "path": ...}, numpy array or torch tensor (HWC, CHW
            or HW; integers in 0..255, uint16, bool, or floats in 0..1). Encoded images are of `FORMATS`.
        max_image_pixels: refused above, before any pixel is decoded, as is a side above `MAX_IMAGE_SIDE`.
        timeout: seconds for a whole download.
        input_data_format: "channels_first" or "channels_last" for arrays; inferred by default, first where both fit.
        sources: what may be read, a `SourcePolicy` or its name in `POLICIES`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: anything else that does not yield an image, documents of several pages too.
    """
    if isinstance(source, Image.Image):
        return finish_image(source, "image", max_image_pixels)
    if isinstance(source, torch.Tensor):
        if not is_dense(source) or source.is_complex():
            raise refusal("image", "a dense tensor of numbers", source)
        source = source.detach().cpu()
        source = (source.float() if source.is_floating_point() else source).numpy()
    if isinstance(source, np.ndarray):
        return finish_image(_array_to_image(source, max_image_pixels, input_data_format), "image", max_image_pixels)
    loaded = load_source(source, max_image_pixels=max_image_pixels, timeout=timeout, sources=sources)
    if isinstance(loaded, Encoded):
        kind = {"pdf": "a PDF", "video": "a video", "pages": "several pages"}[loaded.kind]
        expected = "one image (generate(document, question) and encode_image(document) take all of its pages)"
        raise ValueError(f"{loaded.name}: expected {expected}, received {kind}")
    return loaded


def open_encoded(stream: IO[bytes], name: str, limit: int) -> Image.Image:
    """An encoded image, opened, but not decoded."""
    stream.seek(0)
    Image.init()  # makes every format known that this Pillow was built with
    with _corruption_refused(name):
        try:
            return Image.open(stream, formats=[kind for kind in FORMATS if kind in Image.OPEN])
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise _Refused(f"{name}: expected at most {limit} pixels, received more") from error
        except UnidentifiedImageError:
            received = "other content" if stream.seek(0, os.SEEK_END) else "an empty file"
            expected = f"an image ({', '.join(FORMATS)}), a PDF or a video"
            raise _Refused(f"{name}: expected {expected}, received {received}") from None


def decode(image: Image.Image, name: str, limit: int) -> Image.Image:
    """The upright RGB image of an opened one."""
    loaded = finish_image(image, name, limit)
    loaded.info.pop("exif", None)  # obeyed, or broken where Pillow reads the image all the same
    return loaded


class _Refused(Exception):
    """Ours, in words for the caller, who gets a ValueError."""


@contextmanager
def _corruption_refused(name: str) -> Iterator[None]:
    """Pillow's parsers raise whatever broken content makes them trip over, and may quote it."""
    try:
        yield
    except _Refused as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise ValueError(f"{name}: expected a whole image, received a corrupt one ({type(error).__name__})") from None


def finish_image(image: Image.Image, name: str, limit: int) -> Image.Image:
    """Checks that need no pixels, then decode, turn upright, 8-bit RGB."""
    check_size(image.height, image.width, name, limit)
    with _corruption_refused(name):
        image.load()
        if image.mode == "F" and not np.isfinite(np.asarray(image)).all():
            raise _Refused(f"{name}: expected finite pixels, received mode F with values that are not finite")
        with suppress(SyntaxError):  # of EXIF that is broken where the image is not
            # Reading EXIF is cheap, transposing copies: an image that was loaded before passes through untouched.
            image = ImageOps.exif_transpose(image) if image.getexif() else image
        return _to_rgb(image)


def check_size(height: int, width: int, name: str, limit: int) -> None:
    """Raises a ValueError where an image has no pixels, more than `limit`, or a side above `MAX_IMAGE_SIDE`."""
    if height < 1 or width < 1:
        raise ValueError(f"{name}: expected at least 1x1 pixels (height x width), received {height}x{width}")
    if max(height, width) > MAX_IMAGE_SIDE:
        raise ValueError(f"{name}: expected sides of at most {MAX_IMAGE_SIDE} px, received {height}x{width}")
    if height * width > limit:
        raise ValueError(
            f"{name}: expected at most {limit} pixels (max_image_pixels), "
            f"received {height}x{width} = {height * width} pixels"
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return _lightened(image)
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_scale_to_8_bit(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        page, background = Image.new("RGB", image.size), _background(image)
        for top in range(0, image.height, BAND):
            band = image.crop((0, top, image.width, min(top + BAND, image.height)))
            rgba = band.convert("LA").convert("RGBA") if band.mode == "La" else band.convert("RGBA")
            under = Image.new("RGBA", band.size, (background,) * 3)
            under.alpha_composite(rgba)
            page.paste(under.convert("RGB"), (0, top))
        return page
    return _lightened(image.convert("RGB"))


def _lightened(image: Image.Image) -> Image.Image:
    """A scan of 12 bits a channel in 16, of which Pillow keeps the upper 8 (up to 15), over the whole range."""
    brightest = max(high for _, high in image.getextrema())  # type: ignore[misc]
    return image.point(lambda value: value * 255 / brightest) if 0 < brightest < DARKEST else image


def _background(image: Image.Image) -> int:
    """The grey that is laid under an image with transparency: white, unless ink that stands alone would vanish on it.

    That is so where a quarter of the image is transparent, and a quarter of what is visible nearly white: then it is
    the grey, of white, black and the middle, from which the tenth of the ink that is nearest to it differs most.
    """
    width, height = (min(side, SAMPLED) for side in image.size)
    sample = image.resize((width, height), Image.Resampling.NEAREST)
    rgba = np.asarray((sample.convert("LA") if sample.mode == "La" else sample).convert("RGBA"))
    weight = rgba[..., 3].ravel() / 255.0
    ink = rgba[..., :3].reshape(-1, 3) @ np.array([0.299, 0.587, 0.114])
    if weight.mean() > 0.75 or not weight.any() or weight[ink > 255 - VISIBLE].sum() < 0.25 * weight.sum():
        return 255

    def contrast(grey: int) -> float:
        far = np.abs(ink - grey)
        nearest = np.argsort(far)
        return float(far[nearest][np.searchsorted(weight[nearest].cumsum(), 0.1 * weight.sum())])

    return max((255, 0, 128), key=contrast)


def _scale_to_8_bit(values: np.ndarray, mode: str) -> np.ndarray:
    """By the white of the fewest bits that hold the values (1.0 of floats), else by min and max."""
    low, high = float(values.min()), float(values.max())
    known = WHITES[not mode.startswith("F") :]
    white = next((limit for limit in known if low >= 0 and high <= limit), None)
    black = 0.0
    if white is None:
        black, white = low, (high - low) or 1.0  # one value only: black
    scaled = np.empty(values.shape, dtype=np.uint8)
    for top in range(0, len(values), BAND):
        band = values[top : top + BAND].astype(np.float64)
        scaled[top : top + BAND] = np.rint((band - black) * (255.0 / white))
    return scaled


def _array_to_image(array: np.ndarray, limit: int, layout: str | ChannelDimension | None) -> Image.Image:
    shape = tuple(array.shape)
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim != 3:
        raise ValueError(f"image: expected an array [H, W], [H, W, C] or [C, H, W], received shape {shape}")
    elif layout is not None:
        array = np.moveaxis(array, 0, -1) if ChannelDimension(layout) == ChannelDimension.FIRST else array
    elif shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    height, width, channels = array.shape
    check_size(height, width, f"array {shape}", limit)
    if channels not in (1, 2, 3, 4):
        raise ValueError(f"image: expected 1 to 4 channels first or last, received an array of shape {shape}")
    pixels = _array_to_8_bit(array)
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels))


def _array_to_8_bit(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if array.dtype == np.uint16:
        return _scale_to_8_bit(array, "I;16") if array.size else array.astype(np.uint8)
    is_float = np.issubdtype(array.dtype, np.floating)
    if not is_float and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"image: expected an array of integers or floats, received {array.dtype}")
    low, high = float(array.min()), float(array.max())
    # Resampling and half precision overshoot 0..1 a little; 0..255 in floats is a mistake, not an overshoot.
    white, slack = (1.0, 0.01) if is_float else (255.0, 0.0)
    if not (-slack <= low and high <= white + slack):  # also false for NaN
        raise ValueError(f"image: expected {array.dtype} values in 0..{white:g}, received {low:g}..{high:g}")
    return np.rint(np.clip(array.astype(np.float64), 0, white) * (255.0 / white)).astype(np.uint8)


POINTS = 72
"""PDF units per inch."""

_PDFIUM = threading.Lock()
"""PDFium is not thread-safe, not even across documents."""


@dataclass(frozen=True)
class Limits:
    """What is taken of a document.

    Attributes:
        dpi: px per inch at which pages of a PDF are rendered.
        max_pages: more pages are refused.
        fps: frames of a video per second, fewer where that would be more than `max_frames`.
        max_frames: of a video.
        max_image_pixels: of a page or frame.
    """

    dpi: float
    max_pages: int
    fps: float
    max_frames: int
    max_image_pixels: int


def open_document(encoded: Encoded, limits: Limits) -> list[Source]:
    """The pages or frames of a document, in order.

    Raises:
        ValueError: encrypted, broken or empty; more pages than `max_pages`, or one that is too large.
        ImportError: the package that reads it is not installed.
    """
    openers = {"pdf": _open_pdf, "video": _open_video, "pages": _open_pages}
    return openers[encoded.kind](encoded, limits)


class MissingPackage(ImportError, ValueError):
    """A package that is needed to read something is not installed: whoever asks is told so, as of other bad input."""


def _package(name: str, extra: str, source: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        expected = f'expected {name} to read it (pip install "arr-coc[{extra}]")'
        raise MissingPackage(f"{source}: {expected}; got none installed") from error


def _check_pages(count: int, name: str, limits: Limits) -> None:
    if not 1 <= count <= limits.max_pages:
        raise ValueError(f"{name}: expected 1 to {limits.max_pages} pages (max_pages); got {count}")


# ---- PDF ----------------------------------------------------------------------------------------------------------


def _open_pdf(encoded: Encoded, limits: Limits) -> list[Source]:
    pdfium = _package("pypdfium2", "documents", encoded.name)
    with _PDFIUM:
        try:
            pdf = pdfium.PdfDocument(encoded.content)  # opened anew for each page: nobody knows when it is the last
        except pdfium.PdfiumError as error:
            locked = "password" in str(error).lower()
            received = "an encrypted one" if locked else "a broken or empty one"
            raise ValueError(f"{encoded.name}: expected a PDF that can be opened; got {received}") from None
        with closing(pdf):
            _check_pages(len(pdf), encoded.name, limits)
            scale = limits.dpi / POINTS
            sources = []
            for number in range(len(pdf)):
                with _whole_page(pdfium, encoded, number):
                    size = pdf.get_page_size(number)
                width, height = (math.ceil(side * scale) for side in size)  # as pypdfium2 rounds
                try:
                    check_size(height, width, f"{encoded.name}, page {number + 1}", limits.max_image_pixels)
                except ValueError as error:
                    raise ValueError(f"{error}; a lower dpi than {limits.dpi:g} makes it smaller") from None
                load = partial(_render, pdfium, encoded, number, scale)
                sources.append(Source(height, width, load, page=number + 1))
    return sources


@contextmanager
def _whole_page(pdfium: Any, encoded: Encoded, number: int) -> Iterator[None]:
    try:
        yield
    except pdfium.PdfiumError:
        expected = f"page {number + 1} of the PDF to be whole"
        raise ValueError(f"{encoded.name}: expected {expected}; got a broken one") from None


def _render(pdfium: Any, encoded: Encoded, number: int, scale: float) -> Image.Image:
    with (
        _PDFIUM,
        _whole_page(pdfium, encoded, number),
        closing(pdfium.PdfDocument(encoded.content)) as pdf,
        closing(pdf[number]) as page,
        closing(page.render(scale=scale)) as bitmap,
    ):
        return bitmap.to_pil().convert("RGB").copy()  # the bitmap's memory is PDFium's


# ---- image files of several pages ---------------------------------------------------------------------------------


def _open_pages(encoded: Encoded, limits: Limits) -> list[Source]:
    with open_encoded(BytesIO(encoded.content), encoded.name, limits.max_image_pixels) as image:
        count = count_pages(image, encoded.name)
        _check_pages(count, encoded.name, limits)
        sources = []
        for number in range(count):
            name = f"{encoded.name}, page {number + 1}"
            seek_page(image, number, name)
            check_size(image.height, image.width, name, limits.max_image_pixels)
            load = partial(_page_of, encoded, number, limits.max_image_pixels)
            sources.append(Source(image.height, image.width, load, page=number + 1))
    return sources


def _page_of(encoded: Encoded, number: int, limit: int) -> Image.Image:
    with open_encoded(BytesIO(encoded.content), encoded.name, limit) as image:
        name = f"{encoded.name}, page {number + 1}"
        seek_page(image, number, name)
        return decode(image, name, limit)


# ---- video --------------------------------------------------------------------------------------------------------


@contextmanager
def _video(encoded: Encoded) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream; PyAV's errors in words for the caller."""
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


def _open_video(encoded: Encoded, limits: Limits) -> list[Source]:
    with _video(encoded) as (container, stream):
        height, width = stream.height, stream.width
        check_size(height, width, encoded.name, limits.max_image_pixels)
        shown = [
            (float(packet.pts * stream.time_base), float((packet.duration or 0) * stream.time_base))
            for packet in container.demux(stream)
            if packet.pts is not None
        ]
    if not shown:
        raise ValueError(f"{encoded.name}: expected a video with frames; got none")
    begin = min(start for start, _ in shown)
    length = max(start + duration for start, duration in shown) - begin
    step = max(1 / limits.fps, length / limits.max_frames)
    count = min(limits.max_frames, max(1, math.ceil(length / step - 1e-6)))
    if _first_rotation(encoded) % 180:
        height, width = width, height
    return [
        Source(height, width, partial(_frame, encoded, begin + number * step), second=number * step)
        for number in range(count)
    ]


def _first_rotation(encoded: Encoded) -> int:
    """Degrees by which the frames are to be turned, as phones have it for what they film upright; 0: none."""
    with _video(encoded) as (container, stream):
        return next((frame.rotation for frame in container.decode(stream)), 0)


def _frame(encoded: Encoded, second: float) -> Image.Image:
    """The first frame at `second` of its timestamps or behind it, upright; the last one where there is none."""
    with _video(encoded) as (container, stream):
        container.seek(int(second / stream.time_base), stream=stream)
        frame = None
        for frame in container.decode(stream):  # noqa: B007 (the last one is looked at)
            if frame.time is not None and frame.time >= second - 1e-3:
                break
        if frame is None:
            raise ValueError(f"{encoded.name}: expected a frame at {second:.1f} s; got none")
        return frame.to_image().convert("RGB").rotate(frame.rotation, expand=True)
