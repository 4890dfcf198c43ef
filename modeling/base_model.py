"""The model without its head: from pixels and a question to the language model's last hidden state.

The forward pass, top to bottom: pixels -> grid encoder -> features (once per image) -> compressor -> base tokens ->
semantic encoder; question -> scorer -> allocator -> fetched tokens gathered from the features -> semantic encoder,
behind the base; both through the bridge into the language model: [base][fetched tokens][question] -> answer.

A question takes three steps: `select_slots` (the inputs of the scorers), `fetch` (the patches) and `place` (all tokens
into the prompt).

Notation: B prompts, P encoded images, I image slots (the places of images in prompts), S sequence length,
G side of the fine grid, N = G*G patches, M base tokens, K fetched tokens, C feature channels, D' semantic width, D
language model width. Positions are (y, x), row-major.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from secrets import token_hex
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from .bridges import BRIDGES, FOREMOST, DeepStack, ReadPatches
from .checks import check_inputs, refusal
from .configuration_arr_coc import ArrCocConfig
from .fetcher import AS_CONFIGURED, FetchChoices, FetchResult, RunningBackFetcher, fetch_over_views
from .image_encoding import ImageEncoding, check_identity
from .patch_scorers import attention_relevance
from .pretrained import CACHE, ArrCocPreTrainedModel, by_either_name, device_of, model_identity
from .prompt import (
    READ,
    ArrCocOutput,
    EmbeddedPrompt,
    bridge_states,
    deepstack_arguments,
    find_slots,
    hide_placeholders,
    in_columns,
    keeps_every_position,
    positions,
    positions_and_planes,
    refuse_placeholders,
    trim_placeholders,
    whole_query_mask,
)
from .prompt_format import LAYOUTS
from .scorers import FetchContext, scorer_inputs
from .views import SelectedSlots, select_views
from .vision_tower import ArrCocVisionTower, pool_cells
from .word_sources import words_on_squares
from .wordpieces import SPACE, GivenWords

_IGNORED = [r"^lm_head\."]
EARLIER = [
    r"vision_tower\.(compressor|semantic_encoder|saccade_projection|grid_encoder\.patch_embed\.projection)\.",
    r"(^|\.)bridge\.rest\.",
]
"""Weights without effect (`rest` was zero) that earlier versions gave to models that read text."""


class ArrCocModel(ArrCocPreTrainedModel):
    """Vision, fetcher, bridge and language model, without the vocabulary head."""

    _keys_to_ignore_on_load_unexpected = _IGNORED

    def __init__(self, config: ArrCocConfig) -> None:
        super().__init__(config)
        vision, semantic, text = config.vision_config, config.semantic_config, config.text_config
        fetcher, sizes = config.fetcher_config, {"feature_size": vision.out_channels, "text_size": text.hidden_size}
        self.padding_id, self.budget = config.padding_id, config.vision_tokens()[1]
        self.label = token_hex(8)  # of this object and its copies, which differ in `id`
        outputs = scorer_inputs(fetcher)
        outputs["keeps_depths"] |= config.bridge_config.deepstack
        if BRIDGES[config.bridge_config.kind].places_tokens:
            outputs["vocabulary"] = text.vocab_size
            self._keys_to_ignore_on_load_unexpected = [*_IGNORED, *EARLIER]
        if outputs["keeps_depths"] and not vision.num_hidden_layers:
            raise ValueError("vision_config.num_hidden_layers: expected at least 1 for states at three depths; got 0")
        self.vision_tower = ArrCocVisionTower(vision, semantic, **outputs)
        self.fetcher = RunningBackFetcher(fetcher, **sizes, depth_size=vision.hidden_size)
        self.bridge = BRIDGES[config.bridge_config.kind](
            config.bridge_config, vision_size=semantic.hidden_size, text_size=text.hidden_size
        )
        self.layout = LAYOUTS[config.bridge_config.layout](text.hidden_size)
        widths = (vision.hidden_size, vision.out_channels, text.hidden_size)
        self.deepstack = DeepStack(*widths) if config.bridge_config.deepstack else None
        if text.model_type == "deepseek_ocr2_text":  # AutoModel does not know this part of a model
            from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2TextModel

            self.language_model: PreTrainedModel = DeepseekOcr2TextModel._from_config(text)
        else:
            self.language_model = AutoModel.from_config(text)
        self.keeps_every_position = keeps_every_position(DynamicCache(config=text))
        passed = {"inputs_embeds", "attention_mask", "position_ids", CACHE}  # by `forward` itself
        self._language_arguments = {*inspect.signature(self.language_model.forward).parameters} - passed
        self._language_arguments |= {*TransformersKwargs.__optional_keys__}
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.set_input_embeddings(value)

    @property
    def input_device(self) -> torch.device:
        """The device of pixels and prompts."""
        embed = self.get_input_embeddings()
        device = next(embed.parameters()).device
        return device if device.type != "meta" else device_of(embed)

    def identity(self) -> str:
        """A checksum of the weights that encode images: see `model_identity`."""
        return model_identity(self)

    @property
    def token(self) -> str:
        """Of this object in this process, as it is now: it changes with the weights, dtypes and adapters of all parts
        but the fetcher.

        It costs little: changes of weights are counted by torch, but for those through `Tensor.data`.
        """
        state: list[Any] = [id(self)]
        for name, part in self.named_children():
            if name != "fetcher":
                state += [(0 if each.is_inference() else each._version, each.dtype) for each in part.parameters()]
                layers: Iterable[Any] = part.modules()
                for layer in layers:
                    if isinstance(getattr(layer, "disable_adapters", None), bool):  # of PEFT
                        used = (getattr(layer, "merged", None), *getattr(layer, "scaling", {}).items())
                        state += [layer.disable_adapters, *layer.active_adapters, *used]
        return f"{self.label}-{hash(tuple(state))}"

    def maker(self) -> tuple[str, str] | None:
        """The label of this model's encodings: its token and its identity; None for weights that cannot be sampled."""
        try:
            return self.token, self.identity()
        except (NotImplementedError, RuntimeError):
            return None

    def own(self, encoding: ImageEncoding) -> ImageEncoding:
        """The encoding for questions to this model: without its prefix if another object with the same weights made it,
        or the language model has changed since. Raises ValueError: a model with other weights made it."""
        if encoding.made_by is not None and encoding.made_by[0] == self.token:
            return encoding
        encoding.check_fits(self.config)
        if encoding.made_by is None:
            return encoding
        if (maker := self.maker()) is not None:
            check_identity("image", encoding.made_by[1], maker[1])
        return encoding.without_prefix()

    # ---- an image, once

    def encode_image(
        self,
        pixel_values: Tensor | None,
        patch_mask: Tensor | None = None,
        *,
        pool: int = 1,
        words: Sequence[GivenWords | None] | None = None,
        encoding: ImageEncoding | None = None,
        bypass: bool | None = None,
        **known: Tensor,
    ) -> ImageEncoding:
        """Encodes images: everything that does not depend on a question.

        Args:
            pixel_values: [P, 3, S, S], normalised; S a multiple of 4 patches. None: `features` are among the `known`.
            patch_mask: [P, N], False (0) on padding patches; None: there are none.
            pool: base cells along each axis that become one base token of the language model.
            words: those of each image from elsewhere, None where the text reader reads; None: it reads all.
            encoding: has all that the vision tower makes, and gets other base tokens.
            bypass: whether these come from the bridge's linear projection alone; None: as configured.
            known: fields that are known by name: outputs of `ArrCocVisionTower.encode_grid`, textures and seeds.

        Raises:
            ValueError: images that are not square, or a side that is not a multiple of 4 patches.
        """
        # 1. The vision tower: features, textures and the states of base tokens.
        pixels, mask = (
            tensor.to(self.input_device) if isinstance(tensor, Tensor) and not tensor.is_meta else tensor
            for tensor in (pixel_values, patch_mask)
        )
        vocabulary = None if self.vision_tower.text_reader is None else self._vocabulary()
        fields: Mapping[str, Any] = {} if encoding is None else vars(encoding)
        if encoding is None:
            fields = self.vision_tower(pixels, mask, words=words, **known)
        # 2. The bridge: base tokens for the language model, pooled before or behind it.
        bypass = self.config.bridge_config.bypass if bypass is None else bypass
        states, projected = fields["semantic"], fields["compressed"].flatten(2).transpose(1, 2)
        if pool > 1 and self.bridge.reads_pooled:
            states, projected = pool_cells(states, pool), pool_cells(projected, pool)
        pieces, read = fields.get("pieces"), {}
        if pieces is not None and vocabulary is not None:
            table, opens = vocabulary[0].to(pieces.device), vocabulary[1].to(pieces.device)
            read["patches"] = ReadPatches(pieces, table, fields["features"].shape[-1], opens)
        bridged = self.bridge(states, projected, bypass=bypass, **read)
        tokens = bridged.tokens if self.bridge.reads_pooled or pool == 1 else pool_cells(bridged.tokens, pool)
        # 3. The layout: which base tokens are shown, and tokens between and around them.
        closing = None
        if not self.layout.shows_base:
            tokens = tokens[:, :0]
        elif self.layout.adds:
            tokens, closing = self.layout(tokens, self.bridge.indicators(tokens.device))
        own: dict[str, Any] = {"tokens": tokens, "closing": closing, "bypassed": bridged.failed}
        own |= {"bypass": bypass, "bridge_cache": bridged.cache}
        if encoding is not None:
            return replace(encoding.without_prefix(), **own, made_by=None)
        return ImageEncoding(**fields, **own, pool=pool)

    def with_bypass(self, encoding: ImageEncoding, bypass: bool | None) -> ImageEncoding:
        """The encoding with base tokens from the whole bridge (False) or its linear projection (True); None: as is."""
        if bypass is None or bypass == encoding.bypass:
            return encoding
        return self.encode_image(None, encoding=encoding, bypass=bypass, pool=encoding.pool)

    def prefilled(self, encoding: ImageEncoding, before: Tensor) -> ImageEncoding:
        """The encoding with the language model's cache of the prompt up to and including the base tokens, and, of a
        page whose words all fit the budget, of these.

        Without full attention in all layers the encoding does not change, as its cache does not keep every position.
        `before`: int64 [n], the prompt's tokens before an image.
        """
        if not self.keeps_every_position:
            return encoding
        cache: Any = DynamicCache(config=self.config.text_config)
        embeds = self.language_model.get_input_embeddings()(before.to(encoding.tokens.device))
        base = encoding.tokens.to(embeds)
        prompt = torch.cat((embeds.expand(len(base), -1, -1), base), 1)
        ids = torch.cat((before, torch.full((base.shape[1],), self.config.image_token_id)))
        extra: dict[str, Any] = {}
        if self.layout.spatial or self.deepstack is not None:
            rows = ids.to(prompt.device).expand(len(base), -1)
            extra["position_ids"], planes = positions_and_planes(self, rows, encoding)
            extra |= deepstack_arguments(planes)
        self(inputs_embeds=prompt, cache=cache, use_cache=True, **extra)
        pairs = attrgetter("keys", "values")  # of a layer
        encoding = replace(encoding, prefix_ids=ids, prefix_cache=[*map(pairs, cache.layers)])
        words = self._words_of_page(encoding)
        if words is not None:
            self(inputs_embeds=words.to(embeds), cache=cache, use_cache=True)
            encoding.page_cache = words[0].to(embeds), [*map(pairs, cache.layers)]
        return encoding

    def _words_of_page(self, encoding: ImageEncoding) -> Tensor | None:
        """[1, W, D] the tokens of all words of one page, as each question fetches them; None if they may not fit."""
        pieces = encoding.pieces
        if pieces is None or len(pieces) > 1 or encoding.tiles is not None or self.layout.adds or self.deepstack:
            return None
        filled = (pieces >= 0).flatten(2).sum(2) * encoding.patch_mask
        count = int(filled.sum())
        if not 0 < count < self.budget:
            return None
        indices = filled.argsort(descending=True, stable=True)[:, :count]
        placed = {"indices": indices, "rank": torch.full_like(indices, FOREMOST)}
        table, opens = self._vocabulary(pieces.device)
        read = ReadPatches(pieces[:, indices[0]], table, encoding.features.shape[-1], opens, **placed)
        nothing = encoding.semantic
        return self.bridge(nothing, nothing, base=[], bypass=encoding.bypass, patches=read).tokens

    # ---- a question: select slots, fetch, place

    def select_slots(
        self,
        input_ids: Tensor,
        encoding: ImageEncoding,
        *,
        query_mask: Tensor,
        image_index: Tensor | None = None,
        choices: FetchChoices = AS_CONFIGURED,
        attention_mask: Tensor | None = None,
        slots: tuple[Tensor, int] | None = None,
    ) -> SelectedSlots:
        """The inputs of the scorers for each image slot, and the question's tokens.

        Args:
            input_ids: [B, S] with M + K placeholders per image, and those that the layout adds.
            encoding: the images.
            query_mask: bool [B, S], True on the question's tokens.
            image_index: [I] the encoded image in each slot; None: each once, in order.
            choices: see `FetchChoices`.
            attention_mask: [B, S], of padded prompts; strategy "attention" needs it.
            slots: the prompt of each slot [I] and K, if they are known; None: read from the placeholders.

        Raises:
            ValueError: placeholders that do not match the images.
        """
        text_ids = input_ids.masked_fill(input_ids == self.config.image_token_id, 0)  # placeholders get any embedding
        embeds, prefix = self.get_input_embeddings()(text_ids), None
        if choices.bypass is not None:
            encoding = self.with_bypass(encoding, choices.bypass)
        if image_index is not None:
            prefix, every = encoding, torch.arange(len(encoding.features))
            encoding = replace(encoding, prefix_ids=None, prefix_cache=None)  # no copy of the cache
            if torch.compiler.is_compiling() or not torch.equal(image_index.cpu(), every):
                encoding = encoding.select(image_index)
        fetcher = self.config.fetcher_config
        if slots is None:
            known = None
            if torch.compiler.is_compiling() and choices.budget is not None:  # K is known without counting placeholders
                size = encoding.side * self.config.vision_config.patch_size
                known = self.config.vision_tokens(size, choices.budget, strategy=choices.strategy)[1]
            image_token, base = self.config.image_token_id, encoding.base_positions
            slots = find_slots(input_ids, image_token, len(encoding), base, budget=known)
        rows, budget = slots
        query, mask = pack_questions(embeds, query_mask, rows)
        text: dict[str, Tensor] = {}  # what a scorer needs to compare the text of a page with the question
        if encoding.pieces is not None and (reader := self.vision_tower.text_reader) is not None:
            text = {"table": self._vocabulary(encoding.pieces.device)[0], "spellings": reader.spellings}
            text["query_ids"] = pack_questions(input_ids[..., None], query_mask, rows)[0][..., 0]
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
            depths=encoding.depths,
            pieces=encoding.pieces,
            **text,
        )
        taken = encoding.base_indices if (choices.overlap or fetcher.overlap) == "exclude" else None
        return SelectedSlots(
            input_ids, query_mask, embeds, encoding, rows, budget, context, taken, attention_mask, prefix, image_index
        )

    def fetch(self, selected: SelectedSlots, choices: FetchChoices = AS_CONFIGURED) -> FetchResult:
        """The patches for the question: see `RunningBackFetcher.forward` and `fetch_over_views`."""
        scorer = self.fetcher.scorer(choices.strategy or self.config.fetcher_config.strategy)
        whole = selected.views is None or not len(selected.views.tile_rows)
        if scorer.reads_attention and choices.patches is None and whole:
            context = replace(selected.context, attention=attention_relevance(self, selected))
            selected = replace(selected, context=context)
        if selected.views is not None:
            fetched = fetch_over_views(self.fetcher, scorer, selected, choices)
        else:
            fetched = self.fetcher(selected.context, selected.budget, choices, taken=selected.taken)
        fetched.base = None if self.layout.shows_base else 0
        return fetched

    def place(self, selected: SelectedSlots, fetched: FetchResult, **aligned: Tensor | None) -> EmbeddedPrompt:
        """Prompt embeddings with the placeholders replaced by each image's base tokens, then its fetched tokens.

        Where the allocator or the bridge gives fewer tokens, the surplus placeholders are removed, also from the
        tensors `aligned` with the prompt, [B, S] each (attention_mask, position_ids, labels; None is left out);
        `EmbeddedPrompt.inputs` then has the columns [B, S'] that stay, from 1, 0 on padding. In a compiled graph, whose
        shapes must not depend on data, attention_mask hides them.
        """
        # 1. Base tokens and fetched tokens of each slot; surplus placeholders leave the prompt.
        inputs = {name: tensor for name, tensor in aligned.items() if tensor is not None}
        inputs.update(input_ids=selected.input_ids, query_mask=selected.query_mask)
        embeds, image_token = selected.embeds, self.config.image_token_id
        tokens, placed = self.image_tokens(selected.encoding, fetched)
        if placed is not None and fetched.budget == selected.budget and torch.compiler.is_compiling():
            inputs, placed = hide_placeholders(placed, image_token_id=image_token, **inputs), None
        elif placed is not None or fetched.budget < selected.budget:
            inputs["columns"] = torch.arange(1, embeds.shape[1] + 1, device=embeds.device).expand(embeds.shape[:2])
            inputs = trim_placeholders(
                counts=fetched.tokens, image_token_id=image_token, base_positions=tokens.shape[1] - fetched.budget,
                pad_token_id=self.padding_id, **inputs,
            )  # fmt: skip
            columns = (inputs["columns"] - 1).clamp(min=0)
            embeds = embeds.gather(1, columns[..., None].expand(-1, -1, embeds.shape[2]))
        # 2. The tokens replace the embeddings of their placeholders.
        flat = (tokens if placed is None else tokens[placed]).to(embeds)
        embeds = embeds.masked_scatter((inputs["input_ids"] == image_token)[..., None], flat)
        # 3. Positions and planes, for language models that take them.
        places = planes = None
        if self.layout.spatial or self.deepstack is not None:
            masks = {"placed": placed, "attention_mask": inputs.get("attention_mask")}
            places, planes = positions_and_planes(
                self, inputs["input_ids"], selected.encoding, fetched, selected.context, **masks
            )
        tensors = {**inputs, "prompt_embeds": embeds, "prompt_planes": planes}
        if places is not None:
            tensors["position_ids"] = places
        read = {}
        for name in READ:
            if (tensor := tensors.get(name)) is not None:
                read[name] = tensor
        return EmbeddedPrompt(embeds, tokens, fetched, selected.context, inputs, read)

    def _vocabulary(self, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """[V, D] the table of the language model's embeddings, and bool [V], True on wordpieces that begin a word."""
        assert self.vision_tower.text_reader is not None, "encodings with wordpieces come from a text reader"
        opens = self.vision_tower.text_reader.spellings[:, 0] == SPACE
        embed, rows = self.language_model.get_input_embeddings(), self.config.text_config.vocab_size
        if type(embed) is nn.Embedding and not embed.weight.is_meta:  # subclasses scale or quantise
            return embed.weight[:rows].to(device), opens.to(device)
        table: Tensor = embed(torch.arange(rows, device=self.input_device))
        return table.to(device), opens.to(device)

    def image_tokens(self, encoding: ImageEncoding, fetched: FetchResult) -> tuple[Tensor, Tensor | None]:
        """Each image's tokens, as in `EmbeddedPrompt`, and which of them go into the prompt.

        These are bool [I, positions], or None if all do. Sets `fetched.tokens`, the number of fetched tokens that go
        into the prompt, and `fetched.bypassed`, True for images whose tokens come from the bridge's linear projection
        because its adapter failed.
        """
        tokens, used = encoding.tokens, None
        if encoding.bypassed is not None:
            fetched.bypassed = encoding.bypassed
        if fetched.budget:
            pieces, nothing, side = encoding.pieces, encoding.semantic, encoding.features.shape[-1]
            vocabulary = None if pieces is None else self._vocabulary(pieces.device)
            used = fetched.used if fetched.is_ragged else None
            if pieces is None or vocabulary is None:
                bridged = bridge_states(self, encoding, fetched, used)
            else:
                table, opens = vocabulary
                read = ReadPatches(fetched.pieces(pieces, used), table, side, opens, **fetched.placement())
                bridged = self.bridge(nothing, nothing, base=[], bypass=encoding.bypass, used=used, patches=read)
            if bridged.failed is not None:
                fetched.bypassed = fetched.bypassed | bridged.failed.to(fetched.bypassed.device)
            fetched_tokens, weights = bridged.tokens, fetched.weights
            if bridged.source is not None:
                used, fetched.source = bridged.source >= 0, bridged.source
                fetched.tokens = used.sum(1)
                weights = None if weights is None else weights.gather(1, bridged.source.clamp(min=0))
            for factor in (weights, used):
                if factor is not None:
                    fetched_tokens = fetched_tokens * factor[..., None].to(fetched_tokens)
            tokens = torch.cat((tokens, fetched_tokens.to(tokens.device)), 1)
        if encoding.closing is not None:
            tokens = torch.cat((tokens, encoding.closing.to(tokens.device)), 1)
        if used is None:
            return tokens, None
        placed, start = used.new_ones(tokens.shape[:2]), encoding.tokens.shape[1]
        placed[:, start : start + fetched.budget] = used
        return tokens, placed.to(tokens.device)

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
        """The three steps of a question for the arguments of `forward`, which it checks. `joint`: the images of a
        prompt share one budget, as in `generate(image, question)`; else each has its own."""
        if choices.num_passes not in (None, 1):
            raise refusal("num_passes", "several only in generate(image, question)", choices.num_passes)
        if self.layout.spatial and aligned.get("position_ids") is not None:
            expected = f"none beside images with layout {self.config.bridge_config.layout!r}, which sets the positions"
            raise refusal("position_ids", expected, aligned["position_ids"])
        query_mask = whole_query_mask(self.config, input_ids, query_mask, aligned)
        inputs = {"input_ids": input_ids, "query_mask": query_mask, "image_index": image_index, **aligned}
        check_inputs(inputs, choices.relevance, encoding, self.config.text_config.vocab_size)
        selected = self.select_slots(
            input_ids, encoding, query_mask=query_mask.bool(), image_index=image_index, choices=choices,
            attention_mask=aligned.get("attention_mask"),
        )  # fmt: skip
        if joint and not torch.compiler.is_compiling():  # a document, or several images of one prompt
            several = choices.patches is None and len(selected.rows) > len(selected.rows.unique())
            if several or encoding.documents is not None:
                selected = select_views(self, selected, encoding, choices.strategy)
        return self.place(selected, self.fetch(selected, choices), **aligned)

    def _encoding_for(
        self, pixel_values: Tensor | None, patch_mask: Tensor | None, encoding: ImageEncoding | None, words: Any
    ) -> ImageEncoding:
        """The encoding that `forward` was given, or that of its images; `words`: `image_words` and `source_sizes`."""
        if encoding is None:
            assert pixel_values is not None
            vision, (known, sizes) = self.config.vision_config, words
            given = None if known is None else words_on_squares(known, sizes, vision.image_size // vision.patch_size)
            encoding = self.encode_image(pixel_values, patch_mask, words=given)
        elif type(encoding).__name__ != ImageEncoding.__name__:  # by name: remote code may load a class twice
            raise refusal("image_encoding", "what encode_image returned", encoding)
        encoding.check_fits(self.config)
        return encoding

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
    ) -> ArrCocOutput:
        """Prompts with images -> the language model's last hidden state: see `ArrCocForConditionalGeneration.forward`.

        `labels` only mark the text that is not part of the question. `last_hidden_state` is [B, S, D] also where
        surplus placeholders are removed: their columns have the state of the token before them. `hidden_states`,
        `attentions` and the cache are of the shorter prompt.
        """
        sources, sizes, words = (kwargs.pop(name, None) for name in ("image_sources", "source_sizes", "image_words"))
        if sources is not None and pixel_values is None and image_encoding is None:
            expected = "squares of single images; documents and pooled base tokens are for generate(**inputs)"
            raise ValueError(f"pixel_values: expected {expected}; got image_sources alone")
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        if unknown := sorted(set(kwargs) - self._language_arguments):
            raise TypeError(f"forward: expected its own arguments or the language model's; got {unknown}")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids: expected exactly one of them and inputs_embeds; got both or neither")
        prompt = None
        if pixel_values is not None or image_encoding is not None:
            if input_ids is None or (pixel_values is not None and image_encoding is not None):
                expected = "input_ids beside either pixel_values or image_encoding"
                raise ValueError(f"images: expected {expected}; got {'inputs_embeds' if input_ids is None else 'both'}")
            encoding = self._encoding_for(pixel_values, patch_mask, image_encoding, (words, sizes))
            prompt = self.embed_images(
                input_ids, encoding, image_index=image_index, query_mask=query_mask, choices=FetchChoices.of(choices),
                attention_mask=attention_mask, position_ids=position_ids, labels=labels,
            )  # fmt: skip
            inputs_embeds = prompt.embeds
            attention_mask, position_ids = (prompt.read.get(name) for name in ("attention_mask", "position_ids"))
            kwargs.update(deepstack_arguments(prompt.read.get("prompt_planes")))
            if position_ids is None and attention_mask is not None and prompt.inputs["input_ids"] is not input_ids:
                position_ids = positions(attention_mask)  # the padding changed: a token's position is not its column
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
        names = ("last_hidden_state", "hidden_states", "attentions")
        states: dict[str, Any] = {name: getattr(outputs, name, None) for name in names}
        if prompt is not None and input_ids is not None:
            states["fetch"] = prompt.fetch
            if FetchChoices.of(choices).all_scores:
                states["scores"] = self.fetcher.all_scores(prompt.context, prompt.fetch)
            if (columns := prompt.inputs.get("columns")) is not None:
                states["last_hidden_state"] = in_columns(outputs.last_hidden_state, columns, input_ids.shape[1])
        return ArrCocOutput(**states, cache=getattr(outputs, CACHE, None), prompt=prompt)


def pack_questions(embeds: Tensor, query_mask: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The question of each slot without padding on its left: embeddings [I, L, D] and mask [I, L].

    Args:
        embeds: [B, S, D].
        query_mask: bool [B, S].
        rows: [I] the prompt of each slot.
    """
    compiled = torch.compiler.is_compiling()  # then no shape may depend on the masks
    longest = query_mask.shape[1] if compiled else max(1, int(query_mask.sum(1).max()))
    order = query_mask.int().sort(dim=1, descending=True, stable=True).indices[:, :longest]
    packed = embeds.gather(1, order[..., None].expand(-1, -1, embeds.shape[-1]))
    return packed[rows], query_mask.gather(1, order)[rows]
