"""Measurements of a run beside its losses.

Notation: I image slots, N patches, K fetched tokens. NaN: unknown for this slot, and left out of means.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from ..metrics import fetch_distances
from ..modeling.configuration_arr_coc import TIERS, scaled_budget
from ..modeling.modeling_arr_coc import ArrCocOutput, relevance_losses
from .losses import real_patches, token_losses


def recall(fetched: Tensor, relevance_targets: Tensor | None) -> Tensor:
    """[I] the share of an image's relevant patches that were fetched (bool [I, N]); NaN if the relevant are unknown.

    `relevance_targets` [I, N] has rows of -1 for unknown patches; None: all are unknown.
    """
    if relevance_targets is None:
        return torch.full((len(fetched),), torch.nan, device=fetched.device)
    relevant = relevance_targets.clamp(min=0).float()
    return (relevant * fetched).sum(1) / relevant.sum(1)  # 0 / 0 is NaN


def query_dependence(fetched: Tensor, images: Tensor, questions: list[tuple[int, ...]]) -> Tensor:
    """The dependence of the fetched patches on the question: [I] in 0..1, NaN without another question about the image.

    The mean Jaccard distance (`fetch_distances`, as in reports of experiments) to the patches fetched for the other
    questions about the image. 0: the question has no effect; 1: no patch is fetched for both. Fetched patches are bool
    [I, N], `images` [I] is the image in each slot, `questions` are token ids.
    """
    asked = {question: number for number, question in enumerate(questions)}
    kind = torch.tensor([asked[question] for question in questions], device=images.device)
    fetches = fetched.any(1)  # strategy "none" fetches nothing
    other = (images[:, None] == images[None]) & (kind[:, None] != kind[None]) & fetches[:, None] & fetches[None]
    return torch.where(other, fetch_distances(fetched), 0.0).sum(1) / other.sum(1)  # 0 / 0 is NaN


def fetch_measures(output: ArrCocOutput, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """For each slot [I]: recall, number of fetched tokens, and dependence on the question."""
    fetch, index = output.fetch, batch.get("image_index")
    assert fetch is not None
    fetched = fetch.covered()
    images = torch.arange(len(fetch.scores), device=fetch.scores.device) if index is None else index
    prompts = zip(batch["input_ids"], batch["query_mask"].bool(), strict=True)
    questions = [tuple(ids[mask].tolist()) for ids, mask in prompts]
    return {
        "recall": recall(fetched, batch.get("relevance_targets")),
        "fetched": fetch.wanted.float(),
        "query_dependence": query_dependence(fetched, images, questions),
    }


def tier_shares(output: ArrCocOutput) -> dict[str, Tensor]:
    """[I] of 0 or 1 for each tier: whether the slot's number of fetched tokens is in this tier."""
    assert output.fetch is not None
    counts, patches = output.fetch.wanted, output.fetch.scores.shape[1]
    tiers = {scaled_budget(tier, patches) for tier in TIERS}
    bounds = torch.tensor(sorted({0, *tiers, patches}), device=counts.device)
    at = torch.bucketize(counts, bounds)
    return {f"tier/{bound}": (at == number).float() for number, bound in enumerate(bounds.tolist())}


MEASURES = ("answer", "tokens", "exact", "relevance", "recall", "fetched", "query_dependence")
"""Columns of `item_measures`."""


def item_measures(output: ArrCocOutput, batch: Mapping[str, Any], *, positive_weight: float) -> Tensor:
    """[B, len(MEASURES)] for items with one image each, a form that can be gathered from all processes.

    answer: summed cross-entropy of the answer's tokens; tokens: their number; exact: 1 if each of them was the most
    probable one given those before; relevance: the scorers' loss, NaN without boxes; then `fetch_measures`.
    """
    assert output.logits is not None and output.fetch is not None and output.scores is not None
    losses, right = token_losses(output.logits, batch["labels"])
    relevance, unknown = batch.get("relevance_targets"), torch.full_like(losses[:, 0], torch.nan)
    if relevance is not None and output.scores:
        scores = torch.stack(list(output.scores.values()))
        relevance_loss = relevance_losses(scores, relevance, real_patches(output, batch), positive_weight)
        unknown = torch.where(relevance[:, 0] >= 0, relevance_loss, torch.nan)
    columns = {
        "answer": losses.sum(1),
        "tokens": (batch["labels"][:, 1:] != -100).sum(1),
        "exact": right.all(1),
        "relevance": unknown,
        **fetch_measures(output, batch),
    }
    return torch.stack([columns[name].float() for name in MEASURES], 1)


def summary(rows: Tensor, weights: Mapping[str, float]) -> dict[str, float]:
    """Means over items [items, len(MEASURES)], without NaN.

    answer_loss is per token, as in training; loss: answer and relevance loss by their weights; the others by name.
    """
    columns = dict(zip(MEASURES, rows.unbind(1), strict=True))
    means = {"answer_loss": (columns["answer"].sum() / columns["tokens"].sum()).item()}
    for name in MEASURES[2:]:
        known = columns[name][~columns[name].isnan()]
        if len(known):
            means["relevance_loss" if name == "relevance" else name] = known.mean().item()
    means["loss"] = sum(weights[part] * means.get(f"{part}_loss", 0.0) for part in ("answer", "relevance"))
    return means


class Averages:
    """Means of the measurements between two lines of the log, over all processes, without NaN."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.sums: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Scalars or tensors of any shape, by name."""
        for name, value in values.items():
            self.sums[name].append(value.detach().float().flatten())

    def drain(self) -> dict[str, float]:
        """The means since the last call."""
        values = {name: torch.cat(parts) for name, parts in sorted(self.sums.items())}
        self.sums.clear()
        if not values:
            return {}
        pairs = torch.stack([torch.stack((v.nansum(), (~v.isnan()).sum().to(v))) for v in values.values()])
        totals = self.accelerator.reduce(pairs, "sum")
        means = {name: (total / count).item() for name, (total, count) in zip(values, totals, strict=True) if count}
        return means
