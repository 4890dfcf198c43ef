"""Files: JSON and YAML with declared types, models' folders, outputs that appear complete or not at all.

A process that writes a folder or a file holds a lock beside it, which is released when it is killed. Content of files
is checked when it is read. Users' mistakes give an error of one line.
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
from huggingface_hub import hf_hub_url, try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE
from huggingface_hub.dataclasses import type_validator
from huggingface_hub.utils import get_session
from safetensors import SafetensorError

PATIENCE = 10.0
"""Seconds to wait for another writer. Loading processes of a killed run hold its lock until they notice, up to 5 s."""


@contextmanager
def sole_writer(out: Path, *, patience: float | None = None) -> Iterator[None]:
    """Keeps every other process from writing `out` until the block ends.

    Args:
        out: a folder or a file, which may not exist yet; the lock is `.NAME.lock` beside it.
        patience: seconds to wait for the process that holds the lock; None: `PATIENCE`.

    Raises:
        ValueError: another process still writes there; the message names it and its start.
    """
    path = out.absolute().parent / f".{out.absolute().name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE if patience is None else patience)
    except Timeout:
        holder = ""
        with suppress(OSError, UnicodeDecodeError):
            holder = path.read_text(encoding="utf-8")
        raise ValueError(f"{out}: expected no other process to write there; got {holder or 'another one'}") from None
    try:
        path.write_text(f"process {os.getpid()} on {platform.node()} since {datetime.now():%Y-%m-%d %H:%M:%S}", "utf-8")
        yield
    finally:
        with suppress(OSError):  # Windows keeps a file that is open; it is locked again then
            path.unlink()  # while the lock is held: a process that opened it meanwhile notices, and starts over
        lock.release()


_WRITERS = ("while serializing", "inline_container")
"""Messages of the errors of safetensors' and PyTorch's writers; the latter name a file of its source."""


def cache_folder() -> Path:
    """A user's folder for downloaded and converted files: `arr-coc` in `$XDG_CACHE_HOME`, or in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "arr-coc"


ADAPTER = "scorer.safetensors"
"""A published model's scorer, in a folder from `arr-coc train`, which commands take for the model with its scorer."""

SHIPPED = Path("hub_configs") / "arr-coc-135m"  # the shipped model of a checkout of the repository
HUB_SECONDS = 5.0  # the longest wait for the Hub's first answer, beside the look-up of its address
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find_model(name: str | None) -> str:
    """An absolute path for a folder, so that nothing is looked up on the Hub; or a name on the Hub.

    Raises:
        ValueError: a path to nothing, to a file or to a folder without config.json and `ADAPTER`; no name and no
            shipped model; or a name on the Hub that is not in its cache while the Hub does not answer.
    """
    if name is None:
        checkout = Path(__file__).resolve().parents[1]
        for root in (checkout, Path.cwd()):
            if (root / SHIPPED).is_dir():
                return str(root / SHIPPED)
        raise ValueError(f"model: expected a folder or org/name; got none, and {SHIPPED.as_posix()} is not here")
    path = Path(name).expanduser()
    if path.is_dir():
        if not any((path / file).is_file() for file in ("config.json", ADAPTER)):
            raise ValueError(f"model: expected a folder with config.json or {ADAPTER}; got none in {name}")
        return str(path.absolute())
    if path.exists():
        raise ValueError(f"model: expected a folder or org/name; got a file: {name}")
    # "hub_configs/typo" has the form of a Hub name, but users with that folder mean the folder.
    if not _HUB_NAME.fullmatch(name) or path.parent.is_dir():
        raise ValueError(f"model: expected a folder, or org/name on the Hub; got {name!r}, which does not exist")
    if not isinstance(try_to_load_from_cache(name, "config.json"), str):
        _check_hub_answers(name)
    return name


def _check_hub_answers(name: str) -> None:
    """Refuses a name on the Hub if the Hub does not answer: loaders try six times, for up to a minute each."""
    if HF_HUB_OFFLINE:
        return
    try:
        get_session().head(hf_hub_url(name, "config.json"), timeout=HUB_SECONDS)
    except Exception as error:  # those of httpx or httpx2, whichever huggingface_hub uses
        cause = " ".join(str(error).split()) or type(error).__name__
        tried = f"no answer from {ENDPOINT} ({cause}), nothing in {HF_HUB_CACHE}, and no such folder"
        raise ValueError(f"{name}: expected a folder or a model on the Hub; got {tried}") from None


def parse_json(path: Path) -> Any:
    """The content of a JSON file. Raises ValueError: it holds none; the message names file, line and column."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON; got {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError: the file holds no JSON, or anything but an object."""
    content = parse_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object; got {type(content).__name__}")
    return content


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number, as YAML 1.2 does; PyYAML takes it for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+\.?\d*[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str) -> Any:
    """The content of a YAML text. Raises yaml.YAMLError: it is none."""
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file. Raises ValueError: it holds none; the message names file, line and column."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected YAML; got {' '.join(str(error).split())}") from error


def write_text(path: Path, text: str) -> None:
    """Writes a whole file or nothing (see `fresh_file`)."""
    with fresh_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Writes readable JSON, the whole file or nothing."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def check_free(out: Path, force: bool = False) -> None:
    """Raises a ValueError for an output folder that is a file, or that has files, without `force`."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: expected a folder to make; got a file")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise ValueError(f"{out}: expected a new or empty folder (or --force, which replaces it); got one with files")


@contextmanager
def fresh_folder(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder beside `out` to write into; it becomes `out` when the block ends without an error, else it is deleted.

    One process at a time may do so. Remains of a killed process are repaired first: see `replace_folder`.

    Args:
        out: an absolute path.
        force: replace `out` if it exists and is not empty.

    Raises:
        ValueError: `out` exists (`check_free`), or another process writes it.
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
    """Moves `beside` to the place of `out`, whose old content is deleted only when the new one is there.

    If killed at any moment it leaves the new folder or the old one, perhaps beside its place, where the next call (and
    `fresh_folder`) finds it and puts it back.

    Raises:
        OSError: it cannot be moved; `out` is unchanged.
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
    """Repairs the remains of a process that was killed while it replaced `out`: puts the old content back, or deletes
    it. The new content may be complete, too, but only the killed process could know."""
    old = _beside(out, "old")
    if old.is_dir() and not out.exists():
        os.replace(old, out)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def fresh_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it replaces `path` when the block ends without an error, else it is deleted.

    It has the same ending, which some writers depend on. A link stays and its target is replaced; a device or a pipe is
    written to directly.

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
    """Turns errors of PyTorch and safetensors about a full disk into an OSError. Raises OSError: the file could not be
    written; the message names `out`."""
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
    """Raises a ValueError for a value of another type than a dataclass declares, with the name of its field. A whole
    number is a valid float, a list a valid tuple."""
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        try:
            type_validator(field.name, value, _as_read(hint))
        except TypeError as error:
            declared = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
            expected = re.sub(r"(collections\.abc|typing)\.", "", declared)
            raise ValueError(f"{field.name}: expected {expected}; got {value!r}") from error


def _as_read(hint: Any) -> Any:
    """The type from YAML and JSON for a declared type `hint`."""
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
    """One line for an error in a request, a file or a disk; None for a bug. This package raises ValueError and OSError
    for them. The other types are those of libraries for damaged files."""
    from huggingface_hub.errors import StrictDataclassError

    kinds = (ValueError, OSError, SafetensorError, StrictDataclassError, zipfile.BadZipFile, pickle.UnpicklingError)
    return (" ".join(str(error).split()) or type(error).__name__) if isinstance(error, kinds) else None


def run_module(main: Callable[[], object]) -> None:
    """Runs the `main` of a `python -m` module: exit code 2 and one line for a user's mistake."""
    try:
        main()
    except Exception as error:
        message = fault_of_input(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2) from None
