"""Splits: the content of training, of validation, and of the test.

Words, names, wordings, formats and layouts of generated pages are also held out, pool by pool.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from random import Random
from typing import Literal, TypeVar, get_args

Split = Literal["train", "validation", "test"]
"""A split of the content of pages.

`train` and `test` share no font family, layout, wording or word of a pool. `validation` has other families and words
than both, in the layouts and wordings of training. Decisions are made on it, so that nothing is chosen on `test`.
"""

SPLITS: tuple[Split, ...] = get_args(Split)

_QUARTERS: tuple[Split, ...] = ("train", "train", "validation", "test")


def check_split(split: str) -> None:
    """Refuses an unknown split.

    Raises:
        ValueError: the split is unknown.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}; got {split!r}")


def split_of(word: str) -> Split:
    """The split of a word of a pool: half of all words are for training, a quarter for each other split.

    It depends on the word only, ignoring case, so that a word in two pools (Milan) has one split, and words keep their
    split when a pool grows.
    """
    return _QUARTERS[zlib.crc32(word.casefold().encode()) % len(_QUARTERS)]


@lru_cache(maxsize=256)
def part(pool: tuple[str, ...], split: Split) -> tuple[str, ...]:
    """A split's words of a pool, in the pool's order."""
    return tuple(word for word in pool if split_of(word) == split)


# ruff: noqa: E501, SIM905 (lists are readable as running text)


T = TypeVar("T")

_HELD_OUT = 6  # one item in this number, rounded, is for validation, another for the test; at least one each


def share(pool: Sequence[T], split: Split, salt: str, core: int = 0) -> tuple[T, ...]:
    """A split's items of a pool, in the pool's order.

    Args:
        pool: at least `core` + 3 items with a stable text (`str(item)`).
        salt: the pool's name, so that an item can have different splits in different pools.
        core: the number of first items that are always for training, as all users' pages have them.

    Raises:
        ValueError: an unknown split, or a pool that is too small.
    """
    check_split(split)
    return _share(tuple(pool), split, salt, core)


@lru_cache(maxsize=512)
def _share(pool: tuple[T, ...], split: Split, salt: str, core: int) -> tuple[T, ...]:
    if len(pool) < core + 3:
        raise ValueError(f"{salt}: expected at least {core + 3} items; got {len(pool)}")
    ranked = sorted(pool[core:], key=lambda item: zlib.crc32(f"{salt}/{item}".encode()))
    count = max(1, round(len(ranked) / _HELD_OUT))
    held = {"test": ranked[:count], "validation": ranked[count : 2 * count]}
    if split != "train":
        own = held[split]
    else:
        out = {str(item) for part in held.values() for item in part}
        own = [item for item in pool if str(item) not in out]
    return tuple(item for item in pool if item in own)


def named(text: str) -> dict[str, tuple[str, ...]]:
    """Parses lines of `key: item; item; ...`; a key's items can continue in indented lines."""
    table: dict[str, tuple[str, ...]] = {}
    for line in re.sub(r"\n\s+", " ", text.strip()).splitlines():
        key, items = line.split(":", 1)
        table[key.strip()] = tuple(item.strip() for item in items.split(";") if item.strip())
    return table


_UNWANTED = "sex sexuality suicide murder rape killer incest genocide homicide homosexual homosexuality psychotic torture terrorist".split()


def _words(name: str) -> tuple[str, ...]:
    lists = files("wonderwords").joinpath("assets")
    profane = {*lists.joinpath("profanitylist.txt").read_text().split("\n"), *_UNWANTED}
    lines = lists.joinpath(name).read_text().split("\n")
    return tuple(dict.fromkeys(line for line in lines if line.isalpha() and line.islower() and line not in profane))


@lru_cache(maxsize=1)
def _nouns() -> tuple[str, ...]:
    return _words("nounlist.txt")


@lru_cache(maxsize=1)
def _adjectives() -> tuple[str, ...]:
    return _words("adjectivelist.txt")


@lru_cache(maxsize=1)
def _verbs() -> tuple[str, ...]:
    return _words("verblist.txt")


_ONSETS = "b c d f g h j k l m n p q r s t v w z br ch cl cr dr fl gr kn pl pr sh sl sp st str th tr".split()
_VOWELS = "a e i o u y ai au ea ee ei ia ie oa oo ou".split()
_CODAS = ["", "", "", *"b ck d f g l ll m n nd ng p r rt s sk ss st t tt x".split()]


class Words:
    """Draws English words of a split, and made-up words."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split = random, split

    def noun(self) -> str:
        """A noun in lower case, mostly singular."""
        return self.random.choice(share(_nouns(), self.split, "noun"))

    def adjective(self) -> str:
        """An adjective in lower case."""
        return self.random.choice(share(_adjectives(), self.split, "adjective"))

    def verb(self) -> str:
        """A verb in lower case, in its base form."""
        return self.random.choice(share(_verbs(), self.split, "verb"))

    def made_up(self) -> str:
        """A pronounceable word of 3 to 9 letters that is in no list, in lower case."""
        count = self.random.choice((1, 2, 2, 3))
        parts = (self.random.choice(pool) for _ in range(count) for pool in (_ONSETS, _VOWELS, _CODAS))
        return "".join(parts).ljust(3, "n")[:9]

    def thing(self) -> str:
        """One or two words that can name anything: "harvest", "quiet engine", "plorn"."""
        draw = self.random.random()
        if draw < 0.12:
            return self.made_up()
        if draw < 0.5:
            return f"{self.adjective()} {self.noun()}"
        return self.noun() if draw < 0.75 else f"{self.noun()} {self.noun()}"

    def sentence(self) -> str:
        """An English-like sentence of 6 to 16 words."""
        pattern = self.random.choice(share(_SENTENCES, self.split, "sentence"))
        slots = {"n": self.noun, "a": self.adjective, "v": self.verb, "t": self.thing}
        text = re.sub(r"\{(\w)\}", lambda match: slots[match[1]](), pattern)
        text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
        return text[0].upper() + text[1:]

    def text(self, sentences: int) -> str:
        """A text of `sentences` sentences."""
        return " ".join(self.sentence() for _ in range(sentences))


_SENTENCES = tuple(
    line.strip()
    for line in """
    The {a} {n} must {v} every {n} before the {n} is {a}.
    Please {v} the {n} and return it with the {a} {n}.
    If you {v} the {n}, the {n} will not {v} again.
    A {a} {n} is kept in the {n} next to the {n}.
    We were asked to {v} the {n} of each {a} {n}.
    Nobody may {v} a {n} without a {a} {n}.
    During the {n}, a {n} can {v} the {a} {n} at any time.
    This {n} is {a} and may {v} the other {n}.
    It is {a} to {v} the {n} when the {n} is near.
    As agreed, the {n} and the {n} will {v} the {a} {n}.
    The {n} was {a}, so the team decided to {v} it.
    Do not {v} the {n} while the {n} is {a}.
    In most cases a {a} {n} helps to {v} the {n}.
    You can {v} up to three {n} items with one {n}.
    The {n} of the {n} depends on the {a} {n}.
    After the {n} had gone, they began to {v} the {n}.
    Each {n} has a {n}, and each {n} has a {a} {n}.
    Thank you for your {n}; we will {v} the {n} soon.
    Our {a} {n} has been able to {v} more than one {n}.
    Where the {n} is {a}, use the {n} instead.
    To {v} the {n}, open the {n} and choose the {a} {n}.
    The report shows that the {n} did not {v} the {n}.
    Any {a} {n} found in the {n} should be sent to the {n}.
    For the {n} to be {a}, both sides have to {v} it.
    """.strip().splitlines()
)
