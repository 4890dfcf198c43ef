"""Ask a model every question with every strategy; count what it got right and what it fetched.

Notation: M base tokens, K saccades. Every image is encoded once for all of its questions and all strategies.
"""

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tqdm import tqdm

from ..data.images import HeldImage, opened
from ..data.records import Record
from ..metrics import METRICS, patch_recall
from ..modeling.allocators import ALLOCATORS
from ..modeling.configuration_arr_coc import resolve_budget
from ..modeling.image_processing_arr_coc import boxes_to_patches
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration, ImageEncoding
from ..version import __version__
from .statistics import bootstrap_mean, wilson

MAX_NEW_TOKENS = 32
"""Tokens of an answer where the checkpoint's generation config does not say."""


class Tally:
    """What one strategy did, question by question."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.scores: list[float] = []
        self.images: list[int] = []
        self.recalls: list[float] = []
        self.recall_images: list[int] = []
        self.tokens: list[int] = []

    def add(self, score: float, tokens: int, recall: float | None, image: int) -> None:
        self.scores.append(score)
        self.images.append(image)
        self.tokens.append(tokens)
        if recall is not None:
            self.recalls.append(recall)
            self.recall_images.append(image)

    def summary(self) -> dict[str, Any]:
        """`recall` is None where no question came with boxes."""
        if METRICS[self.metric].graded:
            score = bootstrap_mean(self.scores, groups=self.images)
        else:
            score = wilson(round(sum(self.scores)), len(self.scores))
        recall = bootstrap_mean(self.recalls, groups=self.recall_images) if self.recalls else None
        return {
            self.metric: asdict(score),
            "recall": None if recall is None else asdict(recall),
            "tokens": float(np.mean(self.tokens)),
            "n": len(self.scores),
        }


def evaluate(
    model: ArrCocForConditionalGeneration,
    records: Sequence[Record],
    strategies: Sequence[str],
    *,
    batch_size: int = 32,
    budget: int | str | None = None,
    allocator: str | None = None,
    seed: int | None = None,
    metric: str = "exact_match",
    data: str | Path | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Greedy answers to all questions, by each strategy, and how good they are.

    Args:
        model: with a processor.
        records: the questions; "oracle" needs boxes in all of them, and fetches what they and the labels' boxes cover.
        strategies: names of scorers.
        batch_size: questions answered at a time, and images encoded at a time.
        budget, allocator: for every strategy; the checkpoint's by default.
        seed: for "random": None draws for each image and question by itself, whatever the batch.
        metric: of `METRICS`.
        data: where the records come from, for the report.
        progress: show a progress bar (on standard error).

    Returns:
        {"strategies": {name: {metric: {"value", "low", "high"}, "recall": the same or None, "tokens": mean image tokens
        per question, "n": questions}}, "metric", "model", "data", "budget", "allocator", "seed", "date", "versions",
        "machine"}. Intervals are 95 %: Wilson's where an answer is right or wrong; for graded scores and for recall
        (over the questions with boxes) a bootstrap that draws whole images.

    Raises:
        ValueError: no records, an unknown strategy, metric, allocator or budget, "oracle" without boxes, an unreadable
            image, answers that the metric cannot score.
    """
    tallies = tally(
        model, records, strategies, batch_size=batch_size, budget=budget, allocator=allocator, seed=seed, metric=metric,
        progress=progress,
    )  # fmt: skip
    summaries = {strategy: one.summary() for strategy, one in tallies.items()}
    return {"strategies": summaries, "metric": metric, **_circumstances(model, budget, allocator, seed, data)}


def tally(
    model: ArrCocForConditionalGeneration,
    records: Sequence[Record],
    strategies: Sequence[str],
    *,
    batch_size: int = 32,
    budget: int | str | None = None,
    allocator: str | None = None,
    seed: int | None = None,
    metric: str = "exact_match",
    progress: bool = True,
) -> dict[str, Tally]:
    """What each strategy did, question by question; the same records in the same order each time. See `evaluate`."""
    strategies = list(dict.fromkeys(strategies))
    METRICS.named(metric)
    _check(model, records, strategies, batch_size, budget, allocator)
    settings: dict[str, Any] = {"budget": budget, "allocator": allocator, "do_sample": False}
    if model.generation_config.max_new_tokens is None:
        settings["max_new_tokens"] = MAX_NEW_TOKENS
    tallies = {strategy: Tally(metric) for strategy in strategies}
    draws = {name: None if seed is None else torch.Generator().manual_seed(seed) for name in strategies}
    was_training = model.training
    model.eval()
    try:
        with tqdm(total=len(records) * len(strategies), unit="answer", disable=not progress) as bar:
            for batch, index, encoding in _encoded_batches(model, records, batch_size):
                for strategy in strategies:
                    _answer(model, batch, index, encoding, strategy, tallies[strategy], settings, draws[strategy])
                    bar.update(len(batch))
    finally:
        model.train(was_training)
    return tallies


def _check(
    model: ArrCocForConditionalGeneration,
    records: Sequence[Record],
    strategies: list[str],
    batch_size: int,
    budget: int | str | None,
    allocator: str | None,
) -> None:
    """Everything that would otherwise fail only after the first strategies have run."""
    if not records or not strategies:
        raise ValueError(f"expected records and strategies; got {len(records)} records, {len(strategies)} strategies")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1; got {batch_size}")
    for strategy in strategies:
        model.model.fetcher.check_strategy(strategy)
    if allocator is not None:
        ALLOCATORS.named(allocator)
    resolve_budget(budget, model.config.vision_config.num_patches, model.config.fetcher_config.budget)
    bare = [record.line for record in records if not record.boxes]
    if "oracle" in strategies and bare:
        expected = 'strategy "oracle": expected boxes in every record'
        raise ValueError(f"{expected}; got {len(bare)} without, e.g. line {bare[0]}")


def _encoded_batches(
    model: ArrCocForConditionalGeneration, records: Sequence[Record], batch_size: int
) -> Iterator[tuple[list[Record], list[int], ImageEncoding]]:
    """Batches of questions, the number of each one's image, and its encoding; every image is encoded once."""
    by_image: dict[Path | HeldImage, list[Record]] = {}
    for record in records:
        by_image.setdefault(record.image, []).append(record)
    group: list[Path | HeldImage] = []
    for number, image in enumerate(by_image):
        group.append(image)
        if number + 1 < len(by_image) and sum(len(by_image[one]) for one in group) < batch_size:
            continue
        encoding = model.encode_image([opened(one) for one in group])
        first = number + 1 - len(group)
        asked = [(first + i, i, record) for i, one in enumerate(group) for record in by_image[one]]
        for start in range(0, len(asked), batch_size):
            batch = asked[start : start + batch_size]
            slots = torch.tensor([slot for _, slot, _ in batch])
            yield [record for *_, record in batch], [index for index, *_ in batch], encoding.select(slots)
        group = []


def _answer(
    model: ArrCocForConditionalGeneration,
    batch: list[Record],
    images: list[int],
    encoding: ImageEncoding,
    strategy: str,
    tally: Tally,
    settings: dict[str, Any],
    generator: torch.Generator | None,
) -> None:
    boxes = [(*record.boxes, *record.label_boxes) for record in batch] if strategy == "oracle" else None
    answers = model.generate(
        encoding, [record.question for record in batch], strategy=strategy, boxes=boxes, return_fetch=True,
        generator=generator, **settings,
    )  # fmt: skip
    base = encoding.tokens.shape[1]
    for i, (record, image, answer) in enumerate(zip(batch, images, answers, strict=True)):
        recall = None
        if record.boxes:
            recall = patch_recall(answer.fetch.indices[0].tolist(), _boxed(model, record, encoding, i))
        score = float(METRICS[tally.metric].score(answer.text, record.answers))
        tally.add(score, base + answer.fetch.budget, recall, image)


def _boxed(model: ArrCocForConditionalGeneration, record: Record, encoding: ImageEncoding, i: int) -> np.ndarray:
    """bool [G, G]: the patches under the record's boxes."""
    assert encoding.source_sizes is not None  # the images were given as files
    mapped = model.processor.image_processor.map_boxes(record.boxes, *encoding.source_sizes[i])
    boxed = boxes_to_patches(mapped, encoding.side, model.config.vision_config.patch_size)
    if not boxed.any():
        raise ValueError(f"line {record.line}: boxes: expected boxes that reach into the image; got {record.boxes}")
    return boxed


def shown(source: str) -> str:
    """A folder's path from here where it lies below, else its name: results are published, home folders are not."""
    path = Path(source)
    if not path.is_absolute():
        return source
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name


def _circumstances(
    model: ArrCocForConditionalGeneration,
    budget: int | str | None,
    allocator: str | None,
    seed: int | None,
    data: str | Path | None,
) -> dict[str, Any]:
    """What the numbers depend on, and when and where they were made."""
    fetcher, patches = model.config.fetcher_config, model.config.vision_config.num_patches
    return {
        "model": shown(model.config._name_or_path),
        "data": None if data is None else str(data),
        "budget": resolve_budget(budget, patches, fetcher.budget),
        "allocator": fetcher.allocator if allocator is None else allocator,
        "seed": seed,
        **environment(model.device),
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Date, versions and machine."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "arr_coc": __version__,
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "machine": {"system": platform.system(), "device": f"{device.type}: {name}", "cpus": os.cpu_count()},
    }
