"""The losses of a step by name, each with its weight, and measurements of a run beside them.

Notation: B prompts, S their length, T positions at their end with logits (for `tier_logits` the number of tiers), I
image slots, N patches, K fetched tokens. NaN in measurements: unknown for this slot, and left out of means.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor

from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.modeling_arr_coc import ArrCocOutput, relevance_losses
from .attention import distillation_loss


def efficiency_loss(expected_tokens: Tensor, target: float) -> Tensor:
    """The excess of the mean of `expected_tokens` [I] over `target`, as a share of `target`; 0 below it.

    Both are numbers of fetched tokens, see `FetchResult.expected_tokens`.

    Raises:
        ValueError: a target that is not positive.
    """
    if target <= 0:
        raise ValueError(f"target: expected a positive number of tokens; got {target}")
    return (expected_tokens.float().mean() - target).clamp(min=0) / target


def diversity_loss(tier_logits: Tensor) -> Tensor:
    """Distance of the batch's mean tier distribution from uniform: 1 - entropy / log T, from 0 to 1 (one tier only).

    The loss takes the mean over the batch of `FetchResult.tier_logits` [I, T] first, so each item may be certain of its
    tier if the tiers differ.
    """
    mean = tier_logits.float().softmax(-1).mean(0)
    return 1 - torch.special.entr(mean).sum() / math.log(tier_logits.shape[-1])


def distribution_loss(tokens: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """Distance of bridged tokens from text embeddings: squared differences of mean and standard deviation.

    Both statistics are over a token's channels, in units of the text's standard deviation. The loss is the mean over
    tokens.

    Args:
        tokens: [..., S, D].
        mean, std: of the text embeddings, as `bridge_config.text_embedding_mean` and `_std`.
    """
    tokens = tokens.float()
    shift = tokens.mean(-1) - mean
    scale = tokens.std(-1, correction=0) - std
    return ((shift.square() + scale.square()) / std**2).mean()


def expected_answer_loss(tier_logits: Tensor, losses: Tensor) -> Tensor:
    """[I] the expected loss of the answer over the classifier's tiers: the sum of p(tier) * loss(tier).

    Its gradient is exact. The gradient through tokens weighted by their probability is not: a language model that
    normalises its input hardly depends on a token's scale, and so not on whether the token might be missing.

    Args:
        tier_logits: [I, T], see `FetchResult.tier_logits`.
        losses: [I, T] summed cross-entropy of each answer's tokens, with each tier's number of fetched tokens.
    """
    return (tier_logits.softmax(-1) * losses.to(tier_logits)).sum(-1)


_OPTIONAL = ("diversity", "distribution", "distillation", "tiers", "reinforcement", "retention")
WEIGHTS = {"answer": 1.0, "relevance": 1.0, "efficiency": 0.5, **dict.fromkeys(_OPTIONAL, 0.0)}
"""Default weight of every loss. answer: cross-entropy of the answer's tokens; relevance: binary cross-entropy of the
scorers with boxes; efficiency: the excess of the mean budget over its target; diversity: over tiers; distribution:
vision tokens against text embeddings; distillation: the scorers against the model's own attention; tiers: the
answer's cross-entropy with each tier's fetched tokens, averaged by the tier classifier's probabilities;
reinforcement: see `reinforce.reinforcement_loss`; retention: the distance of an adapter's scorers, on retained
records, from the scorers without it."""


COUNTED = ("tokens", "slots", "known", "retained")
"""The divisors of losses: answer tokens, image slots, and slots with known boxes or on retained records."""


def counted(batch: Mapping[str, Any], device: torch.device) -> Tensor:
    """[4] the number of each of `COUNTED` in a collated batch, a form that can be summed over batches and processes."""
    labels, relevance, retained = batch["labels"], batch.get("relevance_targets"), batch.get("retained")
    known = 0 if relevance is None else int((relevance[:, 0] >= 0).sum())
    kept = 0 if retained is None else int(retained.sum())
    counts = [int((labels[:, 1:] != -100).sum()), len(labels), known, kept]
    return torch.tensor(counts, dtype=torch.float32, device=device)


@dataclass(frozen=True)
class Term:
    """A loss as a sum, and its divisor, one of `COUNTED`."""

    total: Tensor
    per: str


def loss_weights(changes: Mapping[str, float]) -> dict[str, float]:
    """The default weights, with those in `changes` replaced. Raises ValueError: an unknown loss, a negative weight, or
    no loss with a weight above 0."""
    unknown = sorted(set(changes) - set(WEIGHTS))
    if unknown:
        raise ValueError(f"losses: expected names among {', '.join(WEIGHTS)}; got {', '.join(unknown)}")
    weights = {**WEIGHTS, **{name: float(weight) for name, weight in changes.items()}}
    if min(weights.values()) < 0 or not any(weights.values()):
        raise ValueError(f"losses: expected weights of 0 or more, one above 0; got {weights}")
    return weights


def answer_positions(labels: Tensor) -> int:
    """The number of positions at the end of prompts [B, S] whose logits predict all answer tokens."""
    answered = (labels != -100).any(0).nonzero()
    return labels.shape[1] - int(answered[0]) + 1 if len(answered) else 1


def token_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each answer token, and whether it was the most probable: both [B, T-1], 0 and True elsewhere.
    Logits [B, T, vocabulary] are those of the last T positions; labels [B, S] are -100 on tokens not to predict."""
    targets = labels[:, labels.shape[1] - logits.shape[1] + 1 :]
    predictions = logits[:, :-1].float()
    losses = F.cross_entropy(predictions.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    return losses.view(targets.shape), (predictions.argmax(-1) == targets) | (targets == -100)


def real_patches(output: ArrCocOutput, batch: Mapping[str, Any]) -> Tensor:
    """bool [I, N], False on padding patches."""
    assert output.fetch is not None
    mask, index = batch.get("patch_mask"), batch.get("image_index")
    if mask is None:
        return torch.ones_like(output.fetch.scores, dtype=torch.bool)
    return (mask if index is None else mask[index]).bool()


def retention_loss(scores: Tensor, before: Tensor, patch_mask: Tensor) -> Tensor:
    """[I] mean squared difference of logits [I, N] over real patches: keeps the order of all patches, not of the
    best."""
    away = (scores.float() - before.float()).square() * patch_mask
    return away.sum(1) / patch_mask.sum(1).clamp(min=1)


def loss_terms(
    output: ArrCocOutput,
    batch: Mapping[str, Any],
    weights: Mapping[str, float],
    *,
    config: ArrCocConfig,
    target_tokens: float,
    text_statistics: tuple[float, float] | None = None,
    attended: Tensor | None = None,
    by_tier: Tensor | None = None,
    before: Mapping[str, Tensor] | None = None,
) -> dict[str, Term]:
    """The losses with a weight and with inputs.

    Args:
        output: of a forward pass, with `output_scores` to train the scorers.
        batch: its inputs, with `labels`, and `relevance_targets` if boxes are known.
        target_tokens: the mean of fetched tokens at which the efficiency loss is 0.
        text_statistics: mean and standard deviation of the text embeddings, for the distribution loss.
        attended: [I, N] the keep-all model's attention, for distillation.
        by_tier: [I, T] the answer's loss with each tier's fetched tokens, for the tier classifier.
        before: logits [I, N] of the scorers without the adapter, by name, for retained slots.
    """
    assert output.fetch is not None and output.logits is not None
    mask, relevance = real_patches(output, batch), batch.get("relevance_targets")
    terms = {"answer": Term(token_losses(output.logits, batch["labels"])[0].sum(), "tokens")}
    if relevance is not None and output.scores:
        scores = torch.stack(list(output.scores.values()))
        losses = relevance_losses(scores, relevance, mask, config.relevance_positive_weight)
        terms["relevance"] = Term(losses.sum(), "known")
    if attended is not None and output.scores:
        divergences = [distillation_loss(logits, attended, mask).sum() for logits in output.scores.values()]
        terms["distillation"] = Term(torch.stack(divergences).mean(), "slots")
    if before and output.scores:
        away = torch.stack([retention_loss(logits, before[name], mask) for name, logits in output.scores.items()])
        terms["retention"] = Term((away.mean(0) * batch["retained"]).sum(), "retained")
    slots = len(output.fetch.scores)
    if output.fetch.expected_tokens is not None:
        terms["efficiency"] = Term(efficiency_loss(output.fetch.expected_tokens, target_tokens) * slots, "slots")
    if output.fetch.tier_logits is not None:
        if by_tier is not None:
            terms["tiers"] = Term(expected_answer_loss(output.fetch.tier_logits, by_tier).sum(), "tokens")
        terms["diversity"] = Term(diversity_loss(output.fetch.tier_logits) * slots, "slots")
    if text_statistics is not None and output.image_tokens is not None:
        fetched = output.image_tokens[output.image_tokens.detach().any(-1)]  # losses of the others are 0
        terms["distribution"] = Term(distribution_loss(fetched, *text_statistics) * slots, "slots")
    return {name: term for name, term in terms.items() if weights[name]}


def fetch_measures(output: ArrCocOutput, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """For each slot [I]: the share of its relevant patches that were fetched, NaN if the relevant are unknown; and the
    number of fetched tokens."""
    assert output.fetch is not None
    fetched, relevance = output.fetch.covered(), batch.get("relevance_targets")
    recall = torch.full((len(fetched),), torch.nan, device=fetched.device)
    if relevance is not None:
        relevant = relevance.clamp(min=0).float()  # rows of -1 are unknown
        recall = (relevant * fetched).sum(1) / relevant.sum(1)  # 0 / 0 is NaN
    return {"recall": recall, "fetched": output.fetch.wanted.float()}


MEASURES = ("answer", "tokens", "exact", "relevance", "recall", "fetched")  # columns of `item_measures`


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
    """Means over items [items, len(MEASURES)], without NaN. answer_loss is per token, as in training; loss: answer and
    relevance loss by their weights; the others by name."""
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
