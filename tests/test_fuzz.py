"""Every part of `make fuzz`, small, and the frame that counts."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fuzz.disks import small_disk
from tests.fuzz.parts import PARTS, fuzz, run_apart
from tests.fuzz.tally import EXAMPLES, FAULTS, Tally
from tests.fuzz.workbench import Bench, finish, jobs, start


@pytest.mark.filterwarnings("ignore")  # odd inputs are warned of
@pytest.mark.parametrize("name", PARTS)
def test_odd_inputs_come_to_an_answer_or_the_promised_error(name: str) -> None:
    tally = fuzz(name, PARTS[name].small, seed=0)
    assert not tally.faults, [line for outcome in FAULTS for line in tally.examples[outcome]]
    assert sum(tally.counts.values()) == PARTS[name].small


def test_a_tally_tells_the_outcomes_apart() -> None:
    tally = Tally()

    def refuse() -> None:
        raise ValueError("size: expected 1; got 2")

    tally.attempt(0, lambda: 1, check=lambda _: None)
    tally.attempt(1, refuse, wording="; got ")
    tally.attempt(2, refuse, wording="budget", name="size")
    tally.attempt(3, lambda: 1 / 0)
    tally.attempt(4, lambda: time.sleep(5), limit=0.05)
    tally.attempt(5, lambda: 2, check=lambda number: f"{number} is not 1")
    assert dict(tally.counts) == {"answered": 1, "refused": 1, "wrong": 2, "traceback": 1, "hung": 1}
    assert tally.faults == 4
    assert tally.examples["wrong"] == [
        "seed 2: size: a refusal that says 'size: expected 1; got 2'",
        "seed 5: 2 is not 1",
    ]
    assert tally.examples["traceback"][0].startswith("seed 3: ZeroDivisionError: division by zero (test_fuzz.py:")
    for seed in range(2 * EXAMPLES):
        tally.add("crashed", seed)
    assert len(tally.examples["crashed"]) == EXAMPLES


def kill_the_process() -> Tally:
    tally = Tally()
    for seed in range(3):
        tally.attempt(seed, partial(os.kill, os.getpid(), signal.SIGSEGV) if seed == 2 else int)
    return tally


@pytest.mark.slow
def test_a_part_whose_process_dies_is_a_crash_with_its_seed() -> None:
    tally = run_apart(kill_the_process)
    assert tally.counts == {"crashed": 1}
    assert tally.examples["crashed"][0].startswith("seed 2: the process ended with status -11")


def take_memory() -> Tally:
    before = bytearray(b"1") * (64 * 2**20)
    del before
    tally = Tally()
    tally.attempt(0, lambda: None)
    tally.examples["before"].append(str(tally.memory))
    tally.attempt(1, lambda: len(bytearray(b"1") * (64 * 2**20)))
    return tally


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read as Linux counts it")
def test_a_tally_counts_the_memory_of_its_tries_alone() -> None:
    """In a process of its own: what earlier tests left would be given back during the tries, and count against them."""
    tally = run_apart(take_memory)
    assert int(tally.examples["before"][0]) < 32 * 2**20
    assert 60 * 2**20 < tally.memory < 96 * 2**20


# ---- A disk that takes no more: one line, exit code 2, nothing half-written; with room, the same command ends
NAMES = ("build", "render", "evaluate", "assemble", "train")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield Bench(tmp_path_factory.mktemp("bench"))


def refused(bench: Bench, name: str, out: Path, file_bytes: int | None) -> str:
    """The one line of a command that finds no room for its output, which does not appear."""
    (job,) = [job for job in jobs(bench) if job.name == name]
    outcome, line = finish(job.arguments(out), file_bytes=file_bytes).judge()
    assert outcome == "refused", line
    left = [path.name for path in out.parent.rglob("*") if path.is_file()]
    begun = ("recipe.json", "stage0.json")  # with which settings a training began: another try may go on with them
    assert [name for name in left if not name.endswith(".yaml") and name not in begun] == [], line
    return line


@pytest.mark.filterwarnings("ignore")  # of a fork
@pytest.mark.parametrize("name", NAMES)
def test_files_that_may_not_grow(name: str, bench: Bench, tmp_path: Path) -> None:
    """safetensors' and PyTorch's errors about it were tracebacks in `assemble` and `train`."""
    assert refused(bench, name, tmp_path / "out", 300 if name == "evaluate" else 2000)
    if name == "train":
        (job,) = [job for job in jobs(bench) if job.name == name]
        assert finish(job.arguments(tmp_path / "out")).status == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["assemble", "train"])
def test_a_disk_that_is_full(name: str, bench: Bench, tmp_path: Path) -> None:
    with small_disk(tmp_path, 64 * 1024) as mounted:
        if not mounted:
            pytest.skip("this process may not mount a disk")
        line = refused(bench, name, tmp_path / "out", None)
        assert "No space left on device" in line or "bytes of free disk space" in line


@pytest.mark.filterwarnings("ignore")
def test_a_command_can_be_killed_and_says_so(bench: Bench, tmp_path: Path) -> None:
    """The tests' own: a process that is killed counts as a crash, not as a refusal."""
    (job,) = [job for job in jobs(bench) if job.name == "train"]
    assert start(job.arguments(tmp_path / "out")).kill().judge()[0] == "crashed"
