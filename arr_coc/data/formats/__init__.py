"""Formats of data sets, one class each, and sources of records from a YAML file.

`{format: textvqa, path: val.json, images: val, ocr: ocr.json}`: `format` is a name in `FORMATS`, the other keys are the
fields of that format's class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ..records import Record
from .base import FORMATS as FORMATS
from .base import Columns as Columns
from .base import Format as Format
from .own import FeedbackLog as FeedbackLog
from .own import Jsonl as Jsonl
from .own import Mixed as Mixed
from .own import Rendered as Rendered
from .published import ChartQa as ChartQa
from .published import DocVqa as DocVqa
from .published import Gqa as Gqa
from .published import TextVqa as TextVqa
from .published import VqaV2 as VqaV2

DEFAULT_FORMAT = "jsonl"


def open_records(spec: Mapping[str, Any], *, folder: str | Path = ".", limit: int | None = None) -> Sequence[Record]:
    """Reads the records of a source; images are opened on demand.

    Args:
        spec: `format`, a name in `FORMATS` ("jsonl" by default), the fields of that format's class, and perhaps
            `on_error` ("skip" skips bad records with a warning that names file and line) and `max_errors` (with more
            bad records than this, reading stops).
        folder: folder to which paths in `spec` are relative.
        limit: the most records, from the first on; None: all.

    Raises:
        ValueError: an unknown format, missing or unknown fields, missing or bad files, or a bad record.
        OSError: a file cannot be read.
    """
    spec, errors = _apart(spec)
    return open_source(spec, folder=folder).read(limit=limit, **errors)


def _apart(spec: Any) -> tuple[Any, dict[str, Any]]:
    """A source, and how its errors are taken."""
    if not isinstance(spec, Mapping):
        return spec, {}
    own = {name: value for name, value in spec.items() if name not in ("on_error", "max_errors")}
    return own, {name: spec[name] for name in spec if name not in own}


def open_source(spec: Mapping[str, Any], *, folder: str | Path = ".") -> Format:
    """The source that `spec` describes, unread; ValueError for an unknown format, or missing or unknown fields."""
    if not isinstance(spec, Mapping):
        raise ValueError(f"data: expected format, path and the format's other fields by name; got {spec!r}")
    options = dict(spec)
    name = options.pop("format", DEFAULT_FORMAT)
    if not isinstance(name, str):
        raise ValueError(f"format: expected one of {', '.join(sorted(FORMATS))}; got {name!r}")
    kind = FORMATS[name]
    known = {field.name: field.default is MISSING and field.default_factory is MISSING for field in fields(kind)}  # type: ignore[arg-type]
    needed = [field for field, required in known.items() if required]
    unknown = sorted(map(str, set(options) - set(known)))
    if unknown:
        raise ValueError(f"data of format {name}: expected fields among {', '.join(known)}; got {', '.join(unknown)}")
    missing = [field for field in needed if options.get(field) is None]
    if missing:
        raise ValueError(f"data of format {name}: expected {', '.join(needed)}; got no {', '.join(missing)}")
    for place in kind.places:
        if options.get(place) is not None:
            options[place] = _path(options[place], place, Path(folder))
    for name in kind.nested:
        if not isinstance(sources := options[name], list | tuple) or not sources:
            raise ValueError(f"{name}: expected a list of sources; got {sources!r}")
        options[name] = tuple(
            each if isinstance(each, Format) else open_source(each, folder=folder) for each in sources
        )
    if "path" in options and "path" not in kind.places and (Path(folder) / str(options["path"])).exists():
        options["path"] = str(Path(folder) / options["path"])  # else a name on the Hub
    return kind(**options)


def check_files(spec: Any, folder: Path) -> None:
    """Refuses a source whose files are not there or whose settings are wrong, before a model is loaded. Raises
    ValueError: no such file or folder, or see `open_source`."""
    if not isinstance(spec, Mapping) or not isinstance(name := spec.get("format", DEFAULT_FORMAT), str):
        return
    spec, _ = _apart(spec)
    for nested in FORMATS[name].nested:
        for source in spec.get(nested) or ():
            check_files(source, folder)
    for place in FORMATS[name].places:
        if spec.get(place) is not None and not (path := _path(spec[place], place, folder)).exists():
            raise ValueError(f"data: expected a {place} that exists; got {str(path)!r}, which does not")
    if set(spec) - {"format"}:  # else it is a stage's default
        open_source(spec, folder=folder)


def _path(value: Any, name: str, folder: Path) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"{name}: expected a path; got {value!r}")
    return folder / Path(value).expanduser()
