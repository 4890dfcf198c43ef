"""Images in, model pixels out: any source becomes one padded square, and boxes and masks follow it.

Notation: S side of the square in pixels, p side of a patch in pixels, G = S / p, N = G*G patches, n images.
Positions are (y, x), row-major. A box is (y0, x0, y1, x1) in pixels, y1 and x1 exclusive.
"""

import base64
import binascii
import math
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlparse
from urllib.request import url2pathname

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from transformers import image_utils
from transformers.image_processing_backends import PilBackend
from transformers.image_processing_base import BatchFeature
from transformers.image_utils import ChannelDimension, PILImageResampling, SizeDict
from transformers.processing_utils import ImagesKwargs

from .configuration_arr_coc import grid_size

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in pixels, ends exclusive: the order that data sets use."""

MAX_IMAGE_PIXELS = 89_478_485
"""Pixels; Pillow's own limit against decompression bombs (a quarter of 2^30 bytes at 3 bytes a pixel)."""

MAX_DOWNLOAD_BYTES = 256 * 2**20
"""Bytes read from a URL before giving up: about what `MAX_IMAGE_PIXELS` take uncompressed."""

SHORTEST_BASE64 = 32
"""Characters; below it a string without a scheme is a path, never base64 (the smallest image files take more)."""

MIN_BOX_OVERLAP = 0.2
"""Part of a patch's side that a box must cover, in both directions, to count as overlapping it."""


# Geometry: pure functions


class Placement(NamedTuple):
    """Where a source image lies in the square.

    `scale`: model px per source px along the longer side; `offset`: (y, x) of the image's top left corner, px;
    `size`: (height, width) of the image inside the square, px.
    """

    scale: float
    offset: tuple[int, int]
    size: tuple[int, int]


def fit_square(height: int, width: int, side: int) -> Placement:
    """Placement of a `height` x `width` image in a square of `side` px: longer side fills it, undistorted, centred.

    The same roundings as `PIL.ImageOps.pad`, which DeepSeek-OCR uses, except that no side becomes 0.

    Raises:
        ValueError: the image has no pixels.
    """
    if height < 1 or width < 1:
        raise ValueError(f"image: expected at least 1x1 pixels (height x width), received {height}x{width}")
    scaled_height = side if height >= width else max(1, round(height / width * side))
    scaled_width = side if width >= height else max(1, round(width / height * side))
    offset = (round((side - scaled_height) * 0.5), round((side - scaled_width) * 0.5))
    return Placement(side / max(height, width), offset, (scaled_height, scaled_width))


def map_boxes(boxes: Sequence[Box], height: int, width: int, side: int) -> list[Box]:
    """Boxes in pixels of a `height` x `width` source image -> boxes in pixels of the square of `side` px."""
    placed = fit_square(height, width, side)
    scale_y, scale_x = placed.size[0] / height, placed.size[1] / width
    top, left = placed.offset
    return [
        (left + x0 * scale_x, top + y0 * scale_y, left + x1 * scale_x, top + y1 * scale_y) for x0, y0, x1, y1 in boxes
    ]


def patches_of_placement(placement: Placement, grid: int, patch_size: int) -> np.ndarray:
    """bool [G, G]: True where the patch holds at least one pixel of the image."""
    mask = np.zeros((grid, grid), dtype=bool)
    spans = [
        slice(start // patch_size, -(-(start + length) // patch_size))
        for start, length in zip(placement.offset, placement.size, strict=True)
    ]
    mask[spans[0], spans[1]] = True
    return mask


def _covered(start: float, end: float, grid: int, patch_size: int) -> list[int]:
    """Indices along one axis that [start, end] px covers by the margin, or else the one under its centre."""
    low, high = max(0, math.floor(start / patch_size)), min(grid, math.ceil(end / patch_size))
    margin = MIN_BOX_OVERLAP * patch_size
    covered = [
        i for i in range(low, high) if min(end, (i + 1) * patch_size) - max(start, i * patch_size) >= margin - 1e-6
    ]
    if covered:
        return covered
    middle = (max(start, 0.0) + min(end, float(grid * patch_size))) / 2
    return [min(grid - 1, int(middle // patch_size))]


def boxes_to_patches(boxes: Sequence[Box], grid: int, patch_size: int = 16) -> np.ndarray:
    """Patches that the boxes (pixels of the square) lie on.

    A box takes a patch when it covers at least `MIN_BOX_OVERLAP` of its side in both directions; a box too thin for
    that takes the patches under its centre line. Boxes outside the square take none.

    Returns:
        bool [G, G].

    Raises:
        ValueError: a box that ends before it starts.
    """
    mask = np.zeros((grid, grid), dtype=bool)
    side = grid * patch_size
    for x0, y0, x1, y1 in boxes:
        if not (x0 <= x1 and y0 <= y1):
            raise ValueError(f"box: expected (x0, y0, x1, y1) with x0 <= x1 and y0 <= y1, received {(x0, y0, x1, y1)}")
        if max(y0, x0) > side or min(y1, x1) < 0:
            continue
        mask[np.ix_(_covered(y0, y1, grid, patch_size), _covered(x0, x1, grid, patch_size))] = True
    return mask


# Loading: any source -> an upright 8-bit RGB image


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


# The processor


class ArrCocImagesKwargs(ImagesKwargs, total=False):
    """patch_size: side of a patch, px. max_image_pixels: refuse larger images before decoding them."""

    patch_size: int | None
    max_image_pixels: int | None


class ArrCocImageProcessor(PilBackend):
    """Any images -> `pixel_values` float32 [n, 3, S, S] and `patch_mask` bool [n, N].

    The longer side is resized to S, never distorting; the rest is padding of colour `image_mean`, image centred (as
    DeepSeek-OCR does). An image whose longer side is S already is not resampled. `patch_mask` is True where a patch
    holds a part of the image, row-major. Without torchvision.

    Args (all optional):
        size: {"height": S, "width": S}, px; S a multiple of 4 patches.
        patch_size: p, px.
        max_image_pixels: larger images raise ValueError before their pixels are decoded.
        do_resize, resample, do_rescale, rescale_factor, do_normalize, image_mean, image_std: as in transformers.
    """

    valid_kwargs = ArrCocImagesKwargs
    model_input_names = ["pixel_values", "patch_mask"]

    size = {"height": 1024, "width": 1024}
    patch_size = 16
    max_image_pixels = MAX_IMAGE_PIXELS
    resample = PILImageResampling.BICUBIC
    image_mean = [0.5, 0.5, 0.5]
    image_std = [0.5, 0.5, 0.5]
    do_resize = True
    do_rescale = True
    do_normalize = True
    do_convert_rgb = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_square(self.size, self.patch_size)

    def fetch_images(self, image_url_or_urls: Any) -> Any:
        """Loads every leaf of nested lists (see `load_image`); a 4-D array counts as a list."""
        return self._load(image_url_or_urls)

    def to_model_box(self, box: Box, image_size_yx: tuple[int, int]) -> Box:
        """A box in pixels of an image of (height, width) -> the box in pixels of the square."""
        return self.map_boxes([box], *image_size_yx)[0]

    def map_boxes(self, boxes: Sequence[Box], height: int, width: int) -> list[Box]:
        """Boxes in pixels of a `height` x `width` source image -> boxes in pixels of the square."""
        return map_boxes(boxes, height, width, self.size["height"])

    def _load(self, images: Any, input_data_format: str | ChannelDimension | None = None) -> Any:
        if isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4:
            return [self._load(image, input_data_format) for image in images]
        limit = self.max_image_pixels
        return load_image(images, max_image_pixels=limit, input_data_format=input_data_format)

    def _prepare_image_like_inputs(
        self, images: Any, *args: Any, input_data_format: str | ChannelDimension | None = None, **kwargs: Any
    ) -> list[np.ndarray]:
        """Images in any nesting -> flat list of uint8 [3, H, W]."""
        loaded = self._load(images, input_data_format)
        rows = loaded if isinstance(loaded, list) else [loaded]
        flat = [image for row in rows for image in (row if isinstance(row, list) else [row])]
        if not flat:
            raise ValueError("images: expected at least one image, received none")
        return [np.moveaxis(np.asarray(image), -1, 0) for image in flat]

    def _validate_preprocess_kwargs(self, *args: Any, **kwargs: Any) -> None:
        super()._validate_preprocess_kwargs(*args, **kwargs)
        _check_square(kwargs["size"], kwargs["patch_size"])
        layout = kwargs.get("data_format")
        if layout is not None and ChannelDimension(layout) != ChannelDimension.FIRST:
            raise ValueError(f"data_format: expected channels_first, received {layout}")

    def _preprocess(  # type: ignore[override]
        self,
        images: list[np.ndarray],
        size: SizeDict,
        patch_size: int,
        image_mean: float | Sequence[float],
        return_tensors: str | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        side, grid = size["height"], size["height"] // patch_size
        means = [image_mean] * 3 if isinstance(image_mean, (int, float)) else image_mean
        fill = np.array([int(mean * 255) for mean in means], dtype=np.uint8)  # truncated, as DeepSeek-OCR does
        pixel_values, patch_masks = [], []
        for image in images:
            placed = self._place(image, side, kwargs["do_resize"])
            top, left = placed.offset
            height, width = placed.size
            if image.shape[1:] != placed.size:
                image = self.resize(image, SizeDict(height=height, width=width), resample=kwargs["resample"])
            square: np.ndarray = np.empty((3, side, side), dtype=np.uint8)
            square[:] = fill[:, None, None]
            square[:, top : top + height, left : left + width] = image
            if kwargs["do_rescale"]:
                square = self.rescale(square, kwargs["rescale_factor"])
            if kwargs["do_normalize"]:
                square = self.normalize(square, means, kwargs["image_std"])
            pixel_values.append(np.ascontiguousarray(square, dtype=np.float32))
            patch_masks.append(patches_of_placement(placed, grid, patch_size).reshape(-1))
        return BatchFeature({"pixel_values": pixel_values, "patch_mask": patch_masks}, tensor_type=return_tensors)

    @staticmethod
    def _place(image: np.ndarray, side: int, do_resize: bool) -> Placement:
        height, width = image.shape[1:]
        if do_resize:
            return fit_square(height, width, side)
        if max(height, width) > side:
            raise ValueError(f"do_resize=False: expected an image of at most {side} px a side, got {height}x{width}")
        return Placement(1.0, (round((side - height) * 0.5), round((side - width) * 0.5)), (height, width))


def _check_square(size: Any, patch_size: int) -> None:
    """size: SizeDict or dict with height and width, px."""
    height, width = size["height"], size["width"]
    if height is None or height != width:
        raise ValueError(f"size: expected a square {{'height': S, 'width': S}} in px, received {dict(size)}")
    grid_size(height, patch_size)
