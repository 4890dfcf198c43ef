"""Comparisons in words, and decisions by rules: intervals decide; luck and copies do not."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import LARGE_TEXT, noise, refuses, tiny_config, tiny_model
from PIL import Image
from torch.testing import assert_close

from arr_coc.cli import main
from arr_coc.data.collator import QuestionCollator
from arr_coc.data.formats.own import Jsonl
from arr_coc.data.records import Record, read_records
from arr_coc.evaluation import evaluate
from arr_coc.evaluation.answers import encode, load_images, needs_views
from arr_coc.evaluation.arms import make_arms
from arr_coc.evaluation.deciding import decide, default_rules, judge, read_rules
from arr_coc.evaluation.prediction_loop import as_read, predict_all
from arr_coc.evaluation.scores import (
    Items,
    Prediction,
    Scored,
    compare_all,
    compared_halves,
    distinct_items,
    score_arm,
    swapped_pairs,
)
from arr_coc.evaluation.strategies import score_strategies
from arr_coc.evaluation.suite import DataSet, measure_suite
from arr_coc.modeling.fetcher import FetchChoices

SIZES = [(60, 90), (80, 40), (50, 50)]  # height, width


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three images; read only."""
    folder = tmp_path_factory.mktemp("pages")
    paths = [folder / f"{number}.png" for number in range(3)]
    for number, (path, size) in enumerate(zip(paths, SIZES, strict=True)):
        noise(*size, number).save(path)
    return paths


def embedded(model: Any, encoding: Any, arm: Any, image: int, other: int) -> tuple[torch.Tensor, list[int]]:
    """The image's tokens [positions, D] as the language model reads them, and what was fetched."""
    read = as_read(arm, encoding, torch.tensor([image]), torch.tensor([other]))
    inputs = model.processor.prompts(["Why?"], images=[1], placeholders=read.base_positions + arm.budget)
    choices = FetchChoices(strategy=arm.strategy, allocator=arm.allocator, budget=arm.budget)
    prompt = model.model.embed_images(inputs["input_ids"], read, query_mask=inputs["query_mask"], choices=choices)
    return prompt.image_tokens[0], prompt.fetch.indices[0].tolist()


@pytest.mark.parametrize("layout", ["plain", "rows"])
def test_only_the_base_is_exchanged(layout: str, pages: list[Path]) -> None:
    """Patches are chosen and encoded as ever; before them is the other page's base, or nothing."""
    model = tiny_model(bridge={"layout": layout})
    encoding = encode(model, load_images(model, pages[:2]), 128)
    own, swapped, bare, alone = make_arms(model.config, ["realizer", "other_base", "patches_only", "other_base@0"])
    with torch.no_grad():
        tokens, fetched = embedded(model, encoding, own, 0, 1)
        theirs, _ = embedded(model, encoding, own, 1, 0)
        mixed, fetched_mixed = embedded(model, encoding, swapped, 0, 1)
        patches, fetched_bare = embedded(model, encoding, bare, 0, 1)
        base, nothing = embedded(model, encoding, alone, 0, 1)
    positions = encoding.base_positions
    assert fetched == fetched_mixed == fetched_bare and len(fetched) == 17 and not nothing
    assert_close(mixed[positions:], tokens[positions:])
    assert_close(mixed[:positions], theirs[:positions])
    assert not torch.allclose(mixed[:positions], tokens[:positions])
    assert_close(patches, tokens[positions:])
    assert_close(base, theirs[:positions])
    assert (swapped.tokens, bare.tokens, alone.tokens) == (positions + 17, 17, positions)


def test_predictions_use_another_base_batched(model: Any, pages: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is the one that the other page's prefix gives; of the last page in a batch too."""
    monkeypatch.setattr(model.generation_config, "max_new_tokens", 3)
    records = [
        Record(page, question, ("?",), line=number)
        for number, (page, question) in enumerate((page, question) for page in pages for question in ("What?", "Why?"))
    ]
    arms = make_arms(model.config, ["none", "other_base", "other_base@0", "patches_only"])
    runs, whole_runs = ({arm.name: {} for arm in arms} for _ in range(2))
    for answers, batch_size in ((runs, 2), (whole_runs, 32)):
        for name, part in predict_all(model, arms, records, batch_size=batch_size, progress=False):
            answers[name].update(part)
    for name, predictions in runs.items():
        whole = whole_runs[name]
        assert {line: said.answer for line, said in predictions.items()} == {
            line: said.answer for line, said in whole.items()
        }
    # With no patches the language model reads the next page only, so it answers as if it were asked about that.
    by_question = {(record.image, record.question): record.line for record in records}
    for record in records:
        following = pages[(pages.index(record.image) + 1) % 3]
        line = by_question[following, record.question]
        assert runs["other_base@0"][record.line].answer == runs["none"][line].answer
        assert runs["other_base@0"][record.line].image == runs["none"][record.line].image, "whose question it is"
    assert {said.tokens for said in runs["patches_only"].values()} == {17}


def test_what_each_half_contributes() -> None:
    """Twenty pages: the base decides when there are no patches, and half of the answers beside them."""
    right, half = [1.0] * 20, [1.0, 0.0] * 10
    names = {"none": right, "realizer": right, "other_base": half, "other_base@0": [0.0] * 20}
    arms = [scored_arm(name, [scores]) for name, scores in names.items()]
    assert [(own.name, other.name) for own, other in swapped_pairs([arm.arm for arm in arms])] == [
        ("realizer", "other_base"),
        ("none", "other_base@0"),
    ]
    assert compared_halves([arm.arm for arm in arms]) == [
        ("realizer", "other_base"),
        ("none", "other_base@0"),
        ("realizer", "none"),
        ("other_base", "other_base@0"),
    ]
    records = [Record(Path(f"{number}.png"), "Why?", ("?",), line=number) for number in range(20)]
    items = Items(records, np.arange(20), np.arange(20), 0)
    rule = {"decision": "GO", "if": {"arm": "realizer", "above": "none", "by": 2}}
    result = judge(arms, items, read_rules({"rules": [rule], "otherwise": {"decision": "NO"}}))
    assert {("realizer", "other_base"), ("none", "other_base@0")} <= {
        (comparison["first"], comparison["second"]) for comparison in result["comparisons"]
    }


def scored_arm(name: str, rows: list[list[float]]) -> Scored:
    """Every question about an image of its own."""
    (arm,) = make_arms(tiny_config(), [name], seeds=range(len(rows)))
    said, scores, count = Prediction(1, "", 0.5, 33, 4, (9, 9), None), np.array(rows, dtype=float), len(rows[0])
    predictions = [[said] * count for _ in rows]
    images, absent = np.arange(count), np.zeros(count, dtype=bool)
    return Scored(arm, "exact_match", predictions, scores, np.ones(scores.shape), images, absent)


def differences(**intervals: tuple[float, float]) -> Any:
    """random=(1, 3) -> of realizer and random the interval 1 to 3 in points, significant where 0 is outside."""

    def compare(first: str, second: str) -> Any:
        low, high = intervals[second if first == "realizer" else f"{first}_{second}"]
        difference = {"value": (low + high) / 200, "low": low / 100, "high": high / 100}
        return {"difference": difference, "significant": low > 0 or high < 0}

    return compare


CLEAR, OPEN, NOTHING = (9.0, 12.0), (-1.0, 9.0), (-1.0, 1.5)
OTHERS = ("none", "random", "saliency", "uniform", "larger", "smaller", "patches_only")


@pytest.mark.parametrize(
    ("intervals", "decision"),
    [
        ({}, "GO"),
        *(({name: (1.9, 9.0)}, "INCONCLUSIVE") for name in OTHERS),  # above, but not by two points
        *(({name: NOTHING}, "NO-GO") for name in OTHERS[1:]),
        (dict.fromkeys(OTHERS, OPEN) | {"none": NOTHING}, "STOP"),
        (dict.fromkeys(OTHERS, OPEN), "INCONCLUSIVE"),
    ],
)
def test_the_interval_decides(intervals: dict[str, tuple[float, float]], decision: str) -> None:
    """GO: above a floor of as many tokens, a smaller image, blind patches and patches without a base."""
    arms = [*OTHERS, "realizer"]
    compare = differences(**{**dict.fromkeys(OTHERS, CLEAR), **intervals}, saliency_random=OPEN)
    outcome = decide(default_rules("realizer"), arms, compare, images=20)
    assert outcome["decision"] == decision and outcome["notes"] == []
    few = decide(default_rules("realizer"), arms, compare, images=19)
    assert few["decision"] == "NO VERDICT" and "at least 20 different images" in few["text"]


def test_a_lucky_answer_of_random_changes_no_decision() -> None:
    """GO once turned to STOP when two lucky hits of random fell away: its mean was then not above that of none."""
    rng = np.random.default_rng(0)
    answers = {
        "none": np.zeros(60),
        "saliency": rng.random(60) < 0.1,
        **dict.fromkeys(("uniform", "larger", "smaller", "patches_only"), np.zeros(60)),
        "realizer": rng.random(60) < 0.8,
    }
    decisions = []
    for lucky in (0, 2):
        arms = {name: scored_arm(name, [row.astype(float).tolist()]) for name, row in answers.items()}
        arms["random"] = scored_arm("random", [[1.0] * lucky + [0.0] * (60 - lucky)])
        pairs = [pair for pair in default_rules("realizer").compared if set(pair) <= set(arms)]
        known = dict(zip(pairs, compare_all([(arms[a], arms[b]) for a, b in pairs]), strict=True))
        decisions.append(decide(default_rules("realizer"), list(arms), lambda a, b: known[a, b], images=60)["decision"])  # noqa: B023
    assert decisions == ["GO", "GO"]


def test_one_question_copied_twelve_times_gives_no_verdict() -> None:
    record = Record(Path("page.png"), "What is the total?", ("9",))
    records = [replace(record, image=Path(f"copy-{number}.png"), line=number) for number in range(12)]
    answers = {"realizer": "9", "none": "8"}
    said = {name: Prediction(1, answer, 0.5, 33, 4, (9, 9), None, "digest") for name, answer in answers.items()}
    items = distinct_items(records, [said["none"]] * 12)
    assert (len(items.records), items.number_of_images, items.copies) == (1, 1, 11)
    rule = {"decision": "GO", "if": {"arm": "realizer", "above": "none", "by": 2}}
    rules = read_rules({"rules": [rule], "otherwise": {"decision": "NO"}})
    arms = [
        score_arm(make_arms(tiny_config(), [name])[0], [[answer] * 12], items, "exact_match", 4)
        for name, answer in said.items()
    ]
    result = judge(arms, items, rules)
    assert (len(items.records), items.copies, result["decision"]["decision"]) == (1, 11, "NO VERDICT")
    assert not result["comparisons"][0]["significant"]


def test_more_points_than_asked_but_within_chance_are_not_enough() -> None:
    content = {
        "rules": [{"decision": "GO", "if": {"arm": "realizer", "above": "b", "by": 2}}],
        "otherwise": {"decision": "NO"},
        "notes": [{"if": {"arm": "realizer", "not_above": "c"}}, {"if": {"arm": "realizer", "not_above": "d"}}],
    }
    rules = read_rules(content)
    assert rules.compared == [("realizer", "b"), ("realizer", "c"), ("realizer", "d")]
    assert rules.missing(["realizer", "c"]) == ["b"]
    outcome = decide(rules, ["realizer", "b", "c"], differences(b=(1.0, 9.0), c=(-5.0, 2.0)), images=50)
    assert outcome == {
        "decision": "NO",
        "text": "No rule holds. Open: realizer against b, +5.0 [+1.0, +9.0] points.",
        "notes": ["realizer is not above c by more than 2 points: -1.5 [-5.0, +2.0]."],
    }


@pytest.mark.parametrize(
    ("intervals", "says"),
    [
        ({}, "realizer is above none, floor and patches, by more than 2 points."),
        ({"floor": NOTHING}, "realizer is not above floor by more than 2 points: +0.2 [-1.0, +1.5]."),
        ({"patches": (-15.2, -10.3)}, "realizer is below patches: -12.8 [-15.2, -10.3] points."),
        ({"floor": OPEN}, "No rule holds. Open: realizer against floor, +4.0 [-1.0, +9.0] points."),
    ],
)
def test_a_decision_says_what_was_measured(intervals: dict[str, tuple[float, float]], says: str) -> None:
    """A rule once said of patches that answered 12.7 points more that they answer as many, to within two points."""
    others = ("none", "floor", "patches")
    content = {
        "rules": [
            {"decision": "GO", "if": {"arm": "realizer", "above": list(others), "by": 2}},
            *({"decision": "NO-GO", "if": {"arm": "realizer", "not_above": other}} for other in others),
        ],
        "otherwise": {"decision": "INCONCLUSIVE"},
    }
    compare = differences(**{**dict.fromkeys(others, CLEAR), **intervals})
    assert decide(read_rules(content), [*others, "realizer"], compare, images=20)["text"] == says


NOT_ABOVE = {"arm": "a", "not_above": "b"}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (None, "rules: expected a list of rules"),
        ({"rules": [{"decision": "GO"}]}, r"rules\[0\]: expected if with arm, above and by .*; got None"),
        ({"rules": [{"decision": "GO", "if": {"arm": "a", "above": "b"}}]}, r"rules\[0\]: expected if .* above and by"),
        ({"rules": [{"if": NOT_ABOVE}]}, r"rules\[0\]: expected decision, a string"),
        ({"rules": [{"decision": "GO", "if": NOT_ABOVE}]}, "otherwise: expected decision, a string; got None"),
        ({"rules": [{"decision": "GO", "text": "It pays.", "if": NOT_ABOVE}]}, r"rules\[0\]: expected no text"),
    ],
)
def test_bad_rules_are_refused(rules: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_rules(rules)


# ---- Evaluation over views: it asks as a user would, page accuracy is of what was fetched, and bounds hold
ROOT = Path(__file__).parents[1]

QUESTIONS = ("What is it?", "Why?")


@pytest.fixture(scope="module")
def wide() -> Any:
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
def report(wide: Any, data: Path) -> dict[str, Any]:
    return evaluate(wide, read_records(data), ["none", "oracle"], tiles="all", budget=4, progress=False)


def test_the_oracle_fetches_from_the_page_that_answers(report: dict[str, Any]) -> None:
    oracle, none = report["strategies"]["oracle"], report["strategies"]["none"]
    assert oracle["pages"]["best"]["value"] == 1.0 and oracle["n"] == 4
    assert oracle["recall"]["value"] > 0.2 > none["recall"]["value"] == 0.0
    assert "pages" not in none, "nothing was fetched"
    assert oracle["tokens"] == none["tokens"] + 4


def test_what_is_asked_is_what_generate_answers_also_beside_documents(wide: Any, data: Path, tmp_path: Path) -> None:
    records = read_records(data)
    scored = score_strategies(wide, records, ["realizer"], budget=5, progress=False)["realizer"]
    said = [prediction.answer for prediction in scored.predictions[0]]
    alone = [wide.generate(records[2].image, record.question, budget=5) for record in records[2:]]
    assert said[2:] == alone
    images = [[Image.open(path) for path in records[0].images]]
    assert said[0] == wide.generate(images, records[0].question, budget=5)[0]
    # Any document in a file turned the tiles of all its images on.
    noise(220, 300, 5).save(tmp_path / "large.png")
    large, (document, *_) = Record(tmp_path / "large.png", QUESTIONS[0], ("?",), line=1), read_records(data)[2:]
    alone, beside = (
        score_strategies(wide, records, ["realizer"], progress=False)["realizer"].predictions[0]
        for records in ([large], [document, large])
    )
    assert beside[0].over_views and beside[1] == alone[0] and not alone[0].over_views


def test_arms_over_views_are_asked_and_scored(wide: Any, data: Path) -> None:
    sets = [DataSet("pages", Jsonl(data), ("none", "realizer@4", "oracle"), tiles=2)]
    measured = measure_suite(wide, sets, progress=False)["sets"]["pages"]
    arm = measured["arms"]["realizer@4"]
    assert measured["images"] == 2 and set(arm["pages"]) == {"best", "most"}


@pytest.mark.parametrize("arm", ["uniform", "larger", "patches_only", "keep_all", "fastv"])
def test_arms_of_a_single_view_are_refused(wide: Any, data: Path, arm: str) -> None:
    with pytest.raises(ValueError, match=f"arms: expected strategies, .*; got {arm}"):
        measure_suite(wide, [DataSet("pages", Jsonl(data), (arm,))], progress=False)


def test_passes_broken_documents_and_training_on_views_are_refused(wide: Any, data: Path, tmp_path: Path) -> None:
    """They were left out, and the report said how many there had been."""
    with pytest.raises(ValueError, match="passes: expected one with tiles or several sources; got 2"):
        score_strategies(wide, read_records(data), ["realizer"], num_passes=2, progress=False)
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.4 nothing")
    with pytest.raises(ValueError, match="line 9: .*broken.pdf"):
        score_strategies(wide, [Record(broken, "?", ("1",), line=9)], ["none"], progress=False)
    # The collator took the first image of each record, whatever the question was about.
    with pytest.raises(ValueError, match="line 1: images: expected a single image, .* no documents; got 2"):
        QuestionCollator(wide.processor, wide.config)(read_records(data, limit=1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer_sources": (7,)}, "line 3: expected numbers of sources below 3; got 7"),
        ({"boxes": ((500.0, 10.0, 600.0, 20.0),)}, "line 3: boxes: expected boxes that reach into source 2 of"),
    ],
)
def test_numbers_and_boxes_off_the_pages_are_refused(wide: Any, data: Path, change: dict[str, Any], said: str) -> None:
    record = replace(read_records(data)[2], **change)
    refuses(said, score_strategies, wide, [record], ["none"], progress=False)


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
