"""An answer in the steps in which it comes: which patches were fetched, then the text as it grows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from ..modeling.asker import Answer
from ..modeling.chat_template import split_thinking
from ..modeling.fetcher import FetchResult
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.vision_tower import ImageEncoding


@dataclass(frozen=True)
class Step:
    """How far an answer has come.

    Attributes:
        fetch: which patches the question gets; one row.
        text: the answer so far.
        probability: of the whole answer, in 0..1; None until it is whole.
    """

    fetch: FetchResult
    text: str = ""
    probability: float | None = None


def answer_in_steps(
    model: ArrCocForConditionalGeneration, encoding: ImageEncoding, question: str, **choices: Any
) -> Iterator[Step]:
    """The steps of an answer about one encoded image; the last one has its probability.

    The first step comes before the first token. Generation ends at the next token once the steps are no longer read.

    Args:
        model: the one that answers.
        encoding: what its `encode_image` returned.
        question: one question.
        **choices: `strategy`, `budget` and the like, as `generate` takes them.

    Raises:
        ValueError: what `generate` refuses.
    """
    news: SimpleQueue[FetchResult | str | Answer | Exception] = SimpleQueue()
    left = Event()

    def stop(input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return torch.full((len(input_ids),), left.is_set(), device=input_ids.device)

    def generate() -> None:
        try:
            answer = model.generate(
                encoding,
                question,
                return_fetch=True,
                on_fetch=news.put,
                streamer=_TextQueue(model.processor.tokenizer, news),
                stopping_criteria=StoppingCriteriaList([stop]),
                **choices,
            )
        except Exception as error:  # raised again by the thread that reads
            news.put(error)
        else:
            news.put(answer)

    Thread(target=generate, daemon=True).start()
    try:
        yield from _steps(news)
    finally:
        left.set()


def _steps(news: SimpleQueue[Any]) -> Iterator[Step]:
    """One step for each piece of news, up to the whole answer."""
    step: Step | None = None
    while step is None or step.probability is None:
        item = news.get()
        if isinstance(item, Exception):
            raise item
        if step is None:
            step = Step(item)
        elif isinstance(item, Answer):
            step = replace(step, text=item.text, probability=item.probability)
        else:
            step = replace(step, text=item)
        yield step


class _TextQueue(BaseStreamer):
    """Puts the text so far into a queue with every token; transformers' streamers wait for whole words."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, queue: SimpleQueue[Any]) -> None:
        self._tokenizer, self._queue = tokenizer, queue
        self._tokens: list[int] | None = None  # until the prompt came

    def put(self, value: Tensor) -> None:
        if self._tokens is None:
            self._tokens = []
            return
        self._tokens += value.flatten().tolist()
        (text,) = self._tokenizer.batch_decode([self._tokens], skip_special_tokens=True)
        said = split_thinking(text.strip())[1]
        self._queue.put(said.rstrip("\N{REPLACEMENT CHARACTER}"))  # a character whose bytes are not all there

    def end(self) -> None:
        """The answer itself says that it is whole."""
