"""The stage that is one step of several stages at once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_finding import begun

from arr_coc.training.attention import all_eager_attention
from arr_coc.training.from_scratch.multi_task import MultiTask, MultiTaskStage
from arr_coc.training.from_scratch.stage import ScratchStage
from arr_coc.training.recipe import load_recipe

PARTS: dict[str, Any] = {
    "answering": {
        "pages": 1, "questions": 2, "aligned_steps": 0, "transcript_budget": 24, "evaluate_questions": 2,
        "evaluate_split": "train", "language_rate": 1e-3, "seed": 3,
    },
    "multi_view": {
        "domains": {"pages": 1.0}, "sources": 2, "documents": 1, "questions": 2, "budget": 8, "evaluate_documents": 1,
        "evaluate_split": "train",
    },
    "copying": {"pages": 1, "questions": 1, "budget": 24, "learns_language": False},
}  # fmt: skip
STAGE = MultiTaskStage(steps=2, warmup=1, evaluate_every=2, workers=0, bf16=False, parts=PARTS)


def test_a_step_sums_what_its_parts_lose() -> None:
    task = MultiTask(STAGE, begun())
    batch = next(iter(task.pages(0)))
    with all_eager_attention(task.tasks["multi_view"].reader.model):  # type: ignore[attr-defined]
        losses = task.losses(0, batch)
        alone = [part.losses(0, own)["loss"] for part, own in zip(task.tasks.values(), batch, strict=True)]
    assert losses["loss"].item() == pytest.approx(sum(loss.item() for loss in alone), rel=1e-4)
    assert {name.split(":")[0] for name in losses} == {"loss", "answering", "multi_view", "copying"}


def test_each_weight_is_trained_once_and_what_a_part_holds_stays(tmp_path: Path) -> None:
    weights = [weight for group, _ in STAGE.task(begun()).groups() for weight in group]
    assert len(weights) == len({id(weight) for weight in weights})
    run = begun()
    before = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    STAGE.run(run, tmp_path)
    changed = {name for name, weight in run.model.state_dict().items() if not torch.equal(weight, before[name])}
    assert any(".language_model.layers." in name for name in changed)
    held = (".grid_encoder.", ".fetcher.", "embed_tokens", "lm_head")  # by multi_view, and by copying
    assert not any(part in name for name in changed for part in held)
    assert all(weight.requires_grad for weight in run.model.model.fetcher.parameters())
    again = begun()
    STAGE.run(again, tmp_path)  # finished: nothing to do
    for name, weight in run.model.model.language_model.state_dict().items():
        assert torch.equal(weight, again.model.model.language_model.state_dict()[name])


def test_parts_have_rates_and_seeds_of_their_own_and_steps_in_common() -> None:
    answering, multi_view, copying = replace(STAGE, seed=7).stages
    assert isinstance(answering, ScratchStage) and (answering.seed, multi_view.seed, copying.seed) == (3, 7, 7)
    assert {part.steps for part in (answering, multi_view, copying)} == {2}
    task = MultiTask(STAGE, begun())
    layer = task.tasks["multi_view"].module["language_model"].layers[0].mlp.up_proj.weight  # type: ignore[index]
    (rate,) = {rate for group, rate in task.groups() if any(weight is layer for weight in group)}
    assert rate == 1e-3


def test_a_part_that_costs_more_has_fewer_steps() -> None:
    stage = replace(STAGE, steps=5, every={"multi_view": 2})
    assert [part.steps for part in stage.stages] == [5, 3, 5]
    task = stage.task(begun())
    whole = [task.pages(0).batch(step) for step in range(4)]
    assert [own[1] is None for own in whole] == [False, True, False, True]
    resumed = task.pages(3)  # the same documents as one that was never stopped
    alone = task.tasks["multi_view"].pages(0)
    assert resumed.batch(4)[1][0].questions == alone.batch(2)[0].questions != alone.batch(3)[0].questions
    with all_eager_attention(task.tasks["answering"].module.model):
        assert {name.split(":")[0] for name in task.losses(1, whole[1])} == {"loss", "answering", "copying"}


@pytest.mark.parametrize("every", [{"multi_view": 0}, {"answering": 2}, {"visual_pretraining": 2}])
def test_a_share_of_steps_that_no_part_can_have_is_refused(every: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="every: expected (steps of multi_view, copying|at least 1); got"):
        MultiTaskStage(parts=PARTS, every=every)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"answering": {}}, "parts: expected two or more stages; got answering"),
        ({}, "parts: expected two or more stages; got none"),
        ({"copying": {}, "allocator": {}}, "parts: expected stages from scratch; got allocator"),
        (
            {"copying": {}, "visual_pretraining": {"steps": 3}},
            "parts: expected steps beside the parts, .* got that of visual_pretraining",
        ),
        ({"copying": {}, "visual_pretraining": {"pages": 3}}, r"parts \(visual_pretraining\): expected settings among"),
        ({"copying": {}, "dreaming": {}}, "parts: stage: expected one of .*; got 'dreaming'"),
        ({"copying": {}, "visual_pretraining": 3}, "parts: expected settings of visual_pretraining; got 3"),
    ],
)
def test_parts_that_cannot_be_trained_together_are_refused(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiTaskStage(parts=parts)


def test_a_recipe_names_parts(tmp_path: Path) -> None:
    recipe = tmp_path / "train.yaml"
    recipe.write_text(
        "model: .\nstages:\n  - stage: multi_task\n    steps: 5\n    image_size: 96\n    parts:\n"
        "      copying: {pages: 3}\n      visual_pretraining: {}\n"
    )
    (stage,) = load_recipe(recipe, ["multi_task.parts.copying.pages=4"]).stages
    assert isinstance(stage, MultiTaskStage)
    assert [(part.steps, part.image_size) for part in stage.stages] == [(5, 96), (5, 96)]
    assert stage.stages[0].pages == 4  # type: ignore[attr-defined]
