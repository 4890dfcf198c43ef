"""The steps of an answer, and a visitor's session and choices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple, Self

import torch
from PIL import Image
from torch import Tensor
from transformers import StoppingCriteriaList

from ..modeling.answers import split_thinking
from ..modeling.budgets import AUTO
from ..modeling.configuration_arr_coc import NAMED_BUDGETS, ArrCocConfig
from ..modeling.fetcher import FetchResult
from ..modeling.generation import Answer
from ..modeling.image_encoding import ImageEncoding
from ..modeling.image_loading import load_image
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.scorers import SCORERS
from ..viewing import draw_fetch


@dataclass(frozen=True)
class Step:
    """The state of an answer during generation."""

    fetch: FetchResult  # the fetched patches, one row
    text: str = ""  # the answer so far
    probability: float | None = None  # of the whole answer, 0..1; None until the answer is complete
    warning: str = ""


def answer_in_steps(
    model: ArrCocForConditionalGeneration, encoding: ImageEncoding, question: str, **choices: Any
) -> Iterator[Step]:
    """Yields the steps of an answer about one encoded image; the last step has the probability.

    The first step is before the first token. If the caller stops reading steps, generation ends at the next token.
    `choices`: `strategy`, `budget` and others of `generate`.

    Raises:
        ValueError: `generate` refuses the arguments.
    """
    news: SimpleQueue[FetchResult | str | Answer | Exception] = SimpleQueue()
    left, prompt = Event(), list[int]()

    def tell(input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Passes the text so far on at every token, where transformers' streamers wait for whole words."""
        if not prompt:
            prompt.append(input_ids.shape[1] - 1)  # the tokens before the first one
        text = model.processor.tokenizer.decode(input_ids[0, prompt[0] :], skip_special_tokens=True)
        said = split_thinking(text.strip())[1]
        news.put(said.rstrip("\N{REPLACEMENT CHARACTER}"))  # a character with missing bytes
        return torch.full((len(input_ids),), left.is_set(), device=input_ids.device)

    def generate() -> None:
        try:
            answer = model.generate(
                encoding,
                question,
                return_fetch=True,
                on_fetch=news.put,
                stopping_criteria=StoppingCriteriaList([tell]),
                **choices,
            )
        except Exception as error:  # raised again by the thread that reads
            news.put(error)
        else:
            news.put(answer)

    Thread(target=generate, daemon=True).start()
    step: Step | None = None
    try:
        while step is None or step.probability is None:
            item: Any = news.get()
            if isinstance(item, Exception):
                raise item
            if step is None:
                step = Step(item)
            elif isinstance(item, Answer):
                step = replace(step, text=item.text, probability=item.probability, warning=item.warning)
            else:
                step = replace(step, text=item)
            yield step
    finally:
        left.set()


REMEMBERED = 12  # the most answers whose pictures are kept


@dataclass(frozen=True)
class Session:
    """An image and the answers about it. A session is immutable: a further answer gives a new session."""

    image: Image.Image  # upright, RGB
    encoding: ImageEncoding  # the model's encoding of the image
    asked: tuple[tuple[Image.Image, str], ...] = ()  # picture and caption of each of the last answers, the newest first

    @classmethod
    def open(cls, model: ArrCocForConditionalGeneration, content: bytes) -> Self:
        """Decodes and encodes an uploaded file.

        Raises:
            ValueError: the file is not an image, is damaged or too large.
        """
        try:
            image = load_image(content)
        except ValueError as error:
            raise ValueError(f"image: {str(error).removeprefix('bytes: ')}") from error
        return cls(image, model.encode_image(image))

    def answered(self, question: str, steps: Sequence[Step]) -> Self:
        """The session after a question, with the whole answer of each strategy."""
        draw = partial(draw_fetch, self.image, question=question, turned=self.encoding.turned[0])
        pictures = [draw(step.fetch, text=step.text, probability=step.probability) for step in steps]
        captions = [f"{question} → {step.text or '(nothing)'} ({step.fetch.strategy})" for step in steps]
        return replace(self, asked=(*zip(pictures, captions, strict=True), *self.asked)[:REMEMBERED])


def strategies(config: ArrCocConfig) -> list[str]:
    """The strategies that a page can offer: "oracle" needs boxes, and trained scorers need their weights."""
    held = config.fetcher_config.scorers
    return [name for name, scorer in SCORERS.items() if name != "oracle" and (not scorer.trained or name in held)]


def budgets(config: ArrCocConfig) -> list[tuple[str, str]]:
    """Labels with the number of patches, and names of the budgets, including the configured one."""
    names = dict.fromkeys((*NAMED_BUDGETS, "all", str(config.fetcher_config.budget)))
    counts = {name: config.vision_tokens(budget=name)[1] for name in names if name != AUTO}
    labels = [(name if name == str(count) else f"{name}: {count} patches", name) for name, count in counts.items()]
    return [*labels, (f"{AUTO}: the model chooses", AUTO)]


class DemoExample(NamedTuple):
    """The path of an image, with a description of it and a question about it."""

    name: str
    path: Path
    question: str


EXAMPLES = (
    DemoExample("Receipt", Path("examples/images/receipt.png"), "What is the total?"),
    DemoExample("Receipt", Path("examples/images/receipt.png"), "What is the date?"),
    DemoExample("Page", Path("examples/held_out/images/00000.jpg"), "What is the phone?"),
)


def find_examples() -> Iterator[DemoExample]:
    """The examples whose images exist beside the package or in the working directory."""
    roots = (Path(__file__).resolve().parents[2], Path.cwd())
    for example in EXAMPLES:
        path = next((root / example.path for root in roots if (root / example.path).is_file()), None)
        if path is not None:
            yield example._replace(path=path)
