"""Documents -> rows of extracted fields, which survive a kill and are not made twice.

A row is a dict: {"document", "page", "fields": {name: {"value", "probability", "printed", "page", "boxes",
"alternatives", "warning"}}, "error", "seconds", "key"}. Rows are kept in a journal beside the table; `key` is a hash of
the document's content, the fields and settings, and the weights.
"""

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ..files import fault_of_input
from ..journal import Journal, journal_files, read_journal
from ..modeling.extraction import Extracted, FieldToExtract, encode_pages
from ..modeling.generation import AnswerGenerator
from ..publishing.building import load_model

ENDINGS = (".pdf", ".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")
"""Endings of the files of a folder that are taken for documents."""

Row = dict[str, Any]


@dataclass(frozen=True)
class ExtractionJob:
    """What is extracted, and how."""

    fields: tuple[FieldToExtract, ...]  # of each row
    model: str | None = None  # this and `device`: as in `load_model`
    device: str | None = None
    per: str = "document"  # "document" or "page", what a row is for
    options: Mapping[str, Any] = field(default_factory=dict)  # of `extract`, such as `distinct` and `words`
    password: str | None = field(default=None, repr=False)  # of encrypted PDFs; it is no part of rows and of their keys


def find_documents(paths: Sequence[str]) -> list[Path]:
    """The files that paths name: files, all documents in folders, and globs, each once, in order. Raises ValueError: a
    path that names no document."""
    found: list[Path] = []
    for name in paths:
        path = Path(name).expanduser()
        if path.is_dir():
            own = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
        elif path.exists():
            own = [path]
        else:
            pattern = path.relative_to(path.anchor) if path.is_absolute() else path
            own = sorted(file for file in Path(path.anchor or ".").glob(str(pattern)) if file.is_file())
        if not own:
            fault = "has none" if path.exists() or set(name) & set("*?[") else "does not exist"
            raise ValueError(
                f"PATHS: expected documents ({', '.join(ENDINGS)}), folders or globs; got {name!r}, which {fault}"
            )
        found += own
    return list(dict.fromkeys(found))


def extract_rows(
    documents: Sequence[Path], job: ExtractionJob, journal: Path, weights: str, jobs: int = 1
) -> Iterator[tuple[Path, list[Row], bool]]:
    """The rows of each document as they are made: (document, rows, whether they were in the journal).

    Args:
        journal: a folder; a document whose rows it holds is not read again. Rows with an error are made again.
        weights: a hash of the model's weights and settings.
        jobs: processes, each with the model in memory.
    """
    known: dict[str, list[Row]] = {}
    for entry in read_journal(journal, "rows") if journal_files(journal, "rows") else ():
        known[entry.content["key"]] = entry.content["rows"]
    left, settings = [], json.dumps([[asdict(each) for each in job.fields], job.per, dict(job.options), weights])
    for path in documents:
        key = _key(path, settings)
        if key in known:
            yield path, [{**row, "document": str(path)} for row in known[key]], True
        else:
            left.append((path, key))
    writer = Journal(journal, "rows", limit=2**62, forgets=False, durable=True)
    try:
        for path, key, rows in _made(left, job, jobs):
            if not any(row["error"] for row in rows):
                writer.append({"key": key, "rows": rows})
            yield path, rows, False
    finally:
        writer.close()


def _key(path: Path, settings: str) -> str:
    try:
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:  # its row says so
        content = str(error)
    return hashlib.sha256(f"{content} {settings}".encode()).hexdigest()


def _made(left: Sequence[tuple[Path, str]], job: ExtractionJob, jobs: int) -> Iterator[tuple[Path, str, list[Row]]]:
    """The rows of documents, in any order where there are several processes."""
    if jobs == 1 or len(left) < 2:
        reader = _Reader(job) if left else None
        for path, key in left:
            assert reader is not None
            yield path, key, reader.rows(path)
        return
    context, threads = multiprocessing.get_context("spawn"), max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(min(jobs, len(left)), context, _start, (job, threads)) as pool:
        told = {pool.submit(_rows_of, path): (path, key) for path, key in left}
        for done in as_completed(told):
            yield *told[done], done.result()


_reader: "_Reader"
"""That of a process which `_start` prepared."""


def _start(job: ExtractionJob, threads: int) -> None:
    global _reader
    torch.set_num_threads(threads)
    _reader = _Reader(job)


def _rows_of(path: Path) -> list[Row]:
    return _reader.rows(path)


class _Reader:
    """A model in memory, and what it extracts."""

    def __init__(self, job: ExtractionJob) -> None:
        self.job, self.model = job, load_model(job.model, job.device)

    def rows(self, path: Path) -> list[Row]:
        """The rows of a document; one with its error, if it cannot be read."""
        began, extract, options = time.perf_counter(), self.model.extract, dict(self.job.options)
        options["password"] = self.job.password
        try:
            if self.job.per == "document":
                found = [extract(path, self.job.fields, **options)]
            else:
                views = {name: options.pop(name) for name in ("words", "password") if name in options}
                pages = encode_pages(AnswerGenerator(self.model, self.model.processor), path, **views)
                found = [extract(page, self.job.fields, **options) for page in pages]
            error = ""
        except Exception as problem:  # a bad file must not end the run
            found, error = [{}], fault_of_input(problem) or f"{type(problem).__name__}: {problem}"
        seconds = round((time.perf_counter() - began) / len(found), 3)
        paged = self.job.per == "page" and not error
        return [
            {"document": str(path), "page": number if paged else None, "fields": _plain(each), "error": error,
             "seconds": seconds}
            for number, each in enumerate(found, 1)
        ]  # fmt: skip


def _plain(found: Mapping[str, Extracted]) -> dict[str, Any]:
    return {
        name: {**asdict(each), "probability": round(each.probability, 6), "boxes": [list(box) for box in each.boxes]}
        for name, each in found.items()
    }


# ---- how sure is sure enough ----------------------------------------------------------------------------------------


def threshold_for(precision: float, cells: Sequence[tuple[float, bool]]) -> float:
    """The least probability from which on a share `precision` of calibration cells is right; above 1 if there is none.

    Args:
        cells: (probability, whether it is right) of filled cells. One more wrong cell is counted than there is, so that
            a few right ones prove little.
    """
    if not 0 < precision < 1:
        raise ValueError(f"precision: expected more than 0 and less than 1; got {precision}")
    least, count, right = 1.01, 0, 0
    for probability, own in groupby(sorted(cells, key=lambda cell: -cell[0]), key=lambda cell: cell[0]):
        found = [is_right for _, is_right in own]
        count, right = count + len(found), right + sum(found)
        if right / (count + 1) >= precision:
            least = probability
    return least


def read_calibration(path: Path) -> list[tuple[float, bool]]:
    """The cells of a calibration file: {"cells": [[probability, whether it is right], ...]}. Raises ValueError: another
    file."""
    try:
        return [(float(probability), bool(right)) for probability, right in json.loads(path.read_text())["cells"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = '{"cells": [[probability, right], ...]} from benchmarks/extracting.py'
        raise ValueError(f"--calibration: expected {expected}; got {error}: {path}") from error
