"""Installed fonts by family; each family belongs to one split and to a package for `font_packages`.

Families are split so that a model is tested on letter shapes that are not in training.
"""

from __future__ import annotations

import csv
import importlib.util
import logging
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ImageFont

from .splits import SPLITS, Split, check_split

_TABLE = Path(__file__).with_name("font_families.csv")


@dataclass(frozen=True)
class FontFamily:
    """A row of font_families.csv."""

    split: Split
    name: str  # in its files
    package: str  # `debian:NAME` or `npm:NAME@VERSION`; empty if neither has it
    licence: str  # SPDX's short name, if there is one


@lru_cache(maxsize=1)
def font_families() -> tuple[FontFamily, ...]:
    """All families, by split and name.

    A family is for training or validation only if its letters differ from all held-out families
    (`benchmarks.font_likeness` compares them), and if it has all of `CHARSET` with distinct lower and upper case.
    """
    with _TABLE.open(encoding="utf-8", newline="") as table:
        rows: Any = csv.DictReader(table)
        return tuple(FontFamily(row["split"], row["family"], row["package"], row["licence"]) for row in rows)


@lru_cache(maxsize=len(SPLITS))
def family_names(split: Split) -> frozenset[str]:
    """The names of a split's families, installed or not."""
    return frozenset(family.name for family in font_families() if family.split == split)


logger = logging.getLogger(__name__)

# Style names of usual weights, lower case, without words for width. URW's regular weights are named Light and Demi.
_REGULAR_STYLES = frozenset({"", "regular", "book", "roman", "medium", "bold"})
_ITALIC_WORDS = frozenset({"italic", "oblique"})
_URW_STYLES = {"URW Bookman": {"light": "regular", "demi": "bold"}, "URW Gothic": {"demi": "bold"}}

FONT_PATH = "ARR_COC_FONT_PATH"
"""The environment variable with the folders to search instead of the usual ones, separated as in PATH."""

_PIP_FONTS = {"matplotlib": "mpl-data/fonts/ttf", "rendercv_fonts": ""}  # DejaVu; EB Garamond, Lato, Roboto and others
_PACKAGES: dict[Split, str] = {  # some families of each split, for a minimal installation
    "train": "fonts-dejavu fonts-liberation",
    "validation": "fonts-paratype fonts-vollkorn fonts-jetbrains-mono",
    "test": "fonts-liberation fonts-freefont-ttf fonts-roboto fonts-lato fonts-open-sans",
}
_MIN_PIXELS = 4.0  # FreeType refuses a size of zero; smaller text is illegible anyway


@dataclass(frozen=True, order=True)
class FontFace:
    """One font file: its family (each width is a family), whether it is bold and italic, and its path."""

    family: str
    bold: bool
    italic: bool
    style: str
    path: str

    @property
    def name(self) -> str:
        """Family and style as text."""
        return f"{self.family} {self.style}"


@lru_cache(maxsize=1)
def pip_font_directories() -> tuple[Path, ...]:
    """The font folders of installed Python packages, which are not imported."""
    specs = {folder: importlib.util.find_spec(package) for package, folder in _PIP_FONTS.items()}
    return tuple(Path(spec.origin).parent / folder for folder, spec in specs.items() if spec and spec.origin)


def font_directories() -> tuple[Path, ...]:
    """The directories to scan: those of `ARR_COC_FONT_PATH` if it is set (also if empty), else the system's and
    `pip_font_directories()`."""
    setting = os.environ.get(FONT_PATH)
    if setting is not None:
        return tuple(Path(folder) for folder in setting.split(os.pathsep) if folder)
    home = Path.home()
    system = Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), home / ".local/share/fonts", home / ".fonts"
    return (*system, *pip_font_directories())


def _read_face(path: Path) -> FontFace | None:
    """The face in a file; None if it is unreadable, unlisted, or of an unusual weight."""
    try:
        family, style = ImageFont.truetype(str(path), 10, layout_engine=ImageFont.Layout.BASIC).getname()
    except (OSError, ValueError) as error:
        logger.debug("skipped unreadable font %s: %s", path, error)
        return None
    family, words = family or "", (style or "").lower().split()
    for width in ("condensed", "narrow"):
        if width in words:
            words.remove(width)
            family = f"{family} {width.capitalize()}"
    weight = " ".join(word for word in words if word not in _ITALIC_WORDS)
    weight = _URW_STYLES.get(family, {}).get(weight, weight)
    if not any(family in family_names(split) for split in SPLITS) or weight not in _REGULAR_STYLES:
        return None
    italic = any(word in _ITALIC_WORDS for word in words)
    return FontFace(family=family, bold=weight == "bold", italic=italic, style=style or "Regular", path=str(path))


@lru_cache(maxsize=8)
def _scan(directories: tuple[Path, ...]) -> tuple[FontFace, ...]:
    faces: dict[tuple[str, str], FontFace] = {}
    for directory in directories:
        for path in sorted(directory.rglob("*")) if directory.is_dir() else ():
            if path.suffix.lower() in {".ttf", ".otf"} and (face := _read_face(path)) is not None:
                faces.setdefault((face.family, face.style), face)  # the same face is often in several folders
    return tuple(sorted(faces.values()))


def find_fonts(split: Split) -> tuple[FontFace, ...]:
    """Installed faces of a split, in `font_directories()`, sorted by family, weight, slant and style.

    Raises:
        ValueError: an unknown split.
        FileNotFoundError: none of the split's families is installed; the message names packages.
    """
    check_split(split)
    searched = font_directories()
    faces = _faces(split, searched)
    if not faces:
        names = ", ".join(sorted(family_names(split))[:8])
        raise FileNotFoundError(
            f"fonts: expected one of the {split} split ({names}, ...); got none in "
            f"{', '.join(map(str, searched)) or f'no folder ({FONT_PATH} is empty)'}. "
            "All are installed by: python -m arr_coc.pages.font_packages --install; a few, by: "
            "pip install matplotlib rendercv-fonts; some, on Debian or Ubuntu, by: "
            f"apt-get install {_PACKAGES[split]}"
        )
    return faces


@lru_cache(maxsize=16)
def _faces(split: Split, directories: tuple[Path, ...]) -> tuple[FontFace, ...]:
    return tuple(face for face in _scan(directories) if face.family in family_names(split))


@lru_cache(maxsize=8)
def _by_family(faces: tuple[FontFace, ...]) -> tuple[tuple[FontFace, ...], ...]:
    families: dict[str, list[FontFace]] = {}
    for face in faces:
        families.setdefault(face.family, []).append(face)
    return tuple(map(tuple, families.values()))


def pick_face(rng: np.random.Generator, faces: tuple[FontFace, ...]) -> FontFace:
    """A random face: families uniformly, then 65 % upright and 65 % regular if the family has the choice."""
    families = _by_family(faces)
    family = families[int(rng.integers(len(families)))]
    weights = np.array([(0.35 if face.bold else 0.65) * (0.35 if face.italic else 0.65) for face in family])
    return family[int(rng.choice(len(family), p=weights / weights.sum()))]


def sibling(rng: np.random.Generator, face: FontFace, faces: tuple[FontFace, ...]) -> FontFace:
    """A random face of the same family."""
    family = next(members for members in _by_family(faces) if face in members)
    return family[int(rng.integers(len(family)))]


@lru_cache(maxsize=512)
def open_font(path: str, pixels: float) -> ImageFont.FreeTypeFont:
    """The PIL font in a file at `pixels` px per em; cached per process."""
    # The basic engine has no ligatures, which would merge two characters into one glyph, and it is faster.
    return ImageFont.truetype(path, pixels, layout_engine=ImageFont.Layout.BASIC)


def load_font(face: FontFace, pixels: float) -> ImageFont.FreeTypeFont:
    """A PIL font of `pixels` px per em, rounded to 0.5 px below 20 px and to 1 px above."""
    step = 0.5 if pixels < 20 else 1.0
    return open_font(face.path, max(_MIN_PIXELS, round(pixels / step) * step))
