"""Allocators: from relevance and a budget to the indices of K distinct patches, and how many of them each item gets.

Those that fetch regions of several patches are in detail_allocators.py.

Choosing is done by pure functions, in which ties break by lower index. Where a question or the relevance decides how
many patches an item gets, a module counts them, since it may hold weights.

Notation: B batch, G side of the fine grid, N = G*G patches, K saccades (the most of any item), T tiers, C feature
channels, D language-model width, H scorer width. A saccade's rank r counts from 0, the most relevant first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from .config_fields import Registry
from .configuration_arr_coc import TIERS, ArrCocFetcherConfig, scaled_budget
from .grid_encoder import pool_regions
from .relevance_maps import ContextNetwork
from .scorers import FetchContext

SOFTNESS = 0.02
"""How wide the soft edge of "adaptive" is, as a share of the mass; only gradients see it."""


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
    """How many saccades a budgeter gives each item of a batch.

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


class TierClassifier(ContextNetwork):
    """Logits [B, T] of the tiers, from the question and the gestalt."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config.hidden_size, len(TIERS), feature_size=feature_size, text_size=text_size)


class Budgeter(nn.Module):
    """Base of what counts: how many saccades each item gets."""

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


SHARES = (0.0, 0.05, 0.1, 0.3, 0.5)
"""What may be drawn of a pass, the rule's values (`passes.tempered`) among them."""

FIRST = 2
"""Which of `SHARES` an untrained policy prefers, in every pass: a tenth."""

FURTHER_PASSES = 3.0
"""Passes behind the first, by which their number is scaled to 0..1."""


class Judged(Protocol):
    """What the policy reads of a pass (`answers.Pass`)."""

    @property
    def uncertainty(self) -> float: ...


class TemperingPolicy(nn.Module):
    """From the last answer's uncertainty and how many passes there were to one of `SHARES`.

    The most likely one; where the decisions are recorded (`drawing`), one that is drawn.
    """

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, size)
        self.head = nn.Linear(size, len(SHARES))
        self._drawn: list[tuple[Tensor, int]] | None = None
        self._generator: torch.Generator | None = None

    def start_weights(self, std: float) -> None:
        """Nothing depends on the answers yet, and `FIRST` is e times as likely as each of the others."""
        preferred = torch.zeros_like(self.head.bias)
        preferred[FIRST] = 1.0
        initialization.zeros_(self.head.weight)
        initialization.copy_(self.head.bias, preferred)
        initialization.normal_(self.hidden.weight, std=1.0)

    def forward(self, states: Tensor) -> Tensor:
        """Logits [B, S] for states [B, 2], see `state_of`."""
        return self.head(torch.tanh(self.hidden(states.to(self.hidden.weight))))

    @torch.no_grad()
    def share(self, passes: Sequence[Judged]) -> float:
        """Of the next pass, given those so far."""
        state = state_of(passes)
        probabilities = self(state[None])[0].float().softmax(-1)
        if self._drawn is None:
            return SHARES[int(probabilities.argmax())]
        number = int(torch.multinomial(probabilities.cpu(), 1, generator=self._generator))
        self._drawn.append((state, number))
        return SHARES[number]

    @contextmanager
    def drawing(self, generator: torch.Generator) -> Iterator[list[tuple[Tensor, int]]]:
        """Within it shares are drawn, and each decision is in the list: its state [2], and which share it was.

        For one thread at a time.
        """
        self._drawn, self._generator = [], generator
        try:
            yield self._drawn
        finally:
            self._drawn = self._generator = None

    def log_probability(self, drawn: Sequence[tuple[Tensor, int]]) -> Tensor:
        """Of all decisions of an episode together, differentiable; a scalar."""
        states = torch.stack([state for state, _ in drawn])
        numbers = torch.tensor([number for _, number in drawn], device=self.head.weight.device)
        return self(states).float().log_softmax(-1).gather(1, numbers[:, None]).sum()


def state_of(passes: Sequence[Judged]) -> Tensor:
    """[2] float32: the last answer's uncertainty (1 before there is one), and how many passes there were."""
    uncertainty = passes[-1].uncertainty if passes else 1.0
    return torch.tensor([uncertainty, len(passes) / FURTHER_PASSES])
