"""The queue of an engine's questions, and the thread that takes those that fit into one batch."""

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
from .question import EngineBusy, EngineStopped, Question, Ticket
from .settings import ServerSettings

if TYPE_CHECKING:
    from .protocol import ChatRequest

logger = logging.getLogger(__name__)


class QuestionQueue(ABC):
    """Takes questions of the event loop and hands them to `_answer`, in a thread of its own.

    Args:
        settings: `max_running` and `max_waiting` are the queue's.
        device: where the model is.
        on_alone: called when the questions of a batch have to be tried one by one.

    Attributes:
        tokenizer, generation_config: the model's.
        control_tokens: text that no question may consist of.
        calibration: see `ArrCocConfig.calibration`.
        alive: whether it answers.
        version: of the scorer that fetches.
    """

    tokenizer: Any
    generation_config: Any
    control_tokens: Sequence[str]
    calibration: Mapping[str, float] | None = None

    def __init__(self, settings: ServerSettings, device: torch.device, on_alone: Callable[[], None]) -> None:
        self.settings, self.device, self.on_alone = settings, device, on_alone
        self.alive, self.version = False, CHECKPOINT
        self._max_running = settings.max_running or (8 if device.type == "cpu" else 64)
        self._waiting: deque[Ticket] = deque()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._seconds = 0.1  # of one question, a moving mean: what Retry-After is told from

    # ---- called by the event loop

    def start(self) -> None:
        """Starts the thread that takes questions."""
        self.alive = True
        self._begin(self._take_questions, "embedder")

    def stop(self) -> None:
        """Ends at once: questions under way fail with `EngineStopped`."""
        with self._changed:
            self.alive = False
            self._changed.notify_all()
        self._stop_batches()
        for thread in self._threads:
            thread.join()
        self._fail_all()

    @property
    def waiting(self) -> int:
        """Questions that are not in a batch yet."""
        return sum(map(len, self._queues))

    @property
    @abstractmethod
    def running(self) -> int:
        """Questions in a batch."""

    @abstractmethod
    def choices(self, request: "ChatRequest") -> Any:
        """How a request's patches are fetched.

        Raises:
            ValueError: so the model cannot fetch.
        """

    def submit(self, question: Question) -> Ticket:
        """Takes a question; what comes of it is the ticket's `progress`.

        Raises:
            EngineBusy: too many wait.
            EngineStopped: it answers no more.
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
        """Cancels a question; one that has ended does not change."""
        with self._changed:
            ticket.cancelled = True  # it may be with the thread that takes questions
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
        """Answers questions that go together, or hands them to what does."""

    def _try(self, batch: list[Ticket], work: Callable[[list[Ticket]], None]) -> None:
        """Does work for a batch; where that fails each question is tried alone, and refused if it is to blame."""
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
        """The next questions that go together, when there is room for them; none at the end."""
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
        """How many questions may be taken at once now."""

    @abstractmethod
    def _go_together(self, first: Question, other: Question) -> bool:
        """Whether two questions can be in one batch."""

    # ---- parts of an engine

    @property
    def _queues(self) -> list[deque[Ticket]]:
        return [self._waiting]

    def _queue_of(self, question: Question) -> deque[Ticket]:
        return self._waiting

    def _begin(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _stop_batches(self) -> None:
        """Ends what answers in threads that are not the queue's."""
        return

    def _end(self, number: str) -> Any:
        """Removes a question from a batch and frees its resources."""
        return None

    @abstractmethod
    def _under_way(self) -> list[Ticket]:
        """Questions in a batch."""

    def _fail_all(self) -> None:
        with self._changed:
            tickets = [*itertools.chain(*self._queues), *self._under_way()]
            for queue in self._queues:
                queue.clear()
        for ticket in tickets:
            self._end(ticket.number)
            ticket.push(EngineStopped())


def check_room(prompt: int, answer: int, longest: int) -> None:
    """Refuses, with a ValueError, an answer that does not fit behind a prompt; all are numbers of tokens."""
    if prompt + answer <= longest:
        return
    room = longest - prompt
    if room < 1:
        raise ValueError(f"question: expected a prompt of fewer than {longest} tokens; got {prompt}")
    why = f"beside the prompt's {prompt} tokens, images included, the context of {longest} holds no more"
    raise ValueError(f"max_tokens: expected at most {room}; got {answer}: {why}")
