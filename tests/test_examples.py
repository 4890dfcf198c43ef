"""Each script in examples/ runs as its first lines say."""

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import READS_WORDS, SCORES_WORDS, tiny_checkpoint
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from arr_coc.adapters import part_of_parameter
from arr_coc.pages.line_questions import KINDS
from arr_coc.training.recipe import load_recipe, train

ROOT = Path(__file__).parents[1]
TINY_2 = ROOT / "hub_configs" / "arr-coc-tiny-2"
SMALL = ["--pages", "2", "1", "--steps", "2"]
SCRIPTS = {
    "ask.py": ["--picture", "OUT/fetched.png"],
    "many_questions.py": [],
    "make_receipt.py": ["OUT/receipt.png"],
    "finetune_scorer_lora.py": [
        *SMALL,
        *"--render vendor,balance,deposit,branch --batch-size 2 --out OUT/adapter".split(),
    ],
    "reinforce_scorer.py": [*SMALL, "--questions", "2", "--draws", "2"],
    "learn_from_feedback.py": "--feedback 16 --steps 1 --rest 1 --pages 1 --out OUT/feedback".split(),
    "sft_trl.py": [*SMALL, "--batch-size", "2", "--out", "OUT/adapter"],
}

SAYS = {
    "finetune_scorer_lora.py": ["before: exact match", "points", " lost, p ", "base weights changed: 0 of 267"],
    "learn_from_feedback.py": [
        "feedback: on 16 answers, ",
        "held-out feedback: ",
        "not promoted: ",
        "in use: checkpoint",
    ],
    "reinforce_scorer.py": ["before: exact match", "after:  exact match", "points", " lost, p "],
    "sft_trl.py": ["before: exact match", "of black images", "after:  exact match", "points"],
}

MARKS = {
    "learn_from_feedback.py": pytest.mark.slow,
    "sft_trl.py": pytest.mark.filterwarnings("ignore"),  # TRL warns of names that transformers has changed since
}


def test_the_list_is_complete() -> None:
    elsewhere = {"ask_server.py", "extract_ray.py"}  # tests/test_serving_load.py, test_extracting.py
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SCRIPTS) | elsewhere


@pytest.mark.parametrize("script", [pytest.param(script, marks=MARKS.get(script, ())) for script in SCRIPTS])
def test_script_runs(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if script == "sft_trl.py":
        pytest.importorskip("trl")
    arguments = [argument.replace("OUT", str(tmp_path)) for argument in SCRIPTS[script]]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    written = [Path(argument) for argument in arguments if argument.startswith(str(tmp_path))]
    said = capsys.readouterr().out
    assert all(path.exists() for path in written) and (written or said)
    assert all(words in said for words in SAYS.get(script, []))


def test_the_client_says_how_to_start_a_server() -> None:
    """Without one it ended in the traceback of its HTTP client."""
    script, image = ROOT / "examples" / "ask_server.py", ROOT / "examples" / "images" / "receipt.png"
    command = [sys.executable, str(script), str(image), "Who?", "--url", "http://127.0.0.1:9/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "expected a server at http://127.0.0.1:9/v1; got no answer: start one with arr-coc serve" in done.stderr


def weights_of(folder: Path) -> dict[str, Tensor]:
    """A checkpoint's weights in float32; the shipped one's are in bfloat16, in several files."""
    shards = map(load_file, sorted(folder.glob("model*.safetensors")))
    return {name: weight.float() for shard in shards for name, weight in shard.items()}


def test_the_recipe_that_reinforces_runs(tmp_path: Path) -> None:
    small = ["steps=1", "warmup=0", "batch_size=2", "data.pages=1", "held_out=null", "reinforcement.draws=2"]
    train(load_recipe(ROOT / "examples" / "reinforce.yaml", [*small, f"cache={tmp_path / 'cache'}"]), tmp_path)
    before, after = weights_of(TINY_2), weights_of(tmp_path / "model")
    changed = {part_of_parameter(name) for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"scorer"}


def test_the_recipe_of_scorers_trains_the_new_ones_alone(tmp_path: Path) -> None:
    """What the shipped checkpoint answers by, and with, stays as it is, to the bit."""
    small = ["steps=2", "warmup=0", "batch_size=2", "data.pages=1", "data.questions=2", "held_out.pages=1"]
    recipe = load_recipe(ROOT / "examples" / "scorers.yaml", [*small, f"cache={tmp_path / 'cache'}"])
    train(recipe, tmp_path)
    before, after = weights_of(TINY_2), weights_of(tmp_path / "model")
    assert all(torch.equal(before[name], after[name]) for name in before)
    new = {name.split(".")[3] for name in after if name not in before}
    assert {f"scorer.{name}" for name in new} == set(recipe.stages[0].trained)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("processes", "launcher"),
    [("1", "python"), ("4", "accelerate launch --config_file EXAMPLES/accelerate/ddp.yaml --num_processes 4")],
)
def test_the_script_of_phases_starts_the_recipe(processes: str, launcher: str, tmp_path: Path) -> None:
    """What it starts runs in test_readme.py (the recipe) and test_many_devices.py (the launcher): here only which."""
    for name in ("python", "accelerate"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\necho "$(basename "$0")" "$@"\n')
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PROCESSES": processes}
    command = ["bash", str(ROOT / "examples" / "train_phases.sh"), "runs/phases", "steps=1"]
    started = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60).stdout
    expected = f"{launcher} -m arr_coc.cli train EXAMPLES/phases.yaml steps=1 --out runs/phases\n"
    assert started == expected.replace("EXAMPLES", str(ROOT / "examples"))
    assert all(Path(word).is_file() for word in started.split() if word.endswith(".yaml"))


# ---- The experiment of base-share: its scripts draw, train, ask and report; what is stored gives the stored report
def loaded_scripts(folder: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The scripts by their names, in the order in which they import each other."""
    loaded = {}
    for name in names:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        loaded[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded[name])
        spec.loader.exec_module(loaded[name])
    return loaded


def called(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", [str(script.__file__), *map(str, arguments)])
    script.main()


FOLDER = ROOT / "examples" / "experiments" / "base-share"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return loaded_scripts(
        FOLDER, ("predictions", "question_pages", "arms", "train", "evaluate", "pruning", "rule", "report"), monkeypatch
    )


# ---- the chain
def bench(folder: Path) -> Path:
    """Two pages of two sources, with three questions."""
    for source, questions in (("bills", 2), ("letters", 1)):
        (folder / source).mkdir(parents=True)
        Image.new("RGB", (96, 96), "white").save(folder / source / "page.png")
        lines = [{"image": "page.png", "question": f"What {n}?", "answers": ["7"]} for n in range(questions)]
        (folder / source / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_scripts_draw_train_report(scripts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, out = tiny_checkpoint(tmp_path / "model", **READS_WORDS, fetcher=SCORES_WORDS), tmp_path / "out"
    monkeypatch.setattr(scripts["question_pages"], "SOURCES", ("document",))
    monkeypatch.setattr(scripts["question_pages"], "SIDES", (256, 512))
    monkeypatch.setattr(scripts["question_pages"], "TILE", 128)
    monkeypatch.setattr(scripts["question_pages"], "HELD_OUT", 1)
    monkeypatch.setattr(scripts["question_pages"], "LEAST_TEXT", 60)
    monkeypatch.setattr("arr_coc.training.reader.language_model.QUESTION_LENGTH", 300)  # bytes are tokens here
    drawn = ("--pdfs", tmp_path, "--out", out, "--pages", 1, 2, 2, "--steps", 1, "--bench", bench(tmp_path / "bench"))
    called(scripts["question_pages"], monkeypatch, "--model", model, *drawn)
    pages = torch.load(out / "test.pt", weights_only=False)
    assert [page["source"] for page in pages] == ["document"] * 2
    assert all(set(KINDS) >= {each["kind"] for each in page["questions"]} for page in pages)
    assert all(page["relevance"].shape == (len(page["questions"]), len(page["tokens"]["pieces"])) for page in pages)

    common = ("--model", model, "--pages", out, "--out", out / "arms", "--steps", 2, "--batch", 2, "--measured", 1)
    common = (*common, "--seeds", 1, "--device", "cpu", "--no-bf16", "--packed", 2)
    names = ("base_0", "base_25", "base_100", "keep_all", "auto")
    called(scripts["train"], monkeypatch, *common, "--arms", ",".join(names))
    assert (out / "arms" / "auto-0" / "done").read_text().startswith("2 steps, ")
    before = (out / "arms" / "auto-0" / "question_answering" / "checkpoint-2").stat().st_mtime
    called(scripts["train"], monkeypatch, *common, "--arms", "auto")
    assert (out / "arms" / "auto-0" / "question_answering" / "checkpoint-2").stat().st_mtime == before  # done
    for split in ("validation", "test"):
        file = out / f"{split}.csv"
        asked = ("--arms", ",".join(names), "--split", split, "--predictions", file)
        called(scripts["evaluate"], monkeypatch, *common, *asked)
    called(scripts["evaluate"], monkeypatch, *common, *asked, "--swapped")
    stored, rows = scripts["predictions"], scripts["predictions"].read(out / "test.csv")
    told = stored.columns(rows)
    assert {column.arm for column in told if not column.what} == set(names) and {each.seed for each in told} == {"0"}
    assert {column.arm for column in told if column.what == "swapped"} == {"base_25", "base_100", "keep_all"}
    assert {row["auto-0 split"] for row in rows} <= {f"base_{n}" for n in (0, 12, 25, 50, 75, 100)}
    called(scripts["evaluate"], monkeypatch, *common, "--arms", "auto", "--packed", 1, "--predictions", out / "one.csv")
    single = {(row["page"], row["question"]): row["auto-0"] for row in stored.read(out / "one.csv")}
    assert {(row["page"], row["question"]): row["auto-0"] for row in rows} == single  # asked together as alone
    assert set(json.loads((out / "costs.json").read_text())["auto"]) == {"tokens", "first_token_ms", "gflop", "mb"}
    called(scripts["pruning"], monkeypatch, *common)
    pruned = stored.read(out / "pruning.csv")
    assert [column.arm for column in stored.columns(pruned)] == list(scripts["pruning"].RULES)
    assert {(row["page"], row["question"]) for row in pruned} == {(row["page"], row["question"]) for row in rows}
    both = ("--predictions", out / "test.csv", "--validation", out / "validation.csv")
    called(scripts["report"], monkeypatch, *both, "--out", out)
    text = (out / "report.md").read_text()
    assert "on validation pages, in %: `base_0` " in text and "in points: detail 0.0, two places 0.0," in text
    assert "| `base_25` | 36 | 1 |" in text and "the base tokens of another page, `base_25` loses" in text
    asked = ("--arms", "base_25", "--split", "bench")
    called(scripts["evaluate"], monkeypatch, *common, *asked)
    with pytest.raises(ValueError, match="bench.csv: expected answers to its 3 questions; got those to"):
        wrong = ("--arms", "base_0", "--split", "validation", "--predictions", out / "bench.csv")
        called(scripts["evaluate"], monkeypatch, *common, *wrong)
    called(scripts["report"], monkeypatch, "--predictions", out / "bench.csv", "--out", out / "bench")
    on_bench = (out / "bench" / "report.md").read_text()
    assert on_bench.startswith("3 questions about 2 pages") and "| bills | letters | mean |" in on_bench
    assert "Verdict" not in on_bench and not (out / "bench" / "curve.svg").exists()
    assert "`auto-0`, in % of the questions:" in text and "- detail: `base_" in text
    assert "| all wordpieces |" in text and "| cdpruner_unturned |" in text
    assert (out / "curve.svg").read_text().startswith("<svg")
    with pytest.raises(ValueError, match="--arms: expected names among base_0, .* got base_33"):
        called(scripts["train"], monkeypatch, *common, "--arms", "base_33")


def test_the_stored_predictions_give_the_stored_report(
    scripts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called(scripts["report"], monkeypatch, "--out", tmp_path)
    for name in ("report.md", "curve.svg"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text(), name


# ---- The experiment of attached-pages: its scripts train a tiny share of a model, ask it, and report what is stored
FOLDER_ATTACHED_PAGES = ROOT / "examples" / "experiments" / "attached-pages"


@pytest.fixture
def attached_scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return loaded_scripts(FOLDER_ATTACHED_PAGES, ("small_qwen", "train", "evaluate", "report"), monkeypatch)


def test_the_scripts_train_ask_and_report(
    attached_scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = ("--steps", "2", "2", "2", "2", "--batch", "2", "--held-out", "2")
    called(attached_scripts["train"], monkeypatch, "--out", tmp_path, *sizes)
    monkeypatch.setattr(attached_scripts["evaluate"], "ASKED", 2)
    predictions = tmp_path / "predictions.csv"
    options = ("--model", tmp_path, "--pages", "1", "--scorer", "2", "1", "--out", predictions)
    called(attached_scripts["evaluate"], monkeypatch, *options)
    called(attached_scripts["report"], monkeypatch, "--predictions", predictions, "--out", tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert "| keep all | 144 |" in table and "| realizer | 36 |" in table and "| smaller image | 36 |" in table
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")


def test_the_stored_predictions_give_the_stored_table(attached_scripts: dict[str, ModuleType]) -> None:
    report = attached_scripts["report"]
    assert (
        report.table(report.read(FOLDER_ATTACHED_PAGES / "predictions.csv"))
        == (FOLDER_ATTACHED_PAGES / "table.md").read_text()
    )
