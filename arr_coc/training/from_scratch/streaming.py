"""Batches that are a function of the step, made ahead."""

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
    return iter(DataLoader(data, batch_size=None, num_workers=workers, prefetch_factor=6 if workers else None))
