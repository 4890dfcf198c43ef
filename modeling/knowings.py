"""The three knowings: how a patch can be relevant, as pure functions with a known range.

Propositional (there is information in it), perspectival (it stands out) and participatory (it has to do with the
question), after the kinds of knowing in relevance realization (Vervaeke, Lillicrap and Richards 2012).

Notation: B batch, N patches, G side of the fine grid, L question tokens, H width of the shared space.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

KNOWINGS = ("propositional", "perspectival", "participatory")

SALIENCE_WEIGHTS = (0.4, 0.4, 0.2)
"""Of edge magnitude, local contrast and centre prior in `perspectival_score`."""

CENTRE_WIDTH = 0.5
"""Standard deviation of the centre prior, as a share of the way from the image's centre to its corner."""


def information_score(counts: Tensor) -> Tensor:
    """Propositional: Shannon entropy of a histogram as a share of the most that its bins allow.

    H(p) / log(bins) with p = counts / sum (Shannon 1948). Range 0..1: 0 where all is in one bin (a flat patch) or
    nothing is anywhere, 1 where all bins hold the same.

    Args:
        counts: [..., bins], at least 0.

    Returns:
        [...], float32.

    Raises:
        ValueError: fewer than two bins, which hold no information.
    """
    bins = counts.shape[-1]
    if bins < 2:
        raise ValueError(f"counts: expected at least 2 bins; got {bins}")
    counts = counts.float()
    share = counts / counts.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return (torch.special.entr(share).sum(-1) / math.log(bins)).clamp(0, 1)  # rounding leaves the range


def unit_range(values: Tensor, mask: Tensor) -> Tensor:
    """Values [B, N] scaled to 0..1 over each item's patches in `mask` [B, N]; 0 elsewhere, and where all are equal."""
    values = values.float()
    low = values.masked_fill(~mask, float("inf")).amin(-1, keepdim=True)
    high = values.masked_fill(~mask, float("-inf")).amax(-1, keepdim=True)
    scaled = (values - low) / (high - low).clamp(min=1e-6)  # less is the rounding of a flat image
    return torch.where(mask, scaled, 0.0).clamp(0, 1)


def local_contrast(luminance: Tensor, mask: Tensor) -> Tensor:
    """[B, G, G] how far a patch's luminance [B, G, G] is from the mean of the real patches among its 8 neighbours.

    Centre-surround difference at one scale (Itti, Koch and Niebur 1998). Range: 0 and up, 0 on padding and where there
    is no neighbour; `mask` [B, N].
    """
    real = mask.view(luminance.shape).float()
    values = torch.stack((luminance.float() * real, real), 1)
    around = F.avg_pool2d(values, 3, stride=1, padding=1, divisor_override=1) - values
    surround = around[:, 0] / around[:, 1].clamp(min=1)
    return (luminance.float() - surround).abs() * real * (around[:, 1] > 0)


def perspectival_score(
    edges: Tensor,
    contrast: Tensor,
    eccentricity: Tensor,
    mask: Tensor,
    weights: tuple[float, float, float] = SALIENCE_WEIGHTS,
) -> Tensor:
    """Perspectival: salience, the weighted sum of edge magnitude, local contrast and a centre prior.

    Edges and contrast count relative to the item's own range. Sources: Itti, Koch and Niebur (1998) for summing feature
    maps of like range; Tatler (2007) for the centre, here exp(-r^2 / (2 * 0.5^2)). Range 0..sum of the weights, 1 as
    given; 0 on padding.

    Args:
        edges, contrast: [B, N], any scale.
        eccentricity: [B, N], 0 in the image's centre, 1 in its corners.
        mask: bool [B, N], True on patches that hold some of the image.
        weights: of the three, each at least 0.

    Returns:
        [B, N], float32.
    """
    centre = torch.exp(-eccentricity.float().square() / (2 * CENTRE_WIDTH**2))
    parts = (unit_range(edges, mask), unit_range(contrast, mask), torch.where(mask, centre, 0.0))
    return sum((weight * part for weight, part in zip(weights, parts, strict=True)), torch.zeros_like(centre))


def participatory_score(patches: Tensor, words: Tensor, mask: Tensor) -> Tensor:
    """Participatory: how well a patch goes with that word of the question which it goes with best.

    (1 + max over words of cosine) / 2 in the space that both were projected to; maximum similarity as in ColBERT
    (Khattab and Zaharia 2020), per patch. Range 0..1; 0 where there are no words.

    Args:
        patches: [B, N, H].
        words: [B, L, H].
        mask: bool [B, L], True on the question's tokens.

    Returns:
        [B, N], float32.
    """
    cosine = F.normalize(patches.float(), dim=-1) @ F.normalize(words.float(), dim=-1).transpose(1, 2)
    cosine = cosine.masked_fill(~mask[:, None], -1.0)
    best = F.pad(cosine, (0, 1), value=-1.0).amax(-1)  # a question may have no tokens at all
    return ((1 + best) / 2).clamp(0, 1)
