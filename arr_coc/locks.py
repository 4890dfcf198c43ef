"""One writer at a time: whoever writes a folder or a file holds a lock beside it, which a killed process loses."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

PATIENCE = 10.0
"""Seconds to wait for another writer. Loading processes of a killed run hold its lock until they notice, up to 5 s."""


@contextmanager
def sole_writer(out: Path, *, patience: float | None = None) -> Iterator[None]:
    """Keeps every other process from writing `out` until the block ends.

    Args:
        out: a folder or a file, there or not yet; the lock is `.NAME.lock` beside it.
        patience: how long to wait for a process that holds it, s; None: `PATIENCE`.

    Raises:
        ValueError: another process still writes there; the message says which one, and since when.
    """
    path = out.absolute().parent / f".{out.absolute().name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE if patience is None else patience)
    except Timeout:
        raise ValueError(f"{out}: expected no other process to write there; got {_holder(path)}") from None
    try:
        path.write_text(f"process {os.getpid()} on {platform.node()} since {datetime.now():%Y-%m-%d %H:%M:%S}", "utf-8")
        yield
    finally:
        with suppress(OSError):  # Windows keeps a file that is open; it is locked anew then
            path.unlink()  # while we hold it: who opened it meanwhile sees that it is gone, and starts over
        lock.release()


def _holder(lock: Path) -> str:
    try:
        return lock.read_text(encoding="utf-8") or "another one"
    except (OSError, UnicodeDecodeError):
        return "another one"
