"""Stage: base tokens learn to carry their cell in order. Under each of its 4x4 patches: which characters, whose name?

A base token is all that the language model sees of 16 patches without running back. The answer's loss alone never
teaches it what stands there, let alone in which order, so a head names the characters of every patch from the bridged
base token of its cell, as the reading stage's head does from the patch itself.

Notation: P pages, G side of the grid, M base tokens, D width of the language model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from arr_coc.data import CHARSET, FIELDS, Split
from arr_coc.modeling.base_model import ArrCocModel
from arr_coc.modeling.configuration_arr_coc import COMPRESSION

from ..stages import STAGES, Run
from .reading import EVALUATED_BATCHES, Crop, ReadingHead, ReadingPages, reading_accuracy, reading_loss, word_loss
from .stage import ScratchStage, Task
from .targets import SLOTS

NONE_WEIGHT = 0.1
"""Weight of the class "none" beside each character's: more than nine in ten slots of a page are empty."""

WORD_WEIGHT = 0.2
"""Weight of the loss on field names, beside the characters'."""


@STAGES.register("looking")
@dataclass(frozen=True)
class LookingStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        learning_rate: of compressor, semantic encoder, bridge and the head.
        encoder_rate: of the grid encoder and its reading head; 0 leaves them as they are, and steps are cheaper.
        batch_size: crops per step.
        crop: side of a crop as a share of the page's side, as in the reading stage.
        kinds, photo: of the pages, as in the reading stage.
        word_weight: of the loss on field names, beside the characters'.
        reading_weight: of the reading stage's losses, where the grid encoder is trained.
        evaluate_split: what is measured on: "validation" has held-out fonts, words and layouts, for decisions.
    """

    name: ClassVar[str] = "looking"
    leaves_whole: ClassVar[bool] = False

    steps: int = 6000
    encoder_rate: float = 0.0
    batch_size: int = 4
    crop: float = 1.0
    kinds: Mapping[str, float] = field(default_factory=lambda: {"document": 0.7, "dense": 0.3})
    photo: float = 0.0
    word_weight: float = WORD_WEIGHT
    reading_weight: float = 0.3
    evaluate_split: Split = "validation"

    def task(self, run: Run) -> "Looking":
        return Looking(self, run)


class LookingHead(nn.Module):
    """Names, from a base token, the characters of each patch of its cell, and the field whose label it belongs to."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.linear = nn.Linear(size, COMPRESSION**2 * SLOTS * (1 + len(CHARSET)))
        self.words = nn.Linear(size, COMPRESSION**2 * (1 + len(FIELDS)))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [P, M, D] -> logits [P, G, G, SLOTS, 1 + characters] and [P, G, G, 1 + fields], as `ReadingHead`."""
        states = self.norm(tokens)
        return by_patch(self.linear(states)).unflatten(-1, (SLOTS, -1)), by_patch(self.words(states))


def by_patch(cells: Tensor) -> Tensor:
    """What cells [P, M, 16*X] say of their patches, row by row, laid out on the page: [P, G, G, X]."""
    side = round(cells.shape[1] ** 0.5)
    places = cells.unflatten(-1, (COMPRESSION, COMPRESSION, -1)).unflatten(1, (side, side))
    return places.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # [P, g, 4, g, 4, X] -> [P, G, G, X]


def looking_loss(
    logits: tuple[Tensor, Tensor], characters: Tensor, words: Tensor, word_weight: float = WORD_WEIGHT
) -> Tensor:
    """Cross-entropy of a `LookingHead`'s names; the class "none" of characters weighs `NONE_WEIGHT`."""
    return reading_loss(logits[0], characters, none_weight=NONE_WEIGHT) + word_weight * word_loss(logits[1], words)


class Looking(Task):
    """The run's vision tower and bridge, in place, with heads on patches and on base tokens."""

    def __init__(self, stage: LookingStage, run: Run) -> None:
        self.stage, self.device = stage, run.device
        self.core: ArrCocModel = run.model.model
        self.config = run.model.config.vision_config
        self.encoder = self.core.vision_tower.grid_encoder
        self.reading = ReadingHead(self.config.out_channels)
        self.head = LookingHead(run.model.config.text_config.hidden_size)
        for name, part in (("reading", self.reading), ("looking", self.head)):
            if name in run.learner:
                part.load_state_dict(run.learner[name])
        parts = {"vision": self.core.vision_tower, "bridge": self.core.bridge}
        self.module = nn.ModuleDict({**parts, "reading": self.reading, "looking": self.head}).to(run.device)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        slow = [*self.encoder.parameters(), *self.reading.parameters()]
        known = {id(parameter) for parameter in slow}
        fast = [parameter for parameter in self.module.parameters() if id(parameter) not in known]
        return [(slow, self.stage.encoder_rate), (fast, self.stage.learning_rate)]

    def pages(self, start: int) -> ReadingPages:
        return ReadingPages(self.stage, self.config, split="train", start=start)

    def tokens(self, image: Tensor) -> Tensor:
        """Images [P, 3, S, S] -> base tokens [P, M, D]; no gradient reaches a grid encoder that is not trained."""
        return self._tokens(self._features(image), image)

    def _features(self, image: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.stage.encoder_rate > 0):
            return self.encoder(image)

    def _tokens(self, features: Tensor, image: Tensor) -> Tensor:
        return self.core.encode_features(features, image).tokens

    def losses(self, step: int, batch: Crop) -> dict[str, Tensor]:
        batch = batch.to(self.device)
        features = self._features(batch.pixels)
        named, labelled = self.reading(features)
        characters = batch.shown.targets_for(named)
        logits = self.head(self._tokens(features, batch.pixels))
        loss = looking = looking_loss(logits, characters, batch.words, self.stage.word_weight)
        logged = {"looking": looking.detach()}
        if self.stage.encoder_rate > 0:
            reading = reading_loss(named, characters) + word_loss(labelled, batch.words)
            loss = loss + self.stage.reading_weight * reading
            logged["reading"] = reading.detach()
        return {"loss": loss, **logged}

    @cached_property
    def _test(self) -> list[Crop]:
        unseen = ReadingPages(self.stage, self.config, split=self.stage.evaluate_split, held_out=True)
        return [unseen.batch(n).to(self.device) for n in range(EVALUATED_BATCHES)]

    @torch.no_grad()
    def measure(self) -> Mapping[str, float]:
        """What base tokens name right, in its place, and what patches do: the bound while the encoder is frozen."""
        self.module.eval()

        def patches(image: Tensor) -> tuple[Tensor, Tensor]:
            logits: tuple[Tensor, Tensor] = self.reading(self.encoder(image))
            return logits

        def base(image: Tensor) -> tuple[Tensor, Tensor]:
            logits: tuple[Tensor, Tensor] = self.head(self.tokens(image))
            return logits

        scores = {
            f"{reader.__name__}: {name}": score
            for reader in (base, patches)
            for name, score in reading_accuracy(reader, self._test, patches).items()
        }
        self.module.train()
        return scores

    def finish(self, run: Run) -> None:
        run.learner |= {"reading": self.reading.state_dict(), "looking": self.head.state_dict()}
