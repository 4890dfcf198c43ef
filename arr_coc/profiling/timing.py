"""Seconds of calls that take turns in one process: what slows the machine slows them alike, so ratios hold."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Seconds:
    """What each call took, in the order of the rounds."""

    taken: tuple[float, ...]

    @property
    def least(self) -> float:
        """Of the fastest round."""
        return min(self.taken)

    @property
    def median(self) -> float:
        """Over the rounds."""
        return statistics.median(self.taken)

    def times(self, other: "Seconds") -> float:
        """How many times as long as `other` this took: the median of the ratios, round by round."""
        return statistics.median(ours / theirs for ours, theirs in zip(self.taken, other.taken, strict=True))


def alternate(
    calls: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Seconds]:
    """Seconds of every call by name, after one round that warms up.

    Args:
        calls: what to time, by name.
        rounds: how often each is timed.
        clock: seconds; `time.process_time` where other programs share the cores.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            began = clock()
            call()
            taken[name].append(clock() - began)
    return {name: Seconds(tuple(seconds[1:])) for name, seconds in taken.items()}


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""What `--clock` chooses from: the time that passes, or the CPU time of all of this process's threads."""


def table(seconds: Mapping[str, Seconds], reference: str) -> str:
    """A line for each call: fastest and median seconds, and how many times as long as `reference` it took, by both."""
    base = seconds[reference]
    lines = [f"{'':<28}{'fastest':>10}{'median':>10}{'times ' + reference + ', fastest':>30}{'median':>9}"]
    lines += [
        f"{name:<28}{of.least:>8.2f} s{of.median:>8.2f} s{of.least / base.least:>30.2f}{of.times(base):>9.2f}"
        for name, of in seconds.items()
    ]
    return "\n".join(lines)
