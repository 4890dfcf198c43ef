"""Checkpoints of a run: written beside and renamed, so a killed run never leaves half a file where a whole one was.

The one before the newest is kept too. A file is an archive that holds a checksum of each of its parts, so one that was
damaged on the disk is known for that, whatever its size.

A trained model's folder can be gone on from too: `LEARNER` beside its weights holds what only training uses.
"""

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import logging

from ...files import disk_faults

logger = logging.get_logger(__name__)

LEARNER = "learner.safetensors"
"""Heads on patches and base tokens, and the perfect tokens' language: no part of the model, but needed to train on."""


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` (tensors, numbers, strings) to `path` in one step; what was there becomes the `older` one.

    Raises:
        OSError: it cannot be written; what was there stays.
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
    """The state at `path`, or the `older` one where that is damaged; None where the run has not started.

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
    """Where the checkpoint goes that was at `path` before the newest."""
    return path.with_name(f"{path.stem}.older{path.suffix}")


def check_archive(path: Path) -> None:
    """Compares every part of a file that torch.save wrote with its checksum.

    Raises:
        ValueError: the file is no such archive, or a part of it is not as it was written.
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


def load_learner(folder: Path) -> dict[str, Mapping[str, Tensor]]:
    """What only training uses of a trained model's folder, see `Run.learner`.

    Raises:
        ValueError: the folder holds nothing of that kind, or a damaged one.
    """
    if not (folder / LEARNER).is_file():
        raise ValueError(f"start: expected a trained model's folder with {LEARNER}; got {folder} without {LEARNER}")
    states: dict[str, dict[str, Tensor]] = {}
    try:
        weights = load_file(folder / LEARNER)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{folder / LEARNER}: expected a whole safetensors file; got {_line(error)}") from error
    for name, weight in weights.items():
        part, _, rest = name.partition(".")
        states.setdefault(part, {})[rest] = weight
    return dict(states)


def save_learner(states: Mapping[str, Mapping[str, Tensor]], folder: Path) -> None:
    """Writes a run's `learner` to the model's folder; names in the file are `part.name`."""
    weights = {f"{part}.{name}": weight for part, state in states.items() for name, weight in state.items()}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / LEARNER)
