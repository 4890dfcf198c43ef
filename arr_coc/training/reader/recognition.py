"""Stage: the grid encoder alone learns to read: which characters and wordpieces stand under each patch?

Of each patch it says its characters, how many wordpieces begin there, and which: what the language model is to read
are its own wordpieces. Characters are a second loss, which keeps names and codes apart that no word helps with; and a
third where the stem alone names them: trained first, its convolutions learn that from far fewer crops than the whole
encoder would need (Lee et al. 2015, Deeply-supervised nets).

Notation: B crops, G side of their grid, S slots, C channels of the features, D width of the language model, V rows of
its embedding table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.modeling.bridges import WordpieceBridge
from arr_coc.modeling.grid_encoder import ConvStem, GridEncoder, GridLayer, WideBlock
from arr_coc.modeling.wordpieces import NamedPieces, Spelling, WordpieceHead

from ..from_scratch.stage import ScratchStage, Task
from ..stages import STAGES, Run
from .pages import CropBatches, Crops, Sources
from .targets import CELL_COLUMNS, CELL_ROWS, CELLS, CLASSES, Targets, Wordpieces, spelled

NONE_WEIGHT = 0.2
"""Of the class "no character", which most cells are, and of patches where no wordpiece begins."""
NEGATIVES = 3000
"""Rows of the embedding table, besides those of the batch, that the right one is told from in a training step."""


@dataclass(frozen=True)
class Named:
    """What the heads say of patches: `pieces`, and `characters`, logits [..., CELLS, CLASSES]."""

    characters: Tensor
    pieces: NamedPieces


class RecognitionHead(nn.Module):
    """The model's own head for wordpieces, and one for characters that only training uses."""

    def __init__(self, channels: int, text_size: int, spelling: Spelling | None = None) -> None:
        super().__init__()
        self.characters = nn.Linear(channels, CELLS * CLASSES)
        self.wordpieces = WordpieceHead(channels, text_size, spelling)

    def forward(self, features: Tensor) -> Named:
        """Features [..., C] -> what they say."""
        characters = self.characters(features).unflatten(-1, (CELLS, CLASSES))
        return Named(characters, self.wordpieces(features))


class StemHead(nn.Module):
    """What the stem says of characters, two of its pixels in height and width for a patch; only training uses it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.characters = nn.Conv2d(width, CELLS // 4 * CLASSES, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, C, 2G, 2G] -> logits [B, G, G, CELLS, CLASSES]."""
        logits = self.characters(features).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        logits = logits.unflatten(1, (CELL_ROWS // 2, CELL_COLUMNS // 2, CLASSES))  # [B, r, c, classes, G, 2, G, 2]
        return logits.permute(0, 4, 6, 5, 1, 7, 2, 3).flatten(3, 6)


def character_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all cells [..., CELLS, classes], [..., CELLS]; the class 0, which most are, weighs less."""
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[0] = NONE_WEIGHT
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), weight=weight)


def count_loss(logits: Tensor, pieces: Tensor) -> Tensor:
    """Cross-entropy of how many wordpieces begin in each patch; patches with cut words do not count.

    Args:
        logits: [..., 1 + PIECE_SLOTS].
        pieces: [..., PIECE_SLOTS] ids, -1 for none, -2 for unknown ones.
    """
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[0] = NONE_WEIGHT
    counts = (pieces >= 0).sum(-1).masked_fill((pieces == -2).any(-1), -100)
    return F.cross_entropy(logits.flatten(0, -2).float(), counts.flatten(), weight=weight)


def half_loss(logits: Tensor, lower: Tensor, pieces: Tensor) -> Tensor:
    """Binary cross-entropy of which half of a patch the wordpieces in filled slots stand in; all [..., PIECE_SLOTS]."""
    filled = pieces >= 0
    if not filled.any():
        return logits.sum() * 0
    return F.binary_cross_entropy_with_logits(logits[filled].float(), lower[filled].float())


def piece_loss(
    head: WordpieceHead, directions: Tensor, pieces: Tensor, table: Tensor, generator: torch.Generator
) -> Tensor:
    """Cross-entropy of the wordpiece of each filled slot, among those of the batch and `NEGATIVES` others.

    Where wordpieces have spellings, that of the characters at their positions is added: of the other wordpieces few are
    almost alike.

    Args:
        head: what is trained.
        directions: [..., PIECE_SLOTS, D + E].
        pieces: [..., PIECE_SLOTS] ids, negative where a slot is not filled.
        table: [V, D] of the language model.
        generator: of the others.
    """
    filled = pieces >= 0
    ids = pieces[filled]
    if not len(ids):
        return directions.sum() * 0
    others = torch.randint(len(table), (NEGATIVES,), generator=generator).to(ids.device)
    rows = torch.unique(torch.cat((ids, others)))
    said = directions[filled]
    loss = F.cross_entropy(head.logits(said, head.rows(table, rows), head.scale), torch.searchsorted(rows, ids))
    if head.spelling is None:
        return loss
    spelled = head.spelling.characters(head.scaled(said, head.scale)[:, table.shape[1] :])
    return loss + F.cross_entropy(spelled.float().flatten(0, 1), head.spelling.letters[ids].long().flatten())


WEIGHTS = {"characters": 1.0, "count": 0.5, "halves": 0.2, "pieces": 1.0, "stem": 0.5}
"""Of the losses in their sum."""
EVALUATED_BATCHES = 2
"""Batches of held-out crops of each source that a measurement reads."""


@STAGES.register("recognition")
@dataclass(frozen=True)
class RecognitionStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        stem_only: train the convolutional stem alone, on characters; a step costs a fraction of one of the encoder.
        batch_size: crops per step.
        side: of a crop, px; a multiple of 4 patches. The position table is trained on crops of the model's image size.
        per_page: crops that are cut of a page.
        pages: how often each source comes up, see `Sources`.
        pdf_folder: of cached PDF pages.
        worn: share of worn pages.
        settled: steps after which the encoder's own scores decide in which of two patches a wordpiece near the edge
            between them begins (`Print.placed_by`); before, the centre of its first character does.
        least_print, most_print: height of a line's characters on crops, px: small print is hard to begin with.
    """

    name: ClassVar[str] = "recognition"
    needs_learner: ClassVar[bool] = False
    leaves_whole: ClassVar[bool] = False

    stem_only: bool = False
    batch_size: int = 24
    side: int = 256
    per_page: int = 6
    pages: Mapping[str, float] = field(default_factory=lambda: {"generated": 1.0})
    pdf_folder: str | None = None
    worn: float = 0.5
    settled: int = 500
    least_print: float = 6.0
    most_print: float = 30.0
    warmup: int = 60

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("worn")
        self.check_counts("batch_size", "side", "per_page")
        if not 0 < self.least_print <= self.most_print:
            raise ValueError(f"least_print: expected 0 < least <= most; got {self.least_print}, {self.most_print}")

    def task(self, run: Run) -> "Recognition":
        return Recognition(self, run)


def recognition_head(run: Run) -> RecognitionHead:
    """A new head on a model's features; it knows spellings where the model's bridge does."""
    config, spelling = run.model.config, None
    embeddings = run.model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    if size := config.bridge_config.spelling_size:
        spelling = Spelling(config.bridge_config.table_size, size)
        spelling.letters.copy_(spelled(run.processor.tokenizer, config.bridge_config.table_size))
    return RecognitionHead(config.vision_config.out_channels, embeddings.embedding_dim, spelling)


class Recognition(Task):
    """A grid encoder and a head."""

    stem_features: Tensor
    """Of the batch that the encoder saw last."""

    def __init__(self, stage: RecognitionStage, run: Run) -> None:
        self.stage, self.device, self.root = stage, run.device, run.root
        self.config = run.model.config.vision_config
        self.cut = Wordpieces(run.processor.tokenizer)
        embeddings = run.model.get_input_embeddings()
        assert isinstance(embeddings, nn.Embedding)
        table = embeddings.weight.detach()
        self.table = table.to(torch.bfloat16 if stage.bf16 else torch.float32)
        self.encoder = GridEncoder(self.config)
        self.head = recognition_head(run)
        self.stem_head = None
        if isinstance(stem := self.encoder.patch_embed, ConvStem):
            self.stem_head = StemHead(self.config.stem_channels[-1])
            stem.steps.register_forward_hook(lambda _, __, features: setattr(self, "stem_features", features))
        elif stage.stem_only:
            raise ValueError(f'stem_only: expected an encoder with the stem "conv"; got "{self.config.stem}"')
        if "recognition" in run.learner:
            self.encoder.load_state_dict(run.model.model.vision_tower.grid_encoder.state_dict())
            self.head.load_state_dict(run.learner["recognition"])
            if self.stem_head is not None and "stem" in run.learner:
                self.stem_head.load_state_dict(run.learner["stem"])
        else:
            start_encoder(self.encoder)
        # A crop may stand anywhere on a page: its places say nothing of those of a page.
        self.encoder.pos_embed.requires_grad_(stage.side == self.config.image_size)
        parts = {"encoder": self.encoder, "head": self.head, "stem": self.stem_head}
        self.module = nn.ModuleDict({name: part for name, part in parts.items() if part is not None}).to(run.device)
        self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch leaves it out of its stubs
        self.generator = torch.Generator()

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        trained: nn.Module = self.module
        if self.stage.stem_only:
            assert isinstance(self.encoder.patch_embed, ConvStem) and self.stem_head is not None
            trained = nn.ModuleList([self.encoder.patch_embed.steps, self.stem_head])
        return [([each for each in trained.parameters() if each.requires_grad], self.stage.learning_rate)]

    def _sources(self, shares: Mapping[str, float], validation: bool) -> Sources:
        folder = None if self.stage.pdf_folder is None else self.root / Path(self.stage.pdf_folder)
        return Sources(shares, "validation" if validation else "train", folder, self.stage.worn)

    def _batches(self, shares: Mapping[str, float], start: int = 0, *, validation: bool = False) -> CropBatches:
        stage, seed = self.stage, (self.stage.seed, int(validation))
        return CropBatches(
            self._sources(shares, validation), seed, stage.batch_size, stage.per_page, stage.side,
            (stage.least_print, stage.most_print), self.config.patch_size, self.cut, start,
        )  # fmt: skip

    def pages(self, start: int) -> CropBatches:
        return self._batches(self.stage.pages, start)

    def losses(self, step: int, batch: Crops) -> dict[str, Tensor]:
        if self.stage.stem_only:
            loss = character_loss(self.read_with_stem(batch), self._cells(batch))
            return {"loss": loss, "stem": loss.detach()}
        self.generator.manual_seed(self.stage.seed * 1_000_003 + step)
        named, targets = self.read(batch, settled=step >= self.stage.settled)
        losses = {
            "characters": character_loss(named.characters, targets.characters),
            "count": count_loss(named.pieces.count, targets.pieces),
            "halves": half_loss(named.pieces.lower, targets.lower, targets.pieces),
            "pieces": piece_loss(self.head.wordpieces, named.pieces.pieces, targets.pieces, self.table, self.generator),
        }
        if self.stem_head is not None:
            losses["stem"] = character_loss(self.stem_head(self.stem_features), targets.characters)
        total = sum(WEIGHTS[name] * loss for name, loss in losses.items())
        assert isinstance(total, Tensor)
        return {"loss": total, **{name: loss.detach() for name, loss in losses.items()}}

    def _images(self, batch: Crops) -> Tensor:
        return batch.pixels.to(self.device).contiguous(memory_format=torch.channels_last)

    def _cells(self, batch: Crops) -> Tensor:
        return batch.text.to(self.device).cells(len(batch.pixels), self.stage.side // self.config.patch_size)

    def read_with_stem(self, batch: Crops) -> Tensor:
        """Logits [B, G, G, CELLS, CLASSES] of characters by the stem alone."""
        assert isinstance(self.encoder.patch_embed, ConvStem) and self.stem_head is not None
        logits: Tensor = self.stem_head(self.encoder.patch_embed.steps(self._images(batch)))
        return logits

    def read(self, batch: Crops, *, settled: bool = True) -> tuple[Named, Targets]:
        """What the head says of a batch's patches, and what it should say; `settled`: see `RecognitionStage`."""
        named: Named = self.head(self.encoder(self._images(batch)).permute(0, 2, 3, 1))
        text = batch.text.to(self.device)
        side = named.characters.shape[1]
        patches = text.placed_by(named.pieces, self.head.wordpieces, self.table) if settled else text.nearby(side)[:, 0]
        return named, text.targets(len(batch.pixels), side, patches)

    @cached_property
    def _unseen(self) -> dict[str, list[Crops]]:
        makers = {name: self._batches({name: 1.0}, validation=True) for name in self.stage.pages}
        return {name: [maker.batch(n) for n in range(EVALUATED_BATCHES)] for name, maker in makers.items()}

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        scores: dict[str, float] = {}
        self.module.eval()
        for name, batches in self._unseen.items():
            counts = torch.stack([self._right(batch) for batch in batches]).sum(0)
            shares = counts[:, 0] / counts[:, 1].clamp(min=1)
            scores |= {f"{name}: {what}": float(share) for what, share in zip(MEASURED, shares, strict=False)}
        self.module.train()
        return scores

    def _right(self, batch: Crops) -> Tensor:
        """[3, 2] how many of `MEASURED` are right, and how many there are; of the first alone [1, 2] for the stem."""
        if self.stage.stem_only:
            cells = self._cells(batch)
            filled = cells > 0
            return torch.stack((((self.read_with_stem(batch).argmax(-1) == cells) & filled).sum(), filled.sum()))[None]
        named, targets = self.read(batch)
        filled, pieces = targets.characters > 0, targets.pieces
        rights = [((named.characters.argmax(-1) == targets.characters) & filled).sum()]
        known = pieces >= 0
        best = pieces.new_full(pieces.shape, -1)
        head = self.head.wordpieces
        best[known] = head.logits(named.pieces.pieces[known], head.rows(self.table), head.scale).argmax(-1)
        rights.append(((best == pieces) & known).sum())
        holds, clear = known.any(-1), ~(pieces == -2).any(-1)
        counted = named.pieces.count.argmax(-1) == known.sum(-1)
        rights.append(((best == pieces).all(-1) & counted & holds & clear).sum())
        totals = [filled.sum(), known.sum(), (holds & clear).sum()]
        return torch.stack((torch.stack(rights), torch.stack(totals)), 1)

    def finish(self, run: Run) -> None:
        core = run.model.model
        core.vision_tower.grid_encoder.load_state_dict(self.encoder.state_dict())
        run.learner["recognition"] = self.head.state_dict()
        if self.stem_head is not None:
            run.learner["stem"] = self.stem_head.state_dict()
        if isinstance(core.bridge, WordpieceBridge) and not self.stage.stem_only:
            hand_over(self.head.wordpieces, core.bridge, core.vision_tower.saccade_projection)


@torch.no_grad()
def start_encoder(encoder: GridEncoder) -> None:
    """Lets features begin as what the stem says, as far as they have room for it: what is added has to be learnt."""
    nn.init.zeros_(encoder.pos_embed)
    if isinstance(stem := encoder.patch_embed, ConvStem):
        for block in stem.steps:
            if isinstance(block, WideBlock):
                nn.init.zeros_(block.pwconv2.weight)
                nn.init.zeros_(block.pwconv2.bias)
        if stem.projection.kernel_size == (2, 2):
            nn.init.orthogonal_(stem.projection.weight)
            assert stem.projection.bias is not None
            nn.init.zeros_(stem.projection.bias)
    for layer in encoder.layers:
        assert isinstance(layer, GridLayer)
        for last in (layer.attn.proj, layer.mlp.lin2):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
    nn.init.orthogonal_(encoder.neck.conv1.weight)
    nn.init.dirac_(encoder.neck.conv2.weight)


@torch.no_grad()
def hand_over(head: WordpieceHead, bridge: WordpieceBridge, projection: nn.Linear) -> None:
    """Makes a bridge name the wordpieces that a head names, before it has learnt anything itself.

    The projection [D', C] copies the C features of a patch and leaves the other channels at zero, and the bridge's head
    reads those C.

    Args:
        head: on features.
        bridge: whose head reads projected features.
        projection: from features to what the bridge reads.
    """
    channels = projection.in_features
    projection.weight.copy_(torch.eye(projection.out_features, channels))
    for name in ("count", "pieces", "lower"):
        own, trained = getattr(bridge.head, name), getattr(head, name)
        own.weight.zero_()
        own.weight[:, :channels] = trained.weight
        own.bias.copy_(trained.bias)
    bridge.head.scale.copy_(head.scale)
    if bridge.head.spelling is not None and head.spelling is not None:
        bridge.head.spelling.load_state_dict(head.spelling.state_dict())


MEASURED = ("characters", "wordpieces", "patches")
"""Shares of right names among cells with a character, slots with a wordpiece, and patches where wordpieces begin: all
of them, and no more."""
