"""Scorers: every patch of every item gets a score that only its own image and question decide."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fetching import LENGTH, PIXEL_TEXTURES, SIDE, C, D, W, build
from fetching import unequal_context as context
from helpers import Calls, tiny_model
from torch import nn

from arr_coc.families.relevance_maps import TEXTURES
from arr_coc.model_summary import generated_image
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.patch_scorers import AttentionRecorder, attention_weights, on_fine_grid, position_code
from arr_coc.modeling.scorers import EMPTY, SCORERS, FetchContext, Scorer
from arr_coc.modeling.wordpieces import PIECE_SLOTS

TRAINED = "clip_query realizer words compositional contextual shannon_jung_vervaeke hierarchical experts".split()
SCORER_CASES = ["none", "random", "saliency", "variance", "oracle", *TRAINED, "attention"]


def rows(context: FetchContext, index: list[int]) -> FetchContext:
    return context.select(torch.tensor(index))


def test_every_scorer_is_tested() -> None:
    assert set(SCORER_CASES) == set(SCORERS)


@pytest.mark.parametrize("name", SCORER_CASES)
@pytest.mark.parametrize("side", [4, 8])
def test_one_finite_float32_score_per_patch(name: str, side: int) -> None:
    scorer = build(name)
    assert scorer.trained == (name in TRAINED) == any(True for _ in scorer.parameters())
    assert scorer.fetches == (name != "none")
    scores = scorer(context(side=side))
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
def test_the_question_matters_and_tokens_outside_it_are_not_read(name: str) -> None:
    """The answer is in the same row during training: reading it would make a perfect scorer that knows nothing."""
    scorer, whole = build(name), context()
    leaked = whole.query.masked_fill(~whole.query_mask[..., None], 50.0)
    ids = whole.query_ids.where(whole.query_mask, whole.pieces[:, 0].amax((1, 2))[:, None].clamp(min=1))
    assert torch.allclose(scorer(whole), scorer(replace(whole, query=leaked, query_ids=ids)), atol=1e-5)
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
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_gives_finite_float32_scores(name: str, dtype: torch.dtype) -> None:
    whole = context()
    half = replace(whole, **{name: getattr(whole, name).to(dtype) for name in ("features", "query", "depths", "table")})
    scores = build(name).to(dtype)(half)
    assert scores.dtype == torch.float32 and scores.isfinite().all()
    assert torch.allclose(scores, build(name)(whole), atol=0.3)


def test_saliency_is_the_edge_channel() -> None:
    whole = context()
    whole.textures.zero_()
    whole.textures[:, TEXTURES.index("edge_magnitude"), 3, 5] = 1.0
    assert build("saliency")(whole).argmax(-1).tolist() == [3 * SIDE + 5] * 3
    # Every patch of a single row touches padding: without an exception for such images all of them scored 0.
    whole = context()
    whole.patch_mask[0], whole.patch_mask[0, 3 * SIDE : 4 * SIDE] = False, True
    scores = build("saliency")(whole).view(3, SIDE, SIDE)
    edges = whole.textures[:, TEXTURES.index("edge_magnitude")]
    assert torch.equal(scores[0, 3], edges[0, 3]) and torch.equal(scores[1:], edges[1:])
    # A page with room: what touches padding stays 0, whatever its neighbour in the batch.
    whole.patch_mask[1, :SIDE] = False
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


@torch.no_grad()
def test_words_reads_the_spelling_of_the_question_and_needs_what_was_read() -> None:
    """Other tokens with the same letters (issue 37): their embeddings say nothing of each other."""
    scorer, whole = build("words"), context()
    scorer.similarities.weight[:, :2] = 0.0
    spelled = replace(whole, spellings=whole.spellings.clone(), query_mask=torch.ones_like(whole.query_mask))
    spelled.spellings[int(whole.query_ids[0, 0])] = whole.spellings[int(whole.pieces[0].amax())]
    assert not torch.allclose(scorer(spelled)[0], scorer(replace(spelled, query_ids=None))[0], atol=1e-3)
    with pytest.raises(ValueError, match='^strategy "words": expected an encoding with wordpieces; got one without$'):
        build("words")(replace(context(), pieces=None))


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


# ---- Keys and values through a latent: the option of the scorers' and the bridges' attention
@pytest.mark.parametrize("name", ["realizer", "experts"])
def test_a_narrow_latent_has_fewer_weights_and_all_of_them_learn(name: str) -> None:
    plain, latent = build(name), build(name, latent_size=4)
    count = [sum(parameter.numel() for parameter in scorer.parameters()) for scorer in (plain, latent)]
    assert count[1] < count[0]
    scores = latent(context())
    assert scores.shape == plain(context()).shape and not torch.allclose(scores, plain(context()))
    nn.functional.binary_cross_entropy_with_logits(scores, torch.rand(scores.shape)).backward()
    assert all(p.grad is not None and p.grad.any() for n, p in latent.named_parameters() if "latent" in n or "up" in n)


# ---- Strategy "attention": it reads the language model's own attention, and no part of the base twice
PAGE, OTHER = generated_image(128), generated_image(128).rotate(90)
QUESTION = "What is the total?"
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rows": {"bridge": {"layout": "rows"}},
    "indicators": {"bridge": {"kind": "vet", "layout": "indicators", "table_size": 40}},
    "mask": {"vision": {"compressor": "mask"}},
}


def fetched(model: Any, image: Any, question: Any, **settings: Any) -> Any:
    return model.generate(image, question, strategy="attention", return_fetch=True, max_new_tokens=2, **settings)


# ---- the weights
@pytest.mark.parametrize(
    "settings", [{}, {"is_causal": True}, {"scale": 0.3}, {"mask": "bool"}, {"mask": "float"}, {"enable_gqa": True}]
)
def test_weights_are_those_of_the_fused_kernel(settings: dict[str, Any]) -> None:
    """Attention over an identity as values gives the weights themselves."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 6, 8, generator=generator)
    key = torch.randn(2, 2 if settings.get("enable_gqa") else 4, 6, 8, generator=generator)
    value = torch.eye(6).expand(2, key.shape[1], 6, 6)
    mask = torch.rand(2, 1, 6, 6, generator=generator) > 0.3
    mask[..., 0] = True
    arguments = dict(settings)
    kind = arguments.pop("mask", None)
    if kind is not None:
        arguments["attn_mask"] = mask if kind == "bool" else torch.where(mask, 0.0, -1e4)
    expected = F.scaled_dot_product_attention(query, key, value, **arguments)
    assert torch.allclose(attention_weights(query, key, value, **arguments), expected, atol=1e-5)


@torch.no_grad()
def test_what_is_recorded_is_what_transformers_shows(model: Any) -> None:
    embeds, question = torch.randn(2, 9, 24), torch.zeros(2, 9, dtype=torch.bool)
    question[0, 5:], question[1, 3] = True, True
    language_model = model.model.language_model
    with AttentionRecorder(question) as fused:
        language_model(inputs_embeds=embeds)
    language_model.set_attn_implementation("eager")
    try:
        with AttentionRecorder(question) as written:
            shown = language_model(inputs_embeds=embeds, output_attentions=True).attentions
    finally:
        language_model.set_attn_implementation("sdpa")
    assert len(fused.layers) == len(written.layers) == len(shown) == 2
    for layer, weights in enumerate(shown):
        mean = weights.mean(1)
        expected = torch.stack((mean[0, 5:].mean(0), mean[1, 3]))
        assert torch.allclose(fused.layers[layer], expected, atol=1e-5)
        assert torch.allclose(written.layers[layer], expected, atol=1e-5)


# ---- where it looks
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_to_each_base_token_lands_on_its_patches(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newlines and indicators are between base tokens: one place off, and every row of the page is shifted."""
    model = tiny_model(**LAYOUTS[layout])
    shown: list[torch.Tensor] = []
    before = AttentionRecorder._record

    def record(self: AttentionRecorder, weights: torch.Tensor) -> None:
        before(self, weights)
        self.layers[-1] = self.layers[-1] * 0 + torch.arange(self.layers[-1].shape[1]) ** 2.0
        shown.append(self.layers[-1])

    monkeypatch.setattr(AttentionRecorder, "_record", record)
    encoding = model.encode_image(PAGE)
    scores = fetched(model, encoding, QUESTION).fetch.scores
    tokens = encoding.tokens[0]
    base = model.model.bridge(encoding.semantic, encoding.compressed.flatten(2).transpose(1, 2)).tokens[0]
    offset = len(encoding.prefix_ids) - len(tokens)
    places = [int((tokens - row).abs().sum(-1).argmin()) + offset for row in base]
    paid = torch.tensor(places)[None] ** 2.0
    assert torch.allclose(scores, on_fine_grid(paid, encoding.side, encoding.base_indices), rtol=1e-5)


def test_upsampling_keeps_what_is_where() -> None:
    attention = torch.zeros(1, 16)
    attention[0, 6] = 1.0  # cell (1, 2) of 4 x 4
    grid = on_fine_grid(attention, 16, None).view(16, 16)
    assert grid[4:8, 8:12].min() > grid[:4].max() and grid[5:7, 9:11].min() > 0.7
    places = torch.tensor([[3 * 16 + 12, 200, 20]])
    grid = on_fine_grid(torch.tensor([[1.0, 0.0, 0.0]]), 16, places)
    assert grid.argmax() in (12, 13, 14, 15, 3 * 16 + 12, 3 * 16 + 15) and grid[0, 200] < 1e-3 < 0.9 < grid[0, 60]


@torch.no_grad()
def test_with_a_prefix_and_without_one_it_is_the_same(model: Any) -> None:
    """`forward` has no prefix, and its padding is on the left."""
    processor, encoding = model.processor, model.encode_image([PAGE, OTHER])
    inputs = processor.prompts([QUESTION, "Who?"], images=[1, 1], placeholders=encoding.base_positions + 17)
    choices = FetchChoices(strategy="attention")
    masks = {name: inputs[name] for name in ("query_mask", "attention_mask")}
    whole = model(inputs["input_ids"], image_encoding=encoding.without_prefix(), choices=choices, **masks)
    asked = fetched(model, encoding, [QUESTION, "Who?"])
    for row, answer in enumerate(asked):
        assert torch.allclose(whole.fetch.scores[row], answer.fetch.scores[0], atol=1e-5)


# ---- what it costs
def test_the_base_is_read_once_for_the_scorer_and_the_answer(model: Any) -> None:
    language_model = model.model.language_model
    encoding = model.encode_image(PAGE)
    with Calls(language_model) as glancing:
        model.generate(encoding, QUESTION, strategy="attention", max_new_tokens=1)
    with Calls(language_model) as plain:
        model.generate(encoding, QUESTION, strategy="saliency", max_new_tokens=1)
    extra = glancing.positions - plain.positions
    assert glancing.count == plain.count + 1 and extra == plain.positions - 17, "the question's tokens, once more"
    with Calls(language_model) as fresh:
        model.generate(PAGE, QUESTION, strategy="attention", max_new_tokens=1)
    assert fresh.positions == len(encoding.prefix_ids) + glancing.positions


# ---- what cannot be read
def test_attention_without_weights_is_named_or_never_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionRecorder, "_record", lambda *_: None)
    with pytest.raises(ValueError, match=r'^strategy "attention": expected a language model with attention "sdpa" or'):
        fetched(model, PAGE, QUESTION)
    monkeypatch.setattr("arr_coc.modeling.base_model.attention_relevance", lambda *_: pytest.fail("nobody asked"))
    for strategy in ("realizer", "saliency"):
        model.generate(PAGE, QUESTION, strategy=strategy, max_new_tokens=1)
    patches = torch.arange(17)[None]
    model.generate(PAGE, QUESTION, strategy="attention", patches=patches, max_new_tokens=1)
