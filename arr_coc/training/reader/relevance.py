"""Stage: the scorer learns where to look, on pages as the trained encoder sees them.

A page is encoded once, and all questions about it are scored on the same features. What is relevant are the patches of
the answer and of what leads to it, as the boxes of the questions say.

Notation: P pages, Q questions, G side of the grid, N patches, L tokens of a question, D width of the language model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from arr_coc.data.splits import Split

from ..from_scratch.stage import ScratchStage, Task
from ..stages import STAGES, Run
from .pages import AskedPage, AskedPages, Sources

EVALUATED_PAGES = 24
"""Held-out pages that a measurement asks about."""


@STAGES.register("relevance")
@dataclass(frozen=True)
class RelevanceStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        pages: how often each source comes up, see `Sources`; sources whose pages have no questions are of no use.
        questions: most questions about a page.
        worn: share of worn pages.
    """

    name: ClassVar[str] = "relevance"
    needs_learner: ClassVar[bool] = False
    leaves_whole: ClassVar[bool] = False

    pages: Mapping[str, float] = field(default_factory=lambda: {"generated": 1.0})
    questions: int = 8
    worn: float = 0.3
    learning_rate: float = 1e-3
    evaluate_every: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("worn")
        self.check_counts("questions")

    def task(self, run: Run) -> "RelevanceTask":
        return RelevanceTask(self, run)


class RelevanceTask(Task):
    """The scorers with weights; the encoder and the language model's embeddings stay as they are."""

    def __init__(self, stage: RelevanceStage, run: Run) -> None:
        self.stage, self.run = stage, run
        core = run.model.model
        self.tower = core.vision_tower.requires_grad_(False)
        embed = run.model.get_input_embeddings().requires_grad_(False)
        assert isinstance(embed, nn.Embedding)
        self.embed = embed
        self.budget = run.model.config.vision_tokens()[1]
        self.weight = run.model.config.relevance_positive_weight
        self.scorers = core.fetcher.scorers
        self.module = self.scorers

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.module.parameters()), self.stage.learning_rate)]

    def pages(self, start: int) -> AskedPages:
        return self._pages("train", start)

    def _pages(self, split: Split, start: int = 0) -> AskedPages:
        stage = self.stage
        sources = Sources(stage.pages, split, None, stage.worn)
        return AskedPages(sources, (stage.seed, 7, split != "train"), self.run, stage.questions, start=start)

    def losses(self, step: int, batch: AskedPage) -> dict[str, Tensor]:
        scores = torch.stack(list(self._scores(batch)[0].values()))
        return {"loss": batch.relevance_loss(scores, self.weight)}

    def _scores(self, page: AskedPage) -> tuple[dict[str, Tensor], Tensor]:
        """The scores [Q, N] of each scorer by name, and the wordpieces [1, N, 2, S] that were read."""
        with torch.no_grad():
            grid = self.tower.encode_grid(page.pixels.to(self.run.device))
            context = page.context(grid, self.embed)
        return {name: scorer(context) for name, scorer in self.scorers.items()}, grid["pieces"]

    @cached_property
    def _unseen(self) -> list[AskedPage]:
        pages = self._pages("validation")
        return [pages.batch(number) for number in range(EVALUATED_PAGES)]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Recall of each scorer: of the answer's patches and of all relevant ones, among those that are fetched."""
        self.module.eval()
        recalls: dict[str, list[float]] = {}
        for page in self._unseen:
            by_scorer, pieces = self._scores(page)
            for name, scores in by_scorer.items():
                for what, recall in page.recall(scores, self.budget, pieces).items():
                    recalls.setdefault(f"{name}: {what}", []).extend(recall.tolist())
        self.module.train()
        return {name: float(np.mean(values)) for name, values in recalls.items()}

    def finish(self, run: Run) -> None:
        run.learner["relevance"] = {"trained": torch.ones(1)}
