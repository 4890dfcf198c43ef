"""Checkpoints of a run: written beside and renamed, so a killed run never leaves half a file where a whole one was.

A trained model's folder can be gone on from too: `LEARNER` beside its weights holds what only training uses.
"""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LEARNER = "learner.safetensors"
"""The reading stage's head and the perfect tokens' language: no part of the model, but needed to train it further."""
_MODEL = "model."  # how a learner calls the model, whose own files leave it out


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` (tensors, numbers, strings) to `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(path.suffix + ".tmp")
    torch.save(state, beside)
    os.replace(beside, path)


def load_state(path: Path) -> dict[str, Any] | None:
    """The state at `path`, or None where the run has not started. Only tensors and plain types are read."""
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None


def load_weights(path: Path) -> dict[str, Tensor]:
    """Weights of a stage's checkpoint, or of a trained model's folder with its `LEARNER`.

    Raises:
        ValueError: there are none.
    """
    if not path.is_dir():
        state = load_state(path)
        if state is None:
            raise ValueError(f"start: expected a checkpoint or a trained model's folder; got {path}, where nothing is")
        return state["weights"]
    files = [path / "model.safetensors", path / LEARNER]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"start: expected a trained model's folder; got {path} without {', '.join(missing)}")
    return {_MODEL + name: weight for name, weight in load_file(files[0]).items()} | load_file(files[1])


def save_learner(weights: dict[str, Tensor], folder: Path) -> None:
    """Writes what is not the model's of a learner's weights to the model's folder."""
    kept = {name: weight.contiguous() for name, weight in weights.items() if not name.startswith(_MODEL)}
    save_file(kept, folder / LEARNER)


def part_of(weights: dict[str, Tensor], *prefixes: str) -> dict[str, Tensor]:
    """The weights under the first prefix that any have, without it."""
    for prefix in prefixes:
        found = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
        if found:
            return found
    return {}
