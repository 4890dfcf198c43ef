"""Asking: from an image and a question to an answer, on top of transformers' `generate`.

Notation: B questions, P encoded images, I image slots, S prompt length, N patches, M base tokens, K saccades, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoTokenizer
from transformers.cache_utils import DynamicCache

from .configuration_arr_coc import resolve_budget
from .fetching import FetchResult
from .image_processing_arr_coc import ArrCocImageProcessor, Box, boxes_to_patches, load_image
from .processing_arr_coc import ArrCocProcessor

if TYPE_CHECKING:
    from .modeling_arr_coc import ImageEncoding

_PROMPT_ONLY = ("image_index", "patch_mask", "query_mask", "strategy", "allocator", "oracle_relevance", "generator")


@dataclass(frozen=True)
class Answer:
    """An answer and how it came about.

    Attributes:
        text: the answer.
        probability: of the whole answer, end included: the product of its tokens' probabilities.
        fetch: what was fetched, one row per image of the prompt.
    """

    text: str
    probability: float
    fetch: FetchResult


def is_encoding(value: Any) -> bool:
    """Whether `value` is what `encode_image` returns (by name: remote code may load a class twice)."""
    return type(value).__name__ == "ImageEncoding"


def _prompt(question: str, images: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image"}] * images + [{"type": "text", "text": question}]}]


def _questions(question: Any) -> list[str]:
    questions = list(question) if isinstance(question, list | tuple) else [question]
    for one in questions:
        if not isinstance(one, str) or not one.strip():
            raise ValueError(f"question: expected a non-empty string; got {one!r}")
    return questions


def _load_processor(config: Any) -> ArrCocProcessor:
    """The processor of the checkpoint that `config` was loaded from, put together from its parts.

    `ArrCocProcessor.from_pretrained` would ask again whether remote code may run, to look up the image processor's
    class by name; here the classes beside this file are taken. `config` is passed on for the same reason.
    """
    source = config._name_or_path
    try:
        if not source:
            raise ValueError("a model that was not loaded from a checkpoint")
        image_processor = ArrCocImageProcessor.from_pretrained(source)
        tokenizer = AutoTokenizer.from_pretrained(source, config=config)
        settings, _ = ArrCocProcessor.get_processor_dict(source)
        processor = ArrCocProcessor.from_args_and_dict([image_processor, tokenizer], settings)
    except (OSError, ValueError, TypeError) as error:
        cause = str(error).strip().split("\n")[0]
        raise ValueError(
            f"processor: expected {source or 'the checkpoint'!r} to hold one (save it beside the model with "
            f"processor.save_pretrained, or set model.processor); got {cause}"
        ) from error
    if __name__.startswith("transformers_modules."):  # remote code: `save_pretrained` is to copy it
        ArrCocProcessor.register_for_auto_class()
        ArrCocImageProcessor.register_for_auto_class()
    return processor


class AskingMixin:
    """`generate(image, question)`, `encode_image(image)` and the processor behind them."""

    _processor: ArrCocProcessor | None = None

    @property
    def processor(self) -> ArrCocProcessor:
        """The checkpoint's processor, loaded on first use; assign to use another.

        Raises:
            ValueError: the checkpoint has none.
        """
        if self._processor is None:
            self._processor = _load_processor(self.config)
        return self._processor

    @processor.setter
    def processor(self, processor: ArrCocProcessor | None) -> None:
        self._processor = processor

    # ---- encode once ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode_image(
        self, image: Any = None, *, pixel_values: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> "ImageEncoding":
        """Everything about an image that no question changes; pass it to `generate` in place of the image.

        Saves the grid encoder, the base half of the semantic encoder and the language model's prefill of the prompt up
        to and including the base tokens.

        Args:
            image: a PIL image, path, URL, data URL, array or tensor, or a list of them.
            pixel_values: [P, 3, side, side] in place of `image`, side a multiple of 4 patches; patch_mask: [P, N].

        Raises:
            ValueError: both or neither given, or an image that cannot be read.
        """
        if (image is None) == (pixel_values is None):
            raise ValueError("encode_image: expected exactly one of image and pixel_values; got both or neither")
        sizes = None
        if pixel_values is None:
            images = [load_image(one) for one in (image if isinstance(image, list | tuple) else [image])]
            sizes = [(one.height, one.width) for one in images]
            inputs = self.processor.image_processor(images, return_tensors="pt")
            pixel_values, patch_mask = inputs["pixel_values"], inputs["patch_mask"]
        device = self.get_input_embeddings().weight.device
        device = self.device if device.type == "meta" else device
        mask = None if patch_mask is None else patch_mask.to(device)
        encoding = replace(self.model.encode_image(pixel_values.to(device), mask), source_sizes=sizes)
        return self._with_prefix(encoding) if self._can_cache_prefix() else encoding

    def _can_cache_prefix(self) -> bool:
        """Only full-attention language models keep a plain cache of every position; and a prompt needs a processor."""
        try:
            return all(type(layer).__name__ == "DynamicLayer" for layer in self._fresh_cache().layers) and (
                self.processor is not None
            )
        except ValueError:
            return False

    def _fresh_cache(self) -> DynamicCache:
        return DynamicCache(config=self.config.text_config)

    def _with_prefix(self, encoding: "ImageEncoding") -> "ImageEncoding":
        """Prefills the language model with the prompt up to and including the base tokens."""
        text = self.processor.apply_chat_template(_prompt("?", 1), add_generation_prompt=True)
        before = text[: text.index(self.processor.image_token)]
        ids = self.processor.tokenizer(before, add_special_tokens=False, return_tensors="pt").input_ids[0]
        embeds = self.get_input_embeddings()(ids.to(encoding.tokens.device))
        base = encoding.tokens.to(embeds)
        cache = self._fresh_cache()
        prompt = torch.cat((embeds.expand(len(encoding), -1, -1), base), 1)
        self.model(prompt, past_key_values=cache, use_cache=True)
        placeholders = torch.full((base.shape[1],), self.config.image_token_id)
        kept = [(layer.keys, layer.values) for layer in cache.layers]
        return replace(encoding, prefix_ids=torch.cat((ids, placeholders)), prefix_cache=kept)

    # ---- generate -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        image: Any = None,
        question: str | Sequence[str] | None = None,
        *args: Any,
        strategy: str | None = None,
        budget: int | str | None = None,
        allocator: str | None = None,
        boxes: Sequence[Box] | Sequence[Sequence[Box]] | None = None,
        return_fetch: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Answers questions about images; without `question` it is transformers' own `generate(**inputs)`.

        Args:
            image: a PIL image, path, http(s) or data URL, array, tensor, or what `encode_image` returned. A list of
                images goes with a list of questions, pair by pair; one image with a list of questions is encoded once;
                an element that is itself a list puts several images into one prompt.
            question: a string, or a list.
            strategy: which scorer decides what is fetched; "none" answers from the base tokens alone.
            budget: saccades: a number, or "fast", "balanced", "standard", "accurate", "all".
            allocator: "topk" or "window".
            boxes: for strategy "oracle": (x0, y0, x1, y1) in px of the source image; a list of lists for several
                questions.
            return_fetch: give `Answer` objects (text, probability, what was fetched) in place of strings.
            **kwargs: to transformers' `generate` (`max_new_tokens`, `num_beams`, `streamer`, ...).

        Returns:
            A string for one image and one question, else a list of strings; `Answer`s with `return_fetch`.

        Raises:
            ValueError: bad input; the message says what was expected and what came.
        """
        if question is None:
            if image is not None and not (isinstance(image, Tensor) and image.ndim == 2):
                raise ValueError("question: expected one beside the image; got none")
            positional = () if image is None else (image,)
            return self._generate_from_inputs(*positional, *args, strategy=strategy, allocator=allocator, **kwargs)
        single = isinstance(question, str) and not isinstance(image, list | tuple)
        questions = _questions(question)
        self._check_choices(strategy, allocator)
        encoding, index, questions = self._encode_for(image, questions)
        inputs = self._prompt_inputs(encoding, index, questions, budget, strategy)
        oracle = self._oracle(encoding, index, boxes, strategy)
        answers = self._answer(encoding, index, inputs, strategy, allocator, oracle, return_fetch, kwargs)
        return answers[0] if single else answers

    def _check_choices(self, strategy: str | None, allocator: str | None) -> None:
        from .attending import ALLOCATORS

        if strategy is not None:
            self.model.fetcher.check_strategy(strategy)
        if allocator is not None:
            ALLOCATORS.named(allocator)

    def _encode_for(self, image: Any, questions: list[str]) -> tuple["ImageEncoding", list[list[int]], list[str]]:
        """The encodings, and for each question which of them its prompt shows."""
        if is_encoding(image):
            if len(image) not in (1, len(questions)):
                raise ValueError(f"images: expected 1 or {len(questions)} (one per question); got {len(image)}")
            index = [[0] if len(image) == 1 else [i] for i in range(len(questions))]
            return image, index, questions
        if not isinstance(image, list | tuple):
            prompts = [[image]]
        else:
            prompts = [list(one) if isinstance(one, list | tuple) else [one] for one in image]
        if not prompts or not all(prompts):
            raise ValueError("images: expected at least one; got an empty list")
        if len(questions) == 1:
            questions = questions * len(prompts)
        if len(prompts) not in (1, len(questions)):
            raise ValueError(f"images: expected 1 or {len(questions)} (one per question); got {len(prompts)}")
        flat = [one for prompt in prompts for one in prompt]
        ends = torch.tensor([len(prompt) for prompt in prompts]).cumsum(0).tolist()
        spans = [list(range(end - len(prompt), end)) for prompt, end in zip(prompts, ends, strict=True)]
        index = spans * len(questions) if len(spans) == 1 else spans
        return self.encode_image(flat), index, questions

    def _prompt_inputs(
        self,
        encoding: "ImageEncoding",
        index: list[list[int]],
        questions: list[str],
        budget: int | str | None,
        strategy: str | None,
    ) -> dict[str, Tensor]:
        """input_ids, attention_mask and query_mask [B, S], left-padded, with placeholders for every vision token."""
        strategy = self.config.fetcher_config.strategy if strategy is None else strategy
        count = encoding.tokens.shape[1]
        if self.model.fetcher.check_strategy(strategy).fetches:
            count += resolve_budget(budget, encoding.side**2, default=self.config.fetcher_config.budget)
        processor = self.processor
        texts = [
            processor.apply_chat_template(_prompt(question, len(images)), add_generation_prompt=True).replace(
                processor.image_token, processor.image_token * count
            )
            for question, images in zip(questions, index, strict=True)
        ]
        batch = processor.tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
        limit, longest = self.config.text_config.max_position_embeddings, int(batch["attention_mask"].sum(1).max())
        if longest >= limit:
            raise ValueError(
                f"question: expected a prompt of fewer than {limit} tokens, images included; got {longest}"
            )
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        inputs["query_mask"] = processor.query_mask(batch["input_ids"])
        return {name: tensor.to(encoding.tokens.device) for name, tensor in inputs.items()}

    def _oracle(self, encoding: "ImageEncoding", index: list[list[int]], boxes: Any, strategy: str | None) -> Any:
        """[I, N] 1 on the patches under the given boxes; None without boxes."""
        if boxes is None:
            return None
        slots = [i for images in index for i in images]
        nested = boxes if boxes and not isinstance(boxes[0][0], int | float) else [boxes]
        if len(nested) != len(slots):
            raise ValueError(f"boxes: expected one list per question and image ({len(slots)}); got {len(nested)}")
        side, patch = encoding.side, self.config.vision_config.patch_size
        rows = []
        for slot, given in zip(slots, nested, strict=True):
            if encoding.source_sizes is None:
                raise ValueError("boxes: expected an image whose size is known; got an encoding of bare pixel_values")
            mapped = self.processor.image_processor.map_boxes(given, *encoding.source_sizes[slot])
            rows.append(torch.from_numpy(boxes_to_patches(mapped, side, patch)).flatten())
        return torch.stack(rows).float().to(encoding.tokens.device)

    def _answer(
        self,
        encoding: "ImageEncoding",
        index: list[list[int]],
        inputs: dict[str, Tensor],
        strategy: str | None,
        allocator: str | None,
        oracle: Tensor | None,
        return_fetch: bool,
        kwargs: dict[str, Any],
    ) -> list[str] | list[Answer]:
        slots = torch.tensor([i for images in index for i in images])
        cache = None
        if all(len(images) == 1 for images in index) and self._prefix_usable(encoding, kwargs):
            inputs = self._pad_after_prefix(inputs, len(encoding.prefix_ids))
            cache = self._prefix(encoding, slots, kwargs)
        embeds, _, fetched, _ = self.model.embed_prompt(
            inputs["input_ids"], encoding, query_mask=inputs["query_mask"], image_index=slots,
            strategy=strategy, allocator=allocator, oracle=oracle, generator=kwargs.pop("generator", None),
        )  # fmt: skip
        if cache is not None:
            kwargs = {**kwargs, "past_key_values": cache}
        prompt = inputs["input_ids"]
        output = super().generate(
            input_ids=prompt, inputs_embeds=embeds, attention_mask=inputs["attention_mask"],
            **{**kwargs, "return_dict_in_generate": True, "output_scores": return_fetch},
        )  # fmt: skip
        answers = self.processor.tokenizer.batch_decode(
            output.sequences[:, prompt.shape[1] :], skip_special_tokens=True
        )
        answers = [answer.strip() for answer in answers]
        if not return_fetch:
            return answers
        return self._with_fetch(answers, output, prompt, index, fetched)

    def _prefix_usable(self, encoding: "ImageEncoding", kwargs: dict[str, Any]) -> bool:
        plain = kwargs.get("use_cache", True) and kwargs.get("cache_implementation") is None
        return encoding.prefix_cache is not None and bool(plain) and "past_key_values" not in kwargs

    @staticmethod
    def _pad_after_prefix(inputs: dict[str, Tensor], prefix: int) -> dict[str, Tensor]:
        """[pad][prefix][rest] -> [prefix][pad][rest], so that one cached prefix serves prompts of any length."""
        pads = (inputs["attention_mask"] == 0).sum(1).tolist()

        def move(rows: Tensor) -> Tensor:
            return torch.stack(
                [
                    torch.cat((row[pad : pad + prefix], row[:pad], row[pad + prefix :]))
                    for row, pad in zip(rows, pads, strict=True)
                ]
            )

        return {name: move(tensor) for name, tensor in inputs.items()}

    def _prefix(self, encoding: "ImageEncoding", slots: Tensor, kwargs: dict[str, Any]) -> DynamicCache:
        """A cache holding the prefix of each prompt's image, repeated for beams and returned sequences."""
        settings = kwargs.get("generation_config") or self.generation_config
        beams = kwargs.get("num_beams") or settings.num_beams or 1
        repeats = max(beams, kwargs.get("num_return_sequences") or settings.num_return_sequences or 1)
        cache = self._fresh_cache()
        for layer, (key, value) in enumerate(encoding.prefix_cache):
            rows = slots.to(key.device).repeat_interleave(repeats)
            cache.update(key[rows], value[rows], layer)
        return cache

    def _with_fetch(
        self, answers: list[str], output: Any, prompt: Tensor, index: list[list[int]], fetched: FetchResult
    ) -> list[Answer]:
        tokens = output.sequences[:, prompt.shape[1] :]
        beams = getattr(output, "beam_indices", None)
        scores = self.compute_transition_scores(output.sequences, output.scores, beams, normalize_logits=beams is None)
        pad = self.generation_config.pad_token_id
        ended = torch.zeros_like(tokens, dtype=torch.bool) if pad is None else tokens == pad
        total = scores.masked_fill(ended[:, : scores.shape[1]] | scores.isinf(), 0.0).sum(1).exp().tolist()
        repeats = len(answers) // len(index)
        first = [0, *torch.tensor([len(images) for images in index]).cumsum(0).tolist()]
        return [
            Answer(text, probability, fetched.rows(first[i // repeats], first[i // repeats + 1]))
            for i, (text, probability) in enumerate(zip(answers, total, strict=True))
        ]

    def _generate_from_inputs(self, *args: Any, strategy: str | None, allocator: str | None, **kwargs: Any) -> Any:
        """transformers' `generate`, with the images encoded and fetched from once, before beams repeat the prompts."""
        chosen = {"strategy": strategy, "allocator": allocator}
        kwargs.update({name: value for name, value in chosen.items() if value is not None})
        pixel_values, encoding = kwargs.get("pixel_values"), kwargs.get("image_encoding")
        if (pixel_values is None and encoding is None) or kwargs.get("use_cache") is False:
            return super().generate(*args, **kwargs)
        given = [*args[:1], kwargs.pop("inputs", None), kwargs.pop("input_ids", None)]
        input_ids = next((ids for ids in given if ids is not None), None)
        if input_ids is None:
            raise ValueError("input_ids: expected the prompt beside the images; got none")
        kwargs.pop("pixel_values", None)
        kwargs.pop("image_encoding", None)
        prompt = {name: kwargs.pop(name, None) for name in _PROMPT_ONLY}
        mask, query_mask = prompt.pop("patch_mask"), prompt.pop("query_mask")
        labels = kwargs.pop("relevance_labels", None)
        prompt["oracle"] = prompt.pop("oracle_relevance") if prompt["oracle_relevance"] is not None else labels
        prompt.pop("oracle_relevance", None)
        if query_mask is None:
            query_mask = self.default_query_mask(input_ids, kwargs.get("attention_mask"))
        encoding = self.model.encode_image(pixel_values, mask) if encoding is None else encoding
        embeds, *_ = self.model.embed_prompt(input_ids, encoding, query_mask=query_mask.bool(), **prompt)
        return super().generate(*args[1:], input_ids=input_ids, inputs_embeds=embeds, **kwargs)
