"""What is fuzzed, one line a part; a part runs in a process of its own, which may die."""

import faulthandler
import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.tally import TRAIL, Tally


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
    "kills": Part(5, 100, "kill -9 at a random moment of a command that writes; the same command then ends"),
    "disks": Part(3, 100, "commands that write, where the disk takes only so much"),
    "commands": Part(6, 1000, "every command with a damaged file among its inputs"),
}


def fuzz(name: str, count: int, seed: int) -> Tally:
    """Runs a part in this process."""
    return importlib.import_module(f"tests.fuzz.{name}").fuzz(count, seed)


ENDED = {1: "hung", 2: "traceback"}
"""What a process's exit status says: 1 is `faulthandler`'s, which ends one that hangs where Python cannot interrupt it;
2: an exception outside of all tries. Any other is a crash."""


def run_apart(part: Callable[[], Tally]) -> Tally:
    """The part's tally; if its process dies, one that says at which seed."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        trail = Path(folder) / "trail"
        process = context.Process(target=_run_and_send, args=(part, sender, str(trail)))
        process.start()
        sender.close()
        try:
            return receiver.recv()
        except EOFError:
            process.join()
            status = process.exitcode or 0
            tally, seed = Tally(), int(trail.read_text()) if trail.exists() else -1
            tally.add(ENDED.get(status, "crashed"), seed, f"the process ended with status {status}, the part with it")
            return tally
        finally:
            process.join()


def _run_and_send(part: Callable[[], Tally], sender: Connection, trail: str) -> None:
    os.environ[TRAIL] = trail
    faulthandler.enable()
    try:
        sender.send(part())
    except Exception:
        traceback.print_exc()
        sys.exit(2)
