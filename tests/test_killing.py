"""Training that is killed goes on exactly: `tests/kill_training.py`, which kills 20 times, at a smaller size."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_training_that_is_killed_goes_on_to_the_same_weights() -> None:
    command = [sys.executable, str(Path(__file__).with_name("kill_training.py")), "--kills", "5", "--steps", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 kills in" in done.stdout and "none loaded" in done.stdout
