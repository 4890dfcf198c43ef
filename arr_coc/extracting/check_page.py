"""A page to check extracted fields by: one HTML file that works offline, the doubtful documents and fields first."""

import base64
import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

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
    """The page's HTML; `point` is the decimal point of its numbers, `password` opens encrypted PDFs.

    Texts of documents are escaped; no script or picture comes from elsewhere.
    """
    from .tables import cell

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
