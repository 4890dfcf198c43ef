"""Training an adapter instead of the model: one phase, with LoRA beside the parts that it would train."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import PartialState

from ..adapters import adapt
from ..files import fresh_folder, sole_writer
from ..loading import refused
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.processing_arr_coc import ArrCocProcessor
from .phases import Phase, train_phase
from .recipe import Recipe, tell_changes

ADAPTER = "adapter"
"""Folder, in a run's own, of the adapter."""


def train_adapter(recipe: Recipe, out: Path, device: torch.device | str = "cpu", *, rank: int = 8) -> Path:
    """Runs a recipe's one phase on an adapter, or goes on with a run that was killed; the model stays as it is.

    Args:
        recipe: of one phase, which begins with a trained model (`start`).
        out: folder for checkpoints and for the adapter.
        device: where to train.
        rank: of LoRA.

    Returns:
        The adapter's folder, for `PeftModel.from_pretrained`.

    Raises:
        ValueError: another recipe, a phase whose parts have no linear layers, or `out` in another process's hands.
    """
    main = PartialState(cpu=torch.device(device).type == "cpu").is_main_process
    with sole_writer(out) if main else nullcontext():
        trained = _train_adapter(recipe, out, torch.device(device), rank)
        if main:
            with fresh_folder((out / ADAPTER).absolute(), force=True) as beside:
                for path in (*trained.glob("adapter_*"), *trained.glob("README.md")):
                    shutil.copyfile(path, beside / path.name)
    return out / ADAPTER


def _train_adapter(recipe: Recipe, out: Path, device: torch.device, rank: int) -> Path:
    """Runs the phase; returns the folder that it made."""
    phase = recipe.stages[0]
    if len(recipe.stages) != 1 or not isinstance(phase, Phase) or recipe.start is None:
        stages = ", ".join(type(stage).__name__ for stage in recipe.stages)
        raise ValueError(f"adapter: expected a recipe with a start and one phase; got {recipe.start} and {stages}")
    if recipe.averaged:
        raise ValueError(f"adapter: expected a recipe that averages no weights; got averaged: {recipe.averaged}")
    with refused(str(recipe.start)):
        model = ArrCocForConditionalGeneration.from_pretrained(recipe.start)
        processor = ArrCocProcessor.from_pretrained(recipe.start)
    if PartialState().is_main_process:
        tell_changes(phase, out / "stage0.json")
    torch.manual_seed(recipe.seed)
    adapted = adapt(model, phase.trained, r=rank)
    return train_phase(adapted, processor, phase, out / "stage0", device=device, root=recipe.root)
