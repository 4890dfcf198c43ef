"""Asking: from an image and a question to an answer, on top of transformers' `generate`.

Notation: B questions, P encoded images, I image slots, S prompt length, N patches, M base tokens, K saccades, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache

from .allocators import ALLOCATORS, budget_and_allocator
from .configuration_arr_coc import resolve_budget
from .fetcher import FetchResult
from .image_loading import load_image
from .image_processing_arr_coc import Box, boxes_to_patches
from .preparing import boxes_per_slot, checked_questions, device_of, is_encoding, load_processor, prompt_messages
from .processing_arr_coc import ArrCocProcessor
from .prompt import begins_with, pad_after_prefix
from .vision_tower import ImageEncoding

IMAGE_ARGUMENTS = (
    "pixel_values", "patch_mask", "image_index", "image_encoding", "query_mask", "relevance_labels", "oracle_relevance",
    "strategy", "allocator", "generator", "bridge_bypass",
)  # fmt: skip
"""Arguments of `forward` about images and what is fetched of them: the first pass over a prompt uses them up."""

_POSITIONAL = ("inputs", "generation_config", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn")
"""The first parameters of transformers' `generate`, in order."""


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


def _behind_prompt(output: Any, input_ids: Tensor, trimmed: int) -> Any:
    """What `generate` returned for trimmed prompts, its sequences behind the prompts [B, S] as they were given."""
    sequences = output if isinstance(output, Tensor) else output.sequences
    prompts = input_ids.repeat_interleave(len(sequences) // len(input_ids), 0)
    sequences = torch.cat((prompts.to(sequences.device), sequences[:, trimmed:]), 1)
    if isinstance(output, Tensor):
        return sequences
    output.sequences = sequences
    return output


class AskingMixin:
    """`generate(image, question)`, `encode_image(image)` and the processor behind them."""

    _processor: ArrCocProcessor | None = None

    if TYPE_CHECKING:  # what the model class it is mixed into has
        config: Any
        model: Any
        generation_config: Any
        get_input_embeddings: Any
        compute_transition_scores: Any
        embed_images: Any

    @property
    def processor(self) -> ArrCocProcessor:
        """The checkpoint's processor, loaded on first use; assign to use another.

        Raises:
            ValueError: the checkpoint has none.
        """
        if self._processor is None:
            self._processor = load_processor(self.config)
        return self._processor

    @processor.setter
    def processor(self, processor: ArrCocProcessor | None) -> None:
        self._processor = processor

    # ---- encode once ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode_image(
        self, image: Any = None, *, pixel_values: Tensor | None = None, patch_mask: Tensor | None = None
    ) -> ImageEncoding:
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
        if pixel_values is not None:
            return self._with_prefix(self._encode_pixels(pixel_values, patch_mask))
        return self._with_prefix(self._encode_sources(image if isinstance(image, list | tuple) else [image]))

    def _encode_sources(self, sources: Sequence[Any]) -> ImageEncoding:
        processor = self.processor.image_processor
        images = [load_image(one, max_image_pixels=processor.max_image_pixels) for one in sources]
        inputs = processor(images, return_tensors="pt")
        encoding = self._encode_pixels(inputs["pixel_values"], inputs["patch_mask"])
        return replace(encoding, source_sizes=[(one.height, one.width) for one in images])

    def _encode_pixels(self, pixel_values: Tensor, patch_mask: Tensor | None) -> ImageEncoding:
        device = device_of(self.get_input_embeddings())
        mask = None if patch_mask is None else patch_mask.to(device)
        return self.model.encode_image(pixel_values.to(device), mask)

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

    def _with_prefix(self, encoding: ImageEncoding) -> ImageEncoding:
        """Prefills the language model with the prompt up to and including the base tokens, where that can be kept."""
        if not self._can_cache_prefix():
            return encoding
        text = self.processor.apply_chat_template(prompt_messages("?", 1), add_generation_prompt=True)
        before = text[: text.index(self.processor.image_token)]
        ids = self.processor.tokenizer(before, add_special_tokens=False, return_tensors="pt").input_ids[0].long()
        embeds = self.get_input_embeddings()(ids.to(encoding.tokens.device))
        base = encoding.tokens.to(embeds)
        cache = self._fresh_cache()
        prompt = torch.cat((embeds.expand(len(encoding), -1, -1), base), 1)
        self.model(prompt, past_key_values=cache, use_cache=True)
        placeholders = torch.full((base.shape[1],), self.config.image_token_id)
        kept = [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[union-attr]
        return replace(encoding, prefix_ids=torch.cat((ids, placeholders)), prefix_cache=kept)  # type: ignore[arg-type]

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
        bridge_bypass: bool | None = None,
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
            budget: saccades: a number, "fast", "balanced", "standard", "accurate", "all", "tier:128" (see
                `resolve_budget`), or "auto": the model chooses for each item, by the configured allocator if that
                chooses, else by "tiers".
            allocator: "topk" or "window" fetch exactly the budget, "tiers" and "adaptive" at most that.
            boxes: for strategy "oracle": (x0, y0, x1, y1) in px of the source image; a list of lists for several
                questions.
            bridge_bypass: whether the bridge gives way to its linear projection; None as configured.
            return_fetch: give `Answer` objects (text, probability, what was fetched) in place of strings.
            **kwargs: to transformers' `generate` (`max_new_tokens`, `num_beams`, `streamer`, ...).

        Returns:
            A string for one image and one question, else a list of strings; `Answer`s with `return_fetch`.

        Raises:
            ValueError: bad input; the message says what was expected and what came.
        """
        if question is None or isinstance(question, GenerationConfig):
            for name, given in (("budget", budget), ("boxes", boxes), ("return_fetch", return_fetch or None)):
                if given is not None:
                    raise ValueError(f"{name}: expected only with a question; got it beside model inputs")
            if image is not None and not (isinstance(image, Tensor) and image.ndim == 2):
                raise ValueError("question: expected one beside the image; got none")
            positional = zip(_POSITIONAL, (image, question, *args), strict=False)
            kwargs.update({name: value for name, value in positional if value is not None})
            chosen = {"strategy": strategy, "allocator": allocator, "bridge_bypass": bridge_bypass}
            return self._generate_from_inputs(chosen, **kwargs)
        kwargs.update(zip(_POSITIONAL[2:], args, strict=False))
        self._check_choices(strategy, allocator)
        budget, allocator = budget_and_allocator(budget, allocator, self.config.fetcher_config)
        single = isinstance(question, str) and not isinstance(image, list | tuple)
        questions = checked_questions(question, self.processor.image_token)
        encoding, index, questions = self._encode_for(image, questions, bridge_bypass, kwargs)
        inputs = self._prompt_inputs(encoding, index, questions, budget, strategy)
        oracle = self._oracle(encoding, index, boxes)
        answers = self._answer(encoding, index, inputs, strategy, allocator, oracle, return_fetch, kwargs)
        return answers[0] if single and len(answers) == 1 else answers

    def _check_choices(self, strategy: str | None, allocator: str | None) -> None:
        if strategy is not None:
            self.model.fetcher.check_strategy(strategy)
        if allocator is not None:
            ALLOCATORS.named(allocator)

    def _encode_for(
        self, image: Any, questions: list[str], bypass: bool | None, kwargs: dict[str, Any]
    ) -> tuple[ImageEncoding, list[list[int]], list[str]]:
        """The encodings, for each question which of them its prompt shows, and as many questions as prompts."""
        if is_encoding(image):
            spans = [[i] for i in range(len(image))]
        else:
            prompts = image if isinstance(image, list | tuple) else [image]
            prompts = [list(one) if isinstance(one, list | tuple) else [one] for one in prompts]
            ends = torch.tensor([len(prompt) for prompt in prompts]).cumsum(0).tolist()
            spans = [list(range(end - len(prompt), end)) for prompt, end in zip(prompts, ends, strict=True)]
        if not spans or not all(spans):
            raise ValueError("images: expected at least one; got an empty list")
        if len(questions) == 1:
            questions = questions * len(spans)
        if len(spans) not in (1, len(questions)):
            raise ValueError(f"images: expected 1 or {len(questions)} (one per question); got {len(spans)}")
        index = spans * len(questions) if len(spans) == 1 else spans
        if is_encoding(image):
            return self.model.with_bypass(image, bypass), index, questions
        encoding = self._encode_sources([one for prompt in prompts for one in prompt])
        encoding = self.model.with_bypass(encoding, bypass)
        # A prefix pays where several questions share it.
        shared = len(encoding) == 1 < len(questions) and self._cache_is_plain(kwargs)
        return self._with_prefix(encoding) if shared else encoding, index, questions

    def _prompt_inputs(
        self,
        encoding: ImageEncoding,
        index: list[list[int]],
        questions: list[str],
        budget: int | str | None,
        strategy: str | None,
    ) -> dict[str, Tensor]:
        """input_ids, attention_mask and query_mask [B, S], left-padded, with placeholders for every vision token."""
        strategy = self.config.fetcher_config.strategy if strategy is None else strategy
        base, count = encoding.semantic.shape[1], encoding.base_positions
        if self.model.fetcher.check_strategy(strategy).fetches:
            default, taken = self.config.fetcher_config.budget, base if self.config.excludes_base else 0
            count += resolve_budget(budget, encoding.side**2, default=default, taken=taken)
        processor = self.processor
        texts = [
            processor.apply_chat_template(prompt_messages(question, len(images)), add_generation_prompt=True).replace(
                processor.image_token, processor.image_token * count
            )
            for question, images in zip(questions, index, strict=True)
        ]
        batch = processor.tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
        limit = getattr(self.config.text_config, "max_position_embeddings", None)  # BLOOM knows no limit
        longest = int(batch["attention_mask"].sum(1).max())
        if limit is not None and longest >= limit:
            raise ValueError(
                f"question: expected a prompt of fewer than {limit} tokens, images included; got {longest}"
            )
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        inputs["query_mask"] = processor.query_mask(batch["input_ids"])
        return {name: tensor.to(encoding.tokens.device) for name, tensor in inputs.items()}

    def _oracle(self, encoding: ImageEncoding, index: list[list[int]], boxes: Any) -> Tensor | None:
        """[I, N] 1 on the patches under the given boxes; None without boxes."""
        if boxes is None:
            return None
        slots = [i for images in index for i in images]
        nested = boxes_per_slot(boxes)
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
        encoding: ImageEncoding,
        index: list[list[int]],
        inputs: dict[str, Tensor],
        strategy: str | None,
        allocator: str | None,
        oracle: Tensor | None,
        return_fetch: bool,
        kwargs: dict[str, Any],
    ) -> list[str] | list[Answer]:
        slots = torch.tensor([i for images in index for i in images])
        embedded = self.model.compose(
            **inputs, encoding=encoding, image_index=slots, strategy=strategy, allocator=allocator, oracle=oracle,
            generator=kwargs.pop("generator", None),
        )  # fmt: skip
        inputs = {name: embedded.inputs[name] for name in ("input_ids", "attention_mask")}
        inputs["inputs_embeds"] = embedded.embeds
        if self._cache_is_plain(kwargs) and self._begins_with_prefix(encoding, inputs):
            inputs = pad_after_prefix(inputs, len(encoding.prefix_ids))  # type: ignore[arg-type]
            kwargs = {**kwargs, "past_key_values": self._prefix(encoding, slots, kwargs)}
        prompt = inputs["input_ids"]
        output = super().generate(  # type: ignore[misc]
            **inputs,
            **{**kwargs, "return_dict_in_generate": True, "output_logits": return_fetch},
        )  # fmt: skip
        answers = self.processor.tokenizer.batch_decode(
            output.sequences[:, prompt.shape[1] :], skip_special_tokens=True
        )
        answers = [answer.strip() for answer in answers]
        if not return_fetch:
            return answers
        probabilities = self._probabilities(output, prompt.shape[1], kwargs)
        repeats = len(answers) // len(index)
        first = [0, *torch.tensor([len(images) for images in index]).cumsum(0).tolist()]
        return [
            Answer(text, probability, embedded.fetch.rows(first[i // repeats], first[i // repeats + 1]))
            for i, (text, probability) in enumerate(zip(answers, probabilities, strict=True))
        ]

    def _setting(self, kwargs: dict[str, Any], name: str, default: Any = None) -> Any:
        """A setting of the generation as transformers will see it: the call's, its GenerationConfig's, the model's."""
        configs = (kwargs.get("generation_config"), self.generation_config)
        given = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
        return next((value for value in given if value is not None), default)

    def _cache_is_plain(self, kwargs: dict[str, Any]) -> bool:
        """Whether this generation keeps the cache that a prefix is kept in."""
        static = self._setting(kwargs, "cache_implementation") is not None
        return bool(self._setting(kwargs, "use_cache", True)) and not static and "past_key_values" not in kwargs

    @staticmethod
    def _begins_with_prefix(encoding: ImageEncoding, inputs: dict[str, Tensor]) -> bool:
        """Whether every prompt begins with the tokens that the encoding holds keys and values of."""
        if encoding.prefix_ids is None or encoding.prefix_cache is None:
            return False
        return begins_with(encoding.prefix_ids, inputs["input_ids"], inputs["attention_mask"])

    def _prefix(self, encoding: ImageEncoding, slots: Tensor, kwargs: dict[str, Any]) -> DynamicCache:
        """A cache holding the prefix of each prompt's image, repeated for beams and returned sequences."""
        repeats = max(self._setting(kwargs, name, 1) for name in ("num_beams", "num_return_sequences"))
        cache = self._fresh_cache()
        for layer, (key, value) in enumerate(encoding.prefix_cache):  # type: ignore[arg-type]
            rows = slots.to(key.device).repeat_interleave(repeats)
            cache.update(key[rows], value[rows], layer)
        return cache

    def _probabilities(self, output: Any, start: int, kwargs: dict[str, Any]) -> list[float]:
        """Of each answer, which begins at `start`: the product of the model's own probabilities, first end included."""
        tokens, beams = output.sequences[:, start:], getattr(output, "beam_indices", None)
        scores = self.compute_transition_scores(output.sequences, output.logits, beams, normalize_logits=True)
        end, pad = self._setting(kwargs, "eos_token_id", []), self._setting(kwargs, "pad_token_id", -1)
        ends = torch.isin(tokens, torch.as_tensor(end, dtype=tokens.dtype, device=tokens.device).reshape(-1))
        behind = ends.cumsum(1) - ends.int() > 0
        behind |= (tokens == torch.as_tensor(pad, device=tokens.device)) & ~ends  # stopped by something else
        return scores.masked_fill(behind[:, : scores.shape[1]], 0.0).sum(1).exp().tolist()

    def _generate_from_inputs(self, chosen: dict[str, Any], **kwargs: Any) -> Any:
        """transformers' `generate`, with the images encoded and fetched from once, before beams repeat the prompts."""
        kwargs.update({name: value for name, value in chosen.items() if value is not None})
        if kwargs.get("pixel_values") is None and kwargs.get("image_encoding") is None:
            return super().generate(**kwargs)  # type: ignore[misc]
        given = (kwargs.pop("inputs", None), kwargs.pop("input_ids", None))
        input_ids = next((ids for ids in given if ids is not None), None)
        if input_ids is None:
            raise ValueError("input_ids: expected the prompt beside the images; got none")
        about_images = {name: kwargs.pop(name) for name in IMAGE_ARGUMENTS if name in kwargs}
        aligned = {name: kwargs.pop(name, None) for name in ("attention_mask", "position_ids")}
        made = self.embed_images(input_ids, **aligned, **about_images)
        inputs = {name: made.inputs[name] for name in ("input_ids", *aligned) if name in made.inputs}
        length = inputs["input_ids"].shape[1]
        for name in ("max_length", "min_length"):  # as many new tokens as if the prompt were as long as it was given
            limit = self._setting(kwargs, name)
            if limit and length < input_ids.shape[1]:
                kwargs[name] = max(0, limit - input_ids.shape[1] + length)
        output = super().generate(inputs_embeds=made.embeds, **inputs, **kwargs)  # type: ignore[misc]
        return output if inputs["input_ids"] is input_ids else _behind_prompt(output, input_ids, length)
