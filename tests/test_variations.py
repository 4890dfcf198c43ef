"""Photographed pages, questions about what is not there, second turns: seeded, and without a share nothing changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import refuses
from PIL import Image

from arr_coc.cli import main
from arr_coc.cli.common import find_source
from arr_coc.data.formats.own import Rendered
from arr_coc.data.records import NOT_ON_THE_PAGE, read_records
from arr_coc.modeling.image_loading import load_image
from arr_coc.pages.domains import AS_DRAWN, Page, Variations, domain, draw_page
from arr_coc.pages.domains.domain import photograph, unheard_field
from arr_coc.pages.domains.values import FIELDS, UNHEARD_FIELDS
from arr_coc.pages.page import Line, Question
from arr_coc.pages.splits import part

SIZE = 320


def drawn(domain: str, number: int, variations: Variations = AS_DRAWN) -> Page:
    return draw_page(domain, 6, number, SIZE, "test", variations=variations)


def same(first: Page, second: Page) -> bool:
    """Whether two pages show the same and are asked the same."""
    said = [
        (page.questions, [(line.text, line.boxes.tolist()) for line in page.lines], page.layout, page.font, page.fields)
        for page in (first, second)
    ]
    return first.image.tobytes() == second.image.tobytes() and said[0] == said[1]


@pytest.mark.parametrize("domain", ["document", "form"])
def test_what_a_photograph_shows_stands_in_the_boxes(domain: str) -> None:
    """Everything on the page that is no paper comes to lie in the picture, and each box still holds its letters."""
    for number in range(4):
        page, photo = drawn(domain, number), drawn(domain, number, Variations(photo=1.0))
        assert photo.image.size == page.image.size and photo.image.mode == "RGB"
        pixels = np.asarray(photo.image.convert("L"), np.float32)
        assert [q.text for q in photo.questions] == [q.text for q in page.questions]
        assert [line.text for line in photo.lines] == [line.text for line in page.lines]
        for before, after in zip(page.questions, photo.questions, strict=True):
            assert len(after.label_boxes) == len(before.label_boxes)
            for old, new in zip(before.boxes, after.boxes, strict=True):
                assert new != old and 0 <= new[0] < new[2] <= SIZE and 0 <= new[1] < new[3] <= SIZE
                area = [(box[2] - box[0]) * (box[3] - box[1]) for box in (old, new)]
                assert 0.5 < area[1] / area[0] < 3
                x0, y0, x1, y1 = (round(edge) for edge in new)
                assert np.ptp(pixels[y0:y1, x0:x1]) > 25


def test_boxes_of_a_photograph_are_where_the_pixels_went(monkeypatch: pytest.MonkeyPatch) -> None:
    """Light, blur, noise and compression taken away, a black square's pixels are those of its projected box, and of
    the cell of a character that is as large."""
    monkeypatch.setattr(domain, "_exposed", lambda rng, picture: picture)
    monkeypatch.setattr(domain, "_ground", lambda rng, size: Image.new("RGB", (size, size), "white"))
    picture = Image.new("RGB", (200, 200), "white")
    picture.paste((0, 0, 0), (60, 90, 100, 110))
    box = (60.0, 90.0, 100.0, 110.0)
    lines = (Line("a", np.float32([box])),)
    page = Page(picture, (Question("?", ("a",), (box,), (box,), "field"),), "plain", "none", lines)
    for seed in range(5):
        taken = photograph(np.random.default_rng(seed), page)
        dark = np.argwhere(np.asarray(taken.image.convert("L")) < 128)
        top, left, bottom, right = *dark.min(0), *(dark.max(0) + 1)
        assert np.allclose(taken.questions[0].boxes[0], (left, top, right, bottom), atol=1.5)
        assert taken.questions[0].label_boxes == taken.questions[0].boxes
        assert np.allclose(taken.lines[0].boxes[0], taken.questions[0].boxes[0])


@pytest.mark.parametrize("domain", ["document", "form"])
def test_absent_questions_ask_for_fields_that_are_nowhere_on_the_page(domain: str) -> None:
    asked = 0
    for number in range(6):
        page = drawn(domain, number, Variations(absent=0.5))
        shown = "".join(line.text for line in page.lines).lower()
        names = []
        for question in page.questions:
            if question.absent:
                assert question.answers == (NOT_ON_THE_PAGE,) and question.boxes == question.label_boxes == ()
                words = question.text.lower().replace("?", " ").replace(".", " ").split()
                named = [field for field in page.fields if field in words]
                assert len(named) == 1 and named[0] not in shown
                names += named
            else:
                assert question.answers != (NOT_ON_THE_PAGE,) and question.boxes
        assert len(set(names)) == len(names)
        asked += len(names)
    assert asked > 6


def test_shares_of_absent_and_unheard_of_questions_are_those_asked_for() -> None:
    questions = [q for number in range(60) for q in drawn("document", number, Variations(absent=0.25)).questions]
    assert 0.19 < np.mean([question.absent for question in questions]) < 0.31
    assert all(q.absent for number in range(3) for q in drawn("document", number, Variations(absent=1.0)).questions)
    pages = [drawn("document", number, Variations(absent=1.0, unheard=0.5)) for number in range(30)]
    questions = [question for page in pages for question in page.questions]
    assert all(question.answers == (NOT_ON_THE_PAGE,) and not question.boxes for question in questions)
    known = [bool(set(FIELDS) & set(re.findall(r"\w+", question.text.lower()))) for question in questions]
    assert 0.4 < np.mean(known) < 0.6
    assert same(drawn("document", 0, Variations(unheard=0.5)), drawn("document", 0))
    rng, name = np.random.default_rng(0), part(UNHEARD_FIELDS, "test")[0]
    lines = [Line(name.upper(), np.zeros((len(name), 4), np.float32))]
    assert {unheard_field(rng, lines, "test") for _ in range(600)} == {*part(UNHEARD_FIELDS, "test")} - {name}
    assert not set(FIELDS) & {word for field in UNHEARD_FIELDS for word in field.split()}
    training = {unheard_field(rng, lines, "train") for _ in range(200)}
    assert training - set(UNHEARD_FIELDS) and not training & {*part(UNHEARD_FIELDS, "validation")}
    assert same(drawn("generated", 0, Variations(absent=1.0)), drawn("generated", 0))


def test_second_turns_have_another_question_about_the_page_before_them() -> None:
    seconds = 0
    for number in range(10):
        page = drawn("document", number, Variations(turns=0.5, absent=0.2))
        said = {question.text: question.answers[0] for question in page.questions}
        for question in page.questions:
            assert question.turn == ("second" if question.history else "first")
            for asked, answered in question.history:
                assert asked != question.text and said[asked] == answered
                seconds += 1
    assert 20 < seconds < 70
    for number in range(4):
        plain, alone = drawn("document", number), drawn("document", number, Variations(absent=0.5))
        both = drawn("document", number, Variations(absent=0.5, photo=1.0))
        assert [q.text for q in both.questions] == [q.text for q in alone.questions]
        assert same(drawn("document", number, Variations(absent=0.5)), alone)
        assert alone.image.tobytes() == plain.image.tobytes() != both.image.tobytes()
        assert same(drawn("document", number, Variations()), plain)


@pytest.mark.parametrize("share", [-0.1, 1.5, "half", True])
def test_shares_that_are_none_are_refused(share: Any) -> None:
    refuses("absent: expected a share from 0 to 1; got", Rendered, pages=1, absent=share)


def test_shares_can_be_given_on_a_command_line() -> None:
    source = find_source(None, "rendered", ["pages=2", "absent=0.5", "turns=1", "photo=0"])
    assert isinstance(source, Rendered) and source.variations == Variations(0, 0.5, 1)


def test_written_records_are_those_that_are_drawn(tmp_path: Path) -> None:
    """The same questions, answers and marks, as the page has them; boxes to a tenth of a pixel, pixels but for JPEG."""
    changes = {"photo": 0.5, "absent": 0.4, "turns": 0.5}
    drawing = Rendered(8, 4, 6, SIZE, "test", domains=("document", "form"), **changes)
    options = [f"--{name}={value}" for name, value in {"pages": 8, "questions": 4, "seed": 6, **changes}.items()]
    assert not main(["render", str(tmp_path / "pages"), "--size", str(SIZE), "--domain", "document, form", *options])
    written, held = read_records(tmp_path / "pages" / "data.jsonl"), drawing.read()
    assert any(record.absent for record in written) and any(record.history for record in written)
    assert [dict(record.tags)["domain"] for record in written[::4]] == ["document", "form"] * 4
    for number, (ours, theirs) in enumerate(zip(written, held, strict=True)):
        for name in ("question", "answers", "absent", "history", "located", "tags"):
            assert getattr(ours, name) == getattr(theirs, name)
        for name in ("boxes", "label_boxes"):
            assert np.allclose(getattr(ours, name), getattr(theirs, name), atol=0.051) and ours.located
        asked, tags = drawing.page(number // 4).questions[number % 4], dict(ours.tags)
        assert (ours.question, ours.answers) == (asked.text, asked.answers)
        assert (tags["difficulty"], tags["kind"]) == (asked.difficulty, asked.kind)
        assert tags["turn"] == ("second" if ours.history else "first")
        pictures = [np.asarray(load_image(one.picture), np.float32) for one in (ours, theirs)]
        assert np.abs(pictures[0] - pictures[1]).mean() < 8
    lines = [json.loads(line) for line in (tmp_path / "pages" / "data.jsonl").read_text().splitlines()]
    assert all(("absent" in line) == (line["kind"] == "absent") for line in lines)
