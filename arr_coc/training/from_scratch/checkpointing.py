"""Checkpoints of a run: written beside and renamed, so a killed run never leaves half a file where a whole one was.

A trained model's folder can be gone on from too: `LEARNER` beside its weights holds what only training uses.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LEARNER = "learner.safetensors"
"""Heads on patches and base tokens, and the perfect tokens' language: no part of the model, but needed to train on."""


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` (tensors, numbers, strings) to `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(path.suffix + ".tmp")
    torch.save(state, beside)
    os.replace(beside, path)


def load_state(path: Path) -> dict[str, Any] | None:
    """The state at `path`, or None where the run has not started. Only tensors and plain types are read."""
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None


def load_learner(folder: Path) -> dict[str, Mapping[str, Tensor]]:
    """What only training uses of a trained model's folder, see `Run.learner`.

    Raises:
        ValueError: the folder holds nothing of that kind.
    """
    if not (folder / LEARNER).is_file():
        raise ValueError(f"start: expected a trained model's folder with {LEARNER}; got {folder} without {LEARNER}")
    states: dict[str, dict[str, Tensor]] = {}
    for name, weight in load_file(folder / LEARNER).items():
        part, _, rest = name.partition(".")
        states.setdefault(part, {})[rest] = weight
    return dict(states)


def save_learner(states: Mapping[str, Mapping[str, Tensor]], folder: Path) -> None:
    """Writes a run's `learner` to the model's folder; names in the file are `part.name`."""
    weights = {f"{part}.{name}": weight for part, state in states.items() for name, weight in state.items()}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / LEARNER)
