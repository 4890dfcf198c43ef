"""Tier choice "classifier": the question and the image's mean feature choose how many patches are fetched.

Notation: B batch, R outputs, T tiers, C feature channels, D language-model width, H width.
"""

import torch
from torch import Tensor, nn

from ..modeling.allocators import TIER_CHOICES
from ..modeling.configuration_arr_coc import TIERS, ArrCocFetcherConfig
from ..modeling.scorers import FetchContext, masked_mean


class ContextNetwork(nn.Module):
    """Logits [B, R] from the pooled question and the image's mean feature (called gestalt in the weights' names)."""

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
        # Projected before pooling: means of raw embeddings hardly differ between long questions.
        words = self.act(self.text_projection(self.text_norm(context.query)))
        question = masked_mean(words, context.query_mask)
        gestalt = masked_mean(context.features.flatten(2).transpose(1, 2), context.patch_mask)
        gestalt = self.gestalt_projection(self.gestalt_norm(gestalt))
        states = torch.cat((question.to(gestalt.device), gestalt), -1)
        return self.head(self.act(self.hidden(states))).float()


@TIER_CHOICES.register("classifier")
class TierClassifier(ContextNetwork):
    """Logits [B, T] of the tiers, from the question and the image's mean feature."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config.hidden_size, len(TIERS), feature_size=feature_size, text_size=text_size)
