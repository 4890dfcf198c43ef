"""A learned tempering policy: how much of a pass explores, by a network of a few weights that reinforcement trains.

Notation: B decisions, S shares to choose from, H hidden width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import initialization

if TYPE_CHECKING:
    from .answers import Pass

SHARES = (0.0, 0.05, 0.1, 0.3, 0.5)
"""What may be drawn of a pass, the rule's values (`passes.tempered`) among them."""

FIRST = 2
"""Which of `SHARES` an untrained policy prefers, in every pass: a tenth."""

FURTHER_PASSES = 3.0
"""Passes behind the first, by which their number is scaled to 0..1."""


class TemperingPolicy(nn.Module):
    """From the last answer's uncertainty and how many passes there were to one of `SHARES`.

    The most likely one; where the decisions are recorded (`drawing`), one that is drawn.
    """

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, size)
        self.head = nn.Linear(size, len(SHARES))
        self._drawn: list[tuple[Tensor, int]] | None = None
        self._generator: torch.Generator | None = None

    def start_weights(self, std: float) -> None:
        """Nothing depends on the answers yet, and `FIRST` is e times as likely as each of the others."""
        preferred = torch.zeros_like(self.head.bias)
        preferred[FIRST] = 1.0
        initialization.zeros_(self.head.weight)
        initialization.copy_(self.head.bias, preferred)
        initialization.normal_(self.hidden.weight, std=1.0)

    def forward(self, states: Tensor) -> Tensor:
        """Logits [B, S] for states [B, 2], see `state_of`."""
        return self.head(torch.tanh(self.hidden(states.to(self.hidden.weight))))

    @torch.no_grad()
    def share(self, passes: Sequence["Pass"]) -> float:
        """Of the next pass, given those so far."""
        state = state_of(passes)
        probabilities = self(state[None])[0].float().softmax(-1)
        if self._drawn is None:
            return SHARES[int(probabilities.argmax())]
        number = int(torch.multinomial(probabilities.cpu(), 1, generator=self._generator))
        self._drawn.append((state, number))
        return SHARES[number]

    @contextmanager
    def drawing(self, generator: torch.Generator) -> Iterator[list[tuple[Tensor, int]]]:
        """Within it shares are drawn, and each decision is in the list: its state [2], and which share it was.

        For one thread at a time.
        """
        self._drawn, self._generator = [], generator
        try:
            yield self._drawn
        finally:
            self._drawn = self._generator = None

    def log_probability(self, drawn: Sequence[tuple[Tensor, int]]) -> Tensor:
        """Of all decisions of an episode together, differentiable; a scalar."""
        states = torch.stack([state for state, _ in drawn])
        numbers = torch.tensor([number for _, number in drawn], device=self.head.weight.device)
        return self(states).float().log_softmax(-1).gather(1, numbers[:, None]).sum()


def state_of(passes: Sequence["Pass"]) -> Tensor:
    """[2] float32: the last answer's uncertainty (1 before there is one), and how many passes there were."""
    uncertainty = passes[-1].uncertainty if passes else 1.0
    return torch.tensor([uncertainty, len(passes) / FURTHER_PASSES])
