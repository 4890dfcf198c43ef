"""The queue of an engine's questions, and the thread that groups them into batches."""

import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..learning.versions import CHECKPOINT
from .question import EngineBusy, EngineStopped, ServedQuestion, Ticket
from .settings import ServerSettings

if TYPE_CHECKING:
    from .protocol import ChatRequest

logger = logging.getLogger(__name__)


class QuestionQueue(ABC):
    """Accepts questions from the event loop and passes them to `_answer` in a separate thread.

    `on_alone` is called when the questions of a batch must be tried one by one.

    Attributes:
        tokenizer, generation_config: the model's.
        count_tokens: counts those of a question, which has a limit; None: the context is the limit.
        control_tokens: texts of control tokens, which a question must not contain.
        calibration: see `ArrCocConfig.calibration`.
        alive: whether the engine answers.
        version: version of the scorer.
    """

    tokenizer: Any
    generation_config: Any
    control_tokens: Sequence[str]
    count_tokens: Callable[[str], int] | None = None
    calibration: Mapping[str, float] | None = None

    def __init__(self, settings: ServerSettings, device: torch.device, on_alone: Callable[[], None]) -> None:
        self.settings, self.device, self.on_alone = settings, device, on_alone
        self.alive, self.version = False, CHECKPOINT
        self._max_running = settings.max_running or (8 if device.type == "cpu" else 64)
        self._waiting: deque[Ticket] = deque()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._seconds = 0.1  # per question, a moving mean from which Retry-After is estimated

    # ---- called by the event loop

    def start(self) -> None:
        """Starts the thread that takes questions."""
        self.alive = True
        self._begin(self._take_questions, "embedder")

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
    @abstractmethod
    def running(self) -> int:
        """The number of questions in a batch."""

    @abstractmethod
    def choices(self, request: "ChatRequest") -> Any:
        """The fetch choices of a request.

        Raises:
            ValueError: the model does not support them.
        """

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

    def _take_questions(self) -> None:
        while batch := self._next_batch():
            began = time.monotonic()
            self._try(batch, self._answer)
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

    def _next_batch(self) -> list[Ticket]:
        """Waits for room and returns the next questions that fit into one batch; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: not self.alive or (self._waiting and self._room > 0))
            if not self.alive:
                return []
            first = self._waiting.popleft()
            batch, room = [first], self._room
            for ticket in [*self._waiting]:
                if len(batch) < room and self._go_together(first.question, ticket.question):
                    self._waiting.remove(ticket)
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

    @property
    def _queues(self) -> list[deque[Ticket]]:
        return [self._waiting]

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
