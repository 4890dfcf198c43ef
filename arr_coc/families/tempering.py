"""Exploration "learned": a trained policy for the share of patches that each of several passes draws at random."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization

from ..modeling.answers import Pass
from ..modeling.fetcher import EXPLORATION

SHARES = (0.0, 0.05, 0.1, 0.3, 0.5)
"""Shares of a pass's patches that may be drawn; they include those of the rule `passes.tempered`."""

FIRST = 2  # the number of the share that an untrained policy prefers in every pass: a tenth
FURTHER_PASSES = 3.0  # the most passes behind the first; scales their number to 0..1


@EXPLORATION.register("learned")
class TemperingPolicy(nn.Module):
    """Chooses one of `SHARES` from the uncertainty of the last answer and the number of passes so far. It takes the
    most likely share; within `drawing` it draws one and records the decision."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, size)
        self.head = nn.Linear(size, len(SHARES))
        self._drawn: list[tuple[Tensor, int]] | None = None
        self._generator: torch.Generator | None = None

    def start_weights(self, std: float) -> None:
        """At first the answers have no effect, and `FIRST` is e times as likely as each other share."""
        preferred = torch.zeros_like(self.head.bias)
        preferred[FIRST] = 1.0
        initialization.zeros_(self.head.weight)
        initialization.copy_(self.head.bias, preferred)
        initialization.normal_(self.hidden.weight, std=1.0)

    def forward(self, states: Tensor) -> Tensor:
        """Logits [B, S] for states [B, 2], see `state_of`."""
        return self.head(torch.tanh(self.hidden(states.to(self.hidden.weight))))

    @torch.no_grad()
    def share(self, passes: Sequence[Pass], core: Any = None) -> float:
        """The share of drawn patches in the next pass, given the passes so far."""
        state = state_of(passes)
        probabilities = self(state[None])[0].float().softmax(-1)
        if self._drawn is None:
            return SHARES[int(probabilities.argmax())]
        number = int(torch.multinomial(probabilities.cpu(), 1, generator=self._generator))
        self._drawn.append((state, number))
        return SHARES[number]

    @contextmanager
    def drawing(self, generator: torch.Generator) -> Iterator[list[tuple[Tensor, int]]]:
        """Draws shares within the context and records each decision in the list: its state [2] and the share's number.
        For one thread at a time."""
        self._drawn, self._generator = [], generator
        try:
            yield self._drawn
        finally:
            self._drawn = self._generator = None

    def log_probability(self, drawn: Sequence[tuple[Tensor, int]]) -> Tensor:
        """The log-probability of all decisions of an episode; a scalar, differentiable."""
        states = torch.stack([state for state, _ in drawn])
        numbers = torch.tensor([number for _, number in drawn], device=self.head.weight.device)
        return self(states).float().log_softmax(-1).gather(1, numbers[:, None]).sum()


def state_of(passes: Sequence[Pass]) -> Tensor:
    """[2] float32: the uncertainty of the last answer (1 before the first) and the scaled number of passes so far."""
    uncertainty = passes[-1].uncertainty if passes else 1.0
    return torch.tensor([uncertainty, len(passes) / FURTHER_PASSES])
