"""What a format is: a class whose fields are what a user says about a source, and whose rows become records."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from ...files import parse_json
from ...modeling.registry import Registry
from ..fields import shorten
from ..records import MAX_ERRORS, OnError, Record, Row, gather

FORMATS: Registry[type["Format"]] = Registry("format")


class Format(ABC):
    """A source of records. Members are frozen dataclasses: their fields are what a user says of the source.

    Attributes:
        metric: of `METRICS`, the one that the data's publishers use.
        places: the fields that are paths.
        nested: the fields that are lists of sources.
    """

    metric: ClassVar[str] = "exact_match"
    places: ClassVar[tuple[str, ...]] = ()
    nested: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """The source, for reports and errors."""

    @property
    def files(self) -> list[Path]:
        """The files that the records are read from, but for the images; empty where they come from elsewhere."""
        return []

    @property
    def filed(self) -> bool:
        """Whether all records are read from `files`."""
        return bool(self.files)

    @abstractmethod
    def read(
        self, *, limit: int | None = None, on_error: OnError = "stop", max_errors: int = MAX_ERRORS
    ) -> Sequence[Record]:
        """All records; arguments and errors as in `gather`. No records at all are an error."""

    def digest(self, records: Sequence[Record]) -> str:
        """sha256 of the files, and of what the records say where files do not: the same data, the same digest."""
        content = hashlib.sha256()
        for path in self.files:
            content.update(path.read_bytes())
        if not self.filed:
            for record in records:
                said: tuple[Any, ...] = (
                    record.question, record.answers, record.boxes, record.label_boxes, record.tags
                )  # fmt: skip
                if record.absent or record.history:  # those of other records stay as they were
                    said += (record.absent, record.history)
                if record.others:
                    said += (record.box_sources, record.label_sources, record.answer_sources)
                content.update(repr(said).encode())
        return content.hexdigest()


class RowFormat(Format):
    """A source that holds something for each record, which may be bad."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Everything the source holds, unread.

        Raises:
            ValueError: a file is not of the format.
            OSError: a file cannot be read.
        """

    @abstractmethod
    def record(self, row: Row) -> Record:
        """Reads a row as a question with its image and answers.

        Raises:
            ValueError: the row is bad; the message leaves out where it stands, which `gather` knows.
        """

    def read(
        self, *, limit: int | None = None, on_error: OnError = "stop", max_errors: int = MAX_ERRORS
    ) -> list[Record]:
        records = gather(self.rows(), self.record, limit=limit, on_error=on_error, max_errors=max_errors)
        if not records:
            raise ValueError(f"{self.title}: expected records; got none")
        return records


@dataclass(frozen=True)
class FileFormat(RowFormat):
    """A source in files: `path` is the first of them, or a folder."""

    path: Path

    @property
    def title(self) -> str:
        return str(self.path)


def read_json(path: Path) -> Any:
    """The content of a JSON file that a user named.

    Raises:
        ValueError: there is no such file, or it is no JSON; the message names file, line and column.
    """
    if not path.is_file():
        raise ValueError(f"expected a file; got {str(path)!r}")
    return parse_json(path)


def list_in(path: Path, *keys: str) -> list[Any]:
    """The list in a JSON file: all of it, or under the first of `keys`.

    Raises:
        ValueError: the file holds no list there.
    """
    content = read_json(path)
    entries = content.get(keys[0]) if keys and isinstance(content, dict) else content
    if not isinstance(entries, list):
        place = f"a list under {keys[0]!r}" if keys else "a list"
        raise ValueError(f"{path}: expected {place}; got {shorten(content)}")
    return entries


def numbered(path: Path, contents: Sequence[Any], start: int = 1) -> Iterator[Row]:
    """Rows of a file that holds a list; numbers go on from `start`, places count within the file."""
    for place, content in enumerate(contents):
        yield Row(f"{path}, record {place + 1}", start + place, content)


def check_folder(path: Path, name: str) -> Path:
    """`path`, if it is a folder; `name` is that of the field in the error.

    Raises:
        ValueError: there is no folder of that name.
    """
    if not path.is_dir():
        raise ValueError(f"{name}: expected a folder; got {str(path)!r}")
    return path


def tags_of(row: Any, *names: str) -> tuple[tuple[str, str], ...]:
    """The fields among `names` that hold a string, or strings (joined); none of what is no mapping."""
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
    """(width, height) in px of an image file, upright, without decoding its pixels.

    Raises:
        ValueError: Pillow cannot read the file.
    """
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS
            return (image.height, image.width) if turned else (image.width, image.height)
    except OSError as error:
        raise ValueError(f"image: expected one that can be read; got {path.name!r} ({error})") from error


_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
"""EXIF orientations that swap width and height."""
