"""Running back on published models: every family, on a tiny model with random weights."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from attached_models import BUILDERS, QUESTIONS, TALL, WHOLE, WIDE, logits_of, picture, plain, published
from helpers import refuses
from PIL import Image
from tiny_pdf import PASSWORD, locked, write_pdf
from torch import Tensor
from transformers.models.gemma3.modeling_gemma3 import Gemma3Model

import arr_coc
from arr_coc.attached.families import FAMILIES
from arr_coc.attached.reader import POOL, AttachedReader
from arr_coc.attached.runner import count_fetched
from arr_coc.attached.scoring import with_neighbours


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
    new = len(before.logits)
    assert new == 6
    for way in ("tokens", "pixels") if family in ABLE else ("tokens",):
        output = reader_of(family).generate(images, questions, budget=1.0, way=way, **WHOLE)[0].output
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


# ---- Running back on published models: what is fetched, budgets, and what cannot be asked
@pytest.fixture
def qwen() -> AttachedReader:
    return arr_coc.attach(*published("qwen3_vl"))


def blank_but(box: tuple[int, int, int, int]) -> Image.Image:
    """White, 256 x 320 px (height x width), with noise in a box."""
    page = Image.new("RGB", (320, 256), "white")
    page.paste(picture(box[3] - box[1], box[2] - box[0]), box[:2])
    return page


BOX = (192, 64, 256, 128)
"""px; two by two tokens of 32 px: rows 2 and 3, columns 6 and 7 of a grid of 8 x 10."""

UNDER_BOX = [26, 27, 36, 37]


# ---- strategies
def test_saliency_fetches_what_has_edges_and_oracle_what_lies_under_boxes(qwen: AttachedReader) -> None:
    answer = qwen.generate(blank_but(BOX), "What?", budget=4, strategy="saliency", return_fetch=True)
    assert answer.fetch.indices.tolist() == [UNDER_BOX]
    assert answer.fetch.positions.tolist() == [[[2, 6], [2, 7], [3, 6], [3, 7]]]
    assert [origin.box for origin in answer.sources] == [(x, y, x + 32, y + 32) for y in (64, 96) for x in (192, 224)]
    assert answer.fetch.covered().nonzero()[:, 1].tolist() == UNDER_BOX
    assert answer.fetch.regions()[0, 3].tolist() == [3, 7, 4, 8]
    options = {"budget": 4, "strategy": "oracle", "return_fetch": True}
    answer = qwen.generate(blank_but(BOX), "What?", boxes=[BOX], **options)
    assert answer.fetch.indices.tolist() == [UNDER_BOX]
    line = qwen.generate(blank_but(BOX), "What?", boxes=[(0, 40, 128, 40)], **options)  # too thin to have an area
    assert line.fetch.indices.tolist() == [[10, 11, 12, 13]]
    pair = qwen.generate([[blank_but(BOX)] * 2], "What?", boxes=[[], [BOX]], **options)
    assert pair[0].fetch.indices.tolist() == [[80 + number for number in UNDER_BOX]]
    assert {origin.source for origin in pair[0].sources} == {1}
    answer = qwen.generate(
        blank_but(BOX), "What?", budget=4, strategy="oracle", boxes=[(0, 0, 320, 256)], return_fetch=True
    )
    assert answer.fetch.indices.tolist() == [UNDER_BOX]
    assert answer.fetch.fallbacks == {"scorer": 1, "bridge": 0}


def test_similarity_fetches_tokens_that_are_like_the_question(qwen: AttachedReader) -> None:
    page = qwen.encode_image(picture(250, 320))
    prompt = page.prompts[0]
    words = qwen.query("xyz")
    prompt.seen = prompt.seen.clone()
    prompt.seen[[5, 40, 71]] = words * 30
    answer = qwen.generate(page, "xyz", budget=3, strategy="similarity", return_fetch=True)
    assert answer.fetch.indices.tolist() == [[5, 40, 71]]
    assert answer.fetch.relevance[0, [5, 40, 71]].min() > 0.9


WORDS = [
    ("Tip", (0, 70, 30, 90)),
    ("7.00", (196, 70, 250, 90)),
    ("Date", (0, 264, 30, 284)),
    ("9.9.", (196, 264, 250, 284)),
]
"""Two labels, each with its value at the other end of the line."""


@pytest.mark.parametrize(("question", "row"), [("What is the tip?", 2), ("What is the date?", 8)])
def test_words_of_the_question_lead_to_the_value_beside_them(qwen: AttachedReader, question: str, row: int) -> None:
    page = qwen.encode_image(Image.new("RGB", (256, 320), "white"), words=WORDS)
    answer = qwen.generate(page, question, budget=3, strategy="words", return_fetch=True)
    assert answer.fetch.positions.tolist() == [[[row, 0], [row, 6], [row, 7]]] and not answer.fetch.fallbacks["scorer"]


def test_words_are_those_of_a_pdfs_text_layer_also_of_an_encrypted_one(qwen: AttachedReader, tmp_path: Path) -> None:
    """The tip is on the second of two pages that have as much print everywhere."""
    rows = [f"BT /F1 16 Tf 20 {190 - 20 * row} Td (Row {row}    Amount {row}0.00) Tj ET" for row in range(9)]
    tip = "BT /F1 16 Tf 20 50 Td (Tip     Amount 7.50) Tj ET"
    path = write_pdf(tmp_path / "two.pdf", "\n".join(rows), "\n".join([*rows[:7], tip]), size=(200, 220))
    answer = qwen.generate(path, "What is the tip?", budget=8, strategy="words", return_fetch=True)
    assert {(origin.page, round(origin.box[1])) for origin in answer.sources} == {(2, 328)}
    assert max(origin.box[2] for origin in answer.sources) > 300
    asked: dict[str, Any] = {"image": locked(tmp_path / "locked.pdf"), "question": "What is the total?", "budget": 4}
    answer = qwen.generate(**asked, strategy="words", password=PASSWORD, return_fetch=True)
    assert not answer.fetch.fallbacks["scorer"]
    refuses("locked.pdf: expected the password of an encrypted PDF .* got none", qwen.generate, **asked)


@pytest.mark.parametrize(("prefix", "to_all"), [(True, False), (False, False), (True, True), (False, True)])
def test_attention_is_the_last_tokens_beyond_the_firsts(qwen: AttachedReader, prefix: bool, to_all: bool) -> None:
    """Against eager attention's own weights, of the prompt with base tokens alone, or with all tokens."""
    model, _ = published("qwen3_vl")
    page = qwen.encode_image(picture(250, 320), prefix=prefix)
    prompt = page.prompts[0]
    received = qwen.runner.attention(page, prompt, "xyz", to_all=to_all)
    with torch.no_grad():
        kept = None if to_all else torch.zeros(0, dtype=torch.long)
        placed = qwen.runner.place(prompt, qwen.runner.plain(prompt, "xyz"), kept)
        inputs = qwen.runner._inputs(page, [placed])
        model.set_attn_implementation("eager")
        try:
            layers = model.base_model(**inputs, output_attentions=True).attentions
        finally:
            model.set_attn_implementation("sdpa")
    assert qwen.processor.tokenizer.decode(placed.ids[-8:]) == "xyz<bot>"
    seen = (placed.kinds > 0).nonzero().flatten()
    assert len(seen) == (80 if to_all else 6)
    behind = int(seen[-1]) + 1
    more = torch.stack([layer[0, :, -1] - layer[0, :, behind] for layer in layers[1:3]]).clamp(min=0)
    expected = more.mean((0, 1))[seen]
    assert expected.max() > 0
    expected = with_neighbours(expected, prompt) if to_all else expected
    torch.testing.assert_close(received, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("pool", [0, 4])
def test_the_question_attends_to_all_tokens_which_are_read_once(qwen: AttachedReader, pool: int) -> None:
    """The language model's layers behind those whose attention is read do not run for it."""
    page = qwen.encode_image(picture(250, 320), pool=pool)
    paid = qwen.runner.attention(page, page.prompts[0], "What?", to_all=True)
    rows: list[int] = []
    first, last = (qwen.model.model.language_model.layers[at] for at in (0, -1))
    handles = [first.register_forward_hook(lambda layer, given, out: rows.append(given[0].shape[1]))]
    handles.append(last.register_forward_hook(lambda *given: pytest.fail("ran")))
    prepared = qwen.ask(page, page.prompts[0], "What?", budget=0.25, strategy="attention")
    for handle in handles:
        handle.remove()
    assert len(rows) == 1 and rows[0] < 80 == len(page.prompts[0])
    count = 20 - len(page.prompts[0].base)
    assert set(prepared.fetch.indices[0].tolist()) == set(paid.argsort(descending=True)[:count].tolist())


def test_neighbours_of_a_token_that_is_attended_to_are_fetched(qwen: AttachedReader) -> None:
    """A value's digits are tokens of their own; the last one got too little attention by itself, and was lost."""
    prompt = qwen.encode_image([[picture(250, 320), picture(96, 128)]], prefix=False).prompts[0]
    assert [(view.rows, view.cols) for view in prompt.views] == [(8, 10), (3, 4)]
    paid = torch.zeros(92)
    paid[[0, 45, 91]] = torch.tensor([0.9, 1.8, 2.7])
    spread = with_neighbours(paid, prompt)
    around = torch.full((3, 3), 0.2)
    around[1, 1] = 2.0
    torch.testing.assert_close(spread[:80].view(8, 10)[3:6, 4:7], around)
    torch.testing.assert_close(spread[:2], torch.tensor([1.0, 0.1]))
    torch.testing.assert_close(spread[80:].view(3, 4)[1:, 2:], torch.tensor([[0.3, 0.3], [0.3, 3.0]]))
    assert int((spread > 0).sum()) == 4 + 9 + 4 and paid.count_nonzero() == 3


# ---- budgets
@pytest.mark.parametrize(
    ("budget", "fetched"),
    [(0.25, 768), (0.0625, 0), (1.0, None), ("all", None), (0, 0), (64, 64), ("fast", 64), ("standard", 273)],
)
def test_budgets(budget: Any, fetched: int | None) -> None:
    assert count_fetched(budget, 4096, 4096, 256) == fetched


@pytest.mark.parametrize(
    ("budget", "base", "message"),
    [
        ("auto", 256, "expected a share, a number of tokens or one of fast, balanced, standard, accurate, all"),
        (True, 256, "expected a share, a number of tokens"),
        (None, 256, "expected a share, a number of tokens"),
        (1.5, 256, r"expected a share in 0\.\.1; got 1\.5"),
        (float("nan"), 256, r"expected a share in 0\.\.1; got nan"),
        (0.05, 256, r"expected at least 0\.062, what the base takes; got 0\.05"),
        (4097, 256, r"expected a share in 0\.\.1, 0 to 4096 tokens or one of fast, .*, all; got 4097"),
        (-1, 256, "expected a share, a number of tokens or one of fast, .*; got -1"),
        (0, 0, "expected at least one token where there is no base; got 0"),
        (0.0, 0, "expected at least one token where there is no base; got 0.0"),
    ],
)
def test_other_budgets_are_refused(budget: Any, base: int, message: str) -> None:
    refuses(f"budget: {message}", count_fetched, budget, 4096, 4096, base)


# ---- what cannot be asked
def test_unknown_families_and_what_belongs_to_another_model_are_refused(qwen: AttachedReader) -> None:
    class Model:
        class config:  # noqa: N801
            model_type = "mllama"

    refuses("model_type: expected one of gemma3, idefics3, internvl, .*; got 'mllama'", arr_coc.attach, Model(), None)
    page = arr_coc.attach(*published("qwen2_5_vl")).encode_image(picture(150, 220))
    refuses("encoding: expected one that this model made; got one of Qwen2_5_VL", qwen.generate, page, "What?")
    message = "processor: expected a InternVLProcessor, as internvl has; got Qwen3VLProcessor"
    refuses(message, arr_coc.attach, published("internvl")[0], qwen.processor)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"question": ""}, "question: expected a non-empty string"),
        ({"question": "a <|image_pad|>"}, r"question: expected text without <\|image_pad\|>, which stands for an im"),
        ({"image": None, "question": "<|image_pad|> what?"}, "question: expected text without"),
        ({"strategy": "clip_query"}, "strategy: expected one of attention, oracle, random, .*; got 'clip_query'"),
        ({"strategy": "realizer"}, r'strategy "realizer": expected a trained scorer \(load_adapter'),
        ({"strategy": "oracle"}, "boxes: expected boxes with strategy oracle, and with no other"),
        ({"boxes": [BOX]}, "boxes: expected boxes with strategy oracle, and with no other"),
        ({"strategy": "oracle", "boxes": [(9, 9, 1, 1)]}, "boxes: expected x0 <= x1"),
        ({"strategy": "oracle", "boxes": [(900, 900, 999, 999)]}, "boxes that reach into the image of .* got .900"),
        ({"strategy": "words"}, '"words": expected a PDF with a text layer, or words= of encode_image.*; got images'),
        ({"words": "file.xml"}, "words: expected auto, network, ocr, text_layer, a list"),
        ({"strategi": "none"}, "generate: expected arguments that help.* lists, .*; got strategi"),
        ({"budget": 2.0}, r"budget: expected a share in 0\.\.1"),
        ({"budget": 0, "pool": 0}, "budget: expected at least one token where there is no base"),
        ({"pool": -1}, "pool: expected an integer from 0; got -1"),
        ({"image": [], "question": "What?"}, "images: expected at least one"),
        ({"image": [[]], "question": "What?"}, "images: expected at least one"),
        ({"num_beams": 0}, "num_beams: expected"),
        ({"image": [picture(60, 60)] * 2, "question": ["a", "b", "c"]}, "images: expected 1 or 3"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    qwen: AttachedReader, given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any image is encoded, but for what its words and size decide, and numbers of images and questions."""
    if "words" not in str(given) and not any(late in message for late in ("image of", "x0", "1 or 3")):
        monkeypatch.setattr(qwen.model.base_model, "get_image_features", lambda **kwargs: pytest.fail("encoded"))
    refuses(message, qwen.generate, **{"image": picture(150, 220), "question": "What?", **given})


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_earlier_turns_are_read_as_the_plain_model_reads_them(name: str) -> None:
    (model, processor), page, turns = published(name), picture(150, 220), [("Who?", "Me.")]
    said = [("user", "Who?"), ("assistant", "Me."), ("user", "What?")]
    chat: list[Any] = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said]
    chat[0]["content"].insert(0, {"type": "image"})
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[text], images=[[page]], return_tensors="pt")
    expected = model.generate(**inputs, return_dict_in_generate=True, output_logits=True)
    qwen = arr_coc.attach(model, processor)
    answer = qwen.generate(page, "What?", history=turns, budget=1.0, **WHOLE)
    assert torch.equal(logits_of([answer]), torch.stack(expected.logits, 1))
    both = qwen.generate(page, ["What?", "What?"], history=[turns, []], budget=0.5, return_fetch=True)
    single = [qwen.generate(page, "What?", history=own, budget=0.5) for own in (turns, [])]
    assert [answer.text for answer in both] == single
    refuses("which stands for an image", qwen.generate, page, "What?", history=[("Who?", qwen.family.image_token)])
