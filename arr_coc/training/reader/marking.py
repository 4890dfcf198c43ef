"""Stage: the mark head learns which marks are drawn beside words, on the frozen stem's features.

Notation: B crops, s their side, px, r = s / half a patch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.modeling.image_processing_arr_coc import Box, map_boxes
from arr_coc.modeling.marks import MARKS
from arr_coc.pages.splits import Split

from ..stages import STAGES, Batches, Run, ScratchStage, Task
from .pages import Sources, square
from .targets import pixels

IGNORED = -1
"""The target of half patches that may be taken for a mark."""
EVEN = 12.0
"""Half patches of a mark, of which a smaller one has the weight."""
EVALUATED = 24
"""Held-out pages of each source that a measurement reads."""
_NUMBERS = {"": IGNORED, **{name: number for number, name in enumerate(MARKS, 1)}}


def mark_targets(marks: Sequence[tuple[str, Box]], side: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes and weights [side, side] of half patches, from marks with boxes in half patches.

    A mark has the half patches whose middle it covers, or the one at its own middle.
    """
    classes, weights = np.zeros((side, side), np.int64), np.ones((side, side), np.float32)
    for name, (x0, y0, x1, y1) in marks:
        spans = []
        for low, high in ((y0, y1), (x0, x1)):
            first, last = int(np.ceil(low - 0.5)), int(np.ceil(high - 0.5))
            spans.append((first, last) if last > first else (int((low + high) / 2), int((low + high) / 2) + 1))
        rows, columns = (slice(max(0, first), max(0, last)) for first, last in spans)
        classes[rows, columns] = _NUMBERS[name]
        weights[rows, columns] = max(1.0, EVEN / max(1, classes[rows, columns].size))
    return classes, weights


@STAGES.register("marks")
@dataclass(frozen=True)
class MarksStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        pages: how often each source of drawn pages comes up, see `Sources`; those of ordinary pages teach what is none.
        worn: share of worn pages.
        batch_size: crops per step, each of another page.
        side: of a crop, px.
    """

    name: ClassVar[str] = "marks"
    leaves_whole: ClassVar[bool] = False

    pages: Mapping[str, float] = field(default_factory=lambda: {"generated: marked page": 0.6, "generated": 0.4})
    worn: float = 0.25
    batch_size: int = 6
    side: int = 384
    learning_rate: float = 3e-3
    warmup: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("worn")
        self.check_counts("batch_size", "side")

    def task(self, run: Run) -> "Marking":
        return Marking(self, run)


@dataclass(frozen=True)
class MarkedPixels:
    """Pixels [B, 3, s, s] in -1..1, and the classes and weights [B, r, r] of half patches; marks of each page."""

    pixels: Tensor
    classes: Tensor
    weights: Tensor
    marks: tuple[tuple[tuple[str, Box], ...], ...]


@dataclass(eq=False)
class MarkedCrops(Batches[MarkedPixels]):
    """Endless batches of crops about a mark, or anywhere on pages without; a function of (seed, step).

    Attributes:
        whole: side of the square of a page, px; `half` that of half a patch. `side`: of a crop; `count` of them.
    """

    sources: Sources
    seed: tuple[int, ...]
    whole: int
    half: int
    side: int
    count: int
    start: int = 0

    def batch(self, step: int) -> MarkedPixels:
        rng = np.random.default_rng((*self.seed, step))
        crops = [self._crop(rng) for _ in range(self.count)]
        pictures, classes, weights, marks = zip(*crops, strict=True)
        stacked = [torch.from_numpy(np.stack(each)) for each in (pictures, classes, weights)]
        return MarkedPixels(*stacked, marks)

    def _crop(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[tuple[str, Box], ...]]:
        page = self.sources.page(rng)
        assert page.image is not None, "the stage checks it"
        wide, tall = page.size
        boxes = map_boxes([box for _, box in page.marks], tall, wide, self.whole)
        marks = [(name, tuple(np.array(box) / self.half)) for (name, _), box in zip(page.marks, boxes, strict=True)]
        picture, cells = pixels(square(page.image, self.whole)), self.side // self.half
        most = self.whole // self.half - cells
        corner = [int(rng.integers(most + 1)) for _ in range(2)]
        if marks:
            x0, y0, x1, y1 = marks[int(rng.integers(len(marks)))][1]
            middles = ((y0 + y1) / 2, (x0 + x1) / 2)
            corner = [int(np.clip(middle - rng.uniform(0.1, 0.9) * cells, 0, most)) for middle in middles]
        classes, weights = mark_targets(marks, self.whole // self.half)
        cut = tuple(slice(at, at + cells) for at in corner)
        rows, columns = (slice(at * self.half, (at + cells) * self.half) for at in corner)
        return picture[:, rows, columns], classes[cut], weights[cut], tuple(marks)


class Marking(Task):
    """The mark head."""

    stage: MarksStage

    def __init__(self, stage: MarksStage, run: Run) -> None:
        self.stage, self.device, self.root = stage, run.device, run.root
        self.tower, config = run.model.model.vision_tower, run.model.config.vision_config
        if self.tower.text_reader is None or self.tower.text_reader.mark_head is None:
            raise ValueError(
                "vision_config.marks: expected true, of a model that reads text; got a model without mark head"
            )
        self.whole, self.half = config.image_size, config.patch_size // 2
        self.module = self.head = self.tower.text_reader.mark_head.float()

    def _crops(self, shares: Mapping[str, float], split: Split, side: int, count: int, start: int = 0) -> MarkedCrops:
        sources = Sources(shares, split, None, self.stage.worn)
        return MarkedCrops(sources, (self.stage.seed, split != "train"), self.whole, self.half, side, count, start)

    def pages(self, start: int) -> MarkedCrops:
        return self._crops(self.stage.pages, "train", self.stage.side, self.stage.batch_size, start)

    def _stem(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.tower.stem(images.to(self.device))

    def losses(self, step: int, batch: MarkedPixels) -> dict[str, Tensor]:
        logits = self.head(self._stem(batch.pixels).float(), batch.pixels.to(self.device)).float()
        classes, weights = batch.classes.to(self.device), batch.weights.to(self.device)
        losses = F.cross_entropy(logits, classes, ignore_index=IGNORED, reduction="none")
        return {"loss": (losses * weights).sum() / weights.sum()}

    @cached_property
    def _unseen(self) -> dict[str, list[tuple[Tensor, Tensor, tuple[tuple[str, Box], ...]]]]:
        """Stem features, pixels and marks of held-out pages by source."""
        unseen = {}
        for name in self.stage.pages:
            crops = self._crops({name: 1.0}, "validation", self.whole, 1)
            batches = [crops.batch(number) for number in range(EVALUATED)]
            unseen[name] = [
                (self._stem(each.pixels).bfloat16(), each.pixels.bfloat16(), each.marks[0]) for each in batches
            ]
        return unseen

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Recall and precision of marks by source and name, and of all names, and wrong ones a page."""
        self.head.eval()
        scores: dict[str, float] = {}
        for source, pages in self._unseen.items():
            right, there, wrong = (dict.fromkeys(MARKS, 0) for _ in range(3))
            for stem, images, marks in pages:
                found = self.head.marks(stem.float(), images.float())[0]
                for name, box in found:
                    wrong[name] += not any(other in ("", name) and _meet(box, at) for other, at in marks)
                for name, box in marks:
                    if name:
                        there[name] += 1
                        right[name] += any(other == name and _meet(box, at) for other, at in found)
            for name in MARKS:
                if there[name]:
                    scores[f"{source}: recall {name}"] = right[name] / there[name]
                    scores[f"{source}: precision {name}"] = right[name] / max(1, right[name] + wrong[name])
            scores[f"{source}: recall"] = sum(right.values()) / max(1, sum(there.values()))
            scores[f"{source}: wrong ones a page"] = sum(wrong.values()) / len(pages)
        self.head.train()
        return scores


def _meet(one: Box, other: Box) -> bool:
    """Whether the middle of one box lies in the other."""
    x, y = (one[0] + one[2]) / 2, (one[1] + one[3]) / 2
    u, v = (other[0] + other[2]) / 2, (other[1] + other[3]) / 2
    within = other[0] <= x <= other[2] and other[1] <= y <= other[3]
    return within or (one[0] <= u <= one[2] and one[1] <= v <= one[3])
