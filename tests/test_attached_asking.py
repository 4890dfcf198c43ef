"""Running back on published models: what is fetched, budgets, and what cannot be asked."""

from pathlib import Path
from typing import Any

import pytest
import torch
from attached_models import WHOLE, logits_of, picture, published
from helpers import refuses
from PIL import Image
from tiny_pdf import PASSWORD, locked, write_pdf

import arr_coc
from arr_coc.attached.families import FAMILIES
from arr_coc.attached.reader import AttachedReader
from arr_coc.attached.runner import count_fetched
from arr_coc.attached.scoring import with_neighbours


@pytest.fixture
def reader() -> AttachedReader:
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
def test_saliency_fetches_what_has_edges_and_oracle_what_lies_under_boxes(reader: AttachedReader) -> None:
    answer = reader.generate(blank_but(BOX), "What?", budget=4, strategy="saliency", return_fetch=True)
    assert answer.fetch.indices.tolist() == [UNDER_BOX]
    assert answer.fetch.positions.tolist() == [[[2, 6], [2, 7], [3, 6], [3, 7]]]
    assert [origin.box for origin in answer.sources] == [(x, y, x + 32, y + 32) for y in (64, 96) for x in (192, 224)]
    assert answer.fetch.covered().nonzero()[:, 1].tolist() == UNDER_BOX
    assert answer.fetch.regions()[0, 3].tolist() == [3, 7, 4, 8]
    options = {"budget": 4, "strategy": "oracle", "return_fetch": True}
    answer = reader.generate(blank_but(BOX), "What?", boxes=[BOX], **options)
    assert answer.fetch.indices.tolist() == [UNDER_BOX]
    line = reader.generate(blank_but(BOX), "What?", boxes=[(0, 40, 128, 40)], **options)  # too thin to have an area
    assert line.fetch.indices.tolist() == [[10, 11, 12, 13]]
    pair = reader.generate([[blank_but(BOX)] * 2], "What?", boxes=[[], [BOX]], **options)
    assert pair[0].fetch.indices.tolist() == [[80 + number for number in UNDER_BOX]]
    assert {origin.source for origin in pair[0].sources} == {1}
    answer = reader.generate(
        blank_but(BOX), "What?", budget=4, strategy="oracle", boxes=[(0, 0, 320, 256)], return_fetch=True
    )
    assert answer.fetch.indices.tolist() == [UNDER_BOX]
    assert answer.fetch.fallbacks == {"scorer": 1, "bridge": 0}


def test_similarity_fetches_tokens_that_are_like_the_question(reader: AttachedReader) -> None:
    page = reader.encode_image(picture(250, 320))
    prompt = page.prompts[0]
    words = reader.query("xyz")
    prompt.seen = prompt.seen.clone()
    prompt.seen[[5, 40, 71]] = words * 30
    answer = reader.generate(page, "xyz", budget=3, strategy="similarity", return_fetch=True)
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
def test_words_of_the_question_lead_to_the_value_beside_them(reader: AttachedReader, question: str, row: int) -> None:
    page = reader.encode_image(Image.new("RGB", (256, 320), "white"), words=WORDS)
    answer = reader.generate(page, question, budget=3, strategy="words", return_fetch=True)
    assert answer.fetch.positions.tolist() == [[[row, 0], [row, 6], [row, 7]]] and not answer.fetch.fallbacks["scorer"]


def test_words_are_those_of_a_pdfs_text_layer_also_of_an_encrypted_one(reader: AttachedReader, tmp_path: Path) -> None:
    """The tip is on the second of two pages that have as much print everywhere."""
    rows = [f"BT /F1 16 Tf 20 {190 - 20 * row} Td (Row {row}    Amount {row}0.00) Tj ET" for row in range(9)]
    tip = "BT /F1 16 Tf 20 50 Td (Tip     Amount 7.50) Tj ET"
    path = write_pdf(tmp_path / "two.pdf", "\n".join(rows), "\n".join([*rows[:7], tip]), size=(200, 220))
    answer = reader.generate(path, "What is the tip?", budget=8, strategy="words", return_fetch=True)
    assert {(origin.page, round(origin.box[1])) for origin in answer.sources} == {(2, 328)}
    assert max(origin.box[2] for origin in answer.sources) > 300
    asked: dict[str, Any] = {"image": locked(tmp_path / "locked.pdf"), "question": "What is the total?", "budget": 4}
    answer = reader.generate(**asked, strategy="words", password=PASSWORD, return_fetch=True)
    assert not answer.fetch.fallbacks["scorer"]
    refuses("locked.pdf: expected the password of an encrypted PDF .* got none", reader.generate, **asked)


@pytest.mark.parametrize(("prefix", "to_all"), [(True, False), (False, False), (True, True), (False, True)])
def test_attention_is_the_last_tokens_beyond_the_firsts(reader: AttachedReader, prefix: bool, to_all: bool) -> None:
    """Against eager attention's own weights, of the prompt with base tokens alone, or with all tokens."""
    model, _ = published("qwen3_vl")
    page = reader.encode_image(picture(250, 320), prefix=prefix)
    prompt = page.prompts[0]
    received = reader.runner.attention(page, prompt, "xyz", to_all=to_all)
    with torch.no_grad():
        kept = None if to_all else torch.zeros(0, dtype=torch.long)
        placed = reader.runner.place(prompt, reader.runner.plain(prompt, "xyz"), kept)
        inputs = reader.runner._inputs(page, [placed])
        model.set_attn_implementation("eager")
        try:
            layers = model.base_model(**inputs, output_attentions=True).attentions
        finally:
            model.set_attn_implementation("sdpa")
    assert reader.processor.tokenizer.decode(placed.ids[-8:]) == "xyz<bot>"
    seen = (placed.kinds > 0).nonzero().flatten()
    assert len(seen) == (80 if to_all else 6)
    behind = int(seen[-1]) + 1
    more = torch.stack([layer[0, :, -1] - layer[0, :, behind] for layer in layers[1:3]]).clamp(min=0)
    expected = more.mean((0, 1))[seen]
    assert expected.max() > 0
    expected = with_neighbours(expected, prompt) if to_all else expected
    torch.testing.assert_close(received, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("pool", [0, 4])
def test_the_question_attends_to_all_tokens_which_are_read_once(reader: AttachedReader, pool: int) -> None:
    """The language model's layers behind those whose attention is read do not run for it."""
    page = reader.encode_image(picture(250, 320), pool=pool)
    paid = reader.runner.attention(page, page.prompts[0], "What?", to_all=True)
    rows: list[int] = []
    first, last = (reader.model.model.language_model.layers[at] for at in (0, -1))
    handles = [first.register_forward_hook(lambda layer, given, out: rows.append(given[0].shape[1]))]
    handles.append(last.register_forward_hook(lambda *given: pytest.fail("ran")))
    prepared = reader.ask(page, page.prompts[0], "What?", budget=0.25, strategy="attention")
    for handle in handles:
        handle.remove()
    assert len(rows) == 1 and rows[0] < 80 == len(page.prompts[0])
    count = 20 - len(page.prompts[0].base)
    assert set(prepared.fetch.indices[0].tolist()) == set(paid.argsort(descending=True)[:count].tolist())


def test_neighbours_of_a_token_that_is_attended_to_are_fetched(reader: AttachedReader) -> None:
    """A value's digits are tokens of their own; the last one got too little attention by itself, and was lost."""
    prompt = reader.encode_image([[picture(250, 320), picture(96, 128)]], prefix=False).prompts[0]
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
def test_unknown_families_and_what_belongs_to_another_model_are_refused(reader: AttachedReader) -> None:
    class Model:
        class config:  # noqa: N801
            model_type = "mllama"

    refuses("model_type: expected one of gemma3, idefics3, internvl, .*; got 'mllama'", arr_coc.attach, Model(), None)
    page = arr_coc.attach(*published("qwen2_5_vl")).encode_image(picture(150, 220))
    refuses("encoding: expected one that this model made; got one of Qwen2_5_VL", reader.generate, page, "What?")
    message = "processor: expected a InternVLProcessor, as internvl has; got Qwen3VLProcessor"
    refuses(message, arr_coc.attach, published("internvl")[0], reader.processor)


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
def test_what_cannot_be_asked_is_refused(reader: AttachedReader, given: dict[str, Any], message: str) -> None:
    refuses(message, reader.generate, **{"image": picture(150, 220), "question": "What?", **given})


def test_most_is_refused_before_any_image_is_encoded(reader: AttachedReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.model.base_model, "get_image_features", lambda **kwargs: pytest.fail("encoded"))
    for given in ({"budget": 2.0}, {"strategy": "other"}, {"question": " "}, {"boxes": [BOX]}, {"pool": -1}):
        refuses("expected", reader.generate, **{"image": picture(150, 220), "question": "What?", **given})


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_earlier_turns_are_read_as_the_plain_model_reads_them(family: str) -> None:
    (model, processor), page, turns = published(family), picture(150, 220), [("Who?", "Me.")]
    said = [("user", "Who?"), ("assistant", "Me."), ("user", "What?")]
    chat: list[Any] = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said]
    chat[0]["content"].insert(0, {"type": "image"})
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[text], images=[[page]], return_tensors="pt")
    expected = model.generate(**inputs, return_dict_in_generate=True, output_logits=True)
    reader = arr_coc.attach(model, processor)
    answer = reader.generate(page, "What?", history=turns, budget=1.0, **WHOLE)
    assert torch.equal(logits_of([answer]), torch.stack(expected.logits, 1))
    both = reader.generate(page, ["What?", "What?"], history=[turns, []], budget=0.5, return_fetch=True)
    single = [reader.generate(page, "What?", history=own, budget=0.5) for own in (turns, [])]
    assert [answer.text for answer in both] == single
    refuses("which stands for an image", reader.generate, page, "What?", history=[("Who?", reader.family.image_token)])
