"""The semantic encoder: base tokens look at one another, saccades at everything.

Notation: B batch, G side of the fine grid, N = G*G patches, M base tokens, K saccades, D' semantic width. Positions
are (y, x), row-major.

Source: CLIP's vision transformer (Radford et al. 2021); module names are those of transformers' CLIP.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_arr_coc import COMPRESSION, ArrCocSemanticConfig
from .grid_encoder import resize_table
from .latent import Latent
from .regions import LEVELS


def eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attention written out, for `attn_implementation="eager"`: returns [B, S, heads, d] and the weights."""
    scores = query @ key.transpose(-1, -2) * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


KeyValue = tuple[Tensor, Tensor]


class SemanticAttention(nn.Module):
    """Attention of the given tokens to `past` (keys and values of tokens before them, or None) and to one another.

    Of the given tokens only those are seen that `used` [B, S] marks; None: all.
    """

    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.scaling = (width // self.num_heads) ** -0.5
        self.is_causal = False
        source = width if config.latent_size is None else config.latent_size
        self.latent = nn.Identity() if config.latent_size is None else Latent(width, source)
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(source, width)
        self.v_proj = nn.Linear(source, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, past: KeyValue | None, used: Tensor | None = None) -> tuple[Tensor, KeyValue]:
        source = self.latent(x)
        query, own_key, own_value = (
            projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projected in (self.q_proj(x), self.k_proj(source), self.v_proj(source))
        )
        key, value = own_key, own_value
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        kind = self.config._attn_implementation or "sdpa"  # transformers hands an explicit choice down to sub-configs
        mask = None if used is None else F.pad(used, (key.shape[2] - used.shape[1], 0), value=True)
        if mask is not None and "flash" not in kind:  # which takes the mask of the keys as it is
            mask = mask[:, None, None, :]
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(kind, eager_attention)
        out, _ = attend(self, query, key, value, mask, scaling=self.scaling, dropout=0.0, is_causal=False)
        return self.out_proj(out.flatten(2)), (own_key, own_value)


class SemanticMLP(nn.Module):
    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = ACT2FN[config.hidden_act]
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class SemanticLayer(GradientCheckpointingLayer):
    """One CLIP block; also returns the keys and values of its own tokens.

    Tensors go in and out one by one: gradients of those within a tuple are lost in reentrant checkpointing.
    """

    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = SemanticAttention(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = SemanticMLP(config)

    def forward(
        self, x: Tensor, past_key: Tensor | None, past_value: Tensor | None, used: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        past = None if past_key is None or past_value is None else (past_key, past_value)
        out, (key, value) = self.self_attn(self.layer_norm1(x), past, used)
        x = x + out
        return x + self.mlp(self.layer_norm2(x)), key, value


def run_layers(
    layers: Iterable[nn.Module], x: Tensor, base: Sequence[KeyValue] | None, used: Tensor | None
) -> tuple[Tensor, list[KeyValue]]:
    """Tokens x [B, S, D'] through `SemanticLayer`s, behind the keys and values of `base`, a pair for each layer.

    Returns:
        States [B, S, D'], and the keys and values of these tokens, likewise.
    """
    own: list[KeyValue] = []
    for number, layer in enumerate(layers):
        x, key, value = layer(x, *(base[number] if base else (None, None)), used)
        own.append((key, value))
    return x, own


class LevelEmbedding(nn.Embedding):
    """A token's level of detail; starts at zero."""

    def start_weights(self, std: float) -> None:
        initialization.zeros_(self.weight)


class SemanticEncoder(nn.Module):
    """CLIP's transformer over base tokens, then over saccades that also see the base.

    Base attends to base only; a saccade attends to everything. No mask is needed: the base runs alone, then saccades
    run with the base's keys and values in front of theirs. So fetching can never change a base token.
    """

    def __init__(self, config: ArrCocSemanticConfig) -> None:
        super().__init__()
        self.config = config
        self.class_embedding = nn.Parameter(torch.zeros(config.hidden_size))
        self.position_embedding = nn.Parameter(torch.zeros(1 + config.position_grid**2, config.hidden_size))
        self.saccade_embedding = nn.Parameter(torch.zeros(config.hidden_size))
        self.level_embedding = LevelEmbedding(LEVELS, config.hidden_size) if config.level_embedding else None
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layers = nn.ModuleList(SemanticLayer(config) for _ in range(config.num_hidden_layers))

    def start_weights(self, std: float) -> None:
        initialization.normal_(self.class_embedding, std=self.config.initializer_range)
        initialization.normal_(self.position_embedding, std=self.config.initializer_range)
        initialization.zeros_(self.saccade_embedding)

    def _position_table(self, side: int) -> Tensor:
        grid = self.config.position_grid
        table = self.position_embedding[1:].view(1, grid, grid, -1)
        return table if grid == side else resize_table(table, side)

    def _positions_at(self, indices: Tensor, side: int, levels: Tensor | None = None) -> Tensor:
        """Position table sampled at the centres of regions of a G grid: indices, levels [B, K] -> [B, K, D']."""
        table = self._position_table(side // COMPRESSION).permute(0, 3, 1, 2).float()
        x, y = indices % side, indices // side
        half = 0.5 if levels is None else 0.5 * (1 << levels)[..., None]  # of a region's side, patches
        at = (torch.stack((x, y), -1) + half) * (2 / side) - 1  # grid_sample's convention: (x, y) in -1..1
        table = table.expand(indices.shape[0], -1, -1, -1)
        sampled = F.grid_sample(table, at[:, None].float(), padding_mode="border", align_corners=False)
        return sampled[:, :, 0].transpose(1, 2).to(self.position_embedding.dtype)

    def forward(
        self,
        tokens: Tensor,
        side: int,
        indices: Tensor | None,
        base: list[KeyValue] | None = None,
        used: Tensor | None = None,
        levels: Tensor | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """Runs base tokens (`base` is None) or saccades (`base`: keys and values of the base, per layer).

        Args:
            tokens: [B, M or K, D'].
            side: G of the fine grid that positions refer to.
            indices: [B, M or K] fine patches the tokens stand at; None: one token per 4x4 cell, in order.
            base: what an earlier call on the base tokens returned.
            used: [B, K] bool, False on saccades that only fill the rectangle: no other may see them. None: all are.
            levels: [B, K] the level of detail of each saccade, see regions.py; None: all are patches.

        Returns:
            States [B, M or K, D'], without CLS, and each layer's keys and values of these tokens (CLS included).
        """
        if indices is None:
            positions = self._position_table(side // COMPRESSION).flatten(1, 2)
        else:
            positions = self._positions_at(indices, side, levels)
        x = tokens + positions
        if base is None:
            cls = (self.class_embedding + self.position_embedding[0]).expand(tokens.shape[0], 1, -1)
            x = torch.cat((cls, x), 1)
        else:
            x = x + self.saccade_embedding
            if self.level_embedding is not None:
                singly = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
                x = x + self.level_embedding(singly if levels is None else levels)
        x = self.pre_layrnorm(x)
        x, own = run_layers(self.layers, x, base, used)
        return (x[:, 1:] if base is None else x), own
