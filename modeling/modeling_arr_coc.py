"""ARR-COC: base tokens of the whole image, fetched tokens for the patches that the question needs, then the answer.

`base_model.py` holds the model without its head; `generation.py` answers questions with it. This file adds the
vocabulary head, the losses and the methods that transformers calls.

Notation: B prompts, P encoded images, I image slots (the places of images in prompts), S sequence length,
N patches, M base tokens, K fetched tokens, D language-model width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoTokenizer, GenerationConfig
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from .base_model import ArrCocModel
from .budgets import VIEW_OPTIONS
from .checks import DECODING, IMAGE_INPUTS, refusal
from .configuration_arr_coc import ArrCocConfig
from .extraction import Extracted, extract
from .fetcher import FetchChoices
from .generation import POSITIONAL, AnswerGenerator, generation_setting, take_choices, within_context
from .image_encoding import ImageEncoding
from .image_processing_arr_coc import ArrCocImageProcessor, Box
from .pretrained import CACHE, ArrCocPreTrainedModel, by_either_name
from .processing_arr_coc import ArrCocProcessor, check_decoding
from .prompt import ArrCocOutput, EmbeddedPrompt, deepstack_arguments
from .scorers import EMPTY
from .view_encoding import may_be_turned, take_view_options
from .word_sources import from_tensor, resolved_words

logger = logging.get_logger(__name__)


def relevance_loss(scores: Tensor, targets: Tensor, patch_mask: Tensor, positive_weight: float) -> Tensor:
    """The mean of `relevance_losses` over the slots whose targets are known. The arguments are the same. Without known
    targets the loss is 0, and so is its gradient."""
    has_targets = patch_mask.any(1).to(scores.device) & (targets >= 0).all(1).to(scores.device)
    return relevance_losses(scores, targets, patch_mask, positive_weight).sum() / has_targets.sum().clamp(min=1)


def relevance_losses(scores: Tensor, targets: Tensor, patch_mask: Tensor, positive_weight: float) -> Tensor:
    """[I] the mean binary cross-entropy over each slot's patches and all scorers; patches with the logit `EMPTY` do not
    count. It is 0 for slots whose targets are -1: the place of the answer is not known.

    Args:
        scores: logits [scorers, I, N].
        targets: [I, N] in 0..1, or rows of -1.
        patch_mask: bool [I, N], False on padding patches.
        positive_weight: how much more a relevant patch weighs than any other.
    """
    scores = scores.float()
    target = targets.to(scores).expand_as(scores)
    mask = patch_mask.to(scores.device) & (target[0] >= 0).all(1, keepdim=True) & (scores > EMPTY)
    weight = torch.full((), positive_weight, device=scores.device)
    losses = F.binary_cross_entropy_with_logits(scores, target.clamp(min=0), pos_weight=weight, reduction="none")
    return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean(0)


def warn_of_training_in_eval_mode(loss: Tensor, fetcher: nn.Module) -> None:
    """Warns once when the scorers are trainable but the model is in evaluation mode, where they get no gradient.

    `from_pretrained` returns a model in evaluation mode and PEFT leaves it there, but only training mode passes the
    gradient of the answer on to the scorers. An adapter of a scorer would stay as it began.

    Args:
        loss: the answer's. The warning comes with its backward pass, so measuring a loss does not warn; it comes at
            once for a loss without gradient, whose backward pass fails.
        fetcher: the `RunningBackFetcher`.
    """
    configured = fetcher.config.gradient != "none"  # type: ignore[union-attr]
    if fetcher.training or not configured or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return
    if not any(parameter.requires_grad for parameter in fetcher.parameters()):
        return

    def warn(_: Tensor) -> None:
        logger.warning_once(
            "The scorers are trainable, but the model is in evaluation mode: the answer's loss does not reach them. "
            "Call model.train() before training, or wrap code that only measures in torch.no_grad()."
        )

    if loss.requires_grad:
        loss.register_hook(warn)
    else:
        warn(loss)


def load_processor(config: ArrCocConfig, place: Mapping[str, Any] = MappingProxyType({})) -> ArrCocProcessor:
    """The processor of the checkpoint that `config` was loaded from.

    `place`: the arguments of `from_pretrained` that locate the files (revision, subfolder, ...).

    `ArrCocProcessor.from_pretrained` would ask again whether remote code may run, to find the image processor's class
    by name; this function uses the classes beside this file. It passes on `config` for the same reason.
    """
    source = config._name_or_path
    try:
        if not source:
            raise ValueError("a model that was not loaded from a checkpoint")
        image_processor = ArrCocImageProcessor.from_pretrained(source, **place)
        tokenizer = AutoTokenizer.from_pretrained(source, config=config, **place)
        settings, _ = ArrCocProcessor.get_processor_dict(source, **place)
        processor = ArrCocProcessor.from_args_and_dict([image_processor, tokenizer], settings)
    except Exception as error:  # readers of tokenizers and settings raise errors of any type
        cause = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"processor: expected {source or 'the checkpoint'!r} to hold one (save it beside the model with "
            f"processor.save_pretrained, or set model.processor); got {cause}"
        ) from error
    return processor


class ArrCocForConditionalGeneration(ArrCocPreTrainedModel, GenerationMixin):
    """ARR-COC with its vocabulary head: training by `forward`, answers by `generate(image, question)`."""

    _auto_class = "AutoModel"  # `save_pretrained` copies the code, so the checkpoint loads without arr_coc
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _processor: ArrCocProcessor | None = None

    def __init__(self, config: ArrCocConfig) -> None:
        super().__init__(config)
        self.model = ArrCocModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        embedding = self.get_input_embeddings()
        name = next(name for name, module in self.named_modules() if module is embedding)
        self._tied_weights_keys = {"lm_head.weight": f"{name}.weight"}  # the name depends on the language model
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    @property
    def processor(self) -> ArrCocProcessor:
        """The checkpoint's processor, loaded on first use; assign another one to replace it. Raises ValueError: the
        checkpoint has none."""
        if self._processor is None:
            self._processor = load_processor(self.config, self._place)
        return self._processor

    @processor.setter
    def processor(self, processor: ArrCocProcessor | None) -> None:
        self._processor = processor

    @by_either_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        patch_mask: Tensor | None = None,
        image_index: Tensor | None = None,
        image_encoding: ImageEncoding | None = None,
        attention_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        relevance_targets: Tensor | None = None,
        choices: FetchChoices | Mapping[str, Any] | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> ArrCocOutput:
        """One pass over prompts with images.

        Args:
            input_ids: [B, S], with M + K placeholders (`config.image_token_id`) for each image, and those that the
                layout adds; their number gives K. Allocators that choose their own number remove the rest.
            pixel_values: [P, 3, side, side]; patch_mask: [P, N]. See `encode_image`.
            image_index: [I] the image of `pixel_values` (or `image_encoding`) in each slot, in the order of the slots
                in the prompts; None: each image once.
            image_encoding: from `encode_image`, in place of `pixel_values`.
            attention_mask, position_ids, cache, inputs_embeds, logits_to_keep: as in any causal LM.
            query_mask: [B, S], non-zero on the question's tokens. By default `config.query_markers` finds them, also
                for a mask [B, S'] of prompts without the answers; without markers they are all text without labels.
            labels: [B, S], -100 on tokens that are not predicted; adds `loss`.
            relevance_targets: [I, N] in 0..1, 1 on patches of the answer; rows of -1 where these are not known. Trains
                all scorers; strategy "oracle" fetches by it unless the choices give relevance.
            choices: how patches are fetched: `FetchChoices` or a dict of its fields (default: as configured).
            **kwargs: arguments of the language model, `num_items_in_batch` and `shift_labels` (see transformers'
                losses).

        Raises:
            ValueError: placeholders that do not match the images, an unknown name, or a budget above the candidates.
            TypeError: an unknown argument.
        """
        if relevance_targets is not None:
            choices = FetchChoices.of(choices)
            unset = choices.relevance is None and choices.patches is None
            choices = replace(choices, all_scores=True, relevance=relevance_targets if unset else choices.relevance)
        keep: Any = logits_to_keep
        if isinstance(keep, int):
            keep = slice(-keep, None) if keep else slice(None)
        elif not isinstance(keep, Tensor) or keep.ndim != 1 or keep.dtype not in (torch.int64, torch.int32):
            raise refusal("logits_to_keep", "an integer, or a tensor of them", keep)
        counted = {name: kwargs.pop(name, None) for name in ("num_items_in_batch", "shift_labels")}
        taught = labels is not None or counted["shift_labels"] is not None
        if relevance_targets is not None and counted["num_items_in_batch"] is not None and not taught:
            cause = "label_smoothing_factor and compute_loss_func take labels away, and the relevance loss with them"
            raise ValueError(f"labels: expected beside relevance_targets; got none ({cause})")
        outputs = self.model(
            input_ids, pixel_values, patch_mask, image_index, image_encoding, attention_mask, query_mask, position_ids,
            cache, inputs_embeds, labels, choices, return_dict=True, **kwargs,
        )  # fmt: skip
        logits, prompt = self.lm_head(outputs.last_hidden_state[:, keep]), outputs.prompt
        loss = relevance = None
        if labels is not None or relevance_targets is not None or counted["shift_labels"] is not None:
            loss, relevance = self._losses(logits, labels, relevance_targets, outputs, counted)
        return ArrCocOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            relevance_loss=relevance,
            fetch=outputs.fetch,
            image_tokens=None if prompt is None else prompt.image_tokens,
            scores=outputs.scores,
        )

    def _losses(
        self,
        logits: Tensor,
        labels: Tensor | None,
        relevance_targets: Tensor | None,
        outputs: ArrCocOutput,
        counted: Mapping[str, Any],
    ) -> tuple[Tensor | None, Tensor | None]:
        """The loss to minimise, and the relevance loss alone; None without labels or targets.

        `counted`: `shift_labels`, and `num_items_in_batch`, the answer tokens of all accumulated batches, as Trainer
        counts them. Trainer sums the losses of these batches, so each is weighted by its share of the tokens.
        """
        loss = relevance = None
        if labels is not None or counted["shift_labels"] is not None:
            vocabulary = self.config.text_config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=vocabulary, **counted)
            if outputs.prompt is not None:
                warn_of_training_in_eval_mode(loss, self.model.fetcher)
        if relevance_targets is not None:
            if outputs.prompt is None or outputs.scores is None:
                raise ValueError("relevance_targets: expected images beside them; got none")
            if not outputs.scores:
                raise ValueError("relevance_targets: expected a model with trained scorers; this one has none")
            scores, mask = torch.stack(list(outputs.scores.values())), outputs.prompt.context.patch_mask
            relevance = relevance_loss(scores, relevance_targets, mask, self.config.relevance_positive_weight)
            weighted = self.config.relevance_loss_weight * relevance
            if labels is not None and counted["num_items_in_batch"] is not None:
                weighted = weighted * ((labels[:, 1:] != -100).sum() / counted["num_items_in_batch"])
            loss = weighted if loss is None else loss + weighted
        return loss, relevance

    # ---- questions and answers: see `AnswerGenerator`

    @torch.no_grad()
    def encode_image(
        self, image: Any = None, *, pixel_values: Tensor | None = None, patch_mask: Tensor | None = None, **options: Any
    ) -> ImageEncoding:
        """Encodes an image once for any number of questions; pass the result to `generate` in place of the image.

        A question then skips the grid encoder, the base half of the semantic encoder and, if there is a processor, the
        language model's prefill of the prompt up to and including the base tokens.

        Args:
            image: a PIL image, path, URL, data URL, array or tensor, a document (PDF, TIFF or GIF of several pages,
                video), or a list of them; a list within the list is for one prompt.
            pixel_values: [P, 3, side, side] in place of `image`, side a multiple of 4 patches; patch_mask: [P, N].
            **options: with `image`, fields of `budgets.ViewOptions`: which views are encoded, see docs/views.md; and
                `readings` and `password`, as in `generate`.

        Raises:
            ValueError: both `image` and `pixel_values`, or neither; or an image that cannot be read.
        """
        if (image is None) == (pixel_values is None):
            raise ValueError("encode_image: expected exactly one of image and pixel_values; got both or neither")
        if pixel_values is None:
            return AnswerGenerator(self, self.processor).encode(image, **options)
        encoding = self.model.encode_image(pixel_values, patch_mask)
        encoding.made_by = self.model.maker()
        try:
            return self.prefilled(encoding)
        except ValueError:  # no processor, no prompt
            return encoding

    @torch.no_grad()
    def prefilled(self, encoding: ImageEncoding) -> ImageEncoding:
        """`ArrCocModel.prefilled` with the processor's prompt. Raises ValueError: the checkpoint has no processor."""
        return self.model.prefilled(encoding, self.processor.prefix_ids())

    def extract(self, image: Any, fields: Any, **options: Any) -> dict[str, Extracted]:
        """The values of named fields of an image or a document, each with its probability and place, by their names.

        Args:
            image: see `generate`, or the encoding of one page. Each page of a document is asked about alone.
            fields: "invoice number, due date: date, total: money: What must be paid?", a list of such texts, or {name:
                type or question}. Types are text, number, money, date, yes/no (`field_values.TYPES`).
            **options: `min_probability`, below which a field stays empty; `distinct`, groups of names of fields that
                are at different places; `alternatives`, the number of other answers of each field; `budget`, as in
                `generate`; and fields of `budgets.ViewOptions`, such as `words`; and `password`.

        Raises:
            ValueError: fields or options that make no sense, or an image that cannot be read.
        """
        return extract(AnswerGenerator(self, self.processor), image, fields, **options)

    @by_either_name
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

        Several threads may use one model and its processor at the same time. A `streamer` is for one
        call at a time.

        Args:
            image: a PIL image, path, http(s) or data URL, array, tensor, a document (PDF, TIFF or GIF of several pages,
                video: all pages in one prompt), or the result of `encode_image`. A list of images goes with a list of
                questions, pair by pair. One image with a list of questions is encoded once. A list within the list
                puts several images into one prompt.
            question: a string, or a list.
            strategy: the scorer that chooses the patches; "none" answers from the base tokens alone.
            budget: fetched tokens of a prompt, which its images share (`spread`): a number, "fast", "balanced",
                "standard", "accurate", "all" (all patches of one image, or as many as the context holds), "tier:128"
                (see `resolve_budget`), or "auto": the model chooses for each item, with the configured allocator if
                that one chooses, else with "tiers".
            allocator: "topk" or "window" fetch exactly the budget, "tiers" and "adaptive" at most that.
            boxes: for strategy "oracle": (x0, y0, x1, y1) in px of the source image, cut at its edges; a list of lists
                for several questions.
            return_fetch: return `Answer` objects (text, probability, fetched patches) in place of strings; so does
                `return_dict_in_generate=True`, with transformers' output object as `Answer.output`.
            **kwargs: other fields of `FetchChoices` (`seed`, `overlap`, `bypass`, `patches`), `history`
                (earlier (question, answer) pairs, which the language model reads as text; for several questions also
                one list each), `on_fetch` (called with the `FetchResult` of all prompts before the first token is
                generated; where pages are ranked, with that of each page alone), fields of `budgets.ViewOptions`
                (`tiles`, `spread`, ...), `readings` (times that a page is read, 1 to 3, at sizes that differ; the
                readings vote), `password` (of encrypted PDFs; it is saved nowhere), and arguments of transformers'
                `generate` (`max_new_tokens`, `num_beams`, `streamer`, ...).

        Returns:
            A string for one image and one question, else a list of strings; `Answer`s with `return_fetch`.

        Raises:
            ValueError: invalid input; the message names the expected and the received value.
        """
        chosen: dict[str, Any] = {"strategy": strategy, "budget": budget, "allocator": allocator}
        if question is None or isinstance(question, GenerationConfig):
            asked = {"boxes": boxes, "return_fetch": return_fetch or None, "readings": kwargs.get("readings")}
            for name, value in asked.items():
                if value is not None:
                    raise ValueError(f"{name}: expected only with a question; got it without one")
            return self._continue_prompt(image, question, *args, **chosen, **kwargs)
        answer_generator = AnswerGenerator(self, self.processor)
        return answer_generator.ask(image, question, *args, boxes=boxes, return_fetch=return_fetch, **chosen, **kwargs)

    def _continue_prompt(self, *args: Any, **kwargs: Any) -> Any:
        """transformers' `generate(**inputs)`; encodes images and fetches patches once, before beams repeat prompts.

        Raises:
            ValueError: images without `input_ids` or beside embeddings; or a budget, which the processor has to know.
        """
        if args and args[0] is not None and not (isinstance(args[0], Tensor) and args[0].ndim == 2):
            raise ValueError("question: expected one beside the image; got none")
        kwargs.update({name: value for name, value in zip(POSITIONAL, args, strict=False) if value is not None})
        choices, kwargs = take_choices(kwargs)
        if choices.budget is not None:
            expected = "it in the call of the processor, processor(..., budget=...), which writes the placeholders"
            raise ValueError(f"budget: expected {expected}; got it beside model inputs")
        if all(kwargs.get(name) is None for name in ("pixel_values", "image_encoding", "image_sources")):
            return self.generate_tokens(**kwargs)
        settings = {name: generation_setting(self, kwargs, name) for name in (*DECODING, "eos_token_id")}
        check_decoding(settings, kwargs)
        ids = [ids for name in ("inputs", "input_ids") if (ids := kwargs.pop(name, None)) is not None]
        if not ids or kwargs.get("inputs_embeds") is not None:
            received = "inputs_embeds" if kwargs.get("inputs_embeds") is not None else "none"
            raise ValueError(f"input_ids: expected the prompt's, and no inputs_embeds, beside images; got {received}")
        prompt = self._embedded(ids[0], choices, kwargs)
        inputs = dict(prompt.read)
        length = inputs["input_ids"].shape[1]
        for name in ("max_length", "min_length"):  # as many new tokens as if the prompt were as long as it was given
            limit = generation_setting(self, kwargs, name)
            if limit and length < ids[0].shape[1]:
                kwargs[name] = max(0, limit - ids[0].shape[1] + length)
        kwargs = within_context(self, kwargs, length)
        output = self.generate_tokens(**inputs, **kwargs)
        return output if inputs["input_ids"] is ids[0] else _behind_prompt(output, ids[0], length)

    def _embedded(self, input_ids: Tensor, choices: FetchChoices, kwargs: dict[str, Any]) -> EmbeddedPrompt:
        """The embedded prompts; removes the arguments of their images from `kwargs`."""
        images = {name: kwargs.pop(name, None) for name in IMAGE_INPUTS}
        aligned = {name: kwargs.pop(name, None) for name in ("query_mask", "attention_mask", "position_ids")}
        encoding = images["image_encoding"]
        if encoding is not None and images["pixel_values"] is not None:
            raise ValueError("images: expected pixel_values or image_encoding; got both")
        sources, sizes = images["image_sources"], images["source_sizes"]
        square = self.config.vision_config.image_size
        options = {name: kwargs.pop(name) for name in VIEW_OPTIONS & kwargs.keys()}
        worded = images["image_words"] is not None or options.get("words") not in (None, "auto", "network")
        in_views = sources is not None and (images["pixel_values"] is None or worded or bool(sizes.max() > square))
        if options.get("max_base_tokens") is not None:
            expected = "it in the processor's image_processor.views, as the processor writes the placeholders"
            raise ValueError(f"max_base_tokens: expected {expected}; got it beside model inputs")
        if encoding is None and not in_views:
            encoding = self.model.encode_image(images["pixel_values"], images["patch_mask"])
            if sources is not None and any(may_be_turned(encoding, row) for row in range(len(encoding))):
                encoding, in_views = None, True
        if encoding is None:
            encoding = self._encode_slots(input_ids, sources, sizes, images["image_words"], options)
        return self.model.embed_images(
            input_ids, encoding, image_index=images["image_index"], choices=choices, joint=True, **aligned
        )

    def _encode_slots(
        self, input_ids: Tensor, pixels: Tensor, sizes: Tensor, words: Tensor | None, options: dict[str, Any]
    ) -> ImageEncoding:
        """Encodes the images of prompts [B, S] from the processor, one for each slot, in views. `pixels`, `sizes`,
        `words`: `image_sources`, `source_sizes`, `image_words` of `ArrCocProcessor`; `options`: of `ViewOptions`."""
        counts = [3 * height * width for height, width in sizes.tolist()]
        if pixels.shape != (sum(counts),):
            raise refusal("image_sources", f"{sum(counts)} values, for source_sizes beside them", pixels)
        shown = zip(pixels.cpu().split(counts), sizes.tolist(), strict=True)
        sources = [image.view(height, width, 3).numpy() for image, (height, width) in shown]
        view_options, _ = take_view_options({**self.processor.image_processor.views, **options})
        if words is not None:
            view_options = replace(view_options, words=resolved_words(from_tensor(words), view_options.words))
        placeholders = (input_ids == self.config.image_token_id).sum(1)
        counts = (placeholders // max(1, int(placeholders.sum()) // len(sources))).tolist()
        if sum(counts) != len(sources):
            expected = f"as many as images in the prompts, of {placeholders.tolist()} placeholders"
            raise ValueError(f"image_sources: expected {expected}; got {len(sources)}")
        remaining = iter(sources)
        prompts = [[next(remaining) for _ in range(count)] for count in counts if count]
        return AnswerGenerator(self, self.processor).encode_shown(prompts, view_options)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses transformers' `generate_batch`, which takes token ids without images."""
        expected = "generate(image, [questions]) or generate([images], [questions]), which batch, or arr-coc serve"
        raise ValueError(f"generate_batch: expected {expected}; got a call for prompts of token ids, without images")

    def generate_tokens(self, **kwargs: Any) -> Any:
        """transformers' own `generate`, for prompts without images or embedded prompts (`prompt_embeds`)."""
        if "cache" in kwargs:
            kwargs[CACHE] = kwargs.pop("cache")
        return super().generate(**kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        prompt_embeds: Tensor | None = None,
        prompt_planes: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        tokenizer: Any = None,
        assistant_tokenizer: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Replaces the ids of prompts by their embeddings with images, `prompt_embeds` [B, S, D].

        `prompt_planes` [B, S, levels, D] go with them: the first layers add them (`EmbeddedPrompt.read`).
        `inputs_embeds` are transformers' argument for prompts without images and ids.

        Only tokens outside the cache need embeddings: in the first pass, or in each pass without a cache. `input_ids`
        may already hold generated tokens. transformers also passes tokenizers, which no language model takes.
        """
        embeds = inputs_embeds
        if prompt_embeds is not None and (is_first_iteration or not kwargs.get("use_cache", True)):
            embeds, behind = prompt_embeds, input_ids[:, prompt_embeds.shape[1] :]
            if behind.shape[1]:
                embeds = torch.cat((embeds, self.get_input_embeddings()(behind).to(embeds)), 1)
        inputs = super().prepare_inputs_for_generation(
            input_ids,
            inputs_embeds=embeds,
            is_first_iteration=prompt_embeds is not None and embeds is not None or is_first_iteration,
            **kwargs,
        )
        if prompt_planes is not None and embeds is not None:
            planes = F.pad(prompt_planes, (0, 0, 0, 0, 0, embeds.shape[1] - prompt_planes.shape[1]))  # text behind
            inputs.update(deepstack_arguments(planes[:, -inputs["inputs_embeds"].shape[1] :]))
        return inputs


def _behind_prompt(output: Any, input_ids: Tensor, trimmed: int) -> Any:
    """The output of `generate` for trimmed prompts, with its sequences behind the original prompts [B, S]."""
    sequences = output if isinstance(output, Tensor) else output.sequences
    prompts = input_ids.repeat_interleave(len(sequences) // len(input_ids), 0)
    sequences = torch.cat((prompts.to(sequences.device), sequences[:, trimmed:]), 1)
    if isinstance(output, Tensor):
        return sequences
    output.sequences = sequences
    return output


# With label_smoothing_factor, Trainer computes the loss: it shifts the labels of the classes in this table.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[ArrCocConfig.model_type] = ArrCocForConditionalGeneration.__name__

__all__ = [
    "ArrCocForConditionalGeneration", "ArrCocModel", "ArrCocOutput", "ArrCocPreTrainedModel", "FetchChoices",
    "ImageEncoding",
]  # fmt: skip
