"""What no upstream model holds: parts of ours that start anew, by the model's own recipe, without the rest of it.

Only modules that own a new tensor get memory, one part of the model at a time; the rest stays on the meta device.
"""

import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

COMPRESSOR, PROJECTION = "model.vision_tower.compressor", "model.vision_tower.saccade_projection"


class Initialiser:
    """Gives new tensors by name, the same for the same seed whatever was asked for before.

    Args:
        model: on the meta device; parts of it get memory and lose it again.
        new: names of all new tensors.
        load: gives a loaded tensor by name, float32.
        seed: of what starts at random.
    """

    def __init__(self, model: PreTrainedModel, new: list[str], load: Callable[[str], Tensor], *, seed: int) -> None:
        self.model, self.load, self.seed = model, load, seed
        self.waiting: dict[str, set[str]] = {}
        for name in new:
            self.waiting.setdefault(part_of(name), set()).add(name)
        self.ready: dict[str, Tensor] = {}

    def take(self, name: str) -> Tensor:
        """The new tensor called `name`, once."""
        if name not in self.ready:
            part = part_of(name)
            self.ready.update(self._start(part, self.waiting.pop(part)))
        return self.ready.pop(name)

    @torch.no_grad()
    def _start(self, part: str, names: set[str]) -> dict[str, Tensor]:
        root = self.model.get_submodule(part)
        owners = {name.rpartition(".")[0] for name in names}
        for owner in owners:
            _give_memory(self.model.get_submodule(owner))
        if part == PROJECTION:
            self._load_compressor()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + zlib.crc32(part.encode()))
            for module in _children_first(root):
                self.model._init_weights(module)
        held = {name: _tensor(self.model, name).detach().clone() for name in names}
        for module in (root, self.model.get_submodule(COMPRESSOR)):
            module.to("meta")
        empty = [name for name, tensor in held.items() if tensor.is_floating_point() and tensor.isnan().any()]
        assert not empty, f"no recipe in _init_weights for {empty}"
        return held

    def _load_compressor(self) -> None:
        compressor = self.model.get_submodule(COMPRESSOR)
        compressor.to_empty(device="cpu")
        for name, tensor in compressor.state_dict().items():
            tensor.copy_(self.load(f"{COMPRESSOR}.{name}"))


def part_of(name: str) -> str:
    """The part of the model that starts together: a child of the model, or of its vision tower."""
    steps = name.split(".")
    return ".".join(steps[: 3 if steps[1] == "vision_tower" else 2])


def _give_memory(module: nn.Module) -> None:
    module.to_empty(device="cpu", recurse=False)
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))  # what no recipe fills is found afterwards


def _children_first(module: nn.Module) -> list[nn.Module]:
    return [each for child in module.children() for each in _children_first(child)] + [module]


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(owner), leaf)
