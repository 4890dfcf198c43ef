"""One writer at a time: a second one waits, or says who holds what it wants; a killed one's lock is nobody's."""

import os
import signal
import time
from pathlib import Path

import pytest

from arr_coc.files import sole_writer


def holder(out: Path, seconds: float) -> int:
    """A process that holds `out` for a while; its id."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            with sole_writer(out):
                os.write(write, b"held")
                time.sleep(seconds)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.read(read, 4) == b"held"
    os.close(read)
    os.close(write)
    return child


@pytest.mark.versions
def test_a_second_writer_says_who_holds_it(tmp_path: Path) -> None:
    """Two experiments in one folder mended each other's predictions."""
    out = tmp_path / "out"
    first = holder(out, 60)
    expected = rf"out: expected no other process to write there; got process {first} on .+ since \d{{4}}-"
    with pytest.raises(ValueError, match=expected), sole_writer(out, patience=0.2):
        pass
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    with sole_writer(out, patience=0):
        assert (tmp_path / ".out.lock").read_text().startswith(f"process {os.getpid()} ")
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_waits_for_one_that_is_done_soon(tmp_path: Path) -> None:
    first, began = holder(tmp_path / "out", 1), time.monotonic()
    with sole_writer(tmp_path / "out", patience=60):
        assert time.monotonic() - began < 50
    assert os.waitpid(first, 0)[1] == 0
