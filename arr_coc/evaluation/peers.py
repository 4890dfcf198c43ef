"""Peers: the inputs of published pruning rules, and their choices as patches for the fetcher.

Notation: n candidates (real patches that are not base tokens), K chosen of them, N patches, S prompt length, L question
tokens, T text tokens behind the image, D language-model width, C feature channels.
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
class Reading:
    """After `layer` layers of a language model.

    Attributes:
        attention: [S, S] float32, row i attends to column j: weights of the last of these layers, mean over heads.
        keys: [S, H * d] float32, its keys.
        hidden: [S, D], its outputs.
        normed: [S, D], its outputs behind the last normalisation of the language model.
    """

    attention: Tensor
    keys: Tensor
    hidden: Tensor
    normed: Tensor


class _Read(Exception):
    """Enough was read: the rest of the language model need not run."""


def read_prompt(language_model: PreTrainedModel, embeds: Tensor, layer: int) -> Reading:
    """Runs the first `layer` layers (all, if there are fewer) over one prompt's embeddings [S, D].

    The prompt may be longer than the context that the model was trained for, where positions are rotary.

    Raises:
        ValueError: positions from a table that is too short, or attention that cannot be looked into.
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
    return Reading(tensors["attention"], tensors["keys"], tensors["hidden"][0], norm(tensors["hidden"])[0])


def _last_norm(language_model: PreTrainedModel) -> nn.Module:
    """The normalisation behind the last layer; nothing where there is none."""
    norms = [part for part in language_model.children() if "norm" in type(part).__name__.lower()]
    return norms[-1] if norms else nn.Identity()


@contextmanager
def _stopping(behind: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Ends the forward pass at the module `behind`, and writes its inputs into `tensors`."""

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
    ALL_ATTENTION_FUNCTIONS["eager"] = attend  # in this name's place: masks are made for the names that it knows
    config._attn_implementation = "eager"
    try:
        yield
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS["eager"]


def _mean_weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention weights [S, S] of one prompt, mean over heads, one head after another: query [H, S, d]."""
    total = torch.zeros(query.shape[1], key.shape[1], device=query.device)
    for head, head_query in enumerate(query):
        logits = (head_query @ key[head * len(key) // len(query)].T).float() * scaling
        if mask is not None:
            logits = logits + mask[0, 0, :, : logits.shape[1]]
        total += logits.softmax(-1)
    return total / len(query)


LAYER = 2
"""Language-model layers that see all patches: FastV's K; SparseVLM and DART begin there too."""


@dataclass(frozen=True)
class Choice:
    """K of n candidates.

    Attributes:
        places: [K] int64, distinct places among the candidates.
        merged: features [K, C] that take the chosen patches' place, for rules that merge; None: as they are.
    """

    places: Tensor
    merged: Tensor | None = None


@dataclass(frozen=True)
class Peer:
    """A rule, its source, and how this re-creation differs.

    Attributes:
        title, arxiv: of the paper.
        differs: in words, for the report.
        rule: from a `Question` and K <= n to a `Choice`.
        reads_all: whether the rule goes by what the language model makes of a prompt with all patches.
    """

    title: str
    arxiv: str
    differs: str
    rule: Callable[["Question", int], Choice]
    reads_all: bool = True

    @property
    def note(self) -> str:
        """The description of this peer in a report: its paper, and the differences from it."""
        return f"a re-creation of {self.title} (arXiv {self.arxiv}); {self.differs}"


class Question:
    """One image and one question, as a rule sees them; all patches go through the model at most once.

    Args:
        model: with a processor.
        encoding: of one image.
        text: the question.

    Raises:
        ValueError: a model whose prompts are more than embeddings, which the rules cannot read.
    """

    def __init__(self, model: ArrCocForConditionalGeneration, encoding: ImageEncoding, text: str) -> None:
        model.config.require_embeds_alone("re-created peers")
        self.model, self.encoding, self.text = model, encoding, text

    @cached_property
    def candidates(self) -> Tensor:
        """[n] int64, ascending."""
        free = self.encoding.patch_mask[0].clone()
        if self.encoding.base_indices is not None and self.model.config.excludes_base:
            free[self.encoding.base_indices[0]] = False
        return free.nonzero()[:, 0]

    @cached_property
    def features(self) -> Tensor:
        """[n, C], the grid encoder's output."""
        return self.encoding.features[0].flatten(1).T[self.candidates]

    @cached_property
    def prompt(self) -> Any:
        """Input ids [1, S], the mask of the question [1, S], and the places [n] of the candidates in the prompt."""
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
        """[T]: positions of the text behind the image in the prompt: the question and the template's words after it."""
        is_text = self.prompt[0][0] != self.model.config.image_token_id
        is_text[: int(self.places[-1])] = False
        return is_text.nonzero()[:, 0]

    @cached_property
    def reading(self) -> Reading:
        """Of the prompt with all candidates, after `LAYER` layers of the language model."""
        return read_prompt(self.model.model.language_model, self.embeds, LAYER)


def best_places(scores: Tensor, count: int) -> Tensor:
    """Places [K] of the highest scores [n]; equal scores go to the lower place."""
    return scores.sort(descending=True, stable=True).indices[:count]


@dataclass(frozen=True)
class Kept:
    """What a rule keeps of an image.

    Attributes:
        patches: [K] int64, ascending.
        features: [C, K] that take the place of the patches' own, for rules that merge; None: their own.
    """

    patches: Tensor
    features: Tensor | None = None


@torch.no_grad()
def choose(
    model: ArrCocForConditionalGeneration, wanted: Sequence[tuple[Peer, int]], encoding: ImageEncoding, text: str
) -> list[Kept]:
    """What each of several rules keeps for one question: they share one reading of it.

    Args:
        model: with a processor.
        wanted: peers, each with its K; where the image has fewer candidates, all of them are kept.
        encoding: of one image.
        text: the question.
    """
    question = Question(model, encoding, text)
    return [_keep(question, peer, budget) for peer, budget in wanted]


def _keep(question: Question, peer: Peer, budget: int) -> Kept:
    count = min(budget, len(question.candidates))
    choice = peer.rule(question, count) if count else Choice(question.candidates[:0])
    assert len(choice.places.unique()) == len(choice.places) == count, "exactly K patches"
    patches, order = question.candidates[choice.places].sort()
    return Kept(patches, None if choice.merged is None else choice.merged[order].T)


def merged(encoding: ImageEncoding, choices: Sequence[Kept]) -> ImageEncoding:
    """The encoding of as many images as `choices`, with the features of merged patches."""
    if all(choice.features is None for choice in choices):
        return encoding
    features = encoding.features.clone()
    for image, choice in zip(features, choices, strict=True):
        if choice.features is not None:
            image.flatten(1)[:, choice.patches] = choice.features.to(features)
    return replace(encoding, features=features)
