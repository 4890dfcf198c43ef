"""Allocators that choose levels of detail: disjoint regions, exactly as many as the budget, each where it should be."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from arr_coc.modeling.allocators import ALLOCATORS, foveated, knapsack, quadtree
from arr_coc.modeling.configuration_arr_coc import FOVEA_MAPPINGS, ArrCocFetcherConfig
from arr_coc.modeling.fetcher import ranked_scores
from arr_coc.modeling.grid_encoder import in_tree, pool_regions, region_boxes, spread_regions

DETAIL_CASES = ["quadtree", "foveated", "knapsack"]
SIDE = 8
N = SIDE * SIDE


def test_every_allocator_of_levels_is_tested() -> None:
    assert {name for name, allocator in ALLOCATORS.items() if allocator.detail} == set(DETAIL_CASES)


def regions_of(
    name: str,
    relevance: Tensor,
    count: int,
    *,
    mask: Tensor | None = None,
    hidden: Tensor | None = None,
    **fields: float,
) -> tuple[Tensor, Tensor]:
    """What an allocator chooses for relevance [B, N] of a grid of `SIDE`."""
    mask = torch.ones_like(relevance, dtype=torch.bool) if mask is None else mask
    ranked = ranked_scores(relevance, mask, hidden)
    config = ArrCocFetcherConfig(**fields)
    return ALLOCATORS[name].choose(ranked, count, relevance=relevance, config=config, side=SIDE)


def described(indices: Tensor, levels: Tensor, row: int = 0) -> list[tuple[int, int, int]]:
    """(y, x, side) of each region of an item."""
    sides = zip(indices[row].tolist(), levels[row].tolist(), strict=True)
    return [(index // SIDE, index % SIDE, 2**level) for index, level in sides]


# ---- regions
def test_regions_are_pooled_and_spread_where_they_lie() -> None:
    grid = torch.arange(float(N)).view(1, 1, SIDE, SIDE)
    indices, levels = torch.tensor([[0, 5, 4 * SIDE + 6]]), torch.tensor([[2, 0, 1]])
    square = grid[0, 0]
    pooled = [square[:4, :4].mean(), square[0, 5], square[4:6, 6:8].mean()]
    assert pool_regions(grid, indices, levels)[0, :, 0].tolist() == [float(value) for value in pooled]
    assert region_boxes(indices, levels, SIDE).tolist() == [[[0, 0, 4, 4], [0, 5, 1, 6], [4, 6, 6, 8]]]
    values = spread_regions(torch.tensor([[1.0, 2.0, 3.0]]), indices, levels, (SIDE, SIDE)).view(SIDE, SIDE)
    assert (values[:4, :4] == 1).all() and values[0, 5] == 2 and (values[4:6, 6:8] == 3).all()
    assert values.sum() == 16 + 2 + 12


# ---- the promises of all
@pytest.mark.parametrize("name", DETAIL_CASES)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_the_budget_is_exact_and_no_patch_is_in_two_regions(name: str, data: st.DataObject) -> None:
    """Padding only when nothing else is left, and alone; what must not be fetched, never; the same as alone."""
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    relevance = torch.rand(3, N) ** data.draw(st.sampled_from([0.0, 1.0, 8.0]))
    mask = torch.rand(3, N) < data.draw(st.sampled_from([0.0, 0.5, 0.98, 1.0]))
    hidden = torch.rand(3, N) < data.draw(st.sampled_from([0.0, 0.02, 0.5]))
    count = data.draw(st.integers(0, int((~hidden).sum(1).min())))
    fields = {
        "fovea_peaks": data.draw(st.sampled_from([1, 4])),
        "quadtree_spread": data.draw(st.sampled_from([0, 0.3])),
    }
    indices, levels = regions_of(name, relevance, count, mask=mask, hidden=hidden, **fields)
    assert indices.shape == levels.shape == (3, count) and (indices.diff(dim=1) > 0).all()
    covered = spread_regions(torch.ones(3, count), indices, levels, (SIDE, SIDE))
    assert covered.amax() <= 1 and not covered[hidden].any()
    padding = (covered * (~mask & ~hidden)).sum(1)
    assert padding.equal((count - (mask & ~hidden).sum(1)).clamp(min=0).float())
    for row in range(3):
        rows = (tensor[row : row + 1] for tensor in (relevance, mask, hidden))
        own, mask_of_one, hidden_of_one = rows
        alone = regions_of(name, own, count, mask=mask_of_one, hidden=hidden_of_one, **fields)
        assert alone[0][0].equal(indices[row]) and alone[1][0].equal(levels[row])


@pytest.mark.parametrize("name", DETAIL_CASES)
def test_grids_one_below_the_other_share_a_budget(name: str) -> None:
    """Where one of them is relevant alone, it gets what it would get by itself."""
    relevance = torch.rand(1, N) + 0.5
    several = torch.cat((torch.zeros(1, N), relevance), 1)
    alone = regions_of(name, relevance, 9)
    together = regions_of(name, several, 9)
    assert together[0].equal(alone[0] + N) and together[1].equal(alone[1])


# ---- quadtree
def test_a_quadtree_divides_at_edges_and_nowhere_else() -> None:
    relevance = torch.zeros(SIDE, SIDE)
    relevance[:, 5:] = 1.0  # an edge through the right cells; what is left and right of it is even
    regions = described(*quadtree_of(relevance, 12))
    assert all(side == 1 for y, x, side in regions if x in (4, 5)), "at the edge"
    assert {side for y, x, side in regions if x >= 6} == {2}, "behind it"
    assert regions_cover(regions) >= {(y, x) for y in range(SIDE) for x in (6, 7)}


def quadtree_of(relevance: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return regions_of("quadtree", relevance.view(1, -1), count, quadtree_spread=0.2)


def regions_cover(regions: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(y + dy, x + dx) for y, x, side in regions for dy in range(side) for dx in range(side)}


# ---- foveated
@pytest.mark.parametrize("mapping", FOVEA_MAPPINGS)
def test_resolution_falls_with_the_distance_from_the_peak(mapping: str) -> None:
    side = 32
    relevance = torch.rand(1, side**2) * 0.01
    relevance[0, 9 * side + 9] = 1.0
    config = ArrCocFetcherConfig(fovea_mapping=mapping, fovea_peaks=1, fovea_falloff=0.2)
    ranked = ranked_scores(relevance, torch.ones(1, side**2, dtype=torch.bool), None)
    indices, levels = foveated(ranked, 120, relevance=relevance, config=config, side=side)
    boxes = region_boxes(indices, levels, side)[0].float()
    distance = ((boxes[:, :2] + boxes[:, 2:]) / 2 - 9.5).norm(dim=1)
    means = [distance[levels[0] == level].mean() for level in range(3)]
    assert means[0] < means[1] < means[2] and levels[0, (indices == 9 * side + 9)[0]].item() == 0
    covered = spread_regions(torch.ones(1, 120), indices, levels, (side, side)).view(side, side)
    assert covered[4:16, 4:16].all(), "around the peak nothing is left out"


# ---- knapsack
def captured(relevance: Tensor, indices: Tensor, levels: Tensor, shares: tuple[float, float]) -> float:
    """The relevance [N] that regions [K] hold, as "knapsack" counts it."""
    share = torch.tensor([1.0, shares[1], shares[0]])[levels]
    held = pool_regions(relevance.view(1, 1, SIDE, SIDE), indices[None], levels[None])[0, :, 0] * 4.0**levels
    return float((share * held).sum())


def _options(patches: list[list[float]], real: list[list[bool]], shares: tuple[float, float]) -> dict[int, float]:
    """Tokens -> the most that a cell captures with them, by trying every choice of quarters and patches."""
    quarters = [_of_quarter(*pair, shares[1]) for pair in zip(patches, real, strict=True)]
    best: dict[int, float] = {}
    for choice in product(*(quarter.items() for quarter in quarters)):
        tokens, value = sum(tokens for tokens, _ in choice), sum(value for _, value in choice)
        best[tokens] = max(best.get(tokens, value), value)
    if all(map(all, real)):
        best[1] = max(best[1], shares[0] * sum(map(sum, patches)))
    return best


def _of_quarter(patches: list[float], real: list[bool], share: float) -> dict[int, float]:
    """Tokens -> the most that a quarter captures, of all subsets of its patches and itself as one token."""
    best: dict[int, float] = {}
    for subset in product((0, 1), repeat=4):
        if all(there or not took for took, there in zip(subset, real, strict=True)):
            value = sum(value for value, took in zip(patches, subset, strict=True) if took)
            best[sum(subset)] = max(best.get(sum(subset), value), value)
    if all(real):
        best[1] = max(best[1], share * sum(patches))
    return best


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10**6), shares=st.sampled_from([(0.25, 0.5), (0.05, 0.9), (0.0, 1.0)]), gap=st.booleans())
def test_the_knapsack_is_as_good_as_dynamic_programming(seed: int, shares: tuple[float, float], gap: bool) -> None:
    """Cell after cell, from an enumeration of every way to divide a cell."""
    generator = torch.Generator().manual_seed(seed)
    relevance = torch.rand(1, N, generator=generator) ** 4
    mask = torch.rand(1, N, generator=generator) > (0.05 if gap else -1.0)
    cells = zip(in_tree(relevance * mask, SIDE)[0].tolist(), in_tree(mask, SIDE)[0].tolist(), strict=True)
    table: dict[int, float] = {0: 0.0}
    for patches, real in cells:
        options, before, table = _options(patches, real, shares), table, {}
        for (count, value), (more, gain) in product(before.items(), options.items()):
            table[count + more] = max(table.get(count + more, float("-inf")), value + gain)
    for count in (1, 2, 5, 11, 17, 30, int(mask.sum())):
        indices, levels = regions_of("knapsack", relevance, count, mask=mask, pooled_shares=shares)
        assert captured((relevance * mask)[0], indices[0], levels[0], shares) == pytest.approx(table[count], abs=1e-4)


@pytest.mark.parametrize("choose", [quadtree, foveated, knapsack])
def test_a_grid_of_the_published_size_takes_few_operations(choose: Callable[..., Any]) -> None:
    """4096 patches, 256 cells: no loop over cells. Operations do not depend on the machine, as time does."""
    side = 64
    relevance = torch.rand(1, side**2, generator=torch.Generator().manual_seed(0)) ** 8
    ranked = ranked_scores(relevance, torch.ones(1, side**2, dtype=torch.bool), None)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        indices, _ = choose(ranked, 273, relevance=relevance, config=ArrCocFetcherConfig(), side=side)
    assert indices.shape == (1, 273)
    assert sum(event.count for event in profile.key_averages()) < 1500
