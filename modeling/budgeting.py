"""How many saccades each item gets, for the allocators that choose it: by the question, or by the relevance itself.

Notation: B batch, N patches, K saccades (the most of any item), T tiers, C feature channels, D language-model width, H
scorer width. A saccade's rank r counts from 0, the most relevant first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .configuration_arr_coc import AUTO, TIERS, ArrCocFetcherConfig, scaled_budget
from .realizing import FetchContext, masked_mean
from .registry import Registry

SOFTNESS = 0.02
"""How wide the soft edge of "adaptive" is, as a share of the mass; only gradients see it."""


@dataclass(frozen=True)
class Budgets:
    """How many each item gets.

    Attributes:
        counts: [B] int64.
        survival: [B, K] float32, the probability that a saccade of rank r is fetched, P(count > r); differentiable.
        expected: [B] float32, the expected count; differentiable.
        tier_logits: [B, T] of the classifier, or None.
    """

    counts: Tensor
    survival: Tensor
    expected: Tensor
    tier_logits: Tensor | None = None


def tier_sizes(patches: int, most: int, *, device: torch.device | None = None) -> Tensor:
    """[T] int64: saccades of each tier on a grid of N patches, at most `most`."""
    return torch.tensor([min(most, scaled_budget(tier, patches)) for tier in TIERS], device=device)


def budgets_from_tiers(probabilities: Tensor, sizes: Tensor, tier_logits: Tensor | None = None) -> Budgets:
    """The most probable tier of each item: probabilities [B, T], sizes [T]. Equal ones go to the smaller tier."""
    chosen = probabilities.sort(dim=-1, descending=True, stable=True).indices[:, 0]
    ranks = torch.arange(int(sizes[-1]), device=sizes.device)
    # No matrix product: autocast would round it to half precision, and with it the expected count.
    survival = (probabilities[..., None] * (sizes[:, None] > ranks)).sum(1)
    return Budgets(sizes[chosen], survival, survival.sum(-1), tier_logits)


def budgets_from_mass(mass: Tensor, share: float, *, least: int, most: int) -> Budgets:
    """The smallest count whose patches hold `share` of each item's mass [B, N], within least..most.

    The survival of a rank is a soft step in the share that the ranks before it hold. The expected count is the share of
    the mass itself, which relevance of 0s and 1s takes; not cut at `most`, where efficiency would no longer learn. An
    item without mass gets `least`.
    """
    ordered = mass.sort(dim=-1, descending=True, stable=True).values
    held = ordered.cumsum(-1)
    total = held[:, -1:]  # of the same sum: behind the last patch that holds any, the share held is exactly 1
    before = (held - ordered) / total.clamp(min=torch.finfo(mass.dtype).tiny)
    counts = ((before < share) & (total > 0)).sum(-1).clamp(least, most)
    survival = ((share - before[:, :most]) / SOFTNESS).sigmoid()
    certain = torch.arange(most, device=mass.device) < least
    return Budgets(counts, torch.where(certain, 1.0, survival), (share * total[:, 0]).clamp(min=least))


class TierClassifier(nn.Module):
    """Logits [B, T] from the pooled question and the gestalt: the mean feature of the patches that hold some image."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, size)
        self.gestalt_norm = nn.LayerNorm(feature_size)
        self.gestalt_projection = nn.Linear(feature_size, size)
        self.hidden = nn.Linear(2 * size, size)
        self.act = nn.GELU()
        self.head = nn.Linear(size, len(TIERS))

    def forward(self, context: FetchContext) -> Tensor:
        # Projected before pooling: the mean of raw embeddings hardly differs between questions of many tokens.
        words = self.act(self.text_projection(self.text_norm(context.query)))
        question = masked_mean(words, context.query_mask)
        gestalt = masked_mean(context.features.flatten(2).transpose(1, 2), context.patch_mask)
        gestalt = self.gestalt_projection(self.gestalt_norm(gestalt))
        states = torch.cat((question.to(gestalt.device), gestalt), -1)
        return self.head(self.act(self.hidden(states))).float()


class Budgeter(nn.Module):
    """Base of the family: how many saccades each item gets."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        """Budgets of at most `most`; `mass` [B, N] is the relevance, 0 on what shall not be fetched."""
        raise TypeError(f"{type(self).__name__} has no forward: expected a registered budgeter")


BUDGETERS: Registry[type[Budgeter]] = Registry("allocator")
"""By the name of the allocator whose patches they count."""


@BUDGETERS.register("tiers")
class TierBudgeter(Budgeter):
    """One of `TIERS`, by the classifier or by the heuristic: more question tokens name more things to find."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        trained = config.tier_choice == "classifier"
        self.classifier = TierClassifier(config, feature_size=feature_size, text_size=text_size) if trained else None

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        sizes = tier_sizes(mass.shape[1], most, device=mass.device)
        if self.classifier is not None:
            logits = self.classifier(context)
            return budgets_from_tiers(logits.softmax(-1), sizes, logits)
        bounds = torch.tensor(self.config.tier_lengths, device=mass.device)
        tier = torch.bucketize(context.query_mask.sum(1).to(mass.device), bounds, right=True)
        return budgets_from_tiers(nn.functional.one_hot(tier, len(TIERS)).float(), sizes)


@BUDGETERS.register("adaptive")
class MassBudgeter(Budgeter):
    """As many as it takes to hold `adaptive_share` of the relevance, from the first tier to the last."""

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        sizes = tier_sizes(mass.shape[1], most)
        return budgets_from_mass(mass, self.config.adaptive_share, least=int(sizes[0]), most=int(sizes[-1]))


def budget_and_allocator(
    budget: int | str | None, allocator: str | None, config: ArrCocFetcherConfig
) -> tuple[int | str | None, str | None]:
    """The most an item may take, and who chooses: a budget that the caller states is exact unless they name one.

    None leaves either to the configuration.

    Raises:
        ValueError: "auto" beside an allocator that fetches exactly the budget.
    """
    chooses = config.allocator in BUDGETERS
    if allocator in BUDGETERS:
        return AUTO if budget is None else budget, allocator
    if budget == AUTO:
        if allocator is not None:
            expected = f"a number or a name beside allocator {allocator!r}, which fetches exactly that"
            raise ValueError(f"budget: expected {expected}; got {budget!r}")
        return budget, None if chooses else "tiers"
    return budget, "topk" if chooses and allocator is None and budget is not None else allocator
