"""The loop of stages: rates, checkpoints that are whole, curves that go on."""

import json
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import refuses
from torch import Tensor, nn

from arr_coc.training.checkpoints import load_state, older, save_state
from arr_coc.training.optimizers import FLOOR, OPTIMIZERS, MuonWithAdamW, adamw, stacked_matrices, warmup_cosine
from arr_coc.training.reader.recognition import RecognitionStage
from arr_coc.training.stages import Loop


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
    path = tmp_path / "state.pt"
    save_state(path, {"step": 1})

    def half(state: object, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        save_state(path, {"step": 2})
    assert load_state(path) == {"step": 1}


def straight_line(path: Path, *, stop: int = -1, optimizer: str = "adamw") -> Tensor:
    """A layer that learns to sum, for 6 steps or up to that at which it is killed; it goes on where it was killed."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 1)
    stack = nn.ModuleList([layer])
    loop = Loop("test", stack, OPTIMIZERS[optimizer]([(list(layer.parameters()), 0.1)], 0.01, stack), path, 6, 2, 2)

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
    whole = straight_line(tmp_path / "a.pt", optimizer=optimizer)
    for stop in (1, 3, 5):
        straight_line(tmp_path / "b.pt", stop=stop, optimizer=optimizer)
    with (tmp_path / "b.jsonl").open("a") as stream:
        stream.write('{"step": 6, "held')  # killed while it wrote
    assert torch.equal(whole, straight_line(tmp_path / "b.pt", optimizer=optimizer))
    curve = (tmp_path / "a.jsonl").read_text()
    assert [json.loads(line)["step"] for line in curve.splitlines()] == [0, 2, 4, 6]
    assert (tmp_path / "b.jsonl").read_text() == curve


def test_an_unfinished_checkpoint_without_its_schedule_is_refused(tmp_path: Path) -> None:
    """One of an earlier version: to go on from it would silently warm up again."""
    straight_line(tmp_path / "a.pt", stop=3)
    state = load_state(tmp_path / "a.pt")
    assert state is not None and state.pop("schedule")
    save_state(tmp_path / "a.pt", state)
    refuses("expected a checkpoint with its learning-rate schedule; got .* at step 2", straight_line, tmp_path / "a.pt")


def flip(path: Path) -> None:
    """Changes one bit of a file in the middle of its longest part, and nothing of its size."""
    with zipfile.ZipFile(path) as archive:
        part = max(archive.infolist(), key=lambda info: info.file_size)
    content = bytearray(path.read_bytes())
    content[part.header_offset + 30 + len(part.filename) + part.file_size] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_not_gone_on_from_but_the_one_before_it(tmp_path: Path) -> None:
    """A bit that flipped on the disk went into the weights; a file cut short ended in a traceback."""
    whole = straight_line(tmp_path / "a.pt")
    for damage in (flip, lambda path: path.write_bytes(path.read_bytes()[:-9]), Path.unlink):
        path = tmp_path / "b.pt"
        straight_line(path, stop=5)
        size = path.stat().st_size
        damage(path)
        if damage is flip:
            assert path.stat().st_size == size
        state = load_state(path)
        assert state is not None and state["step"] == 2
        assert torch.equal(whole, straight_line(path))
        for left in (path, older(path), path.with_suffix(".jsonl")):
            left.unlink()


def test_where_every_checkpoint_is_damaged_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    straight_line(path, stop=5)
    for file in (path, older(path)):
        flip(file)
    refuses(r"a\.pt: expected a whole checkpoint .*; got 2 damaged", straight_line, path)
    assert path.exists() and older(path).exists()


@pytest.mark.parametrize("state", [{"step": 2}, {"step": 2, "weights": {"other": torch.ones(1)}}, {"weights": None}])
def test_a_checkpoint_of_something_else_is_refused(state: dict[str, Any], tmp_path: Path) -> None:
    save_state(tmp_path / "a.pt", state)
    refuses(r"a\.pt: expected a checkpoint of this stage and model; got ", straight_line, tmp_path / "a.pt")


def test_a_damaged_curve_is_refused_with_its_name(tmp_path: Path) -> None:
    straight_line(tmp_path / "a.pt", stop=3)
    (tmp_path / "a.jsonl").write_text('["step"]\n')
    refuses(r"a\.jsonl: expected a line of", straight_line, tmp_path / "a.pt")


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
