"""Checkpoints that are whole: a run killed at any moment never goes on from half of one.

transformers' Trainer writes a checkpoint in place, file by file, and deletes old ones in no particular order. So the
last thing written to a checkpoint is a list of its files and their sizes, moved into place in one step: a folder counts
only if it has that list and every file on it.
"""

import json
import os
import shutil
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

COMPLETE = "complete.json"
"""The list: {path relative to the checkpoint: bytes}."""


def mark_complete(folder: Path) -> None:
    """Declares that all of a checkpoint is written; its files are on the disk before the list is."""
    sizes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    beside = folder / f"{COMPLETE}.tmp"
    beside.write_text(json.dumps(sizes, indent=1), encoding="utf-8")
    os.replace(beside, folder / COMPLETE)


def is_complete(folder: Path) -> bool:
    """Whether every file is there that was there when the checkpoint was declared whole, at its full size."""
    try:
        sizes = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    paths = {folder / name: size for name, size in sizes.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


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
    """Deletes what a killed run left half written or half deleted."""
    for path in checkpoints(folder):
        if not is_complete(path):
            shutil.rmtree(path)
