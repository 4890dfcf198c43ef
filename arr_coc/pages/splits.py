"""Splits: the content of training, of validation, and of the test.

Words, names, wordings, formats and layouts of generated pages are also held out, pool by pool.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Literal, TypeVar, get_args

Split = Literal["train", "validation", "test"]
"""A split of the content of pages.

No two share a font family, or a layout, wording or word of a pool. Decisions are made on `validation`, so that
nothing is chosen on `test`.
"""

SPLITS: tuple[Split, ...] = get_args(Split)
_QUARTERS: tuple[Split, ...] = ("train", "train", "validation", "test")


def check_split(split: str) -> None:
    """Refuses an unknown split by a ValueError."""
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


def items_of(name: str, sign: str = ";") -> dict[str, tuple[str, ...]]:
    """Items by key of a file beside this one. Lines are `key: item; item; ...`, or with another `sign`; a key's items
    can go on in indented lines."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    lines = (line.split(":", 1) for line in re.sub(r"\n\s+", " ", text.strip()).splitlines())
    return {key: tuple(item.strip() for item in items.split(sign)) for key, items in lines}


@lru_cache(maxsize=1)
def pools() -> dict[str, tuple[int, tuple[str, ...]]]:
    """By name, the number of first items of a pool that are always for training, and all items."""
    heads = ((head.partition("|"), items) for head, items in items_of("pools.txt").items())
    return {name.strip(): (int(core or 0), items) for (name, _, core), items in heads}


def listed(name: str) -> tuple[str, ...]:
    """All items of a pool of pools.txt, which are in every split."""
    return pools()[name][1]


def pairs(name: str) -> dict[str, str]:
    """The items `key=value` of a pool of pools.txt."""
    return dict(item.split("=") for item in listed(name))


def pool(name: str, split: Split) -> tuple[str, ...]:
    """A split's items of a pool of pools.txt."""
    core, items = pools()[name]
    return share(items, split, name, core)


def alternatives(name: str, split: Split) -> tuple[tuple[str, ...], ...]:
    """A split's items of a pool of pools.txt that are several texts each: `Yes/No`."""
    core, items = pools()[name]
    return share([tuple(item.split("/")) for item in items], split, name, core)


_UNWANTED = listed("unwanted")


@lru_cache(maxsize=3)
def _words(name: str) -> tuple[str, ...]:
    lists = files("wonderwords").joinpath("assets")
    profane = {*lists.joinpath("profanitylist.txt").read_text().split("\n"), *_UNWANTED}
    lines = lists.joinpath(f"{name}list.txt").read_text().split("\n")
    return tuple(dict.fromkeys(line for line in lines if line.isalpha() and line.islower() and line not in profane))


_ONSETS, _VOWELS = listed("onset"), listed("vowel")
_CODAS = ("", "", "", *listed("coda"))
_SENTENCES = tuple(Path(__file__).with_name("sentences.txt").read_text().splitlines())


class Words:
    """Draws English words of a split, and made-up words."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split = random, split

    def noun(self) -> str:
        """A noun in lower case, mostly singular."""
        return self.random.choice(share(_words("noun"), self.split, "noun"))

    def adjective(self) -> str:
        """An adjective in lower case."""
        return self.random.choice(share(_words("adjective"), self.split, "adjective"))

    def verb(self) -> str:
        """A verb in lower case, in its base form."""
        return self.random.choice(share(_words("verb"), self.split, "verb"))

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
