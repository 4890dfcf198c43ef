"""Several sources as one, which take turns: new questions beside those that shall not be forgotten."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from ..records import MAX_ERRORS, OnError, Record
from .base import FORMATS, Format


@FORMATS.register("mixed")
@dataclass(frozen=True)
class Mixed(Format):
    """As many records of each source: a shorter one begins again until the longest has come to its end.

    Attributes:
        sources: what each says of itself, as a source of its own would.
        retained: numbers, from 0, of sources whose records are only there so that nothing changes: see `Record`.
    """

    sources: tuple[Format, ...]
    retained: tuple[int, ...] = ()

    nested = ("sources",)

    def __post_init__(self) -> None:
        numbers = range(len(self.sources))
        told = self.retained if isinstance(self.retained, list | tuple) else (None,)
        if not all(type(number) is int and number in numbers for number in told):
            expected = f"a list of numbers of sources, 0 to {len(self.sources) - 1}"
            raise ValueError(f"retained: expected {expected}; got {self.retained!r}")

    @property
    def title(self) -> str:
        return " and ".join(source.title for source in self.sources)

    @property
    def files(self) -> list[Path]:
        return [path for source in self.sources for path in source.files]

    @property
    def filed(self) -> bool:
        return all(source.filed for source in self.sources)

    def read(
        self, *, limit: int | None = None, on_error: OnError = "stop", max_errors: int = MAX_ERRORS
    ) -> Sequence[Record]:
        """The records in turn, numbered as they come."""
        sources = [source.read(limit=limit, on_error=on_error, max_errors=max_errors) for source in self.sources]
        records = _InTurn(sources, self.retained)
        return records if limit is None else records[:limit]


@dataclass(frozen=True)
class _InTurn(Sequence[Record]):
    """Record n is the next one of source n modulo their number; none is made before it is taken."""

    sources: list[Sequence[Record]]
    retained: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sources) * max(map(len, self.sources))

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        turn, source = divmod(index % len(self), len(self.sources))
        records = self.sources[source]
        return replace(records[turn % len(records)], line=index % len(self) + 1, retained=source in self.retained)
