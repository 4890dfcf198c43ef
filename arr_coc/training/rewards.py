"""What an answer from drawn patches is worth, and compared with the same question's other draws.

Notation: B questions, G draws of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics import exact_match, token_f1


@dataclass(frozen=True)
class RewardWeights:
    """Weights of the three terms of a reward.

    Attributes:
        correctness: of the answer: 1 exact, the overlap of tokens where partial, 0 wrong.
        efficiency: of the share of the budget that was not fetched.
        passes: of 1 / how often the model ran back into the image before it answered.
    """

    correctness: float = 1.0
    efficiency: float = 0.01
    passes: float = 0.05


def answer_correctness(text: str, answers: Sequence[str]) -> float:
    """1 for an exact match with any answer, else the best F1 of words, 0 where no word is shared."""
    return 1.0 if exact_match(text, answers) else float(token_f1(text, answers))


def reward(
    correctness: Tensor, *, fetched: Tensor | int, budget: int, passes: Tensor | int = 1, weights: RewardWeights
) -> Tensor:
    """correctness * w_c + (1 - fetched / budget) * w_e + w_p / passes, in the shape of `correctness`.

    What is the same for all draws of a question, the baseline takes out: efficiency matters with allocators that choose
    how much they fetch, passes in a model that runs back more than once.

    Args:
        correctness: in 0..1.
        fetched: patches fetched.
        budget: patches that might have been fetched.
        passes: how often the model fetched; answering from the base tokens alone counts as one.
    """
    saved = 1 - torch.as_tensor(fetched).to(correctness) / max(1, budget)
    few = 1 / torch.as_tensor(passes).to(correctness).clamp(min=1)
    return weights.correctness * correctness + weights.efficiency * saved + weights.passes * few


def group_advantages(rewards: Tensor, *, normalise: bool = False) -> Tensor:
    """Rewards [B, G] less the mean of the same question's other draws: a draw is no part of its baseline.

    `normalise`: divided by the standard deviation within the group; zero where all draws fared alike.
    """
    draws = rewards.shape[1]
    advantages = (rewards - rewards.mean(1, keepdim=True)) * draws / (draws - 1)
    if normalise:
        spread = rewards.std(1, keepdim=True)
        advantages = torch.where(spread > 1e-6, advantages / spread.clamp(min=1e-6), 0.0)
    return advantages
