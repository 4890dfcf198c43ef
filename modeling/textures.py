"""Named texture channels of an image: cheap, fixed, computed once per image.

Notation: B batch, S side of the image in px, G side of the fine grid, T texture channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TEXTURES: tuple[str, ...] = ("luminance", "edges")
"""Names of the T channels, in order."""


def luminance(pixel_values: Tensor) -> Tensor:
    """Rec. 601 luma of normalised RGB [B, 3, S, S] -> [B, 1, S, S], float32."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=pixel_values.device)
    return (pixel_values.float() * weights.view(1, 3, 1, 1)).sum(1, keepdim=True)


def sobel_magnitude(luma: Tensor) -> Tensor:
    """Length of the Sobel gradient of [B, 1, S, S]; the border is replicated, so it shows no edge."""
    kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], device=luma.device) / 8
    kernels = torch.stack((kernel, kernel.t()))[:, None]
    gradient = F.conv2d(F.pad(luma, (1, 1, 1, 1), mode="replicate"), kernels)
    return gradient.square().sum(1, keepdim=True).sqrt()


def textures(pixel_values: Tensor, side: int) -> Tensor:
    """The channels `TEXTURES`, averaged over each patch: [B, 3, S, S] -> [B, T, G, G], float32."""
    luma = luminance(pixel_values)
    return F.adaptive_avg_pool2d(torch.cat((luma, sobel_magnitude(luma)), 1), side)


def checksums(pixel_values: Tensor) -> Tensor:
    """[P] int64 for [P, 3, S, S]: a number of each image's pixels, for random relevance."""
    return (pixel_values.float() * 127.5).round().long().sum((1, 2, 3))
