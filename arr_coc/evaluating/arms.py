"""The arms of an experiment: one way each of turning an image and a question into the language model's tokens.

All arms use the same weights and answer the same questions. Notation: M base tokens, K saccades, N patches, G side of
the fine grid. Positions are (y, x).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..data.records import Record
from ..modeling.asking import Answer
from ..modeling.configuration_arr_coc import COMPRESSION, ArrCocConfig
from ..modeling.image_encoding import ImageEncoding
from ..modeling.image_processing_arr_coc import Box, fit_square, patches_of_placement
from ..modeling.loading import load_image
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.realizing import SCORERS

LADDER = ("none", "random", "saliency", "clip_query", "realizer")
BASELINES = {
    "uniform": "patches on a regular lattice, as many",
    "larger": "a larger image, base tokens only",
    "smaller": "a smaller image, all of its patches",
}
BOUNDS = {"oracle": "the patches under the known boxes", "keep_all": "all patches"}


@dataclass(frozen=True)
class Arm:
    """One way to fill the language model's prompt.

    Attributes:
        name: unique; that of the strategy, of `BASELINES` or of `BOUNDS`; STRATEGY@K with a budget of its own.
        role: "ladder", "baseline", "bound" or "ablation".
        strategy, budget, allocator: what `generate` is asked for; budget is K.
        side: px of the square that the image is fitted into.
        tokens: positions that the image takes in the prompt, M + K (and those of the layout).
        seeds: of random relevance; one run each. Other arms run once, with the config's own seed.
        note: for the report.
    """

    name: str
    role: str
    strategy: str
    budget: int
    allocator: str
    side: int
    tokens: int
    seeds: tuple[int, ...] = ()
    note: str = ""

    @property
    def runs(self) -> dict[str, int | None]:
        """Name and seed of each run."""
        return {f"{self.name}.{seed}": seed for seed in self.seeds} if self.seeds else {self.name: None}


def make_arms(
    config: ArrCocConfig,
    names: Sequence[str] | None = None,
    *,
    budget: int | str | None = None,
    allocator: str | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    room: int | None = None,
    boxed: bool = True,
) -> list[Arm]:
    """The arms called `names`, in that order.

    Args:
        config: of the model.
        names: strategies, `BASELINES`, `BOUNDS`, STRATEGY@K with K as for `budget` ("all": what the context holds);
            None: all but these last that this checkpoint and these records can run.
        budget: see `resolve_budget`; the config's by default.
        allocator: the config's by default.
        seeds: of "random".
        room: image tokens that the language model's context holds beside the longest question; None: any number.
        boxed: whether every record has boxes.

    Raises:
        ValueError: an unknown name, "oracle" without boxes, no arms.
    """
    if names is None:
        held = config.fetcher_config.scorers
        rungs = [name for name in LADDER if not SCORERS[name].trained or name in held]
        names = [*rungs, *BASELINES, *(name for name in BOUNDS if boxed or name != "oracle")]
    names = list(dict.fromkeys(names))
    known = [*SCORERS, *BASELINES, "keep_all"]
    plain = [name.partition("@")[0] for name in names]
    unknown = [name for name, of in zip(names, plain, strict=True) if of not in (SCORERS if "@" in name else known)]
    if unknown or not names:
        expected = f"names among {', '.join(known)}, or STRATEGY@BUDGET"
        raise ValueError(f"arms: expected {expected}; got {unknown or 'none'}")
    if "oracle" in plain and not boxed:
        raise ValueError('arms: expected boxes in every record for "oracle"; got records without')
    if "random" in plain and not seeds:
        raise ValueError('seeds: expected at least one for "random"; got none')
    make = _Maker(config, budget, config.fetcher_config.allocator if allocator is None else allocator, room)
    arms = [make.arm(name, tuple(seeds)) for name in names]
    return [arm for arm in arms if arm is not None]


class _Maker:
    """What the arms of one experiment share."""

    def __init__(self, config: ArrCocConfig, budget: int | str | None, allocator: str, room: int | None) -> None:
        self.config, self.allocator = config, allocator
        self.side = config.vision_config.image_size
        self.unit = COMPRESSION * config.vision_config.patch_size
        self.base, self.budget = config.vision_tokens(budget=budget, strategy="oracle")
        everything = sum(config.vision_tokens(budget="all", strategy="oracle"))
        self.most = everything if room is None else min(everything, room)

    def arm(self, name: str, seeds: tuple[int, ...]) -> Arm | None:
        """None where the baseline has no size of its own here: the budget takes nearly all patches."""
        if "@" in name:
            return self._ablation(name, seeds)
        tokens = self.base + self.budget
        plain = Arm(name, "ladder", name, self.budget, self.allocator, self.side, tokens)
        if name == "random":
            return replace(plain, seeds=seeds)
        if name in SCORERS and not SCORERS[name].fetches:
            return replace(plain, budget=0, tokens=self.base)
        if name == "uniform":
            return replace(plain, role="baseline", strategy="oracle", allocator="topk", note=BASELINES[name])
        if name == "larger":
            return self._resized(plain, "none", "fast", tokens)
        if name == "smaller":
            return self._resized(plain, "saliency", "all", tokens)
        if name == "oracle":
            return replace(plain, role="bound", note=BOUNDS[name])
        if name == "keep_all":
            budget = self.most - self.base
            patches = self.config.vision_config.num_patches
            cut = "" if budget >= patches else f"; the context holds {budget} of {patches}"
            strategy = self.config.fetcher_config.strategy
            strategy = strategy if SCORERS[strategy].fetches else "saliency"
            return replace(
                plain, role="bound", strategy=strategy, budget=budget, allocator="topk", tokens=self.most,
                note=BOUNDS[name] + cut,
            )  # fmt: skip
        return plain

    def _ablation(self, name: str, seeds: tuple[int, ...]) -> Arm:
        strategy, _, given = name.partition("@")
        _, budget = self.config.vision_tokens(budget=given, strategy=strategy)
        budget = min(budget, self.most - self.base)
        seeds = seeds if strategy == "random" else ()
        tokens = self.base + budget
        return Arm(name, "ablation", strategy, budget, self.allocator, self.side, tokens, seeds)

    def _resized(self, plain: Arm, strategy: str, budget: str, wanted: int) -> Arm | None:
        """The smallest image that gives at least `wanted` tokens: a baseline never gets fewer."""
        side = self.unit
        while sum(self.config.vision_tokens(side, budget, strategy=strategy)) < wanted:
            side += self.unit
        base, fetched = self.config.vision_tokens(side, budget, strategy=strategy)
        if side == self.side or base + fetched > self.most:
            return None
        note = f"{BASELINES[plain.name]}: {side} px; the weights were not trained at this size"
        return replace(
            plain, role="baseline", strategy=strategy, budget=fetched, allocator="topk", side=side,
            tokens=base + fetched, note=note,
        )  # fmt: skip


# ---- asking -------------------------------------------------------------------------------------------------------


def load_images(model: ArrCocForConditionalGeneration, paths: Sequence[Path]) -> list[Image.Image]:
    """The images as the processor takes them."""
    limit = model.processor.image_processor.max_image_pixels
    return [load_image(path, max_image_pixels=limit) for path in paths]


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
    **settings: Any,
) -> list[Answer]:
    """The arm's answers, greedily decoded; `encoding` holds one image per record, at the arm's side.

    What is drawn for an item depends on its pixels, its question and `seed`, never on the batch: a run that was
    interrupted goes on as if it had not been.
    """
    with _seeded(model, seed):
        return model.generate(
            encoding, [record.question for record in records], strategy=arm.strategy, budget=arm.budget,
            allocator=arm.allocator, boxes=_boxes(model, arm, records, encoding), return_fetch=True, do_sample=False,
            **settings,
        )  # fmt: skip


@contextmanager
def _seeded(model: ArrCocForConditionalGeneration, seed: int | None) -> Iterator[None]:
    config = model.config.fetcher_config
    before = config.seed
    config.seed = before if seed is None else seed
    try:
        yield
    finally:
        config.seed = before


def _boxes(
    model: ArrCocForConditionalGeneration, arm: Arm, records: Sequence[Record], encoding: ImageEncoding
) -> list[list[Box]] | None:
    if arm.strategy == "oracle" and arm.name != "uniform":
        return [[*record.boxes, *record.label_boxes] for record in records]
    if arm.name != "uniform":
        return None
    assert encoding.source_sizes is not None
    patch = model.config.vision_config.patch_size
    return [lattice_boxes(*size, encoding.side, patch, arm.budget) for size in encoding.source_sizes]


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


def lattice_boxes(height: int, width: int, side: int, patch_size: int, count: int) -> list[Box]:
    """`lattice` over the patches that hold some of a `height` x `width` px image, as points in px of that image.

    Args:
        height, width: px of the source image.
        side: G.
        patch_size: px of the square.
        count: patches wanted.
    """
    placed = fit_square(height, width, side * patch_size)
    real = patches_of_placement(placed, side, patch_size)
    ys, xs = (np.flatnonzero(real.any(axis=axis)) for axis in (1, 0))
    boxes = []
    for y, x in lattice(len(ys), len(xs), count):
        at_y = ((ys[y] + 0.5) * patch_size - placed.offset[0]) * height / placed.size[0]
        at_x = ((xs[x] + 0.5) * patch_size - placed.offset[1]) * width / placed.size[1]
        boxes.append((float(at_x), float(at_y), float(at_x), float(at_y)))
    return boxes


def question_room(model: ArrCocForConditionalGeneration, records: Sequence[Record], new_tokens: int) -> int | None:
    """Image tokens that the context holds beside the longest question and its answer; None: no limit is known."""
    limit = getattr(model.config.text_config, "max_position_embeddings", None)
    if limit is None:
        return None
    processor = model.processor
    messages: list[Any] = [
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": record.question}]}]
        for record in records
    ]
    texts = [processor.apply_chat_template(message, add_generation_prompt=True) for message in messages]
    longest = max(len(ids) for ids in processor.tokenizer(texts, add_special_tokens=False)["input_ids"])
    return limit - longest - new_tokens
