"""Ablations: what a checkpoint can run is tried, what it cannot is named; a table, plots; processes share the work."""

import base64
import csv
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import tiny_config
from PIL import Image
from torch.distributed.run import main as torchrun

from arr_coc.cli import main
from arr_coc.evaluation.arms import make_arms
from arr_coc.evaluation.peer_rules import PEERS
from arr_coc.evaluation.predictions import Prediction, misallocated, query_dependence, read_run, token_ranges
from arr_coc.experiments.ablation import ABSENT, BUDGETS, COLUMNS, make_trials, trial_arms
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.bridges import BRIDGES
from arr_coc.modeling.scorers import SCORERS
from arr_coc.modeling.vision_tower import COMPRESSORS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four questions about two images; read only."""
    folder = tmp_path_factory.mktemp("data")
    lines = []
    for i in range(2):
        pixels = np.random.default_rng(i).integers(0, 256, (50, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        for question in ("What is it?", "Why?"):
            lines.append({"image": f"{i}.png", "question": question, "answers": ["?"], "boxes": [[10, 10, 20, 18]]})
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# ---- trials -------------------------------------------------------------------------------------------------------


def values(trials: Any, factor: str) -> dict[str, str]:
    return {trial.value: trial.arm for trial in trials if trial.factor == factor}


def test_every_member_of_every_registry_is_tried_or_named_as_absent() -> None:
    config = tiny_config(fetcher={"scorers": ["realizer"]})
    trials = make_trials(config, peers=True)
    for factor, registry in [
        ("scorer", SCORERS), ("allocator", ALLOCATORS), ("compressor", COMPRESSORS), ("bridge", BRIDGES),
        ("peer", PEERS),
    ]:  # fmt: skip
        assert list(values(trials, factor)) == list(registry)
    absent = {(trial.factor, trial.value) for trial in trials if not trial.arm and trial.note == ABSENT}
    assert {("scorer", "clip_query"), ("scorer", "words"), ("compressor", "mask"), ("bridge", "vet")} <= absent
    assert values(trials, "overlap") == {"exclude": "", "allow": ""}
    names = trial_arms(config, trials)
    assert names[0] == "realizer" and len(set(names)) == len(names)
    assert [arm.name for arm in make_arms(config, names)] == names  # all of them can be made
    assert values(make_trials(config, boxed=False), "scorer")["oracle"] == ""


def test_budgets_scale_with_the_grid() -> None:
    """N is 256 here, 4096 where 273 is the standard."""
    found = values(make_trials(tiny_config()), "budget")
    assert list(found) == [str(budget) for budget in BUDGETS]
    assert [found[budget] for budget in ("0", "64", "273", "400", "all")] == [
        "realizer@0", "realizer@4", "realizer@17", "realizer@25", "realizer@all"
    ]  # fmt: skip


def test_overlap_and_bypass_are_tried_where_there_is_something_to_change() -> None:
    config = tiny_config(vision={"compressor": "mask"}, bridge={"kind": "quality"})
    trials = make_trials(config)
    assert values(trials, "overlap") == {"exclude": "realizer+exclude", "allow": "realizer+allow"}
    assert values(trials, "compressor") == {"conv": "", "mask": "realizer"}
    assert values(trials, "bridge")["quality, bypassed"] == "realizer+bypass"
    arms = {arm.name: arm for arm in make_arms(config, ["realizer+allow@all", "realizer+window+bypass"])}
    assert arms["realizer+allow@all"].budget == 256 and arms["realizer+allow@all"].overlap == "allow"
    assert arms["realizer+window+bypass"].allocator == "window" and arms["realizer+window+bypass"].bypass
    with pytest.raises(ValueError, match=r"arms: expected names among .*; got \['realizer\+luck', 'uniform\+allow'\]"):
        make_arms(config, ["realizer+luck", "uniform+allow"])


# ---- what tokens went to ------------------------------------------------------------------------------------------


def said(tokens: int, *patches: int) -> Prediction:
    bits = np.zeros(16, dtype=np.uint8)
    bits[list(patches)] = 1
    return Prediction(1, "", 0.5, tokens, 4, (9, 9), base64.b64encode(np.packbits(bits).tobytes()).decode())


def test_query_dependence_is_the_mean_distance_between_questions_of_one_image() -> None:
    row = [said(2, 0, 1), said(2, 1, 2), said(2, 0, 1), said(2, 5, 6)]
    assert query_dependence([row], np.array([0, 0, 1, 1])) == pytest.approx((2 / 3 + 1) / 2)
    assert query_dependence([row], np.array([0, 1, 0, 2])) == 0.0
    assert query_dependence([row], np.arange(4)) is None
    assert query_dependence([[said(0)] * 2], np.array([0, 0])) is None


def test_hard_questions_with_few_tokens_are_misallocated() -> None:
    row = [said(tokens) for tokens in (10, 20, 30, 40, 50)]
    hard = np.array([True, False, True, False, True])
    assert misallocated([row], hard) == pytest.approx(1 / 3)
    assert misallocated([row], ~hard & False) is None
    assert misallocated([[said(7)] * 5], hard) is None


def test_ranges_of_tokens_keep_equal_numbers_together() -> None:
    found = token_ranges([said(tokens) for tokens in (8, 8, 8, 8, 9, 10, 11, 120)])
    assert found == ["  8"] * 4 + ["  9 to 10"] * 2 + [" 11 to 120"] * 2
    assert token_ranges([said(5), said(5)]) == ["", ""]


# ---- the command --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ablation(checkpoint: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole ablation of three budgets by the command line; read only."""
    out = tmp_path_factory.mktemp("ablation") / "out"
    options = ["--data", str(data), "--model", str(checkpoint), "--out", str(out), "--seeds", "0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arr_coc.experiments.ablation.BUDGETS", (0, 273, "all"))
        assert main(["ablate", *options, "--timed", "1", "--rounds", "1"]) == 0
    return out


def test_the_command_writes_one_row_per_trial(ablation: Path) -> None:
    plan = yaml.safe_load((ablation / "plan.yaml").read_text())
    result = json.loads((ablation / "result.json").read_text())
    assert [(row["factor"], row["value"]) for row in result["rows"]] == [
        (trial["factor"], trial["value"]) for trial in plan["trials"]
    ]
    rows = {(row["factor"], row["value"]): row for row in result["rows"]}
    assert result["subject"] == "realizer" and rows["scorer", "realizer"]["difference"] is None
    assert rows["budget", "0"]["mean_tokens"] == 16 and rows["budget", "all"]["mean_tokens"] == 16 + 256
    assert rows["scorer", "oracle"]["recall"]["value"] == 1.0
    assert 16 < rows["allocator", "adaptive"]["mean_tokens"] <= 16 + 25
    assert all(row["cost"]["first_token_ms"]["p50"] > 0 and row["p_holm"] != 0 for row in rows.values() if row["arm"])
    with (ablation / "ablation.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert tuple(table[0]) == COLUMNS and len(table) == len(rows)
    assert {row["note"] for row in table if row["factor"] == "bridge" and not row["arm"]} == {ABSENT}
    texts = [(ablation / name).read_text() for name in ("report.html", "report.md")]
    assert all(ABSENT in text and "budget" in text for text in texts) and texts[0].count("<svg") == 2
    for name in ("plot-tokens.svg", "plot-time.svg"):
        assert ElementTree.parse(ablation / name).getroot().tag.endswith("svg")


def test_an_ablation_is_scored_again_and_is_no_experiment(
    ablation: Path, data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--data", str(data), "--out", str(ablation)]
    before = (ablation / "result.json").read_text()
    assert main(["experiment", *options, "--model", str(checkpoint), "--seeds", "0"]) == 2
    assert "expected an empty folder or the same experiment's; got other arms" in capsys.readouterr().err
    monkeypatch.setattr("arr_coc.loading.load_model", None)
    assert main(["experiment", *options, "--rescore"]) == 2
    assert "expected the folder of an experiment; got an ablation's" in capsys.readouterr().err
    assert main(["ablate", *options, "--rescore"]) == 0
    assert (ablation / "result.json").read_text() == before and "adaptive" in capsys.readouterr().out


def test_an_ablation_has_its_own_arms(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"data": str(data), "model": str(checkpoint), "out": "out", "arms": ["none"]}))
    assert main(["ablate", str(config)]) == 2
    assert "arms: expected none for an ablation, which has its own; got ('none',)" in capsys.readouterr().err


def test_without_matplotlib_nothing_is_asked(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["ablate", "--data", str(data), "--out", str(tmp_path / "out")]) == 2
    assert "plots: expected matplotlib (pip install 'arr-coc[eval]'); got none" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ---- processes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_answer_as_one_does(
    checkpoint: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two processes, joined by accelerate over gloo: each writes its share, the first one gathers."""
    arms = ["none", "random", "realizer"]
    rules = tmp_path / "rules.yaml"
    rule = {"decision": "GO", "if": {"arm": "realizer", "above": "none", "by": 2}}
    rules.write_text(yaml.safe_dump({"rules": [rule], "otherwise": {"decision": "NO"}}))
    options = ["experiment", "--data", str(data), "--model", str(checkpoint), "--arms", ",".join(arms)]
    options += ["--rules", str(rules), "--seeds", "0", "--timed", "1", "--rounds", "1"]
    options += ["--device", "cpu"] if torch.accelerator.is_available() else []  # else it is found out
    assert main([*options, "--out", str(tmp_path / "one")]) == 0
    capfd.readouterr()
    torchrun(["--standalone", "--nproc_per_node", "2", "-m", "arr_coc.cli", *options, "--out", str(tmp_path / "two")])
    printed = capfd.readouterr().out
    for run in ("none", "random.0", "realizer"):
        files = sorted(path.name for path in (tmp_path / "two" / "predictions").glob(f"{run}-*.jsonl"))
        assert files == [f"{run}-0.jsonl", f"{run}-1.jsonl"]
        whole, shared = (read_run(tmp_path / name / "predictions", run) for name in ("one", "two"))
        assert set(whole) == set(shared) and len(whole) == 4
        assert all((one.answer, one.patches) == (shared[k].answer, shared[k].patches) for k, one in whole.items())
    one, two_ = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two"))
    assert one["arms"] == two_["arms"] and printed.count("NO VERDICT: ") == 1
