"""VisionZip's rule: dominant tokens by CLS attention, and contextual tokens that the others are merged into.

Senqiao Yang et al., "VisionZip: Longer is Better but Not Necessary in Vision Language Models", arXiv 2412.04467: CLS
attention in the vision encoder's last layer but one says which tokens dominate; of the others, evenly spaced ones are
targets, and each of the rest goes to the target that its key, the mean over heads, resembles most: a target becomes
itself plus the mean of what went to it.

Notation: n candidates, r of them that do not dominate, c contextual tokens, K kept, C feature channels, H heads, d head
width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .choosing import PEERS, Choice, Peer, Question, best_places

CONTEXTUAL = 10 / 64
"""Share of the kept tokens that are contextual: 54 dominant and 10 contextual make 64."""


def cls_attention(query: Tensor, keys: Tensor) -> Tensor:
    """Attention weights [S] of one query [H, d] over keys [H, S, d], mean over heads."""
    logits = torch.einsum("hd,hsd->hs", query.float(), keys.float()) * query.shape[-1] ** -0.5
    return logits.softmax(-1).mean(0)


def targets(rest: Tensor, count: int) -> Tensor:
    """`count` of the places `rest` [r], from the first one on in steps of r / count, rounded down."""
    return rest[torch.arange(count, device=rest.device) * (len(rest) // max(1, count))]


def merge(features: Tensor, keys: Tensor, into: Tensor, rest: Tensor) -> Tensor:
    """Features [c, C] of the targets, each plus the mean of those of `rest` whose keys resemble its own most.

    Args:
        features: [n, C].
        keys: [n, d].
        into: [c] places of the targets.
        rest: places of the tokens to merge.
    """
    unit = F.normalize(keys.float(), dim=-1)
    nearest = (unit[rest] @ unit[into].T).argmax(-1)
    total = features.new_zeros(len(into), features.shape[1]).float().index_add(0, nearest, features[rest].float())
    count = nearest.bincount(minlength=len(into)).clamp(min=1)
    return features[into].float() + total / count[:, None]


def _cls_query(question: Question, layer: int) -> Tensor:
    """[H, d], in layer number `layer` of the semantic encoder."""
    encoder, encoding = question.model.model.vision_tower.semantic_encoder, question.encoding
    attention = encoder.layers[layer].self_attn
    queries: list[Tensor] = []
    handle = attention.q_proj.register_forward_hook(lambda module, args, output: queries.append(output[0, 0]))
    try:
        encoder(encoding.compressed.flatten(2).transpose(1, 2), encoding.side, encoding.base_indices)
    finally:
        handle.remove()
    return queries[0].unflatten(-1, (attention.num_heads, -1))


def _rule(question: Question, count: int) -> Choice:
    tower, encoding, patches = question.model.model.vision_tower, question.encoding, question.candidates[None]
    layer = max(0, len(tower.semantic_encoder.layers) - 2)
    projected = tower.saccade_projection(question.features[None])
    _, own = tower.semantic_encoder(projected, encoding.side, patches, encoding.semantic_cache)
    keys, base = own[layer][0][0], encoding.semantic_cache[layer][0][0]
    weights = cls_attention(_cls_query(question, layer), torch.cat((base, keys), 1))[base.shape[1] :]
    contextual = round(CONTEXTUAL * count)
    dominant = best_places(weights, count - contextual)
    rest = torch.ones(len(weights), dtype=torch.bool, device=weights.device).index_fill(0, dominant, False)
    into = targets(rest.nonzero()[:, 0], contextual)
    others = rest.index_fill(0, into, False).nonzero()[:, 0]
    features = question.features.float()
    merged = features[into]
    if contextual and len(others):
        merged = merge(features, keys.float().mean(0), into, others)
    return Choice(torch.cat((dominant, into)), torch.cat((features[dominant], merged)))


PEERS.register("visionzip")(
    Peer(
        "VisionZip's dominant and contextual tokens",
        "2412.04467",
        "patches stand in the encoder as saccades, so CLS attention is that to all of them beside the base; they are "
        "merged before the semantic encoder, not behind it; CLS itself is not kept",
        _rule,
        reads_all=False,
    )
)
