"""The language model's side: prompts about pages, and the LoRA adapter that learns to read them.

Several questions share a page's tokens: each sees the page and itself, as if it were asked alone. The adapter is
trained in half precision and written to the files that PEFT reads it from.

Notation: P pages, S tokens of a page and the questions about it, D width of the language model, V its vocabulary.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.adapters import LANGUAGE_ADAPTER
from arr_coc.pages.page import Question

from ..attention import WRITTEN_OUT
from ..stages import Run
from .targets import PageTokens

QUESTION_LENGTH = 96
"""Most tokens of a question and its answer; longer ones are not asked."""

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
    """A batch: P pages as tokens, each with questions behind it.

    Attributes:
        ids: [P, S] of text; of fetched tokens their wordpiece; 0 for base tokens.
        fetched, base: [P, S] bool, which tokens are such.
        half_rows, columns: [P, S] place of those.
        cells: [e] flat index (in P x S) of base tokens that hold wordpieces; `held` [e] those, `weights` [e] theirs.
        positions: [P, S] places in the prompt, from 0; each question goes on where the page ends.
        question: [P, S] number of the question, -1 on the page, -2 on padding.
        answer: [P, S] bool, True where the next token is part of an answer.
        relevance: [P, S] as predicted for the question of a fetched token; 0 on others.
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
    relevance: Tensor
    kinds: tuple[str, ...]

    def to(self, device: torch.device) -> "PackedQuestions":
        """The same on `device`."""
        tensors = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "kinds"}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


@dataclass(frozen=True)
class Again:
    """Fetched tokens of a page that one question has once more, right before it.

    Attributes:
        tokens: the wordpieces.
        relevance: of each, as predicted.
    """

    tokens: PageTokens
    relevance: np.ndarray


@dataclass
class PackedPage:
    """One page under construction: parallel lists, a value for each token."""

    ids: list[int] = field(default_factory=list)
    fetched: list[bool] = field(default_factory=list)
    base: list[bool] = field(default_factory=list)
    half_rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    question: list[int] = field(default_factory=list)
    answer: list[bool] = field(default_factory=list)
    relevance: list[float] = field(default_factory=list)

    def add(
        self,
        ids: Sequence[int],
        *,
        question: int = -1,
        start: int | None = None,
        answer: Sequence[bool] | None = None,
        half_rows: Sequence[int] | None = None,
        columns: Sequence[int] | None = None,
        kind: str = "text",
    ) -> None:
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
        self.relevance += [0.0] * count

    def add_fetched(self, page: PageTokens, *, question: int = -1, start: int | None = None) -> None:
        """Fetched tokens: wordpieces with their places."""
        ids, half_rows, columns = (each.tolist() for each in (page.pieces, page.half_rows, page.columns))
        self.add(ids, question=question, start=start, half_rows=half_rows, columns=columns, kind="fetched")

    def ask(
        self, questions: Sequence[Question], prompting: Prompting, foremost: Sequence["Again"] | None = None
    ) -> None:
        """Adds questions and their answers, each behind the page as if it were the only one.

        `foremost`: for each the fetched tokens that come once more, right before it.
        """
        end = len(self.ids)
        for number, question in enumerate(questions):
            start = end
            if foremost is not None:
                again, length = foremost[number], len(self.ids)
                self.add_fetched(again.tokens, question=number, start=start)
                self.relevance[length:] = again.relevance.tolist()
                start += len(self.ids) - length
            before, answer = prompting.question(question.text), prompting.answer(question.answers[0])
            tells = [False] * (len(before) - 1) + [True] * len(answer) + [False]
            self.add([*before, *answer], question=number, start=start, answer=tells)


def stacked(pages: Sequence[tuple[PackedPage, list[tuple[int, int, float]], list[str]]]) -> PackedQuestions:
    """Pages of different lengths as one batch, padded at the end."""
    longest = max(len(row.ids) for row, _, _ in pages)

    def padded(name: str, fill: float) -> Tensor:
        rows = [getattr(row, name) for row, _, _ in pages]
        return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])

    held = [(page * longest + at, piece, w) for page, (_, found, _) in enumerate(pages) for at, piece, w in found]
    cells, pieces, weights = (list(column) for column in zip(*held, strict=True)) if held else ([], [], [])
    columns = {name: padded(name, False) for name in ("fetched", "base", "answer")}
    columns |= {name: padded(name, 0) for name in ("ids", "half_rows", "columns", "positions")}
    columns["relevance"] = padded("relevance", 0.0)
    return PackedQuestions(
        **columns,
        question=padded("question", -2),
        cells=torch.tensor(cells, dtype=torch.long),
        held=torch.tensor(pieces, dtype=torch.long),
        weights=torch.tensor(weights),
        kinds=tuple(kind for _, _, kinds in pages for kind in kinds),
    )


def seen(batch: PackedQuestions, dtype: torch.dtype = torch.float32) -> Tensor:
    """[P, 1, S, S] the additive attention mask: a token sees those before it on the page and in its own question.

    It is not a bool mask, because eager attention adds masks of any type to its scores.
    """
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


class Adapter(nn.Module):
    """Float32 copies of an adapter that may compute in bfloat16, in whose rounding small steps would be lost.

    Gradients go to the copies as they come, and `write` puts the copies' values into the adapter.
    """

    def __init__(self, model: PeftModel, dtype: torch.dtype) -> None:
        super().__init__()
        self.working = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.masters = nn.ParameterList(nn.Parameter(each.detach().float().clone()) for each in self.working)
        for each, master in zip(self.working, self.masters, strict=True):
            each.data = each.data.to(dtype)
            each.register_post_accumulate_grad_hook(lambda own, master=master: self._hand_over(own, master))

    @staticmethod
    def _hand_over(own: Tensor, master: nn.Parameter) -> None:
        assert own.grad is not None
        gradient = own.grad.float()
        master.grad = gradient if master.grad is None else master.grad + gradient
        own.grad = None

    @torch.no_grad()
    def write(self) -> None:
        """The copies' values into the adapter."""
        for each, master in zip(self.working, self.masters, strict=True):
            each.copy_(master)


class AdaptedModel:
    """A run's language model with a LoRA adapter: new, or as the run's stages have trained it so far.

    Args:
        run: whose language model it is; frozen, in `dtype`.
        rank: of a new adapter.
        dtype: that all of it computes in.
    """

    def __init__(self, run: Run, rank: int, dtype: torch.dtype) -> None:
        self.dtype, self.table = dtype, run.model.get_input_embeddings().requires_grad_(False)
        self.lm_head = run.model.lm_head.to(dtype).requires_grad_(False)
        decoder = run.model.model.language_model.to(dtype).requires_grad_(False)
        trained = dict(run.adapter)
        rank = next((len(weight) for name, weight in trained.items() if "lora_A" in name), rank)
        lora = LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear")
        self.model = get_peft_model(decoder, lora, autocast_adapter_dtype=False)
        if trained:
            set_peft_model_state_dict(self.model, trained)
        self.adapter = Adapter(self.model, dtype)

    def answers(self, embeds: Tensor, batch: PackedQuestions) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [t, V] of all tokens of answers, the tokens [t], and the number of each one's question [t].

        The batch's embeddings are [P, S, D]. The adapter is as it was last written (`Adapter.write`).
        """
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
        self.adapter.write()
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
