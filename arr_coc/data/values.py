"""What synthetic documents say: field names, and seeded generators of values by kind."""

# ruff: noqa: SIM905 (word lists are readable as running text, not as quoted strings)
from __future__ import annotations

import string
from collections.abc import Callable, Sequence

import numpy as np

from .pools import CITIES, COMPANIES, FIRST_NAMES, LAST_NAMES, UNHEARD_FIELDS
from .splits import Split, part

FIELDS: tuple[str, ...] = tuple(
    """total subtotal tax tip date time name phone city code order invoice price quantity seat gate flight train
    platform room floor table ticket bus lane dock batch lot serial model weight height width speed temp voltage pin zip
    unit account""".split()
)

_MADE_UP = 0.5  # share of training words and unheard-of fields that are in no pool, so that reading is not guessing
_ONSETS = "b c d f g h j k l m n p q r s t v w x y z br ch cl cr dr fl gr kn pl pr sh sl sp st str th tr wh".split()
_VOWELS = "a e i o u y ai au ea ee ei ia ie oa oo ou".split()
_CODAS = ("", "", "", *"b ck d f g l ll m n nd ng p r rt s sk ss st t tt v x z".split())


def pick(rng: np.random.Generator, items: tuple[str, ...] | list[str] | str) -> str:
    """One item, uniformly."""
    return items[int(rng.integers(len(items)))]


def letters(rng: np.random.Generator, alphabet: str, length: int) -> str:
    """`length` characters drawn uniformly and independently."""
    return "".join(alphabet[i] for i in rng.integers(len(alphabet), size=length))


def distinct(draw: Callable[[], str], count: int) -> list[str]:
    """`count` texts, no two alike, drawn until there are as many."""
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[draw()] = None
    return list(texts)


def made_up_word(rng: np.random.Generator) -> str:
    """A capitalised word of 3 to 9 letters that is in no pool: pronounceable or plain random letters, half each."""
    if rng.random() < 0.5:
        return letters(rng, string.ascii_lowercase, int(rng.integers(3, 9))).capitalize()
    word = "".join(pick(rng, _ONSETS) + pick(rng, _VOWELS) + pick(rng, _CODAS) for _ in range(int(rng.integers(1, 4))))
    return word.ljust(3, "n")[:9].capitalize()


def unheard_name(rng: np.random.Generator, split: Split) -> str:
    """A field's name that `FIELDS` lacks, in lower case: one of the split's, in training half of the time no word."""
    if split == "train" and rng.random() < _MADE_UP:
        return made_up_word(rng).lower()
    return pick(rng, part(UNHEARD_FIELDS, split))


def _digits(rng: np.random.Generator, length: int) -> str:
    return pick(rng, "123456789") + letters(rng, string.digits, length - 1)


def _amount(rng: np.random.Generator, split: Split) -> str:
    whole = int(_digits(rng, int(rng.choice([1, 2, 3, 4], p=[0.25, 0.4, 0.25, 0.1]))))
    sign = "$" if rng.random() < 0.35 else ""
    return f"{sign}{whole:,}.{rng.integers(100):02d}"


def _date(rng: np.random.Generator, split: Split) -> str:
    return f"{rng.integers(1, 32):02d}/{rng.integers(1, 13):02d}/{rng.integers(100):02d}"


def _time(rng: np.random.Generator, split: Split) -> str:
    return f"{rng.integers(24):02d}:{rng.integers(60):02d}"


def _number(rng: np.random.Generator, split: Split) -> str:
    length = int(rng.integers(1, 9))
    return letters(rng, string.digits, length) if length > 2 and rng.random() < 0.15 else _digits(rng, length)


def _code(rng: np.random.Generator, split: Split) -> str:
    text = letters(rng, string.ascii_uppercase + string.digits, int(rng.integers(3, 7)))
    if len(text) < 6 and rng.random() < 0.12:
        cut = int(rng.integers(1, len(text)))
        text = f"{text[:cut]}-{text[cut:]}"
    return text


def _seat(rng: np.random.Generator, split: Split) -> str:
    letter, number = pick(rng, string.ascii_uppercase), str(rng.integers(1, 100))
    return letter + number if rng.random() < 0.7 else number + letter


def _name(rng: np.random.Generator, split: Split) -> str:
    if split == "train" and rng.random() < _MADE_UP:
        return made_up_word(rng)
    return pick(rng, part(FIRST_NAMES if rng.random() < 0.6 else LAST_NAMES, split))


def _city(rng: np.random.Generator, split: Split) -> str:
    if split == "train" and rng.random() < _MADE_UP:
        return " ".join(made_up_word(rng)[:7] for _ in range(1 + int(rng.random() < 0.15)))
    return pick(rng, part(CITIES, split))


def _company(rng: np.random.Generator, split: Split) -> str:
    if split == "train" and rng.random() < _MADE_UP:
        return f"{made_up_word(rng)[:7]}{pick(rng, (' ', ' & '))}{made_up_word(rng)[:6]}"
    return pick(rng, part(COMPANIES, split))


def _phone(rng: np.random.Generator, split: Split) -> str:
    return f"{_digits(rng, int(rng.choice([3, 3, 4])))}-{letters(rng, string.digits, 4)}"


KINDS: dict[str, Callable[[np.random.Generator, Split], str]] = {
    "amount": _amount, "date": _date, "time": _time, "number": _number, "code": _code, "seat": _seat, "name": _name,
    "city": _city, "company": _company, "phone": _phone,
}  # fmt: skip
KIND_NAMES: tuple[str, ...] = tuple(KINDS)
_TRAINED_KINDS = (*KIND_NAMES, *("name", "city", "company") * 2)
"""What training draws from where any kind may come: words are the hardest to spell, as a model guesses them."""

KIND_PATTERNS: dict[str, str] = {
    "amount": r"\$?\d{1,3}(,\d{3})?\.\d{2}",
    "date": r"\d{2}/\d{2}/\d{2}",
    "time": r"\d{2}:\d{2}",
    "number": r"\d{1,8}",
    "code": r"(?=.{2,6}$)[A-Z0-9]+(-[A-Z0-9]+)?",
    "seat": r"[A-Z]\d{1,2}|\d{1,2}[A-Z]",
    "name": r"[A-Z][a-z]+",
    "city": r"[A-Z][a-z]+( [A-Z][a-z]+)*",
    "company": r"[A-Z][a-z]+( (& )?[A-Z][a-z]+)*",
    "phone": r"\d{3,4}-\d{4}",
}
"""Full-match regular expressions of the values of each kind."""

_PLAUSIBLE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("total", "subtotal", "tax", "tip", "price"), ("amount",)),
    "date": ("date",),
    "time": ("time",),
    "name": ("name",),
    "city": ("city",),
    "phone": ("phone",),
    **dict.fromkeys(("code", "order", "invoice", "ticket", "batch", "lot", "serial", "model"), ("code", "number")),
    **dict.fromkeys(("seat", "gate", "dock", "table", "room"), ("seat", "number")),
    **dict.fromkeys(("flight", "train", "bus", "unit"), ("code", "seat", "number")),
}


def plausible_kinds(field: str) -> tuple[str, ...]:
    """The kinds a reader would expect of a field; fields without an entry are plain numbers."""
    return _PLAUSIBLE.get(field, ("number",))


def sample_value(rng: np.random.Generator, field: str, *, split: Split) -> str:
    """A value for `field`: of a plausible kind half of the time, else of any kind, so that values cannot be guessed."""
    kinds = plausible_kinds(field) if rng.random() < 0.5 else _TRAINED_KINDS if split == "train" else KIND_NAMES
    return KINDS[pick(rng, kinds)](rng, split)


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
