"""Recipes: stages in their order, settings laid over them, and what is refused."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import refuses, tiny_checkpoint

from arr_coc.data.formats import open_records
from arr_coc.loading import load_config
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.training.reader.language_model import load_adapter
from arr_coc.training.reader.recognition import RecognitionStage
from arr_coc.training.recipe import Recipe, begin, load_recipe, tell_changes, tell_recipe, train
from arr_coc.training.stages import STAGES, Run, Stage

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "hub_configs" / "arr-coc-135m" / "train.yaml"
EXAMPLE = ROOT / "examples" / "phases.yaml"


def test_the_example_iterates_the_phases() -> None:
    recipe = load_recipe(EXAMPLE)
    names = [next(name for name, kind in STAGES.items() if type(stage) is kind) for stage in recipe.stages]
    assert names == ["allocator", "semantic", "allocator", "semantic", "joint"]
    assert recipe.start is not None and (recipe.start / "model.safetensors.index.json").is_file()


def test_settings_go_to_a_stage_by_number_by_name_or_to_all() -> None:
    settings = ["steps=7", "joint.learning_rate=5e-5", "1.data.pages=2", "seed=3", "semantic.rates.bridge=1e-6"]
    recipe = load_recipe(EXAMPLE, settings)
    stages: list[Any] = list(recipe.stages)
    assert [stage.steps for stage in stages] == [7] * 5 and recipe.seed == 3
    assert stages[4].learning_rate == 5e-5 and stages[0].learning_rate == 1e-4
    assert stages[1].data["pages"] == 2 and stages[1].data["format"] == "rendered" and stages[3].data["pages"] == 400
    assert stages[1].rates == stages[3].rates == {"bridge": 1e-6}
    changed = load_recipe(
        EXAMPLE, ["config.fetcher_config.allocator=tiers", "saved.dtype=bfloat16", "0.losses.answer=1e-1"]
    )
    assert changed.changes["fetcher_config"] == {"allocator": "tiers"} and changed.saved.dtype == "bfloat16"
    assert changed.stages[0].losses["answer"] == 0.1  # type: ignore[attr-defined]  # a phase


def test_a_setting_inside_a_default_keeps_the_rest_of_it(tmp_path: Path) -> None:
    """`data.pages=5` on a phase without `data` gave {"pages": 5}, which is of no format."""
    path = tmp_path / "recipe.yaml"
    path.write_text(f"model: {RECIPE.parent}\nstages: [{{stage: joint}}]\n")
    for settings, expected in (
        (["data.pages=5"], {"format": "rendered", "pages": 5}),
        (["data.path=pages.jsonl"], {"path": "pages.jsonl"}),
        (["data.format=jsonl", "0.data.path=pages.jsonl"], {"format": "jsonl", "path": "pages.jsonl"}),
    ):
        stage: Any = load_recipe(path, settings).stages[0]
        assert stage.data == expected and stage.budgets == {"standard": 1.0}
    path.write_text(f"{path.read_text()}defaults: {{data: {{format: columns}}}}\n")
    assert load_recipe(path, ["data.path=org/name"]).stages[0].data == {"format": "columns", "path": "org/name"}  # type: ignore[attr-defined]


def test_a_trained_model_is_written_as_the_recipe_says(tmp_path: Path) -> None:
    saving = load_recipe(RECIPE, ["saved={dtype: bfloat16, max_shard_size: 3MB}"]).saved
    run = begin(load_recipe(EXAMPLE), torch.device("cpu"))
    run.adapter = {f"base_model.model.layers.0.self_attn.q_proj.lora_{x}.weight": torch.ones(2, 2) for x in "AB"}
    whole = {name: weight.to(torch.bfloat16) for name, weight in run.model.state_dict().items()}
    saving.write(run, tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 3 and max(shard.stat().st_size for shard in shards) < 3.3e6
    again = ArrCocForConditionalGeneration.from_pretrained(tmp_path, dtype="auto").state_dict()
    assert all(torch.equal(weight, whole[name]) for name, weight in again.items())
    assert load_config(str(tmp_path)).dtype == torch.bfloat16
    assert {weight.dtype for weight in load_adapter(tmp_path).values()} == {torch.bfloat16}
    kept = load_recipe(EXAMPLE).saved
    assert (kept.dtype, kept.max_shard_size) == (None, "5GB")


def test_a_stage_or_training_that_was_begun_otherwise_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word the weights of the old settings came."""
    said: list[str] = []
    monkeypatch.setattr("arr_coc.training.recipe.logger.warning", said.append)
    stage, path = RecognitionStage(steps=5), tmp_path / "out" / "stage0.json"
    tell_changes(stage, path)
    tell_changes(replace(stage, workers=3), path)
    assert not said, "how many processes make batches changes nothing"
    tell_changes(replace(stage, steps=7, worn=0.25), path)
    assert len(said) == 1 and f"(steps 5 -> 7, worn {stage.worn} -> 0.25)" in said[0]
    # Another start, configuration or rank gave the weights of before.
    said: list[str] = []
    monkeypatch.setattr("arr_coc.training.recipe.logger.warning", said.append)
    recipe, path = load_recipe(EXAMPLE), tmp_path / "recipe.json"
    tell_recipe(recipe, path, rank=2)
    tell_recipe(recipe, path, rank=2)
    assert not said
    tell_recipe(replace(recipe, seed=7), path, rank=4)
    assert len(said) == 1 and f"(seed {recipe.seed} -> 7, rank 2 -> 4)" in said[0]


NOBODYS = ("pages=3", "9.steps=3", "steps", "joint=3", "0.=3", "nobody.steps=3")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("saved=3", "expected a mapping for saved; got 3"),
        ("saved={dtype: int8}", "saved.dtype: expected one of bfloat16, float16, float32; got 'int8'"),
        ("saved={max_shard_size: much}", "saved.max_shard_size: expected bytes, or text such as .*; got 'much'"),
        ("saved={shards: 3}", r"saved: expected settings among dtype, max_shard_size; got \['shards'\]"),
        *((setting, r"setting: expected STAGE.NAME=VALUE .*; got '") for setting in NOBODYS),
    ],
)
def test_settings_that_nothing_has_are_refused(setting: str, message: str) -> None:
    refuses(message, load_recipe, EXAMPLE, [setting])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages: [{stage: dreaming}]", r"stages\[0\]: stage: expected one of allocator, .*recognition.*; got"),
        ("stages: [{stage: recognition, stepz: 3}]", r"expected settings among steps.*got \['stepz'\]"),
        ("stages: [recognition]", r"stages\[0\]: expected a mapping with the stage's name; got 'recognition'"),
        ("stages: [{stage: relevance}, {stage: joint}]", "a phase first, or after a phase; got one after"),
        ("seed: 1", "expected a mapping with a list of stages"),
        ("stages: []", "expected a mapping with a list of stages"),
        ("just words", "expected a mapping with a list of stages"),
    ],
)
def test_bad_recipes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    refuses(message, load_recipe, path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as a training leaves it. Read only."""
    return tiny_checkpoint(tmp_path_factory.mktemp("trained") / "model")


def started(trained: Path, tmp_path: Path, **changes: dict[str, Any]) -> ArrCocForConditionalGeneration:
    path = tmp_path / "other.yaml"
    content = {"model": str(trained), "start": str(trained), "config": changes, "stages": [{"stage": "recognition"}]}
    path.write_text(yaml.safe_dump(content))
    return begin(load_recipe(path), torch.device("cpu")).model.eval()


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("text_config", {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, "as deep; got none with "),
        ("text_config", {"intermediate_size": 96}, "got 6 mismatched"),
        ("vision_config", {"mlp_dim": 128}, "got 6 mismatched"),
    ],
)
def test_a_start_of_other_shapes_is_refused(
    trained: Path, tmp_path: Path, part: str, change: dict[str, Any], message: str
) -> None:
    refuses(message, started, trained, tmp_path, **{part: change})


def test_an_adapter_is_trained_on_data_of_ones_own_as_the_recipe_says() -> None:
    """Settings of the format alone kept the fields of rendered pages, and were refused."""
    recipe = RECIPE.parents[2] / "examples" / "adapter.yaml"
    command = next(line for line in recipe.read_text().splitlines() if "format: jsonl" in line)
    setting = command.split("'")[1].replace("../my.jsonl", "held_out/data.jsonl")
    loaded = load_recipe(recipe, [setting])
    (stage,) = loaded.stages
    assert len(open_records(stage.data, folder=loaded.root)) > 0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="data of format jsonl: expected fields among path; got pages"):
        open_records(load_recipe(recipe, ["data.format=jsonl"]).stages[0].data)  # type: ignore[attr-defined]


def test_a_folder_to_start_from_that_is_not_there_is_refused(trained: Path, tmp_path: Path) -> None:
    """It used to be passed over by recipes of phases alone, which then trained new weights."""
    with pytest.raises(ValueError, match="start: expected a trained model's folder; got .*elsewhere, which is none"):
        train(Recipe(trained, (STAGES["joint"](),), start=tmp_path / "elsewhere"), tmp_path / "out")


def test_a_new_stage_is_a_class_and_a_name(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Scaling(Stage):
        """Multiplies the vocabulary by a number."""

        factor: float = 1.0

        def run(self, run: Run, folder: Path) -> None:
            run.model.lm_head.weight.data *= self.factor

    monkeypatch.setitem(STAGES, "scaling", Scaling)
    recipe, head = tmp_path / "recipe.yaml", "lm_head.weight"
    recipe.write_text(f"{{model: {trained}, start: {trained}, defaults: {{factor: 3}}, stages: [{{stage: scaling}}]}}")
    before = ArrCocForConditionalGeneration.from_pretrained(trained).get_parameter(head)
    train(load_recipe(recipe, ["scaling.factor=2"]), tmp_path / "out")
    after = ArrCocForConditionalGeneration.from_pretrained(tmp_path / "out" / "model").get_parameter(head)
    torch.testing.assert_close(after, 2 * before)
