"""Splits of the synthetic pages: what training, the choices made in training, and the final measurement may show."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Literal, get_args

Split = Literal["train", "validation", "test"]
"""What pages are drawn from.

`train` and `test` share no font family, layout, wording or word of a pool. `validation` has families and words of its
own too, in the layouts and wordings of training: decisions are made on it, so that nothing is ever chosen on `test`.
"""

SPLITS: tuple[Split, ...] = get_args(Split)

_QUARTERS: tuple[Split, ...] = ("train", "train", "validation", "test")


def check_split(split: str) -> None:
    """Refuses what is no split.

    Raises:
        ValueError: so.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}; got {split!r}")


def split_of(word: str) -> Split:
    """The one split that shows a word of a pool: half of all words are for training, a quarter for each other split.

    It depends on the word alone, in whatever case, so that one that stands in two pools (Milan) is held out of both,
    and a pool that grows moves none of its words.
    """
    return _QUARTERS[zlib.crc32(word.casefold().encode()) % len(_QUARTERS)]


@lru_cache(maxsize=256)
def part(pool: tuple[str, ...], split: Split) -> tuple[str, ...]:
    """The words of a pool that a split shows, in the pool's order."""
    return tuple(word for word in pool if split_of(word) == split)
