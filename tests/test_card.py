"""The shipped checkpoint's card says what its evaluation measured, and the checkpoint keeps to its limits."""

import json
from pathlib import Path

import pytest

from arr_coc.data.records import read_records
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc_cli.evaluate import table

ROOT = Path(__file__).parents[1]
TINY = ROOT / "hub_configs" / "arr-coc-tiny"
HELD_OUT = ROOT / "examples" / "held_out" / "data.jsonl"
RESULT = json.loads((TINY / "evaluation.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [TINY / "README.md", ROOT / "README.md"])
def test_the_table_is_the_evaluation(page: Path) -> None:
    """`arr-coc evaluate examples/held_out/data.jsonl --json hub_configs/arr-coc-tiny/evaluation.json` prints it."""
    assert table(RESULT["strategies"]) in page.read_text(encoding="utf-8")


def test_the_evaluation_is_of_the_whole_held_out_set() -> None:
    records = read_records(HELD_OUT)
    assert {row["n"] for row in RESULT["strategies"].values()} == {len(records)}


def test_the_checkpoint_keeps_to_its_limits() -> None:
    config = ArrCocConfig.from_pretrained(TINY)
    size = sum(path.stat().st_size for path in TINY.rglob("*") if path.is_file())
    assert size <= 16 * 2**20
    assert config.vision_config.image_size >= 256 and config.vision_config.grid_size >= 32
    patches = config.vision_config.num_patches
    assert config.vision_tokens() == (patches // 16, round(patches * 273 / 4096))
