"""Muon for the matrices of stacked layers, AdamW for the rest, under one schedule."""

import pytest
import torch
from torch import nn

from arr_coc.training.optimizers import MuonWithAdamW, adamw, muon, stacked_matrices
from arr_coc.training.reader.recognition import RecognitionStage


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


def test_matrices_of_stacked_layers_get_orthogonal_updates_and_all_others_those_of_adamw(stacked: Stacked) -> None:
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


def test_learning_rates_are_those_of_the_groups_and_only_matrices_decay(stacked: Stacked) -> None:
    optimizer = muon([(list(stacked.layers.parameters()), 0.01), (list(stacked.head.parameters()), 0.1)], 0.5, stacked)
    chosen = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    assert stacked_matrices(stacked) == {id(layer[1].weight) for layer in stacked.layers}  # type: ignore[index]
    for name, parameter in [*stacked.layers.named_parameters(), *stacked.head.named_parameters()]:
        group = chosen[id(parameter)]
        assert group["weight_decay"] == (0.5 if parameter.ndim > 1 else 0.0), name
        assert group["lr"] == (0.1 if parameter.shape[0] == 3 else 0.01), name
    assert len(chosen) == len([*stacked.layers.parameters(), *stacked.head.parameters()])


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_kernels_are_matrices_to_muon_however_they_lie_in_memory(order: torch.memory_format) -> None:
    torch.manual_seed(0)
    kernel, depthwise = nn.Conv2d(8, 6, 3), nn.Conv2d(8, 8, 3, groups=8)
    module = nn.Sequential(kernel, depthwise).to(memory_format=order)  # type: ignore[call-overload]
    optimizer = muon([(list(module.parameters()), 0.01)], 0.0, module)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape)
    before = kernel.weight.detach().clone()
    optimizer.step()
    lengths = torch.linalg.svdvals((kernel.weight.detach() - before).flatten(1))
    assert 0 < lengths.max() < 2 * lengths.min()
    assert stacked_matrices(module) == {id(kernel.weight)}
    optimizer.zero_grad()
    assert kernel.weight.grad is None and depthwise.weight.grad is None
    saved = optimizer.state_dict()
    muon([(list(module.parameters()), 0.01)], 0.0, module).load_state_dict(saved)


def test_unknown_optimisers_and_a_torch_without_muon_are_refused_with_the_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="optimizer: expected one of adamw, muon; got 'sgd'"):
        RecognitionStage(optimizer="sgd")
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ValueError, match=r"optimizer: expected torch 2\.9 or later for muon; got torch"):
        RecognitionStage(optimizer="muon")
