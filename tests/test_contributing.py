"""CONTRIBUTING.md: its scorer is added by the very lines that it shows; its files and those of the overview exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_model
from PIL import Image

from arr_coc.modeling.scorers import SCORERS
from arr_coc_cli import main

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.fixture
def scorer() -> Iterator[str]:
    """The name under which the documented lines register their scorer, as long as a test lasts."""
    (block,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)
    known = set(SCORERS)
    exec(compile(block, "CONTRIBUTING.md", "exec"), {})
    (name,) = set(SCORERS) - known
    yield name
    del SCORERS[name]


def test_the_scorer_is_ten_lines(scorer: str) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    assert f'strategy="{scorer}"' in CONTRIBUTING


def test_generate_knows_it_by_name(scorer: str) -> None:
    answer = tiny_model().generate(Image.new("RGB", (128, 128)), "What?", strategy=scorer, return_fetch=True, budget=4)
    assert answer.fetch.strategy == scorer
    assert sorted(answer.fetch.positions[0].tolist()) == [[7, 7], [7, 8], [8, 7], [8, 8]]  # of 16 x 16 patches


def test_evaluate_knows_it_by_name(scorer: str, checkpoint: Path, picture: Path, tmp_path: Path) -> None:
    data, result = tmp_path / "data.jsonl", tmp_path / "result.json"
    record: dict[str, Any] = {"image": str(picture), "question": "What?", "answers": ["that"], "boxes": [[0, 0, 9, 9]]}
    data.write_text(json.dumps(record) + "\n")
    command = [
        "evaluate",
        str(data),
        "--model",
        str(checkpoint),
        "--strategies",
        f"none,{scorer}",
        "--json",
        str(result),
    ]
    assert main(command) == 0
    assert scorer in result.read_text()


def test_without_those_lines_it_is_unknown() -> None:
    with pytest.raises(ValueError, match="expected one of .*; got 'centre'"):
        tiny_model().generate(Image.new("RGB", (128, 128)), "What?", strategy="centre")


def test_the_overview_names_every_file_of_the_model() -> None:
    named = set(re.findall(r"`(\w+\.py)`", ARCHITECTURE))
    held = {path.name for path in (ROOT / "modeling").glob("*.py")} - {"__init__.py"}
    assert held <= named
    folders = {path.name for path in (ROOT / "arr_coc").iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(re.findall(r"^\| `(\w+)/`", ARCHITECTURE, re.MULTILINE))


def test_every_link_and_folder_exists() -> None:
    for text, folder in ((CONTRIBUTING, ROOT), (ARCHITECTURE, ROOT / "docs")):
        assert all((folder / link).exists() for link in re.findall(r"\]\((?!http)([^)#]+)\)", text))
    assert all(
        (ROOT / name).exists()
        for name in re.findall(r"`((?:tests|arr_coc|examples|hub_configs)/[\w/.]*)`", CONTRIBUTING + ARCHITECTURE)
    )
    assert all((ROOT / name).is_file() for name in re.findall(r"pytest (tests/\w+\.py)", CONTRIBUTING))
