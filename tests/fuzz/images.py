"""Image files that were damaged, made to cost as much as they can, or are none: an image, or a refusal of one line."""

import random
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image, ImageCms, features

from arr_coc.modeling.image_loading import load_image
from tests.fuzz.tally import Tally
from tests.helpers import tiny_processor

Draw = random.Random

WORDING = r"^[^\n]*expected[^\n]*got[^\n]*$"

MODES = tuple("1 L LA La P PA RGB RGBA RGBa RGBX CMYK YCbCr LAB HSV I I;16 I;16B F".split())

WRITTEN = (
    {"PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"), "JPEG": ("L", "RGB", "CMYK", "YCbCr")}
    | {"WEBP": ("RGB", "RGBA"), "GIF": ("L", "P", "RGB"), "BMP": ("1", "L", "P", "RGB")}
    | {"TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "LAB", "YCbCr", "I", "I;16", "I;16B", "F")}
    | {"PPM": ("1", "L", "RGB", "I"), "JPEG2000": ("L", "LA", "RGB", "RGBA", "I;16"), "AVIF": ("RGB", "RGBA")}
)
"""Formats that are read, and the modes that each is written in."""

OTHERS = ("ICO", "TGA", "PCX", "SGI", "DDS", "MSP", "XBM", "ICNS", "EPS", "PDF", "IM", "SPIDER", "QOI")
"""Formats that are not."""

SIDES = (1, 2, 3, 7, 16, 33, 90, 250)

LONGEST = (2**31 - 1, 2**32 - 1, 89_478_485, 65_536, 65_535, 40_000, 9_459, 0)
"""px; sides that a header may name."""


def page(draw: Draw, mode: str, height: int, width: int) -> Image.Image:
    """Pixels of any values, some at the ends of their range."""
    source = np.random.default_rng(draw.randrange(2**32))
    kinds = {"I": np.int32, "F": np.float32, "I;16": np.uint16, "I;16B": ">u2"}
    if mode in kinds:
        values = source.integers(0, 65536, (height, width)).astype(kinds[mode])
        if mode == "F":
            odd = (1e38, -1.0, 300.0, 0.5) if draw.random() < 0.5 else (float("nan"), float("inf"))
            values.flat[0] = draw.choice(odd)
        return Image.frombytes(mode, (width, height), values.tobytes())
    bands = len(Image.new(mode, (1, 1)).getbands())
    if mode == "1":
        return Image.fromarray(source.integers(0, 256, (height, width), dtype=np.uint8)).convert("1")
    image = Image.frombytes(
        mode, (width, height), source.integers(0, 256, height * width * bands, dtype=np.uint8).tobytes()
    )
    if mode in ("P", "PA"):
        image.putpalette(source.integers(0, 256, 768, dtype=np.uint8).tobytes())
    return image


def encoded(draw: Draw, kind: str | None = None) -> bytes:
    """A whole image file, with what files carry: EXIF, profiles, transparency, frames."""
    kind = kind or draw.choice([name for name in WRITTEN if name != "AVIF" or features.check("avif")])
    image = page(draw, draw.choice(WRITTEN[kind]), draw.choice(SIDES), draw.choice(SIDES))
    options: dict[str, Any] = {}
    if kind in ("PNG", "JPEG", "WEBP", "TIFF") and draw.random() < 0.4:
        exif = Image.Exif()
        exif[0x0112] = draw.choice((1, 3, 5, 6, 8) if kind == "TIFF" else (1, 3, 5, 6, 8, 9, 65535))
        options["exif"] = exif if kind == "TIFF" or draw.random() < 0.8 else b"Exif\0\0" + draw.randbytes(40)
    if kind in ("PNG", "JPEG", "WEBP") and draw.random() < 0.2:
        options["icc_profile"] = draw.choice(
            (ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(), draw.randbytes(99))
        )
    if kind in ("GIF", "PNG", "WEBP", "TIFF") and draw.random() < 0.3:
        options |= {"save_all": True, "append_images": [image] * draw.choice((1, 30))}
    if kind == "PNG" and image.mode == "P" and draw.random() < 0.5:
        options["transparency"] = draw.choice((3, draw.randbytes(17)))
    if kind == "TIFF" and draw.random() < 0.5 and image.mode in ("L", "RGB"):
        options["compression"] = draw.choice(("tiff_lzw", "tiff_deflate", "packbits", "jpeg"))
    if kind == "JPEG":
        options |= {"progressive": draw.random() < 0.5, "quality": draw.choice((1, 50, 95))}
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


# ---- hostile files
def mutated(draw: Draw) -> bytes:
    """A file with bits flipped, parts cut, doubled, zeroed or of another file."""
    content = bytearray(encoded(draw))
    for _ in range(draw.choice((1, 1, 2, 8, 40))):
        at = draw.randrange(len(content)) if draw.random() < 0.5 else draw.randrange(min(64, len(content)))
        change = draw.randrange(6)
        if change == 0:
            content[at] ^= 1 << draw.randrange(8)
        elif change == 1:
            content[at] = draw.choice((0, 1, 127, 128, 255))
        elif change == 2:
            del content[at : at + draw.choice((1, 4, 100))]
        elif change == 3:
            content[at : at + 4] = struct.pack(draw.choice("<>") + "I", draw.choice(LONGEST))
        elif change == 4:
            content[at:at] = content[at : at + draw.choice((1, 12, 200))]
        else:
            content[at : at + 8] = draw.randbytes(8)
        if not content:
            break
    return bytes(content[: draw.randrange(len(content) + 1)] if draw.random() < 0.2 else content)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_bomb(draw: Draw) -> bytes:
    """A PNG of a few bytes that says it is large: any sides, all zeros, as long as they are or cut."""
    sides = (1, 2, 30, 9_000, 9_459, 30_000, 65_535, 65_536, 89_478_485, 89_478_486, 2**31 - 1)
    height, width = draw.choice(sides), draw.choice(sides)
    if height > 9_000 and width > 9_000 and draw.random() < 0.8:
        width = draw.choice((1, 2, 30, 1300))
    depth, colour = draw.choice(((1, 0), (8, 0), (16, 0), (8, 2), (16, 2), (8, 3), (8, 4), (8, 6), (16, 6)))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, draw.choice((0, 0, 1)))
    rows = min(2**22, height * (1 + width * 4))
    parts = [_chunk(b"IHDR", header), _chunk(b"PLTE", bytes(768)) if colour == 3 else b""]
    parts += [_chunk(b"IDAT", zlib.compress(bytes(rows))), _chunk(b"IEND", b"")]
    if draw.random() < 0.3:
        parts.insert(1, _chunk(draw.choice((b"zTXt", b"iTXt", b"iCCP")), b"k\0\0" + zlib.compress(bytes(2**26))))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def thin_or_wide(draw: Draw) -> bytes:
    """A whole file, as long and thin as formats allow, or as large as is allowed."""
    long, mode = draw.choice((2_000, 16_383, 65_500)), draw.choice(("1", "L", "P", "RGB"))
    size = draw.choice(((long, 1), (1, long), (long, 3), (3_000, 2_000)))
    stream = BytesIO()
    kind = draw.choice(("PNG", "JPEG", "TIFF", "BMP", "GIF")) if mode == "L" else draw.choice(("PNG", "TIFF", "BMP"))
    Image.new(mode, size).save(stream, kind)
    return stream.getvalue()


def other_content(draw: Draw) -> bytes:
    """Files that are no images, or images of formats that are not read."""
    texts = (
        (b"", b"\0", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) show quit\n", b"%PDF-1.7\n")
        + (b"<svg xmlns='x'/>", b"<html>no</html>", b"P6 99999999 99999999 255\n", b"P5\n1 89478485\n255\n")
        + (b"P1\n3 3\n0 1", b"P6 -1 1 255\n", b"GIF89a" + b"\xff" * 300, b"BM" + b"\xff" * 60, b"\xff\xd8\xff")
        + (b"II*\0\x08\0\0\0\0\0", b"MM\0*\xff\xff\xff\xff", b"RIFF\xff\xff\xff\xffWEBPVP8 ", b"\0\0\0 ftypavif")
        + (b"\0\0\0\x0cjP  \r\n\x87\n", b"\x80\x04\x95cos\nsystem\n", b"{" * 10_000)
    )
    if draw.random() < 0.6:
        return draw.choice(texts) + (draw.randbytes(draw.choice((0, 20, 3000))) if draw.random() < 0.5 else b"")
    stream = BytesIO()
    image = page(draw, "L" if draw.random() < 0.3 else "RGB", 16, 16)
    kind = draw.choice(OTHERS)
    image = image.convert("1") if kind in ("MSP", "XBM") else image.convert("F" if kind == "SPIDER" else "RGB")
    image.save(stream, kind)
    return stream.getvalue()


# ---- ways in
class Ways:
    """How an image comes to the model: as a file under any name, as bytes, or in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processor = tiny_processor().image_processor

    def look(self, source: Any) -> Any:
        image = load_image(source)
        return image, self.processor(image, return_tensors="np")["pixel_values"]

    def file(self, draw: Draw) -> Callable[[], Any]:
        content = draw.choice((mutated, mutated, mutated, encoded, png_bomb, thin_or_wide, other_content))(draw)
        if draw.random() < 0.5:
            return lambda: self.look(content)
        path = self.folder / f"x.{draw.choice(('png', 'jpg', 'webp', 'gif', 'tiff', 'bmp', 'eps', 'txt'))}"
        path.write_bytes(content)
        return lambda: self.look(path)

    def memory(self, draw: Draw) -> Callable[[], Any]:
        image = page(draw, draw.choice(MODES), draw.choice(SIDES), draw.choice(SIDES))
        if draw.random() < 0.3:
            image.info["transparency"] = draw.choice((0, b"\0" * 9, (1, 2, 3), "odd"))
        return lambda: self.look(image)


def wrong(seen: Any) -> str | None:
    """What is wrong with a loaded image and its pixels."""
    image, pixels = seen
    if image.mode != "RGB" or not image.width * image.height:
        return f"an image of mode {image.mode}, {image.size}"
    return None if np.isfinite(pixels).all() else "pixels that are not finite"


def fuzz(count: int, seed: int) -> Tally:
    with TemporaryDirectory() as folder:
        ways = Ways(Path(folder))
        tally = Tally()
        for number in range(seed, seed + count):
            draw = random.Random(number)
            action = draw.choice((ways.file,) * 6 + (ways.memory,))(draw)
            tally.attempt(number, action, wording=WORDING, check=wrong)
    return tally
