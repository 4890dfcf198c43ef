"""CDPruner's rule: the most diverse subset, conditioned on the question, by a determinantal point process.

Qizhe Zhang et al., "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs", arXiv
2506.10967: the kernel is the cosine of tokens i and j times the relevance of both, relevance being the cosine to the
question scaled to 0..1; its MAP subset is found greedily (Laming Chen et al., "Fast Greedy MAP Inference for
Determinantal Point Process", arXiv 1709.05135).

Notation: n candidates, L question tokens, D language-model width, D' semantic width, K kept.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .choosing import PEERS, Choice, Peer, Question, best_places

EXHAUSTED = 1e-6
"""What is left of a token's squared length, once those chosen are projected out, that counts as nothing (float32)."""


def relevance(patches: Tensor, text: Tensor) -> Tensor:
    """[n] in 0..1: mean cosine of patches [n, D] to the question's tokens [L, D], scaled to its own range."""
    cosine = (F.normalize(patches.float(), dim=-1) @ F.normalize(text.float(), dim=-1).T).mean(-1)
    low, high = cosine.min(), cosine.max()
    return (cosine - low) / (high - low).clamp(min=1e-12)


def conditional_dpp(weight: Tensor, states: Tensor, count: int) -> Tensor:
    """Places [K] of the greedy MAP subset of the kernel weight_i * cosine(i, j) * weight_j.

    Each step takes the token that adds most to the determinant. Once the kernel's rank is used up, the rest are the
    tokens of the largest weight.

    Args:
        weight: [n], 0 or more.
        states: [n, D'].
        count: K.
    """
    rows = weight[:, None] * F.normalize(states.float(), dim=-1)
    gain = rows.square().sum(-1)
    basis = rows.new_zeros(count, len(rows))
    chosen: list[int] = []
    for step in range(count):
        best = int(gain.argmax())
        if gain[best] <= EXHAUSTED:
            break
        chosen.append(best)
        along = rows @ rows[best] - basis[:step].T @ basis[:step, best]
        basis[step] = along / gain[best].sqrt()
        gain = gain - basis[step].square()
        gain[best] = float("-inf")
    taken = torch.tensor(chosen, dtype=torch.long, device=weight.device)
    rest = best_places(weight.index_fill(0, taken, float("-inf")), count - len(chosen))
    return torch.cat((taken, rest))


def _rule(question: Question, count: int) -> Choice:
    embeds = question.embeds
    weight = relevance(embeds[question.places], embeds[question.asked])
    return Choice(conditional_dpp(weight, question.states, count))


PEERS.register("cdpruner")(
    Peer(
        "CDPruner: Maximizing Conditional Diversity for Token Pruning in MLLMs",
        "2506.10967",
        "relevance in the language model's embedding space, for want of CLIP's text encoder",
        _rule,
    )
)
