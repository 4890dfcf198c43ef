"""Training from scratch: data as a function of the step, and stages that run, learn and leave what they found."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TINY_PATCH, TINY_SIDE, tiny_config
from torch import Tensor, nn

from arr_coc import ArrCocImageProcessor
from arr_coc.data import CHARSET, FIELDS, Document, box_targets, glyph_targets, render_document
from arr_coc.data.mixture import Mixture, sketch_document
from arr_coc.data.questions import build_tokenizer, question_words
from arr_coc.data.records import NOT_ON_THE_PAGE
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor
from arr_coc.training.attention import all_eager_attention
from arr_coc.training.checkpoints import load_learner, load_state, save_learner
from arr_coc.training.from_scratch.answering import AnsweringStage
from arr_coc.training.from_scratch.copying import READS, CopyingStage, CopyingTask
from arr_coc.training.from_scratch.learner import LEARNT, Learner
from arr_coc.training.from_scratch.questions import Batch, Prompts, QuestionPages, _spelt
from arr_coc.training.from_scratch.reading import ReadingPages, ReadingStage, reading_loss, values_read
from arr_coc.training.from_scratch.shared_prefix import pointer_loss, shown_by
from arr_coc.training.from_scratch.stage import DrawnPages, Loop, ScratchStage
from arr_coc.training.from_scratch.targets import SLOTS, word_targets
from arr_coc.training.from_scratch.visual_pretraining import VisualPretrainingStage
from arr_coc.training.recipe import Recipe, load_recipe, train
from arr_coc.training.stages import STAGES, Run, Stage

READING = ReadingStage(steps=4, batch_size=4, warmup=1, evaluate_every=2, workers=0, evaluate_split="train")
LOOKING = VisualPretrainingStage(
    steps=4, batch_size=2, kinds={"document": 1.0}, warmup=1, evaluate_every=2, workers=0, evaluate_split="train"
)
COPYING = CopyingStage(steps=1, pages=1, questions=1, budget=24, warmup=1, evaluate_every=1, workers=0)
ANSWERING = AnsweringStage(
    steps=3, pages=2, questions=2, aligned_steps=1, frozen_steps=2, transcript_budget=24, evaluate_every=3,
    evaluate_questions=4, workers=0, evaluate_split="train",
)  # fmt: skip


@pytest.fixture(scope="module")
def config() -> ArrCocConfig:
    tokenizer = build_tokenizer()
    given = tiny_config().to_dict()
    text = {**given["text_config"], "vocab_size": len(tokenizer), "max_position_embeddings": 1024}
    image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    parts = {name: given[name] for name in ("vision_config", "semantic_config", "fetcher_config", "bridge_config")}
    return ArrCocConfig(**parts, text_config=text, image_token_id=image)


BUDGET = 24


def begun(config: ArrCocConfig) -> Run:
    """A run whose model has new weights."""
    images = ArrCocImageProcessor(size={"height": TINY_SIDE, "width": TINY_SIDE}, patch_size=TINY_PATCH)
    return Run(ArrCocForConditionalGeneration(config), ArrCocProcessor(images, build_tokenizer()))


def questions(config: ArrCocConfig, prompts: Prompts, *, sketched: bool = False, **changes: Any) -> Batch:
    mixture = None if sketched else Mixture(ANSWERING.kinds)
    stage = replace(ANSWERING, **changes)
    return QuestionPages(stage, config, prompts, split="train", transcript_budget=BUDGET, mixture=mixture).batch(0)


def texts(tokens: Tensor, chosen: Tensor) -> list[str]:
    """What is on the chosen tokens of each row."""
    rows = zip(tokens, chosen, strict=True)
    return [build_tokenizer().decode(row[mask]) for row, mask in rows]


# ---- vocabulary ---------------------------------------------------------------------------------------------------


def test_fields_are_single_tokens_and_values_are_spelt() -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.tokenize("What is the subtotal?")[4:] == ["Ġis", "Ġthe", "Ġsubtotal", "?"]
    assert tokenizer.tokenize("Brussels") == list("Brussels")
    assert "subtotal" in question_words()


@pytest.mark.parametrize("text", ["$1,204.00", "New York", "naïve ☂ text", "  two  spaces", CHARSET])
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.decode(tokenizer(text).input_ids) == text


# ---- data ---------------------------------------------------------------------------------------------------------


def test_reading_batches_depend_on_the_step_alone(config: ArrCocConfig) -> None:
    pages = ReadingPages(READING, config.vision_config, split="train")
    later = ReadingPages(READING, config.vision_config, split="train", start=1)
    first, second = (batch for batch, _ in zip(iter(pages), range(2), strict=False))
    resumed = next(iter(later))
    assert torch.equal(second.pixels, resumed.pixels) and torch.equal(second.shown.centres, resumed.shown.centres)
    assert not torch.equal(first.pixels, second.pixels)
    side, grid = config.vision_config.image_size // 2, config.vision_config.grid_size // 2
    assert first.pixels.shape == (4, 3, side, side) and first.words.shape == (4, grid, grid)
    assert first.shown.targets(4, grid).shape == (4, grid, grid, SLOTS)


def test_pages_that_come_up_again_are_drawn_less_often_and_are_a_function_of_the_step(
    config: ArrCocConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first ones, of which as many are kept as training draws among."""
    monkeypatch.setattr("arr_coc.training.from_scratch.stage.KEPT", 8)
    drawn: list[int] = []
    draw = DrawnPages._draw

    def counted(pages: DrawnPages, number: int) -> Document:
        drawn.append(number)
        return draw(pages, number)

    monkeypatch.setattr(DrawnPages, "_draw", counted)
    stage = replace(READING, reused=4, batch_size=16)
    pages = ReadingPages(stage, config.vision_config, split="train")
    batches = [pages.batch(step) for step in range(40)]
    shown = 40 * 16 // 4  # four crops of each
    assert len(drawn) == len(set(drawn)) and abs(len(drawn) - shown / 4) <= 8
    later = ReadingPages(stage, config.vision_config, split="train").batch(39)
    assert torch.equal(later.pixels, batches[39].pixels) and torch.equal(later.words, batches[39].words)
    assert not torch.equal(batches[38].pixels, batches[39].pixels)


def test_held_out_pages_are_not_the_training_pages(config: ArrCocConfig) -> None:
    training = ReadingPages(READING, config.vision_config, split="train").batch(0)
    held_out = ReadingPages(READING, config.vision_config, split="train", held_out=True).batch(0)
    assert not torch.equal(training.pixels, held_out.pixels)


def test_prompt_marks_question_answer_and_which_glyph_each_character_is(config: ArrCocConfig) -> None:
    tokenizer = build_tokenizer()
    answer = [("1", 4), ("2", 4), (".", 5), ("5", 5), ("0", 6)]
    text = Prompts(tokenizer, config.image_token_id)("What is the tax?", answer, [("a", 1), (" ", -1), ("B", 2)])
    chosen = [token for token, is_answer in zip(text.after, text.answer, strict=True) if is_answer]
    asked = [token for token, is_query in zip(text.after, text.query, strict=True) if is_query]
    spelt = [glyph for glyph, is_answer in zip(text.spelt, text.answer, strict=True) if is_answer]
    assert tokenizer.decode(chosen) == "12.50<|im_end|>a B<|im_end|>"
    assert tokenizer.decode(asked) == "What is the tax?"
    assert tokenizer.decode(text.before) == "<|im_start|>user\n<|vision_start|>"
    assert spelt == [4, 4, 5, 5, 6, -1, 1, -1, 2, -1]


@pytest.mark.parametrize("sketched", [True, False])
def test_questions_about_what_is_not_on_the_page(config: ArrCocConfig, sketched: bool) -> None:
    batch = questions(config, Prompts(build_tokenizer(), config.image_token_id), sketched=sketched, absent=1.0)
    assert texts(batch.after, batch.answer) == [f"{NOT_ON_THE_PAGE}<|im_end|>"] * 4
    assert not batch.relevance.any() and (batch.places == -1).all()
    assert batch.whole is not None and (batch.whole.places >= 0).any()  # the page's lines are transcribed all the same


@pytest.mark.parametrize("stage", [ANSWERING, COPYING])
@pytest.mark.parametrize("name", ["absent", "unheard", "turns"])
def test_shares_of_questions_are_checked(stage: ScratchStage, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected .*; got 1.5"):
        replace(stage, **{name: 1.5})


def test_questions_about_what_no_page_has_a_field_for(config: ArrCocConfig) -> None:
    prompts = Prompts(build_tokenizer(), config.image_token_id)
    batch = questions(config, prompts, sketched=True, absent=1.0, unheard=1.0)
    assert texts(batch.after, batch.answer) == [f"{NOT_ON_THE_PAGE}<|im_end|>"] * 4
    assert not any(set(FIELDS) & set(re.findall(r"\w+", text.lower())) for text in texts(batch.after, batch.query))


def test_pages_with_unheard_of_fields_are_asked_about_them_and_teach_no_word_of_theirs(config: ArrCocConfig) -> None:
    stage = replace(ANSWERING, kinds={"unheard": 1.0}, pages=4)
    prompts, mixture = Prompts(build_tokenizer(), config.image_token_id), Mixture(stage.kinds)
    pages = QuestionPages(stage, config, prompts, split="train", transcript_budget=BUDGET, mixture=mixture)
    drawn = [pages._page(number, np.random.default_rng(number))[1] for number in range(4)]
    unheard = [[entry for entry in page.entries if entry.field not in FIELDS] for page in drawn]
    assert all(len(own) > 0 for own in unheard)
    words = [word_targets(page.entries, size=pages.size, grid=pages.grid) for page in drawn]
    assert all((on_page == -100).any() and (on_page > 0).any() for on_page in words)
    assert pages.batch(0).relevance.any()


def test_pages_that_are_sorted_by_length_are_the_same_pages(config: ArrCocConfig) -> None:
    """With less padding, and the same whatever the step that a run goes on from."""
    prompts, usual = Prompts(build_tokenizer(), config.image_token_id), replace(COPYING, pages=3)
    given: dict[str, Any] = {"split": "train", "transcript_budget": BUDGET, "mixture": None}

    def batches(sorted_steps: int, **more: Any) -> list[Batch]:
        stage = replace(usual, sorted_steps=sorted_steps)
        pages = [QuestionPages(stage, config, prompts, **given, **more) for _ in range(2)]
        drawn = [pages[0].batch(step) for step in range(4)]
        again = pages[1].batch(3)
        assert torch.equal(drawn[3].after, again.after) and torch.equal(drawn[3].spelt, again.spelt)
        return drawn

    def written(drawn: list[Batch]) -> list[str]:
        whole = [batch.read_from(whole=True) for batch in drawn]
        return sorted(text for batch in whole for text in texts(batch.after, batch.answer))

    def size(drawn: list[Batch]) -> int:
        return sum(batch.read_from(whole=True).after.numel() for batch in drawn)

    alone, together = batches(1), batches(4)
    assert written(alone) == written(together) and size(together) < 0.9 * size(alone)
    for batch in together:  # a glyph's number is that of its own page
        spelt = batch.spelt >= 0
        said = [
            CHARSET.index(character) + 1 for character in build_tokenizer().batch_decode(batch.after[spelt][:, None])
        ]
        assert batch.shown.classes[batch.spelt[spelt]].tolist() == said
    for own, other in zip(batches(1, held_out=True), batches(4, held_out=True), strict=True):
        assert torch.equal(own.after, other.after), "measured on the same pages"


def test_what_a_tile_does_not_show_is_what_stands_elsewhere_on_its_page(config: ArrCocConfig) -> None:
    """So that a scorer learns "not here" on a page of the same kind, where the field would be found on another tile."""
    prompts = Prompts(build_tokenizer(), config.image_token_id)
    stage = replace(ANSWERING, absent=1.0, kinds={"tile": 1.0})
    pages = QuestionPages(stage, config, prompts, split="train", transcript_budget=BUDGET, mixture=Mixture(stage.kinds))
    shown, rng = [], np.random.default_rng((stage.seed, 2, 0))
    page = pages._page(0, rng)[1]
    assert page.elsewhere
    for _ in range(8):
        question, answer, patches = pages._asked(rng, page.entries[0], _spelt(page.entries, page.glyphs), page)
        shown += [field for field in page.elsewhere if field in question.lower()]
        assert "".join(char for char, _ in answer) == NOT_ON_THE_PAGE and not patches.any()
    assert len(shown) >= 8
    batch = pages.batch(0)
    assert texts(batch.after, batch.answer) == [f"{NOT_ON_THE_PAGE}<|im_end|>"] * 4 and not batch.relevance.any()


@pytest.mark.parametrize("kind", ["dense", "overview"])
def test_pages_that_cannot_be_asked_about_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=f"kinds: expected pages with fields that can be read.*; got {kind}"):
        replace(ANSWERING, kinds={"document": 1.0, kind: 1.0})


def test_a_second_turn_has_the_first_before_it_and_asks_with_its_own_words(config: ArrCocConfig) -> None:
    prompts = Prompts(build_tokenizer(), config.image_token_id)
    first, second = (questions(config, prompts, turns=share) for share in (0.0, 1.0))
    for batch, turns in ((first, 1), (second, 2)):
        said = texts(batch.after, torch.ones_like(batch.answer))
        assert all(text.count("<|im_start|>assistant") == turns for text in said)
        asked, answered = texts(batch.after, batch.query), texts(batch.after, batch.answer)
        for text, question, answer in zip(said, asked, answered, strict=True):
            assert f"{question}<|im_end|>\n<|im_start|>assistant\n{answer}" in text
            assert text.count(question) == 1 and text.index(question) > text.rfind("<|im_start|>user")


@pytest.mark.parametrize("sketched", [True, False])
def test_places_name_the_patch_that_shows_the_character(config: ArrCocConfig, sketched: bool) -> None:
    """Rendered pages list all labels before all values: places must come from boxes, not from the glyphs' order."""
    tokenizer = build_tokenizer()
    prompts = Prompts(tokenizer, config.image_token_id)
    batch = questions(config, prompts, sketched=sketched).transcript
    assert batch is not None
    shown = batch.glyphs.flatten(1, 2).repeat_interleave(ANSWERING.questions, 0)
    found = [
        tokenizer.decode([token]) in {CHARSET[c - 1] for c in shown[row, place].tolist() if c}
        for row in range(len(batch.after))
        for token, place in zip(batch.after[row].tolist(), batch.places[row].tolist(), strict=True)
        if place >= 0
    ]
    assert len(found) > 20 and sum(found) >= 0.97 * len(found)  # narrow letters may share a patch with more than three


def test_question_batch_shapes_and_that_relevance_covers_the_answer(config: ArrCocConfig) -> None:
    batch = questions(config, Prompts(build_tokenizer(), config.image_token_id))
    assert batch.pixel_values.shape[0] == 2 and batch.after.shape[0] == 4
    assert batch.relevance.shape == (4, config.vision_config.num_patches)
    assert bool((batch.relevance.sum(1) > 0).all()) and bool((batch.answer & batch.query).sum() == 0)
    assert batch.transcript is not None
    assert bool((batch.transcript.oracle >= batch.relevance).all()), "what is asked about is always fetched"
    assert int(batch.transcript.oracle.sum(1).max()) <= max(BUDGET, int(batch.relevance.sum(1).max()))


def test_sketches_are_seeded_and_inside_the_page() -> None:
    one, again = (sketch_document(np.random.default_rng(5)) for _ in range(2))
    assert one == again
    boxes = [entry.value_box for entry in one[0]]
    assert all(0 <= x0 < x1 <= 256 and 0 <= y0 < y1 <= 256 for x0, y0, x1, y1 in boxes)


# ---- reading loss -------------------------------------------------------------------------------------------------


def test_none_weighs_less_in_the_reading_loss() -> None:
    logits = torch.zeros(1, 1, 1, 2, 5)
    logits[..., 1] = 2.0
    wrong_none, wrong_letter = torch.tensor([0, 1]), torch.tensor([1, 3])
    assert reading_loss(logits, wrong_none.view(1, 1, 1, 2)) < reading_loss(logits, wrong_letter.view(1, 1, 1, 2))


# ---- stages -------------------------------------------------------------------------------------------------------


def test_reading_stage_learns_and_resumes(config: ArrCocConfig, tmp_path: Path) -> None:
    run = begun(config)
    before = run.model.model.vision_tower.grid_encoder.neck.conv2.weight.clone()
    READING.run(run, tmp_path)
    state = load_state(tmp_path / "reading.pt")
    assert state is not None and state["step"] == READING.steps
    assert not torch.equal(run.model.model.vision_tower.grid_encoder.neck.conv2.weight, before)
    again = begun(config)
    READING.run(again, tmp_path)  # finished: nothing to do
    for name, weight in run.model.model.vision_tower.grid_encoder.state_dict().items():
        assert torch.equal(weight, again.model.model.vision_tower.grid_encoder.state_dict()[name])
    assert torch.equal(run.learner["reading"]["words.weight"], again.learner["reading"]["words.weight"])


def test_values_read_counts_values_with_every_character_right() -> None:
    document = render_document(np.random.default_rng(0), size=256, split="train")
    truth = glyph_targets(document.glyphs, size=256, grid=32, slots=SLOTS)

    class Answers(nn.Module):
        """A head that names what it was told, whatever the encoder says."""

        def __init__(self, named: np.ndarray) -> None:
            super().__init__()
            self.logits = 20 * nn.functional.one_hot(torch.from_numpy(named), 1 + len(CHARSET)).float()[None]

        def forward(self, features: Tensor) -> tuple[Tensor, None]:
            return self.logits, None

    def read(named: np.ndarray) -> float:
        return values_read(Answers(named), [document], 256, 8)

    assert read(truth) == 1.0 and read(np.roll(truth, 1, axis=1)) < 0.5
    value = document.entries[1].value_box
    y, x = np.argwhere((truth[..., 0] > 0) & (box_targets([value], size=256, grid=32) > 0))[0]
    truth[y, x, 0] = 1 + truth[y, x, 0] % len(CHARSET)
    assert read(truth) == pytest.approx(1 - 1 / len(document.entries))


def test_pointer_loss_is_the_attention_paid_to_the_right_patch() -> None:
    attention = torch.tensor([[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    indices, places = torch.tensor([[3, 8, 9]]), torch.tensor([[3, 9, 7, -1]])  # 7 was not fetched
    expected = -(torch.tensor(0.5).log() + torch.tensor(0.6).log()) / 2
    match = shown_by(places, indices, side=8, base=0)
    assert pointer_loss(attention, match).item() == pytest.approx(expected.item())


def test_what_was_not_fetched_is_pointed_at_in_its_cell() -> None:
    """8x8 patches are 2x2 cells: patch 29 (row 3, column 5) is in cell 1, patch 62 in cell 3."""
    match = shown_by(torch.tensor([[29, 62, 8, -1]]), torch.tensor([[8, 62]]), side=8, base=4)
    assert match.int().tolist() == [[[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 0], [0] * 6]]


def test_copying_stage_lowers_its_loss(config: ArrCocConfig, tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = begun(config)
    stage = replace(COPYING, steps=6, pages=2, questions=2, evaluate_every=6)
    batch = questions(config, Prompts(run.processor.tokenizer, config.image_token_id), sketched=True).transcript
    assert batch is not None

    def losses() -> list[float]:
        copying = CopyingTask(stage, run).copying
        with all_eager_attention(run.model):
            return [
                copying(batch, BUDGET, torch.Generator().manual_seed(0), read=read)["answer"].item() for read in READS
            ]

    before = losses()
    stage.run(run, tmp_path)
    assert all(late < early - 0.1 for early, late in zip(before, losses(), strict=True))


def test_a_stage_can_hand_on_an_average_with_what_it_found(config: ArrCocConfig, tmp_path: Path) -> None:
    """Also where it goes on from its end."""
    ends = {}
    for share in (0.0, 0.25, 1.0):
        torch.manual_seed(0)
        run = begun(config)
        stage = replace(COPYING, steps=2, averaged=share)
        stage.run(run, tmp_path / ("whole" if share < 1 else "other"))
        ends[share] = torch.cat([weight.flatten() for weight in run.model.model.language_model.parameters()]).detach()
    assert not torch.equal(ends[0.0], ends[1.0])
    torch.testing.assert_close(ends[0.25], ends[0.0].lerp(ends[1.0], 0.25))
    with pytest.raises(ValueError, match=r"averaged: expected a share in 0..1; got 1.5"):
        replace(COPYING, averaged=1.5)


def test_copying_can_leave_what_perfect_tokens_say_as_it_is(config: ArrCocConfig, tmp_path: Path) -> None:
    """They are sums of embeddings, so a vision tower that says them goes on to say them only if these stay, too."""
    for learns in (False, True):
        run = begun(config)
        language_model = run.model.model.language_model
        words, layer = language_model.embed_tokens.weight, language_model.layers[0].mlp.up_proj.weight
        before = words.detach().clone(), layer.detach().clone()
        replace(COPYING, steps=2, learns_language=learns).run(run, tmp_path / str(learns))
        assert torch.equal(words, before[0]) is not learns and not torch.equal(layer, before[1])
        assert words.requires_grad and layer.requires_grad


def test_copying_reads_rendered_pages_where_it_is_told_so(config: ArrCocConfig) -> None:
    sketched, rendered = (
        CopyingTask(replace(COPYING, rendered=kinds, evaluate_split="train"), begun(config)).pages(0).batch(0)
        for kinds in ({}, {"document": 1.0})
    )
    assert sketched.pixel_values.numel() == 0 < rendered.pixel_values.numel()
    with pytest.raises(ValueError, match="kinds: expected pages with fields that can be read.*; got dense"):
        replace(COPYING, rendered={"dense": 1.0})


def test_characters_that_are_put_elsewhere_take_their_places_with_them(config: ArrCocConfig) -> None:
    batch = questions(config, Prompts(build_tokenizer(), config.image_token_id)).whole
    assert batch is not None
    side = batch.glyphs.shape[1]
    moved = batch.put(batch.shown.put_anywhere(side, torch.Generator().manual_seed(0)))
    assert not torch.equal(moved.places, batch.places) and torch.equal(moved.places < 0, batch.places < 0)
    assert torch.equal(batch.put(batch.shown.nearby(side)[:, 0]).places, batch.places)
    pages = torch.arange(2).repeat_interleave(ANSWERING.questions)
    at = moved.glyphs.flatten(1, 2)[pages[:, None], moved.places.clamp(min=0)]
    classes = moved.shown.classes[moved.spelt.clamp(min=0)]
    found = (at == classes[..., None]).any(-1)[moved.places >= 0]
    assert found.float().mean() > 0.97  # narrow letters may share a patch with more than three


@pytest.mark.parametrize("stage", [READING, LOOKING, COPYING, ANSWERING])
def test_a_stage_leaves_attention_as_it_was_configured(
    stage: ScratchStage, config: ArrCocConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to be "sdpa" afterwards, whatever it was before, and "eager" where the stage was interrupted."""
    run = begun(config)
    core, part = run.model.model, run.model.config
    core.language_model.set_attn_implementation("eager")
    part.vision_config._attn_implementation = "sdpa"
    part.semantic_config._attn_implementation = "flash_attention_2"
    monkeypatch.setattr(Loop, "_descend", lambda *_: {}["interrupted"])
    with pytest.raises(KeyError, match="interrupted"):
        stage.run(run, tmp_path)
    used = [core.language_model.config, part.vision_config, part.semantic_config]
    assert [each._attn_implementation for each in used] == ["eager", "sdpa", "flash_attention_2"]


def test_answering_stage_takes_over_what_was_trained(config: ArrCocConfig, tmp_path: Path) -> None:
    run = begun(config)
    for stage in (READING, LOOKING, COPYING):
        stage.run(run, tmp_path)
    learner = {part: {name: w.clone() for name, w in state.items()} for part, state in run.learner.items()}
    read = run.model.model.vision_tower.grid_encoder.neck.conv2.weight.clone()
    spoken = run.model.lm_head.weight.clone()
    replace(ANSWERING, learning_rate=0.0, encoder_rate=0.0, language_rate=0.0).run(run, tmp_path)
    assert torch.equal(run.model.model.vision_tower.grid_encoder.neck.conv2.weight, read)
    assert torch.equal(run.model.lm_head.weight, spoken)
    assert all(torch.equal(run.learner[part][n], w) for part, state in learner.items() for n, w in state.items())


@pytest.mark.parametrize("stage", [READING, LOOKING, COPYING, ANSWERING])
def test_training_goes_on_from_a_trained_models_folder(
    stage: ScratchStage, config: ArrCocConfig, tmp_path: Path
) -> None:
    """Every stage begins with what the folder holds: with learning rates of zero it gives the same weights back."""
    run, trained = begun(config), tmp_path / "trained"
    learner = Learner(run.model, run.processor.tokenizer)
    states = {part: learner.get_submodule(part).state_dict() for part in LEARNT}
    run.model.save_pretrained(trained)
    run.processor.save_pretrained(trained)
    save_learner(states, trained)
    still: dict[str, Any] = {"learning_rate": 0.0, "weight_decay": 0.0}
    if isinstance(stage, AnsweringStage):
        still |= {"encoder_rate": 0.0, "language_rate": 0.0}
    recipe = Recipe(trained, (replace(stage, **still),), seed=1, start=trained)
    train(recipe, tmp_path / "out")
    given, left = run.model.state_dict(), ArrCocForConditionalGeneration.from_pretrained(tmp_path / "out" / "model")
    assert all(torch.equal(weight, given[name]) for name, weight in left.state_dict().items())
    after = load_learner(tmp_path / "out" / "model")
    assert all(torch.equal(after[part][n], w) for part, state in states.items() for n, w in state.items())

    (trained / "learner.safetensors").unlink()
    with pytest.raises(ValueError, match="without learner.safetensors"):
        train(recipe, tmp_path / "again")


@pytest.mark.parametrize("strategy", ["none", "random", "saliency", "variance", "clip_query", "realizer", "oracle"])
def test_every_strategy_has_a_gradient_into_all_that_answers(config: ArrCocConfig, strategy: str) -> None:
    learner = Learner(ArrCocForConditionalGeneration(config), build_tokenizer()).train()
    batch = questions(config, Prompts(build_tokenizer(), config.image_token_id))
    budget = 0 if strategy == "none" else 6
    generator = torch.Generator().manual_seed(0)
    with all_eager_attention(learner.model):
        found = learner(batch, strategy=strategy, budget=budget, generator=generator, frozen=False)
    losses = [value for name, value in found.items() if name not in ("right", "recall")]
    torch.stack(losses).sum().backward()
    left_out = {n for n, p in learner.named_parameters() if p.grad is None and p.requires_grad}
    assert left_out == ({n for n, _ in learner.named_parameters() if "saccade" in n} if strategy == "none" else set())


def test_mix_goes_from_oracle_to_learned() -> None:
    stage = AnsweringStage(steps=100)
    first, last = stage.mix(0), stage.mix(99)
    assert first["oracle"] > first["realizer"] and last["realizer"] > last["oracle"]
    assert all(0.3 <= mix["none"] <= 0.5 for mix in (first, last)), "the base stands alone in enough batches"
    assert sum(first.values()) == pytest.approx(1) and sum(last.values()) == pytest.approx(1)


# ---- recipes ------------------------------------------------------------------------------------------------------


def test_a_folder_to_start_from_that_is_not_there_is_refused(config: ArrCocConfig, tmp_path: Path) -> None:
    """It used to be passed over by recipes of phases alone, which then trained new weights."""
    run = begun(config)
    run.model.config.save_pretrained(tmp_path)
    run.processor.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="start: expected a trained model's folder; got .*elsewhere, which is none"):
        train(Recipe(tmp_path, (STAGES["joint"](),), start=tmp_path / "elsewhere"), tmp_path / "out")


def test_a_new_kind_of_stage_is_a_class_and_a_name(
    config: ArrCocConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class Scaling(Stage):
        """Multiplies the vocabulary by a number."""

        factor: float = 1.0

        def run(self, run: Run, folder: Path) -> None:
            run.model.lm_head.weight.data *= self.factor

    monkeypatch.setitem(STAGES, "scaling", Scaling)
    run, trained = begun(config), tmp_path / "trained"
    run.model.save_pretrained(trained)
    run.processor.save_pretrained(trained)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("{model: trained, start: trained, defaults: {factor: 3}, stages: [{stage: scaling}]}")
    train(load_recipe(recipe, ["scaling.factor=2"]), tmp_path / "out")
    scaled = ArrCocForConditionalGeneration.from_pretrained(tmp_path / "out" / "model")
    assert torch.equal(scaled.lm_head.weight, 2 * run.model.lm_head.weight)
    train(load_recipe(recipe, ["scaling.factor=2", "averaged=0.25"]), tmp_path / "averaged")
    mean = ArrCocForConditionalGeneration.from_pretrained(tmp_path / "averaged" / "model")
    torch.testing.assert_close(mean.lm_head.weight, 1.75 * run.model.lm_head.weight)
