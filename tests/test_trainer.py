"""The trainer: what is trained, what is minimised, exact resume, and checkpoints that are whole or not at all."""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_checkpoint
from peft import get_peft_model
from torch import Tensor, nn
from transformers import TrainerState

from arr_coc import ArrCocForConditionalGeneration, ArrCocProcessor, scorer_lora_config
from arr_coc.data.collator import QuestionCollator
from arr_coc.data.sources import open_records
from arr_coc.parts import PARTS, part_of_parameter
from arr_coc.training.checkpoints import (
    COMPLETE,
    checkpoints,
    discard_incomplete,
    is_complete,
    mark_complete,
    newest_complete,
)
from arr_coc.training.draws import Mix
from arr_coc.training.parts import gradient_norms, train_only
from arr_coc.training.phases import AllocatorPhase, JointPhase, Phase, SemanticPhase, make_trainer, train_phase
from arr_coc.training.sampler import StepSampler
from arr_coc.training.trainer import ArrCocTrainer

PAGES = {"format": "rendered", "pages": 3, "questions": 2, "size": 128, "split": "train"}
PHASE = JointPhase(
    data=PAGES, held_out={**PAGES, "pages": 1, "seed": 9}, steps=5, warmup=2, batch_size=2, evaluate_every=2,
    log_every=2, learning_rate=1e-3, strategies={"realizer": 1.0, "clip_query": 1.0, "none": 0.5},
    budgets={"standard": 1.0, 5: 1.0},
)  # fmt: skip
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose tiers are learned, so that every part has weights. Read only."""
    return tiny_checkpoint(tmp_path_factory.mktemp("tiers"), fetcher={"tier_choice": "classifier"})


def loaded(checkpoint: Path) -> tuple[ArrCocForConditionalGeneration, ArrCocProcessor]:
    return (
        ArrCocForConditionalGeneration.from_pretrained(checkpoint),
        ArrCocProcessor.from_pretrained(checkpoint),
    )


def trainer_of(checkpoint: Path, folder: Path, phase: Phase = PHASE, **changes: Any) -> ArrCocTrainer:
    model, processor = loaded(checkpoint)
    return make_trainer(model, processor, replace(phase, **changes), folder, device=CPU, root=folder)


def weights_of(trainer: ArrCocTrainer) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- exact resume -------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def killed_at(trainer: ArrCocTrainer, step: int) -> None:
    """Trains until the loss of `step` is asked for."""
    inner = trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == step:
            raise Killed
        return inner(*args, **kwargs)

    trainer.compute_loss = compute_loss  # type: ignore[method-assign]
    with pytest.raises(Killed):
        trainer.train()


def test_resume_gives_the_weights_of_an_uninterrupted_run(checkpoint: Path, tmp_path: Path) -> None:
    """Killed twice, between checkpoints; with accumulation, and a checkpoint that was half written in the way."""
    whole = trainer_of(checkpoint, tmp_path / "whole", accumulation=2)
    whole.train()
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


def test_a_phase_that_is_done_does_not_run_again(checkpoint: Path, tmp_path: Path) -> None:
    model, processor = loaded(checkpoint)
    phase = replace(PHASE, steps=1, held_out=None)
    made = train_phase(model, processor, phase, tmp_path, device=CPU, root=tmp_path)
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
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint counted as whole by the sizes of its files: a bit that flipped on the disk went into the weights."""
    whole = trainer_of(checkpoint, tmp_path / "whole", held_out=None)
    whole.train()
    killed_at(trainer_of(checkpoint, tmp_path / "damaged", held_out=None), 4)
    flip(tmp_path / "damaged" / "checkpoint-4" / "model.safetensors")
    resumed = trainer_of(checkpoint, tmp_path / "damaged", held_out=None)
    resumed.train()
    assert same(weights_of(whole), weights_of(resumed))
    assert "checkpoint-4: expected a whole checkpoint; got another model.safetensors than was written" in caplog.text


def test_where_every_checkpoint_is_damaged_it_says_so(checkpoint: Path, tmp_path: Path) -> None:
    killed_at(trainer_of(checkpoint, tmp_path), 4)
    for step in (2, 4):
        flip(tmp_path / f"checkpoint-{step}" / "optimizer.pt")
    with pytest.raises(ValueError, match=r"checkpoint-4: expected a whole checkpoint .*; got another optimizer\.pt"):
        trainer_of(checkpoint, tmp_path).train()
    assert len(checkpoints(tmp_path)) == 2


def test_a_best_checkpoint_that_is_gone_is_no_longer_the_best(checkpoint: Path, tmp_path: Path) -> None:
    killed_at(trainer_of(checkpoint, tmp_path), 4)
    state = TrainerState.load_from_json(str(tmp_path / "checkpoint-4" / "trainer_state.json"))
    state.best_model_checkpoint, state.best_metric = str(tmp_path / "checkpoint-2"), -1.0
    state.save_to_json(str(tmp_path / "checkpoint-4" / "trainer_state.json"))
    mark_complete(tmp_path / "checkpoint-4")
    flip(tmp_path / "checkpoint-2" / "model.safetensors")
    resumed = trainer_of(checkpoint, tmp_path, steps=6)
    resumed.train()
    assert resumed.state.best_metric != -1.0
    assert resumed.state.best_model_checkpoint == str(tmp_path / "checkpoint-6")


def test_nothing_that_lay_in_a_phases_folder_ends_up_in_what_it_makes(checkpoint: Path, tmp_path: Path) -> None:
    """What a killed run had half written there, under other names too, was moved into place with the model."""
    (tmp_path / "model.tmp").mkdir()
    (tmp_path / "model.tmp" / "model-00001-of-00002.safetensors").write_bytes(b"half")
    model, processor = loaded(checkpoint)
    phase = replace(PHASE, steps=1, held_out=None)
    finished = train_phase(model, processor, phase, tmp_path, device=CPU, root=tmp_path)
    assert [path.name for path in finished.glob("*.safetensors")] == ["model.safetensors"]
    assert not (tmp_path / "model.tmp").exists()


def test_what_a_phase_made_is_made_again_where_it_was_damaged(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    phase = replace(PHASE, steps=2, held_out=None)
    finished = train_phase(*loaded(checkpoint), phase, tmp_path, device=CPU, root=tmp_path)
    content = (finished / "model.safetensors").read_bytes()
    flip(finished / "model.safetensors")
    train_phase(*loaded(checkpoint), phase, tmp_path, device=CPU, root=tmp_path)
    assert (finished / "model.safetensors").read_bytes() == content
    assert "model: expected what this phase made; got another model.safetensors than was written" in caplog.text


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
    assert [is_complete(folder) for folder in (whole, deleted, cut, unmarked)] == [True, False, False, False]
    assert newest_complete(tmp_path) == whole
    discard_incomplete(tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == ["checkpoint-9"]
    (whole / COMPLETE).write_text("{")
    assert newest_complete(tmp_path) is None


def test_old_checkpoints_go_only_when_the_new_one_is_whole(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# ---- data and draws -----------------------------------------------------------------------------------------------


def test_the_order_of_records_is_passes_over_all_of_them() -> None:
    drawn = list(StepSampler(5, draws=12, seed=3))
    assert len(drawn) == 12 and sorted(drawn[:5]) == sorted(drawn[5:10]) == list(range(5)) and drawn[:5] != drawn[5:10]
    assert drawn == list(StepSampler(5, draws=12, seed=3)) and drawn != list(StepSampler(5, draws=12, seed=4))


def test_draws_depend_on_seed_and_step_alone(checkpoint: Path) -> None:
    config = loaded(checkpoint)[0].config
    mix = Mix({"realizer": 3.0, "none": 1.0}, {"standard": 1.0, 5: 1.0})
    turned = Mix({"none": 1.0, "realizer": 3.0}, {5: 1.0, "standard": 1.0})
    draws = [mix.draw(0, step, config) for step in range(400)]
    assert draws == [turned.draw(0, step, config) for step in range(400)]
    share = sum(draw.strategy == "none" for draw in draws) / len(draws)
    assert 0.18 < share < 0.32 and {d.saccades for d in draws if d.strategy == "none"} == {0}
    assert {d.saccades for d in draws if d.strategy == "realizer"} == {5, 17} and mix.largest(config) == 17


@pytest.mark.parametrize("weights", [{}, {"realizer": -1.0}, {"realizer": 0.0}, {"realizer": "often"}, ["realizer"]])
def test_mixes_that_draw_nothing_are_refused(weights: Any) -> None:
    with pytest.raises(ValueError, match="strategies: expected a mapping of names to weights, one above 0; got"):
        Mix(weights, {"standard": 1.0})


# ---- parts --------------------------------------------------------------------------------------------------------


def test_every_parameter_belongs_to_one_part_and_every_part_has_some(checkpoint: Path) -> None:
    names = [name for name, _ in loaded(checkpoint)[0].named_parameters()]
    assert {part_of_parameter(name) for name in names} == set(PARTS)
    assert {part_of_parameter(f"base_model.model.{name}") for name in names} == set(PARTS)
    with pytest.raises(ValueError, match="expected one of the parts .*; got 'elsewhere.weight'"):
        part_of_parameter("elsewhere.weight")


@pytest.mark.parametrize("kind", [AllocatorPhase, SemanticPhase, JointPhase])
def test_a_phase_trains_its_parts_and_leaves_the_others(kind: type[Phase], checkpoint: Path, tmp_path: Path) -> None:
    phase = kind(
        data=PAGES, steps=2, warmup=0, batch_size=2, learning_rate=1e-3, allocator="tiers",
        losses={"diversity": 0.1, "efficiency": 5.0}, target_tokens=1.0,
    )  # fmt: skip
    trainer = trainer_of(checkpoint, tmp_path, phase)
    before = weights_of(trainer)
    trainer.train()
    after = trainer.model.state_dict()
    changed = {part_of_parameter(key) for key in before if not torch.equal(before[key], after[key])}
    assert changed == set(phase.trained)
    held = sum(len(group["params"]) for group in trainer.optimizer.param_groups)
    assert held == sum(parameter.requires_grad for parameter in trainer.model.parameters())


def test_a_phase_that_fails_leaves_the_configured_gradient(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, processor = loaded(checkpoint)
    configured = model.config.fetcher_config.gradient
    monkeypatch.setattr(ArrCocTrainer, "train", lambda _: {}["interrupted"])
    with pytest.raises(KeyError, match="interrupted"):
        train_phase(model, processor, replace(PHASE, gradient="soft"), tmp_path, device=CPU, root=tmp_path)
    assert configured != "soft" and model.config.fetcher_config.gradient == configured


def test_an_adapter_trains_alone_and_resumes_exactly(checkpoint: Path, tmp_path: Path) -> None:
    def trainer(folder: Path) -> ArrCocTrainer:
        model, processor = loaded(checkpoint)
        torch.manual_seed(0)
        adapted = get_peft_model(model, scorer_lora_config(model, r=2))
        return make_trainer(adapted, processor, replace(PHASE, steps=3), folder, device=CPU, root=folder)

    whole = trainer(tmp_path / "whole")
    before = weights_of(whole)
    whole.train()
    changed = [name for name, weight in weights_of(whole).items() if not torch.equal(weight, before[name])]
    assert changed and all("lora_" in name and "scorers" in name for name in changed)
    killed_at(trainer(tmp_path / "killed"), 2)
    resumed = trainer(tmp_path / "killed")
    resumed.train()
    assert same(weights_of(whole), weights_of(resumed))


def test_frozen_parts_have_no_autograd_graph(checkpoint: Path) -> None:
    model, _ = loaded(checkpoint)
    for phase, learns in ((AllocatorPhase(), False), (JointPhase(), True)):
        train_only(model, phase.trained)
        encoding = model.model.encode_image(torch.randn(1, 3, 128, 128))
        assert encoding.features.requires_grad == learns and encoding.semantic.requires_grad == learns


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_frozen_scorer_runs_once_and_without_a_graph(checkpoint: Path, tmp_path: Path, checkpointing: bool) -> None:
    phase = SemanticPhase(data=PAGES, steps=1, batch_size=2, activation_checkpointing=checkpointing)
    trainer = trainer_of(checkpoint, tmp_path, phase)
    ran: list[tuple[str, bool]] = []
    for name, scorer in trainer.model.model.fetcher.scorers.items():
        scorer.register_forward_hook(lambda _m, _i, scores, name=name: ran.append((name, scores.requires_grad)))
    trainer.train()
    assert ran == [("realizer", False)]


def test_parts_have_their_own_learning_rates(checkpoint: Path, tmp_path: Path) -> None:
    trainer = trainer_of(checkpoint, tmp_path, rates={"encoder": 1e-5, "scorer": 3e-3}, weight_decay=0.1)
    optimizer = trainer.create_optimizer()
    rates = {group["part"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {**dict.fromkeys(PARTS, 1e-3), "encoder": 1e-5, "scorer": 3e-3}
    assert isinstance(optimizer, torch.optim.AdamW)
    decays = {(p.ndim > 1, group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    assert decays == {(True, 0.1), (False, 0.0)}


def test_gradient_norms_are_those_of_the_parts() -> None:
    model = nn.ModuleDict({"fetcher": nn.ModuleDict({"scorers": nn.Linear(2, 1)}), "bridge": nn.Linear(2, 1)})
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model["bridge"].weight.grad = torch.full((1, 2), 2.0)
    norms = {part: norm.item() for part, norm in gradient_norms(model).items()}
    assert norms == {"scorer": pytest.approx(3**0.5), "bridge": pytest.approx(3.0)}


def test_activation_checkpointing_recomputes_every_layer_and_changes_no_gradient(checkpoint: Path) -> None:
    """The layers of all three transformers: each runs twice, once forward and once again in the backward pass."""
    model, processor = loaded(checkpoint)
    batch = QuestionCollator(processor, model.config)(open_records(PAGES)[:2])
    core = model.train().model
    runs = {"grid": 0, "semantic": 0, "language": 0}
    layers = {
        "grid": core.vision_tower.grid_encoder.layers,
        "semantic": core.vision_tower.semantic_encoder.layers,
        "language": core.language_model.layers,
    }

    def count(kind: str) -> Any:
        def hook(*_: Any) -> None:
            runs[kind] += 1

        return hook

    for kind, stack in layers.items():
        for layer in stack:
            next(module for module in layer.modules() if isinstance(module, nn.Linear)).register_forward_hook(
                count(kind)
            )
    gradients, counts = [], []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(**batch, use_cache=False).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        counts.append(dict(runs))
        runs.update(dict.fromkeys(runs, 0))
    assert counts[1] == {kind: 2 * number for kind, number in counts[0].items()}
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.allclose(gradients[0][n], gradients[1][n], atol=1e-6) for n in gradients[0])


# ---- what a training logs -----------------------------------------------------------------------------------------


def test_accumulation_does_not_change_the_loss(checkpoint: Path, tmp_path: Path) -> None:
    """Four questions in one pass or in four, whatever share of the answer's tokens and boxes each pass has."""
    weights = []
    for number, (size, passes) in enumerate(((4, 1), (1, 4))):
        phase = replace(PHASE, steps=1, warmup=0, batch_size=size, accumulation=passes, held_out=None, log_every=1)
        trainer = trainer_of(checkpoint, tmp_path / str(number), phase, learning_rate=1e-2)
        trainer.train()
        weights.append((trainer.state.log_history[0]["loss"], trainer.state.log_history[0]["gradient_norm/scorer"]))
    assert weights[0] == pytest.approx(weights[1], rel=1e-4)


def test_training_lowers_the_loss_and_logs_what_it_measures(checkpoint: Path, tmp_path: Path) -> None:
    trainer = trainer_of(
        checkpoint, tmp_path, steps=20, warmup=2, batch_size=6, learning_rate=3e-3, evaluate_every=20, log_every=10,
        strategies={"realizer": 1.0}, allocator="tiers", losses={"distribution": 0.1},
    )  # fmt: skip
    trainer.train()
    first, last = (line for line in trainer.state.log_history if "loss" in line)
    assert last["loss"] < first["loss"] - 0.2
    names = {"loss/answer", "loss/relevance", "loss/efficiency", "loss/distribution", "recall", "saccades"}
    assert names | {f"gradient_norm/{part}" for part in PARTS} <= set(last)
    assert 0 < last["query_dependence"] < 1 and 0 <= last["recall"] <= 1
    assert sum(value for name, value in last.items() if name.startswith("tier/")) == pytest.approx(1)


def test_metrics_go_to_tensorboard(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer_of(checkpoint, tmp_path, steps=2, log_every=1, report_to="tensorboard").train()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {"train/loss/answer", "train/gradient_norm/scorer", "eval/recall"} <= set(events.Tags()["scalars"])
    with pytest.raises(ValueError, match="report_to: expected tensorboard or none; got 'paper'"):
        trainer_of(checkpoint, tmp_path, report_to="paper")


# ---- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected a whole number of at least 1; got 0"),
        ({"learning_rate": "fast"}, "learning_rate: expected a number; got 'fast'"),
        ({"rates": {"elbow": 1e-3}}, "trained, rates: expected parts among scorer, .*; got elbow"),
        ({"trained": ["elbow"]}, "trained, rates: expected parts among scorer, .*; got elbow"),
    ],
)
def test_bad_settings_of_a_phase_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PHASE, **change)


def test_the_trainer_refuses_a_device_that_it_cannot_be_told(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device: expected cpu or cuda .*; got cuda:1"):
        make_trainer(*loaded(checkpoint), PHASE, tmp_path, device=torch.device("cuda", 1), root=tmp_path)
