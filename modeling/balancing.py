"""Balancing: how much each of several score maps counts for this question about this image.

Notation: B batch, N patches, R score maps, D language-model width, C feature channels, H hidden width.
"""

import torch
from torch import Tensor, nn

from .configuration_arr_coc import ArrCocFetcherConfig
from .scorers import FetchContext, masked_mean

AGGREGATION_SIZE = 32
"""Hidden width of the small network over patches with aggregation "learned"."""


def shares(logits: Tensor, kind: str) -> Tensor:
    """Logits [B, R] -> shares [B, R] that sum to 1 in each item.

    Args:
        logits: of any range.
        kind: "softmax", under which maps compete, or "sigmoid", under which each is judged by itself first.
    """
    if kind == "softmax":
        return logits.softmax(-1)
    gates = logits.sigmoid()
    return gates / gates.sum(-1, keepdim=True).clamp(min=torch.finfo(gates.dtype).tiny)


def statistics(maps: Tensor, mask: Tensor) -> Tensor:
    """Mean, maximum and standard deviation of maps [B, R, N] in 0..1 over each item's patches in `mask`: [B, 3 R]."""
    real = mask[:, None]
    count = real.sum(-1).clamp(min=1)
    maps = torch.where(real, maps, 0.0)
    mean = maps.sum(-1) / count
    variance = (torch.where(real, maps - mean[..., None], 0.0)).square().sum(-1) / count
    return torch.cat((mean, maps.amax(-1), (variance + 1e-6).sqrt()), -1)  # the root's slope at 0 is infinite


class TensionBalancer(nn.Module):
    """Shares of R score maps, from the pooled question and from what the maps look like.

    Sizes as published (D = 1024, H = 160) make about 200 K weights.
    """

    def __init__(self, config: ArrCocFetcherConfig, *, maps: int, text_size: int) -> None:
        super().__init__()
        size = config.balancer_size
        self.kind = config.balancer_weights
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, size)
        self.aggregation: nn.Module | None = None
        if config.balancer_aggregation == "learned":  # the mean of a network over patches (Deep Sets, 2017)
            layers = (nn.Linear(maps, AGGREGATION_SIZE), nn.GELU(), nn.Linear(AGGREGATION_SIZE, 3 * maps))
            self.aggregation = nn.Sequential(*layers)
        self.hidden = nn.Linear(size + 3 * maps, size)
        self.act = nn.GELU()
        self.head = nn.Linear(size, maps)

    def forward(self, maps: Tensor, context: FetchContext) -> Tensor:
        """Maps [B, R, N] in 0..1 -> shares [B, R] in float32."""
        words = self.act(self.text_projection(self.text_norm(context.query)))
        question = masked_mean(words, context.query_mask).to(maps.device)
        if self.aggregation is None:
            known = statistics(maps, context.patch_mask).to(question)
        else:
            known = masked_mean(self.aggregation(maps.transpose(1, 2).to(question)), context.patch_mask)
        states = self.act(self.hidden(torch.cat((question, known), -1)))
        return shares(self.head(states).float(), self.kind)


class ContextNetwork(nn.Module):
    """Logits [B, R] from the pooled question and the gestalt: the mean feature of the patches that hold some image."""

    def __init__(self, size: int, outputs: int, *, feature_size: int, text_size: int) -> None:
        super().__init__()
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, size)
        self.gestalt_norm = nn.LayerNorm(feature_size)
        self.gestalt_projection = nn.Linear(feature_size, size)
        self.hidden = nn.Linear(2 * size, size)
        self.act = nn.GELU()
        self.head = nn.Linear(size, outputs)

    def forward(self, context: FetchContext) -> Tensor:
        # Projected before pooling: the mean of raw embeddings hardly differs between questions of many tokens.
        words = self.act(self.text_projection(self.text_norm(context.query)))
        question = masked_mean(words, context.query_mask)
        gestalt = masked_mean(context.features.flatten(2).transpose(1, 2), context.patch_mask)
        gestalt = self.gestalt_projection(self.gestalt_norm(gestalt))
        states = torch.cat((question.to(gestalt.device), gestalt), -1)
        return self.head(self.act(self.hidden(states))).float()
