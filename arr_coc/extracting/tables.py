"""Rows of extracted fields as tables: CSV, JSON Lines, XLSX; and what a program of tables must not run."""

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import fresh_file
from ..modeling.extraction import FieldToExtract
from .check_page import check_page
from .rows import Row

FORMATS = ("csv", "jsonl", "xlsx", "html")


def write_table(
    rows: Sequence[Row],
    fields: Sequence[FieldToExtract],
    path: Path,
    kind: str,
    decimal_comma: bool = False,
    password: str | None = None,
) -> None:
    """Writes the rows to a file of a kind of `FORMATS`, whole or not at all; `password`: of PDFs that "html" shows.

    Raises:
        ValueError: the package that writes it is not installed.
    """
    with fresh_file(path) as beside:
        if kind == "jsonl":
            beside.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        elif kind == "html":
            beside.write_text(check_page(rows, fields, "," if decimal_comma else ".", password), encoding="utf-8")
        elif kind == "xlsx":
            _write_xlsx(beside, cells_of(rows, fields, None))
        else:
            point, delimiter = (",", ";") if decimal_comma else (".", ",")
            with beside.open("w", encoding="utf-8-sig", newline="") as stream:  # the mark tells spreadsheets: UTF-8
                csv.writer(stream, delimiter=delimiter).writerows(cells_of(rows, fields, point))


def cells_of(rows: Sequence[Row], fields: Sequence[FieldToExtract], point: str | None) -> list[list[Any]]:
    """The head and the cells: document, page (if rows are pages), each field with its probability, error, warning.

    `point`: the decimal point of numbers in texts; None: numbers stay numbers.
    """
    paged = any(row["page"] for row in rows)
    columns = [column for each in fields for column in (each.name, f"{each.name} probability")]
    cells = [["document", *(["page"] if paged else []), *map(harmless, columns), "error", "warning"]]
    for row in rows:
        own: list[Any] = [harmless(row["document"]), *([row["page"]] if paged else [])]
        for each in fields:
            found = row["fields"].get(each.name)
            value = None if found is None else found["value"]
            probability = None if found is None else round(found["probability"], 3)
            own += [cell(value, each.kind, point), cell(probability, "number", point)]
        warned = defaultdict[str, list[str]](list)
        for name, found in row["fields"].items():
            warned[found["warning"]].append(name)
        told = (
            warning if len(names) == len(fields) else f"{', '.join(names)}: {warning}"
            for warning, names in warned.items()
            if warning
        )
        cells.append([*own, harmless(row["error"]), harmless("; ".join(told))])
    return cells


def cell(value: Any, kind: str, point: str | None) -> Any:
    """A value in a table; money has its cents."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and point is not None:
        return (f"{value:.2f}" if kind == "money" else str(value)).replace(".", point)
    return "" if value is None else harmless(value) if isinstance(value, str) else value


def harmless(text: str) -> str:
    """A text that no program of tables takes for a formula."""
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") or text[:1] in ("\t", "\r", "\n") else text


def _write_xlsx(path: Path, cells: Sequence[Sequence[Any]]) -> None:
    try:
        from openpyxl import Workbook
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE
    except ImportError as error:
        raise ValueError('--format xlsx: expected openpyxl (pip install "arr-coc[tables]"); got none') from error
    book = Workbook()
    sheet = book.active
    for row in cells:
        sheet.append([ILLEGAL_CHARACTERS_RE.sub("", cell) if isinstance(cell, str) else cell for cell in row])
    sheet.freeze_panes = "A2"
    book.save(path)
