"""What the benchmarks share: their arguments, and seconds of calls that take turns in one process.

What slows the machine slows calls that take turns alike, so ratios hold.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""What `--clock` chooses from: the time that passes, or the CPU time of all of this process's threads."""


def argument_parser(
    doc: str | None, model: str | None, *, rounds: int | None = None, clock: str | None = None, dtype: str | None = None
) -> argparse.ArgumentParser:
    """Parses MODEL, and --rounds, --clock and --dtype where a default for them is given.

    Args:
        doc: the docstring of the benchmark, which `--help` shows.
        model: the default; None: MODEL must be given.
        rounds: how often each call is timed.
        clock: a name of `CLOCKS`.
        dtype: of the weights.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = "folder of a model or its config, or a name on the Hub"
    if model is None:
        parser.add_argument("model", metavar="MODEL", help=what)
    else:
        parser.add_argument("model", metavar="MODEL", nargs="?", default=model, help=f"{what} (default: {model})")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"how often each is timed (default: {rounds})")
    if clock is not None:
        clocks = "time that passes, or CPU time of this process, where other programs share the cores"
        parser.add_argument("--clock", choices=CLOCKS, default=clock, help=f"{clocks} (default: {clock})")
    if dtype is not None:
        dtypes = ("float32", "bfloat16", "float16")
        parser.add_argument("--dtype", choices=dtypes, default=dtype, help=f"of the weights (default: {dtype})")
    return parser


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


def table(seconds: Mapping[str, Seconds], reference: str) -> str:
    """A line for each call: fastest and median seconds, and how many times as long as `reference` it took, by both."""
    base = seconds[reference]
    lines = [f"{'':<28}{'fastest':>10}{'median':>10}{'times ' + reference + ', fastest':>30}{'median':>9}"]
    lines += [
        f"{name:<28}{of.least:>8.2f} s{of.median:>8.2f} s{of.least / base.least:>30.2f}{of.times(base):>9.2f}"
        for name, of in seconds.items()
    ]
    return "\n".join(lines)
