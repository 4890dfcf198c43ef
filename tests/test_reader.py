"""Stages that teach a checkpoint to read pages into wordpieces: targets, crops, pages as tokens, a few steps each."""

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import (
    READS_WORDS,
    SCORES_WORDS,
    open_reader,
    prompt,
    reads,
    refuses,
    stem_of,
    tiny_checkpoint,
    tiny_model,
    tiny_tokenizer,
)
from peft import PeftModel
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.bridges import FOREMOST, reading_order
from arr_coc.modeling.modeling_arr_coc import relevance_loss
from arr_coc.modeling.scorers import EMPTY
from arr_coc.modeling.wordpieces import CLASSES, SPACE
from arr_coc.pages.page import Line, Question, TextPage
from arr_coc.training.attention import eager_attention
from arr_coc.training.checkpoints import load_state
from arr_coc.training.reader import asking, language_model
from arr_coc.training.reader.asking import QuestionAnswering, QuestionAnsweringStage, RelevanceStage
from arr_coc.training.reader.language_model import seen, spans
from arr_coc.training.reader.pages import LISTWISE, PAGES, AskedPage, CropBatches, Sources, crop
from arr_coc.training.reader.recognition import Recognition, RecognitionStage, line_losses, word_loss, words_right
from arr_coc.training.reader.targets import (
    LEADS,
    Print,
    Wordpieces,
    misread,
    page_tokens,
    printed,
    read_without_pixels,
    spelled,
)
from arr_coc.training.recipe import load_recipe, train
from arr_coc.training.stages import Run

WIDE, TALL = 8.0, 10.0
"""Advance and height of a character of the pages here, px."""


def line(text: str, x: float, y: float, wide: float = WIDE) -> Line:
    """Text whose characters are `wide` px apart, from (x, y) of its upper left corner."""
    left = x + wide * np.arange(len(text), dtype=np.float32)
    return Line(text, np.stack([left, np.full_like(left, y), left + wide, np.full_like(left, y + TALL)], 1))


def page(rng: np.random.Generator, split: str = "train") -> TextPage:
    """Three fields on a page of 128 x 96 px, drawn as bars, and a question about each."""
    image = Image.new("RGB", (128, 96), "white")
    draw, lines, questions = ImageDraw.Draw(image), [], []
    for row, name in enumerate(("tax", "sum", "due")):
        label, value = line(name, 4, 8 + 28 * row), line(str(rng.integers(10, 99)), 64, 8 + 28 * row)
        lines += [label, value]
        for each in (label, value):
            draw.rectangle([*map(float, each.boxes[0, :2]), *map(float, each.boxes[-1, 2:])], fill="black")
        boxes = [(*map(float, each.boxes[0, :2]), *map(float, each.boxes[-1, 2:])) for each in (label, value)]
        kind = "detail" if row else "total"
        questions.append(Question(f"{name}?", (value.text,), (boxes[1],), (boxes[0],), kind))
    return TextPage(image, image.size, tuple(lines), tuple(questions), kind="fields")


@pytest.fixture
def fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source "fields", and the same pages as "undrawn" ones."""
    monkeypatch.setitem(PAGES, "fields", page)
    monkeypatch.setitem(PAGES, "undrawn", lambda rng, split: replace(page(rng, split), image=None))


@pytest.fixture
def cut() -> Wordpieces:
    return Wordpieces(tiny_tokenizer())


# ---- where characters stand
def test_columns_know_the_character_over_their_middle() -> None:
    text = printed([[line("to", 3, 3), line("w", 41, 35)]], 64, 16)  # columns of 1 px, half rows of 8 px
    over = text.over(1, 4)[0]
    assert over.shape == (8, 64)
    for row in (0, 1):  # y from 3 to 13 is over both middles, 4 and 12
        assert over[row, :21].tolist() == [*[-1] * 3, *[0] * 8, *[1] * 8, -1, -1]  # x from 3 to 11, and to 19
    assert over[4, 40:51].tolist() == [-1, *[2] * 8, -1, -1] and over[3].max() == -1
    assert text.word.tolist() == [0, 0, 1] and torch.allclose(text.middle * 16, torch.tensor([8.0, 8.0, 40.0]))


def shown(text: Print, crops: int, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predictions without a mistake, where no two neighbours are equal: of characters, where text is, and of lines."""
    over = text.over(crops, side)
    covered = over >= 0
    classes = torch.zeros(*over.shape, CLASSES)
    classes[covered, text.character[over[covered]]] = 12.0
    classes[~covered, 0] = 12.0
    middles = text.middle[over.clamp(min=0)] * 2 - torch.arange(over.shape[1])[:, None] - 0.5
    return classes, torch.where(covered, 9.0, -9.0), middles * covered


def test_losses_are_small_where_all_predictions_are_right() -> None:
    text, reader = printed([[line("total 12.5", 3, 20)], [line("a", 3, 3), line("lot", 20, 40)]], 96, 16), open_reader()
    classes, present, middles = shown(text, 2, 6)
    right, wrong = stem_of(classes, present, middles), stem_of(classes.roll(1, -1), -present, middles + 0.5)
    lines, other = line_losses(reader(right), text), line_losses(reader(wrong), text)
    assert lines["present"] < 1e-3 and lines["middle"] == 0 and other["present"] > 5 and other["middle"] > 0.3
    assert word_loss(right, text, reader) < 0.2 < 5 < word_loss(wrong, text, reader)
    assert list(words_right(reader.words(right), text)) == [True] * 4
    assert list(words_right(reader.words(wrong), text)) == [False] * 4
    text = printed([[line("illegible", 3, 3, 1.5)]], 64, 16)
    nothing = torch.zeros(1, 8, 64)
    stem = stem_of(torch.randn(1, 8, 64, CLASSES), nothing, nothing).requires_grad_()
    loss = word_loss(stem, text, open_reader())
    loss.backward()
    assert loss == 0 and not stem.grad.any()


# ---- crops
def test_crops_keep_ink_in_the_boxes() -> None:
    drawn = page(np.random.default_rng(0))
    for seed in range(20):
        picture, lines = crop(np.random.default_rng(seed), drawn, 64, (6.0, 30.0))
        assert picture.shape == (64, 64, 3)
        dark = (picture < 60).all(-1)
        shown = np.zeros_like(dark)
        for each in lines:
            x0, y0 = np.floor(each.boxes[:, :2].min(0) - 2).astype(int).clip(0)
            x1, y1 = np.ceil(each.boxes[:, 2:].max(0) + 2).astype(int).clip(0)
            shown[y0:y1, x0:x1] = True
        assert not (dark & ~shown).any(), seed


def test_batches_are_a_function_of_the_step(fields: None) -> None:
    stage = RecognitionStage(batch_size=4, per_page=2, side=64, least_print=6.0, most_print=30.0)
    batches = CropBatches(Sources({"fields": 1.0}, "train"), (3,), stage, 16)
    first, again, other = batches.batch(5), batches.batch(5), batches.batch(6)
    assert torch.equal(first.pixels, again.pixels) and torch.equal(first.text.box, again.text.box)
    assert not torch.equal(first.pixels, other.pixels)


def test_sources_and_reads_are_checked_before_a_page_is_drawn() -> None:
    refuses(r"page source: expected one of .*; got 'paper'", Sources, {"paper": 1.0}, "train")
    refuses('pdf_folder: expected a folder of cached pages for the source "pdf"; got', Sources, {"pdf": 1.0}, "train")
    with pytest.raises(ValueError, match=r"reads: expected shares of both, fetched, base; got \['some'\]"):
        QuestionAnsweringStage(reads={"some": 1.0})


# ---- pages as tokens
def test_tokens_are_in_reading_order_with_places_on_the_padded_square(cut: Wordpieces) -> None:
    drawn = page(np.random.default_rng(0))
    pieces = read_without_pixels(drawn, 16, cut)  # 128 x 96 px on 16 x 16 patches of 8 px: 2 rows of padding above
    found, ids = page_tokens(pieces), cut.tokenizer.convert_tokens_to_ids
    assert found.pieces[:4].tolist() == [ids("Ġ"), ids("t"), ids("a"), ids("x")]
    assert found.half_rows[0] == 2 * 2 + 2 * 13 // 8  # the first line's middle is 13 px down
    assert found.columns[:4].tolist() == [1, 1, 2, 3]
    assert (np.diff(found.half_rows) >= 0).all() and len(found.pieces) == (pieces >= 0).sum()
    held = pieces.flatten(1)[torch.from_numpy(found.patches)]
    assert (held == torch.from_numpy(found.pieces)[:, None]).any(1).all()
    kept = found.only(found.columns < 8)
    assert kept.patches.tolist() == found.patches[found.columns < 8].tolist() and kept.side == 16


def test_pages_that_are_not_drawn_are_read_as_the_model_reads_drawn_ones() -> None:
    tokenizer = tiny_tokenizer()
    lines = (line("the sum 12.5", 3, 20), line("user", 20, 63), line("is", 70, 61), line("x", 0, 90))
    text, reader = printed([lines], 96, 16), open_reader()
    reader.spellings = spelled(tokenizer, len(tokenizer))
    drawn, _ = reader.read(stem_of(*shown(text, 1, 6)))
    undrawn = read_without_pixels(TextPage(None, (96, 96), lines), 6, Wordpieces(tokenizer))
    assert torch.equal(drawn[0], undrawn) and (undrawn >= 0).sum() > 10


def test_a_share_of_the_words_is_read_wrongly(cut: Wordpieces) -> None:
    drawn, rng = page(np.random.default_rng(0)), np.random.default_rng(0)
    right = read_without_pixels(drawn, 16, cut)
    assert torch.equal(read_without_pixels(drawn, 16, cut, rng, 0.0), right)
    assert not torch.equal(read_without_pixels(drawn, 16, cut, rng, 1.0), right)
    found = [misread(rng, "total5") for _ in range(300)]
    assert 0.04 < np.mean([not each for each in found]) < 0.2 and misread(rng, "") == ""
    assert all(abs(len(each) - 6) <= 1 for each in found if each) and {5, 6, 7} <= {len(each) for each in found}
    same = [each for each in found if len(each) == 6]
    assert all(sum(a != b for a, b in zip(each, "total5", strict=True)) <= 1 for each in same)
    assert np.mean([each == "total5" for each in found]) < 0.05


def test_the_most_relevant_patches_come_once_more_in_reading_order() -> None:
    """All but patches 0 and 2; without room for all tokens, patch 2 is left out, which is the least relevant."""
    text, most = FOREMOST + 2, 2 * FOREMOST + 2
    place = torch.arange(most)[None, :, None]
    rank = torch.tensor([[FOREMOST, 0, FOREMOST + 1, *range(1, FOREMOST), *range(text, most)]])
    foremost_ones = [1, *range(3, text)]
    for room, plain in ((most, [*range(text)]), (most - 1, [0, *foremost_ones]), (FOREMOST, [])):
        chosen, stands, again = reading_order(place < text, rank, place, torch.tensor([room]))
        assert chosen[stands].tolist() == plain + foremost_ones and stands.sum() == stands[0, :room].sum()
        assert again[stands].tolist() == [False] * len(plain) + [True] * FOREMOST


# ---- questions about a page
def run_of(model: Any) -> Run:
    return Run(model, model.processor)


def word_model(budget: int = 40) -> Any:
    """A model that reads text, and scores it."""
    return tiny_model(**READS_WORDS, fetcher={**SCORES_WORDS, "budget": budget})


def answering(source: str = "undrawn", *, model: Any = None, **changes: Any) -> QuestionAnswering:
    """The task of `QuestionAnsweringStage`."""
    settings = {"pages": {source: 1.0}, "worn": 0.0, "pages_per_step": 2, "bf16": False, "rank": 4, **changes}
    return QuestionAnsweringStage(**settings).task(run_of(word_model() if model is None else model))


def test_relevance_is_learnt_by_patch_and_among_all_patches() -> None:
    """Of questions whose answer is known to stand in some patches with text, or on none."""
    relevance = torch.tensor([[1.0, 0, 1, 0], [0] * 4, [-1] * 4, [0, 0, 1, 0], [0, 1, LEADS, 0]])
    scores = torch.tensor([[2.0, 0, EMPTY, 1], [-1, 0, 1, 0], [3, 1, 0, 0], [1, 1, EMPTY, 0], [2, 1, EMPTY, 0]])
    questions = tuple(Question(str(n), ("",), (), (), "detail") for n in range(5))
    ids, text = torch.zeros(5, 1), torch.tensor([True, True, True, False])
    asked = AskedPage(None, None, text, questions, ids, torch.ones(5, 1).bool(), relevance, relevance == 1.0)
    scores.requires_grad_()
    loss = asked.relevance_loss(scores, 4.0)
    by_patch = relevance_loss(scores[None], relevance, asked.patch_mask.expand(5, -1), 4.0)
    candidates = [[2.0, 0, 0], [0.0, -1, 0, 1], [1.0, 2, 0]]  # the answer's patch or none, the others with text, none
    listwise = sum(torch.tensor(each).logsumexp(0) - each[0] for each in candidates) / 3
    torch.testing.assert_close(loss, by_patch + LISTWISE * listwise)
    loss.backward()
    assert not scores.grad[2].any() and not scores.grad[:, 3].any() and scores.grad[[0, 1, 4]].any(1).all()
    found = asked.found(scores.detach())
    assert found["first"].tolist() == [1.0, 0.0] and found["foremost"].tolist() == [1.0, 1.0]


@torch.no_grad()
@pytest.mark.parametrize(("budget", "most"), [(200, 1), (256, 2)])
def test_question_answering_sees_what_the_model_sees(monkeypatch: pytest.MonkeyPatch, budget: int, most: int) -> None:
    """One question about a drawn page: up to the answer the same tokens as in the model's own prompt."""
    drawn, model = page(np.random.default_rng(0)), reads(word_model(budget), 0, most)
    model.model.fetcher.scorers["words"].head.weight.mul_(0.02)  # no two patches are as relevant
    model.model.vision_tower.text_reader.spellings[60:75, 0] = SPACE  # some begin words
    for name in ("mark", "best", "first", "last"):
        getattr(model.model.bridge.places, name).normal_()
    drawn = replace(drawn, image=drawn.image.resize((128, 128)), size=(128, 128))  # nothing is read in padding
    monkeypatch.setitem(PAGES, "drawn", lambda rng, split: replace(drawn, questions=drawn.questions[:1]))
    task = answering("drawn", model=model, pages_per_step=1, places_rate=1e-3)
    task.places.load_state_dict(model.model.bridge.places.state_dict())
    (asked,) = task.pages(0).batch(0)
    batch = task.prompts([asked], "both")
    last = int(batch.answer[0].nonzero()[0])
    visible = (seen(batch)[0, 0, last] == 0).nonzero()[:, 0]
    inputs = prompt(model, (drawn.image, drawn.questions[0].text), budget=budget)
    assert torch.allclose(inputs.pixel_values, asked.pixels, atol=1e-5)
    encoding = model.model.encode_image(inputs.pixel_values, inputs.patch_mask)
    own = model.model.embed_images(
        inputs.input_ids, encoding, attention_mask=inputs.attention_mask, query_mask=inputs.query_mask
    )
    markers = model.processor.tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
    kept = ~torch.isin(own.inputs["input_ids"][0], torch.tensor(markers))  # SmolLM2 has none
    counts = int(batch.fetched[0, visible].sum()), int(own.fetch.tokens)
    assert FOREMOST < counts[0] == counts[1] < budget and (most == 1 or counts[0] > int(own.fetch.counts) + FOREMOST)
    torch.testing.assert_close(task.embedded(batch)[0, visible], own.embeds[0, kept], atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("written_out", [True, False])
def test_an_answer_is_predicted_from_what_stands_before_it(fields: None, written_out: bool) -> None:
    """As stages train, with attention written out, and as models answer: no token of an answer sees what follows."""
    model = word_model()
    task = answering(model=model)
    batch = task.prompts(task.pages(0).batch(0), "fetched")
    embeds = task.embedded(batch)
    with eager_attention(model.model.language_model) if written_out else nullcontext():
        logits, targets, number = task.language.answers(embeds, batch)
        for token in range(int((number == 0).sum())):
            changed = embeds.clone()
            position = int((batch.answer[0] & (batch.question[0] == 0)).nonzero()[token])
            changed[0, position + 1 :] = torch.randn(changed[0, position + 1 :].shape)
            again, _, _ = task.language.answers(changed, batch)
            assert torch.allclose(again[token], logits[token], atol=1e-5)
            changed[0, position] += 1.0
            assert not torch.allclose(task.language.answers(changed, batch)[0][token], logits[token], atol=1e-3)


@torch.no_grad()
def test_questions_of_one_page_are_apart_in_eager_attention(fields: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their scores for each other are not computed, whatever the mask says: the answers are the same."""
    model = word_model(budget=12)
    task = answering(model=model)
    pages = task.pages(0).batch(0)
    batch, together = task.prompts(pages[:1], "both"), task.prompts(pages, "both")
    parts = spans(batch)
    assert [batch.question[0, start:end].unique().tolist() for start, end in parts] == [[-1], [0], [1], [2]]
    assert parts[0][0] == 0 and parts[-1][1] == batch.ids.shape[1] and spans(together) == []
    embeds = task.embedded(batch)
    expected = task.language.answers(embeds, batch)[0]
    with eager_attention(model.model.language_model):
        logits, _, number = task.language.answers(embeds, batch)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        nothing_hidden = torch.zeros(1, 1, len(batch.ids[0]), len(batch.ids[0]))
        monkeypatch.setattr(language_model, "seen", lambda batch, dtype: nothing_hidden)
        logits = task.language.answers(embeds, batch)[0]
        embeds[:, slice(*parts[2])] += 1.0
        again = task.language.answers(embeds, batch)[0]
    same = [torch.allclose(again[number == own], logits[number == own], atol=1e-5) for own in range(3)]
    assert same == [True, False, True]


def test_questions_whose_answer_was_misread_are_left_out_of_training(fields: None) -> None:
    task = answering(kinds=("detail",), mistakes=0.0)
    asked = task.pages(0).batch(0)[0]
    first, second = asked.questions
    wrong, other = replace(first, answers=("qzx",)), replace(first, answers=("qzx",), kind="total")

    def told(*questions: Question, only_readable: bool = True) -> tuple[list[int], torch.Tensor]:
        batch = task.prompts([replace(asked, questions=questions)], "fetched", only_readable)
        assert len(batch.kinds) == int(batch.question.max()) + 1
        return batch.ids.roll(-1, 1)[batch.answer].tolist(), batch.relevance[batch.relevance > 0]

    answers = [task.prompting.answer(each.answers[0]) for each in (first, second, wrong)]
    assert told(first, second)[0] == answers[0] + answers[1]
    left, relevance = told(wrong, second)
    assert left == answers[1]
    assert torch.equal(relevance, told(wrong, second, only_readable=False)[1][-len(relevance) :])  # its own tokens
    assert told(wrong, second, only_readable=False)[0] == told(other, second)[0] == answers[2] + answers[1]
    assert told(wrong, wrong)[0] == answers[2] * 2  # none is left, so all are asked


# ---- the stages
PLAIN: dict[str, Any] = {"worn": 0.0, "warmup": 1, "workers": 0, "bf16": False}


def curve(folder: Path, stage: str) -> list[dict[str, float]]:
    return [json.loads(text) for text in (folder / f"{stage}.jsonl").read_text().splitlines()]


def test_recognition_learns_to_read(fields: None, tmp_path: Path) -> None:
    model = tiny_model(**READS_WORDS)
    tower = model.model.vision_tower
    tower.text_reader.spellings.zero_()
    behind = {name: weight.clone() for name, weight in model.named_parameters() if "grid_encoder" not in name}
    sizes = {"steps": 30, "batch_size": 4, "side": 64, "per_page": 2, "evaluate_every": 30}
    stage, run = RecognitionStage(pages={"fields": 1.0}, learning_rate=1e-2, **sizes, **PLAIN), run_of(model)
    stage.run(run, tmp_path)
    first, last = curve(tmp_path, "recognition")[0], curve(tmp_path, "recognition")[-1]
    assert last["held out, fields: characters"] < 0.8 * first["held out, fields: characters"]
    assert 0 <= last["held out, fields: words"] <= 1
    trained = {name for name, weight in behind.items() if not torch.equal(weight, model.get_parameter(name))}
    heads = ("line_head", "character_head")
    assert trained == {f"model.vision_tower.text_reader.{head}.{part}" for head in heads for part in ("weight", "bias")}
    assert tower.text_reader.spellings.any() and not run.adapter


@pytest.mark.parametrize("stage", [partial(RecognitionStage, side=64), RelevanceStage, QuestionAnsweringStage])
def test_stages_ask_for_a_model_that_reads_words(fields: None, stage: Any) -> None:
    with pytest.raises(ValueError, match='bridge_config.kind: expected "wordpieces"; got "linear"'):
        stage(pages={"fields": 1.0}).task(run_of(tiny_model()))


@torch.no_grad()
def test_the_wide_blocks_of_a_new_stem_add_nothing_yet() -> None:
    reads = {**READS_WORDS, "vision": {**READS_WORDS["vision"], "stem_wide_blocks": 1}}
    model = tiny_model(**reads, fetcher=SCORES_WORDS)
    model.model.vision_tower.text_reader.spellings.zero_()
    steps = Recognition(RecognitionStage(), run_of(model)).stem
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(steps(image), steps[:-1](image))
    steps[-1].pwconv2.weight.fill_(1.0)
    Recognition(RecognitionStage(), run_of(model))
    assert steps[-1].pwconv2.weight.all()  # what was trained goes on, from the weights alone


@pytest.mark.parametrize(("source", "steps"), [("fields", 2), ("undrawn", 30)])
def test_relevance_trains_the_scorers_alone(
    fields: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, steps: int
) -> None:
    monkeypatch.setattr(asking, "EVALUATED_PAGES", 4)
    model = word_model()
    frozen = {name: weight.clone() for name, weight in model.named_parameters() if "fetcher" not in name}
    sizes = {"steps": steps, "evaluate_every": steps, "pages_per_step": 2, "questions": 3}
    stage = RelevanceStage(pages={source: 1.0}, learning_rate=3e-3, **sizes, **PLAIN)
    before = model.model.fetcher.scorers["words"].head.weight.clone()
    stage.run(run_of(model), tmp_path)
    lines = curve(tmp_path, "relevance")
    assert not torch.equal(before, model.model.fetcher.scorers["words"].head.weight)
    if source == "undrawn":  # random weights read nothing on a picture
        first, last = ({key.rpartition(" ")[2]: value for key, value in lines[at].items()} for at in (0, -1))
        assert last["loss"] < 0.9 * first["loss"] and last["first"] > 0.5 and last["foremost"] == 1.0
    assert all(torch.equal(frozen[name], weight) for name, weight in model.named_parameters() if name in frozen)


def test_question_answering_trains_the_adapter_and_the_places_alone(fields: None, tmp_path: Path) -> None:
    model = word_model()
    frozen = {name: weight.clone() for name, weight in model.named_parameters() if "bridge.places" not in name}
    sizes = {"steps": 8, "evaluate_every": 8, "pages_per_step": 2, "evaluated": 6, "rank": 4}
    stage, run = QuestionAnsweringStage(pages={"undrawn": 1.0}, learning_rate=2e-2, **sizes, **PLAIN), run_of(model)
    stage.run(run, tmp_path)
    lines = curve(tmp_path, "question_answering")
    assert {"held out, undrawn, both", "held out, undrawn, fetched", "held out, undrawn, both, detail"} <= set(lines[0])
    assert any("lora_B" in name and weight.any() for name, weight in run.adapter.items())
    assert all(torch.equal(frozen[name], weight) for name, weight in model.named_parameters() if name in frozen)
    state = load_state(tmp_path / "question_answering")
    assert state is not None
    places = state["weights"]["places.rows.weight"]
    assert torch.equal(places, model.model.bridge.places.rows.weight)


def test_a_recipe_leaves_an_adapter_that_peft_reads(fields: None, tmp_path: Path) -> None:
    """A start need not bring what other stages leave, and the answers of decoder and adapter are PEFT's own."""
    tiny_checkpoint(tmp_path / "start", **READS_WORDS, fetcher=SCORES_WORDS)
    stage = (
        {"stage": "question_answering", "pages": {"undrawn": 1.0}, "steps": 3, "pages_per_step": 2}
        | {"evaluate_every": 3, "evaluated": 3, "warmup": 0, "learning_rate": 5e-2, "workers": 0, "bf16": False}
        | {"rank": 4}
    )
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"model": "start", "start": "start", "stages": [stage]}))
    train(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "out")
    out = tmp_path / "out" / "model"
    model = ArrCocForConditionalGeneration.from_pretrained(out)
    begun = ArrCocForConditionalGeneration.from_pretrained(tmp_path / "start").model.bridge.places.rows.weight
    assert not model.model.bridge.places.rows.weight.equal(begun)
    causal = AutoModelForCausalLM.from_config(model.config.text_config)
    causal.model.load_state_dict(model.model.language_model.state_dict())
    ids = torch.arange(8)[None]
    before = causal(ids).logits
    adapted = PeftModel.from_pretrained(causal, str(out / "language_adapter"))
    assert not torch.allclose(before, adapted(ids).logits, atol=1e-4)
    held = load_file(out / "language_adapter" / "adapter_model.safetensors")
    assert {name.replace(".default", "") for name in adapted.state_dict() if "lora_" in name} == set(held)
