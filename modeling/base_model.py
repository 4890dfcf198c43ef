"""The model without its head: from pixels and a question to the language model's last hidden state.

The forward pass, top to bottom: pixels -> grid encoder -> features (once per image) -> compressor -> base tokens ->
semantic encoder; question -> scorer -> allocator -> fetched tokens gathered from the features -> semantic encoder,
behind the base; both through the bridge into the language model: [base][fetched tokens][question] -> answer.

A question takes three steps: `look` (what it sees), `fetch` (which patches), `place` (their tokens into the prompt).

Notation: B prompts, P encoded images, I image slots (places in prompts where an image stands), S sequence length,
G side of the fine grid, N = G*G patches, M base tokens, K fetched tokens, C feature channels, D' semantic width, D
language model width. Positions are (y, x), row-major.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from secrets import token_hex
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel
from transformers.cache_utils import Cache
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from .allocators import FetchResult
from .attention_scorer import glance
from .bridges import BRIDGES, Bridged, DeepStack, ReadPatches, embedding_table
from .checks import check_inputs, refusal
from .configuration_arr_coc import ArrCocConfig
from .fetcher import AS_CONFIGURED, FetchChoices, RunningBackFetcher
from .image_encoding import KNOWN, SEEN, ImageEncoding, check_identity
from .joint_allocation import JointFetch, bridge_over_views, fetch_over_views
from .pretrained import ArrCocPreTrainedModel, device_of, model_identity
from .processing_arr_coc import find_query_tokens
from .prompt import (
    READ,
    EmbeddedPrompt,
    Look,
    beside_embeds,
    deepstack_arguments,
    default_query_mask,
    find_slots,
    hide_placeholders,
    lacks_answers,
    positions,
    refuse_placeholders,
    trim_placeholders,
)
from .prompt_format import LAYOUTS
from .scorers import FetchContext, scorer_inputs
from .transformers_releases import CACHE, CacheOutput, by_either_name
from .view_encoding import look_at_views
from .vision_tower import ArrCocVisionTower, pool_cells


def build_language_model(config: PretrainedConfig) -> PreTrainedModel:
    """The language model, without a vocabulary head, of any causal language model's config."""
    if config.model_type == "deepseek_ocr2_text":  # in transformers, but only as a part: AutoModel does not know it
        from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2TextModel

        return DeepseekOcr2TextModel._from_config(config)
    return AutoModel.from_config(config)


@dataclass
class ArrCocModelOutput(CacheOutput):
    """Output of `ArrCocModel.forward`: that of a language model without a head, and what came of the images.

    `fetch`: what was fetched for each image slot; `prompt`: the prompts as the language model read them, and their
    labels, trimmed where an allocator fetched less; `scores`: logits [I, N] of every trained scorer by name, where they
    were asked for. None without images.
    """

    last_hidden_state: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    fetch: FetchResult | None = None
    prompt: EmbeddedPrompt | None = None
    scores: dict[str, Tensor] | None = None


class ArrCocModel(ArrCocPreTrainedModel):
    """Vision, fetcher, bridge and language model, without the vocabulary head."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]

    def __init__(self, config: ArrCocConfig) -> None:
        super().__init__(config)
        vision, semantic, text = config.vision_config, config.semantic_config, config.text_config
        fetcher, sizes = config.fetcher_config, {"feature_size": vision.out_channels, "text_size": text.hidden_size}
        self.token = token_hex(8)  # tells models of one process apart, see `maker`
        made = scorer_inputs(fetcher)
        made["keeps_depths"] |= config.bridge_config.deepstack
        if BRIDGES[config.bridge_config.kind].places_tokens:
            made["vocabulary"] = text.vocab_size
        self.vision_tower = ArrCocVisionTower(vision, semantic, **made)
        self.fetcher = RunningBackFetcher(fetcher, **sizes, depth_size=vision.hidden_size)
        self.bridge = BRIDGES[config.bridge_config.kind](
            config.bridge_config, vision_size=semantic.hidden_size, text_size=text.hidden_size
        )
        self.layout = LAYOUTS[config.bridge_config.layout](text.hidden_size)
        widths = (vision.hidden_size, vision.out_channels, text.hidden_size)
        self.deepstack = DeepStack(*widths) if config.bridge_config.deepstack else None
        self.language_model = build_language_model(text)
        taken = {"inputs_embeds", "attention_mask", "position_ids", CACHE}
        self._language_arguments = {*inspect.signature(self.language_model.forward).parameters} - taken
        self._language_arguments |= {*TransformersKwargs.__optional_keys__}
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.set_input_embeddings(value)

    @property
    def input_device(self) -> torch.device:
        """Where pixels and prompts go."""
        return device_of(self.get_input_embeddings())

    def identity(self) -> str:
        """A checksum of what makes an encoding: see `model_identity`."""
        return model_identity(self)

    def maker(self) -> tuple[str, str] | None:
        """What an encoding remembers of the model that makes it: which object in this process, and its identity.

        None where weights have no numbers to sample, as some quantized ones.
        """
        try:
            return self.token, self.identity()
        except (NotImplementedError, RuntimeError):
            return None

    def own(self, encoding: ImageEncoding) -> ImageEncoding:
        """The encoding, for questions to this model: without its prefix where another object of its weights made it.

        Raises:
            ValueError: a model of other weights made it.
        """
        encoding.check_fits(self.config)
        if encoding.made_by is None or encoding.made_by[0] == self.token:
            return encoding
        if (maker := self.maker()) is not None:
            check_identity("image", encoding.made_by[1], maker[1])
        return encoding.without_prefix()

    # ---- an image, once

    def encode_image(self, pixel_values: Tensor, patch_mask: Tensor | None = None, *, pool: int = 1) -> ImageEncoding:
        """Runs everything that no question changes, once.

        Args:
            pixel_values: [P, 3, S, S], normalised; S a multiple of 4 patches.
            patch_mask: [P, N], True (non-zero) on patches that hold some of the image; None: all.
            pool: base cells along each axis that become one base token of the language model's.

        Raises:
            ValueError: not a batch of square images, or a side that is no multiple of 4 patches.
        """
        return self._encoded(pixel_values, patch_mask, pool=pool)

    def encode_features(
        self,
        features: Tensor,
        pixel_values: Tensor,
        patch_mask: Tensor | None = None,
        **kept: Tensor | None,
    ) -> ImageEncoding:
        """The rest of `encode_image`, from what `ArrCocVisionTower.encode_grid` returned on."""
        return self._encoded(pixel_values, patch_mask, {"features": features, **kept})

    def encode_base(
        self, features: Tensor, patch_mask: Tensor, bypass: bool, pieces: Tensor | None = None
    ) -> ImageEncoding:
        """What fetched tokens of grids [P, C, G, G] see of them; the rest of the encoding is empty."""
        rest = {"textures": features[:, :0], "seeds": patch_mask.new_zeros(len(features), dtype=torch.int64)}
        grid = {"features": features, "pieces": pieces}
        return self._encoded(None, patch_mask, grid, rest=rest, bypass=bypass)

    def _encoded(
        self,
        pixel_values: Tensor | None,
        patch_mask: Tensor | None,
        grid: Mapping[str, Tensor | None] = MappingProxyType({}),
        *,
        rest: Mapping[str, Any] = MappingProxyType({}),
        bypass: bool | None = None,
        pool: int = 1,
    ) -> ImageEncoding:
        """The encoding of images: through the vision tower, then base tokens through the bridge.

        `rest`: what of an encoding the tower does not make; all that it makes, where it is not to run.
        """
        seen = rest if "semantic" in rest else self.vision_tower(pixel_values, patch_mask, **grid)
        seen = {**seen, **rest}
        bypass = self.config.bridge_config.bypass if bypass is None else bypass
        states, projected = seen["semantic"], seen["compressed"].flatten(2).transpose(1, 2)
        if pool > 1 and self.bridge.reads_pooled:
            states, projected = pool_cells(states, pool), pool_cells(projected, pool)
        pieces, read = seen.get("pieces"), {}
        if pieces is not None:
            read = self._read(pieces, seen["features"])
        bridged = self.bridge(states, projected, bypass=bypass, **read)
        tokens = bridged.tokens if self.bridge.reads_pooled or pool == 1 else pool_cells(bridged.tokens, pool)
        closing = None
        if self.layout.adds:
            tokens, closing = self.layout(tokens, self.bridge.indicators(tokens.device))
        return ImageEncoding(
            **seen, tokens=tokens, closing=closing, quality=bridged.quality, bridge_cache=bridged.cache, bypass=bypass,
            pool=pool, bypassed=bridged.failed,
        )  # fmt: skip

    def with_bypass(self, encoding: ImageEncoding, bypass: bool | None) -> ImageEncoding:
        """The encoding with base tokens from the bridge's linear projection alone (True), all of it, or as they are.

        Raises:
            ValueError: a bridge without a linear projection.
        """
        if bypass is None or bypass == encoding.bypass:
            return encoding
        return self.crossed_anew(encoding, bypass)

    def crossed_anew(self, encoding: ImageEncoding, bypass: bool) -> ImageEncoding:
        """The encoding with base tokens as the bridge makes them now, of what the vision tower saw then."""
        seen = {name: getattr(encoding, name) for name in SEEN}
        crossed = self._encoded(None, None, rest=seen, bypass=bypass, pool=encoding.pool)
        return replace(crossed, **{name: getattr(encoding, name) for name in KNOWN})

    # ---- a question: look, fetch, place

    def look(
        self,
        input_ids: Tensor,
        encoding: ImageEncoding,
        *,
        query_mask: Tensor,
        image_index: Tensor | None = None,
        choices: FetchChoices = AS_CONFIGURED,
        attention_mask: Tensor | None = None,
        slots: tuple[Tensor, int] | None = None,
    ) -> Look:
        """What a question sees before anything is fetched.

        Args:
            input_ids: [B, S] with M + K placeholders per image, and those that the layout adds.
            encoding: the images.
            query_mask: bool [B, S], True on the question's tokens.
            image_index: [I] which encoded image stands in each slot; None: each once, in order.
            choices: see `FetchChoices`.
            attention_mask: [B, S], of padded prompts; strategy "glance" reads them.
            slots: the prompt of each slot [I] and K, where they are known; None: the placeholders say them.

        Raises:
            ValueError: placeholders that do not fit the images.
        """
        embeds, prefix = self._embed(input_ids), None
        if choices.bypass is not None:
            encoding = self.with_bypass(encoding, choices.bypass)
        if image_index is not None:
            prefix = encoding
            encoding = encoding.without_prefix().select(image_index)  # no copy of the cache
        fetcher = self.config.fetcher_config
        rows, budget = self._slots(input_ids, encoding, choices) if slots is None else slots
        query, mask = pack_questions(embeds, query_mask, rows)
        seed = fetcher.seed if choices.seed is None else choices.seed
        question_seed = (input_ids * query_mask).sum(1)[rows].to(encoding.seeds.device)
        context = FetchContext(
            features=encoding.features,
            textures=encoding.textures,
            patch_mask=encoding.patch_mask,
            query=query,
            query_mask=mask,
            seeds=(encoding.seeds * 1_000_003 + question_seed + seed) % 2**31,
            relevance=choices.relevance,
            generator=choices.generator,
            depths=encoding.depths,
            pieces=encoding.pieces,
            table=None if encoding.pieces is None else self._table(encoding.pieces.device),
        )
        taken = encoding.base_indices if (choices.overlap or fetcher.overlap) == "exclude" else None
        return Look(
            input_ids, query_mask, embeds, encoding, rows, budget, context, taken, attention_mask, prefix, image_index
        )

    def _slots(self, input_ids: Tensor, encoding: ImageEncoding, choices: FetchChoices) -> tuple[Tensor, int]:
        """The prompt of each image slot [I], and K, by the placeholders."""
        budget = None
        if torch.compiler.is_compiling() and choices.budget is not None:  # their number need not be looked up
            size = encoding.side * self.config.vision_config.patch_size
            budget = self.config.vision_tokens(size, choices.budget, strategy=choices.strategy)[1]
        image_token, base = self.config.image_token_id, encoding.base_positions
        return find_slots(input_ids, image_token, len(encoding), base, budget=budget)

    def fetch(self, look: Look, choices: FetchChoices = AS_CONFIGURED) -> FetchResult:
        """Which patches the question gets: see `RunningBackFetcher.forward` and `fetch_over_views`."""
        if self.fetcher.reads_attention(choices) and (look.views is None or look.views.whole):
            look = replace(look, context=replace(look.context, attention=glance(self, look)))
        if look.views is not None:
            return fetch_over_views(self.fetcher, look, choices)
        return self.fetcher(look.context, look.budget, choices, taken=look.taken)

    def place(self, look: Look, fetched: FetchResult, **aligned: Tensor | None) -> EmbeddedPrompt:
        """Prompt embeddings with every placeholder replaced by its image's base tokens, then its fetched tokens.

        Placeholders that no token comes for, as the allocator or the bridge wants fewer, are cut out, and with them
        what is `aligned` with the prompt, [B, S] each (attention_mask, position_ids, labels; None stays out). In a
        compiled graph, whose shapes no data may decide, attention_mask hides them.
        """
        inputs = {name: tensor for name, tensor in aligned.items() if tensor is not None}
        inputs.update(input_ids=look.input_ids, query_mask=look.query_mask)
        embeds, image_token = look.embeds, self.config.image_token_id
        tokens, quality, standing = self.image_tokens(look.encoding, fetched)
        if standing is not None and fetched.budget == look.budget and torch.compiler.is_compiling():
            inputs, standing = hide_placeholders(standing, image_token_id=image_token, **inputs), None
        elif standing is not None or fetched.budget < look.budget:
            inputs = trim_placeholders(
                counts=fetched.tokens, image_token_id=image_token, base_positions=look.encoding.base_positions,
                pad_token_id=self.config.padding_id, **inputs,
            )  # fmt: skip
            embeds = self._embed(inputs["input_ids"])
        flat = (tokens if standing is None else tokens[standing]).to(embeds)
        embeds = embeds.masked_scatter((inputs["input_ids"] == image_token)[..., None], flat)
        places = planes = None
        if self.layout.spatial or self.deepstack is not None:
            known = {"standing": standing, "attention_mask": inputs.get("attention_mask")}
            places, planes = beside_embeds(self, inputs["input_ids"], look.encoding, fetched, look.context, **known)
        known = {**inputs, "prompt_embeds": embeds, "prompt_planes": planes}
        if places is not None:
            known["position_ids"] = places
        read = {}
        for name in READ:
            if (tensor := known.get(name)) is not None:
                read[name] = tensor
        return EmbeddedPrompt(embeds, tokens, quality, fetched, look.context, inputs, read, places, planes)

    def _embed(self, input_ids: Tensor) -> Tensor:
        """Embeddings of a prompt's text [B, S, D]; a placeholder's are of no meaning."""
        return self.get_input_embeddings()(input_ids.masked_fill(input_ids == self.config.image_token_id, 0))

    def bridge_saccades(
        self,
        encoding: ImageEncoding,
        indices: Tensor,
        used: Tensor | None = None,
        levels: Tensor | None = None,
        rank: Tensor | None = None,
        relevance: Tensor | None = None,
    ) -> Bridged:
        """Fetched patches [I, K] of the encoded images, one each, on the language model's side: tokens [I, K, D].

        `used` [I, K]: False on those that only fill the rectangle, which the others are not to see; None: all are.
        `levels` [I, K]: of detail, where they are regions (grid_encoder.py).
        `rank` [I, K]: theirs by relevance, from 0, for bridges that order tokens by it; None: all are first.
        `relevance` [I, K]: in 0..1, for bridges that mark tokens by it; None: no token is marked.
        """
        states, projected = self.vision_tower.saccades(encoding, indices, used, levels)
        known = {}
        if encoding.pieces is not None:
            rank = torch.zeros_like(indices) if rank is None else rank
            pieces = encoding.pieces.take_along_dim(indices[..., None, None], 1)
            known = self._read(pieces, encoding.features, indices=indices, rank=rank, relevance=relevance)
        base, bypass = encoding.bridge_cache or [], encoding.bypass
        return self.bridge(states, projected, base=base, bypass=bypass, used=used, **known)

    def _table(self, device: torch.device) -> Tensor:
        """[V, D] the language model's embeddings."""
        table = embedding_table(self.get_input_embeddings(), self.config.text_config.vocab_size, self.input_device)
        return table.to(device)

    def _read(self, pieces: Tensor, features: Tensor, **fetched: Tensor | None) -> dict[str, ReadPatches]:
        """What a bridge that places tokens is told of patches."""
        return {"patches": ReadPatches(pieces, self._table(pieces.device), features.shape[-1], **fetched)}

    def image_tokens(
        self, encoding: ImageEncoding, fetched: FetchResult
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Each image's tokens and their quality, as in `EmbeddedPrompt`, and which of them have a place in the prompt.

        The last is bool [I, positions], or None where every token has one. `fetched.tokens` says how many fetched ones
        have, `fetched.bypassed` whose tokens the bridge's linear projection made, because its adapter failed.
        """
        tokens, quality, used = encoding.tokens, encoding.quality, None
        if encoding.bypassed is not None:
            fetched.bypassed = encoding.bypassed
        if fetched.budget:
            used = fetched.used if fetched.is_ragged else None
            if isinstance(fetched, JointFetch):
                bridged = bridge_over_views(self, encoding, fetched)
            else:
                order = () if encoding.pieces is None else (fetched.ranks(), fetched.predicted_relevance())
                bridged = self.bridge_saccades(encoding, fetched.indices, used, fetched.levels, *order)
            if bridged.failed is not None:
                fetched.bypassed = fetched.bypassed | bridged.failed.to(fetched.bypassed.device)
            saccades, weights = bridged.tokens, fetched.weights
            if bridged.source is not None:
                used, fetched.source = bridged.source >= 0, bridged.source
                fetched.tokens = used.sum(1)
                weights = None if weights is None else weights.gather(1, bridged.source.clamp(min=0))
            for factor in (weights, used):
                if factor is not None:
                    saccades = saccades * factor[..., None].to(saccades)
            tokens = torch.cat((tokens, saccades.to(tokens.device)), 1)
            if quality is not None and bridged.quality is not None:
                quality = torch.cat((quality, bridged.quality.to(quality.device)), 1)
        if encoding.closing is not None:
            tokens = torch.cat((tokens, encoding.closing.to(tokens.device)), 1)
        if used is None:
            return tokens, quality, None
        standing, start = used.new_ones(tokens.shape[:2]), encoding.tokens.shape[1]
        standing[:, start : start + fetched.budget] = used
        return tokens, quality, standing.to(tokens.device)

    def embed_images(
        self,
        input_ids: Tensor,
        encoding: ImageEncoding,
        *,
        image_index: Tensor | None = None,
        query_mask: Tensor | None = None,
        choices: FetchChoices = AS_CONFIGURED,
        joint: bool = False,
        **aligned: Tensor | None,
    ) -> EmbeddedPrompt:
        """The three steps for the arguments of `forward`, which it checks.

        `joint`: the images of a prompt share one budget, as `generate(image, question)` has it; else each has its own.
        """
        if choices.num_passes not in (None, 1):
            raise refusal("num_passes", "several only in generate(image, question)", choices.num_passes)
        if self.layout.spatial and aligned.get("position_ids") is not None:
            expected = (
                f"none beside images with layout {self.config.bridge_config.layout!r}, which says where tokens are"
            )
            raise refusal("position_ids", expected, aligned["position_ids"])
        inputs = {"input_ids": input_ids, "query_mask": query_mask, "image_index": image_index, **aligned}
        markers = self.config.query_markers
        if query_mask is None or (markers is not None and lacks_answers(query_mask, input_ids)):
            question = None if markers is None else find_query_tokens(input_ids, **markers)
            query_mask = default_query_mask(
                input_ids, self.config.image_token_id, aligned.get("attention_mask"), aligned.get("labels"), question
            )
        check_inputs(
            {**inputs, "query_mask": query_mask}, choices.relevance, images=len(encoding), patches=encoding.side**2,
            dtype=encoding.tokens.dtype, vocabulary=self.config.text_config.vocab_size,
        )  # fmt: skip
        look = self.look(
            input_ids, encoding, query_mask=query_mask.bool(), image_index=image_index, choices=choices,
            attention_mask=aligned.get("attention_mask"),
        )  # fmt: skip
        if joint and not torch.compiler.is_compiling() and self._in_views(look, encoding, choices):
            shown = look.rows.bincount(minlength=len(input_ids)).tolist()
            index = torch.arange(len(encoding)) if image_index is None else image_index.cpu()
            numbers = [own.tolist() for own in index.split(shown)]
            look = look_at_views(self, look, encoding, numbers, choices)
        return self.place(look, self.fetch(look, choices), **aligned)

    @staticmethod
    def _in_views(look: Look, encoding: ImageEncoding, choices: FetchChoices) -> bool:
        """Whether a document is asked about, or several images of one prompt, which share a budget."""
        several = choices.patches is None and len(look.rows) > len(look.rows.unique())
        return encoding.documents is not None or several

    def _with_images(
        self,
        input_ids: Tensor | None,
        pixel_values: Tensor | None,
        patch_mask: Tensor | None,
        image_index: Tensor | None,
        image_encoding: ImageEncoding | None,
        choices: FetchChoices | Mapping[str, Any] | None,
        **steps: Any,
    ) -> EmbeddedPrompt | None:
        """`embed_images` of the images that came, encoded or not; None without any."""
        if pixel_values is None and image_encoding is None:
            return None
        if input_ids is None or (pixel_values is not None and image_encoding is not None):
            expected = "input_ids beside either pixel_values or image_encoding"
            raise ValueError(f"images: expected {expected}; got {'inputs_embeds' if input_ids is None else 'both'}")
        if image_encoding is None:
            assert pixel_values is not None
            image_encoding = self.encode_image(pixel_values, patch_mask)
        elif type(image_encoding).__name__ != ImageEncoding.__name__:  # by name: remote code may load a class twice
            raise refusal("image_encoding", "what encode_image returned", image_encoding)
        image_encoding.check_fits(self.config)
        return self.embed_images(
            input_ids, image_encoding, image_index=image_index, choices=FetchChoices.of(choices), **steps
        )

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
        choices: FetchChoices | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> ArrCocModelOutput:
        """Prompts with images -> the language model's last hidden state: see `ArrCocForConditionalGeneration.forward`.

        `labels` only say what of a prompt is no question, and are trimmed along with it.
        """
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        if unknown := sorted(set(kwargs) - self._language_arguments):
            raise TypeError(f"forward: expected arguments that it names or the language model has; got {unknown}")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids: expected exactly one of them and inputs_embeds; got both or neither")
        images = (pixel_values, patch_mask, image_index, image_encoding, choices)
        aligned: dict[str, Any] = {"attention_mask": attention_mask, "position_ids": position_ids, "labels": labels}
        prompt = self._with_images(input_ids, *images, query_mask=query_mask, **aligned)
        if prompt is not None:
            inputs_embeds = prompt.embeds
            attention_mask, position_ids = (prompt.inputs.get(name) for name in ("attention_mask", "position_ids"))
            kwargs.update(deepstack_arguments(prompt.planes))
            if prompt.positions is not None:
                position_ids = prompt.positions
            elif position_ids is None and attention_mask is not None and prompt.inputs["input_ids"] is not input_ids:
                position_ids = positions(attention_mask)  # rows were padded anew: a token's place is not its column
        elif inputs_embeds is None:
            assert input_ids is not None
            refuse_placeholders(input_ids, self.config.image_token_id, cache)
            inputs_embeds = self.get_input_embeddings()(input_ids)
        if self.layout.spatial and position_ids is None and not torch.compiler.is_compiling():
            read = 0 if cache is None else cache.get_seq_length()
            if read:
                expected = f"them [3, B, S] behind the {read} tokens of the cache, whose images take other positions"
                raise ValueError(f"position_ids: expected {expected}; got none")
        outputs = self.language_model(
            inputs_embeds=inputs_embeds, attention_mask=attention_mask, position_ids=position_ids,
            return_dict=True, **{CACHE: cache}, **kwargs,
        )  # fmt: skip
        fetch = None if prompt is None else prompt.fetch
        all_scores = None
        if prompt is not None and FetchChoices.of(choices).all_scores:
            all_scores = self.fetcher.all_scores(prompt.context, fetch)
        states = {name: getattr(outputs, name, None) for name in ("last_hidden_state", "hidden_states", "attentions")}
        remembered = getattr(outputs, CACHE, None)
        return ArrCocModelOutput(**states, cache=remembered, fetch=fetch, prompt=prompt, scores=all_scores)


def pack_questions(embeds: Tensor, query_mask: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The question of each slot, packed to the left, whatever the padding: [I, L, D] and mask [I, L].

    Args:
        embeds: [B, S, D].
        query_mask: bool [B, S].
        rows: [I] the prompt of each slot.
    """
    compiled = torch.compiler.is_compiling()  # then the shape may not depend on what the masks hold
    longest = query_mask.shape[1] if compiled else max(1, int(query_mask.sum(1).max()))
    order = query_mask.int().sort(dim=1, descending=True, stable=True).indices[:, :longest]
    packed = embeds.gather(1, order[..., None].expand(-1, -1, embeds.shape[-1]))
    return packed[rows], query_mask.gather(1, order)[rows]
