"""From images and text to model inputs: chat template, image placeholders, and the mask of the question's tokens.

Notation: B batch, L tokens of a prompt, M base tokens and K fetched tokens of one image (M + K placeholders).
"""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, GenerationMixin
from transformers.image_utils import make_flat_list_of_images
from transformers.processing_utils import ImagesKwargs, MultiModalData, ProcessingKwargs, ProcessorMixin
from transformers.utils import logging
from transformers.utils.generic import TransformersKwargs

from .budgets import pooling
from .checks import CALLABLES, DECODING, NUMBERS, check_processing, refusal
from .configuration_arr_coc import COMPRESSION, PROCESSOR_MAP, count_vision_tokens
from .image_encoding import Turns
from .image_loading import Source, document_refusal, shorten
from .image_processing_arr_coc import ProcessorSettings
from .prompt import find_query_tokens, query_markers, token_id
from .prompt_format import (
    CHAT_TEMPLATE,
    IMAGE_TOKEN,
    QUESTION_ROLE,
    TURN_END,
    TURN_START,
    VISION_END,
    VISION_START,
    images_first,
)
from .view_encoding import sources_of, take_view_options
from .word_sources import PageToRead, check_words, read_before, to_tensor, words_of_each

logger = logging.get_logger(__name__)

FOREIGN_IMAGE_TOKEN = "<image>"
"""The image token of other models; here it is plain text."""

Turn = tuple[str, str]
"""An earlier question and its answer."""

History = Sequence[Turn] | Sequence[Sequence[Turn]]
"""The turns before each of several questions, or one list of them for each question."""

Shown = int | Sequence[str]  # the number of images of a chat, or the text before each of them

PIXELS = {
    "size", "patch_size", "do_resize", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean",
    "image_std", "images_kwargs",
}  # fmt: skip
"""Arguments that change the pixels from those of `generate(image, question)`."""

_CUT = "\0"
"""Marks where a text is divided for the tokenizer, which reads the parts one by one; it is not text itself."""


class ArrCocProcessorImagesKwargs(ImagesKwargs, total=False):
    """budget: fetched tokens per image, a number or a name. strategy: "none" leaves the fetched tokens out.

    pages: the most pages of a prompt, if base tokens are pooled; the processor counts them.
    """

    budget: int | str | None
    pages: int | None
    strategy: str | None
    patch_size: int | None
    readable_px: int | float | None


class ArrCocProcessorKwargs(ProcessingKwargs, total=False):
    # No `from __future__ import annotations` in this file: ProcessorMixin reads these annotations as classes.
    images_kwargs: ArrCocProcessorImagesKwargs  # type: ignore[misc]
    _defaults = {}  # type: ignore[misc]  # releases of transformers 5 before 5.23 look for it


class ArrCocProcessor(ProcessorMixin):
    """Images and text -> `input_ids`, `attention_mask`, `query_mask`, `pixel_values`, `patch_mask`.

    For a chat without its last answer, `generate(**inputs)` encodes the same views as `generate(image, question)`. A
    PDF or an image file of several pages is all of its pages. For this the outputs include the images as they are:
    `image_sources`, uint8, the pixels [H, W, 3] of all images one after the other in one dimension (which transformers'
    pipeline can join for batches), and `source_sizes` [I, 2] (height, width). Documents and pooled base tokens have no
    `pixel_values`, and `forward` refuses these inputs.

    Each `<|image_pad|>` in the text becomes one placeholder for each token of the image: M + K, and those of the
    layout. `query_mask` (as `attention_mask` in shape and container; bool as a tensor) is true on the text of the
    user's last question, and not on earlier turns, the template, placeholders, answers or padding. Batches are padded
    on the left.

    Args:
        image_processor: an ArrCocImageProcessor.
        tokenizer: must hold `image_token`.
        chat_template: ChatML (`CHAT_TEMPLATE`) by default.
        budget: default number of fetched tokens per image, or its name, see `resolve_budget`.
        image_token: the placeholder.
        excludes_base: the model's `config.excludes_base`: with it, budget "all" leaves out the M base patches.
        layout: the model's `config.bridge_config.layout`, which may add positions to the M + K tokens of an image.

    Attributes:
        tokenizing: holds the lock of the tokenizer.

    Calling it: `processor(images=..., text=..., budget="fast", strategy="none", return_tensors="pt")`; to
    `apply_chat_template` pass the same in `processor_kwargs={...}`.

    Raises (all ValueError, one line):
        placeholders and images that differ in number, an empty question, a prompt longer than
        `tokenizer.model_max_length`, an unknown budget, a tokenizer without `image_token`, a document in a chat that
        has its answer, a video.
    """

    valid_processor_kwargs: Any = ArrCocProcessorKwargs
    _auto_class = "AutoProcessor"  # `save_pretrained` copies the code

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | dict[str, str] | None = None,
        budget: int | str = "standard",
        image_token: str = IMAGE_TOKEN,
        excludes_base: bool = False,
        layout: str = "plain",
        **kwargs: Any,
    ) -> None:
        ProcessorSettings(
            budget=budget,
            image_token=image_token,
            excludes_base=excludes_base,
            layout=layout,
            chat_template=chat_template,
        )
        if chat_template is None:
            chat_template = CHAT_TEMPLATE.replace(IMAGE_TOKEN, image_token)
            if layout == "indicators":  # its own rows replace these tokens
                chat_template = chat_template.replace(VISION_START, "").replace(VISION_END, "")
        super().__init__(image_processor, tokenizer, chat_template=chat_template, **kwargs)
        self.budget = budget
        self.image_token = image_token
        self.excludes_base = excludes_base
        self.layout = layout
        image_token_id = token_id(tokenizer, image_token)
        if image_token_id is None:
            raise ValueError(f"tokenizer: expected one with the image token {image_token!r}; got one without")
        self.image_token_id: int = image_token_id
        self.tokenizing = Turns()
        tokenizer.padding_side = "left"  # decoder-only generation continues from the last position
        self._count(None, None, image_processor.size["height"], image_processor.patch_size)  # refuses a bad budget now

    def __call__(self, images: Any = None, text: Any = None, *args: Any, **kwargs: Any) -> Any:
        """See the class. Several threads may call it at the same time, and use a model with this processor."""
        texts: Any = text if isinstance(text, list | tuple) else [] if text is None else [text]
        for prompt in texts:
            if not isinstance(prompt, str) or prompt.encode("utf-8", "ignore").decode() != prompt:
                raise refusal("text", "a string, which UTF-8 can hold, or a list of them", prompt)
        check_processing(kwargs)
        asks = images is not None and bool(texts) and all(map(_is_open, texts)) and not kwargs.keys() & PIXELS
        words = kwargs.pop("words", None) or self.image_processor.views.get("words", "auto")
        check_words(words)
        if images is not None:  # before the lock, as a download takes time
            password = kwargs.pop("password", None)
            images = self.image_processor.fetch_images(images, documents=asks, password=password)
        pages, known = None, list[Any]()
        if asks:
            texts, images, pages, known = self._in_pages(texts, images, words)
        sources: Any = make_flat_list_of_images(images) if asks else []
        if pages is not None or self.image_processor.shrinks(sources, 1.0):
            kwargs = {"readable_px": None, **kwargs}  # tiles show text that is too small in the square
        if pages is not None:
            kwargs = {**kwargs, "pages": pages}
        with self.tokenizing.lock:
            inputs = super().__call__(images, list(texts) if text is not None else None, *args, **kwargs)
        if "input_ids" in inputs:
            self._check_length(inputs, kwargs | (kwargs.get("text_kwargs") or {}))
        if asks and isinstance(inputs["input_ids"], torch.Tensor):
            pixels = [torch.from_numpy(np.array(image)) for image in sources]  # [H, W, 3] each
            inputs["image_sources"] = torch.cat([image.flatten() for image in pixels])
            inputs["source_sizes"] = torch.tensor([image.shape[:2] for image in pixels])
            if any(page is not None for page in known):
                inputs["image_words"] = to_tensor(known)
        return inputs

    def _in_pages(
        self, texts: Sequence[str], images: Any, words: Any
    ) -> tuple[Sequence[str], Any, int | None, list[Any]]:
        """Chats and images, with a placeholder and an image for each page of a document.

        Also the largest number of images in a chat if there are documents or pooled base tokens, else None; and what is
        known of each page's text (`word_sources.read_before`).
        """
        rows = images if isinstance(images, list) else [images]
        shown = [image for row in rows for image in (row if isinstance(row, list) else [row])]
        options, _ = take_view_options(self.image_processor.views)
        documents = not all(isinstance(image, Image.Image) for image in shown)
        if documents:
            self._check_places(texts, images)
        pages, sources = list[list[Image.Image]](), list[Source]()
        for image in shown:
            if isinstance(image, Image.Image):
                pages.append([image])
                sources.append(Source(image.height, image.width, image.copy))
            elif image.kind == "video":  # each frame would need its second before it
                raise document_refusal(image)
            else:
                sources += (opened := sources_of(image, options, self.image_processor.max_image_pixels))
                pages.append([page.load() for page in opened])
        if documents:
            start, end = (f"(?:{re.escape(token)})?" for token in (VISION_START, VISION_END))
            place, counts = re.compile(start + re.escape(self.image_token) + end), iter(map(len, pages))
            texts = [place.sub(lambda found: found[0] * next(counts), text) for text in texts]
            images = [page for own in pages for page in own]
        totals = [total for text in texts if (total := text.count(self.image_token))]
        side = self.image_processor.size["height"] // self.image_processor.patch_size // COMPRESSION
        pools = {pooling(side, total, options.max_base_tokens) for total in totals}
        if len(pools) > 1:
            expected = "prompts of about as many pages in one call, or a call for each"
            raise ValueError(f"images: expected {expected}; got {totals}")
        flat = [page for own in pages for page in own]
        wanted = zip(sources, flat, words_of_each(words, len(flat)), strict=True)
        known = [read_before(one, PageToRead(source, page)) for source, page, one in wanted]
        return texts, images, max(totals) if documents or max(pools, default=1) > 1 else None, known

    def apply_chat_template(self, conversation: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; images move before the first question of their chat: see `images_first`."""
        first = conversation[0] if isinstance(conversation, list | tuple) and conversation else None
        single = not isinstance(first, list | tuple) and not hasattr(first, "messages")
        chats = [conversation] if single else conversation
        ordered = [images_first(getattr(chat, "messages", chat)) for chat in chats]
        if kwargs.get("return_assistant_tokens_mask") and any(
            sum(turn.get("role") == "assistant" for turn in chat) > 1 for chat in ordered
        ):
            logger.warning_once(
                "return_assistant_tokens_mask: a chat has several answers, but patches are fetched for its last "
                "question only: train on a row for each question, or on its last answer only"
            )
        return super().apply_chat_template(ordered[0] if single else ordered, *args, **kwargs)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> Any:
        """As the tokenizer's. Without special tokens an answer has no white space at its ends, as in `generate`."""
        rows = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        if isinstance(rows, list | tuple) and rows and not isinstance(rows[0], int):
            return [self.decode(row, skip_special_tokens, **kwargs) for row in rows]
        if not skip_special_tokens:
            return self.tokenizer.decode(rows, **kwargs)
        with self.tokenizing.lock:
            start = token_id(self.tokenizer, TURN_START)
        row = [rows] if isinstance(rows, int) else list(rows)
        head = len(row) - row[::-1].index(start) - 1 if start in row else 0  # the last turn begins here
        parts = (row[:head], row[head:])
        before, turn = (self.tokenizer.decode(part, skip_special_tokens=True, **kwargs) for part in parts)
        role, line_break, answer = turn.partition("\n") if start in row else ("", "", turn)
        return before + role + line_break + answer.strip()

    def batch_decode(self, sequences: Any, *args: Any, **kwargs: Any) -> list[str]:
        """`decode` of each row."""
        return [self.decode(row, *args, **kwargs) for row in sequences]

    def post_process_image_text_to_text(
        self, generated_outputs: Any, skip_special_tokens: bool = True, **kwargs: Any
    ) -> Any:
        """`decode`, without special tokens by default; `pipeline` calls it."""
        return self.decode(generated_outputs, skip_special_tokens, **kwargs)

    @property
    def model_input_names(self) -> list[str]:
        return [*super().model_input_names, "query_mask"]

    def prompt(self, question: str, *, images: Shown = 1, placeholders: int = 1, history: Sequence[Turn] = ()) -> str:
        """The chat with a question about images, up to the start of the answer.

        Args:
            question: text.
            images: the number of images, which come before the first question, or the text before each of them.
            placeholders: image tokens for each image.
            history: earlier questions and their answers.
        """
        turns: list[tuple[str, str]] = []
        for earlier, answer in history:
            turns += [(QUESTION_ROLE, earlier), ("assistant", answer)]
        turns.append((QUESTION_ROLE, question))
        messages: list[Any] = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
        for caption in reversed([""] * images if isinstance(images, int) else images):
            messages[0]["content"] = [{"type": "text", "text": caption}, {"type": "image"}, *messages[0]["content"]]
        text = super().apply_chat_template(messages, add_generation_prompt=True)  # captions come before their images
        return text.replace(self.image_token, self.image_token * placeholders)

    def prompts(
        self, questions: Sequence[str], *, images: Sequence[Shown], placeholders: int, history: History = ()
    ) -> dict[str, torch.Tensor]:
        """`prompt` of each question as input_ids, attention_mask and query_mask [B, L], padded on the left.

        Only the template writes control tokens: the same string in a question or in the history stays text.
        """
        rows = []
        for question, shown, turns in zip(questions, images, histories(history, len(questions)), strict=True):
            before = [(self._as_text(earlier), self._as_text(answer)) for earlier, answer in turns]
            text = self.prompt(self._as_text(question), images=shown, placeholders=placeholders, history=before)
            with self.tokenizing.lock:
                pieces = self.tokenizer(text.split(_CUT), add_special_tokens=False, verbose=False)["input_ids"]
            rows.append(torch.tensor([token for piece in pieces for token in piece]))
        ids = pad_sequence(rows, True, self.tokenizer.pad_token_id or 0, padding_side="left")  # masked, whatever it is
        mask = pad_sequence([torch.ones_like(row) for row in rows], True, padding_side="left")
        return {"input_ids": ids, "attention_mask": mask, "query_mask": self.query_mask(ids)}

    def prefix_ids(self) -> torch.Tensor:
        """int64 [p] the tokens of a prompt about one image up to the image."""
        text = self.prompt("?")
        with self.tokenizing.lock:
            before = text[: text.index(self.image_token)]
            return self.tokenizer(before, add_special_tokens=False, return_tensors="pt").input_ids[0].long()

    def count_tokens(self, text: str) -> int:
        """The number of a text's tokens."""
        with self.tokenizing.lock:
            return len(self.tokenizer(text, verbose=False)["input_ids"])

    def _as_text(self, text: str) -> str:
        """The text, divided within each string that the tokenizer would read as a control token."""
        for token in self.control_tokens:
            text = text.replace(token, token[0] + _CUT + token[1:])
        return text

    @property
    def control_tokens(self) -> list[str]:
        """Strings that the tokenizer reads as one special token, longest first."""
        special = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        return sorted({*special, *self.tokenizer.all_special_tokens, self.image_token}, key=len, reverse=True)

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> list[str]:
        """As in transformers, with the code; the saved file also names the image processor's class."""
        self.auto_map = dict(PROCESSOR_MAP)
        return super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def query_mask(self, input_ids: torch.Tensor) -> torch.Tensor:
        """bool [B, L] for int64 [B, L]: true on the text of the user's last question (`find_query_tokens`)."""
        with self.tokenizing.lock:
            markers = query_markers(self.tokenizer, self.image_token)
        return find_query_tokens(input_ids, **markers)

    def replace_image_token(self, image_inputs: dict, image_idx: int, **kwargs: Any) -> str:
        """The placeholders of one image: M + K, and those that the layout adds."""
        side = int(image_inputs["pixel_values"][image_idx].shape[-1])
        patch_size = kwargs.get("patch_size") or self.image_processor.patch_size
        return self.image_token * self._count(kwargs.get("budget"), kwargs.get("strategy"), side, patch_size)

    def validate_inputs(
        self, images: Any = None, text: Any = None, videos: Any = None, audio: Any = None, **kwargs: Any
    ) -> None:
        """Checks that images match the placeholders and that there is a question."""
        self._check_places(text, images)
        if isinstance(text, list) and not all(row.strip() for row in text if isinstance(row, str)):
            raise ValueError("text: expected a question; got an empty one")
        super().validate_inputs(images=images, text=text, videos=videos, audio=audio, **kwargs)

    def _check_places(self, text: Any, images: Any) -> None:
        """Checks that the number of images matches the placeholders, row by row if images come in rows."""
        if isinstance(text, list | tuple) and all(isinstance(row, str) for row in text):
            expected = [row.count(self.image_token) for row in text]
            rows: list[Any] = images if isinstance(images, list) else [] if images is None else [images]
            if rows and all(isinstance(row, list) for row in rows):
                received = [len(row) for row in rows]
            else:
                expected, received = [sum(expected)], [len(rows)]
            if expected != received and not any(expected) and any(FOREIGN_IMAGE_TOKEN in row for row in text):
                raise ValueError(
                    f"text: expected {self.image_token} for each image, as processor.apply_chat_template writes it; "
                    f"got {FOREIGN_IMAGE_TOKEN}, which is plain text here, beside {_listed(received)}"
                )
            if expected != received:
                hint = "" if any(expected) else ", as processor.apply_chat_template writes it"
                raise ValueError(
                    f"images: expected {_listed(expected)} (one per {self.image_token} in the text{hint}); "
                    f"got {_listed(received)}"
                )

    def _count(self, budget: int | str | None, strategy: str | None, side: int, patch_size: int, pages: int = 1) -> int:
        budget = self.budget if budget is None else budget
        base, num_fetched = count_vision_tokens(
            side, patch_size, budget, strategy=strategy, excludes_base=self.excludes_base, layout=self.layout,
            sources=pages, max_base_tokens=take_view_options(self.image_processor.views)[0].max_base_tokens,
        )  # fmt: skip
        return base // pages + num_fetched

    def _process_images(self, images: Any, **kwargs: Any) -> tuple[Any, list[str]]:
        # Not for the image processor.
        choice, pages = {name: kwargs.pop(name, None) for name in ("budget", "strategy")}, kwargs.pop("pages", None)
        flat: Any = make_flat_list_of_images(images)
        if pages is not None:
            side, patch_size = self.image_processor.size["height"], self.image_processor.patch_size
            count = self._count(**choice, side=side, patch_size=patch_size, pages=pages)
            return {}, [self.image_token * count] * len(flat)
        processed = self.image_processor(images, **kwargs)
        return processed, [self.replace_image_token(processed, i, **choice, **kwargs) for i in range(len(flat))]

    def _merge_kwargs(self, *args: Any, **kwargs: Any) -> dict[str, dict]:
        merged = super()._merge_kwargs(*args, **kwargs)
        text_kwargs = merged["text_kwargs"]
        # Truncation would silently drop the end of the question or the start of the answer; `_check_length` refuses.
        if text_kwargs.get("truncation"):
            text_kwargs["truncation"] = False
            if text_kwargs.get("padding") != "max_length":
                text_kwargs["max_length"] = None
        return merged

    def _check_special_mm_tokens(self, text: list[str], text_inputs: Any, modalities: list[str]) -> None:
        """Adds `query_mask`: the only hook of ProcessorMixin.__call__ between the tokenizer and its result."""
        super()._check_special_mm_tokens(text, text_inputs, modalities)
        rows = [torch.as_tensor(row) for row in text_inputs["input_ids"]]
        markers = query_markers(self.tokenizer, self.image_token)
        masks = [find_query_tokens(row[None], **markers)[0] for row in rows]
        for row, mask in zip(rows, masks, strict=True):
            # Placeholders without a chat pass: vLLM profiles processors with such prompts.
            tokens = set(row.tolist())
            in_chat = self.image_token_id in tokens and markers["start_id"] in tokens
            if in_chat and not self.tokenizer.decode(row[mask]).strip():
                raise ValueError("text: expected a question beside the image; got an empty one")
            placed = (row == self.image_token_id).nonzero()[:, 0]
            if len(placed) and markers["start_id"] is not None and not in_chat and mask.any():
                logger.warning_once(
                    "text: expected a chat, as models are trained and as processor.apply_chat_template writes it; got "
                    "text and images without one: answers may make no sense"
                )
            if in_chat and mask[: placed[-1]].any():
                logger.warning_once(
                    "text: expected images before the question, as models are trained and as "
                    "processor.apply_chat_template writes it; got text before an image: answers get worse"
                )
        if isinstance(text_inputs["input_ids"], list):
            text_inputs["query_mask"] = [mask.int().tolist() for mask in masks]
        else:
            stacked = torch.stack(masks)
            is_tensor = isinstance(text_inputs["input_ids"], torch.Tensor)
            text_inputs["query_mask"] = stacked if is_tensor else stacked.numpy()

    def _check_length(self, inputs: Any, options: Mapping[str, Any]) -> None:
        """Refuses prompts longer than the tokenizer's limit, or than `max_length` in `options` with truncation."""
        limit, name = self.tokenizer.model_max_length, "tokenizer.model_max_length"
        if options.get("truncation") and (options.get("max_length") or limit) < limit:
            limit, name = options["max_length"], "max_length; truncation would cut the question"
        mask = inputs.get("attention_mask")
        lengths = [len(row) for row in inputs["input_ids"]] if mask is None else [int(sum(row)) for row in mask]
        if max(lengths, default=0) > limit:
            raise ValueError(
                f"text: expected at most {limit} tokens ({name}); got {max(lengths)}, "
                "images included; shorten the question or lower the budget"
            )

    def _get_num_multimodal_tokens(self, image_sizes: list[list[int]] | None = None, **kwargs: Any) -> MultiModalData:
        """Placeholders per image of (height, width) px, for servers; the same for each image, as all become squares."""
        if image_sizes is None:
            return MultiModalData()
        merged = self._merge_kwargs(**kwargs)["images_kwargs"]
        size = merged.get("size") or self.image_processor.size
        side = size if isinstance(size, int) else size["height"]
        patch_size = merged.get("patch_size") or self.image_processor.patch_size
        count = self._count(merged.get("budget"), merged.get("strategy"), side, patch_size)
        return MultiModalData(num_image_tokens=[count] * len(image_sizes), num_image_patches=[1] * len(image_sizes))


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
    """Raises a ValueError for a number of prompts' images that several questions cannot be about."""
    if questions > 1 and images not in (1, questions):
        raise ValueError(f"images: expected 1 or {questions} (one per question); got {images}")


def check_decoding(settings: Mapping[str, Any], kwargs: dict[str, Any]) -> None:
    """Raises a ValueError for invalid settings of `generate`, assistant models, and caches that hold tokens.

    `settings`: those of `DECODING` and `eos_token_id` by name, as `generation.generation_setting` has them.
    Fetched tokens differ between questions and come before the text, so a cache with tokens would hide them.
    """
    cached = kwargs.get("cache")
    if cached is not None and (length := cached.get_seq_length()):
        expected = "an empty cache beside images (encode_image keeps what questions share)"
        raise ValueError(f"cache: expected {expected}; got one of {length} tokens")
    for name, (kind, least, most) in DECODING.items():
        value = settings[name]
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool) and least <= value <= most
        if value is not None and not fits:
            raise refusal(name, NUMBERS[kind] + ("" if kind is bool else f" in {least:g}..{most:g}"), value)
    answers, beams = (settings[name] or 1 for name in ("num_return_sequences", "num_beams"))
    if answers > beams and not settings["do_sample"]:
        raise refusal("num_return_sequences", f"do_sample=True beside it, or at most num_beams ({beams})", answers)
    for name, (needed, expected) in CALLABLES.items():
        value = kwargs.get(name)
        whole = all(hasattr(value, method) for method in needed)
        listed = name in ("logits_processor", "stopping_criteria")
        if value is not None and not (whole and (not listed or all(map(callable, value)))):
            raise refusal(name, expected, value)
    end = () if settings["eos_token_id"] is None else settings["eos_token_id"]
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
    known |= {*vars(GenerationConfig()), *TransformersKwargs.__optional_keys__}
    known |= {"cache", "tokenizer", "assistant_tokenizer", "trust_remote_code", "mm_encoder_outputs"}  # in no signature
    if unknown := sorted(name for name, value in kwargs.items() if value is not None and name not in known):
        expected = "arguments that help(model.generate) lists, or fields of transformers' GenerationConfig"
        raise ValueError(f"generate: expected {expected}; got {', '.join(unknown)}")


MAX_QUESTION = 512
"""Tokens; a longer question is taken for a document that was passed as one."""


def checked_questions(
    question: Any, control_tokens: Sequence[str], count_tokens: Callable[[str], int] | None = None
) -> list[str]:
    """One or several questions -> a list of them.

    `count_tokens`: counts those of a question; None: it may have any number.

    Raises:
        ValueError: no question; or one that is not text, is empty or only control tokens, or above `MAX_QUESTION`.
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
        if count_tokens is not None and (length := count_tokens(text)) > MAX_QUESTION:
            raise ValueError(f"question: expected at most {MAX_QUESTION} tokens; got {length}")
    return questions


def _is_open(text: str) -> bool:
    """Whether a chat ends at the start of an answer."""
    before, begun, last = text.rpartition(TURN_START)
    return bool(begun) and TURN_END not in last


def histories(history: History, count: int) -> Sequence[Sequence[Turn]]:
    """The turns before each of `count` questions."""
    if _are_turns(history):
        return [history] * count  # type: ignore[list-item]
    if not isinstance(history, list | tuple) or len(history) != count or not all(map(_are_turns, history)):
        expected = f"turns (question, answer) of text, or a list of them for each of {count} questions"
        raise refusal("history", expected, history)
    return history


def _are_turns(history: Any) -> bool:
    return isinstance(history, list | tuple) and all(
        isinstance(turn, list | tuple)
        and len(turn) == 2
        and all(isinstance(text, str) and text.encode("utf-8", "ignore").decode() == text for text in turn)
        for turn in history
    )


def _listed(counts: list[int]) -> str:
    return f"{counts[0]} images" if len(counts) == 1 else f"{counts} images per row"
