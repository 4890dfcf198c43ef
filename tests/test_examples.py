"""Each script in examples/ runs as its first lines say."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from arr_coc.adapters import part_of_parameter
from arr_coc.training.recipe import load_recipe, train

ROOT = Path(__file__).parents[1]
TINY_2 = ROOT / "hub_configs" / "arr-coc-tiny-2"
SMALL = ["--pages", "2", "1", "--steps", "2"]
SCRIPTS = {
    "ask.py": ["--picture", "OUT/fetched.png"],
    "many_questions.py": [],
    "make_receipt.py": ["OUT/receipt.png"],
    "finetune_scorer_lora.py": [
        *SMALL,
        *"--render vendor,balance,deposit,branch --batch-size 2 --out OUT/adapter".split(),
    ],
    "reinforce_scorer.py": [*SMALL, "--questions", "2", "--draws", "2"],
    "learn_from_feedback.py": "--feedback 16 --steps 1 --rest 1 --pages 1 --out OUT/feedback".split(),
    "sft_trl.py": [*SMALL, "--batch-size", "2", "--out", "OUT/adapter"],
}

SAYS = {
    "finetune_scorer_lora.py": ["before: exact match", "points", " lost, p ", "base weights changed: 0 of 267"],
    "learn_from_feedback.py": [
        "feedback: on 16 answers, ",
        "held-out feedback: ",
        "not promoted: ",
        "in use: checkpoint",
    ],
    "reinforce_scorer.py": ["before: exact match", "after:  exact match", "points", " lost, p "],
    "sft_trl.py": ["before: exact match", "of black images", "after:  exact match", "points"],
}

MARKS = {
    "learn_from_feedback.py": pytest.mark.slow,
    "sft_trl.py": pytest.mark.filterwarnings("ignore"),  # TRL warns of names that transformers has changed since
}


def test_the_list_is_complete() -> None:
    elsewhere = {"ask_server.py", "extract_ray.py"}  # tests/test_serving_load.py, test_extracting.py
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SCRIPTS) | elsewhere


@pytest.mark.parametrize("script", [pytest.param(script, marks=MARKS.get(script, ())) for script in SCRIPTS])
def test_script_runs(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if script == "sft_trl.py":
        pytest.importorskip("trl")
    arguments = [argument.replace("OUT", str(tmp_path)) for argument in SCRIPTS[script]]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    written = [Path(argument) for argument in arguments if argument.startswith(str(tmp_path))]
    said = capsys.readouterr().out
    assert all(path.exists() for path in written) and (written or said)
    assert all(words in said for words in SAYS.get(script, []))


def test_the_client_says_how_to_start_a_server() -> None:
    """Without one it ended in the traceback of its HTTP client."""
    script, image = ROOT / "examples" / "ask_server.py", ROOT / "examples" / "images" / "receipt.png"
    command = [sys.executable, str(script), str(image), "Who?", "--url", "http://127.0.0.1:9/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "expected a server at http://127.0.0.1:9/v1; got no answer: start one with arr-coc serve" in done.stderr


def weights_of(folder: Path) -> dict[str, Tensor]:
    """A checkpoint's weights in float32; the shipped one's are in bfloat16, in several files."""
    shards = map(load_file, sorted(folder.glob("model*.safetensors")))
    return {name: weight.float() for shard in shards for name, weight in shard.items()}


def test_the_recipe_that_reinforces_runs(tmp_path: Path) -> None:
    small = ["steps=1", "warmup=0", "batch_size=2", "data.pages=1", "held_out=null", "reinforcement.draws=2"]
    train(load_recipe(ROOT / "examples" / "reinforce.yaml", [*small, f"cache={tmp_path / 'cache'}"]), tmp_path)
    before, after = weights_of(TINY_2), weights_of(tmp_path / "model")
    changed = {part_of_parameter(name) for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"scorer"}


def test_the_recipe_of_scorers_trains_the_new_ones_alone(tmp_path: Path) -> None:
    """What the shipped checkpoint answers by, and with, stays as it is, to the bit."""
    small = ["steps=2", "warmup=0", "batch_size=2", "data.pages=1", "data.questions=2", "held_out.pages=1"]
    recipe = load_recipe(ROOT / "examples" / "scorers.yaml", [*small, f"cache={tmp_path / 'cache'}"])
    train(recipe, tmp_path)
    before, after = weights_of(TINY_2), weights_of(tmp_path / "model")
    assert all(torch.equal(before[name], after[name]) for name in before)
    new = {name.split(".")[3] for name in after if name not in before}
    assert {f"scorer.{name}" for name in new} == set(recipe.stages[0].trained)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("processes", "launcher"),
    [("1", "python"), ("4", "accelerate launch --config_file EXAMPLES/accelerate/ddp.yaml --num_processes 4")],
)
def test_the_script_of_phases_starts_the_recipe(processes: str, launcher: str, tmp_path: Path) -> None:
    """What it starts runs in test_readme.py (the recipe) and test_many_devices.py (the launcher): here only which."""
    for name in ("python", "accelerate"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\necho "$(basename "$0")" "$@"\n')
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PROCESSES": processes}
    command = ["bash", str(ROOT / "examples" / "train_phases.sh"), "runs/phases", "steps=1"]
    started = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60).stdout
    expected = f"{launcher} -m arr_coc.cli train EXAMPLES/phases.yaml steps=1 --out runs/phases\n"
    assert started == expected.replace("EXAMPLES", str(ROOT / "examples"))
    assert all(Path(word).is_file() for word in started.split() if word.endswith(".yaml"))
