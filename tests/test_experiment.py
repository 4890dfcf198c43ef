"""The experiment: arms of equal size, predictions that survive a kill, decisions by rules, a page that stands alone."""

import json
import re
import xml.etree.ElementTree as ElementTree
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
from arr_coc.data.records import read_records
from arr_coc.evaluating.answering import ask, encode, lattice, load_images
from arr_coc.evaluating.arms import BASELINES, BOUNDS, LADDER, make_arms
from arr_coc.evaluating.blocks import Bullets, Code, Figure, Heading, Paragraph, Table, to_html, to_markdown, to_text
from arr_coc.evaluating.deciding import DEFAULT_RULES, check_rules, compared, decide, missing_arms
from arr_coc.evaluating.experiment import predict
from arr_coc.evaluating.plotting import Point, scatter
from arr_coc.evaluating.predictions import append, mend, prediction, read_run
from arr_coc.evaluating.report import table_text
from arr_coc.evaluating.scoring import Scored, compare, worst
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
    one = prediction(3, answer, 33, 16, (60, 90))
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
    (arm,) = make_arms(tiny_config(), [name], seeds=range(len(rows)))
    said = [[type("Said", (), {"probability": 0.5}) for _ in row] for row in rows]
    return Scored(arm, said, np.array(rows, dtype=float), np.full((len(rows), len(rows[0])), 1.0))  # type: ignore


def test_of_several_seeds_the_least_striking_counts() -> None:
    ours = scored("none", [[1] * 10])
    theirs = scored("random", [[0] * 10, [1] * 4 + [0] * 6])
    found = compare(ours, theirs, np.arange(10), graded=False)
    assert (found["gained"], found["lost"], found["p"]) == (6, 0, pytest.approx(2 / 2**6))
    assert found["difference"]["value"] == pytest.approx(0.8)
    graded = compare(scored("none", [[0.9] * 10]), theirs, np.arange(10), graded=True)
    assert graded["test"] == "sign flips" and "gained" not in graded and graded["p"] < 0.05


def test_the_worst_fall_behind_most() -> None:
    arms = [scored("none", [[1, 0, 1, 0]]), scored("realizer", [[1, 0, 0, 1]])]
    assert worst(arms, [None] * 4, "realizer", 9) == [2, 1]  # type: ignore[list-item]
    assert worst(arms, [None] * 4, "realizer", 1) == [2]  # type: ignore[list-item]


def differences(**points: float) -> Any:
    """realizer_random=3 -> that difference, in points, and significant."""
    return lambda first, second: {"difference": {"value": points[f"{first}_{second}"] / 100}, "significant": True}


@pytest.mark.parametrize(
    ("points", "decision"),
    [
        ({"random_none": 0, "saliency_random": 5, "realizer_random": 9, "realizer_saliency": 9}, "STOP"),
        ({"random_none": 1, "saliency_random": 0, "realizer_random": 9, "realizer_saliency": 9}, "INVESTIGATE"),
        ({"random_none": 1, "saliency_random": 1, "realizer_random": 3, "realizer_saliency": 2.1}, "GO"),
        ({"random_none": 1, "saliency_random": 1, "realizer_random": 3, "realizer_saliency": 2.0}, "NO-GO"),
    ],
)
def test_the_first_rule_that_holds_decides(points: dict[str, float], decision: str) -> None:
    made = decide(DEFAULT_RULES, ["none", "random", "saliency", "realizer"], differences(**points))
    assert made["decision"] == decision and made["notes"] == []


def test_more_points_than_asked_but_within_chance_are_not_enough() -> None:
    rules = {
        "rules": [{"decision": "GO", "if": {"arm": "a", "above": "b", "by": 2}, "text": "t"}],
        "otherwise": {"decision": "NO", "text": "u"},
        "notes": [
            {"if": {"arm": "a", "not_above": "c"}, "text": "c does as well"},
            {"if": {"arm": "a", "not_above": "d"}, "text": "d is not there"},
        ],
    }
    check_rules(rules)
    assert compared(rules) == [("a", "b"), ("a", "c"), ("a", "d")]
    assert missing_arms(rules, ["a", "c"]) == ["b"]
    found = {"b": {"difference": {"value": 0.05}, "significant": False}, "c": {"difference": {"value": 0.0}}}
    made = decide(rules, ["a", "b", "c"], lambda first, second: found[second])
    assert made == {"decision": "NO", "text": "u", "because": [("a", "b")], "notes": ["c does as well"]}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (None, "rules: expected a list of rules"),
        ({"rules": [{"decision": "GO", "text": "t"}]}, r"rules\[0\]: expected if with arm and not_above.*; got None"),
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


def test_a_plot_is_well_formed_and_shows_every_arm() -> None:
    marks = [Point(i, f"<arm {i}>", 132.0, 50.0 + i / 10, 48, 53, "ladder") for i in range(1, 8)]
    marks.append(Point(8, "all", 1024.0, 90.0, 85, 94, "bound"))
    root = ElementTree.fromstring(scatter(marks, x_title="tokens & more", y_title="accuracy"))
    circles = [element for element in root.iter() if element.tag.endswith("circle")]
    at = np.array([[float(circle.get("cx") or 0), float(circle.get("cy") or 0)] for circle in circles])
    apart = np.linalg.norm(at[:, None] - at[None], axis=-1) + 99 * np.eye(len(at))
    assert apart.min() > 15 and at.min() > 0 and at[:, 0].max() < 420 and at[:, 1].max() < 300
    aside = at[:-1, 0] - at[0, 0]
    assert np.abs(aside).max() <= 16, "a mark stands where its cost is, give or take its width"
    numbers = [text for text in root.itertext() if re.fullmatch(r"[1-8]", text)]
    assert sorted(numbers) == list("12345678"), "those that find no room are named beside a mark"
    one = scatter(marks[:1], x_title="x", y_title="y")
    zero = scatter([Point(1, "none", 64, 0, 0, 0, "ladder")], x_title="x", y_title="y")
    assert ElementTree.fromstring(one) is not None and ElementTree.fromstring(zero) is not None


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
    assert result["decision"]["decision"] == "STOP"  # random weights answer nothing
    costs = result["costs"]["arms"]
    assert all(cost["flops"] > 0 and cost["peak_bytes"] > 0 for cost in costs.values())
    assert {table["by"] for table in result["buckets"]} >= {"first word of the question", "layout"}
    arms = result["arms"]
    assert arms["saliency"]["query_dependence"] == 0.0 < arms["random"]["query_dependence"] <= 1.0
    assert arms["none"]["query_dependence"] is arms["realizer"]["misallocated"] is arms["none"]["seed_sd"] is None
    assert arms["random"]["seed_sd"] == pytest.approx(np.std(arms["random"]["runs"], ddof=1))
    assert table_text(result).splitlines()[-1].startswith("STOP: ")


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
    assert all(source.startswith("data:") for source in re.findall(r'(?:src|href)="([^"]*)"', page))
    assert page.count("<svg") == 2 and page.count("<img") == 6
    for word in ("STOP", "keep_all", "weights_sha256", "Holm", "not_above", "p99", "query dependence", "misallocated"):
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
    assert {one["test"] for one in found["comparisons"]} == {"sign flips"}
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


def test_paths_in_a_configuration_are_relative_to_it(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("data: d.jsonl\nmodel: org/name\nseeds: [1]\n")
    assert read_config(str(path)) == {"data": str(tmp_path / "d.jsonl"), "model": "org/name", "seeds": [1]}
    path.write_text("dta: d.jsonl\n")
    with pytest.raises(ValueError, match=r"config.yaml: expected keys among .*; got \['dta'\]"):
        read_config(str(path))
