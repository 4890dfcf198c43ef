"""The base classes of formats: fields are a user's settings of a source, rows become records."""

import csv
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from ...files import parse_json
from ...modeling.checks import Registry
from ..records import (
    HeldImage,
    Record,
    Row,
    answers_of,
    boxes_of,
    gather,
    image_file,
    require,
    said_by_people,
    shorten,
    text_of,
)

FORMATS: Registry[type["Format"]] = Registry("format")


class Format(ABC):
    """A source of records. Formats are frozen dataclasses whose fields are a user's settings of the source.

    Attributes:
        metric: a name of `METRICS`, the one of the data's publishers.
        places: the fields that are paths.
        nested: the fields that are lists of sources.
    """

    metric: ClassVar[str] = "exact_match"
    places: ClassVar[tuple[str, ...]] = ()
    nested: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """The source's name in reports and errors."""

    @abstractmethod
    def read(self, *, limit: int | None = None, **errors: Any) -> Sequence[Record]:
        """All records; arguments and errors as in `gather`. A source without records is an error."""


class RowFormat(Format):
    """A source with a row for each record; rows can be bad."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """All unread rows.

        Raises:
            ValueError: a file is not of the format.
            OSError: a file cannot be read.
        """

    @abstractmethod
    def record(self, row: Row) -> Record:
        """Reads a row as a question with its image and answers; to a ValueError `gather` adds its place."""

    def read(self, *, limit: int | None = None, **errors: Any) -> list[Record]:
        records = gather(self.rows(), self.record, limit=limit, **errors)
        if not records:
            raise ValueError(f"{self.title}: expected records; got none")
        return records


@dataclass(frozen=True)
class FileFormat(RowFormat):
    """A source in files: `path` is the first file, or a folder of JSON files."""

    path: Path

    @property
    def title(self) -> str:
        return str(self.path)


def parts(path: Path) -> list[Path]:
    """A file, or the JSON files in a folder."""
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def read_json(path: Path) -> Any:
    """Reads a user's JSON file; a ValueError names file, line and column where it is no JSON, or not there."""
    if not path.is_file():
        raise ValueError(f"expected a file; got {str(path)!r}")
    return parse_json(path)


def list_in(path: Path, key: str | None = None) -> list[Any]:
    """The list in a JSON file: the whole content, or what is under `key`; a ValueError if there is none."""
    content = read_json(path)
    entries = content.get(key) if key and isinstance(content, dict) else content
    if not isinstance(entries, list):
        place = f"a list under {key!r}" if key else "a list"
        raise ValueError(f"{path}: expected {place}; got {shorten(content)}")
    return entries


def numbered(path: Path, contents: Sequence[Any], start: int = 1) -> Iterator[Row]:
    """Rows of a file that holds a list; numbers continue from `start`, places are counted per file."""
    for place, content in enumerate(contents):
        yield Row(f"{path}, record {place + 1}", start + place, content)


def check_folder(path: Path, name: str) -> Path:
    """Returns `path`; a ValueError with the field's `name` if it is no folder."""
    if not path.is_dir():
        raise ValueError(f"{name}: expected a folder; got {str(path)!r}")
    return path


def tags_of(row: Any, *names: str) -> tuple[tuple[str, str], ...]:
    """The fields among `names` with a string, or with strings (joined); empty if `row` is not a mapping."""
    tags = []
    row = row if isinstance(row, Mapping) else {}
    for name in names:
        value = row.get(name)
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            value = ", ".join(value)
        if isinstance(value, str) and value:
            tags.append((name, value))
    return tuple(tags)


@lru_cache(maxsize=4096)
def image_size(path: Path) -> tuple[int, int]:
    """(width, height) in px of an image file, upright, not decoded; a ValueError if Pillow cannot read it."""
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS
            return (image.height, image.width) if turned else (image.width, image.height)
    except OSError as error:
        raise ValueError(f"image: expected one that can be read; got {path.name!r} ({error})") from error


_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_NEEDED, _OPTIONAL = ("image", "question", "answers"), ("boxes", "image_id", "tags")
_LOADERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}
"""Loaders of single files."""


@FORMATS.register("columns")
@dataclass(frozen=True)
class Columns(RowFormat):
    """A data set of the `datasets` library, with a mapping of its columns."""

    places: ClassVar[tuple[str, ...]] = ("images",)

    path: str  # a name on the Hub, a folder of `save_to_disk`, or any file or folder that `load_dataset` accepts
    # Column by role. Needed if the names differ: image (images or paths), question, answers (a text, a number, or a
    # list of texts or of {"answer": text}). Used only if given: boxes (lists of [x0, y0, x1, y1], px), image_id (equal
    # for the same image, which is then encoded once), tags (a list of columns).
    columns: Mapping[str, Any] = field(default_factory=dict)
    split: str | None = None  # such as "validation"; needed if there are several
    subset: str | None = None  # the configuration's name, if there are several
    images: Path | None = None  # folder of images that are given as paths

    def __post_init__(self) -> None:
        known = (*_NEEDED, *_OPTIONAL)
        unknown = set(self.columns) - set(known) if isinstance(self.columns, Mapping) else self.columns
        if unknown:
            raise ValueError(f"columns: expected a map of {', '.join(known)}; got {sorted(unknown)}")

    @property
    def title(self) -> str:
        return str(self.path) if self.split is None else f"{self.path}, split {self.split}"

    def _column(self, what: str) -> str:
        return str(self.columns.get(what, what))

    @property
    def _tags(self) -> list[str]:
        named = self.columns.get("tags") or ()
        return [named] if isinstance(named, str) else list(named)

    @cached_property
    def _dataset(self) -> Any:
        data = _load(self.path, self.subset, self.split)
        named = {what: self._column(what) for what in (*_NEEDED, *self.columns) if what != "tags"}
        for what, column in [*named.items(), *(("tags", tag) for tag in self._tags)]:
            if column not in data.column_names:
                expected = f"columns: expected {what} among {', '.join(data.column_names)}"
                raise ValueError(f"{self.title}: {expected}; got {column!r}")
        return data

    @cached_property
    def _texts(self) -> Any:
        """The data without images, which would be decoded with every row."""
        data = self._dataset
        return data if self._is_path else data.remove_columns(self._column("image"))

    @cached_property
    def _is_path(self) -> bool:
        return getattr(self._dataset.features[self._column("image")], "dtype", "") in ("string", "large_string")

    def rows(self) -> Iterator[Row]:
        for number, row in enumerate(self._texts, 1):
            yield Row(f"{self.title}, row {number}", number, row)

    def record(self, row: Row) -> Record:
        content = row.content
        question = text_of({"question": content[self._column("question")]}, "question")
        said, name_of = content[self._column("answers")], self._dataset.features[self._column("answers")]
        if said is not None and hasattr(name_of, "int2str"):  # a class that is stored as a number
            said = name_of.int2str(said)
        single = isinstance(said, str | int | float) and not isinstance(said, bool)
        answers = answers_of([str(said)]) if single else said_by_people(said)
        boxes = boxes_of(content[self._column("boxes")]) if "boxes" in self.columns else ()
        tags = tags_of(content, *self._tags)
        return Record(self._image(row), question, answers, boxes, row.number, tags=tags)

    def _image(self, row: Row) -> Path | HeldImage:
        name = self._column("image")
        if self._is_path:
            require(row.content, name)
            beside = Path(self.path) if Path(self.path).is_dir() else Path(self.path).parent
            return image_file(beside if self.images is None else self.images, text_of(row.content, name))
        key = row.content[self._column("image_id")] if "image_id" in self.columns else None
        if not isinstance(key, Hashable):
            raise ValueError(f"{self._column('image_id')}: expected a name or number of the image; got {key!r}"[:200])
        key = ("row", row.number) if key is None else key  # without image_id, every row has a separate image
        return HeldImage((self.title, self.subset, key), partial(_decoded, self._dataset, name, row.number - 1))


def _decoded(data: Any, column: str, row: int) -> Any:
    image = data[row][column]
    if image is None:
        raise ValueError(f"row {row + 1}: {column}: expected an image; got none")
    return image


def _as_written(path: Path) -> dict[str, Any]:
    """Options that load all cells of a CSV file as text: no `12.0` for 12, no missing value for NA."""
    import datasets

    with path.open(encoding="utf-8-sig", newline="") as stream:
        names = next(csv.reader(stream), [])
    if not names:
        raise ValueError(f"{path}: expected a first line that names the columns; got none")
    features = datasets.Features({name: datasets.Value("string") for name in names})
    return {"features": features, "keep_default_na": False, "encoding": "utf-8-sig"}


def _load(path: str, subset: str | None, split: str | None) -> Any:
    """Loads one split of the data set; a ValueError if `datasets` is not installed, or no such split is there."""
    try:
        import datasets
    except ImportError as error:
        raise ValueError("columns: expected the datasets library (pip install arr-coc[train]); got none") from error
    place = Path(path)
    if any((place / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        data: Any = datasets.load_from_disk(path)
    elif place.is_file():
        if place.suffix not in _LOADERS:
            raise ValueError(f"path: expected a name ending in {', '.join(_LOADERS)}; got {path!r}")
        told = _as_written(place) if place.suffix == ".csv" else {}
        data = datasets.load_dataset(_LOADERS[place.suffix], data_files=path, **told)
    else:
        data = datasets.load_dataset(path, subset)
    if not isinstance(data, dict):
        if split is not None and str(data.split) != split:
            raise ValueError(f"{path}: split: expected none, of a data set without splits; got {shorten(split)}")
        return data
    chosen = split if split is not None else next(iter(data)) if len(data) == 1 else None
    if chosen not in data:
        raise ValueError(f"{path}: split: expected one of {', '.join(map(str, data))}; got {shorten(split)}")
    return data[chosen]
