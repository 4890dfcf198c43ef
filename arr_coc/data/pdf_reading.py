"""Pages of PDFs as pictures, with their printed text from the PDF's text layer."""

from __future__ import annotations

import math
import string
import unicodedata
from pathlib import Path
from typing import Any

from ..modeling.documents import MissingPackage
from ..modeling.printed_lines import read_text_layer
from ..pages.page import UNKNOWN, TextPage

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


def count_pdf_pages(path: str | Path) -> int:
    """The number of a PDF's pages.

    Raises:
        MissingPackage: pypdfium2 is not installed.
        ValueError: the file is not a PDF.
    """
    with _opened(path) as pdf:
        return len(pdf)


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
