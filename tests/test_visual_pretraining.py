"""Base tokens that carry their cell in order: what heads name in them, how they are bound, what trains them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_training import ANSWERING, BUDGET, COPYING, LOOKING, READING, begun, config, questions
from torch import Tensor, nn

from arr_coc.data import CHARSET
from arr_coc.data.questions import build_tokenizer
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.training.attention import all_eager_attention
from arr_coc.training.checkpoints import load_learner, load_state, save_learner
from arr_coc.training.from_scratch.copying import Copying, fetched
from arr_coc.training.from_scratch.learner import Learner
from arr_coc.training.from_scratch.patch_language import PLACES, PatchLanguage, cell_of, in_cells
from arr_coc.training.from_scratch.questions import Batch, Prompts
from arr_coc.training.from_scratch.reading import ReadingPages
from arr_coc.training.from_scratch.shared_prefix import check_layer
from arr_coc.training.from_scratch.stage import ScratchStage
from arr_coc.training.from_scratch.targets import SLOTS
from arr_coc.training.from_scratch.visual_pretraining import CharacterHead, VisualPretraining, by_patch
from arr_coc.training.recipe import Recipe, load_recipe, train

__all__ = ["config"]  # the fixture


@pytest.fixture(scope="module")
def language(config: ArrCocConfig) -> PatchLanguage:
    torch.manual_seed(0)
    return PatchLanguage(ArrCocForConditionalGeneration(config), build_tokenizer())


@pytest.fixture(scope="module")
def batch(config: ArrCocConfig) -> Batch:
    return questions(config, Prompts(build_tokenizer(), config.image_token_id), sketched=True)


# ---- places -------------------------------------------------------------------------------------------------------


def test_cells_and_patches_are_laid_out_alike() -> None:
    """The 16 names of a base token are its patches row by row, each patch's slots left to right."""
    page = torch.arange(8 * 8).view(1, 8, 8, 1)
    cells = in_cells(page)[..., 0]
    assert cells[0, 1].tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31]
    assert torch.equal(by_patch(cells), page)
    numbers = torch.arange(64)
    assert all(cell_of(patch, 8) == cell for cell, row in enumerate(cells[0]) for patch in row)
    assert cell_of(numbers.neg() - 1, 8).eq(numbers.neg() - 1).all(), "no patch is in no cell"


def test_a_head_names_characters_by_place_and_slot() -> None:
    """What the last 16th of the linear layer says is about the last patch of the cell, slot by slot."""
    head, classes = CharacterHead(6), 1 + len(CHARSET)
    bias = torch.zeros(PLACES, SLOTS, classes)
    bias[15, 2, 7] = bias[4, 0, 3] = 9.0
    with torch.no_grad():
        head.linear.bias.copy_(bias.flatten())
        head.linear.weight.zero_()
    characters, words = head(torch.randn(2, 9, 6))
    assert characters.shape == (2, 12, 12, SLOTS, classes) and words.shape[:3] == (2, 12, 12)
    named = characters.argmax(-1)
    assert named[0, 3::4, 3::4, 2].eq(7).all() and named[0, 1::4, 0::4, 0].eq(3).all()
    assert int((named > 0).sum()) == 2 * 9 * 2


# ---- binding ------------------------------------------------------------------------------------------------------


def test_matrices_start_as_rotations_that_unbind_what_stands_at_a_place(language: PatchLanguage) -> None:
    identity = torch.eye(language.places.shape[1])
    assert torch.allclose(language.places @ language.places.transpose(1, 2), identity.expand(PLACES, -1, -1), atol=1e-5)
    said = torch.zeros(1, 1, PLACES, len(identity))
    said[..., 9, :] = torch.randn(len(identity))
    bound = torch.einsum("pmkd,kde->pme", said, language.places)
    assert torch.allclose(bound @ language.places[9].T, said[:, :, 9], atol=1e-4)
    assert not torch.allclose(bound @ language.places[8].T, said[:, :, 9], atol=0.1)


def cells(language: PatchLanguage, batch: Batch) -> Tensor:
    torch.manual_seed(1)
    return language.cells(batch.glyphs, batch.words, nn.Embedding(600, language.places.shape[1]))


def test_another_order_is_another_base_token(language: PatchLanguage, batch: Batch) -> None:
    """A cell's token used to be the mean of its patches' tokens: of content alone, the same in any order."""
    turned = replace(batch, glyphs=batch.glyphs.clone(), words=batch.words.clone())
    for pages in (turned.glyphs, turned.words):
        pages[:, :4, :4] = pages[:, :4, :4].flip(1, 2)
    before, after = cells(language, batch), cells(language, turned)
    changed = (before - after).abs().amax(-1) > 1e-5
    was = in_cells(batch.glyphs).flatten(2)
    assert torch.equal(changed, (was != in_cells(turned.glyphs).flatten(2)).any(-1))
    assert changed.any() and not changed[:, 1:].any()


def test_equal_cells_differ_by_their_position_alone(language: PatchLanguage, batch: Batch) -> None:
    empty = replace(batch, glyphs=torch.zeros_like(batch.glyphs), words=torch.zeros_like(batch.words))
    tokens = cells(language, empty)
    distances = torch.cdist(tokens[0], tokens[0])
    assert (distances + torch.eye(len(distances))).min() > 1e-3 and torch.equal(tokens[0], tokens[1])


def test_weights_of_earlier_versions_get_new_matrices(language: PatchLanguage) -> None:
    """Theirs had none: they go on loading, all else as it was trained."""
    state = {name: weight + 1 for name, weight in language.state_dict().items() if name != "places"}
    places = language.places.clone()
    language.load_state_dict(state)
    assert torch.equal(language.places, places) and torch.equal(language.empty, state["empty"])
    with pytest.raises(RuntimeError, match="empty"):
        language.load_state_dict({name: weight for name, weight in state.items() if name != "empty"})


# ---- stages -------------------------------------------------------------------------------------------------------


def test_visual_pretraining_lowers_its_loss_and_leaves_a_frozen_encoder_as_it_was(
    config: ArrCocConfig, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    run = begun(config)
    stage = replace(LOOKING, steps=100, learning_rate=3e-3, evaluate_every=100)
    encoder = run.model.model.vision_tower.grid_encoder
    read = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    drawn = ReadingPages(stage, config.vision_config, split="train")
    pages = [drawn.batch(step) for step in range(8)]

    def loss() -> float:
        task = VisualPretraining(stage, run)
        with torch.no_grad(), all_eager_attention(run.model):
            return sum(task.losses(0, page)["visual_pretraining"].item() for page in pages) / len(pages)

    torch.manual_seed(0)
    before = loss()
    stage.run(run, tmp_path)
    assert loss() < before - 0.05
    assert all(torch.equal(weight, read[name]) for name, weight in encoder.state_dict().items())
    assert set(run.learner) == {"reading", "visual_pretraining"}
    lines = (tmp_path / "visual_pretraining.jsonl").read_text().splitlines()
    assert '"step": 0' in lines[0] and "held out, base: characters" in lines[0] and "patches: characters" in lines[0]


def test_a_grid_encoder_with_a_rate_is_trained_and_goes_on_reading(config: ArrCocConfig, tmp_path: Path) -> None:
    run = begun(config)
    READING.run(run, tmp_path)
    encoder = run.model.model.vision_tower.grid_encoder
    before, head = encoder.neck.conv2.weight.clone(), run.learner["reading"]["linear.weight"].clone()
    replace(LOOKING, encoder_rate=1e-3).run(run, tmp_path)
    assert not torch.equal(encoder.neck.conv2.weight, before)
    assert not torch.equal(run.learner["reading"]["linear.weight"], head)


def test_visual_pretraining_resumes_where_it_was(config: ArrCocConfig, tmp_path: Path) -> None:
    run, again = begun(config), begun(config)
    LOOKING.run(run, tmp_path)
    state = load_state(tmp_path / "visual_pretraining.pt")
    assert state is not None and state["step"] == LOOKING.steps
    LOOKING.run(again, tmp_path)  # finished: nothing to do
    for name, weight in run.model.model.bridge.state_dict().items():
        assert torch.equal(weight, again.model.model.bridge.state_dict()[name])
    assert all(
        torch.equal(weight, again.learner["visual_pretraining"][name])
        for name, weight in run.learner["visual_pretraining"].items()
    )


@pytest.mark.parametrize("stage", [LOOKING, replace(COPYING, alone=1.0), ANSWERING])
def test_training_goes_on_from_a_learner_of_an_earlier_version(
    stage: ScratchStage, config: ArrCocConfig, tmp_path: Path
) -> None:
    """One that has neither matrices per place nor a head on base tokens, as the shipped one."""
    run, trained = begun(config), tmp_path / "trained"
    learner = Learner(run.model, run.processor.tokenizer)
    language = {name: weight for name, weight in learner.language.state_dict().items() if name != "places"}
    run.model.save_pretrained(trained)
    run.processor.save_pretrained(trained)
    save_learner({"reading": learner.reading.state_dict(), "language": language}, trained)
    train(Recipe(trained, (replace(stage, steps=1),), start=trained), tmp_path / "out")
    left = load_learner(tmp_path / "out" / "model")
    assert ("places" in left["language"]) == (stage is not LOOKING)
    assert ("visual_pretraining" in left) == (not isinstance(stage, type(COPYING)))


def test_copying_from_the_base_alone_needs_the_base(config: ArrCocConfig, batch: Batch) -> None:
    """What is predicted does not change with patches, and does with what is in the cells."""
    torch.manual_seed(0)
    copying = Copying(ArrCocForConditionalGeneration(config), build_tokenizer())
    whole = batch.read_from(whole=True)
    other = replace(whole, glyphs=whole.glyphs.flip(0))

    def loss(asked: Batch, seed: int) -> float:
        with torch.no_grad(), all_eager_attention(copying.model):
            return copying(asked, BUDGET, torch.Generator().manual_seed(seed), read="base")["answer"].item()

    assert loss(whole, 0) == loss(whole, 1) != loss(other, 0)


def test_beside_the_answer_stands_text_from_all_over_the_page_or_whole_lines(batch: Batch) -> None:
    """Either way what the question needs is there."""
    written = int(batch.text.sum(1).min())
    scattered, lines = (
        fetched(batch, written, torch.Generator().manual_seed(0), scattered=mode).sort(1).values
        for mode in (True, False)
    )
    assert batch.text.gather(1, scattered).all() and not batch.text.gather(1, lines).all()
    for indices, needed in ((scattered, batch.relevance), (lines, batch.oracle)):
        assert torch.equal(needed.gather(1, indices).sum(1), needed.sum(1))
    other = fetched(batch, written // 2, torch.Generator().manual_seed(1), scattered=True).sort(1).values
    assert not torch.equal(
        other, fetched(batch, written // 2, torch.Generator().manual_seed(2), scattered=True).sort(1).values
    )


@pytest.mark.parametrize(("transcribed", "asks"), [(0.75, [3, 7]), (0.5, [1, 3, 5, 7]), (1.0, []), (0.0, [*range(8)])])
def test_steps_that_transcribe_are_spread_evenly(config: ArrCocConfig, transcribed: float, asks: list[int]) -> None:
    run = begun(config)
    task = replace(COPYING, transcribed=transcribed, steps=8).task(run)
    batch = task.pages(0).batch(0)
    with torch.no_grad(), all_eager_attention(run.model):
        names = [" ".join(task.losses(step, batch)) for step in range(8)]
    assert [step for step, name in enumerate(names) if "answer" in name] == asks


def test_the_layer_that_points_is_a_setting(config: ArrCocConfig, batch: Batch) -> None:
    torch.manual_seed(0)
    model = ArrCocForConditionalGeneration(config)
    paid = []
    for layer in (-1, -2, 0):
        torch.manual_seed(1)
        copying = Copying(model, build_tokenizer(), layer)
        with torch.no_grad(), all_eager_attention(model):
            paid.append(copying(batch, BUDGET, torch.Generator().manual_seed(0), read="base")["pointer"].item())
    assert paid[1] == paid[2] != paid[0], "of two layers, the last but one is the first"
    with pytest.raises(ValueError, match=r"pointing_layer: expected -2 to 1; got 2"):
        check_layer(2, config.text_config)


def test_whole_pages_are_transcribed_for_those_who_see_the_base_alone(config: ArrCocConfig) -> None:
    tokenizer = build_tokenizer()
    asked = questions(config, Prompts(tokenizer, config.image_token_id), sketched=True)
    whole, lines = asked.read_from(whole=True), asked.read_from(whole=False)
    texts = [
        [tokenizer.decode(row[answer]) for row, answer in zip(part.after, part.answer, strict=True)]
        for part in (whole, lines)
    ]
    pages = {text.split("<|im_end|>")[1] for text in texts[0][: ANSWERING.questions]}
    assert len(pages) == 1, "the page is the same whatever was asked first"
    fetched = {line for text in texts[1][: ANSWERING.questions] for line in text.split("<|im_end|>")[1].split("\n")}
    assert fetched < set(pages.pop().split("\n"))


def test_dropped_patches_are_left_to_the_base(config: ArrCocConfig) -> None:
    learner = Learner(ArrCocForConditionalGeneration(config), build_tokenizer()).eval()
    asked = questions(config, Prompts(build_tokenizer(), config.image_token_id))
    with torch.no_grad(), all_eager_attention(learner.model):
        recalls = [
            learner(
                asked, strategy="oracle", budget=64, generator=torch.Generator().manual_seed(0), frozen=True,
                dropped=share,
            )["recall"].item()
            for share in (0.0, 1.0)
        ]  # fmt: skip
    assert recalls[0] == 1.0 and 0.05 < recalls[1] < 0.95


def test_a_recipe_with_a_visual_pretraining_stage_loads(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "stages: [{stage: reading}, {stage: visual_pretraining, encoder_rate: 3.0e-4}, {stage: copying, alone: 0.5}]"
    )
    recipe = load_recipe(path, ["copying.pointing_layer=1"])
    assert [type(stage).__name__ for stage in recipe.stages] == [
        "ReadingStage",
        "VisualPretrainingStage",
        "CopyingStage",
    ]
    path.write_text("stages: [{stage: visual_pretraining}, {stage: joint}]")
    with pytest.raises(ValueError, match="got one after VisualPretrainingStage"):
        load_recipe(path)
