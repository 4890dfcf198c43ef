"""Teaching a language model where to look: its pointing heads attend to the patch that shows the next character.

Notation: I image slots, S steps that predict a token, K patches fetched, T tokens to be predicted.
"""

import torch
from torch import Tensor

POINTING_LAYER, POINTING_HEADS = -2, 2
"""Where the language model is taught to look: the first heads of its last layer but one."""


def right_rows(logits: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """[I] True where every predicted token of a row is right: teacher-forced, the same as an exact greedy answer.

    `logits` [T, vocabulary] and `targets` [T] of the T places where `chosen` [I, S] is True.
    """
    rows = torch.arange(len(chosen), device=chosen.device)[:, None].expand_as(chosen)[chosen]
    wrong = (logits.argmax(-1) != targets).float()
    return torch.zeros(len(chosen), device=chosen.device).index_add_(0, rows, wrong) == 0


def pointing(attentions: tuple[Tensor, ...], *, steps: slice, patches: slice) -> Tensor:
    """The attention [I, S, K] that the pointing heads pay to patch tokens at the steps that predict."""
    return attentions[POINTING_LAYER][:, :POINTING_HEADS, steps, patches].mean(1)


def pointer_loss(attention: Tensor, indices: Tensor, places: Tensor) -> Tensor:
    """Minus the log of the attention that each step pays to the patch which shows its character.

    Args:
        attention: [I, S, K] of steps to patch tokens.
        indices: [I, K] their patches.
        places: [I, S] the patch to look at; steps without one, or whose patch was not fetched, do not count.
    """
    match = (indices[:, None] == places[..., None]) & (places >= 0)[..., None]
    known = match.any(-1)
    paid = (attention.float() * match).sum(-1)[known]
    return -paid.clamp(min=1e-6).log().mean() if len(paid) else attention.sum() * 0
