"""Pages of PDFs with their text: what is read, where it is, and what is left out."""

from pathlib import Path

import numpy as np
import pytest
from helpers import refuses
from tiny_pdf import PROSE, text_at, write_pdf

from arr_coc.data.pdf_corpus import is_readable, read_pdf_page
from arr_coc.pages.page import UNKNOWN, TextPage


def read(tmp_path: Path, content: str, dpi: float = 144) -> TextPage:
    return read_pdf_page(write_pdf(tmp_path / "page.pdf", content), 0, dpi)


def texts(page: TextPage) -> list[str]:
    return [line.text for line in page.lines]


def test_boxes_are_advances_from_the_baseline_to_the_height_of_capitals(tmp_path: Path) -> None:
    page = read(tmp_path, text_at(72, 700, "Hip x"))
    assert page.size == (1224, 1584) and page.source.endswith("page.pdf#1")
    (line,) = page.lines
    assert line.text == "Hip x"
    widths = np.array([0.722, 0.222, 0.556, 0.278, 0.5]) * 48  # of Helvetica, at 24 pt and 2 px a pt
    ends = 144 + widths.cumsum()
    np.testing.assert_allclose(line.boxes[:, 2], ends, atol=0.5)
    np.testing.assert_allclose(line.boxes[:, 0], ends - widths, atol=0.5)
    np.testing.assert_allclose(line.boxes[:, 3], (792 - 700) * 2, atol=0.01)
    np.testing.assert_allclose(line.boxes[:, 3] - line.boxes[:, 1], 0.718 * 48, atol=1)


def test_ink_lies_where_the_boxes_say(tmp_path: Path) -> None:
    page = read(tmp_path, text_at(72, 700, "HEFT") + text_at(300, 300, "small", font="F2", size=9))
    ink = np.asarray(page.image.convert("L")) < 128
    seen = np.zeros_like(ink)
    for line in page.lines:
        for x0, y0, x1, y1 in line.boxes.round().astype(int).tolist():
            assert ink[y0:y1, x0:x1].any()
            seen[y0 - 2 : y1 + 2, x0 - 1 : x1 + 1] = True
    assert not (ink & ~seen).any()
    for text in ("hold", "moaner", "86"):
        (line,) = read(tmp_path, text_at(72, 700, text)).lines
        np.testing.assert_allclose(line.boxes[:, 3] - line.boxes[:, 1], 0.718 * 48, rtol=0.08)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (text_at(72, 700, "left") + text_at(300, 700, "right"), ["left", "right"]),
        (text_at(72, 700, "one") + text_at(72, 600, "other"), ["one", "other"]),
        (text_at(150, 700, "second") + text_at(99, 700, "first"), ["first second"]),  # out of order
        ("BT /F1 24 Tf 72 700 Td [(two) -278 (words)] TJ ET", ["two words"]),  # a gap and no space
        ("BT /F1 24 Tf 4 Tc 72 700 Td (LETTERSPACED) Tj ET", ["LETTERSPACED"]),
        (text_at(72, 700, "m") + text_at(93, 708, "2", size=14), ["m2"]),  # superscript
        (text_at(72, 700, "bold") + text_at(72.4, 700, "bold"), ["bold"]),  # printed twice
        (text_at(72, 600, "\\001x", font="F3"), ["fix"]),
        (text_at(72, 700, "caf") + text_at(104, 700, "e") + text_at(106, 700, "\xb4"), ["caf\xe9"]),
        (text_at(72, 700, "log") + "105 699 8 1 re f\n" + text_at(114, 700, "file"), ["log_file"]),  # a rule
        (text_at(72, 700, "seen") + "3 Tr\n" + text_at(72, 600, "hidden"), ["seen"]),
        (text_at(72, 700, "seen") + "1 g\n" + text_at(72, 600, "white"), ["seen"]),
        (text_at(72, 700, "seen") + text_at(-300, 600, "outside"), ["seen"]),
    ],
)
def test_text_is_as_printed(tmp_path: Path, content: str, expected: list[str]) -> None:
    assert texts(read(tmp_path, content)) == expected


def test_a_glyph_without_a_meaning_is_unknown_and_no_space(tmp_path: Path) -> None:
    """Fonts of old have letters at the places of control characters, which were taken for spaces and lost."""
    (line,) = read(tmp_path, text_at(72, 700, "a\\002b", font="F4")).lines
    assert line.text == f"a{UNKNOWN}b"
    (line,) = read(tmp_path, text_at(72, 700, "\\001x", font="F3")).lines
    starts = line.boxes[:, 0]
    assert line.text == "fix" and starts[1] == pytest.approx((starts[0] + starts[2]) / 2, abs=0.1)


def test_text_in_other_directions_and_pictures_without_text_are_unknown(tmp_path: Path) -> None:
    turned = "BT /F1 24 Tf 0 1 -1 0 300 300 Tm (up) Tj ET\n"
    picture = "q 100 0 0 50 400 400 cm BI /W 1 /H 1 /BPC 8 /CS /G /F /AHx ID 80> EI Q\n"
    level, unknown = read(tmp_path, text_at(72, 700, "level") + turned + picture).lines
    assert level.text == "level" and unknown.text == 3 * UNKNOWN
    np.testing.assert_allclose(unknown.boxes[2], (800, 2 * (792 - 450), 1000, 2 * (792 - 400)), atol=0.1)
    assert (unknown.boxes[:2, 2] < 612).all() and (unknown.boxes[:2, 0] > 560).all()
    ground = "q 612 0 0 792 0 0 cm BI /W 1 /H 1 /BPC 8 /CS /G /F /AHx ID c0> EI Q\n"
    assert len(read(tmp_path, ground + PROSE).lines) == 4


def test_a_page_that_is_too_large_is_drawn_at_fewer_dpi(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "poster.pdf", text_at(72, 700, "H"), size=(2000, 4000))
    page = read_pdf_page(path, 0, 150, longest=1000)
    assert page.size == (500, 1000) and page.lines[0].boxes[0, 0] == pytest.approx(72 / 4, abs=0.1)


def test_readable_is_prose_and_neither_a_few_words_nor_garble(tmp_path: Path) -> None:
    assert is_readable(read(tmp_path, PROSE))
    assert not is_readable(read(tmp_path, text_at(72, 700, "a few words")))
    assert not is_readable(read(tmp_path, PROSE.translate({ord(vowel): "x" for vowel in "aeiouy"})))


def test_bad_requests_say_what_was_expected(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "page.pdf", PROSE, PROSE)
    refuses(r"page: expected 0 to 1, the pages of .*page.pdf; got 2", read_pdf_page, path, 2, 100)
    refuses("dpi: expected a number above 0; got 0", read_pdf_page, path, 0, 0)
    (tmp_path / "not.pdf").write_text("text")
    for name in ("not.pdf", "missing.pdf"):
        refuses(rf"{name}: expected a PDF; got ", read_pdf_page, tmp_path / name, 0, 100)
