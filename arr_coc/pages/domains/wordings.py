"""Wordings of questions about the fields of drawn pages, by split."""

from __future__ import annotations

import numpy as np

from ..splits import Split, check_split
from .values import WORDS, pick

TEMPLATES = {key: texts for key, texts in WORDS.items() if "question" in key}
"""Wordings by split and number of fields; the first for one field is the same in all splits."""
_SHARED_SHARE: dict[Split, float] = {"train": 0.15, "validation": 0.15, "test": 0.5}
_PLACES = ("first", "second", "third")


def ask(rng: np.random.Generator, *fields: str, split: Split) -> str:
    """A question about one to three fields (lower case) in one of the split's wordings; ValueError for an unknown
    split.

    For one field, the wording that all splits share has a probability of 0.5 in the test split and about 0.15 in the
    others.
    """
    check_split(split)
    several = f" of {len(fields)}" if len(fields) > 1 else ""
    templates = TEMPLATES[f"{'test' if split == 'test' else 'train'} question{several}"]
    if several:
        return pick(rng, templates).format(**dict(zip(_PLACES, fields, strict=False)))
    shared = rng.random() < _SHARED_SHARE[split]
    template = templates[0] if shared else templates[1 + int(rng.integers(len(templates) - 1))]
    return template.format(field=fields[0], Field=fields[0].capitalize())
