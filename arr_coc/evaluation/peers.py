"""Peers: the inputs of published pruning rules, and their choices as patches of the fetcher.

Notation: n candidates (real patches that are not base tokens), K chosen of them, N patches, S prompt length, L question
tokens, T text tokens after the image, D language-model width, C feature channels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from ..modeling.fetcher import FetchChoices
from ..modeling.image_encoding import ImageEncoding
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration


@dataclass(frozen=True)
class EarlyStates:
    """Tensors of a language model after its first layers.

    Attributes:
        attention: [S, S] float32, attention weights of the last of these layers, mean over heads; row i attends to
            column j.
        keys: [S, H * d] float32, keys of that layer.
        hidden: [S, D], outputs of that layer.
        normed: [S, D], these outputs after the last normalisation of the language model.
    """

    attention: Tensor
    keys: Tensor
    hidden: Tensor
    normed: Tensor


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
    layers = next(part for part in language_model.children() if isinstance(part, nn.ModuleList))
    layer, norm = min(layer, len(layers)), _last_norm(language_model)
    tensors: dict[str, Tensor] = {}
    with (
        _recording(language_model, layer - 1, tensors),
        _stopping(layers[layer] if layer < len(layers) else norm, tensors),
        suppress(_Read),
    ):
        tensors["hidden"] = language_model(inputs_embeds=embeds[None], use_cache=False).last_hidden_state
    if "attention" not in tensors:
        raise ValueError(f"language model: expected attention by transformers' interface; got {config.model_type}")
    return EarlyStates(tensors["attention"], tensors["keys"], tensors["hidden"][0], norm(tensors["hidden"])[0])


def _last_norm(language_model: PreTrainedModel) -> nn.Module:
    """The normalisation after the last layer; the identity if there is none."""
    norms = [part for part in language_model.children() if "norm" in type(part).__name__.lower()]
    return norms[-1] if norms else nn.Identity()


@contextmanager
def _stopping(behind: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Ends the forward pass at the module `behind` and writes its inputs into `tensors`."""

    def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors["hidden"] = args[0] if args else kwargs["hidden_states"]
        raise _Read

    handle = behind.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _recording(language_model: PreTrainedModel, layer: int, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Writes attention and keys of layer number `layer` into `tensors`."""

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **settings: Any
    ) -> tuple[Tensor, None]:
        if module.layer_idx == layer:
            tensors["attention"] = _mean_weights(query[0], key[0], mask, settings["scaling"])
            tensors["keys"] = key[0].transpose(0, 1).flatten(1).float()
        return sdpa_attention_forward(module, query, key, value, mask, **settings)

    config = language_model.config
    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS["eager"] = attend  # under a known name, since transformers makes masks for those only
    config._attn_implementation = "eager"
    try:
        yield
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS["eager"]


def _mean_weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention weights [S, S] of one prompt with query [H, S, d], mean over heads, computed head by head."""
    total = torch.zeros(query.shape[1], key.shape[1], device=query.device)
    for head, head_query in enumerate(query):
        logits = (head_query @ key[head * len(key) // len(query)].T).float() * scaling
        if mask is not None:
            logits = logits + mask[0, 0, :, : logits.shape[1]]
        total += logits.softmax(-1)
    return total / len(query)


LAYER = 2
"""The number of language-model layers that see all patches: FastV's K; SparseVLM and DART use the same."""


@dataclass(frozen=True)
class Choice:
    """A choice of K among n candidates.

    Attributes:
        places: [K] int64, distinct places among the candidates.
        merged: features [K, C] that replace those of the chosen patches, for rules that merge; None: unchanged.
    """

    places: Tensor
    merged: Tensor | None = None


@dataclass(frozen=True)
class Peer:
    """A rule, its source, and how this re-creation differs.

    Attributes:
        title, arxiv: of the paper.
        differs: the differences in words, for the report.
        rule: maps a `PeerQuestion` and K <= n to a `Choice`.
        reads_all: whether the rule uses the language model's states for a prompt with all patches.
    """

    title: str
    arxiv: str
    differs: str
    rule: Callable[["PeerQuestion", int], Choice]
    reads_all: bool = True

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
    def features(self) -> Tensor:
        """[n, C]: the grid encoder's features of the candidates."""
        return self.encoding.features[0].flatten(1).T[self.candidates]

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


def best_places(scores: Tensor, count: int) -> Tensor:
    """Places [K] of the highest scores [n]; of equal scores, the lower place wins."""
    return scores.sort(descending=True, stable=True).indices[:count]


@dataclass(frozen=True)
class Kept:
    """The patches of an image that a rule keeps.

    Attributes:
        patches: [K] int64, ascending.
        features: [C, K], features that replace the patches' own, for rules that merge; None: their own.
    """

    patches: Tensor
    features: Tensor | None = None


@torch.no_grad()
def choose(
    model: ArrCocForConditionalGeneration, wanted: Sequence[tuple[Peer, int]], encoding: ImageEncoding, text: str
) -> list[Kept]:
    """The patches that each rule keeps for one question; all rules share one `EarlyStates` of it.

    Args:
        model: with a processor.
        wanted: peers, each with its K; if the image has fewer candidates, all are kept.
    """
    question, kept = PeerQuestion(model, encoding, text), []
    for peer, budget in wanted:
        count = min(budget, len(question.candidates))
        choice = peer.rule(question, count) if count else Choice(question.candidates[:0])
        assert len(choice.places.unique()) == len(choice.places) == count, "exactly K patches"
        patches, order = question.candidates[choice.places].sort()
        kept.append(Kept(patches, None if choice.merged is None else choice.merged[order].T))
    return kept


def merged(encoding: ImageEncoding, choices: Sequence[Kept]) -> ImageEncoding:
    """The encoding with the features of merged patches; `choices` has one entry per image."""
    if all(choice.features is None for choice in choices):
        return encoding
    features = encoding.features.clone()
    for image, choice in zip(features, choices, strict=True):
        if choice.features is not None:
            image.flatten(1)[:, choice.patches] = choice.features.to(features)
    return replace(encoding, features=features)
