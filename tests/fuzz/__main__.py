"""Tries odd inputs, part by part, each in a process of its own, and prints what they came to.

python -m tests.fuzz                            # every part at full size (`make fuzz`)
python -m tests.fuzz images --count 1 --seed 7  # one try again
"""

import argparse
import sys
import time
from functools import partial

from tests.fuzz.parts import PARTS, fuzz, run_apart
from tests.fuzz.tally import FAULTS, OUTCOMES, Tally

MAX_MEMORY = 2**30
"""Bytes that a part may take beyond what it loads."""

HEADER = "| part | tries | " + " | ".join(OUTCOMES) + " | seconds | MiB beyond the model |"


def table_row(name: str, tally: Tally, seconds: float) -> str:
    counts = [tally.counts[outcome] for outcome in OUTCOMES]
    cells = [name, sum(counts), *counts, f"{seconds:.0f}", f"{tally.memory / 2**20:.0f}"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if no try came to a fault and no part took more memory than it may, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--small", action="store_true", help="as many tries as the test suite does")
    parser.add_argument("--count", type=int, help="tries of each part")
    parser.add_argument("--seed", type=int, default=0, help="of the first try (default: 0)")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"part: expected some of {', '.join(PARTS)}; got {', '.join(unknown)}")
    print(HEADER, "|" + " --- |" * (len(OUTCOMES) + 4), sep="\n", flush=True)
    faults = []
    for name in options.parts or PARTS:
        count = options.count or (PARTS[name].small if options.small else PARTS[name].full)
        began = time.monotonic()
        tally = run_apart(partial(fuzz, name, count, options.seed))
        print(table_row(name, tally, time.monotonic() - began), flush=True)
        faults += [f"{name}: {outcome}, {line}" for outcome in FAULTS for line in tally.examples[outcome]]
        if tally.memory > MAX_MEMORY:
            faults.append(f"{name}: took {tally.memory / 2**20:.0f} MiB, more than {MAX_MEMORY // 2**20}")
    print(*(f"\n{fault}" for fault in faults), sep="", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
