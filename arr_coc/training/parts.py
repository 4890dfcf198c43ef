"""Training of some parts of the model (see `arr_coc.adapters`), each with its own learning rate."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

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


def trainable(model: nn.Module) -> Iterator[tuple[str, str, nn.Parameter]]:
    """(part, name, parameter) of all trained parameters."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield part_of_parameter(name), name, parameter


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
    for part, _, parameter in trainable(model):
        groups.setdefault((part, parameter.ndim > 1), []).append(parameter)
    if not groups:
        raise ValueError("trained: expected parameters to train; got a model that is all frozen")
    return [
        {"params": own, "lr": rates.get(part, learning_rate), "weight_decay": weight_decay * decays, "part": part}
        for (part, decays), own in groups.items()
    ]


def gradient_norms(model: nn.Module) -> dict[str, Tensor]:
    """Euclidean norm of the gradient of each trained part; of sharded gradients (FSDP), that of the whole."""
    gradients: dict[str, list[Tensor]] = {}
    for part, _, parameter in trainable(model):
        if parameter.grad is not None:
            gradients.setdefault(part, []).append(parameter.grad)
    norms = {part: nn.utils.get_total_norm(tensors) for part, tensors in gradients.items()}
    sharded = torch.distributed.tensor.DTensor
    return {part: norm.full_tensor() if isinstance(norm, sharded) else norm for part, norm in norms.items()}
