"""The scorer "attention": the language model's attention from the question to the base tokens is the relevance.

It has no weights and needs no training. The language model reads the prompt without fetched tokens. Where the encoding
holds the keys and values of the prompt up to the base tokens, the language model reads only the question.

Notation: B prompts, I image slots, S prompt length, Q tokens read at once, G side of the fine grid, N = G*G patches, M
base tokens, D language-model width.
"""

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .fetcher import FetchChoices
from .pretrained import CACHE
from .prompt import Core, behind_prefix, deepstack_arguments, positions
from .views import SelectedSlots

SPREAD = 2.0
"""Standard deviation, in patches, over which attention to a base token of one patch is spread (mask compressor)."""


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
def attention_relevance(model: Core, selected: SelectedSlots) -> Tensor:
    """Relevance [I, N], float32, from one pass of the language model over the prompts without fetched tokens.

    Attention from the question's tokens to the base tokens, mean over tokens, heads and the layers that
    `fetcher_config.attention_layers` names. Zhang et al. 2025 (MLLMs Know Where to Look) show that attention in the
    middle layers finds what a question is about.

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
    layers, (begin, end) = recorder.layers, model.config.fetcher_config.attention_layers
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
