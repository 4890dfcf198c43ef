"""Base tokens in words: bridge "cells", what its words mean, and how they are taught."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_training import ANSWERING, COPYING, LOOKING, begun, config, questions
from torch import Tensor

from arr_coc.data.questions import build_tokenizer
from arr_coc.modeling.bridges import CellBridge
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.vision_tower import pool_cells
from arr_coc.training.attention import all_eager_attention
from arr_coc.training.checkpoints import save_learner
from arr_coc.training.from_scratch.learner import Learner
from arr_coc.training.from_scratch.patch_language import (
    PLACE_WORDS,
    PatchLanguage,
    in_cells,
    relative_error,
    teach_words,
)
from arr_coc.training.from_scratch.questions import Batch, Prompts
from arr_coc.training.from_scratch.reading import ReadingPages
from arr_coc.training.from_scratch.visual_pretraining import CharacterHead, VisualPretraining, name_cells
from arr_coc.training.recipe import Recipe, begin

__all__ = ["config"]  # the fixture


@pytest.fixture(scope="module")
def spoken(config: ArrCocConfig) -> ArrCocConfig:
    """The config of a model whose base tokens are words."""
    words = ArrCocConfig.from_dict(config.to_dict())
    words.bridge_config.kind, words.bridge_config.place_words = "cells", list(PLACE_WORDS)
    return words


@pytest.fixture(scope="module")
def fetching(spoken: ArrCocConfig) -> ArrCocConfig:
    """That of one whose fetched patches are, too."""
    words = ArrCocConfig.from_dict(spoken.to_dict())
    words.bridge_config.fetched_words = True
    return words


@pytest.fixture(scope="module")
def batch(config: ArrCocConfig) -> Batch:
    return questions(config, Prompts(build_tokenizer(), config.image_token_id), sketched=True)


def certain(batch: Batch) -> Tensor:
    """Probabilities [P, M, 16*W] of words that are known."""
    characters, fields = in_cells(batch.glyphs), in_cells(batch.words.clamp(min=0)[..., None])
    said = [*characters.unbind(-1), fields[..., 0]]
    return torch.cat([F.one_hot(n, words) for n, words in zip(said, PLACE_WORDS, strict=True)], -1).flatten(2).float()


def test_words_that_are_known_make_oracle_tokens(spoken: ArrCocConfig, batch: Batch) -> None:
    """All but the cell's position, which is the same whatever the cell says."""
    torch.manual_seed(0)
    model = ArrCocForConditionalGeneration(spoken)
    language = PatchLanguage(model, build_tokenizer())
    teach_words(model, language)
    empty = replace(batch, glyphs=torch.zeros_like(batch.glyphs), words=torch.zeros_like(batch.words))
    with torch.no_grad():
        perfect, position = (language.cells(b.glyphs, b.words, model.get_input_embeddings()) for b in (batch, empty))
        said = model.model.bridge.table(certain(batch))
    assert said.abs().max() > 0.01 and torch.allclose(said, perfect - position, atol=1e-5)


def test_words_of_fetched_patches_that_are_known_make_perfect_tokens(fetching: ArrCocConfig, batch: Batch) -> None:
    """All but the patch's position; one without a character says that it is empty."""
    torch.manual_seed(0)
    model = ArrCocForConditionalGeneration(fetching)
    language = PatchLanguage(model, build_tokenizer())
    language.empty.data.normal_()
    teach_words(model, language)
    side = batch.glyphs.shape[1]
    indices = torch.arange(side**2).expand(len(batch.glyphs), -1)
    glyphs, words = batch.glyphs.flatten(1, 2), batch.words.flatten(1).clamp(min=0)
    known = [F.one_hot(n, size) for n, size in zip((*glyphs.unbind(-1), words), PLACE_WORDS, strict=True)]
    with torch.no_grad():
        perfect = language(glyphs, words, indices, side, model.get_input_embeddings())
        said = model.model.bridge.fetched.table(torch.cat(known, -1).float())
        assert torch.allclose(said, perfect - language._positions(side, indices.device), atol=1e-5)


def test_aligning_teaches_which_words_a_fetched_patch_shows(fetching: ArrCocConfig, batch: Batch) -> None:
    torch.manual_seed(0)
    learner = Learner(ArrCocForConditionalGeneration(fetching), build_tokenizer())
    teach_words(learner.model, learner.language)
    side = fetching.vision_config.image_size
    page = replace(batch, pixel_values=torch.randn(len(batch.glyphs), 3, side, side))
    words = learner.model.model.bridge.fetched
    trained = torch.optim.Adam(words.head.parameters(), lr=0.05)
    naming = []
    for _ in range(30):
        losses = learner.align(page, 24, torch.Generator().manual_seed(0))
        naming.append(losses["naming"].item())
        trained.zero_grad()
        losses["naming"].backward()
        trained.step()
    assert naming[-1] < naming[0] / 3


def test_a_bridge_with_words_names_with_them(spoken: ArrCocConfig) -> None:
    """A word's logit is about its own place, slot and vocabulary."""
    torch.manual_seed(0)
    core = ArrCocForConditionalGeneration(spoken).model
    side = spoken.vision_config.image_size
    encoding = core.encode_image(torch.randn(2, 3, side, side))
    bias = torch.zeros(16, sum(PLACE_WORDS))
    bias[6, PLACE_WORDS[0] + 5] = bias[13, -1] = 1e4
    with torch.no_grad():
        core.bridge.head.bias.copy_(bias.flatten())
        characters, words = name_cells(CharacterHead(spoken.text_config.hidden_size), core, encoding)
    patches = encoding.side
    assert characters.shape == (2, patches, patches, 3, PLACE_WORDS[0])
    assert words.shape == (2, patches, patches, PLACE_WORDS[-1])
    assert characters[:, 1::4, 2::4, 1].argmax(-1).eq(5).all(), "the 7th place: second row, third column"
    assert words[:, 3::4, 1::4].argmax(-1).eq(PLACE_WORDS[-1] - 1).all()
    others = characters.clone()
    others[:, 1::4, 2::4, 1, 5] = 0
    assert others.max() < 1e3


def test_pooled_tokens_are_the_mean_of_what_their_cells_say(spoken: ArrCocConfig) -> None:
    """Words are chosen for each cell: a mean of states would choose those of none."""
    torch.manual_seed(0)
    core = ArrCocForConditionalGeneration(spoken).model
    pixels = torch.randn(2, 3, *[spoken.vision_config.image_size] * 2)
    with torch.no_grad():
        core.bridge.head.weight.mul_(100)
        cells, pooled = (core.encode_image(pixels, pool=pool) for pool in (1, 2))
        assert torch.allclose(pooled.tokens, pool_cells(cells.tokens, 2), atol=1e-6)
        assert torch.equal(core.with_bypass(core.with_bypass(pooled, True), False).tokens, pooled.tokens)


def test_copying_hands_its_language_to_the_bridge(fetching: ArrCocConfig, tmp_path: Path) -> None:
    run = begun(fetching)
    COPYING.run(run, tmp_path)
    language = PatchLanguage(run.model, run.processor.tokenizer)
    language.load_state_dict(run.learner["language"])
    embed, bridge = run.model.get_input_embeddings(), run.model.model.bridge
    assert torch.equal(bridge.table.weight, language.rows(embed))
    assert torch.equal(bridge.fetched.table.weight, language.patch_rows(embed))


@pytest.mark.parametrize("stage", [LOOKING, ANSWERING])
def test_stages_teach_which_words_stand_where(stage: object, spoken: ArrCocConfig, tmp_path: Path) -> None:
    run = begun(spoken)
    before = {name: weight.clone() for name, weight in run.model.model.bridge.named_parameters()}
    stage.run(run, tmp_path)  # type: ignore[attr-defined]
    changed = {n for n, weight in run.model.model.bridge.named_parameters() if not torch.equal(weight, before[n])}
    words = {"head.weight", "head.bias", "norm.weight", "norm.bias"}
    assert words <= changed and (changed == words) == (stage is LOOKING)


def test_a_bridge_that_is_new_begins_with_the_words_of_what_it_goes_on_from(
    config: ArrCocConfig, spoken: ArrCocConfig, fetching: ArrCocConfig, tmp_path: Path
) -> None:
    run, trained, wider = begun(config), tmp_path / "trained", tmp_path / "wider"
    learner = Learner(run.model, run.processor.tokenizer)
    for folder in (trained, wider):
        run.model.save_pretrained(folder)
        run.processor.save_pretrained(folder)
    save_learner({"language": learner.language.state_dict()}, trained)
    spoken.save_pretrained(wider)
    begins = begin(Recipe(wider, (LOOKING,), start=trained), torch.device("cpu")).model
    assert isinstance(begins.model.bridge, CellBridge)
    assert torch.equal(begins.model.bridge.table.weight, learner.language.rows(run.model.get_input_embeddings()))
    assert torch.equal(begins.model.bridge.projection.weight, run.model.model.bridge.projection.weight)
    with torch.no_grad():
        begins.model.bridge.table.weight.zero_()  # as if it had been trained further
    begins.save_pretrained(trained)
    again = begin(Recipe(wider, (LOOKING,), start=trained), torch.device("cpu")).model
    assert not again.model.bridge.table.weight.any(), "words that are known are not taught anew"
    fetching.save_pretrained(wider)
    bridge = begin(Recipe(wider, (LOOKING,), start=trained), torch.device("cpu")).model.model.bridge
    rows = learner.language.patch_rows(run.model.get_input_embeddings())
    assert torch.equal(bridge.fetched.table.weight, rows) and not bridge.table.weight.any()


def test_visual_pretraining_names_a_cell_in_words_once_there_is_a_language(
    spoken: ArrCocConfig, tmp_path: Path
) -> None:
    run = begun(spoken)
    language = Learner(run.model, run.processor.tokenizer).language
    teach_words(run.model, language)
    run.learner["language"] = language.state_dict()
    stage = replace(LOOKING, steps=40, learning_rate=3e-3, evaluate_every=40)
    page = ReadingPages(stage, spoken.vision_config, split="train").batch(99)

    def distance() -> float:
        with torch.no_grad(), all_eager_attention(run.model):
            return VisualPretraining(stage, run).losses(0, page)["base"].item()

    before = distance()
    stage.run(run, tmp_path)
    words = run.model.model.bridge.table.weight
    assert words.requires_grad and torch.equal(words, language.rows(run.model.get_input_embeddings()))
    assert distance() < before / 2


def test_visual_pretraining_can_hold_what_patches_say(spoken: ArrCocConfig, tmp_path: Path) -> None:
    """A language model that reads patches goes on reading them, whatever base tokens learn."""
    moved = {}
    for weight in (0.0, 30.0):
        torch.manual_seed(0)
        run = begun(spoken)
        core = run.model.model
        stage = replace(LOOKING, steps=20, learning_rate=3e-3, evaluate_every=20, held_weight=weight)
        page = ReadingPages(stage, spoken.vision_config, split="train").batch(99).pixels
        indices = torch.arange(20).expand(len(page), -1)
        with torch.no_grad():
            before = core.bridge_fetched(core.encode_image(page), indices).tokens
        stage.run(run, tmp_path / str(weight))
        with torch.no_grad():
            after = core.bridge_fetched(core.encode_image(page), indices).tokens
        moved[weight] = relative_error(after, before).item()
    assert moved[30.0] < moved[0.0] / 3


def test_words_that_are_not_this_languages_are_refused(spoken: ArrCocConfig) -> None:
    other = ArrCocConfig.from_dict(spoken.to_dict())
    other.bridge_config.place_words = [72, 41]
    with pytest.raises(ValueError, match=r"place_words: expected \[72, 72, 72, 41\]; got \[72, 41\]"):
        Learner(ArrCocForConditionalGeneration(other), build_tokenizer())
