"""The model with its training-only parts, and the losses of training.

Notation: P pages, I image slots, G side of the grid, N patches, M base tokens, K fetched tokens, S prompt length.
"""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.modeling.allocators import FetchResult, best
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.scorers import FetchContext

from .patch_language import PLACE_WORDS, PatchLanguage, Read, at_patches, speaks_words
from .questions import Batch
from .reading import ReadingHead, reading_loss, word_loss
from .shared_prefix import POINTING_LAYER, check_layer, pointer_loss, read_prompts, right_rows, shown_by
from .stage import uniform_like
from .visual_pretraining import WORD_WEIGHT, CharacterHead, name_cells, visual_loss

TokenSource = Literal["bridge", "named", "oracle"]
"""Tokens that the language model reads: those of the bridge, or oracle tokens of the characters that the grid encoder
predicts ("named") or of the ground-truth text ("oracle")."""

LEARNT = ("reading", "visual_pretraining", "language")
"""Training-only parts of a `Learner`, whose states a run keeps for later stages."""


class Learner(nn.Module):
    """The model with its training-only parts: heads on patches and base tokens, and the language of oracle tokens.

    Args:
        model: the model to train.
        tokenizer: its tokenizer.
        layer: of the language model, with the pointing heads.
        reads_base: whether the language model reads base tokens; if not, only scorers and the semantic encoder use
            them.
    """

    def __init__(
        self,
        model: ArrCocForConditionalGeneration,
        tokenizer: PreTrainedTokenizerBase,
        layer: int = POINTING_LAYER,
        *,
        reads_base: bool = True,
    ) -> None:
        super().__init__()
        check_layer(layer, model.config.text_config)
        self.model, self.layer, self.reads_base = model, layer, reads_base
        self.reading = ReadingHead(model.config.vision_config.out_channels)
        self.visual_pretraining = CharacterHead(model.config.text_config.hidden_size)
        self.language = PatchLanguage(model, tokenizer).requires_grad_(False)

    def read(self, features: Tensor, batch: Batch) -> tuple[Batch, Tensor]:
        """The batch with its characters on the patches where the grid encoder predicts them, and the loss of the
        reading stage."""
        characters, fields = self.reading(features)
        batch = batch.put(batch.shown.put_by(characters))
        return batch, reading_loss(characters, batch.glyphs) + word_loss(fields, batch.words)

    def token_loss(self, tokens: Tensor, batch: Batch, indices: Tensor) -> Tensor:
        """Distance of fetched tokens [I, K, D] from oracle tokens."""
        embed, side = self.model.get_input_embeddings(), batch.glyphs.shape[1]
        return self.language.token_loss(tokens, *at_patches(batch, indices), indices, side, embed)

    def base_loss(self, tokens: Tensor, batch: Batch) -> Tensor:
        """Distance of base tokens [P, M, D] from oracle base tokens, which bind the content of each patch of the
        cell."""
        return self.language.base_loss(tokens, batch.glyphs, batch.words, self.model.get_input_embeddings())

    def visual_loss(self, encoding: ImageEncoding, batch: Batch) -> Tensor:
        """The loss of visual pretraining, on base tokens [P, M, D] of this batch's pages."""
        return visual_loss(name_cells(self.visual_pretraining, self.model.model, encoding), batch.glyphs, batch.words)

    def naming_loss(self, logits: Tensor, glyphs: Tensor, words: Tensor) -> Tensor:
        """Cross-entropy of the predictions of fetched tokens [I, K, W]: characters [I, K, SLOTS], and field names [I,
        K].

        All classes have the same weight, as the language model reads the probabilities themselves.
        """
        *slots, fields = logits.split(list(PLACE_WORDS), -1)
        return reading_loss(torch.stack(slots, 2), glyphs, none_weight=1.0) + WORD_WEIGHT * word_loss(fields, words)

    def features(self, batch: Batch, *, frozen: bool) -> Tensor:
        """The grid encoder's output [P, C, G, G]."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            return self.model.model.vision_tower.grid_encoder(batch.pixel_values)

    def prompt(self, batch: Batch, vision_tokens: int) -> tuple[Tensor, Tensor]:
        """Ids [I, S] with `count` placeholders, and the question's mask [I, S]; the text after them is at the end."""
        image_token = self.model.config.image_token_id
        vision = batch.after.new_full((len(batch.after), vision_tokens), image_token)
        ids = torch.cat((batch.before, vision, batch.after), 1)
        return ids, F.pad(batch.query, (ids.shape[1] - batch.query.shape[1], 0))

    def relevance_loss(self, context: FetchContext, labels: Tensor, fetched: FetchResult | None = None) -> Tensor:
        """Logits of all scorers; the one that chose `fetched` does not run again."""
        scores = self.model.model.fetcher.all_scores(context, fetched)
        return self.model.relevance_loss(scores, labels, context.patch_mask)

    def align(self, batch: Batch, budget: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Losses that do not involve the language model: distances from oracle tokens, and relevance."""
        core = self.model.model
        features = self.features(batch, frozen=True)
        batch, _ = self.read(features, batch)
        encoding = core.encode_features(features, batch.pixel_values)
        losses = {
            "base": self.base_loss(encoding.tokens, batch),
            "visual_pretraining": self.visual_loss(encoding, batch),
        }
        encoding = encoding.select(_pages(features, len(batch.after)))
        ids, query = self.prompt(batch, encoding.base_positions)
        with torch.no_grad():
            context = core.select_slots(ids, encoding, query_mask=query).context
        indices = best(batch.oracle + 0.5 * uniform_like(batch.oracle, generator), budget)
        states = core.vision_tower.fetched_states(encoding, indices)
        tokens = core.bridge(*states, base=encoding.bridge_cache or [], bypass=encoding.bypass).tokens
        losses["token"] = self.token_loss(tokens, batch, indices)
        if speaks_words(core.bridge) and core.bridge.fetched is not None:
            words = core.bridge.fetched.words(*states)
            losses["naming"] = self.naming_loss(words, *at_patches(batch, indices))
        losses["relevance"] = self.relevance_loss(context, batch.relevance)
        return losses

    def forward(
        self,
        batch: Batch,
        *,
        strategy: str,
        budget: int,
        generator: torch.Generator,
        frozen: bool,
        relevance_share: float = 1.0,
        dropped: float = 0.0,
        token_source: TokenSource = "bridge",
    ) -> dict[str, Tensor]:
        """The answer's loss, in training also the other losses, and the scores of the answers.

        Args:
            batch: questions about pages, each answered teacher-forced.
            strategy, budget: of fetching.
            generator: of all draws.
            frozen: whether the grid encoder is frozen.
            relevance_share: share of the questions that train the scorers if none of these fetched.
            dropped: share of the questions for which strategy "oracle" leaves out a drawn number of patches.
            token_source: see `TokenSource`; training reads the bridge's.

        Returns:
            Losses by name; "right" [I], whether each answer would be exact; "recall" of the patches that show
            it, over the questions with an answer on the page.
        """
        core = self.model.model
        features = self.features(batch, frozen=frozen)
        batch, reading = self.read(features, batch)
        encoding = core.encode_features(features, batch.pixel_values)
        read = encoding if self.reads_base else encoding.without_base()
        ids, query = self.prompt(batch, read.base_positions + budget)
        choices = FetchChoices(strategy=strategy, relevance=_oracle(batch, generator, dropped), generator=generator)
        pages = _pages(features, len(batch.after))
        selected = core.select_slots(ids, read, query_mask=query, image_index=pages, choices=choices)
        fetched = core.fetch(selected, choices)
        own = _distinct(fetched, len(features))
        indices, base = fetched.indices[own], read.tokens.shape[1]
        image_tokens = core.image_tokens(read.select(pages[own]), fetched.select(own))[0]
        if token_source != "bridge":
            image_tokens = self._oracle_tokens(
                self._named(features, batch) if token_source == "named" else batch, indices
            )
        layer = self.layer if self.training else None
        states, attention = read_prompts(self.model, batch.before, image_tokens, batch.after, layer=layer)
        asked = batch.answer[:, 1:]
        logits, targets = self.model.lm_head(states[asked]), batch.after[:, 1:][asked]
        shown = batch.relevance.any(1)
        hit = batch.relevance.gather(1, fetched.indices).sum(1)[shown] / batch.relevance[shown].sum(1)
        losses = {
            "answer": F.cross_entropy(logits.float(), targets),
            "right": right_rows(logits, targets, asked),
            "recall": hit.sum() / shown.sum().clamp(min=1),
        }
        if not self.training:
            return losses
        losses["relevance"] = self._drawn_relevance_loss(selected.context, fetched, batch, relevance_share, generator)
        losses["base"] = self.base_loss(encoding.tokens, batch)
        losses["visual_pretraining"] = self.visual_loss(encoding, batch)
        if not frozen:
            losses["reading"] = reading
        if budget:
            losses["token"] = self.token_loss(image_tokens[:, base : base + budget], batch, indices)
        match = shown_by(batch.places[:, 1:], fetched.indices, side=encoding.side, base=base)
        losses["pointer"] = pointer_loss(attention[..., : base + budget], match)
        return losses

    def _named(self, features: Tensor, batch: Batch) -> Batch:
        """The batch with the characters that the grid encoder predicts."""
        characters, fields = self.reading(features)
        return replace(batch, glyphs=characters.argmax(-1), words=fields.argmax(-1))

    def _oracle_tokens(self, batch: Batch, indices: Tensor) -> Tensor:
        """Oracle tokens in place of those of the model, with patches [I, K]."""
        read: Read = "patches" if not self.reads_base else "base and patches" if indices.shape[1] else "base"
        return self.language.tokens(batch, indices, self.model.get_input_embeddings(), read=read)

    def _drawn_relevance_loss(
        self, context: FetchContext, fetched: FetchResult, batch: Batch, share: float, generator: torch.Generator
    ) -> Tensor:
        """Relevance loss of all questions if a trained scorer fetched, else of a drawn share of them."""
        if fetched.strategy in self.model.model.fetcher.scorers:
            return self.relevance_loss(context, batch.relevance, fetched)
        slots = len(batch.after)
        drawn = torch.randperm(slots, generator=generator)[: max(1, round(share * slots))].to(batch.after.device)
        return self.relevance_loss(context.select(drawn), batch.relevance[drawn])


def _oracle(batch: Batch, generator: torch.Generator, dropped: float) -> Tensor:
    """[I, N] the order in which strategy "oracle" fetches; the rest of its budget is drawn, or is the page's first
    patches.

    In a share `dropped` of the rows some of the patches come last, so that only base tokens show them.
    """
    noise = uniform_like(batch.oracle, generator)
    noise *= uniform_like(noise[:, :1], generator) < 0.5
    rates = uniform_like(noise[:, :1], generator) * (uniform_like(noise[:, :1], generator) < dropped)
    left_out = (uniform_like(noise, generator) < rates) & (batch.oracle > 0)
    return (batch.oracle + 0.5 * noise).masked_fill(left_out, -1.0)


def _pages(features: Tensor, count: int) -> Tensor:
    """[I] the page of each of `count` image slots, equally many for each page."""
    return torch.arange(len(features), device=features.device).repeat_interleave(count // len(features))


def _distinct(fetched: FetchResult, pages: int) -> Tensor:
    """The image slots with tokens of their own: the first of each page whose questions fetched the same, else all."""
    slots = torch.arange(len(fetched.indices), device=fetched.indices.device)
    by_page = fetched.indices.unflatten(0, (pages, len(slots) // pages))
    alike = fetched.weights is None and bool((by_page == by_page[:, :1]).all())
    return slots[:: by_page.shape[1]] if alike else slots
