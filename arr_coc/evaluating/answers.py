"""Asking an arm: encode images once at the arm's size, let it choose its patches, decode greedily.

Notation: G side of the fine grid, K saccades. Positions are (y, x).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data.images import HeldImage, opened
from ..data.records import Record
from ..modeling.allocators import best
from ..modeling.asker import Answer
from ..modeling.fetcher import FetchChoices
from ..modeling.image_loading import load_image
from ..modeling.image_processing_arr_coc import boxes_to_patches, map_boxes
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.vision_tower import ImageEncoding
from .arms import Arm
from .peers import PEERS, Kept, choose, merged


def load_images(model: ArrCocForConditionalGeneration, images: Sequence[Path | HeldImage]) -> list[Image.Image]:
    """The images as the processor takes them."""
    limit = model.processor.image_processor.max_image_pixels
    return [load_image(opened(image), max_image_pixels=limit) for image in images]


@torch.no_grad()
def encode(
    model: ArrCocForConditionalGeneration, images: Sequence[Image.Image], side: int, *, prefill: bool = True
) -> ImageEncoding:
    """`encode_image` of images fitted into a square of `side` px.

    Args:
        model: with a processor.
        images: from `load_images`.
        side: px, a multiple of 4 patches.
        prefill: keep the language model's reading of the base tokens too, for several questions.
    """
    size = {"height": side, "width": side}
    inputs = model.processor.image_processor(list(images), size=size, return_tensors="pt")
    pixels, mask = inputs["pixel_values"].to(model.device), inputs["patch_mask"].to(model.device)
    encoder: Any = model if prefill else model.model
    encoding = encoder.encode_image(pixel_values=pixels, patch_mask=mask)
    return replace(encoding, source_sizes=[(image.height, image.width) for image in images])


def ask(
    model: ArrCocForConditionalGeneration,
    arm: Arm,
    records: Sequence[Record],
    encoding: ImageEncoding,
    *,
    seed: int | None = None,
    choices: "PeerChoices | None" = None,
    **settings: Any,
) -> list[Answer]:
    """The arm's answers, greedily decoded; `encoding` holds one image per record, at the arm's side.

    What is drawn for an item depends on its pixels, its question and `seed`, never on the batch: a run that was
    interrupted goes on as if it had not been. `choices`: shared by peers that are asked the same.
    """
    encoding, fetching = _choose(model, arm, records, encoding, choices or PeerChoices(model, [arm]))
    fetching = replace(
        fetching, seed=seed, overlap=arm.overlap or None, bypass=arm.bypass or None, num_passes=arm.passes
    )
    questions, history = [record.question for record in records], [record.history for record in records]
    return model.generate(
        encoding, questions, choices=fetching, history=history, return_fetch=True, do_sample=False, **settings
    )


class PeerChoices:
    """What the peers among `arms` keep for a few questions: the first one to ask has it chosen for all of them.

    Args:
        model: with a processor.
        arms: of an experiment.
    """

    def __init__(self, model: ArrCocForConditionalGeneration, arms: Sequence[Arm]) -> None:
        self.model = model
        self.wanted = {arm.name: (PEERS[arm.rule], arm.budget) for arm in arms if arm.rule in PEERS}
        self._kept: dict[tuple[Path | HeldImage, str], dict[str, Kept]] = {}

    def of(self, arm: Arm, records: Sequence[Record], encoding: ImageEncoding) -> list[Kept]:
        """What `arm` keeps for each record; `encoding` holds one image per record."""
        asked = [(record.image, record.question) for record in records]
        for number, key in enumerate(asked):
            if key not in self._kept:
                image = encoding.select(torch.tensor([number]))
                choices = choose(self.model, list(self.wanted.values()), image, key[1])
                self._kept[key] = dict(zip(self.wanted, choices, strict=True))
        return [self._kept[key][arm.name] for key in asked]


def _choose(
    model: ArrCocForConditionalGeneration,
    arm: Arm,
    records: Sequence[Record],
    encoding: ImageEncoding,
    choices: PeerChoices,
) -> tuple[ImageEncoding, FetchChoices]:
    """The encodings, changed where a peer merges, and how the arm fetches from them."""
    fetching = FetchChoices(strategy=arm.strategy, allocator=arm.allocator, budget=arm.budget)
    if arm.rule == "uniform":
        return encoding, replace(fetching, patches=_filled(encoding, _lattices(encoding, arm.budget), arm.budget))
    if arm.rule in PEERS:
        kept_patches = choices.of(arm, records, encoding)
        patches = _filled(encoding, [choice.patches.tolist() for choice in kept_patches], arm.budget)
        return merged(encoding, kept_patches), replace(fetching, patches=patches)
    if arm.strategy == "oracle":
        return encoding, replace(fetching, relevance=_boxed(model, records, encoding))
    return encoding, fetching


def _boxed(model: ArrCocForConditionalGeneration, records: Sequence[Record], encoding: ImageEncoding) -> Tensor:
    """[I, N] 1 on the patches under the boxes of each record's answer and its label."""
    assert encoding.source_sizes is not None, "the images were given as files"
    rows, patch = [], model.config.vision_config.patch_size
    for record, size in zip(records, encoding.source_sizes, strict=True):
        boxes = map_boxes([*record.boxes, *record.label_boxes], *size, encoding.side * patch)
        rows.append(torch.from_numpy(boxes_to_patches(boxes, encoding.side, patch)).flatten())
    return torch.stack(rows).float().to(encoding.tokens.device)


def _filled(encoding: ImageEncoding, patches: Sequence[Sequence[int]], budget: int) -> Tensor:
    """[I, K] the patches of each image; where they are fewer than K, the first others that hold some of it besides."""
    wanted = encoding.patch_mask.float()
    for row, chosen in zip(wanted, patches, strict=True):
        row[list(chosen)] = 2.0
    return best(wanted, budget)


def lattice(rows: int, columns: int, count: int) -> list[tuple[int, int]]:
    """`count` distinct cells (y, x), spread evenly over `rows` x `columns`; all of them where there are no more."""
    if count >= rows * columns:
        return [(y, x) for y in range(rows) for x in range(columns)]
    # As square as the area allows, no row fuller than it has cells.
    lines = min(rows, count, max(-(-count // columns), round((count * rows / columns) ** 0.5)))
    cells = []
    for line in range(lines):
        share = (line + 1) * count // lines - line * count // lines
        y = (2 * line + 1) * rows // (2 * lines)
        cells += [(y, (2 * i + 1) * columns // (2 * share)) for i in range(share)]
    return cells


def _lattices(encoding: ImageEncoding, count: int) -> list[list[int]]:
    """A `lattice` over the patches of each image that are no padding."""
    patches = []
    for real in encoding.patch_mask.view(-1, encoding.side, encoding.side).cpu().numpy():
        ys, xs = (np.flatnonzero(real.any(axis=axis)) for axis in (1, 0))
        cells = lattice(len(ys), len(xs), count)
        patches.append([int(ys[y]) * encoding.side + int(xs[x]) for y, x in cells])
    return patches


def question_room(model: ArrCocForConditionalGeneration, records: Sequence[Record], new_tokens: int) -> int | None:
    """Image tokens that the context holds beside the longest question and its answer; None: no limit is known."""
    limit = getattr(model.config.text_config, "max_position_embeddings", None)
    if limit is None:
        return None
    questions, history = [record.question for record in records], [record.history for record in records]
    prompts = model.processor.prompts(questions, images=[1] * len(questions), placeholders=1, history=history)
    return limit - prompts["input_ids"].shape[1] - new_tokens
