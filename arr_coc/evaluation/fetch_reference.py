"""Statistics of a checkpoint's fetching on typical questions. A server compares its traffic with them.

Notation: I image slots, N patches, D language-model width.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.utils.hub import cached_file

from ..data.records import Record, opened
from ..files import read_json, write_json
from ..modeling.fetcher import AS_CONFIGURED
from ..modeling.generation import AnswerGenerator, QuestionBatch
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.prompt import EmbeddedPrompt

REFERENCE = "fetch_reference.json"  # the file's name, beside the weights
BINS = 10  # the number of bins of each statistic; each bin holds equally many of the reference's values


def fetch_statistics(prompt: EmbeddedPrompt) -> dict[str, Tensor]:
    """Statistics of scorer and bridge for each image slot, independent of the budget: [I] float32 by name.

    `relevance_mean`, `relevance_peak`: over the real patches. `relevance_entropy`: entropy of relevance as a
    distribution over them, relative to equal relevance (1). `token_norm`: mean length of the bridge's tokens.
    """
    relevance, mask = prompt.fetch.relevance.float(), prompt.context.patch_mask
    mask = mask if mask.shape == relevance.shape else torch.ones_like(relevance, dtype=torch.bool)  # several views
    relevance = relevance.masked_fill(~mask, 0.0)
    patches = mask.sum(1)
    share = relevance / relevance.sum(1, keepdim=True).clamp(min=1e-12)
    norms = prompt.image_tokens.float().norm(dim=-1)
    return {
        "relevance_mean": relevance.sum(1) / patches,
        "relevance_peak": relevance.amax(1),
        "relevance_entropy": torch.special.entr(share).sum(1) / patches.clamp(min=2).log(),
        "token_norm": norms.sum(1) / (norms > 0).sum(1).clamp(min=1),
    }


@dataclass(frozen=True)
class Distribution:
    """The values of one statistic: their mean, the edges of the bins, and the number of values in each bin."""

    mean: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Distribution":
        """The distribution of `values` in bins of equal counts; repeated values give fewer bins."""
        edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])).tolist()
        bins = [bisect_right(edges, value) for value in values]
        counts = tuple(bins.count(number) for number in range(len(edges) + 1))
        return cls(float(np.mean(values)), tuple(edges), counts)

    def bin(self, value: float) -> int:
        """The index of a value's bin."""
        return bisect_right(self.edges, value)

    def drift(self, counts: Sequence[int]) -> float:
        """The population stability index of other values, counted by bin: 0 for equal shares, unbounded above.

        It is the sum over bins of (q - p) ln(q / p), with half a value added to each bin, so that empty bins can be
        compared.
        """
        p, q = ((np.array(own) + 0.5) / (sum(own) + 0.5 * len(own)) for own in (self.counts, counts))
        return float(((q - p) * np.log(q / p)).sum())


@dataclass(frozen=True)
class FetchReference:
    """A checkpoint's reference statistics."""

    strategy: str
    questions: int  # the number of questions; each counts once per image
    statistics: dict[str, Distribution]  # distributions by name, see `fetch_statistics`

    def save(self, path: Path) -> None:
        """Writes the reference as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "FetchReference":
        """Reads a file written by `save`. Raises ValueError: the file is not a reference."""
        content = read_json(path)
        try:
            statistics = {
                str(name): Distribution(float(own["mean"]), tuple(map(float, own["edges"])), tuple(own["counts"]))
                for name, own in content["statistics"].items()
            }
            whole = cls(str(content["strategy"]), int(content["questions"]), statistics)
            fits = all(len(own.counts) == len(own.edges) + 1 and min(own.counts) >= 0 for own in statistics.values())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}: expected what arr-coc reference writes; got {error!r}") from error
        if not fits:
            raise ValueError(f"{path}: expected a count for each bin; got others")
        return whole


def find_reference(model: ArrCocForConditionalGeneration) -> FetchReference | None:
    """The reference beside a model's weights, in a folder or on the Hub; None if there is none."""
    name = model.config._name_or_path
    if not name:
        return None
    faults = ("gated_repo", "missing_entries", "connection_errors")
    quiet: dict[str, Any] = {f"_raise_exceptions_for_{fault}": False for fault in faults}
    path = cached_file(name, REFERENCE, revision=getattr(model.config, "_commit_hash", None), **quiet)
    return None if path is None else FetchReference.load(Path(path))


@torch.no_grad()
def measure_reference(model: ArrCocForConditionalGeneration, records: Sequence[Record]) -> FetchReference:
    """Measures the statistics on all questions with the model's configuration; embeds prompts, generates no answers.
    Raises ValueError: no records, or an image that cannot be read."""
    if not records:
        raise ValueError("data: expected at least one question; got none")
    values: dict[str, list[float]] = {}
    answer_generator, choices = AnswerGenerator(model, model.processor), model.model.fetcher.resolve(AS_CONFIGURED)
    was_training = model.training
    model.eval()
    try:
        for shown, group in groupby(records, key=lambda record: record.images):  # a batch for the same images
            asked = list(group)
            encoding = answer_generator.encode([[opened(image) for image in shown]], prefix=False)
            questions, histories = [record.question for record in asked], [list(record.history) for record in asked]
            images = [[*range(len(encoding))]] * len(asked)
            prompt = answer_generator.embed(QuestionBatch(encoding, images, questions, choices, histories))
            for name, own in fetch_statistics(prompt).items():
                values.setdefault(name, []).extend(own.tolist())
    finally:
        model.train(was_training)
    distributions = {name: Distribution.of(own) for name, own in values.items()}
    return FetchReference(prompt.fetch.strategy, max(map(len, values.values())), distributions)
