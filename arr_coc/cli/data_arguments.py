"""Where questions come from, on a command line: a file, its format, and what else the format needs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import FORMATS

if TYPE_CHECKING:
    from arr_coc.data.formats import Format

_YAML = (".yaml", ".yml")


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """--format, --with, --on-error and --max-errors."""
    parser.add_argument("--format", metavar="F", help=f"format of DATA: {FORMATS} (default: jsonl)")
    also = "setting of the format, such as images=DIR, ocr=FILE or columns.question=NAME; may be repeated"
    parser.add_argument("--with", metavar="NAME=VALUE", action="append", dest="fields", help=also)
    errors = "what to do at a bad record: stop, or skip it with a warning (default: stop)"
    parser.add_argument("--on-error", choices=("stop", "skip"), help=errors)
    most = "number of bad records that are skipped at most (default: 100)"
    parser.add_argument("--max-errors", metavar="N", type=int, help=most)


def find_source(data: Any, kind: str | None, settings: Sequence[str] | None) -> Format:
    """The source that the arguments name.

    Args:
        data: a path; a YAML file that says format, path and the rest, its paths relative to it; or a source.
        kind: the format's name.
        settings: NAME=VALUE, see `add_data_arguments`.

    Raises:
        ValueError: see `open_source`; or a YAML file beside options that it stands for.
    """
    from arr_coc.data.formats import FORMATS, Format
    from arr_coc.data.sources import DEFAULT_FORMAT, open_source

    whole = isinstance(data, Format) or (data is not None and Path(data).suffix in _YAML)
    if whole and (kind is not None or settings):
        raise ValueError("--data: expected a YAML file, or --format and --with; got both")
    if isinstance(data, Format):
        return data
    if whole:
        return read_source(Path(data))
    name = DEFAULT_FORMAT if kind is None else kind
    places = FORMATS[name].places
    spec: dict[str, Any] = {"format": name} if data is None else {"format": name, "path": data}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not (key and equals and value):
            raise ValueError(f"--with: expected NAME=VALUE; got {setting!r}")
        *outer, inner = key.split(".")
        target = spec
        for part in outer:
            target = target.setdefault(part, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict) or inner in target:
            raise ValueError(f"--with: expected each name once, and {key!r} not given otherwise; got {setting!r}")
        target[inner] = value if key in places else _number_or_text(value)
    return open_source(spec)


def _number_or_text(value: str) -> int | float | str:
    if value.isdecimal():
        return int(value)
    whole, point, rest = value.partition(".")
    return float(value) if point and whole.isdecimal() and rest.isdecimal() else value


def read_source(path: Path) -> Format:
    """The source that a YAML file describes.

    Raises:
        ValueError: no YAML, or see `open_source`.
    """
    from arr_coc.data.sources import open_source
    from arr_coc.files import read_yaml

    content = read_yaml(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: expected format, path and the format's other fields by name; got {content!r}")
    return open_source(content, folder=path.parent)


def reading(on_error: Any, max_errors: Any) -> dict[str, Any]:
    """The arguments of `Format.read` that were given."""
    options = {"on_error": on_error, "max_errors": max_errors}
    return {name: value for name, value in options.items() if value is not None}
