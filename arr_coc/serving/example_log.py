"""The log of examples: a sample of all answers, and all that failed or are improbable.

Answers never wait for it: a thread writes, and what it cannot keep up with is dropped and counted.
"""

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter

from ..journal import Journal
from .ended import FAILED, Ended
from .example import JOURNAL, Example, fetched_patches
from .redaction import Hook
from .use_settings import UseSettings

logger = logging.getLogger(__name__)

_WAITING = 64
"""Examples that wait to be written, at most."""


class ExampleLog:
    """Keeps examples in a journal.

    Args:
        journal: where to.
        settings: which answers.
        weights: SHA-256 of the checkpoint's files.
        hook: see `redaction`.
        registry: where what is kept is counted.
        draw: a number from 0 to 1 for each answer.
    """

    def __init__(
        self,
        journal: Journal,
        settings: UseSettings,
        weights: str,
        hook: Hook,
        registry: CollectorRegistry,
        draw: Callable[[], float] = random.random,
    ) -> None:
        assert journal.name == JOURNAL
        self.journal, self.settings, self.weights, self.hook, self.draw = journal, settings, weights, hook, draw
        self.kept = Counter("arr_coc_examples", "Examples by what became of them.", ["outcome"], registry=registry)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="examples")
        self._room = threading.BoundedSemaphore(_WAITING)

    def watch(self, ended: Ended) -> None:
        """Keeps an answer, if it is to be kept; called by the event loop."""
        why = self._why(ended)
        if why is None:
            return
        if not self._room.acquire(blocking=False):
            self.kept.labels("dropped").inc()
            return
        with suppress(RuntimeError):  # the server has stopped, and ends what it had begun
            self._thread.submit(self._keep, ended, why, datetime.now(UTC).isoformat(timespec="milliseconds"))

    def stop(self) -> None:
        """Writes what waits, and ends."""
        self._thread.shutdown()
        self.journal.close()

    def _why(self, ended: Ended) -> str | None:
        if ended.finish in FAILED:
            return "failure"
        if ended.finish not in ("stop", "length"):
            return None  # the client went, or sent what is no question
        if ended.answer is not None and ended.answer[1] < self.settings.unsure:
            return "unsure"
        return "sample" if self.draw() < self.settings.sample else None

    def _keep(self, ended: Ended, why: str, time: str) -> None:
        try:
            example = self._example(ended, why, time)
            redacted = self.hook(example)
            if redacted is None:
                self.kept.labels("redacted").inc()
                return
            self.journal.append(replace(redacted, redacted=redacted != example).content())
            self.kept.labels(why).inc()
        except Exception:  # a hook's, or a full disk: the answer is given either way
            logger.exception("an example was not kept")
            self.kept.labels("failed").inc()
        finally:
            self._room.release()

    def _example(self, ended: Ended, why: str, time: str) -> Example:
        ticket, question = ended.ticket, ended.ticket.question
        text, probability = ended.answer or (None, None)
        choices = question.choices
        return Example(
            id=ended.number,
            time=time,
            why=why,
            images=tuple(image.content for image in question.images),
            question=question.text,
            history=question.history,
            strategy=choices.strategy,
            budget=choices.budget,
            allocator=choices.allocator,
            max_tokens=question.max_tokens,
            temperature=question.temperature,
            top_p=question.top_p,
            stops=ended.stops,
            finish=ended.finish,
            answer=text,
            probability=probability,
            fetched=None if ticket.fetch is None else fetched_patches(ticket.fetch),
            weights=self.weights,
            version=ticket.version,
            num_passes=choices.num_passes,
        )
