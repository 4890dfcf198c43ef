"""Image loading: every source and mode gives the same RGB pixels; what is refused, and how it is named."""

import base64
import gzip
import os
import re
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
from chats import SIDE, image_processor
from helpers import noise, refuses
from PIL import Image, ImageDraw, ImageOps

from arr_coc.families import public_sources
from arr_coc.families.public_sources import GuardedSources
from arr_coc.modeling import image_loading
from arr_coc.modeling.image_loading import POLICIES, SourcePolicy, load_image
from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor
from tests.fuzz.urls import IMAGE, served, sized


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
    assert image_processor()(image, return_tensors="pt")["pixel_values"].isfinite().all()


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
        assert image_processor()(source, return_tensors="pt")["pixel_values"].shape == (1, 3, SIDE, SIDE), name


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
    flat = image_processor()([first, second, third], return_tensors="pt")
    nested = image_processor()([[first, second], [third], []], return_tensors="pt")
    batch = image_processor()(np.stack([np.asarray(first)] * 2), return_tensors="pt")
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
    for call in (load_image, image_processor()):
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
    refuses(message, image_processor(max_image_pixels=100), Image.new("RGB", (30, 20)))
    refuses(message, image_processor(max_image_pixels=100), np.zeros((20, 30, 3), dtype=np.uint8))


def test_a_jpeg_with_broken_exif_is_loaded_and_processed() -> None:
    """Pillow read the image all the same, and stumbled over the EXIF of its copy: a SyntaxError from the processor."""
    image = Image.new("RGB", (8, 6))
    image.info["exif"] = b"Exif\0\0pQf\xcc5M$\xea"
    stream = BytesIO()
    image.save(stream, "JPEG", exif=image.info["exif"])
    for source in (load_image(stream.getvalue()), stream.getvalue(), image):
        assert image_processor()(source)["pixel_values"][0].shape == (3, SIDE, SIDE)


# ---- Where images come from: downloads and their deadline, what a policy refuses, what error messages do not say
SIZE = (9, 7)
"""px (width x height) of `IMAGE`."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the server of `make fuzz`, which also says which host it was asked for (`/host`)."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with served(host=lambda asked: asked.send(sized(re.findall(rb"(?i)host: (\S+)", asked.request)[0]))) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def image_file(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    path.write_bytes(IMAGE)
    return path


# Downloads
def test_urls(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/fuzz/urls.py has every way in which a server may misbehave."""
    expected = load_image(IMAGE).tobytes()
    assert load_image(f"{server}/image").tobytes() == load_image(f"{server}/redirected").tobytes() == expected
    for path, message in {
        "missing": "expected an image to download; got status 404$",
        "text": r"text: expected an image .* got text$",
        "to%20FTP": "expected an image to download; got UnsupportedProtocol$",
        "to%20nowhere": "expected an image to download; got Connect",
        "silent": "expected an image within 1 s; got a slower one$",
        "slow%20body": "expected an image within 1 s; got a slower one$",  # 14 s of bytes, one now and then
    }.items():
        refuses(message, load_image, f"{server}/{path}", timeout=1)
    monkeypatch.setattr(image_loading, "MAX_BYTES", 10)
    refuses("expected at most 10 bytes", load_image, f"{server}/image")
    refuses("file object: expected at most 10 bytes", load_image, BytesIO(IMAGE))


def test_what_holds_no_image_is_named() -> None:
    refuses("image: expected a path, URL, data: URL or base64 text; got an empty string", load_image, "")
    with pytest.raises(FileNotFoundError, match="invoices00000: expected an image file; got a missing path"):
        load_image("/data/images/receipts/2024/invoices00000")  # base64 text by its letters
    with pytest.raises(ValueError, match="bytes: expected an image .* got a HEIC or AVIF photograph, which Pillow"):
        load_image(b"\0\0\0\x18ftypheic" + bytes(100))
    # A 74-byte PNG of 1 x 89,478,485 px took 2.5 GB.
    refuses("expected sides of at most 65535 px; got 1x65536", load_image, Image.new("1", (65_536, 1)))


# Policies
def test_a_server_reads_no_files_and_no_addresses_of_its_own_network(server: str, image_file: Path) -> None:
    refused: dict[Any, str] = {
        str(image_file): "^image: expected a source that is allowed here .*; got a path on this machine$",
        image_file: "got a path on this machine$",
        image_file.as_uri(): "got a path on this machine$",
        str(image_file.parent / "missing.png"): "got a path on this machine$",  # there or not: the same answer
        f"{server}/image": r"^127.0.0.1: expected a public address \(sources\); got one that is not$",
    }
    for source, message in refused.items():
        refuses(message, load_image, source, sources="public")
        assert load_image(source).size == SIZE if "missing" not in str(source) else True
    refuses(r"allowed here \(sources\); got http:$", load_image, f"{server}/image", sources="inline")
    for policy in POLICIES:
        assert load_image(IMAGE, sources=policy).size == SIZE


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"]
    + ["::1", "fe80::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "ff02::1"],
)
def test_addresses_that_are_not_public(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One private address among public ones is enough: the name's owner chooses which one is used."""
    entries = [(0, 0, 0, "", ("8.8.8.8", 80)), (0, 0, 0, "", (address, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: entries)
    refuses("^name.example: expected a public address", load_image, "http://name.example/image.png", sources="public")


def test_redirects_are_checked_and_the_checked_address_is_used(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is looked up once: an answer that changes between check and connection changes nothing."""
    real = public_sources._public_address

    def public(host: str, port: int | None) -> str:
        return "127.0.0.1" if host == "name.example" else real(host, port)

    monkeypatch.setattr(public_sources, "_public_address", public)
    named = server.replace("127.0.0.1", "name.example")
    assert load_image(f"{named}/image", sources="public").size == SIZE
    assert load_image(f"{named}/moved", sources="public").size == SIZE
    refuses("^127.0.0.1: expected a public address", load_image, f"{named}/redirected", sources="public")
    policy = POLICIES["public"]
    assert image_loading.download(f"{named}/host", policy, 5).decode() == named.removeprefix("http://")


def test_the_image_processors_setting(image_file: Path, tmp_path: Path) -> None:
    size = {"height": 64, "width": 64}
    strict = ArrCocImageProcessor(size=size, patch_size=4, sources="public")
    strict.save_pretrained(tmp_path)
    for read in (strict, ArrCocImageProcessor.from_pretrained(tmp_path)):
        with pytest.raises(ValueError, match="got a path on this machine$"):
            read(str(image_file))
        with pytest.raises(ValueError, match="got a path on this machine$"):
            read.fetch_images([str(image_file)])
    with pytest.raises(
        ValueError, match="^sources: expected one of any, inline, public, or a SourcePolicy; got 'all'$"
    ):
        ArrCocImageProcessor(size=size, patch_size=4, sources="all")


# What is not read, and not said
def test_pipes_devices_and_program_formats_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        refuses("expected an image file; got a device, pipe or socket$", load_image, path)
    # An EPS file named x.png started Ghostscript.
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *args, **kwargs: pytest.fail("started"))
    path = tmp_path / "x.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    refuses(r"expected an image \(PNG, .*\), a PDF or a video; got text$", load_image, path)


def test_errors_quote_neither_content_nor_passwords(server: str, tmp_path: Path) -> None:
    for content in (b"secret line\n", b"P6 secret", b"\x89PNG\r\n\x1a\nsecretsecretsecret", b"GIF89asecret"):
        (tmp_path / "passwords").write_bytes(content)
        with pytest.raises(ValueError) as caught:
            load_image(tmp_path / "passwords")
        assert "secret" not in str(caught.value) and caught.value.__cause__ is None
    address = server.removeprefix("http://")
    for url in (
        f"http://me:secret@{address}/missing?token=secret#secret",
        "http://me:secret@[/",
        "http://u:secret@h:x/",
    ):
        with pytest.raises(ValueError) as caught:
            load_image(url, timeout=2)
        assert "secret" not in str(caught.value) and caught.value.__cause__ is None


def test_a_policy_lists_hosts_and_bounds_sizes(server: str) -> None:
    """Redirects too: a listed host may not send a server anywhere it likes."""
    allowed = GuardedSources(schemes=("http",), hosts=("localhost",), private_addresses=True)
    named = server.replace("127.0.0.1", "localhost")
    assert load_image(f"{named}/moved", sources=allowed).size == SIZE
    for url in (f"{server}/image", f"{named}/redirected"):
        refuses(r"expected a host that is allowed here \(sources\); got another$", load_image, url, sources=allowed)
    with pytest.raises(ValueError, match="image: expected at most 10 bytes; got more$"):
        load_image(f"{server}/image", sources=SourcePolicy(max_bytes=10))
