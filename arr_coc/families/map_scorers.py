"""Scorers of several relevance maps: weighted maps, which can be displayed, and a mixture of experts.

Notation: B batch, N patches, G side of the fine grid, T texture channels, C feature channels, W width of the grid
encoder, D language-model width, H width of the shared space.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from ..modeling.configuration_arr_coc import ArrCocFetcherConfig
from ..modeling.patch_scorers import Temperature
from ..modeling.scorers import SCORERS, FeedForward, FetchContext, Scorer, attend, depth_grids, masked_mean
from ..modeling.vision_tower import clear_of_padding, key_value_projection
from .relevance_maps import (
    RELEVANCE_MAPS,
    TEXTURES,
    SemanticTextures,
    local_contrast,
    query_similarity,
    salience_score,
    unit_range,
)
from .tier_classifier import ContextNetwork


def shares(logits: Tensor) -> Tensor:
    """Logits [B, R] -> shares [B, R] that sum to 1 in each item: sigmoids divided by their sum."""
    gates = logits.sigmoid()
    return gates / gates.sum(-1, keepdim=True).clamp(min=torch.finfo(gates.dtype).tiny)


def statistics(maps: Tensor, mask: Tensor) -> Tensor:
    """Mean, maximum and standard deviation of maps [B, R, N] in 0..1 over each item's patches in `mask`: [B, 3 R]."""
    real = mask[:, None]
    count = real.sum(-1).clamp(min=1)
    maps = torch.where(real, maps, 0.0)
    mean = maps.sum(-1) / count
    variance = (torch.where(real, maps - mean[..., None], 0.0)).square().sum(-1) / count
    return torch.cat((mean, maps.amax(-1), (variance + 1e-6).sqrt()), -1)  # the square root has an infinite slope at 0


class TensionBalancer(nn.Module):
    """Shares of R relevance maps, from the pooled question and statistics of the maps. The published sizes (D = 1024, H
    = 160) give about 200 K weights."""

    def __init__(self, config: ArrCocFetcherConfig, *, maps: int, text_size: int) -> None:
        super().__init__()
        size = config.balancer_size
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, size)
        self.hidden = nn.Linear(size + 3 * maps, size)
        self.act = nn.GELU()
        self.head = nn.Linear(size, maps)

    def forward(self, maps: Tensor, context: FetchContext) -> Tensor:
        """Maps [B, R, N] in 0..1 -> shares [B, R] in float32."""
        words = self.act(self.text_projection(self.text_norm(context.query)))
        question = masked_mean(words, context.query_mask).to(maps.device)
        known = statistics(maps, context.patch_mask).to(question)
        states = self.act(self.hidden(torch.cat((question, known), -1)))
        return shares(self.head(states).float())


def flat_features(features: Tensor) -> Tensor:
    """[B, C, G, G] -> [B, N, C]."""
    return features.flatten(2).transpose(1, 2)


class SharedSpace(nn.Module):
    """A trained space in which patches are compared with the question's tokens."""

    def __init__(self, size: int, *, patch_size: int, text_size: int) -> None:
        super().__init__()
        self.patch_norm = nn.LayerNorm(patch_size)
        self.patch_projection = nn.Linear(patch_size, size)
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, size)

    def forward(self, patches: Tensor, context: FetchContext) -> Tensor:
        """Patches [B, N, *] -> their `query_similarity` [B, N] for the context's question."""
        words = self.text_projection(self.text_norm(context.query)).to(patches.device)
        patches = self.patch_projection(self.patch_norm(patches))
        return query_similarity(patches, words, context.query_mask.to(patches.device))


def fixed_maps(context: FetchContext) -> tuple[Tensor, Tensor]:
    """The two relevance maps without weights, information and salience, [B, N] each, from the textures "basic"."""
    mask = context.patch_mask
    edges = clear_of_padding(context.texture("edge_magnitude"), mask).flatten(1)
    contrast = local_contrast(context.texture("luminance"), mask).flatten(1)
    salience = salience_score(edges, contrast, context.texture("eccentricity").flatten(1), mask)
    return clear_of_padding(context.texture("local_entropy"), mask).flatten(1), salience


class MapScorer(Scorer):
    """Base class: three maps [B, 3, N] in 0..1, their shares [B, 3], and logits of the weighted sum."""

    trained = True
    map_names: ClassVar[tuple[str, ...]] = RELEVANCE_MAPS  # in order
    balancer: TensionBalancer

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        self.temperature = Temperature(20.0, -10.0)  # a weighted sum of maps in 0..1 varies little around 1/2

    def maps(self, context: FetchContext) -> Tensor:
        """The maps [B, 3, N], float32 in 0..1."""
        raise TypeError(f"{type(self).__name__} has no maps: expected a registered scorer")

    def weights(self, maps: Tensor, context: FetchContext) -> Tensor:
        """Their shares [B, 3], float32, which sum to 1 in each item; those of the `balancer`, unless overridden."""
        return self.balancer(maps, context)

    def weighted(self, context: FetchContext) -> Tensor:
        """The maps times their shares [B, 3, N]."""
        maps = self.maps(context)
        return maps * self.weights(maps, context)[..., None]

    def forward(self, context: FetchContext) -> Tensor:
        return self.temperature(self.weighted(context).sum(1)[..., None]).squeeze(-1)


@SCORERS.register("compositional")
class CompositionalScorer(MapScorer):
    """The three relevance maps, weighted for each question: information and salience are fixed functions of textures,
    query similarity is measured in a trained space."""

    textures = "basic"

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        self.shared_space = SharedSpace(config.shared_size, patch_size=feature_size, text_size=text_size)
        self.balancer = TensionBalancer(config, maps=len(self.map_names), text_size=text_size)

    def maps(self, context: FetchContext) -> Tensor:
        information, salience = fixed_maps(context)
        coupling = self.shared_space(flat_features(context.features), context)
        return torch.stack((information, salience, coupling.to(information.device)), 1)


@SCORERS.register("contextual")
class ContextualScorer(MapScorer):
    """Three relevance maps from linear heads over 40 textures, weighted by the question and the image's mean features.
    The head of the query similarity map projects into a space that patches share with the question."""

    textures = "full"

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        self.semantic = SemanticTextures(feature_size)
        # Checkpoints store the three heads under the names of the project's first sketches: they keep them.
        self.propositional = nn.Linear(len(TEXTURES), 1)
        self.perspectival = nn.Linear(len(TEXTURES), 1)
        self.participatory = nn.Linear(len(TEXTURES), config.shared_size)
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, config.shared_size)
        self.context_network = ContextNetwork(
            config.balancer_size, len(self.map_names), feature_size=feature_size, text_size=text_size
        )

    def all_textures(self, context: FetchContext) -> Tensor:
        """The channels of `TEXTURES`, [B, 40, G, G]."""
        context.texture("orientation_135")  # the last channel from pixels: raises without it
        return self.semantic(context.textures, context.features)

    def maps(self, context: FetchContext) -> Tensor:
        channels = standardised(flat_features(self.all_textures(context)), context.patch_mask)
        channels = channels.to(self.propositional.weight.dtype)
        heads = [head(channels).squeeze(-1).sigmoid().float() for head in (self.propositional, self.perspectival)]
        words = self.text_projection(self.text_norm(context.query)).to(channels.device)
        mask = context.query_mask.to(channels.device)
        return torch.stack((*heads, query_similarity(self.participatory(channels), words, mask)), 1)

    def weights(self, maps: Tensor, context: FetchContext) -> Tensor:
        return shares(self.context_network(context))


def standardised(channels: Tensor, mask: Tensor) -> Tensor:
    """Channels [B, N, T] with mean 0 and deviation 1 over each item's patches in `mask` [B, N]; 0 elsewhere."""
    real = mask[..., None].to(channels.device)
    count = real.sum(1, keepdim=True).clamp(min=1)
    centred = torch.where(real, channels - torch.where(real, channels, 0.0).sum(1, keepdim=True) / count, 0.0)
    deviation = (centred.square().sum(1, keepdim=True) / count + 1e-6).sqrt()
    return centred / deviation


@SCORERS.register("shannon_jung_vervaeke")
class ShannonJungVervaekeScorer(MapScorer):
    """Entropy (Shannon), density of symbols (Jung) and query similarity (Vervaeke), in fixed shares. Symbols are
    strokes: their density is the share of pixels at the edge of a stroke, relative to the image's range."""

    textures = "full"
    map_names = ("entropy", "symbol_density", "coupling")

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        self.shared_space = SharedSpace(config.shared_size, patch_size=feature_size, text_size=text_size)

    def maps(self, context: FetchContext) -> Tensor:
        mask = context.patch_mask
        entropy = clear_of_padding(context.texture("local_entropy"), mask).flatten(1)
        strokes = clear_of_padding(context.texture("stroke_density"), mask).flatten(1)
        coupling = self.shared_space(flat_features(context.features), context)
        return torch.stack((entropy, unit_range(strokes, mask), coupling.to(entropy.device)), 1)

    def weights(self, maps: Tensor, context: FetchContext) -> Tensor:
        return maps.new_tensor((0.3, 0.2, 0.5)).expand(len(maps), -1)


@SCORERS.register("hierarchical")
class HierarchicalScorer(MapScorer):
    """Query similarity at three depths of the grid encoder. The first two depths are the encoder's states after a third
    and two thirds of its layers, the third is its output."""

    reads_depths = True
    map_names = ("low", "mid", "high")

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int, depth_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        widths = {"low": depth_size, "mid": depth_size, "high": feature_size}
        self.levels = nn.ModuleDict(
            {name: SharedSpace(config.shared_size, patch_size=widths[name], text_size=text_size) for name in widths}
        )
        self.balancer = TensionBalancer(config, maps=len(self.map_names), text_size=text_size)

    def maps(self, context: FetchContext) -> Tensor:
        levels = zip(self.levels.values(), depth_grids(context), strict=True)
        return torch.stack([level(flat_features(states), context) for level, states in levels], 1)

    def depth_maps(self, context: FetchContext) -> Tensor:
        return self.weighted(context)


EXPERTS = ("text", "graphics", "sparse", "mixed")
CHOSEN = 2  # experts for each patch
BALANCE_RATE = 1e-3  # change of an expert's handicap in a training step


class Evidence(nn.Linear):
    """`expert_evidence` [..., E] -> logits [..., E]; starts as 4 times the identity, so that experts match their
    names."""

    def start_weights(self, std: float) -> None:
        initialization.copy_(self.weight, 4.0 * torch.eye(*self.weight.shape))


class Router(nn.Module):
    """Chooses the experts of a patch, from its textures and from its features.

    The load is balanced without a loss (Wang et al. 2024): in training, an expert with more than its share of the
    patches gets a handicap in the choice, but not in its weight.
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
        """Normalised features [B, N, C], `expert_evidence` [B, N, E] and a mask of real patches [B, N] -> gates [B, N,
        E]. The gates of a patch sum to 1; all but `CHOSEN` of them are 0."""
        logits = (self.projection(patches) + self.evidence(evidence.to(patches))).float()
        order = (logits + self.load_bias.to(logits)).sort(dim=-1, descending=True, stable=True).indices
        chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order[..., :CHOSEN], True)
        if self.training and torch.is_grad_enabled() and self.projection.weight.requires_grad:
            load = (chosen & mask[..., None].to(chosen.device)).float().mean((0, 1))
            self.load_bias += BALANCE_RATE * (load.mean() - load).sign().to(self.load_bias)
        return logits.masked_fill(~chosen, float("-inf")).softmax(-1)


def expert_evidence(context: FetchContext) -> Tensor:
    """[B, N, E] in 0..1: the evidence in a patch's textures for each expert. Text has strokes, graphics have colour,
    sparse patches have little information; mixed patches are none of these."""
    mask = context.patch_mask
    strokes = unit_range(clear_of_padding(context.texture("stroke_density"), mask).flatten(1), mask)
    colour = unit_range(clear_of_padding(context.texture("saturation"), mask).flatten(1), mask)
    empty = 1 - context.texture("local_entropy").flatten(1)
    return torch.stack((strokes, colour, empty, torch.full_like(empty, 0.5)), -1)


@SCORERS.register("experts")
class ExpertScorer(Scorer):
    """Patches attend to the question; two of four experts (text, graphics, sparse, mixed) score each patch."""

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
        """[B, N, E] the weight of each expert on each patch: see `Router.forward`."""
        normed = self.patch_norm(flat_features(context.features))
        return self.router(normed, expert_evidence(context), context.patch_mask)

    def forward(self, context: FetchContext) -> Tensor:
        normed = self.patch_norm(flat_features(context.features))
        patches = self.patch_projection(normed)
        words = self.text_projection(self.text_norm(context.query)).to(patches.device)
        words = torch.cat((words, self.nothing.expand(len(words), -1, -1)), 1)
        mask = F.pad(context.query_mask.to(patches.device), (0, 1), value=True)
        key, value = self.key_value(words).chunk(2, -1)
        question_states = attend(self.query(patches), key, value, self.heads, mask)
        states = torch.cat((question_states, patches * question_states), -1)
        judged = torch.cat([expert(states) for expert in self.experts.values()], -1).float()
        gates = self.router(normed, expert_evidence(context), context.patch_mask)
        return (judged * gates).sum(-1)
