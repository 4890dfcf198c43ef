"""Words in files: hOCR, ALTO and PAGE XML, as OCR engines and archives write them.

The files are parsed by the standard library, which loads no external entity; a document type with entities of its own
is refused, and so is a file above `MOST_BYTES`.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from .image_loading import reaches
from .printed_lines import MOST_WORDS, PrintedLine, line_in_box

MOST_BYTES = 64 * 2**20
"""Bytes of a file of words; the words of a page of a newspaper take 1 MB."""

Placed = tuple[str, tuple[float, float, float, float]]


def lines_of_file(path: Path, height: int, width: int, *, number: int = 1) -> tuple[PrintedLine, ...]:
    """The words of page `number`, from 1, of a file, scaled to a source of `height` x `width` px.

    Words keep the order of the file; each is a line of its own. Boxes are in px of the page that the file describes,
    whose size it states (without one, they are in px of the source).

    Raises:
        ValueError: a file that is too large, of another kind, or broken; a page that it does not have; or boxes outside
            the page.
    """
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{path}: expected words of at most {MOST_BYTES} bytes; got {size}")
    content = path.read_bytes()
    text = content.decode("utf-8-sig", "replace")
    if "ocr_page" in text:
        pages = _hocr(text)
    elif re.search(rb"<!(ENTITY|ATTLIST)", content.replace(b"\0", b"")):  # in UTF-16 too
        raise ValueError(f"{path}: expected words without entities of their own; got a document type that has some")
    else:
        pages = _xml(path, content)
    if not 1 <= number <= len(pages):
        raise ValueError(f"{path}: expected words of page {number}; got a file of {len(pages)} pages")
    (page_width, page_height), words = pages[number - 1]
    across, down = width / (page_width or width), height / (page_height or height)
    if len(words) > MOST_WORDS:
        raise ValueError(f"{path}: expected at most {MOST_WORDS} words for a page; got {len(words)}")
    lines = []
    for text, (x0, y0, x1, y1) in words:
        box = (x0 * across, y0 * down, x1 * across, y1 * down)
        if not (box[0] < box[2] and box[1] < box[3] and reaches(box, height, width)):
            expected = f"boxes with x0 < x1 and y0 < y1 that reach into the page of {width} x {height} px"
            raise ValueError(f"{path}: expected {expected}; got {box} for {text!r:.80}")
        lines.append(line_in_box(text, box))
    return tuple(lines)


Pages = list[tuple[tuple[float, float], list[Placed]]]
"""Of each page (width, height) in its own unit, 0 if it is not stated, and its words."""


class _Hocr(HTMLParser):
    """Collects the elements of class ocr_page and ocrx_word (or ocr_line of files without words)."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit, self.pages, self.depth, self.text = unit, Pages(), 0, ""
        self.box: tuple[float, float, float, float] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        numbers = re.search(r"bbox\s+(-?[\d.]+)\s+(-?[\d.]+)\s+(-?[\d.]+)\s+(-?[\d.]+)", given.get("title", ""))
        box = None if numbers is None else tuple(map(float, numbers.groups()))
        kinds = given.get("class", "").split()
        if "ocr_page" in kinds:
            self.pages.append(((box[2] - box[0], box[3] - box[1]) if box else (0.0, 0.0), []))
        if self.box is not None:
            self.depth += tag not in ("br", "img", "hr", "wbr")
        elif self.unit in kinds and box is not None:
            self.box, self.depth, self.text = box, 0, ""  # type: ignore[assignment]

    def handle_endtag(self, tag: str) -> None:
        if self.box is None:
            return
        if self.depth:
            self.depth -= 1
            return
        if self.pages and (plain := " ".join(self.text.split())):
            self.pages[-1][1].append((plain, self.box))
        self.box = None

    def handle_data(self, data: str) -> None:
        self.text += data


def _hocr(text: str) -> Pages:
    parser = _Hocr("ocrx_word" if "ocrx_word" in text else "ocr_line")
    parser.feed(text)
    parser.close()
    return parser.pages


def _xml(path: Path, content: bytes) -> Pages:
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"{path}: expected hOCR, ALTO or PAGE XML; got a broken file ({error})") from None
    for element in root.iter():  # names without their namespaces, which differ by version
        element.tag = str(element.tag).rpartition("}")[2]
    readers = {"alto": _alto, "PcGts": _page}
    if root.tag not in readers:
        raise ValueError(f"{path}: expected hOCR, ALTO or PAGE XML; got a file with root <{root.tag}>")
    try:
        return [(size, list(words)) for size, words in readers[root.tag](root)]
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(f"{path}: expected words with places; got one without ({error})") from None


def _alto(root: ElementTree.Element) -> Iterator[tuple[tuple[float, float], Iterator[Placed]]]:
    for page in root.iter("Page"):
        words = (
            (word.attrib["CONTENT"], (x := float(word.attrib["HPOS"]), y := float(word.attrib["VPOS"]),
             x + float(word.attrib["WIDTH"]), y + float(word.attrib["HEIGHT"])))
            for word in page.iter("String") if word.attrib.get("CONTENT", "").strip()
        )  # fmt: skip
        yield (float(page.attrib.get("WIDTH", 0)), float(page.attrib.get("HEIGHT", 0))), words


def _page(root: ElementTree.Element) -> Iterator[tuple[tuple[float, float], Iterator[Placed]]]:
    for page in root.iter("Page"):
        unit = "Word" if page.find(".//Word") is not None else "TextLine"
        words = (found for element in page.iter(unit) if (found := _of_page_xml(element)) is not None)
        yield (float(page.attrib.get("imageWidth", 0)), float(page.attrib.get("imageHeight", 0))), words


def _of_page_xml(element: ElementTree.Element) -> Placed | None:
    text = " ".join((element.findtext("TextEquiv/Unicode") or "").split())
    points = element.find("Coords")
    if not text or points is None:
        return None
    x, y = zip(*(map(float, pair.split(",")) for pair in points.attrib["points"].split()), strict=True)
    return text, (min(x), min(y), max(x), max(y))
