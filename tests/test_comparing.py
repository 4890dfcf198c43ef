"""The stage that teaches the language model to compare what two pages say."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from test_training import begun, config
from torch import Tensor
from transformers import GenerationConfig

from arr_coc.data import CHARSET
from arr_coc.modeling.answers import split_thinking
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.training.attention import all_eager_attention
from arr_coc.training.from_scratch.comparing import ComparingStage, ComparingTask, Pairs, SketchedPairs
from arr_coc.training.from_scratch.patch_language import PatchLanguage
from arr_coc.training.recipe import load_recipe
from arr_coc.training.stages import Run

__all__ = ["config"]  # the fixture

STAGE = ComparingStage(steps=2, warmup=1, evaluate_every=2, workers=0, bf16=False, pairs=2, budget=40)


@pytest.fixture(scope="module")
def task(config: ArrCocConfig) -> ComparingTask:
    torch.manual_seed(0)
    return ComparingTask(STAGE, taught(config))


def taught(config: ArrCocConfig) -> Run:
    """A run that a copying stage has gone through."""
    run = begun(config)
    torch.manual_seed(1)
    run.learner["language"] = PatchLanguage(run.model, run.processor.tokenizer).state_dict()
    return run


@pytest.fixture(scope="module")
def batch(task: ComparingTask) -> Pairs:
    return task.pages(0).batch(0)


def written(task: ComparingTask, batch: Pairs) -> list[str]:
    rows = zip(batch.after, batch.answer, strict=True)
    return [task.prompts.tokenizer.decode(ids[said], skip_special_tokens=True) for ids, said in rows]


def amount(text: str) -> float:
    return float(text.replace("$", "").replace(",", ""))


def test_both_amounts_are_written_in_the_order_of_the_pages_and_then_the_one_asked_for(
    task: ComparingTask, batch: Pairs
) -> None:
    compared = [
        (kind, *split_thinking(text)) for kind, text in zip(batch.kinds, written(task, batch), strict=True)
        if kind != "field"
    ]  # fmt: skip
    assert len(compared) >= 2 * STAGE.pairs
    for (kind, thinking, said), (other_kind, other_thinking, other) in pairwise(compared):
        amounts = [amount(text) for text in thinking.split("\n")]
        assert len(amounts) == 2 and amount(said) == (max if kind == "highest" else min)(amounts)
        if kind == "highest":
            assert (other_kind, other_thinking) == ("lowest", thinking) and other != said


def test_characters_that_are_read_are_those_that_are_written(task: ComparingTask, batch: Pairs) -> None:
    """The first amount's are on the first page, the second's on the other; the answer is read off the thinking."""
    rows = zip(batch.spelt, batch.answer, batch.kinds, batch.pair, written(task, batch), strict=True)
    for spelt, answer, kind, pair, text in rows:
        numbers = spelt[answer].tolist()[:-1]  # the last is the end
        assert len(numbers) == len(text)
        shown = [(number, char) for number, char in zip(numbers, text, strict=True) if number >= 0]
        assert all(CHARSET[int(batch.shown.classes[number]) - 1] == char for number, char in shown)
        said = "".join(char for _, char in shown)
        pages = [int(batch.shown.pages[number]) - 2 * int(pair) for number, _ in shown]
        if kind == "field":
            assert said == text.replace(" ", "") and len(set(pages)) == 1
        else:
            first, second = split_thinking(text)[0].split("\n")
            assert said == first + second and pages == [0] * len(first) + [1] * len(second)


def test_what_a_question_needs_lies_on_both_pages_or_on_one(batch: Pairs) -> None:
    patches = batch.needed.shape[1] // 2
    for needed, kind in zip(batch.needed > 0, batch.kinds, strict=True):
        on = [bool(needed[:patches].any()), bool(needed[patches:].any())]
        assert sum(on) == (1 if kind == "field" else 2)


@pytest.mark.parametrize("based", [False, True])
def test_pages_stand_one_after_the_other_with_their_patches(task: ComparingTask, batch: Pairs, based: bool) -> None:
    """What changes where one page says something else."""
    seen: list[Tensor] = []

    def keep(module: object, args: object, kwargs: dict[str, Tensor]) -> None:
        seen.append(kwargs["inputs_embeds"])

    hook = task.comparing.model.model.register_forward_pre_hook(keep, with_kwargs=True)
    cells = task.comparing.side**2 // 16
    classes = batch.shown.classes.clone()
    classes[batch.shown.pages == 1] += 1
    with torch.no_grad(), all_eager_attention(task.comparing.model):
        for own in (batch, replace(batch, shown=replace(batch.shown, classes=classes))):
            task.comparing(own, STAGE.budget, torch.Generator().manual_seed(0), based=based)
    hook.remove()
    of_first = (batch.pair == 0).nonzero()[:, 0]
    changed = (seen[0] != seen[1]).any(-1)
    assert not changed[len(of_first) :].any()  # pages of the other pair say the same
    length = batch.before.shape[1] + batch.between.shape[1] + batch.after.shape[1] + STAGE.budget + 2 * cells * based
    assert seen[0].shape[1] == length
    between = task.comparing.model.get_input_embeddings()(batch.between[0])
    for row in of_first.tolist():
        at = int(changed[row].int().argmax())  # the first place at which the second page's say something else
        starts = [
            start for start in range(length - 1) if torch.equal(seen[0][row, start : start + len(between)], between)
        ]
        assert len(starts) == 1 and at >= starts[0] + len(between)
        assert not changed[row, -batch.after.shape[1] :].any()


def test_answers_of_the_shipped_weights_have_room_for_what_is_thought(task: ComparingTask) -> None:
    folder = Path(__file__).parents[1] / "hub_configs" / "arr-coc-tiny-2"
    assert any(isinstance(stage, ComparingStage) for stage in load_recipe(folder / "train.yaml").stages)
    longest = max(int(task.pages(0).batch(step).answer.sum(1).max()) for step in range(4))
    assert 24 < longest <= GenerationConfig.from_pretrained(folder).max_new_tokens


def test_budgets_of_no_meaning_are_refused(config: ArrCocConfig) -> None:
    with pytest.raises(ValueError, match="^budget: expected at least 1; got 0$"):
        replace(STAGE, budget=0)
    patches = 2 * config.vision_config.grid_size**2
    with pytest.raises(ValueError, match=f"^budget: expected at most the {patches} patches of two pages; got"):
        ComparingTask(replace(STAGE, budget=patches + 1), taught(config))


def test_it_is_told_where_a_budget_does_not_hold_what_is_needed(task: ComparingTask, batch: Pairs) -> None:
    most = int(batch.needed.sum(1).max())
    with torch.no_grad(), all_eager_attention(task.comparing.model):
        shown = [
            float(task.comparing(batch, budget, torch.Generator().manual_seed(0), based=False)["shown"])
            for budget in (most // 3, most)
        ]
    assert shown[0] < 0.95 and shown[1] == 1


def test_pairs_are_a_function_of_the_step(task: ComparingTask) -> None:
    went = [pairs for _, pairs in zip(range(3), task.pages(0), strict=False)]
    again = next(iter(task.pages(2)))
    assert torch.equal(went[2].after, again.after) and not torch.equal(went[1].after[:4, :9], again.after[:4, :9])
    held_out = SketchedPairs(STAGE, task.config, task.prompts, held_out=True).batch(2)
    assert written(task, held_out) != written(task, again)


def test_the_stage_trains_the_language_model_alone_and_resumes(config: ArrCocConfig, tmp_path: Path) -> None:
    run = taught(config)
    before = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    language = {name: weight.clone() for name, weight in run.learner["language"].items()}
    STAGE.run(run, tmp_path)
    changed = {name for name, weight in run.model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed and all(".language_model." in name or "lm_head" in name for name in changed)
    assert all(torch.equal(weight, language[name]) for name, weight in run.learner["language"].items())
    again = taught(config)
    STAGE.run(again, tmp_path)  # finished: nothing to do
    for name, weight in run.model.model.language_model.state_dict().items():
        assert torch.equal(weight, again.model.model.language_model.state_dict()[name])


def test_weights_that_read_no_perfect_tokens_are_refused(config: ArrCocConfig, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^comparing: expected weights that a copying stage trained; got none"):
        STAGE.run(begun(config), tmp_path)
