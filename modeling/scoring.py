"""What the scorers learn from: which patches hold the answer.

Notation: I image slots, N patches.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .fetching import FetchResult
from .realizing import FetchContext


def relevance_loss(
    scorers: nn.ModuleDict, context: FetchContext, labels: Tensor, fetched: FetchResult | None, positive_weight: float
) -> Tensor:
    """Mean binary cross-entropy of every trained scorer against `labels` [I, N] over patches that hold some image.

    Args:
        scorers: the trained scorers by name.
        context: what they see.
        labels: in 0..1.
        fetched: what the same context led to, so that its scorer need not run again.
        positive_weight: how much more a relevant patch weighs than any other.

    Raises:
        ValueError: there are no trained scorers.
    """
    if not scorers:
        raise ValueError("relevance_labels: expected a model with trained scorers; this one has none")
    done = {} if fetched is None else {fetched.strategy: fetched.scores}
    known = [done[name] if name in done else scorer(context) for name, scorer in scorers.items()]
    weight = torch.full((), positive_weight, device=known[0].device)
    target, mask = labels.to(known[0]), context.patch_mask.to(known[0].device)
    losses = [
        F.binary_cross_entropy_with_logits(scores, target, pos_weight=weight, reduction="none")[mask].mean()
        for scores in known
    ]
    return torch.stack(losses).mean()
