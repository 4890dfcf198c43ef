"""Stage: the scorer learns where to look, on pages as the trained encoder sees them.

A page is encoded once, and all questions about it are scored on the same features. What is relevant are the patches of
the answer and of what leads to it, as the boxes of the questions say.

Notation: P pages, Q questions, G side of the grid, N patches, L tokens of a question, D width of the language model.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from arr_coc.data.splits import Split
from arr_coc.modeling.scorers import FetchContext

from ..from_scratch.stage import ScratchStage, Task
from ..stages import STAGES, Run
from .pages import AskedPage, AskedPages, Sources

HELD_PAGES = 64
"""Latest encoded pages, some of which each step trains on again; a resumed training collects them anew."""
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
        again: earlier pages that each step trains on again: a page takes much longer to encode than to score.
    """

    name: ClassVar[str] = "relevance"
    needs_learner: ClassVar[bool] = False
    leaves_whole: ClassVar[bool] = False

    pages: Mapping[str, float] = field(default_factory=lambda: {"generated": 1.0})
    questions: int = 8
    worn: float = 0.3
    again: int = 3
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
        self._encoded: deque[tuple[AskedPage, FetchContext]] = deque(maxlen=HELD_PAGES)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.module.parameters()), self.stage.learning_rate)]

    def pages(self, start: int) -> AskedPages:
        return self._pages("train", start)

    def _pages(self, split: Split, start: int = 0) -> AskedPages:
        stage = self.stage
        sources = Sources(stage.pages, split, None, stage.worn)
        return AskedPages(sources, (stage.seed, 7, split != "train"), self.run, stage.questions, start=start)

    def losses(self, step: int, batch: AskedPage) -> dict[str, Tensor]:
        rng = np.random.default_rng((self.stage.seed, step))
        numbers = rng.permutation(len(self._encoded))[: self.stage.again]
        pages = [(batch, self._context(batch)), *(self._encoded[number] for number in numbers.tolist())]
        self._encoded.append(pages[0])
        losses = [
            page.relevance_loss(torch.stack([scorer(context) for scorer in self.scorers.values()]), self.weight)
            for page, context in pages
        ]
        return {"loss": torch.stack(losses).mean()}

    @torch.no_grad()
    def _context(self, page: AskedPage) -> FetchContext:
        grid = self.tower.encode_grid(page.pixels.to(self.run.device))
        assert self.tower.text_reader is not None, "pages are read"
        return page.context(grid, self.embed, self.tower.text_reader.spellings)

    @cached_property
    def _unseen(self) -> list[AskedPage]:
        pages = self._pages("validation")
        return [pages.batch(number) for number in range(EVALUATED_PAGES)]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Of each scorer, the recall of the answer's patches and of all relevant ones among those that are fetched, and
        how often the most relevant patch is one of the answer's."""
        self.module.eval()
        recalls: dict[str, list[float]] = {}
        for page in self._unseen:
            context = self._context(page)
            assert context.pieces is not None
            for name, scorer in self.scorers.items():
                scores = scorer(context)
                for what, recall in page.recall(scores, self.budget, context.pieces[:1]).items():
                    recalls.setdefault(f"{name}: {what}", []).extend(recall.tolist())
                first = page.answer.to(scores.device).gather(1, scores.argmax(1, keepdim=True))[:, 0]
                recalls.setdefault(f"{name}: first", []).extend(first[page.answer.any(1)].float().tolist())
        self.module.train()
        return {name: float(np.mean(values)) for name, values in recalls.items()}

    def finish(self, run: Run) -> None:
        run.learner["relevance"] = {"trained": torch.ones(1)}
