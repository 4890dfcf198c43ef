"""Whoever writes a folder does so alone, and what is damaged in one is said in one line."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Cli

from arr_coc import files
from arr_coc.files import sole_writer

ROOT = Path(__file__).parents[1]
DATA = ROOT / "examples" / "held_out" / "data.jsonl"


def refused(result: tuple[int, str, str]) -> str:
    """The one line of a command that was refused."""
    code, _, err = result
    said = [line for line in err.splitlines() if line.startswith("arr-coc: error: ")]
    assert code == 2 and len(said) == 1 and "Traceback" not in err, err
    return said[0]


def write_recipe(folder: Path, checkpoint: Path, **changes: Any) -> Path:
    stage = {"stage": "allocator", "data": {"path": str(DATA)}, "steps": 1}
    recipe = {"model": str(checkpoint), "start": str(checkpoint), "stages": [stage], **changes}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


def test_a_folder_that_another_process_writes_is_refused(
    cli: Cli, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainings in one folder wrote over each other's checkpoints; two builds replaced each other's output."""
    out, recipe = tmp_path / "out", write_recipe(tmp_path, checkpoint)
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    model = ("--model", checkpoint)
    commands: list[tuple[Any, ...]] = [
        ("train", recipe, "--out", out),
        ("train", recipe, "--out", out, "--adapter"),
        ("build", checkpoint, out),
        ("render", out, "--pages", "1", "--split", "train"),
        ("evaluate", DATA, "--json", out, "--limit", "1", "--strategies", "none", *model),
    ]
    with held(out):
        for command in commands:
            line = refused(cli(*command))
            assert f"{out}: expected no other process to write there; got process {os.getpid()} on " in line, command
    assert not out.exists()


class held:
    """`sole_writer` in another thread, for which a lock of this process is another one's."""

    def __init__(self, out: Path) -> None:
        self.out, self.taken, self.done = out, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with sole_writer(self.out):
            self.taken.set()
            self.done.wait(600)

    def __enter__(self) -> None:
        self.thread.start()
        assert self.taken.wait(60)

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("stages: [", "recipe.yaml: expected YAML; got "),
        ("- stages", "recipe.yaml: expected a mapping with a list of stages; got list"),
        ("stages: [{stage: allocator}]\nmodel: 3", "recipe.yaml: expected text for model; got 3"),
        ("stages: [{stage: allocator}]\nseed: [1]", "recipe.yaml: expected a whole number for seed; got [1]"),
        ("stages: [{stage: allocator}]\ndefaults: [a]", "recipe.yaml: expected a mapping for defaults; got ['a']"),
        ("stages: [{stage: [1]}]", "stages[0]: expected the name of a stage; got [1]"),
        ("stages: [{stage: allocator, 3: 4}]", "stages[0] (allocator): expected settings among "),
    ],
)
def test_a_damaged_recipe_is_one_line(content: str, message: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(content)
    assert message in refused(cli("train", tmp_path / "recipe.yaml", "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_damaged_weights_to_train_from_are_one_line(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    for path in checkpoint.iterdir():
        (start / path.name).write_bytes(path.read_bytes()[: -100 if path.suffix == ".safetensors" else None])
    for options in ((), ("--adapter",)):
        recipe = write_recipe(tmp_path, checkpoint, start=str(start))
        line = refused(cli("train", recipe, "--out", tmp_path / "out", *options))
        assert f"{start}: expected whole .safetensors files; got " in line
    (start / "model.safetensors").rename(start / "pytorch_model.bin")
    assert f"{start}: expected " in refused(cli("train", recipe, "--out", tmp_path / "out"))
