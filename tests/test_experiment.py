"""The experiment: predictions that survive a kill, runs by the command line, a page that stands alone."""

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
from helpers import tiny_model
from PIL import Image

from arr_coc.cli import main
from arr_coc.cli.experiment import read_config
from arr_coc.data.records import read_records
from arr_coc.evaluation.answers import ask, encode, lattice, load_images
from arr_coc.evaluation.arms import BASELINES, BOUNDS, GROUPS, LADDER, make_arms
from arr_coc.evaluation.prediction_loop import model_identity
from arr_coc.evaluation.predictions import append, mend, prediction, read_run
from arr_coc.experiments.costs import LiveTensors
from arr_coc.experiments.experiment import predict
from arr_coc.experiments.report import table_text, write_report
from arr_coc.experiments.scoring import default_rules
from arr_coc.loading import load_model

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


def test_the_time_is_estimated_first(
    model: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("arr_coc.experiments.experiment.ESTIMATED", 3)
    records = read_records(data)
    arms = make_arms(model.config, ["none", "saliency"])
    assert predict(model, arms, records, tmp_path) == 12 == sum(len(read_run(tmp_path, arm.name)) for arm in arms)
    assert "8 answers to go, in about 0 min by the first 4" in capsys.readouterr().err
    assert predict(model, arms, records, tmp_path) == 0
    assert "to go" not in capsys.readouterr().err


# ---- what arms fetch ----------------------------------------------------------------------------------------------


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
    for cut in ('{"line": 9, "ans', '{"line": 9, "answer": "Caf\u00e9'):  # the second one within a character
        with path.open("ab") as stream:
            stream.write(cut.encode()[: -1 if cut.endswith("\u00e9") else None])
        assert read_run(tmp_path, "none") == {3: one, 4: replace(one, line=4)}
        mend(path)
    append(path, [replace(one, line=8, answer="a\u2028b\x85c"), replace(one, line=9)])
    assert set(read_run(tmp_path, "none")) == {3, 4, 8, 9}, "whatever an answer holds that elsewhere ends a line"
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
    assert plan["rules"] == default_rules("realizer") and re.fullmatch("[0-9a-f]{64}", plan["weights_sha256"])
    assert list(result["arms"]) == [*LADDER, *BASELINES, *GROUPS["halves"], *BOUNDS]
    assert (result["n"], result["images"]) == (6, 3)
    assert len(result["arms"]["random"]["runs"]) == 2
    assert result["arms"]["oracle"]["recall"]["value"] == 1.0 and result["arms"]["oracle"]["missed"] == 0.0
    assert [row["mean_tokens"] for row in result["arms"].values()] == [
        16, 33, 33, 33, 33, 33, 36, 68, 17, 33, 16, 33, 272,
    ]  # fmt: skip
    pairs = [(one["first"], one["second"]) for one in result["comparisons"]]
    assert pairs[:4] == list(zip(LADDER[1:], LADDER[:-1], strict=True)) and len(set(pairs)) == len(pairs)
    assert {("realizer", name) for name in (*BASELINES, *BOUNDS, "random", "none", "patches_only")} <= set(pairs)
    assert {("realizer", "other_base"), ("none", "other_base@0"), ("other_base", "other_base@0")} <= set(pairs)
    assert [(half["own"], half["other"]) for half in result["halves"]] == [
        ("realizer", "other_base"), ("none", "other_base@0"),
    ]  # fmt: skip
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
    assert flops["other_base"] == flops["realizer"] and flops["other_base@0"] == flops["none"]
    assert flops["patches_only"]["prefill"] < flops["realizer"]["prefill"]
    assert flops["uniform"] == flops["oracle"] and flops["clip_query"] != flops["realizer"]
    peaks = {name: cost["peak_bytes"] for name, cost in costs.items()}
    assert peaks["smaller"] < peaks["none"] < peaks["larger"]  # the grid encoder's


def test_the_page_stands_alone(experiment: Path) -> None:
    page = (experiment / "out" / "report.html").read_text()
    text = (experiment / "out" / "report.md").read_text()
    assert not re.findall(r"<(?:script|link|iframe)", page)
    assert all(source.startswith(("data:", "#")) for source in re.findall(r'(?:src|href)="([^"]*)"', page))
    assert page.count("<svg") == 3 and page.count("<img") == 6
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
        "What base and patches contribute",
        "Without any base",
        "not trained on such prompts",
    ):
        assert word in page and word.replace("_", r"\_") in text or word in text
    for name in re.findall(r"\]\(([^)]*)\)", text):
        assert (experiment / "out" / name).is_file()


def test_a_decision_names_the_arms_that_the_weights_never_learned_to_read(
    experiment: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(experiment / "out", out)
    result = json.loads((out / "result.json").read_text())
    result["decision"]["because"] = [["realizer", "none"], ["realizer", "larger"], ["realizer", "patches_only"]]
    page = write_report(out, result, read_records(data)).read_text()
    assert "These weights were not trained to read larger, patches_only: to be above them says little." in page


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
        (["--arms", "none,random"], "rules: expected rules about arms of this experiment; got larger, patches"),
        (["--seeds", "a"], "--seeds: expected whole numbers with commas between them; got 'a'"),
        (["--rounds", "0"], "rounds: expected at least 1; got 0"),
        (["--rescore", "--limit", "2"], "expected the data of the plan (6 records); got other data"),
        (["--rescore", "--budget", "7", "--arms", "none"], "--rescore: expected no other options than data, limit and"),
        (["--rescore", "--rules", "r.yaml"], "metric; got --rules"),
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


def test_paths_in_a_configuration_are_relative_to_it(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("data: d.jsonl\nmodel: org/name\nseeds: [1]\n")
    assert read_config(str(path)) == {"data": str(tmp_path / "d.jsonl"), "model": "org/name", "seeds": [1]}
    path.write_text("dta: d.jsonl\n")
    with pytest.raises(ValueError, match=r"config.yaml: expected keys among .*; got \['dta'\]"):
        read_config(str(path))
