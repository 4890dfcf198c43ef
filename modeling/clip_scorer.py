"""The scorer `clip_query`: patches and question in one shared, trained space.

Notation: B batch, N patches.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from .configuration_arr_coc import ArrCocFetcherConfig
from .scorers import SCORERS, FetchContext, Scorer, masked_mean


class Temperature(nn.Linear):
    """Cosines [..., 1] -> logits [..., 1], temperature * cosine + bias, in float32: half precision blurs cosines.

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
