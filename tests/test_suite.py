"""Suites: several data sets in one run, and the numbers that `arr-coc evaluate` gives of each."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli, refuses, tiny_checkpoint, tiny_model
from PIL import Image

from arr_coc.evaluation import evaluate
from arr_coc.evaluation.suite import DataSet, measure_suite, read_suite, suite_text

ROOT = Path(__file__).parents[1]
SUITE = """
sets:
  pages:
    data: {format: rendered, domains: document, pages: 4, questions: 2, size: 192, split: test, seed: 3, turns: 0.5}
    arms: [none, random, other_base@0]
    by: [turn]
  missing:
    data: {format: rendered, domains: document, pages: 3, questions: 2, size: 192, split: test, seed: 4, absent: 0.5}
    arms: [none]
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE, encoding="utf-8")
    return path


def test_every_set_is_measured_as_evaluate_does(suite: Path) -> None:
    model, sets = tiny_model(), read_suite(suite, "train")
    result = measure_suite(model, sets, progress=False)["sets"]
    assert list(result) == ["pages", "missing"]
    for each in sets:
        arms = [arm for arm in each.arms if arm != "other_base@0"]
        alone = evaluate(model, each.source.read(), arms, seed=0, progress=False)["strategies"]
        told = {name: len(alone[name].pop("answers")) for name in arms}  # a suite keeps none
        assert {name: result[each.name]["arms"][name] for name in arms} == alone
        assert told == {name: alone[name]["n"] for name in arms}
    assert "not_on_the_page" in result["missing"]["arms"]["none"]
    with pytest.raises(ValueError, match="batch_size: expected at least 1; got -5"):
        measure_suite(tiny_model(), read_suite(suite, "train"), batch_size=-5, progress=False)


def test_the_split_of_a_run_replaces_the_files(suite: Path) -> None:
    splits = {each.source.split for each in read_suite(suite, "validation")}  # type: ignore[attr-defined]
    assert splits == {"validation"}
    assert {each.source.split for each in read_suite(suite)} == {"test"}  # type: ignore[attr-defined]
    both = "{format: mixed, sources: [{format: rendered, pages: 1, split: test}, {format: rendered, pages: 2}]}"
    suite.write_text(f"sets: {{both: {{data: {both}, arms: [none]}}}}", encoding="utf-8")
    (mixed,) = read_suite(suite, "validation")
    assert {each.split for each in mixed.source.sources} == {"validation"}  # type: ignore[attr-defined]
    sets: list[DataSet] = read_suite(ROOT / "examples" / "measured.yaml")
    assert {each.source.split for each in sets} == {"test"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pages: 3", "expected a mapping with sets"),
        ("sets: {}", "expected a mapping with sets"),
        ("sets: {a: {arms: [none]}}", "a: expected data, arms and perhaps by, tiles, metric, rules; got"),
        ("sets: {a: {arms: none, data: {format: rendered, pages: 1}}}", "a: expected arms as a list; got 'none'"),
        ("sets: {a: {arms: [none], data: here}}", "a: expected data as a mapping; got 'here'"),
        ("sets: {a: {arms: [none], data: {format: nothing}}}", "nothing"),
    ],
)
def test_what_is_no_suite_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    refuses(expected, read_suite, path)


def test_the_command_writes_what_it_prints(suite: Path, tmp_path: Path, cli: Cli) -> None:
    model, file = tiny_checkpoint(tmp_path / "model"), tmp_path / "measured.json"
    options = ("--model", model, "--split", "train", "--sets", "pages", "--limit", 3, "--json", file)
    code, printed, _ = cli("measure", suite, *options)
    assert code == 0 and suite_text(json.loads(file.read_text(encoding="utf-8"))) == printed.strip()
    code, _, error = cli("measure", str(suite), "--model", str(model), "--sets", "others")
    assert code == 2 and "--sets: expected names among pages, missing; got others" in error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"path": "none.jsonl"}}, "none.jsonl"),
        ({"arms": ["nonsense"]}, "second: arms: expected"),
        ({"metric": "vqa_accuracy"}, "second: line 1: answers: vqa_accuracy expected at least 4 answers"),
        ({"by": ["colour"]}, "second: by: expected tags among none; got colour"),
    ],
)
def test_a_bad_set_is_refused_before_the_first_one_is_asked(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    (tmp_path / "data.jsonl").write_text('{"image": "a.png", "question": "Who?", "answers": ["x"]}')
    good = {"data": {"path": "data.jsonl"}, "arms": ["none"]}
    (tmp_path / "suite.yaml").write_text(json.dumps({"sets": {"first": good, "second": {**good, **changes}}}))
    model = tiny_model()
    monkeypatch.setattr(model, "encode_image", None)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        measure_suite(model, read_suite(tmp_path / "suite.yaml"), progress=False)
