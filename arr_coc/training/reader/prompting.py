"""Prompts about pages whose tokens several questions share: each sees the page and itself, as if it were asked alone.

Notation: P pages, S tokens of a page and the questions about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from arr_coc.data.domains.page import Question

QUESTION_LENGTH = 96
"""Most tokens of a question and its answer; longer ones are not asked."""


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

    def short(self, question: Question) -> bool:
        """Whether question and answer are no longer than `QUESTION_LENGTH`."""
        return len(self.question(question.text)) + len(self.answer(question.answers[0])) <= QUESTION_LENGTH


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

    def to(self, device: torch.device) -> "Asked":
        """The same on `device`."""
        tensors = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "kinds"}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


@dataclass
class Row:
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

    def ask(self, questions: Sequence[Question], prompting: Prompting) -> None:
        """Adds questions and their answers, each behind the page as if it were the only one."""
        end = len(self.ids)
        for number, question in enumerate(questions):
            before, answer = prompting.question(question.text), prompting.answer(question.answers[0])
            tells = [False] * (len(before) - 1) + [True] * len(answer) + [False]
            self.add([*before, *answer], question=number, start=end, answer=tells)


def stacked(pages: Sequence[tuple[Row, list[tuple[int, int, float]], list[str]]]) -> Asked:
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


def seen(batch: Asked) -> Tensor:
    """bool [P, 1, S, S]: a token sees those before it on the page and in its own question."""
    question, length = batch.question, batch.ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    own = (question[:, :, None] == question[:, None]) | (question[:, None] == -1)
    return (causal & own)[:, None]
