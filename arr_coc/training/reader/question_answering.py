"""Stage: the language model learns to answer about pages that are given as perfect tokens (`sketch`).

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
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.data.domains.page import Question
from arr_coc.data.splits import Split
from arr_coc.modeling.bridges import WordpieceBridge
from arr_coc.modeling.configuration_arr_coc import COMPRESSION, ArrCocVisionConfig
from arr_coc.modeling.wordpieces import Places

from ..from_scratch.stage import ScratchStage, Task
from ..from_scratch.streaming import Batches
from ..stages import STAGES, Run
from .adapter import Adapter
from .pages import Sources
from .sketch import Sketch, base_mixture, fetched, sketch, slipped
from .vocabulary import Wordpieces

READS = ("both", "fetched", "base")
"""What of a page the language model is given."""
PLACES_STD = 0.02
"""Spread of the embeddings of places before training."""
QUESTION_LENGTH = 96
"""Most tokens of a question and its answer; longer ones are not asked."""


@STAGES.register("question_answering")
@dataclass(frozen=True)
class QuestionAnsweringStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        pages_per_step: pages of a step.
        questions: most questions about a page.
        pages: how often each source comes up, see `Sources`.
        budget: most fetched wordpieces of a page.
        reads: how often pages come with both kinds of token, fetched ones alone and base tokens alone.
        slips: share of wordpieces that are read wrongly, at most; drawn for each page from 0 on.
        rank: of the LoRA adapter.
        places_rate: learning rate of the embeddings of places.
        evaluated: held-out questions that a measurement asks.
    """

    name: ClassVar[str] = "question_answering"
    needs_learner: ClassVar[bool] = False
    leaves_whole: ClassVar[bool] = False

    pages_per_step: int = 4
    questions: int = 8
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
        if unknown := sorted(set(self.reads) - set(READS)):
            raise ValueError(f"reads: expected shares of {', '.join(READS)}; got {unknown}")

    def task(self, run: Run) -> "QuestionAnswering":
        return QuestionAnswering(self, run)


class Prompting:
    """Ids of the prompt around a page: before it, the question with what opens the answer, and the answer's end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.before = self.ids("<|im_start|>user\n")
        self.end = self.ids("<|im_end|>")

    def ids(self, text: str) -> list[int]:
        """Of a text."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def question(self, text: str) -> list[int]:
        """Of a question up to the answer."""
        return self.ids(f"{text}<|im_end|>\n<|im_start|>assistant\n")

    def answer(self, text: str) -> list[int]:
        """Of an answer and its end."""
        return [*self.ids(text), *self.end]


@dataclass(frozen=True)
class Asked:
    """A batch: P pages as tokens, each with questions behind it.

    Attributes:
        ids: [P, S] of text; of fetched tokens their wordpiece; 0 for base tokens.
        fetched, base: [P, S] bool, which tokens are such.
        half_rows, columns: [P, S] place of those.
        cells: [e] flat index (in P x S) of base tokens that hold wordpieces; `held` [e] those, `weights` [e] theirs.
        positions: [P, S] places in the prompt, from 0; each question goes on where the page ends.
        question: [P, S] number of the question, -1 on the page, -2 on padding.
        answer: [P, S] bool, True where the next token is part of an answer.
        kinds: of each question in order.
    """

    ids: Tensor
    fetched: Tensor
    base: Tensor
    half_rows: Tensor
    columns: Tensor
    cells: Tensor
    held: Tensor
    weights: Tensor
    positions: Tensor
    question: Tensor
    answer: Tensor
    kinds: tuple[str, ...]


@dataclass
class _Row:
    """One page under construction: parallel lists, a value for each token."""

    ids: list[int] = field(default_factory=list)
    fetched: list[bool] = field(default_factory=list)
    base: list[bool] = field(default_factory=list)
    half_rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    question: list[int] = field(default_factory=list)
    answer: list[bool] = field(default_factory=list)

    def add(
        self, ids: Sequence[int], *, question: int = -1, start: int | None = None, answer: Sequence[bool] | None = None,
        half_rows: Sequence[int] | None = None, columns: Sequence[int] | None = None, kind: str = "text",
    ) -> None:  # fmt: skip
        """Tokens of one sort behind those that are there."""
        count, start = len(ids), len(self.ids) if start is None else start
        self.ids += ids
        self.fetched += [kind == "fetched"] * count
        self.base += [kind == "base"] * count
        self.half_rows += half_rows if half_rows is not None else [0] * count
        self.columns += columns if columns is not None else [0] * count
        self.positions += range(start, start + count)
        self.question += [question] * count
        self.answer += answer if answer is not None else [False] * count


class AskedBatches(Batches[Asked]):
    """Endless batches, a function of (seed, step)."""

    def __init__(
        self, stage: QuestionAnsweringStage, config: ArrCocVisionConfig, cut: Wordpieces, prompting: Prompting, *,
        split: Split, reads: Mapping[str, float], start: int = 0,
    ) -> None:  # fmt: skip
        self.stage, self.config, self.cut, self.prompting = stage, config, cut, prompting
        self.reads, self.start, self.vocabulary = reads, start, len(prompting.tokenizer)
        self.sources, self.seed = Sources(stage.pages, split, None, 0.0), (stage.seed, split != "train")

    def batch(self, step: int) -> Asked:
        rng = np.random.default_rng((*self.seed, step))
        return stacked([self._page(rng) for _ in range(self.stage.pages_per_step)])

    def _page(self, rng: np.random.Generator) -> tuple[_Row, list[tuple[int, int, float]], list[str]]:
        """A page with its questions, what its base tokens hold, and the kinds of question."""
        reads = str(rng.choice(list(self.reads), p=np.array(list(self.reads.values())) / sum(self.reads.values())))
        while True:
            page = self.sources.page(rng)
            asked = [q for q in self._order(rng, page.questions) if self._length(q) <= QUESTION_LENGTH]
            if asked:
                break
        asked = asked[: self.stage.questions]
        whole = sketch(page, [(*q.boxes, *q.label_boxes) for q in asked], self.config.grid_size, self.cut)
        whole = slipped(rng, whole, self.stage.slips * rng.random(), self.vocabulary)
        row, held = _Row(), []
        row.add(self.prompting.before)
        if reads != "fetched":
            held = self._add_base(row, whole)
        if reads != "base":
            shown = fetched(rng, whole, self.stage.budget)
            row.add(
                shown.pieces.tolist(), half_rows=shown.half_rows.tolist(), columns=shown.columns.tolist(),
                kind="fetched",
            )  # fmt: skip
        end = len(row.ids)
        for number, question in enumerate(asked):
            before, answer = self.prompting.question(question.text), self.prompting.answer(question.answers[0])
            tells = [False] * (len(before) - 1) + [True] * len(answer) + [False]
            row.add([*before, *answer], question=number, start=end, answer=tells)
        return row, held, [question.kind for question in asked]

    def _order(self, rng: np.random.Generator, questions: Sequence[Question]) -> list[Question]:
        return [questions[int(number)] for number in rng.permutation(len(questions))]

    def _length(self, question: Question) -> int:
        return len(self.prompting.question(question.text)) + len(self.prompting.answer(question.answers[0]))

    def _add_base(self, row: _Row, page: Sketch) -> list[tuple[int, int, float]]:
        """Adds a token for each cell; returns the column of a token in the row, a wordpiece and its weight, of all."""
        side, start = page.side // COMPRESSION, len(row.ids)
        at = np.arange(side) * COMPRESSION + COMPRESSION // 2
        half_rows, columns = np.repeat(2 * at, side), np.tile(at, side)
        row.add([0] * side**2, half_rows=half_rows.tolist(), columns=columns.tolist(), kind="base")
        cells, weights = base_mixture(page)
        return list(zip((start + cells).tolist(), page.pieces.tolist(), weights.tolist(), strict=True))


def stacked(pages: Sequence[tuple[_Row, list[tuple[int, int, float]], list[str]]]) -> Asked:
    """Pages of different lengths as one batch, padded at the end."""
    longest = max(len(row.ids) for row, _, _ in pages)

    def padded(name: str, fill: int | bool) -> Tensor:
        rows = [getattr(row, name) for row, _, _ in pages]
        return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])

    held = [(page * longest + at, piece, w) for page, (_, found, _) in enumerate(pages) for at, piece, w in found]
    cells, pieces, weights = (list(column) for column in zip(*held, strict=True)) if held else ([], [], [])
    columns = {name: padded(name, False) for name in ("fetched", "base", "answer")}
    columns |= {name: padded(name, 0) for name in ("ids", "half_rows", "columns", "positions")}
    return Asked(
        **columns, question=padded("question", -2), cells=torch.tensor(cells, dtype=torch.long),
        held=torch.tensor(pieces, dtype=torch.long), weights=torch.tensor(weights),
        kinds=tuple(kind for _, _, kinds in pages for kind in kinds),
    )  # fmt: skip


class QuestionAnswering(Task):
    """The language model with a LoRA adapter, and the embeddings of places."""

    def __init__(self, stage: QuestionAnsweringStage, run: Run) -> None:
        self.stage, self.device = stage, run.device
        self.config = run.model.config.vision_config
        self.cut, self.prompting = Wordpieces(run.processor.tokenizer), Prompting(run.processor.tokenizer)
        self.dtype = torch.bfloat16 if stage.bf16 else torch.float32
        self.table, self.lm_head = run.model.get_input_embeddings(), run.model.lm_head.to(self.dtype)
        decoder = run.model.model.language_model.to(self.dtype).requires_grad_(False)
        lora = LoraConfig(r=stage.rank, lora_alpha=stage.rank, target_modules="all-linear")
        self.model = get_peft_model(decoder, lora, autocast_adapter_dtype=False)
        if "adapter" in run.learner:
            set_peft_model_state_dict(self.model, dict(run.learner["adapter"]))
        self.adapter = Adapter(self.model, self.dtype)
        self.places = Places(self.config.grid_size, decoder.config.hidden_size)
        for each in (self.places.rows, self.places.columns):
            nn.init.normal_(each.weight, std=PLACES_STD)
        if "places" in run.learner:
            self.places.load_state_dict(run.learner["places"])
        self.module = nn.ModuleDict({"adapter": self.adapter, "places": self.places}).to(run.device)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [
            (list(self.adapter.parameters()), self.stage.learning_rate),
            (list(self.places.parameters()), self.stage.places_rate),
        ]

    def _batches(self, split: Split, reads: Mapping[str, float], start: int = 0) -> AskedBatches:
        return AskedBatches(self.stage, self.config, self.cut, self.prompting, split=split, reads=reads, start=start)

    def pages(self, start: int) -> AskedBatches:
        return self._batches("train", self.stage.reads, start)

    def losses(self, step: int, batch: Asked) -> dict[str, Tensor]:
        logits, targets, _ = self.answers(batch)
        return {"loss": F.cross_entropy(logits.float(), targets)}

    def answers(self, batch: Asked) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [t, V] of all tokens of answers, the tokens [t], and the number of each one's question [t]."""
        self.adapter.write()
        hidden = self.model(
            inputs_embeds=self.embedded(batch).to(self.dtype), attention_mask=_seen(batch),
            position_ids=batch.positions, use_cache=False,
        ).last_hidden_state  # fmt: skip
        counts = batch.question.amax(1) + 1
        number = batch.question + (counts.cumsum(0) - counts)[:, None]
        logits = self.lm_head(hidden[batch.answer])
        return logits, batch.ids.roll(-1, 1)[batch.answer], number[batch.answer]

    def embedded(self, batch: Asked) -> Tensor:
        """[P, S, D] float32."""
        with torch.no_grad():
            rows = self.table(batch.ids).float() * ~batch.base[..., None]
            held = self.table(batch.held).float() * batch.weights[:, None]
            rows = rows.flatten(0, 1).index_add(0, batch.cells, held).view_as(rows)
        side = self.config.grid_size
        placed = self.places(batch.half_rows, batch.columns, side) * (batch.fetched | batch.base)[..., None]
        return rows + placed

    @cached_property
    def _unseen(self) -> dict[str, list[Asked]]:
        sets: dict[str, list[Asked]] = {}
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
        self.model.eval()
        scores: dict[str, float] = {}
        for reads, batches in self._unseen.items():
            right: dict[str, list[float]] = {}
            for batch in batches:
                logits, targets, number = self.answers(batch)
                hits = (logits.argmax(-1) == targets).long()
                exact = torch.ones(len(batch.kinds), dtype=torch.long).scatter_reduce(0, number, hits, "amin").tolist()
                for kind, hit in zip(batch.kinds, exact, strict=True):
                    right.setdefault(kind, []).append(hit)
            scores[reads] = float(np.mean([hit for hits in right.values() for hit in hits]))
            scores |= {f"{reads}, {kind}": float(np.mean(hits)) for kind, hits in sorted(right.items())}
        self.model.train()
        return scores

    def finish(self, run: Run) -> None:
        self.adapter.write()
        run.learner["adapter"] = get_peft_model_state_dict(self.model)
        run.learner["places"] = self.places.state_dict()
        self.model.unload()  # the run's model keeps its own language model; `arr-coc assemble` merges the adapter
        if isinstance(run.model.model.bridge, WordpieceBridge):
            run.model.model.bridge.places.load_state_dict(self.places.state_dict())


def _seen(batch: Asked) -> Tensor:
    """bool [P, 1, S, S]: a token sees those before it on the page and in its own question."""
    question, length = batch.question, batch.ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    own = (question[:, :, None] == question[:, None]) | (question[:, None] == -1)
    return (causal & own)[:, None]
