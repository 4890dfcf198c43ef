"""Batches that are a function of the step, made ahead."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

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


class Keeping(Protocol):
    """What a stage says of documents that it keeps: how many, and the steps from one new one to the next."""

    @property
    def kept(self) -> int: ...
    @property
    def reused(self) -> int: ...


class KeptDocuments(IterableDataset, Generic[Batch]):
    """For each step the documents that it needs and that earlier ones did not.

    Args:
        keeping: see `Keeping`.
        start: the first step, which needs all that are kept by then.
    """

    def __init__(self, keeping: Keeping, start: int) -> None:
        self.keeping, self.start = keeping, start

    def __iter__(self) -> Iterator[list[Batch]]:
        return per_step(self.new, self.start)

    def new(self, step: int) -> list[Batch]:
        """Those of a step."""
        newest = step // self.keeping.reused
        if step == self.start:
            return [self.document(number) for number in range(max(0, newest - self.keeping.kept + 1), newest + 1)]
        return [self.document(newest)] if step % self.keeping.reused == 0 else []

    @abstractmethod
    def document(self, number: int) -> Batch:
        """The document of a number."""
