"""The language model's side: prompts about pages, and the LoRA adapter that learns to read them.

Several questions share a page's tokens: each sees the page and itself, as if it were asked alone. The adapter
is written to the files that PEFT reads it from.

Notation: P pages, S tokens of a page and the questions about it, D width of the language model, V its vocabulary.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.adapters import LANGUAGE_ADAPTER
from arr_coc.pages.page import Question

from ..attention import WRITTEN_OUT
from ..stages import Run
from .targets import PageTokens

QUESTION_LENGTH = 96  # most tokens of a question and its answer; longer ones are not asked
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_INNER, _OUTER = "base_model.model.", "base_model.model.model."
"""What names of an adapter begin with: of the decoder's, and of the causal language model's around it."""


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
        """Of an answer and its end; it begins with a space, as the words on the page do that it is copied from."""
        return [*self.ids(f" {text}"), *self.end]

    def short(self, question: Question) -> bool:
        """Whether question and answer are no longer than `QUESTION_LENGTH`."""
        return len(self.question(question.text)) + len(self.answer(question.answers[0])) <= QUESTION_LENGTH


@dataclass(frozen=True)
class PackedQuestions:
    """A batch: P pages as tokens, each with questions behind it."""

    ids: Tensor  # [P, S] of text; of fetched tokens their wordpiece; 0 for base tokens
    fetched: Tensor  # [P, S] bool, True on fetched tokens
    base: Tensor  # [P, S] bool, True on base tokens
    half_rows: Tensor  # [P, S] of these two
    columns: Tensor  # [P, S] likewise
    # [e] flat index (in P x S) of base tokens that hold wordpieces; `held` [e] those, `weights` [e] theirs.
    cells: Tensor
    held: Tensor
    weights: Tensor
    positions: Tensor  # [P, S] places in the prompt, from 0; each question goes on where the page ends
    question: Tensor  # [P, S] number of the question, -1 on the page, -2 on padding
    answer: Tensor  # [P, S] bool, True where the next token is part of an answer
    relevance: Tensor  # [P, S] as predicted for the question of a fetched token; 0 on others
    kinds: tuple[str, ...]  # of each question in order

    def to(self, device: torch.device) -> "PackedQuestions":
        """The same on `device`."""
        tensors = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "kinds"}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


class PackedToken(NamedTuple):
    """A token of a prompt; the attributes are those of `PackedQuestions`."""

    id: int = 0
    fetched: bool = False
    base: bool = False
    half_row: int = 0
    column: int = 0
    position: int = 0
    question: int = -2
    answer: bool = False
    relevance: float = 0.0


def fetched_tokens(page: PageTokens, relevance: np.ndarray | None = None) -> list[PackedToken]:
    """Wordpieces with their places, and their relevance as predicted, where a question has them right before it."""
    relevance = np.zeros(len(page.pieces)) if relevance is None else relevance
    columns = (each.tolist() for each in (page.pieces, page.half_rows, page.columns, relevance))
    return [
        PackedToken(piece, fetched=True, half_row=half_row, column=column, relevance=own)
        for piece, half_row, column, own in zip(*columns, strict=True)
    ]


@dataclass
class PackedPage:
    """One page under construction."""

    tokens: list[PackedToken] = field(default_factory=list)  # of the page, then of its questions
    # Of base tokens: the number of a token, a wordpiece that it holds, and its weight.
    held: list[tuple[int, int, float]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # of the questions

    def add(self, tokens: Sequence[PackedToken], question: int = -1, start: int | None = None) -> None:
        """Adds tokens of the page or of a question, at positions from `start` on, by default those behind the last."""
        start = len(self.tokens) if start is None else start
        self.tokens += [token._replace(position=start + n, question=question) for n, token in enumerate(tokens)]

    def add_base(self, page: PageTokens, cells: tuple[int, int]) -> None:
        """Adds a token for each of rows x columns cells: the mean of its wordpieces, at the middle of the cell."""
        (rows, columns), side, start = cells, page.side, len(self.tokens)
        heights, widths = (
            ((np.arange(n) + 0.5) * length / n).astype(int).tolist()
            for n, length in ((rows, 2 * side), (columns, side))
        )
        self.add([PackedToken(base=True, half_row=y, column=x) for y in heights for x in widths])
        cell = page.half_rows * rows // (2 * side) * columns + page.columns * columns // side
        weight = 1.0 / np.bincount(cell, minlength=rows * columns)[cell]
        self.held += zip((start + cell).tolist(), page.pieces.tolist(), weight.tolist(), strict=True)

    def ask(
        self,
        questions: Sequence[Question],
        prompting: Prompting,
        foremost: Sequence[Sequence[PackedToken]] | None = None,
    ) -> None:
        """Adds questions and their answers, each behind the page as if it were the only one. `foremost`: for each the
        fetched tokens that come once more, right before it."""
        end = len(self.tokens)
        for number, question in enumerate(questions):
            before, answer = prompting.question(question.text), prompting.answer(question.answers[0])
            tells = [False] * (len(before) - 1) + [True] * len(answer) + [False]
            told = [PackedToken(i, answer=own) for i, own in zip([*before, *answer], tells, strict=True)]
            self.add([*(foremost[number] if foremost else ()), *told], number, end)
            self.kinds.append(question.kind)


def stacked(pages: Sequence[PackedPage]) -> PackedQuestions:
    """Pages of different lengths as one batch, padded at the end."""
    longest = max(len(page.tokens) for page in pages)
    padding = PackedToken()
    rows = [[*page.tokens, *[padding] * (longest - len(page.tokens))] for page in pages]
    names = {"id": "ids", "half_row": "half_rows", "column": "columns", "position": "positions"}
    columns = {
        names.get(name, name): torch.tensor([[token[place] for token in row] for row in rows])
        for place, name in enumerate(PackedToken._fields)
    }
    held = [(number * longest + at, piece, w) for number, page in enumerate(pages) for at, piece, w in page.held]
    cells, pieces, weights = (list(column) for column in zip(*held, strict=True)) if held else ([], [], [])
    return PackedQuestions(
        **columns,
        cells=torch.tensor(cells, dtype=torch.long),
        held=torch.tensor(pieces, dtype=torch.long),
        weights=torch.tensor(weights),
        kinds=tuple(kind for page in pages for kind in page.kinds),
    )


def seen(batch: PackedQuestions, dtype: torch.dtype = torch.float32) -> Tensor:
    """[P, 1, S, S] the additive attention mask: a token sees those before it on the page and in its own question. It is
    not a bool mask, because eager attention adds masks of any type to its scores."""
    question, length = batch.question, batch.ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=question.device).tril()
    own = (question[:, :, None] == question[:, None]) | (question[:, None] == -1)
    hidden = ~(causal & own)[:, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=question.device).masked_fill(hidden, torch.finfo(dtype).min)


def spans(batch: PackedQuestions) -> list[tuple[int, int]]:
    """[start, end) of the page and of each question, for `written_out`; none of a batch of several pages."""
    if len(batch.ids) > 1:
        return []
    starts = (batch.question[0].diff() != 0).nonzero()[:, 0] + 1
    return list(itertools.pairwise([0, *starts.tolist(), batch.ids.shape[1]]))


class AdaptedModel:
    """A run's language model with a LoRA adapter: new, or as the run's stages have trained it so far.

    Args:
        run: whose language model it is; frozen, in `dtype`.
        rank: of a new adapter.
        dtype: of the model; the adapter's weights are in float32, in whose place small steps would be lost in rounding.
    """

    def __init__(self, run: Run, rank: int, dtype: torch.dtype) -> None:
        self.dtype, self.table = dtype, run.model.get_input_embeddings().requires_grad_(False)
        self.lm_head = run.model.lm_head.to(dtype).requires_grad_(False)
        decoder = run.model.model.language_model.to(dtype).requires_grad_(False)
        trained = dict(run.adapter)
        rank = next((len(weight) for name, weight in trained.items() if "lora_A" in name), rank)
        lora = LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear")
        self.model = get_peft_model(decoder, lora)
        if trained:
            set_peft_model_state_dict(self.model, trained)
        self.adapter = nn.ParameterList(each for each in self.model.parameters() if each.requires_grad)

    def answers(self, embeds: Tensor, batch: PackedQuestions) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [t, V] of all tokens of answers, the tokens [t], and the number of each one's question [t]. The
        batch's embeddings are [P, S, D]."""
        written_out = self.model.config._attn_implementation == WRITTEN_OUT
        hidden = self.model(
            inputs_embeds=embeds.to(self.dtype),
            attention_mask=seen(batch, self.dtype),
            position_ids=batch.positions,
            use_cache=False,
            **({"spans": spans(batch)} if written_out else {}),
        ).last_hidden_state
        counts = batch.question.amax(1) + 1
        number = batch.question + (counts.cumsum(0) - counts)[:, None]
        return self.lm_head(hidden[batch.answer]), batch.ids.roll(-1, 1)[batch.answer], number[batch.answer]

    @torch.no_grad()
    def exact(self, embeds: Tensor, batch: PackedQuestions) -> list[bool]:
        """Whether every token of an answer is the most probable one, of each question."""
        logits, targets, number = self.answers(embeds, batch)
        hits = (logits.argmax(-1) == targets).long()
        right = torch.ones(len(batch.kinds), dtype=torch.long, device=hits.device)
        return right.scatter_reduce(0, number, hits, "amin").bool().tolist()

    def leave(self, run: Run) -> None:
        """Hands the adapter to the run, whose model keeps its own language model: `arr-coc assemble` merges both."""
        run.adapter = get_peft_model_state_dict(self.model)
        self.model.unload()


def load_adapter(model: Path) -> dict[str, Tensor]:
    """The adapter that `save_adapter` wrote, by the names that PEFT gives an adapter of the decoder alone."""
    weights = load_file(model / LANGUAGE_ADAPTER / _ADAPTER_WEIGHTS)
    return {name.replace(_OUTER, _INNER, 1): weight for name, weight in weights.items()}


def save_adapter(state: Mapping[str, Tensor], model: Path) -> None:
    """Writes an adapter of a decoder as one of the causal language model around it, in PEFT's own files.

    Args:
        state: by the names that PEFT gives an adapter of the decoder alone.
        model: the folder that gets it, in a folder of its own: transformers would take an adapter that lies beside
            weights for one of the whole model.
    """
    folder = model / LANGUAGE_ADAPTER
    renamed = {name.replace(_INNER, _OUTER, 1): weight.contiguous() for name, weight in state.items()}
    rank = next(len(weight) for name, weight in state.items() if "lora_A" in name)
    targets = sorted({name.split(".")[-3] for name in state})
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, task_type="CAUSAL_LM", inference_mode=True)
    config.save_pretrained(str(folder))
    save_file(renamed, folder / _ADAPTER_WEIGHTS)
