"""The process that downloads and decodes images which strangers sent: what goes wrong in it costs this process only.

Nothing but bytes goes through its connection: requests are "B" and an image's content or "U" and its URL; answers are
"I" and a `PreparedImage`, or "E" and what was wrong with the image, in UTF-8.
"""

import hashlib
import json
import os
import resource
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from ..modeling.generation import take_view_options
from ..modeling.image_loading import load_source, open_source
from ..modeling.image_processing_arr_coc import ArrCocImageProcessor
from ..modeling.image_sources import SourcePolicy
from ..modeling.view_encoding import sources_of

CONTENT, URL, IMAGE, REFUSED = b"B", b"U", b"I", b"E"

SECONDS = 15.0
"""To download and decode one image; whatever takes longer is ended."""

MEMORY = 1536 * 2**20
"""Bytes that decoding one image may take."""

_LENGTH = struct.Struct("<I")
"""Bytes of the JSON that says what the pixels behind it are."""


@dataclass(frozen=True)
class Page:
    """An image, a page of a document or a frame of a video: RGB uint8 [height, width, 3]."""

    pixels: np.ndarray
    page: int | None = None
    second: float | None = None


@dataclass(frozen=True)
class PreparedImage:
    """What was decoded of an image or a document.

    Attributes:
        key: SHA-256 of the encoded content.
        pages: upright, in order; of an image itself.
        content: the encoded content, where it was downloaded; else whoever asked has it.
    """

    key: bytes
    pages: tuple[Page, ...]
    content: bytes = b""

    def to_bytes(self) -> bytes:
        pages = [(*page.pixels.shape[:2], page.page, page.second) for page in self.pages]
        head = json.dumps([self.key.hex(), pages]).encode()
        return b"".join((_LENGTH.pack(len(head)), head, *(page.pixels.tobytes() for page in self.pages), self.content))

    @classmethod
    def from_bytes(cls, message: bytes) -> "PreparedImage":
        at = _LENGTH.size + _LENGTH.unpack_from(message)[0]
        key, listed = json.loads(message[_LENGTH.size : at])
        pages = []
        for height, width, page, second in listed:
            pixels = np.frombuffer(message, np.uint8, 3 * height * width, at).reshape(height, width, 3)
            pages.append(Page(pixels, page, second))
            at += pixels.nbytes
        return cls(bytes.fromhex(key), tuple(pages), message[at:])

    @staticmethod
    def most_bytes(pixels: int) -> int:
        """The size of a message about so many pixels, without content."""
        return 65_536 + 3 * pixels


@dataclass(frozen=True)
class ImageLimits:
    """How many pixels one image may have, before anything is decoded; and where it may come from."""

    pixels: int
    policy: SourcePolicy


def prepare(content: bytes, processor: ArrCocImageProcessor, limits: ImageLimits) -> PreparedImage:
    """The image or document with this encoded content.

    Raises:
        ValueError: it is none, or too large.
    """
    image = load_source(content, max_image_pixels=limits.pixels)
    sources = sources_of(image, take_view_options(processor.views)[0], limits.pixels)
    total = sum(source.height * source.width for source in sources)
    if total > limits.pixels:
        expected = f"pages of at most {limits.pixels} pixels together (the server's --max-pixels)"
        raise ValueError(f"image: expected {expected}; got {len(sources)} of {total}: send fewer pages")
    pages = tuple(Page(np.asarray(source.load()), source.page, source.second) for source in sources)
    return PreparedImage(hashlib.sha256(content).digest(), pages)


def download(url: str, limits: ImageLimits) -> bytes:
    """What the URL holds.

    Raises:
        ValueError: the policy forbids it, or there is nothing to be had.
    """
    stream, _ = open_source(url, limits.policy, SECONDS)
    with stream:
        return stream.read()


def work(connection: Connection, processor: ArrCocImageProcessor, limits: ImageLimits) -> None:
    """Answers requests until the other side closes. The process gets no secrets, no core file and no more memory."""
    os.environ.clear()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statm = Path("/proc/self/statm")
    if statm.exists():  # Linux
        most = int(statm.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        connection.send_bytes(_answer(message, lambda content: prepare(content, processor, limits), limits))


def _answer(message: bytes, prepared: Callable[[bytes], PreparedImage], limits: ImageLimits) -> bytes:
    try:
        content = message[1:]
        if message[:1] == CONTENT:
            return IMAGE + prepared(content).to_bytes()
        content = download(content.decode(), limits)
        return IMAGE + replace(prepared(content), content=content).to_bytes()
    except MemoryError:
        return REFUSED + f"image: expected one that decodes in {MEMORY >> 20} MiB; got a larger one".encode()
    except (ValueError, OSError, RuntimeError) as error:  # torch refuses memory with a RuntimeError
        return REFUSED + (str(error) if isinstance(error, ValueError) else "image: expected one that decodes").encode()
