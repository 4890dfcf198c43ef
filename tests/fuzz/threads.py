"""Calls on one model at the same time: none fails, and each gets the answer that it gets alone."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.tally import Tally
from tests.helpers import tiny_model

WORKERS = 8
"""Calls at the same time."""

QUESTIONS = ("What is the total?", "total", "What is the date of the second line? " * 4, "é?", ["a", "a longer one"])


def fuzz(count: int, seed: int) -> Tally:
    model = tiny_model()
    pixels = np.random.default_rng(0)
    images = [Image.fromarray(pixels.integers(0, 256, (60, 90 + i, 3), dtype=np.uint8)) for i in range(3)]
    encodings = [model.encode_image(image) for image in images]

    def ask(image: Any, question: Any, budget: int, strategy: str) -> Any:
        answers = model.generate(image, question, budget=budget, strategy=strategy, return_fetch=True, max_new_tokens=3)
        answers = answers if isinstance(answers, list) else [answers]
        return [(answer.text, answer.fetch.indices.tolist()) for answer in answers]

    def draw(try_seed: int) -> tuple[Any, ...]:
        drawn = random.Random(try_seed)
        image = drawn.choice([*images, *encodings])
        return image, drawn.choice(QUESTIONS), drawn.choice((0, 5, 17)), drawn.choice(("realizer", "saliency"))

    alone: dict[str, Any] = {}
    calls = {try_seed: draw(try_seed) for try_seed in range(seed, seed + count)}
    keys = {try_seed: repr((id(call[0]), *call[1:])) for try_seed, call in calls.items()}
    for try_seed, call in calls.items():
        if keys[try_seed] not in alone:
            alone[keys[try_seed]] = ask(*call)
    tally = Tally()

    def check(try_seed: int, answers: Any) -> str | None:
        expected = alone[keys[try_seed]]
        return None if answers == expected else f"answers {answers}, alone {expected}"

    def attempt(try_seed: int) -> None:
        tally.attempt(
            try_seed, lambda: ask(*calls[try_seed]), promised=(), check=lambda answers: check(try_seed, answers)
        )

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(attempt, calls))
    return tally
