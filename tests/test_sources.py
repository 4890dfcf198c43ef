"""Domains of several sources, and A4 pages: boxes lie on their source, and files hold what was drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arr_coc.data.domains import DOMAINS, Page, Variations, draw_page
from arr_coc.data.domains.invoice import REFERENCES, SUMS, draw_sheet
from arr_coc.data.formats.base import image_size
from arr_coc.data.formats.own import Rendered
from arr_coc.data.records import opened, read_records
from arr_coc.data.writing import write_questions

SEVERAL = ("clip", "pages", "pair")
SIZE = {"clip": 128, "pages": 160, "pair": 160, "invoice": 310}


@pytest.fixture(scope="module")
def drawn() -> dict[str, Page]:
    """One page of each domain; of documents 3 pages, of clips 6 frames."""
    counts = {"pages": 3, "clip": 6, "pair": 2}
    return {name: draw_page(name, 1, 0, SIZE[name], "validation", sources=counts.get(name)) for name in SIZE}


@pytest.mark.parametrize("domain", SIZE)
def test_the_same_number_is_the_same_page_with_the_same_sources(domain: str, drawn: dict[str, Page]) -> None:
    page = drawn[domain]
    count = len(page.sources) if page.others else None
    again = draw_page(domain, 1, 0, SIZE[domain], "validation", sources=count)
    assert [source.tobytes() for source in page.sources] == [source.tobytes() for source in again.sources]
    assert page.questions == again.questions
    assert draw_page(domain, 1, 1, SIZE[domain], "validation", sources=count).questions != page.questions


@pytest.mark.parametrize("domain", SIZE)
def test_boxes_lie_on_ink_of_their_source(domain: str, drawn: dict[str, Page]) -> None:
    page = drawn[domain]
    pixels = [np.asarray(source.convert("L"), np.float32) for source in page.sources]
    assert len(page.questions) >= 3
    for question in page.questions:
        sources = question.box_sources or (0,) * len(question.boxes)
        assert question.boxes and len(sources) == len(question.boxes)
        assert len(question.label_sources or question.label_boxes) == len(question.label_boxes)
        for source, (x0, y0, x1, y1) in zip(sources, question.boxes, strict=True):
            height, width = pixels[source].shape
            assert 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height
            assert np.ptp(pixels[source][round(y0) : round(y1), round(x0) : round(x1)]) > 40


def test_a4_pages_are_of_that_shape_and_their_print_stands_where_it_should(drawn: dict[str, Page]) -> None:
    page = drawn["invoice"]
    assert page.image.size == (310, 438)
    heights = [glyph.box[3] - glyph.box[1] for glyph in page.glyphs]
    assert 0.55 * 34 / 4 < np.median(heights) < 34 / 4  # capitals of print of 34 px, at a quarter of its width
    assert all(glyph.box[2] < 310 and glyph.box[3] < 438 for glyph in page.glyphs)


def test_every_layout_holds_the_most_that_a_page_shows() -> None:
    for number in range(3):
        fields = [*REFERENCES[number : number + 10], *SUMS]
        sheet = draw_sheet(np.random.default_rng(number), 256, "test", fields)
        assert set(sheet.fields) == set(fields)
        assert sheet.fields["total"][1].box[3] <= sheet.image.height


def test_the_field_that_is_asked_for_stands_on_the_answers_page_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[set[str]] = []

    def spy(rng: np.random.Generator, width: int, split: str, fields: list[str]) -> object:
        shown.append(set(fields))
        return draw_sheet(rng, width, split, fields)  # type: ignore[arg-type]

    monkeypatch.setattr("arr_coc.data.domains.invoice.draw_sheet", spy)
    page = draw_page("pages", 2, 0, 128, "train", sources=4)
    assert len(page.sources) == 4 and page.tags == (("pages", "4"),)
    for question in page.questions:
        (answering,) = question.answer_sources
        named = [field for field in shown[answering] if field in question.text.lower()]
        alone = [field for field in named if sum(field in fields for fields in shown) == 1]
        assert alone and question.box_sources == question.label_sources == (answering,)


def test_the_highest_of_two_is_the_highest_and_takes_both(drawn: dict[str, Page]) -> None:
    kinds = {question.kind: question for question in drawn["pair"].questions}
    highest, lowest = (float(kinds[kind].answers[0].lstrip("$").replace(",", "")) for kind in ("highest", "lowest"))
    assert highest > lowest and kinds["highest"].box_sources == (0, 1) and not kinds["highest"].answer_sources
    assert drawn["pair"].questions[0].kind in ("highest", "lowest")
    assert {question.answer_sources for question in drawn["pair"].questions} == {(), (0,), (1,)}


def test_a_sign_shows_in_the_frames_that_are_said_to_show_it(drawn: dict[str, Page]) -> None:
    page = drawn["clip"]
    assert len(page.sources) == 6 and len({question.answer_sources for question in page.questions}) > 1
    for question in page.questions:
        assert set(question.box_sources) == set(question.answer_sources)
        assert list(question.answer_sources) == list(range(question.answer_sources[0], question.answer_sources[-1] + 1))


def test_how_many_sources_are_drawn_without_a_number() -> None:
    assert 4 <= len(draw_page("clip", 0, 0, 64, "train").sources) <= 30


@pytest.mark.parametrize(
    ("domain", "options", "said"),
    [
        ("document", {"sources": 2}, "sources: expected a domain of several \\(clip, pages, pair\\); got 'document'"),
        ("pages", {"sources": 1}, "sources: expected at least 2; got 1"),
        ("invoice", {"variations": Variations(photo=1.0)}, "photo: expected a domain of single square pages"),
    ],
)
def test_what_a_domain_does_not_have_is_refused(domain: str, options: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        draw_page(domain, 0, 0, 128, "train", **options)


def test_records_drawn_and_records_in_files_say_the_same(tmp_path: Path) -> None:
    options = {"questions": 2, "seed": 5, "size": 96, "domains": ("pages", "pair"), "sources": 2}
    path, again = (
        write_questions(tmp_path / name, pages=2, split="train", **options)  # type: ignore[arg-type]
        for name in ("out", "again")
    )
    in_files, drawn = read_records(path), Rendered(2, **options).read()  # type: ignore[arg-type]
    assert len(in_files) == len(drawn) == 4
    for ours, theirs in zip(drawn, in_files, strict=True):
        for name in ("question", "answers", "box_sources", "label_sources", "answer_sources", "tags"):
            assert getattr(ours, name) == getattr(theirs, name)
        paged = DOMAINS[dict(theirs.tags)["domain"]].paged
        files = [image for image in theirs.images if isinstance(image, Path)]
        assert [file.suffix for file in files] == ([".pdf"] if paged else [".jpg", ".jpg"])
        assert len(ours.images) == 2
        if not paged:
            assert [image_size(file) for file in files] == [opened(image).size for image in ours.images]
    first, second = (sorted((file.parent / "images").iterdir()) for file in (path, again))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def line(tmp_path: Path, **fields: object) -> Path:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (40, 30), name.startswith("a") and "red" or "blue").save(tmp_path / name)
    said = {"images": ["a.png", "b.png"], "question": "?", "answers": ["1"], "boxes": [[1, 2, 3, 4]], **fields}
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(said) + "\n")
    return path


def test_a_record_of_several_images_says_which_boxes_lie_where(tmp_path: Path) -> None:
    (record,) = read_records(line(tmp_path, box_sources=[1], answer_sources=[1]))
    assert [image.name for image in record.images] == ["a.png", "b.png"]  # type: ignore[union-attr]
    assert record.boxes_on(0) == () and record.boxes_on(1) == ((1.0, 2.0, 3.0, 4.0),)
    assert record.answer_sources == (1,)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"box_sources": [2]}, "box_sources: expected a list of numbers from 0 below 2; got \\[2\\]"),
        ({"box_sources": [0, 1]}, "box_sources: expected a number for each of 1 boxes; got \\[0, 1\\]"),
        ({"answer_sources": 1}, "answer_sources: expected a list of numbers from 0 below 2; got 1"),
        ({"images": []}, "images: expected a list of paths, and no image beside it; got \\[\\]"),
        ({"image": "a.png"}, "images: expected a list of paths, and no image beside it; got"),
        ({"images": ["a.png", "c.png"]}, "image: expected a file, relative to .*; got 'c.png'"),
    ],
)
def test_records_that_name_sources_wrongly_are_refused(tmp_path: Path, fields: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_records(line(tmp_path, **fields))
