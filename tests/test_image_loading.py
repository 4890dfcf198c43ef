"""Image loading: every source and mode gives the same RGB pixels; what is refused, and how it is named."""

import base64
import gzip
import socket
import struct
import warnings
import zlib
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import noise, refuses
from image_processors import SIDE, processor
from PIL import Image, ImageDraw, ImageOps

from arr_coc.modeling import image_loading
from arr_coc.modeling.image_loading import load_image


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


# Modes
@pytest.mark.parametrize(
    "mode", ["RGB", "L", "LA", "La", "RGBA", "RGBa", "P", "PA", "1", "CMYK", "YCbCr", "HSV", "RGBX"]
)
@pytest.mark.versions
def test_every_mode_becomes_rgb(mode: str) -> None:
    if mode in ("La", "PA"):
        image = noise(20, 30).convert("LA" if mode == "La" else "P").convert(mode)
    else:
        image = noise(20, 30).convert({"RGBa": "RGBA"}.get(mode, mode)).convert(mode)
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


def written(ink: Any, background: Any, mode: str = "RGBA") -> Image.Image:
    image = Image.new(mode, (300, 80), background)
    ImageDraw.Draw(image).text((20, 20), "Total 12.50", fill=ink, font_size=32)
    return image


@pytest.mark.parametrize(
    ("ink", "under"),
    [((0, 0, 0, 255), 255), ((255, 255, 255, 255), 0), ((255, 255, 120, 255), 0), ((200, 30, 30, 255), 255)],
)
@pytest.mark.parametrize("mode", ["RGBA", "LA", "La", "P"])
def test_ink_on_transparency_stays_visible(ink: tuple[int, ...], under: int, mode: str, tmp_path: Path) -> None:
    """White ink was laid on white: "not on the page", at 99 %."""
    image = written(ink, (*ink[:3], 0))
    if mode == "La":
        image = image.convert("LA").convert("La")
    elif mode != "RGBA":
        image = image.convert(mode)
    loaded = np.asarray(load_image(image).convert("L")).astype(int)
    assert loaded[0, 0] == under and np.abs(loaded - under).max() > 120


@pytest.mark.parametrize("mode", ["I;16", "RGB"])
def test_a_scan_of_12_bits_is_not_black(mode: str) -> None:
    """A PNG holds them in 16 bits; of colours Pillow keeps the upper 8, which are then 15 at most."""
    page = np.asarray(written(0, 255, "L")).astype(int)
    deep = Image.fromarray((page * 4095 // 255).astype(np.uint16))
    image = deep if mode == "I;16" else Image.fromarray((page * 15 // 255).astype(np.uint8)).convert("RGB")
    assert np.abs(np.asarray(load_image(image).convert("L")).astype(int) - page).max() <= 17


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 65535, 32896]], dtype=np.uint16), [0, 255, 128]),
        (np.array([[0, 255, 128]], dtype=np.uint16), [0, 255, 128]),
        (np.array([[0, 4095, 2048]], dtype=np.uint16), [0, 255, 128]),
        (np.array([[0, 4095, 2048]], dtype=np.int32), [0, 255, 128]),
        (np.array([[0, 1000, 512]], dtype=np.uint16), [0, 249, 128]),
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


def test_conversions_in_bands_leave_no_seams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole images took 2.8 GB to convert (16 bit) where their pixels take 0.2."""
    fading = noise(20, 30).convert("RGBA")
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
@pytest.mark.versions
def test_every_source_gives_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any network: sockets are shut."""
    monkeypatch.setattr(socket, "socket", lambda *args, **kwargs: pytest.fail("opened a socket"))
    image = noise(20, 30)
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


def test_arrays_of_few_channels_and_nested_lists() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (5, 7), dtype=np.uint8)
    expected = Image.fromarray(grey).convert("RGB")
    for array in (grey, grey[None], grey[..., None], torch.tensor(grey), grey / 255.0):
        assert same(load_image(array), expected)
    assert load_image(grey > 127).getcolors(2) is not None
    rgba = np.zeros((5, 7, 4), dtype=np.uint8)
    assert load_image(rgba).getpixel((0, 0)) == (255, 255, 255)
    assert load_image(torch.zeros(3, 5, 7, dtype=torch.bfloat16)).size == (7, 5)
    first, second, third = noise(20, 30), noise(30, 20), noise(9, 9)
    flat = processor()([first, second, third], return_tensors="pt")
    nested = processor()([[first, second], [third], []], return_tensors="pt")
    batch = processor()(np.stack([np.asarray(first)] * 2), return_tensors="pt")
    assert torch.equal(flat["pixel_values"], nested["pixel_values"])
    assert torch.equal(batch["pixel_values"][1], flat["pixel_values"][0])


# Errors
def test_missing_files(tmp_path: Path) -> None:
    for source in (tmp_path / "no.png", str(tmp_path / "no.png"), (tmp_path / "no.png").as_uri(), "no.png"):
        with pytest.raises(FileNotFoundError, match=r"no.png: expected an image file; got a missing path"):
            load_image(source)


@pytest.mark.parametrize(
    ("content", "received"),
    [
        (b"not an image at all", "got text"),
        (b"", "got an empty file"),
        (encoded(noise(200, 200))[:500], "got a corrupt one"),
        (encoded(noise(200, 200), "JPEG")[:900], "got a corrupt one"),
        (encoded(noise(200, 200), "GIF")[:900], "got a corrupt one"),
        (png_header(20, 20), "got a corrupt one"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "got"),
        (gzip.compress(b"%PDF-1.4 page", mtime=0), r"got compressed content \(unpack it first\)"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', r"got an SVG drawing \(render it as pixels first\)"),
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
        (Image.new("RGB", (0, 5)), "at least 1x1 pixels .* got 5x0"),
        (np.zeros((0, 5, 3), dtype=np.uint8), "at least 1x1 pixels .* got 0x5"),
        (np.zeros((5, 5, 7), dtype=np.uint8), r"1 to 4 channels .* shape \(5, 5, 7\)"),
        (np.zeros(5), r"an array \[H, W\].* got shape \(5,\)"),
        (np.full((5, 5, 3), 200.0), "float64 values in 0..1; got 200..200"),
        (np.full((5, 5, 3), np.nan), "float64 values in 0..1; got nan"),
        (np.full((5, 5, 3), -1), "int64 values in 0..255; got -1..-1"),
        (np.zeros((5, 5, 3), dtype=complex), "integers or floats; got complex128"),
        (Image.fromarray(np.full((2, 2), np.inf, dtype=np.float32)), "mode F with values that are not finite"),
        (12, "got int"),
        (None, "got NoneType"),
        ({"url": "x"}, "got dict$"),
        (b"no image", r"^bytes: expected an image \(PNG, JPEG, .*\), a PDF or a video; got text$"),
        (b"", "^bytes: expected an image .* got an empty file$"),
        (StringIO("text"), "^file object: expected one opened for bytes; got str from it$"),
        ({"bytes": None, "path": None}, "got NoneType"),
        ("data:image/png;base64", "got no comma"),
        ("data:image/png;base64,***", "expected base64 content"),
        ("file://elsewhere/image.png", "on this machine; got host 'elsewhere'"),
        ("http://", "expected an image to download"),
        (".", "expected an image file; got a folder"),
        ("a" * 400, "expected an image"),
    ],
)
def test_refused_sources(source: object, message: str) -> None:
    for call in (load_image, processor()):
        refuses(message, call, source)


@pytest.mark.parametrize("side", [20_000, 12_000])
def test_a_decompression_bomb_is_refused_before_its_pixels_are_decoded(tmp_path: Path, side: int) -> None:
    """20,000 px a side is above twice Pillow's limit (its error), 12,000 between (its warning)."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side))  # decoding would say "corrupt"
    for kind in ("error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(kind, Image.DecompressionBombWarning)
            refuses("expected at most 89478485 pixels", load_image, path)


def test_pixel_limit_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "load", lambda *args: pytest.fail("decoded"))
    message = r"at most 100 pixels \(max_image_pixels\); got 20x30 = 600 pixels"
    refuses(message, processor(max_image_pixels=100), Image.new("RGB", (30, 20)))
    refuses(message, processor(max_image_pixels=100), np.zeros((20, 30, 3), dtype=np.uint8))


def test_a_jpeg_with_broken_exif_is_loaded_and_processed() -> None:
    """Pillow read the image all the same, and stumbled over the EXIF of its copy: a SyntaxError from the processor."""
    image = Image.new("RGB", (8, 6))
    image.info["exif"] = b"Exif\0\0pQf\xcc5M$\xea"
    stream = BytesIO()
    image.save(stream, "JPEG", exif=image.info["exif"])
    for source in (load_image(stream.getvalue()), stream.getvalue(), image):
        assert processor()(source)["pixel_values"][0].shape == (3, SIDE, SIDE)
