"""Stage: the mark head learns which marks are drawn beside words, from the frozen stem's features of the last pages.

Notation: S side of a page's square, px, R half rows and half columns of patches, C channels of the stem.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.modeling.image_processing_arr_coc import Box, map_boxes
from arr_coc.modeling.marks import MARKS, found_marks
from arr_coc.pages.splits import Split

from ..stages import STAGES, Batches, Run, ScratchStage, Task
from .pages import Sources, square
from .targets import pixels

Marks = tuple[tuple[str, Box], ...]

IGNORED = -1
"""The target of half patches that may be taken for a mark."""
EVEN = 16.0
"""Half patches of a mark, of which a smaller one has the weight."""
POOL = 240
"""Pages that windows are cut from: the last ones, as a page costs more than a step of the head."""
NAMED = 1.0
"""Weight of the loss of names beside that of where marks are."""
INKED = 0.3
"""Difference of a colour, -1 to 1, from the page's usual one."""
PLAIN = 0.5
"""Share of windows about what is no mark; all marks come up equally often in the others."""
WINDOW = 32
"""Side of the windows that the head is trained on, half patches."""
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
        real_folder: of real scans, see `Sources`: pages of which nothing is taken for a mark.
        batch_size: windows per step, cut from the last `POOL` pages.
    """

    name: ClassVar[str] = "marks"
    leaves_whole: ClassVar[bool] = False

    pages: Mapping[str, float] = field(default_factory=lambda: {"generated: marked page": 0.6, "generated": 0.4})
    worn: float = 0.1
    real_folder: str | None = None
    batch_size: int = 12
    learning_rate: float = 3e-3
    warmup: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("worn")
        self.check_counts("batch_size")

    def task(self, run: Run) -> "Marking":
        return Marking(self, run)


@dataclass(frozen=True)
class MarkedPixels:
    """Pixels [1, 3, S, S] in -1..1 of a page, and its marks with boxes in half patches."""

    pixels: Tensor
    marks: Marks


@dataclass(eq=False)
class MarkedPages(Batches[MarkedPixels]):
    """Endless drawn pages, a function of (seed, step).

    Attributes:
        side: S, px; `half`: of half a patch.
    """

    sources: Sources
    seed: tuple[int, ...]
    side: int
    half: int
    start: int = 0

    def batch(self, step: int) -> MarkedPixels:
        page = self.sources.page(np.random.default_rng((*self.seed, step)))
        if page.image is None:
            raise ValueError(f"pages: expected sources of drawn pages; got a page of {page.source} without a picture")
        wide, tall = page.size
        boxes = map_boxes([box for _, box in page.marks], tall, wide, self.side)
        scaled: list[Box] = [
            (x0 / self.half, y0 / self.half, x1 / self.half, y1 / self.half) for x0, y0, x1, y1 in boxes
        ]
        marks = tuple(zip((name for name, _ in page.marks), scaled, strict=True))
        return MarkedPixels(torch.from_numpy(pixels(square(page.image, self.side)))[None], marks)


class Marking(Task):
    """The mark head."""

    stage: MarksStage

    def __init__(self, stage: MarksStage, run: Run) -> None:
        self.stage, self.device = stage, run.device
        self.real_folder = None if stage.real_folder is None else run.root / stage.real_folder
        self.tower, config = run.model.model.vision_tower, run.model.config.vision_config
        if self.tower.text_reader is None or self.tower.text_reader.mark_head is None:
            raise ValueError(
                "vision_config.marks: expected true, of a model that reads text; got one without mark head"
            )
        self.side, self.half = config.image_size, config.patch_size // 2
        self.module = self.head = self.tower.text_reader.mark_head.float()
        self._kept: deque[tuple[Tensor, Tensor, Tensor, dict[int, np.ndarray]]] = deque(maxlen=POOL)

    def _pages(self, shares: Mapping[str, float], split: Split, start: int = 0) -> MarkedPages:
        sources = Sources(shares, split, None, self.stage.worn, self.real_folder)
        return MarkedPages(sources, (self.stage.seed, split != "train"), self.side, self.half, start)

    def pages(self, start: int) -> MarkedPages:
        pages = self._pages(self.stage.pages, "train", start)
        for step in range(max(0, start - POOL), start):  # of a run that goes on
            self.parts(pages.batch(step))
        return pages

    @torch.no_grad()
    def _seen(self, page: MarkedPixels) -> Tensor:
        """What the head reads of a page, [1, C + 12, R, R]."""
        images = page.pixels.to(self.device)
        with torch.autocast(images.device.type, torch.bfloat16):  # half the time of float32 on a CPU
            return self.head.inputs(self.tower.stem(images), images).bfloat16()

    def parts(self, batch: MarkedPixels) -> list[None]:
        seen, (classes, weights) = self._seen(batch)[0], mark_targets(batch.marks, self.side // self.half)
        colours = seen[-12:].float()
        inked = (colours - colours.flatten(1).median(1)[0][:, None, None]).abs().amax(0).cpu().numpy() > INKED
        places = {int(number): np.argwhere(classes == number) for number in np.unique(classes[classes > 0])}
        with torch.no_grad():  # what is none has to be learnt too, first of all where the head still sees some
            seems = self.head(seen[None].float())[0].argmax(0).cpu().numpy() > 0
        wrong = seems & (classes == 0)
        places[0] = np.argwhere(wrong if wrong.any() else inked & (classes == 0))
        wanted, weigh = (torch.from_numpy(each).to(self.device) for each in (classes, weights))
        self._kept.append((seen, wanted, weigh, {kind: own for kind, own in places.items() if len(own)}))
        return [None]

    def losses(self, step: int, batch: None) -> dict[str, Tensor]:
        rng = np.random.default_rng((self.stage.seed, step, 1))
        windows = [self._window(rng) for _ in range(self.stage.batch_size)]
        seen, classes, weights = (torch.stack(each) for each in zip(*windows, strict=True))
        logits = self.head(seen.float()).float()
        found = F.cross_entropy(logits, classes, ignore_index=IGNORED, reduction="none")
        shown = classes > 0  # which mark it is, where there is one: of all half patches few show any
        named = F.cross_entropy(logits[:, 1:].movedim(1, -1)[shown], classes[shown] - 1, reduction="none")
        losses = {"found": (found * weights).sum() / weights.sum()}
        losses["named"] = (named * weights[shown]).sum() / weights[shown].sum().clamp(min=1)
        return {
            "loss": losses["found"] + NAMED * losses["named"],
            **{name: each.detach() for name, each in losses.items()},
        }

    def _window(self, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """A window about a mark of a page, or about other ink on it: what the head reads, classes and weights."""
        kinds = sorted({kind for *_, places in self._kept for kind in places} - {0})
        kind = kinds[int(rng.integers(len(kinds)))] if kinds and rng.random() > PLAIN else 0
        pages = [page for page in self._kept if kind in page[3]] or [*self._kept]
        seen, classes, weights, places = pages[int(rng.integers(len(pages)))]
        own = places.get(kind, np.full((1, 2), len(classes) // 2))
        middle = own[int(rng.integers(len(own)))]
        corner = (middle - rng.uniform(0.1, 0.9, 2) * WINDOW).clip(0, max(0, len(classes) - WINDOW)).astype(int)
        rows, columns = (slice(at, at + WINDOW) for at in corner)
        return seen[:, rows, columns], classes[rows, columns], weights[rows, columns]

    @cached_property
    def _unseen(self) -> dict[str, list[tuple[Tensor, Marks]]]:
        """What the head reads of held-out pages, and their marks, by source."""
        unseen = {}
        for name in self.stage.pages:
            pages = self._pages({name: 1.0}, "validation")
            drawn = map(pages.batch, range(EVALUATED))
            unseen[name] = [(self._seen(page), page.marks) for page in drawn]
        return unseen

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Recall and precision of marks by source and name, and of all names, and wrong ones a page."""
        self.head.eval()
        scores: dict[str, float] = {}
        for source, pages in self._unseen.items():
            right, there, wrong = (dict.fromkeys(MARKS, 0) for _ in range(3))
            for seen, marks in pages:
                found = found_marks(self.head(seen.float()))[0]
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
