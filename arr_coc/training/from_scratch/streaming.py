"""Batches that are a function of the step, made ahead."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import count
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Batch = TypeVar("Batch")


class Batches(IterableDataset, ABC, Generic[Batch]):
    """Endless batches, each a function of its step.

    Attributes:
        start: the first step that is iterated over.
    """

    start: int

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        # DataLoader asks its workers in turn, so steps come out in order
        return map(self.batch, count(self.start + worker, workers))

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """The batch of a step."""


def prefetched(data: Batches[Any], workers: int) -> Iterator[Any]:
    """The batches that `data` yields, made ahead by worker processes; in this process where there are none."""
    ahead: dict[str, Any] = {"prefetch_factor": 6, "worker_init_fn": _yield_cores} if workers else {}
    return iter(DataLoader(data, batch_size=None, num_workers=workers, **ahead))


def _yield_cores(worker: int) -> None:
    """Lets a step that is computed go before the next ones' pages: its threads wait for the slowest of them."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(10)
