"""The experiment of attached-pages: its scripts train a tiny share of a model, ask it, and report what is stored."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples" / "experiments" / "attached-pages"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    loaded = {}
    for name in ("small_qwen", "train", "evaluate", "report"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        loaded[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded[name])  # the scripts import each other
        spec.loader.exec_module(loaded[name])
    return loaded


def called(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", [str(script.__file__), *map(str, arguments)])
    script.main()


def test_the_scripts_train_ask_and_report(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = ("--steps", "2", "2", "2", "2", "--batch", "2", "--held-out", "2")
    called(scripts["train"], monkeypatch, "--out", tmp_path, *steps)
    predictions = tmp_path / "predictions.csv"
    options = ("--model", tmp_path, "--pages", "1", "--scorer", "2", "1", "--out", predictions)
    called(scripts["evaluate"], monkeypatch, *options)
    called(scripts["report"], monkeypatch, "--predictions", predictions, "--out", tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert "| keep all | 64 |" in table and "| realizer | 16 |" in table and "| smaller image | 16 |" in table
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")


def test_patches_are_those_of_the_processor(scripts: dict[str, ModuleType]) -> None:
    small = scripts["small_qwen"]
    page = small.draw_page(np.random.default_rng(0), "train", lines=(4, 5), digits=(2, 4))
    expected = small.new_processor().image_processor([page.image], return_tensors="pt")
    patches, grid = small.patches_of([np.asarray(page.image)])
    torch.testing.assert_close(patches, expected["pixel_values"], atol=1e-5, rtol=0)
    assert grid.equal(expected["image_grid_thw"])


def test_the_stored_predictions_give_the_stored_table(scripts: dict[str, ModuleType]) -> None:
    report = scripts["report"]
    assert report.table(report.read(FOLDER / "predictions.csv")) == (FOLDER / "table.md").read_text()
