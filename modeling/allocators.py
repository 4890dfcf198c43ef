"""Allocators: which patches a budget fetches, each by itself or as part of a region, and how many of an item.

Pure functions choose the patches; ties break by lower index. If the question or the relevance decides the number of
patches, a module (`Budgeter`) counts them, since it may hold weights. A region of 4 or 16 patches holds no padding and
no patch that must not be fetched: cells with such patches are divided. So a budget of all patches gives each patch by
itself.

Notation: B batch, G side of the fine grid (several grids are stacked one below the other), N = G*G patches, M = N/16
base cells, K fetched tokens (the most of any item), T tiers, P peaks, C feature channels, D language-model width, H
scorer width. A fetched token's rank r counts from 0, the most relevant first. Trees are those of
`grid_encoder.in_tree`: cells [B, M], quarters [B, M, 4], patches [B, M, 4, 4].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checks import Registry
from .configuration_arr_coc import TIERS, ArrCocFetcherConfig, scaled_budget
from .grid_encoder import in_tree, out_of_tree, pool_regions
from .scorers import FetchContext, topk

SOFTNESS = 0.02  # width of the soft edge of "adaptive", as a share of the mass; only gradients depend on it

# ---- the number of patches ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budgets:
    """The number of fetched tokens of each item of a batch."""

    counts: Tensor  # [B] int64
    # [B, K] float32, the probability that the token of rank r is fetched, P(count > r); differentiable.
    survival: Tensor
    expected: Tensor  # [B] float32, the expected count; differentiable
    tier_logits: Tensor | None = None  # [B, T] of the classifier


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


TIER_CHOICES: Registry[type[nn.Module] | None] = Registry("tier_choice")
"""Networks that choose the tier of each item: they return logits [B, T]."""
TIER_CHOICES.register("heuristic")(None)


class TierBudgeter(nn.Module):
    """One of `TIERS`, by a network or by the heuristic: more question tokens name more things to find."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__()
        self.config, kind = config, TIER_CHOICES[config.tier_choice]
        self.classifier = None if kind is None else kind(config, feature_size=feature_size, text_size=text_size)

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        """Budgets of at most `most`; `mass` [B, N] is the relevance, 0 on patches that must not be fetched.

        With several grids of the context's size it is [B, n * N], and the context has n images for each item, one after
        the other.
        """
        sizes = tier_sizes(context.side**2, most, device=mass.device)
        images = len(context.query_mask) // len(mass)
        if self.classifier is not None:
            logits = self.classifier(context).unflatten(0, (len(mass), images)).mean(1)
            return budgets_from_tiers(logits.softmax(-1), sizes, logits)
        bounds = torch.tensor(self.config.tier_lengths, device=mass.device)
        tier = torch.bucketize(context.query_mask[::images].sum(1).to(mass.device), bounds, right=True)
        return budgets_from_tiers(nn.functional.one_hot(tier, len(TIERS)).float(), sizes)


class MassBudgeter(nn.Module):
    """The smallest number that holds `adaptive_share` of the relevance, from the first tier to the last."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, context: FetchContext, mass: Tensor, most: int) -> Budgets:
        sizes = tier_sizes(context.side**2, most)
        return budgets_from_mass(mass, self.config.adaptive_share, least=int(sizes[0]), most=int(sizes[-1]))


# ---- which patches --------------------------------------------------------------------------------------------------


def window(scores: Tensor, count: int, *, config: ArrCocFetcherConfig, side: int | None = None) -> Tensor:
    """Top-K with a gain for the neighbours of chosen patches: scores [B, N] -> indices [B, K], ascending.

    The N patches are those of one grid or, with its `side`, of several grids, one after the other, without common
    neighbours. Scores become ranks in 0..1, so the gain has the same effect for every scorer. A first top-K is taken.
    Each patch then gains `window_gain` times the share of chosen patches among its neighbours in `window_size` x
    `window_size`, and the top-K of the result is returned. Patches that come last (the lowest finite score: padding;
    -inf: taken) gain nothing.
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
    return topk(torch.where(eligible, rank + config.window_gain * share, scores.clamp(max=-1)), count)


# ---- regions of 1, 4 or 16 patches: dividing cells by priority ----------------------------------------------------

Allocation = tuple[Tensor, Tensor]
"""Indices [B, K] of disjoint regions, ascending, and their levels of detail [B, K], both int64; see grid_encoder.py."""

_NONE = float("-inf")


@dataclass(frozen=True)
class _Tree:
    """The patches that can be fetched, as a tree."""

    relevance: Tensor  # [B, M, 4, 4], 0 outside `real`
    real: Tensor  # bool [B, M, 4, 4], False on padding and on patches that must not be fetched
    padding: Tensor  # bool [B, M, 4, 4], True on padding that may fill a budget
    side: int  # G

    @classmethod
    def of(cls, scores: Tensor, relevance: Tensor, side: int | None) -> "_Tree":
        """The tree of scores and relevance [B, N], the arguments of `Allocator.choose`; NaN is not relevant."""
        side = round(scores.shape[1] ** 0.5) if side is None else side
        least = torch.finfo(scores.dtype).min
        real, padding = in_tree(scores > least, side), in_tree(scores == least, side)
        values = in_tree(relevance.float().nan_to_num(0.0, 0.0, 0.0), side)
        return cls(torch.where(real, values, 0.0), real, padding, side)

    def fill(self, worth: Tensor, levels: Tensor, count: int) -> Allocation:
        """The `count` regions of the highest worth, and padding if there are fewer. `worth`: [B, M, 4, 4] on the first
        patch of each possible region, -inf elsewhere; `levels`: int64 alike."""
        free = self.padding & worth.isneginf()
        worth = worth.masked_fill(free, torch.finfo(worth.dtype).min)
        indices = topk(out_of_tree(worth, self.side), count)
        return indices, out_of_tree(levels, self.side).gather(1, indices)


def _divide(
    tree: _Tree, cells: Tensor, quarters: Tensor, worth: tuple[Tensor, Tensor, Tensor], count: int
) -> Allocation:
    """Divides cells and quarters with a priority above 0, and then others by priority, until there are `count` regions.

    `cells`, `quarters`: priorities [B, M], [B, M, 4]; `worth`: of regions that are cells, quarters and patches: those
    of the highest worth are fetched.
    """
    broken = ~tree.real.all(3)  # quarters that must be divided
    forced = torch.cat((broken.any(2), broken.flatten(1)), 1)
    keys = torch.cat((cells, torch.minimum(quarters, cells[..., None]).flatten(1)), 1).masked_fill(forced, float("inf"))
    # A quarter comes behind its cell in this order: its key is at most the cell's, and cells come first.
    order = keys.sort(dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(keys.shape[1], device=keys.device).expand_as(order))
    must = forced.sum(1)
    whole = (tree.real.all(3) & broken.any(2, keepdim=True)).sum((1, 2)) + (~broken.any(2)).sum(1)
    least = whole + (tree.real & broken[..., None]).sum((1, 2, 3))  # regions with the necessary divisions alone
    steps = (torch.clamp(count - least, min=0) + 2) // 3  # each division adds three
    divided = (keys > 0) | (rank < (must + steps)[:, None])
    split_cell, split_quarter = divided[:, : cells.shape[1]], divided[:, cells.shape[1] :].view_as(quarters)
    split_quarter = split_quarter & split_cell[..., None]
    # The leaves after these divisions, of which those of the highest worth are fetched.
    values = torch.where(tree.real & split_quarter[..., None], worth[2], _NONE)
    levels = torch.zeros_like(tree.real, dtype=torch.int64)
    first = torch.where(split_cell[..., None] & ~split_quarter, worth[1], values[..., 0])
    values = torch.cat((first[..., None], values[..., 1:]), 3)
    levels[..., 0] = (split_cell[..., None] & ~split_quarter).long()
    values[:, :, 0, 0] = torch.where(split_cell, values[:, :, 0, 0], worth[0])
    levels[:, :, 0, 0] = torch.where(split_cell, levels[:, :, 0, 0], 2)
    return tree.fill(values, levels, count)


def quadtree(
    scores: Tensor, count: int, *, relevance: Tensor, config: ArrCocFetcherConfig, side: int | None = None
) -> Allocation:
    """Divides regions in which relevance varies, and fetches the regions of the highest mean relevance.

    A cell or quarter is divided if the standard deviation of relevance in it and the ring of patches around it is above
    `quadtree_spread`; if that gives fewer than K regions, those with the largest deviation follow. Without the ring, a
    word that fills a region to its edges would not vary in it, and would be pooled.
    """
    tree = _Tree.of(scores, relevance, side)
    patches = out_of_tree(tree.relevance, tree.side).view(-1, 1, tree.side, tree.side)
    batch, columns = len(scores), tree.side // 4
    cells = _deviation(patches, 4).view(batch, -1)
    quarters = _deviation(patches, 2).view(batch, -1, 2, columns, 2).transpose(2, 3).reshape(batch, -1, 4)
    worth = (tree.relevance.mean((2, 3)), tree.relevance.mean(3), tree.relevance)
    return _divide(tree, cells - config.quadtree_spread, quarters - config.quadtree_spread, worth, count)


def _deviation(patches: Tensor, span: int) -> Tensor:
    """The standard deviation in squares of `span` patches and the ring around each: [n, 1, G, G] -> [n, 1, g, g]."""

    def mean(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, span + 2, stride=span, padding=1, count_include_pad=False)

    return (mean(patches.square()) - mean(patches).square()).clamp(min=0).sqrt()


# ---- resolution that falls with distance -----------------------------------------------------------------------------

_PEAK_WIDTH = 9
"""Patches: a peak is the most relevant patch in a square of this side around itself, two base cells and the patch."""

_STEEPNESS = 10.0  # for the mapping "sigmoid": from 5 % to 95 % of the tokens between resolutions of 0.2 and 0.8


def foveated(
    scores: Tensor, count: int, *, relevance: Tensor, config: ArrCocFetcherConfig, side: int | None = None
) -> Allocation:
    """Fetches regions around the peaks of relevance, more coarsely with distance.

    The resolution of a patch is the highest over the peaks of w / (1 + a r^2): r its distance in patches, a
    `fovea_falloff`, w the peak's relevance as a share of the highest. `fovea_mapping` maps it to tokens of its cell, 1
    to 16; the cell gets the nearest of 1, 4 and 16 on a logarithmic scale.
    """
    tree = _Tree.of(scores, relevance, side)
    resolution = in_tree(_resolution(scores, out_of_tree(tree.relevance, tree.side), tree.side, config), tree.side)
    detail = _tokens(resolution, config.fovea_mapping).log2() / 2  # 0 to 2: 1, 4 and 16 tokens
    quarters, cells = detail.amax(3), detail.amax((2, 3))
    worth = (resolution.amax((2, 3)), resolution.amax(3), resolution)
    return _divide(tree, cells - 0.5, quarters - 1.5, worth, count)


def _resolution(scores: Tensor, relevance: Tensor, side: int, config: ArrCocFetcherConfig) -> Tensor:
    """[B, N] in 0..1: see `foveated`. A peak acts on its own grid only."""
    batch, patches = scores.shape
    ranked = scores.clamp(min=torch.finfo(scores.dtype).min).view(-1, 1, side, side)
    highest = F.max_pool2d(ranked, _PEAK_WIDTH, stride=1, padding=_PEAK_WIDTH // 2) == ranked
    peak = highest.view(batch, patches) & (scores > torch.finfo(scores.dtype).min)
    values = torch.where(peak, scores, _NONE)
    peaks = values.sort(dim=1, descending=True, stable=True).indices[:, : config.fovea_peaks]  # [B, P]
    weight = torch.where(peak, relevance, 0.0).gather(1, peaks)
    weight = weight / weight.amax(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
    at = torch.arange(patches, device=scores.device)
    y, x = at // side, at % side
    squared = ((y[peaks][..., None] - y).square() + (x[peaks][..., None] - x).square()).float()  # [B, P, N]
    own = (peaks // side**2)[..., None] == at // side**2
    return torch.where(own, weight[..., None] / (1 + config.fovea_falloff * squared), 0.0).amax(1)


def _tokens(resolution: Tensor, mapping: str) -> Tensor:
    """Tokens of a base cell, 1 to 16, at a resolution of 0 to 1."""
    if mapping == "exponential":
        return 16.0**resolution
    share = resolution if mapping == "linear" else (_STEEPNESS * (resolution - 0.5)).sigmoid()
    return 1 + 15 * share


# ---- the most relevance that a budget can hold -----------------------------------------------------------------------


def knapsack(
    scores: Tensor, count: int, *, relevance: Tensor, config: ArrCocFetcherConfig, side: int | None = None
) -> Allocation:
    """The exact choice of K disjoint regions that captures most relevance.

    A patch by itself captures its relevance; a quarter or a cell as one token captures a share (`pooled_shares`) of the
    sum of its patches. Dynamic programming over a balanced tree solves it: the most that a part of the image can
    capture with each number of tokens is the (max, +) convolution of its two halves.
    """
    tree = _Tree.of(scores, relevance, side)
    of_cell, of_quarter = config.pooled_shares
    ordered = torch.where(tree.real, tree.relevance, _NONE).sort(dim=3, descending=True, stable=True)
    quarters = F.pad(ordered.values.cumsum(3), (1, 0))  # of the best 0 to 4 patches
    pooled = torch.where(tree.real.all(3), of_quarter * tree.relevance.sum(3), _NONE)
    is_quarter = pooled > quarters[..., 1]
    quarters = torch.cat((quarters[..., :1], torch.maximum(pooled, quarters[..., 1])[..., None], quarters[..., 2:]), 3)
    halves, way_to_halves = _join(quarters.flatten(1, 2), 8)
    cells, way_to_cells = _join(halves, 16)
    pooled = torch.where(tree.real.all((2, 3)), of_cell * tree.relevance.sum((2, 3)), _NONE)
    is_cell = pooled > cells[..., 1]
    cells = torch.cat((cells[..., :1], torch.maximum(pooled, cells[..., 1])[..., None], cells[..., 2:]), 2)
    tokens = _shares(cells, torch.clamp(tree.real.sum((1, 2, 3)), max=count), count)
    as_cell = is_cell & (tokens == 1)
    tokens = _undo(_undo(tokens, way_to_cells), way_to_halves).unflatten(1, (-1, 4))
    as_quarter = is_quarter & (tokens == 1) & ~as_cell[..., None]
    rank = ordered.indices.argsort(dim=3)
    singly = (rank < tokens[..., None]) & ~as_quarter[..., None] & ~as_cell[..., None, None]
    worth = torch.where(singly, 0.0, _NONE)
    worth[..., 0] = worth[..., 0].masked_fill(as_quarter, 0.0)
    worth[:, :, 0, 0] = worth[:, :, 0, 0].masked_fill(as_cell, 0.0)
    levels = torch.zeros_like(rank)
    levels[..., 0] = as_quarter.long()
    levels[:, :, 0, 0] = torch.where(as_cell, 2, levels[:, :, 0, 0])
    return tree.fill(worth, levels, count)


def _join(tables: Tensor, most: int) -> Allocation:
    """The most that pairs of neighbours capture with each number of tokens up to `most`: tables [B, n, t] -> [B, n/2,
    t']. Also the number of these tokens for the first of the pair, [B, n/2, t']: the largest of equal choices."""
    if tables.shape[1] % 2:  # an empty neighbour, without tokens
        nothing = F.pad(tables.new_zeros(len(tables), 1, 1), (0, tables.shape[2] - 1), value=_NONE)
        tables = torch.cat((tables, nothing), 1)
    first, second = tables[:, 0::2], tables[:, 1::2]
    size = tables.shape[2]
    total = min(2 * size - 1, most + 1)
    padded = F.pad(second, (size - 1, max(0, total - size)), value=_NONE)
    together = padded.unfold(2, size, 1)[:, :, :total] + first.flip(2)[:, :, None]
    values, way = together.max(-1)
    return values, size - 1 - way


def _shares(tables: Tensor, tokens: Tensor, most: int) -> Tensor:
    """The split of an item's `tokens` [B] over parts, [B, n], for which tables [B, n, t] capture most."""
    joined = []
    tables = tables[..., : most + 1]
    while tables.shape[1] > 1:
        parts = tables.shape[1]
        tables, way = _join(tables, most)
        joined.append((way, parts))
    shares = tokens[:, None]
    for way, parts in reversed(joined):
        shares = _undo(shares, way)[:, :parts]
    return shares


def _undo(tokens: Tensor, way: Tensor) -> Tensor:
    """Tokens [B, n] of pairs -> of both parts of each pair, [B, 2n], by the choices [B, n, t] of `_join`."""
    first = way.gather(2, tokens[..., None])[..., 0]
    return torch.stack((first, tokens - first), 2).flatten(1)


# ---- the family ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocator:
    """A function that chooses patches by their scores, and the module that chooses their number."""

    # Scores [B, N] from `ranked_scores`, a count, `config=` and the grid's `side=` -> indices [B, count] of distinct
    # patches, ascending; None: those of the highest scores, as `topk`.
    choose: Callable[..., Any] | None = None
    # Chooses the number of patches of each item, up to the budget; None: the budget.
    budgeter: Callable[..., nn.Module] | None = None
    # Whether it chooses levels of detail: then `choose` also takes `relevance=` [B, N] in 0..1, and returns indices of
    # regions and their levels (grid_encoder.py), [B, count] each.
    detail: bool = False


ALLOCATORS: Registry[Allocator] = Registry("allocator")
ALLOCATORS.register("topk")(Allocator())
ALLOCATORS.register("tiers")(Allocator(budgeter=TierBudgeter))
ALLOCATORS.register("adaptive")(Allocator(budgeter=MassBudgeter))
ALLOCATORS.register("window")(Allocator(window))
ALLOCATORS.register("quadtree")(Allocator(quadtree, detail=True))
ALLOCATORS.register("foveated")(Allocator(foveated, detail=True))
ALLOCATORS.register("knapsack")(Allocator(knapsack, detail=True))


# ---- gradients ------------------------------------------------------------------------------------------------------


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
        indices, levels, rank: [B, K] the tokens, their levels (None: all are patches) and their rank by score.
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
