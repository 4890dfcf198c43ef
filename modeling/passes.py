"""Several passes: answer, measure how unsure the answer is, run back for other patches, answer again.

The image is encoded once. Between passes the language model's cache is cut behind the fetched tokens: a further pass
reads its own patches, and then the question again. A question has passes of its own, so questions go one after the
other.

Notation: I image slots (1 here), N patches, K fetched tokens of a pass, S prompt length, D language-model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .allocators import FetchResult
from .answers import Pass, answer_probabilities, answer_uncertainties, split_thinking, with_fetch
from .attention_scorer import cached_prefix, holds_prefix, keeps_every_position
from .base_model import ArrCocModel
from .checks import refusal
from .config_fields import Registry
from .fetcher import FetchChoices
from .image_encoding import ImageEncoding
from .processing_arr_coc import History, Turn, histories
from .prompt import Look, image_places, image_planes
from .transformers_releases import CACHE

AUTO_PASSES = 4
"""Passes at most where the answers say how many."""

UNSURE = 0.15
"""Uncertainty of an answer above which "auto" runs back again."""

SINGLE = ("num_beams", "num_return_sequences")
"""Settings of `generate` that have to be 1: each beam would be unsure in its own way."""


class Questions(Protocol):
    """Questions about encoded images: `generation.QuestionBatch`."""

    @property
    def encoding(self) -> ImageEncoding: ...

    @property
    def images(self) -> list[list[int]]: ...

    @property
    def questions(self) -> list[str]: ...

    @property
    def joint(self) -> bool: ...

    def alone(self, number: int) -> "Questions": ...


class Asks(Protocol):
    """What passes need of who asks: `generation.Asker`."""

    model: Any

    def look(
        self, asked: Any, choices: FetchChoices, history: History, kwargs: dict[str, Any]
    ) -> tuple[Look, FetchChoices]: ...

    def generated(
        self, inputs: dict[str, Tensor], kwargs: dict[str, Any], *, logits: bool
    ) -> tuple[Any, list[str]]: ...

    def answer_span(self, inputs: dict[str, Tensor], kwargs: dict[str, Any]) -> tuple[int, Any, int]: ...

    def setting(self, kwargs: dict[str, Any], name: str, default: Any = None) -> Any: ...

    def cache_is_plain(self, kwargs: dict[str, Any]) -> bool: ...


# ---- how much of a pass explores ----------------------------------------------------------------------------------

EXPLORATION: Registry[Callable[[Sequence[Pass], ArrCocModel], float]] = Registry("exploration")
"""Policies: the passes so far, and the model -> the share of the next one's patches that are drawn, not chosen, 0..1.

Where no call names one: "learned" if the checkpoint holds its weights, else "tempered".
"""


@EXPLORATION.register("tempered")
def tempered(passes: Sequence[Pass], core: ArrCocModel) -> float:
    """A tenth at first; then the more, the less sure the last answer was."""
    if not passes:
        return 0.1
    uncertainty = passes[-1].uncertainty
    return 0.5 if uncertainty > 0.7 else 0.3 if uncertainty > 0.4 else 0.05


@EXPLORATION.register("none")
def unexplored(passes: Sequence[Pass], core: ArrCocModel) -> float:
    """Every patch is the scorer's choice."""
    return 0.0


@EXPLORATION.register("learned")
def learned(passes: Sequence[Pass], core: ArrCocModel) -> float:
    """What the checkpoint's `TemperingPolicy` says.

    Raises:
        ValueError: it holds none.
    """
    policy = core.fetcher.tempering
    if policy is None:
        held = ", ".join(sorted(set(EXPLORATION) - {"learned"}))
        raise ValueError(
            f"exploration: expected one of {held} (fetcher_config.learned_exploration is off); got 'learned'"
        )
    return policy.share(passes)


def fetch_for_pass(
    core: ArrCocModel, look: Look, choices: FetchChoices, share: float, earlier: FetchResult | None = None
) -> FetchResult:
    """What one question fetches: a `share` of as many patches as the allocator wants is drawn from all others.

    The patches that give way are the least relevant of those that it chose. Padding is never drawn. The map is that of
    the `earlier` pass, if there was one: the question is the same.
    """
    followed = core.fetch(look, choices) if earlier is None else _by_map_of(earlier, core, look, choices)
    taken = _with_taken(look, followed)
    unseen = look.context.patch_mask.scatter(1, taken, False)
    drawn = min(round(share * followed.budget), int(unseen.sum()))
    if not drawn:
        return followed
    order = followed.scores.gather(1, followed.indices).argsort(dim=1, descending=True, stable=True)
    others = replace(choices, strategy="random", allocator="topk")
    explored = core.fetch(replace(look, budget=drawn, taken=taken), others)
    return merged([_at(followed, order[0, : followed.budget - drawn]), explored])


def _by_map_of(earlier: FetchResult, core: ArrCocModel, look: Look, choices: FetchChoices) -> FetchResult:
    """What the allocator takes of the patches that are left."""
    mask, taken = look.context.patch_mask, look.taken
    hidden = None if taken is None else torch.zeros_like(mask).scatter(1, taken, True)
    fetched = core.fetcher.choose(
        look.context, earlier.scores, earlier.relevance, mask, look.budget, choices, hidden=hidden
    )
    fetched.fell_back = earlier.fell_back
    return fetched


def merged(parts: Sequence[FetchResult]) -> FetchResult:
    """Fetches for one item as one, patches ascending; scores, relevance and names are those of the first."""
    names = ("indices", "positions", "is_padding")
    joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in names}
    if any(part.levels is not None for part in parts):
        levels = [torch.zeros_like(part.indices) if part.levels is None else part.levels for part in parts]
        joined["levels"] = torch.cat(levels, 1)
    counts, tokens = (torch.stack([getattr(part, name) for part in parts]).sum(0) for name in ("counts", "tokens"))
    for name in ("fell_back", "bypassed"):
        joined[name] = torch.stack([getattr(part, name) for part in parts]).any(0)
    budget = sum(part.budget for part in parts)
    whole = replace(parts[0], **joined, budget=budget, counts=counts, wanted=counts, survival=None, source=None)
    return replace(_at(whole, whole.indices[0].argsort()), tokens=tokens)


def _at(fetched: FetchResult, places: Tensor) -> FetchResult:
    """Of one item's fetched tokens those at `places` [k]."""
    own = {name: getattr(fetched, name) for name in fetched.PER_SACCADE}
    chosen = {name: tensor.index_select(1, places) for name, tensor in own.items() if tensor is not None}
    counts = torch.full_like(fetched.counts, len(places))
    return replace(fetched, **chosen, budget=len(places), counts=counts, wanted=counts, tokens=counts)


def _with_taken(look: Look, fetched: FetchResult) -> Tensor:
    """[1, taken] patches that are not to be fetched again: of a region all."""
    patches = fetched.indices if fetched.levels is None else fetched.covered()[:1].nonzero()[:, 1][None]
    return patches if look.taken is None else torch.cat((look.taken, patches), 1)


# ---- what the language model has read -----------------------------------------------------------------------------


@dataclass
class Reading:
    """One prompt, and what the language model remembers of it.

    Attributes:
        inputs: of one prompt, see `EmbeddedPrompt.read`.
        end: column behind the last fetched token.
        cache: keys and values of columns before `end`, or of fewer; None: it keeps none.
    """

    inputs: dict[str, Tensor]
    end: int
    cache: Cache | None

    @classmethod
    def of(cls, asker: Asks, look: Look, fetched: FetchResult, kwargs: dict[str, Any]) -> "Reading":
        """The prompt of the first pass, of which the encoding may hold the beginning."""
        core, cache = asker.model.model, None
        prompt = core.place(look, fetched, attention_mask=look.attention_mask)
        inputs = dict(prompt.read)
        first = int((inputs["input_ids"][0] == core.config.image_token_id).int().argmax())
        encoding, index = look.prefix, look.image_index
        if encoding is not None and index is not None and asker.cache_is_plain(kwargs):
            cache = cached_prefix(core, encoding, index) if holds_prefix(encoding, inputs) else None
        end = first + look.encoding.tokens.shape[1] + int(fetched.tokens)
        return cls(inputs, end, cache)

    def extend(self, core: ArrCocModel, look: Look, fetched: FetchResult) -> None:
        """Puts further fetched tokens behind the last one. They have seen the base and one another."""
        base, end = look.encoding.tokens.shape[1], self.end
        tokens, _, standing = core.image_tokens(look.encoding, fetched)

        def standing_rows(rows: Tensor) -> Tensor:
            rows = rows if standing is None else rows[standing][None]
            return rows[:, base : base + int(fetched.tokens)]

        tokens = standing_rows(tokens)
        ids = self.inputs["input_ids"].new_full(tokens.shape[:2], core.config.image_token_id)
        new = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "prompt_embeds": tokens}
        if "position_ids" in self.inputs:  # of a spatial layout: all of an image has the time at which it begins
            y, x = standing_rows(image_places(look.encoding, fetched)).unbind(-1)
            began = self.inputs["position_ids"][0, :, end - 1 : end].to(y)
            new["position_ids"] = torch.stack((began.expand_as(y), began + y, began + x))
        if "prompt_planes" in self.inputs:
            new["prompt_planes"] = standing_rows(image_planes(core, look.encoding, fetched, look.context))
        for name, read in self.inputs.items():
            axis = 2 if name == "position_ids" else 1
            before, behind = read.narrow(axis, 0, end), read.narrow(axis, end, read.shape[axis] - end)
            self.inputs[name] = torch.cat((before, new[name].to(read), behind), axis)
        self.end += int(fetched.tokens)

    def answer(self, asker: Asks, kwargs: dict[str, Any]) -> tuple[Any, str]:
        """What transformers' `generate` returns, and what it wrote; of what it read all up to `end` is remembered."""
        remembered = {} if self.cache is None else {"cache": self.cache}
        output, texts = asker.generated(self.inputs, {**kwargs, **remembered}, logits=True)
        cache = getattr(output, CACHE)
        self.cache = None
        if asker.cache_is_plain(kwargs) and keeps_every_position(cache):
            cache.crop(self.end - cache.get_seq_length())  # negative: how many to drop
            self.cache = cache
        return output, texts[0]


# ---- asking -------------------------------------------------------------------------------------------------------


def ask_in_passes(
    asker: Asks, asked: Questions, choices: FetchChoices, history: History, return_fetch: bool,
    on_fetch: Callable[[FetchResult], Any] | None, kwargs: dict[str, Any],
) -> list[Any]:  # fmt: skip
    """`Asker.ask` with `choices.num_passes`: an integer, or "auto".

    `on_fetch` is called with what each pass of each question fetched.

    Raises:
        ValueError: passes that the context does not hold, several images or views in one prompt, settings of
            `generate` beside which there is one pass.
    """
    _check(asker, asked, choices, kwargs)
    whole = bool(asker.setting(kwargs, "return_dict_in_generate"))
    answers = []
    for number, turns in enumerate(histories(history, len(asked.questions))):
        own, relevance = asked.alone(number), choices.relevance
        own_choices = replace(choices, relevance=None if relevance is None else relevance[number : number + 1])
        output, text, fetched, passes = _passes(asker, own, own_choices, turns, on_fetch, kwargs)
        (answer,) = with_fetch(
            [text], [passes[-1].probability], fetched, asked.encoding, own.images, output if whole else None,
            asker.model.config,
        )  # fmt: skip
        answers.append(replace(answer, passes=passes))
    return answers if return_fetch or whole else [answer.text for answer in answers]


def _passes(
    asker: Asks, asked: Questions, choices: FetchChoices, history: Sequence[Turn],
    on_fetch: Callable[[FetchResult], Any] | None, kwargs: dict[str, Any],
) -> tuple[Any, str, FetchResult, tuple[Pass, ...]]:  # fmt: skip
    """The last output of `generate` and what it wrote, all that was fetched, and the passes of one question."""
    core = asker.model.model
    policy = EXPLORATION[choices.exploration or ("tempered" if core.fetcher.tempering is None else "learned")]
    look, choices = asker.look(asked, choices, history, kwargs)
    most = _most_passes(asker, look, choices)
    least = 1 if choices.num_passes == "auto" else most
    reading: Reading | None = None
    output, text, passes = None, "", list[Pass]()
    while len(passes) < least or (len(passes) < most and passes[-1].uncertainty > UNSURE):
        share = policy(passes, core)
        if not 0 <= share <= 1:
            raise ValueError(f"exploration: expected a share in 0..1; got {share}")
        fetched = fetch_for_pass(core, look, choices, share, passes[-1].fetch if passes else None)
        if on_fetch is not None:
            on_fetch(fetched)
        if reading is None:
            reading = Reading.of(asker, look, fetched, kwargs)
        else:
            reading.extend(core, look, fetched)
        output, text = reading.answer(asker, kwargs)
        span = asker.answer_span(reading.inputs, kwargs)
        (probability,) = answer_probabilities(asker.model, output, *span)
        (uncertainty,) = answer_uncertainties(output, *span)
        passes.append(Pass(split_thinking(text)[1], probability, uncertainty, share, fetched))
        taken = _with_taken(look, fetched)
        unseen = int(look.context.patch_mask.scatter(1, taken, False).sum())
        if not unseen:
            break
        look = replace(look, taken=taken, budget=min(look.budget, unseen))
    return output, text, merged([each.fetch for each in passes]), tuple(passes)


def _most_passes(asker: Asks, look: Look, choices: FetchChoices) -> int:
    """Passes that the choices allow and the context holds; one where nothing is fetched."""
    auto = choices.num_passes == "auto"
    wanted = AUTO_PASSES if auto else int(choices.num_passes or 1)
    limit = getattr(asker.model.config.text_config, "max_position_embeddings", None)
    if not look.budget or limit is None:
        return wanted if look.budget else 1
    fits = 1 + (limit - 1 - look.input_ids.shape[1]) // look.budget
    if fits < wanted and not auto:
        expected = f"at most {fits} passes of {look.budget} patches, which fill the {limit} tokens of context"
        raise ValueError(f"num_passes: expected {expected}; got {wanted}")
    return min(fits, wanted)


def _check(asker: Asks, asked: Questions, choices: FetchChoices, kwargs: dict[str, Any]) -> None:
    """Refuses, with a ValueError, what several passes cannot be asked with."""
    passes = choices.num_passes
    if passes != "auto" and (not isinstance(passes, int) or passes < 1):
        raise refusal("num_passes", 'an integer from 1, or "auto"', passes)
    if choices.patches is not None:
        raise ValueError("patches: expected num_passes 1 beside them; got more")
    if kwargs.get("streamer") is not None:
        raise ValueError("streamer: expected num_passes 1 beside it, as every pass writes an answer; got more")
    for name in SINGLE:
        if asker.setting(kwargs, name, 1) != 1:
            raise ValueError(f"{name}: expected 1 beside num_passes; got {asker.setting(kwargs, name)}")
    if asked.joint:
        expected = 'prompts of one image that is looked at as a whole (tiles="never")'
        raise ValueError(f"num_passes: expected {expected}; got several images or views in one prompt")
