"""Wordings of questions by split, and the tokenizer of checkpoints trained from scratch, which has their words.

The tokenizer spells answers: a value is read character by character, so characters are its tokens. Question words are
single tokens, so that a scorer can match them. It is a byte-level BPE whose merges all begin with the space before a
word, so that only lower-case words after a space are merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .splits import Split, check_split
from .values import FIELDS, pick

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


SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
ROLES = ("system", "user", "assistant")
_SPACE = "Ġ"  # byte-level BPE's sign for a space


def question_words(wordings: Iterable[Wordings] = ()) -> list[str]:
    """The sorted lower-case words of training questions about documents, including fields.

    Args:
        wordings: wordings of domains, see `arr_coc.data.domains.WORDINGS`.
    """
    templates = [*QUESTION_TEMPLATES_TRAIN, *(template for wording in wordings for template in wording.train)]
    text = re.sub(r"{\w+}", " ", " ".join(templates)).lower()
    return sorted({*FIELDS, *(word for word in re.findall(r"[a-z]+", text) if len(word) > 1)})


def build_tokenizer(model_max_length: int = 1024, wordings: Iterable[Wordings] = ()) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 256 bytes, role names, special tokens of ChatML and images, and `question_words`."""
    merges: dict[tuple[str, str], None] = {}
    for word in question_words(wordings):
        for end in range(len(word)):
            merges[(_SPACE + word[:end], word[end])] = None
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(left + right for left, right in merges)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(role, normalized=False) for role in ROLES])
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=model_max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
