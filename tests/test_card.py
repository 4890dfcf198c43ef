"""The cards of shipped checkpoints say what their evaluations measured, and the checkpoints keep to their limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from arr_coc.cli.evaluate import table
from arr_coc.data.records import read_records
from arr_coc.loading import SHIPPED
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig

ROOT = Path(__file__).parents[1]
TINY, DEFAULT = ROOT / "hub_configs" / "arr-coc-tiny", ROOT / SHIPPED
HELD_OUT = ROOT / "examples" / "held_out" / "data.jsonl"


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["strategies"]


MEASURING = ROOT / "docs" / "measuring.md"


@pytest.mark.parametrize(
    ("folder", "page"), [(TINY, TINY / "README.md"), (DEFAULT, DEFAULT / "README.md"), (DEFAULT, MEASURING)]
)
def test_the_table_is_the_evaluation(folder: Path, page: Path) -> None:
    """`arr-coc evaluate examples/held_out/data.jsonl --model FOLDER --json FOLDER/evaluation.json` prints it."""
    assert table(results(folder)) in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", [TINY, DEFAULT])
def test_the_evaluation_is_of_the_whole_held_out_set(folder: Path) -> None:
    assert {row["n"] for row in results(folder).values()} == {len(read_records(HELD_OUT))}


@pytest.mark.parametrize("folder", [TINY, DEFAULT])
def test_the_checkpoint_keeps_to_its_limits(folder: Path) -> None:
    config = ArrCocConfig.from_pretrained(folder)
    assert all(path.stat().st_size <= 16 * 2**20 for path in folder.rglob("*") if path.is_file())
    assert config.vision_config.image_size >= 256 and config.vision_config.grid_size >= 32
    patches = config.vision_config.num_patches
    assert config.vision_tokens() == (patches // 16, round(patches * 273 / 4096))
