"""Generated pages: the same for a seed, held apart by split, and answers that are where their boxes are."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest
from helpers import refuses
from PIL import Image, ImageDraw

from arr_coc.pages import fonts
from arr_coc.pages.fields import FieldNames, all_fields, domains, terms
from arr_coc.pages.fonts import FontFace
from arr_coc.pages.generator import KINDS, draw_page, layout_page
from arr_coc.pages.jumble import SIDE, jumble
from arr_coc.pages.letters import FACTS
from arr_coc.pages.maker import Fonts
from arr_coc.pages.marked import KINDS as MARKED
from arr_coc.pages.page import ABSENT, UNKNOWN, Line, Question, TextPage
from arr_coc.pages.question_writer import (
    DETAIL,
    GIST,
    NOT_THERE,
    SPREAD,
    TICK,
    TWO_PLACES,
    WORDINGS,
    QuestionWriter,
    is_phrase,
    spoken,
)
from arr_coc.pages.sheet import Sheet, Style, find
from arr_coc.pages.splits import SPLITS, Split, Words, pool, pools, share
from arr_coc.pages.values import KINDS as VALUES
from arr_coc.pages.values import Values
from arr_coc.pages.wear import WEARS, wear


@pytest.fixture(scope="module")
def faces() -> tuple[FontFace, ...]:
    """Faces of the training split: DejaVu at least, which matplotlib brings."""
    try:
        return fonts.find_fonts("train")
    except FileNotFoundError:
        pytest.skip("no font of the training split is installed")


def page_of(kind: str, seed: int, split: Split = "train") -> TextPage:
    return layout_page(np.random.default_rng(seed), split, kind)


def said(page: TextPage, boxes: tuple[tuple[float, float, float, float], ...]) -> str:
    """The characters whose centres lie in boxes, box by box, without spaces."""
    text = ""
    for x0, y0, x1, y1 in boxes:
        for line in page.lines:
            middle = (line.boxes[:, :2] + line.boxes[:, 2:]) / 2
            inside = (middle >= (x0, y0)).all(1) & (middle <= (x1, y1)).all(1)
            text += "".join(char for char, there in zip(line.text, inside, strict=True) if there)
    return "".join(text.split())


@pytest.mark.parametrize("kind", KINDS)
def test_layout_and_drawing_are_the_same_page_for_a_seed(kind: str) -> None:
    first, again = page_of(kind, 3), page_of(kind, 3)
    drawn = draw_page(np.random.default_rng(3), "train", kind)
    other = page_of(kind, 4)
    assert first.image is None and drawn.image is not None
    assert drawn.image.size == drawn.size == first.size and drawn.image.mode == "RGB"
    assert first.kind == kind and first.source.startswith(f"generated: {kind}, ")
    for page in (again, drawn):
        assert [line.text for line in page.lines] == [line.text for line in first.lines]
        assert all((a.boxes == b.boxes).all() for a, b in zip(page.lines, first.lines, strict=True))
        assert page.questions == first.questions
    assert [line.text for line in other.lines] != [line.text for line in first.lines]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", SPLITS)
def test_answers_are_printed_in_their_boxes(kind: str, split: Split) -> None:
    for seed in range(6):
        page = page_of(kind, seed, split)
        assert page.questions
        for question in page.questions:
            assert question.text.strip() and all(question.answers)
            if question.kind == SPREAD and not question.boxes:
                assert question.answers[0].isdecimal()  # it counts
            elif question.kind in (DETAIL, SPREAD):
                answer = "".join(question.answers[0].split())
                assert question.boxes and said(page, question.boxes) == answer, (page.source, question)
            elif question.kind == TWO_PLACES:
                assert len(question.boxes) >= 2
                for word in question.answers[0].replace(" and ", " ").replace(",", "").split():
                    assert word in said(page, question.boxes).replace(",", ""), (page.source, question)
            elif question.kind == ABSENT:
                assert question.answers == (NOT_THERE,) and not question.boxes and not question.label_boxes
            else:
                assert question.kind in (GIST, TICK, *MARKED)


@pytest.mark.parametrize("kind", KINDS)
def test_every_line_lies_on_its_page_and_none_on_another(kind: str) -> None:
    for seed in range(8):
        page = page_of(kind, seed)
        boxes = np.array([[*line.boxes[:, :2].min(0), *line.boxes[:, 2:].max(0)] for line in page.lines])
        assert (boxes[:, :2] >= -1).all() and (boxes[:, 2:] <= np.array(page.size) + 1).all(), page.source
        for a, b in combinations(range(len(boxes)), 2):
            wide = min(boxes[a, 2], boxes[b, 2]) - max(boxes[a, 0], boxes[b, 0])
            high = min(boxes[a, 3], boxes[b, 3]) - max(boxes[a, 1], boxes[b, 1])
            assert wide <= 2 or high <= 1.5, (page.source, page.lines[a].text, page.lines[b].text)


@pytest.mark.parametrize("scale", [1, 2])
def test_ink_lies_in_the_boxes_of_characters(scale: int, faces: tuple[FontFace, ...]) -> None:
    sheet, face = Sheet(400, 200), next(face for face in faces if not face.italic)
    lines = [
        sheet.write("Hamburg 12.50 xyz", 20, 60, Style(face, 24)),
        sheet.write("TOTAL", 380, 130, Style(face, 31), "right"),
    ]
    ink = 255 - np.asarray(sheet.draw(scale=scale).convert("L")).astype(int)
    room = np.zeros_like(ink)
    for line in lines:
        for char, (x0, y0, x1, y1) in zip(line.text, line.boxes, strict=True):
            deep = 0.4 * (y1 - y0)  # descenders
            room[int(y0 - 3) : int(y1 + deep), int(x0 - 2) : int(x1 + 2)] = 1
            own = ink[int(y0) : int(y1) + 1, int(x0) : int(x1) + 1]
            assert char == " " or own.max() > 100, char
    assert ink.sum() > 20_000 and (ink * (1 - room)).sum() < 0.005 * ink.sum()  # swashes
    assert lines[1].box[2] == pytest.approx(380) and lines[0].boxes[0, 3] == 60


def test_characters_that_the_face_lacks_and_unknown_splits_and_kinds_are_refused(faces: tuple[FontFace, ...]) -> None:
    style = Style(faces[0], 20)
    assert style.printable("ab\U000f0000  c\u3042") == "ab c"
    assert style.printable("x \u2013 y") in ("x \u2013 y", "x - y")
    refuses("expected characters that .* has; got none", Sheet(100, 100).write, "\u3042", 0, 50, style)
    with pytest.raises(ValueError, match="split: expected one of train, validation, test; got 'dev'"):
        layout_page(np.random.default_rng(0), "dev")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind of generated page: expected one of .*receipt.*; got 'poem'"):
        layout_page(np.random.default_rng(0), "train", "poem")
    refuses("small: expected at least 5 items; got 3", share, ("a", "b", "c"), "train", "small", core=2)


def test_parts_of_lines_are_found_across_their_ends(faces: tuple[FontFace, ...]) -> None:
    sheet, style = Sheet(300, 300), Style(faces[0], 20)
    pieces, end = sheet.paragraph("one two three four five six seven", 10, 40, 120, style, 1.5)
    assert len(pieces) > 2 and end == 40 + len(pieces) * 30 and all(piece.box[2] <= 131 for piece in pieces)
    last, first = pieces[0].text.split()[-1], pieces[1].text.split()[0]
    found = find(pieces, f"{last} {first}")
    assert [part.text for part in found] == [last, first]
    assert found[1].boxes[0, 0] == pieces[1].boxes[0, 0] == 10
    assert find(pieces, "eight") == []
    refuses("expected a part of", pieces[0].part, "eight")


def lowered(names: object) -> set[str]:
    return {str(name).casefold() for name in names}  # type: ignore[attr-defined]


def test_splits_share_no_names_wordings_formats_or_layouts() -> None:
    names = {split: lowered(name for field in all_fields(split) for name in field.names) for split in SPLITS}
    own = {split: lowered(term for each in terms().values() for term in each[split]) for split in SPLITS}
    for one, two in combinations(SPLITS, 2):
        assert not (names[one] | own[one]) & (names[two] | own[two])
        for kind, texts in WORDINGS.items():
            core = min(4, len(texts) - 4)
            assert not set(share(texts, one, kind, core)) & set(share(texts, two, kind, core))
        assert not set(map(str, share(FACTS, one, "fact"))) & set(map(str, share(FACTS, two, "fact")))
        for name, (core, _) in pools().items():
            assert not core or not set(pool(name, one)) & set(pool(name, two)), name
        drawn = [
            {getattr(Words(Random(0), split), kind)() for kind in ("noun", "adjective", "verb") for _ in range(1)}
            for split in (one, two)
        ]
        assert not drawn[0] & drawn[1]
    assert min(len(names[split]) for split in SPLITS) >= 80


def test_pages_of_a_split_ask_in_its_own_words() -> None:
    """Word for word: no question of a validation or test page could have been asked about a training page's field."""
    texts: dict[Split, set[str]] = {}
    for split in SPLITS:
        writer = QuestionWriter(Random(0), split)
        texts[split] = {
            writer.named("zebra", kind).casefold().rstrip("?.:")
            for kind in ("date", "amount", "person", "words")
            for _ in range(300)
        }
    for one, two in combinations(SPLITS, 2):
        assert len(texts[one]) > 8 and not texts[one] & texts[two]


def test_there_are_wordings_and_names_enough_and_no_page_has_one_twice() -> None:
    assert sum(map(len, WORDINGS.values())) >= 1000
    assert len(lowered(text for texts in WORDINGS.values() for text in texts)) >= 900
    fields = [field for each in domains().values() for field in each]
    assert len(fields) >= 500 and {field.kind for field in fields} <= set(VALUES)
    assert len(lowered(name for field in fields for name in field.names)) == sum(len(field.names) for field in fields)
    assert spoken("Date of Birth:") == "date of birth"
    assert spoken("VAT Number") == "VAT number" and spoken("TOTAL") == "total"
    assert is_phrase("Ship to") and is_phrase("Born") and not is_phrase("Date of birth")
    for seed in range(20):
        names = FieldNames(Random(seed), "test")
        fields = names.draw(names.domain(), 20)
        shown = [name.casefold() for field in fields for name in field.names]
        assert len(fields) == 20 and len(set(shown)) == len(shown)


def test_an_eighth_of_the_questions_is_about_what_is_not_there() -> None:
    questions: list[Question] = []
    for seed in range(200):
        questions += layout_page(np.random.default_rng(seed), "train").questions
    assert 0.08 < sum(question.absent for question in questions) / len(questions) < 0.16
    assert {question.kind for question in questions} == {DETAIL, SPREAD, TWO_PLACES, GIST, TICK, ABSENT}
    assert all(len(page_of("form", seed).questions) <= 14 for seed in range(5))


def test_values_keep_their_formats_until_they_are_drawn_anew() -> None:
    values = Values(Random(5), "train")
    values.grouping, values.currency, values.negative = (".", ","), "{} €", "({})"
    assert (
        values.money(1234.5) == "1.234,50 €" and values.money(-3, 0) == "(3 €)" and values.money(7, bare=True) == "7,00"
    )
    day = values.day(2020, 2020).replace(month=3, day=2, hour=15, minute=4)
    values.date_format, values.time_format = "%-d{th} %B %Y", "%-I:%M {ap}"
    assert values.date(day) == "2nd March 2020" and values.time(day) == "3:04 pm"
    assert all(kind(values) for kind in VALUES.values() for _ in range(20))


def test_families_are_used_for_what_they_are(faces: tuple[FontFace, ...]) -> None:
    families = Fonts(faces)
    known = {face.family for face in faces}
    if {"DejaVu Sans", "DejaVu Sans Mono"} <= known:
        assert families.use("DejaVu Sans") == "plain" and families.use("DejaVu Sans Mono") == "mono"
    drawn = families.draw(Random(0), "mono")
    assert not drawn.regular.italic and drawn.bold.family == drawn.regular.family


def test_a_jumble_is_full_of_print_that_lies_where_its_boxes_are(faces: tuple[FontFace, ...]) -> None:
    page, again = (jumble(np.random.default_rng(3), "train") for _ in range(2))
    assert page.image is not None and again.image is not None
    assert page.image.tobytes() == again.image.tobytes()
    assert page.size == page.image.size == (SIDE, SIDE)
    assert sum(len(line.text) for line in page.lines) > 1000
    grey = np.asarray(page.image.convert("L")).astype(int)
    paper = np.bincount(grey.ravel()).argmax()
    inked = 0
    letters = [(char, box) for line in page.lines for char, box in zip(line.text, line.boxes, strict=True)]
    letters = [box for char, box in letters if char.isalnum() and (box > 4).all() and (box < SIDE - 4).all()]
    for x0, y0, x1, y1 in np.array(letters).round().astype(int):
        inked += np.abs(grey[y0 : y1 + 1, x0 : x1 + 1] - paper).max() > 40
    assert inked / len(letters) > 0.97


# ---- Wear: every kind keeps size and text, and boxes stay where the print is
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
