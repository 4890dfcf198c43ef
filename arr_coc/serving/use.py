"""A server's logs of its use (examples, feedback), and the watch over its scorer's versions.

`ExampleLog` keeps a sample of all answers, and all failed or improbable ones. Answers never wait for it: a thread
writes the entries; if it is too slow, entries are dropped and counted. `VersionWatch` makes the engine fetch with the
version of the scorer that is in use.
"""

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from ..data import feedback
from ..evaluation.prediction_loop import weights_hash
from ..files import read_json
from ..journal import Journal
from ..learning.versions import CHECKPOINT, DECISION, Versions, adapted_fetcher
from ..modeling.fetcher import FetchChoices, RunningBackFetcher
from .encodings import EncodingStore
from .engine import Engine
from .examples import JOURNAL, Hook, LoggedExample, fetched_patches, load_hook
from .feedback_desk import FeedbackDesk
from .metrics import Metrics
from .question_queue import FAILED, Ended, QuestionQueue
from .settings import UseSettings

logger = logging.getLogger(__name__)

_WAITING = 64  # the most examples that wait to be written


class ExampleLog:
    """Keeps examples in a journal, after the hook; `settings` and numbers drawn from 0 to 1 select them.

    `weights`: SHA-256 of the checkpoint's files.
    """

    def __init__(
        self, journal: Journal, settings: UseSettings, weights: str, hook: Hook, registry: CollectorRegistry
    ) -> None:
        assert journal.name == JOURNAL
        self.journal, self.settings, self.weights, self.hook = journal, settings, weights, hook
        self.draw: Callable[[], float] = random.random
        self.kept = Counter("arr_coc_examples", "Examples by what became of them.", ["outcome"], registry=registry)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="examples")
        self._room = threading.BoundedSemaphore(_WAITING)

    def watch(self, ended: Ended) -> None:
        """Keeps an answer if the settings select it; called by the event loop."""
        why = self._why(ended)
        if why is None:
            return
        if not self._room.acquire(blocking=False):
            self.kept.labels("dropped").inc()
            return
        with suppress(RuntimeError):  # the server has stopped and is ending its open requests
            self._thread.submit(self._keep, ended, why, datetime.now(UTC).isoformat(timespec="milliseconds"))

    def stop(self) -> None:
        """Writes the waiting entries and stops."""
        self._thread.shutdown()
        self.journal.close()

    def _why(self, ended: Ended) -> str | None:
        if ended.finish in FAILED:
            return "failure"
        if ended.finish not in ("stop", "length"):
            return None  # the client disconnected, or the request was not a question
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
        except Exception:  # the hook failed, or the disk is full; the answer is not affected
            logger.exception("an example was not kept")
            self.kept.labels("failed").inc()
        finally:
            self._room.release()

    def _example(self, ended: Ended, why: str, time: str) -> LoggedExample:
        ticket, question = ended.ticket, ended.ticket.question
        text, probability = ended.answer or (None, None)
        choices = question.choices
        assert isinstance(choices, FetchChoices), "of our own models alone"
        return LoggedExample(
            id=ended.number,
            time=time,
            why=why,
            images=tuple(content for image in question.images for content in image.contents),
            question=question.text,
            stops=ended.stops,
            finish=ended.finish,
            answer=text,
            probability=probability,
            fetched=None if ticket.fetch is None else fetched_patches(ticket.fetch),
            weights=self.weights,
            version=ticket.version,
            **{name: getattr(choices, name) for name in ("strategy", "budget", "allocator", "num_passes")},
            **{name: getattr(question, name) for name in ("history", "max_tokens", "temperature", "top_p")},
        )


class VersionWatch:
    """A thread that swaps the engine's fetcher after a version in `folder` is promoted or rolled back.

    Args:
        engine: an engine that still has the checkpoint's fetcher.
        seconds: interval between checks.
        weights: SHA-256 of the checkpoint's files, which an adapter must match.

    Raises:
        ValueError: the version is damaged or another model's, so the server does not start. Later errors of this kind
            are logged, and the version in use stays.
    """

    def __init__(self, engine: Engine, folder: Path, seconds: float, weights: str, registry: CollectorRegistry) -> None:
        self.engine, self.versions, self.seconds, self.weights = engine, Versions(folder), seconds, weights
        self._own: RunningBackFetcher = engine.answer_generator.model.model.fetcher
        self._gauge = Gauge("arr_coc_scorer_version", "1 for the version in use.", ["version"], registry=registry)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="versions", daemon=True)
        self._refused = ""
        self._gauge.labels(engine.version).set(1)
        self.look()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Swaps to the version that is in use now. Raises ValueError: the version is damaged or another model's."""
        version, before = self.versions.current().version, self.engine.version
        if version == before:
            return
        adapter = self.versions.adapter(version)
        if adapter is not None and (base := read_json(adapter / DECISION).get("base")) != self.weights:
            raise ValueError(f"{adapter}: expected an adapter of the checkpoint {self.weights[:12]}; got one of {base}")
        self.engine.swap(adapted_fetcher(self._own, adapter), version)
        self._gauge.labels(before).set(0)
        self._gauge.labels(version).set(1)
        logger.info("the scorer is now %s", "the checkpoint's own" if version == CHECKPOINT else version)

    def _watch(self) -> None:
        while not self._end.wait(self.seconds):
            try:
                self.look()
                self._refused = ""
            except (ValueError, OSError) as error:
                if str(error) != self._refused:  # logged once, not every few seconds
                    logger.error("the scorer stays %s: %s", self.engine.version, error)
                self._refused = str(error)


class Use:
    """The configured logs of one server, and the watch over its scorer's versions.

    The store keeps the image files if a log needs them.

    Raises:
        ValueError: no such hook, or a version that is damaged or another model's.
        OSError: a folder cannot be created.
    """

    def __init__(self, engine: QuestionQueue, store: EncodingStore, metrics: Metrics, settings: UseSettings) -> None:
        store.keeps_content = settings.examples is not None or settings.feedback is not None
        hook, registry = load_hook(settings.redact), metrics.registry
        self.examples: ExampleLog | None = None
        self.desk: FeedbackDesk | None = None
        self.versions: VersionWatch | None = None
        if settings.feedback is not None:
            limit = settings.feedback_bytes
            journal = Journal(settings.feedback, feedback.JOURNAL, limit=limit, forgets=False, durable=True)
            self.desk = FeedbackDesk(journal, store, settings.remembered_bytes, hook, lambda: engine.version)
        if settings.examples is None and settings.versions is None:
            return
        assert isinstance(engine, Engine), "of our own models alone"
        weights = weights_hash(engine.model)
        if settings.examples is not None:
            limit = settings.examples_bytes
            journal = Journal(settings.examples, JOURNAL, limit=limit, forgets=True, durable=False)
            self.examples = ExampleLog(journal, settings, weights, hook, registry)
        if settings.versions is not None:
            self.versions = VersionWatch(engine, settings.versions, settings.versions_seconds, weights, registry)

    def watch(self, ended: Ended) -> None:
        """Called with every ended answer."""
        for log in (self.examples, self.desk):
            if log is not None:
                log.watch(ended)

    def start(self) -> None:
        """Starts the threads beside the event loop."""
        if self.versions is not None:
            self.versions.start()

    def stop(self) -> None:
        """Stops the threads; writes all waiting entries."""
        for part in (self.versions, self.examples, self.desk):
            if part is not None:
                part.stop()
