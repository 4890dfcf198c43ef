"""Evaluation over views: it asks as a user would, page accuracy is of what was fetched, and bounds hold."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import LARGE_TEXT, noise, refuses, tiny_model
from PIL import Image

from arr_coc.cli import main
from arr_coc.data.collator import QuestionCollator
from arr_coc.data.formats.own import Jsonl
from arr_coc.data.records import Record, read_records
from arr_coc.evaluation import evaluate
from arr_coc.evaluation.answers import needs_views
from arr_coc.evaluation.strategies import score_strategies
from arr_coc.evaluation.suite import DataSet, measure_suite

ROOT = Path(__file__).parents[1]

QUESTIONS = ("What is it?", "Why?")


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(text=LARGE_TEXT)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two documents, one of two images and one a TIFF of three pages, with two questions each."""
    folder = tmp_path_factory.mktemp("views")
    for number in range(2):
        noise(110, 150, number).save(folder / f"{number}.png")
    first, *rest = (noise(90, 70, number) for number in range(2, 5))
    first.save(folder / "pages.pdf", save_all=True, append_images=rest, resolution=150)
    lines = [
        {"images": ["0.png", "1.png"], "boxes": [[10, 10, 30, 18]], "box_sources": [1], "answer_sources": [1]},
        {"image": "pages.pdf", "boxes": [[10, 10, 30, 18]], "box_sources": [2], "answer_sources": [2]},
    ]
    lines = [{**line, "question": question, "answers": ["?"]} for line in lines for question in QUESTIONS]
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def report(model: Any, data: Path) -> dict[str, Any]:
    return evaluate(model, read_records(data), ["none", "oracle"], tiles="all", budget=4, progress=False)


def test_the_oracle_fetches_from_the_page_that_answers(report: dict[str, Any]) -> None:
    oracle, none = report["strategies"]["oracle"], report["strategies"]["none"]
    assert oracle["pages"]["best"]["value"] == 1.0 and oracle["n"] == 4
    assert oracle["recall"]["value"] > 0.2 > none["recall"]["value"] == 0.0
    assert "pages" not in none, "nothing was fetched"
    assert oracle["tokens"] == none["tokens"] + 4


def test_what_is_asked_is_what_generate_answers_also_beside_documents(model: Any, data: Path, tmp_path: Path) -> None:
    records = read_records(data)
    scored = score_strategies(model, records, ["realizer"], budget=5, progress=False)["realizer"]
    said = [prediction.answer for prediction in scored.predictions[0]]
    alone = [model.generate(records[2].image, record.question, budget=5) for record in records[2:]]
    assert said[2:] == alone
    images = [[Image.open(path) for path in records[0].images]]
    assert said[0] == model.generate(images, records[0].question, budget=5)[0]
    # Any document in a file turned the tiles of all its images on.
    noise(220, 300, 5).save(tmp_path / "large.png")
    large, (document, *_) = Record(tmp_path / "large.png", QUESTIONS[0], ("?",), line=1), read_records(data)[2:]
    alone, beside = (
        score_strategies(model, records, ["realizer"], progress=False)["realizer"].predictions[0]
        for records in ([large], [document, large])
    )
    assert beside[0].over_views and beside[1] == alone[0] and not alone[0].over_views


def test_arms_over_views_are_asked_and_scored(model: Any, data: Path) -> None:
    sets = [DataSet("pages", Jsonl(data), ("none", "realizer@4", "oracle"), tiles=2)]
    measured = measure_suite(model, sets, progress=False)["sets"]["pages"]
    arm = measured["arms"]["realizer@4"]
    assert measured["images"] == 2 and set(arm["pages"]) == {"best", "most"}


@pytest.mark.parametrize("arm", ["uniform", "larger", "patches_only", "keep_all", "fastv"])
def test_arms_of_a_single_view_are_refused(model: Any, data: Path, arm: str) -> None:
    with pytest.raises(ValueError, match=f"arms: expected strategies, .*; got {arm}"):
        measure_suite(model, [DataSet("pages", Jsonl(data), (arm,))], progress=False)


def test_passes_broken_documents_and_training_on_views_are_refused(model: Any, data: Path, tmp_path: Path) -> None:
    """They were left out, and the report said how many there had been."""
    with pytest.raises(ValueError, match="passes: expected one with tiles or several sources; got 2"):
        score_strategies(model, read_records(data), ["realizer"], num_passes=2, progress=False)
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.4 nothing")
    with pytest.raises(ValueError, match="line 9: .*broken.pdf"):
        score_strategies(model, [Record(broken, "?", ("1",), line=9)], ["none"], progress=False)
    # The collator took the first image of each record, whatever the question was about.
    with pytest.raises(ValueError, match="line 1: images: expected a single image, .* no documents; got 2"):
        QuestionCollator(model.processor, model.config)(read_records(data, limit=1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer_sources": (7,)}, "line 3: expected numbers of sources below 3; got 7"),
        ({"boxes": ((500.0, 10.0, 600.0, 20.0),)}, "line 3: boxes: expected boxes that reach into source 2 of"),
    ],
)
def test_numbers_and_boxes_off_the_pages_are_refused(model: Any, data: Path, change: dict[str, Any], said: str) -> None:
    record = replace(read_records(data)[2], **change)
    refuses(said, score_strategies, model, [record], ["none"], progress=False)


def test_a_tiff_of_several_pages_is_a_document_and_a_broken_image_is_none(tmp_path: Path) -> None:
    """Its first page alone was looked at."""
    first, second = (noise(90, 70, number) for number in range(2))
    first.save(tmp_path / "pages.tiff", save_all=True, append_images=[second])
    first.save(tmp_path / "page.tiff")
    (tmp_path / "broken.png").write_bytes(b"nothing")
    named = {name: [Record(tmp_path / name, "?", ("1",))] for name in ("pages.tiff", "page.tiff", "broken.png")}
    assert [name for name, records in named.items() if needs_views(records, None)] == ["pages.tiff"]


def test_the_documented_command_runs(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 64), "red").save("page.png")
    Path("documents.jsonl").write_text('{"images": ["page.png", "page.png"], "question": "?", "answers": ["a"]}\n')
    page = (ROOT / "docs" / "views.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^arr-coc .*", "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)), re.MULTILINE)
    main([*shlex.split(line, comments=True)[1:], "--limit", "1", "--strategies", "none", "--model", str(checkpoint)])
    assert capsys.readouterr().out.count("In brackets: 95 % intervals.") == 1
