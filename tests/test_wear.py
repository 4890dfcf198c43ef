"""Wear: every kind keeps size and text, and boxes stay where the print is."""

import numpy as np
import pytest
from helpers import refuses
from PIL import Image, ImageDraw

from arr_coc.pages.page import UNKNOWN, Line, Question, TextPage
from arr_coc.pages.wear import WEARS, wear

SIZE = (300, 400)
ALL = sorted(WEARS)


def page(*, level: int = 0, colours: bool = False) -> TextPage:
    """Rows of black blocks for characters, each as wide and high as its box."""
    image = Image.new("RGB", SIZE, (255, 255, 255))
    draw, lines = ImageDraw.Draw(image), []
    for row in range(40, 360, 40):
        boxes = np.array([(x, row, x + 12, row + 16) for x in range(40, 260, 20)], np.float32)
        for x0, y0, x1, y1 in boxes.astype(int).tolist():
            draw.rectangle((x0, y0, x1 - 1, y1 - 1), fill=(level, level, 200 if colours else level))
        lines.append(Line("abcdefghijk", boxes))
    question = Question("Where?", ("a",), ((40.0, 40.0, 52.0, 56.0),), ((240.0, 40.0, 252.0, 56.0),), kind="place")
    return TextPage(image, SIZE, tuple(lines), (question,), kind="blocks")


def levels(worn: TextPage) -> np.ndarray:
    assert worn.image is not None and worn.image.mode == "RGB" and worn.image.size == worn.size == SIZE
    return np.asarray(worn.image.convert("L"), np.float64)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("colours", [False, True])
def test_text_is_where_its_boxes_say(kind: str, colours: bool) -> None:
    drawn = page(colours=colours)
    before = np.asarray(drawn.image).copy()
    for seed in range(3):
        worn = wear(np.random.default_rng(seed), drawn, kinds=[kind])
        seen = levels(worn)
        assert [line.text for line in worn.lines] == ["abcdefghijk"] * 8
        inside, outside = [], []
        for line in worn.lines:
            for x0, y0, x1, y1 in line.boxes.tolist():
                x, y = round((x0 + x1) / 2), round((y0 + y1) / 2)
                inside.append(seen[y - 2 : y + 3, x - 2 : x + 3].mean())
                outside.append(seen[y - 2 : y + 3, x + 9 : x + 12].mean())  # between two blocks
        contrast = np.abs(np.median(outside) - np.median(inside))
        assert contrast > 30, (kind, seed)
        assert (np.abs(np.array(outside) - inside) > contrast / 4).mean() > 0.85
        assert np.abs(np.subtract(worn.lines[0].boxes[0], worn.questions[0].boxes[0])).max() < 1e-3
        assert np.abs(np.subtract(worn.lines[0].boxes[-1], worn.questions[0].label_boxes[0])).max() < 1e-3
    np.testing.assert_array_equal(np.asarray(drawn.image), before)


@pytest.mark.parametrize("kind", ["skewed", "tilted"])
def test_all_ink_lies_in_boxes_that_moved_with_it(kind: str) -> None:
    for seed in range(5):
        worn = wear(np.random.default_rng(seed), page(), kinds=[kind])
        ink = levels(worn)[30:370, 30:270] < 60  # not what comes into view at the edges
        covered = np.zeros(SIZE[::-1], bool)
        for line in worn.lines:
            for x0, y0, x1, y1 in line.boxes.tolist():
                covered[int(y0) : int(y1) + 1, int(x0) : int(x1) + 1] = True
                assert 11 < x1 - x0 < 15 and 14 < y1 - y0 < 19
        assert ink.sum() > 0.7 * 88 * 12 * 16 and not (ink & ~covered[30:370, 30:270]).any()


def test_a_seed_is_a_page() -> None:
    first, again, other = (wear(np.random.default_rng(seed), page()) for seed in (1, 1, 2))
    np.testing.assert_array_equal(levels(first), levels(again))
    assert (levels(first) != levels(other)).any()


def test_what_a_scan_in_black_and_white_swallows_is_unknown() -> None:
    drawn = page(level=240)
    black = page().lines[0]
    assert drawn.image is not None
    ImageDraw.Draw(drawn.image).rectangle((40, 40, 251, 55), fill=(0, 0, 0))
    texts = set()
    for seed in range(10):
        worn = wear(np.random.default_rng(seed), drawn, kinds=["faxed"])
        texts |= {line.text for line in worn.lines[1:]}
        assert len(worn.lines) == len(drawn.lines) and worn.lines[0].boxes.tolist() == black.boxes.tolist()
    assert texts == {UNKNOWN * 11}


def test_characters_that_leave_the_picture_leave_their_line() -> None:
    boxes = np.array([(x, 1, x + 8, 9) for x in range(0, 300, 10)], np.float32)
    text = "ab cd" * 6
    drawn = TextPage(Image.new("RGB", SIZE, (255, 255, 255)), SIZE, (Line(text, boxes),))
    lengths = set()
    for seed in range(10):
        for line in wear(np.random.default_rng(seed), drawn, kinds=["skewed"]).lines:
            assert line.text in text and line.text == line.text.strip()
            assert line.boxes.min() >= 0 and line.boxes[:, 2].max() <= SIZE[0] and line.boxes.dtype == np.float32
            lengths.add(len(line.text))
    assert min(lengths) < 30


def test_bad_requests_say_what_was_expected() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="page: expected one with an image; got one that was laid out and not drawn"):
        wear(rng, TextPage(None, SIZE, ()))
    refuses("wear: expected one of black and white, bled, .*; got 'burnt'", wear, rng, page(), kinds=["burnt"])
