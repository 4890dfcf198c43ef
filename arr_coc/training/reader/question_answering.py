"""Stage: the language model learns to answer about pages that are given as perfect tokens (`targets.Sketch`).

A LoRA adapter and the embeddings of places are all that is trained. The questions about a page share its tokens: each
sees the page and itself, as if it were asked alone.

Notation: P pages, S tokens of a page and the questions about it, D width of the language model, V its vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.data.domains.page import Question
from arr_coc.data.splits import Split
from arr_coc.modeling.bridges import WordpieceBridge
from arr_coc.modeling.configuration_arr_coc import COMPRESSION, ArrCocVisionConfig
from arr_coc.modeling.wordpieces import Places, line_breaks

from ..from_scratch.stage import Batches, ScratchStage, Task
from ..stages import STAGES, Run
from .language_model import AdaptedModel, Again, Prompting, QuestionBatch, Row, stacked
from .pages import Sources
from .targets import Sketch, Wordpieces, base_mixture, fetched, foremost, sketch, slipped

READS = ("both", "fetched", "base")
"""What of a page the language model is given."""

PLACES_STD = 0.02
"""Spread of the embeddings of places before training."""


def check_reads(shares: Mapping[str, float]) -> None:
    """Raises ValueError where shares are of something else than `READS`."""
    if unknown := sorted(set(shares) - set(READS)):
        raise ValueError(f"reads: expected shares of {', '.join(READS)}; got {unknown}")


@STAGES.register("question_answering")
@dataclass(frozen=True)
class QuestionAnsweringStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        pages_per_step: pages of a step.
        questions: most questions about a page.
        kinds: of questions that are asked, see `Question.kind`; none: all.
        pages: how often each source comes up, see `Sources`.
        budget: most fetched wordpieces of a page.
        reads: how often the pages of a step come with both kinds of token, fetched ones alone and base tokens alone.
        slips: share of wordpieces that are read wrongly, at most; drawn for each page from 0 on.
        rank: of the LoRA adapter.
        places_rate: learning rate of the embeddings of places.
        evaluated: held-out questions that a measurement asks.
    """

    name: ClassVar[str] = "question_answering"
    needs_learner: ClassVar[bool] = False
    writes_out: ClassVar[bool] = False
    leaves_whole: ClassVar[bool] = False

    pages_per_step: int = 4
    questions: int = 8
    kinds: Sequence[str] = ()
    pages: Mapping[str, float] = field(default_factory=lambda: {"laid_out": 1.0})
    budget: int = 273
    reads: Mapping[str, float] = field(default_factory=lambda: {"both": 0.4, "fetched": 0.5, "base": 0.1})
    slips: float = 0.1
    rank: int = 32
    learning_rate: float = 6e-4
    places_rate: float = 2e-3
    weight_decay: float = 0.0
    warmup: int = 20
    evaluated: int = 160

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("pages_per_step", "questions", "budget", "rank", "evaluated")
        check_reads(self.reads)

    def task(self, run: Run) -> "QuestionAnswering":
        return QuestionAnswering(self, run)


class AskedBatches(Batches[QuestionBatch]):
    """Endless batches, a function of (seed, step)."""

    def __init__(
        self, stage: QuestionAnsweringStage, config: ArrCocVisionConfig, cut: Wordpieces, prompting: Prompting, *,
        split: Split, reads: Mapping[str, float], start: int = 0,
    ) -> None:  # fmt: skip
        self.stage, self.config, self.cut, self.prompting = stage, config, cut, prompting
        self.reads, self.start, self.vocabulary = reads, start, len(prompting.tokenizer)
        self.sources, self.seed = Sources(stage.pages, split, None, 0.0), (stage.seed, split != "train")

    def batch(self, step: int) -> QuestionBatch:
        rng = np.random.default_rng((*self.seed, step))
        reads = str(rng.choice(list(self.reads), p=np.array(list(self.reads.values())) / sum(self.reads.values())))
        return stacked([self._page(rng, reads) for _ in range(self.stage.pages_per_step)])  # alike, so little padding

    def _page(self, rng: np.random.Generator, reads: str) -> tuple[Row, list[tuple[int, int, float]], list[str]]:
        """A page with its questions, what its base tokens hold, and the kinds of question."""
        while True:
            page = self.sources.page(rng)
            asked = [q for q in self._order(rng, page.questions) if self._asks(q)]
            if asked:
                break
        asked = asked[: self.stage.questions]
        whole = sketch(page, asked, self.config.grid_size, self.cut)
        whole = slipped(rng, whole, self.stage.slips * rng.random(), self.vocabulary)
        row, held = Row(), []
        row.add(self.prompting.before)
        if reads != "fetched":
            held = self._add_base(row, whole)
        if reads == "base":
            row.ask(asked, self.prompting)
            return row, held, [question.kind for question in asked]
        words = [self.prompting.ids(f" {question.text}") for question in asked]
        last = [foremost(rng, whole, number, own) for number, own in enumerate(words)]
        missed = (whole.near & ~np.stack([own for own, _ in last], 1)).any(1)
        shown, start = fetched(rng, whole, missed, self.stage.budget), len(row.ids)
        at = start + shown.cumsum() - 1  # of each wordpiece that is shown
        row.add_sketch(whole.only(shown))
        again = [Again(whole.only(own), at[own & shown].tolist(), predicted[own]) for own, predicted in last]
        row.ask(asked, self.prompting, again)
        return row, held, [question.kind for question in asked]

    def _asks(self, question: Question) -> bool:
        return self.prompting.short(question) and (not self.stage.kinds or question.kind in self.stage.kinds)

    def _order(self, rng: np.random.Generator, questions: Sequence[Question]) -> list[Question]:
        return [questions[int(number)] for number in rng.permutation(len(questions))]

    def _add_base(self, row: Row, page: Sketch) -> list[tuple[int, int, float]]:
        """Adds a token for each cell; returns the column of a token in the row, a wordpiece and its weight, of all."""
        side, start = page.side // COMPRESSION, len(row.ids)
        at = np.arange(side) * COMPRESSION + COMPRESSION // 2
        half_rows, columns = np.repeat(2 * at, side), np.tile(at, side)
        row.add([0] * side**2, half_rows=half_rows.tolist(), columns=columns.tolist(), kind="base")
        cells, weights = base_mixture(page)
        return list(zip((start + cells).tolist(), page.pieces.tolist(), weights.tolist(), strict=True))


class QuestionAnswering(Task):
    """The language model with a LoRA adapter, and the embeddings of places."""

    def __init__(self, stage: QuestionAnsweringStage, run: Run) -> None:
        self.stage, self.config = stage, run.model.config.vision_config
        self.cut, self.prompting = Wordpieces(run.processor.tokenizer), Prompting(run.processor.tokenizer)
        self.language = AdaptedModel(run, stage.rank, torch.bfloat16 if stage.bf16 else torch.float32)
        self.places = Places(self.config.grid_size, run.model.config.text_config.hidden_size)
        for each in (self.places.rows, self.places.columns):
            nn.init.normal_(each.weight, std=PLACES_STD)
        with torch.no_grad():  # from zero they would have no effect for hundreds of steps
            for part, like in ((self.places.line_break, "\n"), (self.places.mark, " answer")):
                token = torch.tensor(self.prompting.ids(like)[0], device=run.device)
                part.copy_(self.language.table(token) / 2)
        if "places" in run.learner:
            self.places.load_state_dict(run.learner["places"])
        self.module = nn.ModuleDict({"adapter": self.language.adapter, "places": self.places}).to(run.device)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [
            (list(self.language.adapter.parameters()), self.stage.learning_rate),
            (list(self.places.parameters()), self.stage.places_rate),
        ]

    def _batches(self, split: Split, reads: Mapping[str, float], start: int = 0) -> AskedBatches:
        return AskedBatches(self.stage, self.config, self.cut, self.prompting, split=split, reads=reads, start=start)

    def pages(self, start: int) -> AskedBatches:
        return self._batches("train", self.stage.reads, start)

    def losses(self, step: int, batch: QuestionBatch) -> dict[str, Tensor]:
        logits, targets, _ = self.language.answers(self.embedded(batch), batch)
        return {"loss": F.cross_entropy(logits.float(), targets)}

    def embedded(self, batch: QuestionBatch) -> Tensor:
        """[P, S, D] float32."""
        table = self.language.table
        with torch.no_grad():
            rows = table(batch.ids).float() * ~batch.base[..., None]
            held = table(batch.held).float() * batch.weights[:, None]
            rows = rows.flatten(0, 1).index_add(0, batch.cells, held).view_as(rows)
        side = self.config.grid_size
        first = batch.fetched & ~F.pad(batch.fetched, (1, 0))[:, :-1]
        breaks = batch.fetched & (first | line_breaks(batch.half_rows, batch.columns))
        placed = self.places(batch.half_rows, batch.columns, side, breaks, batch.relevance)
        return rows + placed * (batch.fetched | batch.base)[..., None]

    @cached_property
    def _unseen(self) -> dict[str, list[QuestionBatch]]:
        sets: dict[str, list[QuestionBatch]] = {}
        for reads in self.stage.reads:
            batches, questions = self._batches("validation", {reads: 1.0}), 0
            sets[reads] = []
            while questions < self.stage.evaluated:
                sets[reads].append(batches.batch(len(sets[reads])))
                questions += len(sets[reads][-1].kinds)
        return sets

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Share of answers of which every token is the most probable one, by what is read and kind of question."""
        self.language.model.eval()
        scores: dict[str, float] = {}
        for reads, batches in self._unseen.items():
            asked = [(batch, self.language.exact(self.embedded(batch), batch)) for batch in batches]
            scores |= by_kind(reads, [pair for batch, right in asked for pair in zip(batch.kinds, right, strict=True)])
        self.language.model.train()
        return scores

    def finish(self, run: Run) -> None:
        self.language.leave(run)
        run.learner["places"] = self.places.state_dict()
        if isinstance(run.model.model.bridge, WordpieceBridge):
            run.model.model.bridge.places.load_state_dict(self.places.state_dict())


def by_kind(reads: str, answers: Sequence[tuple[str, bool]]) -> dict[str, float]:
    """The share of right answers, by what is read and by kind of question."""
    right: dict[str, list[bool]] = {}
    for kind, hit in answers:
        right.setdefault(f"{reads}, {kind}", []).append(hit)
    shares = {name: float(np.mean(hits)) for name, hits in sorted(right.items())}
    return {reads: float(np.mean([hit for _, hit in answers])), **shares}
