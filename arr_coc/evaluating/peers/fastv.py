"""FastV's rule: attention received in an early layer of the language model, with all patches in the prompt.

Liang Chen et al., "An Image is Worth 1/2 Tokens After Layer 2: Plug-and-Play Inference Acceleration for Large
Vision-Language Models", arXiv 2403.06764: after layer K = 2, image tokens are ranked by the attention that they receive
from all tokens on average, and the lowest are dropped. `fastv` is that description; `fastv_last` is the authors' code,
which ranks by what the last position pays, the only one that sees every token of a causal model.

Notation: S prompt length, n candidates, K kept.
"""

from torch import Tensor

from .choosing import PEERS, Choice, Peer, Question, best_places

_TITLE = "FastV's ranking: An Image is Worth 1/2 Tokens After Layer 2"
_DIFFERS = (
    "ranked by the second layer's attention {}, with all patches in the prompt however long it gets; what is kept is "
    "read anew by all layers"
)


def received(attention: Tensor, places: Tensor) -> Tensor:
    """Mean attention [n] that the columns `places` of weights [S, S] receive from all rows."""
    return attention[:, places].mean(0)


def received_from_last(attention: Tensor, places: Tensor) -> Tensor:
    """Attention [n] that the last row of weights [S, S] pays to `places`."""
    return attention[-1, places]


def _mean(question: Question, count: int) -> Choice:
    return Choice(best_places(received(question.reading.attention, question.places), count))


def _last(question: Question, count: int) -> Choice:
    return Choice(best_places(received_from_last(question.reading.attention, question.places), count))


PEERS.register("fastv")(Peer(_TITLE, "2403.06764", _DIFFERS.format("from all positions, as the paper says"), _mean))
PEERS.register("fastv_last")(
    Peer(_TITLE, "2403.06764", _DIFFERS.format("from the last position, as the authors' code does"), _last)
)
