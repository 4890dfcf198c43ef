"""What reports are written with: escaped text, aligned columns, tails of enough timings only."""

from pathlib import Path

import pytest

from arr_coc.evaluation.reporting import Bullets, Code, Figure, Heading, Paragraph, Table, to_html, to_markdown, to_text
from arr_coc.experiments.costs import percentiles


def test_pages_escape_what_models_say(tmp_path: Path) -> None:
    said = "<script>|*`"
    blocks = [
        Heading(said), Paragraph(said, said), Bullets([said, said]), Table([said, "n"], [[said, "1"]]), Code("x < y"),
        Figure("picture", b"jpeg", said), Figure("plot", "<svg/>", said),
    ]  # fmt: skip
    page, text = to_html(said, blocks), to_markdown(said, blocks, tmp_path)
    assert "<script>" not in page and "&lt;script&gt;" in page and "data:image/jpeg;base64,anBlZw==" in page
    assert "<script>" not in text and r"\|\*\`" in text and text.count("\n- &lt;script") == 2
    assert (tmp_path / "picture.jpg").read_bytes() == b"jpeg" and (tmp_path / "plot.svg").read_text() == "<svg/>"


def test_columns_of_text_are_aligned() -> None:
    assert to_text(["arm", "n"], [["a", "100"], ["longer", "1"]]) == "arm       n\na       100\nlonger    1"


def test_the_tail_of_few_timings_is_not_reported() -> None:
    assert percentiles([1.0] * 199) == {"p50": 1.0, "p95": None, "p99": None}
    assert percentiles(list(range(200)))["p99"] == pytest.approx(197.01)
