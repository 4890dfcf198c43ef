"""A bench of real pages: read, asked by any reader, scored by each record's own rule."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attached_models import published
from helpers import READS_WORDS, Cli, refuses, tiny_checkpoint, tiny_model
from PIL import Image
from transformers.generation.streamers import BaseStreamer

import arr_coc
from arr_coc.evaluation import evaluate
from arr_coc.evaluation.bench import BenchAnswer, ModelReader, ask_bench, bench_text, is_right, read_bench, score_bench
from arr_coc.evaluation.suite import DataSet, measure_suite, read_suite, suite_text

REAL = Path(__file__).parents[2] / "shared" / "bench"


def write_source(folder: Path, records: list[dict[str, Any]]) -> None:
    (folder / "images").mkdir(parents=True)
    for name in {record["image"] for record in records}:
        Image.new("RGB", (60, 40), "white").save(folder / name)
    (folder / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def question(page: int, text: str, *answers: str, **more: Any) -> dict[str, Any]:
    return {"image": f"images/{page}.png", "question": text, "answers": list(answers), **more}


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Two sources: three questions about two forms, two about a chart."""
    folder = tmp_path / "bench"
    forms = [question(0, "From?", "T. D. Blachly", match="alnum"), question(1, "Date?", "3/4", "4 March")]
    write_source(folder / "forms", [*forms, question(0, "To?", "K. A. Sparrow", match="alnum")])
    charts = [question(0, "How many?", "200", match="relaxed"), question(0, "Which?", "Blue", match="relaxed")]
    write_source(folder / "charts", charts)
    return folder


class Told:
    """A reader that says what it is told to, and counts the pages that it read."""

    def __init__(self, answers: dict[str, tuple[str, float]]) -> None:
        self.answers = answers
        self.pages: list[Path] = []

    def read(self, image: Path) -> Path:
        self.pages.append(image)
        return image

    def ask(self, page: Path, question: str, streamer: BaseStreamer) -> tuple[str, float]:
        assert page == self.pages[-1]
        for _ in range(3):
            streamer.put(None)
        return self.answers[question]


SAID = {
    "From?": ("t d blachly.", 0.9),
    "To?": ("K. A. Sparow", 0.4),
    "Date?": (" 4  MARCH ", 0.8),
    "How many?": ("209", 0.7),
    "Which?": ("green", 0.75),
}


def test_answers_are_scored_by_the_records_rules(bench: Path) -> None:
    questions, reader = read_bench(bench, ["forms", "charts"]), Told(SAID)
    answers = ask_bench(reader, "told", questions, progress=False)
    assert [answer.question for answer in answers] == ["From?", "Date?", "To?", "How many?", "Which?"]
    assert [answer.first for answer in answers] == [True, True, False, True, False] and len(reader.pages) == 3
    assert all(0 <= answer.first_token <= answer.seconds for answer in answers)
    result = score_bench(questions, answers)
    forms, charts = result["sources"]["forms"], result["sources"]["charts"]
    assert forms["exact"]["value"] == pytest.approx(2 / 3) and charts["exact"]["value"] == 0.5
    assert (forms["questions"], forms["pages"], charts["questions"], charts["pages"]) == (3, 2, 2, 1)
    assert forms["anls"]["value"] == pytest.approx((10 / 13 + 1 + 12 / 13) / 3)
    assert result["mean"]["exact"]["value"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert (result["mean"]["questions"], result["mean"]["pages"]) == (5, 3)
    # right: 0.9, 0.8, 0.7; wrong: 0.4, 0.75
    assert result["confidence"] == {"auroc": pytest.approx(5 / 6), "right": 3, "wrong": 2}
    # (0.4 - 0 in its bin; 0.7 and 0.75: 0.725 - 0.5; 0.9 and 0.8: 1 - 0.85) / 5
    assert result["calibration"]["ece"] == pytest.approx((0.4 + 2 * 0.225 + 2 * 0.15) / 5)
    text = bench_text(result)
    assert "72.5 / 50.0 (2)" in text.splitlines()[-2]
    assert "AUROC 0.833 (n = 5: 3 right, 2 wrong)" in text and "58.3 [" in text.splitlines()[3]


@pytest.mark.parametrize(
    ("match", "said", "answer", "right"),
    (
        [("alnum", "(336)286-0991", "3362860991", True), ("alnum", "11:41 a", "11:41A", True)]
        + [("alnum", "11:42", "11:41", False), ("alnum", "", "-", False), ("alnum", "-", "-", True)]
        + [("relaxed", "105", "100", True), ("relaxed", "106", "100", False), ("relaxed", "YES", "Yes", True)]
        + [("", " new  York ", "New York", True), ("", "New York.", "New York", False), ("", "105", "100", False)]
    ),
)
def test_match_says_what_is_right(match: str, said: str, answer: str, right: bool, tmp_path: Path) -> None:
    write_source(tmp_path / "one", [question(0, "?", answer, **({"match": match} if match else {}))])
    (record,) = read_bench(tmp_path)["one"]
    assert is_right(said, record) is right


def test_where_right_answers_are_lost_is_known_by_source(bench: Path) -> None:
    questions = read_bench(bench, ["forms", "charts"])
    answers = ask_bench(Told(SAID), "told", questions, progress=False)
    assert "answers lost" not in bench_text(score_bench(questions, answers))
    seen = [(True, True), (True, True), (True, False), (True, True), (False, False)]  # the first, second, fourth: right
    told = [replace(each, read=read, fetched=fetched) for each, (read, fetched) in zip(answers, seen, strict=True)]
    result = score_bench(questions, told)
    steps = {name: row["lost"] for name, row in result["sources"].items()}
    assert steps["forms"] == {"reading": 0, "finding": pytest.approx(1 / 3), "answering": 0}
    assert steps["charts"] == {"reading": 0.5, "finding": 0, "answering": 0}
    assert any(line.split() == ["mean", "25.0", "16.7", "0.0"] for line in bench_text(result).splitlines())


def test_an_interrupted_run_goes_on(bench: Path, tmp_path: Path) -> None:
    questions, file = read_bench(bench), tmp_path / "answers.jsonl"
    whole = ask_bench(Told(SAID), "told", questions, predictions=file, progress=False)
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    assert [BenchAnswer(**json.loads(line)) for line in lines] == [
        answer
        for source in questions
        for answer in sorted(
            (each for each in whole if each.source == source), key=lambda each: (each.line == 2, each.line)
        )
    ]
    file.write_text("".join(lines[:2]) + lines[2][:20], encoding="utf-8")
    reader = Told(SAID)
    again = ask_bench(reader, "told", questions, predictions=file, progress=False)
    assert [(each.answer, each.line) for each in again] == [(each.answer, each.line) for each in whole]
    assert again[:2] == whole[:2] and len(reader.pages) == 2  # charts were answered
    assert len(file.read_text(encoding="utf-8").splitlines()) == 5
    with pytest.raises(ValueError, match="line 1: expected an answer of other to this bench; got .told, 'How"):
        ask_bench(reader, "other", questions, predictions=file, progress=False)
    file.write_text('{"answer": 1}\n', encoding="utf-8")
    refuses("line 1: expected an answer; got", ask_bench, reader, "told", questions, predictions=file, progress=False)


def test_a_model_answers_as_its_user_would_see(bench: Path) -> None:
    model, questions = tiny_model(), read_bench(bench, ["charts"])
    first, second = ask_bench(ModelReader(model, {"tiles": "never"}), "tiny", questions, progress=False)
    image = bench / "charts" / "images" / "0.png"
    told = [model.generate(image, text, tiles="never", return_fetch=True) for text in ("How many?", "Which?")]
    assert [first.answer, second.answer] == [answer.text for answer in told]
    assert first.probability == pytest.approx(told[0].probability, abs=1e-4)
    assert first.first_token < first.seconds and not second.first and first.legibility is None
    reader = tiny_model(**READS_WORDS)
    first, _ = ask_bench(ModelReader(reader, {"tiles": "never"}), "tiny", questions, progress=False)
    assert first.legibility == reader.encode_image(image, tiles="never").legibility()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (question(0, "?", "a", match="fuzzy"), "line 1: match: expected alnum, relaxed or none; got 'fuzzy'"),
        (question(0, "?", "a", match=3), "line 1: match: expected alnum, relaxed or none; got 3"),
        (question(0, "?"), "line 1: answers: expected a non-empty list"),
        (question(0, "?", "a", history=[["Who?", "Me"]]), "line 1: history: expected none on a bench; got 1 turns"),
        ({**question(0, "?", "a"), "image": "images/1.png"}, "line 1: image: expected a file"),
    ],
)
def test_bad_records_are_refused(record: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_source(tmp_path / "one", [question(0, "?", "a")])
    (tmp_path / "one" / "data.jsonl").write_text(json.dumps(record), encoding="utf-8")
    refuses(message, read_bench, tmp_path)


def test_bad_folders_are_refused(bench: Path, tmp_path: Path) -> None:
    refuses("bench: expected a folder with a folder for each source; got '.*none'", read_bench, tmp_path / "none")
    refuses("bench: expected folders that hold data.jsonl in .*; got none", read_bench, bench / "forms")
    refuses("sources: expected names among charts, forms; got receipts", read_bench, bench, ["receipts", "forms"])
    (bench / "forms" / "data.jsonl").write_text("\n", encoding="utf-8")
    refuses("data.jsonl: expected questions, one JSON object per line; got none", read_bench, bench)


def test_the_command_measures_a_bench(bench: Path, tmp_path: Path, cli: Cli) -> None:
    model, result, answers = tiny_checkpoint(tmp_path / "model"), tmp_path / "r.json", tmp_path / "a.jsonl"
    options = ["--bench", bench, "--model", model, "--limit", 1, "--json", result, "--predictions", answers]
    code, printed, _ = cli("measure", *options, "--sources", "forms", "charts")
    measured = json.loads(result.read_text(encoding="utf-8"))
    assert code == 0 and bench_text(measured) == printed.strip() and list(measured["sources"]) == ["forms", "charts"]
    assert len(answers.read_text(encoding="utf-8").splitlines()) == 2 and measured["model"] == "model"
    code, _, error = cli("measure", *options, "--strategy", "none")  # printed the answers of the first run
    assert code == 2 and "expected an answer of model, strategy=none, " in error
    config = (model / "config.json").read_text(encoding="utf-8")
    (model / "config.json").write_text(config.replace('"budget"', '"budget": 4, "unused"'), encoding="utf-8")
    changed = cli("measure", *options)
    (model / "config.json").write_text(config, encoding="utf-8")
    assert cli("measure", *options)[0] == 0
    shutil.rmtree(model)
    tiny_checkpoint(model, seed=1)
    for code, _, error in (changed, cli("measure", *options)):
        assert code == 2 and "expected an answer of model, " in error


def test_the_command_measures_a_published_model(bench: Path, attached_folder: Path, tmp_path: Path, cli: Cli) -> None:
    answers = tmp_path / "a.jsonl"
    options = ["--bench", bench, "--model", attached_folder, "--limit", 1, "--strategy", "saliency", "--budget"]
    code, _, error = cli("measure", *options, "0.5", "--predictions", answers)
    assert code == 0, error
    said = {line["source"]: line["answer"] for line in map(json.loads, answers.read_text("utf-8").splitlines())}
    reader = arr_coc.attach(*published("idefics3"))
    page, settings = bench / "forms/images/0.png", {"strategy": "saliency", "max_new_tokens": 6}
    assert said["forms"] == reader.generate(page, "From?", budget=0.5, **settings)
    assert said["forms"] != reader.generate(page, "From?", budget=5, **settings)
    code, _, error = cli("measure", *options, "0.5", "--tiles", "never")
    assert code == 2 and "--tiles: expected none with a idefics3 model; got never" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["suite.yaml", "--bench", "."], "--bench: expected it without DATA; got suite.yaml"),
        (["--bench", ".", "--sets", "a"], "--sets: expected it with a suite; got it without"),
        (["--bench", ".", "--seeds", "3"], "--seeds: expected it with --arms; got it without"),
        (["data.jsonl", "--readings", "3"], "--readings: expected it with --bench DIR; got it without"),
        (["--bench", "nowhere"], "--bench: expected a folder; got 'nowhere', which is none"),
    ],
)
def test_the_command_refuses_what_does_not_go_together(
    arguments: list[str], message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.yaml").write_text("sets: {}")
    (tmp_path / "data.jsonl").write_text("")
    code, _, error = cli("evaluate", *arguments)
    assert code == 2 and message in error


@pytest.mark.skipif(not REAL.is_dir(), reason="the bench of real pages is not here")
def test_the_real_bench_can_be_read_and_its_own_answers_are_right() -> None:
    for name, records in read_bench(REAL).items():
        wrong = [record.line for record in records if not is_right(record.answers[0], record)]
        assert (name, wrong) == (name, [])


# ---- Suites: several data sets in one run, and the numbers that `arr-coc evaluate` gives of each
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
