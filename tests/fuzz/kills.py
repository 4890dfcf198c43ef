"""kill -9 at a random moment of a command that writes: what is there is old, new or absent, and the command then ends
as if nothing had been."""

import random
from pathlib import Path

from tests.fuzz.tally import Tally
from tests.fuzz.workbench import Job, finish, fuzz_jobs, leftovers, put_old, start


def fuzz(count: int, seed: int) -> Tally:
    return fuzz_jobs(count, seed, _one_kill)


def _one_kill(job: Job, out: Path, expected: Path, seconds: float, seed: int) -> tuple[str, int, str]:
    """One try, as `Tally.add` takes it. Refused: the command was killed; answered: it was done before."""
    put_old(job, out)
    before = {path.name for path in out.parent.iterdir()}
    moment = random.Random(seed).uniform(0.0, seconds)
    running = start(job.arguments(out))
    ended = running.wait(moment)
    killed = ended is None
    if killed:
        running.kill()
    where = f"{job.name} killed after {moment:.3f} of {seconds:.3f} s: "
    fault = job.look(out, expected)
    if fault:
        return "wrong", seed, where + fault
    try:
        again = finish(job.arguments(out))
    except TimeoutError as error:
        return "hung", seed, where + str(error)
    if again.status != 0:
        outcome, detail = again.judge()
        return (outcome if outcome != "refused" else "wrong"), seed, f"{where}the same command then: {detail}"
    fault = job.final(out, expected) or leftovers(out, before)
    if fault:
        return "wrong", seed, where + fault
    return ("refused" if killed else "answered"), seed, ""
