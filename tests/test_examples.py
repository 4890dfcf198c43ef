"""Each script in examples/ runs as its first lines say."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = ["--pages", "2", "1", "--steps", "2"]
SCRIPTS = {
    "ask.py": ["--picture", "OUT/fetched.png"],
    "many_questions.py": [],
    "make_receipt.py": ["OUT/receipt.png"],
    "finetune_scorer_lora.py": [
        "--render", "vendor,balance,deposit,branch", *SMALL, "--batch-size", "2", "--out", "OUT/adapter",
    ],
    "reinforce_scorer.py": [*SMALL, "--questions", "2", "--draws", "2"],
}  # fmt: skip


def test_the_list_is_complete() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_runs(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [argument.replace("OUT", str(tmp_path)) for argument in SCRIPTS[script]]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    if script == "make_receipt.py":
        from arr_coc.data import find_fonts

        try:
            find_fonts("test")
        except FileNotFoundError as error:
            pytest.skip(str(error))
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    written = [Path(argument) for argument in arguments if argument.startswith(str(tmp_path))]
    assert all(path.exists() for path in written) and (written or capsys.readouterr().out)


def test_the_schedule_of_phases_runs_as_a_script(tmp_path: Path) -> None:
    small = ["steps=1", "warmup=0", "batch_size=2", "data.pages=1", "held_out.pages=1"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(ROOT / "examples" / "train_phases.sh"), str(tmp_path / "out"), *small]
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=600)
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
