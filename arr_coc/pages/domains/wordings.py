"""Wordings of questions about drawn pages, by split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..splits import Split, check_split
from .values import pick

SHARED_TEMPLATE = "What is the {field}?"

QUESTION_TEMPLATES_TRAIN: tuple[str, ...] = (
    SHARED_TEMPLATE,
    "what is the {field}?",
    "What is the {field}",
    "What's the {field}?",
    "Find the {field}.",
    "find the {field}",
    "Read the {field}",
    "Read the {field}.",
    "{Field}?",
    "{field}?",
    "{field}",
    "{Field}:",
    "Which {field} is given?",
    "Which {field} is on the page?",
    "What {field} does it say?",
    "What {field} is shown?",
    "Tell me the {field}.",
    "Give me the {field} please.",
    "Please find the {field}.",
    "What does the page say for {field}?",
    "What is written beside {field}?",
    "What value does the {field} have?",
    "What is the value of {field}?",
    "Can you read the {field}?",
    "I need the {field}.",
    "Show the {field}.",
    "{Field} please.",
)
QUESTION_TEMPLATES_TEST: tuple[str, ...] = (
    SHARED_TEMPLATE,
    "Please read the {field}.",
    "Can you find the {field}?",
    "Which {field} does the page show?",
    "Please tell me the {field}.",
    "What {field} is written?",
    "Give me the value of {field}.",
)
_SHARED_SHARE: dict[Split, float] = {"train": 0.15, "validation": 0.15, "test": 0.5}


def ask(rng: np.random.Generator, field: str, *, split: Split) -> str:
    """A question about `field` (lower case, one of `FIELDS`) in one of the split's wordings.

    The wording that all splits share has a probability of 0.5 in the test split and about 0.15 in the others.

    Raises:
        ValueError: an unknown split.
    """
    check_split(split)
    templates = QUESTION_TEMPLATES_TEST if split == "test" else QUESTION_TEMPLATES_TRAIN
    shared = rng.random() < _SHARED_SHARE[split]
    template = SHARED_TEMPLATE if shared else templates[1 + int(rng.integers(len(templates) - 1))]
    return template.format(field=field, Field=field.capitalize())


@dataclass(frozen=True)
class Wordings:
    """Wordings of one question, with `{names}` to fill in; those of the test split differ."""

    train: tuple[str, ...]
    test: tuple[str, ...]

    def draw(self, rng: np.random.Generator, split: Split, **names: str) -> str:
        """A random filled wording of the split."""
        return pick(rng, self.test if split == "test" else self.train).format(**names)


DOCUMENT_WORDINGS = Wordings(QUESTION_TEMPLATES_TRAIN, QUESTION_TEMPLATES_TEST)
"""The wordings of `ask`, which have different weights."""
