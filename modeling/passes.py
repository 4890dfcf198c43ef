"""Questions that are asked several times: in passes, and about several readings of their pages.

A pass answers, measures the uncertainty of the answer, and the next one runs back for other patches. The image is
encoded once. Between passes the language model's cache is cut behind the fetched tokens: a further pass reads its own
patches, and then the question again. The passes of a question depend on its answers, so questions are answered one
after the other.

`answer_generator` is a `generation.AnswerGenerator`, `batch` a `generation.QuestionBatch`.

Notation: I image slots (1 here), N patches, K fetched tokens of a pass, S prompt length, D language-model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .answers import Answer, Pass, answer_probabilities, answer_uncertainties, on_page, split_thinking, with_fetch
from .base_model import ArrCocModel
from .checks import is_one, refusal
from .fetcher import EXPLORATION, FetchChoices, FetchResult
from .image_encoding import ImageEncoding
from .pretrained import CACHE
from .prompt import behind_prefix, image_places, image_planes, keeps_every_position
from .rereading import READINGS, Reading, on_sheets
from .views import SelectedSlots

AUTO_PASSES = 4  # the most passes with num_passes "auto"
UNSURE = 0.15  # uncertainty of an answer above which "auto" runs back again

# ---- how much of a pass explores ----------------------------------------------------------------------------------


@EXPLORATION.register("tempered")
def tempered(passes: Sequence[Pass], core: ArrCocModel) -> float:
    """A tenth in the first pass; then more, the more uncertain the last answer is."""
    if not passes:
        return 0.1
    uncertainty = passes[-1].uncertainty
    return 0.5 if uncertainty > 0.7 else 0.3 if uncertainty > 0.4 else 0.05


@EXPLORATION.register("none")
def unexplored(passes: Sequence[Pass], core: ArrCocModel) -> float:
    """The scorer chooses all patches."""
    return 0.0


def fetch_for_pass(
    core: ArrCocModel, selected: SelectedSlots, choices: FetchChoices, share: float, earlier: FetchResult | None = None
) -> FetchResult:
    """The patches of one pass of a question: a `share` of them is drawn at random.

    Drawn patches replace the least relevant of those that the allocator chose. Padding is never drawn. The relevance
    map is that of the `earlier` pass, if there was one, as the question is the same; patches of earlier passes are not
    fetched again.
    """
    if earlier is None:
        followed = core.fetch(selected, choices)
    else:
        mask, hidden = selected.context.patch_mask, None
        if selected.taken is not None:
            hidden = torch.zeros_like(mask).scatter(1, selected.taken, True)
        begun = core.fetcher.scorer(choices.strategy or core.fetcher.config.strategy).begun(selected.context)
        scores = earlier.scores, earlier.relevance, mask
        followed = core.fetcher.choose(selected.context, *scores, selected.budget, choices, hidden=hidden, begun=begun)
        followed.fell_back = earlier.fell_back
    if followed.room is not None:  # one token for each patch, as the patches of passes are counted
        followed = followed.select(torch.arange(len(followed.counts), device=followed.counts.device))
    taken = _with_taken(selected, followed)
    unseen = selected.context.patch_mask.scatter(1, taken, False)
    drawn = min(round(share * followed.budget), int(unseen.sum()))
    if not drawn:
        return followed
    order = followed.scores.gather(1, followed.indices).argsort(dim=1, descending=True, stable=True)
    others = replace(choices, strategy="random", allocator="topk")
    explored = core.fetch(replace(selected, budget=drawn, taken=taken), others)
    return merged([_at(followed, order[0, : followed.budget - drawn]), explored])


def merged(parts: Sequence[FetchResult]) -> FetchResult:
    """One result from the fetches of several passes for one item, patches ascending; scores, relevance and names are
    those of the first pass."""
    names = ("indices", "is_padding")
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
    """The fetched tokens of one item at `places` [k]."""
    own = {name: getattr(fetched, name) for name in fetched.PER_TOKEN}
    chosen = {name: tensor.index_select(1, places) for name, tensor in own.items() if tensor is not None}
    counts = torch.full_like(fetched.counts, len(places))
    return replace(fetched, **chosen, budget=len(places), counts=counts, wanted=counts, tokens=counts)


def _with_taken(selected: SelectedSlots, fetched: FetchResult) -> Tensor:
    """[1, taken] the patches of earlier fetches, with all patches of a region."""
    patches = fetched.indices if fetched.levels is None else fetched.covered()[:1].nonzero()[:, 1][None]
    return patches if selected.taken is None else torch.cat((selected.taken, patches), 1)


# ---- what the language model has read -----------------------------------------------------------------------------


@dataclass
class CachedPrompt:
    """A prompt, and the language model's cache of it."""

    inputs: dict[str, Tensor]  # of one prompt, see `EmbeddedPrompt.read`
    end: int  # the column behind the last fetched token
    cache: Cache | None  # keys and values of columns before `end`, or of fewer; None: no cache

    @classmethod
    def of(
        cls, answer_generator: Any, selected: SelectedSlots, fetched: FetchResult, kwargs: dict[str, Any]
    ) -> "CachedPrompt":
        """The prompt of the first pass; the encoding may hold the cache of its beginning."""
        core = answer_generator.model.model
        cache: Cache | None = None
        prompt = core.place(selected, fetched, attention_mask=selected.attention_mask)
        inputs = dict(prompt.read)
        first = int((inputs["input_ids"][0] == core.config.image_token_id).int().argmax())
        encoding, index = selected.prefix, selected.image_index
        if encoding is not None and index is not None and answer_generator.cache_is_plain(kwargs):
            inputs, cache = behind_prefix(core.config.text_config, encoding, inputs, index)
        end = first + selected.encoding.tokens.shape[1] + int(fetched.tokens)
        return cls(inputs, end, cache)

    def extend(self, core: ArrCocModel, selected: SelectedSlots, fetched: FetchResult) -> None:
        """Inserts further fetched tokens behind the last one. They attended to the base tokens and to each other."""
        base, end = selected.encoding.tokens.shape[1], self.end
        tokens, standing = core.image_tokens(selected.encoding, fetched)

        def standing_rows(rows: Tensor) -> Tensor:
            rows = rows if standing is None else rows[standing][None]
            return rows[:, base : base + int(fetched.tokens)]

        tokens = standing_rows(tokens)
        ids = self.inputs["input_ids"].new_full(tokens.shape[:2], core.config.image_token_id)
        new = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "prompt_embeds": tokens}
        if "position_ids" in self.inputs:  # in a spatial layout all tokens of an image have its start as their time
            y, x = standing_rows(image_places(selected.encoding, fetched)).unbind(-1)
            began = self.inputs["position_ids"][0, :, end - 1 : end].to(y)
            new["position_ids"] = torch.stack((began.expand_as(y), began + y, began + x))
        if "prompt_planes" in self.inputs:
            new["prompt_planes"] = standing_rows(image_planes(core, selected.encoding, fetched, selected.context))
        for name, read in self.inputs.items():
            axis = 2 if name == "position_ids" else 1
            before, behind = read.narrow(axis, 0, end), read.narrow(axis, end, read.shape[axis] - end)
            self.inputs[name] = torch.cat((before, new[name].to(read), behind), axis)
        self.end += int(fetched.tokens)

    def answer(self, answer_generator: Any, kwargs: dict[str, Any]) -> tuple[Any, str]:
        """The output of transformers' `generate` and its text; the cache keeps the columns up to `end`."""
        remembered = {} if self.cache is None else {"cache": self.cache}
        output, texts = answer_generator.generated(self.inputs, {**kwargs, **remembered}, logits=True)
        cache = getattr(output, CACHE)
        self.cache = None
        if answer_generator.cache_is_plain(kwargs) and keeps_every_position(cache):
            cache.crop(self.end - cache.get_seq_length())  # negative: the number of columns to drop
            self.cache = cache
        return output, texts[0]


# ---- in passes ----------------------------------------------------------------------------------------------------


def ask_in_passes(
    answer_generator: Any, batch: Any, return_fetch: bool, on_fetch: Callable[[FetchResult], Any] | None
) -> list[Any]:
    """`AnswerGenerator.ask` with `batch.choices.num_passes`: an integer, or "auto".

    `on_fetch` is called with the result of each pass of each question. `check_choices` comes before.

    Raises:
        ValueError: more passes than the context holds, or several images or views in one prompt.
    """
    if batch.joint:
        expected = 'prompts of one image without tiles (tiles="never")'
        raise ValueError(f"num_passes: expected {expected}; got several images or views in one prompt")
    whole = bool(answer_generator.setting(batch.settings, "return_dict_in_generate"))
    answers, relevance = [], batch.choices.relevance
    for number in range(len(batch.questions)):
        own = batch.part([number])
        if relevance is not None:
            own = replace(own, choices=replace(own.choices, relevance=relevance[number : number + 1]))
        reading, output, text, passes = _passes(answer_generator, own, on_fetch)
        fetched = merged([one_pass.fetch for one_pass in passes])
        found = with_fetch(
            [text], [passes[-1].probability], fetched, batch.encoding, own.images, output if whole else None,
            answer_generator.model.config, answer_generator.decode,
        )  # fmt: skip
        (answer,) = answer_generator.finished(found, output, reading.inputs, batch.settings)
        answers.append(replace(answer, passes=passes))
    return answers if return_fetch or whole else [answer.text for answer in answers]


def _passes(
    answer_generator: Any, batch: Any, on_fetch: Callable[[FetchResult], Any] | None
) -> tuple[CachedPrompt, Any, str, tuple[Pass, ...]]:
    """What was read in the end, the last output of `generate` and its text, and the passes of one question."""
    core, settings, exploration = answer_generator.model.model, batch.settings, batch.choices.exploration
    learned: Any = core.fetcher.tempering
    policy = EXPLORATION[exploration or "tempered"]
    if learned is not None and exploration in (None, "learned"):
        policy = learned.share
    selected, choices = answer_generator.select_slots(batch)
    most = _most_passes(answer_generator, selected, choices)
    least = 1 if choices.num_passes == "auto" else most
    reading: CachedPrompt | None = None
    output, text, passes = None, "", list[Pass]()
    while len(passes) < least or (len(passes) < most and passes[-1].uncertainty > UNSURE):
        share = policy(passes, core)
        if not 0 <= share <= 1:
            raise ValueError(f"exploration: expected a share in 0..1; got {share}")
        fetched = fetch_for_pass(core, selected, choices, share, passes[-1].fetch if passes else None)
        if on_fetch is not None:
            on_fetch(fetched)
        if reading is None:
            reading = CachedPrompt.of(answer_generator, selected, fetched, settings)
        else:
            reading.extend(core, selected, fetched)
        output, text = reading.answer(answer_generator, settings)
        span = answer_generator.answer_span(reading.inputs, settings)
        (probability,) = answer_probabilities(answer_generator.model, output, *span)
        (uncertainty,) = answer_uncertainties(output, *span)
        passes.append(Pass(split_thinking(text)[1], probability, uncertainty, share, fetched))
        taken = _with_taken(selected, fetched)
        unseen = int(selected.context.patch_mask.scatter(1, taken, False).sum())
        if not unseen:
            break
        selected = replace(selected, taken=taken, budget=min(selected.budget, unseen))
    assert reading is not None, "there is at least one pass"
    return reading, output, text, tuple(passes)


def _most_passes(answer_generator: Any, selected: SelectedSlots, choices: FetchChoices) -> int:
    """The number of passes that the choices allow and the context holds; 1 if nothing is fetched."""
    auto = choices.num_passes == "auto"
    wanted = AUTO_PASSES if auto else int(choices.num_passes or 1)
    limit = getattr(answer_generator.model.config.text_config, "max_position_embeddings", None)
    if not selected.budget or limit is None:
        return wanted if selected.budget else 1
    fits = 1 + (limit - 1 - selected.input_ids.shape[1]) // selected.budget
    if fits < wanted and not auto:
        expected = f"at most {fits} passes of {selected.budget} patches, which fill the {limit} tokens of context"
        raise ValueError(f"num_passes: expected {expected}; got {wanted}")
    return min(fits, wanted)


def check_choices(
    answer_generator: Any, choices: FetchChoices, strategy: str, boxes: Any, kwargs: dict[str, Any]
) -> None:
    """Raises a ValueError for choices that do not go with the `strategy` or with the settings `kwargs`."""
    if boxes is not None and strategy != "oracle":
        expected = "strategy oracle beside them, which fetches what is in them"
        raise ValueError(f"boxes: expected {expected}; got strategy {strategy!r}")
    if strategy == "oracle" and boxes is None and choices.relevance is None and choices.patches is None:
        raise ValueError('strategy "oracle": expected boxes (or relevance) of the answer; got none')
    once, samples = choices.num_passes in (None, 1), answer_generator.setting(kwargs, "do_sample")
    if choices.seed is not None and strategy != "random" and once and samples:
        expected = "strategy random, whose patches it draws; transformers.set_seed seeds the tokens of do_sample"
        raise ValueError(f"seed: expected {expected}; got strategy {strategy!r}")
    passes = choices.num_passes
    if once:
        if choices.exploration is not None:
            raise refusal("exploration", 'num_passes above 1 or "auto" beside it', choices.exploration)
        return
    if passes != "auto" and (not isinstance(passes, int) or passes < 1):
        raise refusal("num_passes", 'an integer from 1, or "auto"', passes)
    if choices.exploration == "learned" and answer_generator.model.model.fetcher.tempering is None:
        held = ", ".join(sorted(set(EXPLORATION) - {"learned"}))
        expected = f"one of {held} (fetcher_config.learned_exploration is off)"
        raise ValueError(f"exploration: expected {expected}; got 'learned'")
    if choices.exploration is not None:
        EXPLORATION[choices.exploration]  # raises ValueError if unknown
    if choices.patches is not None:
        raise ValueError("patches: expected num_passes 1 beside them; got more")
    if kwargs.get("streamer") is not None:
        raise ValueError("streamer: expected num_passes 1 beside it, as every pass writes an answer; got more")
    for name in ("num_beams", "num_return_sequences"):  # the passes depend on one answer
        if answer_generator.setting(kwargs, name, 1) != 1:
            raise ValueError(f"{name}: expected 1 beside num_passes; got {answer_generator.setting(kwargs, name)}")


# ---- about other readings ------------------------------------------------------------------------------------------


def further_reading(encoding: ImageEncoding, encode: Callable[..., ImageEncoding], number: int) -> Reading:
    """A further reading of the encoding's sources, from 1; `encode` encodes documents of sheets."""
    assert encoding.sources is not None and encoding.documents is not None
    sheets, places = on_sheets(encoding.sources, number)
    own = [*zip(sheets, encoding.documents, strict=True)]
    documents = [[sheet for sheet, of in own if of == number] for number in dict.fromkeys(encoding.documents)]
    return Reading(partial(encode, documents), places)


def ask_again(answer_generator: Any, batch: Any, reading: Reading, numbers: list[int]) -> list[Answer]:
    """The answers to some of the questions from another reading, as answers about the pages themselves."""
    sources, encoding = batch.encoding.sources or [], reading.encoding
    if batch.encoding.prefix_cache is None:  # of another model, perhaps
        encoding = encoding.without_prefix()
    encoding = answer_generator.model.model.with_bypass(encoding, batch.choices.bypass)
    part = replace(batch.part(numbers), encoding=encoding)
    answers: list[Answer] = answer_generator.answers(part, answer_generator.embed(part, cached=True), True)
    return [
        on_page(answer, [sources[number] for number in own], reading.places[own])
        for answer, own in zip(answers, part.images, strict=True)
    ]


WITH_ONE_READING = (
    "boxes", "patches", "relevance", "num_passes", "streamer", "return_dict_in_generate", "num_return_sequences",
)  # fmt: skip
"""Arguments and settings that do not go with several readings."""


def check_readings(readings: Any, image: Any, settings: dict[str, Any]) -> None:
    """Raises a ValueError for a number outside 1..`READINGS`, and for `settings` of `WITH_ONE_READING` beside more."""
    count = readings
    if type(image).__name__ == "ImageEncoding":  # by name: remote code may load a class twice
        count = 1 + len(image.readings)
        if readings is not None:
            raise ValueError(f"readings: expected with an image or in encode_image; got {readings} for an encoding")
    elif readings is None:
        return
    elif isinstance(readings, bool) or not isinstance(readings, Integral) or not 1 <= int(readings) <= READINGS:
        raise refusal("readings", f"a whole number in 1..{READINGS}", readings)
    given = [name for name, value in settings.items() if not is_one(value)]
    if count > 1 and given:
        raise ValueError(f"readings: expected one reading with {', '.join(given)}; got {count}")
