"""Watches how a served model fetches, against its checkpoint's own reference."""

from collections import deque

from ..evaluation.fetch_reference import Distribution, FetchReference, fetch_statistics
from ..modeling.prompt import EmbeddedPrompt
from .metrics import Metrics

WINDOW = 1000
"""Values of a statistic that drift is told from: the latest."""

ENOUGH = 200
"""Values below which nothing is said of drift: chance alone would make it large."""


class _Latest:
    """The latest values of one statistic, counted by the reference's bins."""

    def __init__(self, reference: Distribution) -> None:
        self.reference, self.bins = reference, deque[int]()
        self.counts = [0] * len(reference.counts)

    def add(self, value: float) -> None:
        number = self.reference.bin(value)
        self.counts[number] += 1
        self.bins.append(number)
        if len(self.bins) > WINDOW:
            self.counts[self.bins.popleft()] -= 1

    def drift(self) -> float:
        return self.reference.drift(self.counts) if len(self.bins) >= ENOUGH else float("nan")


class FetchWatch:
    """Counts what `fetch_statistics` says of every question, and compares it where there is a reference.

    Args:
        reference: the checkpoint's; None: it has none.
        metrics: where it is told.
    """

    def __init__(self, reference: FetchReference | None, metrics: Metrics) -> None:
        self.metrics = metrics
        self.strategy = None if reference is None else reference.strategy
        self._latest: dict[str, _Latest] = {}
        for name, distribution in ({} if reference is None else reference.statistics).items():
            self._latest[name] = latest = _Latest(distribution)
            metrics.reference.labels(name).set(distribution.mean)
            metrics.drift.labels(name).set_function(latest.drift)

    def observe(self, prompt: EmbeddedPrompt) -> None:
        """Takes the prompts of a batch; other strategies than the reference's say nothing of drift."""
        compared = prompt.fetch.strategy == self.strategy
        for name, values in fetch_statistics(prompt).items():
            for value in values.tolist():
                self.metrics.statistics.labels(name, prompt.fetch.strategy).observe(value)
                if compared and name in self._latest:
                    self._latest[name].add(value)
