"""Files of models: JSON, output folders that appear whole or not at all."""

import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not on Windows: there, what a killed run left stays
    fcntl = None


def parse_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ValueError: the file holds no JSON; the message names file, line and column.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON; got {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: the file holds no JSON, or something else than an object.
    """
    content = parse_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object; got {type(content).__name__}")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object for people to read."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check_free(out: Path, force: bool = False) -> None:
    """Refuses an output folder that is a file, or that has files and is not to be replaced.

    Raises:
        ValueError: `out` is a file, or holds files without `force`.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: expected a folder to make; got a file")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise ValueError(f"{out}: expected a new or empty folder (or --force, which replaces it); got one with files")


@contextmanager
def fresh_folder(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder beside `out` to write into, which becomes `out` when the block ends without an error, else goes away.

    What a killed run left beside is cleared away first; the folder of a run that still writes is left alone.

    Args:
        out: an absolute path.
        force: replace `out` if it is there and not empty.

    Raises:
        ValueError: `out` is in the way (`check_free`).
    """
    check_free(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f"{glob.escape(f'.{out.name}.new.')}*"):
        with suppress(FileNotFoundError), _locked(left) as stale:
            if stale:
                shutil.rmtree(left, ignore_errors=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.new.", dir=out.parent))
    try:
        with _locked(beside):
            yield beside
            beside.chmod(0o777 & ~_umask())  # mkdtemp's folder is its owner's only
            replace_folder(beside, out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def replace_folder(beside: Path, out: Path) -> None:
    """Moves what was written to `beside` into the place of `out`, whose old content goes only when the new is there.

    Raises:
        OSError: it cannot be moved; `out` is as it was.
    """
    if not out.exists():
        os.replace(beside, out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    os.replace(out, old)  # onto an empty folder
    try:
        os.replace(beside, out)
    except OSError:
        os.replace(old, out)
        raise
    shutil.rmtree(old)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether this process has `folder` for itself; the lock ends with the block, or with a killed process."""
    if fcntl is None:
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except BlockingIOError:
            ours = False
        yield ours
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
