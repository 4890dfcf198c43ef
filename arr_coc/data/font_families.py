"""The font families that pages are drawn in: each belongs to one split, and to a package for `font_packages`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .splits import SPLITS, Split

_TABLE = Path(__file__).with_name("font_families.csv")


@dataclass(frozen=True)
class FontFamily:
    """A row of font_families.csv.

    Attributes:
        split: the one split whose pages show it.
        name: as its files say.
        package: `debian:NAME` or `npm:NAME@VERSION`; empty where neither has it.
        licence: SPDX's short name where there is one.
    """

    split: Split
    name: str
    package: str
    licence: str


@lru_cache(maxsize=1)
def font_families() -> tuple[FontFamily, ...]:
    """All families, by split and name.

    A family is for training or validation only if its letters are not those of a family held out under another name
    (`arr_coc.data.font_likeness` compares them), and it has all of `CHARSET` with lower case apart from upper case.
    """
    with _TABLE.open(encoding="utf-8", newline="") as table:
        return tuple(
            FontFamily(split, row["family"], row["package"], row["licence"])
            for row in csv.DictReader(table)
            for split in SPLITS
            if split == row["split"]
        )


@lru_cache(maxsize=len(SPLITS))
def family_names(split: Split) -> frozenset[str]:
    """The names of a split's families, installed or not."""
    return frozenset(family.name for family in font_families() if family.split == split)
