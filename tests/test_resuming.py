"""Exact resume, and checkpoints that are whole or not at all: of phases, and of the loop of other stages."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import refuses
from torch import Tensor, nn
from trainers import CPU, PHASE, Killed, killed_at, loaded, same, trainer_of, weights_of

from arr_coc import ArrCocForConditionalGeneration
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
from arr_coc.training.reader.recognition import RecognitionStage
from arr_coc.training.stages import Loop
from arr_coc.training.trainer import ArrCocTrainer


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


def test_nothing_that_lay_in_a_phases_folder_ends_up_in_what_it_makes(checkpoint: Path, tmp_path: Path) -> None:
    """What a killed run had half written there, under other names too, was moved into place with the model."""
    (tmp_path / "model.tmp").mkdir()
    (tmp_path / "model.tmp" / "model-00001-of-00002.safetensors").write_bytes(b"half")
    model, processor = loaded(checkpoint)
    phase = replace(PHASE, steps=1, held_out=None)
    finished = train_phase(model, processor, phase, tmp_path, device=CPU, root=tmp_path)
    assert [path.name for path in finished.glob("*.safetensors")] == ["model.safetensors"]
    assert not (tmp_path / "model.tmp").exists()


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


def straight_line(folder: Path, *, stop: int = -1, optimizer: str = "adamw") -> Tensor:
    """A layer that learns to sum, for 6 steps or up to that at which it is killed; it goes on where it was killed."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 1)
    stack = nn.ModuleList([layer])
    loop = Loop("test", stack, OPTIMIZERS[optimizer]([(list(layer.parameters()), 0.1)], 0.01, stack), folder, 6, 2, 2)

    def losses(step: int) -> Iterator[dict[str, Tensor]]:
        if step == stop:
            raise KeyboardInterrupt
        data = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        yield {"loss": (layer(data) - data.sum(1, keepdim=True)).square().mean()}

    with suppress(KeyboardInterrupt):
        loop.run(loop.resume(), losses, lambda: {"weight": layer.weight[0, 0].item()})
    return layer.weight.detach()


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
