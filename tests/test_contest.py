"""Arms with weights of their own: planned with every model's identity, answered one model at a time, judged by name."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import Cli, tiny_checkpoint
from PIL import Image

from arr_coc.cli import main
from arr_coc.data.records import read_records
from arr_coc.evaluation.arms import Arm, make_arms
from arr_coc.evaluation.predictions import read_run, swapped_pairs
from arr_coc.experiments import contest
from arr_coc.experiments.contest import check_tokens, predict_contest
from arr_coc.experiments.experiment import plan_arms, predict, read_plan
from arr_coc.experiments.scoring import Entry, read_entries
from arr_coc.loading import load_model

CONTEST: dict[str, dict[str, Any]] = {
    "running": {"arm": "realizer", "weights": ["a", "b"]},
    "floor": {"arm": "larger", "weights": ["c"]},
    "bare": {"arm": "patches_only@33", "weights": ["a"]},
    "ceiling": {"arm": "keep_all", "weights": ["d"], "bound": True},
}
RULES = {
    "rules": [{"decision": "GO", "if": {"arm": "running", "above": ["floor", "bare"], "by": 2}}],
    "otherwise": {"decision": "INCONCLUSIVE"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four tiny models, and eight questions about four pages; read only."""
    folder = tmp_path_factory.mktemp("contest")
    for seed, name in enumerate("abcd"):
        tiny_checkpoint(folder / name, seed=seed)
    lines = []
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        for question in ("What is it?", "Why?"):
            lines.append(
                {"image": f"{number}.png", "question": question, "answers": ["?"], "boxes": [[10, 10, 20, 18]]}
            )
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def configured(folder: Path, name: str = "contest.yaml", **changes: Any) -> Path:
    """A configuration in `folder`; a change to None leaves a key out."""
    content = {
        "data": "data.jsonl", "out": name.removesuffix(".yaml"), "contest": CONTEST, "rules": RULES, "timed": 1,
        "rounds": 1, **changes,
    }  # fmt: skip
    path = folder / name
    content = {key: value for key, value in content.items() if value is not None}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def out(folder: Path) -> Path:
    """A whole contest by the command line; read only."""
    assert main(["experiment", str(configured(folder)), "--device", "cpu"]) == 0
    return folder / "contest"


def test_the_plan_names_every_model_and_what_each_arm_is(out: Path) -> None:
    plan = read_plan(out)
    arms = {arm.name: arm for arm in plan_arms(plan)}
    assert list(arms) == list(CONTEST) == list(plan["weights"])
    assert [(arm.rule, arm.role, arm.tokens, len(arm.weights)) for arm in arms.values()] == [
        ("realizer", "contest", 33, 2), ("larger", "contest", 36, 1), ("patches_only", "contest", 33, 1),
        ("keep_all", "bound", 272, 1),
    ]  # fmt: skip
    hashes = [identity["weights_sha256"] for models in plan["weights"].values() for identity in models]
    assert len(set(hashes)) == 4 and hashes[0] == hashes[3]  # running and bare share a model
    assert arms["floor"].note.startswith("larger; a larger image, base tokens only: 192 px")
    assert arms["floor"].note.endswith("36 tokens; 1 training of its own") and arms["floor"].trained
    assert (plan["reference"], plan["patch_size"]) == ("running", 8)


def test_every_run_is_what_its_model_answers_alone(folder: Path, out: Path, tmp_path: Path) -> None:
    records = read_records(folder / "data.jsonl")
    for run, name, arm in (("running.0", "a", "realizer"), ("running.1", "b", "realizer"), ("floor.0", "c", "larger")):
        model = load_model(str(folder / name), "cpu")
        (alone,) = make_arms(model.config, [arm])
        predict(model, [alone], records, tmp_path / run, progress=False)
        theirs = read_run(tmp_path / run, arm)
        answers = {line: (said.answer, said.patches, said.tokens) for line, said in theirs.items()}
        assert answers == {
            line: (said.answer, said.patches, said.tokens) for line, said in read_run(out / "predictions", run).items()
        }
    assert read_run(out / "predictions", "running.0") != read_run(out / "predictions", "running.1")
    assert {said.tokens for said in read_run(out / "predictions", "bare.0").values()} == {33}


def test_the_result_compares_with_the_reference(out: Path) -> None:
    result = json.loads((out / "result.json").read_text())
    pairs = {(row["first"], row["second"]) for row in result["comparisons"]}
    assert pairs == {("running", "floor"), ("running", "bare"), ("running", "ceiling")}
    assert len(result["arms"]["running"]["runs"]) == 2 and result["decision"]["decision"] == "NO VERDICT"
    assert set(result["costs"]["arms"]) == set(CONTEST)
    costs = result["costs"]["arms"]
    assert costs["ceiling"]["flops"] > costs["running"]["flops"] and costs["floor"]["flops"] > costs["running"]["flops"]


def test_the_report_says_whose_weights_answer(out: Path) -> None:
    text = (out / "report.md").read_text()
    assert "each arm with weights that were trained for it, same questions" in text
    assert "running over 2 trainings: " in text and "Where running did worst" in text


def test_the_same_command_goes_on_and_loads_only_what_is_left(
    folder: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = read_entries(CONTEST, folder)
    records, arms = read_records(folder / "data.jsonl"), plan_arms(read_plan(out))
    predictions = tmp_path / "predictions"
    predictions.mkdir()
    for path in (out / "predictions").glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        (predictions / path.name).write_text("".join(lines[:5] if path.name.startswith("floor") else lines))
    loaded = []

    def load(name: str) -> Any:
        loaded.append(Path(name).name)
        return load_model(name, "cpu")

    assert predict_contest(load, entries, arms, records, predictions, progress=False) == 3
    assert loaded == ["c"]
    assert read_run(predictions, "floor.0") == read_run(out / "predictions", "floor.0")


def test_other_weights_in_the_same_folder_of_answers_are_refused(folder: Path, out: Path, cli: Cli) -> None:
    other = {**CONTEST, "floor": {"arm": "larger", "weights": ["d"]}}
    code, _, message = cli("experiment", str(configured(folder, "other.yaml", contest=other, out=str(out))))
    assert code and "expected an empty folder or the same experiment's; got other weights" in message


def changed(name: str, **changes: Any) -> dict[str, Any]:
    return {**CONTEST, name: {**CONTEST[name], **changes}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contest": changed("ceiling", bound=False)}, "contest.ceiling: expected 33 tokens, up to 10 % .*; got 272"),
        ({"tolerance": 0.05}, "contest.floor: expected 33 tokens, up to 5 % more or fewer, or bound: true; got 36"),
        ({"contest": changed("running", weights=["a", "a"])}, "contest.running: expected weights that differ"),
        ({"contest": changed("running", arm="ladder")}, "contest.running: expected one arm; got 'ladder'"),
        ({"contest": changed("running", arm="magic")}, "arms: expected names among .*; got .'magic'"),
        ({"contest": changed("running", weights=["nowhere"])}, "model: .*nowhere"),
        ({"rules": None}, "rules: expected rules about the arms of the contest; got none"),
        ({"rules": {**RULES, "rules": [{**RULES["rules"][0], "if": {"arm": "x", "not_above": "floor"}}]}}, "got x in"),  # type: ignore[dict-item]
        ({"reference": "nobody"}, "reference: expected an arm among running, floor, .*; got 'nobody'"),
        ({"arms": ["none"]}, "arms, trained_on: expected none beside a contest"),
        ({"model": "a"}, "model: expected none beside a contest"),
    ],
)
def test_contests_that_show_nothing_are_refused_before_anything_is_answered(
    folder: Path, cli: Cli, changes: dict[str, Any], message: str
) -> None:
    path = configured(folder, "refused.yaml", **changes)
    code, _, said = cli("experiment", str(path), "--device", "cpu")
    assert code and re.search(message, said), said
    assert not (folder / "refused").exists()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"a": {"arm": "none", "weights": ["m"]}}, "contest: expected at least two arms by name"),
        ({"a b": {}, "c": {}}, "contest: expected names of letters, digits and _; got 'a b'"),
        ({"a": {"arm": "none"}, "c": {}}, "contest.a: expected arm and weights, perhaps bound, trained_on"),
        ({"a": {"arm": "none", "weights": "m"}, "c": {}}, "contest.a.weights: expected a list of texts; got 'm'"),
        ({"a": {"arm": "none", "weights": []}, "c": {}}, "contest.a: expected the name of an arm, at least one folder"),
    ],
)
def test_malformed_contests_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_entries(spec)


def test_an_ablation_has_no_contest(folder: Path, cli: Cli) -> None:
    code, _, message = cli("ablate", str(configured(folder, "ablation.yaml", rules=None)), "--model", str(folder / "a"))
    assert code and "contest: expected none for an ablation" in message


def test_models_of_one_arm_that_run_it_differently_are_refused(folder: Path) -> None:
    arm = Arm("x", "contest", "realizer", 17, "topk", 128, 33)
    entry = Entry("x", "realizer", ("one", "two"))
    with pytest.raises(ValueError, match="contest.x: expected models that run it alike; got another way in two"):
        contest._check_alike(entry, [arm, replace(arm, budget=18)], ["1", "2"])


def test_a_bound_reads_what_it_likes_and_others_the_references_tokens() -> None:
    make: Callable[..., Arm] = lambda name, tokens, role="contest": Arm(name, role, "none", 0, "topk", 64, tokens)  # noqa: E731
    check_tokens([make("a", 64), make("b", 70), make("c", 58), make("d", 612, "bound")], "a", 0.1)
    with pytest.raises(ValueError, match="contest.b: expected 64 tokens"):
        check_tokens([make("a", 64), make("b", 71)], "a", 0.1)
    with pytest.raises(ValueError, match="tolerance: expected a share"):
        check_tokens([make("a", 64), make("b", 64)], "a", 1.5)


def test_a_base_swapped_in_other_weights_is_no_half_of_this_arm() -> None:
    own = Arm("own", "contest", "realizer", 17, "topk", 128, 33, rule="realizer", weights=("a",))
    other = Arm("swapped", "contest", "realizer", 17, "topk", 128, 33, rule="other_base", weights=("a",))
    assert swapped_pairs([own, other]) == [(own, other)]
    assert not swapped_pairs([own, replace(other, weights=("b",))])
