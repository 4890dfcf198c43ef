"""What is fuzzed: one line a part."""

import importlib
from typing import NamedTuple

from tests.fuzz.tally import Tally


class Part(NamedTuple):
    """A module of this folder with `fuzz(count, seed) -> Tally`, which does the tries `seed` to `seed + count - 1`.

    `small`, `full`: tries in the test suite and in `make fuzz`; `what`: for the table.
    """

    small: int
    full: int
    what: str


PARTS: dict[str, Part] = {
    "images": Part(60, 5000, "image files, mutated or hostile"),
    "calls": Part(60, 2500, "odd calls of generate, encode_image, forward and the processor"),
    "urls": Part(16, 100, "URLs of hostile servers on loopback"),
    "configs": Part(30, 5000, "odd values in every field of configs and processors"),
    "weights": Part(8, 600, "damaged and forged weights: ask, build, from_pretrained, assemble"),
    "threads": Part(24, 1000, "calls on one model at the same time"),
    "kills": Part(3, 100, "kill -9 at a random moment of a command that writes; the same command then ends"),
    "disks": Part(3, 100, "commands that write, where the disk takes only so much"),
    "commands": Part(6, 1000, "every command with a damaged file among its inputs"),
}


def fuzz(name: str, count: int, seed: int) -> Tally:
    """Runs a part in this process."""
    return importlib.import_module(f"tests.fuzz.{name}").fuzz(count, seed)
