"""Checkpoints of a run: written beside and renamed, so a killed run never leaves half a file where a whole one was."""

import os
from pathlib import Path
from typing import Any

import torch


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` (tensors, numbers, strings) to `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(path.suffix + ".tmp")
    torch.save(state, beside)
    os.replace(beside, path)


def load_state(path: Path) -> dict[str, Any] | None:
    """The state at `path`, or None where the run has not started. Only tensors and plain types are read."""
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None
