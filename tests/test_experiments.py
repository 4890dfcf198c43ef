"""The experiment of base-share: its scripts draw, train, ask and report; what is stored gives the stored report."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import READS_WORDS, SCORES_WORDS, tiny_checkpoint
from PIL import Image
from scripts import called, loaded_scripts

from arr_coc.pages.line_questions import KINDS

FOLDER = Path(__file__).parents[1] / "examples" / "experiments" / "base-share"


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
FOLDER_ATTACHED_PAGES = Path(__file__).parents[1] / "examples" / "experiments" / "attached-pages"


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
