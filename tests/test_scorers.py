"""Scorers: every patch of every item gets a score that only its own image and question decide."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.modeling.patch_scorers import position_code
from arr_coc.modeling.scorers import (
    EMPTY,
    SCORERS,
    FetchContext,
    RelativeBias,
    Scorer,
    relative_buckets,
    wave_code,
)
from arr_coc.modeling.vision_tower import TEXTURE_SETS, TEXTURES
from arr_coc.modeling.wordpieces import PIECE_SLOTS, SPELLED

SCORER_CASES = {
    "none": {"trained": False, "fetches": False},
    "random": {"trained": False, "fetches": True},
    "saliency": {"trained": False, "fetches": True},
    "variance": {"trained": False, "fetches": True},
    "oracle": {"trained": False, "fetches": True},
    "clip_query": {"trained": True, "fetches": True},
    "realizer": {"trained": True, "fetches": True},
    "words": {"trained": True, "fetches": True},
    "compositional": {"trained": True, "fetches": True},
    "contextual": {"trained": True, "fetches": True},
    "shannon_jung_vervaeke": {"trained": True, "fetches": True},
    "hierarchical": {"trained": True, "fetches": True},
    "experts": {"trained": True, "fetches": True},
    "attention": {"trained": False, "fetches": True},
}
TRAINED = [name for name, case in SCORER_CASES.items() if case["trained"]]
C, D, W, SIDE, LENGTH = 12, 10, 14, 8, 5
ROWS = 40
"""Of the language model's table; row 0 stands for no wordpiece."""
PIXEL_TEXTURES = len(TEXTURE_SETS["full"])


def config(**changes: Any) -> ArrCocFetcherConfig:
    sizes = {"hidden_size": 16, "num_heads": 2, "num_layers": 2, "position_size": 8, "shared_size": 8, "key_pool": 2}
    return ArrCocFetcherConfig(**{**sizes, "match_size": 8, **changes})


def build(name: str, **changes: Any) -> Scorer:
    torch.manual_seed(0)
    depth: dict[str, Any] = {"depth_size": W} if SCORERS[name].reads_depths else {}
    scorer = SCORERS[name](config(**changes), feature_size=C, text_size=D, **depth)
    with torch.no_grad():
        for module in scorer.modules():
            if hasattr(module, "start_weights"):  # as the model's _init_weights does
                module.start_weights(0.02)
    return scorer.eval()


def context(batch: int = 3, side: int = SIDE, seed: int = 0) -> FetchContext:
    generator = torch.Generator().manual_seed(seed)
    query_mask = torch.arange(LENGTH).expand(batch, -1) < torch.tensor([3, 5, 2, 4])[:batch, None]
    patch_mask = torch.ones(batch, side * side, dtype=torch.bool)
    patch_mask[0, : 2 * side] = False
    words = torch.Generator().manual_seed(seed + 1)
    query_ids = torch.randint(1, ROWS, (batch, LENGTH), generator=words)
    pieces = torch.randint(1, ROWS, (batch, side * side, 2, PIECE_SLOTS), generator=words, dtype=torch.int32)
    empty = torch.rand(pieces.shape, generator=words) < 0.8
    return FetchContext(
        features=torch.randn(batch, C, side, side, generator=generator),
        textures=torch.rand(batch, PIXEL_TEXTURES, side, side, generator=generator),
        patch_mask=patch_mask,
        query=torch.randn(batch, LENGTH, D, generator=generator),
        query_mask=query_mask,
        seeds=torch.arange(batch) + 7,
        relevance=torch.rand(batch, side * side, generator=generator),
        depths=torch.randn(batch, 2, W, side, side, generator=generator),
        attention=torch.rand(batch, side * side, generator=generator),
        pieces=pieces.masked_fill(empty, -1),
        table=torch.randn(ROWS, D, generator=words),
        query_ids=query_ids,
        spellings=torch.randint(34, 60, (ROWS, SPELLED), generator=words, dtype=torch.uint8).index_fill(
            0, torch.tensor([0]), 0
        ),
    )


def rows(context: FetchContext, index: list[int]) -> FetchContext:
    return context.select(torch.tensor(index))


def test_every_scorer_is_tested() -> None:
    assert set(SCORER_CASES) == set(SCORERS)


@pytest.mark.parametrize("name", SCORER_CASES)
def test_what_a_scorer_says_of_itself(name: str) -> None:
    scorer = build(name)
    assert {"trained": scorer.trained, "fetches": scorer.fetches} == SCORER_CASES[name]
    assert scorer.trained == any(True for _ in scorer.parameters())


@pytest.mark.parametrize("name", SCORER_CASES)
@pytest.mark.parametrize("side", [4, 8])
def test_one_finite_float32_score_per_patch(name: str, side: int) -> None:
    scores = build(name)(context(side=side))
    assert scores.shape == (3, side * side) and scores.dtype == torch.float32 and scores.isfinite().all()


@pytest.mark.parametrize("name", SCORER_CASES)
@torch.no_grad()
def test_scores_do_not_depend_on_batch_neighbours(name: str) -> None:
    """BatchNorm and a min-max over the whole batch once let items influence each other (DESIGN 5)."""
    scorer, whole = build(name), context()
    whole.features[1] *= 100  # a loud neighbour
    together = scorer(whole)
    for i in range(3):
        assert torch.allclose(together[i], scorer(rows(whole, [i]))[0], atol=1e-5)
    assert torch.allclose(together[[2, 0, 1]], scorer(rows(whole, [2, 0, 1])), atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
@torch.no_grad()
def test_tokens_outside_the_question_are_not_read(name: str) -> None:
    """The answer is in the same row during training: reading it would make a perfect scorer that knows nothing."""
    scorer, whole = build(name), context()
    leaked = whole.query.masked_fill(~whole.query_mask[..., None], 50.0)
    ids = whole.query_ids.where(whole.query_mask, whole.pieces[:, 0].amax((1, 2))[:, None].clamp(min=1))
    assert torch.allclose(scorer(whole), scorer(replace(whole, query=leaked, query_ids=ids)), atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
@torch.no_grad()
def test_padding_of_the_question_changes_nothing(name: str) -> None:
    scorer, whole = build(name), context()
    wider = replace(
        whole,
        query=F.pad(whole.query, (0, 0, 0, 4)),
        query_mask=F.pad(whole.query_mask, (0, 4)),
        query_ids=F.pad(whole.query_ids, (0, 4)),
    )
    assert torch.allclose(scorer(whole), scorer(wider), atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
@torch.no_grad()
def test_the_question_matters(name: str) -> None:
    scorer, whole = build(name), context()
    other = scorer(replace(whole, query=whole.query.flip(0), query_mask=torch.ones_like(whole.query_mask)))
    assert not torch.allclose(scorer(whole), other, atol=1e-3)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("length", [0, LENGTH])
def test_an_empty_question_gives_finite_scores_and_gradients(name: str, length: int) -> None:
    """A softmax over no keys is NaN, and one NaN row spoils the gradients of the whole batch."""
    scorer, whole = build(name), context()
    mask = whole.query_mask.clone()
    mask[1] = False
    empty = replace(
        whole, query=whole.query[:, :length], query_mask=mask[:, :length], query_ids=whole.query_ids[:, :length]
    )
    scores = scorer(empty)
    scores.square().sum().backward()
    assert scores.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in scorer.parameters())


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_reach_every_parameter(name: str) -> None:
    """A part created inside `forward` or left out of the sum is never trained, and nothing says so."""
    scorer = build(name)
    target = torch.rand(3, SIDE * SIDE)
    F.binary_cross_entropy_with_logits(scorer(context()), target).backward()
    idle = [n for n, p in scorer.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle


@pytest.mark.parametrize("name", SCORER_CASES)
def test_a_blank_image_and_one_of_padding_alone_give_finite_scores_and_gradients(name: str) -> None:
    """Nothing varies, so deviations are 0, and the slope of their root was infinite; ranges were 0 / 0."""
    scorer, whole = build(name), context()
    blank = replace(
        whole,
        features=torch.zeros_like(whole.features),
        textures=torch.zeros_like(whole.textures),
        query=torch.zeros_like(whole.query),
        depths=torch.zeros(3, 2, W, SIDE, SIDE),
        patch_mask=whole.patch_mask & torch.tensor([[True], [False], [True]]),
        pieces=torch.full_like(whole.pieces, -1),
    )
    scores = scorer.train()(blank)
    assert scores.isfinite().all()
    if scorer.trained:
        scores.square().sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in scorer.parameters())


@pytest.mark.parametrize("name", sorted({*SCORER_CASES} - {"realizer", "words"}))  # attend to all patches
@torch.no_grad()
def test_what_stands_in_padding_changes_no_score_of_the_image(name: str) -> None:
    scorer, whole = build(name), context()
    other, real = context(), whole.patch_mask
    for tensor in (other.features, other.textures, *other.depths.unbind(1)):  # views: written in place
        tensor[0].flatten(1)[:, ~real[0]] = 7.0
    assert torch.allclose(scorer(whole)[real], scorer(other)[real], atol=1e-4)


@pytest.mark.parametrize("name", TRAINED)
def test_weights_that_are_saved_and_loaded_give_the_same_scores(name: str) -> None:
    scorer, other = build(name), build(name)
    for parameter in other.parameters():
        parameter.data.add_(1.0)
    other.load_state_dict(scorer.state_dict())
    assert torch.equal(other(context()), scorer(context()))


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_gives_finite_float32_scores(name: str, dtype: torch.dtype) -> None:
    whole = context()
    half = replace(whole, **{name: getattr(whole, name).to(dtype) for name in ("features", "query", "depths", "table")})
    scores = build(name).to(dtype)(half)
    assert scores.dtype == torch.float32 and scores.isfinite().all()
    assert torch.allclose(scores, build(name)(whole), atol=0.3)


def test_none_says_nothing() -> None:
    assert not build("none")(context()).any()


def test_random_depends_on_the_items_seed_and_on_nothing_else() -> None:
    scorer, whole = build("random"), context()
    first = scorer(whole)
    torch.manual_seed(99)
    torch.rand(3)
    assert torch.equal(first, scorer(replace(whole, features=whole.features + 1)))
    assert not torch.equal(first, scorer(replace(whole, seeds=whole.seeds + 1)))
    assert not torch.equal(first[0], first[1])


def test_random_takes_a_generator() -> None:
    scorer, whole = build("random"), context()

    def draw(seed: int) -> torch.Tensor:
        return scorer(replace(whole, generator=torch.Generator().manual_seed(seed)))

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))


def test_saliency_is_the_edge_channel() -> None:
    whole = context()
    whole.textures.zero_()
    whole.textures[:, TEXTURES.index("edge_magnitude"), 3, 5] = 1.0
    assert build("saliency")(whole).argmax(-1).tolist() == [3 * SIDE + 5] * 3


def test_saliency_of_an_image_thinner_than_a_patch_and_its_neighbours_is_its_edges() -> None:
    """Every patch of a single row touches padding: without an exception for such images all of them scored 0."""
    whole = context()
    whole.patch_mask[0], whole.patch_mask[0, 3 * SIDE : 4 * SIDE] = False, True
    scores = build("saliency")(whole).view(3, SIDE, SIDE)
    edges = whole.textures[:, TEXTURES.index("edge_magnitude")]
    assert torch.equal(scores[0, 3], edges[0, 3]) and torch.equal(scores[1:], edges[1:])
    whole.patch_mask[1, :SIDE] = (
        False  # a page with room: what touches padding stays 0, whatever its neighbour in the batch
    )
    assert not build("saliency")(whole).view(3, SIDE, SIDE)[1, :2].any()


def test_variance_finds_the_odd_patch_and_ignores_padding() -> None:
    """A page of padding pulled the mean so far that every real patch looked odd."""
    whole = context()
    whole.features.fill_(1.0)
    whole.features[:, :, 6, 2] = 3.0
    whole.features[0].flatten(1)[:, ~whole.patch_mask[0]] = -50.0
    scores = build("variance")(whole).masked_fill(~whole.patch_mask, -1.0)
    assert scores.argmax(-1).tolist() == [6 * SIDE + 2] * 3
    assert scores[0].max() < 5


def test_oracle_needs_boxes_and_returns_them() -> None:
    whole = context()
    assert torch.equal(build("oracle")(whole), whole.relevance)
    with pytest.raises(ValueError, match=r'^strategy "oracle": expected boxes .*; got none$'):
        build("oracle")(replace(whole, relevance=None))


@pytest.mark.parametrize("pool", [1, 2, 3])
def test_position_codes_are_y_then_x_and_near_places_are_alike(pool: int) -> None:
    """Runs of `pool` patches along a row share a key; rows stay apart, so that the lines of a page do."""
    code = position_code(8, 16, device=torch.device("cpu"), pool=pool)
    grid = code.view(8, -1, 16)
    assert grid.shape[1] == -(-8 // pool)
    assert torch.equal(grid[1, 0, :8], grid[1, 2, :8]), "the first half says y"
    assert torch.equal(grid[0, 1, 8:], grid[2, 1, 8:]), "the second half says x"
    likeness = code @ code.t()
    assert likeness.argmax(-1).tolist() == list(range(len(code)))


@pytest.mark.parametrize(("pool", "centres"), [(2, [0.5, 2.5, 4.5, 6.5]), (3, [1.0, 4.0, 6.5])])
def test_a_pooled_key_stands_at_the_centre_of_its_run(pool: int, centres: list[float]) -> None:
    """At the run's first patch, all that a row's patches see of each other would be shifted by half a run."""
    code = position_code(8, 16, device=torch.device("cpu"), pool=pool).view(8, -1, 16)
    assert torch.allclose(code[3, :, 8:], wave_code(torch.tensor(centres), 8), atol=1e-6)


def test_even_heads_start_with_their_row_and_odd_heads_with_their_column() -> None:
    layer = build("realizer").layers[0]
    code = position_code(SIDE, 8, device=torch.device("cpu"))
    logits = (code @ layer.query_position) @ (code @ layer.key_position).transpose(1, 2)
    by_head = logits.view(2, SIDE, SIDE, SIDE, SIDE)[:, 3, 4].detach()  # of the patch at (3, 4)
    assert torch.allclose(by_head[0, 3], by_head[0, 3, 4]) and by_head[0, 3, 0] > by_head[0, 5, 4]
    assert torch.allclose(by_head[1, :, 4], by_head[1, 3, 4]) and by_head[1, 0, 4] > by_head[1, 3, 6]


def pages(count: int, generator: torch.Generator, *, kinds: int = 6) -> tuple[FetchContext, torch.Tensor]:
    """Toy pages, 8 x 8: on each of four rows a label of some kind and, somewhere to its right, a value like any other.

    Labels and values are both seen and read. The question names one label's kind. Returns the context and the patches
    of that label and its value, [B, 2].
    """
    looks = torch.randn(kinds + 1, C, generator=torch.Generator().manual_seed(1))
    words = torch.randn(kinds, D, generator=torch.Generator().manual_seed(2))
    features = 0.1 * torch.randn(count, SIDE, SIDE, C, generator=generator)
    kind = torch.stack([torch.randperm(kinds, generator=generator)[:4] for _ in range(count)])
    lines = torch.stack([torch.randperm(SIDE, generator=generator)[:4] for _ in range(count)])
    places = torch.randint(2, SIDE, (count, 4), generator=generator)
    item = torch.arange(count)
    pieces = torch.full((count, SIDE, SIDE, 2, PIECE_SLOTS), -1, dtype=torch.int32)
    for line in range(4):
        features[item, lines[:, line], 0] += looks[kind[:, line]]
        features[item, lines[:, line], places[:, line]] += looks[-1]
        pieces[item, lines[:, line], 0, 1, 0] = 1 + kind[:, line].int()
        pieces[item, lines[:, line], places[:, line], 1, 0] = 1 + kinds
    features = features.permute(0, 3, 1, 2)
    wanted = torch.stack((lines[:, 0] * SIDE, lines[:, 0] * SIDE + places[:, 0]), 1)
    toy = FetchContext(
        features=features,
        textures=torch.zeros(count, PIXEL_TEXTURES, SIDE, SIDE),
        patch_mask=torch.ones(count, SIDE * SIDE, dtype=torch.bool),
        query=words[kind[:, 0]][:, None],
        query_mask=torch.ones(count, 1, dtype=torch.bool),
        seeds=item,
        depths=F.pad(features, (0, 0, 0, 0, 0, W - C))[:, None].expand(-1, 2, -1, -1, -1),
        pieces=pieces.flatten(1, 2),
        table=torch.cat((looks[:1, :D], words, looks[-1:, :D])),
    )
    return toy, wanted


def train(scorer: Scorer, steps: int, targets: slice, rate: float) -> torch.Tensor:
    """Trains on toy pages; returns the wanted patches' ranks on unseen pages, [B, targets]."""
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=rate)
    for _ in range(steps):
        toy, wanted = pages(32, generator)
        goal = torch.zeros(32, SIDE * SIDE).scatter_(1, wanted[:, targets], 1.0)
        loss = F.binary_cross_entropy_with_logits(scorer(toy), goal, pos_weight=torch.tensor(8.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        toy, wanted = pages(128, torch.Generator().manual_seed(4))
        scores = scorer(toy)
        return (scores[:, None] > scores.gather(1, wanted[:, targets])[..., None]).sum(-1)


@pytest.mark.parametrize("name", sorted({*TRAINED} - {"realizer"}))
def test_each_learns_to_find_the_label_far_above_chance(name: str) -> None:
    """The sketch compared unrelated spaces ("first 512 dims of SAM"): no better than chance, and untrainable."""
    ranks = train(build(name), 160, slice(0, 1), 1e-2)
    assert (ranks == 0).float().mean() > 0.8  # chance: 1 in 64, and 1 in 8 of the patches with text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["realizer", "words"])
def test_relevance_learns_to_travel_from_a_label_to_the_value_on_its_row(name: str) -> None:
    """Two hops (PROTOTYPE): without an explicit position term it finds some value and ignores the question, 1 in 4."""
    ranks = train(build(name, key_pool=1, hidden_size=32), 700, slice(0, 2), 3e-3)
    assert (ranks < 2).float().mean(0)[1] > 0.8


# ---- what is read


def named_pages(count: int, table: torch.Tensor, generator: torch.Generator) -> tuple[FetchContext, torch.Tensor]:
    """Pages that show one word of `table` [V, D] in each patch; the question is one of them, behind a frequent one.

    Returns the context and the patch of that word, [B].
    """
    shown = torch.stack([2 + torch.randperm(len(table) - 2, generator=generator)[: SIDE * SIDE] for _ in range(count)])
    wanted = torch.randint(1, SIDE * SIDE, (count,), generator=generator)
    shown[:, 0] = 1  # the frequent word is on every page
    pieces = torch.full((count, SIDE * SIDE, 2, PIECE_SLOTS), -1, dtype=torch.int32)
    pieces[:, :, 1, 0] = shown
    query = table[torch.stack((torch.ones_like(wanted), shown[torch.arange(count), wanted]), 1)]
    toy = FetchContext(
        features=torch.zeros(count, C, SIDE, SIDE),
        textures=torch.zeros(count, PIXEL_TEXTURES, SIDE, SIDE),
        patch_mask=torch.ones(count, SIDE * SIDE, dtype=torch.bool),
        query=query,
        query_mask=torch.ones(count, 2, dtype=torch.bool),
        seeds=torch.arange(count),
        pieces=pieces,
        table=table,
    )
    return toy, wanted


def test_words_finds_words_that_training_never_showed() -> None:
    """An attention over the question learnt a table of its 40 names: other names were found in 3 of 100 (issue 37)."""
    words = torch.randn(400, D, generator=torch.Generator().manual_seed(5))
    seen, unseen = words[:200], torch.cat((words[:2], words[200:]))
    scorer = build("words", num_layers=1)
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(6)
    for _ in range(150):
        toy, wanted = named_pages(16, seen, generator)
        loss = F.cross_entropy(scorer(toy), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        toy, wanted = named_pages(64, unseen, generator)
        found = (scorer(toy).argmax(1) == wanted).float().mean()
    assert found > 0.8  # chance: 1 in 64


def test_words_needs_what_was_read() -> None:
    with pytest.raises(ValueError, match='^strategy "words": expected an encoding with wordpieces; got one without$'):
        build("words")(replace(context(), pieces=None))


@torch.no_grad()
def test_the_spelling_of_the_question_is_read_where_its_tokens_are_known() -> None:
    """Other tokens with the same letters (issue 37): their embeddings say nothing of each other."""
    scorer, whole = build("words"), context()
    scorer.similarities.weight[:, :2] = 0.0
    spelled = replace(whole, spellings=whole.spellings.clone(), query_mask=torch.ones_like(whole.query_mask))
    spelled.spellings[int(whole.query_ids[0, 0])] = whole.spellings[int(whole.pieces[0].amax())]
    assert not torch.allclose(scorer(spelled)[0], scorer(replace(spelled, query_ids=None))[0], atol=1e-3)


@torch.no_grad()
def test_only_patches_with_text_are_scored_and_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, (toy, _) = build("words"), named_pages(3, torch.randn(90, D), torch.Generator())
    some = torch.rand(toy.pieces.shape[:2], generator=torch.Generator().manual_seed(1)) < 0.4
    some[2] = False  # a page without text
    toy = replace(toy, pieces=toy.pieces.masked_fill(~some[..., None, None], -1))
    scores = scorer(toy)
    assert torch.equal(scores > EMPTY, some) and (scores[~some] == EMPTY).all()
    assert torch.equal(scorer(replace(toy, features=torch.randn(3, C, SIDE, SIDE))), scores)  # of text alone
    torch.testing.assert_close(scorer(rows(toy, [0])), scores[:1])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # where data may not decide shapes
    torch.testing.assert_close(scorer(toy), scores)


@torch.no_grad()
def test_one_page_is_given_once_for_several_questions() -> None:
    scorer, whole = build("words"), context()
    assert whole.pieces is not None
    once = replace(whole, pieces=whole.pieces[:1], patch_mask=whole.patch_mask[:1].expand(3, -1))
    torch.testing.assert_close(scorer(once), scorer(replace(once, pieces=whole.pieces[:1].expand(3, -1, -1, -1))))


def test_buckets_tell_near_places_apart_and_are_the_same_both_ways() -> None:
    side = 64
    index = torch.arange(side * side).view(side, side)[32:34].reshape(1, -1)
    buckets = relative_buckets(index, side)[0]
    assert torch.equal(buckets + buckets.t(), torch.full_like(buckets, int(2 * buckets[0, 0])))
    row = buckets[10, :side]
    assert row[5:16].unique().numel() == 11 and row[51:].unique().numel() == 1  # 41 columns away or more
    assert not set(row.tolist()) & set(buckets[10, side:].tolist())
    corner = relative_buckets(torch.tensor([[0, side * side - 1]]), side)
    assert corner.min() == 0 and corner.max() == RelativeBias(2).num_embeddings - 1


@pytest.mark.parametrize(("head", "nearest"), [(0, (3, 2)), (1, (3, 4)), (2, (2, 3)), (3, (4, 3)), (4, (3, 3))])
def test_heads_start_with_one_direction_each(head: int, nearest: tuple[int, int]) -> None:
    """Left, right, above, below, near: a value stands to the right of its label, or below it."""
    bias = build("words", num_heads=8).page_layer.relative
    weights = bias(relative_buckets(torch.arange(SIDE * SIDE)[None], SIDE))[0, 3 * SIDE + 3, :, head]
    assert divmod(int(weights.argmax()), SIDE) == nearest
