"""Recipes: stages in their order, settings laid over them, and what is refused."""

import json
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from helpers import refuses, tiny_checkpoint
from torch import Tensor, nn
from trainers import CPU, PHASE, Killed, killed_at, loaded, same, trainer_of, weights_of

from arr_coc.data.formats import open_records
from arr_coc.loading import load_config
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.training.checkpoints import (
    COMPLETE,
    checkpoints,
    damage,
    discard_incomplete,
    load_state,
    mark_complete,
    newest_complete,
    save_state,
)
from arr_coc.training.optimizers import FLOOR, OPTIMIZERS, MuonWithAdamW, adamw, stacked_matrices, warmup_cosine
from arr_coc.training.phases import train_phase
from arr_coc.training.reader.language_model import load_adapter
from arr_coc.training.reader.recognition import RecognitionStage
from arr_coc.training.recipe import Recipe, begin, load_recipe, tell_changes, tell_recipe, train
from arr_coc.training.stages import STAGES, Loop, Run, ScratchStage, Stage, Task
from arr_coc.training.trainer import ArrCocTrainer

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
    said.clear()
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
        ("- stages", "recipe.yaml: expected a mapping with a list of stages; got list"),
        ("stages: [", "recipe.yaml: expected YAML; got "),
        ("stages: [{stage: allocator}]\nmodel: 3", "recipe.yaml: expected text for model; got 3"),
        ("stages: [{stage: allocator}]\nseed: [1]", r"recipe.yaml: expected a whole number for seed; got \[1\]"),
        ("stages: [{stage: allocator}]\ndefaults: [a]", r"recipe.yaml: expected a mapping for defaults; got \['a'\]"),
        ("stages: [{stage: [1]}]", r"stages\[0\]: expected the name of a stage; got \[1\]"),
        ("stages: [{stage: allocator, 3: 4}]", r"stages\[0\] \(allocator\): settings: expected settings among "),
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


# ---- Exact resume, and checkpoints that are whole or not at all: of phases, and of the loop of other stages
@pytest.fixture(scope="module")
def checkpoint(tiered_checkpoint: Path) -> Path:
    return tiered_checkpoint


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ArrCocTrainer:
    """A run that nothing interrupted. Read only."""
    trainer = trainer_of(checkpoint, tmp_path_factory.mktemp("whole"), accumulation=2)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def killed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run, killed before its fifth step, with checkpoints 2 and 4. Read only."""
    folder = tmp_path_factory.mktemp("killed")
    killed_at(trainer_of(checkpoint, folder, accumulation=2), 4)
    return folder


def test_a_resumed_run_gives_the_weights_of_one_run(checkpoint: Path, whole: ArrCocTrainer, tmp_path: Path) -> None:
    """Killed twice, between checkpoints; with accumulation, and a checkpoint that was half written in the way."""
    rng = random.Random(0)
    first, second = rng.choice([2, 3]), rng.choice([3, 4])
    killed_at(trainer_of(checkpoint, tmp_path / "killed", accumulation=2), first)
    half = tmp_path / "killed" / "checkpoint-4"
    shutil.copytree(tmp_path / "killed" / "checkpoint-2", half)
    (half / "model.safetensors").write_bytes(b"half")
    killed_at(trainer_of(checkpoint, tmp_path / "killed", accumulation=2), second)
    resumed = trainer_of(checkpoint, tmp_path / "killed", accumulation=2)
    resumed.train()
    assert resumed.state.global_step == PHASE.steps
    assert same(weights_of(whole), weights_of(resumed))
    assert whole.state.best_metric == resumed.state.best_metric
    assert not same(weights_of(whole), loaded(checkpoint)[0].state_dict())


def test_a_phase_that_is_done_does_not_run_again_and_holds_its_model_alone(checkpoint: Path, tmp_path: Path) -> None:
    """What a killed run had half written there, under other names too, was moved into place with the model."""
    (tmp_path / "model.tmp").mkdir()
    (tmp_path / "model.tmp" / "model-00001-of-00002.safetensors").write_bytes(b"half")
    model, processor = loaded(checkpoint)
    phase = replace(PHASE, steps=1, held_out=None)
    made = train_phase(model, processor, phase, tmp_path, device=CPU, root=tmp_path)
    assert [path.name for path in made.glob("*.safetensors")] == ["model.safetensors"]
    assert not (tmp_path / "model.tmp").exists()
    before = (made / "model.safetensors").stat().st_mtime_ns
    assert train_phase(model, processor, phase, tmp_path, device=CPU, root=tmp_path) == made
    assert (made / "model.safetensors").stat().st_mtime_ns == before
    ArrCocForConditionalGeneration.from_pretrained(made).processor  # noqa: B018  refuses where there is none


def flip(path: Path) -> None:
    """Changes one bit in the middle of a file, and nothing of its size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_not_gone_on_from_but_the_one_before_it(
    checkpoint: Path, whole: ArrCocTrainer, killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint counted as whole by the sizes of its files: a bit that flipped on the disk went into the weights."""
    shutil.copytree(killed, tmp_path / "damaged")
    flip(tmp_path / "damaged" / "checkpoint-4" / "model.safetensors")
    resumed = trainer_of(checkpoint, tmp_path / "damaged", accumulation=2)
    resumed.train()
    assert same(weights_of(whole), weights_of(resumed))
    assert "checkpoint-4: expected a whole checkpoint; got another model.safetensors than was written" in caplog.text


def test_where_every_checkpoint_is_damaged_it_says_so(checkpoint: Path, killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    for step in (2, 4):
        flip(tmp_path / f"checkpoint-{step}" / "optimizer.pt")
    with pytest.raises(ValueError, match=r"checkpoint-4: expected a whole checkpoint .*; got another optimizer\.pt"):
        trainer_of(checkpoint, tmp_path, accumulation=2).train()
    assert len(checkpoints(tmp_path)) == 2


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    files = {"model.safetensors": b"12345", "optimizer.pt": b"123"}
    whole, deleted = written(tmp_path / "checkpoint-9", files), written(tmp_path / "checkpoint-10", files)
    cut, unmarked = written(tmp_path / "checkpoint-11", files), written(tmp_path / "checkpoint-12", files)
    for folder in (whole, deleted, cut):
        mark_complete(folder)
    (deleted / "optimizer.pt").unlink()
    (cut / "optimizer.pt").write_bytes(b"12")
    assert [damage(folder) is None for folder in (whole, deleted, cut, unmarked)] == [True, False, False, False]
    assert newest_complete(tmp_path) == whole
    discard_incomplete(tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == ["checkpoint-9"]
    (whole / COMPLETE).write_text("{")
    assert newest_complete(tmp_path) is None


def test_old_checkpoints_outlive_broken_ones(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer rotates before a checkpoint could be declared whole: killed in between, nothing would be left."""
    trainer = trainer_of(checkpoint, tmp_path, keep=1, held_out=None)

    def mark(folder: Path) -> None:
        if folder.name == "checkpoint-4":
            raise Killed
        mark_complete(folder)

    monkeypatch.setattr("arr_coc.training.trainer.mark_complete", mark)
    with pytest.raises(Killed):
        trainer.train()
    newest = newest_complete(tmp_path)
    assert newest is not None and newest.name == "checkpoint-2"


def test_the_best_checkpoint_is_kept_and_loaded(checkpoint: Path, tmp_path: Path) -> None:
    """A learning rate that ruins the model: the first evaluation is the best one."""
    trainer = trainer_of(checkpoint, tmp_path, learning_rate=1.0, warmup=0, keep=2, steps=6, best="answer_loss")
    trainer.train()
    losses = {line["step"]: line["eval_answer_loss"] for line in trainer.state.log_history if "eval_loss" in line}
    best = min(losses, key=lambda step: losses[step])
    assert len(losses) == 3 and trainer.state.best_global_step == best
    kept = {path.name for path in tmp_path.glob("checkpoint-*")}
    assert kept >= {f"checkpoint-{best}", "checkpoint-6"} and len(kept) == 2
    saved = ArrCocForConditionalGeneration.from_pretrained(tmp_path / f"checkpoint-{best}")
    assert same(weights_of(trainer), saved.state_dict())


# ---- Training that is killed goes on exactly: `tests/kill_training.py`, which kills 20 times, at a smaller size
@pytest.mark.slow
def test_a_training_that_is_killed_goes_on_to_the_same_weights() -> None:
    command = [sys.executable, str(Path(__file__).with_name("kill_training.py")), "--kills", "5", "--steps", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 kills in" in done.stdout and "none loaded" in done.stdout


# ---- the loop of other stages: rates, curves that go on
@pytest.mark.parametrize(("steps", "warmup"), [(100, 10), (9, 1), (9, 0), (3, 5)])
def test_rates_rise_then_fall_like_a_cosine_to_their_floor(steps: int, warmup: int) -> None:
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW([{"params": [layer.weight], "lr": 2.0}, {"params": [layer.bias], "lr": 0.5}])
    schedule, rates = warmup_cosine(optimizer, steps=steps, warmup=warmup), []
    for _ in range(steps):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    progress = [max(0, step - warmup) / max(1, steps - warmup) for step in range(steps)]
    fall = [FLOOR + (1 - FLOOR) * (1 + np.cos(np.pi * done)) / 2 for done in progress]
    factors = [min(1.0, (step + 1) / max(1, warmup)) * part for step, part in enumerate(fall)]
    assert np.allclose(rates, np.outer(factors, [2.0, 0.5]), rtol=1e-12)


def test_interrupted_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(tmp_path, 1, {"seen": 3})

    def half(state: object, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        save_state(tmp_path, 2, {"seen": 4})
    assert load_state(tmp_path) == {"seen": 3, "step": 1}


@dataclass(frozen=True)
class StraightLine(ScratchStage):
    """Trains a layer that learns to sum, up to the step at which it is killed."""

    name: ClassVar[str] = "test"

    steps: int = 6
    warmup: int = 2
    learning_rate: float = 0.1
    weight_decay: float = 0.01
    evaluate_every: int = 2
    bf16: bool = False
    workers: int = 0
    stop: int = -1

    def task(self, run: Run) -> Task:
        return Layer(self)


class Layer(Task):
    def __init__(self, stage: StraightLine) -> None:
        torch.manual_seed(0)
        self.stage, self.layer = stage, nn.Linear(3, 1)
        self.module = nn.ModuleList([self.layer])

    def losses(self, step: int, batch: int) -> dict[str, Tensor]:
        if step == self.stage.stop:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        data = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        return {"loss": (self.layer(data) - data.sum(1, keepdim=True)).square().mean()}

    def measure(self) -> dict[str, float]:
        return {"weight": self.layer.weight[0, 0].item()}


def straight_line(folder: Path, *, stop: int = -1, optimizer: str = "adamw") -> Tensor:
    """The layer's weights after 6 steps, or when it was killed; it goes on where it was killed."""
    stage = StraightLine(stop=stop, optimizer=optimizer)
    task = Layer(stage)
    with suppress(KeyboardInterrupt):
        Loop(stage, task, folder).run()
    return task.layer.weight.detach()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_resume_gives_the_same_weights_and_curve_as_an_uninterrupted_run(tmp_path: Path, optimizer: str) -> None:
    whole = straight_line(tmp_path / "a", optimizer=optimizer)
    for stop in (1, 3, 5):
        straight_line(tmp_path / "b", stop=stop, optimizer=optimizer)
    assert torch.equal(whole, straight_line(tmp_path / "b", optimizer=optimizer))
    curve = (tmp_path / "a.jsonl").read_text()
    assert [json.loads(line)["step"] for line in curve.splitlines()] == [0, 2, 4, 6]
    assert (tmp_path / "b.jsonl").read_text() == curve


@pytest.mark.parametrize("state", [{}, {"weights": {"other": torch.ones(1)}}, {"weights": None}])
def test_a_checkpoint_of_something_else_is_refused(state: dict[str, Any], tmp_path: Path) -> None:
    save_state(tmp_path / "a", 2, state)
    refuses(r"a: expected a checkpoint of this stage and model; got ", straight_line, tmp_path / "a")


# ---- Muon for the matrices of stacked layers, AdamW for the rest, under one schedule
class Stacked(nn.Module):
    """A stack of two layers between a projection and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 8)
        self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2)])
        self.head = nn.Linear(8, 3)


@pytest.fixture
def stacked() -> Stacked:
    torch.manual_seed(0)
    module = Stacked()
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    return module


def test_unknown_optimisers_are_refused_with_the_recipe() -> None:
    refuses("optimizer: expected one of adamw, muon; got 'sgd'", RecognitionStage, optimizer="sgd")


def test_matrices_of_stacked_layers_get_orthogonal_updates_and_alone_decay(stacked: Stacked) -> None:
    groups = [(list(stacked.layers.parameters()), 0.01), (list(stacked.head.parameters()), 0.1)]
    optimizer = MuonWithAdamW(groups, 0.5, stacked)
    chosen = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    assert stacked_matrices(stacked) == {id(layer[1].weight) for layer in stacked.layers}  # type: ignore[index]
    for name, parameter in [*stacked.layers.named_parameters(), *stacked.head.named_parameters()]:
        group = chosen[id(parameter)]
        assert group["weight_decay"] == (0.5 if parameter.ndim > 1 else 0.0), name
        assert group["lr"] == (0.1 if parameter.shape[0] == 3 else 0.01), name
    assert len(chosen) == len([*stacked.layers.parameters(), *stacked.head.parameters()])
    before = {name: weight.detach().clone() for name, weight in stacked.named_parameters()}
    groups = [(list(stacked.parameters()), 0.01)]
    MuonWithAdamW(groups, 0.0, stacked).step()
    after = {name: weight.detach().clone() for name, weight in stacked.named_parameters()}
    with torch.no_grad():
        for name, weight in stacked.named_parameters():
            weight.copy_(before[name])
    adamw(groups, 0.0, stacked).step()
    orthogonal = {"layers.0.1.weight", "layers.1.1.weight"}
    for name, weight in stacked.named_parameters():
        assert torch.equal(after[name], weight) == (name not in orthogonal), name
        if name in orthogonal:
            lengths = torch.linalg.svdvals(after[name] - before[name])
            assert lengths.max() < 2 * lengths.min()  # those of a random matrix differ by ten times and more
            step = (after[name] - before[name]).square().mean().sqrt()
            assert 0.2 * 0.01 * 0.6 < step < 0.2 * 0.01 * 1.3
