"""Scans whose text two teachers agree on, to learn reading from: an annotation or the scan's own OCR layer, and PP-OCR.

    python -m arr_coc.data.real_scans --receipts ICDAR-2019-SROIE --filings vrdu --keep-out LIST --out pages/real/scans

Writes a folder for each split, `train` and `validation`, as `pdf_corpus` caches pages. SROIE's annotation has the right
characters and spaces but no small letters; PP-OCR has those, and where each character stands. All other text is
painted over, so that nothing is to be read where nothing is known. Needs the extra "ocr".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby

import numpy as np
from PIL import Image, ImageDraw
from tqdm import tqdm

from ..files import run_module
from ..modeling.image_loading import Source
from ..modeling.printed_lines import PrintedLine
from ..modeling.word_sources import WORD_SOURCES, PageToRead
from ..pages.page import TextPage
from . import real_corpus
from .field_mining import TextLine
from .pdf_corpus import store_page
from .real_corpus import Repository, kept_out, parser_of
from .real_pages import split_of_group

AGREED = 0.6  # the least share of a page's annotated characters that PP-OCR reads as well; other pages are left out
DPI = 130
MARGIN = 2  # px beside a line that are painted over with it


@dataclass(frozen=True)
class Scan:
    """A picture, its text from one teacher, and the group (company, document) that it belongs to."""

    group: str
    image: Image.Image
    lines: Sequence[TextLine]


def squeezed(text: str) -> str:
    """The characters but spaces, in lower case."""
    return "".join(text.split()).casefold()


def agreed(read: PrintedLine, lines: Sequence[TextLine]) -> PrintedLine | None:
    """A line of the OCR with the spaces of the one that has the same characters at its place; None without one."""
    x0, y0, x1, y1 = read.box
    for text, left, top, right, bottom in lines:
        beside = min(x1, right) - max(x0, left) < 0.7 * max(x1 - x0, right - left)
        if beside or not top < (y0 + y1) / 2 < bottom or squeezed(text) != squeezed(read.text):
            continue
        places = iter([(letter, box) for letter, box in zip(read.text, read.boxes, strict=True) if letter != " "])
        shown, boxes = "", list[np.ndarray]()
        for word in " ".join(text.split()).split(" "):
            for number in range(len(word)):
                letter, box = next(places)
                if not number and boxes:
                    shown += " "
                    boxes.append(np.array((boxes[-1][2], box[1], max(box[0], boxes[-1][2]), box[3]), np.float32))
                shown += letter
                boxes.append(box)
        return PrintedLine(shown, np.array(boxes))
    return None


def read_scan(scan: Scan) -> TextPage | None:
    """A page with the lines that both teachers read alike, the others painted over; None if these are too many."""
    image = scan.image.convert("RGB")
    read = WORD_SOURCES["ocr"](PageToRead(Source(image.height, image.width, lambda: image), image)).lines or ()
    known, boxes = [], [line[1:] for line in scan.lines] + [line.box for line in read]
    for line in read:
        if len(squeezed(line.text)) == len(line.text.replace(" ", "")) and (both := agreed(line, scan.lines)):
            known.append(both)
    characters = sum(len(squeezed(line[0])) for line in scan.lines)
    if not known or sum(len(squeezed(line.text)) for line in known) < AGREED * characters:
        return None
    paper = tuple(int(each) for each in np.median(np.asarray(image).reshape(-1, 3), 0))
    covered, pencil, (wide, tall) = image.copy(), ImageDraw.Draw(image), image.size
    for x0, y0, x1, y1 in boxes:
        pencil.rectangle((x0 - MARGIN, y0 - MARGIN, x1 + MARGIN, y1 + MARGIN), fill=paper)
    for line in known:
        x0, y0, x1, y1 = (round(edge) for edge in line.box)
        place = (max(x0 - MARGIN, 0), max(y0 - MARGIN, 0), min(x1 + MARGIN, wide), min(y1 + MARGIN, tall))
        image.paste(covered.crop(place), place[:2])
    return TextPage(image, image.size, tuple(known), kind="scan", source=scan.group)


def receipts(repository: Repository, out: set[str]) -> Iterator[Scan]:
    """SROIE's receipts, in the groups of `real_corpus`."""
    pages = real_corpus.receipts(repository, out)
    for page, (_, picture) in zip(pages, real_corpus.pictures(repository, (each.lines for each in pages)), strict=True):
        yield Scan(page.group, Image.open(BytesIO(picture)), page.lines)


def filings(repository: Repository, folder: str, out: set[str]) -> Iterator[Scan]:
    """The first page with an OCR layer of each scanned PDF, in the groups of `real_corpus`, years mixed."""
    names = sorted(repository.names, key=lambda name: zlib.crc32(name.encode()))
    found = real_corpus.sheets(repository, (name for name in names if name.startswith(f"{folder}/")), out)
    for _, pages in groupby(found, key=lambda page: page[0]):
        _, group, sheet, lines = next(pages)
        scale = DPI / 72
        scaled = [(text, x0 * scale, y0 * scale, x1 * scale, y1 * scale) for text, x0, y0, x1, y1 in lines]
        yield Scan(group, sheet.render(scale=scale, rev_byteorder=True).to_pil(), scaled)


def main() -> None:
    """Writes the folders `train` and `validation`; pages that are there are kept."""
    parser = parser_of("Make pages to learn reading from, of real scans.", "folder of the splits")
    parser.add_argument("--limit", type=int, default=600, help="pages of each kind (default: 600)")
    arguments = parser.parse_args()
    out = kept_out(arguments.keep_out)
    kinds: dict[str, Iterator[Scan]] = {}
    if arguments.receipts:
        kinds["receipt"] = receipts(Repository(arguments.receipts), out)
    if arguments.filings:
        kinds["registration"] = filings(Repository(arguments.filings), "registration-form", out)
    for kind, scans in kinds.items():
        for number, scan in enumerate(tqdm(scans, desc=kind, unit="page", total=arguments.limit, disable=None)):
            if number >= arguments.limit:
                break
            split = split_of_group(scan.group)
            stored = arguments.out / split / f"{kind}-{number:06}.npz"
            if split == "test" or stored.exists():
                continue
            stored.parent.mkdir(parents=True, exist_ok=True)
            store_page(read_scan(scan), stored)


if __name__ == "__main__":
    run_module(main)
