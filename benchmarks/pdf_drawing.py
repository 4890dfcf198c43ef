"""Documents drawn as PDFs, with every printed word known: `pdf_pages` asks about them, `lying_layers` falsifies them.

A row of a manifest decides everything: the same row gives the same bytes with the same releases of reportlab and faker.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from reportlab.lib.pagesizes import A4, A5, LETTER, landscape
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

SHEETS = {"A4": A4, "A5": A5, "letter": LETTER, "A4 landscape": landscape(A4), "letter landscape": landscape(LETTER)}
BASE_14 = {name: (name, f"{name}-Bold") for name in ("Helvetica", "Courier")} | {"Times": ("Times-Roman", "Times-Bold")}
MARGIN = 44.0  # pt
BLACK, WHITE, GREY = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.75, 0.75, 0.75)
_SLUGS = {"": (0.0, 0.0, 0.0, 0.0), "yes": (54.0, 36.0, 90.0, 60.0), "wide": (54.0, 36.0, 640.0, 60.0)}
"""The parts of a sheet outside the crop box, pt: left, bottom, right, top."""
_LIGATURES = {"ffi": "\ufb03", "fi": "\ufb01", "fl": "\ufb02"}


@dataclass(frozen=True)
class Spec:
    """A row of a manifest: a document.

    Attributes:
        name: of its file, without the ending.
        kind: what it is for; a folder of the bench is named so.
        variant: one of several ways of a kind; may be empty.
        held_out: "yes" if its font and text are not looked at while a check of layers is built; else empty.
        design: a key of `pdf_designs.DESIGNS`.
        font: a key of `BASE_14`, or a family of rendercv-fonts.
        size: of the text, pt.
        sheet: a key of `SHEETS`.
        rotate: /Rotate of its pages, degrees; they are shown upright.
        crop: "yes" or "wide" (another page fits beside it) if the crop box is smaller than the sheet; else empty.
        locale: of faker's names and values.
        seed: of everything that is drawn by chance.
        checksum: of the printed words, the questions and the answers: see `checksum`.
    """

    name: str
    kind: str
    variant: str
    held_out: str
    design: str
    font: str
    size: float
    sheet: str
    rotate: int
    crop: str
    locale: str
    seed: int
    checksum: str


def read_manifest(path: Path) -> list[Spec]:
    """The rows of a manifest (CSV with a head)."""
    types: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "str": str}
    with path.open(encoding="utf-8", newline="") as table:
        return [
            Spec(**{each.name: types[str(each.type)](row[each.name]) for each in fields(Spec)})
            for row in csv.DictReader(table)
        ]


@dataclass(frozen=True)
class Print:
    """A text as printed: page from 0, and the left end of its baseline, pt from the upper left corner of the page."""

    page: int
    x: float
    y: float
    text: str
    font: str
    size: float

    @property
    def width(self) -> float:
        return float(pdfmetrics.stringWidth(self.text, self.font, self.size))


def faces(family: str) -> tuple[str, str]:
    """The names of a family's regular and bold fonts; registers them with reportlab."""
    if family in BASE_14:
        return BASE_14[family]
    regular, bold = (f"{family.replace(' ', '')}-{weight}" for weight in ("Regular", "Bold"))
    for name in (regular, bold):
        if name not in pdfmetrics.getRegisteredFontNames():
            pdfmetrics.registerFont(TTFont(name, font_file(family, name)))
    return regular, bold


def font_file(family: str, name: str) -> str:
    """The file of a font of rendercv-fonts."""
    return str(files("rendercv_fonts") / family / f"{name}.ttf")


class Sheet:
    """The pages of a document, drawn from the upper left corner, y downwards, pt.

    Args:
        spec: font, sizes, rotation and crop box.
        fonts: names of the regular and the bold font in place of the spec's.
        encode: what is written into the file for a printed text; its glyphs in `fonts` are those of the text.

    Attributes:
        prints: everything visible so far.
    """

    def __init__(
        self, spec: Spec, fonts: tuple[str, str] | None = None, encode: Callable[[str], str] | None = None
    ) -> None:
        self.spec, self.fonts, self.encode = spec, fonts or faces(spec.font), encode or str
        self.plain = faces(spec.font)
        self.width, self.height = SHEETS[spec.sheet]
        left, bottom, right, top = self.slug = _SLUGS[spec.crop]
        self.whole = self.width + left + right, self.height + bottom + top
        self.file, self.prints, self.page = io.BytesIO(), list[Print](), 0
        self.canvas: Any = Canvas(self.file, pagesize=self.whole, invariant=1)
        self._begin()

    def _begin(self) -> None:
        across, up = self.whole
        turn = {
            0: (1, 0, 0, 1, 0, 0),
            90: (0, 1, -1, 0, up, 0),
            180: (-1, 0, 0, -1, across, up),
            270: (0, -1, 1, 0, 0, across),
        }[self.spec.rotate]
        self.canvas.setPageRotation(self.spec.rotate)
        self.canvas.transform(*turn)
        left, bottom, _, _ = self.slug
        if self.spec.crop:
            a, b, c, d, e, f = turn
            corners = [
                (a * x + c * y + e, b * x + d * y + f)
                for x, y in ((left, bottom), (left + self.width, bottom + self.height))
            ]
            self.canvas.setCropBox([*map(min, *corners), *map(max, *corners)])
            self.canvas.setFont("Helvetica", 7)
            self.canvas.drawString(12, 12, f"Plate {self.page + 1} cyan magenta yellow black")
        self.canvas.translate(left, bottom)

    def next_page(self) -> None:
        self.canvas.showPage()
        self.page += 1
        self._begin()

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float | None = None,
        bold: bool = False,
        align: str = "left",
        colour: tuple[float, float, float] = BLACK,
    ) -> float:
        """Prints a text and gives the right end of it; `x` is its right end if `align` is "right"."""
        size = size or self.spec.size
        printed = Print(self.page, 0.0, y, text, self.plain[bold], size)
        width = printed.width
        x = x - width if align == "right" else x
        self.canvas.setFillColorRGB(*colour)
        self.canvas.setFont(self.fonts[bold], size)
        self.canvas.drawString(x, self.height - y, self.encode(text))
        self._keep(Print(self.page, x, y, text, self.plain[bold], size))
        return x + width

    def _keep(self, printed: Print) -> None:
        """Notes what is visible, if it is."""
        if printed.x < 0 or printed.x + printed.width > self.width or printed.y > self.height - 2:
            raise ValueError(f"{self.spec.name}: expected text on the page; got {printed}")
        self.prints.append(printed)

    def measure(self, text: str, *, size: float | None = None, bold: bool = False) -> float:
        """The width of a text, pt."""
        return float(pdfmetrics.stringWidth(text, self.plain[bold], size or self.spec.size))

    def rule(self, x0: float, y0: float, x1: float, y1: float) -> None:
        self.canvas.setLineWidth(0.5)
        self.canvas.line(x0, self.height - y0, x1, self.height - y1)

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: tuple[float, float, float]) -> None:
        """Fills a box."""
        self.canvas.setFillColorRGB(*colour)
        self.canvas.rect(x0, self.height - y1, x1 - x0, y1 - y0, stroke=0, fill=1)

    def field(self, x: float, y: float, width: float, name: str, value: str) -> None:
        """A text field that is filled in; its value is no text of the page, but of the field. In Helvetica."""
        size = self.spec.size
        self.canvas.acroForm.textfield(
            value=value,
            name=name,
            x=x,
            y=self.height - y - 0.78 * size,
            width=width,
            height=1.9 * size,
            fontName="Helvetica",
            fontSize=size,
            borderWidth=0.5,
            relative=True,
            fillColor=None,
        )
        self._keep(Print(self.page, x + 2, y, value, "Helvetica", size))

    def tick(self, x: float, y: float, name: str, ticked: bool) -> None:
        size = 1.3 * self.spec.size
        self.canvas.acroForm.checkbox(name=name, checked=ticked, x=x, y=self.height - y - 2, size=size, relative=True)

    def finish(self) -> bytes:
        """The PDF."""
        self.canvas.save()
        return self.file.getvalue()

    @property
    def words(self) -> list[list[str]]:
        """The visible words of each page."""
        return [words_on(self.prints, page) for page in range(self.page + 1)]


def words_on(prints: Iterable[Print], page: int) -> list[str]:
    return [word for each in prints if each.page == page for word in each.text.split()]


def with_ligatures(text: str) -> str:
    """The text as typeset: fi, fl and ffi are one character."""
    return re.sub("ffi|fi|fl", lambda match: _LIGATURES[match[0]], text)


def hyphenated(sheet: Sheet, lines: list[str], width: float) -> list[str]:
    """Breaks long words at the ends of lines with a soft hyphen, where there is room in `width`, pt."""
    for number in range(len(lines) - 1):
        first, _, rest = lines[number + 1].partition(" ")
        part = f"{lines[number]} {first[: len(first) // 2]}\u00ad"
        if len(first) >= 8 and rest and first.isalpha() and sheet.measure(part.replace("\u00ad", "-")) < width:
            lines[number], lines[number + 1] = part, f"{first[len(first) // 2 :]} {rest}"
    return lines


@dataclass(frozen=True)
class Document:
    """A document: the file, its visible words by page, false words of its layer, questions with visible answers."""

    pdf: bytes
    visible: list[list[str]]
    false: list[str]
    questions: list[tuple[str, str]]

    @property
    def checksum(self) -> str:
        """16 hexadecimal digits of the printed words, the questions and the answers."""
        return hashlib.sha256(json.dumps([self.visible, self.questions]).encode()).hexdigest()[:16]


Design = Callable[[Sheet, Any, Random], list[tuple[str, str]]]
"""Draws a document with names and values by faker; gives questions with their answers, three or more."""


def write_documents(folder: Path, specs: Sequence[Spec], make: Callable[[Spec], Document]) -> None:
    """Writes documents into a folder, as a source of a bench: PDFs, `data.jsonl`, and `documents.jsonl`.

    A line of documents.jsonl has `file`, tags, and `visible`: the printed words of each page; `false`: the words of the
    layer that are printed nowhere.

    Raises:
        ValueError: a document is not that of the manifest, as with another release of faker. Nothing is written then.
    """
    documents = [(spec, make(spec)) for spec in specs]
    for spec, document in documents:
        if document.checksum != spec.checksum:
            made = ", ".join(f"{name} {version(name)}" for name in ("faker", "reportlab"))
            expected = f"expected words and questions with checksum {spec.checksum}"
            raise ValueError(f"{spec.name}: {expected}; got {document.checksum} ({made})")
    questions, lines = list[dict[str, Any]](), list[dict[str, Any]]()
    folder.mkdir(parents=True, exist_ok=True)
    for spec, document in documents:
        name = f"{spec.name}.pdf"
        (folder / name).write_bytes(document.pdf)
        tags = {"kind": spec.kind, "variant": spec.variant, "held_out": spec.held_out or "no", "font": spec.font}
        lines.append({"file": name, **tags, "visible": document.visible, "false": document.false})
        questions += [
            {"image": name, "question": text, "answers": [answer], **tags} for text, answer in document.questions
        ]
    write_jsonl(folder / "data.jsonl", questions)
    write_jsonl(folder / "documents.jsonl", lines)


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
