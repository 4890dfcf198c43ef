"""Through what the answer's loss reaches those who chose the saccades: a weight for each.

Notation: B batch, N patches, G side of the grid, K saccades.
"""

import torch
from torch import Tensor

from .allocators import Budgets, soft_top_k
from .regions import pool_regions


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
