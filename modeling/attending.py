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
