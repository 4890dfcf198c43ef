"""A model whose fetched patches are wordpieces: tokens and patches are not one to one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_model, tiny_tokenizer
from serving_client import chat, serving
from test_compiling import Asking, tokens_of, vision
from test_modeling import CARD, PAGE, QUESTION, loud_model, prompt
from test_serving import IMAGES, SETTINGS, URLS
from test_views import LARGE_TEXT
from test_views import PAGE as SCAN

from arr_coc import ArrCocConfig
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.generation import Asker, QuestionBatch
from arr_coc.modeling.joint_allocation import bridge_over_views
from arr_coc.modeling.wordpieces import SPELLED, Spelling, WordpieceHead
from arr_coc.training.from_scratch.patch_language import speaks_words
from arr_coc.training.reader.targets import class_of, spelled

WORDPIECES = {"bridge": {"kind": "wordpieces", "places": 8}, "text": LARGE_TEXT}


def tell(model: Any, counts: list[float]) -> Any:
    """The model with these biases of how many wordpieces begin in a patch; never more than two."""
    with torch.no_grad():
        model.model.bridge.head.count.bias.copy_(torch.tensor([*counts, -99.0, -99.0, -99.0]))
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    """Of its patches some begin none, some one and some two wordpieces."""
    return tell(tiny_model(**WORDPIECES), [2.5, 0.0, 0.0])


@torch.no_grad()
def test_prompts_hold_the_wordpieces_and_no_empty_token(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION), (CARD, "Who?"))
    encoding = model.model.encode_image(inputs.pixel_values, inputs.patch_mask)
    placed = model.model.embed_images(inputs.input_ids, encoding, attention_mask=inputs.attention_mask)
    base, most = model.config.vision_tokens()
    fetched = placed.fetch.tokens
    assert placed.fetch.counts.tolist() == [most, most] and 0 < fetched[0] != fetched[1] and fetched.max() < most
    shown = placed.inputs["input_ids"] == model.config.image_token_id
    assert shown.sum(1).tolist() == (base + fetched).tolist()
    for row, count in enumerate((base + fetched).tolist()):
        assert placed.image_tokens[row, :count].any(-1).all() and not placed.image_tokens[row, count:].any()
        assert torch.equal(placed.embeds[row][shown[row]], placed.image_tokens[row, :count])
    assert (
        placed.inputs["attention_mask"].sum(1).tolist()
        == (placed.inputs["input_ids"] != model.config.padding_id).sum(1).tolist()
    )


@torch.no_grad()
def test_a_patch_without_a_wordpiece_leaves_the_answer_as_it_is(model: Any) -> None:
    """Tokens that hold nothing would take places in the prompt, and what is read moves along."""
    inputs = prompt(model, (PAGE, QUESTION), budget=8)
    fetched = model(**inputs).fetch
    silent = tell(tiny_model(**WORDPIECES), [99.0, 0.0, 0.0])
    alone = silent(**prompt(silent, (PAGE, QUESTION), budget=0, strategy="none"), choices={"strategy": "none"})
    output = silent(**inputs, choices={"patches": fetched.indices})
    assert output.fetch.tokens.tolist() == [0] and torch.allclose(output.logits, alone.logits, atol=1e-5)


def test_the_answers_loss_reaches_the_scorer_through_the_tokens_of_its_patches(model: Any) -> None:
    model.zero_grad()
    inputs = prompt(model, (PAGE, QUESTION), (CARD, "Who?"))
    labels = inputs.input_ids.masked_fill(inputs.query_mask.bool(), -100)
    scorer = model.model.fetcher.scorers["realizer"]
    try:
        output = model.train()(**inputs, labels=labels)
        output.loss.backward()
        assert any(parameter.grad is not None and parameter.grad.any() for parameter in scorer.parameters())
        assert torch.allclose(output.logits, model.eval()(**inputs, labels=labels).logits, atol=1e-5)
    finally:
        model.eval().zero_grad()


@torch.no_grad()
@pytest.mark.versions
def test_a_graph_hides_what_a_prompt_would_leave_out(model: Any) -> None:
    """No shape of a graph may depend on how many wordpieces there are: the last token's logits are the same."""
    encoding = model.model.encode_image(**vision(model))
    asking = Asking(model, encoding, strategy="realizer", budget=model.config.fetcher_config.budget)
    first, second = (tokens_of(model, [text, text]) for text in ("What is it?", "Who was it?"))
    program = torch.export.export(asking, first).module()
    torch._dynamo.reset()
    compiled = torch.compile(asking, fullgraph=True, backend="aot_eager")
    for inputs in (first, second):
        expected = asking(*inputs)[:, -1]
        assert torch.allclose(program(*inputs)[:, -1], expected, atol=1e-5)
        assert torch.allclose(compiled(*inputs)[:, -1], expected, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("tiles", ["never", "all"])
def test_wordpieces_of_several_views_stand_view_by_view(model: Any, tiles: str) -> None:
    asker = Asker(model, model.processor)
    encoding = asker.encode([[SCAN, PAGE]], tiles=tiles, prefix=False)
    asked, choices = QuestionBatch(encoding, [[0, 1]], [QUESTION]), model.model.fetcher.resolve(FetchChoices(budget=40))
    look, choices = asker.look(asked, choices, (), {})
    fetched = model.model.fetch(look, choices)
    bridged = bridge_over_views(model.model, look.encoding, fetched)
    stands = bridged.source >= 0
    assert fetched.counts.sum() == 40 and 0 < stands.sum() < 40
    assert not bridged.tokens[~stands].any() and bridged.tokens[stands].any(-1).all()
    for slot, own in enumerate(bridged.source):
        places = own[own >= 0]
        assert (places < fetched.counts[slot]).all() and fetched.view[slot, places].diff().ge(0).all()
    placed = model.model.place(look, fetched, attention_mask=look.attention_mask)
    shown = int((placed.inputs["input_ids"] == model.config.image_token_id).sum())
    assert shown == 2 * encoding.base_positions + int(placed.fetch.tokens.sum()) and int(stands.sum()) < 40
    assert isinstance(model.generate(encoding, QUESTION, budget=40), str)


@torch.no_grad()
def test_the_most_relevant_patches_of_a_view_keep_their_wordpieces() -> None:
    """Every patch begins two wordpieces, so half of the patches have no room: those that the scorer puts last."""
    model = tell(tiny_model(**WORDPIECES), [0.0, 0.0, 99.0])
    encoding = model.encode_image([[SCAN, PAGE]], tiles="never")
    asker = Asker(model, model.processor)
    asked = QuestionBatch(encoding, [[0, 1]], [QUESTION])
    look, choices = asker.look(asked, model.model.fetcher.resolve(FetchChoices(budget=40)), (), {})
    fetched = model.model.fetch(look, choices)
    bridged = bridge_over_views(model.model, look.encoding, fetched)
    for slot, count in enumerate(fetched.counts.tolist()):
        kept = bridged.source[slot, :count].unique()
        relevance = fetched.relevance[slot][fetched.indices[slot, :count]]
        assert len(kept) == (count + 1) // 2
        assert relevance[kept].min() >= relevance.sort(descending=True).values[len(kept) - 1]


def test_an_answer_says_how_many_tokens_it_read(model: Any) -> None:
    answer = model.generate(PAGE, QUESTION, return_fetch=True)
    seen = model.encode_image(PAGE)
    passes = model.generate(seen, QUESTION, return_fetch=True, num_passes=2, budget=8)
    each = [int(own.fetch.tokens) for own in passes.passes]
    assert int(answer.fetch.tokens) < int(answer.fetch.counts)
    assert int(passes.fetch.tokens) == sum(each) < int(passes.fetch.counts) == 16


def test_a_server_answers_as_generate_does() -> None:
    """It gives every token of a prompt an id: a prompt holds fewer of them than patches were fetched."""
    openai, model = pytest.importorskip("openai"), tell(loud_model(**WORDPIECES), [9.0, 0.0, 0.0])
    questions = ["What is it?", "Who?", "When was that?"]
    with (
        serving(model, SETTINGS) as (_, address),
        openai.OpenAI(base_url=address, api_key="any", max_retries=0, timeout=60) as client,
    ):
        said = [client.chat.completions.create(model="tiny", messages=chat(q, *URLS[:2])) for q in questions]
    expected = model.generate([IMAGES[:2]], questions, return_fetch=True)
    assert [each.choices[0].message.content for each in said] == [answer.text for answer in expected]
    assert any(int(answer.fetch.tokens.sum()) < int(answer.fetch.counts.sum()) for answer in expected)


def test_what_expects_a_token_for_each_patch_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match='bridge: expected one whose tokens tell of one patch each; got "wordpieces"'):
        speaks_words(model.model.bridge)
    with pytest.raises(ValueError, match='expected no "cells" or "wordpieces" with compressor "mask"'):
        ArrCocConfig(vision_config={"compressor": "mask"}, bridge_config={"kind": "wordpieces"})


def test_spellings_are_told_apart_and_saved(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    assert not spelled(tokenizer, len(tokenizer) + 3)[len(tokenizer) :].any()
    letters = spelled(tokenizer, len(tokenizer))
    word, inner = tokenizer.convert_tokens_to_ids(["Ġthe", "user"])
    assert letters[word].tolist() == [2, *map(class_of, "the"), *[0] * (SPELLED - 3), 4]
    assert letters[inner].tolist() == [1, *map(class_of, "user"), *[0] * (SPELLED - 4), 5]

    model = tiny_model(bridge={"kind": "wordpieces", "places": 16, "spelling_size": 32, "table_size": len(letters)})
    spelling = model.model.bridge.head.spelling
    assert not spelling.letters.any()
    spelling.letters.copy_(letters)
    rows = spelling(torch.tensor([word, inner]))
    assert torch.allclose(rows.norm(dim=-1), torch.ones(2), atol=1e-6) and rows[0] @ rows[1] < 0.9
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).model.bridge.head.spelling
    assert torch.equal(again.letters, letters) and torch.equal(again(), spelling())


def test_spellings_are_of_the_whole_vocabulary() -> None:
    with pytest.raises(ValueError, match=r"table_size: expected the language model's vocab_size, \d+, with spellings"):
        tiny_model(bridge={"kind": "wordpieces", "spelling_size": 8, "table_size": 99})


def test_what_is_spelled_is_named_though_no_training_showed_it() -> None:
    """Positions that name the characters of a wordpiece are, summed, its spelling."""
    spelling = Spelling(50, 512)
    generator = torch.Generator().manual_seed(0)
    spelling.letters.copy_(torch.randint(0, 9, spelling.letters.shape, generator=generator))
    head = WordpieceHead(8, 16, spelling)
    table = torch.zeros(50, 16)
    at = spelling.letters.long() + 256 * torch.arange(spelling.letters.shape[1])
    said = torch.cat((torch.zeros(50, 16), spelling.codes.flatten(0, 1)[at].sum(1)), -1)
    assert head.logits(said, head.rows(table), head.scale).argmax(-1).tolist() == list(range(50))
    assert (spelling.characters(said[:, 16:]).argmax(-1) == spelling.letters).float().mean() > 0.95


@torch.no_grad()
def test_kept_rows_follow_what_they_are_made_of() -> None:
    spelling = Spelling(20, 8)
    head, table = WordpieceHead(4, 6, spelling), torch.randn(20, 6)
    spelling.letters.copy_(torch.arange(20)[:, None].expand(-1, spelling.letters.shape[1]))
    first = head.rows(table)
    assert head.rows(table) is first
    for change in (lambda: table.mul_(-1), lambda: spelling.codes.mul_(-1), lambda: spelling.letters.add_(1)):
        change()
        rows = head.rows(table)
        assert not torch.allclose(rows, first) and torch.equal(rows, head.rows(table, torch.arange(20)))
        first = rows
    assert head.rows(table.clone()) is not first
    assert head.to(torch.bfloat16).rows(table.to(torch.bfloat16)).dtype == torch.bfloat16
