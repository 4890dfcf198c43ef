"""Domains of several sources: boxes lie on their source, and files hold what was drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arr_coc.data.formats.own import Rendered
from arr_coc.data.records import read_records
from arr_coc.data.writing import write_questions
from arr_coc.pages.domains import Page, Variations, document, draw_page

SIZE = 160


@pytest.fixture(scope="module")
def page() -> Page:
    """A document of 3 pages."""
    return draw_page("pages", 1, 0, SIZE, "validation", sources=3)


def test_the_same_number_is_the_same_page_with_the_same_sources(page: Page) -> None:
    again = draw_page("pages", 1, 0, SIZE, "validation", sources=3)
    assert [source.tobytes() for source in page.sources] == [source.tobytes() for source in again.sources]
    assert page.questions == again.questions
    assert draw_page("pages", 1, 1, SIZE, "validation", sources=3).questions != page.questions


def test_boxes_lie_on_ink_of_their_source(page: Page) -> None:
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


def test_the_field_that_is_asked_for_stands_on_the_answers_page_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[set[str]] = []
    render = document.render_document

    def spy(*arguments: object, pairs: list[tuple[str, str]], **options: object) -> object:
        shown.append({field for field, _ in pairs})
        return render(*arguments, pairs=pairs, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(document, "render_document", spy)
    page = draw_page("pages", 2, 0, 128, "train", sources=4)
    assert len(page.sources) == 4 and page.tags == (("pages", "4"),)
    for question in page.questions:
        (answering,) = question.answer_sources
        named = [field for field in shown[answering] if field in question.text.lower()]
        alone = [field for field in named if sum(field in fields for fields in shown) == 1]
        assert alone and question.box_sources == question.label_sources == (answering,)


def test_how_many_sources_are_drawn_without_a_number() -> None:
    assert 2 <= len(draw_page("pages", 0, 0, 64, "train").sources) <= 20


@pytest.mark.parametrize(
    ("domain", "options", "said"),
    [
        ("document", {"sources": 2}, "sources: expected a domain of several \\(pages\\); got 'document'"),
        ("pages", {"sources": 1}, "sources: expected at least 2; got 1"),
        ("pages", {"variations": Variations(photo=1.0)}, "photo: expected a domain of single square pages"),
    ],
)
def test_what_a_domain_does_not_have_is_refused(domain: str, options: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        draw_page(domain, 0, 0, 128, "train", **options)


def test_records_drawn_and_records_in_files_say_the_same(tmp_path: Path) -> None:
    options = {"questions": 2, "seed": 5, "size": 96, "domains": ("pages",), "sources": 2}
    path, again = (
        write_questions(tmp_path / name, pages=2, split="train", **options)  # type: ignore[arg-type]
        for name in ("out", "again")
    )
    in_files, drawn = read_records(path), Rendered(2, **options).read()  # type: ignore[arg-type]
    assert len(in_files) == len(drawn) == 4
    for ours, theirs in zip(drawn, in_files, strict=True):
        for name in ("question", "answers", "box_sources", "label_sources", "answer_sources", "tags"):
            assert getattr(ours, name) == getattr(theirs, name)
        (file,) = theirs.images
        assert isinstance(file, Path) and file.suffix == ".pdf" and len(ours.images) == 2
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
