"""The stage that trains the scorer of a reader of a published model; the model itself does not change."""

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..attached import AttachedReader
from ..attached.encoding import AttachedEncoding
from ..attached.reader import BUDGET
from ..attached.scoring import TrainedScorer, most_relevant, new_scorer, relevance_of_boxes, scorer_loss, token_scores
from ..data.formats import open_records
from ..data.records import HeldImage, Record, opened
from ..evaluation.answers import all_boxes
from ..modeling.configuration_arr_coc import ArrCocFetcherConfig
from ..modeling.image_processing_arr_coc import Box
from .stages import STAGES, Loop, Run, ScratchStage, Task

TEACHERS = ("boxes", "attention")


@STAGES.register("attached_scorer")
@dataclass(frozen=True)
class AttachedScorerStage(ScratchStage):
    """Settings of the stage."""

    name: ClassVar[str] = "attached_scorer"

    # The training data, see `arr_coc.data.formats.open_records`.
    data: Mapping[str, Any] = field(default_factory=lambda: {"format": "rendered"})
    held_out: Mapping[str, Any] | None = None  # the data of measurements; None: no measurements
    # "boxes": tokens under the boxes of the answer and its label are relevant; without boxes the model's own attention
    # to all image tokens is the target; "attention": always the attention.
    teacher: str = "boxes"
    steps: int = 1000
    batch_size: int = 4  # questions per step
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    bf16: bool = False
    workers: int = 0
    kept: int = 8  # encodings of images that are kept for later questions

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher not in TEACHERS:
            raise ValueError(f"teacher: expected one of {', '.join(TEACHERS)}; got {self.teacher!r}")
        self.check_counts("steps", "batch_size", "evaluate_every", "kept")

    def task(self, run: Run) -> "AttachedScoring":
        return AttachedScoring(self, run.model, run.root)

    def run(self, run: Run, folder: Path) -> None:
        reader: Any = run.model
        self.train(reader, folder, root=run.root)

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
        if reader.scorer is None:
            scorer = new_scorer(config or ArrCocFetcherConfig(), reader.width, self.seed)
            reader.scorer = scorer.to(reader.model.device)
        try:
            Loop(self, AttachedScoring(self, reader, root), folder / self.name).run()
        finally:
            reader.scorer.eval()


class AttachedScoring(Task):
    """The scorer of a reader; its model does not change."""

    stage: AttachedScorerStage
    module: TrainedScorer

    def __init__(self, stage: AttachedScorerStage, reader: Any, root: Path) -> None:
        self.stage, self.reader, self.module = stage, reader, reader.scorer
        self.records = open_records(stage.data, folder=root)
        self.held_out = [] if stage.held_out is None else open_records(stage.held_out, folder=root)
        if not len(self.records):
            raise ValueError("data: expected at least one question; got none")
        self.encoded = lru_cache(maxsize=stage.kept)(self._encoded)

    def _encoded(self, images: tuple[Path | HeldImage, ...]) -> AttachedEncoding:
        return self.reader.encode_image([[opened(image) for image in images]], prefix=False)

    def _loss(self, record: Record) -> Tensor:
        encoding = self.encoded(record.images)
        boxes = _boxes(record, encoding) if self.stage.teacher == "boxes" and record.located else None
        return scorer_loss(self.reader, self.module, encoding, record.question, boxes, record.history)

    def losses(self, step: int, batch: int) -> dict[str, Tensor]:
        stage, among = self.stage, range(len(self.records))
        drawn = random.Random(f"{stage.seed} {step}").choices(among, k=stage.batch_size)
        self.module.train()
        return {"loss": torch.stack([self._loss(self.records[place]) for place in drawn]).mean()}

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """The mean loss, and the recall of the tokens under boxes at the default budget."""
        self.module.eval()
        named = defaultdict[str, list[float]](list)
        for record in self.held_out:
            named["loss"].append(self._loss(record).item())
            if record.boxes:
                found = _found(self.reader, self.module, self.encoded(record.images), record)
                named["boxes found"].append(found)
        return {name: sum(values) / len(values) for name, values in named.items()}


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
