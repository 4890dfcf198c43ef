"""Answers, and how they came about.

Notation: B prompts, I image slots, S prompt length, T tokens of the longest answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .chat_template import split_thinking
from .fetcher import FetchResult
from .origins import Origin, origins_of
from .vision_tower import ImageEncoding

if TYPE_CHECKING:
    from .modeling_arr_coc import ArrCocForConditionalGeneration


@dataclass(frozen=True)
class Pass:
    """One run back of several for a question, and what was answered after it.

    Attributes:
        text, probability: of the answer, as in `Answer`.
        uncertainty: of all that was written, thinking included, 0..1: see `answer_uncertainties`.
        share: of the patches, that was drawn and not chosen: see `passes.EXPLORATION`.
        fetch: what this pass fetched, and the map that it chose by (`fetch.relevance`).
    """

    text: str
    probability: float
    uncertainty: float
    share: float
    fetch: FetchResult = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """An answer and how it came about.

    Attributes:
        text: the answer.
        probability: of the whole answer, thinking and end included: the product of its tokens' probabilities.
        fetch: what was fetched, one row per image of the prompt.
        sources: where each saccade was fetched from, in px of what was asked about; see `Origin`.
        passes: the runs back in order, where there may be several (`num_passes`); `fetch` is all of theirs.
        output: with `return_dict_in_generate=True` what transformers' `generate` returned, a row for each answer.
        thinking: what was written before the answer, between <think> and </think>; "": nothing. Where tokens ran out
            within it, `text` is "".
    """

    text: str
    probability: float
    fetch: FetchResult
    sources: tuple[Origin, ...] = field(default=(), repr=False)
    passes: tuple[Pass, ...] = field(default=(), repr=False)
    output: Any = field(default=None, repr=False)
    thinking: str = field(default="", repr=False)


def with_fetch(
    texts: Sequence[str],
    probabilities: Sequence[float],
    fetch: FetchResult,
    encoding: ImageEncoding,
    images: Sequence[Sequence[int]],
    output: Any,
) -> list[Answer]:
    """Answers, as many to each prompt, with what was fetched for it.

    `texts`: all that was written; `images`: the sources that each prompt shows.
    """
    repeats = len(texts) // len(images)
    rows = torch.arange(sum(map(len, images))).split([len(own) for own in images])
    answers = []
    for number, (text, probability) in enumerate(zip(texts, probabilities, strict=True)):
        fetched = fetch.select(rows[number // repeats])
        sources = origins_of(fetched, encoding, images[number // repeats])
        thinking, said = split_thinking(text)
        answers.append(Answer(said, probability, fetched, sources, output=output, thinking=thinking))
    return answers


def answer_probabilities(
    model: "ArrCocForConditionalGeneration", output: Any, start: int, end: int | list[int] | Tensor, pad: int
) -> list[float]:
    """Of each answer, which begins at `start`: the product of the model's own probabilities, first end included."""
    tokens, beams = output.sequences[:, start:], getattr(output, "beam_indices", None)
    # transformers types the method for a protocol of its own, which no model declares
    scores = model.compute_transition_scores(  # type: ignore[misc]
        output.sequences, output.logits, beams, normalize_logits=True
    )
    behind = _behind(tokens, end, pad)
    return scores.masked_fill(behind[:, : scores.shape[1]], 0.0).sum(1).exp().tolist()


def answer_uncertainties(output: Any, start: int, end: int | list[int] | Tensor, pad: int) -> list[float]:
    """Of each answer, 0..1: mean entropy of its tokens' distributions, first end included, over log(vocabulary).

    Of greedy or drawn answers, not of beams.
    """
    entropies = torch.stack([torch.special.entr(step.float().softmax(-1)).sum(-1) for step in output.logits], 1)
    counted = ~_behind(output.sequences[:, start:], end, pad)[:, : entropies.shape[1]]
    mean = (entropies * counted).sum(1) / counted.sum(1)
    return (mean / math.log(output.logits[0].shape[-1])).tolist()


def _behind(tokens: Tensor, end: int | list[int] | Tensor, pad: int) -> Tensor:
    """bool [B, T]: tokens behind an answer's first end."""
    ends = torch.isin(tokens, torch.as_tensor(end, dtype=tokens.dtype, device=tokens.device).reshape(-1))
    behind = ends.cumsum(1) - ends.int() > 0
    return behind | ((tokens == torch.as_tensor(pad, device=tokens.device)) & ~ends)  # stopped by something else
