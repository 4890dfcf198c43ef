"""The density experiment's laboratory: its recipes train what its contest asks, and its script trains all of it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor
from torch.nn.functional import one_hot

from arr_coc import ArrCocConfig, ArrCocProcessor
from arr_coc.cli.experiment import read_config
from arr_coc.data import CHARSET
from arr_coc.data.domains.density import densities
from arr_coc.evaluation.arms import Arm, make_arms
from arr_coc.experiments.contest import check_tokens
from arr_coc.experiments.scoring import Entry, check_rules, missing_arms
from arr_coc.model_summary import count_parameters, on_meta
from arr_coc.modeling.configuration_arr_coc import resolve_budget
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.training.checkpoints import save_learner
from arr_coc.training.from_scratch.answering import AnsweringStage
from arr_coc.training.from_scratch.copying import CopyingStage
from arr_coc.training.from_scratch.learner import LEARNT, Learner
from arr_coc.training.from_scratch.multi_task import MultiTaskStage
from arr_coc.training.from_scratch.visual_pretraining import VisualPretrainingStage
from arr_coc.training.recipe import load_recipe

ROOT = Path(__file__).parents[1]
LAB, EXPERIMENT = ROOT / "hub_configs" / "arr-coc-lab", ROOT / "examples" / "experiments" / "lab-density"
ARMS = ("running", "floor", "smaller", "blind", "patches_only", "keep_all", "floor_flops", "smaller_flops")


@pytest.fixture(scope="module")
def config() -> ArrCocConfig:
    return ArrCocConfig.from_pretrained(LAB)


def script_called(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXPERIMENT / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script_called("train_arms", monkeypatch)


def test_the_geometry_is_small_and_its_processor_counts_like_its_model(config: ArrCocConfig) -> None:
    assert count_parameters(on_meta(config))["total"] < 15e6
    processor = ArrCocProcessor.from_pretrained(LAB)
    (count,) = processor._get_num_multimodal_tokens([[192, 192]]).num_image_tokens
    assert count == sum(config.vision_tokens()) == 64
    assert len(processor.tokenizer) == config.text_config.vocab_size
    assert densities(config.vision_config.image_size)[-1] == 350


def contest() -> dict[str, Entry]:
    content = read_config(str(EXPERIMENT / "experiment.yaml"))
    check_rules(content["rules"])
    assert not missing_arms(content["rules"], [entry.name for entry in content["contest"]])
    return {entry.name: entry for entry in content["contest"]}


def test_the_arms_read_equally_many_tokens(config: ArrCocConfig) -> None:
    arms: list[Arm] = []
    for name, entry in contest().items():
        (arm,) = make_arms(config, [entry.arm], seeds=(0,), boxed=False)
        arms.append(Arm(name, "bound" if entry.bound else "contest", "", 0, "", 0, arm.tokens))
    assert {arm.name: arm.tokens for arm in arms} == {
        "running": 64, "floor": 64, "smaller": 68, "blind": 64, "patches_only": 64, "keep_all": 612,
        "floor_flops": 36, "smaller_flops": 425,
    }  # fmt: skip
    check_tokens(arms, "running", 0.1)


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_is_trained_to_read_what_it_is_asked_with(name: str, config: ArrCocConfig) -> None:
    """Side of the image, strategy, patches and base: as the contest's arm has them."""
    (arm,) = make_arms(config, [contest()[name].arm], seeds=(0,), boxed=False)
    recipe = load_recipe(LAB / "arms" / f"{name}.yaml")
    visual, answering = recipe.stages
    assert isinstance(visual, VisualPretrainingStage) and isinstance(answering, AnsweringStage) and not recipe.changes
    for stage in (visual, answering):
        assert (stage.image_size or config.vision_config.image_size) == arm.side
    assert arm.strategy in {*answering.end_mix, "saliency", "realizer"} and answering.reads_base == (
        arm.rule != "patches_only"
    )
    patches = (arm.side // config.vision_config.patch_size) ** 2
    drawn = {resolve_budget(budget, patches) for budget in answering.budgets}
    assert arm.budget == 0 or drawn == {arm.budget} == {resolve_budget(answering.evaluate_budget, patches)}
    assert (arm.budget == 0) == (set(answering.end_mix) == {"none"})
    common = load_recipe(LAB / "train.yaml").stages
    assert set(answering.kinds) == {"density"}
    assert isinstance(common[0], VisualPretrainingStage) and isinstance(common[1], AnsweringStage)
    for count in ("pages", "questions", "steps"):
        assert getattr(answering, count) == getattr(common[1], count)
    assert visual.steps == common[0].steps or (visual.steps > common[0].steps and name.startswith("smaller"))


def test_all_arms_start_from_a_language_model_that_reads_what_each_of_them_reads() -> None:
    """Bases of as many cells as the floor's, the base of the lab's own image, patches, and both."""
    visual, alone, multi_task = load_recipe(LAB / "shared.yaml").stages
    assert isinstance(visual, VisualPretrainingStage) and visual.encoder_rate > 0 and set(visual.kinds) == {"density"}
    assert isinstance(alone, CopyingStage) and alone.kind == "density" and not alone.learns_language
    assert isinstance(multi_task, MultiTaskStage) and multi_task.image_size is None
    answering, copying = multi_task.stages
    assert isinstance(answering, AnsweringStage) and isinstance(copying, CopyingStage)
    assert set(answering.end_mix) == {"none", "oracle", "realizer"} and set(answering.budgets) == {28, 64}
    assert 0 < copying.alone < 1 and 0 < copying.base_steps < copying.steps and copying.kind == "density"
    *before, floor = load_recipe(LAB / "shared_floor.yaml").stages
    assert before == [visual, alone] and isinstance(floor, MultiTaskStage) and floor.steps == multi_task.steps
    answering, copying = floor.stages
    assert isinstance(answering, AnsweringStage) and isinstance(copying, CopyingStage)
    assert set(answering.start_mix) == set(answering.end_mix) == {"none"} and copying.alone == 1
    size = load_recipe(LAB / "arms" / "floor.yaml").stages[1].image_size  # type: ignore[attr-defined]
    assert answering.image_size == copying.image_size == alone.image_size == size


def test_every_arm_of_the_contest_has_a_recipe_and_trainings_that_are_asked(script: ModuleType) -> None:
    assert set(contest()) == set(ARMS) == set(script.SEEDS) == {path.stem for path in (LAB / "arms").glob("*.yaml")}
    for name, entry in contest().items():
        folders = [Path(path).parent.name for path in entry.weights]
        assert folders == [f"{name}-{seed}" for seed in range(script.SEEDS[name])]


def test_the_script_trains_what_is_shared_first_skips_what_is_done_and_says_what_failed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []
    failing = {"floor-1"}

    def pretend(command: list[str], **_: Any) -> None:
        out = Path(command[command.index("--out") + 1])
        commands.append(command)
        if out.name not in failing:
            for made in ("model", "stage0", "stage1"):
                (out / made).mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(script.subprocess, "run", pretend)
    asked = ["x", "--out", str(tmp_path), "--arms", "floor,blind", "--shared", "steps=9", "answering.steps=7"]
    monkeypatch.setattr(sys, "argv", asked)
    assert script.main() == 1
    assert [Path(command[command.index("--out") + 1]).name for command in commands] == [
        "shared", "shared_floor", "floor-0", "blind-0", "floor-1", "blind-1", "floor-2",
    ]  # fmt: skip
    assert "floor-1: failed" in capsys.readouterr().out
    first, floor, arm = commands[0], commands[2], commands[3]
    assert "steps=9" in first and not any(word.startswith("start=") for word in first)
    assert f"start={tmp_path / 'shared_floor' / 'model'}" in floor and str(LAB / "shared_floor.yaml") in commands[1]
    assert f"start={tmp_path / 'shared' / 'model'}" in arm and "answering.steps=7" in arm and "steps=9" not in arm
    assert str(LAB / "arms" / "blind.yaml") in arm and "answering.seed=0" in arm
    commands.clear()
    failing.clear()
    assert script.main() == 0
    assert [Path(command[command.index("--out") + 1]).name for command in commands] == ["floor-1"]


def test_arms_without_a_shared_stage_are_not_begun(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.subprocess, "run", lambda command, **_: None)
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path), "--seeds", "1"])
    assert script.main() == 1 and not list(tmp_path.glob("floor*"))


def test_stages_that_a_finished_training_began_with_are_taken_from_it(script: ModuleType, tmp_path: Path) -> None:
    """Of the same seed and settings; whatever the two arms do later."""

    def training(name: str, seed: int) -> Any:
        return script.Training(name, seed, tmp_path)

    def finished(name: str, seed: int, content: str, *settings: str, stages: int = 2) -> None:
        for number in range(stages):
            (training(name, seed).folder / f"stage{number}").mkdir(parents=True)
            (training(name, seed).folder / f"stage{number}" / "state.pt").write_text(content)
        (training(name, seed).folder / "model").mkdir()
        assert training(name, seed).asked_alike(settings)

    def taken(name: str, seed: int, *settings: str) -> list[str]:
        training(name, seed).take_stages(settings)
        files = sorted(training(name, seed).folder.rglob("state.pt"))
        return [f"{file.parent.name} {file.read_text()}" for file in files]

    assert taken("blind", 0) == []
    finished("running", 0, "run")
    finished("running", 1, "other seed", "visual_pretraining.steps=9")
    assert taken("blind", 0) == ["stage0 run"]
    assert taken("floor", 0) == taken("keep_all", 1) == []
    assert taken("patches_only", 1, "visual_pretraining.steps=9") == ["stage0 other seed"]
    assert taken("floor_flops", 1, "visual_pretraining.steps=9") == []
    finished("shared", 0, "shared")
    assert taken("shared_floor", 0) == ["stage0 shared", "stage1 shared"]
    assert taken("blind", 0) == ["stage0 run"]


def test_a_training_does_not_go_on_with_other_settings(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plain run would take one of ten steps for finished."""
    monkeypatch.setattr(script.subprocess, "run", lambda command, **_: None)
    training = script.Training("floor", 0, tmp_path)
    assert not script.run(training, "cpu", ["visual_pretraining.steps=10"])
    (training.folder / "model").mkdir(parents=True)
    assert script.run(training, "cpu", ["visual_pretraining.steps=10"])
    assert not script.run(training, "cpu", [])
    assert "floor-0: begun with other settings, see" in capsys.readouterr().out


def test_characters_are_counted_by_how_many_their_cell_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [("named", 2, page, page % 4 != 0) for page in range(40)] + [("spelt", 9, 0, True), ("spelt", 6, 1, False)]
    rows = script_called("cells", monkeypatch).table(told).splitlines()
    assert rows[0].startswith("| characters in the cell | named | spelt | perfect |")
    assert rows[3].startswith("| 2 | 75.0% [") and rows[3].endswith("| - | - | 0 |")
    assert rows[7].startswith("| 6 and more | - | 50.0% [") and rows[7].endswith("| - | 2 |")


def test_a_trained_floor_tells_characters_by_cell(
    config: ArrCocConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its bridge names is what is counted: told what is in every cell, it names all of it."""
    model, processor = ArrCocForConditionalGeneration(config), ArrCocProcessor.from_pretrained(LAB)
    learner = Learner(model, processor.tokenizer)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    save_learner({part: learner.get_submodule(part).state_dict() for part in LEARNT}, tmp_path)
    cells = script_called("cells", monkeypatch)
    asked = cells.Asked(tmp_path, 128, 2)
    monkeypatch.setattr(asked.learner, "read", lambda features, batch: (batch, features))  # characters stay put
    told = list(asked.told())
    tellers = {teller: [each for each in told if each[0] == teller] for teller in ("named", "spelt", "perfect")}
    assert len(tellers["named"]) == int((asked.batch.glyphs > 0).sum())
    assert len(tellers["spelt"]) == len(tellers["perfect"]) > 0
    assert all(held >= 1 and page in (0, 1) for _, held, page, _ in told)
    assert not all(right for *_, right in tellers["named"])

    def named(*_: object) -> tuple[Tensor, Tensor]:
        return one_hot(asked.batch.glyphs, 1 + len(CHARSET)), asked.batch.words

    monkeypatch.setattr(cells, "name_cells", named)
    assert all(right for teller, *_, right in asked.told() if teller == "named")
