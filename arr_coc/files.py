"""Files: JSON and YAML of the types declared, outputs that appear whole or not at all, one writer at a time.

Whoever writes a folder or a file holds a lock beside it, which a killed process loses. Others may have changed files,
so what comes from them is checked. Mistakes of whoever runs a program are told in one line.
"""

import json
import os
import pickle
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import datetime
from functools import reduce
from operator import or_
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml
from filelock import FileLock, Timeout
from huggingface_hub.dataclasses import type_validator
from safetensors import SafetensorError

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


_WRITERS = ("while serializing", "inline_container")
"""How errors of safetensors' and of PyTorch's writers are known; the latter name a file of its source."""


def cache_folder() -> Path:
    """Where what was downloaded or converted is kept for a user: `arr-coc` in `$XDG_CACHE_HOME`, or in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "arr-coc"


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


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        ValueError: the file holds no YAML; the message names file, line and column.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected YAML; got {error}") from error


def write_text(path: Path, text: str) -> None:
    """Writes all of a file or nothing (see `fresh_file`)."""
    with fresh_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Writes JSON for people to read, all of the file or nothing."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


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

    One process at a time does so. What a killed one left is put right first: see `replace_folder`.

    Args:
        out: an absolute path.
        force: replace `out` if it is there and not empty.

    Raises:
        ValueError: `out` is in the way (`check_free`), or another process writes it.
    """
    check_free(out, force)
    with sole_writer(out):
        _recover(out)
        check_free(out, force)
        beside = _beside(out, "new")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            with disk_faults(out):
                yield beside
            replace_folder(beside, out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def replace_folder(beside: Path, out: Path) -> None:
    """Moves what was written to `beside` into the place of `out`, whose old content goes only when the new is there.

    Killed at any moment it leaves the new folder or the old one, this perhaps beside, where the next call (and
    `fresh_folder`) finds it and puts it back.

    Raises:
        OSError: it cannot be moved; `out` is as it was.
    """
    _recover(out)
    if not out.exists():
        os.replace(beside, out)
        return
    old = _beside(out, "old")
    os.replace(out, old)
    try:
        os.replace(beside, out)
    except OSError:
        os.replace(old, out)
        raise
    shutil.rmtree(old)


def _recover(out: Path) -> None:
    """Ends what a process began that was killed while it replaced `out`: puts the old content back, or clears it away.

    The new content may be whole too, but only the killed process could know.
    """
    old = _beside(out, "old")
    if old.is_dir() and not out.exists():
        os.replace(old, out)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def fresh_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when the block ends without an error, else goes away.

    It has the same ending, for writers that go by it. A link stays and what it leads to is replaced; a device or a
    pipe is written to directly.

    Raises:
        ValueError: another process writes the file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    beside = path.with_name(f".{path.stem}.new{path.suffix}")
    with sole_writer(path):
        try:
            yield beside
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def disk_faults(out: Path) -> Iterator[None]:
    """Turns what PyTorch and safetensors raise where a disk takes no more into the OSError that it is.

    Raises:
        OSError: something could not be written; the message names `out`.
    """
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        if not any(sign in str(error) for sign in _WRITERS):
            raise
        cause = error if isinstance(error, SafetensorError) else error.__context__
        reason = " ".join(str(cause).split()) if isinstance(cause, SafetensorError | OSError) else "a failed write"
        raise OSError(f"{out}: expected room to write it; got {reason}") from error


def _beside(path: Path, what: str) -> Path:
    return path.parent / f".{path.name}.{what}"


def check_types(settings: Any) -> None:
    """Refuses values of other types than a dataclass declares. A whole number passes as a number, a list as a tuple.

    Raises:
        ValueError: the message names the field.
    """
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        _check_type(field.name, getattr(settings, field.name), hints[field.name])


def check_entries(content: Any, schema: type, where: str) -> None:
    """As `check_types`, of a mapping with a `TypedDict` for schema; it may hold other entries too.

    Raises:
        ValueError: no mapping, or an entry is missing or of another type; the message begins with `where`.
    """
    hints = get_type_hints(schema)
    if not isinstance(content, dict) or not set(hints) <= set(content):
        received = f"none of {', '.join(sorted(set(hints) - set(content)))}" if isinstance(content, dict) else content
        raise ValueError(f"{where}: expected {', '.join(hints)}; got {received!r}")
    for name, hint in hints.items():
        _check_type(f"{where}: {name}", content[name], hint)


def _check_type(name: str, value: Any, hint: Any) -> None:
    try:
        type_validator(name, value, _as_read(hint))
    except TypeError as error:
        declared = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
        expected = re.sub(r"(collections\.abc|typing)\.", "", declared)
        raise ValueError(f"{name}: expected {expected}; got {value!r}") from error


def _as_read(hint: Any) -> Any:
    """The type that a value has as YAML and JSON give it, for what is declared as `hint`."""
    origin, parts = get_origin(hint), tuple(_as_read(part) for part in get_args(hint) if part is not ...)
    if hint is float:
        return int | float
    if origin in (Union, UnionType):
        return reduce(or_, parts)
    if origin in (Mapping, dict):
        return GenericAlias(dict, parts)
    if origin in (tuple, list, Sequence):
        alike = origin is not tuple or ... in get_args(hint)
        return GenericAlias(tuple, (parts[0], ...) if alike else parts) | GenericAlias(list, (reduce(or_, parts),))
    return hint


def fault_of_input(error: Exception) -> str | None:
    """One line about what was asked for, a file, or a disk; None where the fault is ours.

    Our own code raises ValueError and OSError. The others are how libraries speak of damaged files.
    """
    from huggingface_hub.errors import StrictDataclassError

    kinds: tuple[type[Exception], ...] = (
        ValueError, OSError, SafetensorError, StrictDataclassError, zipfile.BadZipFile, pickle.UnpicklingError,
    )  # fmt: skip
    return (" ".join(str(error).split()) or type(error).__name__) if isinstance(error, kinds) else None


def run_module(main: Callable[[], object]) -> None:
    """What `python -m` does of a module with a `main`: exit code 2 and one line for a mistake in what was asked for."""
    try:
        main()
    except Exception as error:
        message = fault_of_input(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2) from None
