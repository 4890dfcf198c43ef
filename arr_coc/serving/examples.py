"""Examples: questions that a server was asked, with all that is needed to ask them again.

`ExampleLog` keeps a sample of all answers, and all that failed or are improbable. Answers never wait for it: a thread
writes, and what it cannot keep up with is dropped and counted. `Replay` asks a log's examples again: the same weights
give the same answers, and what differs is told.

A hook sees everything that this log, or that of feedback, is about to keep, before it is written. It is a function of
an operator's own: from an `Example` or a `Feedback` it returns that, another with less in it (`dataclasses.replace`),
or None to keep nothing. Where it raises, nothing is kept.
"""

import base64
import importlib
import logging
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter

from ..data.feedback import Feedback
from ..evaluation.prediction_loop import model_identity
from ..files import check_types
from ..journal import Entry, Journal, read_journal
from ..learning.versions import CHECKPOINT, Versions, adapted_fetcher
from ..modeling.allocators import FetchResult
from ..modeling.fetcher import RunningBackFetcher
from ..modeling.generation import Answer
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .answers import AnswerText
from .question import FAILED, Ended
from .settings import UseSettings

JOURNAL = "examples"
"""The journal's name, which its files begin with."""


@dataclass(frozen=True)
class Example:
    """One answer and how it came about.

    Attributes:
        id: of the completion.
        time: in ISO 8601.
        why: it is kept: "sample", "failure" or "unsure".
        images: encoded content of each.
        question: the text.
        history: earlier questions and answers.
        strategy, budget, allocator: as they were asked for.
        max_tokens, temperature, top_p, stops: likewise.
        finish: how it ended, see `question.Ended`.
        answer, probability: None where there is none.
        fetched: of each image the patches, ascending; None where none were fetched yet.
        weights: SHA-256 of the checkpoint's files.
        version: of the scorer.
        redacted: whether a hook changed it: it cannot be reproduced then.
        num_passes: as it was asked for.
    """

    id: str
    time: str
    why: str
    images: tuple[bytes, ...]
    question: str
    history: tuple[tuple[str, str], ...]
    strategy: str | None
    budget: int | str | None
    allocator: str | None
    max_tokens: int
    temperature: float
    top_p: float
    stops: tuple[str, ...]
    finish: str
    answer: str | None
    probability: float | None
    fetched: tuple[tuple[int, ...], ...] | None
    weights: str
    version: str
    redacted: bool = False
    num_passes: int | str | None = None

    def content(self) -> dict[str, Any]:
        """The entry of a journal."""
        fields: dict[str, Any] = {**vars(self), "images": [base64.b64encode(image).decode() for image in self.images]}
        return fields


def example_of(entry: Entry) -> Example:
    """The example that an entry holds.

    Raises:
        ValueError: it holds none; the message says where it stands.
    """
    try:
        content = dict(entry.content)
        content["images"] = tuple(base64.b64decode(image, validate=True) for image in content["images"])
        content["history"] = tuple((asked, said) for asked, said in content["history"])
        content["fetched"] = _numbers(content["fetched"])
        content["stops"] = tuple(content["stops"])
        example = Example(**content)
        check_types(example)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{entry.where}: expected an example; got {error}") from error
    return example


def _numbers(fetched: Any) -> tuple[tuple[int, ...], ...] | None:
    return None if fetched is None else tuple(tuple(patches) for patches in fetched)


def fetched_patches(fetch: FetchResult) -> tuple[tuple[int, ...], ...]:
    """Of each image of a prompt the patches that were fetched, ascending."""
    counts = fetch.counts.tolist()
    return tuple(tuple(row[:count]) for row, count in zip(fetch.indices.tolist(), counts, strict=True))


Kept = TypeVar("Kept", Example, Feedback)
Hook = Callable[[Kept], Kept | None]


def load_hook(name: str | None) -> Hook:
    """The function called "MODULE:FUNCTION"; None: one that changes nothing.

    Raises:
        ValueError: there is no such function.
    """
    if name is None:
        return lambda kept: kept
    module, _, function = name.partition(":")
    try:
        hook = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"redact: expected MODULE:FUNCTION; got {name!r} ({error})") from error
    if not callable(hook):
        raise ValueError(f"redact: expected MODULE:FUNCTION; got {name!r}, which is no function")
    return hook


logger = logging.getLogger(__name__)

_WAITING = 64
"""Examples that wait to be written, at most."""


class ExampleLog:
    """Keeps examples in a journal.

    Args:
        journal: where to.
        settings: which answers.
        weights: SHA-256 of the checkpoint's files.
        hook: sees what is kept, before it is written.
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


SAME, ANSWER, ALLOCATION, SKIPPED = "same", "another answer", "other patches", "not asked"


@dataclass(frozen=True)
class Replayed:
    """What came of an example.

    Attributes:
        example: that was kept.
        outcome: `SAME`, `ANSWER`, `ALLOCATION` (the same answer from other patches) or `SKIPPED`.
        answer: what the model says now.
        note: why it was not asked, or what may explain a difference.
    """

    example: Example
    outcome: str
    answer: str | None = None
    note: str = ""


class Replay:
    """Asks examples again.

    Args:
        model: with its processor; while it answers its fetcher is that of the example's version.
        versions: where versions of the scorer are; None: only the checkpoint's own is known.
    """

    def __init__(self, model: ArrCocForConditionalGeneration, versions: Versions | None = None) -> None:
        self.model, self.versions = model, versions
        self.weights = model_identity(model)["weights_sha256"]
        self._fetchers = {CHECKPOINT: model.model.fetcher}

    def run(self, folder: Path) -> Iterator[Replayed]:
        """Every example of a journal, the oldest first.

        Raises:
            ValueError: no such journal, or a damaged entry.
        """
        for entry in read_journal(folder, JOURNAL):
            yield self.replay(example_of(entry))

    def replay(self, example: Example) -> Replayed:
        """Asks one example again."""
        if example.redacted or example.temperature > 0:
            return Replayed(example, SKIPPED, note="redacted" if example.redacted else "its tokens were drawn")
        try:
            answer = self._ask(example, self._fetcher(example.version))
        except ValueError as error:
            return Replayed(example, SKIPPED, note=str(error))
        said = AnswerText(self.model.processor.tokenizer, example.stops).cut(answer.text)
        whole = example.finish in ("stop", "length")
        notes = [] if example.weights == self.weights else ["other weights"]
        notes += [] if whole else [f"then it was {example.finish}"]
        # An answer that was on its way when it failed says how this one begins.
        same = said == example.answer if whole else said.startswith(example.answer or "")
        outcome = SAME if example.fetched in (None, fetched_patches(answer.fetch)) else ALLOCATION
        return Replayed(example, outcome if same else ANSWER, said, ", ".join(notes))

    def _fetcher(self, version: str) -> RunningBackFetcher:
        if version not in self._fetchers:
            if self.versions is None:
                raise ValueError(f"version: expected --versions, where {version} is; got none")
            adapter = self.versions.adapter(version)
            self._fetchers[version] = adapted_fetcher(self._fetchers[CHECKPOINT], adapter)
        return self._fetchers[version]

    def _ask(self, example: Example, fetcher: RunningBackFetcher) -> Answer:
        core = self.model.model
        own, core.fetcher = core.fetcher, fetcher
        try:
            (answer,) = self.model.generate(
                [list(example.images)],
                [example.question],
                history=list(example.history),
                return_fetch=True,
                max_new_tokens=example.max_tokens,
                do_sample=False,
                strategy=example.strategy,
                budget=example.budget,
                allocator=example.allocator,
                num_passes=example.num_passes,
            )
        finally:
            core.fetcher = own
        return answer
