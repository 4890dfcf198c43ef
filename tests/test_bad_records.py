"""Records that are refused: which file and line the error names, and what is skipped where that is asked for."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from format_sources import MAKERS, bad_lines, make_docvqa
from helpers import refuses
from PIL import Image

from arr_coc.data.formats import open_records
from arr_coc.data.records import read_records


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_bad_records_stop_the_reading_or_are_skipped_with_file_and_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        records = read_records(bad_lines(), on_error="skip")
    assert [record.line for record in records] == [1, 3, 7]
    messages = [record.getMessage() for record in caplog.records]
    assert [f"line {number}:" in message for number, message in zip((2, 4, 6), messages, strict=True)] == [True] * 3
    assert all("data.jsonl" in message and message.endswith("; skipped") for message in messages)
    refuses(r"data.jsonl, line 2: expected a JSON object; got '{'", read_records, bad_lines())
    assert len(read_records(bad_lines(), on_error="skip", max_errors=3)) == 3
    with pytest.raises(ValueError, match=r"expected at most 2 bad records; got one more: .*data.jsonl, line 6: "):
        read_records(bad_lines(), on_error="skip", max_errors=2)
    Path("data.jsonl").write_text("{\n{\n")
    with pytest.raises(ValueError, match=r"expected at least one good record; got 2 bad ones, the last: .*line 2"):
        read_records("data.jsonl", on_error="skip")
    wrong: Any = "ignore"
    refuses("on_error: expected stop or skip; got 'ignore'", read_records, "data.jsonl", on_error=wrong)
    refuses("max_errors: expected at least 0; got -1", read_records, "data.jsonl", max_errors=-1)


ONE = {"image": "page.png", "question": "Why?", "answers": ["no"]}
TWO = {"images": ["page.png", "b.png"], "question": "?", "answers": ["1"], "boxes": [[1, 2, 3, 4]]}


def written(*records: Any, encoding: str = "utf-8") -> Path:
    """A file with these records, and the images that they name."""
    for name in ("page.png", "b.png"):
        Image.new("RGB", (40, 30)).save(name)
    Path("data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding=encoding)
    return Path("data.jsonl")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (ONE | {"image": "9.png"}, r"image: expected a file, relative to .*; got '9.png'"),
        (ONE | {"image": 3}, "image: expected a non-empty string; got 3"),
        (ONE | {"question": "  "}, "question: expected a non-empty string; got ''"),
        (ONE | {"answers": "yes"}, "answers: expected a non-empty list of strings; got 'yes'"),
        (ONE | {"answers": []}, r"answers: expected a non-empty list of strings; got \[\]"),
        (ONE | {"boxes": [[1, 2, 3]]}, r"boxes: expected \[x0, y0, x1, y1\] with .*; got \[1, 2, 3\]"),
        (ONE | {"boxes": [[5, 0, 1, 9]]}, r"boxes: expected .* with x0 <= x1 and y0 <= y1; got \[5, 0, 1, 9\]"),
        (ONE | {"boxes": [[0, 0, True, 9]]}, r"boxes: expected .*; got \[0, 0, True, 9\]"),
        (ONE | {"boxes": {"x": 1}}, "boxes: expected a list of"),
        (ONE | {"boxes": [[0, 0, 9, 10**400]]}, "boxes: expected .*; got"),
        (ONE | {"absent": "yes"}, "absent: expected true or false; got 'yes'"),
        (ONE | {"absent": True, "boxes": [[0, 0, 1, 1]]}, "absent: expected no boxes of what the image does not show"),
        (ONE | {"bbox": [[0, 0, 1, 1]]}, "bbox: expected boxes; got an unknown field"),
        (ONE | {"Boxes": [[0, 0, 1, 1]]}, "Boxes: expected boxes; got an unknown field"),
        (ONE | {"history": [["Why?"]]}, r"history: expected a list of \[question, answer\]; got"),
        (ONE | {"history": [["Why?", 3]]}, r"history: expected a list of \[question, answer\]; got"),
        (ONE | {"history": "Why?"}, r"history: expected a list of \[question, answer\]; got 'Why\?'"),
        (ONE | {"history": [[" ", "no"]]}, r"history: expected a list of \[question, answer\]; got"),
        (TWO | {"box_sources": [2]}, r"box_sources: expected a list of numbers from 0 below 2; got \[2\]"),
        (TWO | {"box_sources": [0, 1]}, r"box_sources: expected a number for each of 1 boxes; got \[0, 1\]"),
        (TWO | {"answer_sources": 1}, "answer_sources: expected a list of numbers from 0 below 2; got 1"),
        (TWO | {"images": []}, r"images: expected a list of paths, and no image beside it; got \[\]"),
        (TWO | {"image": "page.png"}, "images: expected a list of paths, and no image beside it; got"),
        (TWO | {"images": ["page.png", "c.png"]}, "image: expected a file, relative to .*; got 'c.png'"),
    ],
)
def test_a_bad_record_is_refused_with_its_line(record: dict[str, Any], message: str) -> None:
    refuses(f"data.jsonl, line 2: {message}", read_records, written(ONE, record))
    assert len(read_records("data.jsonl", limit=1)) == 1


def test_what_good_records_may_say() -> None:
    """A mark that Windows writes at the start of a file is no content."""
    (record,) = read_records(written(ONE | {"absent": True, "history": [["What?", "that"]]}))
    assert record.absent and record.located and record.history == (("What?", "that"),)
    (record,) = read_records(written(ONE | {"box": "a tag", "page_number": 3}, encoding="utf-8-sig"))
    assert record.tags == (("box", "a tag"),)
    (record,) = read_records(written(TWO | {"box_sources": [1], "answer_sources": [1]}))
    assert [image.name for image in record.images] == ["page.png", "b.png"]  # type: ignore[union-attr]
    assert record.boxes_on(0) == () and record.boxes_on(1) == ((1.0, 2.0, 3.0, 4.0),)
    assert record.answer_sources == (1,)


def change(path: str, *keys: Any, to: Any) -> None:
    """Sets, or with `to=...` removes, what is at `keys` in a JSON file."""
    content = json.loads(Path(path).read_text())
    *outer, last = keys
    target = content
    for key in outer:
        target = target[key]
    if to is ...:
        del target[last]
    else:
        target[last] = to
    Path(path).write_text(json.dumps(content))


BROKEN: list[tuple[str, str, tuple[Any, ...], Any, str]] = [
    ("vqav2", "questions.json", ("questions", 0, "question_id"), 7, r"record 1: question_id: expected one in anno"),
    ("vqav2", "questions.json", ("questions", 0, "image_id"), 43, "record 1: image: expected a file, relative to"),
    ("vqav2", "annotations.json", ("annotations", 1, "answers"), None, "record 1: answers: expected a non-empty list"),
    ("vqav2", "annotations.json", ("annotations", 0, "question_id"), 42000, "annotation 2: expected one annot"),
    ("docvqa", "val.json", ("data", 0, "answers"), [""], r"record 1: answers: expected an answer that is not b"),
    ("textvqa", "val.json", ("data", 0, "answers"), ..., "record 1: expected image_id, question and answers; got no"),
    ("textvqa", "val.json", ("data", 0, "image_id"), "0b", "record 1: image: expected a file, relative to"),
    ("textvqa", "ocr.json", ("data", 0, "image_id"), "0b", "record 1: image_id: expected one in ocr.json; got '0a'"),
    ("textvqa", "ocr.json", ("data", 0, "ocr_info", 0, "bounding_box", "width"), "1", "box: expected 4 numbers"),
    ("docvqa", "val.json", ("data", 0, "answers"), [], r"record 1: answers: expected a non-empty list of str"),
    ("docvqa", "val.json", ("data", 0, "question"), " ", "record 1: question: expected a non-empty string; got ''"),
    ("docvqa", "ocr/page_1.json", ("recognitionResults", 0, "lines", 0, "words", 0, "boundingBox"), [1], "expected 8"),
    ("gqa", "val_questions.json", ("201", "answer"), ..., "question 201: expected imageId, question and answer; got"),
    ("gqa", "val_questions.json", ("201", "imageId"), ["n1"], "question 201: imageId: expected a non-empty string"),
    ("gqa", "val_questions.json", ("201", "annotations"), ["11"], "question 201: annotations: expected an object; got"),
    ("gqa", "val_questions.json", ("201", "annotations", "answer"), "11", "annotations.answer: expected an object"),
    ("gqa", "scenes.json", ("n1",), [1], "scene graph: expected an object; got"),
    ("gqa", "scenes.json", ("n1", "objects"), [1], "objects: expected an object; got"),
    ("gqa", "scenes.json", ("n1", "objects", "11", "w"), "wide", "question 201: x, y, w and h: expected 4 numbers"),
    ("chartqa", "test/test_augmented.json", (0, "label"), None, "record 1: label: expected a text or a number"),
]


@pytest.mark.parametrize(("name", "path", "keys", "to", "message"), BROKEN)
def test_bad_records_of_published_files_are_named(
    name: str, path: str, keys: tuple[Any, ...], to: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = MAKERS[name]()
    change(path, *keys, to=to)
    refuses(message, open_records, spec)
    both = name == "textvqa" or path.startswith("ocr")  # both records ask about the image
    shared = both or (path == "scenes.json" and len(keys) < 4)
    if not shared and "annotation 2" not in message:
        with caplog.at_level(logging.WARNING):
            assert len(open_records({**spec, "on_error": "skip"})) == 1
        assert len(caplog.records) == 1


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("vqav2", {"annotations": "none.json"}, "expected a file; got 'none.json'"),
    ("vqav2", {"annotations": "questions.json"}, "questions.json: expected a list under 'annotations'"),
    ("vqav2", {"images": "none"}, "images: expected a folder; got 'none'"),
    ("vqav2", {"images": None}, "data of format vqav2: expected path, annotations, images; got no images"),
    ("vqav2", {"ocr": "x"}, "data of format vqav2: expected fields among path, annotations, images; got ocr"),
    ("textvqa", {"path": 3}, "path: expected a path; got 3"),
    ("docvqa", {"ocr": "none"}, "ocr: expected a folder; got 'none'"),
    ("gqa", {"path": "scenes.json", "images": "none"}, "images: expected a folder; got 'none'"),
    ("gqa", {"scene_graphs": "list.json"}, "list.json: expected an object of scene graphs by image; got"),
    ("chartqa", {"images": "none"}, "images: expected a folder; got 'none'"),
    ("rendered", {"pages": 0}, "pages: expected a number of at least 1; got 0"),
    ("rendered", {"split": "dev"}, "split: expected one of train, validation, test; got 'dev'"),
    ("rendered", {"domains": ["novel"]}, "domain: expected one of .*; got 'novel'"),
    ("jsonl", {"format": "csv"}, "format: expected one of chartqa, .*; got 'csv'"),
]


@pytest.mark.parametrize(("name", "changes", "message"), FAULTS)
def test_faults_of_a_whole_source_are_never_skipped(name: str, changes: dict[str, Any], message: str) -> None:
    spec = {**MAKERS[name](), **changes}
    Path("list.json").write_text("[1]")
    refuses(message, open_records, {**spec, "on_error": "skip"})


def test_json_that_is_none_is_named_with_its_line() -> None:
    spec = make_docvqa()
    Path("val.json").write_text('{"data": [\n,]}')
    refuses(r"val.json: expected JSON; got .*line 2 column 1", open_records, spec)
