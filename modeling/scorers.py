"""Scorers: the relevance of each patch of the fine grid to the question.

A scorer maps a `FetchContext` to scores [B, N] in float32. Higher is more relevant. An item's scores do not depend on
its batch neighbours. Trained scorers return logits (relevance = sigmoid); fixed scorers return any scale.

Notation: B batch, G side of the fine grid, N = G*G patches, C feature channels, T texture channels, L question tokens,
D language-model width, H scorer width. Positions are (y, x), row-major.
"""

import math
import unicodedata
from dataclasses import dataclass, field
from math import isqrt
from string import ascii_lowercase, digits
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization
from transformers.utils import logging

from .checks import Registry
from .configuration_arr_coc import ArrCocFetcherConfig
from .image_encoding import Rows
from .vision_tower import TEXTURE_SETS, clear_of_padding
from .wordpieces import CHARACTERS


@dataclass(frozen=True)
class FetchContext(Rows):
    """The inputs of a scorer."""

    features: Tensor  # [B, C, G, G], the grid encoder's output
    textures: Tensor  # [B, T, G, G], the channels of one of `TEXTURE_SETS`: see `texture`
    patch_mask: Tensor  # [B, N] bool, False on padding patches
    query: Tensor  # [B, L, D], the language model's embeddings of the prompt
    query_mask: Tensor  # [B, L] bool, True on the question's own tokens (never on an answer)
    seeds: Tensor  # [B] int64, the seeds of random relevance
    relevance: Tensor | None = None  # [B, N] given relevance, by which strategy "oracle" fetches
    # [B, 2, W, G, G], the grid encoder's states, W wide, after a third and two thirds of its layers, if a scorer of the
    # checkpoint reads them.
    depths: Tensor | None = None
    attention: Tensor | None = None  # [B, N] the language model's from the question to base tokens: see `Scorer`
    pieces: Tensor | None = None  # [B, N, 2, S] wordpieces that begin in each patch, if the model has a `TextReader`
    table: Tensor | None = field(default=None, metadata={"shared": True})  # [V, D] embeddings, beside `pieces`
    query_ids: Tensor | None = None  # [B, L] the tokens of `query`, where text is read
    spellings: Tensor | None = field(default=None, metadata={"shared": True})  # [V, SPELLED] likewise: see `TextReader`

    @property
    def side(self) -> int:
        """G, patches along a side of the fine grid."""
        return self.features.shape[-1]

    def texture(self, name: str) -> Tensor:
        """The texture channel `name`, [B, G, G] in float32. Raises ValueError: an unknown name, or a channel outside
        the model's set of textures."""
        channels, (*_, largest) = self.textures.shape[1], TEXTURE_SETS.values()
        if name not in largest[:channels]:
            sets = [kind for kind, names in TEXTURE_SETS.items() if name in names]
            expected = f'"{sets[0]}" (or larger) for "{name}"' if sets else f"a texture among {', '.join(largest)}"
            raise ValueError(f"fetcher_config.textures: expected {expected}; got {channels} channels without {name!r}")
        return self.textures[:, largest.index(name)].float()


def depth_grids(seen: Any) -> list[Tensor]:
    """The grid encoder's three depths, each [B, width, G, G], of a `FetchContext` or an `ImageEncoding`. Raises
    ValueError: it holds only the last depth, its features."""
    if seen.depths is None:
        expected = "an encoding with the grid encoder's states at three depths, made by a model that keeps them"
        raise ValueError(f"depths: expected {expected}; got features alone")
    return [*seen.depths.unbind(1), seen.features]


class Scorer(nn.Module):
    """Base of the family."""

    trained: ClassVar[bool] = False  # has weights and returns logits
    fetches: ClassVar[bool] = True  # False for base tokens only
    textures: ClassVar[str] = "light"  # the set of texture channels that it reads, see `TEXTURE_SETS`
    # Reads `FetchContext.depths`; its constructor then takes `depth_size`, their width W.
    reads_depths: ClassVar[bool] = False
    # Reads `FetchContext.attention`, for which the language model first reads base tokens and question.
    reads_attention: ClassVar[bool] = False
    reads_text: ClassVar[bool] = False  # `FetchContext.pieces`, which only models with bridge "wordpieces" have

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__()

    def forward(self, context: FetchContext) -> Tensor:
        """Scores [B, N], float32."""
        raise TypeError(f"{type(self).__name__} has no forward: expected a registered scorer")

    def begun(self, context: FetchContext) -> Tensor | None:
        """[B, N] number of wordpieces that begin in each patch; None from scorers that read no text."""
        return (context.pieces >= 0).flatten(2).sum(2) if self.reads_text and context.pieces is not None else None

    def depth_maps(self, context: FetchContext) -> Tensor | None:
        """[B, 3, N]: the contribution of each of the grid encoder's three depths to the scores; None: it reads none."""
        return None


SCORERS: Registry[type[Scorer]] = Registry("strategy")

logger = logging.get_logger(__name__)


# ---- running a scorer, with saliency as the fallback -----------------------------------------------------------------


def topk(scores: Tensor, count: int, **_: Any) -> Tensor:
    """Indices [B, count] of the highest scores [B, N], ascending; equal scores go to the lower index."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count].sort(-1).values


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

    `fall_back`: whether it may; False in training, where failures must show.

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
        salient, blank = saliency(context), False
        if not unread:  # nothing to read is no failure
            blank = scorer.reads_text and bool((scores[failed] == EMPTY).all())
        scores = torch.where(failed[:, None], salient, scores)
        relevance = torch.where(failed[:, None], unit_range(salient), relevance)
        if not unread and not blank:
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


def wave_code(at: Tensor, size: int) -> Tensor:
    """Fixed sine-cosine code of positions on a line: [...] -> [..., size], float32. Wavelengths are geometric from 4 to
    256, so the dot product of two codes falls with their distance."""
    waves = torch.logspace(math.log10(4), math.log10(256), size // 2, device=at.device)
    angle = 2 * math.pi * at[..., None] / waves
    return torch.cat((angle.sin(), angle.cos()), -1)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Multi-head attention of [B, Q, H] to [B, S, H]; `mask` [B, S] is True on keys that take part, [B, heads, Q, S] is
    added to the scores."""
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    if mask is not None and mask.ndim == 2:
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


# ---- models that read text -------------------------------------------------------------------------------------------

PLACE_SCALE = 0.3  # of the code of a patch's place in its state
EMPTY = -20.0  # the logit of patches in which no wordpiece begins: they give no token


def patches_with_text(pieces: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers [B, n] of the patches in which a wordpiece of `pieces` [B, N, 2, S] begins (-1 in empty slots), and bool
    [B, n], False on others that fill rows."""
    held = (pieces >= 0).flatten(2).any(-1)
    if torch.compiler.is_compiling() or held.is_meta:  # no shape may depend on data
        return torch.arange(held.shape[1], device=held.device).expand_as(held), held
    most = max(1, int(held.sum(1).amax())) if len(held) else 1
    index = (~held).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    return index, held.gather(1, index)


ROWS_APART = (0, 1, 2, 3, 4, 6, 9, 15, 31)
COLUMNS_APART = (0, 1, 2, 3, 4, 5, 7, 10, 15, 23, 41)  # least distance of each bucket, in patches


def _bucket(distance: Tensor, least: tuple[int, ...]) -> Tensor:
    """The number of each distance's bucket."""
    number = torch.bucketize(distance.abs(), torch.tensor(least, device=distance.device), right=True) - 1
    return number * distance.sign() + len(least) - 1


def relative_buckets(index: Tensor, side: int) -> Tensor:
    """Patches [B, n] of a grid of `side` patches -> [B, n, n], a number for where the second one lies from the first.
    Rows and columns between two patches are divided into buckets together, as in LayoutLMv2 (Xu et al. 2020)."""
    y, x = (at[:, :, None] - at[:, None] for at in (index // side, index % side))
    return _bucket(y, ROWS_APART) * (2 * len(COLUMNS_APART) - 1) + _bucket(x, COLUMNS_APART)


class RelativeBias(nn.Embedding):
    """A term of attention for each bucket of `relative_buckets` and each head. Heads start with one direction each: to
    the left in the row, to the right in it, above, below, near, anywhere."""

    def __init__(self, heads: int) -> None:
        super().__init__((2 * len(ROWS_APART) - 1) * (2 * len(COLUMNS_APART) - 1), heads)

    def start_weights(self, std: float) -> None:
        # The least distance of each bucket, from the farthest above or left to the farthest below or right.
        rows, columns = ([*(-far for far in least[:0:-1]), *least] for least in (ROWS_APART, COLUMNS_APART))
        y, x = torch.tensor(rows)[:, None].float(), torch.tensor(columns)[None].float()
        far_y, far_x, row = y.abs().log1p(), x.abs().log1p(), 3.0 * (y != 0)
        directions = (
            1.0 * (x > 0) - 2.0 * (x < 0) - 0.3 * far_x - row,
            1.0 * (x < 0) - 2.0 * (x > 0) - 0.3 * far_x - row,
            1.0 * (y > 0) - 2.0 * (y <= 0) - far_y - 0.7 * far_x,
            1.0 * (y < 0) - 2.0 * (y >= 0) - far_y - 0.7 * far_x,
            -1.5 * (far_x + far_y),
            torch.zeros(len(y), x.shape[1]),
        )
        start = [directions[head % len(directions)].flatten() for head in range(self.embedding_dim)]
        initialization.copy_(self.weight, torch.stack(start, -1))


class WordLayer(nn.Module):
    """Attention between the patches with text of a page, by content and relative place; to a question, if there is one;
    and a feed-forward network."""

    def __init__(self, size: int, heads: int, *, asked: bool) -> None:
        super().__init__()
        self.heads = heads
        self.layer_norm = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.relative = RelativeBias(heads)
        if asked:
            self.cross_norm = nn.LayerNorm(size)
            self.cross_query = nn.Linear(size, size)
            self.cross_key_value = nn.Linear(size, 2 * size)
            self.cross_out = nn.Linear(size, size)
        self.feed_forward = FeedForward(size, size)

    def forward(
        self, x: Tensor, buckets: Tensor, held: Tensor, question: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """States [B, n, H] of patches -> their new states; for one page, B may be 1 in `buckets` and `held`.

        `buckets`: [B, n, n], see `relative_buckets`; `held`: bool [B, n], False on patches that nothing attends to;
        `question`: [B, L, H], of which `mask` [B, L] marks what takes part.
        """
        query, key, value = self.qkv(self.layer_norm(x)).chunk(3, -1)
        bias = self.relative(buckets).permute(0, 3, 1, 2).to(query)
        bias = bias.masked_fill(~held[:, None, None], torch.finfo(bias.dtype).min)
        x = x + self.out(attend(query, key, value, self.heads, bias))
        if question is not None:
            key, value = self.cross_key_value(question).chunk(2, -1)
            x = x + self.cross_out(attend(self.cross_query(self.cross_norm(x)), key, value, self.heads, mask))
        return x + self.feed_forward(x)


class ScaledLinear(nn.Linear):
    """A linear layer whose weights start with a standard deviation of their own."""

    def __init__(self, inputs: int, outputs: int, start: float, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.start = start

    def start_weights(self, std: float) -> None:
        initialization.normal_(self.weight, std=self.start)


@SCORERS.register("words")
class WordScorer(Scorer):
    """For models that read text: the relevance of patches in which a wordpiece begins, from the text alone.

    A patch's state is the meaning of its wordpieces and its place. A layer of attention between patches by relative
    place comes first; it does not depend on the question. Then four similarities to the question are added: of
    spelling (two, `spelling_match`), of wordpieces in a learned space, and of the patch's state with the
    question's. `num_layers` more layers, which also attend to the question, carry relevance from a label to its value.
    The similarities hold for words that were never in a training question.

    The page's tensors may come with B = 1 for several questions about one page.
    """

    trained = True
    reads_text = True

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        size, heads, match = config.hidden_size, config.num_heads, config.match_size
        self.text_norm = nn.LayerNorm(text_size)
        # Similarities start large beside meanings: otherwise nothing is found for hundreds of steps.
        self.meaning = ScaledLinear(text_size, 2 * size, 0.01, bias=False)  # of all wordpieces in a patch, the first
        self.count = nn.Linear(1, size)
        self.page_layer = WordLayer(size, heads, asked=False)
        self.question_projection = nn.Linear(text_size, size)
        self.question_layers = nn.ModuleList(QuestionLayer(size, heads) for _ in range(2))
        self.nothing = nn.Parameter(torch.zeros(1, 1, size))
        self.token = nn.Linear(text_size, match, bias=False)
        self.token_weight = nn.Linear(text_size, 1)
        self.patch_match = nn.Linear(size, match, bias=False)
        self.question_match = nn.Linear(size, match, bias=False)
        self.similarities = ScaledLinear(4, size, 2.0)
        self.layers = nn.ModuleList(WordLayer(size, heads, asked=True) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, 1)

    def start_weights(self, std: float) -> None:
        initialization.normal_(self.nothing, std=std)

    def forward(self, context: FetchContext) -> Tensor:
        if context.pieces is None or context.table is None:
            raise ValueError('strategy "words": expected an encoding with wordpieces; got one without')
        padding = ~context.patch_mask[: len(context.pieces), :, None, None]
        pieces = context.pieces.masked_fill(padding.to(context.pieces.device), -1)
        index, held = patches_with_text(pieces)
        pieces = pieces.take_along_dim(index[..., None, None], 1).flatten(2).long()  # [B, n, 2S]
        vectors, place = self._words(pieces, context.table)
        patches = self._patches(pieces, vectors, place, index, context.side)
        buckets, seen = relative_buckets(index, context.side), held | ~held.any(1, keepdim=True)
        patches = self.page_layer(patches, buckets, seen)
        tokens, mask = self.text_norm(context.query), context.query_mask.to(patches.device)
        question = self.question_projection(tokens)
        for layer in self.question_layers:
            question = layer(question, mask)
        alike = self._alike(vectors, place, pieces, tokens, mask)
        spelled = torch.zeros(len(tokens), context.pieces.shape[1], 2, device=patches.device)
        if context.query_ids is not None and context.spellings is not None:
            page = context.pieces.expand(len(tokens), -1, -1, -1)
            spelled = spelling_match(page, context.query_ids, context.query_mask, context.spellings)
        spelled = spelled.take_along_dim(index[..., None], 1)
        stated = self._stated(patches, question, mask)
        similar = torch.cat((alike[..., None], stated[..., None], spelled.to(alike)), -1)
        x = patches + self.similarities(similar)
        question = torch.cat((question, self.nothing.expand(len(question), -1, -1).to(question)), 1)
        mask = F.pad(mask, (0, 1), value=True)
        for layer in self.layers:
            x = layer(x, buckets, seen, question, mask)
        scores = self.head(self.final_norm(x)).squeeze(-1).float().masked_fill(~held, EMPTY)
        return scores.new_full(context.patch_mask.shape, EMPTY).scatter(1, index.expand(len(scores), -1), scores)

    def _words(self, pieces: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised embeddings of the wordpieces on pages [u, D], and the row of each [B, n, 2S]; 0 in empty
        slots."""
        shown = F.pad(pieces.clamp(min=0).flatten(), (1, 0))  # id 0, which is never read, stands for empty slots
        if torch.compiler.is_compiling() or pieces.is_meta:  # no shape may depend on data
            place = torch.arange(1, len(shown), device=pieces.device).view_as(pieces) * (pieces > 0)
        else:
            shown, place = shown.unique(return_inverse=True)
            place = place[1:].view_as(pieces)
        return self.text_norm(table[shown].to(self.text_norm.weight)), place

    def _patches(self, pieces: Tensor, vectors: Tensor, place: Tensor, index: Tensor, side: int) -> Tensor:
        """The meaning and the places of patches [B, n, H]."""
        held, half, kind = pieces >= 0, self.count.out_features // 2, self.count.weight.dtype
        every, first = self.meaning(vectors).float().chunk(2, -1)
        mean = F.embedding_bag(place.flatten(0, 1), every, mode="mean", padding_idx=0).view(*place.shape[:2], -1)
        first = first[place.gather(2, held.to(torch.uint8).argmax(2, keepdim=True))[..., 0]]
        count = self.count(held.sum(2, keepdim=True).to(kind) / 3)
        code = torch.cat((wave_code(index // side, half), wave_code(index % side, half)), -1)
        return (mean + first + PLACE_SCALE * code).to(kind) + count

    def _alike(self, vectors: Tensor, place: Tensor, pieces: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """[B, n]: the largest cosine of a wordpiece of each patch with a token of the question, times that token's
        weight."""
        words = F.normalize(self.token(vectors), dim=-1)
        weighed = F.normalize(self.token(tokens), dim=-1) * (self.token_weight(tokens).sigmoid() * mask[..., None])
        alike = F.pad(torch.einsum("um,blm->bul", words, weighed), (0, 1)).amax(-1)  # a question may be empty
        place, held = place.expand(len(alike), -1, -1), pieces >= 0
        return (alike.gather(1, place.flatten(1)).view(place.shape) * held).amax(-1)

    def _stated(self, patches: Tensor, question: Tensor, mask: Tensor) -> Tensor:
        """[B, n]: the largest cosine of each patch's state with a state of the question."""
        stated = F.normalize(self.patch_match(patches), dim=-1)
        cosines = torch.matmul(stated, F.normalize(self.question_match(question), dim=-1).transpose(1, 2))
        return F.pad(cosines.masked_fill(~mask[:, None], -1.0), (0, 1), value=-1.0).amax(-1)


def _folded() -> np.ndarray:
    """[256] each character class without case and accents: 1 to 26 for letters, 27 to 36 for digits, else 0."""
    codes = np.zeros(256, np.int64)
    for number, character in enumerate(CHARACTERS, 1):
        plain = unicodedata.normalize("NFD", character)[0].lower()
        if plain in ascii_lowercase:
            codes[number] = ord(plain) - ord("a") + 1
        elif plain in digits:
            codes[number] = ord(plain) - ord("0") + 27
    return codes


_FOLDED = _folded()
_CODES = 37
_REACH = 9  # characters over which matches are averaged


def spelling_match(pieces: Tensor, question_ids: Tensor, question_mask: Tensor, spellings: Tensor) -> Tensor:
    """How much of the text about each patch is spelled as in the question: [B, N, 2] in 0..1.

    The unit is three neighbouring letters or digits, so that a match survives other wordpieces, such as those of
    capitals, and characters that are read wrongly. The first channel is the share of matches about a patch; in the
    second a match counts less the more often its letters are on the page. A patch gets the greatest value of its
    characters. In a compiled graph, whose shapes no data may decide, nothing matches.

    `pieces`: [B, N, 2, S] wordpieces of a page, -1 in empty slots; `question_ids`: [B, L] tokens of the question, where
    `question_mask` [B, L] is True; `spellings`: [V, SPELLED], see `TextReader`.
    """
    count, patches, _, slots = pieces.shape
    if torch.compiler.is_compiling() or pieces.is_meta:
        return torch.zeros(count, patches, 2, device=pieces.device)
    side, table = isqrt(patches), spellings.cpu().numpy()
    order = np.arange(patches).reshape(side, 1, side, 1)
    patch = np.broadcast_to(order, (side, 2, side, slots)).ravel()  # of the slots in reading order
    rows = pieces.view(count, side, side, 2, slots).transpose(2, 3).flatten(1).cpu().numpy()
    matches = np.zeros((count, patches, 2), np.float32)
    asked = (question_ids * question_mask).cpu().numpy()
    for row, question, out in zip(rows, asked, matches, strict=True):
        filled = np.flatnonzero(row >= 0)
        codes, owner = _codes(table[row[filled]])
        wanted, _ = _codes(table[question])
        if len(codes) < 3 or len(wanted) < 3:
            continue
        units = _trigrams(codes)
        _, same, often = np.unique(units, return_inverse=True, return_counts=True)
        hits = np.isin(units, _trigrams(wanted)) & (units >= 0)
        at = patch[filled[owner]]
        for channel, weight in enumerate((np.ones(len(units)), often[same] ** -0.5)):
            begins = np.pad(hits * weight, (0, 2))  # a unit covers three characters
            covers = np.maximum(begins, np.maximum(np.roll(begins, 1), np.roll(begins, 2)))
            about = np.convolve(covers, np.full(_REACH, 1 / _REACH), "same")[: len(at)]
            np.maximum.at(out[:, channel], at, about * (covers > 0))
    return torch.from_numpy(matches).to(pieces.device)


def _codes(spelled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Folded characters of wordpieces [n, SPELLED], one 0 for all that stands between words, and whose each is."""
    written = spelled > 0
    codes, owner = _FOLDED[spelled[written]], np.repeat(np.arange(len(spelled)), written.sum(1))
    kept = np.ones(len(codes), bool)
    kept[1:] = (codes[1:] > 0) | (codes[:-1] > 0)
    return codes[kept], owner[kept]


def _trigrams(codes: np.ndarray) -> np.ndarray:
    """[n - 2] a number for each three neighbours; -1 where two of them are no letters or digits."""
    first, middle, last = codes[:-2], codes[1:-1], codes[2:]
    numbers = (first * _CODES + middle) * _CODES + last
    few = np.minimum(first, 1) + np.minimum(middle, 1) + np.minimum(last, 1) < 2
    return np.where(few, -1, numbers)
