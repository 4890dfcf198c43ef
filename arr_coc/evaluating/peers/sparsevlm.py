"""SparseVLM's rule: the question's tokens that resemble the image rate the patches by their attention.

Yuan Zhang et al., "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference", arXiv
2410.04417: raters are the text tokens whose similarity to the image tokens, softmax over text and mean over the image,
is at least the mean; an image token's significance is the attention that the raters pay it.

Notation: S prompt length, n candidates, L question tokens, D language-model width, K kept.
"""

from torch import Tensor

from .choosing import PEERS, Choice, Peer, Question, best_places


def raters(patches: Tensor, text: Tensor) -> Tensor:
    """bool [L]: which question tokens [L, D] rate the patches [n, D]."""
    share = (patches.float() @ text.float().T).softmax(-1).mean(0)
    return share >= share.mean() - 1e-6  # where all are alike, all rate


def significance(attention: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """[n]: mean attention that `rows` of weights [S, S] pay to `places`."""
    return attention[rows][:, places].mean(0)


def _rule(question: Question, count: int) -> Choice:
    embeds, asked = question.embeds, question.asked
    rows = asked[raters(embeds[question.places], embeds[asked])]
    return Choice(best_places(significance(question.reading.attention, rows, question.places), count))


PEERS.register("sparsevlm")(
    Peer(
        "SparseVLM's text raters",
        "2410.04417",
        "pruned once, by the second layer's attention, to exactly K: no ratio by rank from layer to layer, no "
        "recycling of what is dropped",
        _rule,
    )
)
