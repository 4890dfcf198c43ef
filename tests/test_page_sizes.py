"""The table of the benchmark that asks one page at many sizes."""

import pytest
from helpers import tiny_model

from benchmarks.page_sizes import Line, page_sizes, report, verdict


def line(name: str, right: int, seconds: float, asked: int = 50) -> Line:
    """A line with the first `right` of its questions right."""
    scores = {(0, str(number)): float(number < right) for number in range(asked)}
    return Line(name, scores, {"value": right / asked, "low": 0.0, "high": 1.0}, {"document": 1.0}, seconds, 1.0)


def test_the_verdict_compares_with_the_best_size() -> None:
    lines = [line("256 px", 44, 1.0), line("512 px", 45, 2.0), line("1024 px", 45, 1.5), line("600 dpi", 43, 6.1)]
    found = verdict(lines)
    assert (found.best.name, found.worst.name, found.slowest.name) == ("512 px", "600 dpi", "600 dpi")
    assert found.below == pytest.approx(4) and found.times == pytest.approx(6.1 / 1.5) and not found.passed
    assert verdict(lines[:3]).passed and verdict(lines[:3]).below == pytest.approx(2)
    text = report(lines)
    assert "600 dpi is 4.0 points below 512 px" in text and text.endswith("Not passed.")
    assert "4.1 times the best's seconds (at most 4)" in text


def test_sizes_are_compared_for_the_questions_of_both() -> None:
    """Print that is too small at a size is not asked about there."""
    lines = [line("256 px", 10, 1.0, asked=10), line("512 px", 10, 1.0, asked=20), line("1024 px", 11, 1.0, asked=20)]
    found = verdict(lines)
    assert (found.worst.name, found.best.name) == ("512 px", "1024 px") and found.below == pytest.approx(5)


@pytest.mark.parametrize(("pages", "questions", "sizes"), [(1, 1, [64]), (2, 0, [64]), (2, 1, [])])
def test_a_page_of_each_kind_is_needed(pages: int, questions: int, sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="page_sizes: expected a page for each of 2 kinds, a question and a size; got"):
        page_sizes(
            tiny_model(), pages=pages, questions=questions, sizes=sizes, resolutions=[], kinds=["document", "photo"]
        )
