"""Processes that decode images, each in use by one request at a time; what hangs or dies is replaced."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection

from ..modeling.image_processing_arr_coc import ArrCocImageProcessor
from ..modeling.image_sources import MAX_BYTES
from .image_nursery import Nursery
from .image_worker import CONTENT, IMAGE, REFUSED, SECONDS, URL, ImageLimits, PreparedImage

logger = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds beyond the limit of one image, for a download's own timeout to answer in words."""

ATTEMPTS = 2
"""Workers that one image may cost before it is blamed: the first may have been ended by somebody else."""


class WorkerLost(Exception):
    """The process ended before it answered."""


@dataclass(eq=False)
class _Worker:
    """One process and its connection."""

    process: int
    connection: Connection

    def ask(self, message: bytes, seconds: float, most_bytes: int) -> bytes:
        """The answer to one request.

        Raises:
            TimeoutError: there was none in time.
            WorkerLost: the process ended, or answered more than `most_bytes`.
        """
        try:
            self.connection.send_bytes(message)
            if not self.connection.poll(seconds):
                raise TimeoutError
            return self.connection.recv_bytes(most_bytes)
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            raise WorkerLost from error


class WorkerPool:
    """Prepares images in `count` processes.

    Args:
        processor: the model's image processor.
        limits: of one image.
        count: processes.
        on_restart: called when a process had to be replaced.
    """

    def __init__(
        self,
        processor: ArrCocImageProcessor,
        limits: ImageLimits,
        count: int,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self.processor, self.limits, self.count, self.on_restart = processor, limits, count, on_restart
        downloaded = limits.policy.max_bytes or MAX_BYTES
        self._most_bytes = 1 + PreparedImage.most_bytes(limits.pixels) + downloaded
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="image-worker")
        self._workers: set[_Worker] = set()
        self._forking = threading.Lock()
        self._stopped = False

    async def start(self) -> None:
        """Starts the processes; they import before they answer, which takes seconds."""
        self._nursery = Nursery(self.processor, self.limits)
        for _ in range(self.count):
            self._idle.put_nowait(await asyncio.get_running_loop().run_in_executor(self._threads, self._begin))

    async def stop(self) -> None:
        """Ends the processes, at work or not."""
        self._stopped = True
        await asyncio.to_thread(self._nursery.stop)
        await asyncio.to_thread(self._threads.shutdown)
        for worker in self._workers:
            worker.connection.close()
        self._workers.clear()

    @property
    def processes(self) -> list[int]:
        """Their ids, for whoever watches them."""
        return [worker.process for worker in self._workers]

    async def prepare(self, content: bytes) -> PreparedImage:
        """The image with this encoded content.

        Raises:
            ValueError: it is none, or takes more than it may.
        """
        return await self._prepared(CONTENT + content)

    async def download(self, url: str) -> PreparedImage:
        """The image at an http(s) URL, as `prepare` gives it."""
        return await self._prepared(URL + url.encode())

    async def _prepared(self, message: bytes) -> PreparedImage:
        worker = await self._idle.get()
        # The thread goes on when the request is cancelled: only it knows when the worker is idle again.
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
        """The answer, and a worker that is idle now."""
        for _ in range(ATTEMPTS):
            try:
                return worker.ask(message, SECONDS + GRACE * (message[:1] == URL), self._most_bytes), worker
            except TimeoutError:
                worker = self._replaced(worker)
                refusal = f"image: expected one that decodes within {SECONDS:g} s; got a slower one"
                return REFUSED + refusal.encode(), worker
            except WorkerLost:
                worker = self._replaced(worker)
        return REFUSED + b"image: expected one that can be decoded; got one that ends the decoder", worker

    def _begin(self) -> _Worker:
        with self._forking:
            worker = _Worker(*self._nursery.fork())
        self._workers.add(worker)
        return worker

    def _replaced(self, worker: _Worker) -> _Worker:
        if self._stopped:
            raise WorkerLost
        logger.warning("an image worker ended or hung; another takes its place")
        self.on_restart()
        self._workers.discard(worker)
        worker.connection.close()
        with self._forking:
            self._nursery.kill(worker.process)
        return self._begin()
