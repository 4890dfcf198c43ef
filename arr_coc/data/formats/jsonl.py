"""Our own form: one JSON object per line; see `arr_coc.data.records`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..records import Record, Row, lines, parse
from .base import FORMATS, FileFormat


@FORMATS.register("jsonl")
@dataclass(frozen=True)
class Jsonl(FileFormat):
    """`path`: the file; images lie relative to it."""

    places = ("path",)

    @property
    def files(self) -> list[Path]:
        return [self.path]

    def rows(self) -> Iterator[Row]:
        yield from lines(self.path.absolute())

    def record(self, row: Row) -> Record:
        return parse(row, self.path.absolute().parent)
