"""Allocators: exactly K distinct patches, whatever the scores look like."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.modeling.allocators import ALLOCATORS, best, topk, window
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig

ALLOCATOR_CASES = ["topk", "window", "tiers", "adaptive"]
PADDING, TAKEN = torch.finfo(torch.float64).min, float("-inf")


def test_every_allocator_is_tested() -> None:
    assert set(ALLOCATOR_CASES) == set(ALLOCATORS)


@st.composite
def allocations(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    """Scores [B, N] as the fetcher makes them, with many ties, padding and taken patches; and a budget they allow."""
    side, batch = draw(st.sampled_from([4, 8])), draw(st.integers(1, 3))
    values = torch.tensor(
        [-2, -1, 0, 1, 2, PADDING, TAKEN, 1e30, -1e30][: draw(st.integers(1, 9))], dtype=torch.float64
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    scores = values[torch.randint(len(values), (batch, side**2), generator=generator)]
    candidates = int((scores != TAKEN).sum(1).min())
    return scores, draw(st.integers(0, candidates))


@pytest.mark.parametrize("name", ALLOCATOR_CASES)
@settings(deadline=None, max_examples=60)
@given(case=allocations(), gain=st.sampled_from([0.0, 0.5, 3.0]), size=st.sampled_from([1, 3, 5]))
def test_the_budget_is_exact_padding_comes_last_and_taken_never(
    name: str, case: tuple[torch.Tensor, int], gain: float, size: int
) -> None:
    scores, count = case
    before = scores.clone()
    config = ArrCocFetcherConfig(window_gain=gain, window_size=size)
    indices = ALLOCATORS[name].choose(scores, count, config=config)
    assert indices.shape == (len(scores), count) and indices.dtype == torch.int64
    assert torch.equal(scores, before), "an allocator changed its input"
    for row, chosen in zip(scores.tolist(), indices.tolist(), strict=True):
        assert chosen == sorted(set(chosen))
        kinds = [row[i] for i in chosen]
        assert TAKEN not in kinds
        real = sum(v not in (PADDING, TAKEN) for v in row)
        assert kinds.count(PADDING) == max(0, count - real), "padding was chosen before a real patch"


@settings(deadline=None, max_examples=60)
@given(case=allocations())
def test_topk_is_the_sorted_prefix_with_ties_to_the_lower_index(case: tuple[torch.Tensor, int]) -> None:
    """torch.topk breaks ties as it likes, and differently on a GPU."""
    scores, count = case
    chosen = topk(scores, count, config=ArrCocFetcherConfig())
    for row, indices in zip(scores.tolist(), chosen.tolist(), strict=True):
        assert indices == sorted(sorted(range(len(row)), key=lambda i: (-row[i], i))[:count])


@pytest.mark.parametrize("name", ALLOCATOR_CASES)
def test_equal_scores_keep_the_lower_indices(name: str) -> None:
    """A sort that is not stable gave other patches on another device."""
    config = ArrCocFetcherConfig(window_gain=0.0)
    assert ALLOCATORS[name].choose(torch.zeros(2, 64), 5, config=config).tolist() == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("name", ALLOCATOR_CASES)
def test_items_do_not_see_each_other(name: str) -> None:
    scores, config = torch.randn(4, 64), ArrCocFetcherConfig()
    scores[1] *= 1e6  # a loud neighbour
    together = ALLOCATORS[name].choose(scores, 9, config=config)
    alone = torch.cat([ALLOCATORS[name].choose(row[None], 9, config=config) for row in scores])
    assert torch.equal(together, alone)


def test_best_is_ascending() -> None:
    assert best(torch.tensor([[1.0, 5.0, 3.0, 5.0]]), 3).tolist() == [[1, 2, 3]]


def test_window_prefers_the_neighbours_of_what_was_chosen() -> None:
    """A word rarely ends at a patch's border: the patch beside four chosen ones beats a lone one."""
    scores = torch.zeros(8, 8)
    scores[2:4, 2:6] = 10.0  # a word, two patches high
    scores[2, 6], scores[7, 0] = 1.0, 1.1  # its last letter, and a speck
    flat, config = scores.view(1, -1), ArrCocFetcherConfig(window_gain=0.5)
    word = [18, 19, 20, 21, 26, 27, 28, 29]
    assert topk(flat, 9, config=config).tolist() == [[*word, 56]]
    assert window(flat, 9, config=config).tolist() == [sorted([*word, 22])]


def test_window_without_gain_is_topk() -> None:
    scores, config = torch.randn(3, 64), ArrCocFetcherConfig(window_gain=0.0)
    for count in (0, 1, 17, 64):
        assert torch.equal(window(scores, count, config=config), topk(scores, count, config=config))


@pytest.mark.parametrize("name", ALLOCATOR_CASES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_choice_does_not_depend_on_the_scale_of_the_scores(name: str, scale: float) -> None:
    """A gain in the units of the score was everything for a variance of 1e-3 and nothing for logits of 20."""
    scores, config = torch.randn(2, 64, dtype=torch.float64), ArrCocFetcherConfig()
    chosen = ALLOCATORS[name].choose(scores, 9, config=config)
    assert torch.equal(chosen, ALLOCATORS[name].choose(scores * scale, 9, config=config))


def test_window_does_not_count_a_patch_among_its_own_neighbours() -> None:
    """Counted there, every first choice gained as much as a patch beside it, and a speck outlived the word's end."""
    scores = torch.zeros(8, 8)
    scores[2, 2], scores[7, 0], scores[2, 3] = 10.0, 5.0, 4.0  # a letter, a speck, the next letter
    config = ArrCocFetcherConfig(window_gain=0.5, window_size=3)
    assert window(scores.view(1, -1), 2, config=config).tolist() == [[18, 19]]
