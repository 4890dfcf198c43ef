"""Scorers of patches beside `saliency` and `words`: `random`, `oracle`, `attention`, and those that read features.

Notation: B batch, G side of the fine grid, N = G*G patches, C feature channels, L question tokens, D language-model
width, H scorer width. Positions are (y, x), row-major.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from .configuration_arr_coc import ArrCocFetcherConfig
from .scorers import SCORERS, FeedForward, FetchContext, QuestionLayer, Scorer, attend, masked_mean, wave_code
from .vision_tower import key_value_projection


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


@SCORERS.register("variance")
class VarianceScorer(Scorer):
    """A patch's share of the feature variance: squared distance to the mean feature of the image's real patches."""

    def forward(self, context: FetchContext) -> Tensor:
        patches = context.features.flatten(2).transpose(1, 2).float()
        mean = masked_mean(patches, context.patch_mask)
        return (patches - mean[:, None]).square().mean(-1)


def position_code(side: int, size: int, *, device: torch.device, pool: int = 1) -> Tensor:
    """Code of the centres of runs of `pool` patches along a row: [runs, size]; y in the first half, x in the second."""
    runs = (side + pool - 1) // pool
    first = torch.arange(runs, device=device) * pool
    last = (first + pool - 1).clamp(max=side - 1)  # the last run of a row may be shorter
    y = wave_code(torch.arange(side, device=device), size // 2)
    x = wave_code((first + last) / 2, size // 2)
    return torch.cat((y.repeat_interleave(runs, 0), x.repeat(side, 1)), -1)


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

    def forward(self, x: Tensor, side: int) -> Tensor:
        """States [B, N, H] of a grid of `side` patches -> their new states."""
        batch, _, width = x.shape
        normed = self.layer_norm(x)
        pooled = normed
        if self.pool > 1:
            grid = normed.transpose(1, 2).unflatten(2, (side, side))
            pooled = F.avg_pool2d(grid, (1, self.pool), ceil_mode=True).flatten(2).transpose(1, 2)
        key, value = self.key_value(pooled).chunk(2, -1)
        query, key, value = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.query(normed), key, value)
        )
        size, scale = self.query_position.shape[-1], (width // self.heads) ** -0.5
        code = position_code(side, size, device=x.device).to(x.dtype)
        cells = position_code(side, size, device=x.device, pool=self.pool).to(x.dtype)
        query = torch.cat((query * scale, (code @ self.query_position).expand(batch, -1, -1, -1)), -1)
        key = torch.cat((key, (cells @ self.key_position).expand(batch, -1, -1, -1)), -1)
        out = F.scaled_dot_product_attention(query, key, F.pad(value, (0, size)), scale=1.0)
        x = x + self.out(out[..., : width // self.heads].transpose(1, 2).flatten(2))
        return x + self.feed_forward(x)


@SCORERS.register("realizer")
class Realizer(Scorer):
    """The default: patches read the question, then relevance travels over the page.

    Normalised patches cross-attend to the question's normalised tokens (and to one learned "nothing" token), then pass
    `num_layers` self-attention layers over patches with an explicit 2-D position term.
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
        self.layers = nn.ModuleList(
            PatchLayer(size, config.num_heads, config.position_size, config.key_pool, config.latent_size)
            for _ in range(config.num_layers)
        )
        self.final_norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, 1)

    def start_weights(self, std: float) -> None:
        initialization.normal_(self.nothing, std=std)

    def forward(self, context: FetchContext) -> Tensor:
        patches = self.patch_projection(self.patch_norm(context.features.flatten(2).transpose(1, 2)))
        mask = context.query_mask.to(patches.device)
        question = self.question_layer(self.text_projection(self.text_norm(context.query)), mask)
        question = torch.cat((question, self.nothing.expand(question.shape[0], -1, -1)), 1)
        key, value = self.cross_key_value(question).chunk(2, -1)
        question_states = attend(self.cross_query(patches), key, value, self.heads, F.pad(mask, (0, 1), value=True))
        x = patches + self.couple(torch.cat((patches, question_states, patches * question_states), -1))
        for layer in self.layers:
            x = layer(x, context.side)
        scores: Tensor = self.head(self.final_norm(x)).squeeze(-1).float()
        return scores


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
