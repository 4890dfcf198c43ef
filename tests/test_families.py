"""The tables of scorers and allocators: a row for every member, costs as counted, answers as evaluated."""

from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_config

from arr_coc.loading import load_config
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.scorers import SCORERS
from benchmarks.families import family_cells, matrix_page, three_digits, updated

ROOT = Path(__file__).parents[1]


def test_the_pages_tables_are_the_registries_and_cost_what_is_counted() -> None:
    """A member without a row is refused; counts that have changed would change the text."""
    text = (ROOT / "docs" / "fetching.md").read_text(encoding="utf-8")
    assert updated(text, family_cells(load_config(str(ROOT / "hub_configs" / "arr-coc-tiny")))) == text


def interval(value: float) -> dict[str, Any]:
    return {"exact_match": {"value": value, "low": value / 2, "high": 1.0}}


def test_a_scorer_is_measured_with_the_models_allocator_and_the_other_way_round() -> None:
    rows = {"none": interval(0), "saliency+topk": interval(0.5), "saliency+window": interval(0.9),
            "realizer+topk": interval(0.25), "realizer+window": interval(0.75)}  # fmt: skip
    families = family_cells(tiny_config(), {"metric": "exact_match", "strategies": rows})
    (title,) = families["strategy"]["none"].keys() - {"trained", "parameters", "FLOPs"}
    shown = {name: cells[title] for name, cells in families["strategy"].items() if cells[title] != "-"}
    assert shown == {
        "none": "0.0 % [0.0, 100.0]", "saliency": "50.0 % [25.0, 100.0]", "realizer": "25.0 % [12.5, 100.0]",
    }  # fmt: skip
    allocators = families["allocator"]
    assert (allocators["window"][title], allocators["knapsack"][title]) == ("75.0 % [37.5, 100.0]", "-")
    assert list(families["strategy"]) == list(SCORERS) and list(allocators) == list(ALLOCATORS)
    assert families["strategy"]["realizer"]["trained"] == "shipped"
    assert families["strategy"]["experts"]["trained"] == "by recipe"
    assert [name for name, cells in allocators.items() if cells["parameters"] != "0"] == ["tiers"]


def test_tables_are_updated_by_name_and_column_and_wrong_rows_refused() -> None:
    text = "# A\n\n| `strategy` | what | FLOPs |\n|---|---|---|\n| `a` (chosen) | x | 1 |\n| `b` | z | 2 |\n\nend\n"
    cells = {"strategy": {"b": {"FLOPs": "4", "other": "5"}, "a": {"FLOPs": "3"}}}
    assert updated(text, cells) == text.replace("| 1 |", "| 3 |").replace("| 2 |", "| 4 |")
    with pytest.raises(ValueError, match="table of `strategy`: expected rows for b, a, c; got a, b"):
        updated(text, {"strategy": {**cells["strategy"], "c": {}}})
    with pytest.raises(ValueError, match="tables: expected one of `allocator`; got none"):
        updated(text, {**cells, "allocator": {}})
    with pytest.raises(ValueError, match="table: expected a row that begins with a name in backticks; got '| c | z"):
        updated(text.replace("`b`", "c"), cells)


def test_a_page_of_all_pairs() -> None:
    row = {"exact_match": {"value": 0.5, "low": 0.25, "high": 1.0}, "n": 7}
    evaluation = {
        "metric": "exact_match", "strategies": {"none": row, "saliency+topk": row}, "data": "d.jsonl", "budget": 3,
        "date": "2026-01-02T00:00:00", "machine": {"cpus": 2},
    }  # fmt: skip
    page = matrix_page(evaluation)
    assert "7 questions of d.jsonl, a budget of 3" in page and "2026-01-02, 2 CPU cores" in page
    assert page.endswith(
        "| | `topk` |\n|---|---|\n| `none` | 50.0 [25.0, 100.0] |\n| `saliency` | 50.0 [25.0, 100.0] |\n"
    )


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1234, "1.23 k"), (26_400_000, "26.4 M"), (100_900_000, "101 M"),
                        (1_390_000_000, "1.39 G"), (2_000_000_000_000, "2.00 T")],
)  # fmt: skip
def test_counts_have_three_digits(count: int, text: str) -> None:
    assert three_digits(count) == text
