"""Generation: from an image and a question to an answer, on top of transformers' `generate`.

Notation: B questions, P encoded images, I image slots, S prompt length, N patches, M base tokens, K fetched tokens, D
width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers.utils import logging

from .answers import THINKING, Answer, answer_probabilities, surest, with_fetch
from .base_model import ArrCocModel
from .budgets import AS_SEEN, COMPRESSION, VIEW_OPTIONS, ViewOptions, count_fetched, pooling
from .checks import DECODING, MODEL_INPUTS, boxes_per_slot, refusal, too_long
from .fetcher import AS_CONFIGURED, FetchChoices, FetchResult
from .image_encoding import ImageEncoding
from .image_loading import Loaded, Source, check_print, load_sources
from .image_processing_arr_coc import ArrCocImageProcessor, Box
from .passes import WITH_ONE_READING, ask_again, ask_in_passes, check_choices, check_readings, further_reading
from .patch_scorers import SCORERS
from .processing_arr_coc import (
    ArrCocProcessor,
    History,
    check_decoding,
    check_names,
    check_prompts,
    checked_questions,
    histories,
    shown_by_prompts,
)
from .prompt import EmbeddedPrompt, behind_prefix
from .view_encoding import (
    UPRIGHT,
    boxes_on_images,
    encode_sources,
    relevance_of_boxes,
    sources_of,
    take_view_options,
    upright,
    with_features,
)
from .views import SelectedSlots, ask_pages, select_views

logger = logging.get_logger(__name__)

_kept_count = lru_cache(count_fetched)  # K of a configured budget, which is a number or a name

POSITIONAL = ("inputs", "generation_config", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn")
"""The first parameters of transformers' `generate`, in order."""


@dataclass(frozen=True)
class QuestionBatch:
    """Questions about encoded images, and how they are asked."""

    encoding: ImageEncoding  # the encoded images
    images: list[list[int]]  # for each prompt the numbers of its images, in order
    questions: list[str]  # the question of each prompt
    choices: FetchChoices = AS_CONFIGURED  # how patches are fetched, from `RunningBackFetcher.resolve`
    history: History = ()  # the turns before each question, see `histories`; (): none
    settings: dict[str, Any] = field(default_factory=dict)  # arguments of transformers' `generate`
    spread: str = "auto"  # how the images of a prompt share one budget, see `budgets.ViewOptions`
    boxes: list[Any] | None = None  # ground-truth boxes of each slot, or None

    @property
    def joint(self) -> bool:
        """Whether all views of a prompt share one budget: in documents, tiled images and several images."""
        several = self.choices.patches is None and max(map(len, self.images)) > 1
        return several or self.encoding.documents is not None

    @property
    def captions(self) -> list[list[str]]:
        """The text before each image of each prompt."""
        seconds = {row: source.second for row, source in enumerate(self.encoding.sources or ())}
        captions = {row: f"{second:g} s " for row, second in seconds.items() if second is not None}
        return [[captions.get(number, "") for number in images] for images in self.images]

    @property
    def slots(self) -> list[int]:
        """[I] the image of each slot, prompt by prompt."""
        return [number for images in self.images for number in images]

    def part(self, numbers: Sequence[int]) -> "QuestionBatch":
        """The questions with these numbers; boxes only of prompts with one image each."""
        rows = (getattr(self, name) for name in ("images", "questions", "history", "boxes"))
        images, questions, history, boxes = ([own[n] for n in numbers] if own else own for own in rows)
        return replace(self, images=images, questions=questions, history=history, boxes=boxes)


class AnswerGenerator:
    """Answers questions about images: encodes images, writes prompts, generates tokens and decodes answers.

    Args:
        model: an `ArrCocForConditionalGeneration`.
        processor: its processor.

    Example:
        >>> answers = AnswerGenerator(model, model.processor)
        >>> answers.ask(answers.encode("receipt.png"), ["What is the total?", "What is the tax?"])
    """

    def __init__(self, model: Any, processor: ArrCocProcessor) -> None:
        self.model = model
        self.processor = processor

    # ---- encode once ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, image: Any, *, prefix: bool = True, readings: int | None = None, **options: Any) -> ImageEncoding:
        """Encodes an image, or a list of them, once for any number of questions: see `generate`.

        A question then skips the grid encoder, the base half of the semantic encoder and, with `prefix`, the language
        model's prefill of the prompt up to and including the base tokens.

        Raises:
            ValueError: an image that cannot be read, or a number of readings outside 1..`READINGS`.
        """
        check_readings(readings, None, {})
        image, view_options = self.opened(image, **options)
        return self.read(shown_by_prompts(image), view_options, readings or 1, prefix)

    def opened(self, image: Any, password: str | None = None, **options: Any) -> tuple[Any, ViewOptions]:
        """An image, loaded if there is a password, and how its views are encoded; all other options are refused."""
        image = self._unlocked(image, password)
        view_options, unknown = self._view_options(options)
        if unknown:
            known = ", ".join(sorted(VIEW_OPTIONS))
            raise TypeError(f"encode_image: expected options among {known}; got {', '.join(sorted(unknown))}")
        return image, view_options

    def _unlocked(self, image: Any, password: str | None) -> Any:
        """What `generate` takes as image, loaded if there is a password, which opens its encrypted PDFs."""
        if password is None:
            return image
        if not isinstance(password, str) or is_encoding(image):
            received = "an encoding" if isinstance(password, str) else type(password).__name__
            raise ValueError(f"password: expected a string, beside an image that is not encoded; got {received}")
        return self.processor.image_processor.fetch_images(image, documents=True, password=password)

    def read(
        self, prompts: Sequence[Sequence[Any]], options: ViewOptions, readings: int = 1, prefix: bool = True
    ) -> ImageEncoding:
        together = readings > 1 or any(len(shown) > 1 for shown in prompts)
        encoding = self.encode_shown(prompts, options, together)
        encoding.made_by = self.model.model.maker()
        encode = partial(self.encode_sheets, options=options, prefix=prefix)
        encoding.readings = tuple(further_reading(encoding, encode, number) for number in range(1, readings))
        return self.model.prefilled(encoding) if prefix else encoding

    def encode_sheets(
        self, documents: Sequence[Sequence[Source]], options: ViewOptions, prefix: bool = True
    ) -> ImageEncoding:
        encoding = encode_sources(self.model.model, self.processor.image_processor, documents, options)
        return self.model.prefilled(encoding) if prefix else encoding

    def _view_options(self, kwargs: dict[str, Any]) -> tuple[ViewOptions, dict[str, Any]]:
        saved = self.processor.image_processor.views
        return take_view_options({**saved, **kwargs}) if saved or VIEW_OPTIONS & kwargs.keys() else (AS_SEEN, kwargs)

    def encode_shown(
        self, prompts: Sequence[Sequence[Any]], options: ViewOptions, together: bool = False
    ) -> ImageEncoding:
        """Encodes the images of prompts, with tiles for large ones. `together`: the encoding records which images
        belong to one prompt."""
        core, processor = self.model.model, self.processor.image_processor
        sources = [source for shown in prompts for source in shown]
        rows, most = processor.size["height"] // processor.patch_size // COMPRESSION, options.max_base_tokens
        pools = [pooling(rows, len(shown), most) for shown in prompts if len(shown) > 1 or most is not None]
        for source in sources:
            if isinstance(source, list | tuple) or getattr(source, "ndim", 0) == 4:
                raise refusal("image", "one image, or a list of them", source)
        images = load_sources(sources, max_image_pixels=processor.max_image_pixels, policy=processor.sources)
        in_views = together or max(pools, default=1) > 1 or options.words not in ("auto", "network")
        for image in images:
            if isinstance(image, Image.Image):  # all else are documents: remote code may load a class twice
                check_print(image.height, image.width)
                in_views |= processor.size["height"] < options.least_scale * max(image.size)
            else:
                in_views = True
        if not in_views:
            return encode_whole(core, processor, images, options)
        documents, loaded = list[list[Source]](), iter(images)
        for shown in prompts:
            pages = list[Source]()
            for _ in shown:
                pages += sources_of(next(loaded), options, processor.max_image_pixels)
            if len(pages) > options.max_pages:
                expected = f"at most {options.max_pages} in one prompt (max_pages)"
                raise ValueError(f"images: expected {expected}; got {len(pages)}")
            documents.append(pages)
        return encode_sources(core, processor, documents, options)

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
        """See `ArrCocForConditionalGeneration.generate`, which calls it if there is a question."""
        if not isinstance(return_fetch, bool):
            raise refusal("return_fetch", "True or False", return_fetch)
        if on_fetch is not None and not callable(on_fetch):
            raise refusal("on_fetch", "a function", on_fetch)
        kwargs.update(zip(POSITIONAL[2:], args, strict=False))
        choices, kwargs = take_choices(kwargs)
        choices = self.resolved(choices)
        strategy = choices.strategy or self.model.config.fetcher_config.strategy
        if boxes is not None or choices is not AS_CONFIGURED or strategy == "oracle":
            check_choices(self, choices, strategy, boxes, kwargs)
        single = isinstance(question, str) and not isinstance(image, list | tuple)
        readings, password = kwargs.pop("readings", None), kwargs.pop("password", None)
        fixed = sorted(name for name in VIEW_OPTIONS & kwargs.keys() if kwargs[name] is not None and name != "spread")
        encoded = is_encoding(image)
        if fixed and encoded:
            raise ValueError(f"{fixed[0]}: expected an image beside it; got an encoding, whose views are made")
        if inputs := sorted(name for name in MODEL_INPUTS if kwargs.get(name) is not None):
            raise ValueError(f"{inputs[0]}: expected generate(**inputs) without a question; got it beside one")
        options, kwargs = self._view_options(kwargs)
        check_decoding({name: self.setting(kwargs, name) for name in (*DECODING, "eos_token_id")}, kwargs)
        check_names(self.model, kwargs)
        questions = checked_questions(question, self.processor.control_tokens, self.processor.count_tokens)
        listed = [] if boxes is None else boxes_per_slot(boxes)
        if readings is not None or (encoded and image.readings):
            given = {"boxes": boxes, **vars(choices), **kwargs}
            check_readings(readings, image, {name: self.setting(given, name) for name in WITH_ONE_READING})
        if password is not None:
            image = self._unlocked(image, password)
        prompts = [] if encoded else shown_by_prompts(image)
        if prompts:
            check_prompts(len(prompts), len(questions))
            if history != ():
                histories(history, max(len(prompts), len(questions)))  # refused before images are encoded
        encoding = image if encoded else self.read(prompts, options, readings) if readings else None
        batch = self._question_batch(encoding, prompts, questions, options, choices, history, kwargs)
        if boxes is not None:
            batch = replace(batch, boxes=boxes_on_images(listed, batch))
        if choices.num_passes not in (None, 1):
            answers = ask_in_passes(self, batch, return_fetch, on_fetch)
        elif self.ranks_pages(batch):
            answers = ask_pages(self, batch, return_fetch, on_fetch)
        else:
            prompt = self.embed(batch, cached=True)
            if on_fetch is not None:
                on_fetch(prompt.fetch)
            again = batch.encoding.readings
            answers = self.answers(batch, prompt, return_fetch or bool(again))
            if again:
                answers = surest(answers, [partial(ask_again, self, batch, reading) for reading in again])
                answers = answers if return_fetch else [answer.text for answer in answers]
        return answers[0] if single and len(answers) == 1 else answers

    def reads_text(self, choices: Any) -> bool:
        """Whether the scorer of the choices reads text."""
        return SCORERS[choices.strategy or self.model.config.fetcher_config.strategy].reads_text

    def ranks_pages(self, batch: QuestionBatch) -> bool:
        """Whether the most relevant pages of a prompt are asked one by one, see `ViewOptions.spread`. Raises
        ValueError: "ranked" beside what is chosen for all pages together."""
        encoding, choices = batch.encoding, batch.choices
        chosen = any(each is not None for each in (choices.patches, choices.relevance, batch.boxes))
        given = chosen or encoding.readings or encoding.tiling
        if batch.spread == "ranked" and given:
            beside = 'boxes, relevance, patches, readings or tiles="asked"'
            raise ValueError(f'spread: expected another than "ranked" beside {beside}')
        if max(map(len, batch.images)) == 1 or batch.spread not in ("auto", "ranked") or given:
            return False
        return batch.spread == "ranked" or self.reads_text(choices)

    def resolved(self, choices: FetchChoices) -> FetchChoices:
        """`RunningBackFetcher.resolve`; also refuses a budget that no image has, before images are encoded. Raises
        ValueError: a strategy, allocator or budget that this model does not have."""
        if choices is not AS_CONFIGURED:
            choices = self.model.model.fetcher.resolve(choices)
        if choices.budget is not None and choices.patches is None:
            square = self.processor.image_processor
            self._count_fetched((square.size["height"] // square.patch_size) ** 2, 0, choices)
        return choices

    @torch.no_grad()
    def embed(self, batch: QuestionBatch, cached: bool = False) -> EmbeddedPrompt:
        """Embeds questions about encoded images as left-padded prompts; `inputs` has attention_mask.

        `ask` calls it before it generates; engines that generate by themselves call it alone, with those settings that
        say how long an answer may be, as budget "all" leaves room for it.

        Raises:
            ValueError: a prompt that the context does not hold.
        """
        core, rows = self.model.model, self._cached_rows(batch) if cached else None
        selected, choices = self.select_slots(batch)
        prompt: EmbeddedPrompt = core.place(
            selected, core.fetch(selected, choices), attention_mask=selected.attention_mask
        )
        if rows is not None:
            prompt.read, prompt.cache = behind_prefix(core.config.text_config, batch.encoding, prompt.read, rows)
        return prompt

    def _cached_rows(self, batch: QuestionBatch) -> Tensor | None:
        """The image of each row of a cache that the encoding holds; None: the generation has no use for it."""
        if batch.encoding.prefix_cache is None or not self.cache_is_plain(batch.settings):
            return None
        repeats = max(self.setting(batch.settings, name, 1) for name in ("num_beams", "num_return_sequences"))
        return torch.tensor([images[0] for images in batch.images]).repeat_interleave(repeats)

    def select_slots(self, batch: QuestionBatch) -> tuple[SelectedSlots, FetchChoices]:
        """The slots of the prompts, and the choices with a budget that the context holds."""
        core, processor = self.model.model, self.processor.image_processor
        encoding, choices, slots, joint = batch.encoding, batch.choices, batch.slots, batch.joint
        if encoding.unseen and not self.reads_text(choices):
            encoding = with_features(core, processor, encoding)
        shown = torch.tensor([len(images) for images in batch.images])  # images of each prompt
        inputs, choices, budget = self._inputs(batch)
        if batch.boxes is not None:
            choices = replace(choices, relevance=relevance_of_boxes(batch, processor))
        rows = torch.arange(len(shown)).repeat_interleave(shown).to(encoding.tokens.device)
        # Images that appear once each, in order, need no copy, except with a prefix.
        in_order = encoding.prefix_cache is None and slots == [*range(len(encoding.features))]
        index = None if in_order else torch.tensor(slots)
        known: dict[str, Any] = {**inputs, "encoding": encoding, "image_index": index, "choices": choices}
        selected = core.select_slots(**known, slots=(rows, budget))
        if joint:
            selected = select_views(core, selected, encoding, choices.strategy, spread=batch.spread, boxes=batch.boxes)
        return selected, choices

    def _question_batch(
        self,
        encoding: ImageEncoding | None,
        prompts: Sequence[Sequence[Any]],
        questions: list[str],
        options: ViewOptions,
        choices: FetchChoices,
        history: History,
        settings: dict[str, Any],
    ) -> QuestionBatch:
        """The questions, one for each prompt, about an `encoding`, or about the images of `prompts`."""
        core, encoded, plain = self.model.model, encoding is not None, self.cache_is_plain(settings)
        if encoding is not None:
            encoding = core.own(encoding)
            numbers = encoding.documents or [*range(len(encoding.features))]
        else:
            numbers = [number for number, shown in enumerate(prompts) for _ in shown]
            encoding = self.encode_shown(prompts, options)
            numbers = encoding.documents or numbers
        if encoding.joined and len(questions) == 1:
            numbers = [0] * len(encoding)
            encoding = replace(encoding.without_prefix(), documents=encoding.documents and numbers)
        rows = dict[int, list[int]]()
        for row, number in enumerate(numbers):
            rows.setdefault(number, []).append(row)
        spans = list(rows.values())  # the images of each document
        if len(questions) == 1:
            questions = questions * len(spans)
        if encoded and len(questions) > 1:
            check_prompts(len(spans), len(questions))
        images = spans * len(questions) if len(spans) == 1 else spans
        if choices.bypass is not None:
            encoding = core.with_bypass(encoding, choices.bypass)
        # As with `encode_image`, so that both round alike in bfloat16.
        alone = len(spans) == 1 < len(questions) or max(map(len, spans)) == 1
        if not encoded and alone and plain:
            encoding = core.prefilled(encoding, self.processor.prefix_ids())
        turns = histories(history, len(questions)) if history else ()
        return QuestionBatch(encoding, images, questions, choices, turns, settings, options.spread)

    def _inputs(self, batch: QuestionBatch) -> tuple[dict[str, Tensor], FetchChoices, int]:
        """input_ids, attention_mask and query_mask [B, S], left-padded, with placeholders for all vision tokens. Also
        the choices, with budget "all" replaced by the number that fits, and K."""
        limit = getattr(self.model.config.text_config, "max_position_embeddings", None)  # BLOOM has no limit
        captions, encoding, choices = batch.captions, batch.encoding, batch.choices
        shown = torch.tensor([len(images) for images in batch.images])
        budgets = torch.ones_like(shown) if batch.joint else shown  # for each prompt
        # 1. Base positions and K of one image, as in `count_vision_tokens`.
        base = encoding.tokens.shape[1] + (0 if encoding.closing is None else encoding.closing.shape[1])
        if choices.patches is not None:
            num_fetched = choices.patches.shape[1]
        else:
            taken = encoding.base_indices
            excludes = (choices.overlap or self.model.config.fetcher_config.overlap) == "exclude"
            count = taken.shape[1] if taken is not None and excludes else 0
            num_fetched = self._count_fetched(encoding.patch_mask.shape[1], count, choices)
        # 2. The prompts.
        write = partial(self.processor.prompts, batch.questions, images=captions, history=batch.history)
        inputs = write(placeholders=base + num_fetched)
        if any(map(any, captions)):  # captions are not part of the question
            shows = (inputs["input_ids"] == self.model.config.image_token_id).int()
            inputs["query_mask"] &= shows.flip(1).cumsum(1).flip(1) == 0
        # 3. As many patches as the context holds. Surplus placeholders are removed before the model runs.
        lengths = inputs["attention_mask"].sum(1) - num_fetched * (shown - budgets)
        longest = int(lengths.max())
        if limit is not None and longest >= limit:
            room = self.setting(batch.settings, "max_new_tokens", 1) if choices.budget == "all" else 1
            fits = int((num_fetched - (lengths + room - limit + budgets - 1) // budgets).min())
            if fits < 1 or choices.budget != "all":
                raise too_long(limit, longest, num_fetched, fits)
            held = f"fetching {fits} of {num_fetched} patches, what {limit} tokens of context hold"
            logger.warning(f'budget "all": {held}')
            choices, num_fetched = replace(choices, budget=fits), fits
            inputs = write(placeholders=base + fits)
        for name in inputs:
            inputs[name] = inputs[name].to(encoding.tokens.device)
        return inputs, choices, num_fetched

    def _count_fetched(self, patches: int, taken: int, choices: FetchChoices) -> int:
        """K of an image of so many `patches`, of which so many are `taken`."""
        fetcher = self.model.config.fetcher_config
        count, budget = (_kept_count, fetcher.budget) if choices.budget is None else (count_fetched, choices.budget)
        return count(patches, budget, strategy=choices.strategy or fetcher.strategy, taken=taken)

    def answers(
        self, batch: QuestionBatch, prompt: EmbeddedPrompt, with_details: bool, rows: Tensor | None = None
    ) -> list[Any]:
        """The answers to a batch of questions whose prompts are embedded: `Answer`s, or texts without details. `rows`:
        those of the embedded prompts that the batch asks, in order; None: all."""
        encoding, settings = batch.encoding, batch.settings
        inputs, cache, config = dict(prompt.read), prompt.cache, self.model.config
        whole = bool(self.setting(settings, "return_dict_in_generate"))
        if rows is not None:
            inputs, first = _prompts_at(inputs, rows), self._cached_rows(batch)
            if first is not None:
                inputs, cache = behind_prefix(config.text_config, encoding, inputs, first)
        settings = settings if cache is None else {**settings, "cache": cache}
        with_details = with_details or whole
        output, texts = self.generated(inputs, settings, logits=with_details)
        if not with_details:
            return [THINKING.sub("", text) for text in texts]  # without thinking
        probabilities = answer_probabilities(self.model, output, *self.answer_span(inputs, settings))
        seen = encoding, batch.images, output if whole else None, config
        fetch = prompt.fetch if rows is None else prompt.fetch.select(rows)
        answers = with_fetch(texts, probabilities, fetch, *seen, self.decode)
        return self.finished(answers, output, inputs, settings)

    def finished(
        self, answers: list[Answer], output: Any, inputs: dict[str, Tensor], settings: dict[str, Any]
    ) -> list[Answer]:
        """The answers of a generation; those that were cut have a warning."""
        start, end, pad = self.answer_span(inputs, settings)
        limited, tokens = within_context(self.model, settings, start), output.sequences[:, start:]
        new, count = self.setting(limited, "max_new_tokens"), tokens.shape[1]
        full = start + count >= (self.setting(limited, "max_length", 0) if new is None else start + new)
        stops = self.setting(settings, "stop_strings") or []
        stops = [stops] if isinstance(stops, str) else stops
        stopped = [name for name in ("max_time", "stopping_criteria") if settings.get(name) and not stops]
        if not full and not stopped:
            return answers
        cause = "max_new_tokens" if full else stopped[0]
        cut = f"the answer is cut after {count} token{'s' * (count > 1)} ({cause})"
        ends = torch.as_tensor(end, dtype=tokens.dtype, device=tokens.device).reshape(-1)
        ended = torch.isin(tokens, ends).any(1) | (tokens[:, -1] == pad)
        said = []
        for answer, whole, text in zip(answers, ended.tolist(), self.decode(tokens, True), strict=True):
            whole = whole or any(stop in text for stop in stops)
            warning = answer.warning if whole else "; ".join(filter(None, (answer.warning, cut)))
            said.append(replace(answer, warning=warning))
        return said

    def decode(self, tokens: Any, skip_special_tokens: bool = False) -> list[str]:
        """The texts of several lists of token ids."""
        with self.processor.tokenizing.lock:
            texts: list[str] = self.processor.tokenizer.batch_decode(tokens, skip_special_tokens)
        return texts

    def generated(self, inputs: dict[str, Tensor], kwargs: dict[str, Any], *, logits: bool) -> tuple[Any, list[str]]:
        """The output of transformers' `generate` for embedded prompts, with `logits` on demand, and its texts."""
        start = inputs["input_ids"].shape[1]
        settings = {**within_context(self.model, kwargs, start), "return_dict_in_generate": True}
        if logits:
            settings["output_logits"] = True
        if self.setting(kwargs, "stop_strings"):
            settings.setdefault("tokenizer", self.processor.tokenizer)
        output = self.model.generate_tokens(**inputs, **settings)
        return output, [text.strip() for text in self.decode(output.sequences[:, start:], True)]

    # ---- settings of transformers' generate --------------------------------------------------------------------------

    def answer_span(self, inputs: dict[str, Tensor], kwargs: dict[str, Any]) -> tuple[int, Any, int]:
        """The column at which answers start, the ids that end them, and the id of padding behind them."""
        end, pad = self.setting(kwargs, "eos_token_id", []), self.setting(kwargs, "pad_token_id", -1)
        return inputs["input_ids"].shape[1], end, pad

    def setting(self, kwargs: dict[str, Any], name: str, default: Any = None) -> Any:
        return generation_setting(self.model, kwargs, name, default)

    def cache_is_plain(self, kwargs: dict[str, Any]) -> bool:
        """Whether this generation uses the kind of cache in which a prefix is stored."""
        static = self.setting(kwargs, "cache_implementation") is not None
        assisted = self.setting(kwargs, "prompt_lookup_num_tokens") is not None  # which reads prompts from the start
        return not static and not assisted and "cache" not in kwargs and bool(self.setting(kwargs, "use_cache", True))


# ---- images and arguments of a question ----------------------------------------------------------------------


def encode_whole(
    core: ArrCocModel, processor: ArrCocImageProcessor, images: Sequence[Any], options: ViewOptions = AS_SEEN
) -> ImageEncoding:
    """Encodes images or sources that need no tiles, each by itself, and turns those that are not upright."""

    def encode(sources: Sequence[Any]) -> ImageEncoding:
        shown = [source.load() if isinstance(source, Source) else source for source in sources]
        sizes = [(image.height, image.width) for image in shown]
        words = processor.with_originals([None] * len(shown), shown) if options.reread else None
        inputs = processor(Loaded(shown), return_tensors="pt")
        encoding = core.encode_image(inputs["pixel_values"], inputs["patch_mask"], words=words)
        encoding.source_sizes = sizes
        return encoding

    encoding = encode(images)
    read = None if encoding.characters is None else encoding.characters.sum(1)
    if read is None or bool((read[:, 1] >= UPRIGHT * read[:, 0]).all()):
        return encoding
    pages = list[Source]()
    for image in images:
        pages += [image] if isinstance(image, Source) else sources_of(image, options, processor.max_image_pixels)
    return upright(core, processor, encoding, pages, encode)


def _prompts_at(read: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Some of left-padded prompts (`EmbeddedPrompt.read`), without the padding that all of them have."""
    some = {}
    padding = int((read["attention_mask"][rows.to(read["attention_mask"].device)] == 0).sum(1).min())
    for name, values in read.items():
        axis = 1 if name == "position_ids" and values.ndim == 3 else 0  # [3, B, S]: time, row, column
        own = values.index_select(axis, rows.to(values.device))
        some[name] = own.narrow(axis + 1, padding, own.shape[axis + 1] - padding)
    return some


def take_choices(kwargs: dict[str, Any]) -> tuple[FetchChoices, dict[str, Any]]:
    """The `FetchChoices` among arguments (by name, or as `choices`), and the other arguments."""
    names = {part.name for part in fields(FetchChoices)}
    named = {name: kwargs[name] for name in kwargs.keys() & names if kwargs[name] is not None}
    choices = kwargs.get("choices")
    if not isinstance(choices, FetchChoices):
        choices = AS_CONFIGURED if choices is None else FetchChoices.of(choices)
    others = {name: value for name, value in kwargs.items() if name not in names and name != "choices"}
    return replace(choices, **named) if named else choices, others


def generation_setting(model: Any, kwargs: dict[str, Any], name: str, default: Any = None) -> Any:
    """A setting of a generation as transformers resolves it: from the call, its GenerationConfig, or the model."""
    configs = (kwargs.get("generation_config"), model.generation_config)
    values = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
    return next((value for value in values if value is not None), default)


def within_context(model: Any, kwargs: dict[str, Any], prompt: int) -> dict[str, Any]:
    """The settings, limited so that an answer to a prompt of `prompt` tokens ends within the context."""
    limit = getattr(model.config.text_config, "max_position_embeddings", None) or 2**31  # BLOOM has none
    most = {"max_new_tokens": max(1, limit - prompt), "max_length": limit}
    return kwargs | {name: end for name, end in most.items() if (generation_setting(model, kwargs, name) or 0) > end}


def is_encoding(value: Any) -> bool:
    """Whether `value` comes from `encode_image` (by class name: remote code may load a class twice)."""
    return type(value).__name__ == "ImageEncoding"
