"""Allocators: from relevance and a budget to the indices of K distinct patches, and how many of them each item gets.

Those that fetch regions of several patches are in detail_allocators.py.

Choosing is done by pure functions, in which ties break by lower index. Where a question or the relevance decides how
many patches an item gets, a module counts them, since it may hold weights.

Notation: B batch, G side of the fine grid, N = G*G patches, K fetched tokens (the most of any item), T tiers, C feature
channels, D language-model width, H scorer width. A fetched token's rank r counts from 0, the most relevant first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_fields import Registry
from .configuration_arr_coc import TIERS, ArrCocFetcherConfig, scaled_budget
from .grid_encoder import pool_regions, region_boxes, spread_regions
from .image_encoding import Rows
from .relevance_maps import ContextNetwork
from .scorers import SCORERS, FetchContext

SOFTNESS = 0.02
"""How wide the soft edge of "adaptive" is, as a share of the mass; only gradients see it."""


# ---- what is fetched -------------------------------------------------------------------------------------------------


PatchesOf = Callable[[FetchContext, Tensor, Tensor | None], Tensor]
"""Something of patches [n, k], with their levels or None, of grids that a context [n] holds: [n, k, ...]."""


@dataclass
class FetchResult(Rows):
    """What was fetched, and why.

    Attributes:
        indices: [B, K] int64, distinct per item. The first `counts` of an item are fetched, ascending; behind them the
            next most relevant patches fill the rectangle, and no token comes of them. Of regions their first patch.
        positions: [B, K, 2] int64, (y, x) of each of them in the fine grid.
        scores: [B, N] float32, the scorer's output (logits for trained scorers).
        relevance: [B, N] float32 in 0..1: sigmoid of logits; fixed scorers: scaled to each item's own range.
        is_padding: [B, K] bool, True on fetched patches that hold nothing of the image.
        budget: K.
        strategy, allocator: their names; "given" where the call said which patches.
        counts: [B] int64, how many are fetched of each item; K where not given.
        wanted: [B] int64, how many evaluation would fetch: in training, allocators that choose fetch more than that.
        weights: [B, K] what each token is multiplied by, or None: see `ArrCocFetcherConfig.gradient`.
        expected_tokens: [B] float32, differentiable: how many tokens an allocator that chooses their number expects
            to fetch ("adaptive" not cut at K); None from allocators that fetch exactly the budget.
        tier_logits: [B, T] of the tier classifier, or None.
        survival: see `Budgets.survival`, or None from allocators that fetch exactly the budget.
        is_ragged: whether some items get fewer than K.
        levels: [B, K] int64, the level of detail of each token: 0 a patch, 1 2x2, 2 4x4 patches, disjoint; None: all 0.
        fell_back: [B] bool, True where the scorer's map was of no use and strategy "saliency" stands in for it.
        bypassed: [B] bool, True where what the bridge's adapter made was of no use and its linear projection stands in.
        tokens: [B] int64, how many tokens of the prompt tell of what was fetched: `counts`, unless the bridge says
            otherwise (`Bridged.source`).
        source: [B, K] see `Bridged.source`; None: each token tells of the fetched token in its place.
    """

    indices: Tensor
    positions: Tensor
    scores: Tensor
    relevance: Tensor
    is_padding: Tensor
    budget: int
    strategy: str
    allocator: str
    counts: Tensor = None  # type: ignore[assignment]  # given by __post_init__
    wanted: Tensor = None  # type: ignore[assignment]
    weights: Tensor | None = None
    expected_tokens: Tensor | None = None
    tier_logits: Tensor | None = None
    survival: Tensor | None = None
    is_ragged: bool = False
    levels: Tensor | None = None
    fell_back: Tensor = None  # type: ignore[assignment]
    bypassed: Tensor = None  # type: ignore[assignment]
    tokens: Tensor = None  # type: ignore[assignment]
    source: Tensor | None = None

    PER_SACCADE: ClassVar[tuple[str, ...]] = (
        "indices", "positions", "is_padding", "weights", "survival", "levels", "source",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.counts is None:
            self.counts = self.indices.new_full((len(self.indices),), self.budget)
        if self.wanted is None:
            self.wanted = self.counts
        if self.tokens is None:
            self.tokens = self.counts
        nowhere = self.indices.new_zeros(len(self.indices), dtype=torch.bool)
        self.fell_back = nowhere if self.fell_back is None else self.fell_back
        self.bypassed = nowhere if self.bypassed is None else self.bypassed

    @property
    def fallbacks(self) -> dict[str, int]:
        """How many items a simpler part stood in for, by the part that failed."""
        return {"scorer": int(self.fell_back.sum()), "bridge": int(self.bypassed.sum())}

    @property
    def used(self) -> Tensor:
        """[B, K] bool, True on what is fetched, False on what only fills the rectangle."""
        return torch.arange(self.budget, device=self.counts.device) < self.counts[:, None]

    def own_relevance(self) -> Tensor:
        """[B, K] the relevance of each of them."""
        return self.relevance.gather(1, self.indices)

    def predicted_relevance(self) -> Tensor | None:
        """[B, K] the same where a trained scorer predicted it or the ground truth is known, else None."""
        trained = self.strategy == "oracle" or (self.strategy in SCORERS and SCORERS[self.strategy].trained)
        return self.own_relevance() if trained else None

    def ranks(self) -> Tensor:
        """[B, K] the rank of each by its relevance, from 0; what is not fetched comes behind."""
        relevance = self.own_relevance().masked_fill(~self.used, float("-inf"))
        return relevance.argsort(dim=1, descending=True, stable=True).argsort(dim=1)

    def regions(self) -> Tensor:
        """[B, K, 4] y0, x0, y1, x1 of each token in patches of the fine grid, ends exclusive."""
        levels = torch.zeros_like(self.indices) if self.levels is None else self.levels
        return region_boxes(self.indices, levels, math.isqrt(self.scores.shape[1]))

    def centres(self) -> Tensor:
        """[B, K, 2] float32, (y, x) of the middle of each token's patch or region, in patches of the image's grid."""
        places = self.positions.float()
        return places if self.levels is None else places + ((1 << self.levels) - 1)[..., None] / 2

    def of_patches(self, make: PatchesOf, context: FetchContext) -> Tensor:
        """[B, K, ...] what `make` makes of each token's patch or region, whose scorer saw `context`."""
        return make(context, self.indices, self.levels)

    def on_patches(self, values: Tensor) -> Tensor:
        """A value of each token [B, K] on all of its patches, 0 on those that are in none: [B, N]."""
        side = math.isqrt(self.scores.shape[1])
        levels = torch.zeros_like(self.indices) if self.levels is None else self.levels
        return spread_regions(values, self.indices, levels, (side, side))

    def fetched_characters(self, characters: Tensor) -> Tensor:
        """[B, 2] `ImageEncoding.characters` [B, N, 2] of the images, summed over what was fetched."""
        return (characters * self.covered()[..., None].to(characters)).sum(1)

    def covered(self) -> Tensor:
        """bool [B, N], True on the patches that were fetched."""
        return self.on_patches(self.used.float()) > 0

    def select(self, index: Tensor) -> Self:
        """The items at `index` [I], K being the most of theirs."""
        rows = super().select(index)
        if not self.is_ragged or not len(index):
            return rows
        most = int(rows.counts.max())
        held = ((name, getattr(rows, name)) for name in self.PER_SACCADE)
        cut = {name: tensor[:, :most] for name, tensor in held if tensor is not None}
        return replace(rows, **cut, budget=most, is_ragged=bool((rows.counts < most).any()))


def positions_of(indices: Tensor, side: int) -> Tensor:
    """(y, x) of patches on a grid of `side`: [B, K] -> [B, K, 2]."""
    return torch.stack((indices // side, indices % side), -1)


# ---- which patches --------------------------------------------------------------------------------------------------


def ranked_scores(scores: Tensor, patch_mask: Tensor, hidden: Tensor | None) -> Tensor:
    """Ranks [B, N], N down to 1: whatever the scale of scores, padding comes behind all others, what is hidden last.

    In float32, which every device has. Padding has the lowest finite value, what is `hidden` [B, N] -inf.
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
    """Top-K in which the neighbours of chosen patches gain: scores [B, N] -> indices [B, K], ascending.

    N are the patches of one grid or, with its `side`, of several, one after the other, that share no neighbours.

    Scores become ranks in 0..1, so that the gain means the same for every scorer. The first K choices add to each patch
    `window_gain` times the share of its neighbours within `window_size` x `window_size` that they are; then the choice
    is made anew. Patches that come last (the lowest finite score: padding; -inf: taken) gain nothing.
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
    """Divides chosen patches into those that an item keeps and its surplus.

    Args:
        scores: [B, N].
        indices: [B, K] chosen patches, ascending.
        counts: [B] how many each item keeps: those of the highest scores; equal ones go to the lower index.

    Returns:
        Indices [B, K], those kept in front, both parts ascending; and the rank of each by score, [B, K] from 0.
    """
    order = scores.gather(1, indices).sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(indices.shape[1], device=indices.device).expand_as(indices)
    rank = torch.empty_like(indices).scatter_(1, order, places)
    front = (rank >= counts[:, None]).int().sort(dim=-1, stable=True).indices
    return indices.gather(1, front), rank.gather(1, front)


def soft_top_k(scores: Tensor, count: int | Tensor, *, temperature: float) -> Tensor:
    """Weights in 0..1 that sum to `count`: sigmoid((score - tau) / temperature), tau one per item.

    Tau is found by bisection and has the gradient of the implicit function. So raising one score lowers the weights of
    all others.

    Args:
        scores: [B, N]; -inf has weight 0.
        count: K, or [B, 1] one per item; an item of no more than K finite scores has weight 1 on each.
        temperature: above 0, in units of the score; towards 0 the weights become the hard choice.
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


# ---- how many of them -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budgets:
    """How many fetched tokens a budgeter gives each item of a batch.

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
    """[T] int64: fetched tokens of each tier on a grid of N patches, at most `most`."""
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


class TierClassifier(ContextNetwork):
    """Logits [B, T] of the tiers, from the question and the gestalt."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config.hidden_size, len(TIERS), feature_size=feature_size, text_size=text_size)


class Budgeter(nn.Module):
    """Base of what counts: how many fetched tokens each item gets."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        """Budgets of at most `most`; `mass` [B, N] is the relevance, 0 on what shall not be fetched.

        It may be that of several grids of the context's size, [B, n * N], and the context that of as many images to
        an item, one after the other.
        """
        raise TypeError(f"{type(self).__name__} has no forward: expected a subclass that has")


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
    """As many as it takes to hold `adaptive_share` of the relevance, from the first tier to the last."""

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        sizes = tier_sizes(context.side**2, most)
        return budgets_from_mass(mass, self.config.adaptive_share, least=int(sizes[0]), most=int(sizes[-1]))


# ---- what the answer's loss reaches --------------------------------------------------------------------------------


# ---- the family ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocator:
    """A way to turn scores into patches, and what chooses their number.

    Attributes:
        choose: scores [B, N] as `ranked_scores` makes them, a count, `config=` and the grid's `side=` -> indices
            [B, count] of distinct patches, ascending.
        budgeter: says how many of an item's most relevant patches it gets, up to the budget; None: the budget.
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
    """Whether the allocator of this (registered) name says how many patches each item gets; False for None."""
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
    """What tokens are multiplied by, so that the answer's loss reaches the scorer and the budgets.

    Args:
        scores, relevance, ranked: [B, N] of the scorer, and `ranked_scores`.
        indices, levels: [B, K] the tokens; levels None: all are patches.
        rank: [B, K] of each token by score.
        budgets: of allocators that choose how many.
        side: G.
        temperature: of gradient "soft"; None: "straight_through".

    Returns:
        [B, K], or None where neither scorer nor budgets learn. A region's weight is the mean of its patches'.
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
    learns: bool = False,
    temperature: float | None = None,
) -> FetchResult:
    """Chooses patches for scores of one grid per item, or of n grids, one after the other.

    Args:
        context: question and grid size, as the scorer saw them.
        scores, relevance, patch_mask: [B, n * N]; False on padding.
        budget: K.
        config: what allocators read.
        strategy, allocator: their names.
        budgeter: says how many each item gets, for an allocator that chooses that.
        hidden: [B, n * N] True on patches that must not be fetched, or None.
        learns: whether the answer's loss is to reach what chooses.
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
    method, levels = ALLOCATORS[allocator], None
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
    )
