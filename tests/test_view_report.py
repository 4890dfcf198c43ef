"""The table of A4 pages, documents, pairs and clips: what it renders, what it asks, what it counts."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_model
from PIL import Image

from benchmarks import view_report
from benchmarks.view_report import Measured, counting_views, line_of


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(text={"max_position_embeddings": 4096})


def test_comparisons_are_asked_apart_and_pages_are_rendered_once(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(view_report.DATA_SETS, "invoices", {**view_report.DATA_SETS["invoices"], "size": 700})
    options: dict[str, Any] = {"questions": 3, "seed": 1, "split": "test"}
    lines = view_report.view_report(model, tmp_path, only=["invoices", "pairs"], **options)
    assert [line.name for line in lines] == [
        "invoices, all tiles", "invoices, tiles asked for", "pairs, comparisons", "pairs, single questions",
    ]  # fmt: skip
    everything, asked, comparisons, single = lines
    assert everything.count == asked.count == 3 and comparisons.count + single.count == 3
    assert everything.views > asked.views > 0 and comparisons.right is None and single.right is not None
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4 and f"{asked.views / everything.views:.1%}" in printed[1]
    assert "%" not in printed[0][-8:]
    monkeypatch.setattr(view_report, "write_questions", None)  # they are there
    again = view_report.view_report(model, tmp_path, only=["pairs"], **options)
    assert again == lines[2:]


def test_the_documented_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[1]
    (line,) = re.findall("^python -m benchmarks.view_report.*$", (root / "docs" / "views.md").read_text(), re.M)
    monkeypatch.chdir(root)
    less = ["--out", str(tmp_path), "--questions", "2", "--only", "pairs"]
    monkeypatch.setattr("sys.argv", ["view_report", *shlex.split(line)[3:], *less])
    view_report.main()
    assert "pairs, comparisons" in capsys.readouterr().out and (tmp_path / "pairs-320-test-7-2").is_dir()


def test_fewer_questions_leave_lines_out(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first question about a pair compares its pages."""
    lines = view_report.view_report(model, tmp_path, only=["pairs"], questions=1, seed=1, split="test")
    assert [line.name for line in lines] == ["pairs, comparisons"]
    monkeypatch.setattr("sys.argv", ["view_report", "--out", str(tmp_path), "--questions", "0"])
    with pytest.raises(SystemExit):
        view_report.main()
    assert "--questions: expected at least 1; got 0" in capsys.readouterr().err


def test_views_are_counted_within_alone(model: Any) -> None:
    image = Image.new("RGB", (100, 100), "white")
    with counting_views(model) as views:
        model.encode_image([image, image])
    model.encode_image(image)
    assert views == [2]


def test_a_line_without_right_sources() -> None:
    line = Measured("clips", 2, {"value": 0.5, "low": 0.1, "high": 0.9}, None, 60)
    assert "50.0% [10.0%, 90.0%]" in line_of(line, []) and line_of(line, []).rstrip().endswith("60")
