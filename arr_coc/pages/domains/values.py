"""The texts of synthetic documents: pools of words, names of fields, values by kind, and wordings of questions.

Each word of a pool belongs to one split: see `arr_coc.pages.splits`.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np

from ..splits import Split, check_split, items_of, part

WORDS = items_of("domains/words.txt")
FIRST_NAMES, LAST_NAMES, CITIES, COMPANIES = (WORDS[name] for name in ("first name", "last name", "city", "company"))
TITLES, UNHEARD_FIELDS, FIELDS = (WORDS[name] for name in ("title", "unheard field", "field"))
_MADE_UP = 0.5  # share of training words and unknown fields that are in no pool, so that words cannot be guessed
_ONSETS, _VOWELS, _CODAS = WORDS["onset"], WORDS["vowel"], ("", "", "", *WORDS["coda"])


def pick(rng: np.random.Generator, items: Sequence[str]) -> str:
    """One item, uniformly."""
    return items[int(rng.integers(len(items)))]


def letters(rng: np.random.Generator, alphabet: str, length: int) -> str:
    """`length` characters drawn uniformly and independently."""
    return "".join(alphabet[i] for i in rng.integers(len(alphabet), size=length))


def made_up_word(rng: np.random.Generator) -> str:
    """A capitalised word of 3 to 9 letters that is in no pool: pronounceable or plain random letters, half each."""
    if rng.random() < 0.5:
        return letters(rng, string.ascii_lowercase, int(rng.integers(3, 9))).capitalize()
    word = "".join(pick(rng, _ONSETS) + pick(rng, _VOWELS) + pick(rng, _CODAS) for _ in range(int(rng.integers(1, 4))))
    return word.ljust(3, "n")[:9].capitalize()


def unheard_name(rng: np.random.Generator, split: Split) -> str:
    """A field's name that `FIELDS` lacks, in lower case: a word of the split, in training half of the time made up."""
    if split == "train" and rng.random() < _MADE_UP:
        return made_up_word(rng).lower()
    return pick(rng, part(UNHEARD_FIELDS, split))


KINDS = ("amount", "date", "time", "number", "code", "seat", "name", "city", "company", "phone")  # kinds of values
_WORDS = ("name", "city", "company")
_TRAINED_KINDS = (*KINDS, *_WORDS * 2)
"""Kinds of values for training if any kind is possible; with more words, which a model tends to guess."""


def _digits(rng: np.random.Generator, length: int) -> str:
    return pick(rng, "123456789") + letters(rng, string.digits, length - 1)


def draw_value(rng: np.random.Generator, kind: str, split: Split) -> str:
    """A value of one of `KINDS`; words are of the split, in training half of the time made up."""
    made_up = kind in _WORDS and split == "train" and rng.random() < _MADE_UP
    match kind:
        case "amount":
            whole = int(_digits(rng, int(rng.choice([1, 2, 3, 4], p=[0.25, 0.4, 0.25, 0.1]))))
            sign = "$" if rng.random() < 0.35 else ""
            return f"{sign}{whole:,}.{rng.integers(100):02d}"
        case "date":
            return f"{rng.integers(1, 32):02d}/{rng.integers(1, 13):02d}/{rng.integers(100):02d}"
        case "time":
            return f"{rng.integers(24):02d}:{rng.integers(60):02d}"
        case "number":
            length = int(rng.integers(1, 9))
            return letters(rng, string.digits, length) if length > 2 and rng.random() < 0.15 else _digits(rng, length)
        case "code":
            text = letters(rng, string.ascii_uppercase + string.digits, int(rng.integers(3, 7)))
            if len(text) < 6 and rng.random() < 0.12:
                cut = int(rng.integers(1, len(text)))
                text = f"{text[:cut]}-{text[cut:]}"
            return text
        case "seat":
            letter, number = pick(rng, string.ascii_uppercase), str(rng.integers(1, 100))
            return letter + number if rng.random() < 0.7 else number + letter
        case "phone":
            return f"{_digits(rng, int(rng.choice([3, 3, 4])))}-{letters(rng, string.digits, 4)}"
        case "name" if made_up:
            return made_up_word(rng)
        case "name":
            return pick(rng, part(FIRST_NAMES if rng.random() < 0.6 else LAST_NAMES, split))
        case "city" if made_up:
            return " ".join(made_up_word(rng)[:7] for _ in range(1 + int(rng.random() < 0.15)))
        case "company" if made_up:
            return f"{made_up_word(rng)[:7]}{pick(rng, (' ', ' & '))}{made_up_word(rng)[:6]}"
    return pick(rng, part(CITIES if kind == "city" else COMPANIES, split))


_PLAUSIBLE = {name: kinds.split("/") for name, kinds in (item.split("=") for item in WORDS["plausible kinds"])}


def sample_value(rng: np.random.Generator, field: str, *, split: Split) -> str:
    """A value for `field`: half of the time of a plausible kind, else of any kind, so that values cannot be guessed."""
    kinds: Sequence[str] = _PLAUSIBLE.get(field, ["number"])
    if rng.random() >= 0.5:
        kinds = _TRAINED_KINDS if split == "train" else KINDS
    return draw_value(rng, pick(rng, kinds), split)


def sample_pairs(
    rng: np.random.Generator, count: int, *, split: Split, fields: Sequence[str] = FIELDS
) -> list[tuple[str, str]]:
    """`count` pairs (field, value), or as many as there are `fields`; fields are distinct and so are values."""
    pairs: list[tuple[str, str]] = []
    seen: set[str] = set()
    for index in rng.permutation(len(fields))[:count]:
        field = fields[index]
        value = sample_value(rng, field, split=split)
        while value in seen:
            value = sample_value(rng, field, split=split)
        seen.add(value)
        pairs.append((field, value))
    return pairs


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
