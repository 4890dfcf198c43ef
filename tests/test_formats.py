"""Published formats as their files come: what becomes a record, what is refused, where answers are."""

import json
import pickle
from pathlib import Path

import datasets
import numpy as np
import pytest
from format_sources import (
    HEIGHT,
    MAKERS,
    WIDTH,
    draw,
    make_chartqa,
    make_columns,
    make_docvqa,
    make_gqa,
    make_textvqa,
    make_vqav2,
)
from helpers import Cli, refuses
from PIL import Image

from arr_coc.cli import main
from arr_coc.data.formats import FORMATS, check_files, open_records, open_source
from arr_coc.data.formats.published import MOST_PLACES, OcrToken, locate
from arr_coc.evaluation import METRICS
from arr_coc.modeling.image_loading import load_image


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
