"""Probes: hooks that record statistics of the tensors between the parts of a model, and warn of values out of range."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Statistics:
    """Statistics of a tensor, in float64; NaN for an empty tensor."""

    shape: tuple[int, ...]  # of the tensor, as `dtype`
    dtype: str
    mean: float  # of its values, as those below
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
        """Whether all values are finite and in range, and their standard deviation is in its range; True without
        values."""
        if 0 in self.shape:
            return True
        inside = expected.least <= self.min and self.max <= expected.most
        return inside and expected.least_std <= self.std <= expected.most_std


@dataclass(frozen=True)
class Range:
    """The expected ranges of all values and of their standard deviation."""

    least: float = -1e4
    most: float = 1e4
    least_std: float = 1e-5
    most_std: float = 1e3


EXPECTED: dict[str, Range] = {
    "pixels": Range(-10.0, 10.0, 0.0, 10.0),  # normalised images; a blank page has no variation
    "grid encoder": Range(),
    "compressor": Range(),
    "semantic encoder": Range(),
    "bridge": Range(),
    "relevance": Range(0.0, 1.0, 0.0, 0.5),
    "prompt": Range(),
    "language model": Range(),
    "logits": Range(),
}
"""The expected ranges at each boundary. They are wide: half precision ends at 65504 and loses signals below 1e-5."""


def boundaries(core: nn.Module, head: nn.Module | None) -> dict[str, tuple[nn.Module, bool, Callable[[Any], Any]]]:
    """By name: a module of the model `core`, whether its input or its output is recorded, and the tensor in it."""
    tower: Any = core.vision_tower
    parts: dict[str, tuple[Any, bool, Callable[[Any], Any]]] = {
        "pixels": (tower.grid_encoder, True, lambda passed: passed),
        "grid encoder": (tower.grid_encoder, False, lambda made: made),
        "bridge": (core.bridge, False, lambda made: made.tokens),
        "relevance": (core.fetcher, False, lambda made: made.relevance),
        "prompt": (core.language_model, True, lambda passed: passed),
        "language model": (core.language_model, False, lambda made: made.last_hidden_state),
    }
    if tower.text_reader is None:
        parts["compressor"] = (tower.compressor, False, lambda made: made.compressed)
        parts["semantic encoder"] = (tower.semantic_encoder, False, lambda made: made[0])
    if head is not None:
        parts["logits"] = (head, False, lambda made: made)
    return {name: parts[name] for name in EXPECTED if name in parts}


class Probes(Mapping[str, Statistics]):
    """The latest statistics of each boundary by name, while the hooks are attached.

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
        """Removes the hooks; the statistics stay."""
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

    def __iter__(self) -> Iterator[str]:
        return iter(self._latest)

    def __len__(self) -> int:
        return len(self._latest)


def set_probes(model: PreTrainedModel, on: bool) -> Probes | None:
    """Attaches probes to the boundaries between the parts of a model, or removes them.

    Returns:
        The latest statistics by boundary, updated by each call (also in `model.probes`); None when probes are removed.
    """
    attached: Any = model
    if (earlier := getattr(model, "probes", None)) is not None:
        earlier.remove()
    attached.probes = Probes(model.base_model, model.get_output_embeddings()) if on else None
    return attached.probes
