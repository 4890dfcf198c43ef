"""The font families that pages are drawn in, their splits, and the packages that hold them.

    python -m arr_coc.data.font_families              # the two commands that install all of them
    python -m arr_coc.data.font_families --install    # runs them: Debian or Ubuntu as root, and npm

Nothing is fetched at any other time, and pages are drawn with the families that are there. Debian's packages lie in
/usr/share/fonts, those of npm in ~/.local/share/fonts/arr_coc; both are where `find_fonts` looks.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import subprocess
from collections.abc import Collection
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


def install_commands(splits: Collection[Split] = SPLITS) -> list[list[str]]:
    """The commands that install the families of some splits, as lists of arguments: apt-get's and npm's."""
    packages = sorted({family.package for family in font_families() if family.split in splits})
    debian, npm = (
        [package.removeprefix(kind) for package in packages if package.startswith(kind)] for kind in ("debian:", "npm:")
    )
    folder = Path.home() / ".local/share/fonts/arr_coc"
    quiet = ["--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
    return [
        ["apt-get", "install", "-y", "--no-install-recommends", *debian],
        ["npm", "install", "--prefix", str(folder), *quiet, *npm],
    ]


def main() -> None:
    """Prints or runs what installs the fonts."""
    parser = argparse.ArgumentParser(description="Print the commands that install the fonts that pages are drawn in.")
    parser.add_argument("--install", action="store_true", help="run them (apt-get needs root)")
    parser.add_argument("--split", choices=SPLITS, nargs="+", default=SPLITS, help="the families of these alone")
    arguments = parser.parse_args()
    for command in install_commands(arguments.split):
        if arguments.install:
            Path.home().joinpath(".local/share/fonts/arr_coc").mkdir(parents=True, exist_ok=True)
            subprocess.run(command, check=True)
        else:
            print(shlex.join(command))


if __name__ == "__main__":
    main()
