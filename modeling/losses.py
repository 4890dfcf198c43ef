"""What scorers, budgets and bridges learn from beside the answer: losses as pure functions.

Notation: I image slots, N patches, T tiers, S tokens, D language-model width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils import logging

logger = logging.get_logger(__name__)


def relevance_loss(scores: Tensor, targets: Tensor, patch_mask: Tensor, positive_weight: float) -> Tensor:
    """The mean of `relevance_losses`, of the same arguments, over slots with a row of targets.

    Where no row is known the loss is 0, with a gradient of 0.
    """
    known = patch_mask.any(1).to(scores.device) & (targets >= 0).all(1).to(scores.device)
    return relevance_losses(scores, targets, patch_mask, positive_weight).sum() / known.sum().clamp(min=1)


def relevance_losses(scores: Tensor, targets: Tensor, patch_mask: Tensor, positive_weight: float) -> Tensor:
    """[I] the mean binary cross-entropy over each slot's patches and all scorers.

    0 where the row of targets is -1: nobody knows where that slot's answer is.

    Args:
        scores: logits [scorers, I, N].
        targets: [I, N] in 0..1, or rows of -1.
        patch_mask: bool [I, N], True on patches that hold some of the image.
        positive_weight: how much more a relevant patch weighs than any other.
    """
    scores = scores.float()
    target = targets.to(scores).expand_as(scores)
    mask = patch_mask.to(scores.device) & (target[0] >= 0).all(1, keepdim=True)
    weight = torch.full((), positive_weight, device=scores.device)
    losses = F.binary_cross_entropy_with_logits(scores, target.clamp(min=0), pos_weight=weight, reduction="none")
    return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean(0)


def efficiency_loss(expected_tokens: Tensor, target: float) -> Tensor:
    """What the mean of `expected_tokens` [I] exceeds `target` by, as a share of the target; 0 below it.

    Args:
        expected_tokens: saccades, see `FetchResult.expected_tokens`.
        target: saccades, above 0.

    Raises:
        ValueError: a target that is not positive.
    """
    if target <= 0:
        raise ValueError(f"target: expected a positive number of tokens; got {target}")
    return (expected_tokens.float().mean() - target).clamp(min=0) / target


def diversity_loss(tier_logits: Tensor) -> Tensor:
    """How far the batch's mean tier distribution is from uniform: 1 - entropy / log T, from 0 to 1 (one tier only).

    Of the mean over the batch, so every item may be certain of its tier as long as not all take the same.

    Args:
        tier_logits: [I, T], see `FetchResult.tier_logits`.
    """
    mean = tier_logits.float().softmax(-1).mean(0)
    return 1 - torch.special.entr(mean).sum() / math.log(tier_logits.shape[-1])


def distribution_loss(tokens: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """Distance of bridged tokens from text: squared differences of mean and standard deviation, in units of the text's.

    Both are taken over a token's channels, and the loss is the mean over tokens.

    Args:
        tokens: [..., S, D].
        mean, std: of the text embeddings: `bridge_config.text_embedding_mean` and `_std`, or `text_statistics`.
    """
    tokens = tokens.float()
    shift = tokens.mean(-1) - mean
    scale = tokens.std(-1, correction=0) - std
    return ((shift.square() + scale.square()) / std**2).mean()


@torch.no_grad()
def text_statistics(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over all weights of a table of text embeddings [vocabulary, D]."""
    std, mean = torch.std_mean(weight.float(), correction=0)
    return mean, std


def warn_of_training_in_eval_mode(loss: Tensor, fetcher: nn.Module) -> None:
    """Says once that scorers learn nothing from the answer, where they are to be trained and are in evaluation mode.

    `from_pretrained` gives a model in evaluation mode and PEFT leaves it there; the gradient from the answer to the
    scorers is made in training mode only. Without a word an adapter of the scorer would stay as it began.

    Args:
        loss: the answer's. The warning comes when it is led back, so that measuring a loss stays silent; or at once
            where nothing leads back from it, for then there is nothing but torch's error to come.
        fetcher: the `RunningBackFetcher`.
    """
    configured = fetcher.config.gradient != "none"  # type: ignore[union-attr]
    if fetcher.training or not configured or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return
    if not any(parameter.requires_grad for parameter in fetcher.parameters()):
        return
    if loss.requires_grad:
        loss.register_hook(_warn_of_eval_mode)
    else:
        _warn_of_eval_mode(loss)


def _warn_of_eval_mode(_: Tensor) -> None:
    logger.warning_once(
        "The scorers are to be trained, but the model is in evaluation mode: the answer's loss does not reach them. "
        "Call model.train() before training (or torch.no_grad() around what only measures)."
    )
