"""Composing: from prompts and encoded images to what the language model reads.

Notation: B prompts, S their length, I image slots (places in prompts where an image stands), N patches, M base tokens,
K saccades, D language model width.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .bridges import Bridged
from .fetcher import FetchResult
from .prompt import EmbeddedPrompt, find_slots, pack_questions, trim_placeholders
from .scorers import FetchContext
from .vision_tower import ImageEncoding


class ComposingMixin:
    """The half of `ArrCocModel` that depends on the question: fetch, take across, put in place."""

    if TYPE_CHECKING:  # what the model class it is mixed into has
        config: Any
        fetcher: Any
        bridge: Any
        vision_tower: Any
        get_input_embeddings: Any
        with_bypass: Any

    def bridge_saccades(self, encoding: ImageEncoding, indices: Tensor, used: Tensor | None = None) -> Bridged:
        """Fetched patches [I, K] of the encoded images, one each, on the language model's side: tokens [I, K, D].

        `used` [I, K]: False on those that only fill the rectangle, which the others are not to see; None: all are.
        """
        states, projected = self.vision_tower.saccades(encoding, indices, used)
        base = encoding.bridge_cache or []
        return self.bridge.cross(states, projected, base=base, bypass=encoding.bypass, used=used)

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
        query, mask = pack_questions(embeds, query_mask, rows)
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

    def compose(
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
        bridge_bypass: bool | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> EmbeddedPrompt:
        """Prompt embeddings with every placeholder replaced by its image's base tokens, then its saccades.

        Placeholders of saccades that the allocator does not want are cut out first.

        Args:
            input_ids: [B, S] with M + K placeholders per image, and those that the layout adds.
            encoding: the images.
            query_mask: [B, S], True on the question's tokens.
            image_index: [I] which encoded image stands in each slot; None: each once, in order.
            strategy, allocator: names; the config's by default.
            oracle: [I, N] known relevance, for strategy "oracle".
            generator: for strategy "random".
            bridge_bypass: see `ArrCocModel.with_bypass`.
            attention_mask, position_ids, labels: [B, S], to be cut along with `input_ids`.
        """
        encoding = self.with_bypass(encoding, bridge_bypass)
        if image_index is not None:
            encoding = replace(encoding, prefix_ids=None, prefix_cache=None).select(image_index)  # no copy of the cache
        image_token, base = self.config.image_token_id, encoding.base_positions
        rows, budget = find_slots(input_ids, image_token, len(encoding), base)
        embeds = self._embed(input_ids)
        context = self.fetch_context(encoding, input_ids, embeds, rows, query_mask, oracle, generator)
        taken = encoding.base_indices if self.config.fetcher_config.overlap == "exclude" else None
        fetched = self.fetcher(context, budget, strategy=strategy, allocator=allocator, taken=taken)
        given = {"attention_mask": attention_mask, "position_ids": position_ids, "labels": labels}
        inputs = {name: tensor for name, tensor in given.items() if tensor is not None}
        inputs.update(input_ids=input_ids, query_mask=query_mask)
        if bool((fetched.counts < budget).any()):
            inputs = trim_placeholders(
                counts=fetched.counts, image_token_id=image_token, base_positions=base,
                pad_token_id=self.config.padding_id, **inputs,
            )  # fmt: skip
            embeds = self._embed(inputs["input_ids"])
        tokens, quality, standing = self._image_tokens(encoding, fetched)
        flat = tokens if standing is None else tokens[standing]
        embeds = embeds.masked_scatter((inputs["input_ids"] == image_token)[..., None], flat.to(embeds))
        return EmbeddedPrompt(embeds, tokens, quality, fetched, context, inputs)

    def _embed(self, input_ids: Tensor) -> Tensor:
        """Embeddings of a prompt's text [B, S, D]; a placeholder's are of no meaning."""
        return self.get_input_embeddings()(input_ids.masked_fill(input_ids == self.config.image_token_id, 0))

    def _image_tokens(
        self, encoding: ImageEncoding, fetched: FetchResult
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Each image's tokens and their quality, as in `EmbeddedPrompt`; [I, positions] True on those with a place.

        The last is None where every token has one.
        """
        tokens, quality, used = encoding.tokens, encoding.quality, None
        if fetched.budget:
            if bool((fetched.counts < fetched.budget).any()):
                used = fetched.used
            saccades = self.bridge_saccades(encoding, fetched.indices, used)
            found = saccades.tokens
            if fetched.weights is not None:
                found = found * fetched.weights[..., None].to(found)
            if used is not None:
                found = found * used[..., None].to(found)
            tokens = torch.cat((tokens, found.to(tokens.device)), 1)
            if quality is not None and saccades.quality is not None:
                quality = torch.cat((quality, saccades.quality.to(quality.device)), 1)
        if encoding.closing is not None:
            tokens = torch.cat((tokens, encoding.closing.to(tokens.device)), 1)
        if used is None:
            return tokens, quality, None
        standing = used.new_ones(tokens.shape[:2])
        start = encoding.tokens.shape[1]
        standing[:, start : start + fetched.budget] = used
        return tokens, quality, standing.to(tokens.device)
