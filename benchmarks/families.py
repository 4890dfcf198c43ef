"""The tables of scorers and allocators: the cost of each at the model's sizes, and the accuracy of the answers.

    arr-coc evaluate DATA --strategies all --allocators all --limit 300 --json runs/families.json
    python -m benchmarks.families runs/families.json [--model MODEL] [--write FILE.md]

Parameters and FLOPs are computed from the config. The metric of a scorer is with the model's allocator, that of an
allocator with the model's strategy. Without --write the cells are printed.
"""

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arr_coc.evaluation.reporting import to_text
from arr_coc.files import find_model, run_module, write_text
from arr_coc.loading import load_config
from arr_coc.metrics import METRICS
from arr_coc.model_summary import count_allocators, count_scorers
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.scorers import SCORERS

Cells = dict[str, str]
"""The cells of one row by column."""

UNMEASURED = "-"


def family_cells(config: ArrCocConfig, evaluation: Mapping[str, Any] | None = None) -> dict[str, dict[str, Cells]]:
    """{"strategy": {name: cells}, "allocator": {name: cells}} of every registered scorer and allocator.

    Args:
        config: of the model.
        evaluation: the result of `evaluate` for STRATEGY+ALLOCATOR; None: omit the metric's column.
    """
    fetcher = config.fetcher_config
    strategies: dict[str, Cells] = {}
    for name, of in count_scorers(config).items():
        kept = "no weights" if not SCORERS[name].trained else "shipped" if name in fetcher.scorers else "by recipe"
        counts = {"parameters": f"{of['parameters']:,}", "FLOPs": three_digits(of["flops"])}
        strategies[name] = {"trained": kept, **counts}
    allocators: dict[str, Cells] = {}
    for name, of in count_allocators(config).items():
        cells = {"parameters": f"{of['parameters']:,}", "FLOPs": three_digits(of["flops"])}
        if of["parameters"]:  # only if the configuration makes it trainable
            cells = {column: f"0, or {cell}" for column, cell in cells.items()}
        allocators[name] = cells
    if evaluation is not None:
        metric = METRICS[evaluation["metric"]].title
        for name, cells in strategies.items():
            cells[metric] = _share(evaluation, name, fetcher.allocator)
        for name, cells in allocators.items():
            cells[metric] = _share(evaluation, fetcher.strategy, name)
    return {"strategy": strategies, "allocator": allocators}


def _share(evaluation: Mapping[str, Any], strategy: str, allocator: str, unit: str = " %") -> str:
    """The metric with its interval; strategies that fetch nothing have no allocator."""
    measured = evaluation["strategies"]
    row = measured.get(f"{strategy}+{allocator}", measured.get(strategy))
    if row is None:
        return UNMEASURED
    value, low, high = (100 * row[evaluation["metric"]][name] for name in ("value", "low", "high"))
    return f"{value:.1f}{unit} [{low:.1f}, {high:.1f}]"


def three_digits(count: int) -> str:
    """A count with the unit k, M, G or T: 1.39 G, 26.4 M, 101 M, 0."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            scaled = count / unit
            return f"{scaled:.{max(0, 2 - len(str(int(scaled))) + 1)}f} {name}"
    return str(count)


def updated(text: str, families: Mapping[str, Mapping[str, Cells]]) -> str:
    """Markdown with updated cells in its tables of families.

    A table of a family has its noun in backticks as the head of its first column, and a name in backticks at the
    start of each row. Columns that a table does not have are omitted.

    Raises:
        ValueError: a table is missing, or its rows are not the family's members.
    """
    lines, missing = text.splitlines(), set(families)
    for number, line in enumerate(lines):
        noun = next((noun for noun in missing if line.startswith(f"| `{noun}` |")), None)
        if noun is None:
            continue
        missing.remove(noun)
        head, cells = _split(line), families[noun]
        last = number + 2
        while last < len(lines) and lines[last].startswith("|"):
            last += 1
        rows = {_named(row): _split(row) for row in lines[number + 2 : last]}
        if set(rows) != set(cells) or len(rows) != last - number - 2:
            expected = f"rows for {', '.join(cells)}"
            raise ValueError(f"table of `{noun}`: expected {expected}; got {', '.join(rows)}")
        for place, (name, row) in enumerate(rows.items(), number + 2):
            new = [cells[name].get(column, cell) for column, cell in zip(head, row, strict=True)]
            lines[place] = f"| {' | '.join(new)} |"
    if missing:
        raise ValueError(f"tables: expected one of `{'`, one of `'.join(sorted(missing))}`; got none")
    return "\n".join(lines) + "\n"


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _named(row: str) -> str:
    match = re.match(r"\| `(\w+)`", row)
    if match is None:
        raise ValueError(f"table: expected a row that begins with a name in backticks; got {row[:60]!r}")
    return match[1]


def main() -> None:
    """Prints the cells, or writes them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("evaluation", metavar="JSON", type=Path, help="output of arr-coc evaluate --json")
    parser.add_argument("--model", help="model whose config is used (default: the shipped one)")
    parser.add_argument("--write", metavar="FILE", type=Path, help="Markdown whose tables are updated")
    arguments = parser.parse_args()
    config = load_config(find_model(arguments.model))
    evaluation = json.loads(arguments.evaluation.read_text(encoding="utf-8"))
    families = family_cells(config, evaluation)
    if arguments.write is not None:
        write_text(arguments.write, updated(arguments.write.read_text(encoding="utf-8"), families))
        return
    for noun, rows in families.items():
        head = [noun, *next(iter(rows.values()))]
        print(to_text(head, [[name, *cells.values()] for name, cells in rows.items()]), end="\n\n")


if __name__ == "__main__":
    run_module(main)
