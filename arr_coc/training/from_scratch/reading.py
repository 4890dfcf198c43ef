"""Stage: the grid encoder alone learns to read: a head predicts the characters of each patch (see `targets`).

It also predicts the field's name. (The scorer compares patches with words of the question, so patches need it.)

Dense text gives every patch a target, so a small encoder learns letters from tens of thousands of crops instead of
millions of answers. Crops are a part of the page's side (the position table is resized), cut out anywhere, which costs
less per patch; their side is best a multiple of the encoder's windows, which are padded otherwise. An encoder trained
on crops reads whole pages worse, as positions and global attention differ: whole pages come last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.data import CHARSET, FIELDS, Box, Document, Glyph, Split
from arr_coc.data.mixture import KINDS, UNASKED, Mixture
from arr_coc.modeling.configuration_arr_coc import ArrCocVisionConfig, grid_size
from arr_coc.modeling.grid_encoder import GridEncoder

from ..stages import STAGES, Run
from .stage import Batches, DrawnPages, ScratchStage, Task
from .targets import SLOTS, Shown, fitted, pixels, shown, word_targets

EVALUATED_BATCHES = 6
"""Batches of held-out crops in a measurement."""
EVALUATED_DOCUMENTS = 40
"""Held-out pages of each kind whose values are read in a measurement."""


@STAGES.register("reading")
@dataclass(frozen=True)
class ReadingStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        batch_size: crops per step.
        crop: side of a crop as a share of the page's side; of a page as many are cut as would cover it.
        kinds: how often each kind of page is shown, see `arr_coc.data.mixture`.
        photo: share of the pages that are photographed.
        reused: how often each page comes up, see `DrawnPages`; it is cut elsewhere each time.
        none_weight: of the class that most slots are, no character, beside each character's.
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
    reused: int = 1
    none_weight: float = 0.3
    word_weight: float = 0.5
    warmup: int = 200
    evaluate_every: int = 250
    evaluate_split: Split = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("reused")

    def task(self, run: Run) -> "Reading":
        return Reading(self, run)


class ReadingHead(nn.Module):
    """Predicts the characters of a patch, and the field of its label."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, SLOTS * (1 + len(CHARSET)))
        self.words = nn.Linear(channels, 1 + len(FIELDS))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, C, G, G] -> logits [B, G, G, SLOTS, 1 + characters] and [B, G, G, 1 + fields]."""
        patches = features.permute(0, 2, 3, 1)
        return self.linear(patches).unflatten(-1, (SLOTS, -1)), self.words(patches)


def reading_loss(logits: Tensor, targets: Tensor, none: int = 0, none_weight: float = 0.3) -> Tensor:
    """Cross-entropy over all slots; the class `none`, which most slots have, has a smaller weight."""
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[none] = none_weight
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), weight=weight)


def word_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """`reading_loss` of the field names, over pages with fields: elsewhere targets are -100."""
    known = targets >= 0
    return reading_loss(logits[known], targets[known]) if bool(known.any()) else logits.sum() * 0


class Cropping(Protocol):
    """A stage's settings of its batches: crops per step and their side, kinds of pages, and the seed."""

    @property
    def batch_size(self) -> int: ...
    @property
    def crop(self) -> float: ...
    @property
    def kinds(self) -> Mapping[str, float]: ...
    @property
    def photo(self) -> float: ...
    @property
    def reused(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def image_size(self) -> int | None: ...


@dataclass(frozen=True)
class Crop:
    """B crops of pages.

    Attributes:
        pixels: [B, 3, s, s].
        shown: their characters.
        words: [B, s / patch, s / patch], see `word_targets`.
    """

    pixels: Tensor
    shown: Shown
    words: Tensor

    def to(self, device: torch.device) -> "Crop":
        """The same on `device`."""
        return Crop(self.pixels.to(device), self.shown.to(device), self.words.to(device))


class ReadingPages(Batches[Crop]):
    """Endless batches of crops; a function of (seed, split, step)."""

    def __init__(
        self, stage: Cropping, config: ArrCocVisionConfig, *, split: Split, start: int = 0, held_out: bool = False
    ) -> None:
        self.stage, self.split, self.start = stage, split, start
        self.purpose = 1 if held_out else 0  # pages of measurements never come up in training, whatever the split
        self.size, self.side = config.image_size, stage.image_size or config.image_size
        self.patch_size = config.patch_size
        self.crop = round(stage.crop * self.side)
        grid_size(self.crop, config.patch_size)  # raises a ValueError for sizes that the encoder does not take
        mixture, seed = Mixture(stage.kinds, stage.photo), (stage.seed, self.purpose, 2)
        self.drawn = DrawnPages(mixture, seed, stage.reused, size=self.size, split=split)

    def batch(self, step: int) -> Crop:
        """The batch of one step."""
        rng = np.random.default_rng((self.stage.seed, self.purpose, step))
        images: list[np.ndarray] = []
        glyphs, words = [], []
        cut = max(1, round(1 / self.stage.crop**2))
        drawn = step * -(-self.stage.batch_size // cut)
        while len(images) < self.stage.batch_size:
            document = self.drawn.page(drawn, rng)
            drawn += 1
            page = fitted(document.image, self.side)
            for _ in range(min(cut, self.stage.batch_size - len(images))):
                x, y = (int(corner) for corner in rng.integers(self.side - self.crop + 1, size=2))
                images.append(pixels(page[y : y + self.crop, x : x + self.crop]))
                seen = _Window(x, y, self.crop, self.side / self.size)
                glyphs.append(seen.glyphs(document.glyphs))
                words.append(seen.words(document, self.crop // self.patch_size))
        image, word = (torch.from_numpy(np.stack(stacked)) for stacked in (images, words))
        return Crop(image, shown(glyphs, self.patch_size), word)

    def document(self, number: int, kind: str) -> Document:
        """A whole page of a kind, for measuring."""
        rng = np.random.default_rng((self.stage.seed, 4, number))
        return KINDS[kind](rng, size=self.size, split=self.split)


_LEAST_LABEL = 2.0
"""Least width and height of the visible part of a label, px."""


@dataclass(frozen=True)
class _Window:
    """A square cut out of a page at (x, y), px, after the page was scaled."""

    x: int
    y: int
    side: int
    scale: float

    def _moved(self, box: Box) -> Box:
        corner = (self.x, self.y, self.x, self.y)
        x0, y0, x1, y1 = (end * self.scale - own for end, own in zip(box, corner, strict=True))
        return x0, y0, x1, y1

    def glyphs(self, glyphs: Sequence[Glyph]) -> list[Glyph]:
        """The boxes whose centre is inside."""
        moved = [Glyph(glyph.char, self._moved(glyph.box)) for glyph in glyphs]
        return [g for g in moved if all(0 <= (g.box[i] + g.box[i + 2]) / 2 < self.side for i in (0, 1))]

    def words(self, document: Document, grid: int) -> np.ndarray:
        """`word_targets` of the visible parts of labels."""
        labels = [*((entry.field, entry.label_box) for entry in document.entries), *document.labels]
        inside = []
        for name, box in labels:
            x0, y0, x1, y1 = (min(max(end, 0.0), float(self.side)) for end in self._moved(box))
            if x1 - x0 >= _LEAST_LABEL and y1 - y0 >= _LEAST_LABEL:
                inside.append((name, (x0, y0, x1, y1)))
        if labels and not inside:
            return np.zeros((grid, grid), np.int64)
        return word_targets((), inside, size=self.side, grid=grid)


Reader = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Pixels [B, 3, S, S] -> the logits of a `ReadingHead`."""


@torch.no_grad()
def reading_accuracy(reader: Reader, batches: Sequence[Crop], puts: Reader | None = None) -> dict[str, float]:
    """Shares of right predictions: slots with a character, text patches with all slots right, and words.

    `puts`: the logits that choose the patches of characters near edges; None: the reader's own.
    """
    slots = right = patches = perfect = labels = known = 0
    for batch in batches:
        characters, fields = reader(batch.pixels)
        where = characters if puts is None else puts(batch.pixels)[0]
        named, targets = characters.argmax(-1), batch.shown.targets_for(where)
        labels += int((batch.words > 0).sum())
        known += int(((fields.argmax(-1) == batch.words) & (batch.words > 0)).sum())
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
    reader: Reader, documents: Sequence[Document], side: int, patch_size: int, device: torch.device | str = "cpu"
) -> float:
    """The share of values on documents, fitted into `side` px, whose characters are all predicted in their place.

    Near an edge it suffices that both sides predict half of a character (`Shown.named`): language models can read that.
    """
    right = count = 0
    for document in documents:
        image = torch.from_numpy(pixels(fitted(document.image, side)))[None].to(device)
        scale = patch_size * document.image.width / side
        page = shown([document.glyphs], scale).to(image.device)
        missing = (page.named(reader(image)[0]) < 0.5).cpu()
        x, y = (page.centres.cpu() * scale).unbind(1)
        for entry in document.entries:
            x0, y0, x1, y1 = entry.value_box
            right += not bool((missing & (x > x0) & (x < x1) & (y > y0) & (y < y1)).any())
            count += 1
    return right / count


class Reading(Task):
    """A grid encoder and a head; the encoder is a copy of the model's if that is trained, else a new one.

    The copy has the memory format of the fastest training of convolutions.
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

    def losses(self, step: int, batch: Crop) -> dict[str, Tensor]:
        batch = batch.to(self.device)
        characters, fields = self._read(batch.pixels.contiguous(memory_format=torch.channels_last))
        targets = batch.shown.targets_for(characters)
        named = reading_loss(characters, targets, none_weight=self.stage.none_weight)
        labelled = word_loss(fields, batch.words)
        loss = named + self.stage.word_weight * labelled
        return {"loss": loss, "characters": named.detach(), "words": labelled.detach()}

    def _read(self, image: Tensor) -> tuple[Tensor, Tensor]:
        logits: tuple[Tensor, Tensor] = self.head(self.encoder(image))
        return logits

    @cached_property
    def _test(self) -> tuple[list[Crop], dict[str, list[Document]]]:
        batches = [self.unseen.batch(n).to(self.device) for n in range(EVALUATED_BATCHES)]
        kinds = [kind for kind in self.stage.kinds if kind not in UNASKED]  # the others have no values
        return batches, {k: [self.unseen.document(n, k) for n in range(EVALUATED_DOCUMENTS)] for k in kinds}

    def measure(self) -> dict[str, float]:
        batches, documents = self._test
        scores = reading_accuracy(self._read, batches)
        for kind, pages in documents.items():
            read = values_read(self._read, pages, self.unseen.side, self.config.patch_size, self.device)
            scores[f"{kind}: values"] = read
        return scores

    def finish(self, run: Run) -> None:
        run.model.model.vision_tower.grid_encoder.load_state_dict(self.encoder.state_dict())
        run.learner["reading"] = self.head.state_dict()
