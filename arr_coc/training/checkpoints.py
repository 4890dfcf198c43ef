"""Complete checkpoints: a run never resumes from a partly written or damaged one.

A checkpoint is a folder, of transformers' Trainer or of the loop of other stages. Trainer writes it in place, file by
file, and deletes old ones in no particular order. So its last file is a list of all files and their digests, moved into
place in one step: a folder counts only if it has the list and all of its files, unchanged.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from ..files import fresh_folder, read_json, write_json

logger = logging.get_logger(__name__)

COMPLETE = "complete.json"  # the list: {path relative to the checkpoint: SHA-256 of the file}


def mark_complete(folder: Path) -> None:
    """Declares a folder complete by a list in it; its files are on the disk before the list is."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / COMPLETE:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
                digests[path.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    write_json(folder / COMPLETE, digests)


def damage(folder: Path) -> str | None:
    """A problem of a folder; None if every file is as it was when the folder was declared complete."""
    if not (folder / COMPLETE).is_file():
        return f"no {COMPLETE}"
    try:
        digests = read_json(folder / COMPLETE)
    except (OSError, ValueError):
        return f"a damaged {COMPLETE}"
    for name, digest in digests.items():
        try:
            with (folder / name).open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                    return f"another {name} than was written"
        except OSError:
            return f"no {name} that can be read"
    return None


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
    return next((path for path in reversed(checkpoints(folder)) if damage(path) is None), None)


def discard_incomplete(folder: Path) -> None:
    """Deletes parts of checkpoints that a killed run left, and reports other damage. Raises ValueError: all checkpoints
    are damaged; nothing is deleted."""
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


STATE = "state.pt"  # the file of a checkpoint that `save_state` wrote


def save_state(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Writes `state` (tensors, numbers, strings) as the checkpoint of a step; the one before it is kept too. Raises
    OSError: it cannot be written; the checkpoints that exist stay."""
    folder.mkdir(parents=True, exist_ok=True)
    with fresh_folder(folder.absolute() / f"{PREFIX_CHECKPOINT_DIR}-{step}", force=True) as beside:
        torch.save({**state, "step": step}, beside / STATE)
        mark_complete(beside)
    for old in checkpoints(folder)[:-2]:
        shutil.rmtree(old)


def load_state(folder: Path) -> dict[str, Any] | None:
    """The state of the newest whole checkpoint and its "step"; None if the run has not started.

    Only tensors and plain types are read.

    Raises:
        ValueError: there are checkpoints, and all are damaged.
    """
    discard_incomplete(folder)
    newest = newest_complete(folder)
    return None if newest is None else torch.load(newest / STATE, map_location="cpu", weights_only=True)
