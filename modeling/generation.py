"""The user's door: from an image and a question to an answer, on top of transformers' `generate`.

Notation: B questions, P encoded images, I image slots, S prompt length, N patches, M base tokens, K fetched tokens, D
width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from numbers import Integral
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.utils import logging

from .allocators import FetchResult
from .answers import THINKING, Answer, answer_probabilities, with_fetch
from .attention_scorer import cached_prefix, holds_prefix, pad_after_prefix
from .base_model import ArrCocModel
from .checks import CALLABLES, DECODING, NUMBERS, boxes_per_slot, refusal, too_long
from .configuration_arr_coc import COMPRESSION, ArrCocConfig
from .fetcher import AS_CONFIGURED, FetchChoices
from .image_encoding import ImageEncoding
from .image_loading import load_sources
from .image_processing_arr_coc import ArrCocImageProcessor, Box, boxes_to_patches, least_scale
from .image_sources import shorten
from .passes import ask_in_passes
from .processing_arr_coc import ArrCocProcessor, History, Turn, take_view_options
from .prompt import EmbeddedPrompt, Look
from .prompt_format import count_saccades, pooling
from .scorers import SCORERS
from .view_encoding import encode_prompts, look_at_views
from .views import AS_SEEN, VIEW_OPTIONS, ViewOptions

logger = logging.get_logger(__name__)

POSITIONAL = ("inputs", "generation_config", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn")
"""The first parameters of transformers' `generate`, in order."""


@dataclass(frozen=True)
class QuestionBatch:
    """Questions about encoded images: for each prompt the numbers of the images that it shows, in order.

    `spread`: how the images of a prompt share one budget; `apart`: they have one each, as where the patches of each
    are given; `boxes`: of each slot.
    """

    encoding: ImageEncoding
    images: list[list[int]]
    questions: list[str]
    spread: str = "joint"
    apart: bool = False
    boxes: list[Any] | None = None

    @property
    def joint(self) -> bool:
        """Whether all views of a prompt share one budget: of documents, tiled images and several images."""
        several = not self.apart and max(map(len, self.images)) > 1
        return several or self.encoding.documents is not None

    @property
    def captions(self) -> list[list[str]]:
        """What stands before each image of each prompt."""
        captions = {row: source.caption for row, source in enumerate(self.encoding.sources or ())}
        return [[captions.get(number, "") for number in own] for own in self.images]

    def alone(self, number: int) -> "QuestionBatch":
        """One question out of several."""
        row = slice(number, number + 1)
        boxes = None if self.boxes is None else self.boxes[row]
        return replace(self, images=self.images[row], questions=self.questions[row], boxes=boxes)

    @property
    def slots(self) -> list[int]:
        """[I] the image of each slot, prompt after prompt."""
        return [number for images in self.images for number in images]


class Answering(Protocol):
    """What asks and answers needs of a model: `ArrCocForConditionalGeneration`."""

    model: ArrCocModel
    config: ArrCocConfig
    generation_config: Any

    @property
    def device(self) -> torch.device: ...

    def generate_tokens(self, **kwargs: Any) -> Any: ...

    def prefilled(self, encoding: ImageEncoding) -> ImageEncoding: ...


class Asker:
    """Asks a model about images: encodes them once, writes prompts, generates, reads answers.

    Args:
        model: the one that answers.
        processor: its processor.

    Example:
        >>> asker = Asker(model, model.processor)
        >>> asker.ask(asker.encode("receipt.png"), ["What is the total?", "What is the tax?"])
    """

    def __init__(self, model: Answering, processor: ArrCocProcessor) -> None:
        self.model = model
        self.processor = processor

    # ---- encode once ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, image: Any, *, prefix: bool = True, **options: Any) -> ImageEncoding:
        """Everything about an image, or a list of them, that no question changes: see `generate`.

        Saves the grid encoder, the base half of the semantic encoder and, with `prefix`, the language model's prefill
        of the prompt up to and including the base tokens.

        Raises:
            ValueError: an image that cannot be read.
        """
        taken, rest = self._view_options(options)
        if rest:
            raise TypeError(f"encode_image: expected options of views; got {', '.join(sorted(rest))}")
        prompts = shown_by_prompts(image)
        encoding = self._encode_sources(prompts, taken, together=any(len(shown) > 1 for shown in prompts))
        encoding.made_by = self.model.model.maker()
        return self.model.prefilled(encoding) if prefix else encoding

    @torch.no_grad()
    def encode_slots(self, input_ids: Tensor, pixels: Tensor, sizes: Tensor, **options: Any) -> ImageEncoding:
        """The images in the slots of prompts [B, S] that the processor wrote, one in each, in views.

        Args:
            input_ids: [B, S], with placeholders.
            pixels: uint8 [I, H, W, 3], padded; sizes: [I, 2] (height, width) of each.
        """
        shown = zip(pixels.cpu().numpy(), sizes.tolist(), strict=True)
        sources = [image[:height, :width] for image, (height, width) in shown]
        taken, _ = self._view_options(options)
        placeholders = (input_ids == self.model.config.image_token_id).sum(1)
        size, waiting = int(placeholders.sum()) // len(sources), iter(sources)
        counts = (placeholders // max(1, size)).tolist()
        if sum(counts) != len(sources):
            expected = f"as many as images in the prompts, of {placeholders.tolist()} placeholders"
            raise ValueError(f"image_sources: expected {expected}; got {len(sources)}")
        return self._encode_sources([[next(waiting) for _ in range(count)] for count in counts if count], taken)

    def _view_options(self, kwargs: dict[str, Any]) -> tuple[ViewOptions, dict[str, Any]]:
        saved = self.processor.image_processor.views
        return take_view_options({**saved, **kwargs}) if saved or VIEW_OPTIONS & kwargs.keys() else (AS_SEEN, kwargs)

    def _encode_sources(
        self, prompts: Sequence[Sequence[Any]], options: ViewOptions, together: bool = False
    ) -> ImageEncoding:
        """The images that prompts show, and of those that shrink far tiles.

        `together`: the encoding knows which are shown by one prompt.
        """
        processor, sources = self.processor.image_processor, list[Any]()
        rows = processor.size["height"] // processor.patch_size // COMPRESSION
        pooled = together
        for shown in prompts:
            sources += shown
            pooled |= len(shown) > 1 and pooling(rows, len(shown), options.max_base_tokens) > 1
        if any(isinstance(source, list | tuple) or getattr(source, "ndim", 0) == 4 for source in sources):
            raise refusal("image", "one image, or a list of them", sources)
        images = load_sources(sources, max_image_pixels=processor.max_image_pixels, policy=processor.sources)
        if pooled or processor.shrinks(images, least_scale(options.tiles, options.tile_scale)):
            return encode_prompts(self.model.model, processor, prompts, images, options)
        inputs = processor(images, return_tensors="pt")
        encoding = self.model.model.encode_image(inputs["pixel_values"], inputs["patch_mask"])
        encoding.source_sizes = [(image.height, image.width) for image in images]
        return encoding

    # ---- ask ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def ask(
        self,
        image: Any,
        question: str | Sequence[str],
        *args: Any,
        boxes: Sequence[Box] | Sequence[Sequence[Box]] | None = None,
        history: History = (),
        return_fetch: bool = False,
        on_fetch: Callable[[FetchResult], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """See `ArrCocForConditionalGeneration.generate`, of which it is the half with a question."""
        if not isinstance(return_fetch, bool):
            raise refusal("return_fetch", NUMBERS[bool], return_fetch)
        if on_fetch is not None and not callable(on_fetch):
            raise refusal("on_fetch", "a function", on_fetch)
        kwargs.update(zip(POSITIONAL[2:], args, strict=False))
        check_decoding(self.model, kwargs)
        choices, kwargs = take_choices(kwargs)
        if choices is not AS_CONFIGURED:
            choices = self.model.model.fetcher.resolve(choices)
        single = isinstance(question, str) and not isinstance(image, list | tuple)
        options, kwargs = self._view_options(kwargs)
        questions = checked_questions(question, self.processor.control_tokens)
        asked = self._asked(image, questions, choices, kwargs, options)
        if boxes is not None:
            asked = replace(asked, boxes=boxes_per_slot(boxes))
        if choices.num_passes not in (None, 1):
            answers = ask_in_passes(self, asked, choices, history, return_fetch, on_fetch, kwargs)
        else:
            prompt = self.embed(asked, choices, history, **kwargs)
            if on_fetch is not None:
                on_fetch(prompt.fetch)
            answers = self._answers(asked, prompt, return_fetch, kwargs)
        return answers[0] if single and len(answers) == 1 else answers

    @torch.no_grad()
    def embed(
        self, asked: QuestionBatch, choices: FetchChoices = AS_CONFIGURED, history: History = (), **kwargs: Any
    ) -> EmbeddedPrompt:
        """Questions about encoded images as the language model reads them, left-padded; `inputs` has attention_mask.

        The half of `ask` before anything is generated, for engines that generate by themselves. `choices` are as
        `RunningBackFetcher.resolve` returns them; `kwargs` are those of `ask`: with budget "all" answers need room.

        Raises:
            ValueError: a prompt that the context does not hold.
        """
        look, choices = self.look(asked, choices, history, kwargs)
        core = self.model.model
        return core.place(look, core.fetch(look, choices), attention_mask=look.attention_mask)

    def look(
        self, asked: QuestionBatch, choices: FetchChoices, history: History, kwargs: dict[str, Any]
    ) -> tuple[Look, FetchChoices]:
        """The first step of `embed`, and the choices with a budget that the context holds."""
        if asked.boxes is not None:
            processor = self.processor.image_processor
            relevance = relevance_of_boxes(asked.boxes, asked.slots, asked.encoding, processor)
            choices = replace(choices, relevance=relevance)
        core, encoding, joint, slots = self.model.model, asked.encoding, asked.joint, asked.slots
        shown = torch.tensor([len(own) for own in asked.images])
        inputs, choices, budget = self._inputs(asked, choices, history, kwargs)
        rows = torch.arange(len(shown)).repeat_interleave(shown).to(encoding.tokens.device)
        # Images that stand once each, in order, need no copy, but where the language model has read them.
        plain = encoding.prefix_cache is None and slots == [*range(len(encoding.features))]
        index = None if plain else torch.tensor(slots)
        look = core.look(**inputs, encoding=encoding, image_index=index, choices=choices, slots=(rows, budget))
        if joint:
            spread, boxes = asked.spread, asked.boxes
            look = look_at_views(core, look, encoding, asked.images, choices, spread=spread, boxes=boxes)
        return look, choices

    def _asked(
        self, image: Any, questions: list[str], choices: FetchChoices, kwargs: dict[str, Any], options: ViewOptions
    ) -> QuestionBatch:
        """The encodings, and as many questions as prompts."""
        if encoded := is_encoding(image):
            core = self.model.model
            own = image.made_by is not None and image.made_by[0] == core.token
            encoding = image if own else core.own(image)
        else:
            prompts = shown_by_prompts(image)
            encoding = self._encode_sources(prompts, options)
        spans: list[list[int]] = []
        if encoded or encoding.documents is not None:
            numbers = encoding.documents or range(len(encoding.features))
            for row, number in enumerate(numbers):
                spans += [[]] if number == len(spans) else []
                spans[number].append(row)
        else:
            for prompt in prompts:
                first = spans[-1][-1] + 1 if spans else 0
                spans.append(list(range(first, first + len(prompt))))
        if len(questions) == 1:
            questions = questions * len(spans)
        if len(spans) not in (1, len(questions)):
            raise ValueError(f"images: expected 1 or {len(questions)} (one per question); got {len(spans)}")
        images = spans * len(questions) if len(spans) == 1 else spans
        if choices.bypass is not None:
            encoding = self.model.model.with_bypass(encoding, choices.bypass)
        # A prefix pays where several questions share it, or a question's attention scorer and its answer.
        strategy = choices.strategy or self.model.config.fetcher_config.strategy
        read_twice = choices.patches is None and SCORERS[strategy].reads_attention
        shared = len(spans) == 1 < len(questions) or (read_twice and all(len(span) == 1 for span in spans))
        if not encoded and shared and self.cache_is_plain(kwargs):
            encoding = self.model.prefilled(encoding)
        return QuestionBatch(encoding, images, questions, options.spread, apart=choices.patches is not None)

    def _inputs(
        self, asked: QuestionBatch, choices: FetchChoices, history: History, kwargs: dict[str, Any]
    ) -> tuple[dict[str, Tensor], FetchChoices, int]:
        """input_ids, attention_mask and query_mask [B, S], left-padded, with placeholders for every vision token.

        Also the choices, with the budget that fits where all that fits was asked for, and K.
        """
        limit = getattr(self.model.config.text_config, "max_position_embeddings", None)  # BLOOM knows no limit
        captions, encoding = asked.captions, asked.encoding
        captioned = any(map(any, captions))
        shown = torch.tensor([len(images) for images in asked.images])
        budgets = torch.ones_like(shown) if asked.joint else shown  # in each prompt
        base, saccades = self._count_positions(encoding, choices)
        write = partial(self.processor.prompts, asked.questions, images=captions, history=history)
        inputs = write(placeholders=base + saccades)
        if captioned:  # they are no part of the question
            shows = (inputs["input_ids"] == self.model.config.image_token_id).int()
            inputs["query_mask"] &= shows.flip(1).cumsum(1).flip(1) == 0
        # What slots do not use is cut out before anything reads it.
        lengths = inputs["attention_mask"].sum(1) - saccades * (shown - budgets)
        longest = int(lengths.max())
        if limit is not None and longest >= limit:
            room = self.setting(kwargs, "max_new_tokens", 1) if choices.budget == "all" else 1
            fits = int((saccades - (lengths + room - limit + budgets - 1) // budgets).min())
            if fits < 1 or choices.budget != "all":
                raise too_long(limit, longest, saccades, fits)
            logger.warning(f'budget "all": fetching {fits} of {saccades} patches, what {limit} tokens of context hold')
            choices = replace(choices, budget=fits)
            saccades = fits
            inputs = write(placeholders=base + fits)
        for name in inputs:
            inputs[name] = inputs[name].to(encoding.tokens.device)
        return inputs, choices, saccades

    def _count_positions(self, encoding: ImageEncoding, choices: FetchChoices) -> tuple[int, int]:
        """Of one image: what `encoding.base_positions` says, and K, as `count_vision_tokens` counts them."""
        shown = encoding.tokens.shape[1] + (0 if encoding.closing is None else encoding.closing.shape[1])
        if choices.patches is not None:
            return shown, choices.patches.shape[1]
        fetcher, base = self.model.config.fetcher_config, encoding.base_indices
        excludes = base is not None and (choices.overlap or fetcher.overlap) == "exclude"
        return shown, count_saccades(
            encoding.patch_mask.shape[1],
            fetcher.budget if choices.budget is None else choices.budget,
            strategy=choices.strategy or fetcher.strategy,
            taken=base.shape[1] if excludes and base is not None else 0,
        )

    def _answers(
        self,
        asked: QuestionBatch,
        prompt: EmbeddedPrompt,
        return_fetch: bool,
        kwargs: dict[str, Any],
    ) -> list[str] | list[Answer]:
        encoding = asked.encoding
        inputs = dict(prompt.read)
        whole = bool(self.setting(kwargs, "return_dict_in_generate"))
        repeats = max(self.setting(kwargs, name, 1) for name in ("num_beams", "num_return_sequences"))
        first = torch.tensor([images[0] for images in asked.images]).repeat_interleave(repeats)
        if encoding.prefix_cache is not None and self.cache_is_plain(kwargs) and holds_prefix(encoding, inputs):
            inputs = pad_after_prefix(inputs, len(encoding.prefix_ids))  # type: ignore[arg-type]
            kwargs = {**kwargs, "cache": cached_prefix(self.model.model, encoding, first)}
        wanted = return_fetch or whole
        output, texts = self.generated(inputs, kwargs, logits=wanted)
        if not wanted:
            return [THINKING.sub("", text) for text in texts]  # without what was thought before
        probabilities = answer_probabilities(self.model, output, *self.answer_span(inputs, kwargs))
        whole_output = output if whole else None
        config = self.model.config
        return with_fetch(texts, probabilities, prompt.fetch, encoding, asked.images, whole_output, config)

    def generated(self, inputs: dict[str, Tensor], kwargs: dict[str, Any], *, logits: bool) -> tuple[Any, list[str]]:
        """What transformers' `generate` returns for embedded prompts, with `logits` if wanted, and what it wrote."""
        start = inputs["input_ids"].shape[1]
        settings = {**within_context(self.model, kwargs, start), "return_dict_in_generate": True}
        if logits:
            settings["output_logits"] = True
        output = self.model.generate_tokens(**inputs, **settings)
        with self.processor.tokenizing.lock:
            texts = self.processor.tokenizer.batch_decode(output.sequences[:, start:], skip_special_tokens=True)
        return output, [text.strip() for text in texts]

    # ---- what transformers' generate is told ------------------------------------------------------------------------

    def answer_span(self, inputs: dict[str, Tensor], kwargs: dict[str, Any]) -> tuple[int, Any, int]:
        """Where answers to prompts begin, the tokens that end them, and what stands behind their end."""
        end, pad = self.setting(kwargs, "eos_token_id", []), self.setting(kwargs, "pad_token_id", -1)
        return inputs["input_ids"].shape[1], end, pad

    def setting(self, kwargs: dict[str, Any], name: str, default: Any = None) -> Any:
        return generation_setting(self.model, kwargs, name, default)

    def cache_is_plain(self, kwargs: dict[str, Any]) -> bool:
        """Whether this generation keeps the cache that a prefix is kept in."""
        static = self.setting(kwargs, "cache_implementation") is not None
        assisted = self.setting(kwargs, "prompt_lookup_num_tokens") is not None  # which reads prompts from the start
        plain = not static and not assisted and "cache" not in kwargs
        return plain and bool(self.setting(kwargs, "use_cache", True))


# ---- what asking begins with --------------------------------------------------------------------------------------


def shown_by_prompts(image: Any) -> list[list[Any]]:
    """The images that each prompt shows, of one image or a list of images and of lists of them.

    Raises:
        ValueError: there are none, or none for one of the prompts.
    """
    prompts = image if isinstance(image, list | tuple) else [image]
    prompts = [list(shown) if isinstance(shown, list | tuple) else [shown] for shown in prompts]
    if not prompts or not all(prompts):
        raise ValueError("images: expected at least one; got an empty list")
    return prompts


def take_choices(kwargs: dict[str, Any]) -> tuple[FetchChoices, dict[str, Any]]:
    """The `FetchChoices` among arguments (by name, or as `choices`), and the other arguments."""
    names = {part.name for part in fields(FetchChoices)}
    named = {name: kwargs[name] for name in kwargs.keys() & names if kwargs[name] is not None}
    choices = kwargs.get("choices")
    if not isinstance(choices, FetchChoices):
        choices = AS_CONFIGURED if choices is None else FetchChoices.of(choices)
    rest = {name: value for name, value in kwargs.items() if name not in names and name != "choices"}
    return replace(choices, **named) if named else choices, rest


def generation_setting(model: Answering, kwargs: dict[str, Any], name: str, default: Any = None) -> Any:
    """A setting of a generation as transformers will see it: the call's, its GenerationConfig's, the model's."""
    configs = (kwargs.get("generation_config"), model.generation_config)
    values = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
    return next((value for value in values if value is not None), default)


def within_context(model: Answering, kwargs: dict[str, Any], prompt: int) -> dict[str, Any]:
    """The settings, so that an answer to a prompt of so many tokens ends where the language model's context does."""
    limit = getattr(model.config.text_config, "max_position_embeddings", None) or 2**31  # BLOOM knows none
    most = {"max_new_tokens": max(1, limit - prompt), "max_length": limit}
    return kwargs | {name: end for name, end in most.items() if (generation_setting(model, kwargs, name) or 0) > end}


def check_decoding(model: Answering, kwargs: dict[str, Any]) -> None:
    """Refuses, with a ValueError, settings that `generate` would trip over, assistants, and caches with tokens.

    The patches of a prompt are other ones with every question, and stand before it: none of them would be read.
    """
    cached = kwargs.get("cache")
    if cached is not None and (length := cached.get_seq_length()):
        expected = "an empty cache beside images (encode_image keeps what questions share)"
        raise ValueError(f"cache: expected {expected}; got one of {length} tokens")
    for name, (kind, least, most) in DECODING.items():
        value = generation_setting(model, kwargs, name)
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool) and least <= value <= most
        if value is not None and not fits:
            raise refusal(name, NUMBERS[kind] + ("" if kind is bool else f" in {least:g}..{most:g}"), value)
    for name, (needed, expected) in CALLABLES.items():
        if kwargs.get(name) is not None and not all(hasattr(kwargs[name], method) for method in needed):
            raise refusal(name, expected, kwargs[name])
    for name in ("logits_processor", "stopping_criteria"):
        if not all(map(callable, kwargs.get(name) or ())):
            raise refusal(name, CALLABLES[name][1], kwargs[name])
    end = generation_setting(model, kwargs, "eos_token_id", ())
    ends = end if isinstance(end, list | tuple) else [end]
    if not all(isinstance(token, Integral) and -1 <= int(token) < 2**31 for token in ends):
        raise refusal("eos_token_id", "a token's number, or a list of them", end)
    for name in ("assistant_model", "assistant_early_exit"):
        if kwargs.get(name) is not None:
            expected = "decoding without one, or prompt_lookup_num_tokens: an assistant does not see the images"
            raise ValueError(f"{name}: expected {expected}; got {type(kwargs[name]).__name__}")


def is_encoding(value: Any) -> bool:
    """Whether `value` is what `encode_image` returns (by name: remote code may load a class twice)."""
    return type(value).__name__ == "ImageEncoding"


def checked_questions(question: Any, control_tokens: Sequence[str]) -> list[str]:
    """A question or several -> a list of them.

    Raises:
        ValueError: there is no question; or one is no text, is empty, or holds only what looks like control tokens.
    """
    questions = list(question) if isinstance(question, list | tuple) else [question]
    if not questions:
        raise ValueError("question: expected at least one; got an empty list")
    for text in questions:
        plain = text.encode("utf-8", "ignore").decode() if isinstance(text, str) else ""
        if isinstance(text, str) and plain != text:
            raise refusal("question", "text, which UTF-8 can hold", text)
        for token in control_tokens:
            plain = plain.replace(token, "")
        if not plain.strip():
            raise ValueError(f"question: expected a non-empty string; got {shorten(repr(text))}")
    return questions


def relevance_of_boxes(
    boxes: Sequence[Sequence[Box]], slots: Sequence[int], encoding: ImageEncoding, processor: ArrCocImageProcessor
) -> Tensor:
    """[I, N] 1 on the patches under the boxes of each slot, which shows the image of that number.

    Raises:
        ValueError: not as many lists as slots, or images whose size is not known.
    """
    if len(boxes) != len(slots):
        raise ValueError(f"boxes: expected one list per question and image ({len(slots)}); got {len(boxes)}")
    if encoding.source_sizes is None:
        raise ValueError("boxes: expected an image whose size is known; got an encoding of bare pixel_values")
    rows = []
    for slot, listed in zip(slots, boxes, strict=True):
        mapped = processor.map_boxes(listed, *encoding.source_sizes[slot])
        rows.append(torch.from_numpy(boxes_to_patches(mapped, encoding.side, processor.patch_size)).flatten())
    return torch.stack(rows).float().to(encoding.tokens.device)


class Conversation:
    """Questions about one image, which is encoded once.

    Args:
        asker: that asks.
        image: see `Asker.encode`, or what that returned.
        keep_history: whether the language model reads earlier questions and answers before the present one. What is
            fetched follows the present question alone. Off by default: weights that were trained on single questions
            answer better when they are asked afresh.

    Attributes:
        turns: the questions asked so far, with their answers.
    """

    def __init__(self, asker: Asker, image: Any, *, keep_history: bool = False) -> None:
        self.asker, self.keep_history = asker, keep_history
        self.encoding: ImageEncoding = image if is_encoding(image) else asker.encode(image)
        self.turns: list[Turn] = []

    def ask(self, question: str, **kwargs: Any) -> Any:
        """The answer, as from `generate(image, question, **kwargs)`."""
        answer = self.asker.ask(self.encoding, question, history=self.turns if self.keep_history else (), **kwargs)
        self.turns.append((question, answer.text if isinstance(answer, Answer) else answer))
        return answer
