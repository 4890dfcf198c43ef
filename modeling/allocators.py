"""Allocators: from relevance and a budget to the indices of K distinct patches, and the number of patches of each item.

Allocators that fetch regions of several patches are in detail_allocators.py.

Pure functions choose the patches; ties break by lower index. If the question or the relevance decides the number of
patches, a module (`Budgeter`) counts them, since it may hold weights.

Notation: B batch, G side of the fine grid, N = G*G patches, K fetched tokens (the most of any item), T tiers, C feature
channels, D language-model width, H scorer width. A fetched token's rank r counts from 0, the most relevant first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_fields import Registry
from .configuration_arr_coc import TIERS, ArrCocFetcherConfig, scaled_budget
from .grid_encoder import pool_regions
from .scorers import FetchContext, masked_mean
from .views import FetchResult, positions_of

SOFTNESS = 0.02
"""Width of the soft edge of "adaptive", as a share of the mass; only gradients depend on it."""


# ---- which patches --------------------------------------------------------------------------------------------------


def ranked_scores(scores: Tensor, patch_mask: Tensor, hidden: Tensor | None) -> Tensor:
    """Ranks [B, N] of scores of any scale, N down to 1; padding comes behind all other patches, hidden patches last.

    In float32, which every device has. Padding has the lowest finite value, `hidden` patches [B, N] have -inf.
    """
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(scores.shape[1], 0, -1, dtype=torch.float32, device=scores.device)
    ranked = torch.empty_like(scores, dtype=torch.float32).scatter(1, order, places.expand_as(scores))
    ranked = ranked.masked_fill(~patch_mask, torch.finfo(torch.float32).min)
    return ranked if hidden is None else ranked.masked_fill(hidden, float("-inf"))


def best(scores: Tensor, count: int) -> Tensor:
    """Indices [B, count] of the highest scores [B, N], ascending; equal scores go to the lower index."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count].sort(-1).values


def topk(scores: Tensor, count: int, *, config: ArrCocFetcherConfig, side: int | None = None) -> Tensor:
    """The K most relevant patches: scores [B, N] -> indices [B, K], ascending."""
    return best(scores, count)


def window(scores: Tensor, count: int, *, config: ArrCocFetcherConfig, side: int | None = None) -> Tensor:
    """Top-K with a gain for the neighbours of chosen patches: scores [B, N] -> indices [B, K], ascending.

    The N patches are those of one grid or, with its `side`, of several grids, one after the other, without common
    neighbours.

    Scores become ranks in 0..1, so the gain has the same effect for every scorer. A first top-K is taken. Each patch
    then gains `window_gain` times the share of chosen patches among its neighbours in `window_size` x `window_size`,
    and the top-K of the result is returned. Patches that come last (the lowest finite score: padding; -inf: taken)
    gain nothing.
    """
    batch, patches = scores.shape
    side = round(patches**0.5) if side is None else side
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    steps = torch.linspace(1, 0, patches, dtype=scores.dtype, device=scores.device).expand(batch, -1)
    rank = torch.empty_like(steps).scatter_(1, order, steps)
    chosen = torch.zeros_like(rank).scatter_(1, order[:, :count], 1.0).view(-1, 1, side, side)
    size = config.window_size
    around = F.avg_pool2d(chosen, size, stride=1, padding=size // 2, divisor_override=1) - chosen  # without itself
    share = around.view(batch, -1) / max(1, size**2 - 1)
    eligible = scores > torch.finfo(scores.dtype).min
    return best(torch.where(eligible, rank + config.window_gain * share, scores.clamp(max=-1)), count)


def most_relevant_first(scores: Tensor, indices: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Divides chosen patches into those that an item keeps and the surplus.

    Args:
        scores: [B, N].
        indices: [B, K] chosen patches, ascending.
        counts: [B] the number that each item keeps: those with the highest scores; ties break by lower index.

    Returns:
        Indices [B, K], kept patches first, both parts ascending; and the rank of each by score, [B, K] from 0.
    """
    order = scores.gather(1, indices).sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(indices.shape[1], device=indices.device).expand_as(indices)
    rank = torch.empty_like(indices).scatter_(1, order, places)
    front = (rank >= counts[:, None]).int().sort(dim=-1, stable=True).indices
    return indices.gather(1, front), rank.gather(1, front)


def soft_top_k(scores: Tensor, count: int | Tensor, *, temperature: float) -> Tensor:
    """Weights in 0..1 that sum to `count`: sigmoid((score - tau) / temperature), tau one per item.

    Bisection finds tau, which gets the gradient of the implicit function: raising one score lowers the weights of all
    others.

    Args:
        scores: [B, N]; -inf has weight 0.
        count: K, or [B, 1] for each item; an item with at most K finite scores has weight 1 on each.
        temperature: above 0, in units of the score; the weights approach a hard choice towards 0.
    """
    finite = scores.isfinite()
    scaled = torch.where(finite, scores, 0.0) / temperature
    with torch.no_grad():
        low = scaled.masked_fill(~finite, float("inf")).amin(1, keepdim=True) - 40.0  # sigmoid(40) is 1 in float32
        high = scaled.masked_fill(~finite, float("-inf")).amax(1, keepdim=True) + 40.0
        for _ in range(64):
            middle = (low + high) / 2
            above = ((scaled - middle).sigmoid() * finite).sum(1, keepdim=True) > count
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        weights = (scaled - middle).sigmoid() * finite
        slope = (weights * (1 - weights)).sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    total = ((scaled - middle).sigmoid() * finite).sum(1, keepdim=True)
    tau = middle + (total - total.detach()) / slope
    weights = (scaled - tau).sigmoid() * finite
    return torch.where(finite.sum(1, keepdim=True) <= count, finite.to(weights), weights)


# ---- the number of patches ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budgets:
    """The number of fetched tokens of each item of a batch.

    Attributes:
        counts: [B] int64.
        survival: [B, K] float32, the probability that the token of rank r is fetched, P(count > r); differentiable.
        expected: [B] float32, the expected count; differentiable.
        tier_logits: [B, T] of the classifier, or None.
    """

    counts: Tensor
    survival: Tensor
    expected: Tensor
    tier_logits: Tensor | None = None


def tier_sizes(patches: int, most: int, *, device: torch.device | None = None) -> Tensor:
    """[T] int64: the fetched tokens of each tier on a grid of N patches, at most `most`."""
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

    The survival of a rank is a soft step in the share of mass of the ranks before it. The expected count is `share`
    times the mass, exact for relevance of 0s and 1s; it is not cut at `most`, where the efficiency loss would have no
    gradient. An item without mass gets `least`.
    """
    ordered = mass.sort(dim=-1, descending=True, stable=True).values
    held = ordered.cumsum(-1)
    total = held[:, -1:]  # from the same sum, so that the share behind the last patch with mass is exactly 1
    before = (held - ordered) / total.clamp(min=torch.finfo(mass.dtype).tiny)
    counts = ((before < share) & (total > 0)).sum(-1).clamp(least, most)
    survival = ((share - before[:, :most]) / SOFTNESS).sigmoid()
    certain = torch.arange(most, device=mass.device) < least
    return Budgets(counts, torch.where(certain, 1.0, survival), (share * total[:, 0]).clamp(min=least))


class ContextNetwork(nn.Module):
    """Logits [B, R] from the pooled question and the image's mean feature (called gestalt in the weights' names)."""

    def __init__(self, size: int, outputs: int, *, feature_size: int, text_size: int) -> None:
        super().__init__()
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, size)
        self.gestalt_norm = nn.LayerNorm(feature_size)
        self.gestalt_projection = nn.Linear(feature_size, size)
        self.hidden = nn.Linear(2 * size, size)
        self.act = nn.GELU()
        self.head = nn.Linear(size, outputs)

    def forward(self, context: FetchContext) -> Tensor:
        # Projected before pooling: means of raw embeddings hardly differ between long questions.
        words = self.act(self.text_projection(self.text_norm(context.query)))
        question = masked_mean(words, context.query_mask)
        gestalt = masked_mean(context.features.flatten(2).transpose(1, 2), context.patch_mask)
        gestalt = self.gestalt_projection(self.gestalt_norm(gestalt))
        states = torch.cat((question.to(gestalt.device), gestalt), -1)
        return self.head(self.act(self.hidden(states))).float()


class TierClassifier(ContextNetwork):
    """Logits [B, T] of the tiers, from the question and the image's mean feature."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config.hidden_size, len(TIERS), feature_size=feature_size, text_size=text_size)


class Budgeter(nn.Module):
    """Base class: decides the number of fetched tokens of each item."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        """Budgets of at most `most`; `mass` [B, N] is the relevance, 0 on patches that must not be fetched.

        With several grids of the context's size it is [B, n * N], and the context has n images for each item, one after
        the other.
        """
        raise TypeError(f"{type(self).__name__} has no forward: expected a subclass that has one")


class TierBudgeter(Budgeter):
    """One of `TIERS`, by the classifier or by the heuristic: more question tokens name more things to find."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        trained = config.tier_choice == "classifier"
        self.classifier = TierClassifier(config, feature_size=feature_size, text_size=text_size) if trained else None

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        sizes = tier_sizes(context.side**2, most, device=mass.device)
        images = len(context.query_mask) // len(mass)
        if self.classifier is not None:
            logits = self.classifier(context).unflatten(0, (len(mass), images)).mean(1)
            return budgets_from_tiers(logits.softmax(-1), sizes, logits)
        bounds = torch.tensor(self.config.tier_lengths, device=mass.device)
        tier = torch.bucketize(context.query_mask[::images].sum(1).to(mass.device), bounds, right=True)
        return budgets_from_tiers(nn.functional.one_hot(tier, len(TIERS)).float(), sizes)


class MassBudgeter(Budgeter):
    """The smallest number that holds `adaptive_share` of the relevance, from the first tier to the last."""

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        sizes = tier_sizes(context.side**2, most)
        return budgets_from_mass(mass, self.config.adaptive_share, least=int(sizes[0]), most=int(sizes[-1]))


# ---- the family ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocator:
    """A function that chooses patches by their scores, and the module that chooses their number.

    Attributes:
        choose: scores [B, N] from `ranked_scores`, a count, `config=` and the grid's `side=` -> indices
            [B, count] of distinct patches, ascending.
        budgeter: chooses the number of patches of each item, up to the budget; None: the budget.
        detail: whether it chooses levels of detail: then `choose` also takes `relevance=` [B, N] in 0..1, and returns
            indices of regions and their levels (grid_encoder.py), [B, count] each.
    """

    choose: Callable[..., Any]
    budgeter: type[Budgeter] | None = None
    detail: bool = False


ALLOCATORS: Registry[Allocator] = Registry("allocator")
ALLOCATORS.register("topk")(Allocator(topk))
ALLOCATORS.register("window")(Allocator(window))
ALLOCATORS.register("tiers")(Allocator(topk, TierBudgeter))
ALLOCATORS.register("adaptive")(Allocator(topk, MassBudgeter))


def chooses_counts(allocator: str | None) -> bool:
    """Whether the allocator registered as `allocator` chooses the number of patches of each item; False for None."""
    return allocator is not None and ALLOCATORS[allocator].budgeter is not None


def token_weights(
    scores: Tensor,
    relevance: Tensor,
    ranked: Tensor,
    indices: Tensor,
    levels: Tensor | None,
    rank: Tensor,
    budgets: Budgets | None,
    *,
    side: int,
    temperature: float | None,
) -> Tensor | None:
    """Factors of tokens, through which the answer's loss reaches the scorer and the budgets.

    Args:
        scores, relevance, ranked: [B, N] of the scorer, and `ranked_scores`.
        indices, levels: [B, K] the tokens; levels None: all are patches.
        rank: [B, K] of each token by score.
        budgets: of allocators that choose the number of patches.
        side: G.
        temperature: of gradient "soft"; None: "straight_through".

    Returns:
        [B, K], or None if neither scorer nor budgets learn. A region has the mean weight of its patches.
    """

    def at(values: Tensor) -> Tensor:
        if levels is None:
            return values.gather(1, indices)
        return pool_regions(values.view(len(values), 1, -1, side), indices, levels)[..., 0]

    weights = None
    if scores.requires_grad:
        if temperature is not None:
            eligible = scores.masked_fill(ranked <= torch.finfo(ranked.dtype).min, float("-inf"))
            patches = indices.shape[1] if levels is None else (4**levels).sum(1, keepdim=True)
            weights = at(soft_top_k(eligible, patches, temperature=temperature))
        else:
            weights = at(relevance)
            weights = 1 + (weights - weights.detach())  # in this order: exactly 1
    if budgets is not None and budgets.survival.requires_grad:
        survival = budgets.survival.gather(1, rank)
        weights = survival if weights is None else weights * survival
    return weights


# ---- the step of a question -----------------------------------------------------------------------------------------


def allocate(
    context: FetchContext,
    scores: Tensor,
    relevance: Tensor,
    patch_mask: Tensor,
    budget: int,
    *,
    config: ArrCocFetcherConfig,
    strategy: str,
    allocator: str,
    budgeter: nn.Module | None = None,
    hidden: Tensor | None = None,
    begun: Tensor | None = None,
    learns: bool = False,
    temperature: float | None = None,
) -> FetchResult:
    """Chooses patches by the scores of one grid per item, or of n grids, one after the other.

    Args:
        context: the scorer's inputs: question and grid size are used.
        scores, relevance, patch_mask: [B, n * N]; False on padding.
        budget: K.
        config: the settings of allocators.
        strategy, allocator: their names.
        budgeter: chooses the number of patches of each item, for allocators that have one.
        hidden: [B, n * N] True on patches that must not be fetched, or None.
        begun: [B, n * N] number of wordpieces that begin in each patch; those without give no token. None: each patch
            is one token.
        learns: whether the answer's loss reaches scorer and budgeter.
        temperature: of gradient "soft"; None: another gradient.
    """
    ranked, side = ranked_scores(scores, patch_mask, hidden), context.features.shape[-1]
    budgets: Budgets | None = None
    if budgeter is not None and budget:
        eligible = ranked > torch.finfo(ranked.dtype).min
        budgets = budgeter(context, torch.where(eligible, relevance, 0.0), budget)
    counts = ranked.new_full((len(ranked),), budget, dtype=torch.int64)
    ragged = False
    if budgets is not None:
        learned = learns and budgets.survival.requires_grad
        counts = torch.full_like(counts, budgets.survival.shape[1]) if learned else budgets.counts
        budget = int(counts.max()) if len(counts) else 0
        ragged = bool((counts < budget).any())
    method, levels, room = ALLOCATORS[allocator], None, None
    static = torch.compiler.is_compiling() or scores.is_meta  # no shape may depend on data
    if begun is not None and not method.detail and not static and budget:
        begun = begun.to(ranked.device) * (ranked > torch.finfo(ranked.dtype).min)
        room = counts.minimum(2 * begun.sum(1).clamp(min=1))  # the most relevant come twice
        counts = counts.minimum((begun > 0).sum(1).clamp(min=1))
        budget = int(room.max()) if len(counts) else budget
        ragged = bool((counts < budget).any())
    if method.detail:
        indices, levels = method.choose(ranked, budget, relevance=relevance.detach(), config=config, side=side)
        rank = torch.zeros_like(indices)
    else:
        chosen = method.choose(ranked, budget, config=config, side=side)
        indices, rank = most_relevant_first(ranked, chosen, counts)
    weights = None
    if learns:
        parts = (scores, relevance, ranked, indices, levels, rank, budgets)
        weights = token_weights(*parts, side=side, temperature=temperature)
    return FetchResult(
        indices=indices,
        positions=positions_of(indices, side),
        scores=scores,
        relevance=relevance,
        is_padding=~patch_mask.gather(1, indices),
        budget=budget,
        strategy=strategy,
        allocator=allocator,
        counts=counts,
        wanted=counts if budgets is None else budgets.counts,
        weights=weights,
        expected_tokens=None if budgets is None else budgets.expected,
        tier_logits=None if budgets is None else budgets.tier_logits,
        survival=None if budgets is None else budgets.survival,
        is_ragged=ragged,
        levels=levels,
        room=room,
    )
