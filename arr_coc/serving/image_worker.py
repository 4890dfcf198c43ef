"""The process that downloads and decodes images which strangers sent: what goes wrong in it costs this process only.

Nothing but bytes goes through its connection: requests are "B" and an image's content or "U" and its URL; answers are
"I" and a `PreparedImage`, or "E" and what was wrong with the image, in UTF-8.
"""

import hashlib
import os
import resource
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..modeling.image_loading import load_image
from ..modeling.image_processing_arr_coc import ArrCocImageProcessor
from ..modeling.image_sources import SourcePolicy, open_source

CONTENT, URL, IMAGE, REFUSED = b"B", b"U", b"I", b"E"

_HEADER = struct.Struct("<4I32s")
"""Height and width of the source, side of the square, patches; SHA-256 of the content."""


@dataclass(frozen=True)
class PreparedImage:
    """An image as the model takes it.

    Attributes:
        key: SHA-256 of the encoded content.
        size: (height, width) of the source, px.
        pixel_values: float32 [1, 3, S, S].
        patch_mask: bool [1, N].
        content: the encoded content, where it was downloaded; else whoever asked has it.
    """

    key: bytes
    size: tuple[int, int]
    pixel_values: Tensor
    patch_mask: Tensor
    content: bytes = b""

    def to_bytes(self) -> bytes:
        side, patches = self.pixel_values.shape[-1], self.patch_mask.shape[-1]
        header = _HEADER.pack(*self.size, side, patches, self.key)
        return header + self.pixel_values.numpy().tobytes() + self.patch_mask.numpy().tobytes() + self.content

    @classmethod
    def from_bytes(cls, message: bytes) -> "PreparedImage":
        height, width, side, patches, key = _HEADER.unpack_from(message)
        floats = np.frombuffer(message, np.float32, 3 * side * side, _HEADER.size)
        mask = np.frombuffer(message, np.bool_, patches, _HEADER.size + floats.nbytes)
        return cls(
            key,
            (height, width),
            torch.from_numpy(floats.reshape(1, 3, side, side).copy()),
            torch.from_numpy(mask.reshape(1, patches).copy()),
            message[_HEADER.size + floats.nbytes + patches :],
        )

    @staticmethod
    def most_bytes(side: int, patches: int) -> int:
        """The size of a message about a square of `side` px with `patches` patches."""
        return _HEADER.size + 12 * side * side + patches


@dataclass(frozen=True)
class ImageLimits:
    """What one image may take: pixels, seconds, bytes of memory; and where it may come from."""

    pixels: int
    seconds: float
    memory: int
    policy: SourcePolicy


def prepare(content: bytes, processor: ArrCocImageProcessor, limits: ImageLimits) -> PreparedImage:
    """The image with this encoded content.

    Raises:
        ValueError: it is none, or too large.
    """
    image = load_image(content, max_image_pixels=limits.pixels)
    inputs = processor(image, return_tensors="pt")
    size = (image.height, image.width)
    return PreparedImage(hashlib.sha256(content).digest(), size, inputs["pixel_values"], inputs["patch_mask"].bool())


def download(url: str, limits: ImageLimits) -> bytes:
    """What the URL holds.

    Raises:
        ValueError: the policy forbids it, or there is nothing to be had.
    """
    stream, _ = open_source(url, limits.policy, limits.seconds)
    with stream:
        return stream.read()


def work(connection: Connection, processor: ArrCocImageProcessor, limits: ImageLimits) -> None:
    """Answers requests until the other side closes. The process gets no secrets, no core file and no more memory."""
    os.environ.clear()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statm = Path("/proc/self/statm")
    if statm.exists():  # Linux
        most = int(statm.read_text().split()[0]) * resource.getpagesize() + limits.memory
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
        return REFUSED + f"image: expected one that decodes in {limits.memory >> 20} MiB; got a larger one".encode()
    except (ValueError, OSError, RuntimeError) as error:  # torch refuses memory with a RuntimeError
        return REFUSED + (str(error) if isinstance(error, ValueError) else "image: expected one that decodes").encode()
