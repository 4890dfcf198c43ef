"""Domains `browser` and `stacked`: pages of fields, rendered by a browser from generated HTML.

In `stacked` labels are above their values, so the answer is not the text after the label. Letters, spacing and edges
are those of a screenshot. It needs Chromium; the pages of a seed also depend on its version.

Lengths in the HTML are in rem, the font size of the values, so that a page can be scaled as a whole. The places of
elements with the attribute `data-text` are returned: a heading, labels and values, in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np

from ..fonts import FontFace, find_fonts, pick_face
from ..splits import Split
from .chromium import shared_browser
from .document import Document, Entry, ask_each
from .domain import Page, layouts_of, register
from .glyphs import CONTRAST, MAX_FONT, MIN_FONT, Glyph, check_page, text_unit
from .rasterising import Palette, degrade, sample_palette
from .values import FIELDS, made_up_word, pick, sample_pairs

Arrangement = Literal["table", "spread", "inline", "stacked"]
Lines = Literal["none", "rows", "grid", "frame", "zebra", "dashed", "cards"]


@dataclass(frozen=True)
class HtmlLayout:
    """The arrangement of a page's fields, of which `columns` are side by side.

    `lines`: borders below rows, around cells or around everything; every other row shaded; or a box for each field.
    """

    arrangement: Arrangement
    columns: int = 1
    lines: Lines = "none"


def _layout(text: str) -> HtmlLayout:
    arrangement, columns, lines = text.split()
    return HtmlLayout(arrangement, int(columns), lines)  # type: ignore[arg-type]


LAYOUTS = layouts_of("browser", _layout)
STACKED = {
    split: {name: each for name, each in own.items() if each.arrangement == "stacked"} for split, own in LAYOUTS.items()
}
"""The layouts in which labels are above their values."""
_CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class HtmlStyle:
    """The appearance of a page besides its layout; lengths in rem, of which values have 1, and letter spacing in em.

    `padding`: above and below, and at the sides of each field; `gap`: between a label and its value, or between
    columns; `width`: of borders, px; `band`: the heading has exchanged ink and paper colours.
    """

    label: FontFace
    value: FontFace
    heading: FontFace
    label_size: float
    heading_size: float
    label_spacing: float
    value_spacing: float
    upper: bool
    colon: bool
    line: float
    padding: tuple[float, float]
    margin: float
    gap: float
    radius: float
    width: int
    band: bool
    palette: Palette

    @property
    def fonts(self) -> str:
        """Family and style of the fonts, values first."""
        return " + ".join(dict.fromkeys((self.value.name, self.label.name)))


def sample_html_style(rng: np.random.Generator, split: Split) -> HtmlStyle:
    """A style in fonts of the split; FileNotFoundError if none is installed."""
    faces = find_fonts(split)
    value = pick_face(rng, faces)
    family = [face for face in faces if face.family == value.family]
    bold = next((face for face in family if face.bold and not face.italic), value)
    upper = bool(rng.random() < 0.25)
    spaced = rng.random() < (0.6 if upper else 0.2)
    return HtmlStyle(
        label=bold if rng.random() < 0.4 else value,
        value=bold if rng.random() < 0.15 else value,
        heading=bold if rng.random() < 0.7 else value,
        label_size=float(rng.uniform(0.85, 1.0)) if rng.random() < 0.5 else 1.0,
        heading_size=float(rng.uniform(1.1, 1.7)),
        label_spacing=float(rng.uniform(0.03, 0.15)) if spaced else 0.0,
        value_spacing=float(rng.uniform(0.02, 0.12)) if rng.random() < 0.15 else 0.0,
        upper=upper,
        colon=bool(rng.random() < 0.4),
        line=float(rng.uniform(1.1, 1.5)),
        padding=(float(rng.uniform(0.03, 0.3)), float(rng.uniform(0.2, 0.6))),
        margin=float(rng.uniform(0.3, 1.0)),
        gap=float(rng.uniform(0.5, 1.5)),
        radius=float(rng.uniform(0, 0.5)) if rng.random() < 0.4 else 0.0,
        width=int(rng.integers(1, 3)),
        band=bool(rng.random() < 0.35),
        palette=sample_palette(rng, contrast=CONTRAST[split]),
    )


def make_html(
    layout: HtmlLayout, style: HtmlStyle, fields: Sequence[tuple[str, str]], *, title: str, pixels: float
) -> str:
    """The page's head and body.

    Labels of the fields are in their final case, without colons; a `title` of "" is none; `pixels` is the font size of
    the values.
    """

    def text(text: str, role: str) -> str:
        return f'<span data-text class="{role}">{escape(text)}</span>'

    mark = ":" if style.colon else ""
    texts = [(text(label + mark, "label"), text(value, "value")) for label, value in fields]
    band = ' class="band"' if style.band else ""
    heading = f"<header{band}>{text(title, 'heading')}</header>" if title else ""
    rows = "".join(f"<div>{label} {value}</div>" for label, value in texts)
    if layout.arrangement == "table":  # fields run along the rows
        cells = [f"<th>{label}</th><td>{value}</td>" for label, value in texts]
        starts = range(0, len(cells), layout.columns)
        rows = "".join(f"<tr>{''.join(cells[start : start + layout.columns])}</tr>" for start in starts)
        rows = f"<table>{rows}</table>"
    # Each font is from its file, independent of other installed fonts of the same name.
    faces = "".join(
        f'@font-face{{font-family:"{role}";src:url("{Path(getattr(style, role).path).as_uri()}")}}'
        for role in ("label", "value", "heading")
    )
    variables = "".join(f"--{name}:{value};" for name, value in _variables(layout, style, pixels).items())
    head = f"<head><style>{faces}:root{{{variables}}}{_CSS}</style></head>"
    return head + f'<body>{heading}<main class="{layout.arrangement} {layout.lines}">{rows}</main></body>'


def _variables(layout: HtmlLayout, style: HtmlStyle, pixels: float) -> dict[str, str]:
    """The variables of page.css."""
    palette, (above, beside) = style.palette, style.padding
    paper, rule = np.array(palette.paper), np.array(palette.rule)
    shade = paper + 0.12 * (rule - paper)
    colours = {"paper": paper, "ink": palette.label, "value": palette.value, "rule": rule, "shade": shade}
    rem = {"margin": style.margin, "above": above, "beside": beside, "gap": style.gap, "radius": style.radius}
    rem |= {"heading-size": style.heading_size, "label-size": style.label_size}
    return {
        **{name: _css(np.array(colour)) for name, colour in colours.items()},
        **{name: f"{length}rem" for name, length in rem.items()},
        "label-spacing": f"{style.label_spacing}em",
        "value-spacing": f"{style.value_spacing}em",
        "line": f"{style.line}",
        "pixels": f"{pixels}px",
        "width": f"{style.width}px",
        "columns": f"{layout.columns}",
    }


def _css(colour: np.ndarray) -> str:
    return f"rgb({','.join(str(min(255, max(0, round(part)))) for part in colour)})"


def cased(rng: np.random.Generator, fields: Sequence[str], *, upper: bool) -> list[str]:
    """The labels of one page, all in the same case: upper, lower or Capitalised."""
    case = "upper" if upper else pick(rng, ("lower", "capitalize"))
    return [str(getattr(field, case)()) for field in fields]


_MIN_ENTRIES = 4
_MAX_ENTRIES = 14  # on a page of 256 px
_TRIALS = 200  # the most attempts until a page fits
_DEGRADED = 0.5  # share of training pages with noise, bent letters and so on; others are unchanged screenshots


def render_browser(
    rng: np.random.Generator,
    *,
    size: int = 256,
    split: Split = "train",
    layouts: Mapping[Split, Mapping[str, HtmlLayout]] = LAYOUTS,
) -> Document:
    """A page of 4 or more fields with values, rendered by a browser, square, of `size` px.

    Raises:
        FileNotFoundError: no browser, or no font of the split, is installed.
        RuntimeError: the browser does not start, stops answering, or cannot render any page.
    """
    check_page(size, split)
    browser, unit = shared_browser(), text_unit(size)
    for _ in range(_TRIALS):
        layout_name = pick(rng, list(layouts[split]))
        layout = layouts[split][layout_name]
        style = sample_html_style(rng, split)
        most = min(len(FIELDS), round(_MAX_ENTRIES * max(1.0, size / 256 / unit)))
        pairs = sample_pairs(rng, int(rng.integers(_MIN_ENTRIES, most + 1)), split=split)
        fields, values = [field for field, _ in pairs], [value for _, value in pairs]
        labels = cased(rng, fields, upper=style.upper)
        title = " ".join(made_up_word(rng) for _ in range(int(rng.integers(3))))
        least = unit * MIN_FONT / style.label_size
        pixels = float(rng.uniform(least, unit * MAX_FONT))
        html = make_html(layout, style, list(zip(labels, values, strict=True)), title=title, pixels=pixels)
        texts = browser.set_page(html, size, least)
        if texts is not None:
            break
    else:
        raise RuntimeError(f"browser: expected a page that it can set; got none in {_TRIALS} trials")
    image = browser.screenshot()
    if split == "train" and rng.random() < _DEGRADED:
        image = degrade(rng, image, split=split, unit=unit)
    placed = texts[1:] if title else texts
    entries = tuple(
        Entry(field, label.text.removesuffix(":"), value.text, label.ink, value.ink)
        for field, label, value in zip(fields, placed[::2], placed[1::2], strict=True)
    )
    glyphs = tuple(
        Glyph(char, (left, text.capitals[0], right, text.capitals[1]))
        for text in texts
        for char, (left, right) in zip(text.text, text.edges, strict=True)
        if char != " "
    )
    return Document(image, entries, glyphs, layout_name, style.fonts)


@register("browser")
def draw_browser(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page of `render_browser` with one question about each field."""
    return ask_each(rng, render_browser(rng, size=size, split=split), split, FIELDS)


@register("stacked")
def draw_stacked(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A page as of `draw_browser`, with labels above their values."""
    return ask_each(rng, render_browser(rng, size=size, split=split, layouts=STACKED), split, FIELDS)
