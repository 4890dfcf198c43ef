"""Batches that are a function of the step, made ahead, and the pages that they show."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import Any, Generic, TypeVar

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from arr_coc.data import Document, Split
from arr_coc.data.mixture import Mixture

Batch = TypeVar("Batch")

KEPT = 256
"""Pages among which those that come up again are drawn."""


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


class DrawnPages:
    """Pages of a mixture, each of which comes up several times: to draw one takes a good part of a step's time.

    Args:
        mixture: what they are drawn from.
        seed: of those that come up again.
        reused: how often each comes up; 1: each page is new.
        size: their side, px.
        split: of fonts, words and layouts.
    """

    def __init__(self, mixture: Mixture, seed: tuple[int, ...], reused: int, *, size: int, split: Split) -> None:
        self.mixture, self.seed, self.reused, self.size, self.split = mixture, seed, reused, size, split
        self._numbered = lru_cache(maxsize=2 * KEPT)(self._draw)

    def page(self, drawn: int, rng: np.random.Generator) -> Document:
        """The page that comes up after `drawn` others; one of those about them, where pages come up again."""
        if self.reused == 1:
            return self.mixture.draw(rng, size=self.size, split=self.split)
        return self._numbered(drawn // self.reused + int(rng.integers(KEPT)))

    def _draw(self, number: int) -> Document:
        return self.mixture.draw(np.random.default_rng((*self.seed, number)), size=self.size, split=self.split)


def prefetched(data: Batches[Any], workers: int) -> Iterator[Any]:
    """The batches that `data` yields, made ahead by worker processes; in this process where there are none."""
    ahead: dict[str, Any] = {"prefetch_factor": 6, "worker_init_fn": _yield_cores} if workers else {}
    return iter(DataLoader(data, batch_size=None, num_workers=workers, **ahead))


def _yield_cores(worker: int) -> None:
    """Lets a step that is computed go before the next ones' pages: its threads wait for the slowest of them."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(10)
