"""Where weights are: on a device, or offloaded by accelerate, which leaves them on "meta" between calls."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def device_of(module: nn.Module) -> torch.device:
    """Where inputs of `module` go. Offloaded weights are on "meta" between calls: then where accelerate runs it."""
    device = next(module.parameters()).device
    if device.type != "meta":
        return device
    for part in module.modules():
        hook = getattr(part, "_hf_hook", None)
        for single in getattr(hook, "hooks", (hook,)):
            if getattr(single, "execution_device", None) is not None:
                return torch.device(single.execution_device)  # type: ignore[union-attr]
    return torch.device("cpu")


@contextmanager
def _loaded(module: nn.Module) -> Iterator[None]:
    """Loads what accelerate has offloaded of a module; by its hook, as remote code that imports it would require it."""
    hook = getattr(module, "_hf_hook", None)
    if hook is None or not getattr(hook, "offload", False):
        yield
        return
    hook.pre_forward(module)
    try:
        yield
    finally:
        hook.post_forward(module, None)


def loaded_weights(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """What `state_dict` names, each part loaded while its weights are asked for where accelerate has offloaded it.

    Raises:
        ValueError: a weight that is nowhere.
    """
    with _loaded(module):
        own = [*module._parameters.items(), *module._buffers.items()]
        for name, tensor in own:
            if tensor is None or name in module._non_persistent_buffers_set:
                continue
            if tensor.is_meta:
                raise ValueError(f"{prefix}{name}: expected a weight; got one without a value (on the meta device)")
            yield f"{prefix}{name}", tensor
        for name, part in module._modules.items():
            if part is not None:
                yield from loaded_weights(part, f"{prefix}{name}.")
