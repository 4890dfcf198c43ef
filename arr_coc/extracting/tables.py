"""Rows of extracted fields as tables (CSV, JSON Lines, XLSX), and as a page to check them by.

What a program of tables must not run is escaped. The page is one HTML file that works offline, the doubtful documents
and fields first.
"""

import base64
import csv
import html
import io
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from ..files import fresh_file
from ..modeling.budgets import AS_SEEN
from ..modeling.extraction import FieldToExtract
from ..modeling.image_loading import load_source
from ..modeling.view_encoding import sources_of
from .rows import Row

LONGEST, QUALITY = 1100, 70  # the longer side of a page's picture in px, and its JPEG quality
MARGIN = 0.006  # what a box is larger than the places of words, on each side, as a share of the page's longer side


def check_page(
    rows: Sequence[Row], fields: Sequence[FieldToExtract], point: str = ".", password: str | None = None
) -> str:
    """The page's HTML; `point` is the decimal point of its numbers, `password` opens encrypted PDFs. Texts of documents
    are escaped; no script or picture comes from elsewhere."""
    cards = sorted((_doubt(row), number, row) for number, row in enumerate(rows))
    told = {each.name: each.kind for each in fields}
    picture = partial(_picture, password)
    shown = [_card(picture, row, told, lambda value, kind: str(cell(value, kind, point))) for _, _, row in cards]
    template = files("arr_coc.extracting").joinpath("check_page.html").read_text(encoding="utf-8")
    names = json.dumps(list(told)).replace("<", "\\u003c")
    return template.replace("{{fields}}", names).replace("{{cards}}", "\n".join(shown))


def _doubt(row: Row) -> float:
    """The probability of the least sure field that has a text; documents with an error come first, empty ones last."""
    sure = [found["probability"] for found in row["fields"].values() if found["printed"]]
    return -1.0 if row["error"] else min(sure, default=1.0)


def _card(picture: Callable[[Row, int], str], row: Row, kinds: Mapping[str, str], shown: Any) -> str:
    by_doubt = sorted(row["fields"].items(), key=lambda each: (not each[1]["printed"], each[1]["probability"]))
    pages = {row["page"] or found["page"] or 1 for _, found in by_doubt}
    pictures = "" if row["error"] else "".join(picture(row, page) for page in sorted(pages))
    inputs = ""
    for name, found in by_doubt:
        value = html.escape(shown(found["value"], kinds.get(name, "text")))
        told = " ⚠ ".join(filter(None, (f"{found['probability']:.0%} {found['printed']}", found["warning"])))
        inputs += (
            f'<label class="{"empty" if found["value"] is None else ""}"><span>{html.escape(name)}</span>'
            f'<input data-field="{html.escape(name)}" value="{value}"><small>{html.escape(told)}</small></label>'
        )
    title = html.escape(row["document"]) + (f", page {row['page']}" if row["page"] else "")
    return (
        f'<section data-document="{html.escape(row["document"])}" data-page="{row["page"] or ""}"><h2>{title}</h2>'
        f'<p class="error">{html.escape(row["error"])}</p><div class="sides"><div class="pages">{pictures}</div>'
        f'<div class="fields">{inputs}</div></div></section>'
    )


def _picture(password: str | None, row: Row, page: int) -> str:
    """A page's picture with the boxes of its fields."""
    image = _image(Path(row["document"]), page, password)
    if image is None:
        return "<p>the document cannot be read any more</p>"
    (wide, tall), margin = image.size, MARGIN * max(image.size)
    boxes = ""
    for name, found in row["fields"].items():
        for x0, y0, x1, y1 in found["boxes"] if (row["page"] or found["page"]) == page else ():
            left, top = 100 * (x0 - margin) / wide, 100 * (y0 - margin) / tall
            width, height = 100 * (x1 - x0 + 2 * margin) / wide, 100 * (y1 - y0 + 2 * margin) / tall
            place = f"left:{left:.2f}%;top:{top:.2f}%;width:{width:.2f}%;height:{height:.2f}%"
            boxes += f'<i data-field="{html.escape(name)}" title="{html.escape(name)}" style="{place}"></i>'
    image.thumbnail((LONGEST, LONGEST))
    written = io.BytesIO()
    image.convert("RGB").save(written, "JPEG", quality=QUALITY)
    source = base64.b64encode(written.getvalue()).decode()
    return f'<figure><img alt="page {page}" src="data:image/jpeg;base64,{source}">{boxes}</figure>'


def _image(path: Path, page: int, password: str | None) -> Image.Image | None:
    try:
        loaded = load_source(path, password=password)
        return sources_of(loaded, AS_SEEN, 2**31)[page - 1].load()
    except (OSError, ValueError, IndexError):
        return None


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
    Raises ValueError: the package that writes it is not installed."""
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
    `point`: the decimal point of numbers in texts; None: numbers stay numbers."""
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
