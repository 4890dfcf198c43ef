"""A server's logs of its use (examples, feedback), and the watch over its scorer's versions.

`ExampleLog` keeps a sample of all answers, and all failed or improbable ones. Answers never wait for it: a thread
writes the entries; if it is too slow, entries are dropped and counted. `FeedbackDesk` matches feedback with an answer
and keeps it. `VersionWatch` makes the engine fetch with the version of the scorer that is in use.
"""

import asyncio
import logging
import random
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from pydantic import Field

from ..data.feedback import JOURNAL as FEEDBACK
from ..data.feedback import Feedback
from ..data.records import boxes_of
from ..evaluation.prediction_loop import weights_hash
from ..files import read_json
from ..journal import Journal
from ..learning.versions import CHECKPOINT, DECISION, Versions, adapted_fetcher
from ..modeling.fetcher import FetchChoices, RunningBackFetcher
from .encodings import EncodingStore, HeldEncoding
from .engine import Engine
from .examples import JOURNAL, Hook, LoggedExample, fetched_patches, load_hook
from .metrics import Metrics
from .protocol import Strict
from .question_queue import FAILED, Ended, QuestionQueue
from .settings import UseSettings

logger = logging.getLogger(__name__)

_WAITING = 64  # the most examples that wait to be written


class ExampleLog:
    """Keeps examples in a journal, after the hook; `settings` and numbers drawn from 0 to 1 select them. `weights`:
    SHA-256 of the checkpoint's files."""

    def __init__(
        self, folder: Path, settings: UseSettings, weights: str, hook: Hook, registry: CollectorRegistry
    ) -> None:
        self.settings, self.weights, self.hook = settings, weights, hook
        self.journal = Journal(folder, JOURNAL, limit=settings.examples_bytes, forgets=True, durable=False)
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


_ID = "chatcmpl-"


class FeedbackRequest(Strict):
    """The body of /v1/feedback: about the answer with an `id`, or about an `image` and a `question`. `answer` is the
    right answer; `boxes` are the places of it and of its label, px of the image as sent."""

    right: bool
    id: str | None = None
    image: str | None = None
    question: str | None = None
    answer: str | None = Field(None, max_length=10_000)
    boxes: list[list[float]] = Field(default_factory=list, max_length=100)


class UnknownAnswer(ValueError):
    """No recent answer has this id."""


About = tuple[Feedback, tuple[int, int]]  # an answer that feedback is about, and the (height, width) of its image, px


class FeedbackDesk:
    """Accepts feedback, which is on disk when it is acknowledged, and remembers the latest answers for it.

    Args:
        store: encodes images that are sent with feedback.
        hook: see `examples`.
    """

    def __init__(
        self, folder: Path, settings: UseSettings, engine: QuestionQueue, store: EncodingStore, hook: Hook
    ) -> None:
        self.engine, self.store, self.hook = engine, store, hook
        self.journal = Journal(folder, FEEDBACK, limit=settings.feedback_bytes, forgets=False, durable=True)
        self.limit, self.bytes = settings.remembered_bytes, 0  # of images whose answers are remembered
        self._remembered: OrderedDict[str, About] = OrderedDict()

    def watch(self, ended: Ended) -> None:
        """Remembers an answer about one image; called by the event loop."""
        question = ended.ticket.question
        if ended.finish not in ("stop", "length") or ended.answer is None or len(question.images) != 1:
            return
        if len(question.images[0].contents) != 1:  # several images share their base tokens
            return
        image, said = question.images[0], ended.answer[0] or None
        own = {"said": said, "history": question.history, "version": ended.ticket.version}
        self._remembered[_ID + ended.number] = _about(image, question.text, **own)
        self.bytes += len(image.contents[0])
        while self.bytes > self.limit:
            _, oldest = self._remembered.popitem(last=False)
            self.bytes -= len(oldest[0].image)

    async def take(self, request: FeedbackRequest) -> None:
        """Keeps feedback; it is on disk when this returns.

        Raises:
            UnknownAnswer: no recent answer has the id.
            ValueError: the feedback names no answer, or is invalid.
            JournalFull, OSError: the feedback cannot be kept.
        """
        about, (height, width) = await self._find(request)
        answer = None if request.answer is None else request.answer.strip()
        if answer == "" or (request.right and not (answer or about.said)):
            raise ValueError("answer: expected one that is not blank; got none")
        if request.right and about.said and answer not in (None, about.said):
            raise ValueError("answer: expected none beside an answer that is right; got another one")
        boxes = boxes_of(request.boxes)
        for x0, y0, x1, y1 in boxes:
            if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
                raise ValueError(f"boxes: expected boxes inside {width} x {height} px; got {[x0, y0, x1, y1]}")
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        feedback = replace(about, right=request.right, answer=answer, boxes=boxes, time=time)
        await asyncio.to_thread(self._keep, feedback)

    def _keep(self, feedback: Feedback) -> None:
        redacted = self.hook(feedback)
        if redacted is not None:
            self.journal.append(redacted.content())

    def stop(self) -> None:
        """Closes the journal."""
        self.journal.close()

    async def _find(self, request: FeedbackRequest) -> About:
        asked = request.image is not None and request.question is not None
        if (request.id is None) is not asked:
            raise ValueError("id: expected the id of an answer, or image and question; got both, or neither")
        if request.id is not None:
            if request.id not in self._remembered:
                raise UnknownAnswer("id: expected an answer that is remembered; got another: send image and question")
            return self._remembered[request.id]
        assert request.image is not None and request.question is not None
        if not request.question.strip():
            raise ValueError("question: expected one; got an empty one")
        return _about(await self.store.get(request.image), request.question, version=self.engine.version)


def _about(image: HeldEncoding, question: str, **others: Any) -> About:
    """What feedback on an answer begins with; `others`: fields of `Feedback`."""
    size = image.seen[0]["height"], image.seen[0]["width"]
    return Feedback(image.contents[0], question, right=False, **others), size


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
            self.desk = FeedbackDesk(settings.feedback, settings, engine, store, hook)
        if settings.examples is None and settings.versions is None:
            return
        assert isinstance(engine, Engine), "of our own models alone"
        weights = weights_hash(engine.model)
        if settings.examples is not None:
            self.examples = ExampleLog(settings.examples, settings, weights, hook, registry)
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
