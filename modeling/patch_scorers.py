"""Scorers of patches beside `saliency` and `words`: `random`, `oracle`, `attention`, and those that read features.

Notation: B batch, I image slots, S prompt length, Q tokens read at once, G side of the fine grid, N = G*G patches, M
base tokens, C feature channels, L question tokens, D language-model width, H scorer width. Positions are (y, x),
row-major.
"""

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import initialization

from .configuration_arr_coc import ArrCocFetcherConfig
from .fetcher import FetchChoices
from .pretrained import CACHE
from .prompt import behind_prefix, deepstack_arguments, positions
from .scorers import SCORERS, FeedForward, FetchContext, QuestionLayer, Scorer, attend, masked_mean, wave_code
from .views import SelectedSlots
from .vision_tower import key_value_projection


@SCORERS.register("random")
class RandomScorer(Scorer):
    """Uniform noise, from each item's own seed."""

    def forward(self, context: FetchContext) -> Tensor:
        shape, device = context.patch_mask.shape, context.patch_mask.device
        rows = [torch.rand(shape[1], generator=torch.Generator().manual_seed(s)) for s in context.seeds.tolist()]
        return (torch.stack(rows) if rows else torch.zeros(shape)).to(device)


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
    """The language model's attention from the question to the base tokens, on the grid: `attention_relevance`."""

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
    """Cosines [..., 1] -> logits [..., 1], temperature * cosine + bias, in float32, as half precision is too coarse. It
    starts with `temperature` and `bias`."""

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


# ---- the language model's attention from the question to the base tokens: no weights, no training ------------------

SPREAD = 2.0
"""Standard deviation, in patches, over which attention to a base token of one patch is spread (mask compressor)."""


LAYERS = (0.25, 0.75)
"""The layers whose attention is read: the first and the last, as shares of the language model's depth."""


class AttentionRecorder(TorchFunctionMode):
    """Records the attention of the question's tokens, layer by layer, for any implementation of a layer.

    Within its context it watches calls of PyTorch's scaled-dot-product attention and, for "eager" attention, of the
    softmax over [B, heads, Q, S], in this thread alone. It changes no setting of the model.

    Attributes:
        layers: [B, S] float32 for each call so far: attention to each position, mean over heads and question tokens.
    """

    def __init__(self, question: Tensor) -> None:
        """`question`: bool [B, Q], True on the question's tokens."""
        super().__init__()
        self.question = question
        self.layers: list[Tensor] = []

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._record(attention_weights(*args, **kwargs))
        elif func in (F.softmax, torch.softmax, Tensor.softmax) and result.ndim == 4:
            self._record(result)
        return result

    def _record(self, weights: Tensor) -> None:
        question = self.question.to(weights.device)
        paid = weights.float().mean(1).masked_fill(~question[..., None], 0.0)
        self.layers.append(paid.sum(1) / question.sum(1, keepdim=True).clamp(min=1))


def attention_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights [B, heads, Q, S] of `F.scaled_dot_product_attention` for the same arguments, in float32."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1).float()
    logits = query.float() @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        logits = logits.masked_fill(~attn_mask, float("-inf")) if hidden else logits + attn_mask
    return logits.softmax(-1).nan_to_num(0.0)  # padding may attend to nothing


@torch.no_grad()
def attention_relevance(model: Any, selected: SelectedSlots) -> Tensor:
    """Relevance [I, N], float32, from one pass of the language model over the prompts without fetched tokens.

    Where the encoding holds the keys and values of the prompt up to the base tokens, it reads only the question.
    Attention from the question's tokens to the base tokens, mean over tokens, heads and `LAYERS`. Zhang et al. 2025
    (MLLMs Know Where to Look) show that attention in the middle layers finds what a question is about.

    Raises:
        ValueError: an attention implementation without weights, such as "flash_attention_2".
    """
    nothing = model.fetcher(selected.context, 0, FetchChoices(strategy="none", allocator="topk"))
    prompt = model.place(selected, nothing, attention_mask=selected.attention_mask)
    inputs = {**prompt.inputs, **prompt.read}
    inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
    past = None
    if selected.prefix is not None and len(selected.rows) == len(selected.input_ids):  # one image in each prompt
        assert selected.image_index is not None
        inputs, past = behind_prefix(model.config.text_config, selected.prefix, inputs, selected.image_index)
    start = 0 if past is None else past.get_seq_length()
    mask, planes = inputs["attention_mask"], inputs.get("prompt_planes")
    with AttentionRecorder(inputs["query_mask"][:, start:].bool()) as recorder:
        model.language_model(
            inputs_embeds=inputs["prompt_embeds"][:, start:],
            attention_mask=mask,
            position_ids=inputs.get("position_ids", positions(mask))[..., start:],
            use_cache=past is not None,
            **{CACHE: past},
            **deepstack_arguments(None if planes is None else planes[:, start:]),
        )
    layers, (begin, end) = recorder.layers, LAYERS
    if not layers:
        expected = 'a language model with attention "sdpa" or "eager", which shows its weights'
        received = model.language_model.config._attn_implementation
        raise ValueError(f'strategy "attention": expected {expected}; got {received!r}')
    first = min(int(begin * len(layers)), len(layers) - 1)
    paid = torch.stack(layers[first : max(first + 1, round(end * len(layers)))]).mean(0)  # [B, S]
    image = paid[(inputs["input_ids"] == model.config.image_token_id).to(paid.device)]  # slot by slot, in order
    base = model.layout.base_places(selected.encoding.semantic.shape[1] // selected.encoding.pool**2).to(paid.device)
    if not len(base):
        raise ValueError('strategy "attention": expected base tokens in the prompt; got layout "fetched"')
    to_base = image.view(len(selected.rows), -1)[:, base]
    return on_fine_grid(to_base, selected.context.side, selected.encoding.base_indices)


def on_fine_grid(attention: Tensor, side: int, base_indices: Tensor | None) -> Tensor:
    """Attention to base tokens [I, M] -> patches [I, N].

    Base tokens are square cells of patches: the attention is interpolated between their centres. With the mask
    compressor they are the patches `base_indices` [I, M]: each patch gets the mean of the base tokens around it, near
    ones most.
    """
    if base_indices is None:
        cells = isqrt(attention.shape[1])
        grid = attention.float().view(-1, 1, cells, cells)
        return F.interpolate(grid, (side, side), mode="bilinear", align_corners=False).flatten(1)
    at = torch.arange(side * side, device=attention.device)
    places = torch.stack((at // side, at % side), -1).float()
    distances = torch.cdist(places.expand(len(attention), -1, -1), places[base_indices.to(attention.device)])
    nearness = (-distances.square() / (2 * SPREAD**2)).softmax(-1)
    return (nearness @ attention.float()[..., None]).squeeze(-1)
