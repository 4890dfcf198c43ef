"""CDPruner's rule: the most diverse subset, conditioned on the question, by a determinantal point process.

Qizhe Zhang et al., "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs", arXiv
2506.10967: the kernel is the cosine of tokens i and j, as the projector gives them to the language model, times the
relevance of both; its MAP subset is found greedily (Laming Chen et al., "Fast Greedy MAP Inference for Determinantal
Point Process", arXiv 1709.05135). Relevance is the cosine to the question scaled to 0..1. The authors' code turns its
sign first, since CLIP's patches resemble least the words for what they show; in a space without that turn it ranks the
wrong way round, so there is `cdpruner_unturned` beside `cdpruner`.

Notation: n candidates, L question tokens, D language-model width, K kept.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .choosing import PEERS, Choice, Peer, Question, best_places

EXHAUSTED = 1e-6
"""What is left of a token's squared length, once those chosen are projected out, that counts as nothing (float32)."""


LEAST = 1e-6
"""What is added to the difference from the smallest relevance, so that no token is worth nothing."""


def relevance(patches: Tensor, text: Tensor, *, turned: bool = True) -> Tensor:
    """[n] in 0..1: mean cosine of patches [n, D] to the question's tokens [L, D], scaled to its own range.

    `turned`: the least similar is the most relevant.
    """
    cosine = (F.normalize(patches.float(), dim=-1) @ F.normalize(text.float(), dim=-1).T).mean(-1)
    relevant = -cosine if turned else cosine
    low, high = relevant.min(), relevant.max()
    return (relevant - low + LEAST) / (high - low).clamp(min=LEAST)


def conditional_dpp(weight: Tensor, states: Tensor, count: int) -> Tensor:
    """Places [K] of the greedy MAP subset of the kernel weight_i * cosine(i, j) * weight_j.

    Each step takes the token that adds most to the determinant. Once the kernel's rank is used up, the rest are the
    tokens of the largest weight.

    Args:
        weight: [n], 0 or more.
        states: [n, D].
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


def _choose(question: Question, count: int, *, turned: bool) -> Choice:
    patches, text = question.embeds[question.places], question.embeds[question.asked]
    return Choice(conditional_dpp(relevance(patches, text, turned=turned), patches, count))


_TITLE = "CDPruner: Maximizing Conditional Diversity for Token Pruning in MLLMs"
_DIFFERS = (
    "relevance is the mean cosine to the question's tokens in the language model's embedding space, for want of CLIP's "
    "text encoder, {}; once no token adds to the determinant, the rest are those of the largest relevance"
)

PEERS.register("cdpruner")(
    Peer(
        _TITLE,
        "2506.10967",
        _DIFFERS.format("its sign turned as in the authors' code, where it is CLIP's cosine that needs it"),
        partial(_choose, turned=True),
        reads_all=False,
    )
)
PEERS.register("cdpruner_unturned")(
    Peer(
        _TITLE,
        "2506.10967",
        _DIFFERS.format("without the authors' turn of its sign, which undoes what only CLIP does"),
        partial(_choose, turned=False),
        reads_all=False,
    )
)
