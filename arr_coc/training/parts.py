"""Parts of the model that are trained, frozen and given learning rates apart from each other.

A parameter belongs to exactly one part, whatever wraps the model (PEFT, DDP): its name says which.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration

PARTS = {
    "scorer": r"fetcher\.scorers\.",
    "allocator": r"fetcher\.",
    "bridge": r"bridge\.|layout\.|vision_tower\.saccade_projection\.",
    "semantic": r"vision_tower\.semantic_encoder\.",
    "encoder": r"vision_tower\.",
    "language": r"language_model\.|lm_head\.",
}
"""Part -> pattern of its parameters' names; the first that matches counts. What the fetcher holds beside scorers is the
allocator's; the compressor belongs to the grid encoder."""

_PATTERNS = {part: re.compile(rf"(?:^|\.)(?:{pattern})") for part, pattern in PARTS.items()}


def base_model(model: nn.Module) -> ArrCocForConditionalGeneration:
    """The ARR-COC model inside whatever wraps it: PEFT, DDP."""
    return next(module for module in model.modules() if isinstance(module, ArrCocForConditionalGeneration))


def part_of_parameter(name: str) -> str:
    """The part that a parameter belongs to.

    Raises:
        ValueError: it belongs to none.
    """
    for part, pattern in _PATTERNS.items():
        if pattern.search(name):
            return part
    raise ValueError(f"parameter: expected one of the parts {', '.join(PARTS)}; got {name!r}")


def check_parts(parts: Iterable[str], what: str) -> None:
    """Raises a ValueError where a name is no part."""
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise ValueError(f"{what}: expected parts among {', '.join(PARTS)}; got {', '.join(unknown)}")


def train_only(model: nn.Module, parts: Iterable[str]) -> None:
    """Freezes every parameter outside `parts`: no gradient, so no autograd graph and no optimiser state either.

    Raises:
        ValueError: an unknown part.
    """
    kept = set(parts)
    check_parts(kept, "trained")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of_parameter(name) in kept)
        parameter.grad = None


def trainable(model: nn.Module) -> Iterator[tuple[str, str, nn.Parameter]]:
    """(part, name, parameter) of everything that is trained."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield part_of_parameter(name), name, parameter


def parameter_groups(
    model: nn.Module, *, learning_rate: float, rates: Mapping[str, float], weight_decay: float
) -> list[dict[str, Any]]:
    """An optimiser's groups: one per part, and within it matrices, which decay, apart from vectors, which do not.

    Args:
        model: of it only what is trained.
        learning_rate: of parts that `rates` does not name.
        rates: part -> learning rate.
        weight_decay: of matrices.

    Raises:
        ValueError: an unknown part, or nothing is trained.
    """
    check_parts(rates, "rates")
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for part, _, parameter in trainable(model):
        groups.setdefault((part, parameter.ndim > 1), []).append(parameter)
    if not groups:
        raise ValueError("trained: expected parameters to train; got a model that is all frozen")
    return [
        {
            "params": parameters,
            "lr": rates.get(part, learning_rate),
            "weight_decay": weight_decay if decays else 0.0,
            "part": part,
        }
        for (part, decays), parameters in groups.items()
    ]


def gradient_norms(model: nn.Module) -> dict[str, Tensor]:
    """Euclidean norm of the gradient of each trained part; sharded gradients (FSDP) count whole."""
    gradients: dict[str, list[Tensor]] = {}
    for part, _, parameter in trainable(model):
        if parameter.grad is not None:
            gradients.setdefault(part, []).append(parameter.grad)
    return {part: _whole(nn.utils.get_total_norm(found)) for part, found in gradients.items()}


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, torch.distributed.tensor.DTensor) else norm
