"""Where the words of a page come from: the network, a PDF's text layer, an OCR engine, the caller's list or file.

Each source gives printed lines (`printed_lines`), or None where the network reads the page. A text layer can lie: fonts
without a Unicode map, the OCR of another page, text that no one can see. So `auto` compares some of its lines with what
the network reads in their places. Files are hOCR, ALTO and PAGE XML, as OCR engines and archives write them. The
standard library parses them and loads no external entity; a document type with entities of its own is refused.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from functools import cache, cached_property
from html.parser import HTMLParser
from importlib import import_module, metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .budgets import Window
from .checks import Registry
from .documents import MissingPackage
from .image_loading import Source, reaches
from .image_processing_arr_coc import ArrCocImageProcessor, square_of
from .printed_lines import (
    MOST_WORDS,
    UNKNOWN,
    PrintedLine,
    TextLayer,
    around,
    line_in_box,
    lines_of_caller,
    readable,
    words_on_view,
)
from .vision_tower import ArrCocVisionTower
from .wordpieces import COLUMNS, GivenWords, Word

WordSource = Callable[["PageToRead"], "PageWords"]

WORD_SOURCES: Registry[WordSource] = Registry("words")


@dataclass(frozen=True)
class PageWords:
    """The words of one page.

    Attributes:
        lines: its printed lines; None: the network reads it.
        source: the name of the source that gave them.
        engine: the program that gave them, with its version; "" for the network and the caller.
        warning: why another source than the wanted one was taken; "" if none was.
        partial: whether pictures in the page may show text that the lines do not have; the network reads that.
    """

    lines: tuple[PrintedLine, ...] | None = None
    source: str = "network"
    engine: str = ""
    warning: str = ""
    partial: bool = False


PageText = PageWords | TextLayer
"""What is known of a page's text: its words, or a text layer that is not compared with the page yet."""


def to_json(page: PageText | None) -> Any:
    """What `from_json` reads: numbers, strings and lists; boxes are rounded to 0.01 px."""
    if page is None:
        return None
    values = {part.name: getattr(page, part.name) for part in fields(page)}
    if page.lines is not None:
        values["lines"] = [[line.text, line.boxes.round(2).tolist(), line.confidence] for line in page.lines]
    return {"kind": type(page).__name__, **values}


def from_json(content: Any) -> PageText | None:
    """What `to_json` was given."""
    if content is None:
        return None
    values = {name: value for name, value in content.items() if name != "kind"}
    if values["lines"] is not None:
        values["lines"] = tuple(
            PrintedLine(text, np.array(boxes, np.float32).reshape(-1, 4), sure) for text, boxes, sure in values["lines"]
        )
    return PageWords(**values) if content["kind"] == PageWords.__name__ else TextLayer(**values)


def to_tensor(pages: Sequence[PageText | None]) -> Tensor:
    """The text of pages as uint8 [bytes]; joined tensors have the pages of all."""
    return torch.frombuffer(bytearray(json.dumps([to_json(page) for page in pages]).encode()), dtype=torch.uint8)


def from_tensor(packed: Tensor) -> list[PageText | None]:
    """The pages of joined tensors of `to_tensor`."""
    text, pages, at = bytes(packed.cpu().tolist()).decode(), [], 0
    while at < len(text):
        some, at = json.JSONDecoder().raw_decode(text, at)
        pages += [from_json(page) for page in some]
    return pages


def given_words(page: PageText | None, window: Window, grid: int) -> GivenWords | None:
    """The words of a view, a window of the page in px, on a grid of `grid` patches; None where the network reads it."""
    if not isinstance(page, PageWords) or page.lines is None:
        return None
    return GivenWords(words_on_view(page.lines, square_of(window), grid), page.partial)


def words_on_squares(packed: Tensor, sizes: Tensor, grid: int) -> list[GivenWords | None]:
    """The words of whole images of (height, width) `sizes` [P, 2], from `image_words` of the processor."""
    pages = zip(from_tensor(packed), sizes.tolist(), strict=True)
    return [given_words(page, (0, 0, width, height), grid) for page, (height, width) in pages]


def resolved_words(pages: Sequence[PageText | None], wanted: Any) -> list[Any]:
    """The option `words` of each page, from what is known of its text and the one that is wanted for all.

    Words that were read before are kept. A text layer serves "auto" and "text_layer".
    """
    return [
        page
        if isinstance(page, PageWords) or (page is not None and wanted == "auto")
        else layer_words(page)
        if isinstance(page, TextLayer) and wanted == "text_layer"
        else wanted
        for page in pages
    ]


def layer_words(layer: TextLayer) -> PageWords:
    """The known lines of a text layer as it is."""
    return PageWords(known_lines(layer), "text_layer", _version("pypdfium2"), partial=layer.pictures > PICTURES)


@dataclass(frozen=True)
class PageToRead:
    """A page whose words are wanted: its source, its pixels, and what reads strips of it (`read_strips`), if a model
    is at hand."""

    source: Source
    image: Image.Image
    read: Callable[[Sequence["Strip"]], list[str]] | None = None

    @property
    def name(self) -> str:
        return "the image" if self.source.page is None else f"page {self.source.page}"

    @cached_property
    def layer(self) -> TextLayer | None:
        """The text layer; None without one, or with one that holds no character."""
        layer: TextLayer | None = None if self.source.layer is None else self.source.layer(self.image)
        if layer is None or not (layer.hidden or layer.unknown or known_lines(layer)):
            return None
        return layer


def known_lines(layer: TextLayer) -> tuple[PrintedLine, ...]:
    """The lines of a text layer that are not unknown as a whole."""
    return tuple(line for line in layer.lines if line.text.strip(UNKNOWN))


def words_of_page(words: Any, page: PageToRead) -> PageWords:
    """The words of a page from the source `words`: a name in `WORD_SOURCES`, a list, the path of a file, or themselves.

    Raises:
        ValueError: an unknown name, or see `lines_of_caller` and `lines_of_file`.
    """
    if isinstance(words, PageWords):
        return words
    if isinstance(words, str) and words in WORD_SOURCES:
        return WORD_SOURCES[words](page)
    size = page.source.height, page.source.width
    if isinstance(words, str | Path):
        return PageWords(lines_of_file(Path(words).expanduser(), *size, number=page.source.page or 1), "file")
    return PageWords(lines_of_caller(words, *size), "caller")


def words_of_each(words: Any, count: int) -> list[Any]:
    """The option `words` of each of `count` sources; one list of words is that of a single source.

    Raises:
        ValueError: another number of lists, or what `check_words` refuses.
    """
    each = [words] * count
    of_one = isinstance(words, list | tuple) and all(
        isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[0], str) for entry in words
    )
    if isinstance(words, list | tuple) and not (of_one and words):
        each = ["auto" if one is None else one for one in words]
        for one in each:
            check_words(one)
    if len(each) != count or (of_one and count > 1):
        received = "words of one" if of_one else f"{len(each)} lists"
        raise ValueError(f"words: expected a list of words for each of {count} sources; got {received}")
    return each


def read_before(words: Any, page: "PageToRead") -> PageText | None:
    """What is known of a page's text without a model: words, or a text layer that is to be compared; None: nothing."""
    if words == "auto":
        return page.layer
    return None if words == "network" else words_of_page(words, page)


def check_words(words: Any) -> None:
    """Raises a ValueError unless `words` is the name of a source, words, or the path of a file that exists."""
    if isinstance(words, list | tuple | PageWords | TextLayer) or (isinstance(words, str) and words in WORD_SOURCES):
        if words == "ocr":
            ocr_engine()  # refused before any work where it is not installed
        return
    if not isinstance(words, str | Path) or not Path(words).expanduser().is_file():
        expected = f"{', '.join(sorted(WORD_SOURCES))}, a list of (text, (x0, y0, x1, y1)), or the path of a file"
        raise ValueError(f"words: expected {expected}; got {words!r:.200}")


@WORD_SOURCES.register("network")
def network(page: PageToRead) -> PageWords:
    """The text reader of the model."""
    return PageWords()


@WORD_SOURCES.register("text_layer")
def text_layer(page: PageToRead) -> PageWords:
    """The text layer of a PDF as it is; the network reads pages without one, with a warning."""
    if (layer := page.layer) is None or not known_lines(layer):
        return PageWords(warning=f"{page.name} has no text layer, so the network read it")
    return layer_words(layer)


@WORD_SOURCES.register("auto")
def auto(page: PageToRead) -> PageWords:
    """The text layer where a page has one that agrees with what the network reads, else the network."""
    if (layer := page.layer) is None:
        return PageWords()
    if doubt := doubts(layer, page):
        return PageWords(warning=f"{page.name}: {doubt}, so the network read it")
    return text_layer(page)


@WORD_SOURCES.register("ocr")
def ocr(page: PageToRead) -> PageWords:
    """rapidocr (PP-OCR); the network reads a page on which it fails or finds nothing, with a warning."""
    engine = ocr_engine()
    try:
        found = engine(np.asarray(page.image)[..., ::-1], return_word_box=True, return_single_char_box=True)  # BGR
    except Exception as error:  # engines raise what they like
        return PageWords(warning=f"{page.name}: OCR failed ({type(error).__name__}), so the network read it")
    if found.boxes is None or not len(found.boxes):
        return PageWords(warning=f"{page.name}: OCR found no text, so the network read it")
    rows = zip(found.boxes, found.txts, found.scores, found.word_results, strict=True)
    lines = [line for row in rows if (line := _line_of_ocr(*row)) is not None]
    return PageWords(tuple(lines), "ocr", _version("rapidocr"))


SPACE = 1.3
"""The gap between two characters from which on they are in two words, relative to the median width of the line's.

PP-OCR drops spaces where words are far apart. Lower values split words on dense pages, where its boxes are coarse.
"""


def _line_of_ocr(corners: Any, text: str, score: float, characters: Any) -> PrintedLine | None:
    """A line of an OCR engine: its corners, text, confidence, and (character, confidence, corners) of each character
    but spaces. Characters share the line's width where they are not known; None without text or area."""
    plain = " ".join(text.split())
    (x0, y0), (x1, y1) = np.min(corners, 0), np.max(corners, 0)
    if not plain or not (x0 < x1 and y0 < y1):
        return None
    if "".join(character for character, *_ in characters) != plain.replace(" ", ""):
        return line_in_box(plain, (x0, y0, x1, y1), float(score))
    places = iter(np.array([(*np.min(box, 0), *np.max(box, 0)) for *_, box in characters], np.float32))
    usual = float(np.median([np.ptp(np.asarray(box)[:, 0]) for *_, box in characters]))
    shown, boxes, spaced = "", list[np.ndarray](), False
    for character in plain:
        if character == " ":
            spaced = True
            continue
        box = next(places)
        if boxes and (spaced or box[0] - boxes[-1][2] > SPACE * usual):
            shown += " "
            boxes.append(np.array((boxes[-1][2], box[1], box[0], box[3]), np.float32))
        shown, spaced = shown + character, False
        boxes.append(box)
    return PrintedLine(shown, np.array(boxes), float(score))


@cache
def ocr_engine() -> Any:
    """The OCR engine, on as many threads as torch.

    Raises:
        MissingPackage: rapidocr is not installed.
    """
    try:
        rapidocr = import_module("rapidocr")
        import_module("onnxruntime")
    except ImportError as error:
        raise MissingPackage('words="ocr": expected rapidocr (pip install "arr-coc[ocr]"); got none') from error
    threads = {"intra_op_num_threads": torch.get_num_threads(), "inter_op_num_threads": 1}
    options = {f"EngineConfig.onnxruntime.{name}": value for name, value in threads.items()}
    return rapidocr.RapidOCR(params={**options, "Global.log_level": "error"})


@cache
def _version(package: str) -> str:
    return f"{package} {metadata.version(package)}"


# ---- words in files -------------------------------------------------------------------------------------------------

MOST_BYTES = 64 * 2**20
"""Bytes of a file of words; the words of a page of a newspaper take 1 MB."""

Placed = tuple[str, tuple[float, float, float, float]]

Pages = list[tuple[tuple[float, float], list[Placed]]]
"""Of each page (width, height) in its own unit, 0 if it is not stated, and its words."""


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
        parser = _Hocr("ocrx_word" if "ocrx_word" in text else "ocr_line")
        parser.feed(text)
        parser.close()
        pages = parser.pages
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


# ---- whether a text layer tells the truth ---------------------------------------------------------------------------

SAMPLED = 16
"""The most strips of a page in which the network reads what a text layer says."""

HIDDEN, UNKNOWN_SHARE = 0.12, 0.3
"""The largest shares of a text layer's characters that no one can see, and that have no known meaning."""

ALIKE, ALIKE_DIGITS = 0.75, 0.9
"""The least similarity, 0..1, of the strips of a text layer with what the network reads there, and of their digits.

With arr-coc-135m, half of the documents of benchmarks/lying_layers.py: at least 0.97 and 0.95 where the layer is right,
at most 0.67 or 0.83 where its text or its numbers are not, but are visible (2026-11-28).
"""

PICTURES = 0.05
"""The share of a page in pictures without text in the layer from which on the network reads these."""


def doubts(layer: TextLayer, page: PageToRead) -> str:
    """Why a text layer is not to be trusted; "" if it is."""
    shown = sum(len(line.text.replace(" ", "").replace(UNKNOWN, "")) for line in layer.lines)
    every = layer.hidden + layer.unknown + shown
    for count, most, fault in (
        (layer.hidden, HIDDEN, "cannot be seen"),
        (layer.unknown, UNKNOWN_SHARE, "have no known meaning"),
    ):
        if count > most * every:
            return f"{count} of {every} characters of its text layer {fault}"
    strips = sampled_strips(layer.lines)
    if not strips or page.read is None:
        return ""
    said, read = [_plain(strip.text) for strip in strips], [_plain(text) for text in page.read(strips)]
    for what, least, pattern in (("words", ALIKE, ""), ("numbers", ALIKE_DIGITS, r"\D")):
        pairs = [
            (re.sub(pattern, "", first), re.sub(pattern, "", second)) for first, second in zip(said, read, strict=True)
        ]
        alike = [SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in pairs if pair[0]]
        if len(alike) > 1 and (mean := float(np.mean(alike))) < least:
            return f"its text layer says other {what} than the page shows (similarity {mean:.0%})"
    return ""


def _plain(text: str) -> str:
    """Letters and digits in lower case, as the text reader knows them."""
    return re.sub(r"[^0-9a-z]", "", "".join(map(readable, text)).lower())


@dataclass(frozen=True)
class Strip:
    """A piece of a printed line: its text, and its box in px of the page."""

    text: str
    box: tuple[float, float, float, float]


STRIP, STRIP_HEIGHT, CAPITAL = 256, 32, 11.0
"""px: the width and the height of a strip on the sheet that the network reads, and the height of its capitals there."""


def sampled_strips(lines: Sequence[PrintedLine]) -> list[Strip]:
    """At most `SAMPLED` pieces of a page's lines, half of them with digits where there are so many, spread evenly."""
    strips = [strip for line in lines for strip in _pieces(line)]
    with_digits = [strip for strip in strips if re.search(r"\d", strip.text)]
    others = [strip for strip in strips if not re.search(r"\d", strip.text)]
    most = max(SAMPLED // 2, SAMPLED - len(others))
    taken = _spread(with_digits, most)
    return taken + _spread(others, SAMPLED - len(taken))


def _spread(strips: list[Strip], most: int) -> list[Strip]:
    if len(strips) <= most:
        return strips
    return [strips[int((number + 0.5) * len(strips) / most)] for number in range(most)]


def _pieces(line: PrintedLine) -> list[Strip]:
    """The runs of whole known words of a line that fit a strip, with three letters or digits at least."""
    runs: list[list[Any]] = []
    for text, boxes in line.words():
        x0, y0, x1, y1 = around(boxes)
        room = (STRIP - 24) * (y1 - y0) / CAPITAL
        if runs and x1 - runs[-1][1][0] <= room and UNKNOWN not in text:
            words, (left, top, _, bottom) = runs[-1]
            runs[-1] = [f"{words} {text}", (left, min(top, y0), x1, max(bottom, y1))]
        elif UNKNOWN not in text and x1 - x0 <= room:
            runs.append([text, (x0, y0, x1, y1)])
    return [Strip(text, box) for text, box in runs if len(_plain(text)) >= 3]


@torch.no_grad()
def read_strips(
    tower: ArrCocVisionTower, processor: ArrCocImageProcessor, image: Image.Image, strips: Sequence[Strip]
) -> list[str]:
    """What the text reader reads in each strip of an image: all strips on one sheet, two in a row."""
    reader = tower.text_reader
    assert reader is not None, "only models that read text check it"
    rows = math.ceil(len(strips) / 2)
    sheet = Image.new("RGB", (2 * STRIP, STRIP_HEIGHT * rows), "white")
    for number, strip in enumerate(strips):
        x0, y0, x1, y1 = strip.box
        scale = CAPITAL / (y1 - y0)
        above, below = 0.45 * (y1 - y0), 0.45 * (y1 - y0)
        part = image.crop((round(x0 - 6 / scale), round(y0 - above), round(x1 + 6 / scale), round(y1 + below)))
        size = max(1, min(STRIP, round(part.width * scale))), max(1, min(STRIP_HEIGHT, round(part.height * scale)))
        corner = number % 2 * STRIP, number // 2 * STRIP_HEIGHT + (STRIP_HEIGHT - size[1]) // 2
        sheet.paste(part.resize(size, Image.Resampling.BICUBIC), corner)
    words = reader.words(tower.stem(torch.from_numpy(processor.as_pixels(np.asarray(sheet)))[None]))[0]
    texts: list[list[Word]] = [[] for _ in range(2 * rows)]
    for word in words:
        row = min(int(word.row * COLUMNS / 2 // STRIP_HEIGHT), rows - 1)
        texts[2 * row + int(word.columns[0] >= STRIP)].append(word)
    ordered = [sorted(own, key=lambda word: word.columns[0]) for own in texts[: len(strips)]]
    return [" ".join(word.text for word in own) for own in ordered]
