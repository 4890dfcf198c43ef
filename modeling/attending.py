"""Allocators: from relevance and a budget to the indices of K distinct patches.

Pure functions. Ties break by lower index. Notation: B batch, G side of the fine grid, N = G*G patches, K saccades.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .configuration_arr_coc import ArrCocFetcherConfig
from .registry import Registry

Allocator = Callable[..., Tensor]
ALLOCATORS: Registry[Allocator] = Registry("allocator")


def best(scores: Tensor, count: int) -> Tensor:
    """Indices [B, count] of the highest scores [B, N], ascending; equal scores go to the lower index."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count].sort(-1).values


@ALLOCATORS.register("topk")
@ALLOCATORS.register("tiers")  # how many of them an item keeps: see `budgeting.BUDGETERS`
@ALLOCATORS.register("adaptive")
def topk(scores: Tensor, count: int, *, config: ArrCocFetcherConfig) -> Tensor:
    """The K most relevant patches: scores [B, N] -> indices [B, K], ascending."""
    return best(scores, count)


@ALLOCATORS.register("window")
def window(scores: Tensor, count: int, *, config: ArrCocFetcherConfig) -> Tensor:
    """Top-K in which the neighbours of chosen patches gain: scores [B, N] -> indices [B, K], ascending.

    Scores become ranks in 0..1, so that the gain means the same for every scorer. The first K choices add to each patch
    `window_gain` times the share of its neighbours within `window_size` x `window_size` that they are; then the choice
    is made anew. Patches that come last (the lowest finite score: padding; -inf: taken) gain nothing.
    """
    batch, patches = scores.shape
    side = round(patches**0.5)
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    steps = torch.linspace(1, 0, patches, dtype=scores.dtype, device=scores.device).expand(batch, -1)
    rank = torch.empty_like(steps).scatter_(1, order, steps)
    chosen = torch.zeros_like(rank).scatter_(1, order[:, :count], 1.0).view(batch, 1, side, side)
    size = config.window_size
    around = F.avg_pool2d(chosen, size, stride=1, padding=size // 2, divisor_override=1) - chosen  # without itself
    share = around.flatten(1) / max(1, size**2 - 1)
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


def soft_top_k(scores: Tensor, count: int, *, temperature: float) -> Tensor:
    """Weights in 0..1 that sum to `count`: sigmoid((score - tau) / temperature), tau one per item.

    Tau is found by bisection and has the gradient of the implicit function. So raising one score lowers the weights of
    all others.

    Args:
        scores: [B, N]; -inf has weight 0.
        count: K; an item of no more than K finite scores has weight 1 on each.
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
