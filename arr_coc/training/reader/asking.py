"""Stages that learn from questions about pages: the scorers, and the language model.

`relevance`: the scorers learn which patches a question asks about, those of the answer and of what leads to it, as the
boxes of the questions show. Those that read text alone learn from pages that are never drawn (source "laid_out").

`question_answering`: the language model learns to answer from the tokens that the trained scorer fetches. A LoRA
adapter and the embeddings of places are all that is trained. The questions about a page share its tokens: each sees the
page and itself, as if it were asked alone.

Notation: Q questions of a page, N patches, P pages, S tokens of a page and the questions about it, D width of the
language model, V its vocabulary.
"""

import itertools
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.modeling.bridges import FOREMOST, Places, line_breaks, word_marks
from arr_coc.modeling.configuration_arr_coc import COMPRESSION
from arr_coc.modeling.wordpieces import SPACE
from arr_coc.pages.page import Question
from arr_coc.pages.splits import Split

from ..stages import STAGES, Run, ScratchStage, Task
from .language_model import AdaptedModel, PackedPage, PackedQuestions, PackedToken, Prompting, fetched_tokens, stacked
from .pages import AskedPage, AskedPages, PageReader, Sources
from .targets import page_tokens

EVALUATED_PAGES = 100  # held-out pages that a measurement asks about


@dataclass(frozen=True)
class AskingStage(ScratchStage):
    """Settings of the stages that learn from questions about pages."""

    leaves_whole: ClassVar[bool] = False

    # How often each source comes up, see `Sources`; sources whose pages have no questions are of no use.
    pages: Mapping[str, float] = field(default_factory=lambda: {"laid_out": 1.0})
    pages_per_step: int = 4  # pages of a step
    questions: int = 8  # most questions about a page
    worn: float = 0.3  # share of worn pages among those that are drawn
    # Share of the words that are read wrongly on pages that are not drawn, at most; the share of each page is drawn
    # from 0 on.
    mistakes: float = 0.1
    real_folder: str | None = None  # of real pages as text, see `arr_coc.data.real_pages`
    # Share of the pages whose questions have, as far as there are any, answers of one type, such as dates: then the
    # wording decides.
    contrast: float = 0.0
    # Share of the questions about a drawn page that are about another one of its kind, and that this one does not
    # answer.
    elsewhere: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("worn", "mistakes", "contrast", "elsewhere")
        self.check_counts("pages_per_step", "questions")


class AskingTask(Task):
    """What the tasks of these stages share: pages with the questions that they ask."""

    stage: AskingStage
    run: Run
    salt: ClassVar[tuple[int, ...]] = ()  # tells the pages of a task from those of others with the stage's seed

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
        seed = (self.stage.seed, *self.salt, sources.split != "train")
        return AskedPages(sources, seed, self.run, self.stage, self.asks, start)


@STAGES.register("relevance")
@dataclass(frozen=True)
class RelevanceStage(AskingStage):
    """Settings of the stage."""

    name: ClassVar[str] = "relevance"
    writes_out: ClassVar[bool] = False

    mistakes: float = 0.15
    # Share of a question's tokens that the scorers do not see, against learning wordings by heart.
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
            steps = max(1, EVALUATED_PAGES // len(self.stage.pages) // self.stage.pages_per_step)
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


READS = ("both", "fetched", "base")  # what of a page the language model is given

_STARTS = {"line_break": "\n", "mark": " answer", "best": " best", "first": " first", "last": " last"}
"""The words whose embeddings parts of `Places` start as half of."""
PLACES_STD = 0.02  # spread of the embeddings of places before training


def foremost(patches: np.ndarray, relevance: np.ndarray) -> np.ndarray:
    """bool [n], True on wordpieces in the `FOREMOST` most relevant patches, from patch and relevance [n] of each."""
    held, first = np.unique(patches, return_index=True)
    best = held[np.argsort(-relevance[first], kind="stable")[:FOREMOST]]
    return np.isin(patches, best)


@STAGES.register("question_answering")
@dataclass(frozen=True)
class QuestionAnsweringStage(AskingStage):
    """Settings of the stage."""

    name: ClassVar[str] = "question_answering"

    kinds: Sequence[str] = ()  # of questions that are asked, see `Question.kind`; none: all
    # How often the pages of a step come with both kinds of token, fetched ones alone and base tokens alone.
    reads: Mapping[str, float] = field(default_factory=lambda: {"both": 0.3, "fetched": 0.7})
    rank: int = 24  # of the LoRA adapter
    learning_rate: float = 6e-4
    places_rate: float = 1e-3  # learning rate of the embeddings of places
    weight_decay: float = 0.0
    warmup: int = 20
    evaluated: int = 160  # held-out questions that a measurement asks, from each source as many

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("rank", "evaluated")
        if unknown := sorted(set(self.reads) - set(READS)):
            raise ValueError(f"reads: expected shares of {', '.join(READS)}; got {unknown}")

    def task(self, run: Run) -> "QuestionAnswering":
        return QuestionAnswering(self, run)


class QuestionAnswering(AskingTask):
    """The language model with a LoRA adapter, and the embeddings of places."""

    stage: QuestionAnsweringStage

    def __init__(self, stage: QuestionAnsweringStage, run: Run) -> None:
        self.stage, self.run, self.config = stage, run, run.model.config.vision_config
        self.reading, self.prompting = PageReader(run), Prompting(run.processor.tokenizer)
        fetcher = run.model.model.fetcher.requires_grad_(False)
        self.scorer = fetcher.scorer(run.model.config.fetcher_config.strategy)
        self.opens = run.model.model.vision_tower.text_reader.spellings[:, 0] == SPACE
        self.budget, self.side = run.model.config.vision_tokens()[1], self.config.grid_size
        self.language = AdaptedModel(run, stage.rank, torch.bfloat16 if stage.bf16 else torch.float32)
        self.places = Places(self.config.grid_size, run.model.config.text_config.hidden_size)
        for each in (self.places.rows, self.places.columns):
            nn.init.normal_(each.weight, std=PLACES_STD)
        with torch.no_grad():  # from zero they would have no effect for hundreds of steps
            for name, like in _STARTS.items():
                token = torch.tensor(self.prompting.ids(like)[0], device=run.device)
                getattr(self.places, name).copy_(self.language.table(token) / 2)
        if run.adapter:  # both were trained before
            self.places.load_state_dict(run.model.model.bridge.places.state_dict())
        self.module = nn.ModuleDict({"adapter": self.language.adapter, "places": self.places}).to(run.device)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [
            (list(self.language.adapter.parameters()), self.stage.learning_rate),
            (list(self.places.parameters()), self.stage.places_rate),
        ]

    def asks(self, question: Question) -> bool:
        return not self.stage.kinds or question.kind in self.stage.kinds

    def parts(self, batch: Sequence[AskedPage]) -> list[AskedPage]:
        return [*batch]  # pages differ in length, and padding costs as much as tokens

    def losses(self, step: int, page: AskedPage) -> dict[str, Tensor]:
        rng, shares = np.random.default_rng((self.stage.seed, step)), np.array(list(self.stage.reads.values()), float)
        reads = str(rng.choice(list(self.stage.reads), p=shares / shares.sum()))
        asked = self.prompts([page], reads, only_readable=True)
        logits, targets, _ = self.language.answers(self.embedded(asked), asked)
        return {"loss": F.cross_entropy(logits.float(), targets)}

    def prompts(self, pages: Sequence[AskedPage], reads: str, only_readable: bool = False) -> PackedQuestions:
        """Pages with their questions, as the model reads and fetches them."""
        return stacked([self._row(page, reads, only_readable) for page in pages]).to(self.run.device)

    def _row(self, page: AskedPage, reads: str, only_readable: bool) -> PackedPage:
        """A page with its questions.

        The questions share the tokens of the patches that are the most relevant for any of them. Each has those of its
        own `FOREMOST` most relevant patches once more, right before it.

        With `only_readable`, questions whose answer is not among those, or was misread, are left out: they would teach
        to write what is not there. If no other question is left, all are asked.
        """
        context = self.reading.context(page)
        assert context.pieces is not None
        whole, row = page_tokens(context.pieces[0]), PackedPage()
        row.add([*map(PackedToken, self.prompting.before)])
        if reads != "fetched":
            row.add_base(whole, (whole.side // COMPRESSION, whole.side // COMPRESSION))
        if reads == "base":
            row.ask(page.questions, self.prompting)
            return row
        with torch.no_grad():
            relevance = self.scorer(context).sigmoid().cpu().numpy()[:, whole.patches]  # [Q, n]
        shown = np.zeros(len(whole.pieces), bool)
        shown[np.argsort(-relevance.max(0), kind="stable")[: self.budget]] = True
        row.add(fetched_tokens(whole.only(shown)))
        best = [foremost(whole.patches, own) for own in relevance]
        again = [fetched_tokens(whole.only(each), own[each]) for each, own in zip(best, relevance, strict=True)]
        asked = list(zip(page.questions, again, strict=True))
        if only_readable:
            asked = [pair for pair in asked if self._readable(*pair)] or asked
        row.ask([question for question, _ in asked], self.prompting, [tokens for _, tokens in asked])
        return row

    def _readable(self, question: Question, again: Sequence[PackedToken]) -> bool:
        """Whether the answer can be written from tokens right before the question."""
        wanted = set(self.prompting.answer(question.answers[0])[: -len(self.prompting.end)])
        return question.kind != "detail" or wanted <= {token.id for token in again}

    def embedded(self, batch: PackedQuestions) -> Tensor:
        """[P, S, D] float32."""
        table = self.language.table
        with torch.no_grad():
            rows = table(batch.ids).float() * ~batch.base[..., None]
            held = table(batch.held).float() * batch.weights[:, None]
            rows = rows.flatten(0, 1).index_add(0, batch.cells, held).view_as(rows)
        first = batch.fetched & ~F.pad(batch.fetched, (1, 0))[:, :-1]
        breaks = batch.fetched & (first | line_breaks(batch.half_rows, batch.columns))
        opens = self.opens[batch.ids] | ~batch.fetched
        marks = word_marks(batch.relevance, opens, breaks | ~batch.fetched, batch.question.clamp(min=-1) + 1)
        placed = self.places(batch.half_rows, batch.columns, self.side, breaks, marks)
        return rows + placed * (batch.fetched | batch.base)[..., None]

    @cached_property
    def _unseen(self) -> dict[str, list[AskedPage]]:
        """Held-out pages of each source."""
        unseen: dict[str, list[AskedPage]] = {}
        for name, source in self.sources("validation").each().items():
            batches, asked, step = self.asked(source), unseen.setdefault(name, []), 0
            while sum(len(page.questions) for page in asked) < self.stage.evaluated / len(self.stage.pages):
                asked += batches.batch(step)
                step += 1
        return unseen

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Share of answers of which every token is the most probable one, by what is read, source and kind of
        question."""
        self.language.model.eval()
        right: defaultdict[str, list[bool]] = defaultdict(list)
        for (source, pages), reads in itertools.product(self._unseen.items(), self.stage.reads):
            for page in pages:
                batch = self.prompts([page], reads)
                for kind, hit in zip(batch.kinds, self.language.exact(self.embedded(batch), batch), strict=True):
                    right[f"{source}, {reads}"].append(hit)
                    right[f"{source}, {reads}, {kind}"].append(hit)
        self.language.model.train()
        return {name: float(np.mean(hits)) for name, hits in sorted(right.items())}

    def finish(self, run: Run) -> None:
        self.language.leave(run)
        run.model.model.bridge.places.load_state_dict(self.places.state_dict())
