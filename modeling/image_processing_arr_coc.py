"""The image processor: any source becomes one padded square; boxes and masks follow its geometry.

Notation: S side of the square in pixels, p side of a patch in pixels, G = S / p, N = G*G patches, n images. Positions
are (y, x), row-major; boxes alone are x first, as in data sets: see `Box`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from transformers.image_processing_backends import PilBackend
from transformers.image_processing_base import BatchFeature
from transformers.image_utils import ChannelDimension, PILImageResampling, SizeDict
from transformers.processing_utils import ImagesKwargs
from transformers.utils import logging

from .budgets import COMPRESSION, Window
from .checks import PROCESSING, check_processing, checked_field, member, number, validated, whole
from .configuration_arr_coc import MAX_SIDE, budget_field, grid_size
from .image_encoding import READ_WELL
from .image_loading import MAX_IMAGE_PIXELS, POLICIES, Box, Loaded, SourcePolicy, load_image, load_source
from .wordpieces import COLUMNS, GivenWords

Channels = int | float | list[Any] | tuple[Any, ...]


def _of_each_channel(expected: str, holds: Callable[[float], bool]) -> Any:
    """A field for a number, or for one number for each channel."""

    def all_hold(value: Any) -> bool:
        numbers = value if isinstance(value, (list, tuple)) else [value] * 3
        return len(numbers) == 3 and all(type(number) in (int, float) and holds(number) for number in numbers)

    return checked_field(f"{expected}, or 3 for red, green and blue", all_hold, default=0.5)


def _is_size(size: int | dict[str, Any] | SizeDict) -> bool:
    sides = [size] if isinstance(size, int) else [side for side in dict(size).values() if side is not None]
    return bool(sides) and all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides)


def _is_text(token: str) -> bool:
    return bool(token) and token.isprintable()  # half a surrogate pair is not


@validated
@dataclass(kw_only=True)
class ImageSettings:
    """Checks the settings of `ArrCocImageProcessor` that are set; the defaults only fill the others."""

    size: int | dict[str, Any] | SizeDict = checked_field(
        f"a side, or {{'height': S, 'width': S}}, up to {MAX_SIDE} px", _is_size, default=1024
    )
    patch_size: int = whole(1, 256, default=16)
    max_image_pixels: int = whole(1, 2**31 - 1, default=1)
    readable_px: int | float | None = number(0.0, MAX_SIDE, above=True, default=None)
    sources: str | SourcePolicy = checked_field(
        lambda: f"one of {', '.join(POLICIES)}, or a SourcePolicy",
        lambda value: isinstance(value, SourcePolicy) or value in POLICIES,
        default="any",
    )
    resample: int = checked_field("a filter of Pillow", lambda value: value in [*PILImageResampling], default=3)
    rescale_factor: int | float = number(-1e3, 1e3, default=1.0)
    image_mean: Channels = _of_each_channel("a number from 0 to 1", lambda value: 0 <= value <= 1)
    image_std: Channels = _of_each_channel("a number above 0, at most 1000", lambda value: 0 < value <= 1e3)
    do_resize: bool | None = None
    do_rescale: bool | None = None
    do_normalize: bool | None = None
    do_convert_rgb: bool | None = None


@validated
@dataclass(kw_only=True)
class ProcessorSettings:
    """Checks the settings of `ArrCocProcessor`."""

    budget: int | str = budget_field("standard")
    image_token: str = checked_field("a token", _is_text, default="<image>")
    excludes_base: bool = False
    layout: str = member("layout", default="plain")
    chat_template: str | dict[str, str] | None = None


logger = logging.get_logger(__name__)

MIN_BOX_OVERLAP = 0.2
"""Least share of a patch's side that a box must cover in both directions to overlap it."""

FAR_SHRUNK = 0.5
"""px of the square per px of the image below which a warning names the smallest readable letters."""


# Geometry: pure functions


class Placement(NamedTuple):
    """The place of a source image in the square.

    `scale`: model px per source px along the longer side; `offset`: (y, x) of the image's top left corner, px; `size`:
    (height, width) of the image inside the square, px.
    """

    scale: float
    offset: tuple[int, int]
    size: tuple[int, int]


class Original(NamedTuple):
    """What a view's unsure words are read from again, see `rereading`.

    Attributes:
        image: the view, RGB.
        placement: its place in the square of `side` px.
        as_pixels: the image processor's, a sheet uint8 [H, W, 3] -> float32 [3, H, W].
        least: the confidence of all words below which none is read again, as the view gets tiles then.
    """

    image: Image.Image
    placement: Placement
    side: int
    as_pixels: Callable[[np.ndarray], np.ndarray]
    least: float = 0.0


def fit_square(height: int, width: int, side: int) -> Placement:
    """Placement of a `height` x `width` image in a square of `side` px: longer side fills it, undistorted, centred.

    It rounds as `PIL.ImageOps.pad`, which DeepSeek-OCR uses, except that no side becomes 0.

    Raises:
        ValueError: the image has no pixels.
    """
    if height < 1 or width < 1:
        raise ValueError(f"image: expected at least 1x1 pixels (height x width); got {height}x{width}")
    scaled_height = side if height >= width else max(1, round(height / width * side))
    scaled_width = side if width >= height else max(1, round(width / height * side))
    offset = (round((side - scaled_height) * 0.5), round((side - scaled_width) * 0.5))
    return Placement(side / max(height, width), offset, (scaled_height, scaled_width))


def square_of(window: tuple[int, int, int, int]) -> tuple[float, float, float, float]:
    """The square, in px of the source, of a window that is fitted into the model's square, padding included."""
    x0, y0, x1, y1 = window
    side = max(x1 - x0, y1 - y0)
    placed = fit_square(y1 - y0, x1 - x0, side)
    top, left = placed.offset
    return x0 - left, y0 - top, x0 - left + side, y0 - top + side


def map_boxes(boxes: Sequence[Box], height: int, width: int, side: int) -> list[Box]:
    """Boxes in pixels of a `height` x `width` source image -> boxes in pixels of the square of `side` px."""
    placed = fit_square(height, width, side)
    scale_y, scale_x = placed.size[0] / height, placed.size[1] / width
    top, left = placed.offset
    return [
        (left + x0 * scale_x, top + y0 * scale_y, left + x1 * scale_x, top + y1 * scale_y) for x0, y0, x1, y1 in boxes
    ]


BLANK = 16
"""Levels of 8 bits: pixels that differ by less count as equal (paper and noise)."""


def is_blank(image: Image.Image) -> bool:
    """Whether an RGB image is blank: the pixels of each channel are within `BLANK` levels."""
    return all(high - low <= BLANK for low, high in image.getextrema())  # type: ignore[misc]


def patches_of_placement(placement: Placement, grid: int, patch_size: int) -> np.ndarray:
    """bool [G, G], False on padding patches."""
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
    """Patches under boxes (pixels of the square).

    A box takes a patch if it covers at least `MIN_BOX_OVERLAP` of its side in both directions; a box too thin for that
    takes the patches under its centre line. Boxes outside the square take none.

    Returns:
        bool [G, G].

    Raises:
        ValueError: a box that ends before it starts.
    """
    mask = np.zeros((grid, grid), dtype=bool)
    side = grid * patch_size
    for x0, y0, x1, y1 in boxes:
        if not (-math.inf < x0 <= x1 < math.inf and -math.inf < y0 <= y1 < math.inf):
            raise ValueError(f"box: expected (x0, y0, x1, y1) with x0 <= x1 and y0 <= y1; got {(x0, y0, x1, y1)}")
        if max(y0, x0) > side or min(y1, x1) < 0:
            continue
        mask[np.ix_(_covered(y0, y1, grid, patch_size), _covered(x0, x1, grid, patch_size))] = True
    return mask


# The processor


class ArrCocImageProcessorKwargs(ImagesKwargs, total=False):
    """Arguments of `ArrCocImageProcessor`, documented there."""

    patch_size: int | None
    max_image_pixels: int | None
    readable_px: int | float | None


class ArrCocImageProcessor(PilBackend):
    """Any images -> `pixel_values` float32 [n, 3, S, S] and `patch_mask` bool [n, N].

    The longer side is resized to S, never distorting; the rest is padding of colour `image_mean`, image centred (as
    DeepSeek-OCR does). An image whose longer side is S already is not resampled. `patch_mask` is True where a patch
    holds a part of the image, row-major. It does not need torchvision.

    Args (all optional):
        size: {"height": S, "width": S}, px; S a multiple of 4 patches.
        patch_size: p, px.
        max_image_pixels: larger images raise ValueError before their pixels are decoded.
        readable_px: height of the smallest letters that the model reads, px of the square. A warning names the height
            of readable letters in the first image that shrinks to less than half its size; another one names the first
            blank image. None: no warnings.
        sources: which paths and URLs may be read: "any"; a server for others sets "public" (no files, no addresses of
            its own network) or "inline" (no paths, no URLs). See `POLICIES`.
        views: defaults of `budgets.ViewOptions`, by name.
        do_resize, resample, do_rescale, rescale_factor, do_normalize, image_mean, image_std: as in transformers.
    """

    valid_kwargs = ArrCocImageProcessorKwargs
    _auto_class = "AutoImageProcessor"  # `save_pretrained` copies the code
    model_input_names = ["pixel_values", "patch_mask"]

    size = {"height": 1024, "width": 1024}
    patch_size = 16
    max_image_pixels = MAX_IMAGE_PIXELS
    readable_px = 11
    sources = "any"
    views: dict[str, Any] = {}  # noqa: RUF012 (transformers copies class attributes into instances)
    resample = PILImageResampling.BICUBIC
    image_mean = [0.5, 0.5, 0.5]
    image_std = [0.5, 0.5, 0.5]
    do_resize = True
    do_rescale = True
    do_normalize = True
    do_convert_rgb = True

    def __init__(self, **kwargs: Any) -> None:
        names = {field.name for field in fields(ImageSettings)}
        ImageSettings(**{name: value for name, value in kwargs.items() if name in names})
        super().__init__(**kwargs)
        if "readable_px" in kwargs:
            self.readable_px = kwargs["readable_px"]  # transformers treats None as the default
        self._warned_of_letters = False
        _check_square(self.size, self.patch_size)

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> BatchFeature:
        """See the class."""
        if kwargs.keys() & PROCESSING.keys():
            check_processing(kwargs)
        return super().__call__(images, *args, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The settings, as they are saved."""
        return {name: value for name, value in super().to_dict().items() if name != "_warned_of_letters"}

    def fetch_images(self, image_url_or_urls: Any, *, documents: bool = False, password: str | None = None) -> Any:
        """Loads every leaf of nested lists (see `load_image`); a 4-D array counts as a list.

        `documents`: whether documents stay encoded, as in `load_sources`; else they are refused. `password`: theirs.
        """
        return self._load(image_url_or_urls, load=partial(load_source, password=password) if documents else load_image)

    def shrinks(self, images: Sequence[Any], scale: float) -> bool:
        """Whether one of them is a document, or an image with less than `scale` px of the square per px."""
        side = self.size["height"]  # anything but an image is a document: remote code may load a class twice
        return any(not isinstance(image, Image.Image) or side < scale * max(image.size) for image in images)

    def map_boxes(self, boxes: Sequence[Box], height: int, width: int) -> list[Box]:
        """Boxes in pixels of a `height` x `width` source image -> boxes in pixels of the square."""
        return map_boxes(boxes, height, width, self.size["height"])

    def _load(
        self,
        images: Any,
        input_data_format: str | ChannelDimension | None = None,
        load: Callable[..., Any] = load_image,
    ) -> Any:
        if isinstance(images, Loaded):
            return images
        options = {"max_image_pixels": self.max_image_pixels, "sources": self.sources}
        options["input_data_format"] = input_data_format
        if isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4:
            return [
                load(image, **options) if isinstance(image, Image.Image) else self._load(image, input_data_format, load)
                for image in images
            ]
        return load(images, **options)

    def _prepare_image_like_inputs(
        self, images: Any, *args: Any, input_data_format: str | ChannelDimension | None = None, **kwargs: Any
    ) -> list[Image.Image]:
        """Images in any nesting -> flat list of RGB images."""
        loaded = self._load(images, input_data_format)
        rows = loaded if isinstance(loaded, list) else [loaded]
        flat = [image for row in rows for image in (row if isinstance(row, list) else [row])]
        if not flat:
            raise ValueError("images: expected at least one image; got none")
        return flat

    def _validate_preprocess_kwargs(self, *args: Any, **kwargs: Any) -> None:
        super()._validate_preprocess_kwargs(*args, **kwargs)
        if (dict(kwargs["size"]), kwargs["patch_size"]) != (dict(self.size), self.patch_size):  # these were checked
            _check_square(kwargs["size"], kwargs["patch_size"])
        given = {name: kwargs[name] for name in ("readable_px", "image_mean", "image_std")}
        if changed := {name: value for name, value in given.items() if value not in (None, getattr(self, name))}:
            ImageSettings(**changed)
        layout = kwargs.get("data_format")
        if layout is not None and ChannelDimension(layout) != ChannelDimension.FIRST:
            raise ValueError(f"data_format: expected channels_first; got {layout}")

    def _preprocess(  # type: ignore[override]
        self,
        images: list[Image.Image],
        size: SizeDict,
        patch_size: int,
        image_mean: float | Sequence[float],
        readable_px: float | None = None,
        return_tensors: str | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        side, grid = size["height"], size["height"] // patch_size
        means = [image_mean] * 3 if isinstance(image_mean, (int, float)) else image_mean
        fill = np.array([int(mean * 255) for mean in means], dtype=np.uint8)  # truncated, as DeepSeek-OCR does
        pixel_values, patch_masks = [], []
        for image in images:
            placed = self.place((image.height, image.width), side, kwargs["do_resize"])
            self.warn_of_letters(image, placed, side, readable_px)
            if readable_px is not None:
                warn_of_blank(image)
            top, left = placed.offset
            height, width = placed.size
            if (image.height, image.width) != placed.size:
                image = image.resize((width, height), kwargs["resample"])  # without the copies that arrays would need
            square: np.ndarray = np.empty((3, side, side), dtype=np.uint8)
            square[:] = fill[:, None, None]
            square[:, top : top + height, left : left + width] = np.moveaxis(np.asarray(image), -1, 0)
            if kwargs["do_rescale"]:
                square = self.rescale(square, kwargs["rescale_factor"])
            if kwargs["do_normalize"]:
                square = self.normalize(square, means, kwargs["image_std"])
            pixel_values.append(np.ascontiguousarray(square, dtype=np.float32))
            patch_masks.append(patches_of_placement(placed, grid, patch_size).reshape(-1))
        return BatchFeature({"pixel_values": pixel_values, "patch_mask": patch_masks}, tensor_type=return_tensors)

    def with_originals(
        self,
        words: Sequence[GivenWords | None],
        images: Sequence[Image.Image],
        tiled: Sequence[bool] | None = None,
    ) -> list[GivenWords | None]:
        """The given words of views; where a text reader reads, it reads unsure words again from the view's own pixels.

        `tiled`: whether an image gets tiles if its overview is not read well; then only these are read again.
        """
        if self.patch_size != COLUMNS:
            return list(words)
        known, side = list[GivenWords | None](), self.size["height"]
        for at, (given, image) in enumerate(zip(words, images, strict=True)):
            if given is None or given.partial:
                place = self.place((image.height, image.width), side, bool(self.do_resize))
                least = READ_WELL if tiled is not None and tiled[at] else 0.0
                original = Original(image, place, side, self.as_pixels, least)
                given = replace(given or GivenWords([], partial=True), original=original)
            known.append(given)
        return known

    def as_pixels(self, sheet: np.ndarray) -> np.ndarray:
        """A sheet uint8 [H, W, 3] -> float32 [3, H, W], its values as in `pixel_values`."""
        values: np.ndarray = np.moveaxis(sheet, -1, 0)
        if self.do_rescale:
            values = self.rescale(values, self.rescale_factor)
        if self.do_normalize:
            values = self.normalize(values, self.image_mean, self.image_std)
        return np.ascontiguousarray(values, dtype=np.float32)

    def warn_of_letters(self, image: Image.Image, placed: Placement, side: int, readable_px: float | None) -> None:
        """Warns once, with the first image that shrinks far, of letters that the model cannot read."""
        if readable_px is None or self._warned_of_letters or placed.scale >= FAR_SHRUNK:
            return
        self._warned_of_letters = True
        logger.warning(
            f"An image of {image.height} x {image.width} px (height x width) shrinks into a square of {side} px "
            f"(factor {placed.scale:.2g}): letters lower than {math.ceil(readable_px / placed.scale)} px in it become "
            f"lower than {readable_px:g} px, which the model does not read. Ask by generate(image, question), "
            "which also encodes it as tiles, or about a part of it. (Shown once; readable_px=None of the image "
            "processor turns it off.)"
        )

    @staticmethod
    def place(size: tuple[int, int], side: int, do_resize: bool) -> Placement:
        """The place of an image of `size` (height, width) in the square of `side` px."""
        height, width = size
        if do_resize:
            return fit_square(height, width, side)
        if max(height, width) > side:
            raise ValueError(f"do_resize=False: expected an image of at most {side} px a side; got {height}x{width}")
        return Placement(1.0, (round((side - height) * 0.5), round((side - width) * 0.5)), (height, width))


def warn_of_blank(image: Image.Image) -> None:
    """Warns once that an image is blank."""
    if is_blank(image):
        logger.warning_once("image: expected visible content; got a blank image, for which any answer is a guess")


def _check_square(size: Any, patch_size: int) -> None:
    """size: SizeDict or dict with height and width, px."""
    height, width = size["height"], size["width"]
    if height is None or height != width or height > MAX_SIDE:
        expected = f"a square {{'height': S, 'width': S}} of at most {MAX_SIDE} px"
        raise ValueError(f"size: expected {expected}; got {dict(size)}")
    grid_size(height, patch_size)


# ---- how high the print is ----------------------------------------------------------------------------------------

STRIPS = 24
"""Strips of columns that a page is divided into, as lines may be askew or side by side."""

FEWEST_LINES = 8
"""The least pieces of lines, one in each strip, on a page of text."""


FULLEST = 0.85
"""The largest share of rows with text over all strips; more is noise or a texture."""


def print_height(image: Image.Image, side: int) -> float | None:
    """Height of an image's lines of text, px, when its longer side is `side` px; None: no text was found.

    Text alternates between ink and paper many times along a line, and seldom between lines. In each strip, neighbouring
    rows with sharp changes of grey form a band; bands with a common height are lines.
    """
    scale = side / max(image.size)
    size = [max(1, round(length * scale)) for length in image.size]
    grey = np.asarray(image.convert("L").resize(size, Image.Resampling.BOX, reducing_gap=2.0), dtype=np.float32)
    low, high = np.percentile(grey, (1, 99))
    sharp = np.abs(np.diff(grey, axis=1, prepend=grey[:, :1])) > 0.25 * max(1.0, high - low)
    heights: list[int] = []
    filled = 0
    for strip in np.array_split(sharp, STRIPS, axis=1):
        inked = np.concatenate(([False], strip.sum(1) >= 2, [False]))
        filled += int(inked.sum())
        changes = np.flatnonzero(inked[1:] != inked[:-1])
        heights += (changes[1::2] - changes[::2]).tolist()
    lines = np.array([height for height in heights if 3 <= height <= side / 6])
    if len(lines) < FEWEST_LINES or filled > FULLEST * STRIPS * size[1]:
        return None
    middle = float(np.median(lines))
    alike = (lines > 0.6 * middle) & (lines < 1.6 * middle)
    return middle if alike.mean() >= 0.5 else None


def print_scale(image: Image.Image, side: int, finest: float, readable_px: float) -> float:
    """px of the square per px of an image at which its text is read; 0: the overview is enough; `finest` without text.

    The function tries sizes from `side` px on, in steps of the root of 2, and takes the first at which it finds text.
    So the number of pixels of the image does not matter, as long as they show the text. `readable_px`: height of the
    smallest letters that the model reads, px of the square.
    """
    longest, level = max(image.size), float(side)
    while level <= finest * longest:
        height = print_height(image, round(level))
        if height is not None and height >= LEGIBLE * readable_px:
            return 0.0 if level == side else min(finest, COMFORTABLE * readable_px * level / (height * longest))
        level *= math.sqrt(2)
    return finest


LEGIBLE, COMFORTABLE = 0.6, 1.25
"""Heights of lines relative to the smallest readable letters: enough in the overview, and the aim of tiles.

Most lines are measured without ascenders: pages in the training of arr-coc-tiny-2 have lines of 0.7 to 1.1.
"""


# ---- which tiles --------------------------------------------------------------------------------------------------


def plan_tiles(
    height: int, width: int, *, grid: int, patch_size: int, scale: float, most: int | None = None
) -> list[Window]:
    """Windows that cover a source of `height` x `width` px at `scale` px of the square per px, in reading order.

    A window is G (`grid`) patches of a whole number of px wide and high, or as long as the source along a shorter axis.
    Neighbours overlap by at least one base cell; windows are spread evenly from edge to edge. For at `most` so many
    windows they become larger. There are none if the overview has that scale.
    """
    step = max(1, math.floor(patch_size / scale))  # px of the source per patch
    while True:
        side, cell = step * grid, COMPRESSION * step
        if side >= max(height, width):
            return []
        columns, rows = (_window_starts(length, side, cell) for length in (width, height))
        if most is None or len(columns) * len(rows) <= most:
            break
        step += 1
    return [(x, y, min(x + side, width), min(y + side, height)) for y in rows for x in columns]


def _window_starts(length: int, side: int, overlap: int) -> list[int]:
    """The starts of windows of `side` that cover `length`, evenly spread, overlapping by at least `overlap`."""
    if length <= side:
        return [0]
    steps = math.ceil((length - side) / (side - overlap))
    return [round(number * (length - side) / steps) for number in range(steps + 1)]
