"""ARR-COC: keep a cheap look at a whole image, run back for the patches that the question needs, then answer.

The model is in `base_model.py`, how it is asked in `generation.py`; here are its vocabulary head, its losses, and what
transformers calls.

Notation: B prompts, P encoded images, I image slots (places in prompts where an image stands), S sequence length,
N patches, M base tokens, K fetched tokens, D language-model width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from .allocators import FetchResult
from .attention_scorer import with_prefix
from .base_model import ArrCocModel, ArrCocModelOutput
from .checks import refusal
from .configuration_arr_coc import ArrCocConfig
from .fetcher import FetchChoices
from .generation import (
    POSITIONAL,
    Asker,
    Conversation,
    check_decoding,
    generation_setting,
    take_choices,
    within_context,
)
from .image_encoding import ImageEncoding
from .image_processing_arr_coc import Box
from .pretrained import ArrCocPreTrainedModel
from .processing_arr_coc import ArrCocProcessor, load_processor
from .prompt import EmbeddedPrompt, deepstack_arguments
from .scorers import EMPTY
from .transformers_releases import CACHE, CacheOutput, by_either_name, warn_of_later_release
from .views import VIEW_OPTIONS

logger = logging.get_logger(__name__)


def relevance_loss(scores: Tensor, targets: Tensor, patch_mask: Tensor, positive_weight: float) -> Tensor:
    """The mean of `relevance_losses`, of the same arguments, over slots with a row of targets.

    Where no row is known the loss is 0, with a gradient of 0.
    """
    known = patch_mask.any(1).to(scores.device) & (targets >= 0).all(1).to(scores.device)
    return relevance_losses(scores, targets, patch_mask, positive_weight).sum() / known.sum().clamp(min=1)


def relevance_losses(scores: Tensor, targets: Tensor, patch_mask: Tensor, positive_weight: float) -> Tensor:
    """[I] the mean binary cross-entropy over each slot's patches and all scorers.

    Patches with the logit `EMPTY` do not count. 0 where the row of targets is -1: nobody knows where the answer is.

    Args:
        scores: logits [scorers, I, N].
        targets: [I, N] in 0..1, or rows of -1.
        patch_mask: bool [I, N], True on patches that hold some of the image.
        positive_weight: how much more a relevant patch weighs than any other.
    """
    scores = scores.float()
    target = targets.to(scores).expand_as(scores)
    mask = patch_mask.to(scores.device) & (target[0] >= 0).all(1, keepdim=True) & (scores > EMPTY)
    weight = torch.full((), positive_weight, device=scores.device)
    losses = F.binary_cross_entropy_with_logits(scores, target.clamp(min=0), pos_weight=weight, reduction="none")
    return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean(0)


def efficiency_loss(expected_tokens: Tensor, target: float) -> Tensor:
    """What the mean of `expected_tokens` [I] exceeds `target` by, as a share of the target; 0 below it.

    Args:
        expected_tokens: fetched tokens, see `FetchResult.expected_tokens`.
        target: fetched tokens, above 0.

    Raises:
        ValueError: a target that is not positive.
    """
    if target <= 0:
        raise ValueError(f"target: expected a positive number of tokens; got {target}")
    return (expected_tokens.float().mean() - target).clamp(min=0) / target


def diversity_loss(tier_logits: Tensor) -> Tensor:
    """How far the batch's mean tier distribution is from uniform: 1 - entropy / log T, from 0 to 1 (one tier only).

    Of the mean over the batch, so every item may be certain of its tier as long as not all take the same.

    Args:
        tier_logits: [I, T], see `FetchResult.tier_logits`.
    """
    mean = tier_logits.float().softmax(-1).mean(0)
    return 1 - torch.special.entr(mean).sum() / math.log(tier_logits.shape[-1])


def distribution_loss(tokens: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """Distance of bridged tokens from text: squared differences of mean and standard deviation, in units of the text's.

    Both are taken over a token's channels, and the loss is the mean over tokens.

    Args:
        tokens: [..., S, D].
        mean, std: of the text embeddings: `bridge_config.text_embedding_mean` and `_std`, or `text_statistics`.
    """
    tokens = tokens.float()
    shift = tokens.mean(-1) - mean
    scale = tokens.std(-1, correction=0) - std
    return ((shift.square() + scale.square()) / std**2).mean()


@torch.no_grad()
def text_statistics(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over all weights of a table of text embeddings [vocabulary, D]."""
    std, mean = torch.std_mean(weight.float(), correction=0)
    return mean, std


def warn_of_training_in_eval_mode(loss: Tensor, fetcher: nn.Module) -> None:
    """Says once that scorers learn nothing from the answer, where they are to be trained and are in evaluation mode.

    `from_pretrained` gives a model in evaluation mode and PEFT leaves it there; the gradient from the answer to the
    scorers is made in training mode only. Without a word an adapter of the scorer would stay as it began.

    Args:
        loss: the answer's. The warning comes when it is led back, so that measuring a loss stays silent; or at once
            where nothing leads back from it, for then there is nothing but torch's error to come.
        fetcher: the `RunningBackFetcher`.
    """
    configured = fetcher.config.gradient != "none"  # type: ignore[union-attr]
    if fetcher.training or not configured or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return
    if not any(parameter.requires_grad for parameter in fetcher.parameters()):
        return
    if loss.requires_grad:
        loss.register_hook(_warn_of_eval_mode)
    else:
        _warn_of_eval_mode(loss)


def _warn_of_eval_mode(_: Tensor) -> None:
    logger.warning_once(
        "The scorers are to be trained, but the model is in evaluation mode: the answer's loss does not reach them. "
        "Call model.train() before training (or torch.no_grad() around what only measures)."
    )


warn_of_later_release()

_IMAGE_ARGUMENTS = ("pixel_values", "patch_mask", "image_index", "image_encoding", "image_sources", "source_sizes")


@dataclass
class ArrCocOutput(CacheOutput):
    """Output of `ArrCocForConditionalGeneration.forward`.

    `loss`: answer loss plus weighted relevance loss, those that were asked for; `relevance_loss` alone; `logits`
    [B, S, vocabulary], S without the placeholders that an allocator cut out; `fetch`: what was fetched for each image
    slot; `image_tokens`, `token_quality`: see `EmbeddedPrompt`; `scores`: logits [I, N] of every trained scorer by
    name, where they were asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    relevance_loss: Tensor | None = None
    fetch: FetchResult | None = None
    image_tokens: Tensor | None = None
    token_quality: Tensor | None = None
    scores: dict[str, Tensor] | None = None


class ArrCocForConditionalGeneration(ArrCocPreTrainedModel, GenerationMixin):
    """ARR-COC with its vocabulary head: training by `forward`, answers by `generate(image, question)`."""

    _auto_class = "AutoModel"  # `save_pretrained` copies the code: what it writes loads where arr_coc is not installed
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _processor: ArrCocProcessor | None = None

    def __init__(self, config: ArrCocConfig) -> None:
        super().__init__(config)
        self.model = ArrCocModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        embedding = self.get_input_embeddings()
        name = next(name for name, module in self.named_modules() if module is embedding)
        self._tied_weights_keys = {"lm_head.weight": f"{name}.weight"}  # each language model calls it differently
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    @property
    def processor(self) -> ArrCocProcessor:
        """The checkpoint's processor, loaded on first use; assign to use another.

        Raises:
            ValueError: the checkpoint has none.
        """
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
            input_ids: [B, S], with M + K placeholders (`config.image_token_id`) for every image, and those that the
                layout adds; K is read off them. Allocators that choose how much they fetch cut out the rest.
            pixel_values: [P, 3, side, side]; patch_mask: [P, N]. See `encode_image`.
            image_index: [I] which image of `pixel_values` (or `image_encoding`) stands in each image slot, in the order
                of the slots in the prompts; None: each image once.
            image_encoding: what `encode_image` returned, in place of `pixel_values`.
            attention_mask, position_ids, cache, inputs_embeds, logits_to_keep: as in any causal LM.
            query_mask: [B, S] non-zero on the question's tokens; by default what `config.query_markers` finds (also in
                place of one [B, S'] of prompts to which answers were added since), without them all text of the
                prompt but what has labels.
            labels: [B, S] with -100 where there is nothing to predict; gives `loss`.
            relevance_targets: [I, N] in 0..1, which patches hold the answer, or rows of -1 where nobody knows; trains
                all scorers, and is what strategy "oracle" fetches where the choices say nothing.
            choices: how patches are fetched, a `FetchChoices` or a dict of its fields; as configured by default.
            **kwargs: what the language model takes, `num_items_in_batch` and `shift_labels` (see transformers' losses).

        Raises:
            ValueError: placeholders and images that do not match, unknown names, a budget above the candidates.
            TypeError: an unknown argument.
        """
        if relevance_targets is not None:
            choices = FetchChoices.of(choices)
            known = choices.relevance is None and choices.patches is None
            choices = replace(choices, all_scores=True, relevance=relevance_targets if known else choices.relevance)
        if not isinstance(logits_to_keep, int) and not _is_index(logits_to_keep):
            raise refusal("logits_to_keep", "an integer, or a tensor of them", logits_to_keep)
        sources, _ = (kwargs.pop(name, None) for name in ("image_sources", "source_sizes"))
        if sources is not None and pixel_values is None and image_encoding is None:
            expected = "squares of single images; documents and pooled base tokens are for generate(**inputs)"
            raise ValueError(f"pixel_values: expected {expected}; got image_sources alone")
        counted = {name: kwargs.pop(name, None) for name in ("num_items_in_batch", "shift_labels")}
        taught = labels is not None or counted["shift_labels"] is not None
        if relevance_targets is not None and counted["num_items_in_batch"] is not None and not taught:
            taken = "label_smoothing_factor and compute_loss_func take labels away, and the relevance loss with them"
            raise ValueError(f"labels: expected beside relevance_targets; got none ({taken})")
        outputs = self.model(
            input_ids, pixel_values, patch_mask, image_index, image_encoding, attention_mask, query_mask, position_ids,
            cache, inputs_embeds, labels, choices, return_dict=True, **kwargs,
        )  # fmt: skip
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else slice(None)
        hidden = outputs.last_hidden_state
        logits = self.lm_head(hidden[:, logits_to_keep if isinstance(logits_to_keep, Tensor) else keep])
        prompt = outputs.prompt
        if prompt is not None and labels is not None:
            labels = prompt.inputs["labels"]
        loss = relevance = None
        if labels is not None or relevance_targets is not None or counted["shift_labels"] is not None:
            loss, relevance = self._losses(logits, labels, relevance_targets, outputs, **counted)
        return ArrCocOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            relevance_loss=relevance,
            fetch=outputs.fetch,
            image_tokens=None if prompt is None else prompt.image_tokens,
            token_quality=None if prompt is None else prompt.token_quality,
            scores=outputs.scores,
        )

    def relevance_loss(self, scores: Mapping[str, Tensor], targets: Tensor, patch_mask: Tensor) -> Tensor:
        """The module's `relevance_loss` of scorers' logits [I, N] by name against `targets` [I, N].

        Raises:
            ValueError: the model has no trained scorer.
        """
        if not scores:
            raise ValueError("relevance_targets: expected a model with trained scorers; this one has none")
        logits = torch.stack(list(scores.values()))
        return relevance_loss(logits, targets, patch_mask, self.config.relevance_positive_weight)

    def _losses(
        self,
        logits: Tensor,
        labels: Tensor | None,
        relevance_targets: Tensor | None,
        outputs: ArrCocModelOutput,
        *,
        num_items_in_batch: Tensor | int | None,
        shift_labels: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """The loss to minimise, and the relevance loss alone; None where nothing asks for them.

        `num_items_in_batch`: answer tokens of all accumulated batches, as Trainer counts them: the losses of those
        batches are then to be summed, so each batch counts by its share of the tokens.
        """
        loss = relevance = None
        if labels is not None or shift_labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.text_config.vocab_size,
                num_items_in_batch=num_items_in_batch, shift_labels=shift_labels,
            )  # fmt: skip
            if outputs.prompt is not None:
                warn_of_training_in_eval_mode(loss, self.model.fetcher)
        if relevance_targets is not None:
            if outputs.prompt is None or outputs.scores is None:
                raise ValueError("relevance_targets: expected images beside them; got none")
            relevance = self.relevance_loss(outputs.scores, relevance_targets, outputs.prompt.context.patch_mask)
            weighted = self.config.relevance_loss_weight * relevance
            if labels is not None and num_items_in_batch is not None:
                weighted = weighted * ((labels[:, 1:] != -100).sum() / num_items_in_batch)
            loss = weighted if loss is None else loss + weighted
        return loss, relevance

    # ---- the user's door: see `Asker`

    @torch.no_grad()
    def encode_image(
        self, image: Any = None, *, pixel_values: Tensor | None = None, patch_mask: Tensor | None = None, **options: Any
    ) -> ImageEncoding:
        """Everything about an image that no question changes; pass it to `generate` in place of the image.

        Saves the grid encoder, the base half of the semantic encoder and, where there is a processor, the language
        model's prefill of the prompt up to and including the base tokens.

        Args:
            image: a PIL image, path, URL, data URL, array or tensor, a document (PDF, TIFF or GIF of several pages,
                video), or a list of them; an element that is itself a list is shown by one prompt.
            pixel_values: [P, 3, side, side] in place of `image`, side a multiple of 4 patches; patch_mask: [P, N].
            **options: beside `image`, which views are taken: fields of `views.ViewOptions`, see docs/views.md.

        Raises:
            ValueError: both `image` and `pixel_values` or neither came, or an image that cannot be read.
        """
        if (image is None) == (pixel_values is None):
            raise ValueError("encode_image: expected exactly one of image and pixel_values; got both or neither")
        if pixel_values is None:
            return Asker(self, self.processor).encode(image, **options)
        encoding = self.model.encode_image(pixel_values, patch_mask)
        encoding.made_by = self.model.maker()
        try:
            return self.prefilled(encoding)
        except ValueError:  # no processor, no prompt
            return encoding

    def prefilled(self, encoding: ImageEncoding) -> ImageEncoding:
        """The encoding with the language model's reading of the prompt up to and including the base tokens.

        Raises:
            ValueError: no processor, which writes prompts.
        """
        return with_prefix(self.model, self.processor, encoding)

    def converse(self, image: Any, *, keep_history: bool = False) -> Conversation:
        """A conversation about an image, which is encoded once: see `Conversation`."""
        return Conversation(Asker(self, self.processor), image, keep_history=keep_history)

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

        Several threads may ask one model at the same time, its processor too. A `generator` or `streamer` is for one
        call at a time.

        Args:
            image: a PIL image, path, http(s) or data URL, array, tensor, a document (PDF, TIFF or GIF of several pages,
                video: one prompt shows all of it), or what `encode_image` returned. A list of images goes with a list
                of questions, pair by pair; one image with a list of questions is encoded once;
                an element that is itself a list puts several images into one prompt.
            question: a string, or a list.
            strategy: which scorer decides what is fetched; "none" answers from the base tokens alone.
            budget: fetched tokens of a prompt, which its images share (`spread`): a number, "fast", "balanced",
                "standard", "accurate", "all" (all patches of one image, or what the context holds), "tier:128" (see
                `resolve_budget`), or "auto": the model chooses for each item, by the configured allocator if that
                chooses, else by "tiers".
            allocator: "topk" or "window" fetch exactly the budget, "tiers" and "adaptive" at most that.
            boxes: for strategy "oracle": (x0, y0, x1, y1) in px of the source image; a list of lists for several
                questions.
            return_fetch: give `Answer` objects (text, probability, what was fetched) in place of strings; so does
                `return_dict_in_generate=True`, with transformers' output object as `Answer.output`.
            **kwargs: other fields of `FetchChoices` (`seed`, `generator`, `overlap`, `bypass`, `patches`), `history`
                (earlier (question, answer) pairs, which the language model then reads as text; for several questions
                also a list of them for each), `on_fetch` (called with the `FetchResult` of all prompts before the first
                token is written), fields of `views.ViewOptions` (`tiles`, `spread`, ...), and what transformers'
                `generate` takes (`max_new_tokens`, `num_beams`, `streamer`, ...).

        Returns:
            A string for one image and one question, else a list of strings; `Answer`s with `return_fetch`.

        Raises:
            ValueError: bad input; the message says what was expected and what came.
        """
        chosen: dict[str, Any] = {"strategy": strategy, "budget": budget, "allocator": allocator}
        if question is None or isinstance(question, GenerationConfig):
            for name, value in (("boxes", boxes), ("return_fetch", return_fetch or None)):
                if value is not None:
                    raise ValueError(f"{name}: expected only with a question; got it beside model inputs")
            return self._continue_prompt(image, question, *args, **chosen, **kwargs)
        asker = Asker(self, self.processor)
        return asker.ask(image, question, *args, boxes=boxes, return_fetch=return_fetch, **chosen, **kwargs)

    def _continue_prompt(self, *args: Any, **kwargs: Any) -> Any:
        """transformers' `generate(**inputs)`, with the images encoded and fetched from once, before beams repeat them.

        Raises:
            ValueError: images without `input_ids`, or beside embeddings; a budget, which is the processor's to know.
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
        check_decoding(self, kwargs)
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
        """The prompts with their images, whose arguments are taken out of `kwargs`."""
        images = {name: kwargs.pop(name, None) for name in _IMAGE_ARGUMENTS}
        aligned = {name: kwargs.pop(name, None) for name in ("query_mask", "attention_mask", "position_ids")}
        encoding = images["image_encoding"]
        if encoding is not None and images["pixel_values"] is not None:
            raise ValueError("images: expected pixel_values or image_encoding; got both")
        asker = None if images["image_sources"] is None else Asker(self, self.processor)
        options = {name: kwargs.pop(name) for name in VIEW_OPTIONS & kwargs.keys()}
        if options.get("max_base_tokens") is not None:
            expected = "it in the processor's image_processor.views, as the processor writes the placeholders"
            raise ValueError(f"max_base_tokens: expected {expected}; got it beside model inputs")
        if asker is not None and encoding is None:
            encoding = asker.encode_slots(input_ids, images["image_sources"], images["source_sizes"], **options)
        elif encoding is None:
            encoding = self.model.encode_image(images["pixel_values"], images["patch_mask"])
        return self.model.embed_images(
            input_ids, encoding, image_index=images["image_index"], choices=choices, joint=True, **aligned
        )

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses transformers' `generate_batch`, which knows token ids alone."""
        expected = "generate(image, [questions]) or generate([images], [questions]), which batch, or arr-coc serve"
        raise ValueError(f"generate_batch: expected {expected}; got a call for prompts of token ids, without images")

    def generate_tokens(self, **kwargs: Any) -> Any:
        """transformers' own `generate`, of prompts that hold no images or were embedded (`prompt_embeds`)."""
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
        """Puts embedded prompts `prompt_embeds` [B, S, D], images in place, where their ids are in `input_ids`.

        With them `prompt_planes` [B, S, levels, D], which the first layers add (`EmbeddedPrompt.planes`).
        `inputs_embeds` are of prompts without images and without ids, as transformers takes them.

        Only what is not in the cache needs them: the first pass, or each one where there is no cache. `input_ids` may
        already hold tokens behind the prompt. Tokenizers, which transformers passes on from its call, are no model's.
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


def _is_index(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 1 and value.dtype in (torch.int64, torch.int32)


def _behind_prompt(output: Any, input_ids: Tensor, trimmed: int) -> Any:
    """What `generate` returned for trimmed prompts, its sequences behind the prompts [B, S] as they were given."""
    sequences = output if isinstance(output, Tensor) else output.sequences
    prompts = input_ids.repeat_interleave(len(sequences) // len(input_ids), 0)
    sequences = torch.cat((prompts.to(sequences.device), sequences[:, trimmed:]), 1)
    if isinstance(output, Tensor):
        return sequences
    output.sequences = sequences
    return output


# With label_smoothing_factor, Trainer computes the loss: it shifts the labels of the classes that stand here.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[ArrCocConfig.model_type] = ArrCocForConditionalGeneration.__name__

__all__ = ["ArrCocForConditionalGeneration", "ArrCocModel", "ArrCocPreTrainedModel", "FetchChoices", "ImageEncoding"]
