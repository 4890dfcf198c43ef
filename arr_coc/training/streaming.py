"""Data that is a function of the step, whatever the number of worker processes."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from torch.utils.data import get_worker_info

Batch = TypeVar("Batch")


def per_step(make: Callable[[int], Batch], start: int) -> Iterator[Batch]:
    """Batches of the steps from `start` on. DataLoader asks its workers in turn, so they come out in order."""
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    step = start + worker
    while True:
        yield make(step)
        step += workers
