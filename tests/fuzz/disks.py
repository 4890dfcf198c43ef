"""Commands that write, where the disk takes only so much: one line, exit code 2, nothing half-written.

Every other try has a real small disk where one can be mounted; the others have files that may not grow.
"""

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.tally import Tally
from tests.fuzz.workbench import Job, finish, fuzz_jobs, leftovers, put_old

SPARE = 64 * 1024
"""Bytes of a small disk beyond those of the files: folders, blocks that are not full."""


def fuzz(count: int, seed: int) -> Tally:
    return fuzz_jobs(count, seed, _one_disk)


def _one_disk(job: Job, out: Path, expected: Path, _: float, seed: int) -> tuple[str, int, str]:
    """One try, as `Tally.add` takes it."""
    files = [expected] if expected.is_file() else [file for file in expected.rglob("*") if file.is_file()]
    drawn, sizes = random.Random(seed), [file.stat().st_size for file in files]
    try:
        if seed % 2:
            with small_disk(out.parent, drawn.randrange(4096, sum(sizes) + SPARE)) as mounted:
                return _one_run(job, out, expected, seed, None if mounted else drawn.randrange(max(sizes)))
        return _one_run(job, out, expected, seed, drawn.randrange(max(sizes)))
    except TimeoutError as error:
        return "hung", seed, str(error)


def _one_run(job: Job, out: Path, expected: Path, seed: int, file_bytes: int | None) -> tuple[str, int, str]:
    try:
        put_old(job, out)
    except OSError:
        return "refused", seed, "a disk without room for what was there"
    before = {path.name for path in out.parent.iterdir()}
    ended = finish(job.arguments(out), file_bytes=file_bytes)
    where = f"{job.name}, {'a small disk' if file_bytes is None else f'files of at most {file_bytes} bytes'}: "
    outcome, detail = ended.judge()
    if outcome not in ("answered", "refused"):
        return outcome, seed, where + detail
    look = job.look if outcome == "refused" else job.final
    fault = look(out, expected) or leftovers(out, before)
    if fault:
        return "wrong", seed, where + fault
    if file_bytes is not None and outcome == "refused":  # with room, the same command ends
        again = finish(job.arguments(out))
        fault = again.text[-400:] if again.status else job.final(out, expected) or leftovers(out, before)
        if fault:
            return "wrong", seed, f"{where}with room then: {fault}"
    return outcome, seed, ""


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[bool]:
    """Mounts a disk in memory of `size` bytes on a folder; False where this process may not."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=True)
