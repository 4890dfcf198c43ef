"""How many patches a drawn set has, where the allocator chooses: drawn from what it deems likely.

Notation: I image slots, G draws, K saccades at most. A rank r counts from 0.
"""

import torch
from torch import Tensor


def size_probabilities(survival: Tensor) -> Tensor:
    """The probability of every size 1..K from that of every rank to be fetched: [I, K] -> [I, K].

    P(size = k) = P(size > k - 1) - P(size > k). Tiers of one size on a small grid count as one size.

    Args:
        survival: P(size > r) at rank r, falling and 1 at rank 0: `FetchResult.survival`.
    """
    return (survival - torch.nn.functional.pad(survival[:, 1:], (0, 1))).clamp(min=0)


def draw_sizes(survival: Tensor, draws: int, *, generator: torch.Generator) -> Tensor:
    """Sizes [I, G] int64 for `survival` [I, K]; `generator` decides, on its own device."""
    probabilities = size_probabilities(survival.detach().float()).to(generator.device)
    return 1 + torch.multinomial(probabilities, draws, replacement=True, generator=generator).to(survival.device)


def size_log_probability(survival: Tensor, sizes: Tensor) -> Tensor:
    """Log-probability [I, G] of sizes [I, G] as drawn from `survival` [I, K]."""
    tiny = torch.finfo(torch.float32).tiny
    return size_probabilities(survival.float()).gather(1, sizes - 1).clamp(min=tiny).log()
