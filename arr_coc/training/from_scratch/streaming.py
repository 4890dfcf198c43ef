"""Batches that are a function of the step, made ahead."""

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Batch = TypeVar("Batch")


def per_step(make: Callable[[int], Batch], start: int) -> Iterator[Batch]:
    """Batches of the steps from `start` on. DataLoader asks its workers in turn, so they come out in order."""
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    step = start + worker
    while True:
        yield make(step)
        step += workers


def prefetched(data: IterableDataset, workers: int) -> Iterator[Any]:
    """The batches that `data` yields, made ahead by worker processes; in this process where there are none."""
    ahead: dict[str, Any] = {"prefetch_factor": 6, "worker_init_fn": _yield_cores} if workers else {}
    return iter(DataLoader(data, batch_size=None, num_workers=workers, **ahead))


def _yield_cores(worker: int) -> None:
    """Lets a step that is computed go before the next ones' pages: its threads wait for the slowest of them."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(10)
