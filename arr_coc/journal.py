"""Append-only files of entries, each complete or absent even if the writing process is killed.

FOLDER/NAME-TIME-PROCESS.jsonl: one entry per line, in files that one process each writes. A line without its end is
what a killed process left; it is the last of its file, and not an entry.
"""

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_SEGMENTS = 8  # number of files of a bounded journal: when it is full, an eighth of it is deleted


class JournalEntry(NamedTuple):
    """An entry and its place: its file, and the bytes from the file's start to the line's."""

    path: Path
    offset: int
    content: dict[str, Any]

    @property
    def where(self) -> str:
        """The place, for errors."""
        return f"{self.path}, byte {self.offset}"


class JournalFull(OSError):
    """The entry does not fit into a journal that deletes nothing."""


class Journal:
    """Writes entries; any number of processes may write to one folder. Threads may share it.

    Args:
        folder: created if it does not exist.
        name: of the journal; a folder may hold several.
        limit: bytes of all its files.
        forgets: whether the oldest file is deleted at the limit; else further entries are refused.
        durable: whether an entry is on the disk when `append` returns, not only with the operating system.
    """

    def __init__(self, folder: Path, name: str, *, limit: int, forgets: bool, durable: bool) -> None:
        self.folder, self.name, self.limit = folder, name, limit
        self.forgets, self.durable = forgets, durable
        self._lock = threading.Lock()
        self._stream: int | None = None
        self._written = 0
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, content: Mapping[str, Any]) -> None:
        """Writes one entry.

        Raises:
            JournalFull: it would exceed the limit.
            OSError: it cannot be written.
        """
        line = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._make_room(len(line))
            try:
                self._write(line)
            except BaseException:
                self._end_file()  # it may end within the line: no other line may follow there
                raise
            if self._written >= self.limit // _SEGMENTS:
                self._end_file()

    def close(self) -> None:
        """Closes the file; a later entry starts another."""
        with self._lock:
            self._end_file()

    def _write(self, line: bytes) -> None:
        if self._stream is None:
            path = self.folder / f"{self.name}-{time.time_ns():020d}-{os.getpid()}.jsonl"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._stream = os.open(path, flags, 0o600)  # questions of users are private
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._stream, rest) :]
        self._written += len(line)
        if self.durable:
            os.fsync(self._stream)

    def _end_file(self) -> None:
        if self._stream is not None:
            os.close(self._stream)
        self._stream, self._written = None, 0

    def _make_room(self, size: int) -> None:
        held = _sizes(journal_files(self.folder, self.name))
        total = sum(held.values()) + size
        if total > self.limit and (not self.forgets or size > self.limit):
            raise JournalFull(f"{self.folder}: expected at most {self.limit} bytes of {self.name}; got {total}")
        if total > self.limit:
            self._end_file()  # this may be the oldest file itself
        for path, length in held.items():
            if total <= self.limit:
                return
            path.unlink(missing_ok=True)  # another process may delete the same file
            total -= length


def _sizes(paths: list[Path]) -> dict[Path, int]:
    """Bytes of the existing files: another process may delete one meanwhile."""
    sizes = {}
    for path in paths:
        with suppress(FileNotFoundError):
            sizes[path] = path.stat().st_size
    return sizes


def journal_files(folder: Path, name: str) -> list[Path]:
    """The files of a journal, the oldest first."""
    return sorted(folder.glob(f"{name}-*-*.jsonl"))


def read_journal(folder: Path, name: str) -> Iterator[JournalEntry]:
    """The entries of a journal, the oldest file first. Raises ValueError: no such journal, or a complete line that is
    not an entry."""
    files = journal_files(folder, name)
    if not files:
        raise ValueError(f"{folder}: expected a folder with files {name}-*.jsonl; got none")
    for path in files:
        offset = 0
        with path.open("rb") as stream:
            for line in stream:
                if line.endswith(b"\n"):
                    yield _entry(path, offset, line)
                offset += len(line)


def read_entry(path: Path, offset: int) -> JournalEntry:
    """Reads an entry again, at its place from `read_journal`.

    Raises:
        ValueError: no entry there.
        OSError: the file was deleted.
    """
    with path.open("rb") as stream:
        stream.seek(offset)
        return _entry(path, offset, stream.readline())


def _entry(path: Path, offset: int, line: bytes) -> JournalEntry:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}, byte {offset}: expected JSON; got {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}, byte {offset}: expected a JSON object; got {type(content).__name__}")
    return JournalEntry(path, offset, content)
