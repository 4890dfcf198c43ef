"""SparseVLM's rule: the question's tokens that resemble the image rate the patches by their attention.

Yuan Zhang et al., "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference", arXiv
2410.04417: raters are those text tokens behind the image whose similarity to its tokens, softmax over text and mean
over the image, is above the mean; an image token's significance is the attention that the raters pay it.

Notation: S prompt length, n candidates, T text tokens behind the image, D language-model width, K kept.
"""

import torch
from torch import Tensor

from .choosing import PEERS, Choice, Peer, Question, best_places

ALIKE = 1e-6
"""Shares that differ by no more are the same but for rounding (float32)."""


def raters(patches: Tensor, text: Tensor) -> Tensor:
    """bool [T]: which of the text tokens [T, D] rate the patches [n, D]: all, where none stands out."""
    share = (patches.float() @ text.float().T).softmax(-1).mean(0)
    above = share > share.mean() + ALIKE
    return above if above.any() else torch.ones_like(above)


def significance(attention: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """[n]: mean attention that `rows` of weights [S, S] pay to `places`."""
    return attention[rows][:, places].mean(0)


def _rule(question: Question, count: int) -> Choice:
    embeds, behind = question.embeds, question.behind
    rows = behind[raters(embeds[question.places], embeds[behind])]
    return Choice(best_places(significance(question.reading.attention, rows, question.places), count))


PEERS.register("sparsevlm")(
    Peer(
        "SparseVLM's text raters",
        "2410.04417",
        "pruned once, by the second layer's attention (the authors begin at the third's), to exactly K: no further "
        "pruning in later layers, no recycling of what is dropped; what is kept is read anew by all layers",
        _rule,
    )
)
