"""Allocators that choose levels of detail: from relevance and a budget to K disjoint regions of 1, 4 or 16 patches.

A region of more than one patch holds no padding and no patch that must not be fetched: cells with such patches are
divided. So a budget of all patches gives each patch by itself.

Notation: B batch, G side of the fine grid (several grids are stacked one below the other), N patches, M = N/16 base
cells, K fetched tokens, P peaks. Trees are those of `grid_encoder.in_tree`: cells [B, M], quarters [B, M, 4], patches
[B, M, 4, 4].
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .allocators import ALLOCATORS, Allocator, best
from .configuration_arr_coc import ArrCocFetcherConfig
from .grid_encoder import in_tree, out_of_tree

Allocation = tuple[Tensor, Tensor]
"""Indices [B, K] of disjoint regions, ascending, and their levels of detail [B, K], both int64; see grid_encoder.py."""

_NONE = float("-inf")


@dataclass(frozen=True)
class _Tree:
    """The patches that can be fetched, as a tree.

    Attributes:
        relevance: [B, M, 4, 4], 0 outside `real`.
        real: bool [B, M, 4, 4], False on padding and on patches that must not be fetched.
        padding: bool [B, M, 4, 4], True on padding that may fill a budget.
        side: G.
    """

    relevance: Tensor
    real: Tensor
    padding: Tensor
    side: int

    @classmethod
    def of(cls, scores: Tensor, relevance: Tensor, side: int | None) -> "_Tree":
        """The tree of scores and relevance [B, N], the arguments of `Allocator.choose`; NaN is not relevant."""
        side = round(scores.shape[1] ** 0.5) if side is None else side
        least = torch.finfo(scores.dtype).min
        real, padding = in_tree(scores > least, side), in_tree(scores == least, side)
        values = in_tree(relevance.float().nan_to_num(0.0, 0.0, 0.0), side)
        return cls(torch.where(real, values, 0.0), real, padding, side)

    def fill(self, worth: Tensor, levels: Tensor, count: int) -> Allocation:
        """The `count` regions of the highest worth, and padding if there are fewer.

        Args:
            worth: [B, M, 4, 4] on the first patch of each possible region; -inf elsewhere.
            levels: [B, M, 4, 4] int64, the region's level.
            count: K.
        """
        free = self.padding & worth.isneginf()
        worth = worth.masked_fill(free, torch.finfo(worth.dtype).min)
        indices = best(out_of_tree(worth, self.side), count)
        return indices, out_of_tree(levels, self.side).gather(1, indices)


# ---- dividing cells by priority -------------------------------------------------------------------------------------


def _divide(
    tree: _Tree, cells: Tensor, quarters: Tensor, worth: tuple[Tensor, Tensor, Tensor], count: int
) -> Allocation:
    """Divides cells and quarters with a priority above 0, and then others by priority, until there are `count` regions.

    Args:
        tree: the patches.
        cells, quarters: priorities [B, M] and [B, M, 4].
        worth: of regions that are cells, quarters and patches: those of the highest worth are fetched.
        count: K.
    """
    broken = ~tree.real.all(3)  # quarters that must be divided
    forced = torch.cat((broken.any(2), broken.flatten(1)), 1)
    keys = torch.cat((cells, torch.minimum(quarters, cells[..., None]).flatten(1)), 1).masked_fill(forced, float("inf"))
    # A quarter comes behind its cell in this order: its key is at most the cell's, and cells come first.
    order = keys.sort(dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(keys.shape[1], device=keys.device).expand_as(order))
    must = forced.sum(1)
    whole = (tree.real.all(3) & broken.any(2, keepdim=True)).sum((1, 2)) + (~broken.any(2)).sum(1)
    least = whole + (tree.real & broken[..., None]).sum((1, 2, 3))  # regions with the necessary divisions alone
    steps = (torch.clamp(count - least, min=0) + 2) // 3  # each division adds three
    divided = (keys > 0) | (rank < (must + steps)[:, None])
    split_cell, split_quarter = divided[:, : cells.shape[1]], divided[:, cells.shape[1] :].view_as(quarters)
    split_quarter = split_quarter & split_cell[..., None]
    return _leaves(tree, split_cell, split_quarter, worth, count)


def _leaves(
    tree: _Tree, split_cell: Tensor, split_quarter: Tensor, worth: tuple[Tensor, Tensor, Tensor], count: int
) -> Allocation:
    """The `count` leaves of the highest worth after these divisions."""
    values = torch.where(tree.real & split_quarter[..., None], worth[2], _NONE)
    levels = torch.zeros_like(tree.real, dtype=torch.int64)
    first = torch.where(split_cell[..., None] & ~split_quarter, worth[1], values[..., 0])
    values = torch.cat((first[..., None], values[..., 1:]), 3)
    levels[..., 0] = (split_cell[..., None] & ~split_quarter).long()
    values[:, :, 0, 0] = torch.where(split_cell, values[:, :, 0, 0], worth[0])
    levels[:, :, 0, 0] = torch.where(split_cell, levels[:, :, 0, 0], 2)
    return tree.fill(values, levels, count)


def quadtree(
    scores: Tensor, count: int, *, relevance: Tensor, config: ArrCocFetcherConfig, side: int | None = None
) -> Allocation:
    """Divides regions in which relevance varies, and fetches the regions of the highest mean relevance.

    A cell or quarter is divided if the standard deviation of relevance in it and the ring of patches around it is above
    `quadtree_spread`; if that gives fewer than K regions, those with the largest deviation follow. Without the ring, a
    word that fills a region to its edges would not vary in it, and would be pooled.
    """
    tree = _Tree.of(scores, relevance, side)
    patches = out_of_tree(tree.relevance, tree.side).view(-1, 1, tree.side, tree.side)
    batch, columns = len(scores), tree.side // 4
    cells = _deviation(patches, 4).view(batch, -1)
    quarters = _deviation(patches, 2).view(batch, -1, 2, columns, 2).transpose(2, 3).reshape(batch, -1, 4)
    worth = (tree.relevance.mean((2, 3)), tree.relevance.mean(3), tree.relevance)
    return _divide(tree, cells - config.quadtree_spread, quarters - config.quadtree_spread, worth, count)


def _deviation(patches: Tensor, span: int) -> Tensor:
    """The standard deviation in squares of `span` patches and the ring around each: [n, 1, G, G] -> [n, 1, g, g]."""

    def mean(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, span + 2, stride=span, padding=1, count_include_pad=False)

    return (mean(patches.square()) - mean(patches).square()).clamp(min=0).sqrt()


# ---- resolution that falls with distance -----------------------------------------------------------------------------

_PEAK_WIDTH = 9
"""Patches: a peak is the most relevant patch in a square of this side around itself, two base cells and the patch."""

_STEEPNESS = 10.0
"""For the mapping "sigmoid": from 5 % to 95 % of the tokens between resolutions of 0.2 and 0.8."""


def foveated(
    scores: Tensor, count: int, *, relevance: Tensor, config: ArrCocFetcherConfig, side: int | None = None
) -> Allocation:
    """Fetches regions around the peaks of relevance, more coarsely with distance.

    The resolution of a patch is the highest over the peaks of w / (1 + a r^2): r its distance in patches, a
    `fovea_falloff`, w the peak's relevance as a share of the highest. `fovea_mapping` maps it to tokens of its cell, 1
    to 16; the cell gets the nearest of 1, 4 and 16 on a logarithmic scale.
    """
    tree = _Tree.of(scores, relevance, side)
    resolution = in_tree(_resolution(scores, out_of_tree(tree.relevance, tree.side), tree.side, config), tree.side)
    detail = _tokens(resolution, config.fovea_mapping).log2() / 2  # 0 to 2: 1, 4 and 16 tokens
    quarters, cells = detail.amax(3), detail.amax((2, 3))
    worth = (resolution.amax((2, 3)), resolution.amax(3), resolution)
    return _divide(tree, cells - 0.5, quarters - 1.5, worth, count)


def _resolution(scores: Tensor, relevance: Tensor, side: int, config: ArrCocFetcherConfig) -> Tensor:
    """[B, N] in 0..1: see `foveated`. A peak acts on its own grid only."""
    batch, patches = scores.shape
    ranked = scores.clamp(min=torch.finfo(scores.dtype).min).view(-1, 1, side, side)
    highest = F.max_pool2d(ranked, _PEAK_WIDTH, stride=1, padding=_PEAK_WIDTH // 2) == ranked
    peak = highest.view(batch, patches) & (scores > torch.finfo(scores.dtype).min)
    values = torch.where(peak, scores, _NONE)
    peaks = values.sort(dim=1, descending=True, stable=True).indices[:, : config.fovea_peaks]  # [B, P]
    weight = torch.where(peak, relevance, 0.0).gather(1, peaks)
    weight = weight / weight.amax(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
    at = torch.arange(patches, device=scores.device)
    y, x = at // side, at % side
    squared = ((y[peaks][..., None] - y).square() + (x[peaks][..., None] - x).square()).float()  # [B, P, N]
    own = (peaks // side**2)[..., None] == at // side**2
    return torch.where(own, weight[..., None] / (1 + config.fovea_falloff * squared), 0.0).amax(1)


def _tokens(resolution: Tensor, mapping: str) -> Tensor:
    """Tokens of a base cell, 1 to 16, at a resolution of 0 to 1."""
    if mapping == "exponential":
        return 16.0**resolution
    share = resolution if mapping == "linear" else (_STEEPNESS * (resolution - 0.5)).sigmoid()
    return 1 + 15 * share


# ---- the most relevance that a budget can hold -----------------------------------------------------------------------


def knapsack(
    scores: Tensor, count: int, *, relevance: Tensor, config: ArrCocFetcherConfig, side: int | None = None
) -> Allocation:
    """The exact choice of K disjoint regions that captures most relevance.

    A patch by itself captures its relevance; a quarter or a cell as one token captures a share (`pooled_shares`) of the
    sum of its patches. Dynamic programming over a balanced tree solves it: the most that a part of the image can
    capture with each number of tokens is the (max, +) convolution of its two halves.
    """
    tree = _Tree.of(scores, relevance, side)
    of_cell, of_quarter = config.pooled_shares
    ordered = torch.where(tree.real, tree.relevance, _NONE).sort(dim=3, descending=True, stable=True)
    quarters = F.pad(ordered.values.cumsum(3), (1, 0))  # of the best 0 to 4 patches
    pooled = torch.where(tree.real.all(3), of_quarter * tree.relevance.sum(3), _NONE)
    is_quarter = pooled > quarters[..., 1]
    quarters = torch.cat((quarters[..., :1], torch.maximum(pooled, quarters[..., 1])[..., None], quarters[..., 2:]), 3)
    halves, way_to_halves = _join(quarters.flatten(1, 2), 8)
    cells, way_to_cells = _join(halves, 16)
    pooled = torch.where(tree.real.all((2, 3)), of_cell * tree.relevance.sum((2, 3)), _NONE)
    is_cell = pooled > cells[..., 1]
    cells = torch.cat((cells[..., :1], torch.maximum(pooled, cells[..., 1])[..., None], cells[..., 2:]), 2)
    tokens = _shares(cells, torch.clamp(tree.real.sum((1, 2, 3)), max=count), count)
    as_cell = is_cell & (tokens == 1)
    tokens = _undo(_undo(tokens, way_to_cells), way_to_halves).unflatten(1, (-1, 4))
    as_quarter = is_quarter & (tokens == 1) & ~as_cell[..., None]
    rank = ordered.indices.argsort(dim=3)
    singly = (rank < tokens[..., None]) & ~as_quarter[..., None] & ~as_cell[..., None, None]
    worth = torch.where(singly, 0.0, _NONE)
    worth[..., 0] = worth[..., 0].masked_fill(as_quarter, 0.0)
    worth[:, :, 0, 0] = worth[:, :, 0, 0].masked_fill(as_cell, 0.0)
    levels = torch.zeros_like(rank)
    levels[..., 0] = as_quarter.long()
    levels[:, :, 0, 0] = torch.where(as_cell, 2, levels[:, :, 0, 0])
    return tree.fill(worth, levels, count)


def _join(tables: Tensor, most: int) -> Allocation:
    """The most that pairs of neighbours capture with each number of tokens up to `most`: tables [B, n, t] -> [B, n/2,
    t'].

    Also the number of these tokens for the first of the pair, [B, n/2, t']: the largest of equal choices.
    """
    if tables.shape[1] % 2:  # an empty neighbour, without tokens
        nothing = F.pad(tables.new_zeros(len(tables), 1, 1), (0, tables.shape[2] - 1), value=_NONE)
        tables = torch.cat((tables, nothing), 1)
    first, second = tables[:, 0::2], tables[:, 1::2]
    size = tables.shape[2]
    total = min(2 * size - 1, most + 1)
    padded = F.pad(second, (size - 1, max(0, total - size)), value=_NONE)
    together = padded.unfold(2, size, 1)[:, :, :total] + first.flip(2)[:, :, None]
    values, way = together.max(-1)
    return values, size - 1 - way


def _shares(tables: Tensor, tokens: Tensor, most: int) -> Tensor:
    """The split of an item's `tokens` [B] over parts, [B, n], for which tables [B, n, t] capture most."""
    joined = []
    tables = tables[..., : most + 1]
    while tables.shape[1] > 1:
        parts = tables.shape[1]
        tables, way = _join(tables, most)
        joined.append((way, parts))
    shares = tokens[:, None]
    for way, parts in reversed(joined):
        shares = _undo(shares, way)[:, :parts]
    return shares


def _undo(tokens: Tensor, way: Tensor) -> Tensor:
    """Tokens [B, n] of pairs -> of both parts of each pair, [B, 2n], by the choices [B, n, t] of `_join`."""
    first = way.gather(2, tokens[..., None])[..., 0]
    return torch.stack((first, tokens - first), 2).flatten(1)


ALLOCATORS.register("quadtree")(Allocator(quadtree, detail=True))
ALLOCATORS.register("foveated")(Allocator(foveated, detail=True))
ALLOCATORS.register("knapsack")(Allocator(knapsack, detail=True))
