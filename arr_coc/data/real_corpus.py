"""Makes the files of `real_pages` from public repositories: receipts, broadcasters' orders and registration forms.

    git clone https://github.com/zzzDavid/ICDAR-2019-SROIE && git clone https://github.com/google-research-datasets/vrdu
    python -m arr_coc.data.real_corpus --receipts ICDAR-2019-SROIE --filings vrdu --out pages/real --keep-out LIST

Receipts have lines of an annotation with four keys; their other fields, and all fields of the filings, whose PDFs have
a text layer, are found by `field_mining`. Pages of Debian's packages (`--manuals`, a folder of `pdf_corpus`) have lines
only. A list names pages and documents that nothing is learned from, one a line:
`sroie/NAME`, `deepform/DOCUMENT_PAGE` or `source FILE`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..files import run_module, write_text
from .field_mining import MinedField, TextLine, mine, normal, type_of
from .field_wordings import PRICE, concept_of
from .pdf_corpus import is_readable, pdf_pages, read_pdf_page
from .real_pages import RealPages

Edges = Sequence[float]  # of a box

PAGES_OF_DOCUMENT, FEWEST_LINES, MOST_PRICES, MOST_MANUALS = 3, 15, 4, 1500
_KEYS = {"company": "shop", "date": "receipt date", "address": "address", "total": "total"}
_SPAN = re.compile(r"(\S*\d\S*)\s*(?:-|to|thru)\s*(\S*\d\S*)")
_FITTING = {
    **{kind: (kind,) for kind in ("amount", "date", "time")},
    **{"dates": ("date", "dates"), "phone": ("phone", "number"), "text": ("text", "number"), "count": ("number",)},
    **{"person": ("text",), "company": ("text",)},
}
"""Types of values that a concept's kind allows; any of others."""
_NO_ITEM = re.compile(
    r"total|ttl|rnd|cash|change|gst|tax|round|visa|card|discount|amount|balance|paid|payment|qty|tender|due|service|item|disc|bal|tel|fax"
    r"|nett|sales|credit|debit|charge|price|sum|save|saving|point|deposit|thank|date|time|bill|invoice|receipt|table|code",
    re.I,
)
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{2,4}")


class Repository:
    """Files of a git repository's HEAD, some of which may be missing; a ValueError for another folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = self._git("ls-tree", "-r", "-z", "--name-only", "HEAD")
        if listed is None:
            raise ValueError(f"{folder}: expected a git repository; got none")
        self.names = [name for name in listed.decode().split("\0") if name]

    def _git(self, *arguments: str) -> bytes | None:
        ran = subprocess.run(["git", "-C", str(self.folder), *arguments], capture_output=True)
        return ran.stdout if ran.returncode == 0 else None

    def read(self, name: str) -> bytes | None:
        """A file's content; None if it is missing."""
        return self._git("show", f"HEAD:{name}")


@dataclass
class _Page:
    """A page before its file is written: the document, its group, size, lines, and questions."""

    group: str
    size: tuple[float, float]
    lines: list[TextLine]
    questions: list[dict[str, Any]]


def letters(text: str, most: int = 14) -> str:
    """The first letters of a name: those of one company, however it is written."""
    return re.sub(r"[^a-z]", "", text.lower())[:most]


def kept_out(path: Path | None) -> set[str]:
    """Names of receipts, documents and files in a list."""
    names = set()
    for line in [] if path is None else path.read_text(encoding="utf-8").splitlines():
        name = line.removeprefix("source ").strip().split("/", 1)[-1]
        names |= {name, Path(name).stem, re.sub(r"_\d+$", "", name)}
    return names


def question(
    label: str, value: str, boxes: Sequence[Edges], label_box: Edges | None, concept: str = "", part: str = ""
) -> dict[str, Any]:
    """A question of a page's file."""
    told = {"label": label, "concept": concept, "part": part, "answers": [value]}
    rounded = [[round(edge, 1) for edge in box] for box in boxes]
    return told | {"boxes": rounded, "label_boxes": [[round(edge, 1) for edge in label_box]] if label_box else []}


def questions_of(field: MinedField, pages: str) -> Iterator[dict[str, Any]]:
    """Questions for a mined field whose concept is known, and for both ends of a range of dates."""
    known = concept_of(field.label, pages)
    value = field.value.lstrip(": ").strip()
    start = len(field.value) - len(field.value.lstrip(": "))
    value = value.rstrip(")") if "(" not in value else value
    kind = type_of(value)
    if not known or known.kind == "address" or not value or value.endswith("#"):
        return  # an address has several lines
    x0, y0, x1, y1 = field.box
    step = (x1 - x0) / max(len(field.value), 1)

    def box(begin: int, end: int) -> tuple[float, float, float, float]:
        return x0 + (start + begin) * step, y0, x0 + (start + end) * step, y1

    date = _DATE.match(value)
    if known.kind == "date" and date and kind != "dates":
        value = value[: date.end()]  # a time follows
    if type_of(value) not in _FITTING.get(known.kind, (type_of(value),)):
        return
    yield question(field.label, value, [box(0, len(value))], field.label_box, known.name)
    span = _SPAN.fullmatch(value) if kind == "dates" else None
    if span:
        for number, part in ((1, "start"), (2, "end")):
            yield question(field.label, span[number], [box(*span.span(number))], field.label_box, known.name, part)


def prices(lines: Sequence[TextLine]) -> Iterator[dict[str, Any]]:
    """Questions for what the items of a receipt cost: of rows with one name and one amount."""
    names = Counter(normal(line[0]) for line in lines)
    for line in lines:
        text, _, y0, x1, y1 = line
        row = [other for other in lines if abs(other[2] + other[4] - y0 - y1) < y1 - y0 and other[1] > x1]
        amounts = [other for other in row if type_of(other[0]) == "amount"]
        words = [word for word in re.findall(r"[A-Za-z]+", text) if len(word) > 2]
        item = len(words) > 1 and len(words) / len(text.split()) > 0.5 and not _NO_ITEM.search(text)
        if item and len(amounts) == 1 == names[normal(text)] and text.count(":") == 0 and len(text) < 40:
            yield question(text, amounts[0][0], [amounts[0][1:]], line[1:], PRICE)


def receipts(repository: Repository, out: set[str]) -> list[_Page]:
    """SROIE's receipts: the keys of the annotation, and mined fields of other meanings."""
    pages = []
    for name in repository.names:
        stem = Path(name).stem
        if not name.startswith("data/box/") or stem in out:
            continue
        lines = list(annotated((repository.read(name) or b"").decode("utf-8", "replace")))
        try:
            keys = json.loads(repository.read(f"data/key/{stem}.json") or b"{}")
        except ValueError:
            continue
        if len(lines) < 5 or not keys:
            continue
        size = (max(line[3] for line in lines) + 20, max(line[4] for line in lines) + 30)
        head = " ".join(line[0] for line in sorted(lines, key=lambda line: line[2])[:2])
        keyed = [each for key, concept in _KEYS.items() for each in _keyed(key, concept, keys.get(key) or "", lines)]
        company = next((each["answers"][0] for each in keyed if each["concept"] == "shop"), head)
        pages.append(_Page(letters(company), size, lines, keyed))
    for page, fields in zip(pages, mine([(page.group, page.lines) for page in pages], under=False), strict=True):
        there = {each["concept"] for each in page.questions}
        mined = [each for field in fields for each in questions_of(field, "receipts")]
        page.questions += [each for each in mined if each["concept"] not in {*there, *_KEYS.values()}]
        page.questions += list(prices(page.lines))[:MOST_PRICES]
    return pages


def pictures(repository: Repository, pages: Iterable[Sequence[TextLine]]) -> Iterator[tuple[str, bytes]]:
    """The name and the picture of each of SROIE's receipts, whose lines are given."""
    names = {}
    for name in (name for name in repository.names if name.startswith("data/box/")):
        told = annotated((repository.read(name) or b"").decode("utf-8", "replace"))
        names[tuple(line[0] for line in told)] = Path(name).stem
    for lines in pages:
        name = names[tuple(line[0] for line in lines)]
        yield name, repository.read(f"data/img/{name}.jpg") or b""


def write_scans(repository: Repository, pages: RealPages, out: Path) -> None:
    """Writes receipts as a data set: their pictures, and `data.jsonl` with their questions."""
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    lines = (pages.content(number)["lines"] for number in range(len(pages)))
    for number, (name, picture) in enumerate(pictures(repository, lines)):
        (out / f"{name}.jpg").write_bytes(picture)
        for each in pages[number].questions:
            if each.absent:
                continue  # drawn pages ask enough of these
            row = {"image": f"{name}.jpg", "question": each.text, "answers": each.answers, "boxes": each.boxes}
            rows.append(json.dumps(row | {"label_boxes": each.label_boxes}) + "\n")
    write_text(out / "data.jsonl", "".join(rows))


def annotated(text: str) -> Iterator[TextLine]:
    """Lines of SROIE's files: four corners and a text."""
    for row in text.splitlines():
        parts = row.split(",", 8)
        if len(parts) == 9 and parts[8].strip() and all(part.strip().lstrip("-").isdigit() for part in parts[:8]):
            x, y = [int(part) for part in parts[0:8:2]], [int(part) for part in parts[1:8:2]]
            yield " ".join(parts[8].split()), min(x), min(y), max(x), max(y)


def _keyed(key: str, concept: str, value: str, lines: Sequence[TextLine]) -> Iterator[dict[str, Any]]:
    """The question for a key, if its value is found."""
    value = " ".join(value.split())
    value = value.lstrip("RM$ ") if key == "total" else value
    plain = re.sub(r"[^a-z0-9]", "", value.lower())
    if len(plain) < 3:
        return
    boxes: list[tuple[float, ...]] = []
    if key in ("date", "total"):
        totals = [line for line in lines if re.search("total|amount|amt", line[0], re.I)]
        for text, x0, y0, x1, y1 in lines:
            at = text.find(value)
            beside = key == "date" or any(abs(y0 + y1 - line[2] - line[4]) < 1.2 * (y1 - y0) for line in totals)
            if at >= 0 and beside:
                step = (x1 - x0) / len(text)
                boxes.append((x0 + at * step, y0, x0 + (at + len(value)) * step, y1))
    else:
        left = plain
        for text, *box in lines:
            part = re.sub(r"[^a-z0-9]", "", text.lower())
            if len(part) >= 3 and part in left:
                boxes.append(tuple(box))
                left = left.replace(part, "", 1)
        boxes = boxes if len(left) <= 0.1 * len(plain) else []
    if boxes:
        yield question("", value, boxes, None, concept)


def filings(repository: Repository, folder: str, pages_name: str, out: set[str]) -> list[_Page]:
    """Pages of PDFs with a text layer, and their mined fields."""
    names = [name for name in repository.names if name.startswith(f"{folder}/")]
    found = sheets(repository, tqdm(names, desc=folder, unit="file", disable=None), out)
    pages = [_Page(group, sheet.get_size(), lines, []) for _, group, sheet, lines in found]
    for page, fields in zip(pages, mine([(page.group, page.lines) for page in pages]), strict=True):
        page.questions = [each for field in fields for each in questions_of(field, pages_name)]
    return pages


def sheets(
    repository: Repository, names: Iterable[str], out: set[str]
) -> Iterator[tuple[str, str, Any, list[TextLine]]]:
    """The first pages with a text layer of PDFs: name, group (registrant or document), page and lines, hidden text of
    scans included; pages that are turned not."""
    import pypdfium2

    for name in names:
        stem = Path(name).stem
        if not name.lower().endswith(".pdf") or stem in out:
            continue
        parts = stem.split("_")
        group = letters(parts[1]) if len(parts) > 2 and parts[0].isdigit() else stem
        try:
            document = pypdfium2.PdfDocument(repository.read(name) or b"")
        except pypdfium2.PdfiumError:  # a few are damaged
            continue
        for number in range(min(PAGES_OF_DOCUMENT, len(document))):
            sheet = document[number]
            if sheet.get_rotation():
                continue
            lines = list(_lines(sheet.get_textpage(), sheet.get_height()))
            if len(lines) >= FEWEST_LINES and not lines[0][0].startswith("Document Metadata"):
                yield name, group, sheet, lines


def _lines(text: Any, height: float) -> Iterator[TextLine]:
    """Characters beside each other, in the order of the file, as lines with single spaces."""
    line: TextLine | None = None
    spaced = False
    for number in range(text.count_chars()):
        character = text.get_text_range(number, 1)
        if not character.strip() or not character.isprintable():
            spaced = True
            continue
        x0, low, x1, high = text.get_charbox(number, loose=True)
        y0, y1 = height - high, height - low
        tall = max(y1 - y0, 1.0)
        if line and abs(y0 + y1 - line[2] - line[4]) < 0.7 * tall and -0.5 * tall < x0 - line[3] < 0.9 * tall:
            space = " " if spaced or x0 - line[3] > 0.22 * tall else ""
            line = (line[0] + space + character, line[1], min(line[2], y0), x1, max(line[4], y1))
        else:
            if line:
                yield line
            line = (character, x0, y0, x1, y1)
        spaced = False
    if line:
        yield line


def manuals(folder: Path) -> list[_Page]:
    """Pages of the training packages in a folder of `pdf_corpus`: lines alone."""
    pages = []
    for path, number in tqdm(pdf_pages(folder, "train")[:MOST_MANUALS], desc="manuals", unit="page", disable=None):
        page = read_pdf_page(path, number, 72)
        if is_readable(page):
            lines = [(each.text, *each.boxes[:, :2].min(0), *each.boxes[:, 2:].max(0)) for each in page.lines]
            group = path.relative_to(folder).parts[0]
            pages.append(_Page(group, page.size, [(text, *map(float, box)) for text, *box in lines], []))
    return pages


def write(pages: Sequence[_Page], path: Path, bare: bool = False) -> None:
    """Writes the pages that have questions, or with `bare` all."""
    asked = [page for page in pages if page.questions or bare]
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(path, "wb", mtime=0) as stream:  # the same bytes each time
        for page in asked:
            lines = [[text, *(round(edge, 1) for edge in box)] for text, *box in page.lines]
            row = {"group": page.group, "size": page.size, "lines": lines, "questions": page.questions}
            stream.write(f"{json.dumps(row)}\n".encode())
    print(f"{path}: {len(asked)} pages, {sum(len(page.questions) for page in asked)} questions")


def parser_of(description: str, out: str) -> argparse.ArgumentParser:
    """A parser with the arguments that name repositories, pages to leave out, and the folder `out`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--receipts", type=Path, metavar="GIT", help="clone of zzzDavid/ICDAR-2019-SROIE")
    parser.add_argument("--filings", type=Path, metavar="GIT", help="clone of google-research-datasets/vrdu")
    parser.add_argument("--keep-out", type=Path, metavar="LIST", help="pages and documents to leave out, one a line")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=out)
    return parser


def main() -> None:
    """Writes `receipts.jsonl.gz`, `orders.jsonl.gz`, `registrations.jsonl.gz`, `manuals.jsonl.gz`, and scans."""
    parser = parser_of("Make files of real pages as text from public repositories.", "folder of the files")
    parser.add_argument("--manuals", type=Path, metavar="DIR", help="folder of arr_coc.data.pdf_corpus")
    told = "also write validation's receipts as a data set of scans, to calibrate on"
    parser.add_argument("--scans", action="store_true", help=told)
    arguments = parser.parse_args()
    out = kept_out(arguments.keep_out)
    if arguments.receipts:
        path, repository = arguments.out / "receipts.jsonl.gz", Repository(arguments.receipts)
        write(receipts(repository, out), path)
        if arguments.scans:
            write_scans(repository, RealPages(path, "validation"), arguments.out / "scanned_receipts")
    if arguments.filings:
        repository = Repository(arguments.filings)
        for folder, name in (("ad-buy-form", "orders"), ("registration-form", "registrations")):
            write(filings(repository, folder, name, out), arguments.out / f"{name}.jsonl.gz")
    if arguments.manuals:
        write(manuals(arguments.manuals), arguments.out / "manuals.jsonl.gz", bare=True)


if __name__ == "__main__":
    run_module(main)
