"""The experiment: arms of equal size, predictions that survive a kill, decisions by rules, a page that stands alone."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import tiny_config, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_coc import ArrCocConfig
from arr_coc.data.records import Record, read_records
from arr_coc.evaluating.answering import ask, encode, lattice, load_images
from arr_coc.evaluating.arms import BASELINES, BOUNDS, LADDER, make_arms
from arr_coc.evaluating.blocks import Bullets, Code, Figure, Heading, Paragraph, Table, to_html, to_markdown, to_text
from arr_coc.evaluating.costs import percentiles
from arr_coc.evaluating.deciding import DEFAULT_RULES, check_rules, compared, decide, missing_arms
from arr_coc.evaluating.experiment import predict
from arr_coc.evaluating.identity import model_identity
from arr_coc.evaluating.predictions import Prediction, append, mend, prediction, read_run
from arr_coc.evaluating.report import table_text
from arr_coc.evaluating.scoring import Scored, compare, compare_all, distinct_items, score_arm, score_experiment, worst
from arr_coc.loading import load_model
from arr_coc.memory import LiveTensors
from arr_coc_cli import main
from arr_coc_cli.experiment import read_config

SIZES = [(60, 90), (80, 40), (50, 50)]  # height, width
QUESTIONS = ["What is it?", "Why?"]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six questions about three images; read only."""
    folder = tmp_path_factory.mktemp("data")
    lines = []
    for i, (height, width) in enumerate(SIZES):
        pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        for question in QUESTIONS:
            line = {"image": f"{i}.png", "question": question, "answers": ["?"], "boxes": [[10, 10, 20, 18]]}
            lines.append({**line, "layout": "left" if i else "right"})
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# ---- arms ---------------------------------------------------------------------------------------------------------


def test_arms_of_the_published_geometry() -> None:
    """256 + 273 tokens are 23 x 23: the larger image is a fair match to the token."""
    arms = {arm.name: arm for arm in make_arms(ArrCocConfig())}
    assert {arms[name].tokens for name in ("random", "saliency", "realizer", "uniform", "larger", "oracle")} == {529}
    assert (arms["larger"].side, arms["larger"].strategy) == (23 * 64, "none")
    assert (arms["smaller"].side, arms["smaller"].tokens) == (6 * 64, 36 + 576)
    assert (arms["none"].tokens, arms["keep_all"].tokens) == (256, 256 + 4096)
    assert list(arms["random"].runs) == ["random.0", "random.1", "random.2"] and list(arms["none"].runs) == ["none"]


@pytest.mark.parametrize("budget", [1, 5, 17, 60])
def test_baselines_never_get_fewer_tokens(budget: int) -> None:
    arms = make_arms(tiny_config(), budget=budget)
    wanted = 16 + budget
    assert [arm.name for arm in arms] == [*LADDER, *BASELINES, *BOUNDS]
    assert all(arm.tokens >= wanted for arm in arms if arm.role == "baseline")
    assert all(arm.tokens == wanted for arm in arms if arm.role == "ladder" and arm.name != "none")


def test_arms_keep_to_what_there_is() -> None:
    config = tiny_config(fetcher={"scorers": ["realizer"]})
    assert "clip_query" not in [arm.name for arm in make_arms(config)]
    assert "oracle" not in [arm.name for arm in make_arms(config, boxed=False)]
    (cut,) = make_arms(config, ["keep_all"], room=100)
    assert (cut.budget, cut.tokens) == (84, 100) and "the context holds 84 of 256" in cut.note
    with pytest.raises(ValueError, match=r"arms: expected names among .*; got \['luck', 'uniform@4'\]"):
        make_arms(config, ["none", "luck", "uniform@4"])
    with pytest.raises(ValueError, match='arms: expected boxes in every record for "oracle"'):
        make_arms(config, ["oracle"], boxed=False)
    with pytest.raises(ValueError, match='seeds: expected at least one for "random"; got none'):
        make_arms(config, ["random"], seeds=())


def test_a_strategy_can_have_a_budget_of_its_own() -> None:
    names = ["realizer@0", "realizer@fast", "random@9", "realizer@all", "none@5"]
    arms = make_arms(tiny_config(), names, seeds=(4,), room=200)
    assert [(arm.name, arm.budget, arm.tokens) for arm in arms] == [
        ("realizer@0", 0, 16), ("realizer@fast", 4, 20), ("random@9", 9, 25), ("realizer@all", 184, 200),
        ("none@5", 0, 16),
    ]  # fmt: skip
    assert {arm.role for arm in arms} == {"ablation"} and list(arms[2].runs) == ["random@9.4"]
    assert [arm.note for arm in arms] == ["", "", "", "the context holds 184 of 256 patches", ""]
    with pytest.raises(ValueError, match="budget: expected a number of patches or one of"):
        make_arms(tiny_config(), ["realizer@lots"])


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 400))
@settings(max_examples=200, deadline=None)
def test_a_lattice_is_of_distinct_cells(rows: int, columns: int, count: int) -> None:
    cells = lattice(rows, columns, count)
    assert len(set(cells)) == len(cells) == min(count, rows * columns)
    assert all(0 <= y < rows and 0 <= x < columns for y, x in cells)


def test_a_lattice_is_even() -> None:
    cells = np.array(lattice(64, 64, 273))
    quarters = np.bincount(cells[:, 0] // 32 * 2 + cells[:, 1] // 32)
    assert quarters.min() >= 273 / 4 - 10 and quarters.max() <= 273 / 4 + 10
    assert lattice(2, 4, 2) == [(1, 1), (1, 3)] and lattice(64, 1, 1) == [(32, 0)]


def test_the_uniform_arm_fetches_its_lattice(model: Any, data: Path) -> None:
    """On a wide, a high and a square image: where the lattice over the patches that are no padding says."""
    records = read_records(data)[::2]
    (arm,) = make_arms(model.config, ["uniform"])
    encoding = encode(model, load_images(model, [record.image for record in records]), arm.side)
    answers = ask(model, arm, records, encoding, max_new_tokens=1)
    areas = []
    for answer, mask in zip(answers, encoding.patch_mask, strict=True):
        rows, columns = (mask.view(16, 16).any(axis).nonzero()[:, 0].tolist() for axis in (1, 0))
        expected = [[rows[y], columns[x]] for y, x in lattice(len(rows), len(columns), 17)]
        assert answer.fetch.positions[0].tolist() == sorted(expected)
        areas.append((len(rows), len(columns)))
    assert areas == [(12, 16), (16, 8), (16, 16)]


def test_seeds_change_what_random_draws_and_nothing_else(model: Any, data: Path) -> None:
    records = read_records(data)
    (arm,) = make_arms(model.config, ["random"])
    before = model.config.fetcher_config.seed

    def drawn(some: list[Any], seed: int) -> list[list[int]]:
        encoding = encode(model, load_images(model, [record.image for record in some]), arm.side)
        answers = ask(model, arm, some, encoding, seed=seed, max_new_tokens=1)
        return [answer.fetch.indices[0].tolist() for answer in answers]

    whole = drawn(records[:3], 1)
    assert whole == [drawn([record], 1)[0] for record in records[:3]]
    assert all(a != b for a, b in zip(whole, drawn(records[:3], 2), strict=True))
    assert model.config.fetcher_config.seed == before


# ---- predictions --------------------------------------------------------------------------------------------------


def test_predictions_survive_a_kill(model: Any, data: Path, tmp_path: Path) -> None:
    record = read_records(data)[0]
    answer = model.generate(record.image, record.question, return_fetch=True)
    (image,) = load_images(model, [record.image])
    one = prediction(3, answer, encode(model, [image], model.config.vision_config.image_size), image)
    assert (one.tokens, one.grid, one.size) == (33, 16, (60, 90))
    assert one.indices == answer.fetch.indices[0].tolist() and one.answer == answer.text
    path = tmp_path / "none-0.jsonl"
    append(path, [one])
    append(tmp_path / "none-1.jsonl", [replace(one, line=4)])
    append(tmp_path / "none.2-0.jsonl", [replace(one, line=5)])
    with path.open("a") as stream:
        stream.write('{"line": 9, "ans')
    assert read_run(tmp_path, "none") == {3: one, 4: replace(one, line=4)}
    mend(path)
    append(path, [replace(one, line=9)])
    assert set(read_run(tmp_path, "none")) == {3, 4, 9}
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="none-0.jsonl, line 1: expected a prediction; got '{}'"):
        read_run(tmp_path, "none")


def test_an_interrupted_run_ends_as_one_that_was_not(
    model: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = read_records(data)
    arms = make_arms(model.config, ["none", "random", "smaller"], seeds=(0, 1))
    monkeypatch.setattr(model.generation_config, "max_new_tokens", 2)
    assert predict(model, arms, records, tmp_path / "whole", batch_size=2, progress=False) == 24
    generate, calls = model.generate, []

    def dying(*args: Any, **given: Any) -> Any:
        if len(calls) == 6:
            raise KeyboardInterrupt
        calls.append(len(args[1]))
        return generate(*args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(model, "generate", dying)
        with pytest.raises(KeyboardInterrupt):
            predict(model, arms, records, tmp_path / "cut", batch_size=2, progress=False)
    made = predict(model, arms, records, tmp_path / "cut", batch_size=3, progress=False)
    assert made == 24 - sum(calls)
    assert predict(model, arms, records, tmp_path / "cut", batch_size=2, progress=False) == 0
    for rank in (0, 1):
        predict(model, arms, records, tmp_path / "shared", batch_size=8, shard=(rank, 2), progress=False)
    for run in ("none", "random.0", "random.1", "smaller"):
        whole = read_run(tmp_path / "whole", run)
        assert len(whole) == 6
        for folder in ("cut", "shared"):
            found = read_run(tmp_path / folder, run)
            assert {line: (one.answer, one.patches, one.tokens) for line, one in whole.items()} == {
                line: (one.answer, one.patches, one.tokens) for line, one in found.items()
            }
    assert read_run(tmp_path / "whole", "random.0") != read_run(tmp_path / "whole", "random.1")


# ---- comparisons and decisions ------------------------------------------------------------------------------------


def scored(name: str, rows: list[list[float]]) -> Scored:
    """Every question about an image of its own."""
    (arm,) = make_arms(tiny_config(), [name], seeds=range(len(rows)))
    said = Prediction(1, "", 0.5, 33, 4, (9, 9), "")
    predictions, images = [[said] * len(row) for row in rows], np.arange(len(rows[0]))
    return Scored(
        arm, "exact_match", predictions, np.array(rows, dtype=float), np.ones((len(rows), len(rows[0]))), images
    )


def test_several_seeds_are_compared_by_their_mean() -> None:
    ours = scored("none", [[1] * 10])
    theirs = scored("random", [[0] * 10, [1] * 4 + [0] * 6])
    comparison = compare(ours, theirs)
    assert (comparison["gained"], comparison["lost"]) == (10, 0)
    assert comparison["difference"]["value"] == pytest.approx(0.8) and comparison["p"] < 0.01


def test_a_family_of_comparisons_says_what_it_could_have_seen() -> None:
    arms = [scored(name, [np.random.default_rng(i).integers(0, 2, 40).tolist()]) for i, name in enumerate(LADDER[:3])]
    one, _ = compare_all([(arms[0], arms[1]), (arms[0], arms[2])])
    assert one["p_holm"] >= one["p"] and not one["significant"]
    assert 0.2 < one["detectable"] < 0.8
    few = scored("none", [[1] * 19]), scored("saliency", [[0] * 19])
    enough = scored("none", [[1] * 20]), scored("saliency", [[0] * 20])
    assert [compare_all([pair])[0]["significant"] for pair in (few, enough)] == [False, True]


def test_the_worst_fall_behind_most() -> None:
    arms = [scored("none", [[1, 0, 1, 0]]), scored("realizer", [[1, 0, 0, 1]])]
    assert worst(arms, "realizer", 9) == [2, 1]
    assert worst(arms, "realizer", 1) == [2]


def differences(**intervals: tuple[float, float]) -> Any:
    """random=(1, 3) -> of realizer and random the interval 1 to 3 in points, significant where 0 is outside."""

    def compare(first: str, second: str) -> Any:
        low, high = intervals[second if first == "realizer" else f"{first}_{second}"]
        difference = {"value": (low + high) / 200, "low": low / 100, "high": high / 100}
        return {"difference": difference, "significant": low > 0 or high < 0}

    return compare


CLEAR, OPEN, NOTHING = (9.0, 12.0), (-1.0, 9.0), (-1.0, 1.5)


@pytest.mark.parametrize(
    ("intervals", "decision"),
    [
        ({"none": CLEAR, "random": CLEAR, "saliency": CLEAR, "uniform": CLEAR}, "GO"),
        ({"none": CLEAR, "random": CLEAR, "saliency": CLEAR, "uniform": (1.9, 9.0)}, "CANNOT SAY"),
        ({"none": NOTHING, "random": OPEN, "saliency": OPEN, "uniform": OPEN}, "STOP"),
        ({"none": OPEN, "random": OPEN, "saliency": OPEN, "uniform": OPEN}, "CANNOT SAY"),
        ({"none": CLEAR, "random": CLEAR, "saliency": NOTHING, "uniform": CLEAR}, "NO-GO"),
    ],
)
def test_the_interval_decides(intervals: dict[str, tuple[float, float]], decision: str) -> None:
    arms = ["none", "random", "saliency", "realizer", "uniform"]
    compare = differences(**intervals, saliency_random=OPEN)
    outcome = decide(DEFAULT_RULES, arms, compare, images=20)
    assert outcome["decision"] == decision and outcome["notes"] == []
    few = decide(DEFAULT_RULES, arms, compare, images=19)
    assert few["decision"] == "NO VERDICT" and "at least 20 different images" in few["text"]


def test_a_lucky_answer_of_random_changes_no_decision() -> None:
    """GO once turned to STOP when two lucky hits of random fell away: its mean was then not above that of none."""
    rng = np.random.default_rng(0)
    answers = {
        "none": np.zeros(60),
        "saliency": rng.random(60) < 0.1,
        "uniform": np.zeros(60),
        "realizer": rng.random(60) < 0.8,
    }
    decisions = []
    for lucky in (0, 2):
        arms = {name: scored(name, [row.astype(float).tolist()]) for name, row in answers.items()}
        arms["random"] = scored("random", [[1.0] * lucky + [0.0] * (60 - lucky)])
        pairs = [pair for pair in compared(DEFAULT_RULES) if set(pair) <= set(arms)]
        known = dict(zip(pairs, compare_all([(arms[a], arms[b]) for a, b in pairs]), strict=True))
        decisions.append(decide(DEFAULT_RULES, list(arms), lambda a, b: known[a, b], images=60)["decision"])  # noqa: B023
    assert decisions == ["GO", "GO"]


def test_one_question_copied_twelve_times_gives_no_verdict() -> None:
    record = Record(Path("page.png"), "What is the total?", ("9",))
    records = [replace(record, image=Path(f"copy-{number}.png"), line=number) for number in range(12)]
    answers = {"realizer": "9", "none": "8"}
    said = {name: Prediction(1, answer, 0.5, 33, 4, (9, 9), "", "digest") for name, answer in answers.items()}
    items = distinct_items(records, [said["none"]] * 12)
    assert (len(items.records), items.number_of_images, items.copies) == (1, 1, 11)
    rule = {"decision": "GO", "if": {"arm": "realizer", "above": "none", "by": 2}, "text": "t"}
    rules = {"rules": [rule], "otherwise": {"decision": "NO", "text": "u"}}
    arms = [
        score_arm(make_arms(tiny_config(), [name])[0], [[answer] * 12], items, "exact_match", 4)
        for name, answer in said.items()
    ]
    result = score_experiment(arms, items, rules, 4)
    assert (result["n"], result["copies"], result["decision"]["decision"]) == (1, 11, "NO VERDICT")
    assert not result["comparisons"][0]["significant"]


def test_more_points_than_asked_but_within_chance_are_not_enough() -> None:
    rules = {
        "rules": [{"decision": "GO", "if": {"arm": "realizer", "above": "b", "by": 2}, "text": "t"}],
        "otherwise": {"decision": "NO", "text": "u"},
        "notes": [
            {"if": {"arm": "realizer", "not_above": "c"}, "text": "c does as well"},
            {"if": {"arm": "realizer", "not_above": "d"}, "text": "d is not there"},
        ],
    }
    check_rules(rules)
    assert compared(rules) == [("realizer", "b"), ("realizer", "c"), ("realizer", "d")]
    assert missing_arms(rules, ["realizer", "c"]) == ["b"]
    outcome = decide(rules, ["realizer", "b", "c"], differences(b=(1.0, 9.0), c=(-5.0, 2.0)), images=50)
    assert outcome == {"decision": "NO", "text": "u", "because": [("realizer", "b")], "notes": ["c does as well"]}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (None, "rules: expected a list of rules"),
        ({"rules": [{"decision": "GO", "text": "t"}]}, r"rules\[0\]: expected if with arm, above and by .*; got None"),
        (
            {"rules": [{"decision": "GO", "text": "t", "if": {"arm": "a", "above": "b"}}]},
            r"rules\[0\]: expected if .* above and by",
        ),
        (
            {"rules": [{"text": "t", "if": {"arm": "a", "not_above": "b"}}]},
            r"rules\[0\]: expected decision, a string",
        ),
        (
            {"rules": [{"decision": "GO", "text": "t", "if": {"arm": "a", "not_above": "b"}}]},
            "otherwise: expected decision, a string; got None",
        ),
    ],
)
def test_bad_rules_are_refused(rules: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_rules(rules)


# ---- costs --------------------------------------------------------------------------------------------------------


def test_live_tensors_are_counted_while_they_live() -> None:
    given = torch.zeros(1000)
    with LiveTensors() as counter:
        a = given + 1  # 4,000 bytes
        b = a * 2  # 8,000 alive
        del a
        c = b.view(10, 100)  # shares
        d = torch.cat((c, c))  # 12,000
        del b, c
        assert (counter.now, counter.peak) == (8000, 12000)
        del d
        given.add_(1)  # in place: nothing new
        assert (counter.now, counter.peak) == (0, 12000)


# ---- report -------------------------------------------------------------------------------------------------------


def test_pages_escape_what_models_say(tmp_path: Path) -> None:
    said = "<script>|*`"
    blocks = [
        Heading(said), Paragraph(said, said), Bullets([said, said]), Table([said, "n"], [[said, "1"]]), Code("x < y"),
        Figure("picture", b"jpeg", said), Figure("plot", "<svg/>", said),
    ]  # fmt: skip
    page, text = to_html(said, blocks), to_markdown(said, blocks, tmp_path)
    assert "<script>" not in page and "&lt;script&gt;" in page and "data:image/jpeg;base64,anBlZw==" in page
    assert "<script>" not in text and r"\|\*\`" in text and text.count("\n- &lt;script") == 2
    assert (tmp_path / "picture.jpg").read_bytes() == b"jpeg" and (tmp_path / "plot.svg").read_text() == "<svg/>"


def test_columns_of_text_are_aligned() -> None:
    assert to_text(["arm", "n"], [["a", "100"], ["longer", "1"]]) == "arm       n\na       100\nlonger    1"


@pytest.fixture(scope="module")
def experiment(checkpoint: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole experiment by the command line; read only."""
    folder = tmp_path_factory.mktemp("experiment")
    config = folder / "experiment.yaml"
    given = {"data": str(data), "model": str(checkpoint), "out": "out", "seeds": [0, 1], "timed": 1, "rounds": 1}
    config.write_text(yaml.safe_dump(given))
    assert main(["experiment", str(config), "--batch-size", "4"]) == 0
    return folder


def test_the_command_writes_plan_predictions_and_report(experiment: Path) -> None:
    out = experiment / "out"
    plan = yaml.safe_load((out / "plan.yaml").read_text())
    result = json.loads((out / "result.json").read_text())
    assert plan["rules"] == DEFAULT_RULES and re.fullmatch("[0-9a-f]{64}", plan["weights_sha256"])
    assert list(result["arms"]) == [*LADDER, *BASELINES, *BOUNDS] and (result["n"], result["images"]) == (6, 3)
    assert len(result["arms"]["random"]["runs"]) == 2
    assert result["arms"]["oracle"]["recall"]["value"] == 1.0 and result["arms"]["oracle"]["missed"] == 0.0
    assert [row["mean_tokens"] for row in result["arms"].values()] == [16, 33, 33, 33, 33, 33, 36, 68, 33, 272]
    pairs = [(one["first"], one["second"]) for one in result["comparisons"]]
    assert pairs[:4] == list(zip(LADDER[1:], LADDER[:-1], strict=True)) and len(set(pairs)) == len(pairs)
    assert {("realizer", name) for name in (*BASELINES, *BOUNDS, "random", "none")} <= set(pairs)
    assert all(one["p_holm"] >= one["p"] for one in result["comparisons"])
    assert result["decision"]["decision"] == "NO VERDICT" and not result["copies"]  # three images
    assert not any(one["significant"] for one in result["comparisons"])
    costs = result["costs"]["arms"]
    assert all(cost["flops"] > 0 and cost["peak_bytes"] > 0 for cost in costs.values())
    assert {table["by"] for table in result["buckets"]} >= {"first word of the question", "layout"}
    arms = result["arms"]
    assert arms["saliency"]["query_dependence"] == 0.0 < arms["random"]["query_dependence"] <= 1.0
    assert arms["none"]["query_dependence"] is arms["realizer"]["misallocated"] is arms["none"]["seed_sd"] is None
    assert arms["random"]["seed_sd"] == pytest.approx(np.std(arms["random"]["runs"], ddof=1))
    assert table_text(result).splitlines()[-1].startswith("NO VERDICT: ")


def test_more_tokens_cost_more(experiment: Path) -> None:
    costs = json.loads((experiment / "out" / "result.json").read_text())["costs"]["arms"]
    flops = {name: cost["flops_by_stage"] for name, cost in costs.items()}
    assert flops["larger"]["grid encoder"] > flops["none"]["grid encoder"] > flops["smaller"]["grid encoder"]
    assert flops["keep_all"]["prefill"] > flops["realizer"]["prefill"] > flops["none"]["prefill"]
    assert flops["uniform"] == flops["oracle"] and flops["clip_query"] != flops["realizer"]
    peaks = {name: cost["peak_bytes"] for name, cost in costs.items()}
    assert peaks["smaller"] < peaks["none"] < peaks["larger"]  # the grid encoder's


def test_the_page_stands_alone(experiment: Path) -> None:
    page = (experiment / "out" / "report.html").read_text()
    text = (experiment / "out" / "report.md").read_text()
    assert not re.findall(r"<(?:script|link|iframe)", page)
    assert all(source.startswith(("data:", "#")) for source in re.findall(r'(?:src|href)="([^"]*)"', page))
    assert page.count("<svg") == 2 and page.count("<img") == 6
    for word in (
        "NO VERDICT",
        "could be seen",
        "keep_all",
        "weights_sha256",
        "Holm",
        "not_above",
        "p99",
        "query dependence",
        "misallocated",
    ):
        assert word in page and word.replace("_", r"\_") in text or word in text
    for name in re.findall(r"\]\(([^)]*)\)", text):
        assert (experiment / "out" / name).is_file()


def test_it_is_scored_again_without_the_model(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("arr_coc.loading.load_model", None)
    before = (experiment / "out" / "result.json").read_text()
    assert main(["experiment", str(experiment / "experiment.yaml"), "--rescore", "--metric", "anls"]) == 0
    found = json.loads((experiment / "out" / "result.json").read_text())
    assert (found["metric"], found["planned_metric"]) == ("anls", "exact_match")
    assert "exploratory: not the plan&#x27;s metric" in (experiment / "out" / "report.html").read_text()
    assert main(["experiment", str(experiment / "experiment.yaml"), "--rescore"]) == 0
    assert (experiment / "out" / "result.json").read_text() == before
    assert "ANLS, %" in capsys.readouterr().out


def test_another_experiment_in_the_folder_is_refused(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(experiment / "experiment.yaml")
    for options, message in [
        (["--budget", "9"], "expected an empty folder or the same experiment's; got other arms"),
        (["--metric", "luck"], "metric: expected one of"),
        (["--metric", "vqa_accuracy"], "data.jsonl, line 1: answers: vqa_accuracy expected at least 4 answers"),
        (["--arms", "none,random"], "rules: expected rules about arms of this experiment; got realizer, saliency"),
        (["--seeds", "a"], "--seeds: expected whole numbers with commas between them; got 'a'"),
        (["--rounds", "0"], "rounds: expected at least 1; got 0"),
        (["--rescore", "--limit", "2"], "expected the data of the plan (6 records); got other data"),
        (["--rescore", "--out", str(experiment / "none")], "expected the folder of an experiment (with plan.yaml)"),
    ]:
        assert main(["experiment", config, *options]) == 2
        assert message in capsys.readouterr().err


def test_everything_that_decides_an_answer_is_part_of_a_run(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed generation config once mixed the answers of two models in one report."""
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    model = load_model(str(folder), "cpu")
    before = model_identity(model)
    assert before == model_identity(load_model(str(checkpoint), "cpu")), "not where it lies"

    def changed() -> set[str]:
        after = model_identity(model)
        return {name.removesuffix("_sha256") for name in before if before[name] != after[name]}

    assert not changed()
    for holder, name, value, part in [
        (model.generation_config, "max_new_tokens", 3, "generation_config"),
        (model.config.fetcher_config, "seed", 9, "config"),
        (model.processor, "chat_template", "{{ messages }}", "chat_template"),
        (model.processor.image_processor, "image_mean", [0.0, 0.0, 0.0], "processor"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, value)
            assert changed() == {part}
    (folder / "more.bin").write_bytes(b"weights of another format")
    assert changed() == {"weights"}
    (folder / "more.bin").unlink()
    model.processor.tokenizer.add_tokens(["unheard-of"])
    assert changed() == {"tokenizer"}


def test_the_tail_of_few_timings_is_not_reported() -> None:
    assert percentiles([1.0] * 199) == {"p50": 1.0, "p95": None, "p99": None}
    assert percentiles(list(range(200)))["p99"] == pytest.approx(197.01)


def test_paths_in_a_configuration_are_relative_to_it(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("data: d.jsonl\nmodel: org/name\nseeds: [1]\n")
    assert read_config(str(path)) == {"data": str(tmp_path / "d.jsonl"), "model": "org/name", "seeds": [1]}
    path.write_text("dta: d.jsonl\n")
    with pytest.raises(ValueError, match=r"config.yaml: expected keys among .*; got \['dta'\]"):
        read_config(str(path))
