"""Stage: everything behind the grid encoder learns to answer questions about rendered pages.

A page is encoded once, and the questions about it share its fetched tokens: the patches with the highest relevance for
any of them.

Notation: Q questions of a page, N patches, G side of their grid, K fetched ones, M base tokens, D width of the language
model, S tokens of a page and the questions about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.data.splits import Split
from arr_coc.modeling.bridges import WordpieceBridge
from arr_coc.modeling.wordpieces import FOREMOST

from ..from_scratch.stage import Batches, ScratchStage, Task
from ..stages import STAGES, Run
from .language_model import AdaptedModel, Again, Prompting, QuestionBatch, Row, stacked
from .pages import AskedPage, AskedPages, Sources
from .question_answering import by_kind, check_reads

WEIGHTS = {"answer": 1.0, "relevance": 1.0}
"""Of the losses in their sum."""
EVALUATED_PAGES = 16
"""Held-out pages that a measurement asks about, for each kind of reading."""


@STAGES.register("end_to_end")
@dataclass(frozen=True)
class EndToEndStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        pages: how often each source comes up, see `Sources`.
        pages_per_step: pages of a step.
        questions: most questions about a page.
        worn: share of worn pages.
        reads: how often the language model is given both kinds of token, fetched ones alone and base tokens alone.
        oracle: share of pages whose relevant patches are fetched whatever the scorer says.
        rank: of a new LoRA adapter.
        learning_rate: of compressor, semantic encoder, bridge and scorers.
        adapter_rate: of the LoRA adapter.
        encoder_rate: of the grid encoder behind its stem; 0: it stays as it is, which takes half the time.
    """

    name: ClassVar[str] = "end_to_end"
    needs_learner: ClassVar[bool] = False
    writes_out: ClassVar[bool] = False
    leaves_whole: ClassVar[bool] = True

    pages: Mapping[str, float] = field(default_factory=lambda: {"generated": 1.0})
    pages_per_step: int = 2
    questions: int = 8
    worn: float = 0.3
    reads: Mapping[str, float] = field(default_factory=lambda: {"both": 0.6, "fetched": 0.3, "base": 0.1})
    oracle: float = 0.5
    rank: int = 12
    learning_rate: float = 5e-4
    adapter_rate: float = 2e-4
    encoder_rate: float = 0.0
    warmup: int = 20
    evaluate_every: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("worn", "oracle")
        self.check_counts("pages_per_step", "questions", "rank")
        check_reads(self.reads)

    def task(self, run: Run) -> "EndToEnd":
        return EndToEnd(self, run)


@dataclass(frozen=True)
class Drawn:
    """A page of a batch.

    Attributes:
        page: with its questions.
        reads: what the language model is given, one of `READS` of question_answering.py.
        oracle: whether all relevant patches are fetched.
    """

    page: AskedPage
    reads: str
    oracle: bool


class PageBatches(Batches[list[Drawn]]):
    """Endless batches of pages, a function of (seed, step)."""

    def __init__(self, stage: EndToEndStage, run: Run, split: Split, start: int = 0) -> None:
        self.stage, self.start, self.seed = stage, start, (stage.seed, 11, split != "train")
        sources = Sources(stage.pages, split, None, stage.worn)
        self.source = AskedPages(sources, self.seed, run, stage.questions, located=False)

    def batch(self, step: int) -> list[Drawn]:
        rng, stage = np.random.default_rng((*self.seed, step)), self.stage
        shares = np.array(list(stage.reads.values()), float)
        batch = []
        for _ in range(stage.pages_per_step):
            reads = str(rng.choice(list(stage.reads), p=shares / shares.sum()))
            batch.append(Drawn(self.source.page(rng), reads, bool(rng.random() < stage.oracle)))
        return batch


@dataclass(frozen=True)
class Seen:
    """What the model made of a page.

    Attributes:
        base: [M, D] base tokens; `fetched` [n, D] fetched ones, at most K.
        patches: [K] what was fetched.
        foremost: for each question the fetched tokens of its most relevant patches [m, D].
        again: for each question bool [n], which of `fetched` those are.
        pieces: [1, N, 2, S] what was read.
        scores: [Q, N] of the scorer that fetches.
        relevance: loss of all scorers.
    """

    base: Tensor
    fetched: Tensor
    patches: Tensor
    foremost: list[Tensor]
    again: list[Tensor]
    pieces: Tensor
    scores: Tensor
    relevance: Tensor


class EndToEnd(Task):
    """Compressor, semantic encoder, bridge and scorers, and the language model with a LoRA adapter.

    Raises:
        ValueError: a model whose bridge does not name wordpieces.
    """

    def __init__(self, stage: EndToEndStage, run: Run) -> None:
        self.stage, self.run, self.device = stage, run, run.device
        self.core = core = run.model.model
        if not isinstance(core.bridge, WordpieceBridge):
            raise ValueError(f'bridge_config.kind: expected "wordpieces"; got "{run.model.config.bridge_config.kind}"')
        self.bridge: WordpieceBridge = core.bridge
        self.tower = core.vision_tower
        self.config, self.budget = run.model.config, run.model.config.vision_tokens()[1]
        self.prompting = Prompting(run.processor.tokenizer)
        self.language = AdaptedModel(run, stage.rank, torch.bfloat16 if stage.bf16 else torch.float32)
        table = self.language.table
        assert isinstance(table, nn.Embedding)
        self.table = table
        tower = self.tower
        tower.grid_encoder.requires_grad_(stage.encoder_rate > 0)
        tower.grid_encoder.patch_embed.requires_grad_(False)  # the text reader reads it
        behind = [tower.compressor, tower.semantic_encoder, tower.saccade_projection, core.bridge, core.fetcher.scorers]
        self.behind = nn.ModuleList(behind)
        parts = {"adapter": self.language.adapter, "behind": self.behind}
        if stage.encoder_rate:
            parts["encoder"] = tower.grid_encoder
        self.module = nn.ModuleDict(parts).to(run.device)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        groups = [
            (list(self.behind.parameters()), self.stage.learning_rate),
            (list(self.language.adapter.parameters()), self.stage.adapter_rate),
        ]
        if self.stage.encoder_rate:
            trained = [each for each in self.tower.grid_encoder.parameters() if each.requires_grad]
            groups.append((trained, self.stage.encoder_rate))
        return groups

    def pages(self, start: int) -> PageBatches:
        return PageBatches(self.stage, self.run, "train", start)

    def losses(self, step: int, batch: Sequence[Drawn]) -> dict[str, Tensor]:
        seen = [self.see(each.page, oracle=each.oracle) for each in batch]
        asked, embeds = self._prompts(batch, seen)
        logits, targets, _ = self.language.answers(embeds, asked)
        relevance = torch.stack([page.relevance for page in seen]).mean()
        losses = {"answer": F.cross_entropy(logits.float(), targets), "relevance": relevance}
        total = sum(WEIGHTS[name] * loss for name, loss in losses.items())
        assert isinstance(total, Tensor)
        return {"loss": total, **{name: loss.detach() for name, loss in losses.items()}}

    def see(self, page: AskedPage, *, oracle: bool) -> Seen:
        """Encodes a page and fetches for its questions; `oracle`: all relevant patches, as far as there is room."""
        images, mask = page.pixels.to(self.device), page.patch_mask.to(self.device)[None]
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.stage.encoder_rate > 0):
            grid = self.tower.encode_grid(images)
        encoding = self.core.encode_features(pixel_values=images, patch_mask=mask, **grid)
        assert self.tower.text_reader is not None, "a bridge that names wordpieces has one"
        context = page.context(grid, self.table, self.tower.text_reader.spellings)
        by_scorer = {name: scorer(context) for name, scorer in self.core.fetcher.scorers.items()}
        scores = by_scorer[self.config.fetcher_config.strategy]
        wanted = scores.detach().float().sigmoid().amax(0).masked_fill(~mask[0], -1.0)
        if oracle:
            wanted = wanted + 2 * (page.relevance.to(wanted).amax(0) > 0)
        patches = wanted.topk(self.budget).indices.sort().values
        rank = wanted[patches].argsort(descending=True, stable=True).argsort()
        bridged = self.core.bridge_fetched(encoding, patches[None], rank=rank[None])
        assert bridged.source is not None
        stand = bridged.source[0] >= 0
        base, fetched, held = encoding.tokens[0], bridged.tokens[0][stand], patches[bridged.source[0][stand]]
        predicted = scores.float().sigmoid()[:, patches]  # [Q, K]
        ranks = predicted.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        pages = encoding.select(torch.zeros(len(ranks), dtype=torch.long))
        several = self.core.bridge_fetched(pages, patches.expand_as(ranks), rank=ranks, relevance=predicted)
        assert several.source is not None
        first = (several.source >= 0) & (ranks.gather(1, several.source.clamp(min=0)) < FOREMOST)
        foremost = [tokens[own] for tokens, own in zip(several.tokens, first, strict=True)]
        again = [torch.isin(held, patches[own < FOREMOST]) for own in ranks]
        every = torch.stack(list(by_scorer.values()))
        relevance = page.relevance_loss(every, self.config.relevance_positive_weight)
        return Seen(base, fetched, patches, foremost, again, grid["pieces"], scores, relevance)

    def _prompts(self, batch: Sequence[Drawn], seen: Sequence[Seen]) -> tuple[QuestionBatch, Tensor]:
        """The pages with their questions, and their embeddings [P, S, D]."""
        rows: list[tuple[Row, list[tuple[int, int, float]], list[str]]] = []
        tokens: list[Tensor] = []
        for each, page in zip(batch, seen, strict=True):
            row = Row()
            row.add(self.prompting.before)
            if each.reads != "fetched":
                row.add([0] * len(page.base), kind="base")
                tokens.append(page.base)
            last = None
            if each.reads != "base":
                start = len(row.ids)
                row.add_sketch(len(page.fetched))
                tokens += [page.fetched, *page.foremost]
                last = [
                    Again(len(own), (start + at.nonzero()[:, 0]).tolist())
                    for own, at in zip(page.foremost, page.again, strict=True)
                ]
            row.ask(each.page.questions, self.prompting, last)
            rows.append((row, [], [question.kind for question in each.page.questions]))
        asked = stacked(rows).to(self.device)
        embeds = self.language.table(asked.ids).float()
        vision = (asked.base | asked.fetched)[..., None]
        return asked, embeds.masked_scatter(vision, torch.cat(tokens).float())

    @cached_property
    def _unseen(self) -> list[list[Drawn]]:
        batches = PageBatches(self.stage, self.run, "validation")
        return [batches.batch(number) for number in range(-(-EVALUATED_PAGES // self.stage.pages_per_step))]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Exact match by what is read and kind of question, recall of what was fetched, and mean losses."""
        self.language.model.eval()
        self.module.eval()
        answers: dict[str, list[tuple[str, bool]]] = {reads: [] for reads in self.stage.reads}
        found: dict[str, list[float]] = {}
        for batch in self._unseen:
            seen = [self.see(each.page, oracle=False) for each in batch]
            for reads in answers:
                asked, embeds = self._prompts([Drawn(each.page, reads, False) for each in batch], seen)
                answers[reads] += zip(asked.kinds, self.language.exact(embeds, asked), strict=True)
            for each, page in zip(batch, seen, strict=True):
                for what, recall in each.page.recall(page.scores, self.budget, page.pieces).items():
                    found.setdefault(f"recall: {what}", []).extend(recall.tolist())
                found.setdefault("loss: relevance", []).append(float(page.relevance))
        self.module.train()
        self.language.model.train()
        scores = {name: float(np.mean(values)) for name, values in found.items() if values}
        for reads, right in answers.items():
            scores |= by_kind(reads, right)
        return scores

    def finish(self, run: Run) -> None:
        self.language.leave(run)
        run.learner["places"] = self.bridge.places.state_dict()
