"""Peers: published training-free pruning rules, reimplemented from their descriptions for the same tokens and weights.

Base tokens always stay, as in every arm; a rule chooses K further patches of the image. Rules that prune inside the
language model choose before it here: the language model then reads the kept patches only. None of the authors' code
is used; `Peer.differs` names differences from it.

Notation: n candidates (real patches that are not base tokens), K chosen of them, N patches, S prompt length, L question
tokens, T text tokens after the image, D language-model width, C feature channels, H heads, d head width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from ..modeling.checks import Registry
from ..modeling.fetcher import FetchChoices
from ..modeling.image_encoding import ImageEncoding
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration


@dataclass(frozen=True)
class EarlyStates:
    """Tensors of a language model after its first layers."""

    # [S, S] float32, attention weights of the last of these layers, mean over heads; row i attends to column j.
    attention: Tensor
    keys: Tensor  # [S, H * d] float32, keys of that layer
    hidden: Tensor  # [S, D], outputs of that layer
    normed: Tensor  # [S, D], these outputs after the last normalisation of the language model


class _Read(Exception):
    """Ends the forward pass when the wanted layers have run."""


def read_prompt(language_model: PreTrainedModel, embeds: Tensor, layer: int) -> EarlyStates:
    """Runs the first `layer` layers (all layers if there are fewer) over one prompt's embeddings [S, D].

    With rotary positions the prompt can be longer than the context that the model was trained for.

    Raises:
        ValueError: the prompt exceeds the table of positions, or the model's attention cannot be recorded.
    """
    config = language_model.config
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and len(embeds) > limit and getattr(config, "rope_parameters", None) is None:
        raise ValueError(f"prompt: expected at most {limit} tokens, all patches among them; got {len(embeds)}")
    with first_layers(language_model, layer) as tensors:
        tensors["hidden"] = language_model(inputs_embeds=embeds[None], use_cache=False).last_hidden_state
    if "attention" not in tensors:
        raise ValueError(f"language model: expected attention by transformers' interface; got {config.model_type}")
    normed = _last_norm(language_model)(tensors["hidden"])
    return EarlyStates(tensors["attention"], tensors["keys"], tensors["hidden"][0], normed[0])


def _last_norm(language_model: PreTrainedModel) -> nn.Module:
    """The normalisation after the last layer; the identity if there is none."""
    norms = [part for part in language_model.children() if "norm" in type(part).__name__.lower()]
    return norms[-1] if norms else nn.Identity()


@contextmanager
def first_layers(language_model: PreTrainedModel, count: int) -> Iterator[dict[str, Tensor]]:
    """Ends a forward pass behind the first `count` layers, or behind all if there are fewer.

    Yields "attention" and "keys" of the last of these layers, and "hidden" [1, S, D], its outputs.
    """
    layers = next(part for part in language_model.children() if isinstance(part, nn.ModuleList))
    count, config = min(count, len(layers)), language_model.config
    tensors: dict[str, Tensor] = {}

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **settings: Any
    ) -> tuple[Tensor, None]:
        if module.layer_idx == count - 1:
            tensors["attention"] = _mean_weights(query[0], key[0], mask, settings["scaling"])
            tensors["keys"] = key[0].transpose(0, 1).flatten(1).float()
        return sdpa_attention_forward(module, query, key, value, mask, **settings)

    def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors["hidden"] = args[0] if args else kwargs["hidden_states"]
        raise _Read

    behind = layers[count] if count < len(layers) else _last_norm(language_model)
    handle = behind.register_forward_pre_hook(stop, with_kwargs=True)
    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS["eager"] = attend  # under a known name, since transformers makes masks for those only
    config._attn_implementation = "eager"
    try:
        with suppress(_Read):
            yield tensors
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS["eager"]
        handle.remove()


def _mean_weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention weights [S, S] of one prompt with query [H, S, d], mean over heads, computed head by head."""
    total = torch.zeros(query.shape[1], key.shape[1], device=query.device)
    for head, head_query in enumerate(query):
        logits = (head_query @ key[head * len(key) // len(query)].T).float() * scaling
        if mask is not None:
            logits = logits + mask[0, 0, :, : logits.shape[1]]
        total += logits.softmax(-1)
    return total / len(query)


LAYER = 2  # the number of language-model layers that see all patches: FastV's K; SparseVLM and DART use the same


@dataclass(frozen=True)
class Peer:
    """A rule, its source, and how this re-creation differs."""

    title: str  # of the paper
    arxiv: str  # the paper's number there
    differs: str  # the differences in words, for the report
    # Maps a `PeerQuestion` and K <= n to [K] int64, distinct places among the n candidates.
    rule: Callable[["PeerQuestion", int], Tensor]
    reads_all: bool = True  # whether the rule uses the language model's states for a prompt with all patches

    @property
    def note(self) -> str:
        """The peer's description for a report: its paper and the differences from it."""
        return f"a re-creation of {self.title} (arXiv {self.arxiv}); {self.differs}"


class PeerQuestion:
    """One image and one question, the input of a rule; all patches go through the model at most once.

    Args:
        model: with a processor.

    Raises:
        ValueError: the model's prompts are more than embeddings, which the rules cannot read.
    """

    def __init__(self, model: ArrCocForConditionalGeneration, encoding: ImageEncoding, text: str) -> None:
        model.config.require_embeds_alone("re-created peers")
        self.model, self.encoding, self.text = model, encoding, text

    @cached_property
    def candidates(self) -> Tensor:
        """[n] int64: the candidates, ascending."""
        free = self.encoding.patch_mask[0].clone()
        if self.encoding.base_indices is not None and self.model.config.excludes_base:
            free[self.encoding.base_indices[0]] = False
        return free.nonzero()[:, 0]

    @cached_property
    def prompt(self) -> Any:
        """Input ids [1, S], the mask [1, S] of the question, and the places [n] of the candidates in the prompt."""
        processor, encoding = self.model.processor, self.encoding
        count = encoding.base_positions + len(self.candidates)
        ids = processor.prompts([self.text], images=[1], placeholders=count)["input_ids"].to(encoding.tokens.device)
        before = encoding.tokens.shape[1]
        places = (ids[0] == self.model.config.image_token_id).nonzero()[before : before + len(self.candidates), 0]
        return ids, processor.query_mask(ids).bool(), places

    @cached_property
    def embeds(self) -> Tensor:
        """[S, D]: the prompt with all candidates, as the language model reads it."""
        ids, asked, _ = self.prompt
        choices = FetchChoices(patches=self.candidates[None])
        return self.model.model.embed_images(ids, self.encoding, query_mask=asked, choices=choices).embeds[0]

    @property
    def places(self) -> Tensor:
        """[n]: positions of the candidates in the prompt."""
        return self.prompt[2]

    @property
    def asked(self) -> Tensor:
        """[L]: positions of the question's tokens in the prompt."""
        return self.prompt[1][0].nonzero()[:, 0]

    @property
    def behind(self) -> Tensor:
        """[T]: positions of the text after the image: the question and the template's words after it."""
        is_text = self.prompt[0][0] != self.model.config.image_token_id
        is_text[: int(self.places[-1])] = False
        return is_text.nonzero()[:, 0]

    @cached_property
    def reading(self) -> EarlyStates:
        """The tensors of the prompt with all candidates after `LAYER` layers of the language model."""
        return read_prompt(self.model.model.language_model, self.embeds, LAYER)

    @torch.no_grad()
    def kept(self, peer: Peer, budget: int) -> Tensor:
        """The patches [K] that a rule keeps, ascending; all if the image has fewer candidates."""
        count = min(budget, len(self.candidates))
        places = peer.rule(self, count) if count else self.candidates[:0]
        assert len(places.unique()) == len(places) == count, "exactly K patches"
        return self.candidates[places].sort().values


def best_places(scores: Tensor, count: int) -> Tensor:
    """Places [K] of the highest scores [n]; of equal scores, the lower place wins."""
    return scores.sort(descending=True, stable=True).indices[:count]


PEERS: Registry[Peer] = Registry("peer")  # the rules by name
TINY = 1e-6  # numbers that differ by no more than this are equal up to rounding (float32)


# ---- CDPruner: the most diverse subset, conditioned on the question, by a determinantal point process.
#
# Qizhe Zhang et al., "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs":
# the kernel is the cosine of the projected tokens i and j times the relevance of both; its MAP subset is found greedily
# (Laming Chen et al., "Fast Greedy MAP Inference for Determinantal Point Process", arXiv 1709.05135). Relevance is the
# cosine to the question, scaled to 0..1. The authors' code flips its sign first, since CLIP's patches are least similar
# to the words for their content. In other embedding spaces the flip reverses the ranking, so there is
# `cdpruner_unturned` besides `cdpruner`.
def relevance(patches: Tensor, text: Tensor, *, turned: bool = True) -> Tensor:
    """[n] in 0..1: mean cosine of patches [n, D] to the question's tokens [L, D], scaled by its minimum and maximum.
    `turned`: flips the sign, so that the least similar patch is the most relevant. No relevance is 0."""
    cosine = (F.normalize(patches.float(), dim=-1) @ F.normalize(text.float(), dim=-1).T).mean(-1)
    relevant = -cosine if turned else cosine
    low, high = relevant.min(), relevant.max()
    return (relevant - low + TINY) / (high - low).clamp(min=TINY)


def conditional_dpp(weight: Tensor, states: Tensor, count: int) -> Tensor:
    """Places [K] of the greedy MAP subset of the kernel weight_i * cosine(i, j) * weight_j.

    Each step takes the token that adds most to the determinant. When the kernel's rank is exhausted, the tokens of the
    largest weight follow. Weights [n] are 0 or more; states are [n, D].
    """
    rows = weight[:, None] * F.normalize(states.float(), dim=-1)
    gain = rows.square().sum(-1)
    basis = rows.new_zeros(count, len(rows))
    chosen: list[int] = []
    for step in range(count):
        best = int(gain.argmax())
        if gain[best] <= TINY:  # its squared length after projecting out the chosen tokens
            break
        chosen.append(best)
        along = rows @ rows[best] - basis[:step].T @ basis[:step, best]
        basis[step] = along / gain[best].sqrt()
        gain = gain - basis[step].square()
        gain[best] = float("-inf")
    taken = torch.tensor(chosen, dtype=torch.long, device=weight.device)
    rest = best_places(weight.index_fill(0, taken, float("-inf")), count - len(chosen))
    return torch.cat((taken, rest))


def _cdpruner(question: PeerQuestion, count: int, *, turned: bool) -> Tensor:
    patches, text = question.embeds[question.places], question.embeds[question.asked]
    return conditional_dpp(relevance(patches, text, turned=turned), patches, count)


# ---- DART: a few pivots, and the tokens that duplicate them least.
#
# Zichen Wen et al., "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More": pivots
# are the tokens of the largest key norm in the second layer, some from the image and some from the text after it. The
# rule also keeps the tokens with the lowest cosine to the pivots, by the hidden states after that layer and the
# language model's last normalisation.
IMAGE_PIVOTS, TEXT_PIVOTS = 4, 4  # numbers of pivots from image and text: eight in all, for every K


def least_duplicated(states: Tensor, pivots: Tensor, text: Tensor, count: int) -> Tensor:
    """Places [K]: the pivots, then for each pivot in turn an equal share of the tokens least similar to it.

    Args:
        states: [n, D].
        pivots: places of the image's pivots, at most K.
        text: [t, D], the text's pivots, which are not chosen themselves.
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


def _dart(question: PeerQuestion, count: int) -> Tensor:
    reading, places, behind = question.reading, question.places, question.behind
    norms = reading.keys.abs().sum(-1)
    pivots = best_places(norms[places], min(IMAGE_PIVOTS, count))
    text = behind[best_places(norms[behind], TEXT_PIVOTS)]
    return least_duplicated(reading.normed[places], pivots, reading.normed[text], count)


# ---- FastV and SparseVLM: attention received in an early layer of the language model, with all patches in the prompt.
#
# Liang Chen et al., "An Image is Worth 1/2 Tokens After Layer 2: Plug-and-Play Inference Acceleration for Large
# Vision-Language Models": after layer K = 2, image tokens are ranked by the mean attention that they receive from all
# tokens, and the lowest are dropped. `fastv` follows that description. `fastv_last` follows the authors' code, which
# ranks by the attention of the last position, the only one that sees every token of a causal model.
#
# Yuan Zhang et al., "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference": raters are
# the text tokens after the image whose similarity to its tokens (softmax over the text, mean over the image) is above
# the mean. An image token's significance is the raters' mean attention to it.
def received(attention: Tensor, places: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
    """Mean attention [n] that the columns `places` of weights [S, S] receive from `rows`, by default all."""
    return attention[rows][:, places].mean(0)


def raters(patches: Tensor, text: Tensor) -> Tensor:
    """bool [T]: True on the text tokens [T, D] that rate the patches [n, D]; all True if none is above the mean."""
    share = (patches.float() @ text.float().T).softmax(-1).mean(0)
    above = share > share.mean() + TINY
    return above if above.any() else torch.ones_like(above)


def _fastv(question: PeerQuestion, count: int, *, rows: Tensor | slice = slice(None)) -> Tensor:
    return best_places(received(question.reading.attention, question.places, rows), count)


def _sparsevlm(question: PeerQuestion, count: int) -> Tensor:
    embeds, behind = question.embeds, question.behind
    return _fastv(question, count, rows=behind[raters(embeds[question.places], embeds[behind])])


_CDPRUNER = (
    "CDPruner: Maximizing Conditional Diversity for Token Pruning in MLLMs",
    "2506.10967",
    "relevance is the mean cosine to the question's tokens in the language model's embedding space, for want of CLIP's "
    "text encoder, {}; once no token adds to the determinant, the rest are those of the largest relevance",
)
_FASTV = (
    "FastV's ranking: An Image is Worth 1/2 Tokens After Layer 2",
    "2403.06764",
    "ranked by the second layer's attention {}, with all patches in the prompt however long it gets; what is kept is "
    "read anew by all layers",
)
_DART = (
    "DART: Stop Looking for Important Tokens in Multimodal Language Models",
    "2502.11494",
    f"{IMAGE_PIVOTS} pivots of the image and {TEXT_PIVOTS} of the text, which take their turns by norm (the authors': "
    "in no order); exactly K, the pivots among them (the authors add them); what is kept is read anew by all layers",
)
_SPARSEVLM = (
    "SparseVLM's text raters",
    "2410.04417",
    "pruned once, by the second layer's attention (the authors begin at the third's), to exactly K: no further pruning "
    "in later layers, no recycling of what is dropped; what is kept is read anew by all layers",
)
_TURNED = "its sign turned as in the authors' code, where it is CLIP's cosine that needs it"
_UNTURNED = "without the authors' turn of its sign, which undoes what only CLIP does"
_RULES: tuple[tuple[str, tuple[str, str, str], str, Callable[[PeerQuestion, int], Tensor]], ...] = (
    ("cdpruner", _CDPRUNER, _TURNED, partial(_cdpruner, turned=True)),
    ("cdpruner_unturned", _CDPRUNER, _UNTURNED, partial(_cdpruner, turned=False)),
    ("dart", _DART, "", _dart),
    ("fastv", _FASTV, "from all positions, as the paper says", _fastv),
    ("fastv_last", _FASTV, "from the last position, as the authors' code does", partial(_fastv, rows=slice(-1, None))),
    ("sparsevlm", _SPARSEVLM, "", _sparsevlm),
)
for _name, (_title, _arxiv, _differs), _how, _rule in _RULES:
    PEERS.register(_name)(
        Peer(_title, _arxiv, _differs.format(_how), _rule, reads_all=not _name.startswith("cdpruner"))
    )
