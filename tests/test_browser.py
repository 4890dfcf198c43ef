"""Pages that a browser sets: HTML from fields without a browser, and with one letters that are where it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from arr_coc.cli import main
from arr_coc.pages import fonts
from arr_coc.pages.domains import Page, draw_page
from arr_coc.pages.domains import chromium as browser
from arr_coc.pages.domains.browser import STACKED, make_html, sample_html_style, set_page
from arr_coc.pages.fonts import family_names

SPLITS = ("train", "test")


@pytest.fixture
def draw() -> Callable[..., Page]:
    """Draws a page of the domain."""
    try:
        browser.find_browser()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return lambda number=0, split="test", size=256: draw_page("browser", 3, number, size, split)


class Texts(HTMLParser):
    """The texts whose place is asked for, with the elements that are open around each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str, tuple[str, ...]]] = []
        self.role: str | None = None
        self.feed(html)
        self.close()
        assert not self.open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        known = dict(attrs)
        self.role = known.get("class") if "data-text" in known else None

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.role = None

    def handle_data(self, data: str) -> None:
        if self.role:
            self.texts.append((data, self.role, tuple(self.open)))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("arrangement", ["table", "spread", "inline", "stacked"])
@pytest.mark.parametrize("columns", [1, 2])
def test_html_says_the_fields_in_order_whatever_the_layout(split: str, arrangement: str, columns: int) -> None:
    style = sample_html_style(np.random.default_rng(4), split)
    html = make_html(
        f"{arrangement} {columns} rows",
        style,
        [("Cash & Co", "<b>"), ("Gate", "B'7"), ("Tip", "3")],
        title="A",
        pixels=14,
    )
    mark = ":" if style.colon else ""
    said = [(text, role) for text, role, _ in Texts(html).texts]
    expected = [("A", "heading"), (f"Cash & Co{mark}", "label"), ("<b>", "value")]
    assert said == [*expected, (f"Gate{mark}", "label"), ("B'7", "value"), (f"Tip{mark}", "label"), ("3", "value")]
    within = {around[-2] for _, role, around in Texts(html).texts if role == "value"}
    assert within == ({"td"} if arrangement == "table" else {"div"})


@pytest.mark.parametrize("split", SPLITS)
def test_html_names_font_files_of_its_split_alone(split: str) -> None:
    files = {Path(face.path).as_uri() for face in fonts.find_fonts(split)}
    rng, styles = np.random.default_rng(0), []
    for _ in range(20):
        styles.append(sample_html_style(rng, split))
        html = make_html("table 1 none", styles[-1], [("Gate", "7")], title="", pixels=14)
        named = set(re.findall(r'url\("([^"]+)"\)', html))
        assert named and named <= files and "http" not in html
        assert set(re.findall(r'font-family:"(\w+)"', html)) == {"label", "value", "heading"}
    assert {face.family for style in styles for face in style.faces.values()} <= {*family_names(split)}


def test_without_a_browser_the_error_names_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    browser._browser_of.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["render", str(tmp_path / "pages"), "--domain", "browser"]) == 2
    said = capsys.readouterr().err
    assert "browser: expected one of chromium, " in said and "apt-get install chromium" in said
    assert list(tmp_path.iterdir()) == []


def test_a_browser_that_ends_at_once_is_a_clean_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="browser: expected .*it has ended"):
        browser.Browser("/bin/false")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_there_is_no_ink_of_a_value_outside_its_box(draw: Callable[..., Page]) -> None:
    """On plain paper the pixels around a box are paper, those in its first and last rows are not: it is tight."""
    checked = 0
    for number in range(12):
        page = draw(number, "test", 320)
        if page.layout not in ("spread", "stacked"):
            continue
        pixels = np.asarray(page.image).astype(int)
        for question in page.questions:
            x0, y0, x1, y1 = (round(edge) for edge in question.boxes[0])
            around = pixels[y0 - 2 : y1 + 2, x0 - 2 : x1 + 2]
            ink = np.abs(around - around[0, 0]).max(-1) > 64
            assert ink[2:-2].any(1)[[1, -2]].all(), question
            ink[1:-1, 1:-1] = False
            assert not ink.any(), question
            checked += 1
    assert checked > 5


def digest(number: int) -> tuple[bytes, str]:
    page = draw_page("browser", 3, number, 192, "train")
    return page.image.tobytes(), repr((page.questions, [(line.text, line.boxes.tolist()) for line in page.lines]))


@pytest.mark.slow
def test_a_page_is_the_same_after_others_and_in_another_process(draw: Callable[..., Page]) -> None:
    first = digest(0)
    assert digest(1) != first and digest(0) == first
    with get_context("fork").Pool(1) as pool:  # as DataLoader's workers start, with the parent's browser in sight
        assert pool.apply(digest, (0,)) == first
    assert digest(1) != first, "the parent's browser still runs"


@pytest.mark.slow
def test_pages_that_do_not_fit_are_shrunk_but_not_below_what_can_be_read(draw: Callable[..., Page]) -> None:
    style = sample_html_style(np.random.default_rng(0), "test")
    fields = [(f"field{number}", "7") for number in range(12)]
    html = make_html("inline 1 none", style, fields, title="", pixels=40)
    texts = set_page(html, 256, 6.0)
    assert texts is not None and len(texts) == 24 and max(ink[3] for _, ink in texts) <= 256
    assert set_page(html, 256, 30.0) is None


@pytest.mark.slow
def test_a_font_that_the_browser_takes_for_broken_is_no_page(draw: Callable[..., Page], tmp_path: Path) -> None:
    broken = tmp_path / "broken.otf"
    broken.write_bytes(b"OTTO" + bytes(200))
    face = f'<style>@font-face{{font-family:"v";src:url("{broken.as_uri()}")}} p{{font-family:v}}</style>'
    text = "<body><p data-text>ab</p></body>"
    assert set_page(face + text, 128, 8.0) is None
    assert set_page(text, 128, 8.0) is not None


@pytest.mark.slow
def test_on_stacked_pages_labels_stand_above_their_values(draw: Callable[..., Page]) -> None:
    for split in ("train", "test"):
        page = draw_page("stacked", 3, 0, 256, split)  # type: ignore[arg-type]
        assert page.layout in STACKED[split]  # type: ignore[index]
        assert len(page.questions) >= 4
        for question in page.questions:
            (label,), (value,) = question.label_boxes, question.boxes
            assert label[3] <= value[1] + 2 and abs(label[0] - value[0]) < 12, "above, and flush with it"
