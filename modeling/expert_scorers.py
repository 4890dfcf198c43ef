"""A mixture of experts: four small scorers, two of which judge each patch.

Notation: B batch, N patches, L question tokens, C feature channels, D language-model width, H scorer width, E experts.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from .configuration_arr_coc import ArrCocFetcherConfig
from .knowings import unit_range
from .latent import key_value_projection
from .scorers import SCORERS, FeedForward, FetchContext, Scorer, attend
from .textures import clear_of_padding

EXPERTS = ("text", "graphics", "sparse", "mixed")

CHOSEN = 2
"""Experts per patch."""

BALANCE_RATE = 1e-3
"""By how much an expert's handicap changes in a training step."""


class Evidence(nn.Linear):
    """`expert_evidence` [..., E] -> logits [..., E]; starts as 4 times the identity, so that names mean something."""

    def start_weights(self, std: float) -> None:
        initialization.copy_(self.weight, 4.0 * torch.eye(*self.weight.shape))


class Router(nn.Module):
    """Which experts judge a patch: by what it looks like, and by what training makes of its features.

    The load is balanced without a loss (Wang et al. 2024): in training an expert that judges more than its share of the
    patches gets a handicap in the choice, not in its weight.
    """

    load_bias: Tensor

    def __init__(self, feature_size: int) -> None:
        super().__init__()
        self.evidence = Evidence(len(EXPERTS), len(EXPERTS))
        self.projection = nn.Linear(feature_size, len(EXPERTS))
        self.register_buffer("load_bias", torch.zeros(len(EXPERTS)))

    def start_weights(self, std: float) -> None:
        initialization.zeros_(self.load_bias)

    def forward(self, patches: Tensor, evidence: Tensor, mask: Tensor) -> Tensor:
        """Normalised features [B, N, C], `expert_evidence` [B, N, E] and real patches [B, N] -> gates [B, N, E].

        A patch's gates sum to 1, and all but `CHOSEN` are 0.
        """
        logits = (self.projection(patches) + self.evidence(evidence.to(patches))).float()
        order = (logits + self.load_bias.to(logits)).sort(dim=-1, descending=True, stable=True).indices
        chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order[..., :CHOSEN], True)
        if self.training and torch.is_grad_enabled() and self.projection.weight.requires_grad:
            self._balance(chosen & mask[..., None].to(chosen.device))
        return logits.masked_fill(~chosen, float("-inf")).softmax(-1)

    @torch.no_grad()
    def _balance(self, chosen: Tensor) -> None:
        load = chosen.float().mean((0, 1))
        self.load_bias += BALANCE_RATE * (load.mean() - load).sign().to(self.load_bias)


def expert_evidence(context: FetchContext) -> Tensor:
    """[B, N, E] in 0..1, how much a patch looks like what each expert is for.

    Text has strokes, graphics have colour, sparse places have little information; mixed is what is none of these.
    """
    mask = context.patch_mask
    strokes = unit_range(clear_of_padding(context.texture("stroke_density"), mask).flatten(1), mask)
    colour = unit_range(clear_of_padding(context.texture("saturation"), mask).flatten(1), mask)
    empty = 1 - context.texture("local_entropy").flatten(1)
    return torch.stack((strokes, colour, empty, torch.full_like(empty, 0.5)), -1)


@SCORERS.register("experts")
class ExpertScorer(Scorer):
    """Patches read the question; of four experts (text, graphics, sparse, mixed) the router's two judge each patch."""

    trained = True
    textures = "full"

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        size = config.hidden_size
        self.heads = config.num_heads
        self.patch_norm = nn.LayerNorm(feature_size)
        self.patch_projection = nn.Linear(feature_size, size)
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, size)
        self.nothing = nn.Parameter(torch.zeros(1, 1, size))
        self.query = nn.Linear(size, size)
        self.key_value = key_value_projection(size, config.latent_size)
        self.router = Router(feature_size)
        self.experts = nn.ModuleDict({name: FeedForward(2 * size, 1, size // 2) for name in EXPERTS})

    def start_weights(self, std: float) -> None:
        initialization.normal_(self.nothing, std=std)

    def gates(self, context: FetchContext) -> Tensor:
        """How much each expert has to say about each patch, [B, N, E]: see `Router.forward`."""
        return self.router(self._normed(context), expert_evidence(context), context.patch_mask)

    def _normed(self, context: FetchContext) -> Tensor:
        return self.patch_norm(context.features.flatten(2).transpose(1, 2))

    def forward(self, context: FetchContext) -> Tensor:
        normed = self._normed(context)
        patches = self.patch_projection(normed)
        words = self.text_projection(self.text_norm(context.query)).to(patches.device)
        words = torch.cat((words, self.nothing.expand(len(words), -1, -1)), 1)
        mask = F.pad(context.query_mask.to(patches.device), (0, 1), value=True)
        key, value = self.key_value(words).chunk(2, -1)
        asked = attend(self.query(patches), key, value, self.heads, mask)
        states = torch.cat((asked, patches * asked), -1)
        judged = torch.cat([expert(states) for expert in self.experts.values()], -1).float()
        gates = self.router(normed, expert_evidence(context), context.patch_mask)
        return (judged * gates).sum(-1)
