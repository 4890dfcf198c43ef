"""The invariants of the design, one section each: what may never change, whatever is added."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    CARD,
    PAGE,
    PAIRS,
    QUESTION,
    READS_WORDS,
    SCORES_WORDS,
    Calls,
    loud_model,
    noise,
    pixels_of,
    prompt,
    reads,
    tiny_model,
)

from arr_coc.modeling.answers import Answer
from arr_coc.modeling.image_encoding import ImageEncoding

STRATEGIES = ["random", "saliency", "variance", "clip_query", "realizer"]
COMPRESSORS = {"conv": {}, "mask": {"vision": {"compressor": "mask"}}}


@pytest.fixture(scope="module", params=COMPRESSORS)
def either(request: pytest.FixtureRequest) -> Any:
    """One model per compressor."""
    return loud_model(**COMPRESSORS[request.param])


# ---- 1. base tokens
@torch.no_grad()
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_base_tokens_are_the_same_bits_whatever_is_fetched(either: Any, strategy: str) -> None:
    base_only = either.model.encode_image(**pixels_of(prompt(either, (PAGE, QUESTION)))).tokens
    for budget in (0, 1, "standard", 200):
        output = either(**prompt(either, (PAGE, QUESTION), budget=budget), choices={"strategy": strategy})
        assert torch.equal(output.image_tokens[:, : base_only.shape[1]], base_only)
    off = either(**prompt(either, (PAGE, QUESTION), strategy="none"), choices={"strategy": "none"})
    assert torch.equal(off.image_tokens, base_only)


@torch.no_grad()
def test_base_tokens_are_unchanged_inside_the_language_model(model: Any) -> None:
    """Base first, fetched tokens after it: a causal model reads base tokens before fetched tokens."""
    base = model.config.vision_tokens()[0]
    states = []
    for budget in (0, 30):
        inputs = prompt(model, (PAGE, QUESTION), budget=budget)
        start = int((inputs.input_ids[0] == model.config.image_token_id).nonzero()[0])
        hidden = model(**inputs, output_hidden_states=True).hidden_states
        states.append(torch.stack(hidden)[:, 0, : start + base])
    assert torch.allclose(*states, atol=1e-4)


# ---- 2. encode once
def test_an_image_is_encoded_once_whatever_is_asked_and_an_encoding_never(model: Any) -> None:
    tower = model.model.vision_tower
    with Calls(tower.grid_encoder) as grid, Calls(tower.compressor) as compressor:
        model.generate(PAGE, ["What is it?", "Who?", "total price"])
    assert (grid.count, compressor.count) == (1, 1)
    with Calls(model.model.vision_tower.grid_encoder) as grid, Calls(model.model.fetcher) as fetches:
        model.generate(**prompt(model, (PAGE, QUESTION)), max_new_tokens=5, num_beams=2)
    assert (grid.count, fetches.count) == (1, 1)
    inputs = prompt(model, (PAGE, QUESTION))
    expected = model.generate(**inputs)
    encoding = model.encode_image(PAGE)
    text = {n: t for n, t in inputs.items() if n not in ("pixel_values", "patch_mask")}
    with Calls(model.model.vision_tower.grid_encoder) as grid:
        assert torch.equal(model.generate(**text, image_encoding=encoding), expected)
    assert grid.count == 0


def test_an_encoding_saves_the_encoder_and_the_prefill_of_the_prefix(model: Any) -> None:
    """The prefix was in the cache and its embeddings were still passed through the language model again."""
    tower, language_model = model.model.vision_tower, model.model.language_model
    with Calls(language_model) as fresh:
        expected = model.generate(PAGE, QUESTION, max_new_tokens=1)
    encoding = model.encode_image(PAGE)
    prefix = len(encoding.prefix_ids)
    assert prefix > encoding.tokens.shape[1]
    with (
        Calls(tower.grid_encoder) as grid,
        Calls(tower.compressor) as compressor,
        Calls(tower.semantic_encoder) as semantic,
        Calls(language_model) as again,
    ):
        assert model.generate(encoding, QUESTION, max_new_tokens=1) == expected
        assert (grid.count, compressor.count, semantic.count) == (0, 0, 1)  # the fetched tokens' half only
        length = prompt(model, (PAGE, QUESTION)).input_ids.shape[1]
        assert again.positions == length - prefix
    assert fresh.positions == length, "the first question must cost no more than one prefill"


def test_asking_leaves_the_encoding_as_it_was(model: Any) -> None:
    """A cache that grows in place would put the first answer in front of the second question."""
    encoding = model.encode_image(PAGE)
    before = [(key.clone(), value.clone()) for key, value in encoding.prefix_cache]
    first = model.generate(encoding, QUESTION)
    model.generate(encoding, ["Who?", "total price"])
    assert model.generate(encoding, QUESTION) == first
    for (key, value), (old_key, old_value) in zip(encoding.prefix_cache, before, strict=True):
        assert torch.equal(key, old_key) and torch.equal(value, old_value)


def reads_all() -> Any:
    """A model that fetches all words of a page, whose tokens are their wordpieces and places alone."""
    return reads(tiny_model(**READS_WORDS, fetcher={**SCORES_WORDS, "budget": 250}), 0, 1)


def test_words_that_all_questions_fetch_are_read_with_the_page(tmp_path: Any) -> None:
    """Each of eight fields of a receipt took the prefill of all its words."""
    model = reads_all()
    page = model.encode_image(PAGE)
    words, layers = page.page_cache
    assert layers[0][0].shape[2] == len(page.prefix_ids) + len(words)
    bare = replace(page, page_cache=None)
    for questions in (QUESTION, ["What is the total?", "What is the due date?", "Who?"]):
        with Calls(model.model.language_model) as once:
            known = model.generate(page, questions, return_fetch=True, max_new_tokens=1)
        with Calls(model.model.language_model) as again:
            read = model.generate(bare, questions, return_fetch=True, max_new_tokens=1)
        assert again.positions - once.positions >= len(words)
        for one, other in zip(*([own] if isinstance(own, Answer) else own for own in (known, read)), strict=True):
            assert one.text == other.text and one.probability == pytest.approx(other.probability, rel=1e-4)
    page.save(tmp_path / "page.safetensors", model)
    assert torch.equal(ImageEncoding.load(tmp_path / "page.safetensors", model).page_cache[0], words)


@pytest.mark.parametrize(
    "choices", [{"budget": 40}, {"strategy": "none"}, {"strategy": "random"}, {"patches": torch.tensor([[3]])}]
)
def test_questions_that_fetch_less_than_all_words_do_not_see_the_others(choices: dict[str, Any]) -> None:
    model = reads_all()
    page = model.encode_image(PAGE)
    answers = [
        model.generate(each, QUESTION, return_fetch=True, max_new_tokens=2, **choices)
        for each in (page, replace(page, page_cache=None))
    ]
    assert answers[0].probability == pytest.approx(answers[1].probability, rel=1e-4)


def test_a_prefix_of_another_prompt_is_not_used(model: Any) -> None:
    """With another chat template in between, the cached keys belonged to other tokens than the prompt's."""
    encoding = model.encode_image(PAGE)
    template = model.processor.chat_template
    try:
        model.processor.chat_template = "{{- 'Look closely! ' -}}" + template
        fresh = model.generate(PAGE, QUESTION)
        assert model.generate(encoding, QUESTION) == fresh
    finally:
        model.processor.chat_template = template


# ---- 3. exact budget
@torch.no_grad()
@pytest.mark.parametrize("budget", [0, 1, 17, 200, "fast", "accurate"])
def test_exactly_k_distinct_patches(either: Any, budget: int | str) -> None:
    output = either(**prompt(either, (PAGE, QUESTION), (CARD, "Who?"), budget=budget))
    expected = either.config.vision_tokens(budget=budget)[1]
    assert output.fetch.indices.shape == (2, expected)
    assert all(len(set(row)) == expected for row in output.fetch.indices.tolist())


@torch.no_grad()
def test_padding_is_fetched_only_from_a_very_thin_image_and_marked() -> None:
    model = loud_model()
    thin, side = noise(6, 120), model.config.vision_config.grid_size
    output = model(**prompt(model, (thin, QUESTION), budget=3 * side))
    real = int(prompt(model, (thin, QUESTION)).patch_mask.sum())
    assert real < 3 * side
    assert int((~output.fetch.is_padding).sum()) == real and int(output.fetch.is_padding.sum()) == 3 * side - real


@torch.no_grad()
@pytest.mark.parametrize("overlap", ["exclude", "allow"])
def test_what_is_a_base_token_already_is_not_fetched_again(overlap: str) -> None:
    model = loud_model(vision={"compressor": "mask"}, fetcher={"overlap": overlap})
    inputs = prompt(model, (CARD, QUESTION), budget=230)
    taken = set(model.model.encode_image(**pixels_of(inputs)).base_indices[0].tolist())
    fetched = set(model(**inputs).fetch.indices[0].tolist())
    assert bool(taken & fetched) == (overlap == "allow")


# ---- 4. the token count is known before the model runs: test_processing.py and, on every grid, test_language_model.py
# ---- 5. no leak
def with_answer(model: Any, answer: str) -> tuple[Any, torch.Tensor]:
    """Training inputs whose rows end with `answer`, and their labels."""
    inputs = prompt(model, (PAGE, QUESTION))
    ids = model.processor.tokenizer(answer, return_tensors="pt").input_ids
    asked = inputs.input_ids.shape[1]
    inputs["input_ids"] = torch.cat((inputs.input_ids, ids), 1)
    inputs["attention_mask"] = torch.ones_like(inputs.input_ids)
    inputs["query_mask"] = F.pad(inputs.query_mask, (0, ids.shape[1]))
    labels = inputs.input_ids.clone()
    labels[:, :asked] = -100
    return inputs, labels


@torch.no_grad()
@pytest.mark.parametrize("by", ["labels", "query_mask", "both"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_answer_does_not_change_the_fetch(model: Any, by: str, strategy: str) -> None:
    scores = []
    for answer in ("total 12.50", "gate A12 xx"):
        inputs, labels = with_answer(model, answer)
        if by == "labels":
            del inputs["query_mask"]
        output = model(**inputs, labels=labels if by != "query_mask" else None, choices={"strategy": strategy})
        scores.append(output.fetch.scores)
    assert torch.equal(*scores)


@torch.no_grad()
@pytest.mark.parametrize("mask", [True, False], ids=["query_mask", "default"])
@pytest.mark.parametrize("strategy", ["realizer", "random"])
def test_without_a_cache_the_answer_so_far_does_not_change_the_fetch(model: Any, mask: bool, strategy: str) -> None:
    """use_cache=False runs the grown prompt anew each step: its own answer must not become part of the question."""
    inputs = prompt(model, (PAGE, QUESTION))
    if not mask:
        del inputs["query_mask"]
    cached = model.generate(**inputs, strategy=strategy)
    with Calls(model.model.fetcher) as fetches, Calls(model.model.language_model) as steps:
        plain = model.generate(**inputs, strategy=strategy, use_cache=False)
    assert steps.positions >= steps.count * inputs["input_ids"].shape[1], "the prompt is passed again at each step"
    assert fetches.count == 1 < steps.count
    assert torch.equal(cached, plain)


# ---- 6. batch = single
@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_item_does_not_depend_on_its_neighbours_or_on_padding(either: Any, side: str, strategy: str) -> None:
    tokenizer = either.processor.tokenizer
    tokenizer.padding_side = side
    try:
        batch = prompt(either, *PAIRS)
    finally:
        tokenizer.padding_side = "left"
    assert not batch.attention_mask.all()
    together = either(**batch, choices={"strategy": strategy})
    for i, pair in enumerate(PAIRS):
        alone = either(**prompt(either, pair), choices={"strategy": strategy})
        assert torch.equal(together.fetch.indices[i], alone.fetch.indices[0])
        assert torch.allclose(together.image_tokens[i], alone.image_tokens[0], atol=1e-4)
        logits = together.logits[i][batch.attention_mask[i].bool()]
        assert torch.allclose(logits, alone.logits[0], atol=1e-3)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "attention"])
def test_answers_do_not_depend_on_the_batch(model: Any, strategy: str) -> None:
    """Left padding in the standard call; in the convenience padding lies between prefix and question."""
    alone = [model.generate(image, question, strategy=strategy) for image, question in PAIRS]
    images, questions = zip(*PAIRS, strict=True)
    assert len(set(alone)) > 1
    assert model.generate(list(images), list(questions), strategy=strategy) == alone
    batch = prompt(model, *PAIRS)
    tokens = model.generate(**batch, strategy=strategy)[:, batch.input_ids.shape[1] :]
    decoded = model.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    assert [answer.strip() for answer in decoded] == alone
    encoding = model.encode_image(PAGE)
    questions = [question for _, question in PAIRS]
    alone = [model.generate(encoding, question, strategy=strategy) for question in questions]
    assert model.generate(encoding, questions, strategy=strategy) == alone


# ---- 7. keep-all parity
@torch.no_grad()
@pytest.mark.parametrize("allocator", ["topk", "window"])
@pytest.mark.parametrize("budget", [0, "all"])
def test_none_or_all_equals_the_model_without_selection_code(model: Any, budget: int | str, allocator: str) -> None:
    inputs = prompt(model, (PAGE, QUESTION), budget=budget)
    tower, core = model.model.vision_tower, model.model
    features = tower.grid_encoder(inputs.pixel_values)
    side = features.shape[-1]
    compressed = tower.compressor.conv2(tower.compressor.conv1(features)).flatten(2).transpose(1, 2)
    semantic, cache = tower.semantic_encoder(compressed, side, None)
    vision = core.bridge(semantic, compressed).tokens
    if budget == "all":
        patches = tower.saccade_projection(features.flatten(2).transpose(1, 2))
        states, _ = tower.semantic_encoder(patches, side, torch.arange(side * side)[None], cache)
        vision = torch.cat((vision, core.bridge(states, patches, base=[]).tokens), 1)
    place = inputs.input_ids[0] == model.config.image_token_id
    embeds = model.get_input_embeddings()(inputs.input_ids.masked_fill(place, 0))
    embeds[0, place] = vision[0]
    by_hand = model.lm_head(core.language_model(inputs_embeds=embeds).last_hidden_state)
    output = model(**inputs, choices={"allocator": allocator})
    assert torch.allclose(output.image_tokens, vision, atol=1e-5)
    assert torch.allclose(output.logits, by_hand, atol=1e-4)


@torch.no_grad()
def test_with_all_patches_every_scorer_gives_the_same_logits(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION), budget="all")
    logits = [model(**inputs, choices={"strategy": strategy}).logits for strategy in STRATEGIES]
    assert all(torch.equal(logits[0], other) for other in logits[1:])


def test_all_that_the_mask_compressor_left_can_be_fetched() -> None:
    """ "all" meant N patches, of which the mask compressor holds a sixteenth already: always an error."""
    model = tiny_model(vision={"compressor": "mask"})
    answer = model.generate(CARD, QUESTION, budget="all", return_fetch=True, max_new_tokens=1)
    patches = model.config.vision_config.num_patches
    assert answer.fetch.budget == patches - patches // 16


# ---- 8. determinism
@torch.no_grad()
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_call_fetches_the_same(model: Any, strategy: str) -> None:
    inputs = prompt(model, (PAGE, QUESTION))
    first = model(**inputs, choices={"strategy": strategy}).fetch
    torch.manual_seed(123)
    again = model(**inputs, choices={"strategy": strategy}).fetch
    assert torch.equal(first.indices, again.indices) and torch.equal(first.scores, again.scores)


@torch.no_grad()
def test_random_depends_on_image_question_and_seed() -> None:
    model = tiny_model()

    def fetched(model: Any, image: Any, question: str) -> list[int]:
        return model(**prompt(model, (image, question)), choices={"strategy": "random"}).fetch.indices[0].tolist()

    first = fetched(model, CARD, QUESTION)
    assert first == fetched(model, CARD, QUESTION)
    assert first != fetched(model, noise(128, 128, 9), QUESTION) and first != fetched(model, CARD, "Who?")
    assert first != fetched(tiny_model(fetcher={"seed": 5}), CARD, QUESTION)


@pytest.mark.parametrize("cached", [True, False])
def test_random_is_drawn_once(model: Any, cached: bool) -> None:
    """Without a cache each step drew anew, so every token of an answer looked at other patches."""
    inputs = prompt(model, (PAGE, QUESTION))

    def tokens(seed: int, **kwargs: Any) -> torch.Tensor:
        return model.generate(**inputs, strategy="random", seed=seed, **kwargs)

    with Calls(model.model.fetcher) as fetches, Calls(model.model.language_model) as steps:
        first = tokens(1, use_cache=cached)
    assert fetches.count == 1 < steps.count
    assert cached == (steps.positions < steps.count * inputs["input_ids"].shape[1])
    assert torch.equal(first, tokens(1))


@torch.no_grad()
def test_ties_go_to_the_lower_index(model: Any) -> None:
    white = torch.ones(1, 3, 128, 128)
    inputs = prompt(model, (CARD, QUESTION), budget=5)
    output = model(**{**inputs, "pixel_values": white}, choices={"strategy": "saliency"})
    assert output.fetch.indices.tolist() == [[0, 1, 2, 3, 4]]
