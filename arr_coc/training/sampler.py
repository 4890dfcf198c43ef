"""The order of records in a run: a function of seed and step, whatever the number of processes."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class StepSampler(Sampler[int]):
    """Numbers of `items` records for a whole run: pass after pass, each in an order drawn from (seed, pass).

    A run is one epoch of this length, so where it stands in the data is its step alone, and processes that deal these
    numbers among themselves take the same records per step as one process that takes them all.
    """

    def __init__(self, items: int, *, draws: int, seed: int) -> None:
        if items < 1:
            raise ValueError(f"data: expected at least 1 record to train on; got {items}")
        self.items, self.draws, self.seed = items, draws, seed

    def __len__(self) -> int:
        return self.draws

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.draws, self.items):
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + start // self.items) % 2**63)
            yield from torch.randperm(self.items, generator=generator)[: self.draws - start].tolist()
