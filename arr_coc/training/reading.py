"""Stage 1: the grid encoder alone learns to read. Under each patch: which characters have their centre in it?

Pages dense with text give every patch a target, so a small encoder learns letters from tens of thousands of crops
instead of millions of answers. Crops are a part of the page's side (the position table is resized), which costs less
per patch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from arr_coc.data import CHARSET, Split, glyph_targets, render_dense_page, render_document
from arr_coc.modeling.configuration_arr_coc import ArrCocVisionConfig
from arr_coc.modeling.encoding import GridEncoder
from arr_coc.training.checkpointing import load_state
from arr_coc.training.loop import Loop, adamw
from arr_coc.training.streaming import per_step, prefetched

SLOTS = 3
"""Characters named per patch, left to right: the narrowest letters are about a third of a patch wide."""
EVALUATED_BATCHES = 6
"""Batches of held-out crops that a measurement reads."""


@dataclass(frozen=True)
class ReadingStage:
    """Settings of the stage.

    Attributes:
        steps: optimiser steps.
        batch_size: crops per step.
        crop: side of a crop as a share of the page's side (1 or 0.5).
        documents: share of pages that are documents of the domain, not dense text.
        learning_rate, weight_decay, warmup: AdamW; warm-up in steps.
        evaluate_every: steps between measurements and checkpoints.
        evaluate_split: what is measured on: "test" has held-out fonts and layouts.
    """

    steps: int = 6000
    batch_size: int = 32
    crop: float = 0.5
    documents: float = 0.25
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    warmup: int = 200
    evaluate_every: int = 250
    evaluate_split: Split = "test"
    seed: int = 0
    workers: int = 1


class ReadingHead(nn.Module):
    """Names the characters of a patch: features [B, C, G, G] -> logits [B, G, G, SLOTS, 1 + characters]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, SLOTS * (1 + len(CHARSET)))

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features.permute(0, 2, 3, 1)).unflatten(-1, (SLOTS, -1))


def reading_loss(logits: Tensor, targets: Tensor, none_weight: float = 0.3) -> Tensor:
    """Cross-entropy over all slots; "none" (class 0), which most slots are, weighs less."""
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[0] = none_weight
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), weight=weight)


def pixels(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [3, H, W] in -1..1: what the image processor does with its default mean and std."""
    return image.astype(np.float32).transpose(2, 0, 1) / 127.5 - 1


class ReadingPages(IterableDataset):
    """Endless batches of crops and targets; a function of (seed, split, step)."""

    def __init__(
        self, stage: ReadingStage, config: ArrCocVisionConfig, *, split: Split, start: int = 0, held_out: bool = False
    ) -> None:
        self.stage, self.split, self.start = stage, split, start
        self.purpose = 1 if held_out else 0  # pages that are measured on never come up in training, whatever the split
        self.size, self.grid = config.image_size, config.grid_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return per_step(self.batch, self.start)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Pixels [crops, 3, s, s] and targets [crops, s / patch, s / patch, SLOTS] of one step."""
        rng = np.random.default_rng((self.stage.seed, self.purpose, step))
        parts = round(1 / self.stage.crop)
        images, targets = [], []
        for _ in range(-(-self.stage.batch_size // parts**2)):
            render = render_document if rng.random() < self.stage.documents else render_dense_page
            document = render(rng, size=self.size, split=self.split)
            images += [pixels(crop) for crop in _crops(np.asarray(document.image.convert("RGB")), parts)]
            targets += _crops(glyph_targets(document.glyphs, size=self.size, grid=self.grid, slots=SLOTS), parts)
        kept = slice(self.stage.batch_size)
        return torch.from_numpy(np.stack(images[kept])), torch.from_numpy(np.stack(targets[kept]))


def _crops(page: np.ndarray, parts: int) -> list[np.ndarray]:
    """[H, W, ...] -> `parts` x `parts` equal pieces, row by row."""
    return [piece for row in np.split(page, parts, axis=0) for piece in np.split(row, parts, axis=1)]


@torch.no_grad()
def reading_accuracy(encoder: nn.Module, head: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Share of right names among the slots that hold a character, and of patches of text with every slot right."""
    slots = right = patches = perfect = 0
    for image, targets in batches:
        named = head(encoder(image)).argmax(-1)
        filled = targets > 0
        slots += int(filled.sum())
        right += int(((named == targets) & filled).sum())
        text = filled.any(-1)
        patches += int(text.sum())
        perfect += int(((named == targets).all(-1) & text).sum())
    return {"characters": right / max(1, slots), "patches": perfect / max(1, patches)}


def train_reading(config: ArrCocVisionConfig, stage: ReadingStage, out: Path, start: Path | None = None) -> None:
    """Runs (or resumes) the stage; its result is the checkpoint `out/reading.pt`.

    Args:
        config: the encoder's sizes.
        stage: settings.
        out: folder of the checkpoint.
        start: `reading.pt` of an earlier stage to begin with, or None.
    """
    torch.manual_seed(stage.seed)
    encoder, head = GridEncoder(config), ReadingHead(config.out_channels)
    both = nn.ModuleDict({"encoder": encoder, "head": head}).to(memory_format=torch.channels_last)
    optimizer = adamw([(list(both.parameters()), stage.learning_rate)], stage.weight_decay)
    loop = Loop("reading", both, optimizer, out / "reading.pt", stage.steps, stage.warmup, stage.evaluate_every)
    first = loop.resume()
    if first is None and start is not None:
        both.load_state_dict((load_state(start) or {})["weights"])
    first = first or 0
    held_out = ReadingPages(stage, config, split=stage.evaluate_split, held_out=True)
    test = [held_out.batch(step) for step in range(EVALUATED_BATCHES)]
    pages = ReadingPages(stage, config, split="train", start=first)
    loader = prefetched(pages, stage.workers)

    def losses(step: int) -> dict[str, Tensor]:
        image, targets = next(loader)
        return {"loss": reading_loss(head(encoder(image.contiguous(memory_format=torch.channels_last))), targets)}

    def evaluate() -> str:
        score = reading_accuracy(encoder, head, test)
        return f"characters {score['characters']:.3f}, patches {score['patches']:.3f}"

    loop.run(first, losses, evaluate)
