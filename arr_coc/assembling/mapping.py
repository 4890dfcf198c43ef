"""Which published tensors become which of ours, and which are left out on purpose.

Every target is made of rows of published tensors, one after another: a renamed tensor of all its rows, a third of a
fused projection of some of them, a stack of experts of the rows of many. So one rule writes them all, and streams.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from safetensors import safe_open
from torch import Tensor

from .sources import Source, TensorInfo

BLOCK_ROWS = 4096
"""Rows of a table that are read at a time where it is read row by row."""


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` (exclusive) along the first axis of a published tensor."""

    source: Source
    name: str
    start: int
    stop: int

    @property
    def info(self) -> TensorInfo:
        return self.source.tensors[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stop - self.start, *self.info.shape[1:])

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.stop == self.info.shape[0]

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """The values, `BLOCK_ROWS` rows at a time, each with the number of its first row."""
        path = self.source.file(self.info.file)
        for first in range(self.start, self.stop, BLOCK_ROWS):
            with safe_open(path, framework="pt") as opened:  # anew for each: what was read before leaves memory
                yield first, opened.get_slice(self.name)[first : min(first + BLOCK_ROWS, self.stop)]


@dataclass
class Mapping:
    """Of one source: `loaded`, our names and the rows they are made of; `left_out`, published names and why."""

    source: Source
    loaded: dict[str, tuple[Rows, ...]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def matching(self, pattern: str) -> Iterable[tuple[str, re.Match[str]]]:
        """Published names that match as a whole."""
        for name in self.source.tensors:
            match = re.fullmatch(pattern, name)
            if match is not None:
                yield name, match

    def take(self, target: str, *names: str) -> None:
        """`target` is these published tensors, one after another.

        Raises:
            ValueError: the checkpoint lacks one of the published tensors.
        """
        self.loaded[target] = tuple(Rows(self.source, name, 0, self.source.shape(name)[0]) for name in names)

    def rename(self, names: dict[str, str]) -> None:
        """Patterns of published names -> our names, in which \\1, \\2, ... stand for the pattern's groups."""
        for pattern, target in names.items():
            for name, match in self.matching(pattern):
                self.take(match.expand(target), name)

    def split(self, pattern: str, targets: Iterable[str]) -> None:
        """Every tensor that matches is cut along its first axis into equal parts, one for each of `targets`."""
        targets = list(targets)
        for name, match in self.matching(pattern):
            rows = self.source.shape(name)[0]
            if rows % len(targets):
                raise ValueError(f"{self.source}: expected {name} with a multiple of {len(targets)} rows; got {rows}")
            step = rows // len(targets)
            for part, target in enumerate(targets):
                self.loaded[match.expand(target)] = (Rows(self.source, name, part * step, (part + 1) * step),)

    def leave_out(self, pattern: str, reason: str) -> None:
        """Every tensor that matches is left out, unless it is loaded."""
        used = self.used
        self.left_out.update({name: reason for name, _ in self.matching(pattern) if name not in used})

    @property
    def used(self) -> set[str]:
        """Published names that some target is made of."""
        return {rows.name for parts in self.loaded.values() for rows in parts}
