"""The experiment of attached-pages: its scripts train a tiny share of a model, ask it, and report what is stored."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts import called, loaded_scripts

FOLDER = Path(__file__).parents[1] / "examples" / "experiments" / "attached-pages"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return loaded_scripts(FOLDER, ("small_qwen", "train", "evaluate", "report"), monkeypatch)


def test_the_scripts_train_ask_and_report(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = ("--steps", "2", "2", "2", "2", "--batch", "2", "--held-out", "2")
    called(scripts["train"], monkeypatch, "--out", tmp_path, *sizes)
    predictions = tmp_path / "predictions.csv"
    options = ("--model", tmp_path, "--pages", "1", "--scorer", "2", "1", "--out", predictions)
    called(scripts["evaluate"], monkeypatch, *options)
    called(scripts["report"], monkeypatch, "--predictions", predictions, "--out", tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert "| keep all | 144 |" in table and "| realizer | 36 |" in table and "| smaller image | 36 |" in table
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")


def test_the_stored_predictions_give_the_stored_table(scripts: dict[str, ModuleType]) -> None:
    report = scripts["report"]
    assert report.table(report.read(FOLDER / "predictions.csv")) == (FOLDER / "table.md").read_text()
