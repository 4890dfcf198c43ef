"""PDFs in Debian's packages: pages with real typography and known text.

    python -m arr_coc.data.pdf_corpus --folder DIR              # prints the commands that download them, 2 GB
    python -m arr_coc.data.pdf_corpus --folder DIR --install    # runs them: Debian or Ubuntu, not as root
    python -m arr_coc.data.pdf_corpus --folder DIR --cache DIR2 --pages 4000 --split train    # renders pages in advance

The packages are unpacked into the folder, not installed. A package belongs to one split, so that no page of validation
or test has a design of the training split. pdf_packages.csv lists packages and licences. This repository contains none
of their files.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import shlex
import shutil
import string
import subprocess
import tempfile
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from ..files import fresh_file, run_module
from ..modeling.documents import MissingPackage
from ..modeling.printed_lines import read_text_layer
from ..pages.page import UNKNOWN, Line, TextPage
from ..pages.splits import SPLITS, Split, check_split

_DPI = (70.0, 200.0)
_LONGEST = 2400  # px; larger pages than A4, such as posters, are rendered at a lower resolution
_QUALITY = 95  # of JPEG, for pages with colours; others are PNG, which is faster to decode
_ENOUGH = 80  # the fewest characters of a readable page
_GARBLED, _UNNAMED = 0.03, 0.1  # the largest shares of unknown characters, within lines and outside them
_LATIN, _VOWELS = frozenset(string.ascii_lowercase), frozenset("aeiouy")
_LATIN_SHARE, _VOWEL_SHARE = 0.85, (0.2, 0.6)  # least share of Latin letters; range of the share of vowels


def read_pdf_page(path: str | Path, page: int, dpi: float, *, longest: int | None = None) -> TextPage:
    """Renders a page of a PDF, with its text.

    Lines are in the order of the file. Ligatures are split into characters, each with its part of the box; hyphens stay
    where they are printed. Invisible text is omitted.

    Args:
        page: counted from 0.
        dpi: px of the picture per inch of the page.
        longest: the most px of the longer side; larger pages are rendered at a lower resolution.

    Raises:
        MissingPackage: pypdfium2 is not installed.
        ValueError: the file is not a PDF, has no such page, or `dpi` is not above 0.
    """
    if not dpi > 0:
        raise ValueError(f"dpi: expected a number above 0; got {dpi}")
    with _opened(path) as pdf:
        if not 0 <= page < len(pdf):
            raise ValueError(f"page: expected 0 to {len(pdf) - 1}, the pages of {path}; got {page}")
        sheet = pdf[page]
        scale = min(dpi / 72, (longest or math.inf) / max(sheet.get_size()))
        image = sheet.render(scale=scale, draw_annots=False, rev_byteorder=True).to_pil().convert("RGB")
        lines = () if sheet.get_rotation() else read_text_layer(sheet, image, invisible=False).lines
    return TextPage(image, image.size, lines, kind="pdf", source=f"{path}#{page + 1}")


def is_readable(page: TextPage) -> bool:
    """Whether a page has enough text, mostly words of Latin letters, and few unknown characters."""
    lines = [line.text for line in page.lines if line.text.strip(UNKNOWN)]
    text = "".join(lines).replace(" ", "")
    elsewhere = sum(len(line.text) for line in page.lines) - sum(map(len, lines))
    if len(text) < _ENOUGH or elsewhere > _UNNAMED * len(text) or text.count(UNKNOWN) > _GARBLED * len(text):
        return False
    letters = [char for char in unicodedata.normalize("NFD", text.casefold()) if char.isalpha()]
    latin = [char for char in letters if char in _LATIN]
    vowels = sum(char in _VOWELS for char in latin) / max(len(latin), 1)
    return len(latin) > _LATIN_SHARE * len(letters) and _VOWEL_SHARE[0] < vowels < _VOWEL_SHARE[1]


def _opened(path: str | Path) -> Any:
    try:
        import pypdfium2
    except ImportError as error:
        expected = 'expected pypdfium2 to read it (pip install "arr-coc[documents]")'
        raise MissingPackage(f"{path}: {expected}; got none installed") from error
    try:
        return pypdfium2.PdfDocument(path)
    except (pypdfium2.PdfiumError, FileNotFoundError) as error:
        raise ValueError(f"{path}: expected a PDF; got {error}") from error


def cache_pages(pages: Sequence[tuple[Path, int]], folder: str | Path, *, limit: int, seed: int = 0) -> int:
    """Renders pages of PDFs into a folder, each at a random resolution of 70 to 200 dpi, until it has `limit` of them.

    Existing pages are kept, so an interrupted call can be repeated. Unreadable pages are skipped. Files come with their
    pages from 0, in the order of their numbers in the folder.

    Returns:
        The number of pages in the folder; fewer than `limit` if there are no more.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with tqdm(total=limit, desc="pages", unit="page", disable=None) as progress:
        for number, (path, page) in enumerate(pages):
            if count >= limit:
                break
            stored = folder / f"{number:06}.npz"
            if not stored.exists():
                low, high = map(math.log, _DPI)
                dpi = math.exp(np.random.default_rng([seed, number]).uniform(low, high))
                drawn = read_pdf_page(path, page, dpi, longest=_LONGEST)
                store_page(drawn if is_readable(drawn) else None, stored)
            count += stored.stat().st_size > 0
            progress.update(count - progress.n)
    return count


def store_page(drawn: TextPage | None, stored: Path) -> None:
    """Writes a page and its text for `CachedPages`; an empty file marks a page that is left out."""
    if drawn is None or drawn.image is None:
        stored.touch()
        return
    pixels = np.asarray(drawn.image)
    if (pixels == pixels[..., :1]).all():
        drawn.image.convert("L").save(stored.with_suffix(".png"), compress_level=1)
    else:
        drawn.image.save(stored.with_suffix(".jpg"), quality=_QUALITY)
    with fresh_file(stored) as beside, beside.open("wb") as file:
        np.savez(
            file,
            text="".join(line.text for line in drawn.lines),
            lengths=np.array([len(line.text) for line in drawn.lines], np.int32),
            boxes=np.concatenate([line.boxes for line in drawn.lines]),
            source=drawn.source,
        )


class CachedPages:
    """The pages of `cache_pages` in a folder, by index, in a fixed order; FileNotFoundError for none."""

    def __init__(self, folder: str | Path) -> None:
        self._texts = sorted(path for path in Path(folder).glob("*.npz") if path.stat().st_size)
        if not self._texts:
            raise FileNotFoundError(f"{folder}: expected pages that pdf_corpus --cache or real_scans stored; got none")

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> TextPage:
        path = self._texts[index]
        with np.load(path) as stored:
            lengths, boxes = stored["lengths"].tolist(), stored["boxes"]
            text, source = str(stored["text"]), str(stored["source"])
        picture_path = path.with_suffix(".png")
        with Image.open(picture_path if picture_path.exists() else path.with_suffix(".jpg")) as picture:
            image = picture.convert("RGB")
        ends = np.cumsum(lengths).tolist()
        lines = tuple(Line(text[end - n : end], boxes[end - n : end]) for n, end in zip(lengths, ends, strict=True))
        return TextPage(image, image.size, lines, kind="pdf", source=source)


_PAGES_OF_FILE = 24  # at most, as pages of a long manual look alike


@dataclass(frozen=True)
class PdfPackage:
    """A row of pdf_packages.csv: a Debian package with PDFs, its split, and its licence."""

    package: str
    split: Split
    licence: str


@lru_cache(maxsize=1)
def pdf_packages() -> tuple[PdfPackage, ...]:
    """All packages, by name."""
    with Path(__file__).with_name("pdf_packages.csv").open(encoding="utf-8", newline="") as table:
        rows: Any = csv.DictReader(table)
        return tuple(PdfPackage(**row) for row in rows)


def fetch_commands(package: str, folder: Path) -> list[list[str]]:
    """The commands that download a package into `folder` and unpack it into a folder of its name."""
    return [["apt-get", "download", package], ["sh", "-c", f"dpkg -x {package}_*.deb {shlex.quote(str(folder))}"]]


def install(packages: Iterable[str], folder: str | Path) -> None:
    """Downloads packages and keeps their PDFs: `folder`/PACKAGE/... Existing packages do not change.

    Raises:
        FileNotFoundError: the system is not Debian or Ubuntu.
        subprocess.CalledProcessError: a package cannot be downloaded.
    """
    for package in tqdm(list(packages), desc="packages", unit="package", disable=None):
        kept = Path(folder).resolve() / package
        if kept.exists():
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".") as scratch:
            unpacked = Path(scratch) / "unpacked"
            for command in fetch_commands(package, unpacked):
                subprocess.run(command, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
            _keep_pdfs(unpacked)
            unpacked.rename(kept)


def _keep_pdfs(folder: Path) -> None:
    """Removes all files except PDFs from a folder, and unpacks compressed PDFs."""
    for path in sorted(folder.rglob("*"), reverse=True):  # the content of a folder before the folder
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.is_symlink() or not path.name.lower().endswith((".pdf", ".pdf.gz")):
            path.unlink()
        elif path.suffix == ".gz":
            with gzip.open(path) as packed, path.with_suffix("").open("wb") as plain:
                shutil.copyfileobj(packed, plain)
            path.unlink()


def pdf_pages(folder: str | Path, split: Split) -> list[tuple[Path, int]]:
    """All pages of a split's packages in a folder: (path, page from 0).

    The order makes every first part varied: a package's share grows with the square root of its number of files, and
    its files alternate. A file has at most 24 pages. The order depends on the names of the files only. Pages are not
    read here, so some can be unreadable (`is_readable`).

    Raises:
        ValueError: an unknown split.
        FileNotFoundError: there are no packages; the message names the command that downloads them.
        MissingPackage: pypdfium2 is not installed.
    """
    check_split(split)
    names = [package.package for package in pdf_packages() if package.split == split]
    ranked: list[tuple[float, Path, int]] = []
    for name in names:
        files = sorted(path for path in Path(folder, name).rglob("*") if path.suffix.lower() == ".pdf")
        files.sort(key=lambda path: zlib.crc32(str(path.relative_to(folder)).encode()))
        turns = _turns(files, Path(folder))
        ranked += [((rank + 0.5) / len(files) ** 0.5, path, page) for rank, (path, page) in enumerate(turns)]
    if not ranked:
        raise FileNotFoundError(
            f"{folder}: expected PDFs of the {split} split ({', '.join(names[:4])}, ...); got none. "
            f"They are fetched by: python -m arr_coc.data.pdf_corpus --folder {folder} --install"
        )
    ranked.sort(key=lambda item: item[0])
    return [(path, page) for _, path, page in ranked]


def _turns(files: Iterable[Path], folder: Path) -> list[tuple[Path, int]]:
    """Pages of the files in turn."""
    rounds: defaultdict[int, list[tuple[Path, int]]] = defaultdict(list)
    for path in files:
        try:
            with _opened(path) as pdf:
                count = len(pdf)
        except ValueError:  # a few are damaged or encrypted
            continue
        name = str(path.relative_to(folder))
        order = sorted(range(count), key=lambda page: zlib.crc32(f"{name}#{page}".encode()))
        for turn, page in enumerate(order[:_PAGES_OF_FILE]):
            rounds[turn].append((path, page))
    return [item for turn in sorted(rounds) for item in rounds[turn]]


def main() -> None:
    """Prints or runs the commands that download the PDFs, and renders their pages in advance."""
    parser = argparse.ArgumentParser(
        description="Download Debian's PDFs, and render their pages in advance for training."
    )
    parser.add_argument("--folder", type=Path, required=True, help="folder of the PDFs, with a folder per package")
    parser.add_argument("--install", action="store_true", help="download them (apt-get download, dpkg -x)")
    parser.add_argument("--split", choices=SPLITS, help="only this split (default: all)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="render pages of --split into this folder")
    parser.add_argument("--pages", type=int, default=1000, help="number of pages to render (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of their resolutions (default: 0)")
    arguments = parser.parse_args()
    if arguments.cache and not arguments.split:
        parser.error("--cache: expected --split beside it, the split whose pages are drawn")
    names = [package.package for package in pdf_packages() if arguments.split in (None, package.split)]
    if arguments.install:
        install(names, arguments.folder)
    if arguments.cache:
        pages = pdf_pages(arguments.folder, arguments.split)
        print(f"{cache_pages(pages, arguments.cache, limit=arguments.pages, seed=arguments.seed)} pages")
    elif not arguments.install:
        for name in names:
            print(" && ".join(shlex.join(command) for command in fetch_commands(name, arguments.folder / name)))


if __name__ == "__main__":
    run_module(main)
