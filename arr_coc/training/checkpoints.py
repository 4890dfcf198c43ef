"""Checkpoints that are whole: a run never goes on from one that was half written, nor from one damaged since.

transformers' Trainer writes a checkpoint in place, file by file, and deletes old ones in no particular order. So the
last thing written to a checkpoint is a list of its files and their digests, moved into place in one step: a folder
counts only if it has that list and every file on it, as it was written.
"""

import hashlib
import os
import shutil
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from ..files import read_json, write_json

logger = logging.get_logger(__name__)

COMPLETE = "complete.json"
"""The list: {path relative to the checkpoint: SHA-256 of the file}."""


def mark_complete(folder: Path, listed: Path | None = None) -> None:
    """Declares that all of a folder is written; its files are on the disk before the list is.

    Args:
        folder: a checkpoint.
        listed: where the list goes, if not into the folder.
    """
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / COMPLETE:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
                digests[path.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    write_json(folder / COMPLETE if listed is None else listed, digests)


def damage(folder: Path, listed: Path | None = None) -> str | None:
    """What is wrong with a folder; None where every file is as it was when the folder was declared whole.

    Arguments as of `mark_complete`.
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
    """Whether every file is there that was there when the checkpoint was declared whole, byte for byte."""
    return damage(folder) is None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a run's folder, whole or not, by step."""
    by_step = {}
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if path.is_dir() and step.isdecimal():
            by_step[int(step)] = path
    return [by_step[step] for step in sorted(by_step)]


def newest_complete(folder: Path) -> Path | None:
    """The newest whole checkpoint in a run's folder, or None."""
    return next((path for path in reversed(checkpoints(folder)) if is_complete(path)), None)


def discard_incomplete(folder: Path) -> None:
    """Deletes what a killed run left half written or half deleted, and says what was damaged otherwise.

    Raises:
        ValueError: checkpoints were written, and every one of them is damaged now; nothing is deleted.
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
