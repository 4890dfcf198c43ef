"""The table of the benchmark that asks one page at many sizes."""

import pytest
from helpers import tiny_model

from benchmarks.page_sizes import Line, page_sizes, report, verdict


def line(name: str, exact: float, seconds: float) -> Line:
    return Line(name, {"value": exact, "low": 0.0, "high": 1.0}, {"document": exact}, seconds, 1.0)


def test_the_verdict_compares_with_the_best_size() -> None:
    lines = [line("256 px", 0.88, 1.0), line("512 px", 0.9, 2.0), line("1024 px", 0.9, 1.5), line("600 dpi", 0.86, 6.1)]
    found = verdict(lines)
    assert (found.best.name, found.worst.name, found.slowest.name) == ("1024 px", "600 dpi", "600 dpi")
    assert found.below == pytest.approx(4) and found.times == pytest.approx(6.1 / 1.5) and not found.passed
    assert verdict(lines[:3]).passed and verdict(lines[:3]).below == pytest.approx(2)
    text = report(lines, 40)
    assert "600 dpi is 4.0 points below it (at most 3)" in text and text.endswith("Not passed.")
    assert "4.1 times the best's seconds (at most 4)" in text


@pytest.mark.parametrize(("pages", "questions", "sizes"), [(1, 1, [64]), (2, 0, [64]), (2, 1, [])])
def test_a_page_of_each_kind_is_needed(pages: int, questions: int, sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="page_sizes: expected a page for each of 2 kinds, a question and a size; got"):
        page_sizes(
            tiny_model(), pages=pages, questions=questions, sizes=sizes, resolutions=[], kinds=["document", "density"]
        )
