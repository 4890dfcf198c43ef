"""Peers: published training-free pruning rules, re-created from their descriptions over the same tokens and weights.

One file per rule. Base tokens always stay, as in every arm; a rule says which K of an image's patches go beside them.
Rules that prune inside the language model choose here before it: what they keep is read anew, alone. No code of the
authors was used; the rules do what it does, and `Peer.differs` says where they do not.
"""

from . import cdpruner, dart, fastv, sparsevlm, visionzip  # noqa: F401  each registers its rule
from .choosing import PEERS as PEERS
from .choosing import Choice as Choice
from .choosing import Kept as Kept
from .choosing import Peer as Peer
from .choosing import choose as choose
from .choosing import merged as merged
