"""Peers: published training-free pruning rules, re-created from their descriptions over the same tokens and weights.

Base tokens always stay, as in every arm; a rule chooses K of an image's patches beside them. Rules that prune
inside the language model choose here before it: the language model then reads the kept patches alone. No code of the
authors was used; `Peer.differs` names differences from it.

Notation: n candidates, K chosen of them, S prompt length, L question tokens, D language-model width.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..modeling.config_fields import Registry
from .peers import Choice, Peer, Question, best_places

PEERS: Registry[Peer] = Registry("peer")
"""The rules by name."""


# ---- cdpruner --------------------------------------------------------------------------------------------------------
#
# CDPruner's rule: the most diverse subset, conditioned on the question, by a determinantal point process.
#
# Qizhe Zhang et al., "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs",
# arXiv 2506.10967: the kernel is the cosine of tokens i and j, as the projector gives them to the language model,
# times the relevance of both; its MAP subset is found greedily (Laming Chen et al., "Fast Greedy MAP Inference for
# Determinantal Point Process", arXiv 1709.05135). Relevance is the cosine to the question scaled to 0..1. The
# authors' code turns its sign first, since CLIP's patches resemble least the words for what they show; in a space
# without that turn it ranks the wrong way round, so there is `cdpruner_unturned` beside `cdpruner`.
#
# Notation: n candidates, L question tokens, D language-model width, K kept.


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


def _cdpruner(question: Question, count: int, *, turned: bool) -> Choice:
    patches, text = question.embeds[question.places], question.embeds[question.asked]
    return Choice(conditional_dpp(relevance(patches, text, turned=turned), patches, count))


_CDPRUNER = "CDPruner: Maximizing Conditional Diversity for Token Pruning in MLLMs"
_CDPRUNER_DIFFERS = (
    "relevance is the mean cosine to the question's tokens in the language model's embedding space, for want of CLIP's "
    "text encoder, {}; once no token adds to the determinant, the rest are those of the largest relevance"
)

PEERS.register("cdpruner")(
    Peer(
        _CDPRUNER,
        "2506.10967",
        _CDPRUNER_DIFFERS.format("its sign turned as in the authors' code, where it is CLIP's cosine that needs it"),
        partial(_cdpruner, turned=True),
        reads_all=False,
    )
)
PEERS.register("cdpruner_unturned")(
    Peer(
        _CDPRUNER,
        "2506.10967",
        _CDPRUNER_DIFFERS.format("without the authors' turn of its sign, which undoes what only CLIP does"),
        partial(_cdpruner, turned=False),
        reads_all=False,
    )
)


# ---- dart ------------------------------------------------------------------------------------------------------------
#
# DART's rule: a few pivots, and the tokens that duplicate them least.
#
# Zichen Wen et al., "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More",
# arXiv 2502.11494: pivots are the tokens of the largest key norm in the second layer, some of the image and some of
# the text behind it; beside them the tokens with the lowest cosine to the pivots are kept, by hidden states behind
# that layer and the language model's last normalisation.
#
# Notation: n candidates, t pivots of the text, D language-model width, K kept.


IMAGE_PIVOTS, TEXT_PIVOTS = 4, 4
"""Eight pivots in all, whatever K: they are to be few."""


def least_duplicated(states: Tensor, pivots: Tensor, text: Tensor, count: int) -> Tensor:
    """Places [K]: the pivots, then for each pivot in turn the tokens that are least like it, in equal shares.

    Args:
        states: [n, D].
        pivots: places of the image's pivots, at most K.
        text: [t, D], the text's pivots, which are not part of the choice.
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


def _dart(question: Question, count: int) -> Choice:
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
        _dart,
    )
)


# ---- fastv -----------------------------------------------------------------------------------------------------------
#
# FastV's rule: attention received in an early layer of the language model, with all patches in the prompt.
#
# Liang Chen et al., "An Image is Worth 1/2 Tokens After Layer 2: Plug-and-Play Inference Acceleration for Large
# Vision-Language Models", arXiv 2403.06764: after layer K = 2, image tokens are ranked by the attention that they
# receive from all tokens on average, and the lowest are dropped. `fastv` is that description; `fastv_last` is the
# authors' code, which ranks by what the last position pays, the only one that sees every token of a causal model.
#
# Notation: S prompt length, n candidates, K kept.


_FASTV = "FastV's ranking: An Image is Worth 1/2 Tokens After Layer 2"
_FASTV_DIFFERS = (
    "ranked by the second layer's attention {}, with all patches in the prompt however long it gets; what is kept is "
    "read anew by all layers"
)


def received(attention: Tensor, places: Tensor) -> Tensor:
    """Mean attention [n] that the columns `places` of weights [S, S] receive from all rows."""
    return attention[:, places].mean(0)


def received_from_last(attention: Tensor, places: Tensor) -> Tensor:
    """Attention [n] that the last row of weights [S, S] pays to `places`."""
    return attention[-1, places]


def _fastv(question: Question, count: int) -> Choice:
    return Choice(best_places(received(question.reading.attention, question.places), count))


def _fastv_last(question: Question, count: int) -> Choice:
    return Choice(best_places(received_from_last(question.reading.attention, question.places), count))


PEERS.register("fastv")(
    Peer(_FASTV, "2403.06764", _FASTV_DIFFERS.format("from all positions, as the paper says"), _fastv)
)
PEERS.register("fastv_last")(
    Peer(_FASTV, "2403.06764", _FASTV_DIFFERS.format("from the last position, as the authors' code does"), _fastv_last)
)


# ---- sparsevlm -------------------------------------------------------------------------------------------------------
#
# SparseVLM's rule: the question's tokens that resemble the image rate the patches by their attention.
#
# Yuan Zhang et al., "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference", arXiv
# 2410.04417: raters are those text tokens behind the image whose similarity to its tokens, softmax over text and mean
# over the image, is above the mean; an image token's significance is the attention that the raters pay it.
#
# Notation: S prompt length, n candidates, T text tokens behind the image, D language-model width, K kept.


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


def _sparsevlm(question: Question, count: int) -> Choice:
    embeds, behind = question.embeds, question.behind
    rows = behind[raters(embeds[question.places], embeds[behind])]
    return Choice(best_places(significance(question.reading.attention, rows, question.places), count))


PEERS.register("sparsevlm")(
    Peer(
        "SparseVLM's text raters",
        "2410.04417",
        "pruned once, by the second layer's attention (the authors begin at the third's), to exactly K: no further "
        "pruning in later layers, no recycling of what is dropped; what is kept is read anew by all layers",
        _sparsevlm,
    )
)


# ---- visionzip -------------------------------------------------------------------------------------------------------
#
# VisionZip's rule: dominant tokens by CLS attention, and contextual tokens that the others are merged into.
#
# Senqiao Yang et al., "VisionZip: Longer is Better but Not Necessary in Vision Language Models", arXiv 2412.04467:
# CLS attention in the vision encoder's last layer but one says which tokens dominate; of the others, evenly spaced
# ones are targets, and each of the rest goes to the target that its key, the mean over heads, resembles most: a
# target becomes itself plus the mean of what went to it.
#
# Notation: n candidates, r of them that do not dominate, c contextual tokens, K kept, C feature channels, H heads, d
# head width.


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


def _visionzip(question: Question, count: int) -> Choice:
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
        "patches are fetched tokens in the encoder, so CLS attention is that to all of them beside the base; they are "
        "merged before the semantic encoder, not behind it; CLS itself is not kept",
        _visionzip,
        reads_all=False,
    )
)
