"""The packages of the font families, from Debian and npm.

python -m arr_coc.pages.font_packages              # prints the two commands that install all of them
    python -m arr_coc.pages.font_packages --install    # runs them: Debian or Ubuntu as root, and npm

Nothing else downloads fonts; pages are drawn with the installed families. Debian's packages are in
/usr/share/fonts, npm's in ~/.local/share/fonts/arr_coc (350 MB); `find_fonts` searches both.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
from collections.abc import Collection
from pathlib import Path

from .fonts import font_families
from .splits import SPLITS, Split


def install_commands(splits: Collection[Split] = SPLITS) -> list[list[str]]:
    """The commands of apt-get and npm that install the families of some splits, as lists of arguments."""
    packages = sorted({family.package for family in font_families() if family.split in splits})
    debian, npm = (
        [package.removeprefix(kind) for package in packages if package.startswith(kind)] for kind in ("debian:", "npm:")
    )
    folder = Path.home() / ".local/share/fonts/arr_coc"
    quiet = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
    return [
        ["apt-get", "install", "-y", "--no-install-recommends", *debian],
        ["npm", "install", "--prefix", str(folder), *quiet, *npm],
    ]


def main() -> None:
    """Prints or runs the commands that install the fonts."""
    parser = argparse.ArgumentParser(description="Print the commands that install the fonts that pages are drawn in.")
    parser.add_argument("--install", action="store_true", help="run them (apt-get needs root)")
    parser.add_argument(
        "--split", choices=SPLITS, nargs="+", default=SPLITS, help="only the families of these splits (default: all)"
    )
    arguments = parser.parse_args()
    for command in install_commands(arguments.split):
        if arguments.install:
            Path.home().joinpath(".local/share/fonts/arr_coc").mkdir(parents=True, exist_ok=True)
            subprocess.run(command, check=True)
        else:
            print(shlex.join(command))


if __name__ == "__main__":
    main()
