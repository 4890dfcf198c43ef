"""Loading images: any source -> an upright 8-bit RGB image.

A path, URL, base64 text, array or tensor comes in; a Pillow image goes out, or a ValueError of one line.
"""

import base64
import binascii
import os
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote_to_bytes, urlparse
from urllib.request import url2pathname

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from transformers import image_utils
from transformers.image_utils import ChannelDimension

MAX_IMAGE_PIXELS = 89_478_485
"""Pixels; Pillow's own limit against decompression bombs (a quarter of 2^30 bytes at 3 bytes a pixel)."""

MAX_DOWNLOAD_BYTES = 256 * 2**20
"""Bytes read from a URL before giving up: about what `MAX_IMAGE_PIXELS` take uncompressed."""

SHORTEST_BASE64 = 32
"""Characters; below it a string without a scheme is a path, never base64 (the smallest image files take more)."""


def load_image(
    source: Any,
    *,
    max_image_pixels: int = MAX_IMAGE_PIXELS,
    timeout: float | None = 30.0,
    input_data_format: str | ChannelDimension | None = None,
) -> Image.Image:
    """Upright RGB image from any source. Transparency is laid on white, 16-bit and float modes scaled to 8 bit.

    Args:
        source: PIL image, path (str, Path, file://), http(s) URL, data: URL, base64 text, numpy array or torch tensor
            (HWC, CHW or HW; integers in 0..255, uint16, bool, or floats in 0..1).
        max_image_pixels: refused above, before any pixel is decoded.
        timeout: seconds for an http(s) URL.
        input_data_format: "channels_first" or "channels_last" for arrays; inferred by default, first where both fit.

    Raises:
        FileNotFoundError: no such file.
        ValueError: anything else that does not yield an image.
    """
    if isinstance(source, Image.Image):
        return _finish(source, "image", max_image_pixels)
    if isinstance(source, torch.Tensor):
        source = source.detach().cpu()
        source = (source.float() if source.is_floating_point() else source).numpy()
    if isinstance(source, np.ndarray):
        return _finish(_array_to_image(source, max_image_pixels, input_data_format), "image", max_image_pixels)
    if isinstance(source, os.PathLike):
        return _decode_file(Path(source), max_image_pixels)
    if isinstance(source, str):
        return _load_text(source, max_image_pixels, timeout)
    raise ValueError(
        "image: expected a PIL image, path, URL, data: URL, numpy array or torch tensor, "
        f"received {type(source).__name__}"
    )


def _load_text(source: str, limit: int, timeout: float | None) -> Image.Image:
    scheme = source.split(":", 1)[0].lower() if ":" in source else ""
    if scheme in ("http", "https"):
        return _decode(BytesIO(_download(source, timeout)), source, limit)
    if scheme == "data":
        return _decode(BytesIO(_data_url_bytes(source)), _shorten(source), limit)
    if scheme == "file":
        return _decode_file(_file_url_path(source), limit)
    if not os.path.exists(source) and len(source) >= SHORTEST_BASE64:
        try:
            content = base64.b64decode("".join(source.split()), validate=True)
        except (binascii.Error, ValueError):
            content = b""
        if content:
            return _decode(BytesIO(content), f"base64 text {_shorten(source)}", limit)
    return _decode_file(Path(source), limit)


def _file_url_path(url: str) -> Path:
    parsed = urlparse(url)
    if parsed.netloc not in ("", "localhost"):
        raise ValueError(f"{_shorten(url)}: expected file:///path on this machine, received host {parsed.netloc!r}")
    return Path(url2pathname(parsed.path))


def _data_url_bytes(url: str) -> bytes:
    header, comma, payload = url.partition(",")
    if not comma:
        raise ValueError(f"{_shorten(url)}: expected data:<type>;base64,<content>, received no comma")
    if not header.lower().endswith(";base64"):
        return unquote_to_bytes(payload)
    try:
        return base64.b64decode("".join(payload.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{_shorten(url)}: expected base64 content, received {error}") from error


def _download(url: str, timeout: float | None) -> bytes:
    # transformers knows which httpx this huggingface_hub brings (httpx, later httpx2); modeling/ may not import either.
    httpx: Any = image_utils.httpx
    content = bytearray()
    try:
        with httpx.stream("GET", url, timeout=timeout, follow_redirects=True) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > MAX_DOWNLOAD_BYTES:
                    raise ValueError(f"{_shorten(url)}: expected at most {MAX_DOWNLOAD_BYTES} bytes, received more")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise ValueError(f"{_shorten(url)}: expected an image to download, received {_reason(error)}") from error
    return bytes(content)


def _decode_file(path: Path, limit: int) -> Image.Image:
    try:
        with path.open("rb") as stream:
            return _decode(stream, str(path), limit)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{_shorten(str(path))}: expected an image file, received a missing path") from error
    except OSError as error:  # a directory, no permission, a name too long
        raise ValueError(f"{_shorten(str(path))}: expected an image file, received {_reason(error)}") from error


def _decode(stream: IO[bytes], name: str, limit: int) -> Image.Image:
    try:
        image = Image.open(stream)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{name}: expected at most {limit} pixels, received more ({_reason(error)})") from error
    except UnidentifiedImageError as error:
        stream.seek(0)
        head = stream.read(16)
        received = f"data starting with {head!r}" if head else "an empty file"
        raise ValueError(f"{name}: expected an image in a format that Pillow reads, received {received}") from error
    except Exception as error:  # Pillow's parsers raise whatever a broken header makes them trip over
        raise ValueError(f"{name}: expected an image, received a corrupt one ({_reason(error)})") from error
    with image:
        return _finish(image, name, limit)


def _finish(image: Image.Image, name: str, limit: int) -> Image.Image:
    """Checks that need no pixels, then decode, turn upright, 8-bit RGB."""
    _check_size(image.height, image.width, name, limit)
    try:
        image.load()
        # Reading EXIF is cheap, transposing copies: an image that was loaded before passes through untouched.
        upright = ImageOps.exif_transpose(image) if image.getexif() else image
        return _to_rgb(upright)
    except Exception as error:
        raise ValueError(f"{name}: expected a whole image, received a corrupt one ({_reason(error)})") from error


def _check_size(height: int, width: int, name: str, limit: int) -> None:
    if height < 1 or width < 1:
        raise ValueError(f"{name}: expected at least 1x1 pixels (height x width), received {height}x{width}")
    if height * width > limit:
        raise ValueError(
            f"{name}: expected at most {limit} pixels (max_image_pixels), "
            f"received {height}x{width} = {height * width} pixels"
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_scale_to_8_bit(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
        page = Image.new("RGBA", image.size, "white")
        page.alpha_composite(rgba)
        return page.convert("RGB")
    return image.convert("RGB")


def _scale_to_8_bit(values: np.ndarray, mode: str) -> np.ndarray:
    """16-bit by 65535; wider modes by the smallest of 1 (float), 255 and 65535 that holds them, else by min and max."""
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError(f"mode {mode} with values that are not finite")
    low, high = float(wide.min()), float(wide.max())
    known = {"I;": (65535.0,), "F": (1.0, 255.0, 65535.0)}.get(mode[:2], (255.0, 65535.0))
    white = next((limit for limit in known if low >= 0 and high <= limit), None)
    if white is None:
        wide, white = wide - low, (high - low) or 1.0  # one value only: black
    return np.rint(wide * (255.0 / white)).astype(np.uint8)


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
    _check_size(height, width, f"array {shape}", limit)
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
        return np.rint(array / 257.0).astype(np.uint8)
    is_float = np.issubdtype(array.dtype, np.floating)
    if not is_float and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"image: expected an array of integers or floats, received {array.dtype}")
    low, high = float(array.min()), float(array.max())
    # Resampling and half precision overshoot 0..1 a little; 0..255 in floats is a mistake, not an overshoot.
    white, slack = (1.0, 0.01) if is_float else (255.0, 0.0)
    if not (-slack <= low and high <= white + slack):  # also false for NaN
        raise ValueError(f"image: expected {array.dtype} values in 0..{white:g}, received {low:g}..{high:g}")
    return np.rint(np.clip(array.astype(np.float64), 0, white) * (255.0 / white)).astype(np.uint8)


def _shorten(text: str, length: int = 80) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


def _reason(error: BaseException) -> str:
    """One line about an error of another library."""
    return _shorten(" ".join(f"{type(error).__name__}: {error}".split()), 200)
