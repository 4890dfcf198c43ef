"""Processes that download and decode clients' images; a failure ends one process only.

There are three kinds of processes. The server has a `WorkerPool`, which replaces workers that hang or die; a worker
serves one request at a time. Workers are forked from a nursery, which has imported their modules and gets no images:

    python -m arr_coc.serving.image_workers DESCRIPTOR JSON

DESCRIPTOR is one end of a socket; JSON holds the image processor and the limits. A request by the socket is a process
id and a descriptor: it ends the worker of that id (0: none) and forks one that uses this connection; the reply is its
process id. When the other end closes, the nursery ends with its workers. (multiprocessing's fork server runs the
caller's main module again and sends pickles.)

A worker's connection carries bytes only: requests are "B" with an image file or "U" with its URL; answers are "I" with
a `PreparedImage`, or "E" with an error message in UTF-8.
"""

import asyncio
import hashlib
import json
import logging
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..families.public_sources import GuardedSources
from ..modeling.image_loading import MAX_BYTES, load_source, open_source
from ..modeling.image_processing_arr_coc import ArrCocImageProcessor
from ..modeling.view_encoding import sources_of, take_view_options
from ..modeling.word_sources import from_json, to_json

CONTENT, URL, IMAGE, REFUSED = b"B", b"U", b"I", b"E"
SECONDS = 15.0  # seconds to download and decode one image; a worker that takes longer is killed
MEMORY = 1536 * 2**20  # the most bytes of memory for decoding one image
_NUMBER = struct.Struct("<I")  # a process id, or the length of the JSON that describes the pixels behind it


@dataclass(frozen=True)
class DecodedPage:
    """An image, a page of a document or a frame of a video: RGB uint8 [height, width, 3], and its text layer."""

    pixels: np.ndarray
    page: int | None = None
    second: float | None = None
    layer: Any = None


@dataclass(frozen=True)
class PreparedImage:
    """A decoded image or document."""

    key: bytes  # SHA-256 of the file
    pages: tuple[DecodedPage, ...]  # upright, in order; an image is one page
    content: bytes = b""  # the file, if it was downloaded; else empty, as the caller has it
    words: Any = "auto"  # where its words come from; it is not sent

    def to_bytes(self) -> bytes:
        pages = [(*page.pixels.shape[:2], page.page, page.second, to_json(page.layer)) for page in self.pages]
        head = json.dumps([self.key.hex(), pages]).encode()
        return b"".join((_NUMBER.pack(len(head)), head, *(page.pixels.tobytes() for page in self.pages), self.content))

    @classmethod
    def from_bytes(cls, message: bytes) -> "PreparedImage":
        at = _NUMBER.size + _NUMBER.unpack_from(message)[0]
        key, listed = json.loads(message[_NUMBER.size : at])
        pages = []
        for height, width, page, second, layer in listed:
            pixels = np.frombuffer(message, np.uint8, 3 * height * width, at).reshape(height, width, 3)
            pages.append(DecodedPage(pixels, page, second, from_json(layer)))
            at += pixels.nbytes
        return cls(bytes.fromhex(key), tuple(pages), message[at:])


@dataclass(frozen=True)
class ImageLimits:
    """The most pixels of one image, checked before decoding, and the allowed sources."""

    pixels: int
    policy: GuardedSources


def inline_content(url: str) -> bytes:
    """The image file in a data: URL. Raises ValueError: another kind of URL, or invalid base64."""
    stream, _ = open_source(url, "inline", None)
    return stream.read()


def prepare(content: bytes, processor: ArrCocImageProcessor, limits: ImageLimits) -> PreparedImage:
    """Decodes an image or document file. Raises ValueError: not an image, or too large."""
    image = load_source(content, max_image_pixels=limits.pixels)
    sources = sources_of(image, take_view_options(processor.views)[0], limits.pixels)
    total = sum(source.height * source.width for source in sources)
    if total > limits.pixels:
        expected = f"pages of at most {limits.pixels} pixels together (the server's --max-pixels)"
        raise ValueError(f"image: expected {expected}; got {len(sources)} of {total}: send fewer pages")
    pages = []
    for source in sources:
        image = source.load()
        layer = None if source.layer is None else source.layer(image)
        pages.append(DecodedPage(np.asarray(image), source.page, source.second, layer))
    return PreparedImage(hashlib.sha256(content).digest(), tuple(pages))


def work(connection: Connection, processor: ArrCocImageProcessor, limits: ImageLimits) -> None:
    """Answers requests until the other side closes. The process has no secrets, no core file and limited memory."""
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
        connection.send_bytes(_answer(message, processor, limits))


def _answer(message: bytes, processor: ArrCocImageProcessor, limits: ImageLimits) -> bytes:
    try:
        content = message[1:]
        if message[:1] == CONTENT:
            return IMAGE + prepare(content, processor, limits).to_bytes()
        stream, _ = open_source(content.decode(), limits.policy, SECONDS)
        with stream:
            content = stream.read()
        return IMAGE + replace(prepare(content, processor, limits), content=content).to_bytes()
    except MemoryError:
        return REFUSED + f"image: expected one that decodes in {MEMORY >> 20} MiB; got a larger one".encode()
    except (ValueError, OSError, RuntimeError) as error:  # torch raises RuntimeError when memory runs out
        return REFUSED + (str(error) if isinstance(error, ValueError) else "image: expected one that decodes").encode()


class Nursery:
    """The nursery process, from the server's side."""

    def __init__(self, processor: ArrCocImageProcessor, limits: ImageLimits) -> None:
        self._socket, theirs = socket.socketpair()
        described = json.dumps([processor.to_dict(), asdict(limits)])
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), described]
        # A separate session, so that an interrupt at the terminal reaches the server only, which drains first.
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )

    def fork(self, replaced: int = 0) -> tuple[int, Connection]:
        """Forks a worker, in place of one that it kills, and returns its process id and the connection to it. Raises
        OSError: the nursery has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [_NUMBER.pack(replaced)], [theirs.fileno()])
        reply = self._socket.recv(_NUMBER.size, socket.MSG_WAITALL)
        if len(reply) < _NUMBER.size:
            raise OSError("the process that image workers are forked from has ended")
        return _NUMBER.unpack(reply)[0], Connection(ours.detach())

    def stop(self) -> None:
        """Ends the nursery and its workers."""
        self._socket.close()
        self._process.wait()


def _serve(control: socket.socket, described: str) -> None:
    image_processor, limited = json.loads(described)
    processor = ArrCocImageProcessor.from_dict(image_processor)
    limits = ImageLimits(limited["pixels"], GuardedSources(**limited["policy"]))
    workers: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _NUMBER.size, 1)
        ended = workers & {*_NUMBER.unpack(message)} if len(message) == _NUMBER.size else workers
        for worker in ended:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)  # until then no other process can get its id
        if not descriptors:
            return
        worker = os.fork()
        if not worker:
            control.close()
            work(Connection(descriptors[0]), processor, limits)
            os._exit(0)
        os.close(descriptors[0])
        workers = workers - ended | {worker}
        control.sendall(_NUMBER.pack(worker))


logger = logging.getLogger(__name__)

GRACE = 5.0  # extra seconds beyond the limit of one image, so that a download's timeout can return its error
ATTEMPTS = 2  # workers that one image can crash before it is refused; the first crash can have another cause


_Worker = tuple[int, Connection]
"""The id of a process, and the connection to it."""


class WorkerPool:
    """Prepares images in `count` processes; `on_restart` is called when one is replaced."""

    def __init__(
        self,
        processor: ArrCocImageProcessor,
        limits: ImageLimits,
        count: int,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self.processor, self.limits, self.count, self.on_restart = processor, limits, count, on_restart
        prepared = 8 * 2**20 + 4 * limits.pixels  # bytes of a `PreparedImage`: text layers are a few per cent
        self._most_bytes = 1 + prepared + (limits.policy.max_bytes or MAX_BYTES)
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="image-worker")
        self._workers: dict[int, Connection] = {}
        self._forking = threading.Lock()
        self._stopped = False

    async def start(self) -> None:
        """Starts the processes. Their imports take seconds."""
        self._nursery = Nursery(self.processor, self.limits)
        for _ in range(self.count):
            self._idle.put_nowait(await asyncio.get_running_loop().run_in_executor(self._threads, self._begin))

    async def stop(self) -> None:
        """Ends the processes, busy or idle."""
        self._stopped = True
        await asyncio.to_thread(self._nursery.stop)
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._workers.values():
            connection.close()
        self._workers.clear()

    @property
    def processes(self) -> list[int]:
        """Process ids, for monitoring."""
        return [*self._workers]

    async def prepare(self, image: bytes | str) -> PreparedImage:
        """Decodes an image file, or downloads the one at an http(s) URL. Raises ValueError: not an image, or it exceeds
        the limits."""
        message = CONTENT + image if isinstance(image, bytes) else URL + image.encode()
        worker = await self._idle.get()
        # The thread continues if the request is cancelled, as only the thread knows when the worker is idle again.
        work_done = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, worker, message)
        work_done.add_done_callback(self._give_back)
        answer, _ = await asyncio.shield(work_done)
        if answer[:1] == REFUSED:
            raise ValueError(answer[1:].decode(errors="replace"))
        assert answer[:1] == IMAGE
        return PreparedImage.from_bytes(answer[1:])

    def _give_back(self, work_done: "asyncio.Future[tuple[bytes, _Worker]]") -> None:
        if not work_done.cancelled() and work_done.exception() is None:
            self._idle.put_nowait(work_done.result()[1])

    def _ask(self, worker: _Worker, message: bytes) -> tuple[bytes, _Worker]:
        """The worker's answer, and the worker that is idle afterwards."""
        seconds = SECONDS + GRACE * (message[:1] == URL)
        for _ in range(ATTEMPTS):
            _, connection = worker
            with suppress(EOFError, OSError):  # the process ended, or answered more than may be
                connection.send_bytes(message)
                if connection.poll(seconds):
                    return connection.recv_bytes(self._most_bytes), worker
                refusal = f"image: expected one that decodes within {SECONDS:g} s; got a slower one"
                return REFUSED + refusal.encode(), self._replaced(worker)
            worker = self._replaced(worker)
        return REFUSED + b"image: expected one that can be decoded; got one that ends the decoder", worker

    def _begin(self, replaced: int = 0) -> _Worker:
        with self._forking:
            process, connection = self._nursery.fork(replaced)
        self._workers[process] = connection
        return process, connection

    def _replaced(self, worker: _Worker) -> _Worker:
        if self._stopped:
            raise RuntimeError("the image workers have been stopped")
        logger.warning("an image worker ended or hung; another takes its place")
        self.on_restart()
        process, connection = worker
        del self._workers[process]
        connection.close()
        return self._begin(process)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
