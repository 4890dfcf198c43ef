"""ARR-COC: keep a cheap, complete look at an image, run back for the patches that the question needs, then answer.

The forward pass, top to bottom: pixels -> grid encoder -> features (once per image) -> compressor -> base tokens ->
semantic encoder; question -> scorer -> allocator -> saccades gathered from the features -> semantic encoder, behind the
base; both through the bridge into the language model: [base][saccades][question] -> answer.

Notation: B prompts, P encoded images, I image slots (places in prompts where an image stands), S sequence length,
G side of the fine grid, N = G*G patches, M base tokens, K saccades, C feature channels, D' semantic width, D language
model width. Positions are (y, x), row-major.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, initialization
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, ModelOutput
from transformers.modeling_utils import PreTrainedModel

from .asking import IMAGE_ARGUMENTS, AskingMixin
from .bridging import BRIDGES
from .configuration_arr_coc import ArrCocConfig
from .encoding import GridAttention, GridEncoder, SemanticEncoder
from .fetching import FetchResult, RunningBackFetcher
from .image_encoding import ImageEncoding
from .realizing import FetchContext, PatchLayer, Realizer, Temperature
from .texture import textures
from .tower import ArrCocVisionTower, SaccadeProjection


@dataclass
class ArrCocOutput(ModelOutput):
    """Output of `ArrCocForConditionalGeneration.forward`.

    `loss`: answer loss plus weighted relevance loss, those that were asked for; `relevance_loss` alone; `logits`
    [B, S, vocabulary]; `fetch`: what was fetched for each image slot; `image_tokens` [I, M + K, D] after the bridge.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    relevance_loss: Tensor | None = None
    fetch: FetchResult | None = None
    image_tokens: Tensor | None = None


class ArrCocPreTrainedModel(PreTrainedModel):
    """Initialisation and capabilities shared by the model classes."""

    config: ArrCocConfig
    config_class = ArrCocConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    input_modalities = ["image", "text"]
    supports_gradient_checkpointing = True
    _no_split_modules = ["GridLayer", "SemanticLayer", "PatchLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        std = self.config.initializer_range
        if isinstance(module, GridAttention):
            initialization.zeros_(module.rel_pos_h)
            initialization.zeros_(module.rel_pos_w)
        elif isinstance(module, GridEncoder):
            initialization.normal_(module.pos_embed, std=std)
        elif isinstance(module, SemanticEncoder):
            initialization.normal_(module.class_embedding, std=module.config.initializer_range)
            initialization.normal_(module.position_embedding, std=module.config.initializer_range)
            initialization.zeros_(module.saccade_embedding)
        elif isinstance(module, PatchLayer):
            initialization.copy_(module.query_position, module.initial_position())
            initialization.copy_(module.key_position, module.initial_position())
        elif isinstance(module, Realizer):
            initialization.normal_(module.nothing, std=std)
        elif isinstance(module, Temperature):
            initialization.constant_(module.weight, 10.0)
            initialization.constant_(module.bias, -3.0)
        elif isinstance(module, SaccadeProjection):
            # A fetched patch speaks the base tokens' language before any training. The compressor comes before it.
            tower: Any = getattr(self, "model", self).vision_tower
            initialization.copy_(module.weight, tower.compressor.warm_start())


class ArrCocModel(ArrCocPreTrainedModel):
    """Vision, fetcher, bridge and language model, without the vocabulary head."""

    def __init__(self, config: ArrCocConfig) -> None:
        super().__init__(config)
        vision, semantic, text = config.vision_config, config.semantic_config, config.text_config
        self.vision_tower = ArrCocVisionTower(vision, semantic)
        self.fetcher = RunningBackFetcher(
            config.fetcher_config, feature_size=vision.out_channels, text_size=text.hidden_size
        )
        self.bridge = BRIDGES.named(config.bridge_config.kind)(
            config.bridge_config, vision_size=semantic.hidden_size, text_size=text.hidden_size
        )
        self.language_model = AutoModel.from_config(text)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.set_input_embeddings(value)

    def encode_image(self, pixel_values: Tensor, patch_mask: Tensor | None = None) -> ImageEncoding:
        """Runs everything that no question changes, once.

        Args:
            pixel_values: [P, 3, S, S], normalised; S a multiple of 4 patches.
            patch_mask: [P, N], True (non-zero) on patches that hold some of the image; None: all.

        Raises:
            ValueError: not a batch of square images, or a side that is no multiple of 4 patches.
        """
        vision = self.config.vision_config
        if pixel_values.ndim != 4 or pixel_values.shape[1] != vision.num_channels:
            expected = f"[images, {vision.num_channels}, side, side]"
            raise ValueError(f"pixel_values: expected {expected}; got shape {list(pixel_values.shape)}")
        height, width = pixel_values.shape[-2:]
        unit = 4 * vision.patch_size
        if height != width or height % unit or not height:
            raise ValueError(
                f"pixel_values: expected square images, side a multiple of {unit} px; got {height} x {width}"
            )
        side = height // vision.patch_size
        if patch_mask is not None and list(patch_mask.shape) != [len(pixel_values), side * side]:
            shape = [len(pixel_values), side * side]
            raise ValueError(f"patch_mask: expected shape {shape}; got {list(patch_mask.shape)}")
        features = self.vision_tower.grid_encoder(pixel_values.to(self.dtype))
        return self.encode_features(features, pixel_values, patch_mask)

    def encode_features(
        self, features: Tensor, pixel_values: Tensor, patch_mask: Tensor | None = None
    ) -> ImageEncoding:
        """The rest of `encode_image`, from the grid encoder's output [P, C, G, G] on."""
        if patch_mask is None:
            patch_mask = features.new_ones(len(features), features.shape[-1] ** 2)
        patch_mask = patch_mask.bool()
        base, semantic, cache = self.vision_tower(features, patch_mask)
        return ImageEncoding(
            features=features,
            textures=textures(pixel_values, features.shape[-1]),
            patch_mask=patch_mask,
            seeds=(pixel_values.float() * 127.5).round().long().sum((1, 2, 3)),
            compressed=base.compressed,
            base_indices=base.indices,
            semantic=semantic,
            semantic_cache=cache,
            tokens=self.bridge(semantic, base.tokens),
        )

    def _slots(self, input_ids: Tensor, slots: int, base: int) -> tuple[Tensor, int]:
        """Which prompt each image slot stands in [I], and K: from the placeholders alone."""
        per_row = (input_ids == self.config.image_token_id).sum(1)
        total = int(per_row.sum())
        size = total // max(1, slots)
        if slots == 0 or total % slots or size < base or bool((per_row % max(1, size)).any()):
            raise ValueError(
                f"image placeholders: expected {slots} images of {base} base tokens and equally many saccades each; "
                f"got {per_row.tolist()} placeholders per prompt"
            )
        rows = torch.arange(len(per_row), device=per_row.device).repeat_interleave(per_row // size)
        return rows, size - base

    def _questions(self, embeds: Tensor, query_mask: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The question's embeddings, packed to the left, whatever the padding: [I, L, D] and mask [I, L]."""
        longest = max(1, int(query_mask.sum(1).max()))
        order = query_mask.int().sort(dim=1, descending=True, stable=True).indices[:, :longest]
        packed = embeds.gather(1, order[..., None].expand(-1, -1, embeds.shape[-1]))
        return packed[rows], query_mask.gather(1, order)[rows]

    def fetch_context(
        self,
        encoding: ImageEncoding,
        input_ids: Tensor,
        embeds: Tensor,
        rows: Tensor,
        query_mask: Tensor,
        oracle: Tensor | None,
        generator: torch.Generator | None,
    ) -> FetchContext:
        """What the scorers see of each image slot and its question."""
        query, mask = self._questions(embeds, query_mask, rows)
        question_seed = (input_ids * query_mask).sum(1)[rows].to(encoding.seeds.device)
        return FetchContext(
            features=encoding.features,
            textures=encoding.textures,
            patch_mask=encoding.patch_mask,
            query=query,
            query_mask=mask,
            seeds=(encoding.seeds * 1_000_003 + question_seed + self.config.fetcher_config.seed) % 2**31,
            oracle=oracle,
            generator=generator,
        )

    def embed_prompt(
        self,
        input_ids: Tensor,
        encoding: ImageEncoding,
        *,
        query_mask: Tensor,
        image_index: Tensor | None = None,
        strategy: str | None = None,
        allocator: str | None = None,
        oracle: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor, FetchResult, FetchContext]:
        """Prompt embeddings with every placeholder replaced by its image's base tokens, then its saccades.

        Args:
            input_ids: [B, S] with M + K placeholders per image.
            encoding: the images.
            query_mask: [B, S], True on the question's tokens.
            image_index: [I] which encoded image stands in each slot; None: each once, in order.
            strategy, allocator: names; the config's by default.
            oracle: [I, N] known relevance, for strategy "oracle".
            generator: for strategy "random".

        Returns:
            Embeddings [B, S, D], image tokens [I, M + K, D], what was fetched, and what the scorer saw.
        """
        if image_index is not None:
            encoding = replace(encoding, prefix_ids=None, prefix_cache=None).select(image_index)  # no copy of the cache
        rows, budget = self._slots(input_ids, len(encoding), encoding.tokens.shape[1])
        placeholder = input_ids == self.config.image_token_id
        embeds = self.get_input_embeddings()(input_ids.masked_fill(placeholder, 0))
        context = self.fetch_context(encoding, input_ids, embeds, rows, query_mask, oracle, generator)
        taken = encoding.base_indices if self.config.fetcher_config.overlap == "exclude" else None
        fetched = self.fetcher(context, budget, strategy=strategy, allocator=allocator, taken=taken)
        tokens = encoding.tokens
        if budget:
            states, projected = self.vision_tower.saccades(encoding, fetched.indices)
            tokens = torch.cat((tokens, self.bridge(states, projected).to(tokens.device)), 1)
        embeds = embeds.masked_scatter(placeholder[..., None], tokens.to(embeds))
        return embeds, tokens, fetched, context

    def forward(self, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutputWithPast:
        """The language model over prompt embeddings [B, S, D]."""
        return self.language_model(inputs_embeds=inputs_embeds, **kwargs)


class ArrCocForConditionalGeneration(ArrCocPreTrainedModel, AskingMixin, GenerationMixin):  # type: ignore[misc]
    """ARR-COC with its vocabulary head: training by `forward`, answers by `generate(image, question)`."""

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

    def default_query_mask(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        """[B, S] True on text of the prompt: not on placeholders, padding, or (where labels exist) answers."""
        mask = input_ids != self.config.image_token_id
        if attention_mask is not None and attention_mask.ndim == 2:
            mask = mask & attention_mask[:, -input_ids.shape[1] :].bool()
        return mask if labels is None else mask & (labels == -100)

    def relevance_loss(self, context: FetchContext, labels: Tensor, fetched: FetchResult | None = None) -> Tensor:
        """Mean binary cross-entropy of every trained scorer against `labels` [I, N] over patches that hold some image.

        `fetched`: what the same context led to, so that its scorer need not run again.
        """
        scorers = self.model.fetcher.scorers
        if not scorers:
            raise ValueError("relevance_labels: expected a model with trained scorers; this one has none")
        done = {} if fetched is None else {fetched.strategy: fetched.scores}
        known = [done[name] if name in done else scorer(context) for name, scorer in scorers.items()]
        weight = torch.full((), self.config.relevance_positive_weight, device=known[0].device)
        target, mask = labels.to(known[0]), context.patch_mask.to(known[0].device)
        losses = [
            F.binary_cross_entropy_with_logits(scores, target, pos_weight=weight, reduction="none")[mask].mean()
            for scores in known
        ]
        return torch.stack(losses).mean()

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
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        relevance_labels: Tensor | None = None,
        oracle_relevance: Tensor | None = None,
        strategy: str | None = None,
        allocator: str | None = None,
        generator: torch.Generator | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> ArrCocOutput | tuple:
        """One pass over prompts with images.

        Args:
            input_ids: [B, S], with M + K placeholders (`config.image_token_id`) for every image; K is read off them.
            pixel_values: [P, 3, side, side]; patch_mask: [P, N]. See `encode_image`.
            image_index: [I] which image of `pixel_values` (or `image_encoding`) stands in each image slot, in the order
                of the slots in the prompts; None: each image once.
            image_encoding: what `encode_image` returned, in place of `pixel_values`.
            attention_mask, position_ids, past_key_values, inputs_embeds, logits_to_keep: as in any causal LM.
            query_mask: [B, S] non-zero on the question's tokens; by default all text of the prompt without the answer.
            labels: [B, S] with -100 where there is nothing to predict; gives `loss`.
            relevance_labels: [I, N] in 0..1, which patches hold the answer; trains all scorers, and is what strategy
                "oracle" fetches where `oracle_relevance` [I, N] is not given.
            strategy, allocator: names; the config's by default.
            generator: for strategy "random".

        Raises:
            ValueError: placeholders and images that do not match, unknown names, a budget above the candidates.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected exactly one of input_ids and inputs_embeds; got both or neither")
        num_items = kwargs.pop("num_items_in_batch", None)
        fetched = tokens = context = None
        if pixel_values is not None or image_encoding is not None:
            if input_ids is None:
                raise ValueError(
                    "inputs_embeds: expected input_ids beside pixel_values or image_encoding; got embeddings"
                )
            inputs_embeds, tokens, fetched, context = self.embed_images(
                input_ids, pixel_values=pixel_values, patch_mask=patch_mask, image_index=image_index,
                image_encoding=image_encoding, attention_mask=attention_mask, query_mask=query_mask, labels=labels,
                relevance_labels=relevance_labels, oracle_relevance=oracle_relevance,
                strategy=strategy, allocator=allocator, generator=generator,
            )  # fmt: skip
        elif input_ids is not None:
            self._refuse_placeholders_without_images(input_ids, past_key_values)
            inputs_embeds = self.get_input_embeddings()(input_ids)
        outputs = self.model(
            inputs_embeds,
            attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values, **kwargs,
        )  # fmt: skip
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else slice(None)
        logits = self.lm_head(
            outputs.last_hidden_state[:, logits_to_keep if isinstance(logits_to_keep, Tensor) else keep]
        )
        loss, relevance_loss = self._losses(logits, labels, num_items, relevance_labels, context, fetched)
        output = ArrCocOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            relevance_loss=relevance_loss,
            fetch=fetched,
            image_tokens=tokens,
        )
        return output if return_dict is not False else output.to_tuple()

    def embed_images(
        self,
        input_ids: Tensor,
        *,
        pixel_values: Tensor | None = None,
        patch_mask: Tensor | None = None,
        image_index: Tensor | None = None,
        image_encoding: ImageEncoding | None = None,
        attention_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        labels: Tensor | None = None,
        relevance_labels: Tensor | None = None,
        oracle_relevance: Tensor | None = None,
        **choices: Any,
    ) -> tuple[Tensor, Tensor, FetchResult, FetchContext]:
        """`ArrCocModel.embed_prompt` for the arguments of `forward`, which it checks."""
        if pixel_values is not None and image_encoding is not None:
            raise ValueError("images: expected pixel_values or image_encoding; got both")
        if query_mask is None:
            query_mask = self.default_query_mask(input_ids, attention_mask, labels)
        if query_mask.shape != input_ids.shape:
            expected = f"shape {list(input_ids.shape)}, that of input_ids"
            raise ValueError(f"query_mask: expected {expected}; got {list(query_mask.shape)}")
        if pixel_values is not None:
            image_encoding = self.model.encode_image(pixel_values, patch_mask)
        assert image_encoding is not None
        images = len(image_encoding)
        if image_index is not None and not all(0 <= i < images for i in image_index.tolist()):
            raise ValueError(f"image_index: expected numbers of {images} images, from 0; got {image_index.tolist()}")
        shape = [images if image_index is None else len(image_index), image_encoding.side**2]
        for name, given in (("relevance_labels", relevance_labels), ("oracle_relevance", oracle_relevance)):
            if given is not None and list(given.shape) != shape:
                raise ValueError(f"{name}: expected shape {shape} (image slots, patches); got {list(given.shape)}")
        oracle = relevance_labels if oracle_relevance is None else oracle_relevance
        return self.model.embed_prompt(
            input_ids, image_encoding, query_mask=query_mask.bool(), image_index=image_index, oracle=oracle, **choices
        )

    def _losses(
        self,
        logits: Tensor,
        labels: Tensor | None,
        num_items: Tensor | int | None,
        relevance_labels: Tensor | None,
        context: FetchContext | None,
        fetched: FetchResult | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """The loss to minimise, and the relevance loss alone; None where nothing asks for them.

        `num_items`: answer tokens of all accumulated batches, as Trainer counts them: the losses of those batches are
        then to be summed, so each batch counts by its share of the tokens.
        """
        loss = relevance = None
        if labels is not None:
            vocabulary = self.config.text_config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=vocabulary, num_items_in_batch=num_items)
        if relevance_labels is not None:
            if context is None:
                raise ValueError("relevance_labels: expected images beside them; got none")
            relevance = self.relevance_loss(context, relevance_labels, fetched)
            weighted = self.config.relevance_loss_weight * relevance
            if labels is not None and num_items is not None:
                weighted = weighted * ((labels[:, 1:] != -100).sum() / num_items)
            loss = weighted if loss is None else loss + weighted
        return loss, relevance

    def _refuse_placeholders_without_images(self, input_ids: Tensor, past_key_values: Cache | None) -> None:
        started = past_key_values is not None and past_key_values.get_seq_length() > 0
        if not started and bool((input_ids == self.config.image_token_id).any()):
            count = int((input_ids == self.config.image_token_id).sum())
            raise ValueError(
                f"image placeholders: expected images for them; got {count} placeholders and no pixel_values"
            )

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Tensor,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Drops what only the prefill needs from later steps: the images are in the cache, or in the embeddings."""
        inputs = super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids,  # type: ignore[arg-type]
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )
        if is_first_iteration:
            return inputs
        for name in IMAGE_ARGUMENTS:
            inputs.pop(name, None)
        if inputs_embeds is not None and not kwargs.get("use_cache", True):
            # Without a cache the whole sequence runs again: the prompt as it was embedded, images included.
            answered = kwargs["attention_mask"].shape[1] - inputs_embeds.shape[1]
            answer = self.get_input_embeddings()(input_ids[:, input_ids.shape[1] - answered :])
            inputs.update(input_ids=None, inputs_embeds=torch.cat((inputs_embeds, answer.to(inputs_embeds)), 1))
        return inputs


__all__ = ["ArrCocForConditionalGeneration", "ArrCocModel", "ArrCocPreTrainedModel", "ImageEncoding"]
