"""The fetcher: exactly K distinct patches, the right ones gathered, and an honest account of it."""

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.modeling.allocators import ALLOCATORS, chooses_counts
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.modeling.fetcher import FetchChoices, RunningBackFetcher
from arr_coc.modeling.scorers import SCORERS, FetchContext
from arr_coc.modeling.vision_tower import TEXTURE_SETS, gather_patches
from arr_coc.modeling.wordpieces import PIECE_SLOTS

C, D, W, SIDE = 6, 5, 7, 8
N = SIDE * SIDE
EXACT = [name for name in sorted(ALLOCATORS) if not chooses_counts(name)]
"""Allocators that fetch exactly the budget; the others are in test_allocators.py."""
FETCHING = [name for name, kind in SCORERS.items() if kind.fetches]
TRAINED = [name for name, kind in SCORERS.items() if kind.trained]


def fetcher(**changes: Any) -> RunningBackFetcher:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_heads": 2, "num_layers": 1, "position_size": 8, "shared_size": 8, "match_size": 8}
    config = ArrCocFetcherConfig(**{**sizes, **changes})
    return RunningBackFetcher(config, feature_size=C, text_size=D, depth_size=W).eval()


def context(batch: int = 2, seed: int = 0) -> FetchContext:
    generator = torch.Generator().manual_seed(seed)
    return FetchContext(
        features=torch.randn(batch, C, SIDE, SIDE, generator=generator),
        textures=torch.rand(batch, 2, SIDE, SIDE, generator=generator),
        patch_mask=torch.ones(batch, N, dtype=torch.bool),
        query=torch.randn(batch, 4, D, generator=generator),
        query_mask=torch.ones(batch, 4, dtype=torch.bool),
        seeds=torch.arange(batch),
        relevance=torch.rand(batch, N, generator=generator),
    )


def everything(**changes: Any) -> RunningBackFetcher:
    """With every scorer that has weights."""
    return fetcher(scorers=TRAINED, **changes)


def complete(given: FetchContext) -> FetchContext:
    """The same, with all that any scorer reads."""
    batch, channels = len(given.features), len(TEXTURE_SETS["full"])
    words = torch.Generator().manual_seed(4)
    pieces = torch.randint(1, 30, (batch, N, 2, PIECE_SLOTS), generator=words, dtype=torch.int32)
    return replace(
        given,
        textures=torch.rand(batch, channels, SIDE, SIDE, generator=torch.Generator().manual_seed(1)),
        depths=torch.randn(batch, 2, W, SIDE, SIDE, generator=torch.Generator().manual_seed(2)),
        attention=torch.rand(batch, N, generator=torch.Generator().manual_seed(3)),
        pieces=pieces.masked_fill(torch.rand(pieces.shape, generator=words) < 0.9, -1),
        table=torch.randn(30, D, generator=words),
    )


def test_gather_takes_the_patch_at_y_x() -> None:
    """Swapped axes pass every test on features that are symmetric; these say where they are."""
    y, x = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    features = torch.stack((y, x)).float()[None].repeat(2, 1, 1, 1)
    features[1] += 100
    found = gather_patches(features, torch.tensor([[0, 6], [9, 15]]))
    assert found.tolist() == [[[0, 0], [1, 2]], [[102, 101], [103, 103]]]


@pytest.mark.parametrize("allocator", EXACT)
@pytest.mark.parametrize("strategy", FETCHING)
@torch.no_grad()
def test_what_is_said_is_what_was_done(strategy: str, allocator: str) -> None:
    done = everything()(complete(context()), 9, choices=FetchChoices(strategy=strategy, allocator=allocator))
    assert (done.budget, done.strategy, done.allocator) == (9, strategy, allocator)
    assert done.indices.shape == (2, 9) and (done.indices.diff(dim=1) > 0).all()
    assert torch.equal(done.positions[..., 0] * SIDE + done.positions[..., 1], done.indices)
    assert ((done.positions >= 0) & (done.positions < SIDE)).all()
    assert done.relevance.shape == done.scores.shape == (2, N)
    assert ((done.relevance >= 0) & (done.relevance <= 1)).all()
    assert not done.is_padding.any()


@settings(deadline=None, max_examples=40)
@given(
    data=st.data(),
    strategy=st.sampled_from([name for name in FETCHING if not SCORERS[name].reads_text]),
    allocator=st.sampled_from(EXACT),
    with_taken=st.booleans(),
)
@torch.no_grad()
def test_the_budget_is_exact_whatever_is_padding_or_taken(
    data: st.DataObject, strategy: str, allocator: str, with_taken: bool
) -> None:
    """Padding only when too few other patches are left, and then marked; what is a base token already, never."""
    given_context = complete(context())
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    mask = torch.rand(2, N) < data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    taken = torch.stack([torch.randperm(N)[:16].sort().values for _ in range(2)]) if with_taken else None
    budget = data.draw(st.integers(0, N - 16 if with_taken else N))
    given_context = replace(given_context, patch_mask=mask)
    done = everything()(
        given_context, budget, taken=taken, choices=FetchChoices(strategy=strategy, allocator=allocator)
    )
    for row in range(2):
        chosen, blocked = done.indices[row].tolist(), set() if taken is None else set(taken[row].tolist())
        assert len(chosen) == budget == len(set(chosen)) and chosen == sorted(chosen)
        assert not blocked & set(chosen)
        real = sum(bool(mask[row, i]) for i in range(N) if i not in blocked)
        assert done.is_padding[row].tolist() == [not mask[row, i] for i in chosen]
        assert int(done.is_padding[row].sum()) == max(0, budget - real)


@pytest.mark.parametrize(
    ("strategy", "allocator"), sorted({*product(FETCHING, ["topk"]), *product(["realizer", "oracle"], ALLOCATORS)})
)
@torch.no_grad()
def test_scorers_go_with_allocators(strategy: str, allocator: str) -> None:
    """Exactly the budget, or with allocators that choose it, and of text, at most; always distinct, and the same again.

    An allocator sees relevance alone: `realizer` gives any, `oracle` the same to many patches.
    """
    choices = FetchChoices(strategy=strategy, allocator=allocator)
    for budget in (1, 5, 17, 25, N):
        first, again = (everything()(complete(context()), budget, choices) for _ in range(2))
        assert torch.equal(first.indices, again.indices) and torch.equal(first.counts, again.counts)
        assert all(len(set(row)) == first.budget for row in first.indices.tolist())
        exact = not chooses_counts(allocator) and not SCORERS[strategy].reads_text
        assert first.counts.tolist() == [budget] * 2 if exact else (first.counts >= 1).all() and first.budget <= budget


@pytest.mark.parametrize("allocator", EXACT)
def test_all_patches_and_no_patch(allocator: str) -> None:
    everything = fetcher()(context(), N, choices=FetchChoices(strategy="realizer", allocator=allocator))
    assert everything.indices.tolist() == [list(range(N))] * 2
    nothing = fetcher()(context(), 0, choices=FetchChoices(strategy="realizer", allocator=allocator))
    assert nothing.indices.shape == (2, 0) and nothing.positions.shape == (2, 0, 2)


def test_more_than_the_candidates_is_an_error_never_a_repeat() -> None:
    with pytest.raises(ValueError, match=f"^budget: expected at most {N} patches.*; got {N + 1}$"):
        fetcher()(context(), N + 1, choices=FetchChoices(strategy="saliency"))
    taken = torch.arange(4).repeat(2, 1)
    with pytest.raises(ValueError, match=f"^budget: expected at most {N - 4} patches.*; got {N - 3}$"):
        fetcher()(context(), N - 3, taken=taken, choices=FetchChoices(strategy="saliency"))


def test_strategy_none_with_fetched_tokens_to_fill_is_refused() -> None:
    """It filled them with the first K patches of the top rows, and called the result base only."""
    with pytest.raises(ValueError, match="none"):
        fetcher()(context(), 3, choices=FetchChoices(strategy="none"))
    assert fetcher()(context(), 0, choices=FetchChoices(strategy="none")).indices.shape == (2, 0)


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    """Of scorers with weights only those that the checkpoint holds."""
    held = sorted(name for name, kind in SCORERS.items() if not kind.trained or name in ("realizer", "clip_query"))
    known = re.escape(f"{', '.join(held)} (held here)")
    with pytest.raises(ValueError, match=f"^strategy: expected one of {known}; got 'telepathy'$"):
        fetcher()(context(), 3, choices=FetchChoices(strategy="telepathy"))
    with pytest.raises(
        ValueError,
        match="^allocator: expected one of adaptive, foveated, knapsack, quadtree, tiers, topk, window; got 'greedy'$",
    ):
        fetcher()(context(), 3, choices=FetchChoices(allocator="greedy"))


def test_a_scorer_without_weights_here_is_refused_by_name() -> None:
    """An untrained realizer, made on demand, would answer with noise and nobody would know."""
    only = fetcher(scorers=["clip_query"], strategy="clip_query")
    with pytest.raises(
        ValueError, match=r"^strategy: expected one of attention, clip_query, .* \(held here\); got 'realizer'$"
    ):
        only(context(), 3, choices=FetchChoices(strategy="realizer"))
    assert not [n for n, _ in only.named_parameters() if "realizer" in n]


def test_a_relevance_map_of_another_grid_is_refused() -> None:
    """It was counted as a grid of 7 patches: "budget: expected at most 7 patches"."""
    with pytest.raises(ValueError, match=rf"relevance.*{N}.*7|boxes.*{N}.*7"):
        fetcher()(replace(context(), relevance=torch.rand(2, 7)), 9, choices=FetchChoices(strategy="oracle"))


def test_select_picks_every_tensor() -> None:
    done = fetcher()(context(3), 5, choices=FetchChoices(strategy="saliency"))
    middle = done.select(torch.tensor([1]))
    for name in ("indices", "positions", "scores", "relevance", "is_padding"):
        assert torch.equal(getattr(middle, name), getattr(done, name)[1:2])
    assert (middle.budget, middle.strategy) == (5, "saliency")


@torch.no_grad()
def test_relevance_of_fixed_scores_is_scaled_per_item() -> None:
    """Scaled over the batch, a faint page beside a bold one had no relevance anywhere."""
    faint = context()
    faint.textures[0] *= 1e-3
    done = fetcher()(faint, 5, choices=FetchChoices(strategy="saliency"))
    assert done.relevance.amin(1).tolist() == [0, 0] and done.relevance.amax(1).tolist() == pytest.approx([1, 1])


@torch.no_grad()
def test_relevance_of_a_flat_page_is_finite() -> None:
    flat = context()
    flat.textures.zero_()
    assert not fetcher()(flat, 5, choices=FetchChoices(strategy="saliency")).relevance.any()
