"""Budgets of their own for every item: what is trimmed, how many are chosen, what the choice learns from."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fetching import FETCHING, D, N, context, fetcher

from arr_coc.modeling.allocators import (
    ALLOCATORS,
    budgets_from_mass,
    budgets_from_tiers,
    chooses_counts,
    most_relevant_first,
    tier_sizes,
)
from arr_coc.modeling.configuration_arr_coc import TIERS, resolve_budget
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.prompt import trim_placeholders
from arr_coc.modeling.scorers import FetchContext

# ---- trimming placeholders

IMAGE, PAD, BASE = 9, 7, 2


def padded(rows: list[list[int]], side: str) -> dict[str, torch.Tensor]:
    """Prompts as a rectangle: input_ids, attention_mask, labels, query_mask and position_ids [B, S]."""
    longest = max(map(len, rows))

    def fill(values: list[list[int]], pad: int) -> torch.Tensor:
        pads = [[pad] * (longest - len(row)) for row in values]
        return torch.tensor([p + v if side == "left" else v + p for p, v in zip(pads, values, strict=True)])

    return {
        "input_ids": fill(rows, PAD),
        "attention_mask": fill([[1] * len(row) for row in rows], 0),
        "labels": fill([[-100 if i < len(row) - 1 else token for i, token in enumerate(row)] for row in rows], -100),
        "query_mask": fill([[int(token not in (IMAGE, 1)) for token in row] for row in rows], 0),
        "position_ids": fill([list(range(len(row))) for row in rows], 0),
    }


def row(texts: list[list[int]], counts: list[int]) -> list[int]:
    """Text, image, text, image, ..., text: images of BASE and these many saccades."""
    tokens = list(texts[0])
    for text, count in zip(texts[1:], counts, strict=True):
        tokens += [IMAGE] * (BASE + count) + text
    return tokens


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[list[int]]], list[list[int]], int]:
    """Texts of each prompt, the counts of its images, and K."""
    most = draw(st.integers(0, 5))
    counts = draw(st.lists(st.lists(st.integers(0, most), max_size=2), min_size=1, max_size=3).filter(any))
    text = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)
    return [[draw(text) for _ in range(len(some) + 1)] for some in counts], counts, most


@pytest.mark.parametrize("side", ["left", "right"])
@settings(deadline=None, max_examples=60)
@given(case=batches())
def test_trimming_gives_the_prompts_that_were_written_for_these_counts(
    side: str, case: tuple[list[list[list[int]]], list[list[int]], int]
) -> None:
    """Text, labels, mask and positions as if the processor had known the counts; images one after another included."""
    texts, counts, most = case
    full = [row(some, [most] * len(each)) for some, each in zip(texts, counts, strict=True)]
    wanted = [row(some, each) for some, each in zip(texts, counts, strict=True)]
    trimmed = trim_placeholders(
        counts=torch.tensor([c for each in counts for c in each]), image_token_id=IMAGE, base_positions=BASE,
        pad_token_id=PAD, **padded(full, side),
    )  # fmt: skip
    expected = padded(wanted, side if len({*map(len, full)}) > 1 else "left")
    assert trimmed.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(trimmed[name], tensor), name


def test_without_a_mask_every_token_counts_and_one_is_made() -> None:
    ids = torch.tensor([[1, 9, 9, 9, 9, 2], [1, 9, 9, 9, 9, 3]])
    trimmed = trim_placeholders(ids, torch.tensor([2, 0]), image_token_id=9, base_positions=2, labels=None)
    assert trimmed["input_ids"].tolist() == [[1, 9, 9, 9, 9, 2], [0, 0, 1, 9, 9, 3]]
    assert trimmed["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]
    assert set(trimmed) == {"input_ids", "attention_mask"}


def test_a_hole_in_the_mask_stays_where_it_is() -> None:
    """[prefix][padding][question], as a kept prefix is continued: the padding in the middle is no edge."""
    ids, mask = torch.tensor([[9, 9, 9, 7, 2, 3]]), torch.tensor([[1, 1, 1, 0, 1, 1]])
    trimmed = trim_placeholders(ids, torch.tensor([0]), image_token_id=9, base_positions=2, attention_mask=mask)
    assert trimmed["input_ids"].tolist() == [[9, 9, 7, 2, 3]]
    assert trimmed["attention_mask"].tolist() == [[1, 1, 0, 1, 1]]


@pytest.mark.parametrize("counts", [[-1], [3]])
def test_counts_outside_the_placeholders_are_refused(counts: list[int]) -> None:
    ids = torch.tensor([[9, 9, 9, 9, 2]])
    with pytest.raises(ValueError, match=rf"^counts: expected 0 to 2 saccades per image; got \[{counts[0]}\]$"):
        trim_placeholders(ids, torch.tensor(counts), image_token_id=9, base_positions=2)


def test_tensors_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^labels: expected shape \[1, 4\], that of input_ids; got \[1, 3\]$"):
        trim_placeholders(
            torch.tensor([[9, 9, 9, 2]]), torch.tensor([0]), image_token_id=9, base_positions=2,
            labels=torch.zeros(1, 3),
        )  # fmt: skip


# ---- how many


def test_tiers_scale_with_the_patches() -> None:
    assert tier_sizes(4096, 4096).tolist() == [64, 128, 256, 384, 400] == list(TIERS)
    assert tier_sizes(256, 20).tolist() == [4, 8, 16, 20, 20], "and keep to what may be fetched"


@pytest.mark.parametrize(("budget", "count"), [("auto", 25), ("tier:64", 4), ("tier:400", 25)])
def test_a_tier_is_a_budget_too(budget: str, count: int) -> None:
    assert resolve_budget(budget, 256) == count
    with pytest.raises(ValueError, match="tier:64, tier:128.*; got 'tier:65'$"):
        resolve_budget("tier:65", 256)


def test_the_most_probable_tier_is_taken_and_every_rank_survives_as_often_as_it_is_fetched() -> None:
    budgets = budgets_from_tiers(torch.tensor([[0.5, 0.2, 0.3], [0.0, 0.5, 0.5]]), torch.tensor([1, 2, 4]))
    assert budgets.counts.tolist() == [1, 2], "equally probable: the smaller"
    expected = torch.tensor([[1.0, 0.5, 0.3, 0.3], [1.0, 1.0, 0.5, 0.5]])
    assert torch.allclose(budgets.survival, expected)
    assert torch.allclose(budgets.survival.sum(1), torch.tensor([0.5 + 0.4 + 1.2, 1.0 + 2.0]))  # the expectation of K


def test_expected_counts_are_exact_under_autocast() -> None:
    """Trainer's bf16: as a matrix product, 273.5 saccades were expected to be 274."""
    with torch.autocast("cpu", torch.bfloat16):
        budgets = budgets_from_tiers(torch.tensor([[0.5, 0.5]]), torch.tensor([146, 401]))
    assert budgets.expected.dtype == torch.float32 and budgets.expected.item() == 273.5


def test_the_mass_decides_how_many() -> None:
    mass = torch.tensor([[0.0, 8, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])

    def counts(share: float, least: int = 0, most: int = 6) -> list[int]:
        return budgets_from_mass(mass, share, least=least, most=most).counts.tolist()

    assert counts(0.5) == [1, 3, 0] and counts(0.85) == [2, 6, 0] and counts(1.0) == [3, 6, 0]
    assert counts(0.5, least=2) == [2, 3, 2] and counts(0.85, most=4) == [2, 4, 0]


def test_all_of_the_mass_is_every_patch_that_holds_some() -> None:
    """Rounding had left a rest, which no patch behind them held: all of the budget was taken."""
    generator = torch.Generator().manual_seed(0)
    mass = torch.rand(200, 256, generator=generator) * (torch.arange(256) < 100)
    assert budgets_from_mass(mass, 1.0, least=1, most=256).counts.eq(100).all()


def test_the_soft_count_follows_the_mass() -> None:
    spread = torch.full((1, 64), 0.5)
    sharp = spread.clone()
    sharp[0, 4:] = 1e-3
    soft = [budgets_from_mass(mass, 0.9, least=2, most=40).survival for mass in (spread, sharp)]
    assert soft[0].shape == (1, 40) and (soft[0].diff() <= 0).all() and (soft[0][:, :2] == 1).all()
    assert soft[0].sum() > 35 and 2 < soft[1].sum() < 10


def test_the_expected_count_of_ones_and_zeros_is_their_share() -> None:
    mass = torch.zeros(2, 64)
    mass[0, 10:40] = 1
    budgets = budgets_from_mass(mass, 0.9, least=2, most=20)
    assert budgets.expected.tolist() == [27, 2] and budgets.counts.tolist() == [20, 2]
    assert budgets_from_mass(mass, 0.9, least=2, most=40).counts.tolist() == [27, 2]


def test_relevance_elsewhere_raises_the_expected_count_and_relevance_on_top_lowers_it() -> None:
    """Of the soft count, which the answer's loss moves."""
    mass = torch.linspace(1, 0.1, 64)[None].requires_grad_()
    budgets_from_mass(mass, 0.5, least=1, most=40).survival.sum().backward()
    assert mass.grad[0, 0] < 0 < mass.grad[0, -1]


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
    hidden = replace(given, query_mask=torch.tensor([[True] * 3 + [False]] * 2))
    noisy = replace(hidden, query=given.query + torch.tensor([0.0, 0, 0, 9])[:, None])
    first, second = (module(one, N, choices=FetchChoices(allocator="tiers")).tier_logits for one in (hidden, noisy))
    assert torch.equal(first, second), "what is no question was read"


@settings(deadline=None, max_examples=40)
@given(
    data=st.data(),
    allocator=st.sampled_from([name for name in sorted(ALLOCATORS) if chooses_counts(name)]),
    strategy=st.sampled_from(FETCHING),
    with_taken=st.booleans(),
)
@torch.no_grad()
def test_every_item_gets_exactly_its_count_of_its_best_patches(
    data: st.DataObject, allocator: str, strategy: str, with_taken: bool
) -> None:
    """Distinct, ascending, none taken, padding last; as alone, whatever its neighbours get."""
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=3))
    given = questions_of(*lengths)
    given = replace(given, patch_mask=torch.rand(len(lengths), N) < data.draw(st.sampled_from([0.05, 0.5, 1.0])))
    taken = torch.stack([torch.randperm(N)[:16].sort().values for _ in lengths]) if with_taken else None
    most = data.draw(st.integers(1, 40))
    module = fetcher(tier_lengths=[2, 3, 5, 7], adaptive_share=data.draw(st.sampled_from([0.02, 0.5])))
    done = module(given, most, taken=taken, choices=FetchChoices(strategy=strategy, allocator=allocator))
    assert done.budget == int(done.counts.max()) <= most
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
        alone = module(
            one,
            most,
            taken=None if taken is None else taken[row : row + 1],
            choices=FetchChoices(strategy=strategy, allocator=allocator),
        )
        cut = done.select(torch.tensor([row]))
        assert cut.indices.equal(alone.indices) and cut.budget == alone.budget == count
        assert cut.is_padding.equal(alone.is_padding) and cut.positions.equal(alone.positions)


def test_most_relevant_first_keeps_both_parts_ascending() -> None:
    scores = torch.tensor([[1.0, 5, 3, 5, 0]])
    indices, rank = most_relevant_first(scores, torch.tensor([[0, 1, 2, 3]]), torch.tensor([2]))
    assert indices.tolist() == [[1, 3, 0, 2]] and rank.tolist() == [[0, 1, 3, 2]]
