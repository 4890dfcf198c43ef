"""Common code of the benchmarks: arguments, and the timing of calls that alternate in one process.

Other load on the machine slows alternating calls equally, so ratios hold.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""The choices of `--clock`: wall-clock time, or CPU time of all threads of this process."""


def argument_parser(
    doc: str | None, model: str | None, *, rounds: int | None = None, clock: str | None = None, dtype: str | None = None
) -> argparse.ArgumentParser:
    """A parser of MODEL, and of --rounds, --clock and --dtype if they have a default here.

    Args:
        doc: the docstring of the benchmark, shown by `--help`.
        model: the default; None: MODEL is required.
        rounds: number of timings of each call.
        clock: a name of `CLOCKS`.
        dtype: dtype of the weights.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = "folder of a model or its config, or a name on the Hub"
    if model is None:
        parser.add_argument("model", metavar="MODEL", help=what)
    else:
        parser.add_argument("model", metavar="MODEL", nargs="?", default=model, help=f"{what} (default: {model})")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"timings of each (default: {rounds})")
    if clock is not None:
        clocks = "time that passes, or CPU time of this process, where other programs share the cores"
        parser.add_argument("--clock", choices=CLOCKS, default=clock, help=f"{clocks} (default: {clock})")
    if dtype is not None:
        dtypes = ("float32", "bfloat16", "float16")
        parser.add_argument("--dtype", choices=dtypes, default=dtype, help=f"dtype of the weights (default: {dtype})")
    return parser


@dataclass(frozen=True)
class Seconds:
    """The seconds of a call in each round."""

    taken: tuple[float, ...]

    @property
    def least(self) -> float:
        """Seconds of the fastest round."""
        return min(self.taken)

    @property
    def median(self) -> float:
        """Median seconds over the rounds."""
        return statistics.median(self.taken)

    def times(self, other: "Seconds") -> float:
        """The ratio of seconds to those of `other`: the median over rounds."""
        return statistics.median(ours / theirs for ours, theirs in zip(self.taken, other.taken, strict=True))


def alternate(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    warm_up: bool = True,
) -> dict[str, Seconds]:
    """Seconds of every call by name; the calls alternate, after a warm-up round.

    Args:
        calls: the calls by name.
        rounds: number of timed rounds.
        clock: returns seconds; `time.process_time` for machines with other load.
        warm_up: whether there is such a round.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + warm_up):
        for name, call in calls.items():
            began = clock()
            call()
            taken[name].append(clock() - began)
    return {name: Seconds(tuple(seconds[warm_up:])) for name, seconds in taken.items()}


def table(seconds: Mapping[str, Seconds], reference: str) -> str:
    """A line for each call: fastest and median seconds, and the ratios of both to `reference`."""
    base = seconds[reference]
    lines = [f"{'':<28}{'fastest':>10}{'median':>10}{'times ' + reference + ', fastest':>30}{'median':>9}"]
    lines += [
        f"{name:<28}{of.least:>8.2f} s{of.median:>8.2f} s{of.least / base.least:>30.2f}{of.times(base):>9.2f}"
        for name, of in seconds.items()
    ]
    return "\n".join(lines)
