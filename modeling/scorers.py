"""Scorers: the relevance of each patch of the fine grid to the question.

A scorer maps a `FetchContext` to scores [B, N] in float32. Higher is more relevant. An item's scores do not depend on
its batch neighbours. Trained scorers return logits (relevance = sigmoid); fixed scorers return any scale.

Notation: B batch, G side of the fine grid, N = G*G patches, C feature channels, T texture channels, L question tokens,
D language-model width, H scorer width. Positions are (y, x), row-major.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization
from transformers.utils import logging

from .config_fields import Registry
from .configuration_arr_coc import ArrCocFetcherConfig
from .image_encoding import Rows
from .textures import TEXTURE_SETS, TEXTURES, clear_of_padding
from .vision_tower import key_value_projection
from .wordpieces import spelling_match


@dataclass(frozen=True)
class FetchContext(Rows):
    """The inputs of a scorer.

    Attributes:
        features: [B, C, G, G], the grid encoder's output.
        textures: [B, T, G, G], the first of `textures.TEXTURES`: see `texture`.
        patch_mask: [B, N] bool, False on padding patches.
        query: [B, L, D], the language model's embeddings of the prompt.
        query_mask: [B, L] bool, True on the question's own tokens (never on an answer).
        seeds: [B] int64, the seeds of random relevance without a generator.
        relevance: [B, N] given relevance, by which strategy "oracle" fetches, or None.
        generator: for random relevance, or None.
        depths: [B, 2, W, G, G], the grid encoder's states, W wide, after a third and two thirds of its layers, if a
            scorer of the checkpoint reads them; else None.
        attention: [B, N] the language model's attention from the question to the base tokens, for strategy "attention",
            or None.
        pieces: [B, N, 2, S] wordpieces that begin in each patch, if the model has a `wordpieces.TextReader`; else None.
        table: [V, D] the language model's embeddings, beside `pieces`; else None.
        query_ids: [B, L] the tokens of `query`, where text is read.
        spellings: [V, ...] of the vocabulary (`wordpieces.TextReader`), where text is read.
    """

    features: Tensor
    textures: Tensor
    patch_mask: Tensor
    query: Tensor
    query_mask: Tensor
    seeds: Tensor
    relevance: Tensor | None = None
    generator: torch.Generator | None = None
    depths: Tensor | None = None
    attention: Tensor | None = None
    pieces: Tensor | None = None
    table: Tensor | None = field(default=None, metadata={"shared": True})
    query_ids: Tensor | None = None
    spellings: Tensor | None = field(default=None, metadata={"shared": True})

    @property
    def side(self) -> int:
        """G, patches along a side of the fine grid."""
        return self.features.shape[-1]

    def texture(self, name: str) -> Tensor:
        """The texture channel `name`, [B, G, G] in float32.

        Raises:
            ValueError: an unknown name, or a channel outside the model's set of textures.
        """
        channels = self.textures.shape[1]
        if name not in TEXTURES[:channels]:
            sets = [kind for kind, names in TEXTURE_SETS.items() if name in names]
            expected = f'"{sets[0]}" (or larger) for "{name}"' if sets else f"a texture among {', '.join(TEXTURES)}"
            raise ValueError(f"fetcher_config.textures: expected {expected}; got {channels} channels without {name!r}")
        return self.textures[:, TEXTURES.index(name)].float()


def depth_grids(seen: Any) -> list[Tensor]:
    """The grid encoder's three depths, each [B, width, G, G], of a `FetchContext` or an `ImageEncoding`.

    Raises:
        ValueError: it holds only the last depth, its features.
    """
    if seen.depths is None:
        expected = "an encoding with the grid encoder's states at three depths, made by a model that keeps them"
        raise ValueError(f"depths: expected {expected}; got features alone")
    return [*seen.depths.unbind(1), seen.features]


class Scorer(nn.Module):
    """Base of the family.

    Attributes:
        trained: has weights and returns logits.
        fetches: False for base tokens only.
        textures: the set of texture channels that it reads, see `TEXTURE_SETS`.
        reads_depths: reads `FetchContext.depths`; its constructor then takes `depth_size`, their width W.
        reads_attention: reads `FetchContext.attention`, for which the language model first reads base tokens and
            question.
    """

    trained: ClassVar[bool] = False
    fetches: ClassVar[bool] = True
    textures: ClassVar[str] = "light"
    reads_depths: ClassVar[bool] = False
    reads_attention: ClassVar[bool] = False

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__()

    def forward(self, context: FetchContext) -> Tensor:
        """Scores [B, N], float32."""
        raise TypeError(f"{type(self).__name__} has no forward: expected a registered scorer")

    def depth_maps(self, context: FetchContext) -> Tensor | None:
        """[B, 3, N]: the contribution of each of the grid encoder's three depths to the scores; None: it reads none."""
        return None


logger = logging.get_logger(__name__)

SCORERS: Registry[type[Scorer]] = Registry("strategy")


# ---- running a scorer, with saliency as the fallback -----------------------------------------------------------------


def unit_range(scores: Tensor) -> Tensor:
    """Scores [B, N] scaled to 0..1 over each item's range."""
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    return (scores - low) / (high - low).clamp(min=1e-12)


def is_uninformative(scores: Tensor, patch_mask: Tensor) -> Tensor:
    """[B] bool, True where scores [B, N] are not all finite, or several patches of the image all score the same."""
    low, high = scores.masked_fill(~patch_mask, math.inf).amin(1), scores.masked_fill(~patch_mask, -math.inf).amax(1)
    infinite = (patch_mask & ~scores.isfinite()).any(1)
    return infinite | ((low == high) & (patch_mask.sum(1) > 1))


def scored(scorer: Scorer, context: FetchContext, *, fall_back: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Runs a scorer; saliency replaces scores that are uninformative (`is_uninformative`).

    Args:
        scorer: the scorer.
        context: its inputs.
        fall_back: whether saliency may replace it; False in training, where failures must show.

    Returns:
        Scores [B, N], relevance [B, N] in 0..1, and [B] bool, True where saliency replaced the scorer.
    """
    scores = scorer(context).to(context.features.device)
    relevance = scores.sigmoid() if scorer.trained else unit_range(scores)
    failed = is_uninformative(scores, context.patch_mask)
    if not fall_back or not scorer.fetches or isinstance(scorer, SaliencyScorer):
        return scores, relevance, torch.zeros_like(failed)
    unread = torch.compiler.is_compiling() or failed.is_meta  # the values are not known
    if unread or failed.any():
        salient = saliency(context)
        scores = torch.where(failed[:, None], salient, scores)
        relevance = torch.where(failed[:, None], unit_range(salient), relevance)
        if not unread:
            warn_of_fallback(scorer)
    return scores, relevance, failed


def warn_of_fallback(scorer: Scorer) -> None:
    """Warns, once for each scorer, that it failed."""
    logger.warning_once(f"{type(scorer).__name__}: NaN or a flat map; patches are fetched by saliency instead")


def scorer_inputs(config: ArrCocFetcherConfig) -> dict[str, Any]:
    """Arguments of the vision tower for the scorers that a checkpoint holds.

    "textures": the configured set of channels, or the smallest that these scorers read; "keeps_depths": whether one of
    them reads the grid encoder's states at three depths.
    """
    order, held = [*TEXTURE_SETS], [SCORERS[name] for name in config.scorers]
    needed = max((kind.textures for kind in held), key=order.index, default=order[0])
    return {"textures": config.textures or needed, "keeps_depths": any(kind.reads_depths for kind in held)}


@SCORERS.register("none")
class NoneScorer(Scorer):
    """Base tokens only: nothing is fetched, and every patch scores 0."""

    fetches = False

    def forward(self, context: FetchContext) -> Tensor:
        return torch.zeros_like(context.patch_mask, dtype=torch.float32)


@SCORERS.register("random")
class RandomScorer(Scorer):
    """Uniform noise: from the context's generator, else from each item's own seed."""

    def forward(self, context: FetchContext) -> Tensor:
        shape, device = context.patch_mask.shape, context.patch_mask.device
        if context.generator is not None:
            noise = torch.rand(shape, generator=context.generator, device=context.generator.device)
        else:
            rows = [torch.rand(shape[1], generator=torch.Generator().manual_seed(s)) for s in context.seeds.tolist()]
            noise = torch.stack(rows) if rows else torch.zeros(shape)
        return noise.to(device)


def saliency(context: FetchContext) -> Tensor:
    """[B, N] Sobel magnitude averaged over the patch; 0 beside padding, see `clear_of_padding`."""
    return clear_of_padding(context.texture("edge_magnitude"), context.patch_mask).flatten(1)


@SCORERS.register("saliency")
class SaliencyScorer(Scorer):
    """Strong edges: see `saliency`."""

    def forward(self, context: FetchContext) -> Tensor:
        return saliency(context)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """[B, H], the mean of `states` [B, S, H] over True entries of `mask` [B, S], summed in float32; 0 without any."""
    total = (states * mask[..., None].to(states)).sum(1, dtype=torch.float32)
    return (total / mask.sum(1, keepdim=True).to(total).clamp(min=1)).to(states.dtype)


@SCORERS.register("variance")
class VarianceScorer(Scorer):
    """A patch's share of the feature variance: squared distance to the mean feature of the image's real patches."""

    def forward(self, context: FetchContext) -> Tensor:
        patches = context.features.flatten(2).transpose(1, 2).float()
        mean = masked_mean(patches, context.patch_mask)
        return (patches - mean[:, None]).square().mean(-1)


@SCORERS.register("oracle")
class OracleScorer(Scorer):
    """Given relevance, from ground-truth boxes of the answer: the upper bound of any scorer."""

    def forward(self, context: FetchContext) -> Tensor:
        if context.relevance is None:
            raise ValueError('strategy "oracle": expected boxes (or relevance_targets) of the answer; got none')
        expected, received = list(context.patch_mask.shape), list(context.relevance.shape)
        if expected != received:
            raise ValueError(f'strategy "oracle": expected relevance of shape {expected}; got {received}')
        return context.relevance.float()


@SCORERS.register("attention")
class AttentionScorer(Scorer):
    """The language model's attention from the question to the base tokens, on the fine grid (attention_scorer.py)."""

    reads_attention = True

    def forward(self, context: FetchContext) -> Tensor:
        if context.attention is None:
            expected = "`FetchContext.attention`, which `ArrCocModel.fetch` computes with the language model"
            raise ValueError(f'strategy "attention": expected {expected}; got none')
        return context.attention.float()


def wave_code(at: Tensor, size: int) -> Tensor:
    """Fixed sine-cosine code of positions on a line: [...] -> [..., size], float32.

    Wavelengths are geometric from 4 to 256, so the dot product of two codes falls with their distance.
    """
    waves = torch.logspace(math.log10(4), math.log10(256), size // 2, device=at.device)
    angle = 2 * math.pi * at[..., None] / waves
    return torch.cat((angle.sin(), angle.cos()), -1)


def position_code(side: int, size: int, *, device: torch.device, pool: int = 1) -> Tensor:
    """Code of the centres of runs of `pool` patches along a row: [runs, size]; y in the first half, x in the second."""
    runs = (side + pool - 1) // pool
    first = torch.arange(runs, device=device) * pool
    last = (first + pool - 1).clamp(max=side - 1)  # the last run of a row may be shorter
    y = wave_code(torch.arange(side, device=device), size // 2)
    x = wave_code((first + last) / 2, size // 2)
    return torch.cat((y.repeat_interleave(runs, 0), x.repeat(side, 1)), -1)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Multi-head attention of [B, Q, H] to [B, S, H]; `mask` [B, S] is True on keys that take part."""
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    if mask is not None:
        mask = mask[:, None, None, :]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


class FeedForward(nn.Sequential):
    """Norm, widen, GELU, narrow."""

    def __init__(self, size: int, out: int, factor: int = 3) -> None:
        super().__init__(nn.LayerNorm(size), nn.Linear(size, factor * out), nn.GELU(), nn.Linear(factor * out, out))


class QuestionLayer(nn.Module):
    """One self-attention layer over the question's tokens: it joins the pieces of split words."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.layer_norm = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.feed_forward = FeedForward(size, size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        order = (mask.long().cumsum(-1) - 1).clamp(min=0)  # position within the question, without padding
        normed = self.layer_norm(x) + wave_code(order, x.shape[2]).to(x.dtype)
        query, key, value = self.qkv(normed).chunk(3, -1)
        visible = mask | ~mask.any(-1, keepdim=True)  # a row without a question must not divide by zero
        x = x + self.out(attend(query, key, value, self.heads, visible))
        return x + self.feed_forward(x)


class PatchLayer(nn.Module):
    """Self-attention over patches with a 2-D position term: relevance travels from a label to its value.

    Queries and keys carry extra channels: a position code times a small matrix per head. They start so that even
    heads see their own row and odd heads their own column. Keys may be averaged over runs of `pool` patches
    along a row, never over rows: two lines of text must not share a key.
    """

    def __init__(self, size: int, heads: int, position_size: int, pool: int, latent_size: int | None = None) -> None:
        super().__init__()
        self.heads, self.pool = heads, pool
        self.layer_norm = nn.LayerNorm(size)
        self.query = nn.Linear(size, size)
        self.key_value = key_value_projection(size, latent_size)
        self.query_position = nn.Parameter(torch.zeros(heads, position_size, position_size))
        self.key_position = nn.Parameter(torch.zeros(heads, position_size, position_size))
        self.out = nn.Linear(size, size)
        self.feed_forward = FeedForward(size, size)

    def start_weights(self, std: float) -> None:
        initialization.copy_(self.query_position, self.initial_position())
        initialization.copy_(self.key_position, self.initial_position())

    def initial_position(self) -> Tensor:
        """[heads, P, P]: the identity on the y half for even heads, on the x half for odd heads."""
        heads, size, _ = self.query_position.shape
        half = torch.arange(size) // (size // 2)
        return torch.stack([torch.diag((half == head % 2).float()) for head in range(heads)])

    def forward(self, x: Tensor, side: int, index: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """States [B, N, H] of a grid of `side` patches -> their new states.

        With `index` [B, n] they are states [B, n, H] of these patches alone, whose keys are not averaged; no patch
        attends to those at which `mask` [B, n] is False.
        """
        batch, _, width = x.shape
        normed = self.layer_norm(x)
        pooled = normed
        if self.pool > 1 and index is None:
            grid = normed.transpose(1, 2).unflatten(2, (side, side))
            pooled = F.avg_pool2d(grid, (1, self.pool), ceil_mode=True).flatten(2).transpose(1, 2)
        key, value = self.key_value(pooled).chunk(2, -1)
        query, key, value = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.query(normed), key, value)
        )
        size, scale = self.query_position.shape[-1], (width // self.heads) ** -0.5
        code = position_code(side, size, device=x.device).to(x.dtype)
        if index is None:
            places = code.expand(batch, 1, -1, -1)
            cells = position_code(side, size, device=x.device, pool=self.pool).to(x.dtype).expand(batch, 1, -1, -1)
        else:
            places = cells = code[index][:, None]
        query = torch.cat((query * scale, places @ self.query_position), -1)
        key = torch.cat((key, cells @ self.key_position), -1)
        visible = None if mask is None else mask[:, None, None]
        out = F.scaled_dot_product_attention(query, key, F.pad(value, (0, size)), attn_mask=visible, scale=1.0)
        x = x + self.out(out[..., : width // self.heads].transpose(1, 2).flatten(2))
        return x + self.feed_forward(x)


EMPTY = -20.0
"""The logit of patches in which no wordpiece begins: they give no token."""


class Matches(nn.Linear):
    """A projection of a few shares, which starts large: otherwise they drown in the features of patches."""

    def start_weights(self, std: float) -> None:
        initialization.normal_(self.weight, std=1.0)


class WordMatch(nn.Module):
    """The meaning of the wordpieces in a patch, and their similarity to the question's tokens, added to its state.

    It is the largest cosine of a wordpiece in the patch with a token of the question, times a learned weight of that
    token. Attention over the question cannot express it: its weights sum to 1 even if nothing matches. The space of the
    cosines is learned, so it also matches names that are not in the training questions.
    """

    def __init__(self, text_size: int, match_size: int, size: int) -> None:
        super().__init__()
        self.token = nn.Linear(text_size, match_size, bias=False)
        self.weight = nn.Linear(text_size, 1)
        self.meaning = nn.Linear(text_size, size, bias=False)
        self.out = Matches(3, size)

    def forward(
        self, pieces: Tensor, table: Tensor, question: Tensor, mask: Tensor, spelled: Tensor, norm: nn.Module
    ) -> Tensor:
        """Wordpieces in patches -> [B, N, H].

        Args:
            pieces: [B, N, 2, S] wordpieces, -1 in empty slots; table: [V, D] their embeddings.
            question: [B, L, D] normalised tokens, of which `mask` [B, L] marks the question's.
            norm: the layer that normalised them.
        """
        ids = pieces.flatten(1).long()
        shown = F.pad(ids.clamp(min=0).flatten(), (1, 0))  # id 0, which is never read, stands for empty slots
        if torch.compiler.is_compiling() or ids.is_meta:  # no shape may depend on data
            place = torch.arange(1, len(shown), device=ids.device).view_as(ids) * (ids > 0)
        else:
            shown, place = shown.unique(return_inverse=True)
            place = place[1:].view_as(ids)
        vectors = norm(table[shown].to(question))
        words = F.normalize(self.token(vectors), dim=-1)
        weighed = F.normalize(self.token(question), dim=-1) * (self.weight(question).sigmoid() * mask[..., None])
        alike = F.pad(torch.einsum("um,blm->bul", words, weighed), (0, 1)).amax(-1)  # a question may be empty
        alike = alike.gather(1, place) * (ids >= 0)
        best = alike.unflatten(1, (pieces.shape[1], -1)).amax(-1, keepdim=True)
        bags = place.view(-1, pieces.flatten(2).shape[2])
        meaning = F.embedding_bag(bags, self.meaning(vectors).float(), mode="mean", padding_idx=0)
        return self.out(torch.cat((best, spelled.to(best)), -1)) + meaning.view(*pieces.shape[:2], -1).to(best)


@SCORERS.register("realizer")
class Realizer(Scorer):
    """The default: patches read the question, then relevance travels over the page.

    Normalised patches cross-attend to the question's normalised tokens (and to one learned "nothing" token), then pass
    `num_layers` self-attention layers over patches with an explicit 2-D position term. In a model that reads text these
    are the patches in which a wordpiece begins, and `WordMatch` is added to them.
    """

    trained = True

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        size = config.hidden_size
        self.heads = config.num_heads
        self.patch_norm = nn.LayerNorm(feature_size)
        self.patch_projection = nn.Linear(feature_size, size)
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, size)
        self.question_layer = QuestionLayer(size, config.num_heads)
        self.nothing = nn.Parameter(torch.zeros(1, 1, size))
        self.cross_query = nn.Linear(size, size)
        self.cross_key_value = key_value_projection(size, config.latent_size)
        self.couple = FeedForward(3 * size, size, 2)
        self.match = WordMatch(text_size, config.match_size, size) if config.match_size else None
        self.layers = nn.ModuleList(
            PatchLayer(size, config.num_heads, config.position_size, config.key_pool, config.latent_size)
            for _ in range(config.num_layers)
        )
        self.final_norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, 1)

    def start_weights(self, std: float) -> None:
        initialization.normal_(self.nothing, std=std)

    def forward(self, context: FetchContext) -> Tensor:
        features, index, held = context.features.flatten(2).transpose(1, 2), None, None
        if self.match is not None:
            if context.pieces is None or context.table is None:
                raise ValueError("fetcher_config.match_size: expected an encoding with wordpieces; got one without")
            index, held = patches_with_text(context.pieces)
            features = features.take_along_dim(index[..., None], 1)
        patches = self.patch_projection(self.patch_norm(features))
        mask = context.query_mask.to(patches.device)
        question = self.question_layer(self.text_projection(self.text_norm(context.query)), mask)
        question = torch.cat((question, self.nothing.expand(question.shape[0], -1, -1)), 1)
        mask = F.pad(mask, (0, 1), value=True)
        key, value = self.cross_key_value(question).chunk(2, -1)
        question_states = attend(self.cross_query(patches), key, value, self.heads, mask)
        x = patches + self.couple(torch.cat((patches, question_states, patches * question_states), -1))
        if self.match is not None and index is not None:
            assert context.pieces is not None and context.table is not None
            pieces = context.pieces.take_along_dim(index[..., None, None], 1)
            mask = context.query_mask.to(x.device)
            spelled = _spelling_match(context).take_along_dim(index[..., None], 1)
            x = x + self.match(pieces, context.table, self.text_norm(context.query), mask, spelled, self.text_norm)
        visible = None if held is None else held | ~held.any(1, keepdim=True)
        for layer in self.layers:
            x = layer(x, context.side, index, visible)
        scores: Tensor = self.head(self.final_norm(x)).squeeze(-1).float()
        if index is None or held is None:
            return scores
        scores = scores.masked_fill(~held, EMPTY)
        return scores.new_full(context.patch_mask.shape, EMPTY).scatter(1, index, scores)


def _spelling_match(context: FetchContext) -> Tensor:
    """[B, N, 2] of `wordpieces.spelling_match`; 0 where the tokens of the question are not known."""
    assert context.pieces is not None
    if context.query_ids is None or context.spellings is None:
        return torch.zeros(*context.pieces.shape[:2], 2, device=context.pieces.device)
    return spelling_match(context.pieces, context.query_ids, context.query_mask, context.spellings)


def patches_with_text(pieces: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers [B, n] of the patches in which a wordpiece begins, and bool [B, n], False on others that fill rows.

    Args:
        pieces: [B, N, 2, S], -1 in empty slots.
    """
    held = (pieces >= 0).flatten(2).any(-1)
    if torch.compiler.is_compiling() or held.is_meta:  # no shape may depend on data
        return torch.arange(held.shape[1], device=held.device).expand_as(held), held
    most = max(1, int(held.sum(1).amax())) if len(held) else 1
    index = (~held).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    return index, held.gather(1, index)


class Temperature(nn.Linear):
    """Cosines [..., 1] -> logits [..., 1], temperature * cosine + bias, in float32, as half precision is too coarse.

    It starts with `temperature` and `bias`.
    """

    def __init__(self, temperature: float = 10.0, bias: float = -3.0) -> None:
        super().__init__(1, 1)
        self.start = (temperature, bias)

    def start_weights(self, std: float) -> None:
        initialization.constant_(self.weight, self.start[0])
        initialization.constant_(self.bias, self.start[1])

    def forward(self, cosine: Tensor) -> Tensor:
        return F.linear(cosine.float(), self.weight.float(), self.bias.float())


@SCORERS.register("clip_query")
class ClipQueryScorer(Scorer):
    """Cosine between a patch and the pooled question in a shared, trained space."""

    trained = True

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        self.patch_norm = nn.LayerNorm(feature_size)
        self.patch_projection = nn.Linear(feature_size, config.shared_size)
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, config.shared_size)
        self.temperature = Temperature()

    def forward(self, context: FetchContext) -> Tensor:
        patches = self.patch_projection(self.patch_norm(context.features.flatten(2).transpose(1, 2)))
        pooled = masked_mean(self.text_norm(context.query), context.query_mask)
        text = self.text_projection(pooled).to(patches.device)
        cosine = F.normalize(patches.float(), dim=-1) @ F.normalize(text.float(), dim=-1)[..., None]
        return self.temperature(cosine).squeeze(-1)
