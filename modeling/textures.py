"""Texture channels of an image: cheap, fixed, and computed once per image.

Notation: B batch, S side of the image in px, G side of the fine grid, N = G*G patches, T texture channels. Positions
are (y, x).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .config_fields import Registry

_LIGHT = ("luminance", "edge_magnitude")
_BASIC = (
    *_LIGHT, "red", "green", "blue", "saturation", "saliency", "sobel_x", "sobel_y", "local_entropy", "y", "x",
    "eccentricity",
)  # fmt: skip
_FULL = (
    *_BASIC, "variance_1", "variance_3", "variance_9", "stroke_density", "contrast_luminance", "contrast_red_green",
    "contrast_blue_yellow", "orientation_0", "orientation_45", "orientation_90", "orientation_135",
)  # fmt: skip

SEMANTIC_CHANNELS = 16

TEXTURES: tuple[str, ...] = (*_FULL, *(f"semantic_{number}" for number in range(SEMANTIC_CHANNELS)))
"""All names, in the order of the channels. Each set holds the first of them, so a name has the same index in all
sets."""

TEXTURE_SETS: dict[str, tuple[str, ...]] = {"light": _LIGHT, "basic": _BASIC, "full": _FULL}
"""The channels from an image's pixels. Scorers that read the semantic channels behind them project these themselves."""

RICHER_TEXTURES: Registry[Callable[..., list[Tensor]]] = Registry("textures")
"""Functions that compute the channels of a set beyond "light": `textures` says from what."""


def luminance(pixel_values: Tensor) -> Tensor:
    """Rec. 601 luma of normalised RGB [B, 3, S, S] -> [B, 1, S, S], float32."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=pixel_values.device)
    return (pixel_values.float() * weights.view(1, 3, 1, 1)).sum(1, keepdim=True)


def sobel(luma: Tensor) -> Tensor:
    """Gradient of [B, 1, S, S] along x and y: [B, 2, S, S]; the border is replicated, so it shows no edge."""
    kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], device=luma.device) / 8
    kernels = torch.stack((kernel, kernel.t()))[:, None]
    return F.conv2d(F.pad(luma, (1, 1, 1, 1), mode="replicate"), kernels)


def magnitude(gradient: Tensor) -> Tensor:
    """Length of a gradient [B, 2, S, S] -> [B, 1, S, S]."""
    return gradient.square().sum(1, keepdim=True).sqrt()


def textures(pixel_values: Tensor, side: int, kind: str = "light", patch_mask: Tensor | None = None) -> Tensor:
    """The channels `TEXTURE_SETS[kind]` of each patch: [B, 3, S, S] -> [B, T, G, G], float32.

    By default a channel is a mean over the patch's pixels, which are -1 (black) to 1 (white).
    "light": luminance; edge_magnitude, the gradient's length. "basic" adds red, green, blue; saturation: largest minus
    smallest of the three (chroma); saliency: distance of the patch's colour from the image's mean colour (Achanta et
    al. 2009); sobel_x, sobel_y: the gradient's absolute components; local_entropy: `information_score` of a histogram
    of luminance; y, x: of the patch's centre, -1..1; eccentricity: its distance from the image's centre, 1 in a corner.
    "full" adds variance_k: of luminance over k x k patches; stroke_density: share of pixels at the edge of a stroke;
    contrast_*: distance from the mean of 5 x 5 patches around, in luminance and two opponent colours; orientation_a:
    energy of the gradient in direction a degrees, from the structure tensor.

    Args:
        pixel_values: normalised RGB.
        side: G.
        kind: a name in `TEXTURE_SETS`.
        patch_mask: bool [B, N], the patches of the image's mean colour; None: all.
    """
    luma = luminance(pixel_values)
    gradient = sobel(luma)
    light = F.adaptive_avg_pool2d(torch.cat((luma, magnitude(gradient)), 1), side)
    if kind == "light":
        return light
    return torch.cat((light, *RICHER_TEXTURES[kind](pixel_values.float(), light, gradient, luma, patch_mask)), 1)


def clear_of_padding(values: Tensor, patch_mask: Tensor) -> Tensor:
    """Values [B, G, G], 0 on patches next to padding, whose border would be the strongest edge of a page.

    An image too thin for any other patch keeps its values; `patch_mask` [B, N].
    """
    padding = (~patch_mask).view(values.shape).float()
    inner = F.max_pool2d(padding[:, None], 3, stride=1, padding=1)[:, 0] == 0
    inner = inner | ~inner.any((1, 2), keepdim=True)
    return torch.where(inner, values, 0.0)


def checksums(pixel_values: Tensor) -> Tensor:
    """[P] int64 for [P, 3, S, S]: a checksum of each image's pixels, for random relevance."""
    return (pixel_values.float() * 127.5).round().long().sum((1, 2, 3))
