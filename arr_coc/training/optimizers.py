"""What is trained: parts of the model (see `arr_coc.adapters`), each with its own learning rate; by which optimiser."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, SequentialLR
from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup

from ..adapters import check_parts, in_parts, part_of_parameter
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration


def base_model(model: nn.Module) -> ArrCocForConditionalGeneration:
    """The ARR-COC model inside its wrappers: PEFT, DDP."""
    return next(module for module in model.modules() if isinstance(module, ArrCocForConditionalGeneration))


def train_only(model: nn.Module, parts: Iterable[str]) -> None:
    """Freezes all parameters outside `parts`: they get no gradient, no autograd graph and no optimiser state.

    "scorer.realizer" is one scorer.

    Raises:
        ValueError: an unknown part, or a scorer that the model does not have.
    """
    trained = set(parts)
    check_parts(trained, "trained", scorers=True)
    held = base_model(model).model.fetcher.scorers
    absent = sorted(part for part in trained if "." in part and part.partition(".")[2] not in held)
    if absent:
        raise ValueError(f"trained: expected scorers that the model holds ({', '.join(held)}); got {', '.join(absent)}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(in_parts(name, trained))
        parameter.grad = None


def parameter_groups(
    model: nn.Module, *, learning_rate: float, rates: Mapping[str, float], weight_decay: float
) -> list[dict[str, Any]]:
    """An optimiser's groups: for each part, matrices with weight decay and vectors without.

    `rates`: part -> learning rate; `learning_rate` is that of all others.

    Raises:
        ValueError: an unknown part, or no trainable parameter.
    """
    check_parts(rates, "rates")
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((part_of_parameter(name), parameter.ndim > 1), []).append(parameter)
    if not groups:
        raise ValueError("trained: expected parameters to train; got a model that is all frozen")
    return [
        {"params": own, "lr": rates.get(part, learning_rate), "weight_decay": weight_decay * decays, "part": part}
        for (part, decays), own in groups.items()
    ]


Groups = list[tuple[list[nn.Parameter], float]]  # parameters and their learning rate, of each group

BETAS = (0.9, 0.98)  # of AdamW


def adamw(groups: Groups, weight_decay: float, module: nn.Module) -> Optimizer:
    """AdamW for all parameters; only matrices decay."""
    return AdamW(list(_by_decay(groups, weight_decay)), betas=BETAS)


class MuonWithAdamW(Optimizer):
    """Muon for the matrices and kernels of the module's stacked layers, AdamW for all other parameters.

    Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks; with steps as large as AdamW's at the
    same learning rate (Liu et al. 2025, Muon is scalable for LLM training). Both are torch's, as one optimiser with one
    schedule and one state. Muon takes matrices alone: a kernel [out, in, h, w] is a matrix [out, h * w * in] to it.
    """

    def __init__(self, groups: Groups, weight_decay: float, module: nn.Module) -> None:
        stacked = stacked_matrices(module)
        chosen: list[dict[str, Any]] = []
        self._kernels: list[tuple[nn.Parameter, nn.Parameter]] = []
        for parameters, rate in groups:
            matrices = [self._matrix(parameter) for parameter in parameters if id(parameter) in stacked]
            others = [parameter for parameter in parameters if id(parameter) not in stacked]
            chosen.append({"params": matrices, "lr": rate, "weight_decay": weight_decay, "muon": True})
            chosen += ({**group, "muon": False} for group in _by_decay([(others, rate)], weight_decay))
        chosen = [group for group in chosen if group["params"]]
        super().__init__(chosen, {})
        self._share()

    def _matrix(self, weight: nn.Parameter) -> nn.Parameter:
        """The weight; of a kernel a matrix that shares its memory."""
        if weight.ndim == 2:
            return weight
        matrix = nn.Parameter(_as_matrix(weight.detach(), weight))
        self._kernels.append((weight, matrix))
        return matrix

    def _share(self) -> None:
        """Both work on this one's groups and state, so that a schedule and a checkpoint are for both."""
        self._parts: list[Optimizer] = []
        for is_muon in (True, False):
            groups = [group for group in self.param_groups if group["muon"] is is_muon]
            if not groups:
                continue
            if is_muon:
                part: Optimizer = torch.optim.Muon(groups, adjust_lr_fn="match_rms_adamw")
            else:
                part = AdamW(groups, betas=BETAS)
            for own, group in zip(part.param_groups, groups, strict=True):
                group |= own  # with the defaults
            part.param_groups, part.state = groups, self.state
            self._parts.append(part)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # stages compute their loss before
        for weight, matrix in self._kernels:
            matrix.grad = None if weight.grad is None else _as_matrix(weight.grad, weight)
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for weight, _ in self._kernels:
            weight.grad = None


def _as_matrix(values: Tensor, weight: Tensor) -> Tensor:
    """Values [out, in, h, w] as [out, the others], in the order in which `weight` lies in memory."""
    last = weight.is_contiguous(memory_format=torch.channels_last)
    return (values.movedim(1, -1) if last else values).flatten(1)


def stacked_matrices(module: nn.Module) -> set[int]:
    """Ids of the weights of linear layers and convolutions in the module's stacks of layers: no embedding, no head. A
    depthwise convolution mixes no channels and has no matrix."""
    stacks = (stack for stack in module.modules() if isinstance(stack, nn.ModuleList | nn.Sequential))
    return {
        id(layer.weight)
        for stack in stacks
        for layer in stack.modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
    }


def _by_decay(groups: Groups, weight_decay: float) -> Iterator[dict[str, Any]]:
    for parameters, rate in groups:
        for matrices in (True, False):
            chosen = [parameter for parameter in parameters if (parameter.ndim > 1) == matrices]
            yield {"params": chosen, "weight_decay": weight_decay if matrices else 0.0, "lr": rate}


OPTIMIZERS: dict[str, Callable[[Groups, float, nn.Module], Optimizer]] = {"adamw": adamw, "muon": MuonWithAdamW}
"""Makers of an optimiser over groups, with a weight decay, of the parameters of a module."""

FLOOR = 0.02  # share of the learning rate that is left at the end


def warmup_cosine(optimizer: Optimizer, *, steps: int, warmup: int) -> LRScheduler:
    """Linear from 1 / `warmup` of the rate to all of it over `warmup` steps, then half a cosine down to `FLOOR`. The
    rise is torch's, because the first step of transformers' own rise has a rate of 0 and so teaches nothing."""
    fall = get_cosine_with_min_lr_schedule_with_warmup(optimizer, 0, steps - warmup, min_lr_rate=FLOOR)
    if not warmup:
        return fall
    rise = LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
    return SequentialLR(optimizer, [rise, fall], [warmup])
