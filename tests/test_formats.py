"""Records that are refused: which file and line the error names, and what is skipped where that is asked for."""

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from format_sources import (
    HEIGHT,
    MAKERS,
    WIDTH,
    bad_lines,
    draw,
    make_chartqa,
    make_columns,
    make_docvqa,
    make_gqa,
    make_textvqa,
    make_vqav2,
)
from helpers import Cli, change_json, refuses
from PIL import Image

from arr_coc.cli import main
from arr_coc.data.formats import FORMATS, check_files, open_records, open_source
from arr_coc.data.formats.published import MOST_PLACES, OcrToken, locate
from arr_coc.data.records import read_records
from arr_coc.evaluation import METRICS
from arr_coc.modeling.image_loading import load_image


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
    change_json(Path(path), *keys, to=to)
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


# ---- Published formats as their files come: what becomes a record, what is refused, where answers are
def test_every_format_is_tested() -> None:
    assert set(MAKERS) == set(FORMATS)


@pytest.mark.parametrize("name", MAKERS)
def test_every_format_gives_records_that_its_metric_scores(name: str) -> None:
    """Two each; distinct lines; images that open; the same again, and in another process (pickled)."""
    spec = MAKERS[name]()
    source = open_source(spec)
    records = source.read()
    assert len(records) == 2
    assert len({record.line for record in records}) == 2
    assert METRICS[source.metric].score(records[1].answers[0], records[1].answers) == 1
    for record in pickle.loads(pickle.dumps(list(records))):
        assert load_image(record.picture).size == ((128, 128) if name == "rendered" else (WIDTH, HEIGHT))
    again = open_records(spec)
    assert list(again) == list(records)
    assert list(open_records(spec, limit=1)) == [records[0]]


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in ("columns", "rendered")])
def test_paths_are_relative_to_the_folder_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = MAKERS[name]()
    here = open_records(spec)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert list(open_records(spec, folder=tmp_path)) == list(here)
    with pytest.raises((ValueError, OSError)):
        open_records(spec)


# ---- what the records say
def test_published_files_become_answers_boxes_and_tags() -> None:
    first, second = open_records(make_vqav2())
    assert (first.question, first.answers) == ("What sport is it?", ("surfing",) * 10)
    assert dict(first.tags) == {"question_type": "what sport is", "answer_type": "other"}
    assert second.answers == ("yes",) * 10 and first.image == second.image
    assert first.boxes == ()
    first, second = open_records(make_docvqa())
    assert first.boxes == ((12.0, 5.0, 21.0, 11.0), (24.0, 5.0, 33.0, 11.0), (30.0, 5.0, 39.0, 11.0))
    assert dict(first.tags) == {"question_types": "form, layout"}
    assert second.boxes == ()
    first, second = open_records(make_gqa())
    assert (first.boxes, second.boxes) == (((5.0, 6.0, 25.0, 16.0),), ())
    assert dict(first.tags)["structural"] == "query"
    assert open_records({**make_gqa(), "scene_graphs": None})[0].boxes == ()
    first, second = open_records(make_chartqa())
    assert (first.answers, second.answers) == (("14",), ("0.5",))
    assert (dict(first.tags), dict(second.tags)) == ({"file": "test_augmented"}, {"file": "test_human"})
    assert (first.line, second.line) == (1, 2)
    # The answer given most often is not on the image; one that is spelt in three ways is.
    first, second = open_records(make_textvqa())
    expected = [(9.0, 30.0, 27.0, 36.0), (36.0, 30.6, 54.0, 36.6)]
    assert np.allclose(first.boxes, expected)
    assert second.boxes == (), "yes is a judgement, wherever the word stands"
    assert open_records({**make_textvqa(), "ocr": None})[0].boxes == ()


# ---- columns
@pytest.mark.versions
def test_columns_are_mapped_and_know_the_same_image() -> None:
    first, second = open_records(make_columns())
    assert (first.question, first.answers, first.boxes) == ("What colour?", ("red",), ((0.0, 0.0, 9.0, 9.0),))
    assert dict(first.tags) == {"type": "colour"} and second.boxes == ()
    assert first.picture.getpixel((0, 0)) == (255, 0, 0) and second.picture.getpixel((0, 0)) == (0, 0, 255)
    assert first.image != second.image
    rows = {
        "image": [Image.new("RGB", (9, 9))] * 3,
        "question": ["a?", "b?", "c?"],
        "photo": ["x", "y", "x"],
        "answers": [["1"], ["2", "3"], ["4"]],
    }
    datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).save_to_disk("saved")
    records = open_records({"format": "columns", "path": "saved", "columns": {"image_id": "photo"}})
    assert records[0].image == records[2].image != records[1].image
    rows["photo"] = ["x", None, None]
    datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).save_to_disk("unnamed")
    unnamed = open_records({"format": "columns", "path": "unnamed", "columns": {"image_id": "photo"}})
    assert len({record.image for record in unnamed}) == 3, "whose image is not named has one of its own"
    assert records[1].answers == ("2", "3")


def test_cells_of_csv_files_are_answers_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    draw("a.png")
    written = ["12", "007", "3.10", "NA", "true", "1e5"]
    lines = ["\ufeffimage,question,answers,note", *(f"a.png,Which?,{answer}," for answer in written)]
    Path("data.csv").write_text("\n".join(lines), encoding="utf-8")
    records = open_records({"format": "columns", "path": "data.csv"})
    assert [record.answers for record in records] == [(answer,) for answer in written]
    with Path("data.csv").open("a", encoding="utf-8") as stream:
        stream.write("\na.png,Which?,,")
    with pytest.raises(ValueError, match="row 7: answers: expected an answer that is not blank; got"):
        open_records({"format": "columns", "path": "data.csv"})
    Path("empty.csv").touch()
    with pytest.raises(ValueError, match="empty.csv: expected a first line that names the columns; got none"):
        open_records({"format": "columns", "path": "empty.csv"})


def test_bad_columns_are_refused() -> None:
    spec = make_columns()
    refuses(r"saved: split: expected one of validation, test; got None", open_records, {**spec, "split": None})
    with pytest.raises(ValueError, match=r"columns: expected question among .*; got 'nothing'"):
        open_records({**spec, "columns": {**spec["columns"], "question": "nothing"}})
    with pytest.raises(ValueError, match=r"columns: expected tags among .*; got 'nothing'"):
        open_records({**spec, "columns": {**spec["columns"], "tags": ["nothing"]}})
    with pytest.raises(ValueError, match=r"columns: expected a map of image, .*; got \['caption'\]"):
        open_records({**spec, "columns": {"caption": "query"}})


# ---- rendered
def test_rendered_records_do_not_depend_on_what_was_asked_before() -> None:
    spec = {"format": "rendered", "pages": 4, "questions": 2, "seed": 3, "size": 128, "domains": ["document", "form"]}
    forwards, backwards = open_records(spec), open_records(spec)
    assert [backwards[i] for i in range(7, -1, -1)] == list(forwards)[::-1]
    assert [dict(record.tags)["domain"] for record in forwards[::2]] == ["document", "form"] * 2
    assert forwards[0].image == forwards[1].image != forwards[2].image
    assert list(forwards[2:4]) == [forwards[2], forwards[3]]
    assert len(open_records({**spec, "pages": 10**9})) == 2 * 10**9, "nothing is drawn before it is asked for"
    assert open_records({**spec, "seed": 4})[0] != forwards[0] != open_records({**spec, "split": "test"})[0]


# ---- images in memory, and the commands
def test_evaluate_takes_a_format_with_its_own_metric(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_docvqa()
    options = ["--model", str(checkpoint), "--strategies", "none", "--json", "out.json"]
    arguments = ["val.json", "--format", "docvqa", "--with", "images=images", "--with", "ocr=ocr"]
    assert main(["evaluate", *arguments, *options]) == 0
    assert "ANLS" in capsys.readouterr().out
    result = json.loads(Path("out.json").read_text())
    assert (result["metric"], result["data"], result["strategies"]["none"]["n"]) == ("anls", "val.json", 2)
    spec = "{format: docvqa, path: ../val.json, images: ../images, ocr: ../ocr}"
    Path("specs").mkdir()
    Path("specs/docvqa.yaml").write_text(spec)
    assert main(["evaluate", "specs/docvqa.yaml", *options]) == 0
    assert json.loads(Path("out.json").read_text())["strategies"] == result["strategies"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "data of format jsonl: expected path; got no path"),
        (["x.json", "--format", "novel"], "format: expected one of"),
        (["x.json", "--format", "gqa", "--with", "images"], "--with: expected NAME=VALUE; got 'images'"),
        (["spec.yaml", "--format", "gqa"], "--data: expected a YAML file, or --format and --with; got both"),
        (["spec.yaml"], "spec.yaml: expected format, path and the format's other fields by name; got 3"),
    ],
)
def test_bad_data_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("spec.yaml").write_text("3")
    assert main(["evaluate", *arguments]) == 2
    assert message in capsys.readouterr().err


def row(*words: str, y: float = 0.0) -> list[OcrToken]:
    return [OcrToken(word, (10.0 * i, y, 10.0 * i + 8, y + 5)) for i, word in enumerate(words)]


@pytest.mark.parametrize(
    ("answer", "words", "places"),
    (
        [("total", ["The", "Total:", "is"], [1]), ("12.50", ["$12.50"], [0])]
        + [("new york city", ["in", "NEW", "York", "City,", "USA"], [1, 2, 3])]
        + [("coca-cola", ["COCA", "COLA"], [0, 1]), ("coca cola", ["Coca-Cola!"], [0])]
        + [("o'neil", ["O", "'", "Neil"], [0, 2]), ("ﬁne café", ["FINE", "CAFÉ"], [0, 1])]
        + [("a b", ["a", "a", "b"], [1, 2]), ("5", ["5", "x", "5"], [0, 2]), ("new york", ["york", "new"], [])]
        + [("12.5", ["125"], []), ("cat", ["category"], []), ("...", ["..."], []), ("no", ["no"], [])]
        + [("7", ["7"] * (MOST_PLACES + 1), []), ("anything", [], [])]
    ),
)
def test_answers_are_found_where_consecutive_words_spell_them(answer: str, words: list[str], places: list[int]) -> None:
    tokens = row(*words)
    assert locate([answer], tokens) == tuple(tokens[place].box for place in places)


def test_missing_files_are_refused_before_a_training_begins(tmp_path: Path, cli: Cli) -> None:
    """A model was loaded first, for 8 s, and the error was the operating system's."""
    (tmp_path / "data.jsonl").touch()
    there, missing = {"path": "data.jsonl"}, {"format": "jsonl", "path": "none.jsonl"}
    check_files(there, tmp_path)
    check_files({"format": "mixed", "sources": [there]}, tmp_path)
    check_files({**there, "on_error": "skip", "max_errors": 3}, tmp_path)
    for spec in (missing, {"format": "mixed", "sources": [there, missing]}):
        refuses("data: expected a path that exists; got .*none.jsonl', which does not", check_files, spec, tmp_path)
    refuses("data of format jsonl: expected fields among path; got pages", check_files, {**there, "pages": 3}, tmp_path)
    data = f"data={{format: jsonl, path: {tmp_path / 'none.jsonl'}}}"
    recipe = Path(__file__).parents[1] / "examples/adapter.yaml"
    code, _, error = cli("train", recipe, data, "--adapter", "--out", tmp_path / "out")
    assert code == 2 and "data: expected a path that exists" in error and not (tmp_path / "out").exists()
