"""Calls on one model at the same time: none fails, and each gets the answer that it gets alone."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tests.fuzz.tally import Tally
from tests.helpers import noise, tiny_model

WORKERS = 8
"""Calls at the same time."""

QUESTIONS = ("What is the total?", "total", "What is the date of the second line? " * 4, "é?", ("a", "a longer one"))


class Call(NamedTuple):
    """`image`: its number, encoded or not; `padding`: of the processor alone, which else does not run by itself."""

    image: int
    question: str | tuple[str, ...]
    budget: int
    strategy: str
    padding: bool | None


def draw(seed: int) -> Call:
    drawn = random.Random(seed)
    strategy = drawn.choice(("realizer", "saliency", "clip_query"))
    padding = drawn.choice((None, None, True, False))
    return Call(drawn.randrange(6), drawn.choice(QUESTIONS), drawn.choice((0, 5, 17)), strategy, padding)


class Shared:
    """One model, with images and encodings of them, that all threads use."""

    def __init__(self) -> None:
        self.model = tiny_model()
        images = [noise(60, 90 + number, number) for number in range(3)]
        self.images = [*images, *(self.model.encode_image(image) for image in images)]

    def answer(self, call: Call) -> Any:
        """What comes of a call, comparable."""
        question = list(call.question) if isinstance(call.question, tuple) else call.question
        if call.padding is not None:  # a state of the tokenizer that `generate` writes prompts with
            processor, texts = self.model.processor, question if isinstance(question, list) else [question]
            shown = [[self.images[call.image % 3]]] * len(texts)
            return processor(shown, [processor.prompt(text) for text in texts], padding=call.padding)["input_ids"]
        options = {"budget": call.budget, "strategy": call.strategy, "max_new_tokens": 3}
        answers = self.model.generate(self.images[call.image], question, return_fetch=True, **options)
        rows = answers if isinstance(answers, list) else [answers]
        return [(answer.text, answer.fetch.indices.tolist()) for answer in rows]


def fuzz(count: int, seed: int) -> Tally:
    shared = Shared()
    calls = {number: draw(number) for number in range(seed, seed + count)}
    alone = {call: shared.answer(call) for call in set(calls.values())}
    tally = Tally()

    def check(call: Call, answer: Any) -> str | None:
        return None if answer == alone[call] else f"got {answer}, alone {alone[call]}"

    def attempt(number: int) -> None:
        call = calls[number]
        tally.attempt(number, lambda: shared.answer(call), name=str(call), promised=(), check=lambda a: check(call, a))

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(attempt, calls))
    return tally
