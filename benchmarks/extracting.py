"""How many cells of a table of receipts are right, how many are filled at 95 % precision, how long does it take?

    python -m benchmarks.extracting ICDAR-2019-SROIE receipts.jsonl.gz --split validation --photographed \
        --write-calibration cells.json
    python -m benchmarks.extracting ICDAR-2019-SROIE receipts.jsonl.gz --split test --calibration cells.json
    python -m benchmarks.extracting BENCH/sroie/data.jsonl --calibration cells.json

The pages are those of `arr_coc.data.real_corpus`, of companies that are held out of training; validation ones give the
threshold, test ones the numbers. Eight fields are extracted of each receipt; a cell counts where it is known what it
should be: a value, or none; receipts of a bench (`arr-coc evaluate --bench`) tell values alone. Seconds are compared
with one question for the whole receipt, and with one call for each field, on the first `--singly` receipts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from arr_coc.data.real_corpus import Repository, pictures
from arr_coc.data.real_pages import RealPages
from arr_coc.extracting.rows import read_calibration, threshold_for
from arr_coc.files import run_module, write_json
from arr_coc.metrics import METRICS
from arr_coc.modeling.extraction import Extracted, fields_to_extract, value_of
from arr_coc.pages.page import TextPage
from arr_coc.pages.wear import wear
from arr_coc.publishing.building import load_model

CONCEPTS = {
    "company": "shop", "date": "receipt date", "address": "address", "total": "total", "invoice number":
    "invoice number", "cashier": "cashier", "phone number": "phone", "tax": "tax",
}  # fmt: skip
OF_BENCH = {
    "store": "company",
    "tel": "phone number",
    **{name: name for name in ("company", "date", "address", "total", "tax")},
}
PHOTOGRAPHED = ("on a desk", "unevenly lit", "shadowed", "blurred")
FIELDS = "company, date: date, address, total: money, invoice number, cashier, phone number, tax: money"


def receipts(repository: Repository, pages: RealPages) -> Iterator[tuple[str, Image.Image, dict[str, list[str]]]]:
    """The name and the picture of each page, and for each field what it may be; [] for none."""
    contents = [pages.content(number) for number in range(len(pages))]
    for page, (name, picture) in zip(contents, pictures(repository, (each["lines"] for each in contents)), strict=True):
        truth = {}
        for field, concept in CONCEPTS.items():
            answers = [each for own in page["questions"] if own["concept"] == concept for each in own["answers"]]
            if answers or pages.lacks(page, {"concept": concept}):
                truth[field] = answers
        yield name, Image.open(BytesIO(picture)), truth


def bench_receipts(data: Path) -> Iterator[tuple[str, Image.Image, dict[str, list[str]]]]:
    """As `receipts`, of a source of a bench: lines with "image", "field" and "answers"."""
    lines = map(json.loads, data.read_text(encoding="utf-8").splitlines())
    for name, own in groupby(lines, key=itemgetter("image")):
        truth = {OF_BENCH[line["field"]]: line["answers"] for line in own if line["field"] in OF_BENCH}
        yield name, Image.open(data.parent / name), truth


def also_photographed(receipts: Iterator[tuple[str, Image.Image, Any]]) -> Iterator[tuple[str, Image.Image, Any]]:
    """Each receipt as it is, and as a photograph of it would be."""
    for number, (name, image, truth) in enumerate(receipts):
        yield name, image, truth
        page = wear(np.random.default_rng(number), TextPage(image, image.size, ()), kinds=PHOTOGRAPHED)
        assert page.image is not None
        yield f"{name}, photographed", page.image, truth


def is_right(found: Extracted, answers: list[str], kind: str) -> bool:
    """Whether a cell has its value, as printed (letters and digits) or as a date or number; or is rightly empty."""
    if found.value is None or not answers:
        return found.value is None and not answers
    values = [value_of(answer, kind)[0] for answer in answers]
    return METRICS["alnum_match"].score(found.printed, answers) == 1 or (kind != "text" and found.value in values)


def measure(
    model: Any, documents: Iterator[Any], limit: int, singly: int, words: str
) -> tuple[list[tuple[Extracted, list[str], bool]], dict[str, list[float]]]:
    """The known cells (found, answers, right), and seconds: of tables, of one question, of one call for each field."""
    fields, cells, seconds = fields_to_extract(FIELDS), [], dict[str, list[float]]()

    def timed(what: str, call: Any, *args: Any) -> Any:
        began = time.perf_counter()
        result = call(*args)
        seconds.setdefault(what, []).append(time.perf_counter() - began)
        return result

    for number, (_, image, truth) in enumerate(tqdm(documents, total=limit)):
        if number == limit:
            break
        found = timed("table", partial(model.extract, words=words), image, fields)
        for field in fields:
            if field.name in truth:
                answers, own = truth[field.name], found[field.name]
                cells.append((own, answers, is_right(own, answers, field.kind)))
        if number < singly:
            timed("one question", partial(model.generate, words=words), image, fields[3].question)
            page = model.encode_image(image, words=words)
            timed("one call a field, encoded", lambda: [model.generate(page, each.question) for each in fields])  # noqa: B023
    return cells, seconds


def report(cells: list[tuple[Extracted, list[str], bool]], seconds: dict[str, list[float]], least: float | None) -> str:
    """The numbers as text."""
    there = [cell for cell in cells if cell[1]]
    lines = [
        f"cells: {len(cells)}, of which {len(there)} are on the page",
        f"right, of those on the page: {sum(right for *_, right in there) / max(1, len(there)):.1%}",
        f"rightly empty: {sum(right for _, answers, right in cells if not answers)} of {len(cells) - len(there)}",
    ]
    if least is not None:
        filled = [cell for cell in cells if cell[0].value is not None and cell[0].probability >= least]
        right = sum(right for *_, right in filled)
        lines.append(
            f"filled from a probability of {least:.2f} on: {len(filled)} ({sum(bool(cell[1]) for cell in filled)} of "
            f"{len(there)} on the page), right: {right} ({right / max(1, len(filled)):.1%})"
        )
    return "\n".join([*lines, *(f"seconds, {what}: {statistics.median(own):.1f}" for what, own in seconds.items())])


def main() -> None:
    """Measures from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path, help="a clone of ICDAR-2019-SROIE, or data.jsonl of a bench")
    parser.add_argument("pages", type=Path, nargs="?", help="receipts.jsonl.gz from arr_coc.data.real_corpus")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--model", help="a folder or a name on the Hub (default: arr-coc-135m)")
    parser.add_argument("--words", default="network", help="where words come from (default: network)")
    parser.add_argument("--limit", type=int, default=30, help="receipts (default: 30)")
    parser.add_argument("--singly", type=int, default=0, help="receipts that one question is asked about too")
    parser.add_argument("--calibration", type=Path, help="file with the cells that give the threshold")
    parser.add_argument("--write-calibration", type=Path, help="file for the cells")
    parser.add_argument(
        "--photographed", action="store_true", help="also ask a photograph of each, drawn from the scan"
    )
    parser.add_argument("--precision", type=float, default=0.95)
    args = parser.parse_args()
    least = None if args.calibration is None else threshold_for(args.precision, read_calibration(args.calibration))
    documents = bench_receipts(args.repository)
    if args.pages is not None:
        documents = receipts(Repository(args.repository), RealPages(args.pages, args.split))
    if args.photographed:
        documents = also_photographed(documents)
    cells, seconds = measure(load_model(args.model), documents, args.limit, args.singly, args.words)
    if args.write_calibration is not None:
        known = [[round(own.probability, 4), right] for own, _, right in cells if own.value is not None]
        write_json(args.write_calibration, {"cells": known})
    print(report(cells, seconds, least))


if __name__ == "__main__":
    run_module(main)
