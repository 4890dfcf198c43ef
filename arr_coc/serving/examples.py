"""Examples: questions to a server, with everything that is needed to ask them again.

`Replay` asks the examples of a log again and reports differences: the same weights give the same answers. It needs
none of the server's packages.

A hook is a function of the operator. It gets every `LoggedExample` and `Feedback` before it is written to a log. It
returns it, a copy with less content (`dataclasses.replace`), or None to drop it. If the hook raises, nothing is kept.
"""

import base64
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..data.feedback import Feedback
from ..evaluation.prediction_loop import weights_hash
from ..files import check_types
from ..journal import JournalEntry, read_journal
from ..learning.versions import CHECKPOINT, Versions, adapted_fetcher
from ..modeling.fetcher import FetchResult, RunningBackFetcher
from ..modeling.generation import Answer
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .answers import AnswerText

JOURNAL = "examples"  # the journal's name, with which the names of its files begin


@dataclass(frozen=True)
class LoggedExample:
    """A question and its answer."""

    id: str  # id of the completion
    time: str  # time of the end in ISO 8601
    why: str  # the reason to keep it: "sample", "failure" or "unsure"
    images: tuple[bytes, ...]  # the image files
    question: str
    history: tuple[tuple[str, str], ...]  # earlier questions and answers
    # as in the request, up to `stops`, and `num_passes`
    strategy: str | None
    budget: int | str | None
    allocator: str | None
    max_tokens: int
    temperature: float
    top_p: float
    stops: tuple[str, ...]
    finish: str  # the kind of end, see `question.Ended`
    answer: str | None  # None without an answer, as `probability`
    probability: float | None
    # the fetched patches of each image, ascending; None if the answer ended before
    fetched: tuple[tuple[int, ...], ...] | None
    weights: str  # SHA-256 of the checkpoint's files
    version: str  # version of the scorer
    redacted: bool = False  # whether a hook changed it; it then cannot be reproduced
    num_passes: int | str | None = None

    def content(self) -> dict[str, Any]:
        """The content of its journal entry."""
        fields: dict[str, Any] = {**vars(self), "images": [base64.b64encode(image).decode() for image in self.images]}
        return fields


def example_of(entry: JournalEntry) -> LoggedExample:
    """The example in an entry. Raises ValueError: the entry is not an example; the message names its place."""
    try:
        content = dict(entry.content)
        content["images"] = tuple(base64.b64decode(image, validate=True) for image in content["images"])
        content["history"] = tuple((asked, said) for asked, said in content["history"])
        if content["fetched"] is not None:
            content["fetched"] = tuple(map(tuple, content["fetched"]))
        content["stops"] = tuple(content["stops"])
        example = LoggedExample(**content)
        check_types(example)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{entry.where}: expected an example; got {error}") from error
    return example


def fetched_patches(fetch: FetchResult) -> tuple[tuple[int, ...], ...]:
    """The fetched patches of each image of a prompt, ascending."""
    counts = fetch.counts.tolist()
    return tuple(tuple(row[:count]) for row, count in zip(fetch.indices.tolist(), counts, strict=True))


Kept = TypeVar("Kept", LoggedExample, Feedback)
Hook = Callable[[Kept], Kept | None]


def load_hook(name: str | None) -> Hook:
    """Loads the function "MODULE:FUNCTION"; None: a function that changes nothing.

    Raises:
        ValueError: no such function.
    """
    if name is None:
        return lambda kept: kept
    try:
        hook = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"redact: expected MODULE:FUNCTION; got {name!r} ({error})") from error
    if not callable(hook):
        raise ValueError(f"redact: expected MODULE:FUNCTION; got {name!r}, which is not a function")
    return hook


SAME, ANSWER, ALLOCATION, SKIPPED = "same", "another answer", "other patches", "not asked"


@dataclass(frozen=True)
class Replayed:
    """The result of asking an example again."""

    example: LoggedExample
    outcome: str  # `SAME`, `ANSWER`, `ALLOCATION` (the same answer from other patches) or `SKIPPED`
    answer: str | None = None  # the new answer
    note: str = ""  # why it was not asked, or a possible reason for a difference


class Replay:
    """Asks examples again, each with its version of the scorer; None: only the checkpoint's scorer."""

    def __init__(self, model: ArrCocForConditionalGeneration, versions: Versions | None = None) -> None:
        self.model, self.versions = model, versions
        self.weights = weights_hash(model)
        self._fetchers = {CHECKPOINT: model.model.fetcher}

    def run(self, folder: Path) -> Iterator[Replayed]:
        """Asks every example of a journal again, the oldest first. Raises ValueError: no such journal, or a damaged
        entry."""
        for entry in read_journal(folder, JOURNAL):
            yield self.replay(example_of(entry))

    def replay(self, example: LoggedExample) -> Replayed:
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
        # An answer that was interrupted is a prefix of the new answer.
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

    def _ask(self, example: LoggedExample, fetcher: RunningBackFetcher) -> Answer:
        core = self.model.model
        own, core.fetcher = core.fetcher, fetcher
        choices = {name: getattr(example, name) for name in ("strategy", "budget", "allocator", "num_passes")}
        options: dict[str, Any] = {"return_fetch": True, "max_new_tokens": example.max_tokens, "do_sample": False}
        options["history"] = list(example.history)
        try:
            (answer,) = self.model.generate([list(example.images)], [example.question], **choices, **options)
        finally:
            core.fetcher = own
        return answer
