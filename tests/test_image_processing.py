"""Images: sources, modes, placement, masks, boxes, limits, errors."""

import base64
import socket
import struct
import warnings
import zlib
from collections.abc import Iterator
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers.utils import logging as transformers_logging

from arr_coc.modeling import image_loading
from arr_coc.modeling.image_processing_arr_coc import (
    ArrCocImageProcessor,
    boxes_to_patches,
    fit_square,
    load_image,
    map_boxes,
)

SIDE, PATCH, GRID = 64, 4, 16
GREY = 127 / 255 * 2 - 1


def processor(**kwargs: Any) -> Any:
    return ArrCocImageProcessor(**{"size": {"height": SIDE, "width": SIDE}, "patch_size": PATCH, **kwargs})


def noise(height: int = 20, width: int = 30, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **kwargs: Any) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **kwargs)
    return stream.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels: decoding it fails, reading its header does not."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def same(first: Image.Image, second: Image.Image) -> bool:
    return first.size == second.size and first.mode == second.mode and first.tobytes() == second.tobytes()


# Geometry


@pytest.mark.parametrize(
    ("height", "width", "offset", "size"),
    [
        (64, 64, (0, 0), (64, 64)),
        (32, 64, (16, 0), (32, 64)),
        (300, 100, (0, 22), (64, 21)),
        (1, 4000, (32, 0), (1, 64)),
    ],
)
def test_fit_square(height: int, width: int, offset: tuple[int, int], size: tuple[int, int]) -> None:
    placed = fit_square(height, width, SIDE)
    assert (placed.offset, placed.size) == (offset, size)
    assert placed.scale == SIDE / max(height, width)


@pytest.mark.parametrize(
    ("height", "width"), [(20, 30), (30, 20), (64, 64), (64, 33), (101, 57), (640, 480), (10, 640)]
)
def test_pixels_equal_deepseek_ocrs_own_padding(height: int, width: int) -> None:
    image = noise(height, width)
    expected = ImageOps.pad(image, (SIDE, SIDE), color=(127, 127, 127))
    (pixels,) = processor()(image, return_tensors="pt")["pixel_values"]
    reference = torch.from_numpy(np.array(expected)).permute(2, 0, 1).float().div(255).sub(0.5).div(0.5)
    assert torch.allclose(pixels, reference, atol=1e-6)


def test_an_image_of_the_right_side_is_not_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "resize", lambda *args, **kwargs: pytest.fail("resampled"))
    image = noise(40, SIDE)
    pixels = processor()(image, return_tensors="np")["pixel_values"][0]
    assert np.allclose((pixels[:, 12:52] + 1) / 2 * 255, np.asarray(image).transpose(2, 0, 1), atol=1e-3)


def test_output_names_shapes_and_types() -> None:
    out = processor()([noise(), noise(30, 20)], return_tensors="pt")
    assert set(out) == set(ArrCocImageProcessor.model_input_names)
    assert out["pixel_values"].shape == (2, 3, SIDE, SIDE) and out["pixel_values"].dtype == torch.float32
    assert out["patch_mask"].shape == (2, GRID * GRID) and out["patch_mask"].dtype == torch.bool
    assert out["pixel_values"].is_contiguous()


def test_patch_mask_is_true_where_a_pixel_of_the_image_lies() -> None:
    out = processor(image_mean=[0.25] * 3, image_std=[1.0] * 3)(
        Image.new("RGB", (SIDE, 30), "white"), return_tensors="pt"
    )
    whiteness = out["pixel_values"][0, 0].unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).amax((2, 3))
    mask = out["patch_mask"][0].view(GRID, GRID)
    assert torch.equal(mask, whiteness > 0.5)
    assert mask.sum() == 8 * GRID  # 30 px at 17: a partial patch at either end counts


def test_patch_mask_of_a_one_pixel_line() -> None:
    mask = processor()(noise(1, 4000), return_tensors="pt")["patch_mask"]
    assert mask.sum() == GRID


def test_padding_has_the_mean_colour() -> None:
    pixels = processor()(noise(10, SIDE), return_tensors="pt")["pixel_values"]
    assert torch.allclose(pixels[..., 0, :], torch.full((3, SIDE), GREY), atol=1e-6)


# Boxes


def test_boxes_follow_the_image() -> None:
    """A white rectangle drawn in the source lies where the mapped box says, whatever the shape."""
    for height, width in [(200, 100), (100, 200), (77, 77), (640, 128)]:
        source = np.zeros((height, width, 3), dtype=np.uint8)
        box = (width // 4, height // 4, width // 2, height // 2)  # x first
        source[box[1] : box[3], box[0] : box[2]] = 255
        ready = processor()
        pixels = ready(Image.fromarray(source), return_tensors="np")["pixel_values"][0, 0]
        ys, xs = np.nonzero(pixels > 0.2)
        mapped = ready.to_model_box(box, (height, width))
        drawn = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
        assert np.allclose(mapped, drawn, atol=1.0)
        assert ready.map_boxes([box], height, width) == map_boxes([box], height, width, SIDE) == [mapped]


@pytest.mark.parametrize(
    ("box", "patches"),
    [
        ((0, 0, 16, 16), {(0, 0)}),
        ((0, 0, 16, 17), {(0, 0)}),  # 1 px of the next patch: below the margin
        ((0, 0, 16, 20), {(0, 0), (1, 0)}),  # 4 px: above it
        ((0, 15, 48, 17), {(1, 0), (1, 1), (1, 2)}),  # a thin line between two rows: the row under its centre
        ((20, 20, 20, 20), {(1, 1)}),  # a point
        ((0, 64, 16, 64), {(3, 0)}),  # on the far edge
        ((-50, -50, 8, 8), {(0, 0)}),  # clipped
        ((70, 70, 90, 90), set()),  # outside
        ((-9, -9, -1, -1), set()),
    ],
)
def test_boxes_to_patches(box: tuple[float, ...], patches: set[tuple[int, int]]) -> None:
    mask = boxes_to_patches([box], 4, 16)  # type: ignore[list-item]
    assert mask.shape == (4, 4) and mask.dtype == bool
    assert {(int(y), int(x)) for y, x in np.argwhere(mask)} == patches


def test_boxes_to_patches_unites_boxes_and_accepts_none() -> None:
    assert boxes_to_patches([], 4).sum() == 0
    assert boxes_to_patches([(0, 0, 16, 16), (48, 48, 64, 64)], 4).sum() == 2


def test_reversed_box() -> None:
    with pytest.raises(ValueError, match=r"expected \(x0, y0, x1, y1\) with x0 <= x1 .* received \(9, 0, 3, 4\)"):
        boxes_to_patches([(9, 0, 3, 4)], 4)


# Modes


@pytest.mark.parametrize(
    "mode", ["RGB", "L", "LA", "La", "RGBA", "RGBa", "P", "PA", "1", "CMYK", "YCbCr", "HSV", "RGBX"]
)
def test_every_mode_becomes_rgb(mode: str) -> None:
    if mode in ("La", "PA"):
        image = noise(mode="LA" if mode == "La" else "P").convert(mode)
    else:
        image = noise(mode={"RGBa": "RGBA"}.get(mode, mode)).convert(mode)
    loaded = load_image(image)
    assert loaded.mode == "RGB" and loaded.size == image.size
    assert processor()(image, return_tensors="pt")["pixel_values"].isfinite().all()


def test_transparency_is_laid_on_white() -> None:
    """Text on a transparent page would turn black on black, as convert("RGB") makes it."""
    rgba = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    rgba.putpixel((0, 0), (255, 0, 0, 255))
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    palette.putpixel((0, 0), 1)
    palette.info["transparency"] = 0
    for image in (rgba, palette, rgba.convert("RGBa")):
        loaded = load_image(image)
        assert loaded.getpixel((0, 0)) == (255, 0, 0) and loaded.getpixel((1, 1)) == (255, 255, 255)
    grey = Image.new("LA", (2, 2), (0, 128))
    assert load_image(grey).getpixel((0, 0)) == (127, 127, 127)
    keyed = Image.new("RGB", (2, 2), (1, 2, 3))
    keyed.info["transparency"] = (1, 2, 3)
    assert load_image(keyed).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 65535, 32896]], dtype=np.uint16), [0, 255, 128]),
        (np.array([[0, 255, 128]], dtype=np.uint16), [0, 1, 0]),  # 16 bit stays 16 bit, dark or not
        (np.array([[0, 255, 128]], dtype=np.int32), [0, 255, 128]),
        (np.array([[0, 65535, 32896]], dtype=np.int32), [0, 255, 128]),
        (np.array([[-100, 100, 0]], dtype=np.int32), [0, 255, 128]),
        (np.array([[0, 1, 0.5]], dtype=np.float32), [0, 255, 128]),
        (np.array([[0, 255, 128]], dtype=np.float32), [0, 255, 128]),
        (np.array([[0, 65535, 32896]], dtype=np.float32), [0, 255, 128]),
        (np.array([[-1, 1, 0]], dtype=np.float32), [0, 255, 128]),
        (np.array([[7e6, 7e6, 7e6]], dtype=np.float32), [0, 0, 0]),  # one value: no range to scale by
    ],
)
def test_deep_modes_are_scaled_to_8_bit(values: np.ndarray, expected: list[int]) -> None:
    loaded = np.asarray(load_image(Image.fromarray(values)))
    assert loaded.shape == (1, 3, 3)
    assert np.abs(loaded[0, :, 0].astype(int) - expected).max() <= 1


def test_16_bit_png_and_big_endian_tiff(tmp_path: Path) -> None:
    values = np.array([[0, 65535, 32896]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    Image.frombytes("I;16B", (3, 1), values.astype(">u2").tobytes()).save(tmp_path / "deep.tif")
    for name in ("deep.png", "deep.tif"):
        assert np.asarray(load_image(tmp_path / name))[0, :, 0].tolist() == [0, 255, 128]


def test_conversions_in_bands_leave_no_seams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole images took 2.8 GB to convert (16 bit) where their pixels take 0.2."""
    fading = noise(mode="RGBA")
    fading.putalpha(Image.linear_gradient("L").resize(fading.size))
    deep = Image.fromarray(np.random.default_rng(0).integers(0, 65536, (20, 30)).astype(np.uint16))
    for image in (fading, deep):
        whole = load_image(image)
        monkeypatch.setattr(image_loading, "BAND", 7)
        assert same(load_image(image), whole)
        monkeypatch.undo()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_once(orientation: int) -> None:
    """fetch_images runs twice, in the processor and in the image processor: the second run must change nothing."""
    image = noise(20, 30)
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010E] = "kept"
    stored = Image.open(BytesIO(encoded(image, "PNG", exif=exif)))
    upright = ImageOps.exif_transpose(stored).convert("RGB")
    once = load_image(stored)
    assert same(once, upright) and same(load_image(once), upright)


# Sources


def test_every_source_gives_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any network: sockets are shut."""
    monkeypatch.setattr(socket, "socket", lambda *args, **kwargs: pytest.fail("opened a socket"))
    image = noise()
    path = tmp_path / "an image, 100%.png"
    image.save(path)
    text = base64.b64encode(path.read_bytes()).decode()
    array = np.asarray(image)
    chw = array.transpose(2, 0, 1)
    sources = {
        "PIL": image,
        "lazy PIL": Image.open(path),
        "str": str(path),
        "Path": path,
        "file://": path.as_uri(),
        "data URL": f"data:image/png;base64,{text}",
        "base64": text,
        "base64 in lines": base64.encodebytes(path.read_bytes()).decode(),
        "HWC": array,
        "CHW": chw,
        "HWC float": array.astype(np.float32) / 255,
        "CHW float64": chw / 255.0,
        "int64": array.astype(np.int64),
        "uint16": array.astype(np.uint16) * 257,
        "tensor": torch.tensor(chw),
        "tensor HWC": torch.tensor(array),
        "tensor float": torch.tensor(chw / 255).float().requires_grad_(),
        "negative strides": array[::-1][::-1],
        "bytes": path.read_bytes(),
        "bytearray": bytearray(path.read_bytes()),
        "memoryview": memoryview(path.read_bytes()),
        "file object": BytesIO(path.read_bytes()),
        "data set's bytes": {"bytes": path.read_bytes(), "path": None},
        "data set's bytes of a file elsewhere": {"bytes": path.read_bytes(), "path": "elsewhere.png"},
        "data set's path": {"bytes": None, "path": str(path)},
        "home": "~/an image, 100%.png",
        "home Path": Path("~") / path.name,
    }
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, source in sources.items():
        assert same(load_image(source), image), name
        assert processor()(source, return_tensors="pt")["pixel_values"].shape == (1, 3, SIDE, SIDE), name


def test_grey_and_few_channel_arrays() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (5, 7), dtype=np.uint8)
    expected = Image.fromarray(grey).convert("RGB")
    for array in (grey, grey[None], grey[..., None], torch.tensor(grey), grey / 255.0):
        assert same(load_image(array), expected)
    assert load_image(grey > 127).getcolors(2) is not None
    rgba = np.zeros((5, 7, 4), dtype=np.uint8)
    assert load_image(rgba).getpixel((0, 0)) == (255, 255, 255)
    assert load_image(torch.zeros(3, 5, 7, dtype=torch.bfloat16)).size == (7, 5)


def test_ambiguous_arrays_are_channels_first_unless_told() -> None:
    array = np.zeros((3, 5, 3), dtype=np.uint8)
    assert load_image(array).size == (3, 5)
    assert load_image(array, input_data_format="channels_last").size == (5, 3)
    mask = processor()(array, input_data_format="channels_last", return_tensors="pt")["patch_mask"]
    assert mask.view(GRID, GRID).any(0).all() and not mask.view(GRID, GRID).any(1).all()


def test_lists_and_nested_lists() -> None:
    first, second, third = noise(20, 30), noise(30, 20), noise(9, 9)
    flat = processor()([first, second, third], return_tensors="pt")
    nested = processor()([[first, second], [third], []], return_tensors="pt")
    batch = processor()(np.stack([np.asarray(first)] * 2), return_tensors="pt")
    assert torch.equal(flat["pixel_values"], nested["pixel_values"])
    assert torch.equal(batch["pixel_values"][1], flat["pixel_values"][0])


# Errors


def test_missing_files(tmp_path: Path) -> None:
    for source in (tmp_path / "no.png", str(tmp_path / "no.png"), (tmp_path / "no.png").as_uri(), "no.png"):
        with pytest.raises(FileNotFoundError, match=r"no.png: expected an image file, received a missing path"):
            load_image(source)


@pytest.mark.parametrize(
    ("content", "received"),
    [
        (b"not an image at all", "received other content"),
        (b"", "received an empty file"),
        (encoded(noise(200, 200))[:500], "received a corrupt one"),
        (encoded(noise(200, 200), "JPEG")[:900], "received a corrupt one"),
        (encoded(noise(200, 200), "GIF")[:900], "received a corrupt one"),
        (png_header(20, 20), "received a corrupt one"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "received"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, received: str) -> None:
    path = tmp_path / "file.png"
    path.write_bytes(content)
    for source in (path, f"data:image/png;base64,{base64.b64encode(content).decode()}"):
        with pytest.raises(ValueError, match=received) as caught:
            load_image(source)
        assert "expected" in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Image.new("RGB", (0, 5)), "at least 1x1 pixels .* received 5x0"),
        (np.zeros((0, 5, 3), dtype=np.uint8), "at least 1x1 pixels .* received 0x5"),
        (np.zeros((5, 5, 7), dtype=np.uint8), r"1 to 4 channels .* shape \(5, 5, 7\)"),
        (np.zeros(5), r"an array \[H, W\].* received shape \(5,\)"),
        (np.full((5, 5, 3), 200.0), "float64 values in 0..1, received 200..200"),
        (np.full((5, 5, 3), np.nan), "float64 values in 0..1, received nan"),
        (np.full((5, 5, 3), -1), "int64 values in 0..255, received -1..-1"),
        (np.zeros((5, 5, 3), dtype=complex), "integers or floats, received complex128"),
        (Image.fromarray(np.full((2, 2), np.inf, dtype=np.float32)), "mode F with values that are not finite"),
        (12, "received int"),
        (None, "received NoneType"),
        ({"url": "x"}, "received dict$"),
        (b"no image", r"^bytes: expected an image \(PNG, JPEG, .*\), received other content$"),
        (b"", "^bytes: expected an image .* received an empty file$"),
        (StringIO("text"), "^file object: expected one opened for bytes, received str from it$"),
        ({"bytes": None, "path": None}, "received NoneType"),
        ("data:image/png;base64", "received no comma"),
        ("data:image/png;base64,***", "expected base64 content"),
        ("file://elsewhere/image.png", "on this machine, received host 'elsewhere'"),
        ("http://", "expected an image to download"),
        (".", "expected an image file, received a folder"),
        ("a" * 400, "expected an image"),
    ],
)
def test_refused_sources(source: object, message: str) -> None:
    for call in (load_image, processor()):
        with pytest.raises(ValueError, match=message) as caught:
            call(source)
        assert "\n" not in str(caught.value)


def test_no_images() -> None:
    with pytest.raises(ValueError, match="expected at least one image, received none"):
        processor()([])


@pytest.mark.parametrize("side", [20_000, 12_000])
def test_a_decompression_bomb_is_refused_before_its_pixels_are_decoded(tmp_path: Path, side: int) -> None:
    """20,000 px a side is above twice Pillow's limit (its error), 12,000 between (its warning)."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side))  # decoding would say "corrupt"
    for kind in ("error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(kind, Image.DecompressionBombWarning)
            with pytest.raises(ValueError, match="expected at most 89478485 pixels"):
                load_image(path)


def test_pixel_limit_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "load", lambda *args: pytest.fail("decoded"))
    message = r"at most 100 pixels \(max_image_pixels\), received 20x30 = 600 pixels"
    with pytest.raises(ValueError, match=message):
        processor(max_image_pixels=100)(Image.new("RGB", (30, 20)))
    with pytest.raises(ValueError, match=message):
        processor(max_image_pixels=100)(np.zeros((20, 30, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [63, 0, {"height": 64, "width": 32}, {"shortest_edge": 64}])
def test_bad_sizes(size: object) -> None:
    with pytest.raises(ValueError, match=r"expected .* 16 px|expected a square|size"):
        processor(size=size)
    if size:
        with pytest.raises(ValueError):
            processor()(noise(), size=size)


def test_other_refused_options() -> None:
    with pytest.raises(ValueError, match="data_format: expected channels_first"):
        processor()(noise(), data_format="channels_last")
    with pytest.raises(ValueError, match="an image of at most 64 px a side, got 100x30"):
        processor()(noise(100, 30), do_resize=False)


# Letters that shrink away


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What transformers' loggers say, which do not pass it on by default."""
    transformers_logging.enable_propagation()
    yield caplog
    transformers_logging.disable_propagation()


def test_a_page_whose_letters_shrink_away_is_warned_of_once(said: pytest.LogCaptureFixture) -> None:
    ready = processor()
    ready([noise(640, 400), noise(900, 100)])  # factor 0.1: 11 px are 110 px in the page
    ready(noise(640, 400))
    (message,) = said.messages
    assert message.startswith(
        "An image of 640 x 400 px (height x width) shrinks into a square of 64 px (factor 0.1): letters lower than "
        "110 px in it become lower than 11 px, which the model does not read."
    )
    processor(readable_px=5.5)(noise(640, 400))
    assert "letters lower than 55 px in it become lower than 5.5 px" in said.messages[1]
    assert processor(readable_px=5.5).to_dict().keys() == ready.to_dict().keys()


def test_images_that_shrink_little_are_not_warned_of(said: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    ready = processor()
    ready([noise(128, 100), noise(64, 64), noise(9, 9)])
    ready(noise(640, 400), readable_px=None)
    off = processor(readable_px=None)
    off(noise(640, 400))
    off.save_pretrained(tmp_path)
    ArrCocImageProcessor.from_pretrained(tmp_path)(noise(640, 400))
    assert said.messages == []


@pytest.mark.parametrize("readable_px", [0, -1, float("nan")])
def test_a_bad_readable_height(readable_px: float) -> None:
    with pytest.raises(ValueError, match="^readable_px: expected a positive height in px, or None; received"):
        processor(readable_px=readable_px)


# Options and persistence


def test_options_per_call() -> None:
    ready = processor()
    assert ready(noise(), size={"height": 32, "width": 32}, return_tensors="pt")["pixel_values"].shape[-1] == 32
    assert ready(noise(), patch_size=8, return_tensors="pt")["patch_mask"].shape == (1, 64)
    raw = ready(noise(), do_rescale=False, do_normalize=False, return_tensors="pt")["pixel_values"]
    assert raw.max() > 200 and raw[0, 0, 0, 0] == 127
    small = ready(noise(), do_resize=False, return_tensors="pt")["patch_mask"].view(GRID, GRID)
    assert small.any(1).sum() == 6 and small.any(0).sum() == 8  # 20 x 30 px at (22, 17)
    assert isinstance(ready(noise())["pixel_values"][0], np.ndarray)
    scalar = ready(noise(), image_mean=0.5, image_std=0.5, return_tensors="pt")["pixel_values"]
    assert torch.allclose(scalar, ready(noise(), return_tensors="pt")["pixel_values"])


def test_save_and_load(tmp_path: Path) -> None:
    saved = processor(max_image_pixels=12_345, image_mean=[0.1, 0.2, 0.3])
    saved.save_pretrained(tmp_path)
    loaded = ArrCocImageProcessor.from_pretrained(tmp_path)
    assert loaded.to_dict() == saved.to_dict()
    assert (loaded.patch_size, loaded.max_image_pixels, loaded.size["height"]) == (PATCH, 12_345, SIDE)
    image = noise()
    assert torch.equal(
        loaded(image, return_tensors="pt")["pixel_values"], saved(image, return_tensors="pt")["pixel_values"]
    )


def test_defaults_are_deepseek_ocrs() -> None:
    ready = ArrCocImageProcessor()
    assert (ready.size["height"], ready.patch_size, ready.max_image_pixels) == (1024, 16, 89_478_485)
    out = ready(noise(300, 400), return_tensors="pt")
    assert out["pixel_values"].shape == (1, 3, 1024, 1024) and out["patch_mask"].shape == (1, 4096)
