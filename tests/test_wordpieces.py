"""A model whose fetched patches are wordpieces: tokens and patches are not one to one."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from graphs import Asking, tokens_of, vision
from helpers import (
    CARD,
    LARGE_TEXT,
    PAGE,
    QUESTION,
    READS_WORDS,
    SCAN,
    SCORES_WORDS,
    Cli,
    loud_model,
    open_reader,
    prompt,
    reads,
    refuses,
    stem_of,
    tiny_checkpoint,
    tiny_model,
    tiny_tokenizer,
)
from serving_client import IMAGES, SETTINGS, URLS, ask, serving, text_of

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.demo.steps import answer_in_steps
from arr_coc.modeling import answers, bridges, fetcher, views
from arr_coc.modeling.answers import FetchedPiece, FetchedWords, calibrated, evidence
from arr_coc.modeling.bridges import word_marks
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.generation import AnswerGenerator, QuestionBatch
from arr_coc.modeling.image_encoding import confidence_of
from arr_coc.modeling.scorers import spelling_match
from arr_coc.modeling.wordpieces import (
    CHARACTERS,
    CLASSES,
    PIECE_SLOTS,
    SPACE,
    SPELLED,
    TextReader,
    Word,
    either,
    line_slope,
    placed,
)
from arr_coc.training.reader.targets import class_of, spelled

WORDPIECES = {**READS_WORDS, "text": LARGE_TEXT}


@pytest.fixture(scope="module")
def model() -> Any:
    """Of its patches some begin none, some one and some two wordpieces."""
    return reads(tiny_model(**WORDPIECES), 0, 2)


@pytest.fixture
def foremost(monkeypatch: pytest.MonkeyPatch) -> int:
    """So few patches come once more that patches without a wordpiece leave room in a small budget."""
    monkeypatch.setattr(bridges, "FOREMOST", 2)
    return 2


@torch.no_grad()
def test_prompts_hold_the_wordpieces_and_no_empty_token(model: Any, foremost: int) -> None:
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
    silent = reads(tiny_model(**WORDPIECES), 0, 0)
    alone = silent(**prompt(silent, (PAGE, QUESTION), budget=0, strategy="none"), choices={"strategy": "none"})
    output = silent(**inputs, choices={"patches": fetched.indices})
    behind = -int(inputs.query_mask.sum())
    assert output.fetch.tokens.tolist() == [0]
    assert torch.allclose(output.logits[:, behind:], alone.logits[:, behind:], atol=1e-5)


@pytest.mark.parametrize("strategy", ["realizer", "words"])
def test_the_answers_loss_reaches_the_scorer_through_the_tokens_of_its_patches(model: Any, strategy: str) -> None:
    if strategy == "words":
        model = reads(tiny_model(**WORDPIECES, fetcher=SCORES_WORDS), 0, 2)
    model.zero_grad()
    inputs = prompt(model, (PAGE, QUESTION), (CARD, "Who?"))
    labels = inputs.input_ids.masked_fill(inputs.query_mask.bool(), -100)
    scorer = model.model.fetcher.scorers[strategy]
    try:
        output = model.train()(**inputs, labels=labels)
        output.loss.backward()
        assert any(parameter.grad is not None and parameter.grad.any() for parameter in scorer.parameters())
        assert torch.allclose(output.logits, model.eval()(**inputs, labels=labels).logits, atol=1e-5)
    finally:
        model.eval().zero_grad()


@torch.no_grad()
@pytest.mark.versions
@pytest.mark.parametrize("strategy", ["realizer", "words"])
def test_a_graph_hides_what_a_prompt_would_leave_out(model: Any, strategy: str) -> None:
    """No shape of a graph may depend on how many wordpieces there are: the last token's logits are the same."""
    if strategy == "words":
        model = reads(tiny_model(**WORDPIECES, fetcher=SCORES_WORDS), 0, 2)
        model.model.fetcher.scorers["words"].similarities.weight[:, 2:] = 0.0  # a graph compares no spelling
    encoding = model.model.encode_image(**vision(model))
    asking = Asking(model, encoding, strategy=strategy, budget=model.config.fetcher_config.budget)
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
def test_wordpieces_of_several_views_stand_view_by_view(model: Any, tiles: str, foremost: int) -> None:
    answer_generator = AnswerGenerator(model, model.processor)
    encoding = answer_generator.encode([[SCAN, PAGE]], tiles=tiles, prefix=False)
    choices = model.model.fetcher.resolve(FetchChoices(budget=40))
    selected, choices = answer_generator.select_slots(QuestionBatch(encoding, [[0, 1]], [QUESTION], choices))
    fetched = model.model.fetch(selected, choices)
    tokens = model.model.image_tokens(selected.encoding, fetched)[0][:, encoding.tokens.shape[1] :]
    filled = fetched.source >= 0
    assert fetched.counts.sum() == 40 and 0 < filled.sum() < 40
    assert not tokens[~filled].any() and tokens[filled].any(-1).all()
    for slot, own in enumerate(fetched.source):
        places = own[own >= 0]
        back = (fetched.view[slot, places].diff() < 0).nonzero()[:, 0] + 1
        assert (places < fetched.counts[slot]).all() and len(back) <= 1  # where what comes once more begins
        assert all((fetched.ranks()[slot, places[at:]] < foremost).all() for at in back)
    placed = model.model.place(selected, fetched, attention_mask=selected.attention_mask)
    shown = int((placed.inputs["input_ids"] == model.config.image_token_id).sum())
    assert shown == 2 * encoding.base_positions + int(placed.fetch.tokens.sum()) and int(filled.sum()) < 40
    assert isinstance(model.generate(encoding, QUESTION, budget=40), str)


@torch.no_grad()
def test_the_most_relevant_patches_come_once_more_behind_all_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the places of the least relevant ones of their slot."""
    model = reads(tiny_model(**WORDPIECES), 1, 1)
    monkeypatch.setattr(bridges, "FOREMOST", 5)
    encoding = model.encode_image([[SCAN, PAGE]], tiles="all")
    answer_generator = AnswerGenerator(model, model.processor)
    choices = model.model.fetcher.resolve(FetchChoices(budget=40))
    selected, choices = answer_generator.select_slots(QuestionBatch(encoding, [[0, 1]], [QUESTION], choices))
    fetched = model.model.fetch(selected, choices)
    model.model.image_tokens(selected.encoding, fetched)
    source, ranks = fetched.source, fetched.ranks()
    assert sorted(ranks[fetched.used].tolist()) == list(range(40))  # all slots share the budget
    for slot, own in enumerate(source):
        sources, count = own[own >= 0], int(fetched.counts[slot])
        foremost = (ranks[slot, :count] < 5).nonzero()[:, 0]
        first, again = sources.split([count - len(foremost), len(foremost)])
        assert again.tolist() == foremost.tolist() and first.diff().gt(0).all()
        in_slot = ranks[slot, :count].sort().values
        assert torch.equal(ranks[slot, first].sort().values, in_slot[: len(first)])


@torch.no_grad()
@pytest.mark.parametrize("budget", [20, 200])
@pytest.mark.parametrize("focus", [3.0, 1000.0])  # how far the more relevant view is preferred
def test_views_of_one_budget_have_room_for_words(focus: float, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Second wordpieces of a patch were dropped, and patches without text were fetched."""
    model = reads(tiny_model(**WORDPIECES, fetcher=SCORES_WORDS), 2, 2)
    for module in (bridges, views):
        monkeypatch.setattr(module, "FOREMOST", 5)
    monkeypatch.setattr(fetcher, "FOCUS", focus)
    encoding = model.encode_image([[SCAN, PAGE]], tiles="never")
    text = encoding.patch_mask & (torch.arange(256) % 5 == 0)
    encoding.pieces[~text] = -1
    encoding.pieces[1][encoding.pieces[1] >= 0] = 9  # so that one view is more relevant
    fetch = model.generate(encoding, QUESTION, budget=budget, spread="joint", return_fetch=True).fetch
    used = fetch.used
    assert text[fetch.view[used], fetch.indices[used]].all()
    wanted = 2 * fetch.counts + 2 * ((fetch.ranks() < 5) & used).sum(1)
    assert int(fetch.counts.sum()) == min(budget, int(text.sum()))
    assert int(fetch.tokens.sum()) == min(budget, int(wanted.sum()))
    assert (fetch.tokens <= wanted).all()


@torch.no_grad()
def test_only_patches_with_text_are_fetched_and_all_their_wordpieces_become_tokens(foremost: int) -> None:
    model = reads(tiny_model(**WORDPIECES, fetcher=SCORES_WORDS), 0, 1)
    encoding = model.encode_image(PAGE)
    begins = (encoding.pieces[0] >= 0).flatten(1).any(1) & encoding.patch_mask[0]
    for budget in (10, int(begins.sum()) + 5):
        fetched = model.generate(encoding, QUESTION, budget=budget, return_fetch=True).fetch.indices[0]
        assert begins[fetched].all() and len(fetched) == min(budget, int(begins.sum()))
    # Two begin in each of 20 patches, and those of the foremost come once more: more tokens than patches.
    model = reads(tiny_model(**WORDPIECES, fetcher=SCORES_WORDS), 2, 2)
    encoding = model.encode_image(PAGE)
    text = encoding.patch_mask[0].nonzero()[:20, 0]
    encoding.pieces[:, torch.isin(torch.arange(256), text, invert=True)] = -1
    for budget, tokens in ((100, 44), (44, 44), (43, 43), (6, 6)):
        assert model.generate(encoding, QUESTION, budget=budget, return_fetch=True).fetch.tokens.tolist() == [tokens]
        inputs = prompt(model, (PAGE, QUESTION), budget=budget)
        fetch = model.model.embed_images(
            inputs.input_ids, encoding, attention_mask=inputs.attention_mask, query_mask=inputs.query_mask
        ).fetch
        count = int(fetch.counts)
        assert count == min(budget, 20) and torch.isin(fetch.indices[0, :count], text).all()
        times = fetch.source[fetch.source >= 0].bincount(minlength=count)
        assert times.sum() == tokens == int(fetch.tokens)
        if budget >= 44:
            assert times.tolist() == (2 + 2 * (fetch.ranks()[0, :count] < foremost)).tolist()


def test_an_answer_says_how_many_tokens_it_read(model: Any, foremost: int) -> None:
    answer = model.generate(PAGE, QUESTION, return_fetch=True)
    seen = model.encode_image(PAGE)
    passes = model.generate(seen, QUESTION, return_fetch=True, num_passes=2, budget=8)
    each = [int(own.fetch.tokens) for own in passes.passes]
    assert int(answer.fetch.tokens) < int(answer.fetch.counts)
    assert int(passes.fetch.tokens) == sum(each) < int(passes.fetch.counts) == 16


def test_a_server_answers_as_generate_does() -> None:
    """It gives every token of a prompt an id: a prompt holds fewer of them than patches were fetched."""
    model, questions = reads(loud_model(**WORDPIECES, least_legibility=0.6), 0, 1), ["What is it?", "Who?", "When?"]
    with serving(model, SETTINGS) as (_, _, client):
        said = [ask(client, question, *URLS[:2]) for question in questions]
    expected = model.generate([IMAGES[:2]], questions, return_fetch=True)
    for page in said[0].arr_coc["images"]:
        assert page["legibility"] == 0.5 and page["warnings"] == [
            "this page is hard to read for the model (legibility 0.50): the answer may be wrong"
        ]
    assert [text_of(each) for each in said] == [answer.text for answer in expected]
    assert any(int(answer.fetch.tokens.sum()) < int(answer.fetch.counts.sum()) for answer in expected)


def test_an_answer_says_how_well_its_page_and_its_patches_were_read(model: Any) -> None:
    encoding = model.encode_image(PAGE)
    fetched = model.generate(encoding, QUESTION, budget=8, return_fetch=True).fetch.indices[0]
    encoding.characters = torch.tensor([1.0, 0.2]).repeat(1, 256, 1)
    encoding.characters[0, fetched, 1] = 0.9
    ask = partial(model.generate, encoding, QUESTION, budget=8, return_fetch=True)
    answer, page = ask(), (8 * 0.9 + 248 * 0.2) / 256
    assert (answer.legibility, answer.fetched_legibility) == (pytest.approx(page), pytest.approx(0.9))
    hard = f"this page is hard to read for the model (legibility {page:.2f}): the answer may be wrong"
    hard += ' (words="ocr" reads it with an OCR engine)'
    cut = "the answer is cut after 6 tokens (max_new_tokens)"
    assert answer.warning == f"{hard}; {cut}"
    *_, step = answer_in_steps(model, encoding, QUESTION, budget=8)
    assert step.warning == answer.warning
    nothing = model.generate(encoding, QUESTION, strategy="none", return_fetch=True)
    assert nothing.fetched_legibility == pytest.approx(page)
    encoding.characters[0, :, 1] = 0.6
    assert ask().warning == cut
    encoding.characters.zero_()
    assert (ask().legibility, ask().fetched_legibility) == (0.0, 0.0)
    encoding.characters = None  # of an earlier version
    assert (ask().legibility, ask().fetched_legibility, ask().warning) == (None, None, cut)


def test_the_probability_follows_from_the_calibration(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = model.encode_image(PAGE)
    ask = partial(model.generate, encoding, QUESTION, return_fetch=True, max_new_tokens=1)
    plain = ask()
    assert 1e-5 < plain.probability < 1 - 1e-5
    weights = {"logit": 0.5, "legibility": 3.0, "words": 0.0, "bias": 0.2}
    monkeypatch.setattr(model.config, "calibration", weights)
    sure = ask()
    assert sure.text == plain.text and sure.fetched_legibility == pytest.approx(0.5)
    logit = math.log(plain.probability / (1 - plain.probability))
    assert sure.probability == pytest.approx(1 / (1 + math.exp(-(0.5 * logit - 1.5 + 0.2))), rel=1e-4)
    found = FetchedWords(0.5, [FetchedPiece((0, 0, 0), 0, 7, 0, 0.5, read) for read in (0.6, 0.9)], [" Ha", "lf"])
    least = [found.evidence(0.3, text)["characters"] for text in ("half", "lf", "page")]
    assert least == pytest.approx([-0.4, -0.1, 0.0])
    passes = ask(num_passes=2, budget=8)
    known = evidence(passes.passes[-1].probability, text=passes.text, legibility=passes.fetched_legibility)
    assert passes.probability == pytest.approx(calibrated(0.0, weights, known))


def test_a_page_that_is_hard_to_read_is_said_by_the_command(tmp_path: Path, picture: Path, cli: Cli) -> None:
    """Random weights are sure of no character."""
    options = ("--model", tiny_checkpoint(tmp_path / "model", **READS_WORDS))
    code, _, err = cli("ask", picture, QUESTION, *options)
    assert code == 0 and "warning: this page is hard to read for the model (legibility 0." in err
    found = json.loads(cli("ask", picture, QUESTION, *options, "--json")[1])
    assert 0 <= found["legibility"] < 0.5 and found["warning"] in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision": {"compressor": "mask"}}, 'expected no "cells" or "wordpieces" with compressor "mask"'),
        ({"vision": {}}, """stem: expected "conv" with bridge "wordpieces"; got 'patchify'"""),
        ({"bridge": {}, "vision": {"marks": True}}, 'marks: expected false with bridge "linear"'),
        ({"fetcher": {"match_size": 8}}, 'match_size: expected 0 without scorer "words"; got 8'),
        ({"fetcher": {**SCORES_WORDS, "match_size": 0}}, 'match_size: expected above 0 with scorer "words"; got 0'),
        ({"bridge": {}, "vision": {}, "fetcher": SCORES_WORDS}, 'scorers: expected no "words" with bridge "linear"'),
    ],
)
def test_configs_that_cannot_read_wordpieces_are_refused(changes: dict[str, Any], message: str) -> None:
    refuses(message, tiny_model, **{**READS_WORDS, **changes})


# ---- reading
def shown(lines: list[tuple[str, int, int, int]], height: int = 8, width: int = 64) -> list[torch.Tensor]:
    """Perfect predictions of texts, each with its half row, first column and columns of a character."""
    classes = torch.zeros(1, height, width, CLASSES)
    present, middles = torch.full((1, height, width), -9.0), torch.zeros(1, height, width)
    for text, row, column, wide in lines:
        for at, character in enumerate(text):
            here = slice(column + at * wide, column + (at + 1) * wide)
            present[0, row, here] = 9.0
            number = CHARACTERS.index(character) + 1
            classes[0, row, here, number] = 9.0
            if wide > 1 and text[at + 1 : at + 2] == character:
                classes[0, row, here.stop - 1] = 0.0
                classes[0, row, here.stop - 1, 0] = 9.0
    return [classes, present, middles]


def test_columns_that_touch_in_a_line_are_a_word() -> None:
    stem = stem_of(*shown([("tall", 1, 3, 2), ("ox", 1, 12, 2), ("7%", 2, 3, 3), ("end", 7, 61, 1)]))
    words = {word.text: word for word in open_reader().words(stem)[0]}
    assert set(words) == {"tall", "ox", "7%", "end"}  # the line below touches, but its middle is elsewhere
    assert words["tall"].columns == (4.0, 6.0, 7.5, 10.0) and words["tall"].row == 1.5
    assert words["end"].columns == (61.5, 62.5, 63.5)
    assert open_reader().words(stem_of(*shown([]))) == [[]]
    reader = TextReader(4, 3)
    reader.spellings[1, 0], reader.spellings[2, 0] = SPACE, 1
    words = [Word(CHARACTERS[0], (18.0,), 3.9), Word(CHARACTERS[0], (34.0,), 4.1), Word(CHARACTERS[0], (120.0,), 4.1)]
    expected = [(2, 3, 1), (2, 3, 2), (2, 4, 7)]
    for order in (words, words[::-1]):
        assert [place for place in reader.pieces_of(placed(order, 16), 8) if place[0] == 2] == expected


def test_how_well_characters_were_read_is_counted_by_patch() -> None:
    classes, present, middles = shown([("tall", 1, 3, 2), ("ox", 5, 13, 4), ("?", 7, 40, 4)])
    classes[0, 5] /= 3
    classes[0, 7, 40:44] = 9.0 * torch.eye(CLASSES)[-1]  # another character than those that have a class
    reader = open_reader()
    _, characters = reader.read(stem_of(classes, present, middles))

    def sure(logit: float) -> float:
        return math.exp(logit) / (math.exp(logit) + CLASSES - 1)

    expected = torch.zeros(1, 16, 2)
    expected[0, 0] = torch.tensor([4.0, 4 * sure(9)])
    expected[0, 8:10] = torch.tensor([1.0, sure(3)])  # its columns are those of two patches
    expected[0, 14] = torch.tensor([1.0, 0.0])
    torch.testing.assert_close(characters, expected)
    assert confidence_of(characters.sum((0, 1))) == pytest.approx((4 * sure(9) + 2 * sure(3)) / 7)
    assert [word.text for word in reader.words(stem_of(classes, present, middles))[0]] == ["tall", "ox"]
    assert not reader.read(stem_of(*shown([])))[1].any() and confidence_of(torch.zeros(2)) == 0


def test_a_word_covers_the_patches_up_to_the_next_one() -> None:
    """Outlines covered only the patches in which wordpieces begin."""
    pieces, characters = torch.full((1, 16, 2, 5), -1), torch.zeros(1, 16, 2)
    for row, begin, held in ((0, [0], [0, 1, 3]), (1, [0, 2], [0, 1, 2]), (2, [1], [1, 3])):
        for column in begin:
            pieces[0, 4 * row + column, 0, 0] = 7
        for column in held:
            characters[0, 4 * row + column] = 1
    covered = answers.patches_of_text(pieces, characters).view(4, 4)
    assert covered[0, 0] == 4  # a character is wider than a patch
    assert (covered[1, 0], covered[1, 2]) == (2, 1)
    assert covered[2, 1] == 3 and (covered[3] == 1).all()


@pytest.mark.parametrize("tiles", ["never", "all"])
def test_an_answers_tokens_are_at_the_places_of_words(model: Any, monkeypatch: pytest.MonkeyPatch, tiles: str) -> None:
    found = []
    for wide in (1, 3):
        monkeypatch.setattr(answers, "patches_of_text", lambda pieces, _, wide=wide: torch.full(pieces.shape[:2], wide))
        found.append(model.generate(SCAN, QUESTION, return_fetch=True, tiles=tiles).sources)
    assert len(found[0]) == len(found[1]) > 0
    for plain, wide in zip(*found, strict=True):
        assert wide.box[:2] == plain.box[:2] and wide.box[3] == plain.box[3]
        assert plain.box[2] < wide.box[2] <= SCAN.width or plain.box[2] == SCAN.width


def test_guesses_give_no_wordpieces_but_count_as_characters() -> None:
    tokenizer, reader = tiny_tokenizer(), open_reader()
    reader.spellings = spelled(tokenizer, len(tokenizer))
    classes, present, middles = shown([("ox", 1, 4, 4), ("to", 5, 8, 4)])
    sure, _ = reader.read(stem_of(classes, present, middles))
    classes[0, 5] /= 3
    assert [word.confidence > 0.3 for word in reader.words(stem_of(classes, present, middles))[0]] == [True, False]
    pieces, characters = reader.read(stem_of(classes, present, middles))
    assert (sure[0, 8:] >= 0).any() and torch.equal(pieces[0, :8], sure[0, :8]) and (pieces[0, :8] >= 0).any()
    assert (pieces[0, 8:] == -1).all() and characters[0, 8:, 0].sum() == 2 and 0 < characters[0, 8:, 1].sum() < 0.6


def test_sources_begin_with_the_answers_own_words_and_an_answer_prints_in_a_line() -> None:
    """`sources[:1]` was one patch for every question, and printing an answer filled the screen."""
    origins = tuple(answers.Origin(0, None, None, (16.0 * at, 0.0, 16.0 * at + 16, 16.0)) for at in range(3))
    own = [FetchedPiece((0, 0, 0), 2, 7, 2, 0.5, 1.0)]
    plain = answers.Answer("37", 0.5, fetch=torch.zeros(99, 99), sources=origins)  # type: ignore[arg-type]
    answer = answers.with_places(plain, own, None, [])  # type: ignore[arg-type]
    assert answer.sources == (origins[2], *origins[:2]) and answer.places == origins[2:]
    assert "'37'" in repr(answer) and "\n" not in repr(answer) and len(repr(answer)) < 300


def test_lines_of_a_turned_page_are_levelled() -> None:
    """12 lines of 16 words on a page of 1024 px; by 1 degree a line falls by more than two half rows of 8 px."""
    words = ("word", "wor", "wo")
    level = [laid(words[at % 3], 30.0 + 60 * at, 10 * line + 4.5) for line in range(12) for at in range(16)]
    slope = math.tan(math.radians(1)) / 8

    def turned(word: Word, by: float) -> Word:
        return replace(word, row=word.row + by * ((word.columns[0] + word.columns[-1]) / 2 - 512))

    assert line_slope(level) == 0 and all(any(word is each for each in level) for word, _ in placed(level, 128))
    expected = sorted((word.columns[0], int(word.row)) for word in level)
    for by in (0.0, slope, -slope):
        words = [turned(word, by) for word in level]
        assert line_slope(words) == pytest.approx(by, rel=0.02)
        assert sorted((word.columns[0], row) for word, row in placed(words, 128)) == expected
    assert line_slope([turned(word, slope) for word in level[:20]]) == 0  # too few to tell


def laid(text: str, column: float, row: float, confidence: float = 0.9, wide: float = 8.0, **others: Any) -> Word:
    """A word whose characters are `wide` columns apart, a half row high."""
    columns = tuple(column + wide * at for at in range(len(text)))
    return Word(text, columns, row, confidence, **{"span": (row - 0.5, row + 0.5), **others})


def test_of_what_lies_in_one_place_the_surer_word_is_kept() -> None:
    """Large print over half rows 2 to 6, which is read in pieces at full size; small print on all sides of it."""
    around = [laid("a", 4, 4.0, 0.2), laid("a", 100, 4.0, 0.2), laid("a", 20, 1.5, 0.2), laid("a", 20, 6.5, 0.2)]
    pieces = [laid("l1", 20, 2.5, 0.4), laid("", 30, 4.0, 0.0, unread=(40.0,)), laid("_", 60, 5.5, 0.7)]
    large = laid("Sum", 20, 4.0, 0.8, 24, span=(2.0, 6.0))
    assert either([*pieces, *around], [large]) == [*around, large]
    assert either([], [large]) == [large]  # nothing was read there
    fine = laid("tax", 20, 4.0, 0.75, 24)
    assert either([fine], [large]) == [fine]  # about as sure
    assert either([replace(fine, unread=(90.0, 98.0))], [large]) == [large]  # two characters have no class
    assert either(pieces, [replace(large, confidence=0.6)]) == pieces
    assert either(pieces, [laid("", 20, 4.0, 0.9, unread=(20.0,), span=(2.0, 6.0))]) == pieces
    surer = replace(large, text="Som", confidence=0.85)
    assert either([], [large, surer]) == [surer]


def test_large_print_is_read_on_smaller_images() -> None:
    """Each is half as large: the second word at half size, the third at a quarter. At full size two are misread."""
    tokenizer, reader = tiny_tokenizer(), open_reader()
    reader.spellings = spelled(tokenizer, len(tokenizer))
    fine = shown([("ox", 1, 4, 4), ("ii", 5, 8, 4), ("jj", 12, 40, 4)], 16, 128)
    fine[0][0, 5:] /= 9  # unsure
    coarse = [shown([("to", 2, 4, 5)], 8, 64), shown([("us", 3, 10, 5)], 4, 32)]
    pieces, characters = reader.read(stem_of(*fine), [stem_of(*each) for each in coarse])
    expected = torch.full((8, 8, 2, PIECE_SLOTS), -1, dtype=torch.int32)
    for word, half_row, columns in (("ox", 1, (6, 10)), ("to", 5, (13, 23)), ("us", 14, (50, 70))):
        filled: dict[int, list[int]] = {}
        for token, start in reader.cut(word):
            filled.setdefault(columns[start] // 16, []).append(token)
        for column, ids in filled.items():
            expected[half_row // 2, column, half_row % 2, : len(ids)] = torch.tensor(ids)
    assert torch.equal(pieces[0].view_as(expected), expected)
    assert characters[0].view(8, 8, 2)[[0, 2, 2, 7, 7], [0, 0, 1, 3, 4], 0].tolist() == [2, 1, 1, 1, 1]
    assert characters[0, :, 0].sum() == 6 and characters[0, :, 1].sum() > 5.5
    alone, _ = reader.read(stem_of(*fine))
    assert (alone >= 0).sum() == len(reader.cut("ox"))  # the others are no more than guesses


def test_marks_tell_where_relevant_words_begin_and_end() -> None:
    """Words of two tokens and one, and in the next line again, where the first token seems to go on a word."""
    relevance = torch.tensor([0.4, 0.6, 0.8, 0.9, 0.6, 0.5])  # of the words 1/2, 4/5, 3/4 and 1/2: odds of 1, 4, 3, 1
    opens = torch.tensor([True, False, True, False, False, True])
    breaks = torch.tensor([True, False, False, True, False, False])
    marks = torch.tensor(
        [[0.5, 0.25, 0.25, 0], [0.5, 0.25, 0, 0], [0.8, 1, 0.75, 1], [0.75, 0.75, 0.75, 0]]
        + [[0.75, 0.75, 0, 0.5], [0.5, 0.25, 0, 0.25]]
    )
    torch.testing.assert_close(word_marks(relevance, opens, breaks), marks)
    pair = relevance.expand(2, -1), torch.stack((opens, torch.ones_like(opens))), breaks.expand(2, -1)
    both = word_marks(*pair)
    torch.testing.assert_close(both[0], marks)
    assert torch.equal(both[1, :, 0], relevance)
    apart = word_marks(*pair, torch.tensor([0, 0, 0, 1, 1, 1]).expand(2, -1))  # the second line for another question
    torch.testing.assert_close(apart[0, :3], marks[:3])
    torch.testing.assert_close(apart[0, 3:, 0], marks[3:, 0])
    torch.testing.assert_close(apart[0, 3:, 1:], marks[3:, 1:] / 0.75)


@torch.no_grad()
def test_spellings_are_a_part_of_the_checkpoint_and_what_is_read_of_an_encoding(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    assert not spelled(tokenizer, len(tokenizer) + 3)[len(tokenizer) :].any() and not spelled(tokenizer, 1).any()
    letters = spelled(tokenizer, len(tokenizer))
    word, inner = tokenizer.convert_tokens_to_ids(["Ġthe", "user"])
    assert letters[word].tolist() == [SPACE, *map(class_of, "the"), *[0] * (SPELLED - 4)]
    assert letters[inner].tolist() == [*map(class_of, "user"), *[0] * (SPELLED - 4)]
    model = tiny_model(**WORDPIECES)
    reader = model.model.vision_tower.text_reader
    assert not ArrCocForConditionalGeneration(model.config).model.vision_tower.text_reader.spellings.any()
    known = reader.cut("the")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).model.vision_tower.text_reader
    assert torch.equal(again.spellings, letters) and again.cut("the") == known == [(word, 0)]
    again.spellings.zero_()
    assert again.cut("the") == []
    model = tiny_model(**WORDPIECES)
    encoding = model.encode_image(PAGE)
    assert encoding.pieces.shape == (1, 256, 2, PIECE_SLOTS) and (encoding.pieces >= 0).any()
    encoding.save(tmp_path / "page.safetensors", model)
    again = type(encoding).load(tmp_path / "page.safetensors", model)
    assert torch.equal(again.pieces, encoding.pieces) and torch.equal(again.characters, encoding.characters)
    assert again.legibility() == encoding.legibility() == encoding.select(torch.tensor([0, 0])).legibility()
    assert 0 < again.legibility() < 1 and again.join(encoding).legibility([1]) == pytest.approx(again.legibility())
    assert model.generate(again, QUESTION) == model.generate(PAGE, QUESTION)


def test_spellings_match_across_wordpieces_capitals_and_mistakes() -> None:
    """Wordpieces of capitals are others than those of small letters (issue 37)."""
    letters = {character: number for number, character in enumerate(CHARACTERS, 1)}
    spellings = torch.zeros(20, SPELLED, dtype=torch.uint8)
    for token, text in enumerate(("S", "ENT", " BY", " Iota1", "xx", "What", " is", " sent", " by", "?"), 1):
        codes = [SPACE if character == " " else letters[character] for character in text]
        spellings[token, : len(codes)] = torch.tensor(codes, dtype=torch.uint8)
    pieces = torch.full((2, 16, 2, PIECE_SLOTS), -1, dtype=torch.int32)
    for patch, token in ((0, 1), (1, 2), (2, 3), (3, 5), (8, 4), (9, 5)):
        pieces[0, patch, 0, 0] = token
    question, mask = torch.tensor([[6, 7, 8, 9, 10]] * 2), torch.tensor([[False, False, True, True, True]] * 2)
    match = spelling_match(pieces, question, mask, spellings)
    assert match.shape == (2, 16, 2) and not match[1].any()
    assert (match[0, :3, 0] > 0.4).all() and not match[0, 3:].any()
    asked_all = spelling_match(pieces, question, torch.ones_like(mask), spellings)
    assert torch.equal(asked_all[0, :3], match[0, :3])
    batched = spelling_match(pieces.flip(0), question, mask, spellings)
    assert torch.equal(batched[1], match[0])
