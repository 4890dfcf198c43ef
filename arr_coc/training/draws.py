"""What is drawn per step: strategy and budget, as functions of seed and step alone.

So a resumed run, any number of processes and any way of accumulating gradients draw the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..modeling.configuration_arr_coc import ArrCocConfig


@dataclass(frozen=True)
class Draw:
    """How a step fetches: `strategy`, and K as `saccades` per image slot."""

    strategy: str
    saccades: int


@dataclass(frozen=True)
class Mix:
    """How often each strategy and each budget is drawn; weights need not sum to 1.

    Raises:
        ValueError: there are no weights, or one is no positive number.
    """

    strategies: Mapping[str, float]
    budgets: Mapping[str | int, float]

    def __post_init__(self) -> None:
        for name, weights in (("strategies", self.strategies), ("budgets", self.budgets)):
            numbers = isinstance(weights, Mapping) and all(isinstance(w, int | float) for w in weights.values())
            if not numbers or not weights or min(weights.values()) < 0 or sum(weights.values()) <= 0:
                raise ValueError(f"{name}: expected a mapping of names to weights, one above 0; got {weights!r}")

    def draw(self, seed: int, step: int, config: ArrCocConfig) -> Draw:
        """What step `step` of a run with this seed does."""
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
        strategy, budget = _drawn(self.strategies, generator), _drawn(self.budgets, generator)
        return Draw(strategy, config.vision_tokens(budget=budget, strategy=strategy)[1])

    def largest(self, config: ArrCocConfig) -> int:
        """The largest K that may be drawn: as many placeholders a batch must have."""
        return max(config.vision_tokens(budget=budget, strategy="random")[1] for budget in self.budgets)


def _drawn(weights: Mapping[Any, float], generator: torch.Generator) -> Any:
    """A key, drawn by weight; keys in the order of their names, so that the mapping's own order does not matter."""
    names = sorted(weights, key=str)
    shares = torch.tensor([float(weights[name]) for name in names])
    return names[int(torch.multinomial(shares, 1, generator=generator))]
