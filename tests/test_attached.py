"""Running back on published models: every family, on a tiny model with random weights."""

import itertools
from typing import Any

import pytest
import torch
from attached_models import BUILDERS, QUESTIONS, TALL, WHOLE, WIDE, logits_of, picture, plain, published
from helpers import refuses
from torch import Tensor
from transformers.models.gemma3.modeling_gemma3 import Gemma3Model

import arr_coc
from arr_coc.attached.families import FAMILIES
from arr_coc.attached.reader import POOL, AttachedReader


def reader_of(family: str) -> AttachedReader:
    return arr_coc.attach(*published(family))


def test_the_lists_are_the_registry() -> None:
    assert set(BUILDERS) == set(FAMILIES)
    assert sorted(name for name, kind in FAMILIES.items() if kind.encodes_cells) == ABLE


@pytest.fixture(params=sorted(BUILDERS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


# ---- all tokens kept is the plain model
@pytest.mark.parametrize("images", [[[WIDE]], [[TALL]], [[WIDE], [TALL]], [[WIDE, TALL]]], ids=len)
def test_with_all_tokens_kept_it_is_the_plain_model(family: str, images: list[list[Any]]) -> None:
    questions = QUESTIONS[: len(images)]
    before = plain(family, images, questions)
    answers = reader_of(family).generate(images, questions, budget=1.0, **WHOLE)
    output = answers[0].output
    new = len(before.logits)
    assert new == 6
    assert torch.equal(output.sequences[:, -new:], before.sequences[:, -new:])
    for ours, theirs in zip(output.logits, before.logits, strict=True):
        assert torch.equal(ours, theirs)
    after = plain(family, images, questions)  # attaching leaves no trace
    assert torch.equal(after.sequences, before.sequences)


def test_text_alone_goes_through(family: str) -> None:
    answers = reader_of(family).generate(None, QUESTIONS)
    expected = plain(family, [[], []], QUESTIONS).sequences[:, -6:]
    words = published(family)[1].tokenizer
    assert answers == [text.strip() for text in words.batch_decode(expected, skip_special_tokens=True)]


# ---- fewer tokens: an independent, slow reference
def slow_prompt(family: str, image: Any, question: str, fetched: list[int]) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Ids, embeddings, positions and DeepStack's planes of base and fetched tokens, cut by hand token by token."""
    model, processor = published(family)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[text], images=[[image]], return_tensors="pt")
    ids = inputs["input_ids"][0]
    columns = (ids == model.config.image_token_id).nonzero().flatten().tolist()
    names = ("pixel_values", "image_grid_thw", "pixel_attention_mask", "image_sizes", "batch_num_images")
    seen = model.base_model.get_image_features(**{name: inputs[name] for name in names if name in inputs})
    pooled = seen.pooler_output
    tokens = pooled.flatten(0, -2) if isinstance(pooled, Tensor) else torch.cat([*pooled])
    planes = [torch.cat([*plane]) for plane in getattr(seen, "deepstack_features", None) or []]
    positions = torch.arange(len(ids))[None].float()
    if "image_grid_thw" in inputs:
        grid = inputs["image_grid_thw"]
        positions = model.base_model.get_rope_index(ids[None], inputs["mm_token_type_ids"], grid)[0][:, 0].float()
    embeds = model.get_input_embeddings()(ids)
    for place, token in enumerate(getattr(model.config, "visual_indicator_token_ids", [])):
        embeds[ids == token] = seen.visual_indicator_features[place]
    views = reader_of(family).encode_image(image).prompts[0].views
    rows: list[tuple[int, Tensor, Tensor, list[Tensor]]] = []
    starts = [0, *itertools.accumulate(map(len, views))]
    nothing = [torch.zeros_like(tokens[0])] * len(planes)

    def add(numbers: list[int]) -> None:
        at = positions[:, [columns[number] for number in numbers]].mean(1)
        mean = tokens[numbers].mean(0)
        rows.append((model.config.image_token_id, mean, at, [plane[numbers].mean(0) for plane in planes]))

    for column, token in enumerate(ids.tolist()):
        if column not in columns:
            rows.append((token, embeds[column], positions[:, column], nothing))
            continue
        number = columns.index(column)
        if number in starts:
            view = views[starts.index(number)]
            down, across = -(-view.rows // POOL), -(-view.cols // POOL)
            for cell in range(down * across):
                inside = [
                    number + y * (view.cols + view.row_ends) + x
                    for y in range(view.rows)
                    for x in range(view.cols)
                    if (y * down // view.rows, x * across // view.cols) == divmod(cell, across)
                ]
                add(inside)
        if number == len(columns) - 1:
            for chosen in fetched:
                add([chosen])
    ids = torch.tensor([row[0] for row in rows])
    stacked = [torch.stack([row[3][layer] for row in rows]) for layer in range(len(planes))]
    return ids, torch.stack([row[1] for row in rows]), torch.stack([row[2] for row in rows], 1), stacked


def slow_logits(family: str, image: Any, question: str, fetched: list[int], said: Tensor) -> Tensor:
    """[T, vocabulary] logits before each of the tokens `said`, all in one pass without a cache."""
    model, _ = published(family)
    ids, embeds, positions, planes = slow_prompt(family, image, question, fetched)
    length, new = len(ids), len(said) - 1
    embeds = torch.cat((embeds, model.get_input_embeddings()(said[:-1])))
    positions = torch.cat((positions, positions[:, -1:] + torch.arange(1, new + 1)), 1)[:, None]
    given: dict[str, Any] = {"position_ids": positions if len(positions) > 1 else positions[0]}
    given["attention_mask"] = torch.ones(1, length + new)  # without one, a gap in positions begins another sequence
    if planes:
        is_image = torch.cat((ids == model.config.image_token_id, torch.zeros(new, dtype=torch.bool)))
        given["visual_pos_masks"] = is_image[None]
        given["deepstack_visual_embeds"] = [plane[is_image[:length]] for plane in planes]
    if isinstance(model.base_model, Gemma3Model):  # base tokens see each other
        total, windows = length + new, model.config.text_config.sliding_window
        at = torch.arange(total)
        is_base = torch.zeros(total, dtype=torch.bool)
        first = int((ids == model.config.image_token_id).nonzero()[0])
        is_base[first : first + int((ids == model.config.image_token_id).sum()) - len(fetched)] = True
        seen = (at[None] <= at[:, None]) | (is_base[None] & is_base[:, None])
        near = (at[:, None] - at[None]).abs() < windows
        as_bias = [torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None] for mask in (seen, seen & near)]
        given["attention_mask"] = dict(zip(("full_attention", "sliding_attention"), as_bias, strict=True))
    decoder = getattr(model.base_model, "language_model", None) or model.base_model.text_model
    states = decoder(inputs_embeds=embeds[None], use_cache=False, **given).last_hidden_state
    return model.lm_head(states[0, length - 1 :])


@pytest.mark.parametrize("image", [WIDE, TALL], ids=["wide", "tall"])
@torch.no_grad()
def test_fewer_tokens_equal_a_slow_reference(family: str, image: Any) -> None:
    reader = reader_of(family)
    encoding = reader.encode_image(image)
    answer = reader.generate(encoding, QUESTIONS[1], budget=0.5, strategy="random", seed=3, **WHOLE)
    total = len(encoding.prompts[0])
    assert len(answer.fetch.indices[0]) == round(total * 0.5) - answer.fetch.base > 0
    said = answer.output.sequences[0, -6:]
    expected = slow_logits(family, image, QUESTIONS[1], answer.fetch.indices[0].tolist(), said)
    received = torch.cat(list(answer.output.logits))
    torch.testing.assert_close(received, expected, atol=1e-5, rtol=1e-5)


# ---- encode once, batches, beams
def test_questions_share_what_was_read_before_them(family: str) -> None:
    reader = reader_of(family)
    read: list[int] = []
    hook = reader.model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        page = reader.encode_image(WIDE)
        prefix, *others = read  # the others: all image tokens, for strategy "attention"
        options = {"budget": 0.5, "strategy": "saliency", **WHOLE}
        warm = [reader.generate(page, question, **options) for question in QUESTIONS]
        cold = [reader.generate(reader.encode_image(WIDE, prefix=False), text, **options) for text in QUESTIONS]
    finally:
        hook.remove()
    shorter = [length for length in read[1 + len(others) :] if length > 1]
    assert shorter[0] == shorter[2] - prefix and shorter[1] == shorter[3] - prefix
    for one, other in zip(warm, cold, strict=True):
        torch.testing.assert_close(logits_of([one]), logits_of([other]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "strategy"),
    [
        *((family, "attention") for family in sorted(BUILDERS)),
        *(("qwen3_vl", strategy) for strategy in ("similarity", "saliency", "random")),
    ],
)
def test_a_batch_answers_as_its_prompts_do_alone(family: str, strategy: str) -> None:
    reader = reader_of(family)
    options = {"budget": 0.5, "strategy": strategy, "seed": 5, **WHOLE}
    for images in ([WIDE, TALL], reader.encode_image(WIDE)):
        batch = reader.generate(images, QUESTIONS, **options)
        for row, question in enumerate(QUESTIONS):
            single = reader.generate(images[row] if isinstance(images, list) else images, question, **options)
            assert torch.equal(batch[row].fetch.indices, single.fetch.indices)
            torch.testing.assert_close(logits_of(batch)[row], logits_of([single])[0], atol=2e-5, rtol=1e-5)
            assert batch[row].text == single.text and batch[row].sources == single.sources
            assert batch[row].probability == pytest.approx(single.probability, rel=1e-3)


@pytest.mark.parametrize("budget", [0.5, 1.0])
def test_every_cache_gives_the_same_tokens(family: str, budget: float) -> None:
    reader = reader_of(family)
    page = reader.encode_image(WIDE)
    options = {"budget": budget, "strategy": "saliency", **WHOLE}
    expected = logits_of([reader.generate(page, "What?", **options)])
    for choice in ({"use_cache": False}, {"cache_implementation": "static"}):
        received = logits_of([reader.generate(page, "What?", **choice, **options)])
        torch.testing.assert_close(received, expected, atol=2e-5, rtol=1e-5)


def test_beams_and_samples(family: str) -> None:
    reader = reader_of(family)
    options = {"budget": 0.5, "strategy": "saliency"}
    both = reader.generate([WIDE, TALL], QUESTIONS, num_beams=2, **options)
    assert both == [reader.generate(i, q, num_beams=2, **options) for i, q in zip([WIDE, TALL], QUESTIONS, strict=True)]
    page = reader.encode_image(WIDE)
    torch.manual_seed(0)
    drawn = reader.generate(page, "What?", do_sample=True, num_return_sequences=3, return_fetch=True, **options)
    assert len(drawn) == 3 and len({answer.text for answer in drawn}) > 1
    assert torch.equal(drawn[0].fetch.indices, drawn[2].fetch.indices)


def test_several_images_share_one_budget(family: str) -> None:
    reader = reader_of(family)
    answer = reader.generate(reader.encode_image([[WIDE, TALL]]), "Which?", budget=0.5, strategy="random", **WHOLE)
    total = answer.fetch.scores.shape[1]
    assert len(answer.fetch.indices[0]) + answer.fetch.base == round(total * 0.5)
    assert {origin.source for origin in answer.sources} == {0, 1}
    sizes = [WIDE.size, TALL.size]
    for origin in answer.sources:
        x0, y0, x1, y1 = origin.box
        assert 0 <= x0 < x1 <= sizes[origin.source][0] + 0.01 and 0 <= y0 < y1 <= sizes[origin.source][1] + 0.01


# ---- Running back to the pixels of a published model's images: a small copy first, then the patches that are asked f
ABLE = ["qwen3_vl", "qwen3_vl_moe"]


@pytest.fixture(params=ABLE)
def reader(request: pytest.FixtureRequest) -> AttachedReader:
    return arr_coc.attach(*published(request.param))


@pytest.mark.parametrize("images", [[WIDE], [TALL], [WIDE, TALL]], ids=["wide", "tall", "both"])
def test_with_all_tokens_it_is_the_plain_model(reader: AttachedReader, images: list) -> None:
    (answer,) = reader.generate([images], "What?", budget=1.0, way="pixels", **WHOLE)
    expected = plain(reader.model.config.model_type, [images], ["What?"])
    for ours, theirs in zip(answer.output.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


def test_the_base_is_a_small_copy_at_its_cells_places(reader: AttachedReader) -> None:
    image = picture(256, 320)  # 8 x 10 tokens of 32 px
    (prompt,) = reader.encode_image(image, way="pixels", prefix=False).prompts
    assert prompt.tokens is None and prompt.base_grids == [(2, 3)] and len(prompt) == 80
    small = reader.processor.image_processor(image.resize((96, 64), 3), do_resize=False, return_tensors="pt")
    with torch.no_grad():
        seen = reader.model.base_model.get_image_features(**small)
    torch.testing.assert_close(prompt.base, seen.pooler_output[0])
    torch.testing.assert_close(prompt.base_planes[2], seen.deepstack_features[2][0])
    asked = reader.runner.plain(prompt, "What?")
    placed = reader.runner.place(prompt, asked, torch.tensor([0, 79]))
    base, fetched = placed.positions[:, placed.kinds == 1], placed.positions[:, placed.kinds == 2]
    first = asked.positions[:, asked.is_image][:, :1]
    assert (base - first).tolist() == [[0.0] * 6, [1.5, 1.5, 1.5, 5.5, 5.5, 5.5], [1.5, 5.0, 8.0, 1.5, 5.0, 8.0]]
    assert (fetched - first).tolist() == [[0.0, 0.0], [0.0, 7.0], [0.0, 9.0]]


@torch.no_grad()
def test_cells_are_encoded_at_their_places(reader: AttachedReader) -> None:
    """Against the whole tower, in which attention is masked by hand to the patches of the cells of each image."""
    images = [picture(256, 320), picture(128, 192, seed=1)]  # 80 and 24 tokens
    (prompt,) = reader.encode_image([images], way="pixels", prefix=False).prompts
    cells = torch.tensor([3, 40, 41, 79, 80, 99])
    tokens, planes = reader.runner._encode_cells(prompt, cells)
    tower = reader.model.base_model.visual
    rows = (cells[:, None] * 4 + torch.arange(4)).flatten()
    kept = torch.zeros(len(prompt.pixels["pixel_values"]), dtype=torch.bool).index_fill(0, rows, True)
    real = torch.nn.functional.scaled_dot_product_attention

    def masked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kwargs: object) -> torch.Tensor:
        own = kept[:320] if query.shape[2] == 320 else kept[320:]
        return real(query, key, value, own[None, None, None].expand(-1, -1, query.shape[2], -1), scale=kwargs["scale"])

    try:
        torch.nn.functional.scaled_dot_product_attention = masked
        whole = tower(prompt.pixels["pixel_values"], grid_thw=prompt.pixels["image_grid_thw"])
    finally:
        torch.nn.functional.scaled_dot_product_attention = real
    torch.testing.assert_close(tokens, whole.pooler_output[cells], atol=1e-5, rtol=1e-5)
    for plane, expected in zip(planes, whole.deepstack_features, strict=True):
        torch.testing.assert_close(plane, expected[cells], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("qwen2_5_vl", {"way": "pixels"}, '"pixels": expected a model of type qwen3_vl, qwen3_vl_moe; got qwen2_5_vl'),
        ("qwen3_vl", {"way": "tiles"}, "way: expected one of tokens, pixels; got 'tiles'"),
        ("qwen3_vl", {"way": "pixels", "pool": 0}, 'way "pixels": expected a pool above 0'),
    ],
)
def test_other_ways_are_refused(family: str, options: dict[str, Any], message: str) -> None:
    refuses(message, reader_of(family).encode_image, WIDE, **options)
