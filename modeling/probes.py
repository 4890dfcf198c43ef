"""Probes: what passes each boundary between the parts of a model, and a warning where that is out of range.

They are forward hooks: a model without probes has none, and runs as if there were no such file.

Notation: P images, I image slots, B prompts, S sequence length.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.utils import logging

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Statistics:
    """Of all values of a tensor, in float64; NaN where it has none.

    Attributes:
        shape, dtype: of the tensor.
        mean, std, min, max: of its values.
    """

    shape: tuple[int, ...]
    dtype: str
    mean: float
    std: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Tensor) -> "Statistics":
        """The statistics of a tensor."""
        exact, dtype = values.detach().double(), str(values.dtype).removeprefix("torch.")
        if not exact.numel():
            return cls(tuple(values.shape), dtype, *[math.nan] * 4)
        numbers = (exact.mean(), exact.std(correction=0), exact.min(), exact.max())
        return cls(tuple(values.shape), dtype, *map(float, numbers))

    def within(self, expected: "Range") -> bool:
        """Whether all values are finite and in range, and spread as far as they should; also of no values."""
        if 0 in self.shape:
            return True
        inside = expected.least <= self.min and self.max <= expected.most
        return inside and expected.least_std <= self.std <= expected.most_std


@dataclass(frozen=True)
class Range:
    """Where values are expected: all of them, and their standard deviation."""

    least: float = -1e4
    most: float = 1e4
    least_std: float = 1e-5
    most_std: float = 1e3


EXPECTED: dict[str, Range] = {
    "pixels": Range(-10.0, 10.0, 0.0, 10.0),  # normalised images; a blank page does not vary
    "grid encoder": Range(),
    "compressor": Range(),
    "semantic encoder": Range(),
    "bridge": Range(),
    "relevance": Range(0.0, 1.0, 0.0, 0.5),
    "prompt": Range(),
    "language model": Range(),
    "logits": Range(),
}
"""What passes each boundary. Wide: half precision ends at 65504, and a signal below 1e-5 beside it is lost."""


def boundaries(core: nn.Module, head: nn.Module | None) -> dict[str, tuple[nn.Module, bool, Callable[[Any], Any]]]:
    """By name: a module of the model `core`, whether its input counts, and what of that or its output is the tensor."""
    tower: Any = core.vision_tower
    parts: dict[str, tuple[Any, bool, Callable[[Any], Any]]] = {
        "pixels": (tower.grid_encoder, True, lambda passed: passed),
        "grid encoder": (tower.grid_encoder, False, _first),
        "compressor": (tower.compressor, False, lambda made: made.compressed),
        "semantic encoder": (tower.semantic_encoder, False, _first),
        "bridge": (core.bridge, False, lambda made: made.tokens),
        "relevance": (core.fetcher, False, lambda made: made.relevance),
        "prompt": (core.language_model, True, lambda passed: passed),
        "language model": (core.language_model, False, lambda made: made.last_hidden_state),
    }
    return parts if head is None else {**parts, "logits": (head, False, lambda made: made)}


def _first(made: Any) -> Any:
    return made[0] if isinstance(made, tuple) else made


class Probes(Mapping[str, Statistics]):
    """The latest statistics of each boundary by name, while hooks are on a model.

    Args:
        core: the model without its head.
        head: its vocabulary head, or None.
    """

    def __init__(self, core: nn.Module, head: nn.Module | None) -> None:
        self._latest: dict[str, Statistics] = {}
        self._handles: list[RemovableHandle] = []
        for name, (module, reads_input, pick) in boundaries(core, head).items():
            if reads_input:
                hook = partial(self._on_input, name)
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            else:
                self._handles.append(module.register_forward_hook(partial(self._on_output, name, pick)))

    def remove(self) -> None:
        """Takes the hooks off; what was seen stays."""
        for handle in self._handles:
            handle.remove()

    def _on_input(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._see(name, args[0] if args else kwargs.get("inputs_embeds"))

    def _on_output(self, name: str, pick: Callable[[Any], Any], module: nn.Module, args: Any, made: Any) -> None:
        self._see(name, pick(made))

    def _see(self, name: str, values: Any) -> None:
        if not isinstance(values, Tensor) or values.is_meta or torch.compiler.is_compiling():
            return
        seen = self._latest[name] = Statistics.of(values)
        expected = EXPECTED[name]
        if not seen.within(expected):
            logger.warning(
                f"{name}: expected values in {expected.least:g}..{expected.most:g} with a standard deviation in "
                f"{expected.least_std:g}..{expected.most_std:g}; got {seen.min:g}..{seen.max:g} with {seen.std:g}"
            )

    def __getitem__(self, name: str) -> Statistics:
        return self._latest[name]

    def __iter__(self) -> Any:
        return iter(self._latest)

    def __len__(self) -> int:
        return len(self._latest)
