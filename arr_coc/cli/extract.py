"""`arr-coc extract`: documents become a table, a column a field."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import add_options, announce, check_arguments, command, read_password, split_names, writable

if TYPE_CHECKING:
    from arr_coc.extracting.rows import Row
    from arr_coc.modeling.extraction import FieldToExtract

FORMATS = ("csv", "jsonl", "xlsx", "html")  # those of `arr_coc.extracting.tables`: `--help` must not import the library


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", metavar="PATHS", nargs="+", help="images, PDFs, folders (searched whole) or globs in quotes")
    fields = (
        '"NAME, NAME: TYPE, NAME: QUESTION, NAME: TYPE: QUESTION"; types are text, number, money, date, yes/no '
        "(default type: text; default question: What is the NAME?)"
    )
    add("--fields", metavar="FIELDS", help=fields)
    schema = "instead of --fields, a JSON schema of an object with the fields; a description is asked"
    add("--schema", metavar="FILE.json", help=schema)
    add("--out", metavar="FILE", required=True, help="file for the table")
    add("--format", choices=FORMATS, help="of the table (default: by FILE's ending)")
    add("--per", choices=("document", "page"), default="document", help="what a row is for")
    least = "a field stays empty below this probability, 0 to 1 (default: 0)"
    add("--min-probability", metavar="P", type=float, default=0.0, help=least)
    precision = "instead, so that this share of the filled cells is right, by --calibration"
    add("--precision", metavar="P", type=float, help=precision)
    calibration = "cells of calibration documents, from python -m benchmarks.extracting --write-calibration"
    add("--calibration", metavar="FILE.json", help=calibration)
    distinct = 'fields that are at different places, as "date, due date"; may be repeated'
    add("--distinct", metavar="NAMES", action="append", default=[], help=distinct)
    others = "other answers of each field, in jsonl; they take time (default: 0)"
    add("--alternatives", metavar="N", type=int, default=0, help=others)
    add("--jobs", metavar="N", type=int, default=1, help="processes, each with the model in memory (default: 1)")
    comma = "decimal commas in numbers, and semicolons between the cells of CSV"
    add("--decimal-comma", action="store_true", help=comma)
    add_options(parser, "words", "password-file", "model", "device")


def check(args: argparse.Namespace) -> None:
    """Refuses what needs no model."""
    if (args.fields is None) == (args.schema is None):
        raise ValueError("--fields: expected it or --schema; got both or neither")
    args.format = args.format or Path(args.out).suffix.lstrip(".").lower()
    if args.format not in FORMATS:
        raise ValueError(f"--out: expected a name ending in {', '.join(FORMATS)}, or --format; got {args.out!r}")
    writable(args.out, "--out")
    for name, least, most in (("min_probability", 0, 1), ("alternatives", 0, 16), ("jobs", 1, 256)):
        if not least <= (value := getattr(args, name)) <= most:
            raise ValueError(f"--{name.replace('_', '-')}: expected {least} to {most}; got {value}")
    if args.precision is not None and args.calibration is None:
        raise ValueError("--precision: expected --calibration FILE.json, which has the threshold; got none")
    check_arguments(args)


@command("extract", "a table of fields from a folder of documents", add_arguments, check)
def extract_command(args: argparse.Namespace) -> None:
    """Extract named fields from images and documents into a table: a row a document (or a page), a column a field,
    and beside it the probability that it is right. A field that is not on the page is empty. Rows are kept in
    FILE.rows as they are made: the same command goes on after a kill, and reads only documents that are new.
    jsonl also has boxes, pages, printed texts and alternatives; html is a page to check them by.
    A document that cannot be read has a row with its error; the exit code is then 2.

    Examples:
        arr-coc extract receipts/ --fields "date: date, total: money, invoice number" --out table.csv
        arr-coc extract "scans/*.pdf" --fields "due date: date, total: money: What must be paid?" --out check.html
        arr-coc extract invoices.pdf --schema invoice.json --per page --out table.jsonl --min-probability 0.6
    """
    from tqdm import tqdm

    from arr_coc.evaluation.prediction_loop import hash_files, weight_files
    from arr_coc.extracting.rows import ExtractionJob, extract_rows, find_documents, read_calibration, threshold_for
    from arr_coc.extracting.tables import write_table
    from arr_coc.files import find_model

    documents, fields = find_documents(args.paths), _fields(args)
    least = args.min_probability
    if args.precision is not None:
        least = max(least, threshold_for(args.precision, read_calibration(Path(args.calibration))))
    options: dict[str, Any] = {} if args.words is None else {"words": args.words}
    options |= {"distinct": [split_names(names, "--distinct") for names in args.distinct]} if args.distinct else {}
    options |= {"alternatives": args.alternatives} if args.alternatives else {}
    job = ExtractionJob(tuple(fields), args.model, args.device, args.per, options, read_password(args))
    counted = "1 document" if len(documents) == 1 else f"{len(documents):,} documents"
    announce(f"Loading the model, then reading {counted}")
    made: dict[Path, list[Row]] = {}
    journal, kept = Path(f"{args.out}.rows"), 0
    model = find_model(args.model)
    weights = hash_files([*weight_files(model), *sorted(Path(model).glob("*.json"))])  # without loading the model
    every = 0.5 if sys.stderr.isatty() else 30  # seconds between lines
    with tqdm(total=len(documents), unit="document", mininterval=every) as bar:
        for path, rows, known in extract_rows(documents, job, journal, weights, args.jobs):
            made[path], kept = rows, kept + known
            bar.update()
    rows = [row for path in documents for row in made[path]]
    found = [cell for row in rows for cell in row["fields"].values()]
    for cell in found:
        cell["value"] = None if cell["probability"] < least else cell["value"]
    filled = sum(cell["value"] is not None for cell in found)
    write_table(rows, fields, Path(args.out), args.format, args.decimal_comma, job.password)
    cells, bad = len(rows) * len(fields), [path for path in documents if any(row["error"] for row in made[path])]
    shown = f"{filled} of {cells} cells filled ({filled / cells:.0%})"
    shown += f", from a probability of {least:.2f} on" if least else ""
    shown += f"; {kept} documents were read before" if kept else ""
    print(f"{counted}, {shown}; table in {args.out}", file=sys.stderr)
    if bad:
        told = "; ".join(f"{path}: {made[path][0]['error'].removeprefix(f'{path}: ')}" for path in bad[:3])
        raise ValueError(f"{len(bad)} of {len(documents)} documents have an error in {args.out}, such as {told}")


def _fields(args: argparse.Namespace) -> list[FieldToExtract]:
    from arr_coc.files import read_json
    from arr_coc.modeling.extraction import FieldToExtract, fields_to_extract

    if args.schema is None:
        return fields_to_extract(args.fields)
    from arr_coc.serving.answers import fields_of

    made = []
    for own in fields_of(read_json(Path(args.schema))):
        form = own.limits.get("format")
        kind = "number" if {"number", "integer"} & {*own.kinds} else "yes/no" if "boolean" in own.kinds else "text"
        kind = "date" if form == "date" else kind
        made.append(FieldToExtract(".".join(own.path), own.question, kind, tuple(map(str, own.values))))
    return fields_to_extract(made)
