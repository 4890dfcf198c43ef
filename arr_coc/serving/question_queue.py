"""The queue of an engine's questions, the thread that groups them into batches, and what a question gives."""

import asyncio
import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from asyncio import get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..learning.versions import CHECKPOINT
from ..modeling.answers import FetchedWords, Pass
from ..modeling.fetcher import AS_CONFIGURED, FetchChoices, FetchResult
from ..modeling.image_encoding import ImageEncoding
from ..modeling.processing_arr_coc import Turn
from .encodings import HeldEncoding
from .protocol import ChatRequest
from .settings import ServerSettings

Page = tuple[str, int]  # the handle of an image or document, and the row of the page in its encoding


@dataclass(frozen=True)
class ServedQuestion:
    """A question."""

    text: str
    images: tuple[HeldEncoding, ...]  # the prompt's images, in order
    history: tuple[Turn, ...] = ()  # earlier questions and answers
    choices: FetchChoices | Mapping[str, Any] = AS_CONFIGURED  # for a published model: options of its `ask`
    max_tokens: int = 64
    temperature: float = 0.0  # of sampling; 0: greedy decoding
    top_p: float = 1.0  # sampling uses the likeliest tokens up to this total probability

    @property
    def sampling(self) -> dict[str, Any]:
        """The settings by which tokens are drawn; none where decoding is greedy."""
        return {"temperature": self.temperature, "top_p": self.top_p} if self.temperature > 0 else {}

    @property
    def joint(self) -> bool:
        """Whether several views share one budget."""
        return len(self.images) > 1 or any(image.encoding.documents is not None for image in self.images)

    @property
    def pools(self) -> set[int]:
        """The pooling factors of the base tokens; all images of a question have the same one."""
        return {image.encoding.pool for image in self.images}

    @property
    def pages(self) -> list[tuple[Page, ImageEncoding]]:
        """The page in each slot of the prompt, and its encoding."""
        return [((image.handle, row), image.encoding) for image in self.images for row in range(len(image.encoding))]


@dataclass(frozen=True)
class Progress:
    """All tokens of an answer so far, their log-probabilities, and whether it has ended."""

    tokens: list[int]
    logprobs: list[float]
    finished: bool


class EngineStopped(Exception):
    """The engine has stopped answering."""


class EngineBusy(Exception):
    """Too many questions are waiting. `seconds`: when the client can try again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many questions wait; try again in {seconds} s")
        self.seconds = seconds


@dataclass(eq=False)
class Ticket:
    """A question in the engine. Threads push progress, the event loop reads it."""

    question: ServedQuestion
    number: str  # its name in the batch
    loop: asyncio.AbstractEventLoop
    fetch: FetchResult | None = None  # the fetched patches, a row per image; known from the first `Progress` on
    prompt_tokens: int = 0  # the number of prompt tokens; known from the first `Progress` on
    cancelled: bool = False  # whether the client has stopped waiting for the answer
    version: str = ""  # version of the scorer
    passes: tuple[Pass, ...] = ()
    words: FetchedWords | None = None  # known from the first `Progress` on
    _arrived: "asyncio.Queue[Progress | Exception]" = field(default_factory=asyncio.Queue)

    def push(self, news: Progress | Exception) -> None:
        """Adds progress or an error; can be called from any thread."""
        with suppress(RuntimeError):  # if the loop is closed, nobody waits
            self.loop.call_soon_threadsafe(self._arrived.put_nowait, news)

    async def progress(self) -> AsyncIterator[Progress]:
        """Yields the growing answer; the last item is the finished answer.

        Raises:
            ValueError: the question was refused.
            EngineStopped: the engine ended before the answer.
        """
        while True:
            news = await self._arrived.get()
            while not self._arrived.empty() and isinstance(news, Progress) and not news.finished:
                news = self._arrived.get_nowait()  # each item includes the ones before
            if isinstance(news, Exception):
                raise news
            yield news
            if news.finished:
                return


FAILED = ("failed", "late")  # kinds of end that the server causes


@dataclass(frozen=True)
class Ended:
    """An answer that has ended."""

    number: str  # id of the completion, without "chatcmpl-"
    ticket: Ticket  # holds the question and, if they are known, the fetched patches
    stops: tuple[str, ...]  # strings that end the answer
    finish: str  # "stop", "length", "cancelled" (the client disconnected), "refused", "failed", "late" (time ran out)
    answer: tuple[str, float] | None  # the text and the probability of its tokens; None without tokens


logger = logging.getLogger(__name__)


class QuestionQueue(ABC):
    """Accepts questions from the event loop and passes them to `_answer` in a separate thread. `on_alone` is called
    when the questions of a batch must be tried one by one."""

    tokenizer: Any  # the model's
    generation_config: Any  # the model's
    control_tokens: Sequence[str]  # texts of control tokens, which a question must not contain
    # counts those of a question, which has a limit; None: the context is the limit
    count_tokens: Callable[[str], int] | None = None
    calibration: Mapping[str, float] | None = None  # see `ArrCocConfig.calibration`

    def __init__(self, settings: ServerSettings, device: torch.device, on_alone: Callable[[], None]) -> None:
        self.settings, self.device, self.on_alone = settings, device, on_alone
        self.alive, self.version = False, CHECKPOINT  # whether it answers; the version of the scorer
        self._max_running = settings.max_running or (8 if device.type == "cpu" else 64)
        self._waiting = deque[Ticket]()
        self._queues = [self._waiting]
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._seconds = 0.1  # per question, a moving mean from which Retry-After is estimated

    # ---- called by the event loop

    def start(self) -> None:
        """Starts the thread that takes questions."""
        self.alive = True
        self._begin(partial(self._take_questions, self._waiting, self._answer, lambda: self._room), "embedder")

    def stop(self) -> None:
        """Stops at once; unanswered questions fail with `EngineStopped`."""
        with self._changed:
            self.alive = False
            self._changed.notify_all()
        self._stop_batches()
        for thread in self._threads:
            thread.join()
        self._fail_all()

    @property
    def waiting(self) -> int:
        """The number of questions that are not in a batch yet."""
        return sum(map(len, self._queues))

    @property
    def running(self) -> int:
        """The number of questions in a batch."""
        return len(self._under_way())

    @abstractmethod
    def choices(self, request: ChatRequest) -> Any:
        """The fetch choices of a request. Raises ValueError: the model does not support them."""

    def submit(self, question: ServedQuestion) -> Ticket:
        """Queues a question; the ticket's `progress` yields its answer.

        Raises:
            EngineBusy: too many questions are waiting.
            EngineStopped: the engine has stopped.
        """
        ticket = Ticket(question, str(next(self._numbers)), get_running_loop())
        with self._changed:
            if not self.alive:
                raise EngineStopped
            if self.waiting >= self.settings.max_waiting:
                raise EngineBusy(max(1, round(self.waiting * self._seconds)))
            self._queue_of(question).append(ticket)
            self._changed.notify_all()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Cancels a question; does not change one that has ended."""
        with self._changed:
            ticket.cancelled = True  # the queue's thread may hold the ticket
            for queue in self._queues:
                if ticket in queue:
                    queue.remove(ticket)
            self._changed.notify_all()

    # ---- the thread that takes questions

    def _take_questions(
        self, waiting: deque[Ticket], answer: Callable[[list[Ticket]], None], room: Callable[[], int]
    ) -> None:
        while batch := self._next_batch(waiting, room):
            began = time.monotonic()
            self._try(batch, answer)
            self._seconds += 0.05 * ((time.monotonic() - began) / len(batch) - self._seconds)

    @abstractmethod
    def _answer(self, batch: list[Ticket]) -> None:
        """Answers the questions of a batch, or passes them to the thread that does."""

    def _try(self, batch: list[Ticket], work: Callable[[list[Ticket]], None]) -> None:
        """Does work for a batch. If that fails, tries each question alone and refuses those that fail."""
        try:
            work(batch)
        except Exception as error:
            if len(batch) == 1:
                self._refuse(batch[0], error)
                return
            self.on_alone()
            for ticket in batch:
                self._try([ticket], work)

    @staticmethod
    def _refuse(ticket: Ticket, error: Exception) -> None:
        if not isinstance(error, ValueError | EngineStopped):
            logger.error("a question failed", exc_info=error)
        ticket.push(error)

    def _next_batch(self, waiting: deque[Ticket], room: Callable[[], int]) -> list[Ticket]:
        """Waits for room and returns the next questions that fit into one batch; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: not self.alive or (waiting and room() > 0))
            if not self.alive:
                return []
            first, free = waiting.popleft(), room()
            batch = [first]
            for ticket in [*waiting]:
                if len(batch) < free and self._go_together(first.question, ticket.question):
                    waiting.remove(ticket)
                    batch.append(ticket)
            return batch

    @property
    @abstractmethod
    def _room(self) -> int:
        """The number of questions that can be taken now."""

    @abstractmethod
    def _go_together(self, first: ServedQuestion, other: ServedQuestion) -> bool:
        """Whether two questions can be in one batch."""

    # ---- parts of an engine

    def _queue_of(self, question: ServedQuestion) -> deque[Ticket]:
        return self._waiting

    def _begin(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _stop_batches(self) -> None:
        """Stops the threads that answer outside the queue."""
        return

    def _end(self, number: str) -> Any:
        """Removes a question from a batch and frees its resources."""
        return None

    @abstractmethod
    def _under_way(self) -> list[Ticket]:
        """The questions in a batch."""

    def _fail_all(self) -> None:
        with self._changed:
            tickets = [*itertools.chain(*self._queues), *self._under_way()]
            for queue in self._queues:
                queue.clear()
        for ticket in tickets:
            self._end(ticket.number)
            ticket.push(EngineStopped())


def check_room(prompt: int, answer: int, longest: int) -> None:
    """Raises ValueError if an answer does not fit after a prompt; all arguments are numbers of tokens."""
    if prompt + answer <= longest:
        return
    room = longest - prompt
    if room < 1:
        raise ValueError(f"question: expected a prompt of fewer than {longest} tokens; got {prompt}")
    why = f"beside the prompt's {prompt} tokens, images included, the context of {longest} holds no more"
    raise ValueError(f"max_tokens: expected at most {room}; got {answer}: {why}")
