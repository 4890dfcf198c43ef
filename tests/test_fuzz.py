"""Every part of `make fuzz`, small, and the frame that counts."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.fuzz.apart import run_apart
from tests.fuzz.parts import PARTS, fuzz
from tests.fuzz.tally import EXAMPLES, FAULTS, Tally


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
