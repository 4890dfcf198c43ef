"""Relevance maps as pure functions, and the texture channels "basic" and "full" from which they are computed.

The maps are information, salience and query similarity; the project's first sketches call them propositional,
perspectival and participatory knowing.

Notation: B batch, S side of the image in px, G side of the fine grid, N = G*G patches, T texture channels, C feature
channels. Positions are (y, x).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..modeling.vision_tower import RICHER_TEXTURES, TEXTURE_SETS

BASIC = "red green blue saturation saliency sobel_x sobel_y local_entropy y x eccentricity"
FULL = "variance_1 variance_3 variance_9 stroke_density contrast_luminance contrast_red_green contrast_blue_yellow"
ORIENTATIONS = "orientation_0 orientation_45 orientation_90 orientation_135"

TEXTURE_SETS["basic"] = (*TEXTURE_SETS["light"], *BASIC.split())
TEXTURE_SETS["full"] = (*TEXTURE_SETS["basic"], *FULL.split(), *ORIENTATIONS.split())

SEMANTIC_CHANNELS = 16

TEXTURES: tuple[str, ...] = (*TEXTURE_SETS["full"], *(f"semantic_{number}" for number in range(SEMANTIC_CHANNELS)))
"""All names, in the order of the channels; scorers that read the semantic ones project these themselves."""

RELEVANCE_MAPS = ("information", "salience", "query_similarity")
SALIENCE_WEIGHTS = (0.4, 0.4, 0.2)  # of edge magnitude, local contrast and centre prior in `salience_score`

CENTRE_WIDTH = 0.5
"""Standard deviation of the centre prior, as a share of the distance from the image's centre to its corner."""


def information_score(counts: Tensor) -> Tensor:
    """Information: Shannon entropy of a histogram [..., bins] as a share of its maximum, [...] in float32.

    H(p) / log(bins) with p = counts / sum (Shannon 1948). Range 0..1: 0 if all counts are in one bin (a flat patch) or
    there are none, 1 if all bins, at least two, are equal.
    """
    counts = counts.float()
    share = counts / counts.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return (torch.special.entr(share).sum(-1) / math.log(counts.shape[-1])).clamp(0, 1)  # rounding may leave the range


def unit_range(values: Tensor, mask: Tensor) -> Tensor:
    """Values [B, N] scaled to 0..1 over each item's patches in `mask` [B, N]; 0 elsewhere, and if all are equal."""
    values = values.float()
    low = values.masked_fill(~mask, float("inf")).amin(-1, keepdim=True)
    high = values.masked_fill(~mask, float("-inf")).amax(-1, keepdim=True)
    scaled = (values - low) / (high - low).clamp(min=1e-6)  # a smaller range is the rounding of a flat image
    return torch.where(mask, scaled, 0.0).clamp(0, 1)


def local_contrast(luminance: Tensor, mask: Tensor) -> Tensor:
    """[B, G, G]: difference of a patch's luminance [B, G, G] from the mean of the real patches among its 8 neighbours.

    Centre-surround difference at one scale (Itti, Koch and Niebur 1998). Range: 0 and up; 0 on padding and without
    neighbours; `mask` [B, N].
    """
    real = mask.view(luminance.shape).float()
    values = torch.stack((luminance.float() * real, real), 1)
    around = F.avg_pool2d(values, 3, stride=1, padding=1, divisor_override=1) - values
    surround = around[:, 0] / around[:, 1].clamp(min=1)
    return (luminance.float() - surround).abs() * real * (around[:, 1] > 0)


def salience_score(edges: Tensor, contrast: Tensor, eccentricity: Tensor, mask: Tensor) -> Tensor:
    """Salience: the sum of edge magnitude, local contrast and a centre prior, by `SALIENCE_WEIGHTS`; [B, N] in float32.

    Edges and contrast are relative to the item's own range. Sources: Itti, Koch and Niebur (1998) for the sum of
    feature maps of equal range; Tatler (2007) for the centre, here exp(-r^2 / (2 * 0.5^2)). Range 0..1; 0 on padding.

    Args:
        edges, contrast: [B, N], any scale.
        eccentricity: [B, N], 0 in the image's centre, 1 in its corners.
        mask: bool [B, N], False on padding patches.
    """
    centre = torch.exp(-eccentricity.float().square() / (2 * CENTRE_WIDTH**2))
    parts = (unit_range(edges, mask), unit_range(contrast, mask), torch.where(mask, centre, 0.0))
    return sum((weight * part for weight, part in zip(SALIENCE_WEIGHTS, parts, strict=True)), torch.zeros_like(centre))


def query_similarity(patches: Tensor, words: Tensor, mask: Tensor) -> Tensor:
    """Query similarity: that of patches [B, N, H] to the most similar of the words [B, L, H] in `mask` [B, L]; [B, N].

    (1 + max over tokens of cosine) / 2 in the space of the projections; maximum similarity as in ColBERT (Khattab and
    Zaharia 2020), for each patch. float32 in 0..1; 0 without tokens.
    """
    cosine = F.normalize(patches.float(), dim=-1) @ F.normalize(words.float(), dim=-1).transpose(1, 2)
    cosine = cosine.masked_fill(~mask[:, None], -1.0)
    best = F.pad(cosine, (0, 1), value=-1.0).amax(-1)  # a question may have no tokens
    return ((1 + best) / 2).clamp(0, 1)


BINS = 16  # bins of the luminance histogram of a patch, from -1 to 1
STROKE = 0.25  # least step of luminance between neighbouring pixels at the edge of a stroke (black to white: 2)


def _pool(pixels: Tensor, side: int) -> Tensor:
    """Means over patches: [B, *, S, S] -> [B, *, G, G]."""
    return F.avg_pool2d(pixels, pixels.shape[-1] // side)


def _around(patches: Tensor, size: int) -> Tensor:
    """Means over the existing patches of `size` x `size`: [B, *, G, G] -> [B, *, G, G]."""
    return F.avg_pool2d(patches, size, stride=1, padding=size // 2, count_include_pad=False)


@RICHER_TEXTURES.register("basic")
def basic(pixels: Tensor, light: Tensor, gradient: Tensor, luma: Tensor, patch_mask: Tensor | None) -> list[Tensor]:
    """The channels of "basic" beyond `light` [B, 2, G, G], [B, *, G, G] each.

    They are red, green, blue; saturation: largest minus smallest of the three (chroma); saliency: distance of the
    patch's colour from the image's mean colour (Achanta et al. 2009); sobel_x, sobel_y: the gradient's absolute
    components; local_entropy: `information_score` of a histogram of luminance; y, x: of the patch's centre, -1..1;
    eccentricity: its distance from the image's centre, 1 in a corner.
    """
    side = light.shape[-1]
    colours = _pool(pixels, side)
    real = torch.ones_like(colours[:, :1]) if patch_mask is None else patch_mask.view(-1, 1, side, side).to(colours)
    mean = (colours * real).sum((2, 3), keepdim=True) / real.sum((2, 3), keepdim=True).clamp(min=1)
    saliency = (colours - mean).square().sum(1, keepdim=True).sqrt()
    chroma = _pool(pixels.amax(1, keepdim=True) - pixels.amin(1, keepdim=True), side)
    entropy = information_score(_histogram(luma, side)).view(-1, 1, side, side)
    at = (torch.arange(side, device=pixels.device) + 0.5) * (2 / side) - 1
    y, x = torch.meshgrid(at, at, indexing="ij")
    places = torch.stack((y, x, ((y.square() + x.square()) / 2).sqrt())).expand(len(pixels), -1, -1, -1)
    return [colours, chroma, saliency, _pool(gradient.abs(), side), entropy, places]


def _histogram(luma: Tensor, side: int) -> Tensor:
    """Luminance histogram of each patch: [B, 1, S, S] -> [B, N, `BINS`]."""
    size = luma.shape[-1] // side
    bins = ((luma.clamp(-1, 1) + 1) * (BINS / 2)).long().clamp(max=BINS - 1)
    bins = bins.view(-1, side, size, side, size).transpose(2, 3).reshape(len(luma), side * side, size * size)
    counts = torch.zeros(*bins.shape[:2], BINS, device=luma.device)
    return counts.scatter_add_(2, bins, torch.ones((), device=luma.device).expand(bins.shape))


@RICHER_TEXTURES.register("full")
def full(pixels: Tensor, light: Tensor, gradient: Tensor, luma: Tensor, patch_mask: Tensor | None) -> list[Tensor]:
    """The channels of "full" beyond `light`: [B, *, G, G] each.

    Those of `basic` are followed by variance_k: of luminance over k x k patches; stroke_density: share of pixels at the
    edge of a stroke; contrast_*: distance from the mean of 5 x 5 patches around, in luminance and two opponent colours;
    orientation_a: energy of the gradient in direction a degrees, from the structure tensor.
    """
    channels, side = basic(pixels, light, gradient, luma, patch_mask), light.shape[-1]
    colours, light = channels[0], light[:, :1]
    square = _pool(luma.square(), side)
    variances = [(_around(square, k) - _around(light, k).square()).clamp(min=0) for k in (1, 3, 9)]
    steps = [(luma.diff(dim=dim).abs() > STROKE).float() for dim in (2, 3)]
    strokes = _pool(F.pad(steps[0], (0, 0, 0, 1)) + F.pad(steps[1], (0, 1)), side) / 2
    red, green, blue = colours.split(1, 1)
    opponents = torch.cat((light, red - green, blue - (red + green) / 2), 1)
    contrasts = (opponents - _around(opponents, 5)).abs()
    across, down = gradient.split(1, 1)
    tensor = _pool(torch.cat((across.square(), down.square(), across * down), 1), side)
    xx, yy, xy = tensor.split(1, 1)
    diagonal = (xx + yy) / 2
    orientations = [xx, (diagonal + xy).clamp(min=0), yy, (diagonal - xy).clamp(min=0)]
    return [*channels, *variances, strokes, contrasts, *orientations]


class SemanticTextures(nn.Module):
    """All channels of `TEXTURES`: those from pixels, and 16 projections of the encoder's features."""

    def __init__(self, feature_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(feature_size)
        self.projection = nn.Linear(feature_size, SEMANTIC_CHANNELS)

    def forward(self, pixel_textures: Tensor, features: Tensor) -> Tensor:
        """The set "full" [B, 24, G, G] and features [B, C, G, G] -> [B, 40, G, G], float32."""
        semantic = self.projection(self.norm(features.movedim(1, -1))).movedim(-1, 1)
        return torch.cat((pixel_textures, semantic.to(pixel_textures)), 1)
