"""Generation: from an image and a question to an answer, on top of transformers' `generate`.

Notation: B questions, P encoded images, I image slots, S prompt length, N patches, M base tokens, K fetched tokens, D
width.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from numbers import Integral
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.utils import logging
from transformers.utils.generic import TransformersKwargs

from .answers import (
    THINKING,
    Answer,
    answer_probabilities,
    of_document,
    on_page,
    surest,
    with_cuts,
    with_fetch,
    with_places,
)
from .base_model import ArrCocModel
from .budgets import AS_SEEN, VIEW_OPTIONS, ViewOptions, count_fetched, pooling
from .checks import CALLABLES, DECODING, NUMBERS, boxes_per_slot, refusal, too_long
from .configuration_arr_coc import COMPRESSION, ArrCocConfig
from .fetcher import AS_CONFIGURED, FetchChoices, FetchResult
from .image_encoding import UPRIGHT, ImageEncoding
from .image_loading import Loaded, Source, boxes_on_image, check_print, load_sources, turn_box
from .image_processing_arr_coc import ArrCocImageProcessor, Box, boxes_to_patches, least_scale
from .passes import ask_in_passes, check_passes
from .patch_scorers import SCORERS
from .processing_arr_coc import ArrCocProcessor, History, Turn, checked_questions, histories
from .prompt import EmbeddedPrompt, behind_prefix, prefill
from .prompt_format import NOT_ON_THE_PAGE
from .rereading import READINGS, Reading, on_sheets, with_originals
from .view_encoding import (
    encode_prompts,
    encode_sources,
    select_views,
    sources_of,
    take_view_options,
    upright,
    with_features,
)
from .views import SelectedSlots
from .word_sources import from_tensor, resolved_words

logger = logging.get_logger(__name__)

_kept_count = lru_cache(count_fetched)
"""K of a configured budget, which is a number or a name."""

POSITIONAL = ("inputs", "generation_config", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn")
"""The first parameters of transformers' `generate`, in order."""


@dataclass(frozen=True)
class QuestionBatch:
    """Questions about encoded images.

    Attributes:
        encoding: the encoded images.
        images: for each prompt the numbers of its images, in order.
        questions: the question of each prompt.
        spread: how the images of a prompt share one budget, see `budgets.ViewOptions`.
        apart: whether each image has a budget of its own, as with given `FetchChoices.patches`.
        boxes: ground-truth boxes of each slot, or None.
    """

    encoding: ImageEncoding
    images: list[list[int]]
    questions: list[str]
    spread: str = "auto"
    apart: bool = False
    boxes: list[Any] | None = None

    @property
    def joint(self) -> bool:
        """Whether all views of a prompt share one budget: in documents, tiled images and several images."""
        several = not self.apart and max(map(len, self.images)) > 1
        return several or self.encoding.documents is not None

    @property
    def captions(self) -> list[list[str]]:
        """The text before each image of each prompt."""
        seconds = {row: source.second for row, source in enumerate(self.encoding.sources or ())}
        captions = {row: f"{second:g} s " for row, second in seconds.items() if second is not None}
        return [[captions.get(number, "") for number in images] for images in self.images]

    def alone(self, number: int) -> "QuestionBatch":
        """The question with this number alone."""
        row = slice(number, number + 1)
        boxes = None if self.boxes is None else self.boxes[row]
        return replace(self, images=self.images[row], questions=self.questions[row], boxes=boxes)

    @property
    def slots(self) -> list[int]:
        """[I] the image of each slot, prompt by prompt."""
        return [number for images in self.images for number in images]


class Answering(Protocol):
    """The part of `ArrCocForConditionalGeneration` that generates answers."""

    model: ArrCocModel
    config: ArrCocConfig
    generation_config: Any

    @property
    def device(self) -> torch.device: ...

    def generate_tokens(self, **kwargs: Any) -> Any: ...


class AnswerGenerator:
    """Answers questions about images: encodes images, writes prompts, generates tokens and decodes answers.

    Args:
        model: the model.
        processor: its processor.

    Example:
        >>> answers = AnswerGenerator(model, model.processor)
        >>> answers.ask(answers.encode("receipt.png"), ["What is the total?", "What is the tax?"])
    """

    def __init__(self, model: Answering, processor: ArrCocProcessor) -> None:
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
        image = self._unlocked(image, options.pop("password", None))
        view_options, unknown = self._view_options(options)
        if unknown:
            known = ", ".join(sorted(VIEW_OPTIONS))
            raise TypeError(f"encode_image: expected options among {known}; got {', '.join(sorted(unknown))}")
        return self._read(image, view_options, readings or 1, prefix)

    def _unlocked(self, image: Any, password: str | None) -> Any:
        """What `generate` takes as image, loaded if there is a password, which opens its encrypted PDFs."""
        if password is None:
            return image
        if not isinstance(password, str) or is_encoding(image):
            received = "an encoding" if isinstance(password, str) else type(password).__name__
            raise ValueError(f"password: expected a string, beside an image that is not encoded; got {received}")
        return self.processor.image_processor.fetch_images(image, documents=True, password=password)

    @torch.no_grad()
    def encode_pages(self, image: Any, **options: Any) -> Iterator[ImageEncoding]:
        """Encodes each page of an image or a document alone, one after the other; see `encode`."""
        image = self._unlocked(image, options.pop("password", None))
        view_options, unknown = self._view_options(options)
        processor = self.processor.image_processor
        if unknown:
            raise ValueError(f"options: expected {', '.join(sorted(VIEW_OPTIONS))}; got {', '.join(sorted(unknown))}")
        if isinstance(image, list | tuple):
            raise ValueError(f"image: expected one image or document; got {type(image).__name__}")
        (loaded,) = load_sources([image], max_image_pixels=processor.max_image_pixels, policy=processor.sources)
        if isinstance(loaded, Image.Image):
            yield self.encode(loaded, **options)
            return
        for page in sources_of(loaded, view_options, processor.max_image_pixels):
            encoding = self._encode_sheets([[page]], view_options, prefix=True)
            encoding.made_by = self.model.model.maker()
            yield encoding

    def _read(self, image: Any, options: ViewOptions, readings: int, prefix: bool = True) -> ImageEncoding:
        prompts = shown_by_prompts(image)
        together = readings > 1 or any(len(shown) > 1 for shown in prompts)
        encoding = self._encode_sources(prompts, options, together=together)
        encoding.made_by = self.model.model.maker()
        encoding.readings = tuple(self._reading(encoding, options, prefix, number) for number in range(1, readings))
        return self.prefilled(encoding) if prefix else encoding

    def prefilled(self, encoding: ImageEncoding) -> ImageEncoding:
        """The encoding with the language model's prefill of the prompt up to and including the base tokens."""
        return prefill(self.model.model, encoding, self.processor.prefix_ids())

    def _reading(self, encoding: ImageEncoding, options: ViewOptions, prefix: bool, number: int) -> Reading:
        """A further reading of the encoding's sources, from 1."""
        assert encoding.sources is not None and encoding.documents is not None
        sheets, places = on_sheets(encoding.sources, number)
        documents: list[list[Source]] = [[] for _ in range(encoding.documents[-1] + 1)]
        for sheet, document in zip(sheets, encoding.documents, strict=True):
            documents[document].append(sheet)

        return Reading(partial(self._encode_sheets, documents, options, prefix), places)

    def _encode_sheets(
        self, documents: Sequence[Sequence[Source]], options: ViewOptions, prefix: bool
    ) -> ImageEncoding:
        encoding = encode_sources(self.model.model, self.processor.image_processor, documents, options)
        return self.prefilled(encoding) if prefix else encoding

    @torch.no_grad()
    def encode_slots(
        self, input_ids: Tensor, pixels: Tensor, sizes: Tensor, words: Tensor | None = None, /, **options: Any
    ) -> ImageEncoding:
        """Encodes the images of prompts [B, S] from the processor, one for each slot, in views.

        Args:
            input_ids: [B, S], with placeholders.
            pixels: uint8, those [H, W, 3] of each image one after the other; sizes: [I, 2] (height, width) of each.
            words: `image_words` of the processor; options: of `ViewOptions`.
        """
        counts = [3 * height * width for height, width in sizes.tolist()]
        if pixels.shape != (sum(counts),):
            raise refusal("image_sources", f"{sum(counts)} values, for source_sizes beside them", pixels)
        shown = zip(pixels.cpu().split(counts), sizes.tolist(), strict=True)
        sources = [image.view(height, width, 3).numpy() for image, (height, width) in shown]
        view_options, _ = self._view_options(options)
        if words is not None:
            view_options = replace(view_options, words=resolved_words(from_tensor(words), view_options.words))
        placeholders = (input_ids == self.model.config.image_token_id).sum(1)
        size, remaining = int(placeholders.sum()) // len(sources), iter(sources)
        counts = (placeholders // max(1, size)).tolist()
        if sum(counts) != len(sources):
            expected = f"as many as images in the prompts, of {placeholders.tolist()} placeholders"
            raise ValueError(f"image_sources: expected {expected}; got {len(sources)}")
        return self._encode_sources(
            [[next(remaining) for _ in range(count)] for count in counts if count], view_options
        )

    def _view_options(self, kwargs: dict[str, Any]) -> tuple[ViewOptions, dict[str, Any]]:
        saved = self.processor.image_processor.views
        return take_view_options({**saved, **kwargs}) if saved or VIEW_OPTIONS & kwargs.keys() else (AS_SEEN, kwargs)

    def _encode_sources(
        self, prompts: Sequence[Sequence[Any]], options: ViewOptions, together: bool = False
    ) -> ImageEncoding:
        """Encodes the images of prompts, with tiles for large ones.

        `together`: the encoding records which images belong to one prompt.
        """
        processor, sources = self.processor.image_processor, list[Any]()
        rows = processor.size["height"] // processor.patch_size // COMPRESSION
        pooled = together
        for shown in prompts:
            sources += shown
            if len(shown) > 1 or options.max_base_tokens is not None:
                pooled |= pooling(rows, len(shown), options.max_base_tokens) > 1
        for source in sources:
            if isinstance(source, list | tuple) or getattr(source, "ndim", 0) == 4:
                raise refusal("image", "one image, or a list of them", source)
        images = load_sources(sources, max_image_pixels=processor.max_image_pixels, policy=processor.sources)
        for image in images:
            if isinstance(image, Image.Image):
                check_print(image.height, image.width)
        if (
            pooled
            or options.words not in ("auto", "network")
            or processor.shrinks(images, least_scale(options.tiles, options.tile_scale))
        ):
            return encode_prompts(self.model.model, processor, prompts, images, options)
        return encode_whole(self.model.model, processor, images, options)

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
            raise refusal("return_fetch", NUMBERS[bool], return_fetch)
        if on_fetch is not None and not callable(on_fetch):
            raise refusal("on_fetch", "a function", on_fetch)
        kwargs.update(zip(POSITIONAL[2:], args, strict=False))
        check_decoding(self.model, kwargs)
        choices, kwargs = take_choices(kwargs)
        choices = self.resolved(choices)
        strategy = choices.strategy or self.model.config.fetcher_config.strategy
        if boxes is not None and strategy != "oracle":
            expected = "strategy oracle beside them, which fetches what is in them"
            raise ValueError(f"boxes: expected {expected}; got strategy {strategy!r}")
        if strategy == "oracle" and boxes is None and choices.relevance is None and choices.patches is None:
            raise ValueError('strategy "oracle": expected boxes (or relevance) of the answer; got none')
        seeded = next((name for name in ("seed", "generator") if getattr(choices, name) is not None), None)
        if seeded and strategy != "random" and choices.num_passes in (None, 1) and self.setting(kwargs, "do_sample"):
            expected = "strategy random, whose patches it draws; transformers.set_seed seeds the tokens of do_sample"
            raise ValueError(f"{seeded}: expected {expected}; got strategy {strategy!r}")
        single = isinstance(question, str) and not isinstance(image, list | tuple)
        readings, password = kwargs.pop("readings", None), kwargs.pop("password", None)
        fixed = sorted(name for name in VIEW_OPTIONS & kwargs.keys() if kwargs[name] is not None and name != "spread")
        if fixed and is_encoding(image):
            raise ValueError(f"{fixed[0]}: expected an image beside it; got an encoding, whose views are made")
        if inputs := sorted(name for name in MODEL_INPUTS if kwargs.get(name) is not None):
            raise ValueError(f"{inputs[0]}: expected generate(**inputs) without a question; got it beside one")
        options, kwargs = self._view_options(kwargs)
        check_names(self.model, kwargs)
        questions = checked_questions(question, self.processor.control_tokens, self.processor.count_tokens)
        listed = [] if boxes is None else boxes_per_slot(boxes)
        given = {"boxes": boxes, **vars(choices), **kwargs}
        check_readings(readings, image, {name: self.setting(given, name) for name in WITH_ONE_READING})
        if choices.num_passes not in (None, 1):
            check_passes(self, choices, kwargs)
        elif choices.exploration is not None:
            raise refusal("exploration", 'num_passes above 1 or "auto" beside it', choices.exploration)
        image = self._unlocked(image, password)
        if not is_encoding(image):
            shown = shown_by_prompts(image)
            check_prompts(len(shown), len(questions))
            if history != ():
                histories(history, max(len(shown), len(questions)))  # refused before images are encoded
        if readings is not None:
            image = self._read(image, options, readings)
        batch = self._question_batch(image, questions, choices, kwargs, options)
        if boxes is not None:
            batch = replace(batch, boxes=boxes_on_images(listed, batch))
        if choices.num_passes not in (None, 1):
            answers = ask_in_passes(self, batch, choices, history, return_fetch, on_fetch, kwargs)
        elif self.ranks_pages(batch, choices):
            answers = self._ask_pages(batch, choices, history, return_fetch, on_fetch, kwargs)
        else:
            prompt = self.embed(batch, choices, history, **kwargs)
            if on_fetch is not None:
                on_fetch(prompt.fetch)
            again = batch.encoding.readings
            answers = self._answers(batch, prompt, return_fetch or bool(again), kwargs)
            if again:
                ask = [partial(self._ask_again, batch, reading, choices, history, kwargs) for reading in again]
                answers = surest(answers, ask)  # type: ignore[arg-type]  # with details
                answers = answers if return_fetch else [answer.text for answer in answers]
        return answers[0] if single and len(answers) == 1 else answers

    def _ask_again(
        self,
        batch: QuestionBatch,
        reading: Reading,
        choices: FetchChoices,
        history: History,
        kwargs: dict[str, Any],
        numbers: list[int],
    ) -> list[Answer]:
        """The answers to some of the questions from another reading, as answers about the pages themselves."""
        encoding, sources = reading.encoding, batch.encoding.sources or []
        if batch.encoding.prefix_cache is None:  # of another model, perhaps
            encoding = encoding.without_prefix()
        if choices.bypass is not None:
            encoding = self.model.model.with_bypass(encoding, choices.bypass)
        images = [batch.images[number] for number in numbers]
        part = replace(
            batch, encoding=encoding, images=images, questions=[batch.questions[number] for number in numbers]
        )
        turns = histories(history, len(batch.questions))
        prompt = self.embed(part, choices, [turns[number] for number in numbers], **kwargs)
        answers: list[Answer] = self._answers(part, prompt, True, kwargs)  # type: ignore[assignment]  # with details
        places = reading.places
        return [
            on_page(answer, [sources[number] for number in own], places[own])
            for answer, own in zip(answers, images, strict=True)
        ]

    def reads_text(self, choices: Any) -> bool:
        """Whether the scorer of the choices reads text."""
        return SCORERS[choices.strategy or self.model.config.fetcher_config.strategy].reads_text

    def ranks_pages(self, batch: QuestionBatch, choices: FetchChoices) -> bool:
        """Whether the most relevant pages of a prompt are asked one by one, see `ViewOptions.spread`.

        Raises:
            ValueError: "ranked" beside what is chosen for all pages together.
        """
        encoding, boxes, relevance = batch.encoding, batch.boxes, choices.relevance
        given = batch.apart or boxes is not None or relevance is not None or encoding.readings or encoding.tiling
        if batch.spread == "ranked" and given:
            beside = 'boxes, relevance, patches, readings or tiles="asked"'
            raise ValueError(f'spread: expected another than "ranked" beside {beside}')
        if max(map(len, batch.images)) == 1 or batch.spread not in ("auto", "ranked") or given:
            return False
        return batch.spread == "ranked" or self.reads_text(choices)

    def _ask_pages(
        self,
        batch: QuestionBatch,
        choices: FetchChoices,
        history: History,
        return_fetch: bool,
        on_fetch: Callable[[FetchResult], Any] | None,
        kwargs: dict[str, Any],
    ) -> list[Any]:
        """The answer to each question from the most relevant page that has one, or from all pages if none has."""
        # 1. Each page is a prompt of its own, from which patches are fetched as if it were the only one.
        encoding, encoded = batch.encoding, len(batch.encoding.features)
        turns: Sequence[Any] = histories(history, len(batch.questions)) if history else [()] * len(batch.questions)
        owners = [number for number, images in enumerate(batch.images) for _ in images]
        pages = replace(
            batch,
            encoding=replace(encoding, documents=encoding.documents or [0] * encoded),  # so there are views
            images=[[page] for page in batch.slots],
            questions=[batch.questions[number] for number in owners],
        )
        selected, own_choices = self.select_slots(pages, choices, [turns[number] for number in owners], kwargs)
        fetch: Any = self.model.model.fetch(selected, own_choices)
        if on_fetch is not None:
            on_fetch(fetch)
        # 2. The most relevant page answers; where it has no answer, the next one.
        slots, relevance = torch.arange(len(owners)).split([*map(len, batch.images)]), fetch.most_relevant().cpu()
        ranked = [own[relevance[own].argsort(descending=True, stable=True)].tolist() for own in slots]
        read = partial(self._answers_on, pages, selected, fetch)
        found = dict[int, tuple[int, list[Answer]]]()
        for rank in range(PAGES_ALONE):
            at = [own[rank] for number, own in enumerate(ranked) if number not in found and rank < len(own)]
            for page, (answer,) in read(at, {**kwargs, **GREEDILY}):
                if answer.text.casefold() not in ("", NOT_ON_THE_PAGE):
                    found[owners[page]] = page, [answer]
        outputs = len(batch.images) > 1 and self.setting(kwargs, "return_dict_in_generate")  # one for all questions
        if outputs or not all(_is_one(self.setting(kwargs, name)) for name in GREEDILY):
            again = read([page for _, (page, _) in sorted(found.items())], kwargs)
            found = {owners[page]: (page, own) for page, own in again}
        # 3. All pages together, for questions that none of these answers.
        answers = list[Answer]()
        for number, images in enumerate(batch.images):
            if number in found:
                page, own = found[number]
                seen, slot = fetch.select(slots[number]), page - int(slots[number][0])
                answers += [of_document(answer, slot, seen, encoding, images) for answer in own]
            else:
                alone = batch.alone(number)
                prompt = self.embed(alone, choices, [turns[number]], **kwargs)
                answers += self._answers(alone, prompt, True, kwargs)  # type: ignore[arg-type]  # with details
        with_details = return_fetch or self.setting(kwargs, "return_dict_in_generate")
        return answers if with_details else [answer.text for answer in answers]

    def _answers_on(
        self, pages: QuestionBatch, selected: SelectedSlots, fetch: FetchResult, rows: list[int], kwargs: dict[str, Any]
    ) -> list[tuple[int, list[Answer]]]:
        """The answers to some questions of a batch about single pages, whose patches are fetched."""
        if not rows:
            return []
        index = torch.tensor(rows)
        part = selected.select(index)
        prompt = self.model.model.place(part, fetch.select(index), attention_mask=part.attention_mask)
        questions = [pages.questions[row] for row in rows]
        asked = replace(pages, images=[pages.images[row] for row in rows], questions=questions)
        answers: list[Answer] = self._answers(asked, prompt, True, kwargs)  # type: ignore[assignment]  # with details
        each = len(answers) // len(rows)
        return [(row, answers[at * each : (at + 1) * each]) for at, row in enumerate(rows)]

    def resolved(self, choices: FetchChoices) -> FetchChoices:
        """`RunningBackFetcher.resolve`; also refuses a budget that no image has, before images are encoded.

        Raises:
            ValueError: a strategy, allocator or budget that this model does not have.
        """
        if choices is not AS_CONFIGURED:
            choices = self.model.model.fetcher.resolve(choices)
        if choices.budget is not None and choices.patches is None:
            square = self.processor.image_processor
            self._count_fetched((square.size["height"] // square.patch_size) ** 2, 0, choices)
        return choices

    @torch.no_grad()
    def embed(
        self, batch: QuestionBatch, choices: FetchChoices = AS_CONFIGURED, history: History = (), **kwargs: Any
    ) -> EmbeddedPrompt:
        """Embeds questions about encoded images as left-padded prompts; `inputs` has attention_mask.

        `ask` calls it before it generates; engines that generate by themselves call it alone. `choices` come from
        `RunningBackFetcher.resolve`; `kwargs` are those of `ask`, as budget "all" leaves room for the answer.

        Raises:
            ValueError: a prompt that the context does not hold.
        """
        selected, choices = self.select_slots(batch, choices, history, kwargs)
        core = self.model.model
        return core.place(selected, core.fetch(selected, choices), attention_mask=selected.attention_mask)

    def select_slots(
        self, batch: QuestionBatch, choices: FetchChoices, history: History, kwargs: dict[str, Any]
    ) -> tuple[SelectedSlots, FetchChoices]:
        """The slots of the prompts, and the choices with a budget that the context holds."""
        if batch.boxes is not None:
            processor = self.processor.image_processor
            relevance = relevance_of_boxes(batch.boxes, batch.slots, batch.encoding, processor)
            choices = replace(choices, relevance=relevance)
        core, encoding, joint, slots = self.model.model, batch.encoding, batch.joint, batch.slots
        if (
            encoding.unseen
            and not core.fetcher.scorer(choices.strategy or self.model.config.fetcher_config.strategy).reads_text
        ):
            encoding = with_features(core, self.processor.image_processor, encoding)
        shown = torch.tensor([len(images) for images in batch.images])  # images of each prompt
        inputs, choices, budget = self._inputs(batch, choices, history, kwargs)
        rows = torch.arange(len(shown)).repeat_interleave(shown).to(encoding.tokens.device)
        # Images that appear once each, in order, need no copy, except with a prefix.
        in_order = encoding.prefix_cache is None and slots == [*range(len(encoding.features))]
        index = None if in_order else torch.tensor(slots)
        selected = core.select_slots(
            **inputs, encoding=encoding, image_index=index, choices=choices, slots=(rows, budget)
        )
        if joint:
            spread, boxes = batch.spread, batch.boxes
            selected = select_views(core, selected, encoding, batch.images, choices, spread=spread, boxes=boxes)
        return selected, choices

    def _question_batch(
        self, image: Any, questions: list[str], choices: FetchChoices, kwargs: dict[str, Any], options: ViewOptions
    ) -> QuestionBatch:
        """The encoded images and their questions, one for each prompt."""
        if encoded := is_encoding(image):
            core = self.model.model
            same_model = image.made_by is not None and image.made_by[0] == core.token
            encoding = image if same_model else core.own(image)
        else:
            prompts = shown_by_prompts(image)
            encoding = self._encode_sources(prompts, options)
        spans: list[list[int]] = []  # the numbers of each prompt's images
        if encoded or encoding.documents is not None:
            numbers = encoding.documents or range(len(encoding.features))
            if encoding.joined and len(questions) == 1:
                numbers = [0] * len(encoding)
                documents = None if encoding.documents is None else numbers
                encoding = replace(encoding.without_prefix(), documents=documents)
            for row, number in enumerate(numbers):
                spans += [[]] if number == len(spans) else []
                spans[number].append(row)
        else:
            for prompt in prompts:
                first = spans[-1][-1] + 1 if spans else 0
                spans.append(list(range(first, first + len(prompt))))
        if len(questions) == 1:
            questions = questions * len(spans)
        check_prompts(len(spans), len(questions))
        images = spans * len(questions) if len(spans) == 1 else spans
        if choices.bypass is not None:
            encoding = self.model.model.with_bypass(encoding, choices.bypass)
        # As with `encode_image`, so that both round alike in bfloat16.
        alone = len(spans) == 1 < len(questions) or all(len(span) == 1 for span in spans)
        if not encoded and alone and self.cache_is_plain(kwargs):
            encoding = self.prefilled(encoding)
        return QuestionBatch(encoding, images, questions, options.spread, apart=choices.patches is not None)

    def _inputs(
        self, batch: QuestionBatch, choices: FetchChoices, history: History, kwargs: dict[str, Any]
    ) -> tuple[dict[str, Tensor], FetchChoices, int]:
        """input_ids, attention_mask and query_mask [B, S], left-padded, with placeholders for all vision tokens.

        Also the choices, with budget "all" replaced by the number that fits, and K.
        """
        limit = getattr(self.model.config.text_config, "max_position_embeddings", None)  # BLOOM has no limit
        captions, encoding = batch.captions, batch.encoding
        captioned = any(map(any, captions))
        shown = torch.tensor([len(images) for images in batch.images])
        budgets = torch.ones_like(shown) if batch.joint else shown  # for each prompt
        base, num_fetched = self._count_positions(encoding, choices)
        write = partial(self.processor.prompts, batch.questions, images=captions, history=history)
        inputs = write(placeholders=base + num_fetched)
        if captioned:  # captions are not part of the question
            shows = (inputs["input_ids"] == self.model.config.image_token_id).int()
            inputs["query_mask"] &= shows.flip(1).cumsum(1).flip(1) == 0
        # Surplus placeholders are removed before the model runs.
        lengths = inputs["attention_mask"].sum(1) - num_fetched * (shown - budgets)
        longest = int(lengths.max())
        if limit is not None and longest >= limit:
            room = self.setting(kwargs, "max_new_tokens", 1) if choices.budget == "all" else 1
            fits = int((num_fetched - (lengths + room - limit + budgets - 1) // budgets).min())
            if fits < 1 or choices.budget != "all":
                raise too_long(limit, longest, num_fetched, fits)
            logger.warning(
                f'budget "all": fetching {fits} of {num_fetched} patches, what {limit} tokens of context hold'
            )
            choices = replace(choices, budget=fits)
            num_fetched = fits
            inputs = write(placeholders=base + fits)
        for name in inputs:
            inputs[name] = inputs[name].to(encoding.tokens.device)
        return inputs, choices, num_fetched

    def _count_positions(self, encoding: ImageEncoding, choices: FetchChoices) -> tuple[int, int]:
        """Of one image: `encoding.base_positions` and K, as in `count_vision_tokens`."""
        shown = encoding.tokens.shape[1] + (0 if encoding.closing is None else encoding.closing.shape[1])
        if choices.patches is not None:
            return shown, choices.patches.shape[1]
        fetcher, base = self.model.config.fetcher_config, encoding.base_indices
        excludes = base is not None and (choices.overlap or fetcher.overlap) == "exclude"
        taken = base.shape[1] if excludes and base is not None else 0
        return shown, self._count_fetched(encoding.patch_mask.shape[1], taken, choices)

    def _count_fetched(self, patches: int, taken: int, choices: FetchChoices) -> int:
        """K of an image of so many `patches`, of which so many are `taken`."""
        fetcher = self.model.config.fetcher_config
        count, budget = (_kept_count, fetcher.budget) if choices.budget is None else (count_fetched, choices.budget)
        return count(patches, budget, strategy=choices.strategy or fetcher.strategy, taken=taken)

    def _answers(
        self,
        batch: QuestionBatch,
        prompt: EmbeddedPrompt,
        return_fetch: bool,
        kwargs: dict[str, Any],
    ) -> list[str] | list[Answer]:
        encoding = batch.encoding
        inputs = dict(prompt.read)
        whole = bool(self.setting(kwargs, "return_dict_in_generate"))
        repeats = max(self.setting(kwargs, name, 1) for name in ("num_beams", "num_return_sequences"))
        first = torch.tensor([images[0] for images in batch.images]).repeat_interleave(repeats)
        if encoding.prefix_cache is not None and self.cache_is_plain(kwargs):
            inputs, cache = behind_prefix(self.model.config.text_config, encoding, inputs, first)
            kwargs = kwargs if cache is None else {**kwargs, "cache": cache}
        with_details = return_fetch or whole
        output, texts = self.generated(inputs, kwargs, logits=with_details)
        if not with_details:
            return [THINKING.sub("", text) for text in texts]  # without thinking
        span = self.answer_span(inputs, kwargs)
        probabilities = answer_probabilities(self.model, output, *span)
        whole_output = output if whole else None
        config = self.model.config
        answers = with_fetch(texts, probabilities, prompt.fetch, encoding, batch.images, whole_output, config)
        decode = self.processor.tokenizer.batch_decode
        shown = [images for images in batch.images for _ in range(len(answers) // len(batch.images))]
        with self.processor.tokenizing.lock:
            answers = [with_places(own, encoding, images, decode) for own, images in zip(answers, shown, strict=True)]
        return self.finished(answers, output, inputs, kwargs)

    def finished(
        self, answers: list[Answer], output: Any, inputs: dict[str, Tensor], kwargs: dict[str, Any]
    ) -> list[Answer]:
        """The answers of a generation; those that were cut have a warning."""
        span = self.answer_span(inputs, kwargs)
        limited = within_context(self.model, kwargs, span[0])
        new = self.setting(limited, "max_new_tokens")
        full = output.sequences.shape[1] >= (self.setting(limited, "max_length", 0) if new is None else span[0] + new)
        stopped = [name for name in ("max_time", "stopping_criteria") if kwargs.get(name)]
        cause = (
            "max_new_tokens" if full else None if self.setting(kwargs, "stop_strings") else next(iter(stopped), None)
        )
        if cause is None:
            return answers
        stops = self.setting(kwargs, "stop_strings") or []
        return with_cuts(answers, output, cause, *span, stops=self.stopped(output, span[0], stops))

    def stopped(self, output: Any, start: int, stops: str | Sequence[str]) -> list[bool]:
        """Whether a stop string ended each answer of an output, from the column `start`."""
        with self.processor.tokenizing.lock:
            texts = self.processor.tokenizer.batch_decode(output.sequences[:, start:], skip_special_tokens=True)
        return [any(stop in text for stop in ([stops] if isinstance(stops, str) else stops)) for text in texts]

    def generated(self, inputs: dict[str, Tensor], kwargs: dict[str, Any], *, logits: bool) -> tuple[Any, list[str]]:
        """The output of transformers' `generate` for embedded prompts, with `logits` on demand, and its texts."""
        start = inputs["input_ids"].shape[1]
        settings = {**within_context(self.model, kwargs, start), "return_dict_in_generate": True}
        if logits:
            settings["output_logits"] = True
        if self.setting(kwargs, "stop_strings"):
            settings.setdefault("tokenizer", self.processor.tokenizer)
        output = self.model.generate_tokens(**inputs, **settings)
        with self.processor.tokenizing.lock:
            texts = self.processor.tokenizer.batch_decode(output.sequences[:, start:], skip_special_tokens=True)
        return output, [text.strip() for text in texts]

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
        plain = not static and not assisted and "cache" not in kwargs
        return plain and bool(self.setting(kwargs, "use_cache", True))


def encode_whole(
    core: ArrCocModel, processor: ArrCocImageProcessor, images: Sequence[Any], options: ViewOptions = AS_SEEN
) -> ImageEncoding:
    """Encodes images or sources that need no tiles, each by itself, and turns those that are not upright."""

    def encode(sources: Sequence[Any]) -> ImageEncoding:
        shown = [source.load() if isinstance(source, Source) else source for source in sources]
        words = with_originals([None] * len(shown), processor, shown) if options.reread else None
        inputs = processor(Loaded(shown), return_tensors="pt")
        encoding = core.encode_image(inputs["pixel_values"], inputs["patch_mask"], words=words)
        encoding.source_sizes = [(image.height, image.width) for image in shown]
        return encoding

    encoding = encode(images)
    read = None if encoding.characters is None else encoding.characters.sum(1)
    if read is None or bool((read[:, 1] >= UPRIGHT * read[:, 0]).all()):
        return encoding
    pages = list[Source]()
    for image in images:
        known = [image] if isinstance(image, Source) else sources_of(image, options, processor.max_image_pixels)
        pages += known
    return upright(core, processor, encoding, pages, encode)


# ---- arguments of a question ---------------------------------------------------------------------------------------


def shown_by_prompts(image: Any) -> list[list[Any]]:
    """The images of each prompt, from one image, a list of images, or a list with lists of images.

    Raises:
        ValueError: no images, none for one of the prompts, or a list of encodings.
    """
    prompts = image if isinstance(image, list | tuple) else [image]
    every = [each for shown in prompts for each in (shown if isinstance(shown, list | tuple) else [shown])]
    if any(type(each).__name__.endswith("Encoding") for each in every):  # those of published models, too
        received = f"a list of {len(prompts)}" if prompts is image else type(image).__name__
        raise ValueError(
            "image: expected images, or one result of this model's encode_image (about which generate(page, [question, "
            "question]) asks several questions; encode_image([image, image]) and page.join(other) have several); got "
            f"{received}"
        )
    prompts = [list(shown) if isinstance(shown, list | tuple) else [shown] for shown in prompts]
    if not prompts or not all(prompts):
        raise ValueError("images: expected at least one; got an empty list")
    return prompts


def check_prompts(images: int, questions: int) -> None:
    """Raises a ValueError for a number of images, or of lists of them, that several questions cannot be about."""
    if questions > 1 and images not in (1, questions):
        raise ValueError(f"images: expected 1 or {questions} (one per question); got {images}")


def take_choices(kwargs: dict[str, Any]) -> tuple[FetchChoices, dict[str, Any]]:
    """The `FetchChoices` among arguments (by name, or as `choices`), and the other arguments."""
    names = {part.name for part in fields(FetchChoices)}
    named = {name: kwargs[name] for name in kwargs.keys() & names if kwargs[name] is not None}
    choices = kwargs.get("choices")
    if not isinstance(choices, FetchChoices):
        choices = AS_CONFIGURED if choices is None else FetchChoices.of(choices)
    others = {name: value for name, value in kwargs.items() if name not in names and name != "choices"}
    return replace(choices, **named) if named else choices, others


def generation_setting(model: Answering, kwargs: dict[str, Any], name: str, default: Any = None) -> Any:
    """A setting of a generation as transformers resolves it: from the call, its GenerationConfig, or the model."""
    configs = (kwargs.get("generation_config"), model.generation_config)
    values = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
    return next((value for value in values if value is not None), default)


def within_context(model: Answering, kwargs: dict[str, Any], prompt: int) -> dict[str, Any]:
    """The settings, limited so that an answer to a prompt of `prompt` tokens ends within the language model's
    context."""
    limit = getattr(model.config.text_config, "max_position_embeddings", None) or 2**31  # BLOOM has none
    most = {"max_new_tokens": max(1, limit - prompt), "max_length": limit}
    return kwargs | {name: end for name, end in most.items() if (generation_setting(model, kwargs, name) or 0) > end}


def check_decoding(model: Answering, kwargs: dict[str, Any]) -> None:
    """Raises a ValueError for invalid settings of `generate`, assistant models, and caches that hold tokens.

    Fetched tokens differ between questions and come before the text, so a cache with tokens would hide them.
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
    answers, beams = (generation_setting(model, kwargs, name, 1) for name in ("num_return_sequences", "num_beams"))
    if answers > beams and not generation_setting(model, kwargs, "do_sample"):
        raise refusal("num_return_sequences", f"do_sample=True beside it, or at most num_beams ({beams})", answers)
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
            expected = "none, as assisted decoding does not support images: use prompt_lookup_num_tokens"
            raise ValueError(f"{name}: expected {expected}; got {type(kwargs[name]).__name__}")


def check_names(model: Any, kwargs: dict[str, Any]) -> None:
    """Raises a ValueError for arguments that transformers' `generate` and the model do not know; None is ignored."""
    if kwargs.get("custom_generate") is not None:  # it may take any
        return
    functions = (GenerationMixin.generate, model.prepare_inputs_for_generation, model.forward)
    known = {name for function in functions for name in inspect.signature(function).parameters}
    known |= {*vars(GenerationConfig()), *TransformersKwargs.__optional_keys__, *POPPED}
    if unknown := sorted(name for name, value in kwargs.items() if value is not None and name not in known):
        expected = "arguments that help(model.generate) lists, or fields of transformers' GenerationConfig"
        raise ValueError(f"generate: expected {expected}; got {', '.join(unknown)}")


POPPED = ("cache", "tokenizer", "assistant_tokenizer", "trust_remote_code", "mm_encoder_outputs")
"""Further arguments of `generate`, which no signature names."""


MODEL_INPUTS = (
    "input_ids", "inputs", "inputs_embeds", "attention_mask", "pixel_values", "patch_mask", "image_index",
    "image_encoding", "image_sources", "source_sizes", "image_words",
)  # fmt: skip
"""What the processor makes of images and text, which `ask` makes itself."""


PAGES_ALONE = 3
"""The most pages of a prompt that are asked one by one."""
GREEDILY = {"do_sample": False, "streamer": None, "num_return_sequences": 1, "num_beams": 1}
"""What is off while pages are asked one by one: only the last answer is sampled, streamed, or one of several."""

WITH_ONE_READING = (
    "boxes", "patches", "relevance", "num_passes", "streamer", "return_dict_in_generate", "num_return_sequences",
)  # fmt: skip
"""Arguments and settings that do not go with several readings."""


def check_readings(readings: Any, image: Any, settings: dict[str, Any]) -> None:
    """Raises a ValueError for a number outside 1..`READINGS`, and for `settings` of `WITH_ONE_READING` beside more."""
    count = readings
    if is_encoding(image):
        count = 1 + len(image.readings)
        if readings is not None:
            raise ValueError(f"readings: expected with an image or in encode_image; got {readings} for an encoding")
    elif readings is None:
        return
    elif isinstance(readings, bool) or not isinstance(readings, Integral) or not 1 <= int(readings) <= READINGS:
        raise refusal("readings", f"a whole number in 1..{READINGS}", readings)
    given = [name for name, value in settings.items() if not _is_one(value)]
    if count > 1 and given:
        raise ValueError(f"readings: expected one reading with {', '.join(given)}; got {count}")


def _is_one(value: Any) -> bool:
    """Whether an argument asks for nothing special: None, False or 1."""
    return value is None or value is False or (isinstance(value, int) and value == 1 and value is not True)


def is_encoding(value: Any) -> bool:
    """Whether `value` comes from `encode_image` (by class name: remote code may load a class twice)."""
    return type(value).__name__ == "ImageEncoding"


def boxes_on_images(boxes: Sequence[Sequence[Box]], batch: QuestionBatch) -> list[list[Box]]:
    """The parts of the boxes of each slot that are on its image.

    Raises:
        ValueError: not one list for each slot, a prompt without a box, images of unknown size, or a box that ends
            before it starts or is wholly outside its image.
    """
    if len(boxes) != len(batch.slots):
        raise ValueError(f"boxes: expected one list per question and image ({len(batch.slots)}); got {len(boxes)}")
    if batch.encoding.source_sizes is None:
        raise ValueError("boxes: expected an image whose size is known; got an encoding of bare pixel_values")
    rest = iter(boxes)
    for number, images in enumerate(batch.images):
        if not any([next(rest) for _ in images]):
            raise ValueError(f"boxes: expected at least one for each question; got none for question {number + 1}")
    sizes = [batch.encoding.source_sizes[slot] for slot in batch.slots]
    turned = [batch.encoding.turned[slot] for slot in batch.slots]
    return [
        [turn_box(box, degrees, *size) for box in boxes_on_image(own, *size)]
        for own, size, degrees in zip(boxes, sizes, turned, strict=True)
    ]


def relevance_of_boxes(
    boxes: Sequence[Sequence[Box]], slots: Sequence[int], encoding: ImageEncoding, processor: ArrCocImageProcessor
) -> Tensor:
    """[I, N] 1 on the patches under the boxes of each slot; `slots` are the numbers of their images."""
    rows = []
    for slot, slot_boxes in zip(slots, boxes, strict=True):
        mapped = processor.map_boxes(slot_boxes, *encoding.read_sizes[slot])
        rows.append(torch.from_numpy(boxes_to_patches(mapped, encoding.side, processor.patch_size)).flatten())
    return torch.stack(rows).float().to(encoding.tokens.device)


class Conversation:
    """Questions about one image, which is encoded once.

    Args:
        answer_generator: answers the questions.
        image: see `AnswerGenerator.encode`, or its result.
        keep_history: whether the language model also reads earlier questions and answers. Fetched patches depend on the
            present question alone. Off by default: weights that were trained on single questions answer better without
            history.

    Attributes:
        turns: earlier questions with their answers.
    """

    def __init__(self, answer_generator: AnswerGenerator, image: Any, *, keep_history: bool = False) -> None:
        self.answer_generator, self.keep_history = answer_generator, keep_history
        self.encoding: ImageEncoding = image if is_encoding(image) else answer_generator.encode(image)
        self.turns: list[Turn] = []

    def ask(self, question: str, **kwargs: Any) -> Any:
        """The answer, as from `generate(image, question, **kwargs)`."""
        answer = self.answer_generator.ask(
            self.encoding, question, history=self.turns if self.keep_history else (), **kwargs
        )
        first = answer[0] if isinstance(answer, list) else answer  # of several, with num_return_sequences
        self.turns.append((question, first.text if isinstance(first, Answer) else first))
        return answer
