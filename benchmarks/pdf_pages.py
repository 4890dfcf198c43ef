"""Born-digital PDFs with questions, as a bench: does a text layer answer better than a page that is rendered and read?

    python -m benchmarks.pdf_pages DIR --packages FOLDER    # writes DIR/KIND/*.pdf and data.jsonl, 300 questions
    arr-coc evaluate --bench DIR

`pdf_pages.csv` fixes 60 drawn documents of eight kinds (see `pdf_designs`), `pdf_pages_debian.csv` 40 pages of PDFs in
Debian's packages: package, version, file, page, the file's SHA-256, and a seed. The packages are of the test split of
`arr_coc.data.pdf_corpus`, so nothing is trained on them. FOLDER holds the unpacked packages; missing ones are
downloaded, on Debian only. Without --packages only the drawn documents are written. This repository has none of the
files. Drawn documents are asked by printed names of fields, rows and columns; Debian's pages by `page_questions`.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pypdfium2

from arr_coc.data.pdf_corpus import install, read_pdf_page
from arr_coc.pages.line_questions import words_of
from arr_coc.pages.page import Line

from .pdf_designs import QUESTIONS, drawn
from .pdf_drawing import read_manifest, write_documents, write_jsonl

MANIFEST = Path(__file__).with_name("pdf_pages.csv")
DEBIAN = Path(__file__).with_name("pdf_pages_debian.csv")

Asked = tuple[str, list[str]]
"""A question and its right answers."""

_HEADING = re.compile(r"(\d+(?:\.\d+)+)\.? ([A-Z][\w ,'-]{4,60})")
_CONTENTS = re.compile(r"(?:[\d.]+ )?([A-Z][\w ,'()-]{4,60}?)(?: ?\.){4,} ?(\d+)")
_LABELLED = re.compile(r"([A-Z][\w ()/-]{2,30}): (\S+(?: \S+){0,2}(?<![,-]))")
_WORD = re.compile(r"[A-Za-z]{3,}[.,;:]?")


def page_questions(lines: Sequence[Line], seed: int) -> list[Asked]:
    """Three questions about the printed lines of a page, or fewer: by rules and a seed, without looking at the page.

    The first asks for the number of a section, the page of an entry of a table of contents, or what is behind a label
    with a colon, if one of these is on the page; the others for the word behind two words that stand beside each other
    once.
    """
    random, texts = Random(seed), [line.text for line in lines]
    named: list[Asked] = []
    for text in texts:
        if heading := _HEADING.fullmatch(text):
            named.append((f'What is the number of the section "{heading[2]}"?', [heading[1]]))
        elif entry := _CONTENTS.fullmatch(text):
            named.append((f'On which page is "{entry[1]}", according to the table of contents?', [entry[2]]))
        elif pair := _LABELLED.fullmatch(text):
            named.append((f'What does it say for "{pair[1]}"?', [pair[2], pair[2].rstrip(".,;")]))
    every = " ".join(texts).casefold()
    named = [asked for asked in named if every.count(asked[0].split('"')[1].casefold()) == 1]
    follows = _follows(lines)
    chosen = random.sample(named, min(1, len(named)))
    return chosen + random.sample(follows, min(QUESTIONS - len(chosen), len(follows)))


def _follows(lines: Sequence[Line]) -> list[Asked]:
    """The words behind two words that stand beside each other once, all three of letters."""
    rows = [[word.text for word in line] for line in words_of(lines)]
    pairs = Counter((one.casefold(), two.casefold()) for row in rows for one, two in zip(row, row[1:], strict=False))
    return [
        (f'Which word follows "{one} {two}"?', [three, three.rstrip(".,;:")])
        for row in rows
        for one, two, three in zip(row, row[1:], row[2:], strict=False)
        if pairs[one.casefold(), two.casefold()] == 1 and all(map(_WORD.fullmatch, (one, two, three)))
    ]


def write_debian(folder: Path, packages: Path) -> None:
    """Writes the pages of Debian's PDFs, each as a PDF of its own, with questions.

    Raises:
        ValueError: a file is not that of the manifest, as in another version of the package, or a page has too few
            questions. Nothing is written then.
    """
    with DEBIAN.open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    asked: list[list[Asked]] = []
    for row in rows:
        path = packages / row["package"] / row["file"]
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "no file"
        if digest != row["sha256"]:
            expected = f"expected SHA-256 {row['sha256']} (of {row['package']} {row['version']})"
            raise ValueError(f"{path}: {expected}; got {digest}")
        asked.append(page_questions(read_pdf_page(path, int(row["page"]) - 1, 100).lines, int(row["seed"])))
        if len(asked[-1]) < QUESTIONS:
            raise ValueError(f"{path}, page {row['page']}: expected {QUESTIONS} questions; got {len(asked[-1])}")
    folder.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    for row, questions in zip(rows, asked, strict=True):
        name = f"{row['package']}-{Path(row['file']).stem}-{row['page']}.pdf"
        with pypdfium2.PdfDocument(packages / row["package"] / row["file"]) as source:
            page = pypdfium2.PdfDocument.new()
            page.import_pages(source, [int(row["page"]) - 1])
            page.save(folder / name)
        records += [
            {"image": name, "question": text, "answers": list(dict.fromkeys(answers)), "kind": "debian"}
            for text, answers in questions
        ]
    write_jsonl(folder / "data.jsonl", records)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write born-digital PDFs with questions, as a bench.")
    parser.add_argument("folder", type=Path, help="folder of the bench, with a folder for each kind")
    parser.add_argument("--packages", type=Path, metavar="FOLDER", help="folder of Debian's packages, filled if empty")
    parsed = parser.parse_args(arguments)
    specs = read_manifest(MANIFEST)
    for kind in dict.fromkeys(spec.kind for spec in specs):
        write_documents(parsed.folder / kind, [spec for spec in specs if spec.kind == kind], drawn)
    if parsed.packages is not None:
        with DEBIAN.open(encoding="utf-8", newline="") as table:
            names = sorted({row["package"] for row in csv.DictReader(table)})
        install(names, parsed.packages.absolute())
        write_debian(parsed.folder / "debian", parsed.packages)


if __name__ == "__main__":
    main()
