"""Counts of what odd inputs led to.

A try is one odd input, and everything about it follows from its seed: the same part with `--seed` and a count of 1 does
it again.
"""

import faulthandler
import os
import re
import signal
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

FAULTS = ("crashed", "hung", "traceback", "wrong")
"""Outcomes that must not be: the interpreter died; a try took longer than its limit; an exception that nobody promised;
an answer, or an error's wording, that is not right."""

OUTCOMES = ("answered", "refused", *FAULTS)
"""What a try can come to. Refused: the promised error."""

LIMIT = 10.0
"""Seconds that one try may take."""

EXAMPLES = 8
"""Faults of a kind that are kept, with their seeds."""

TRAIL = "ARR_COC_FUZZ_TRAIL"
"""Environment variable: the file that names the try under way, for whoever finds the process dead. Set by the frame
for the process that a part runs in, which is then ended when a try hangs where Python cannot interrupt it."""


class Hung(BaseException):
    """A try's time is over. No `Exception`: what is tried may catch those."""


class Tally:
    """Counts by outcome, examples of faults, and the memory that the tries took.

    Made after the part has loaded what it tries things on: memory counts from there.

    Attributes:
        counts: tries by outcome.
        examples: per fault up to `EXAMPLES` lines "seed N: what happened".
        memory: bytes beyond what the process took when the tally was made. A part whose tries are processes of their
            own sets it by what those took.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: defaultdict[str, list[str]] = defaultdict(list)
        self.memory = 0
        self._before = _resident_bytes()
        self._lock = threading.Lock()
        _forget_peak()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    @property
    def faults(self) -> int:
        """Tries that came to something other than an answer or the promised error."""
        return sum(self.counts[outcome] for outcome in FAULTS)

    def add(self, outcome: str, seed: int, detail: str = "") -> None:
        """Counts a try whose outcome the part has judged itself."""
        with self._lock:
            self.counts[outcome] += 1
            self.memory = max(self.memory, _peak_bytes() - self._before)
            if outcome in FAULTS and len(self.examples[outcome]) < EXAMPLES:
                self.examples[outcome].append(f"seed {seed}: {detail}")

    def attempt(
        self,
        seed: int,
        action: Callable[[], Result],
        *,
        name: str = "",
        promised: type[Exception] | tuple[type[Exception], ...] = ValueError,
        wording: str = "",
        check: Callable[[Result], str | None] | None = None,
        limit: float = LIMIT,
    ) -> None:
        """Does one try and counts what it came to.

        Args:
            seed: that reproduces it.
            action: the try.
            name: what is tried, for examples of faults.
            promised: errors that count as a refusal.
            wording: regular expression that a refusal's text must match somewhere.
            check: says what is wrong with an answer; None: nothing is.
            limit: seconds.
        """
        began = time.monotonic()
        try:
            with _time_limit(seed, limit):
                result = action()
            outcome, detail = "answered", check(result) if check else None
            if detail:
                outcome = "wrong"
        except promised as error:
            outcome, detail = "refused", str(error)
            if not re.search(wording, detail, re.DOTALL):
                outcome, detail = "wrong", f"a refusal that says {detail!r}"
        except Hung:
            outcome, detail = "hung", f"stopped after {limit:g} s"
        except (Exception, SystemExit) as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{Path(last.filename).name}:{last.lineno}"
            outcome, detail = "traceback", f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({at})"
        if outcome != "hung" and time.monotonic() - began > limit:
            outcome, detail = "hung", f"took {time.monotonic() - began:.1f} s"
        self.add(outcome, seed, f"{name}: {detail}" if name else str(detail))


@contextmanager
def _time_limit(seed: int, seconds: float) -> Iterator[None]:
    """Raises `Hung` in the block after `seconds`, where a signal can: in the main thread, between Python's steps."""
    if trail := os.environ.get(TRAIL):
        Path(trail).write_text(str(seed))
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if trail:
        faulthandler.dump_traceback_later(seconds + 20, exit=True)
    before = signal.signal(signal.SIGALRM, _raise_hung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def _raise_hung(*_: Any) -> None:
    raise Hung


# ---- memory: as Linux counts it; 0 elsewhere
def _status_bytes(field: str) -> int:
    status = Path("/proc/self/status")
    match = re.search(rf"^{field}:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(match[1]) * 1024 if match else 0


def _resident_bytes() -> int:
    return _status_bytes("VmRSS")


def _peak_bytes() -> int:
    return _status_bytes("VmHWM")


def _forget_peak() -> None:
    """Has the peak counted from now on."""
    if (peak := Path("/proc/self/clear_refs")).exists():
        peak.write_text("5")
