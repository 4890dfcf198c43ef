"""Loading images: any source that a policy allows -> an upright 8-bit RGB image, or the bytes of a document.

Whatever does not load raises a ValueError of one line, without content and without the password or query of a URL.
Neither torch nor transformers is imported for a file, so that the command line refuses one at once.
"""

import base64
import binascii
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote_to_bytes, urlparse, urlsplit, urlunsplit
from urllib.request import url2pathname

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_BYTES = 256 * 2**20
"""The most bytes from a URL or file object: about the size of the largest image uncompressed."""

MAX_IMAGE_PIXELS = 89_478_485
"""Pixels; Pillow's own limit against decompression bombs (a quarter of 2^30 bytes at 3 bytes a pixel)."""

MAX_IMAGE_SIDE = 65_535
"""px; JPEG's own limit. A longer side is taken for a mistake."""

SMALLEST_PRINT = 8
"""px; the height of a line in the smallest bitmap fonts, whose letters are 5 px high."""

SHORTEST_BASE64 = 32
"""Characters; below it a string without a scheme is a path, never base64 (the smallest image files take more)."""

BAND = 256
"""Rows that are converted at a time if a conversion needs several times the memory of the image."""

LAYOUTS = ("channels_first", "channels_last")

PAGED = ("TIFF", "GIF")
"""Files of these formats with several images are documents of several pages."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Pillow's names of the formats that are decoded. Others start programs (EPS) or are rare."""


Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in pixels, ends exclusive: the order that data sets use."""


@dataclass(frozen=True)
class Source:
    """An image, a page or a frame: its size in px, a function that loads its pixels, and its place in a document.

    `page` counts from 1; `second` is that of a video's frame. `layer` reads the page's text layer, given its pixels
    (`printed_lines.TextLayer`); None: there is none. `glance` loads the pixels sooner and less sharp, or is None.
    `turned`: the degrees, counterclockwise, by which the page as it was given is turned here.
    """

    height: int
    width: int
    load: Callable[[], Image.Image]
    page: int | None = None
    second: float | None = None
    layer: Callable[[Image.Image], Any] | None = None
    glance: Callable[[], Image.Image] | None = None
    turned: int = 0

    def turn(self, degrees: int) -> "Source":
        """The page as it was given, turned by `degrees`, a multiple of 90."""
        height, width = (self.width, self.height) if degrees % 180 else (self.height, self.width)
        load = partial(_turned, self.load, degrees)
        return Source(height, width, load, self.page, self.second, turned=degrees) if degrees else self


def _turned(load: Callable[[], Image.Image], degrees: int) -> Image.Image:
    return load().rotate(degrees, expand=True)


def turn_box(box: Box, degrees: int, height: float, width: float) -> Box:
    """A box on an image of that size, once the image is turned counterclockwise."""
    for _ in range(degrees // 90):
        x0, y0, x1, y1 = box
        box, height, width = (y0, width - x1, y1, width - x0), width, height
    return box


@dataclass(frozen=True)
class Encoded:
    """The bytes of a document: "pdf", "video", or "pages" (an image file of several pages); `name` is for errors, and
    `password` opens an encrypted PDF."""

    kind: str
    content: bytes
    name: str
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SourcePolicy:
    """The sources that may be read, beside images that are passed whole (bytes, arrays, base64 and data: URLs).

    Attributes:
        schemes: "http" and "https": downloads; "file": this machine's files, as paths or file: URLs.
        max_bytes: of one download; None: `MAX_BYTES`.
    """

    schemes: tuple[str, ...] = ("http", "https", "file")
    max_bytes: int | None = None

    def check_request(self, url: Any, name: str) -> None:
        """Refuses a request of the download `name`, redirects included, by httpx's `url`; httpx refuses other
        schemes."""
        if url.scheme in ("http", "https") and url.scheme not in self.schemes:
            raise ValueError(f"{name}: expected a source that is allowed here (sources); got {url.scheme}:")

    def transport(self, httpx: Any) -> Any:
        """The transport of downloads; None: httpx's own."""
        return None


POLICIES = {"any": SourcePolicy(), "inline": SourcePolicy(schemes=())}
"""By name: "any" for one's own code; "inline" (no paths, no URLs) for a server for others. Package arr-coc adds
"public"."""


class Loaded(list[Any]):
    """Outputs of `load_sources`: upright RGB images, and the bytes of documents, which need no further check."""


def shorten(text: str, length: int = 80) -> str:
    """The text, shortened for an error message."""
    return text if len(text) <= length else f"{text[:length]}..."


def without_secrets(url: str) -> str:
    """The URL without user, password, query and fragment, for error messages."""
    try:
        parts = urlsplit(url)
        return shorten(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))
    except ValueError:
        return "URL"


def load_sources(sources: Sequence[Any], *, max_image_pixels: int, policy: str | SourcePolicy) -> Loaded:
    """`load_source` for each source, within an image processor's `max_image_pixels` and `sources`."""
    return Loaded([load_source(source, max_image_pixels=max_image_pixels, sources=policy) for source in sources])


def load_source(
    source: Any,
    *,
    password: str | None = None,
    max_image_pixels: int = MAX_IMAGE_PIXELS,
    timeout: float | None = 30.0,
    input_data_format: str | None = None,
    sources: str | SourcePolicy = "any",
) -> Image.Image | Encoded:
    """`load_image`, or the bytes of a document; `password`: of an encrypted PDF."""
    if isinstance(source, Encoded):
        return source if password is None else replace(source, password=password)
    torch = sys.modules.get("torch")  # before it is imported there is no tensor
    if torch is not None and isinstance(source, torch.Tensor):
        from .checks import array_of_tensor

        source = array_of_tensor("image", source)
    if isinstance(source, np.ndarray):
        source = _array_to_image(source, max_image_pixels, input_data_format)
    if isinstance(source, Image.Image):
        return finish_image(source, "image", max_image_pixels)
    stream, name = open_source(source, sources, timeout)
    with stream:
        kind = document_kind(stream.read(1024))
        if kind is None:
            with open_encoded(stream, name, max_image_pixels) as image:
                if count_pages(image, name) == 1:
                    return decode(image, name, max_image_pixels)
        stream.seek(0)
        return Encoded(kind or "pages", _content(stream, name), name, password)


def count_pages(image: Image.Image, name: str) -> int:
    """The number of images in an opened file of the formats `PAGED`; 1 for others."""
    with corruption_refused(name):
        return getattr(image, "n_frames", 1) if image.format in PAGED else 1


def open_source(source: Any, policy: str | SourcePolicy, timeout: float | None) -> tuple[IO[bytes], str]:
    """Opens a stream of encoded bytes, which the caller closes, and returns its name for error messages.

    Arguments and errors are those of `load_image`; a file object is read from its beginning and left open.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"sources: expected one of {', '.join(POLICIES)}; got {policy!r}")
        policy = POLICIES[policy]
    if isinstance(source, Mapping) and {"bytes", "path"} & set(source):
        content = source.get("bytes")
        source = source.get("path") if content is None else content
    if isinstance(source, bytes | bytearray | memoryview):
        return BytesIO(source), "bytes"
    if isinstance(source, str):
        return _open_text(source, policy, timeout)
    if isinstance(source, os.PathLike):
        return _open_file(os.fspath(source), policy)
    if hasattr(source, "read"):
        if hasattr(source, "seekable") and source.seekable():
            source.seek(0)  # as Pillow does: the same object may be read again
        return BytesIO(_content(source, "file object")), "file object"
    raise ValueError(
        "image: expected a PIL image, path, URL, data: URL, base64 text, bytes, file object, "
        f'{{"bytes": ..., "path": ...}}, numpy array or torch tensor; got {type(source).__name__}'
    )


def _content(stream: Any, name: str) -> bytes:
    """The rest of a stream."""
    content = stream.read(MAX_BYTES + 1)
    if not isinstance(content, bytes):
        raise ValueError(f"{name}: expected one opened for bytes; got {type(content).__name__} from it")
    if len(content) > MAX_BYTES:
        raise ValueError(f"{name}: expected at most {MAX_BYTES} bytes; got more")
    return content


def _open_text(source: str, policy: SourcePolicy, timeout: float | None) -> tuple[IO[bytes], str]:
    if not source.strip():
        raise ValueError("image: expected a path, URL, data: URL or base64 text; got an empty string")
    scheme = source.split(":", 1)[0].lower() if ":" in source else ""
    if scheme in ("http", "https"):
        return BytesIO(download(source, policy, timeout)), without_secrets(source)
    if scheme == "data":
        return BytesIO(_data_url_bytes(source)), "data: URL"
    if scheme == "file":
        parsed = urlparse(source)
        if parsed.netloc not in ("", "localhost"):
            expected = f"file:///path on this machine; got host {parsed.netloc!r}"
            raise ValueError(f"{shorten(source)}: expected {expected}")
        return _open_file(url2pathname(parsed.path), policy)
    named = source.startswith("/") and not source.startswith("/9j/")  # as base64 only a JPEG begins with a slash
    if len(source) >= SHORTEST_BASE64 and not ("file" in policy.schemes and (named or os.path.exists(source))):
        with suppress(binascii.Error, ValueError):
            return BytesIO(base64.b64decode("".join(source.split()), validate=True)), "base64 text"
    return _open_file(source, policy)


def download(url: str, policy: SourcePolicy, timeout: float | None) -> bytes:
    """The content at a URL; errors as in `open_source`."""
    from transformers import image_utils  # it knows huggingface_hub's httpx (or httpx2), which modeling/ may not import

    httpx: Any = image_utils.httpx
    name = without_secrets(url)
    content, limit = bytearray(), policy.max_bytes or MAX_BYTES
    try:
        with _cut_off(timeout) as watch, httpx.Client(transport=policy.transport(httpx), timeout=timeout) as client:
            client.event_hooks = {"request": [lambda request: policy.check_request(request.url, name)]}
            with client.stream("GET", url, follow_redirects=True, extensions={"trace": watch}) as response:
                response.raise_for_status()
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > limit:
                        raise ValueError(f"{name}: expected at most {limit} bytes; got more")
    except (TimeoutError, httpx.TimeoutException):
        raise ValueError(f"{name}: expected an image within {timeout:g} s; got a slower one") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        cause = type(error).__name__  # without the server's text and the URL
        if isinstance(error, httpx.HTTPStatusError):
            cause = f"status {error.response.status_code}"
        elif isinstance(error, httpx.ConnectError | OSError):
            cause = f"{cause}: {shorten(' '.join(str(error).split()))}"
        raise ValueError(f"{name}: expected an image to download; got {cause}") from None
    return bytes(content)


@contextmanager
def _cut_off(seconds: float | None) -> Iterator[Any]:
    """A `trace` for httpx that records its connections, and shuts them after the time limit with a TimeoutError.

    httpx's own timeouts are for one read each, so a server that sends a byte a second never exceeds them.
    """
    streams: list[Any] = []
    over = threading.Event()

    def shut() -> None:
        over.set()
        for stream in list(streams):
            with suppress(OSError):
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def watch(event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            streams.append(info["return_value"])
        if over.is_set():
            raise TimeoutError

    timer = threading.Timer(threading.TIMEOUT_MAX if seconds is None else seconds, shut)
    timer.daemon = True
    timer.start()
    try:
        yield watch
    except Exception as error:
        if over.is_set():
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()
    if over.is_set():  # a shut connection may look like the end of the content
        raise TimeoutError


def _data_url_bytes(url: str) -> bytes:
    header, comma, payload = url.partition(",")
    if not comma:
        raise ValueError(f"{shorten(url)}: expected data:<type>;base64,<content>; got no comma")
    if not header.lower().endswith(";base64"):
        return unquote_to_bytes(payload)
    try:
        return base64.b64decode(b"".join(unquote_to_bytes(payload).split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{shorten(header)}: expected base64 content; got {error}") from error


def _open_file(path: str, policy: SourcePolicy) -> tuple[IO[bytes], str]:
    if "file" not in policy.schemes:
        raise ValueError("image: expected a source that is allowed here (sources); got a path on this machine")
    name = path if len(path) <= 80 else f"...{path[-80:]}"  # the end of the name identifies the file
    file = Path(os.path.expanduser(path))
    try:
        if file.is_file():  # a FIFO would block, a device has no end
            return file.open("rb"), name
        missing, kind = not file.exists(), "a folder" if file.is_dir() else "a device, pipe or socket"
    except OSError as error:  # no permission, a name too long
        raise ValueError(f"{name}: expected an image file; got {type(error).__name__}") from error
    if missing:
        raise FileNotFoundError(f"{name}: expected an image file; got a missing path")
    raise ValueError(f"{name}: expected an image file; got {kind}")


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
    input_data_format: str | None = None,
    sources: str | SourcePolicy = "any",
) -> Image.Image:
    """Loads an upright RGB image from any source.

    The background of transparent images is white, or black or grey if the ink is nearly white. 16-bit and float modes
    are scaled to 8 bit.

    Args:
        source: PIL image, path (str, Path, file://; "~" is the home folder), http(s) URL, data: URL, base64 text,
            bytes, binary file object, a data set's {"bytes": ..., "path": ...}, numpy array or torch tensor (HWC, CHW
            or HW; integers in 0..255, uint16, bool, or floats in 0..1). Encoded images are of `FORMATS`.
        max_image_pixels: larger images are refused before any pixel is decoded, as is a side above `MAX_IMAGE_SIDE`.
        timeout: seconds for a whole download, redirects included; None: no limit.
        input_data_format: "channels_first" or "channels_last" for arrays; inferred by default, first where both fit.
        sources: the sources that may be read: a `SourcePolicy` or its name in `POLICIES`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: any other source that is not an image, or a document of several pages.
    """
    options: dict[str, Any] = {"timeout": timeout, "input_data_format": input_data_format, "sources": sources}
    loaded = load_source(source, max_image_pixels=max_image_pixels, **options)
    if isinstance(loaded, Encoded):
        raise document_refusal(loaded)
    return loaded


def document_refusal(document: Encoded) -> ValueError:
    """The error for a document in place of a single image."""
    kind = {"pdf": "a PDF", "video": "a video", "pages": "several pages"}[document.kind]
    expected = "one image (generate(document, question) and encode_image(document) take all of its pages)"
    return ValueError(f"{document.name}: expected {expected}; got {kind}")


def open_encoded(stream: IO[bytes], name: str, limit: int) -> Image.Image:
    """An opened image that is not decoded yet."""
    stream.seek(0)
    Image.init()  # registers all formats of the installed Pillow
    with corruption_refused(name):
        try:
            return Image.open(stream, formats=[kind for kind in FORMATS if kind in Image.OPEN])
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise _Refused(f"{name}: expected at most {limit} pixels; got more") from error
        except UnidentifiedImageError:
            received = _other_content(stream)
            expected = f"an image ({', '.join(FORMATS)}), a PDF or a video"
            raise _Refused(f"{name}: expected {expected}; got {received}") from None


def _other_content(stream: IO[bytes]) -> str:
    """What a file that is no image holds, in words."""
    stream.seek(0)
    head = stream.read(512)
    if not head:
        return "an empty file"
    if head.startswith((b"\x1f\x8b", b"PK\x03\x04")):
        return "compressed content (unpack it first)"
    if b"<svg" in head:
        return "an SVG drawing (render it as pixels first)"
    if head[4:8] == b"ftyp":
        return "a HEIC or AVIF photograph, which Pillow cannot read here (save it as JPEG)"
    plain = b"\0" not in head and head.decode(errors="replace").count("\N{REPLACEMENT CHARACTER}") <= 1  # the cut end
    return "text" if plain else "other content"


def decode(image: Image.Image, name: str, limit: int) -> Image.Image:
    """The upright RGB image of an opened image."""
    loaded = finish_image(image, name, limit)
    loaded.info.pop("exif", None)  # obeyed, or broken in a file that Pillow reads anyway
    return loaded


class _Refused(Exception):
    """An error whose text is for the caller."""


@contextmanager
def corruption_refused(name: str) -> Iterator[None]:
    """Turns errors of Pillow's parsers, which may be of any type and quote the content, into a ValueError."""
    try:
        yield
    except _Refused as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise ValueError(f"{name}: expected a whole image; got a corrupt one ({type(error).__name__})") from None


def finish_image(image: Image.Image, name: str, limit: int) -> Image.Image:
    """Checks that need no pixels, then decodes, turns upright and converts to 8-bit RGB."""
    check_size(image.height, image.width, name, limit)
    with corruption_refused(name):
        image.load()
        if image.mode == "F" and not np.isfinite(np.asarray(image)).all():
            raise _Refused(f"{name}: expected finite pixels; got mode F with values that are not finite")
        with suppress(SyntaxError):  # broken EXIF in a valid image
            # Reading EXIF is cheap, transposing copies: an upright image is not copied.
            image = ImageOps.exif_transpose(image) if image.getexif() else image
        return _to_rgb(image)


def check_size(height: int, width: int, name: str, limit: int) -> None:
    """Raises a ValueError for an image without pixels, with more than `limit`, or a side above `MAX_IMAGE_SIDE`."""
    if height < 1 or width < 1:
        raise ValueError(f"{name}: expected at least 1x1 pixels (height x width); got {height}x{width}")
    if max(height, width) > MAX_IMAGE_SIDE:
        raise ValueError(f"{name}: expected sides of at most {MAX_IMAGE_SIDE} px; got {height}x{width}")
    if height * width > limit:
        raise ValueError(
            f"{name}: expected at most {limit} pixels (max_image_pixels); "
            f"got {height}x{width} = {height * width} pixels"
        )


def check_print(height: int, width: int) -> None:
    """Raises a ValueError for an image that is too small for print, about which there is nothing to ask."""
    if min(height, width) < SMALLEST_PRINT:
        expected = f"sides of at least {SMALLEST_PRINT} px, the height of the smallest print"
        raise ValueError(f"image: expected {expected}; got {height}x{width} (height x width)")


def boxes_on_image(boxes: Sequence[Any], height: int, width: int) -> list[tuple[float, float, float, float]]:
    """The parts of boxes (x0, y0, x1, y1), px, that are on an image.

    Raises:
        ValueError: a box that ends before it starts, or is wholly outside the image.
    """
    for x0, y0, x1, y1 in boxes:
        if x0 > x1 or y0 > y1:
            raise ValueError(f"boxes: expected x0 <= x1 and y0 <= y1; got {(x0, y0, x1, y1)}")
        if not reaches((x0, y0, x1, y1), height, width):
            expected = f"boxes that reach into the image of {width} x {height} px (width x height)"
            raise ValueError(f"boxes: expected {expected}; got {(x0, y0, x1, y1)}")
    return [(max(x0, 0), max(y0, 0), min(x1, width), min(y1, height)) for x0, y0, x1, y1 in boxes]


def reaches(box: Sequence[float], height: int, width: int) -> bool:
    """Whether a box (x0, y0, x1, y1), px, reaches into an image."""
    return box[0] < width and box[1] < height and box[2] > 0 and box[3] > 0


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
    """Scales a scan of 12 bits a channel in 16, of which Pillow keeps the upper 8 (up to 15), to the whole range."""
    brightest = max(high for _, high in image.getextrema())  # type: ignore[misc]
    return image.point(lambda value: value * 255 / brightest) if 0 < brightest < 16 else image


def _background(image: Image.Image) -> int:
    """The grey behind a transparent image: white, unless a quarter is transparent and a quarter of the rest nearly
    white; then white, black or middle grey, from which the nearest tenth of the ink differs most."""
    width, height = (min(side, 512) for side in image.size)  # a sample is enough
    sample = image.resize((width, height), Image.Resampling.NEAREST)
    rgba = np.asarray((sample.convert("LA") if sample.mode == "La" else sample).convert("RGBA"))
    weight = rgba[..., 3].ravel() / 255.0
    ink = rgba[..., :3].reshape(-1, 3) @ np.array([0.299, 0.587, 0.114])
    faint = ink > 255 - 64  # levels of 8 bits, the least difference between readable ink and white
    if weight.mean() > 0.75 or not weight.any() or weight[faint].sum() < 0.25 * weight.sum():
        return 255

    def contrast(grey: int) -> float:
        far = np.abs(ink - grey)
        nearest = np.argsort(far)
        return float(far[nearest][np.searchsorted(weight[nearest].cumsum(), 0.1 * weight.sum())])

    return max((255, 0, 128), key=contrast)


def _scale_to_8_bit(values: np.ndarray, mode: str) -> np.ndarray:
    """Scales by the white of the fewest bits that hold the values (1.0 for floats), else by minimum and maximum."""
    low, high = float(values.min()), float(values.max())
    whites = (255.0, 1023.0, 4095.0, 16383.0, 65535.0)  # scanners and cameras put 10, 12 or 14 bits into 16
    known = (1.0, *whites) if mode.startswith("F") else whites
    white = next((limit for limit in known if low >= 0 and high <= limit), None)
    black = 0.0
    if white is None:
        black, white = low, (high - low) or 1.0  # a single value: black
    scaled = np.empty(values.shape, dtype=np.uint8)
    for top in range(0, len(values), BAND):
        band = values[top : top + BAND].astype(np.float64)
        scaled[top : top + BAND] = np.rint((band - black) * (255.0 / white))
    return scaled


def _array_to_image(array: np.ndarray, limit: int, layout: str | None) -> Image.Image:
    shape = tuple(array.shape)
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim != 3:
        raise ValueError(f"image: expected an array [H, W], [H, W, C] or [C, H, W]; got shape {shape}")
    elif layout is not None:
        if layout not in LAYOUTS:  # or transformers' ChannelDimension, which are strings
            raise ValueError(f"input_data_format: expected one of {', '.join(LAYOUTS)}; got {layout!r}")
        array = np.moveaxis(array, 0, -1) if layout == LAYOUTS[0] else array
    elif shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    height, width, channels = array.shape
    check_size(height, width, f"array {shape}", limit)
    if channels not in (1, 2, 3, 4):
        raise ValueError(f"image: expected 1 to 4 channels first or last; got an array of shape {shape}")
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
        raise ValueError(f"image: expected an array of integers or floats; got {array.dtype}")
    low, high = float(array.min()), float(array.max())
    # Resampling and half precision slightly overshoot 0..1; floats in 0..255 are a mistake.
    white, slack = (1.0, 0.01) if is_float else (255.0, 0.0)
    if not (-slack <= low and high <= white + slack):  # also False for NaN
        raise ValueError(f"image: expected {array.dtype} values in 0..{white:g}; got {low:g}..{high:g}")
    return np.rint(np.clip(array.astype(np.float64), 0, white) * (255.0 / white)).astype(np.uint8)
