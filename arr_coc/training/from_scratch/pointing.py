"""Teaching a language model where to look: its pointing heads attend to the token that shows the next character.

That is the character's patch where it was fetched, else the base token of its cell.

Notation: I image slots, S steps that predict a token, M base tokens, K patches fetched, T tokens to be predicted.
"""

import torch
from torch import Tensor
from transformers import PretrainedConfig

from .patch_language import cell_of

POINTING_LAYER, POINTING_HEADS = -2, 2
"""Where the language model is taught to look: the first heads of a layer, by default the last one but one."""

POINTER_WEIGHT = 0.5
"""Of the loss that tells where to look, beside that of what is copied or compared."""


def check_layer(layer: int, config: PretrainedConfig) -> None:
    """Raises a ValueError unless the language model has such a layer; negative ones count from the last."""
    layers = config.num_hidden_layers
    if not -layers <= layer < layers:
        raise ValueError(f"pointing_layer: expected {-layers} to {layers - 1}; got {layer}")


def right_rows(logits: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """[I] True where every predicted token of a row is right: teacher-forced, the same as an exact greedy answer.

    `logits` [T, vocabulary] and `targets` [T] of the T places where `chosen` [I, S] is True.
    """
    rows = torch.arange(len(chosen), device=chosen.device)[:, None].expand_as(chosen)[chosen]
    wrong = (logits.argmax(-1) != targets).float()
    return torch.zeros(len(chosen), device=chosen.device).index_add_(0, rows, wrong) == 0


def pointing(attentions: tuple[Tensor, ...], layer: int, *, steps: slice, tokens: slice) -> Tensor:
    """The attention [I, S, M + K] that the pointing heads pay to an image's tokens at the steps that predict."""
    return attentions[layer][:, :POINTING_HEADS, steps, tokens].mean(1)


def shown_by(places: Tensor, indices: Tensor, *, side: int, base: int) -> Tensor:
    """Which of an image's tokens shows what a step predicts: bool [I, S, M + K], in a row one at most.

    Args:
        places: [I, S] the patch that shows it, -1: none does.
        indices: [I, K] patches fetched.
        side: G.
        base: M, or 0 where no base tokens stand before the patches.
    """
    patches = indices[:, None] == places[..., None]
    cells = torch.arange(base, device=places.device) == cell_of(places, side)[..., None]
    return torch.cat((cells & ~patches.any(-1, keepdim=True), patches), -1)


def pointer_loss(attention: Tensor, match: Tensor) -> Tensor:
    """Minus the log of the attention that each step pays to the token which shows its character.

    Args:
        attention: [I, S, M + K] of steps to an image's tokens.
        match: bool, of the same shape, from `shown_by`; steps that no token shows do not count.
    """
    known = match.any(-1)
    paid = (attention.float() * match).sum(-1)[known]
    return -paid.clamp(min=1e-6).log().mean() if len(paid) else attention.sum() * 0
