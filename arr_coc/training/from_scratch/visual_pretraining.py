"""Stage: visual pretraining of base tokens. A head predicts the characters and field names in each patch of a cell.

Without fetching, a base token is all that the language model sees of 16 patches. The answer's loss alone does not teach
base tokens their text, nor its order, so a head predicts the characters of each patch from the bridged base token of
its cell, as the reading stage's head does from the patch itself. A bridge with words predicts them itself, and once
there is a language of oracle tokens, the words also stand for places. Recipes call the stage "visual_pretraining".

Notation: P pages, G side of the grid, M base tokens, D width of the language model.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from arr_coc.data import CHARSET, FIELDS, Split
from arr_coc.modeling.allocators import best
from arr_coc.modeling.base_model import ArrCocModel
from arr_coc.modeling.configuration_arr_coc import COMPRESSION
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.vision_tower import ArrCocVisionTower

from ..stages import STAGES, Run
from .patch_language import PatchLanguage, relative_error, speaks_words, tables
from .reading import EVALUATED_BATCHES, Crop, ReadingHead, ReadingPages, reading_accuracy, reading_loss, word_loss
from .stage import ScratchStage, Task
from .targets import SLOTS

NONE_WEIGHT = 0.1
"""Weight of the class "none" beside each character's: more than nine in ten slots of a page are empty."""

WORD_WEIGHT = 0.2
"""Weight of the loss on field names, beside the characters'."""

BASE_WEIGHT = 0.5
"""Weight of the distance of base tokens from oracle tokens, if the bridge has words and there is a language of them."""

HELD = 96
"""Patches of a page whose states are kept near their values before the stage."""


@STAGES.register("visual_pretraining")
@dataclass(frozen=True)
class VisualPretrainingStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        learning_rate: of compressor, semantic encoder, bridge and the head.
        encoder_rate: of the grid encoder and its reading head; 0 freezes them, and steps are cheaper.
        batch_size: crops per step.
        crop: side of a crop as a share of the page's side, as in the reading stage.
        kinds, photo, reused: of the pages, as in the reading stage.
        word_weight: of the loss on field names, beside the characters'.
        reading_weight: of the reading stage's losses, where the grid encoder is trained.
        held_weight: of the distance of fetched patches' states from those at the start of the stage: 1 or more if a
            trained language model keeps reading them, 0 if it learns them again.
        evaluate_split: split of measurements: "validation" has held-out fonts, words and layouts, for decisions.
    """

    name: ClassVar[str] = "visual_pretraining"
    leaves_whole: ClassVar[bool] = False

    steps: int = 6000
    encoder_rate: float = 0.0
    batch_size: int = 4
    crop: float = 1.0
    kinds: Mapping[str, float] = field(default_factory=lambda: {"document": 0.7, "dense": 0.3})
    photo: float = 0.0
    reused: int = 1
    word_weight: float = WORD_WEIGHT
    reading_weight: float = 0.3
    held_weight: float = 0.0
    evaluate_split: Split = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("reused")

    def task(self, run: Run) -> "VisualPretraining":
        return VisualPretraining(self, run)


class CharacterHead(nn.Module):
    """Predicts, from a base token, the characters of each patch of its cell, and the field of its label."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.linear = nn.Linear(size, COMPRESSION**2 * SLOTS * (1 + len(CHARSET)))
        self.words = nn.Linear(size, COMPRESSION**2 * (1 + len(FIELDS)))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [P, M, D] -> logits [P, G, G, SLOTS, 1 + characters] and [P, G, G, 1 + fields], as `ReadingHead`."""
        states = self.norm(tokens)
        return by_patch(self.linear(states)).unflatten(-1, (SLOTS, -1)), by_patch(self.words(states))


def name_cells(head: CharacterHead, core: ArrCocModel, encoding: ImageEncoding) -> tuple[Tensor, Tensor]:
    """The predictions from base tokens: by the words of a bridge that has them, else by the head."""
    bridge = core.bridge
    if not speaks_words(bridge):
        named: tuple[Tensor, Tensor] = head(encoding.tokens)
        return named
    projected = encoding.compressed.flatten(2).transpose(1, 2)
    *slots, words = bridge.words(encoding.semantic, projected).split(bridge.place_words, -1)
    return by_patch(torch.stack(slots, 3).flatten(2)).unflatten(-1, (SLOTS, -1)), by_patch(words.flatten(2))


def by_patch(cells: Tensor) -> Tensor:
    """Predictions of cells [P, M, 16*X] for their patches, row by row, laid out on the page: [P, G, G, X]."""
    side = round(cells.shape[1] ** 0.5)
    places = cells.unflatten(-1, (COMPRESSION, COMPRESSION, -1)).unflatten(1, (side, side))
    return places.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # [P, g, 4, g, 4, X] -> [P, G, G, X]


def visual_loss(
    logits: tuple[Tensor, Tensor], characters: Tensor, words: Tensor, word_weight: float = WORD_WEIGHT
) -> Tensor:
    """Cross-entropy of a `CharacterHead`'s predictions; the class "none" of characters has the weight `NONE_WEIGHT`."""
    return reading_loss(logits[0], characters, none_weight=NONE_WEIGHT) + word_weight * word_loss(logits[1], words)


class VisualPretraining(Task):
    """The run's vision tower and bridge, in place, with heads on patches and on base tokens."""

    def __init__(self, stage: VisualPretrainingStage, run: Run) -> None:
        self.stage, self.device = stage, run.device
        self.core: ArrCocModel = run.model.model
        self.config = run.model.config.vision_config
        self.encoder = self.core.vision_tower.grid_encoder
        self.reading = ReadingHead(self.config.out_channels)
        self.head = CharacterHead(run.model.config.text_config.hidden_size)
        for name, part in (("reading", self.reading), ("visual_pretraining", self.head)):
            if name in run.learner:
                part.load_state_dict(run.learner[name])
        self.language: PatchLanguage | None = None
        if speaks_words(self.core.bridge) and "language" in run.learner:
            self.language = PatchLanguage(run.model, run.processor.tokenizer).requires_grad_(False).to(run.device)
            self.language.load_state_dict(run.learner["language"])
            self._hold_tables(True)  # the language defines the meanings of words
        self.before: ArrCocVisionTower | None = None
        if stage.held_weight > 0:
            self.before = deepcopy(self.core.vision_tower).requires_grad_(False).to(run.device)
        parts = {"vision": self.core.vision_tower, "bridge": self.core.bridge}
        self.module = nn.ModuleDict({**parts, "reading": self.reading, "visual_pretraining": self.head}).to(run.device)

    def _hold_tables(self, held: bool) -> None:
        for table in tables(self.core.bridge):
            table.requires_grad_(not held)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        slow = [*self.encoder.parameters(), *self.reading.parameters()]
        known = {id(parameter) for parameter in slow}
        trained = (parameter for parameter in self.module.parameters() if parameter.requires_grad)
        fast = [parameter for parameter in trained if id(parameter) not in known]
        return [(slow, self.stage.encoder_rate), (fast, self.stage.learning_rate)]

    def pages(self, start: int) -> ReadingPages:
        return ReadingPages(self.stage, self.config, split="train", start=start)

    def _features(self, image: Tensor) -> Tensor:
        """The grid encoder's output; a frozen encoder gets no gradient."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.stage.encoder_rate > 0):
            return self.encoder(image)

    def losses(self, step: int, batch: Crop) -> dict[str, Tensor]:
        batch = batch.to(self.device)
        features = self._features(batch.pixels)
        named, labelled = self.reading(features)
        characters = batch.shown.targets_for(named)
        encoding = self.core.encode_features(features, batch.pixels)
        logits = name_cells(self.head, self.core, encoding)
        loss = characters_loss = visual_loss(logits, characters, batch.words, self.stage.word_weight)
        logged = {"visual_pretraining": characters_loss.detach()}
        if self.language is not None:
            base = self.language.base_loss(encoding.tokens, characters, batch.words, self.core.get_input_embeddings())
            loss, logged["base"] = loss + BASE_WEIGHT * base, base.detach()
        if self.before is not None:
            held = self._moved(self.before, encoding, features, characters, step)
            loss, logged["held"] = loss + self.stage.held_weight * held, held.detach()
        if self.stage.encoder_rate > 0:
            reading = reading_loss(named, characters) + word_loss(labelled, batch.words)
            loss = loss + self.stage.reading_weight * reading
            logged["reading"] = reading.detach()
        return {"loss": loss, **logged}

    def _moved(
        self, before: ArrCocVisionTower, encoding: ImageEncoding, features: Tensor, characters: Tensor, step: int
    ) -> Tensor:
        """Distance of the states of drawn patches, mostly text, from their values before the stage, relative to
        their square."""
        generator = torch.Generator().manual_seed(step)
        drawn = torch.rand(characters.shape[:-1], generator=generator).to(features.device)
        indices = best((drawn + (characters > 0).any(-1)).flatten(1), min(HELD, drawn[0].numel()))
        with torch.no_grad():
            was = before(None, encoding.patch_mask, features)
            held = before.fetched_states(replace(encoding, semantic_cache=was["semantic_cache"]), indices)
        moved = self.core.vision_tower.fetched_states(encoding, indices)
        return torch.stack([relative_error(now, then) for now, then in zip(moved, held, strict=True)]).mean()

    @cached_property
    def _test(self) -> list[Crop]:
        unseen = ReadingPages(self.stage, self.config, split=self.stage.evaluate_split, held_out=True)
        return [unseen.batch(n).to(self.device) for n in range(EVALUATED_BATCHES)]

    @torch.no_grad()
    def measure(self) -> Mapping[str, float]:
        """The shares of right predictions from base tokens, and from patches, their upper bound while the encoder is
        frozen."""
        self.module.eval()

        def patches(image: Tensor) -> tuple[Tensor, Tensor]:
            logits: tuple[Tensor, Tensor] = self.reading(self.encoder(image))
            return logits

        def base(image: Tensor) -> tuple[Tensor, Tensor]:
            return name_cells(self.head, self.core, self.core.encode_features(self._features(image), image))

        scores = {
            f"{reader.__name__}: {name}": score
            for reader in (base, patches)
            for name, score in reading_accuracy(reader, self._test, patches).items()
        }
        self.module.train()
        return scores

    def finish(self, run: Run) -> None:
        if self.language is not None:
            self._hold_tables(False)
        run.learner |= {"reading": self.reading.state_dict(), "visual_pretraining": self.head.state_dict()}
