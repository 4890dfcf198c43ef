"""Stage: the convolutional stem and the text reader learn which characters stand where.

Of each column of a half row of patches they say whether text covers it, how far away the middle of its line is, and
which character it shows. The characters of a word are trained by connectionist temporal classification: no column has
to be told where one character ends and the next begins.

Notation: B crops, G side of their grid, R half rows (2G) and W columns (16G) of it, T columns of a word.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.modeling.grid_encoder import ConvStem, WideBlock
from arr_coc.modeling.wordpieces import CELL_COLUMNS, CHARACTERS, COLUMNS, Lines, TextReader, Word

from ..stages import STAGES, Run, ScratchStage, Task
from .pages import POOL, CropBatches, Crops, Sources
from .targets import Print, spelled

WEIGHTS = {"characters": 1.0, "middle": 1.0, "present": 2.0}  # of the losses in their sum
GAP_WEIGHT = 3.0  # of columns within half a patch beside text, which separate words, in the loss of where text stands
NARROWEST = COLUMNS / 8  # columns of a word's mean character, at least: narrower print is not trained on
LENGTHS = 5  # groups of words by length that a loss is computed in: short words are not padded to the longest
EVALUATED_BATCHES = 3  # batches of held-out crops of each source that a measurement reads
EVALUATED_CROPS, EVALUATED_POOL = 1, 16  # crops of a held-out page, on average, and pages of a batch of them


def line_losses(lines: Lines, text: Print) -> dict[str, Tensor]:
    """Of where text stands: cross-entropy of "present", and smooth distances of the "middle" of lines, in half rows."""
    over = text.over(len(lines.present), lines.present.shape[1] // 2)
    covered = over >= 0
    reach = F.max_pool2d(covered.float(), (1, COLUMNS + 1), 1, (0, COLUMNS // 2))
    weight = 1 + (GAP_WEIGHT - 1) * (reach - covered.float())
    losses = {"present": F.binary_cross_entropy_with_logits(lines.present.float(), covered.float(), weight)}
    if not covered.any():
        return losses | {"middle": lines.middles.float().sum() * 0}
    wanted = text.middle[over[covered]] * 2 - covered.nonzero()[:, 1] - 0.5
    return losses | {"middle": F.smooth_l1_loss(lines.middles[covered].float(), wanted, beta=0.25)}


class _Extents(NamedTuple):
    """Where words stand: [m] each.

    Attributes:
        crop: of each word; `start`, `length`: of its characters in `Print`.
        column, columns: the first column, one before the word, and their number up to one behind it.
        row, rows: the first half row whose middle the word covers, and their number.
    """

    crop: Tensor
    start: Tensor
    length: Tensor
    column: Tensor
    columns: Tensor
    row: Tensor
    rows: Tensor

    def select(self, chosen: Tensor) -> "_Extents":
        return _Extents(*(values[chosen] for values in self))


def _extents(text: Print, tall: int, wide: int) -> _Extents:
    """Of the words whose characters have room in their columns."""
    _, count = text.word.unique_consecutive(return_counts=True)
    end = count.cumsum(0)
    start = end - count
    first, last = text.covered()
    column, row = first[start, 0].sub(1).clamp(0, wide - 1), first[start, 1].clamp(0, tall - 1)
    columns = last[end - 1, 0].add(1).clamp(0, wide - 1) - column + 1
    rows = last[start, 1].clamp(0, tall - 1) - row + 1
    again = torch.zeros_like(text.character)
    again[1:] = (text.character[1:] == text.character[:-1]) & (text.word[1:] == text.word[:-1])
    repeats = again.cumsum(0)
    needed = count + repeats[end - 1] - repeats[start]  # a blank between equal neighbours
    width = (text.box[end - 1, 2] - text.box[start, 0]) * COLUMNS
    fits = (columns >= needed) & (rows > 0) & (width >= NARROWEST * count)
    return _Extents(text.crop[start], start, count, column, columns, row, rows).select(fits)


def _columns(stem: Tensor, words: _Extents, reader: TextReader) -> Tensor:
    """Logits [t, classes] of the columns of all words, one word after the other. The features [B, C, R, R] of the stem
    are averaged over the half rows of each word, as `TextReader.words` does."""
    tall = stem.shape[2]
    first = words.column // CELL_COLUMNS
    cells = (words.column + words.columns - 1) // CELL_COLUMNS - first + 1
    begins = cells.cumsum(0) - cells
    word, across = _ranges(cells)
    features = stem.new_zeros(len(word), stem.shape[1], dtype=torch.float32)
    flat = stem.permute(0, 2, 3, 1).flatten(0, 2)
    for row in range(int(words.rows.amax())):
        some = (row < words.rows[word]).nonzero()[:, 0]
        owner = word[some]
        at = (words.crop * tall + words.row + row)[owner] * stem.shape[3] + first[owner] + across[some]
        features = features.index_add(0, some, flat[at].float())
    logits = reader.characters((features / words.rows[word, None]).to(stem.dtype)).flatten(0, 1)
    owner, column = _ranges(words.columns)
    return logits[begins[owner] * CELL_COLUMNS + words.column[owner] % CELL_COLUMNS + column].float()


def _ranges(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Of the numbers 0 to n - 1 for each n in `counts` [m], one behind the other: which of the m each belongs to, and
    the numbers."""
    owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    return owner, torch.arange(len(owner), device=counts.device) - (counts.cumsum(0) - counts)[owner]


def word_loss(stem: Tensor, text: Print, reader: TextReader) -> Tensor:
    """Negative log likelihood of words, per character, that the reader predicts from features [B, C, R, R]."""
    tall, wide = stem.shape[2], stem.shape[3] * CELL_COLUMNS
    words = _extents(text, tall, wide)
    if not len(words.start):
        return stem.float().sum() * 0
    logits, begins = _columns(stem, words, reader), words.columns.cumsum(0) - words.columns
    losses = []
    for part in words.columns.argsort().tensor_split(LENGTHS):
        if not len(part):
            continue
        some = words.select(part)
        at = begins[part, None] + torch.arange(int(some.columns.amax()), device=stem.device)  # [m, T]
        log_probabilities = logits[at.clamp(max=len(logits) - 1)].log_softmax(-1).transpose(0, 1)
        ranges = [text.character[s : s + n] for s, n in zip(some.start.tolist(), some.length.tolist(), strict=True)]
        losses.append(
            F.ctc_loss(
                log_probabilities, torch.cat(ranges), some.columns, some.length, reduction="none", zero_infinity=True
            ).sum()
        )
    return torch.stack(losses).sum() / words.length.sum()


@STAGES.register("recognition")
@dataclass(frozen=True)
class RecognitionStage(ScratchStage):
    """Settings of the stage."""

    name: ClassVar[str] = "recognition"
    leaves_whole: ClassVar[bool] = False

    batch_size: int = 16  # crops per step
    side: int = 256  # of a crop, px; a multiple of 4 patches
    per_page: int = 8  # crops that are cut of a page, on average
    # How often each source comes up, see `Sources`.
    pages: Mapping[str, float] = field(default_factory=lambda: {"generated": 1.0})
    pdf_folder: str | None = None  # of cached PDF pages, see `Sources`
    real_folder: str | None = None  # of real scans
    worn: float = 0.2  # share of worn pages
    # Height of a line's characters on crops, px: small print is hard to begin with.
    least_print: float = 7.0
    most_print: float = 24.0
    learning_rate: float = 1e-3
    warmup: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_shares("worn")
        self.check_counts("batch_size", "side", "per_page")
        if not 0 < self.least_print <= self.most_print:
            raise ValueError(f"least_print: expected 0 < least <= most; got {self.least_print}, {self.most_print}")

    def task(self, run: Run) -> "Recognition":
        return Recognition(self, run)


class Recognition(Task):
    """The convolutional stem of the grid encoder, and the text reader."""

    stage: RecognitionStage

    def __init__(self, stage: RecognitionStage, run: Run) -> None:
        self.stage, self.device, self.root = stage, run.device, run.root
        tower = run.model.model.vision_tower
        if tower.text_reader is None:
            raise ValueError(f'bridge_config.kind: expected "wordpieces"; got "{run.model.config.bridge_config.kind}"')
        assert isinstance(tower.grid_encoder.patch_embed, ConvStem), "the configuration sees to it"
        self.reader, self.patch = tower.text_reader, tower.config.patch_size
        self.stem = tower.grid_encoder.patch_embed.steps
        if not self.reader.spellings.any():  # of a model that has read nothing yet: its wide blocks begin as nothing
            for block in self.stem:
                if isinstance(block, WideBlock):
                    nn.init.zeros_(block.pwconv2.weight)
                    nn.init.zeros_(block.pwconv2.bias)
        self.reader.spellings.copy_(spelled(run.processor.tokenizer, len(self.reader.spellings)))
        parts = {"stem": self.stem, "lines": self.reader.line_head, "characters": self.reader.character_head}
        self.module = nn.ModuleDict(parts).float().to(run.device)
        self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch leaves it out of its stubs

    def _batches(self, shares: Mapping[str, float], start: int = 0, *, validation: bool = False) -> CropBatches:
        stage = self.stage
        pdf, real = (name and self.root / name for name in (stage.pdf_folder, stage.real_folder))
        sources = Sources(shares, "validation" if validation else "train", pdf or None, stage.worn, real or None)
        seed, pool = (stage.seed, int(validation)), POOL
        if validation:
            stage, pool = replace(stage, per_page=EVALUATED_CROPS), EVALUATED_POOL
        return CropBatches(sources, seed, stage, self.patch, start, pool)

    def pages(self, start: int) -> CropBatches:
        return self._batches(self.stage.pages, start)

    def features(self, batch: Crops) -> Tensor:
        """[B, C, R, R] of the stem."""
        images = batch.pixels.to(self.device).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.stem(images)
        return features

    def losses(self, step: int, batch: Crops) -> dict[str, Tensor]:
        losses = self._losses(self.features(batch), batch.text)
        total = sum(WEIGHTS[name] * loss for name, loss in losses.items())
        assert isinstance(total, Tensor)
        return {"loss": total, **{name: loss.detach() for name, loss in losses.items()}}

    def _losses(self, stem: Tensor, text: Print) -> dict[str, Tensor]:
        text = text.to(self.device)
        return {"characters": word_loss(stem, text, self.reader), **line_losses(self.reader(stem), text)}

    @cached_property
    def _unseen(self) -> dict[str, list[Crops]]:
        makers = {name: self._batches({name: 1.0}, validation=True) for name in self.stage.pages}
        return {name: [maker.batch(n) for n in range(EVALUATED_BATCHES)] for name, maker in makers.items()}

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """The loss of each character, and the share of whole words that are read in place, without a mistake."""
        scores: dict[str, float] = {}
        self.module.eval()
        for name, batches in self._unseen.items():
            losses: list[float] = []
            right: list[bool] = []
            for batch in batches:
                stem = self.features(batch)
                losses.append(float(self._losses(stem, batch.text)["characters"]))
                right += words_right(self.reader.words(stem), batch.text)
            scores[f"{name}: characters"] = sum(losses) / len(losses)
            scores[f"{name}: words"] = sum(right) / max(1, len(right))
        self.module.train()
        return scores


def words_right(pages: Sequence[Sequence[Word]], text: Print) -> Iterator[bool]:
    """Of each whole word whether it is read without a mistake, within half a patch of its place."""
    read = [[(word.text, word.columns[0], word.row) for word in words] for words in pages]
    _, count = text.word.unique_consecutive(return_counts=True)
    start = 0
    for end in count.cumsum(0).tolist():
        if text.whole[start]:
            letters = "".join(CHARACTERS[number - 1] for number in text.character[start:end].tolist())
            x, y = float(text.box[start, ::2].mean()) * COLUMNS, float(text.middle[start]) * 2
            yield any(
                word == letters and abs(column - x) < COLUMNS / 2 and abs(row - y) < 1
                for word, column, row in read[int(text.crop[start])]
            )
        start = end
