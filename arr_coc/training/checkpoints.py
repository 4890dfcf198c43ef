"""Complete checkpoints: a run never resumes from a partly written or damaged one.

There are two kinds. transformers' Trainer writes a folder in place, file by file, and deletes old ones in no particular
order. So its last file is a list of all files and their digests, moved into place in one step: a folder counts only if
it has the list and all of its files, unchanged.

The loop of the stages from scratch writes one file beside its place and renames it; it also keeps the one before. A
file is an archive with a checksum of each part, so damage on the disk is detected.
"""

import hashlib
import os
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from ..files import disk_faults, read_json, write_json

logger = logging.get_logger(__name__)

COMPLETE = "complete.json"
"""The list: {path relative to the checkpoint: SHA-256 of the file}."""


def mark_complete(folder: Path, listed: Path | None = None) -> None:
    """Declares a folder complete, by a list in it or at `listed`; its files are on the disk before the list is."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / COMPLETE:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
                digests[path.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    write_json(folder / COMPLETE if listed is None else listed, digests)


def damage(folder: Path, listed: Path | None = None) -> str | None:
    """A problem of a folder; None if every file is as it was when the folder was declared complete.

    The arguments are those of `mark_complete`.
    """
    listed = folder / COMPLETE if listed is None else listed
    if not listed.is_file():
        return f"no {listed.name}"
    try:
        digests = read_json(listed)
    except (OSError, ValueError):
        return f"a damaged {listed.name}"
    for name, digest in digests.items():
        try:
            with (folder / name).open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                    return f"another {name} than was written"
        except OSError:
            return f"no {name} that can be read"
    return None


def is_complete(folder: Path) -> bool:
    """Whether all files of the complete checkpoint are there, byte for byte."""
    return damage(folder) is None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a run's folder, complete or not, by step."""
    by_step = {}
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if path.is_dir() and step.isdecimal():
            by_step[int(step)] = path
    return [by_step[step] for step in sorted(by_step)]


def newest_complete(folder: Path) -> Path | None:
    """The newest complete checkpoint in a run's folder, or None."""
    return next((path for path in reversed(checkpoints(folder)) if is_complete(path)), None)


def discard_incomplete(folder: Path) -> None:
    """Deletes parts of checkpoints that a killed run left, and reports other damage.

    Raises:
        ValueError: all checkpoints are damaged; nothing is deleted.
    """
    there = checkpoints(folder)
    faults = {path: fault for path in there if (fault := damage(path)) is not None}
    written = {path: fault for path, fault in faults.items() if (path / COMPLETE).exists()}
    if written and len(faults) == len(there):
        path, fault = next(reversed(written.items()))
        raise ValueError(f"{path}: expected a whole checkpoint (to begin anew, remove the damaged ones); got {fault}")
    for path, fault in faults.items():
        if path in written:
            logger.warning(f"{path}: expected a whole checkpoint; got {fault}: going on from another one")
        shutil.rmtree(path)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` (tensors, numbers, strings) to `path` in one step; the file that was there becomes the `older`
    one.

    Raises:
        OSError: it cannot be written; the existing file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(path.suffix + ".tmp")
    try:
        with disk_faults(path):
            torch.save(state, beside)
        if path.exists():
            os.replace(path, older(path))
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def load_state(path: Path) -> dict[str, Any] | None:
    """The state at `path`, or the `older` one if that is damaged; None if the run has not started.

    Only tensors and plain types are read.

    Raises:
        ValueError: there are checkpoints, and all are damaged.
    """
    there = [file for file in (path, older(path)) if file.exists()]
    for file in there:
        try:
            check_archive(file)
            state = torch.load(file, map_location="cpu", weights_only=True)
        except (ValueError, OSError, RuntimeError, UnpicklingError, EOFError, KeyError) as error:
            logger.warning(f"{file}: expected a whole checkpoint; got {_line(error)}")
            continue
        if isinstance(state, dict):
            if file != path:
                logger.warning(f"{path}: going on from the older checkpoint, {file.name}")
            return state
        logger.warning(f"{file}: expected a checkpoint; got {type(state).__name__}")
    if there:
        expected = "a whole checkpoint (to begin anew, remove the damaged ones)"
        raise ValueError(f"{path}: expected {expected}; got {len(there)} damaged")
    return None


def older(path: Path) -> Path:
    """The place of the checkpoint before the newest."""
    return path.with_name(f"{path.stem}.older{path.suffix}")


def check_archive(path: Path) -> None:
    """Compares every part of a file from torch.save with its checksum.

    Raises:
        ValueError: the file is not such an archive, or a part of it is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, struct.error) as error:
        raise ValueError(f"no archive ({_line(error)})") from error
    if damaged is not None:
        raise ValueError(f"one whose {damaged} is not as it was written")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
