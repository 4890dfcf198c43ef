"""Through what the answer's loss reaches those who chose the saccades: a weight for each.

Notation: B batch, N patches, K saccades.
"""

import torch
from torch import Tensor

from .allocators import Budgets, soft_top_k


def saccade_weights(
    scores: Tensor,
    relevance: Tensor,
    ranked: Tensor,
    indices: Tensor,
    rank: Tensor,
    budgets: Budgets | None,
    *,
    temperature: float | None,
) -> Tensor | None:
    """[B, K] through which the answer's loss reaches the scorer and the budgets; None where neither learns.

    Args:
        scores, relevance: [B, N] of all patches.
        ranked: [B, N], the lowest finite number and below where nothing may be fetched.
        indices: [B, K] fetched; rank: [B, K] of each by score, from 0.
        budgets: what says how many, or None.
        temperature: of gradient "soft", in units of the score; None: weights are 1 and pass the gradient on.
    """
    weights = None
    if scores.requires_grad:
        if temperature is not None:
            eligible = scores.masked_fill(ranked <= torch.finfo(ranked.dtype).min, float("-inf"))
            weights = soft_top_k(eligible, indices.shape[1], temperature=temperature).gather(1, indices)
        else:
            weights = relevance.gather(1, indices)
            weights = 1 + (weights - weights.detach())  # in this order: exactly 1
    if budgets is not None and budgets.survival.requires_grad:
        survival = budgets.survival.gather(1, rank)
        weights = survival if weights is None else weights * survival
    return weights
