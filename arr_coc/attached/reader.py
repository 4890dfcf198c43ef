"""The user's door to running back on a published vision-language model.

Notation: B questions, N image tokens of a prompt as the plain model has them, M base tokens, K fetched ones, S prompt
length, D width of the language model.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from ..modeling.answers import Answer, answer_probabilities
from ..modeling.asker import check_decoding, checked_questions, generation_setting, shown_by_prompts, within_context
from ..modeling.before_5_24 import CACHE
from ..modeling.checks import boxes_per_slot
from ..modeling.glance import AttentionRecorder
from ..modeling.image_loading import load_image
from ..modeling.image_processing_arr_coc import Box
from ..modeling.prefix import keeps_every_position
from .encoding import AttachedEncoding, EncodedPrompt, cells_of, mean_over_cells, places_of, saliency_of
from .families import FAMILIES, View
from .fetch import fetch_result, origins
from .placing import BASE, FETCHED, Batch, PlacedPrompt, count_fetched, pad, place
from .scoring import STRATEGIES, between_cells, make_scorer, most_relevant, relevance_of_boxes, score

BUDGET = 0.25
"""Of the plain model's image tokens, where a call says nothing."""

POOL = 4
"""Image tokens along each axis that one base token stands for, where a call says nothing."""

ATTENTION_LAYERS = (0.25, 0.75)
"""From which to which share of the language model's depth strategy "attention" reads."""

NEW_TOKENS = 128
"""Of an answer at most, where neither the call nor the model's generation config says."""


def attach(model: Any, processor: Any) -> "AttachedReader":
    """Running back on a published vision-language model: fewer image tokens, those that each question asks for.

    The model is used through its own public methods and keeps nothing: it works beside the reader as before.

    Args:
        model: of one of the families in `FAMILIES`, as `AutoModelForImageTextToText` loads it.
        processor: the model's, as `AutoProcessor` loads it.

    Raises:
        ValueError: a model of another family, or a processor of another model.

    Example:
        >>> reader = arr_coc.attach(model, processor)
        >>> page = reader.encode_image("invoice.jpg")
        >>> reader.generate(page, "What is the total?", budget=0.25, return_fetch=True)
    """
    return AttachedReader(model, processor)


class AttachedReader:
    """Asks a published model about images: see `attach`.

    Attributes:
        model, processor: as they were given.
        scorer: the trained scorer that strategy "realizer" runs, or None.
    """

    def __init__(self, model: Any, processor: Any) -> None:
        self.family = FAMILIES[model.config.model_type](model, processor)
        expected = PROCESSOR_MAPPING_NAMES.get(model.config.model_type)
        if expected not in [kind.__name__ for kind in type(processor).__mro__]:
            raise ValueError(f"processor: expected a {expected}; got {type(processor).__name__}")
        self.model = model
        self.processor = processor
        self.scorer: nn.Module | None = None
        self.image_token = processor.tokenizer.convert_ids_to_tokens(model.config.image_token_id)
        if processor.tokenizer.convert_tokens_to_ids(self.image_token) != model.config.image_token_id:
            expected = f"one whose tokenizer has the model's image token, {model.config.image_token_id}"
            raise ValueError(f"processor: expected {expected}; got {type(processor).__name__} of another model")

    # ---- encode once ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode_image(self, image: Any, *, pool: int = POOL, prefix: bool = True) -> AttachedEncoding:
        """Everything about images that no question changes.

        Args:
            image: in any form that our own models take: one; a list, one for each question; or a list of lists, shown
                together.
            pool: image tokens along each axis that one base token is the mean of; 0: no base tokens.
            prefix: whether the language model reads the prompt up to the base tokens, which questions then share.

        Raises:
            ValueError: an image that cannot be read, or a pool below 0.
        """
        if isinstance(pool, bool) or not isinstance(pool, int) or pool < 0:
            raise ValueError(f"pool: expected an integer from 0; got {pool!r}")
        images = [[load_image(source) for source in shown] for shown in shown_by_prompts(image)]
        texts = [self._chat(len(shown), "?") for shown in images]
        inputs = self.processor(
            text=texts, images=images, padding=True, return_tensors="pt", return_text_replacement_offsets=True
        )
        replaced = [[part["replacement"] for part in parts] for parts in inputs.pop("text_replacement_offsets")]
        core = self.model.base_model
        wanted = inspect.signature(core.get_image_features).parameters
        pixels = {name: inputs[name].to(self.model.device) for name in wanted if name in inputs}
        outputs = core.get_image_features(**pixels, return_dict=True)
        tokens = _flat(outputs.pooler_output)
        planes = [_flat(plane) for plane in getattr(outputs, "deepstack_features", None) or []]
        prompts, start, first = list[EncodedPrompt](), 0, 0
        for shown, own in zip(images, replaced, strict=True):
            known = self.family.of_prompt(inputs, first, first + len(shown))
            views = self._views(shown, own, known)
            end = start + sum(map(len, views))
            part = [plane[start:end] for plane in planes]
            prompts.append(_encoded_prompt(shown, own, views, tokens[start:end], part, pool, known))
            start, first = end, first + len(shown)
        if start != len(tokens):
            raise ValueError(f"processor: expected {len(tokens)} image tokens, as the model makes; got {start}")
        kept = {name: outputs[name] for name in ("visual_indicator_features",) if name in outputs}
        encoding = AttachedEncoding(prompts, self.model, lambda **own: {"image": type(outputs)(**own, **kept)})
        if prefix and pool:
            for prompt in prompts:
                self._read_prefix(encoding, prompt)
        return encoding

    def _views(self, images: Sequence[Image.Image], texts: Sequence[str], known: dict[str, Tensor]) -> list[View]:
        views = list[View]()
        for number, (image, text) in enumerate(zip(images, texts, strict=True)):
            count = text.count(self.image_token)
            own = self.family.views(number, (image.height, image.width), count, text, known)
            if sum(map(len, own)) != count:
                expected = f"views of {count} image tokens, as the processor writes"
                raise ValueError(f"{self.model.config.model_type}: expected {expected}; got {sum(map(len, own))}")
            views += own
        return views

    def _read_prefix(self, encoding: AttachedEncoding, prompt: EncodedPrompt) -> None:
        """Has the language model read the prompt up to its last base token."""
        placed = self._place(prompt, self._plain_prompt(prompt, "?"), torch.zeros(0, dtype=torch.long))
        cache = DynamicCache(config=self.model.config.get_text_config())
        batch = self._batch([placed])
        self.model.base_model(**self._inputs(encoding, batch, end=placed.prefix), **{CACHE: cache}, use_cache=True)
        prompt.prefix_ids, prompt.prefix = placed.ids[: placed.prefix], cache

    # ---- ask ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        image: Any,
        question: str | Sequence[str],
        *,
        budget: float | int | str = BUDGET,
        strategy: str | None = None,
        boxes: Sequence[Box] | Sequence[Sequence[Box]] | None = None,
        seed: int = 0,
        pool: int = POOL,
        return_fetch: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Answers questions about images.

        Args:
            image: what `encode_image` takes or returned; None: a prompt without an image, which the plain model gets.
            question: one, or several: one for each prompt, or all about one prompt, or one about all.
            budget: how many image tokens the language model reads: see `count_fetched`. 1.0: all of them, in their
                places, which is what the plain model does.
            strategy: what says where to run back to: a name in `STRATEGIES`; None: "realizer" where there is a trained
                scorer, else "attention".
            boxes: (x0, y0, x1, y1) px for strategy "oracle": a list, or one for each image of each prompt.
            seed: of strategy "random".
            pool: see `encode_image`; of images that are not encoded yet.
            return_fetch: whether to return `Answer`s, with what was fetched.
            kwargs: what transformers' `generate` takes.

        Returns:
            The answer, or a list of them for lists.

        Raises:
            ValueError: what cannot be asked; before anything is encoded where that can be told before.
        """
        questions = self._checked(question)
        check_decoding(self.model, kwargs)
        single = isinstance(question, str) and not isinstance(image, list | tuple)
        strategy = self._checked_strategy(strategy, boxes)
        if image is None:
            answers = self._without_image(questions, kwargs)
            return answers[0] if single and len(answers) == 1 else answers
        count_fetched(budget, 2**30, 2**30, int(pool > 0))  # refuses what no image allows
        if not isinstance(image, AttachedEncoding):
            image = self.encode_image(image, pool=pool, prefix=strategy == "attention" or len(questions) > 1)
        elif image.model is not self.model:
            raise ValueError(f"encoding: expected one that this model made; got one of {type(image.model).__name__}")
        prompts = _paired(image.prompts, len(questions))
        questions = questions * len(prompts) if len(questions) == 1 else questions
        given = None if boxes is None else iter(boxes_per_slot(boxes))
        placed, fetches = [], []
        for prompt, text in zip(prompts, questions, strict=True):
            asked = self._plain_prompt(prompt, text)
            own = None if given is None else [next(given, []) for _ in prompt.texts]
            fetched = self._fetch(image, prompt, asked, text, budget, strategy, own, seed)
            placed.append(self._place(prompt, asked, None if fetched.strategy == "all" else fetched.indices[0]))
            fetches.append(fetched)
        output, texts, span = self._generated(image, prompts, placed, kwargs, return_fetch)
        if not return_fetch:
            return texts[0] if single and len(texts) == 1 else texts
        whole = output if generation_setting(self.model, kwargs, "return_dict_in_generate") else None
        answers, repeats = [], len(texts) // len(prompts)
        for number, probability in enumerate(answer_probabilities(self.model, output, *span)):
            fetched, prompt = fetches[number // repeats], prompts[number // repeats]
            sources = origins(prompt, fetched.indices[0])
            answers.append(Answer(texts[number], probability, fetched, sources, output=whole))
        return answers[0] if single and len(answers) == 1 else answers

    # ---- checks before work ----------------------------------------------------------------------------------------

    def _checked(self, question: str | Sequence[str]) -> list[str]:
        questions = checked_questions(question, [])
        for text in questions:
            for token in {self.image_token, self.processor.image_token}:
                if token in text:
                    raise ValueError(
                        f"question: expected text without {token}, which stands for an image; got {text!r}"
                    )
        return questions

    def _checked_strategy(self, strategy: str | None, boxes: Any) -> str:
        if strategy is None:
            strategy = "attention" if self.scorer is None else "realizer"
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy: expected one of {', '.join(sorted(STRATEGIES))}; got {strategy!r}")
        if strategy == "realizer" and self.scorer is None:
            raise ValueError('strategy "realizer": expected a trained scorer (load_adapter, or train_scorer); got none')
        if (strategy == "oracle") != (boxes is not None):
            expected = "boxes with strategy oracle, and with no other"
            raise ValueError(f"boxes: expected {expected}; got strategy {strategy!r} {'with' if boxes else 'without'}")
        return strategy

    # ---- prompts ---------------------------------------------------------------------------------------------------

    def _chat(self, images: int, question: str) -> str:
        """The prompt's text, with one placeholder for each image."""
        content = [*({"type": "image"} for _ in range(images)), {"type": "text", "text": question}]
        chat = [{"role": "user", "content": content}]
        text = self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        if (count := text.count(self.processor.image_token)) != images:
            raise ValueError(f"chat template: expected a place for each of {images} images; got {count}")
        return text

    def _tokenized(self, text: str) -> Tensor:
        """[S] ids, as the processor makes them of a chat."""
        tokenizer = self.processor.tokenizer
        bare = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
        ids = tokenizer(text, add_special_tokens=not bare).input_ids
        return torch.tensor(ids, device=self.model.device)

    def _plain_prompt(self, prompt: EncodedPrompt, question: str) -> tuple[Tensor, Tensor, Tensor]:
        """The plain model's prompt: ids [S], bool [S] True on its N image tokens, and positions [axes, S]."""
        chat = self._chat(len(prompt.texts), question)
        ids = self._tokenized(self.processor.get_text_with_replacements([chat], prompt.texts)[0][0])
        is_image = ids == self.model.config.image_token_id
        return ids, is_image, self.family.positions(ids, prompt.inputs).to(ids.device)

    def _place(
        self, prompt: EncodedPrompt, asked: tuple[Tensor, Tensor, Tensor], fetched: Tensor | None
    ) -> PlacedPrompt:
        ids, is_image, positions = asked
        tokens, planes = self._take(prompt, fetched)
        return place(ids, positions, is_image, prompt, fetched, tokens, planes)

    def _take(self, prompt: EncodedPrompt, fetched: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Image tokens [K, D] and their planes; None: all."""
        assert prompt.tokens is not None
        if fetched is None:
            return prompt.tokens, prompt.planes
        at = fetched.to(prompt.tokens.device)
        return prompt.tokens[at], [plane[at] for plane in prompt.planes]

    # ---- fetch -----------------------------------------------------------------------------------------------------

    def _fetch(
        self, encoding: AttachedEncoding, prompt: EncodedPrompt, asked: tuple[Tensor, Tensor, Tensor], question: str,
        budget: float | int | str, strategy: str, boxes: Sequence[Sequence[Box]] | None, seed: int,
    ) -> Any:  # fmt: skip
        """What to fetch for a question; of strategy "all" where the budget keeps all."""
        count = count_fetched(budget, len(prompt), int(prompt.is_place.sum()), len(prompt.base))
        device = self.model.device
        if count is None:
            every, none = torch.arange(len(prompt), device=device), torch.zeros(len(prompt), device=device)
            return fetch_result(prompt, every, none, none + 1, "all", failed=False)
        words = self._tokenized_words(question)
        attention = None
        if strategy == "attention" and count:
            attention = between_cells(self._attention(encoding, prompt, asked, words), prompt)
        relevance = None if boxes is None else relevance_of_boxes(prompt, boxes).to(device)
        scorer = self.scorer if strategy == "realizer" else make_scorer(strategy, prompt.seen.shape[1])
        query = self.model.get_input_embeddings()(words)
        given = {"attention": torch.zeros(len(prompt)) if attention is None else attention, "relevance": relevance}
        scores, relevant, failed = score(scorer, prompt, query, **given, seed=seed)  # type: ignore[arg-type]
        indices = most_relevant(scores, prompt.is_place, count)
        return fetch_result(prompt, indices, scores, relevant, strategy, failed and count > 0)

    def _tokenized_words(self, question: str) -> Tensor:
        """[L] the question's own tokens."""
        ids = self.processor.tokenizer(question, add_special_tokens=False).input_ids
        return torch.tensor(ids, device=self.model.device)

    def _attention(
        self, encoding: AttachedEncoding, prompt: EncodedPrompt, asked: tuple[Tensor, Tensor, Tensor], words: Tensor
    ) -> Tensor:
        """[M] what the question's tokens attend to among base tokens, in the language model's middle layers.

        The language model reads base and question, behind the cached prefix where there is one.

        Raises:
            ValueError: no base tokens, or attention of a kind that shows no weights.
        """
        if not len(prompt.base):
            raise ValueError(
                'strategy "attention": expected base tokens (pool above 0), which are read first; got none'
            )
        placed = self._place(prompt, asked, torch.zeros(0, dtype=torch.long))
        cache, start = self._prefix([prompt], [placed])
        question = _find(placed.ids[placed.prefix :], words) + placed.prefix - start
        with AttentionRecorder(_mask(question, len(placed.ids) - start)[None]) as recorder:
            inputs = self._inputs(encoding, self._batch([placed], start), start=start)
            self.model.base_model(**inputs, **{CACHE: cache}, use_cache=cache is not None)
        if not recorder.layers:
            received = self.model.config.get_text_config()._attn_implementation
            expected = 'a language model with attention "sdpa" or "eager", which shows its weights'
            raise ValueError(f'strategy "attention": expected {expected}; got {received!r}')
        low, high = (round(share * len(recorder.layers)) for share in ATTENTION_LAYERS)
        low = min(low, len(recorder.layers) - 1)
        layers = recorder.layers[low : max(low + 1, high)]
        base = (placed.kinds == BASE).nonzero().flatten()
        return torch.stack([paid[0, base.to(paid.device)].to(base.device) for paid in layers]).mean(0)

    # ---- generate ---------------------------------------------------------------------------------------------------

    def _generated(
        self, encoding: AttachedEncoding, prompts: Sequence[EncodedPrompt], placed: Sequence[PlacedPrompt],
        kwargs: dict[str, Any], with_logits: bool,
    ) -> tuple[Any, list[str], tuple[int, Any, int]]:  # fmt: skip
        """What `generate` returned, the answers' texts, and the span that `answer_probabilities` takes."""
        repeats = max(self._setting(kwargs, name, 1) for name in ("num_beams", "num_return_sequences"))
        plain = CACHE not in kwargs and self._setting(kwargs, "cache_implementation") is None
        plain &= repeats == 1 and bool(self._setting(kwargs, "use_cache", True))
        plain &= self._setting(kwargs, "prompt_lookup_num_tokens") is None
        cache, start = self._prefix(prompts, placed) if plain else (None, 0)
        batch = self._batch(placed, start, level=repeats > 1 and not self.family.by_prompt)
        inputs = self._inputs(encoding, batch, stacked=repeats > 1)
        inputs["input_ids"] = batch.ids
        if cache is not None:
            inputs[CACHE] = cache
        output, texts = self._decoded(inputs, kwargs, with_logits)
        end, padding = self._setting(kwargs, "eos_token_id", []), self._setting(kwargs, "pad_token_id", -1)
        return output, texts, (batch.ids.shape[1], end, padding)

    def _without_image(self, questions: Sequence[str], kwargs: dict[str, Any]) -> list[str]:
        """What the plain model answers to text."""
        texts = [self._chat(0, text) for text in questions]
        inputs = self.processor(text=texts, padding=True, padding_side="left", return_tensors="pt")
        return self._decoded(inputs.to(self.model.device), kwargs, False)[1]

    def _decoded(self, inputs: dict[str, Any], kwargs: dict[str, Any], with_logits: bool) -> tuple[Any, list[str]]:
        start = inputs["input_ids"].shape[1]
        settings = within_context(self.model, kwargs, start) | {"return_dict_in_generate": True}
        if self._setting(kwargs, "max_new_tokens") is None and "max_length" not in kwargs:
            settings["max_new_tokens"] = NEW_TOKENS
        if with_logits:
            settings["output_logits"] = True
        output = self.model.generate(**inputs, **settings)
        texts = self.processor.tokenizer.batch_decode(output.sequences[:, start:], skip_special_tokens=True)
        return output, [text.strip() for text in texts]

    def _setting(self, kwargs: dict[str, Any], name: str, default: Any = None) -> Any:
        return generation_setting(self.model, kwargs, name, default)

    def _batch(self, placed: Sequence[PlacedPrompt], prefix: int = 0, level: bool = False) -> Batch:
        token = self._setting({}, "pad_token_id")
        token = self.processor.tokenizer.pad_token_id if token is None else token
        return pad(placed, self.model.config.image_token_id, 0 if token is None else token, prefix, level)

    def _prefix(self, prompts: Sequence[EncodedPrompt], placed: Sequence[PlacedPrompt]) -> tuple[Any, int]:
        """A cache of what all prompts begin with, and its length; None and 0 where they share none."""
        first, known = prompts[0], prompts[0].prefix_ids
        if known is None or any(prompt is not first for prompt in prompts):
            return None, 0
        start = len(known)
        if not all(own.prefix == start and torch.equal(own.ids[:start], known) for own in placed):
            return None, 0
        if len({len(own.ids) for own in placed}) > 1 and not keeps_every_position(first.prefix):
            return None, 0  # a sliding window would count the padding behind the prefix
        cache = copy.deepcopy(first.prefix)
        cache.batch_repeat_interleave(len(placed))
        return cache, start

    def _inputs(
        self, encoding: AttachedEncoding, batch: Batch, *, start: int = 0, end: int | None = None, stacked: bool = False
    ) -> dict[str, Any]:
        """What the model's forward takes for the tokens from `start` to `end`; `stacked`: as beams have to have it."""
        kinds = batch.kinds[:, :end]
        blocks = (kinds == BASE) if bool((kinds == BASE).any()) else (kinds == FETCHED)
        own = {"pooler_output": self._joined(batch.tokens, stacked)}
        if batch.planes:
            own["deepstack_features"] = batch.planes
        return {
            "input_ids": batch.ids[:, start:end],
            "attention_mask": batch.mask[:, :end],
            "position_ids": self.family.position_ids(batch.positions, batch.mask)[..., start:end],
            "mm_encoder_outputs": encoding.outputs(**own),
            **self.family.token_types(blocks),
        }

    def _joined(self, tokens: list[Tensor], stacked: bool) -> Any:
        if self.family.by_prompt:
            return tokens
        return torch.stack(tokens) if stacked else torch.cat(tokens)


# ---- steps ----------------------------------------------------------------------------------------------------------


def _flat(tokens: Any) -> Tensor:
    """Image tokens in one tensor [N, D], in whatever nesting a family returns them."""
    return tokens.flatten(0, -2) if isinstance(tokens, Tensor) else torch.cat([_flat(part) for part in tokens])


def _encoded_prompt(
    images: Sequence[Image.Image], texts: list[str], views: list[View], tokens: Tensor, planes: list[Tensor], pool: int,
    inputs: dict[str, Tensor],
) -> EncodedPrompt:  # fmt: skip
    """The images of a prompt, with base tokens that are the means of about `pool` x `pool` tokens."""
    places, boxes = places_of(views)
    grids = [(-(-view.rows // pool), -(-view.cols // pool)) for view in views] if pool else [(0, 0)] * len(views)
    cells = cells_of(places, views, grids) if pool else torch.full((len(places),), -1)
    count = sum(rows * cols for rows, cols in grids)
    return EncodedPrompt(
        texts=texts,
        views=views,
        places=places,
        boxes=boxes,
        saliency=saliency_of(images, views),
        cells=cells,
        base_grids=grids,
        base=mean_over_cells(tokens, cells, count).to(tokens),
        base_planes=[mean_over_cells(plane, cells, count).to(plane) for plane in planes],
        seen=tokens,
        tokens=tokens,
        planes=planes,
        pixels={},
        inputs=inputs,
    )


def _paired(prompts: list[EncodedPrompt], questions: int) -> list[EncodedPrompt]:
    """The prompt's images of each of so many questions, or all of them for one."""
    if len(prompts) not in (1, questions) and questions != 1:
        raise ValueError(f"images: expected 1 or {questions} (one per question); got {len(prompts)}")
    return prompts * questions if len(prompts) == 1 else prompts


def _mask(at: Tensor, length: int) -> Tensor:
    return torch.zeros(length, dtype=torch.bool, device=at.device).index_fill(0, at, True)


def _find(ids: Tensor, words: Tensor) -> Tensor:
    """Where the question's tokens stand among those behind the images; all of them where they are not found.

    A tokenizer may join a question's first or last letters with what stands beside it.
    """
    span = ids.unfold(0, len(words), 1) if 0 < len(words) <= len(ids) else ids.new_zeros(0, 1)
    hits = (span == words).all(-1).nonzero().flatten()
    return (
        torch.arange(len(words), device=ids.device) + hits[0]
        if len(hits)
        else torch.arange(len(ids), device=ids.device)
    )
