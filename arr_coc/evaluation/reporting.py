"""Blocks of reports as HTML, Markdown or text; numbers as text; date, versions and machine.

Intervals are {"value", "low", "high"} in shares.
"""

import base64
import importlib
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import torch
import transformers

from ..files import fresh_file
from ..version import __version__

STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 80rem; padding: 1rem; }
h1, p, ul, figure { max-width: 60rem; }
h1 { line-height: 1.2; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .45rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: Canvas; }
td:first-child { max-width: 40vw; white-space: normal; }
th { vertical-align: bottom; }
svg, img { display: block; height: auto; max-width: 100%; }
svg { width: 40rem; }
figure { margin: 1.5rem 0; }
.gallery { display: grid; gap: 1rem .8rem; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
.gallery figure { margin: 0; }
.gallery img { width: 100%; border: 1px solid var(--line); }
figcaption, ul { font-size: .9rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid var(--line); }
strong { font-size: 1.2em; }
"""


@dataclass(frozen=True)
class Heading:
    """A section's title."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text, after optional words in bold (`strong`)."""

    text: str
    strong: str = ""


@dataclass(frozen=True)
class Bullets:
    """A list of short notes."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A head and rows of text cells; the first column is aligned left."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A picture with its caption.

    Attributes:
        name: name of the file beside the Markdown, without its ending.
        content: SVG text, or bytes of a JPEG or PNG.
        caption: text below the picture.
    """

    name: str
    content: str | bytes
    caption: str

    @property
    def kind(self) -> str:
        """The ending of the figure's file."""
        if isinstance(self.content, str):
            return "svg"
        return "png" if self.content.startswith(b"\x89PNG") else "jpg"


@dataclass(frozen=True)
class Gallery:
    """Small pictures side by side, as many as fit into the page's width."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Code:
    """Preformatted lines."""

    text: str


Block = Heading | Paragraph | Bullets | Table | Figure | Gallery | Code


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """The report as one self-contained HTML page."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"
        case Paragraph(text, strong):
            lead = f"<strong>{escape(strong)}</strong> " if strong else ""
            return f"<p>{lead}{escape(text)}</p>"
        case Bullets(items):
            return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in items) + "\n</ul>"
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Table(head, rows):
            first = "".join(f"<th>{escape(cell)}</th>" for cell in head)
            rest = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            return (
                f'<div class="scroll"><table>\n<thead><tr>{first}</tr></thead>\n<tbody>\n{rest}\n</tbody>\n'
                "</table></div>"
            )
        case Gallery(figures):
            return '<div class="gallery">\n' + "\n".join(_html(figure) for figure in figures) + "\n</div>"
        case Figure(_, content, caption):
            if isinstance(content, bytes):
                data, kind = base64.b64encode(content).decode(), block.kind.replace("jpg", "jpeg")
                content = f'<img alt="{escape(caption)}" src="data:image/{kind};base64,{data}">'
            return f"<figure>\n{content}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def to_markdown(title: str, blocks: Sequence[Block], folder: Path) -> str:
    """The report as Markdown; figures are written into `folder`."""
    return "\n\n".join([f"# {_plain(title)}", *(_markdown(block, folder) for block in blocks)]) + "\n"


def _markdown(block: Block, folder: Path) -> str:
    match block:
        case Heading(text):
            return f"## {_plain(text)}"
        case Paragraph(text, strong):
            return (f"**{_plain(strong)}** " if strong else "") + _plain(text)
        case Bullets(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Code(text):
            return f"```\n{text}\n```"
        case Table(head, rows):
            lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
            return "\n".join("| " + " | ".join(_plain(cell, "|") for cell in line) + " |" for line in lines)
        case Gallery(figures):
            return "\n\n".join(_markdown(figure, folder) for figure in figures)
        case Figure(name, content, caption):
            path = folder / f"{name}.{block.kind}"
            with fresh_file(path) as beside:
                beside.write_bytes(content if isinstance(content, bytes) else content.encode())
            return f"![{_plain(name, '[]')}]({path.name})\n\n{_plain(caption)}"


def _plain(text: str, more: str = "") -> str:
    """Escapes text for Markdown."""
    for sign in "\\`*_<>#" + more:
        text = text.replace(sign, f"\\{sign}") if sign != "<" else text.replace("<", "&lt;")
    return " ".join(text.split())


def to_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain-text table with columns of fixed width; the first is aligned left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in (head, *rows)
    )


def percent(interval: dict[str, float] | None) -> str:
    """ "43.1 [40.2, 46.0]"."""
    if interval is None:
        return "-"
    value, low, high = (100 * interval[name] for name in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def points(interval: dict[str, float]) -> str:
    """ "+4.3 [+3.2, +5.5]"."""
    value, low, high = (100 * interval[name] for name in ("value", "low", "high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def p_value(p: float) -> str:
    """ "0.035", or "< 0.001"."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def milliseconds(time: float | None) -> str:
    """ "103", or "-" if there were too few timings."""
    return "-" if time is None else f"{time:.0f}"


def share(value: float | None) -> str:
    """ "43.1", or "-" for None."""
    return "-" if value is None else f"{100 * value:.1f}"


def shown(source: str) -> str:
    """A path relative to the working directory if below it, else its name: published results omit home folders."""
    path = Path(source)
    if not path.is_absolute():
        return source
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name


def environment(device: torch.device) -> dict[str, Any]:
    """Date, versions and machine."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "arr_coc": __version__,
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "machine": {"system": platform.system(), "device": f"{device.type}: {name}", "cpus": os.cpu_count()},
    }


def require_extra(module: str, purpose: str) -> None:
    """Refuses early if a module of the extra "eval" is missing, not after hours of answers.

    Raises:
        ValueError: the module is not installed; the message names `purpose` and how to install it.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ValueError(f"{purpose}: expected {library} (pip install 'arr-coc[eval]'); got none") from error
