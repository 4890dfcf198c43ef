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
from torch import Tensor, nn
from transformers import initialization
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, ModelOutput
from transformers.modeling_utils import PreTrainedModel

from .asker import IMAGE_ARGUMENTS, AskingMixin
from .bridges import BRIDGES
from .composing import ComposingMixin
from .configuration_arr_coc import ArrCocConfig
from .fetcher import FetchResult, RunningBackFetcher
from .language_model import LAYOUTS, build_language_model
from .losses import ScoringMixin
from .prompt import EmbeddedPrompt, positions, refuse_placeholders
from .starting import start_weights
from .textures import textures
from .vision_tower import ArrCocVisionTower, ImageEncoding, SaccadeProjection


@dataclass
class ArrCocOutput(ModelOutput):
    """Output of `ArrCocForConditionalGeneration.forward`.

    `loss`: answer loss plus weighted relevance loss, those that were asked for; `relevance_loss` alone; `logits`
    [B, S, vocabulary], S without the placeholders that an allocator cut out; `fetch`: what was fetched for each image
    slot; `image_tokens`, `token_quality`: see `EmbeddedPrompt`; `scores`: logits [I, N] of every trained scorer by
    name, where they were asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    relevance_loss: Tensor | None = None
    fetch: FetchResult | None = None
    image_tokens: Tensor | None = None
    token_quality: Tensor | None = None
    scores: dict[str, Tensor] | None = None


class ArrCocPreTrainedModel(PreTrainedModel):
    """Initialisation and capabilities shared by the model classes."""

    config: ArrCocConfig
    config_class = ArrCocConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    input_modalities = ["image", "text"]
    supports_gradient_checkpointing = True
    _no_split_modules = [
        "GridLayer", "SemanticLayer", "PatchLayer", "QualityBridge", "TransformerBridge", "VisualTableBridge",
    ]  # fmt: skip
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        start_weights(module, self.config.initializer_range)
        if isinstance(module, SaccadeProjection):
            # A fetched patch speaks the base tokens' language before any training. The compressor comes before it.
            tower: Any = getattr(self, "model", self).vision_tower
            initialization.copy_(module.weight, tower.compressor.warm_start())


class ArrCocModel(ComposingMixin, ArrCocPreTrainedModel):
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
        self.layout = LAYOUTS.named(config.bridge_config.layout)(text.hidden_size)
        self.language_model = build_language_model(text)
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
            **self._bridge_base(semantic, base.tokens, self.config.bridge_config.bypass),
        )

    def _bridge_base(self, semantic: Tensor, compressed: Tensor, bypass: bool) -> dict[str, Any]:
        """What an `ImageEncoding` holds of its base tokens, each [P, M, D'], on the language model's side."""
        bridged = self.bridge.cross(semantic, compressed, bypass=bypass)
        tokens, closing = self.layout(bridged.tokens, self.bridge.indicators(bridged.tokens.device))
        return {
            "tokens": tokens,
            "closing": closing,
            "quality": bridged.quality,
            "bridge_cache": bridged.cache,
            "bypass": bypass,
        }

    def with_bypass(self, encoding: ImageEncoding, bypass: bool | None) -> ImageEncoding:
        """The encoding with base tokens from the bridge's linear projection alone (True), all of it, or as they are.

        Raises:
            ValueError: a bridge without a linear projection.
        """
        if bypass is None or bypass == encoding.bypass:
            return encoding
        compressed = encoding.compressed.flatten(2).transpose(1, 2)
        bridged = self._bridge_base(encoding.semantic, compressed, bypass)
        return replace(encoding, prefix_ids=None, prefix_cache=None, **bridged)

    def forward(self, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutputWithPast:
        """The language model over prompt embeddings [B, S, D]."""
        return self.language_model(inputs_embeds=inputs_embeds, **kwargs)


class ArrCocForConditionalGeneration(ArrCocPreTrainedModel, ScoringMixin, AskingMixin, GenerationMixin):  # type: ignore[misc]
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
        bridge_bypass: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_scores: bool = False,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> ArrCocOutput | tuple:
        """One pass over prompts with images.

        Args:
            input_ids: [B, S], with M + K placeholders (`config.image_token_id`) for every image, and those that the
                layout adds; K is read off them. Allocators that choose how much they fetch cut out the rest.
            pixel_values: [P, 3, side, side]; patch_mask: [P, N]. See `encode_image`.
            image_index: [I] which image of `pixel_values` (or `image_encoding`) stands in each image slot, in the order
                of the slots in the prompts; None: each image once.
            image_encoding: what `encode_image` returned, in place of `pixel_values`.
            attention_mask, position_ids, past_key_values, inputs_embeds, logits_to_keep: as in any causal LM.
            query_mask: [B, S] non-zero on the question's tokens; by default all text of the prompt without the answer.
            labels: [B, S] with -100 where there is nothing to predict; gives `loss`.
            relevance_labels: [I, N] in 0..1, which patches hold the answer, or rows of -1 where nobody knows; trains
                all scorers, and is what strategy "oracle" fetches where `oracle_relevance` [I, N] is not given.
            strategy, allocator: names; the config's by default.
            generator: for strategy "random".
            bridge_bypass: whether the bridge gives way to its linear projection; None as configured or as encoded.
            output_scores: whether every trained scorer runs, not only the strategy's.

        Raises:
            ValueError: placeholders and images that do not match, unknown names, a budget above the candidates.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected exactly one of input_ids and inputs_embeds; got both or neither")
        num_items = kwargs.pop("num_items_in_batch", None)
        made = None
        if pixel_values is not None or image_encoding is not None:
            if input_ids is None:
                raise ValueError(
                    "inputs_embeds: expected input_ids beside pixel_values or image_encoding; got embeddings"
                )
            made = self.embed_images(
                input_ids, pixel_values=pixel_values, patch_mask=patch_mask, image_index=image_index,
                image_encoding=image_encoding, attention_mask=attention_mask, query_mask=query_mask, labels=labels,
                position_ids=position_ids, relevance_labels=relevance_labels, oracle_relevance=oracle_relevance,
                strategy=strategy, allocator=allocator, generator=generator, bridge_bypass=bridge_bypass,
            )  # fmt: skip
            inputs_embeds = made.embeds
            attention_mask, position_ids, labels = (
                made.inputs.get(name) for name in ("attention_mask", "position_ids", "labels")
            )
            if position_ids is None and attention_mask is not None and made.inputs["input_ids"] is not input_ids:
                position_ids = positions(attention_mask)  # rows were padded anew: a token's place is not its column
        elif input_ids is not None:
            if past_key_values is None or past_key_values.get_seq_length() == 0:
                refuse_placeholders(input_ids, self.config.image_token_id)
            inputs_embeds = self.get_input_embeddings()(input_ids)
        outputs = self.model(
            inputs_embeds,
            attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values, **kwargs,
        )  # fmt: skip
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else slice(None)
        logits = self.lm_head(
            outputs.last_hidden_state[:, logits_to_keep if isinstance(logits_to_keep, Tensor) else keep]
        )
        scores = None
        if made is not None and (output_scores or relevance_labels is not None):
            scores = self.model.fetcher.all_scores(made.context, made.fetch)
        loss, relevance_loss = self._losses(logits, labels, num_items, relevance_labels, scores, made)
        output = ArrCocOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            relevance_loss=relevance_loss,
            fetch=None if made is None else made.fetch,
            image_tokens=None if made is None else made.image_tokens,
            token_quality=None if made is None else made.token_quality,
            scores=scores if output_scores else None,
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
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        relevance_labels: Tensor | None = None,
        oracle_relevance: Tensor | None = None,
        **choices: Any,
    ) -> EmbeddedPrompt:
        """`ArrCocModel.compose` for the arguments of `forward`, which it checks."""
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
        return self.model.compose(
            input_ids, image_encoding, query_mask=query_mask.bool(), image_index=image_index, oracle=oracle,
            attention_mask=attention_mask, position_ids=position_ids, labels=labels, **choices,
        )  # fmt: skip

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
