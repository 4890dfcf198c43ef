"""The arms of arms.yaml: what of a stored page the language model reads for a question, and the stage that trains it.

Notation: T tokens of a page and its questions, D width of the language model, A splits that arm `auto` chooses from.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from predictions import is_right, said
from question_pages import questions_of
from torch import Tensor, nn

from arr_coc.pages.page import Question
from arr_coc.training.reader.asking import QuestionAnswering, QuestionAnsweringStage
from arr_coc.training.reader.language_model import PackedPage, PackedToken, Prompting, fetched_tokens, stacked
from arr_coc.training.reader.targets import PageTokens
from arr_coc.training.stages import Batches, Run

FETCHED = ("scorer", "random", "small", "all", "auto")
ALL = 2**31
"""Fetched tokens where there is no limit."""
StoredPage = Mapping[str, Any]
"""See `question_pages.stored`."""
HEAD_RATE = 10.0
"""Learning rate of the head of `auto`, as a multiple of that of the embeddings of places."""


@dataclass(frozen=True)
class Arm:
    """One way to spend the tokens.

    Attributes:
        name: unique.
        cells: rows and columns of the grid of base tokens; (0, 0): none.
        budget: fetched tokens at most.
        fetched: of `FETCHED`: the most relevant by the scorer; at random; all of the smaller image; all; or as one of
            the arms base_*, predicted.
    """

    name: str
    cells: tuple[int, int]
    budget: int
    fetched: str = "scorer"

    @property
    def base(self) -> int:
        """Number of base tokens."""
        return self.cells[0] * self.cells[1]


def read_arms(path: Path) -> dict[str, Arm]:
    """The arms of a file, by name.

    Raises:
        ValueError: more base tokens than `total` but for `base_flops`, or unknown settings.
    """
    spec = yaml.safe_load(path.read_text())
    total, arms = int(spec["total"]), {}
    for name, settings in spec["arms"].items():
        if unknown := sorted(set(settings) - {"cells", "fetched"}):
            raise ValueError(f"{path}: {name}: expected cells and fetched; got {', '.join(unknown)}")
        rows, columns = settings["cells"]
        fetched = settings.get("fetched", "scorer")
        if fetched not in FETCHED:
            raise ValueError(f"{path}: {name}: fetched: expected one of {', '.join(FETCHED)}; got {fetched!r}")
        if rows < 0 or columns < 0 or (rows > 0) != (columns > 0):
            raise ValueError(f"{path}: {name}: cells: expected rows and columns, or 0 of both; got {rows} x {columns}")
        rest = total - rows * columns
        if rest < 0 and name != "base_flops":
            raise ValueError(f"{path}: {name}: cells: expected at most {total}; got {rows * columns}")
        arms[name] = Arm(name, (rows, columns), ALL if fetched == "all" else max(0, rest), fetched)
    return arms


def splits(arms: Mapping[str, Arm]) -> list[Arm]:
    """Arms that split the total between base and fetched tokens, by base tokens."""
    found = [arm for name, arm in arms.items() if name.startswith("base_") and name != "base_flops"]
    return sorted(found, key=lambda arm: arm.base)


def _tokens(page: StoredPage, which: str = "tokens") -> PageTokens:
    return PageTokens(**page[which])


def most(scores: np.ndarray, count: int) -> np.ndarray:
    """The numbers of the `count` highest scores, ascending."""
    return np.sort(np.argsort(-scores, kind="stable")[:count])


def _again(page: StoredPage, number: int, kept: np.ndarray, relevance: np.ndarray | None = None) -> list[PackedToken]:
    """Wordpieces of a page as a question reads them, with the scorer's relevance or another."""
    relevance = page["relevance"][number].astype(float) if relevance is None else relevance
    return fetched_tokens(_tokens(page).only(kept), relevance[kept])


class Prompts:
    """Rows of prompts from stored pages.

    Args:
        prompting: of the tokenizer.
    """

    def __init__(self, prompting: Prompting) -> None:
        self.prompting = prompting

    def row(
        self,
        page: StoredPage,
        arm: Arm,
        asked: Sequence[int],
        rng: np.random.Generator,
        base_page: StoredPage | None = None,
        kept: Sequence[np.ndarray] | None = None,
    ) -> PackedPage:
        """Base tokens of the page once; behind them each question with the tokens that are fetched for it.

        Args:
            page: the page.
            arm: how its tokens are spent.
            asked: numbers of the questions.
            rng: of random tokens.
            base_page: the page whose base tokens are read, where it is another one (swap test).
            kept: for each question the numbers of the page's wordpieces that it reads, ascending, where a rule chose
                them.
        """
        row, questions = PackedPage(), [questions_of(page)[number] for number in asked]
        row.add([*map(PackedToken, self.prompting.before)])
        if arm.base:
            row.add_base(_tokens(base_page or page), arm.cells)
        if kept is None:
            again = [self._fetched(page, arm, number, rng) for number in asked]
        else:
            again = [_again(page, number, own) for number, own in zip(asked, kept, strict=True)]
        row.ask(questions, self.prompting, again if arm.budget else None)
        return row

    def _fetched(self, page: StoredPage, arm: Arm, number: int, rng: np.random.Generator) -> list[PackedToken]:
        """The tokens that are fetched for a question, in reading order, and their relevance."""
        if arm.fetched == "small":
            tokens, side = _tokens(page, "small"), _tokens(page).side
            scaled = PageTokens(
                tokens.pieces, tokens.half_rows * side // tokens.side, tokens.columns * side // tokens.side, side
            ).only(np.arange(min(arm.budget, len(tokens.pieces))))
            return fetched_tokens(scaled, np.full(len(scaled.pieces), 0.5))
        relevance = page["relevance"][number].astype(float)
        drawn = rng.random(len(relevance)) if arm.fetched == "random" else None
        return _again(page, number, most(relevance if drawn is None else drawn, arm.budget), drawn)


@dataclass(frozen=True)
class Asking:
    """A stored page that is asked its questions.

    Attributes:
        page: the page.
        base_page, kept: see `Prompts.row`; `kept` by the question's number.
    """

    page: StoredPage
    base_page: StoredPage | None = None
    kept: Mapping[int, np.ndarray] | None = None


class Turns(Batches[list[tuple[int, Arm]]]):
    """Which pages come up in a step, by number, in an order that the seed draws; each with an arm, for `auto` one of
    the splits at random.

    Args:
        pages: number of pages.
        seed: of their order.
        count: pages of a step.
        arms: to draw from.
        start: the first step.
    """

    def __init__(self, pages: int, seed: int, count: int, arms: Sequence[Arm], start: int) -> None:
        self.pages, self.seed, self.count, self.arms, self.start = pages, seed, count, arms, start

    def batch(self, step: int) -> list[tuple[int, Arm]]:
        rng, found = np.random.default_rng((self.seed, step)), []
        for turn in range(step * self.count, (step + 1) * self.count):
            order = np.random.default_rng((self.seed, turn // self.pages, 3)).permutation(self.pages)
            found.append((int(order[turn % self.pages]), self.arms[int(rng.integers(len(self.arms)))]))
        return found


@dataclass(frozen=True)
class ArmStage(QuestionAnsweringStage):
    """Trains one arm. Other settings are those of `QuestionAnsweringStage`; pages come from files.

    Attributes:
        arms: file of the arms.
        arm: name of the arm.
        folder: of `question_pages.py`.
        measured: validation pages of a measurement.
        packed: pages that are computed together: 1 on a CPU, where padding costs as much as tokens.
    """

    arms: str = "arms.yaml"
    arm: str = "base_50"
    folder: str = "runs/base-share"
    measured: int = 40
    packed: int = 1

    @property
    def writes_out(self) -> bool:  # type: ignore[override]  # here it depends on `packed`
        """See `ScratchStage`: explicit attention is only faster where pages are computed one by one."""
        return self.packed == 1

    def task(self, run: Run) -> "ArmTask":
        return ArmTask(self, run)


class ArmTask(QuestionAnswering):
    """The language model's adapter and the embeddings of places, which start as the model's; for `auto` a head."""

    stage: ArmStage

    def __init__(self, stage: ArmStage, run: Run) -> None:
        super().__init__(stage, run)
        arms = read_arms(Path(stage.arms))
        if stage.arm not in arms:
            raise ValueError(f"arm: expected one of {', '.join(arms)}; got {stage.arm!r}")
        self.arm, self.splits = arms[stage.arm], splits(arms)
        self.side = _tokens(self.read("validation")[0]).side
        self.total = max(arm.base + arm.budget for arm in self.splits)
        self.places = run.model.model.bridge.places.float().requires_grad_(True)
        parts: dict[str, nn.Module] = {"adapter": self.language.adapter, "places": self.places}
        if self.arm.fetched == "auto":
            self.head = parts["head"] = nn.Linear(2 * self.language.table.embedding_dim, len(self.splits))
        self.module = nn.ModuleDict(parts).to(run.device)
        self.maker = Prompts(self.prompting)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        head = [*self.head.parameters()] if self.arm.fetched == "auto" else []
        return [*super().groups(), *([(head, HEAD_RATE * self.stage.places_rate)] if head else [])]

    def read(self, split: str) -> list[StoredPage]:
        """The stored pages of a split."""
        pages: list[StoredPage] = torch.load(Path(self.stage.folder) / f"{split}.pt", weights_only=False)
        return pages

    @cached_property
    def _train(self) -> list[StoredPage]:
        return self.read("train")

    def pages(self, start: int) -> Turns:  # type: ignore[override]  # stored pages, not drawn ones
        among = self.splits if self.arm.fetched == "auto" else [self.arm]
        return Turns(len(self._train), self.stage.seed, self.stage.pages_per_step, among, start)

    def parts(self, batch: Any) -> list[Any]:
        return [batch[at : at + self.stage.packed] for at in range(0, len(batch), self.stage.packed)]

    def asked(self, page: StoredPage) -> list[int]:
        """The numbers of a page's questions that are short enough."""
        return [number for number, question in enumerate(questions_of(page)) if self.prompting.short(question)]

    def losses(self, step: int, pages: Sequence[tuple[int, Arm]]) -> dict[str, Tensor]:  # type: ignore[override]
        """The mean loss of the questions' answers; for `auto` also that of the losses that its head predicts."""
        rows, expected = [], list[Tensor]()
        for number, arm in pages:
            stored = self._train[number]
            rng = np.random.default_rng((self.stage.seed, step, number))
            asked = self.asked(stored)
            rows.append(self.maker.row(stored, arm, asked, rng))
            if self.arm.fetched == "auto":
                expected.append(self.predicted(stored, asked)[:, self.splits.index(arm)])
        batch = stacked(rows).to(self.run.device)
        logits, targets, place = self.language.answers(self.embedded(batch), batch)
        by_token = F.cross_entropy(logits.float(), targets, reduction="none")
        by_question = torch.zeros(len(batch.kinds), device=by_token.device).index_add(0, place, by_token)
        by_question = by_question / place.bincount(minlength=len(batch.kinds))
        losses = {"loss": by_question.mean()}
        if expected:
            losses["head"] = F.smooth_l1_loss(torch.cat(expected), by_question.detach())
            losses["loss"] = losses["loss"] + losses["head"]
        return losses

    def predicted(self, page: StoredPage, asked: Sequence[int]) -> Tensor:
        """[Q, A] the loss of each question's answer that the head expects from each split: it reads the mean embedding
        of the question's tokens and of the page's wordpieces."""
        table, device = self.language.table, self.run.device

        def mean(ids: Sequence[int]) -> Tensor:
            return table(torch.tensor([*ids] or [0], device=device)).float().mean(0)

        overview = mean(page["tokens"]["pieces"].tolist())
        texts = [self.prompting.ids(questions_of(page)[number].text) for number in asked]
        predicted: Tensor = self.head(torch.stack([torch.cat((mean(ids), overview)) for ids in texts]))
        return predicted

    def chosen(self, page: StoredPage, asked: Sequence[int]) -> list[Arm]:
        """The arm of each question: for `auto` the split with the least predicted loss; all cost as many tokens."""
        if self.arm.fetched != "auto":
            return [self.arm] * len(asked)
        return [self.splits[at] for at in self.predicted(page, asked).argmin(1).tolist()]

    def _rows(self, askings: Iterable[Asking]) -> Iterator[tuple[StoredPage, Arm, list[int], Any]]:
        """A page, an arm of its questions, their numbers, and what `Prompts.row` makes of them."""
        for each in askings:
            rng, asked = np.random.default_rng((7, each.page["page"])), self.asked(each.page)
            chosen = self.chosen(each.page, asked)
            for arm in dict.fromkeys(chosen):
                own = [number for number, other in zip(asked, chosen, strict=True) if other == arm]
                kept = [each.kept[number] for number in own] if each.kept is not None else None
                yield each.page, arm, own, self.maker.row(each.page, arm, own, rng, each.base_page, kept)

    @torch.no_grad()
    def answers(self, askings: Iterable[Asking]) -> Iterator[tuple[StoredPage, Question, Arm, str]]:
        """Each page and question, its arm, and what is answered greedily, up to the first wrong token, as it is
        stored."""
        self.language.model.eval()
        rows = self._rows(askings)
        while several := list(islice(rows, self.stage.packed)):
            batch = stacked([row for *_, row in several]).to(self.run.device)
            logits, targets, place = self.language.answers(self.embedded(batch), batch)
            predicted = logits.argmax(-1)
            asked = [(page, questions_of(page)[number], arm) for page, arm, own, _ in several for number in own]
            for at, (page, question, arm) in enumerate(asked):
                told, right = predicted[place == at].tolist(), targets[place == at].tolist()
                wrong = next((n for n, (one, other) in enumerate(zip(told, right, strict=True)) if one != other), None)
                text = self.prompting.tokenizer.decode(told[: len(told) if wrong is None else wrong + 1])
                yield page, question, arm, said(text)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """The share of right answers by kind of question, of validation pages."""
        right: dict[str, list[bool]] = {}
        for _, question, _, told in self.answers(map(Asking, self.read("validation")[: self.stage.measured])):
            right.setdefault(question.kind, []).append(is_right(told, question.answers))
        self.language.model.train()
        return {kind: float(np.mean(hits)) for kind, hits in sorted(right.items())}
