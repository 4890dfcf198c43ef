"""The card of arr-coc-tiny-2 says what its evaluation measured, and the checkpoint keeps to its limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from arr_coc.cli.evaluate import table
from arr_coc.data.records import read_records
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "hub_configs" / "arr-coc-tiny-2"
HELD_OUT = ROOT / "examples" / "held_out" / "data.jsonl"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return json.loads((FOLDER / "evaluation.json").read_text(encoding="utf-8"))["strategies"]


def test_the_table_is_the_evaluation(results: dict[str, Any]) -> None:
    """`arr-coc evaluate examples/held_out/data.jsonl --model FOLDER --json FOLDER/evaluation.json` prints it."""
    assert table(results) in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_evaluation_is_of_the_whole_held_out_set(results: dict[str, Any]) -> None:
    assert {row["n"] for row in results.values()} == {len(read_records(HELD_OUT))}


def test_the_checkpoint_keeps_to_its_limits() -> None:
    config = ArrCocConfig.from_pretrained(FOLDER)
    assert all(path.stat().st_size <= 16 * 2**20 for path in FOLDER.rglob("*") if path.is_file())
    assert config.vision_config.image_size >= 256 and config.vision_config.grid_size >= 32
    patches = config.vision_config.num_patches
    assert config.vision_tokens() == (patches // 16, round(patches * 273 / 4096))
