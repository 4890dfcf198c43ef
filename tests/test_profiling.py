"""The benchmarks measure what they say; `arr-coc info --stats` prints what comes out of every stage."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from published import assembled

from arr_coc.cli import main
from arr_coc.profiling.assembling import LIMIT


def test_assembling_holds_one_file_and_one_group(tmp_path: Path) -> None:
    """105 MB in files of at most 37 MB: who held the model, or all pages of an input, would need twice the limit.

    In a process of its own: what this one has freed would be used again, and other tests' garbage be measured.
    """
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux' /proc")
    command = [sys.executable, "-m", "arr_coc.profiling.assembling", "--scale", "8", "--max-shard-size", "16MB"]
    done = subprocess.run([*command, "--folder", str(tmp_path)], capture_output=True, text=True, timeout=600)
    if "clear_refs" in done.stderr:
        pytest.skip("this system does not let the peak be reset")
    assert done.returncode == 0, done.stderr
    found = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines() if "MiB" in line}
    held = found["group"] + found["shard"]
    assert found["total"] > 1.4 * held
    assert held / 2 < found["peak"] <= LIMIT * held, done.stdout


@pytest.mark.parametrize("llm", ["qwen3", "deepseek"])
def test_info_prints_what_comes_out_of_every_stage(
    llm: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assembled(published, tmp_path / "out", llm)
    capsys.readouterr()
    assert main(["info", str(tmp_path / "out"), "--stats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["statistics"]
    assert found["grid encoder"]["shape"] == [1, 16, 16, 16] and found["semantic encoder"]["shape"] == [1, 16, 32]
    assert all(of["std"] > 0 for of in found.values())
    assert main(["info", str(tmp_path / "out"), "--stats"]) == 0
    assert f"{found['grid encoder']['std']:.5f}" in capsys.readouterr().out
