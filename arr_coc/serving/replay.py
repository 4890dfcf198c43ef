"""Asks a log's examples again: the same weights give the same answers, and what differs is told."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..evaluation.prediction_loop import model_identity
from ..journal import read_journal
from ..learning.versions import CHECKPOINT, Versions, adapted_fetcher
from ..modeling.fetcher import RunningBackFetcher
from ..modeling.generation import Answer
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .answer_text import AnswerText
from .example import JOURNAL, Example, example_of, fetched_patches

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
