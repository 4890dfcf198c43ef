"""The memory of live tensors while code runs."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of live tensors that operations create; the count is the same on every device and machine.

    It omits weights, other tensors that existed before, and scratch space inside operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = (args, kwargs or {})
        before = {_storage(tensor) for tensor in tree_leaves(arguments) if isinstance(tensor, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _storage(tensor) not in before | self._known:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone() -> None:
            self._known.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
