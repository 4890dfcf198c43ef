"""Runs a part in a process of its own, which may die."""

import faulthandler
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.tally import TRAIL, Tally

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
