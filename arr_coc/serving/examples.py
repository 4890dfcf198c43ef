"""Examples: questions that a server was asked, with all that is needed to ask them again.

`Replay` asks the examples of a log again: the same weights give the same answers, and what differs is told. It needs no
package of the server's.

A hook sees everything that this log, or that of feedback, is about to keep, before it is written. It is a function of
an operator's own: from an `Example` or a `Feedback` it returns that, another with less in it (`dataclasses.replace`),
or None to keep nothing. Where it raises, nothing is kept.
"""

import base64
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..data.feedback import Feedback
from ..evaluation.prediction_loop import model_identity
from ..files import check_types
from ..journal import Entry, read_journal
from ..learning.versions import CHECKPOINT, Versions, adapted_fetcher
from ..modeling.allocators import FetchResult
from ..modeling.fetcher import RunningBackFetcher
from ..modeling.generation import Answer
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .answers import AnswerText

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
