"""Stage: the grid encoder alone learns to read. Under each patch: which characters have their centre in it?

And which field's name? (The scorer compares patches with words of the question, so a patch must know its word.)

Pages dense with text give every patch a target, so a small encoder learns letters from tens of thousands of crops
instead of millions of answers. Crops are a part of the page's side (the position table is resized), which costs less
per patch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from arr_coc.data import (
    CHARSET,
    FIELDS,
    Document,
    Split,
    box_targets,
    glyph_targets,
)
from arr_coc.data.mixture import KINDS, UNASKED, Mixture
from arr_coc.modeling.configuration_arr_coc import ArrCocVisionConfig, grid_size
from arr_coc.modeling.grid_encoder import GridEncoder

from ..stages import STAGES, Run
from .stage import ScratchStage, Task
from .streaming import per_step
from .targets import SLOTS, fitted, pixels, word_targets

EVALUATED_BATCHES = 6
"""Batches of held-out crops that a measurement reads."""
EVALUATED_DOCUMENTS = 40
"""Held-out pages of each kind whose values a measurement reads."""


@STAGES.register("reading")
@dataclass(frozen=True)
class ReadingStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        batch_size: crops per step.
        crop: side of a crop as a share of the page's side (1 or 0.5).
        kinds: how often each kind of page is shown, see `arr_coc.data.mixture`.
        photo: share of the pages that are photographed.
        word_weight: of the loss on field names, beside the characters'.
        evaluate_split: what is measured on: "validation" has held-out fonts and words, for decisions.
    """

    name: ClassVar[str] = "reading"
    leaves_whole: ClassVar[bool] = False

    steps: int = 6000
    batch_size: int = 32
    crop: float = 0.5
    kinds: Mapping[str, float] = field(default_factory=lambda: {"document": 0.5, "dense": 0.5})
    photo: float = 0.0
    word_weight: float = 0.5
    warmup: int = 200
    evaluate_every: int = 250
    evaluate_split: Split = "validation"

    def task(self, run: Run) -> "Reading":
        return Reading(self, run)


class ReadingHead(nn.Module):
    """Names the characters of a patch, and the field whose label it belongs to."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, SLOTS * (1 + len(CHARSET)))
        self.words = nn.Linear(channels, 1 + len(FIELDS))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, C, G, G] -> logits [B, G, G, SLOTS, 1 + characters] and [B, G, G, 1 + fields]."""
        patches = features.permute(0, 2, 3, 1)
        return self.linear(patches).unflatten(-1, (SLOTS, -1)), self.words(patches)


def reading_loss(logits: Tensor, targets: Tensor, none: int = 0, none_weight: float = 0.3) -> Tensor:
    """Cross-entropy over all slots; the class `none`, which most slots are, weighs less."""
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[none] = none_weight
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), weight=weight)


def word_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """`reading_loss` of the field names, over pages that have fields: elsewhere targets are -100."""
    known = targets >= 0
    return reading_loss(logits[known], targets[known]) if bool(known.any()) else logits.sum() * 0


class Crops(Protocol):
    """What a stage says of its batches: crops per step and their side, what pages they show, and the seed."""

    @property
    def batch_size(self) -> int: ...
    @property
    def crop(self) -> float: ...
    @property
    def kinds(self) -> Mapping[str, float]: ...
    @property
    def photo(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def image_size(self) -> int | None: ...


class ReadingPages(IterableDataset):
    """Endless batches of crops and targets; a function of (seed, split, step)."""

    def __init__(
        self, stage: Crops, config: ArrCocVisionConfig, *, split: Split, start: int = 0, held_out: bool = False
    ) -> None:
        self.stage, self.split, self.start = stage, split, start
        self.purpose = 1 if held_out else 0  # pages that are measured on never come up in training, whatever the split
        self.size, self.side = config.image_size, stage.image_size or config.image_size
        self.grid = grid_size(self.side, config.patch_size)
        self.mixture = Mixture(stage.kinds, stage.photo)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return per_step(self.batch, self.start)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of one step: pixels [crops, 3, s, s], characters [crops, s / patch, s / patch, SLOTS], words [crops, ...]."""
        rng = np.random.default_rng((self.stage.seed, self.purpose, step))
        parts = round(1 / self.stage.crop)
        images, targets, words = [], [], []
        for _ in range(-(-self.stage.batch_size // parts**2)):
            document = self.mixture.draw(rng, size=self.size, split=self.split)
            images += [pixels(crop) for crop in _crops(fitted(document.image, self.side), parts)]
            targets += _crops(glyph_targets(document.glyphs, size=self.size, grid=self.grid, slots=SLOTS), parts)
            named = word_targets(document.entries, document.labels, size=self.size, grid=self.grid)
            words += _crops(named, parts)
        image, target, word = (np.stack(stacked[: self.stage.batch_size]) for stacked in (images, targets, words))
        return torch.from_numpy(image), torch.from_numpy(target), torch.from_numpy(word)

    def document(self, number: int, kind: str) -> Document:
        """A whole page of a kind, for measuring."""
        rng = np.random.default_rng((self.stage.seed, 4, number))
        return KINDS[kind](rng, size=self.size, split=self.split)


def _crops(page: np.ndarray, parts: int) -> list[np.ndarray]:
    """[H, W, ...] -> `parts` x `parts` equal pieces, row by row."""
    return [piece for row in np.split(page, parts, axis=0) for piece in np.split(row, parts, axis=1)]


@torch.no_grad()
def reading_accuracy(
    encoder: Callable[[Tensor], Tensor], head: nn.Module, batches: Sequence[tuple[Tensor, ...]]
) -> dict[str, float]:
    """Share of right names among slots that hold a character, patches of text with every slot right, words right."""
    slots = right = patches = perfect = labels = known = 0
    for image, targets, words in batches:
        characters, fields = head(encoder(image))
        named = characters.argmax(-1)
        labels += int((words > 0).sum())
        known += int(((fields.argmax(-1) == words) & (words > 0)).sum())
        filled = targets > 0
        slots += int(filled.sum())
        right += int(((named == targets) & filled).sum())
        text = filled.any(-1)
        patches += int(text.sum())
        perfect += int(((named == targets).all(-1) & text).sum())
    return {
        "characters": right / max(1, slots),
        "patches": perfect / max(1, patches),
        "words": known / max(1, labels),
    }


@torch.no_grad()
def values_read(
    encoder: Callable[[Tensor], Tensor],
    head: nn.Module,
    documents: Sequence[Document],
    side: int,
    device: torch.device | str = "cpu",
) -> tuple[float, float]:
    """Of the values on documents, fitted into `side` px, the shares of which every character is named right.

    First in its own patch, then there or in one of the eight around it: what only the second counts was read, but put
    on the wrong side of an edge between patches, which the middle of a character is near.
    """
    right = near = count = 0
    for document in documents:
        image = torch.from_numpy(pixels(fitted(document.image, side)))[None].to(device)
        named = head(encoder(image))[0][0].argmax(-1).cpu().numpy()  # [G, G, SLOTS]
        truth = glyph_targets(document.glyphs, size=document.image.width, grid=len(named), slots=SLOTS)
        wrong, missed = ((named != truth) & (truth > 0)).any(-1), missing_nearby(named, truth).any(-1)
        for entry in document.entries:
            shown = box_targets([entry.value_box], size=document.image.width, grid=len(named)) > 0
            right += not bool((wrong & shown).any())
            near += not bool((missed & shown).any())
            count += 1
    return right / count, near / count


def missing_nearby(named: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Where a character is named neither in its patch nor in one of the eight around it: bool [G, G, SLOTS].

    Args:
        named, truth: [G, G, SLOTS] what each slot of a patch says, 0 for nothing.
    """
    side = len(named)
    around = np.pad(named, ((1, 1), (1, 1), (0, 0)))
    shifted = [around[y : y + side, x : x + side] for y in range(3) for x in range(3)]
    found = (np.concatenate(shifted, -1)[..., None, :] == truth[..., None]).any(-1)
    return (truth > 0) & ~found


class Reading(Task):
    """A grid encoder and a head, the encoder a copy of the model's if that has learnt to read already, else a new one.

    The copy has the memory format that convolutions train fastest in.
    """

    def __init__(self, stage: ReadingStage, run: Run) -> None:
        config = run.model.config.vision_config
        self.stage, self.config, self.device = stage, config, run.device
        self.encoder, self.head = GridEncoder(config), ReadingHead(config.out_channels)
        if "reading" in run.learner:
            self.encoder.load_state_dict(run.model.model.vision_tower.grid_encoder.state_dict())
            self.head.load_state_dict(run.learner["reading"])
        self.module = nn.ModuleDict({"encoder": self.encoder, "head": self.head}).to(run.device)
        self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch leaves it out of its stubs
        self.unseen = ReadingPages(stage, config, split=stage.evaluate_split, held_out=True)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.module.parameters()), self.stage.learning_rate)]

    def pages(self, start: int) -> "ReadingPages":
        return ReadingPages(self.stage, self.config, split="train", start=start)

    def losses(self, step: int, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        image, targets, words = (part.to(self.device) for part in batch)
        characters, fields = self.head(self.encoder(image.contiguous(memory_format=torch.channels_last)))
        named, labelled = reading_loss(characters, targets), word_loss(fields, words)
        loss = named + self.stage.word_weight * labelled
        return {"loss": loss, "characters": named.detach(), "words": labelled.detach()}

    @cached_property
    def _test(self) -> tuple[list[tuple[Tensor, ...]], dict[str, list[Document]]]:
        batches = [tuple(part.to(self.device) for part in self.unseen.batch(n)) for n in range(EVALUATED_BATCHES)]
        kinds = [kind for kind in self.stage.kinds if kind not in UNASKED]  # the others show no values
        return batches, {k: [self.unseen.document(n, k) for n in range(EVALUATED_DOCUMENTS)] for k in kinds}

    def measure(self) -> dict[str, float]:
        batches, documents = self._test
        scores = reading_accuracy(self.encoder, self.head, batches)
        for kind, pages in documents.items():
            exact, near = values_read(self.encoder, self.head, pages, self.unseen.side, self.device)
            scores |= {f"{kind}: values": exact, f"{kind}: values, a patch off": near}
        return scores

    def finish(self, run: Run) -> None:
        run.model.model.vision_tower.grid_encoder.load_state_dict(self.encoder.state_dict())
        run.learner["reading"] = self.head.state_dict()
