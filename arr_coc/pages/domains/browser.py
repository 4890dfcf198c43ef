"""Domains `browser` and `stacked`: pages of fields, rendered by a browser from generated HTML.

In `stacked` labels are above their values, so the answer is not the text after the label. Letters, spacing and edges
are those of a screenshot. It needs Chromium; the pages of a seed also depend on its version.

Lengths in the HTML are in rem, the font size of the values, so that a page can be scaled as a whole. The places of
elements with the attribute `data-text` are returned: a heading, labels and values, in that order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from ...modeling.image_processing_arr_coc import Box
from ..fonts import FontFace, find_fonts, pick_face
from ..page import Line
from ..splits import Split
from .chromium import shared_browser
from .document import Entry, ask_each, names_of
from .domain import DOMAINS, Page, layouts_of
from .rasterising import MAX_FONT, MIN_FONT, as_bytes, check_page, sample_palette, text_unit
from .values import FIELDS, made_up_word, pick, sample_pairs

LAYOUTS = layouts_of("browser")
"""By name, the arrangement of a page's fields (`table`, `spread`, `inline` or `stacked`), how many are side by side,
and lines: borders below rows (`rows`, `dashed`), around cells (`grid`) or around everything (`frame`), every other row
shaded (`zebra`), a box for each field (`cards`), or `none`."""
STACKED = {
    split: {name: text for name, text in own.items() if text.startswith("stacked")} for split, own in LAYOUTS.items()
}
"""The layouts in which labels are above their values."""
_CSS, _SET_PAGE = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "set_page.js"))


@dataclass(frozen=True)
class HtmlStyle:
    """The appearance of a page besides its layout.

    `faces`: of labels, values and the heading; `variables`: those of page.css; `label_size`: rem; `upper`: labels in
    capitals; `colon`: after labels; `band`: the heading has exchanged ink and paper colours.
    """

    faces: Mapping[str, FontFace]
    variables: Mapping[str, str]
    label_size: float
    upper: bool
    colon: bool
    band: bool


def sample_html_style(rng: np.random.Generator, split: Split) -> HtmlStyle:
    """A style in fonts of the split; FileNotFoundError if none is installed."""

    def uniform(low: float, high: float) -> float:
        return float(rng.uniform(low, high))

    faces = find_fonts(split)
    value = pick_face(rng, faces)
    family = [face for face in faces if face.family == value.family]
    bold = next((face for face in family if face.bold and not face.italic), value)
    upper = bool(rng.random() < 0.25)
    spaced = rng.random() < (0.6 if upper else 0.2)
    bolds = {"label": 0.4, "value": 0.15, "heading": 0.7}
    chosen = {role: bold if rng.random() < chance else value for role, chance in bolds.items()}
    label_size = uniform(0.85, 1.0) if rng.random() < 0.5 else 1.0
    variables = {
        "heading-size": f"{uniform(1.1, 1.7)}rem",
        "label-size": f"{label_size}rem",
        "label-spacing": f"{uniform(0.03, 0.15) if spaced else 0.0}em",
        "value-spacing": f"{uniform(0.02, 0.12) if rng.random() < 0.15 else 0.0}em",
    }
    colon = bool(rng.random() < 0.4)
    variables |= {
        "line": f"{uniform(1.1, 1.5)}",
        "above": f"{uniform(0.03, 0.3)}rem",
        "beside": f"{uniform(0.2, 0.6)}rem",
        "margin": f"{uniform(0.3, 1.0)}rem",
        "gap": f"{uniform(0.5, 1.5)}rem",
        "radius": f"{uniform(0, 0.5) if rng.random() < 0.4 else 0.0}rem",
        "width": f"{int(rng.integers(1, 3))}px",
    }
    band, palette = bool(rng.random() < 0.35), sample_palette(rng)
    paper, rule = np.array(palette.paper), np.array(palette.rule)
    colours = {"paper": paper, "ink": palette.label, "value": palette.value, "rule": rule}
    colours["shade"] = paper + 0.12 * (rule - paper)
    variables |= {name: f"rgb{as_bytes(colour)}" for name, colour in colours.items()}  # type: ignore[arg-type]
    return HtmlStyle(chosen, variables, label_size, upper, colon, band)


def make_html(layout: str, style: HtmlStyle, fields: Sequence[tuple[str, str]], *, title: str, pixels: float) -> str:
    """The page's head and body. Labels of the fields are in their final case, without colons; a `title` of "" is none;
    `pixels` is the font size of the values."""

    def text(text: str, role: str) -> str:
        return f'<span data-text class="{role}">{escape(text)}</span>'

    (arrangement, columns, lines), mark = layout.split(), ":" if style.colon else ""
    texts = [(text(label + mark, "label"), text(value, "value")) for label, value in fields]
    band = ' class="band"' if style.band else ""
    heading = f"<header{band}>{text(title, 'heading')}</header>" if title else ""
    rows = "".join(f"<div>{label} {value}</div>" for label, value in texts)
    if arrangement == "table":  # fields run along the rows
        cells = [f"<th>{label}</th><td>{value}</td>" for label, value in texts]
        starts = range(0, len(cells), int(columns))
        rows = "".join(f"<tr>{''.join(cells[start : start + int(columns)])}</tr>" for start in starts)
        rows = f"<table>{rows}</table>"
    # Each font is from its file, independent of other installed fonts of the same name.
    faces = "".join(
        f'@font-face{{font-family:"{role}";src:url("{Path(face.path).as_uri()}")}}'
        for role, face in style.faces.items()
    )
    told = {**style.variables, "pixels": f"{pixels}px", "columns": columns}
    variables = "".join(f"--{name}:{value};" for name, value in told.items())
    head = f"<head><style>{faces}:root{{{variables}}}{_CSS}</style></head>"
    return head + f'<body>{heading}<main class="{arrangement} {lines}">{rows}</main></body>'


def set_page(html: str, size: int, least: float) -> list[tuple[Line, Box]] | None:
    """Shows a page in the shared browser, and measures the texts of its elements with the attribute `data-text`.

    Args:
        html: content of the element html; lengths are in rem, so that the page can be scaled as a whole.
        size: side of the window, px.
        least: the smallest font size of the root, px; the page is scaled down to it until it fits.

    Returns:
        The texts in the page's order, each with the box around its ink, px; None if the page does not fit, or the
        browser rejects a font.
    """
    browser = shared_browser()
    browser.resize(size, size)
    result = browser.evaluate(f"({_SET_PAGE})({json.dumps(html)}, {least})")
    if not result["fits"]:
        return None
    return [(Line(each["text"], np.array(each["boxes"], np.float32)), tuple(each["ink"])) for each in result["texts"]]


_MIN_ENTRIES = 4
_MAX_ENTRIES = 14  # on a page of 256 px
_TRIALS = 200  # the most attempts until a page fits


def render_browser(
    rng: np.random.Generator, size: int, split: Split, layouts: Mapping[Split, Mapping[str, str]] = LAYOUTS
) -> tuple[Page, list[Entry]]:
    """A page without questions, of 4 or more fields with values, rendered by a browser, square, of `size` px.

    Raises:
        FileNotFoundError: no browser, or no font of the split, is installed.
        RuntimeError: the browser does not start, stops answering, or cannot render any page.
    """
    check_page(size, split)
    shared_browser()  # or its error comes first
    unit = text_unit(size)
    for _ in range(_TRIALS):
        layout = pick(rng, list(layouts[split]))
        style = sample_html_style(rng, split)
        most = min(len(FIELDS), round(_MAX_ENTRIES * max(1.0, size / 256 / unit)))
        pairs = sample_pairs(rng, int(rng.integers(_MIN_ENTRIES, most + 1)), split=split)
        case = "upper" if style.upper else pick(rng, ("lower", "capitalize"))
        title = " ".join(made_up_word(rng) for _ in range(int(rng.integers(3))))
        least = unit * MIN_FONT / style.label_size
        pixels = float(rng.uniform(least, unit * MAX_FONT))
        shown = [(getattr(field, case)(), value) for field, value in pairs]
        texts = set_page(make_html(layouts[split][layout], style, shown, title=title, pixels=pixels), size, least)
        if texts is not None:
            break
    else:
        raise RuntimeError(f"browser: expected a page that it can set; got none in {_TRIALS} trials")
    boxes = [box for _, box in texts[bool(title) :]]  # of a label, its value, the next label
    entries = [Entry(*each) for each in zip(*zip(*pairs, strict=True), boxes[::2], boxes[1::2], strict=True)]
    font = names_of(style.faces["value"], style.faces["label"])
    return Page(shared_browser().screenshot(), (), layout, font, tuple(line for line, _ in texts), FIELDS), entries


@DOMAINS.register("browser")
def draw_browser(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_browser` with one question about each field."""
    return ask_each(rng, *render_browser(rng, size, split), split)


@DOMAINS.register("stacked")
def draw_stacked(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page as of `draw_browser`, with labels above their values."""
    return ask_each(rng, *render_browser(rng, size, split, STACKED), split)
