"""DART's rule: a few pivots, and the tokens that duplicate them least.

Zichen Wen et al., "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More", arXiv
2502.11494: pivots are the tokens of the largest key norm in the second layer, some of the image and some of the text
behind it; beside them the tokens with the lowest cosine to the pivots are kept, by hidden states behind that layer and
the language model's last normalisation.

Notation: n candidates, t pivots of the text, D language-model width, K kept.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .choosing import PEERS, Choice, Peer, Question, best_places

IMAGE_PIVOTS, TEXT_PIVOTS = 4, 4
"""Eight pivots in all, whatever K: they are to be few."""


def least_duplicated(states: Tensor, pivots: Tensor, text: Tensor, count: int) -> Tensor:
    """Places [K]: the pivots, then for each pivot in turn the tokens that are least like it, in equal shares.

    Args:
        states: [n, D].
        pivots: places of the image's pivots, at most K.
        text: [t, D], the text's pivots; they are no part of the choice.
        count: K.
    """
    unit = F.normalize(states.float(), dim=-1)
    kinds = torch.cat((unit[pivots], F.normalize(text.float(), dim=-1)))
    likeness = unit @ kinds.T  # [n, pivots]
    likeness[pivots] = float("inf")
    places = [pivots]
    left = count - len(pivots)
    for number in range(len(kinds)):
        share = (number + 1) * left // len(kinds) - number * left // len(kinds)
        least = best_places(-likeness[:, number], share)
        likeness[least] = float("inf")
        places.append(least)
    return torch.cat(places)


def _rule(question: Question, count: int) -> Choice:
    reading, places, behind = question.reading, question.places, question.behind
    norms = reading.keys.abs().sum(-1)
    pivots = best_places(norms[places], min(IMAGE_PIVOTS, count))
    text = behind[best_places(norms[behind], TEXT_PIVOTS)]
    return Choice(least_duplicated(reading.normed[places], pivots, reading.normed[text], count))


PEERS.register("dart")(
    Peer(
        "DART: Stop Looking for Important Tokens in Multimodal Language Models",
        "2502.11494",
        f"{IMAGE_PIVOTS} pivots of the image and {TEXT_PIVOTS} of the text, which take their turns by norm (the "
        "authors': in no order); exactly K, the pivots among them (the authors add them); what is kept is read anew by "
        "all layers",
        _rule,
    )
)
