"""CONTRIBUTING.md's scorer of ten lines, registered as it is there, works by name wherever the package's own do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Cli, refuses, tiny_model
from PIL import Image

from arr_coc.data.records import Record
from arr_coc.evaluation import evaluate
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.scorers import SCORERS

ROOT = Path(__file__).parents[1]


@pytest.fixture
def darkness() -> Any:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.S)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 10
    try:
        exec(compile(code, "CONTRIBUTING.md", "exec"), {})
        yield
    finally:
        SCORERS.pop("darkness", None)


def page() -> Image.Image:
    """White, with one dark square in the second row of patches (of 8 px)."""
    image = Image.new("RGB", (128, 128), "white")
    image.paste("black", (24, 8, 32, 16))
    return image


def test_ten_lines_are_a_scorer_that_commands_know(darkness: None, tmp_path: Path, cli: Cli, checkpoint: Path) -> None:
    model = tiny_model()
    answer = model.generate(page(), "What?", strategy="darkness", budget=1, return_fetch=True, max_new_tokens=1)
    assert answer.fetch.positions.tolist() == [[[1, 3]]]
    page().save(tmp_path / "page.png")
    records = [Record(image=tmp_path / "page.png", question="What?", answers=("x",), line=1)]
    result = evaluate(model, records, ["darkness", "none"], progress=False)
    assert result["strategies"]["darkness"]["n"] == 1
    page().save(tmp_path / "page.png")
    line = {"image": "page.png", "question": "What?", "answers": ["x"]}
    (tmp_path / "data.jsonl").write_text(json.dumps(line) + "\n")
    model = ("--model", checkpoint)
    rule = {"decision": "GO", "if": {"arm": "darkness", "above": "none", "by": 2}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"rules": [rule], "otherwise": {"decision": "INCONCLUSIVE"}}))
    code, out, err = cli("ask", tmp_path / "page.png", "What?", "--strategy", "darkness", "--json", *model)
    assert code == 0 and json.loads(out)["strategy"] == "darkness", err
    code, out, err = cli("evaluate", tmp_path / "data.jsonl", "--strategies", "darkness", "--allocators", "all", *model)
    assert code == 0 and all(f"darkness+{name}" in out for name in ALLOCATORS), err
    arms = ("--arms", "none,darkness", "--rules", tmp_path / "r.yaml")
    code, out, err = cli("evaluate", tmp_path / "data.jsonl", *arms, *model)
    assert code == 0 and " darkness " in out, err


def test_without_registration_the_name_is_unknown() -> None:
    refuses("strategy: expected one of", tiny_model().generate, page(), "What?", strategy="darkness")


def test_the_map_names_every_file_of_modeling() -> None:
    """A reader of the map finds every file, and every file that it names is there."""
    named = set(re.findall(r"`(\w+\.py)`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    files = {path.name for path in (ROOT / "modeling").glob("*.py")} - {"__init__.py"}
    assert files <= named and {name for name in named if not (ROOT / "modeling" / name).is_file()} == set()
