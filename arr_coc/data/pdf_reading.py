"""Pages of PDFs as pictures with the text that is printed on them, from the PDF's text layer.

A character that cannot be named is UNKNOWN: what the file gives no meaning, text that runs in other directions, and
pictures set in the page, which may show text of their own. So its box says where nothing is known, and where neither
is it nor another character, there is no text.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections.abc import Iterator
from ctypes import addressof, byref, c_double, create_string_buffer
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..modeling.documents import MissingPackage
from ..modeling.image_processing_arr_coc import Box
from .pdf_lines import Character, lines_of
from .text_page import UNKNOWN, TextPage

_UPRIGHT = math.radians(0.5)
_INVISIBLE = frozenset({3, 7})  # text rendering modes: neither filled nor stroked
_SYMBOLS = re.compile(  # fonts whose letters are drawings
    r"line\w?\d+$|circle|cmex|ding|symbol|icon|awesome|musi|feta|emmentaler|chess|skak|dice|domino|braille|barcode|ean13"
    r"|semaf|pigpen|rune|hiero|karta|staves|umranda|fmvr|logos|flags|emoji",
    re.IGNORECASE,
)
_PATH, _IMAGE, _DEPTH = 2, 3, 4  # kinds of page objects, and in how many forms within forms they are looked for
_RULE = (2.0, 12.0)  # pt: at most the height and the width of a rule that stands for an underscore, as in TeX
_ENOUGH = 80  # characters of a page that is worth reading
_GARBLED, _UNNAMED = 0.03, 0.1  # at most: shares of characters without a name, within lines and apart from them
_LATIN, _VOWELS = frozenset(string.ascii_lowercase), frozenset("aeiouy")
_LATIN_SHARE, _VOWEL_SHARE = 0.85, (0.2, 0.6)  # of letters; of Latin ones, where they make words
_PLAIN = {"\u00ad": "-", "\u0002": "-", "\ufffe": "-", "\u2010": "-", "\u2011": "-", "\r": " ", "\n": " ", "\t": " "}


def read_pdf_page(path: str | Path, page: int, dpi: float, *, longest: int | None = None) -> TextPage:
    """A page of a PDF, drawn, with its text.

    Lines are in the order of the file. Ligatures are the characters they stand for, each with its part of the box;
    hyphens are where they are printed. Text that the picture does not show is left out.

    Args:
        path: the PDF file.
        page: counted from 0.
        dpi: px of the picture per inch of the page.
        longest: px at most of the longer side; a page that would be larger is drawn at fewer dpi.

    Raises:
        MissingPackage: pypdfium2 is not installed.
        ValueError: the file is no PDF, or has no such page, or dpi is not above 0.
    """
    if not dpi > 0:
        raise ValueError(f"dpi: expected a number above 0; got {dpi}")
    with _opened(path) as pdf:
        if not 0 <= page < len(pdf):
            raise ValueError(f"page: expected 0 to {len(pdf) - 1}, the pages of {path}; got {page}")
        sheet = pdf[page]
        scale = min(dpi / 72, (longest or math.inf) / max(sheet.get_size()))
        image = sheet.render(scale=scale, draw_annots=False, rev_byteorder=True).to_pil().convert("RGB")
        left, bottom, right, top = sheet.get_bbox()
        frame = _Frame(left, top, image.width / (right - left), image.height / (top - bottom))
        turned = sheet.get_rotation() != 0
        characters = [] if turned else list(_characters(sheet.get_textpage(), frame))
        pictures, rules = _drawings(sheet, frame)
        lines = lines_of(characters, pictures, rules, image)
    return TextPage(image, image.size, lines, kind="pdf", source=f"{path}#{page + 1}")


def is_readable(page: TextPage) -> bool:
    """Whether a page has text enough, most of it Latin letters that make words, and little that nobody can name."""
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
        ValueError: the file is no PDF.
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


@dataclass(frozen=True)
class _Frame:
    """Where points of a page, in its own units and upwards, lie in the picture."""

    left: float
    top: float
    across: float
    down: float

    def x(self, x: float) -> float:
        return (x - self.left) * self.across

    def y(self, y: float) -> float:
        return (self.top - y) * self.down

    def box(self, left: float, bottom: float, right: float, top: float) -> Box:
        return self.x(left), self.y(top), self.x(right), self.y(bottom)


def _drawings(sheet: Any, frame: _Frame) -> tuple[list[Box], list[Box]]:
    """The boxes of pictures, and of all that is drawn and as small as an underscore."""
    pictures: dict[Box, None] = {}
    small: list[Box] = []
    outermost: Any = None  # what is in a form has coordinates of its own: the form's box stands for it
    for item in sheet.get_objects(max_depth=_DEPTH):
        if item.level == 0:
            outermost = item
        if item.type == _IMAGE:
            pictures[frame.box(*outermost.get_bounds())] = None
        elif item.type == _PATH and item.level == 0:
            left, bottom, right, top = item.get_bounds()
            if top - bottom < _RULE[0] and right - left < _RULE[1]:
                small.append(frame.box(left, bottom, right, top))
    return list(pictures), small


def _characters(text_page: Any, frame: _Frame) -> Iterator[Character]:
    """All visible characters of a page but spaces, in the order of the file."""
    import pypdfium2.raw as pdfium

    raw = text_page.raw
    loose, matrix, x, y = pdfium.FS_RECTF(), pdfium.FS_MATRIX(), c_double(), c_double()
    x0, y0, x1, y1 = c_double(), c_double(), c_double(), c_double()
    symbols: dict[int, bool] = {}
    spaced = False
    for index in range(text_page.count_chars()):
        char = _plain(pdfium.FPDFText_GetUnicode(raw, index))
        if char == " ":
            spaced = spaced or pdfium.FPDFText_IsGenerated(raw, index) != 1
            continue
        item = pdfium.FPDFText_GetTextObject(raw, index)
        if not item or pdfium.FPDFTextObj_GetTextRenderMode(item) in _INVISIBLE:
            continue
        font = pdfium.FPDFTextObj_GetFont(item)
        key = addressof(font.contents)
        if key not in symbols:
            symbols[key] = _SYMBOLS.search(_font_name(font)) is not None
        if symbols[key] or pdfium.FPDFText_HasUnicodeMapError(raw, index) == 1:
            char = UNKNOWN
        pdfium.FPDFText_GetCharOrigin(raw, index, byref(x), byref(y))
        pdfium.FPDFText_GetCharBox(raw, index, byref(x0), byref(x1), byref(y0), byref(y1))
        pdfium.FPDFText_GetLooseCharBox(raw, index, byref(loose))
        pdfium.FPDFText_GetMatrix(raw, index, byref(matrix))
        angle = pdfium.FPDFText_GetCharAngle(raw, index)
        yield Character(
            text=char,
            left=frame.x(x.value),
            right=frame.x(max(loose.right, x.value)),
            baseline=frame.y(y.value),
            size=pdfium.FPDFText_GetFontSize(raw, index) * math.hypot(matrix.c, matrix.d) * frame.down,
            font=key,
            ink=frame.box(x0.value, y0.value, x1.value, y1.value),
            upright=min(abs(angle), 2 * math.pi - angle) < _UPRIGHT and matrix.a > 0 and matrix.d > 0,
            spaced=spaced,
        )
        spaced = False


def _font_name(font: Any) -> str:
    import pypdfium2.raw as pdfium

    name = create_string_buffer(256)
    pdfium.FPDFFont_GetBaseFontName(font, name, len(name))
    return name.value.decode(errors="replace")


def _plain(code: int) -> str:
    """A character by its number: spaces and hyphens of all kinds as plain ones, and as UNKNOWN what means nothing."""
    char = chr(code) if code < 0x110000 else UNKNOWN
    char = _PLAIN.get(char, char)
    kind = unicodedata.category(char)
    return " " if kind.startswith("Z") else UNKNOWN if kind.startswith("C") else char
