"""The stage that trains the scorer of a reader of a published model; the model itself does not change."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..attached import AttachedReader
from ..attached.encoding import AttachedEncoding
from ..attached.reader import BUDGET, load_reader
from ..attached.scoring import TrainedScorer, most_relevant, new_scorer, relevance_of_boxes, scorer_loss, token_scores
from ..data.formats import open_records
from ..data.records import HeldImage, Record, opened
from ..evaluation.answers import all_boxes
from ..files import ADAPTER
from ..modeling.configuration_arr_coc import ArrCocFetcherConfig
from ..modeling.image_processing_arr_coc import Box
from .optimizers import adamw
from .stages import STAGES, Loop, Run, Stage

TEACHERS = ("boxes", "attention")


@STAGES.register("attached_scorer")
@dataclass(frozen=True)
class AttachedScorerStage(Stage):
    """Settings of the stage.

    Attributes:
        data: the training data, see `arr_coc.data.formats.open_records`.
        held_out: the data of measurements; None: no measurements.
        teacher: "boxes": tokens under the boxes of the answer and its label are relevant; without boxes the model's own
            attention to all image tokens is the target; "attention": always the attention.
        steps, warmup: optimiser steps, and those over which the learning rate rises.
        batch_size: questions per step.
        learning_rate, weight_decay: of AdamW.
        evaluate_every: steps between measurements and checkpoints.
        kept: encodings of images that are kept for later questions.
        seed: of the order of questions, and of a new scorer's weights.
    """

    from_scratch: ClassVar[bool] = True

    data: Mapping[str, Any] = field(default_factory=lambda: {"format": "rendered"})
    held_out: Mapping[str, Any] | None = None
    teacher: str = "boxes"
    steps: int = 1000
    warmup: int = 100
    batch_size: int = 4
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    evaluate_every: int = 200
    kept: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher not in TEACHERS:
            raise ValueError(f"teacher: expected one of {', '.join(TEACHERS)}; got {self.teacher!r}")
        self.check_counts("steps", "batch_size", "evaluate_every", "kept")

    def run(self, run: Run, folder: Path) -> None:
        """Refuses our own models: their scorers are trained by phases.

        Raises:
            ValueError: always.
        """
        raise ValueError("attached_scorer: expected a published model alone with such stages; got an ARR-COC model")

    def train(
        self, reader: AttachedReader, folder: Path, *, root: Path = Path("."), config: ArrCocFetcherConfig | None = None
    ) -> None:
        """Trains the reader's scorer, a new one if it has none, or resumes a killed run.

        Args:
            reader: attached to the model.
            folder: for checkpoints and the curve of losses.
            root: the folder that paths in the data are relative to.
            config: of a new scorer: `hidden_size`, `num_heads`, `num_layers` and other fields of the realizer.

        Raises:
            ValueError: no questions, images or boxes that cannot be used, or checkpoints of another run.
        """
        records = open_records(self.data, folder=root)
        held_out = [] if self.held_out is None else open_records(self.held_out, folder=root)
        if not len(records):
            raise ValueError("data: expected at least one question; got none")
        if reader.scorer is None:
            own = new_scorer(config or ArrCocFetcherConfig(), reader.width, self.seed)
            reader.scorer = own.to(reader.model.device)
        scorer = reader.scorer

        @lru_cache(maxsize=self.kept)
        def encoded(images: tuple[Path | HeldImage, ...]) -> AttachedEncoding:
            return reader.encode_image([[opened(image) for image in images]], prefix=False)

        def loss_of(record: Record) -> Tensor:
            encoding = encoded(record.images)
            boxes = _boxes(record, encoding) if self.teacher == "boxes" and record.located else None
            return scorer_loss(reader, scorer, encoding, record.question, boxes, record.history)

        def losses(step: int) -> Iterator[dict[str, Tensor]]:
            drawn = random.Random(f"{self.seed} {step}").choices(range(len(records)), k=self.batch_size)
            scorer.train()
            yield {"loss": torch.stack([loss_of(records[place]) for place in drawn]).mean()}

        @torch.no_grad()
        def measure() -> dict[str, float]:
            """The mean loss, and the recall of the tokens under boxes at the default budget."""
            scorer.eval()
            named = defaultdict[str, list[float]](list)
            for record in held_out:
                named["loss"].append(loss_of(record).item())
                if record.boxes:
                    named["boxes found"].append(_found(reader, scorer, encoded(record.images), record))
            return {name: sum(values) / len(values) for name, values in named.items()}

        optimizer = adamw([([*scorer.parameters()], self.learning_rate)], self.weight_decay, scorer)
        schedule = (self.steps, min(self.warmup, self.steps - 1), self.evaluate_every)
        loop = Loop("attached_scorer", scorer, optimizer, folder / "attached_scorer", *schedule)
        try:
            if (first := loop.resume()) < self.steps:
                loop.run(first, losses, measure)
        finally:
            scorer.eval()


def _found(reader: AttachedReader, scorer: TrainedScorer, encoding: AttachedEncoding, record: Record) -> float:
    """The share of the tokens under a record's boxes that the scorer fetches at the default budget."""
    (prompt,) = encoding.prompts
    relevance = relevance_of_boxes(prompt, _boxes(record, encoding))
    scores = token_scores(scorer, prompt, reader.query(record.question))
    count = max(1, round(BUDGET * len(prompt)) - len(prompt.base))
    chosen = most_relevant(scores, prompt.is_place, count).cpu()
    return float(relevance[chosen].sum() / relevance.sum().clamp(min=1e-6))


def _boxes(record: Record, encoding: AttachedEncoding) -> list[list[Box]]:
    """The boxes of the answer and its label, a list for each image of the prompt, px."""
    return [all_boxes(record, source) for source in range(len(encoding.prompts[0].sources))]


def begin_attached(model: Path, root: Path, start: Path | None, device: str) -> AttachedReader:
    """A reader of a recipe's published model, with the scorer in the start folder.

    Args:
        model: a folder; or the path that `root` and a name on the Hub would make.
        root: the recipe's folder.
        start: the folder of an earlier run, or None.

    Raises:
        ValueError: not a published model, or no scorer of this model in `start`.
    """
    name = str(model) if model.is_dir() else model.relative_to(root).as_posix()
    reader = load_reader(name, device)
    if reader is None:
        raise ValueError(f"model: expected a published model for the stage attached_scorer; got {name}")
    if start is not None:
        if not (start / ADAPTER).is_file():
            raise ValueError(f"start: expected a folder with {ADAPTER}, a trained scorer; got {start}")
        reader.load_adapter(start / ADAPTER)
    return reader
