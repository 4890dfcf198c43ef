"""Regions: the squares of patches that saccades of coarser levels of detail stand for.

A base cell is 4x4 patches. It may be fetched as 16, 4 or 1 tokens: at level 0 a token is one patch, at level 1 it is
2x2, at level 2 all of the cell, pooled. A region lies at multiples of its own side, and its index is that of its first
patch, the one of the least y and x.

Notation: B batch, G width of the fine grid, H its rows (G of one grid, n * G of n grids, one below the other), N = H*G
patches, M = N/16 base cells, K saccades, C channels. Positions are (y, x), row-major.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 3
"""Levels of detail: 1, 2x2 and 4x4 patches per token."""


def region_boxes(indices: Tensor, levels: Tensor, side: int) -> Tensor:
    """[B, K, 4] y0, x0, y1, x1 in patches, ends exclusive, of regions [B, K] on a grid of width `side`."""
    y, x, span = indices // side, indices % side, 1 << levels
    return torch.stack((y, x, y + span, x + span), -1)


def pool_regions(grid: Tensor, indices: Tensor, levels: Tensor) -> Tensor:
    """The mean over each region [B, K] of a grid [B, C, H, G]: [B, K, C]."""
    pyramid = torch.cat([F.avg_pool2d(grid, 1 << level).flatten(2) for level in range(LEVELS)], -1)
    places = _places(indices, levels, *grid.shape[-2:])
    return pyramid.gather(2, places[:, None].expand(-1, grid.shape[1], -1)).transpose(1, 2)


def spread_regions(values: Tensor, indices: Tensor, levels: Tensor, shape: tuple[int, int]) -> Tensor:
    """A value of each region [B, K] on all of its patches, 0 on those of none: [B, N] of a grid of (rows, width)."""
    height, width = shape
    sizes = [(height >> level) * (width >> level) for level in range(LEVELS)]
    flat = values.new_zeros(len(values), sum(sizes)).scatter_add(1, _places(indices, levels, height, width), values)
    patches = values.new_zeros(len(values), height, width)
    for level, nodes in enumerate(flat.split(sizes, 1)):
        grid = nodes.unflatten(1, (height >> level, width >> level))
        patches = patches + grid.repeat_interleave(1 << level, 1).repeat_interleave(1 << level, 2)
    return patches.flatten(1)


def _places(indices: Tensor, levels: Tensor, height: int, width: int) -> Tensor:
    """Where regions stand among all of a grid, those of level 0 first, then those of level 1 and 2."""
    starts = torch.tensor([0, height * width, height * width * 5 // 4], device=indices.device)
    y, x = indices // width, indices % width
    return starts[levels] + (y >> levels) * (width >> levels) + (x >> levels)


def in_tree(values: Tensor, side: int) -> Tensor:
    """Values of patches [B, N] by cell, quarter of it and patch of that, [B, M, 4, 4]: each in reading order."""
    batch, cells = len(values), values.shape[1] // side // 4
    grid = values.reshape(batch, cells, 2, 2, side // 4, 2, 2)  # cell row, quarter's, patch's; and columns
    return grid.permute(0, 1, 4, 2, 5, 3, 6).reshape(batch, -1, 4, 4)


def out_of_tree(values: Tensor, side: int) -> Tensor:
    """The inverse of `in_tree`: [B, M, 4, 4] -> [B, N]."""
    batch = len(values)
    grid = values.reshape(batch, -1, side // 4, 2, 2, 2, 2).permute(0, 1, 3, 5, 2, 4, 6)
    return grid.reshape(batch, -1)
