"""Allocators that choose levels of detail: disjoint regions, exactly as many as the budget, each where it should be."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from fetching import fetch_of
from helpers import CARD, prompt, tiny_checkpoint, tiny_model
from helpers import SCAN as TALL
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from arr_coc.modeling.allocators import ALLOCATORS, foveated, knapsack, quadtree
from arr_coc.modeling.configuration_arr_coc import FOVEA_MAPPINGS, ArrCocConfig, ArrCocFetcherConfig
from arr_coc.modeling.fetcher import FetchResult, ranked_scores
from arr_coc.modeling.grid_encoder import in_tree, pool_regions, region_boxes, spread_regions
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.viewing import OUTLINE_COLOUR, describe, draw_fetch

DETAIL = [name for name, allocator in ALLOCATORS.items() if allocator.detail]
SIDE = 8
N = SIDE * SIDE


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


# ---- the promises of all
@pytest.mark.parametrize("name", DETAIL)
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


@pytest.mark.parametrize("name", DETAIL)
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
    regions = described(*regions_of("quadtree", relevance.view(1, -1), 12, quadtree_spread=0.2))
    assert all(side == 1 for y, x, side in regions if x in (4, 5)), "at the edge"
    assert {side for y, x, side in regions if x >= 6} == {2}, "behind it"
    covered = {(y + dy, x + dx) for y, x, side in regions for dy in range(side) for dx in range(side)}
    assert covered >= {(y, x) for y in range(SIDE) for x in (6, 7)}


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


# ---- Levels of detail through the whole model: what the language model reads, what is said of it, what is drawn
QUESTION = "What is it?"


@pytest.fixture(scope="module")
def encoding(model: Any) -> Any:
    return model.encode_image(CARD)


# ---- tokens
@torch.no_grad()
def test_a_regions_token_is_made_of_the_mean_of_its_patches_at_its_centre(model: Any, encoding: Any) -> None:
    tower = model.model.vision_tower
    indices, levels = torch.tensor([[0, 6, 72]]), torch.tensor([[2, 0, 1]])
    _, projected = tower.fetched_states(encoding, indices, levels=levels)
    mean = encoding.features[0, :, 4:6, 8:10].mean((1, 2))
    assert torch.allclose(projected[0, 2], tower.saccade_projection(mean), atol=1e-5)
    semantic = tower.semantic_encoder
    places = semantic._positions_at(torch.tensor([[0, 4, 64]]), 16, torch.full((1, 3), 2))
    assert torch.allclose(places[0], semantic.position_embedding[1:][[0, 1, 4]], atol=1e-6), "those of base cells"
    singly = tower.fetched_states(encoding, indices, levels=torch.zeros_like(levels))
    assert all(map(torch.equal, singly, tower.fetched_states(encoding, indices)))


@pytest.mark.parametrize("allocator", DETAIL)
def test_a_loss_trains_scorer_and_level_embedding(allocator: str) -> None:
    model = tiny_model(semantic={"level_embedding": True}, fetcher={"allocator": allocator}).train()
    inputs = prompt(model, (CARD, QUESTION))
    labels = inputs.input_ids.masked_fill(inputs.input_ids == model.config.image_token_id, -100)
    inputs["query_mask"] = torch.ones_like(labels)
    output = model(**inputs, labels=labels)
    output.loss.backward()
    used = output.fetch.levels.unique().tolist()
    gradient = model.model.vision_tower.semantic_encoder.level_embedding.weight.grad
    assert [row for row in range(3) if gradient[row].any()] == used
    assert any(weight.grad.any() for weight in model.model.fetcher.scorers["realizer"].parameters())


# ---- weights
def test_a_checkpoint_without_the_embedding_loads_and_one_with_it_starts_the_same(tmp_path: Path) -> None:
    """Old weights fit their config; a config that asks for levels begins with rows of zeros: the same answers."""
    folder = tiny_checkpoint(tmp_path / "old")
    old = ArrCocForConditionalGeneration.from_pretrained(folder).eval()
    assert not [name for name, _ in old.named_parameters() if "level_embedding" in name]
    config = ArrCocConfig.from_pretrained(folder)
    config.semantic_config.level_embedding = True
    with pytest.raises(ValueError, match="got 1 missing, e.g. model.vision_tower.semantic_encoder.level_embedding"):
        ArrCocForConditionalGeneration.from_pretrained(folder, config=config)
    new = ArrCocForConditionalGeneration.from_pretrained(folder, config=config, strict=False).eval()
    inputs = prompt(tiny_model(), (CARD, QUESTION))
    with torch.no_grad():
        for allocator in ("topk", "knapsack"):
            first, second = (held(**inputs, choices={"allocator": allocator}).logits for held in (old, new))
            assert torch.equal(first, second)
        new.model.vision_tower.semantic_encoder.level_embedding.weight[1:] = 1.0
        again = [new(**inputs, choices={"allocator": name}).logits for name in ("topk", "knapsack")]
    assert torch.equal(again[0], old(**inputs, choices={"allocator": "topk"}).logits)
    assert not torch.equal(again[1], second)
    new.save_pretrained(tmp_path / "new")
    loaded = ArrCocForConditionalGeneration.from_pretrained(tmp_path / "new").eval()
    with torch.no_grad():
        assert torch.equal(loaded(**inputs, choices={"allocator": "knapsack"}).logits, again[1])


# ---- several views
@pytest.mark.parametrize("allocator", DETAIL)
def test_one_budget_of_regions_over_several_views(model: Any, allocator: str) -> None:
    answer = model.generate(TALL, QUESTION, allocator=allocator, budget=24, return_fetch=True)
    fetch = answer.fetch
    assert len(fetch.seen.views.slots) > 1 and int(fetch.counts.sum()) == 24 and fetch.levels.shape == fetch.view.shape
    used = fetch.used[0]
    x0, y0, x1, y1 = fetch.boxes()[0][used].unbind(-1)
    sides = (fetch.seen.views.windows[:, 2] - fetch.seen.views.windows[:, 0])[fetch.view[0][used]] / 16
    assert torch.allclose(x1 - x0, sides * 2.0 ** fetch.levels[0][used])
    tall = [origin.box for origin in answer.sources]
    assert max(y for *_, y in tall) <= TALL.height and len(tall) == 24
    hidden = fetch.seen.hidden
    for view, index, level in zip(*(rows[0][used] for rows in (fetch.view, fetch.indices, fetch.levels)), strict=True):
        region = pool_regions(hidden[view].view(1, 1, 16, 16).float(), index.view(1, 1), level.view(1, 1))
        assert region.item() == 0, "no patch that another view shows better"


# ---- what is said and drawn
def regions(levels: list[int], indices: list[int]) -> FetchResult:
    """A fetch of regions on a grid of 8."""
    said = {"strategy": "oracle", "allocator": "knapsack", "levels": torch.tensor([levels])}
    return fetch_of(torch.tensor([indices]), torch.zeros(1, 64), **said)


def test_a_fetch_says_its_levels_and_a_picture_draws_regions_of_their_size() -> None:
    fetch = regions([2, 1, 0], [0, 6, 31])
    assert fetch.regions().tolist() == [[[0, 0, 4, 4], [0, 6, 2, 8], [3, 7, 4, 8]]]
    assert fetch.covered().sum() == 16 + 4 + 1
    assert "3 tokens (1 of 1, 1 of 4, 1 of 16 patches) of 64 patches fetched (outlined)" in describe(fetch)
    drawn = draw_fetch(Image.new("RGB", (768, 768), "white"), fetch)
    outline = OUTLINE_COLOUR[:3]
    assert drawn.getpixel((16 + 200, 16 + 383)) == outline, "the lower edge of the cell, 4 patches of 96 px down"
    assert drawn.getpixel((16 + 200, 16 + 95)) != outline, "and not of its first patch"
    assert drawn.getpixel((16 + 700, 16 + 191)) == outline and drawn.getpixel((16 + 600, 16 + 191)) == outline
