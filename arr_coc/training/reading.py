"""Stage 1: the grid encoder alone learns to read. Under each patch: which characters have their centre in it?

Pages dense with text give every patch a target, so a small encoder learns letters from tens of thousands of crops instead
of millions of answers. Crops are a part of the page's side (the position table is resized), which costs less per patch.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers.utils import logging

from arr_coc.data import CHARSET, Split, glyph_targets, render_dense_page, render_document
from arr_coc.modeling.configuration_arr_coc import ArrCocVisionConfig
from arr_coc.modeling.encoding import GridEncoder
from arr_coc.training.checkpointing import load_state, save_state
from arr_coc.training.schedules import warmup_cosine

logger = logging.get_logger(__name__)

SLOTS = 3
"""Characters named per patch, left to right: the narrowest letters are about a third of a patch wide."""


@dataclass(frozen=True)
class ReadingStage:
    """Settings of the stage.

    Attributes:
        steps: optimiser steps.
        batch_size: crops per step.
        crop: side of a crop as a share of the page's side (1 or 0.5).
        documents: share of pages that are documents of the domain, not dense text.
        learning_rate, weight_decay, warmup: AdamW; warm-up in steps.
        evaluate_every: steps between measurements on held-out fonts, and checkpoints.
    """

    steps: int = 6000
    batch_size: int = 32
    crop: float = 0.5
    documents: float = 0.25
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    warmup: int = 200
    evaluate_every: int = 250
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
    """Endless crops with their targets; a function of (seed, worker, position)."""

    def __init__(self, stage: ReadingStage, *, size: int, grid: int, split: Split, start: int = 0) -> None:
        self.stage, self.size, self.grid, self.split, self.start = stage, size, grid, split, start

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        parts = round(1 / self.stage.crop)
        page = self.start + worker
        while True:
            rng = np.random.default_rng((self.stage.seed, 0 if self.split == "train" else 1, page))
            render = render_document if rng.random() < self.stage.documents else render_dense_page
            document = render(rng, size=self.size, split=self.split)
            image = pixels(np.asarray(document.image.convert("RGB")))
            targets = glyph_targets(document.glyphs, size=self.size, grid=self.grid, slots=SLOTS)
            side, cells = self.size // parts, self.grid // parts
            for y in range(parts):
                for x in range(parts):
                    yield (
                        image[:, y * side : (y + 1) * side, x * side : (x + 1) * side].copy(),
                        targets[y * cells : (y + 1) * cells, x * cells : (x + 1) * cells].copy(),
                    )
            page += workers


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


def train_reading(config: ArrCocVisionConfig, stage: ReadingStage, out: Path, start: Path | None = None) -> dict[str, Tensor]:
    """Runs (or resumes) the stage and returns the grid encoder's state.

    Args:
        config: the encoder's sizes.
        stage: settings.
        out: folder for `reading.pt`, from which a killed run goes on.
        start: `reading.pt` of an earlier stage to begin with, or None.
    """
    torch.manual_seed(stage.seed)
    encoder, head = GridEncoder(config), ReadingHead(config.out_channels)
    both = nn.ModuleDict({"encoder": encoder, "head": head})
    both = both.to(memory_format=torch.channels_last)
    decay = [p for p in both.parameters() if p.ndim > 1]
    plain = [p for p in both.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": stage.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=stage.learning_rate, betas=(0.9, 0.98))
    path, first = out / "reading.pt", 0
    state = load_state(path)
    if state is not None:
        both.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    elif start is not None:
        both.load_state_dict((load_state(start) or {})["weights"])
    sizes = {"size": config.image_size, "grid": config.grid_size}
    held_out = iter(DataLoader(ReadingPages(stage, **sizes, split="test"), batch_size=stage.batch_size))
    test = [next(held_out) for _ in range(6)]
    pages = ReadingPages(stage, **sizes, split="train", start=first * stage.batch_size)
    loader = iter(DataLoader(pages, stage.batch_size, num_workers=stage.workers, prefetch_factor=8))
    began, total = time.monotonic(), 0.0
    for step in range(first, stage.steps):
        image, targets = next(loader)
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate * warmup_cosine(step, steps=stage.steps, warmup=stage.warmup)
        loss = reading_loss(head(encoder(image.contiguous(memory_format=torch.channels_last))), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(both.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
        if (step + 1) % stage.evaluate_every == 0 or step + 1 == stage.steps:
            speed = (step + 1 - first) * stage.batch_size / (time.monotonic() - began)
            score = reading_accuracy(encoder, head, test)
            logger.info(
                f"reading step {step + 1}: loss {total / stage.evaluate_every:.3f}, held-out fonts: "
                f"characters {score['characters']:.3f}, patches {score['patches']:.3f}; {speed:.0f} crops/s"
            )
            total = 0.0
            save_state(path, {"weights": both.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1})
    return encoder.state_dict()
