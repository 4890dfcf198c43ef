"""Scorers that say why: relevance is the weighted sum of three maps, each of which can be looked at.

Notation: B batch, N patches, G side of the fine grid, T texture channels, C feature channels, W width of the grid
encoder, D language-model width, H width of the shared space.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from .balancing import ContextNetwork, TensionBalancer, shares
from .clip_scorer import Temperature
from .configuration_arr_coc import ArrCocFetcherConfig
from .knowings import KNOWINGS, local_contrast, participatory_score, perspectival_score, unit_range
from .scorers import SCORERS, FetchContext, Scorer
from .textures import TEXTURES, SemanticTextures, clear_of_padding


def flat_features(features: Tensor) -> Tensor:
    """[B, C, G, G] -> [B, N, C]."""
    return features.flatten(2).transpose(1, 2)


class SharedSpace(nn.Module):
    """A trained space in which patches and the question's words can be compared."""

    def __init__(self, size: int, *, patch_size: int, text_size: int) -> None:
        super().__init__()
        self.patch_norm = nn.LayerNorm(patch_size)
        self.patch_projection = nn.Linear(patch_size, size)
        self.text_norm = nn.LayerNorm(text_size)
        self.text_projection = nn.Linear(text_size, size)

    def forward(self, patches: Tensor, context: FetchContext) -> Tensor:
        """Patches [B, N, *] -> their `participatory_score` [B, N] for the context's question."""
        words = self.text_projection(self.text_norm(context.query)).to(patches.device)
        patches = self.patch_projection(self.patch_norm(patches))
        return participatory_score(patches, words, context.query_mask.to(patches.device))


def fixed_knowings(context: FetchContext) -> tuple[Tensor, Tensor]:
    """The knowings that need no weights, propositional and perspectival, [B, N] each: of the textures "basic"."""
    mask = context.patch_mask
    edges = clear_of_padding(context.texture("edge_magnitude"), mask).flatten(1)
    contrast = local_contrast(context.texture("luminance"), mask).flatten(1)
    salience = perspectival_score(edges, contrast, context.texture("eccentricity").flatten(1), mask)
    return clear_of_padding(context.texture("local_entropy"), mask).flatten(1), salience


class MapScorer(Scorer):
    """Base: three maps [B, 3, N] in 0..1, shares of them [B, 3], and logits of their weighted sum."""

    trained = True
    map_names: ClassVar[tuple[str, ...]] = KNOWINGS
    """What the maps are, in order."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        self.temperature = Temperature(20.0, -10.0)  # a weighted sum of maps in 0..1 varies little around 1/2

    def maps(self, context: FetchContext) -> Tensor:
        """The maps [B, 3, N], float32 in 0..1."""
        raise TypeError(f"{type(self).__name__} has no maps: expected a registered scorer")

    def weights(self, maps: Tensor, context: FetchContext) -> Tensor:
        """Their shares [B, 3], float32; they sum to 1 in each item."""
        raise TypeError(f"{type(self).__name__} has no weights: expected a registered scorer")

    def forward(self, context: FetchContext) -> Tensor:
        maps = self.maps(context)
        weighted = (maps * self.weights(maps, context)[..., None]).sum(1)
        return self.temperature(weighted[..., None]).squeeze(-1)


@SCORERS.register("compositional")
class CompositionalScorer(MapScorer):
    """The three knowings, balanced for each question: propositional and perspectival are fixed functions of textures,
    participatory is a trained space."""

    textures = "basic"

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        self.shared_space = SharedSpace(config.shared_size, patch_size=feature_size, text_size=text_size)
        self.balancer = TensionBalancer(config, maps=len(self.map_names), text_size=text_size)

    def maps(self, context: FetchContext) -> Tensor:
        information, salience = fixed_knowings(context)
        coupling = self.shared_space(flat_features(context.features), context)
        return torch.stack((information, salience, coupling.to(information.device)), 1)

    def weights(self, maps: Tensor, context: FetchContext) -> Tensor:
        return self.balancer(maps, context)


@SCORERS.register("contextual")
class ContextualScorer(MapScorer):
    """A linear head for each knowing over 40 textures; question and gestalt say how much each counts.

    The head of the participatory knowing leads into a space that it shares with the question.
    """

    textures = "full"

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        self.kind = config.balancer_weights
        self.semantic = SemanticTextures(feature_size)
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
        context.texture("orientation_135")  # the last of the pixels' channels: there, or an error that says why
        return self.semantic(context.textures, context.features)

    def maps(self, context: FetchContext) -> Tensor:
        channels = standardised(flat_features(self.all_textures(context)), context.patch_mask)
        channels = channels.to(self.propositional.weight.dtype)
        heads = [head(channels).squeeze(-1).sigmoid().float() for head in (self.propositional, self.perspectival)]
        words = self.text_projection(self.text_norm(context.query)).to(channels.device)
        mask = context.query_mask.to(channels.device)
        return torch.stack((*heads, participatory_score(self.participatory(channels), words, mask)), 1)

    def weights(self, maps: Tensor, context: FetchContext) -> Tensor:
        return shares(self.context_network(context), self.kind)


def standardised(channels: Tensor, mask: Tensor) -> Tensor:
    """Channels [B, N, T] with mean 0 and deviation 1 over each item's patches in `mask` [B, N]; 0 elsewhere."""
    real = mask[..., None].to(channels.device)
    count = real.sum(1, keepdim=True).clamp(min=1)
    centred = torch.where(real, channels - torch.where(real, channels, 0.0).sum(1, keepdim=True) / count, 0.0)
    deviation = (centred.square().sum(1, keepdim=True) / count + 1e-6).sqrt()
    return centred / deviation


@SCORERS.register("shannon_jung_vervaeke")
class ShannonJungVervaekeScorer(MapScorer):
    """Entropy (Shannon), density of symbols (Jung) and coupling with the question (Vervaeke), in fixed shares.

    Symbols are strokes: their density is the share of pixels at the edge of one, relative to the image's own range.
    """

    textures = "full"
    map_names = ("entropy", "symbol_density", "coupling")

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        total = sum(config.sjv_weights)
        self.shares = tuple(weight / total for weight in config.sjv_weights)
        self.shared_space = SharedSpace(config.shared_size, patch_size=feature_size, text_size=text_size)

    def maps(self, context: FetchContext) -> Tensor:
        mask = context.patch_mask
        entropy = clear_of_padding(context.texture("local_entropy"), mask).flatten(1)
        strokes = clear_of_padding(context.texture("stroke_density"), mask).flatten(1)
        coupling = self.shared_space(flat_features(context.features), context)
        return torch.stack((entropy, unit_range(strokes, mask), coupling.to(entropy.device)), 1)

    def weights(self, maps: Tensor, context: FetchContext) -> Tensor:
        return maps.new_tensor(self.shares).expand(len(maps), -1)


@SCORERS.register("hierarchical")
class HierarchicalScorer(MapScorer):
    """Coupling with the question at three depths of the grid encoder: what is low, mid and high level about a patch.

    Low and mid are the encoder's states after a third and two thirds of its layers, high its output.
    """

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
        if context.depths is None:
            expected = "an encoding with the grid encoder's states at three depths, made by a model that holds it"
            raise ValueError(f'strategy "hierarchical": expected {expected}; got features alone')
        low, mid = context.depths.unbind(1)
        levels = zip(self.levels.values(), (low, mid, context.features), strict=True)
        return torch.stack([level(flat_features(states), context) for level, states in levels], 1)

    def weights(self, maps: Tensor, context: FetchContext) -> Tensor:
        return self.balancer(maps, context)
