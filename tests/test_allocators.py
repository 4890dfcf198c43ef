"""Allocators: exactly K distinct patches, whatever the scores look like; or of each item as many as it needs."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fetching import CHOOSE_COUNTS, FETCHING, C, D, N, complete, context, everything, fetcher
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.modeling.allocators import ALLOCATORS, budgets_from_mass, budgets_from_tiers, tier_sizes, window
from arr_coc.modeling.budgets import TIERS
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.modeling.fetcher import FetchChoices, FetchResult, ranked_scores
from arr_coc.modeling.scorers import FetchContext, topk


def choose(name: str) -> Any:
    """The function that chooses patches."""
    return ALLOCATORS[name].choose or topk


ALLOCATOR_CASES = ["topk", "window", "tiers", "adaptive", "quadtree", "foveated", "knapsack"]
SINGLY = [name for name in ALLOCATOR_CASES if not ALLOCATORS[name].detail]
"""Those that fetch single patches; more of those that choose levels of detail is in test_detail_allocators.py."""
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


@settings(deadline=None, max_examples=60)
@given(case=allocations())
def test_topk_is_the_sorted_prefix_with_ties_to_the_lower_index(case: tuple[torch.Tensor, int]) -> None:
    """torch.topk breaks ties as it likes, and differently on a GPU."""
    scores, count = case
    chosen = topk(scores, count, config=ArrCocFetcherConfig())
    for row, indices in zip(scores.tolist(), chosen.tolist(), strict=True):
        assert indices == sorted(sorted(range(len(row)), key=lambda i: (-row[i], i))[:count])


# ---- every allocator, in the fetcher
LARGE = 24
"""Side of a grid whose base cells, 36, are no power of two: 576 patches."""


def large_context(batch: int = 2) -> FetchContext:
    """Random features on a grid of `LARGE`, and a relevance that is high in places."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(batch, 1, LARGE // 4, LARGE // 4, generator=generator).repeat_interleave(4, 2)
    relevance = noise.repeat_interleave(4, 3).flatten(1) ** 4 * torch.rand(batch, LARGE**2, generator=generator)
    return replace(
        context(batch),
        features=torch.randn(batch, C, LARGE, LARGE, generator=generator),
        textures=torch.rand(batch, 2, LARGE, LARGE, generator=generator),
        patch_mask=torch.ones(batch, LARGE**2, dtype=torch.bool),
        relevance=relevance,
    )


def fetched(given: FetchContext, budget: int, name: str, strategy: str = "oracle", **fields: Any) -> FetchResult:
    return fetcher(**fields)(given, budget, FetchChoices(strategy=strategy, allocator=name))


@pytest.mark.parametrize("name", ALLOCATOR_CASES)
@torch.no_grad()
def test_budgets_are_exact_in_disjoint_tokens_and_the_same_again(name: str) -> None:
    """Also of odd sizes, and up to all; allocators that choose how many keep within the budget."""
    given = large_context()
    for budget in (1, 7, 64, 180, 273, 400, 401, LARGE**2 - 1, LARGE**2):
        done = fetched(given, budget, name)
        tokens = done.used.sum(1)
        assert (
            (tokens.eq(budget).all() and not done.is_ragged) if name not in CHOOSE_COUNTS else tokens.le(budget).all()
        )
        times = done.on_patches(done.used.float())
        assert times.amax() == 1 and ((times > 0) == done.covered()).all() and not done.is_padding.any()
        y0, x0, y1, x1 = done.regions().unbind(-1)
        assert ((y1 - y0) * (x1 - x0) * done.used).sum(1).equal(done.covered().sum(1))
        again = fetched(given, budget, name)
        assert done.indices.equal(again.indices) and done.regions().equal(again.regions())


@pytest.mark.parametrize("name", ALLOCATOR_CASES)
@torch.no_grad()
def test_an_item_is_allocated_as_alone_and_padding_says_nothing(name: str) -> None:
    given = large_context(3)
    given.patch_mask[1, 300:] = False
    loud = torch.where(given.patch_mask, given.relevance, 7.0)
    together = fetched(given, 50, name)
    shouting = fetched(replace(given, relevance=loud), 50, name)
    for row in range(3):
        alone = fetched(given.select(torch.tensor([row])), 50, name)
        for other in (together.select(torch.tensor([row])), shouting.select(torch.tensor([row])))[
            : 2 if row != 1 else 1
        ]:
            assert alone.indices.equal(other.indices) and alone.regions().equal(other.regions())
    assert not together.covered()[1, 300:].any()


@pytest.mark.parametrize("name", ALLOCATOR_CASES)
@torch.no_grad()
def test_a_map_without_numbers_or_without_differences_is_still_allocated(name: str) -> None:
    for value in (float("nan"), float("inf"), 0.0):
        given = large_context(1)
        given.relevance[:] = value
        done = fetched(given, 40, name)
        assert done.on_patches(done.used.float()).amax() == 1
        assert int(done.counts[0]) == 40 or name in CHOOSE_COUNTS


@pytest.mark.parametrize("gradient", ["straight_through", "soft"])
@pytest.mark.parametrize("name", ALLOCATOR_CASES)
def test_the_answers_loss_reaches_the_scorer_through_every_allocator(name: str, gradient: str) -> None:
    """Every patch of a fetched region; the weights are 1 exactly, or a soft top-K."""
    module = fetcher(gradient=gradient).train()
    done = module(large_context(), 40, FetchChoices(strategy="realizer", allocator=name))
    assert done.weights is not None and done.weights.shape == done.indices.shape
    if gradient == "straight_through":
        assert done.weights.eq(1).all() or name in CHOOSE_COUNTS
    (gradients,) = torch.autograd.grad((done.weights * torch.randn_like(done.weights)).sum(), done.scores)
    assert gradients.isfinite().all() and gradients[done.covered()].any()
    if gradient == "straight_through":
        assert (gradients != 0).equal(done.covered()), "and no other patch"


@pytest.mark.parametrize("name", ["topk", "tiers", "adaptive"])
@torch.no_grad()
def test_a_larger_budget_only_adds(name: str) -> None:
    given = large_context()
    covered = [fetched(given, budget, name).covered() for budget in (10, 40, 100, 400)]
    assert all((less & ~more).sum() == 0 for less, more in pairwise(covered))


class Choosing(torch.nn.Module):
    """Scores -> which tokens, as a graph."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.config = name, ArrCocFetcherConfig()

    def forward(self, scores: torch.Tensor) -> Any:
        ranked = ranked_scores(scores, scores > -9, None)
        known = {"relevance": scores.sigmoid()} if ALLOCATORS[self.name].detail else {}
        return choose(self.name)(ranked, 9, config=self.config, side=8, **known)


@pytest.mark.parametrize("name", ALLOCATOR_CASES)
@torch.no_grad()
def test_the_choice_is_exported_saved_and_loaded(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs, others = Choosing(name), torch.randn(2, 64), torch.randn(2, 64)
    torch.export.save(torch.export.export(module, (inputs,)), tmp_path / "choice.pt2")
    loaded = torch.export.load(tmp_path / "choice.pt2").module()
    for scores in (inputs, others):
        torch.testing.assert_close(loaded(scores), module(scores), rtol=0, atol=0)


def test_window_prefers_the_neighbours_of_what_was_chosen_to_the_patch_itself() -> None:
    """A word rarely ends at a patch's border: the patch beside four chosen ones beats a lone one."""
    scores = torch.zeros(8, 8)
    scores[2:4, 2:6] = 10.0  # a word, two patches high
    scores[2, 6], scores[7, 0] = 1.0, 1.1  # its last letter, and a speck
    flat, config = scores.view(1, -1), ArrCocFetcherConfig(window_gain=0.5)
    word = [18, 19, 20, 21, 26, 27, 28, 29]
    assert topk(flat, 9, config=config).tolist() == [[*word, 56]]
    assert window(flat, 9, config=config).tolist() == [sorted([*word, 22])]
    # Counted there, every first choice gained as much as a patch beside it, and a speck outlived the word's end.
    scores = torch.zeros(8, 8)
    scores[2, 2], scores[7, 0], scores[2, 3] = 10.0, 5.0, 4.0  # a letter, a speck, the next letter
    config = ArrCocFetcherConfig(window_gain=0.5, window_size=3)
    assert window(scores.view(1, -1), 2, config=config).tolist() == [[18, 19]]


@pytest.mark.parametrize("name", SINGLY)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_choice_does_not_depend_on_the_scale_of_the_scores(name: str, scale: float) -> None:
    """A gain in the units of the score was everything for a variance of 1e-3 and nothing for logits of 20."""
    scores, config = torch.randn(2, 64, dtype=torch.float64), ArrCocFetcherConfig()
    chosen = choose(name)(scores, 9, config=config)
    assert torch.equal(chosen, choose(name)(scores * scale, 9, config=config))


# ---- how many
def test_tiers_scale_with_the_patches_and_expected_counts_are_exact_under_autocast() -> None:
    assert tier_sizes(4096, 4096).tolist() == [64, 128, 256, 384, 400] == list(TIERS)
    assert tier_sizes(256, 20).tolist() == [4, 8, 16, 20, 20], "and keep to what may be fetched"
    # Trainer's bf16: as a matrix product, 273.5 fetched tokens were expected to be 274.
    with torch.autocast("cpu", torch.bfloat16):
        budgets = budgets_from_tiers(torch.tensor([[0.5, 0.5]]), torch.tensor([146, 401]))
    assert budgets.expected.dtype == torch.float32 and budgets.expected.item() == 273.5


def test_the_mass_decides_how_many() -> None:
    mass = torch.tensor([[0.0, 8, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])

    def counts(share: float, least: int = 0, most: int = 6) -> list[int]:
        return budgets_from_mass(mass, share, least=least, most=most).counts.tolist()

    assert counts(0.5) == [1, 3, 0] and counts(0.85) == [2, 6, 0] and counts(1.0) == [3, 6, 0]
    assert counts(0.5, least=2) == [2, 3, 2] and counts(0.85, most=4) == [2, 4, 0]
    # Rounding had left a rest, which no patch behind them held: all of the budget was taken.
    generator = torch.Generator().manual_seed(0)
    mass = torch.rand(200, 256, generator=generator) * (torch.arange(256) < 100)
    assert budgets_from_mass(mass, 1.0, least=1, most=256).counts.eq(100).all()


# ---- what is fetched
def questions_of(*lengths: int) -> FetchContext:
    """A context whose items have questions of these lengths, in tokens."""
    given = context(len(lengths))
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return replace(given, query=torch.randn(len(lengths), longest, D), query_mask=mask)


@torch.no_grad()
def test_longer_questions_get_more_by_the_heuristic() -> None:
    done = fetcher(tier_lengths=[2, 3, 5, 7])(questions_of(1, 2, 4, 6, 9), N, choices=FetchChoices(allocator="tiers"))
    assert done.counts.tolist() == tier_sizes(N, N).tolist() == [1, 2, 4, 6, 6]
    assert done.budget == 6 and done.used.sum(1).equal(done.counts) and done.wanted is done.counts
    assert not [name for name, _ in fetcher().named_parameters() if "budgeters" in name], "a rule has no weights"


@torch.no_grad()
def test_the_classifier_reads_the_question_and_the_gestalt() -> None:
    module, given = fetcher(tier_choice="classifier"), context()
    assert [name for name, _ in module.named_parameters() if name.startswith("budgeters.tiers.classifier.")]
    logits = module(given, N, choices=FetchChoices(allocator="tiers")).tier_logits
    assert logits.shape == (2, len(TIERS))
    for name in ("query", "features"):
        other = replace(given, **{name: torch.randn_like(getattr(given, name))})
        assert not torch.allclose(module(other, N, choices=FetchChoices(allocator="tiers")).tier_logits, logits)
    hidden = replace(given, query_mask=torch.tensor([[True] * 3 + [False] * 2] * 2))
    noisy = replace(hidden, query=given.query + torch.tensor([0.0, 0, 0, 9, 9])[:, None])
    first, second = (module(one, N, choices=FetchChoices(allocator="tiers")).tier_logits for one in (hidden, noisy))
    assert torch.equal(first, second), "what is no question was read"


@settings(deadline=None, max_examples=40)
@given(
    data=st.data(),
    allocator=st.sampled_from([name for name in sorted(ALLOCATORS) if name in CHOOSE_COUNTS]),
    strategy=st.sampled_from(FETCHING),
    with_taken=st.booleans(),
)
@torch.no_grad()
def test_items_get_their_best_patches(data: st.DataObject, allocator: str, strategy: str, with_taken: bool) -> None:
    """Distinct, ascending, none taken, padding last; as alone, whatever its neighbours get."""
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=3))
    given = complete(questions_of(*lengths))
    given = replace(given, patch_mask=torch.rand(len(lengths), N) < data.draw(st.sampled_from([0.05, 0.5, 1.0])))
    taken = torch.stack([torch.randperm(N)[:16].sort().values for _ in lengths]) if with_taken else None
    most = data.draw(st.integers(1, 40))
    module = everything(tier_lengths=[2, 3, 5, 7], adaptive_share=data.draw(st.sampled_from([0.02, 0.5])))
    choices = FetchChoices(strategy=strategy, allocator=allocator)
    done = module(given, most, taken=taken, choices=choices)
    widths = done.counts if done.room is None else done.room  # several tokens of a patch need a wider rectangle
    assert done.budget == int(widths.max()) <= most and (widths >= done.counts).all()
    for row, count in enumerate(done.counts.tolist()):
        chosen = done.indices[row, :count].tolist()
        assert count >= 1 and chosen == sorted(set(chosen))
        assert len(set(done.indices[row].tolist())) == done.budget, "what fills the rectangle is distinct too"
        blocked = set() if taken is None else set(taken[row].tolist())
        real = {i for i in range(N) if given.patch_mask[row, i]} - blocked
        assert not blocked & set(chosen) and len(real & set(chosen)) == min(count, len(real))
        rest = real - set(chosen)
        low = min((done.scores[row, i].item() for i in real & set(chosen)), default=0.0)
        assert all(done.scores[row, i].item() <= low for i in rest)
        one = given.select(torch.tensor([row]))
        alone = module(one, most, taken=None if taken is None else taken[row : row + 1], choices=choices)
        cut = done.select(torch.tensor([row]))
        assert cut.counts.tolist() == alone.counts.tolist() == [count] and alone.budget == int(widths[row])
        assert cut.budget == int(widths[row]) and (cut.room is None or cut.room.equal(alone.room))
        for name in ("indices", "is_padding", "positions"):
            assert getattr(cut, name)[:, :count].equal(getattr(alone, name)[:, :count])
