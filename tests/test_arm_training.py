"""Training for one way to fill the prompt: without the base, with all patches, at another size of the image."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TINY_PATCH, TINY_SIDE
from test_training import ANSWERING, COPYING, READING, begun, config, questions  # noqa: F401  (config is a fixture)

from arr_coc.data.mixture import Mixture
from arr_coc.data.questions import build_tokenizer
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.training.attention import all_eager_attention
from arr_coc.training.from_scratch import learner as learner_module
from arr_coc.training.from_scratch.answering import Answering, AnsweringStage
from arr_coc.training.from_scratch.learner import Learner
from arr_coc.training.from_scratch.questions import Prompts, QuestionPages
from arr_coc.training.from_scratch.reading import ReadingPages
from arr_coc.training.from_scratch.shared_prefix import read_prompts

ONE = {"start_mix": {"saliency": 1.0}, "end_mix": {"saliency": 1.0}, "evaluate_strategies": ("saliency",)}
"""The settings of a stage that fetches by strong edges alone."""


def prompts_for(config: ArrCocConfig) -> Prompts:  # noqa: F811
    return Prompts(build_tokenizer(), config.image_token_id)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Groups of image tokens and tokens of each, every time that the language model reads."""
    calls: list[tuple[int, int]] = []

    def counting(model: Any, before: torch.Tensor, tokens: torch.Tensor, *given: Any, **named: Any) -> Any:
        calls.append((tokens.shape[0], tokens.shape[1]))
        return read_prompts(model, before, tokens, *given, **named)

    monkeypatch.setattr(learner_module, "read_prompts", counting)
    return calls


def test_without_its_base_a_prompt_holds_patches_alone(config: ArrCocConfig, seen: list[tuple[int, int]]) -> None:  # noqa: F811
    """And what is there depends on the base all the same: patches are chosen and encoded beside it."""
    run = begun(config)
    batch = questions(config, prompts_for(config))
    for reads_base in (True, False):
        learner = Learner(run.model, run.processor.tokenizer, reads_base=reads_base).train()
        with all_eager_attention(run.model):
            losses = learner(batch, strategy="oracle", budget=17, generator=torch.Generator(), frozen=True)
        for name in ("answer", "token", "pointer", "relevance", "base", "visual_pretraining"):
            assert losses[name].isfinite(), name
    assert seen == [(len(batch.after), 33), (len(batch.after), 17)]
    losses["answer"].backward()
    assert all(part.grad is not None for part in run.model.model.vision_tower.compressor.parameters())


def test_steps_that_would_read_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="reads_base: expected true where strategy none"):
        AnsweringStage(reads_base=False)
    with pytest.raises(ValueError, match="reads_base"):
        AnsweringStage(reads_base=False, start_mix={"oracle": 1.0}, end_mix={"oracle": 1.0})  # measures none by default
    AnsweringStage(
        reads_base=False, start_mix={"oracle": 1.0}, end_mix={"oracle": 1.0}, evaluate_strategies=("oracle",)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budgets": {"plenty": 1.0}}, "budget: expected 0 to .* patches .*, or fast .*; got 'plenty'"),
        ({"budgets": {1000: 1.0}}, "budget: expected 0 to 256 patches"),
        ({"evaluate_budget": 1000}, "budget: expected 0 to 256 patches"),
        ({"transcript_budget": 100, "image_size": 64}, "budget: expected 0 to 64 patches"),
        ({"end_mix": {"magic": 1.0}}, "got 'magic'"),
    ],
)
def test_what_cannot_be_fetched_is_refused_before_the_first_step(
    config: ArrCocConfig,  # noqa: F811
    changes: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        Answering(replace(ANSWERING, **changes), begun(config))


def test_all_patches_transcribe_the_whole_page(config: ArrCocConfig, seen: list[tuple[int, int]]) -> None:  # noqa: F811
    stage = replace(ANSWERING, **ONE, transcribed=1.0, aligned_steps=0)
    for budget, name, tokens in (("all", "transcript/saliency", 16 + 256), (17, "answer/saliency", 16 + 17)):
        run = begun(config)
        task = Answering(replace(stage, budgets={budget: 1.0}), run)
        with all_eager_attention(run.model):
            assert name in task.losses(0, task.pages(0).batch(0))
            assert seen[-1] == (stage.pages, tokens), "questions of a page read alike"


def test_a_measurement_answers_as_the_stage_is_told(config: ArrCocConfig, seen: list[tuple[int, int]]) -> None:  # noqa: F811
    stage = replace(ANSWERING, **ONE, reads_base=False, evaluate_budget=40)
    run = begun(config)
    task = Answering(stage, run)
    with all_eager_attention(run.model):
        scores = task.measure()
    assert {name.partition(":")[0] for name in scores} == {"document, saliency"} and {tokens for _, tokens in seen} == {
        40
    }


@pytest.mark.parametrize("side", [64, 192])
def test_pages_are_drawn_at_the_models_size_and_fitted_into_the_stages(config: ArrCocConfig, side: int) -> None:  # noqa: F811
    """The same pages whatever the side: what a smaller image cannot show, it cannot show."""
    grid, crop = side // TINY_PATCH, side // 2
    stage = replace(ANSWERING, image_size=side)
    given = {"split": "train", "transcript_budget": 24, "mixture": Mixture(stage.kinds)}
    usual, resized = (
        QuestionPages(each, config, prompts_for(config), **given).batch(0)  # type: ignore[arg-type]
        for each in (ANSWERING, stage)
    )
    assert resized.pixel_values.shape[-2:] == (side, side) and usual.pixel_values.shape[-1] == TINY_SIDE
    assert resized.glyphs.shape[1:3] == (grid, grid) and resized.relevance.shape[1] == grid**2
    assert resized.after.tolist() == usual.after.tolist()
    assert int(resized.places.min()) >= -1 and int(resized.places.max()) < grid**2
    shrunk = torch.nn.functional.interpolate(usual.pixel_values, side, mode="bicubic", antialias=True)
    assert (shrunk - resized.pixel_values).abs().mean() < 0.05
    batch = ReadingPages(replace(READING, image_size=side), config.vision_config, split="train").batch(0)
    assert batch.pixels.shape[-1] == crop and batch.words.shape[1] == grid // 2
    assert float(batch.shown.centres.min()) >= 0 and float(batch.shown.centres.max()) <= grid // 2


def test_stages_train_at_another_size_and_leave_the_model_its_own(config: ArrCocConfig, tmp_path: Path) -> None:  # noqa: F811
    run = begun(config)
    table = run.model.model.vision_tower.grid_encoder.pos_embed.shape
    settings = {"image_size": 64, "steps": 1, "warmup": 0, "evaluate_every": 1}
    replace(READING, **settings).run(run, tmp_path / "0")  # type: ignore[arg-type]
    replace(COPYING, **settings, budget=64, alone=0.0).run(run, tmp_path / "1")  # type: ignore[arg-type]
    everything = {"budgets": {"all": 1.0}, "evaluate_budget": "all", "aligned_steps": 0, "kinds": {"density": 1.0}}
    replace(ANSWERING, **settings, **ONE, **everything).run(run, tmp_path / "2")  # type: ignore[arg-type]
    assert run.model.model.vision_tower.grid_encoder.pos_embed.shape == table
    assert run.model.config.vision_config.image_size == TINY_SIDE
