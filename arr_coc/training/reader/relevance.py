"""Stage: the scorers learn which patches a question asks about.

What is relevant are the patches of the answer and of what leads to it, as the boxes of the questions show. Scorers that
read text alone learn from pages that are never drawn (source "laid_out").

Notation: Q questions of a page, N patches.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from arr_coc.pages.page import Question
from arr_coc.pages.splits import Split

from ..loop import ScratchStage, Task
from ..stages import STAGES, Run
from .pages import AskedPage, AskedPages, PageReader, Sources

EVALUATED_PAGES = 100
"""Held-out pages that a measurement asks about."""


@dataclass(frozen=True)
class AskingStage(ScratchStage):
    """Settings of the stages that learn from questions about pages.

    Attributes:
        pages: how often each source comes up, see `Sources`; sources whose pages have no questions are of no use.
        pages_per_step: pages of a step.
        questions: most questions about a page.
        worn: share of worn pages among those that are drawn.
        mistakes: share of words that are read wrongly on pages that are not drawn, see `AskedPages`.
        real_folder: of real pages as text, see `arr_coc.data.real_pages`.
        contrast, elsewhere: shares of pages whose questions have answers of one type, and of questions about other
            pages, see `AskedPages`.
    """

    leaves_whole: ClassVar[bool] = False

    pages: Mapping[str, float] = field(default_factory=lambda: {"laid_out": 1.0})
    pages_per_step: int = 4
    questions: int = 8
    worn: float = 0.3
    mistakes: float = 0.1
    real_folder: str | None = None
    contrast: float = 0.0
    elsewhere: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("worn", "mistakes", "contrast", "elsewhere")
        self.check_counts("pages_per_step", "questions")


class AskingTask(Task):
    """What the tasks of these stages share: pages with the questions that they ask."""

    stage: AskingStage
    run: Run
    salt: ClassVar[tuple[int, ...]] = ()
    """Tells the pages of a task from those of others with the stage's seed."""

    @abstractmethod
    def asks(self, question: Question) -> bool:
        """Whether a question is asked."""

    def pages(self, start: int) -> AskedPages:
        return self.asked(self.sources("train"), start)

    def sources(self, split: Split) -> Sources:
        """The stage's sources of pages."""
        folder = None if self.stage.real_folder is None else self.run.root / self.stage.real_folder
        return Sources(self.stage.pages, split, None, self.stage.worn, folder)

    def asked(self, sources: Sources, start: int = 0) -> AskedPages:
        """Pages of the sources with questions, from step `start` on."""
        stage, trains = self.stage, sources.split == "train"
        return AskedPages(
            sources,
            (stage.seed, *self.salt, not trains),
            self.run,
            pages=stage.pages_per_step,
            questions=stage.questions,
            wanted=self.asks,
            mistakes=stage.mistakes,
            start=start,
            contrast=stage.contrast * trains,
            elsewhere=stage.elsewhere * trains,
        )


@STAGES.register("relevance")
@dataclass(frozen=True)
class RelevanceStage(AskingStage):
    """Settings of the stage.

    Attributes:
        word_dropout: share of a question's tokens that the scorers do not see, against learning wordings by heart.
    """

    name: ClassVar[str] = "relevance"
    writes_out: ClassVar[bool] = False

    mistakes: float = 0.15
    word_dropout: float = 0.0
    learning_rate: float = 1.5e-3
    warmup: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("word_dropout")

    def task(self, run: Run) -> "RelevanceTask":
        return RelevanceTask(self, run)


class RelevanceTask(AskingTask):
    """The scorers with weights; the encoder and the language model's embeddings stay as they are."""

    stage: RelevanceStage
    salt = (7,)

    def __init__(self, stage: RelevanceStage, run: Run) -> None:
        self.stage, self.run = stage, run
        self.reading = PageReader(run)
        self.reading.tower.requires_grad_(False)
        self.reading.embed.requires_grad_(False)
        self.weight = run.model.config.relevance_positive_weight
        self.scorers = self.module = run.model.model.fetcher.scorers

    def asks(self, question: Question) -> bool:
        """Where it is known where the answer stands, or that it stands nowhere."""
        return bool(question.boxes) or question.kind == "absent"

    def losses(self, step: int, batch: Sequence[AskedPage]) -> dict[str, Tensor]:
        losses, random = [], torch.Generator().manual_seed(hash((self.stage.seed, step)) % 2**32)
        for page in batch:
            context = self.reading.context(page)
            seen = torch.rand(page.mask.shape, generator=random) >= self.stage.word_dropout
            seen = (seen | ~(seen & page.mask).any(1, keepdim=True)).to(context.query_mask.device)
            context = replace(context, query_mask=context.query_mask & seen)
            losses += [page.relevance_loss(scorer(context), self.weight) for scorer in self.scorers.values()]
        return {"loss": torch.stack(losses).mean()}

    @cached_property
    def _unseen(self) -> dict[str, list[AskedPage]]:
        unseen = {}
        for name, source in self.sources("validation").each().items():
            pages = self.asked(source)
            steps = max(1, EVALUATED_PAGES // len(self.stage.pages) // pages.pages)
            unseen[name] = [page for number in range(steps) for page in pages.batch(number)]
        return unseen

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Means of `AskedPage.found` for each scorer, and its loss, by source."""
        self.module.eval()
        found: dict[str, list[float]] = {}
        for source, pages in self._unseen.items():
            for page in pages:
                context = self.reading.context(page)
                for name, scorer in self.scorers.items():
                    scores = scorer(context)
                    for what, shares in page.found(scores).items():
                        found.setdefault(f"{name}, {source}: {what}", []).extend(shares.tolist())
                    loss = float(page.relevance_loss(scores, self.weight))
                    found.setdefault(f"{name}, {source}: loss", []).append(loss)
        self.module.train()
        return {name: float(np.mean(values)) for name, values in found.items()}
