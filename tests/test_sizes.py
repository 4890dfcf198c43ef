"""How large the repository is. No part may outgrow its row in sizes.json, which this command writes:

python tests/test_sizes.py    # a row that grew is told in CHANGELOG.md
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("sizes.json")
PARTS = ("modeling", "arr_coc", *(f"arr_coc/{folder}" for folder in "data evaluation pages serving training".split()))
PARTS += ("tests", "benchmarks", "examples")


def sizes(part: str) -> dict[str, int]:
    """Of all Python files: lines, characters, lines of the longest one, statements that the formatter leaves alone."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / part).rglob("*.py")]
    lines = [text.count("\n") for text in texts]
    skips = sum(len(re.findall(r"^[^\"'\n]*\S.*# fmt: (?:skip|off)$", text, re.MULTILINE)) for text in texts)
    return {"lines": sum(lines), "characters": sum(map(len, texts)), "longest": max(lines), "fmt_skip": skips}


@pytest.mark.parametrize("part", PARTS)
def test_no_part_outgrows_its_figures(part: str) -> None:
    allowed, found = json.loads(TABLE.read_text(encoding="utf-8"))[part], sizes(part)
    grown = {name: (allowed[name], size) for name, size in found.items() if size > allowed[name]}
    assert not grown, f"{part}: expected at most what {TABLE.name} says; got {grown} (allowed, found)"


if __name__ == "__main__":
    rows = ",\n".join(f'  "{part}": {json.dumps(sizes(part))}' for part in PARTS)
    TABLE.write_text("{\n" + rows + "\n}\n", encoding="utf-8")
