"""The experiment of base-share: pages, arms, training, predictions, and the rule that decides."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import READS_WORDS, SCORES_WORDS, tiny_checkpoint, tiny_tokenizer
from PIL import Image
from scripts import called, loaded_scripts

from arr_coc.data.line_questions import KINDS
from arr_coc.training.reader.language_model import Prompting
from arr_coc.training.reader.targets import PageTokens

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


def test_the_scripts_draw_train_ask_and_report(
    scripts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, out = tiny_checkpoint(tmp_path / "model", **READS_WORDS, fetcher=SCORES_WORDS), tmp_path / "out"
    monkeypatch.setattr(scripts["question_pages"], "SOURCES", ("document",))
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
    before = (out / "arms" / "auto-0" / "question_answering.pt").stat().st_mtime
    called(scripts["train"], monkeypatch, *common, "--arms", "auto")
    assert (out / "arms" / "auto-0" / "question_answering.pt").stat().st_mtime == before  # done
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
    called(
        scripts["report"], monkeypatch, "--predictions", out / "test.csv", "--validation", out / "validation.csv",
        "--out", out,
    )  # fmt: skip
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


# ---- arms


def page(count: int = 300) -> dict[str, Any]:
    """A stored page of `count` wordpieces with two questions; the second half is relevant for the first question."""
    place = np.arange(count)
    tokens = PageTokens(100 + place % 50, place // 16 % 64, 2 * (place % 16), 32)
    relevance = np.stack([np.linspace(0, 1, count), np.linspace(1, 0, count)]).astype(np.float16)
    ask = {"text": "tax?", "answers": ("7",), "boxes": (), "label_boxes": (), "kind": "detail"}
    questions = [ask, {**ask, "text": "sum?", "kind": "gist"}]
    small = PageTokens(place[:4], place[:4], place[:4], 12)
    return {
        "page": 0, "source": "pdf", "tokens": vars(tokens), "small": vars(small), "relevance": relevance,
        "questions": questions,
    }  # fmt: skip


def test_every_arm_reads_as_many_tokens(scripts: dict[str, Any]) -> None:
    arms = scripts["arms"].read_arms(FOLDER / "arms.yaml")
    assert [arm.base for arm in scripts["arms"].splits(arms)] == [0, 16, 36, 64, 100, 132]
    prompts, expected = scripts["arms"].Prompts(Prompting(tiny_tokenizer())), {"smaller": 4, "keep_all": 364}
    for name, arm in arms.items():
        row, held, kinds = prompts.row(page(), arm, [0, 1], np.random.default_rng(0))
        question = np.array(row.question)
        tokens = np.array(row.base) | np.array(row.fetched)
        for number in (0, 1):
            count = int((tokens & ((question == number) | (question == -1))).sum())
            assert count == expected.get(name, 144 if name == "base_flops" else 132), name
        assert kinds == ["detail", "gist"] and sum(row.base) == arm.base
        weights = np.bincount([column for column, _, _ in held], [weight for *_, weight in held]) if held else []
        assert np.allclose([weight for weight in weights if weight], 1.0)


def test_the_most_relevant_tokens_of_each_question_are_fetched_in_reading_order(scripts: dict[str, Any]) -> None:
    arms = scripts["arms"].read_arms(FOLDER / "arms.yaml")
    prompts = scripts["arms"].Prompts(Prompting(tiny_tokenizer()))
    again = [prompts._fetched(page(), arms["base_50"], number, np.random.default_rng(0)) for number in (0, 1)]
    rows = [each.tokens.half_rows for each in again]
    assert (np.diff(rows[0]) >= 0).all() and rows[0].min() > rows[1].max() and len(rows[0]) == 68
    random = prompts._fetched(page(), arms["random"], 0, np.random.default_rng(0))
    assert len(random.tokens.pieces) == arms["random"].budget and set(random.tokens.half_rows) - set(rows[0])


def test_a_base_token_is_the_mean_of_its_cell_at_the_middle_of_it(scripts: dict[str, Any]) -> None:
    arms = scripts["arms"].read_arms(FOLDER / "arms.yaml")
    prompts = scripts["arms"].Prompts(Prompting(tiny_tokenizer()))
    stored, other = page(), page(40)
    for shown in (stored, other):
        row, held, _ = prompts.row(stored, arms["base_12"], [0], np.random.default_rng(0), shown)
        start = row.base.index(True)
        assert (row.half_rows[start], row.columns[start]) == (8, 4)
        assert (row.half_rows[start + 15], row.columns[start + 15]) == (56, 28)
        assert len(held) == len(shown["tokens"]["pieces"])
        for column, piece, _ in held:
            cell, at = column - start, held.index((column, piece, _))
            half_row, col = (shown["tokens"][name][at] for name in ("half_rows", "columns"))
            assert abs(half_row - row.half_rows[start + cell]) <= 8 and abs(col - row.columns[start + cell]) <= 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cells": [12, 12]}, "at most 132; got 144"),
        ({"cells": [0, 4]}, "or 0 of both; got 0 x 4"),
        ({"cells": [4, 4], "fetched": "best"}, "expected one of scorer, .* got 'best'"),
        ({"cells": [4, 4], "budget": 3}, "expected cells and fetched; got budget"),
    ],
)
def test_arms_are_checked(scripts: dict[str, Any], tmp_path: Path, settings: Any, message: str) -> None:
    (tmp_path / "arms.yaml").write_text(json.dumps({"total": 132, "arms": {"mine": settings}}))
    with pytest.raises(ValueError, match=message):
        scripts["arms"].read_arms(tmp_path / "arms.yaml")


def test_words_that_an_edge_cuts_are_not_on_the_crop(scripts: dict[str, Any]) -> None:
    from arr_coc.data.domains.page import Line

    left = np.arange(-4.0, 46.0, 10, dtype=np.float32)  # "a bcd": the first character is cut
    line = Line("a bcd", np.stack([left, 0 * left, left + 10, 0 * left + 8], 1))
    (kept,) = scripts["question_pages"]._inside([line], 512)
    assert kept.text == "bcd" and kept.boxes[0, 0] == 16.0


# ---- predictions


def test_what_a_training_says_is_a_column(scripts: dict[str, Any], tmp_path: Path) -> None:
    stored, path = scripts["predictions"], tmp_path / "predictions.csv"
    asked = [dict(zip(stored.QUESTION, ("3", "pdf", "gist", f"What {n}?", "a b | 7"), strict=True)) for n in range(2)]
    for name, told in {"base_0-1": (" A  b<|im_end|>", " a"), "auto-0": (" b<|im_end|>", " 7<|im_end|>")}.items():
        rows = [{**row, name: stored.said(each)} for row, each in zip(asked, told, strict=True)]
        stored.add(path, rows[::-1] if path.exists() else rows)  # in any order
    stored.add(path, [{**row, "keep_all-2 swapped": "7"} for row in asked])
    rows = stored.read(path)
    assert [str(column) for column in stored.columns(rows)] == ["base_0-1", "auto-0", "keep_all-2 swapped"]
    assert stored.columns(rows)[2] == ("keep_all", "2", "swapped")
    assert [row["base_0-1"] for row in rows] == ["A b", "a …"] and [row["auto-0"] for row in rows] == ["b", "7"]
    assert {name: own.right["gist"].tolist() for name, own in scripts["report"].scores_of(rows).items()} == {
        "base_0": [[1.0, 0.0]], "auto": [[0.0, 1.0]],
    }  # fmt: skip
    with pytest.raises(ValueError, match="expected answers to its 2 questions; got those to 1 others"):
        stored.add(path, [{**asked[0], "base_0-2": "7"}])
    assert stored.read(tmp_path / "none.csv") == [] and stored.columns([]) == []


# ---- the rule


def scores(scripts: dict[str, Any], trainings: int = 2, **levels: Any) -> dict[str, Any]:
    """Scores of arms, by name a level of each kind; question n is right where n / 400 is below it."""
    made, numbers = {}, np.arange(400)
    order = np.random.default_rng(0).permutation(400) / 400
    for name, own in levels.items():
        right = {
            kind: np.stack([(order < level + 0.0025 * seed).astype(float) for seed in range(trainings)])
            for kind, level in zip(KINDS, own, strict=True)
        }
        made[name] = scripts["rule"].Scores(dict.fromkeys(KINDS, numbers), right)
    return made


def test_the_rule_shows_refutes_or_says_neither(scripts: dict[str, Any]) -> None:
    rule = scripts["rule"]
    ends = {"base_0": (0.6, 0.5, 0.3, 0.3), "base_100": (0.3, 0.2, 0.5, 0.5)}
    good = scores(scripts, **ends, base_50=(0.7, 0.6, 0.6, 0.6))
    verdict = rule.decide(good, "base_50")
    assert verdict.decision == "GO" and {each.state for each in verdict.conditions} == {"shown"}
    bad = rule.decide(scores(scripts, **ends, base_50=(0.4, 0.6, 0.6, 0.6)), "base_50")
    states = {(each.other, each.kind): each.state for each in bad.conditions}
    assert bad.decision == "NO-GO" and states["base_0", "detail"] == "refuted"
    close = rule.decide(scores(scripts, **ends, base_50=(0.59, 0.6, 0.6, 0.6)), "base_50")
    assert close.decision == "INCONCLUSIVE" and close.p > rule.LEVEL
    once = rule.decide(scores(scripts, trainings=1, **ends, base_50=(0.9, 0.9, 0.9, 0.9)), "base_50")
    assert once.decision == "INCONCLUSIVE" and once.p == 1.0  # nothing is known of the trainings' spread
    with pytest.raises(ValueError, match="got none of base_25"):
        rule.decide(good, "base_25")
    other = rule.Scores({kind: np.arange(400) + 1 for kind in KINDS}, good["base_0"].right)
    with pytest.raises(ValueError, match="got others of base_0"):
        rule.decide({**good, "base_0": other}, "base_50")


def test_texts_are_made_from_the_numbers(scripts: dict[str, Any]) -> None:
    report, rule = scripts["report"], scripts["rule"]
    best = scores(scripts, base_0=(0.9,) * 4, base_50=(0.6,) * 4, base_100=(0.3,) * 4)
    text = report.verdict_text(rule.decide(best, "base_50"), best, ["base_50", "base_100"])
    assert "**NO-GO.**" in text and "Over base tokens alone: met." in text
    assert "Over fetched tokens alone: not met on detail, two places, spread, gist." in text
    assert "- gist: -30.0 points" in text and "No base token at all is best for every kind" in text
    plain, swapped, rest = best["base_0"], best["base_50"], (best["base_100"], dict.fromkeys(KINDS, 0.25), "base_50")
    told = report.swap_text(plain, swapped, *rest)
    assert "detail falls by more than 5 points" in told and "25 % of the answers change" in told
    same = report.swap_text(plain, plain, *rest)
    assert "spread falls by less than 20 points; gist falls by less than 20 points" in same and "guessing" not in same
    assert "guessing it is only: spread +0.0, gist +0.0 points" in report.swap_text(plain, plain, plain, *rest[1:])
    read = scores(scripts, plain=(0.9,) * 4, swapped=(0.9, 0.6, 0.6, 0.6))
    assert report.swap_text(read["plain"], read["swapped"], *rest).endswith("The base is read.")


def test_the_best_guess_knows_the_wording_alone(scripts: dict[str, Any]) -> None:
    asked = [('Is "a" or "b" higher?', "a"), ('is "c" or "d" higher', "c"), ('Is "e" or "f" higher?', "f")]
    asked += [("How many, of 20?", "3"), ("How many, of 30?", "3 | three"), ("How many, of 7?", "5")]
    names = scripts["predictions"].QUESTION
    rows = [dict(zip(names, ("0", "pdf", "gist", *each), strict=True)) for each in asked]
    assert scripts["report"].guesses(rows).right["gist"].tolist() == [[1, 1, 0, 1, 1, 0]]


def test_go_is_rarely_false_and_large_differences_are_seen(scripts: dict[str, Any]) -> None:
    """`report.py --simulate` prints more, of more simulated experiments."""
    rule = scripts["rule"]
    rng = np.random.default_rng(0)
    for at in ((rule.ALONE, "detail"), (rule.FETCHED, "gist")):
        assert rule.decisions(rng, rule.rates(0.2, at), 200, 40)["GO"] <= 3 / 40
    assert rule.decisions(rng, rule.rates(0.28), 400, 8)["GO"] >= 7 / 8
    assert "- all arms alike: 0.000" in scripts["report"].simulation_text(60, 2)


def test_all_arms_get_the_same_pages_in_the_same_order(scripts: dict[str, Any]) -> None:
    arms = scripts["arms"].read_arms(FOLDER / "arms.yaml")
    among = scripts["arms"].splits(arms)
    one, all_ = (scripts["arms"].Turns(5, 1, 3, own, 0) for own in (among[:1], among))
    pages = [[number for number, _ in turns.batch(step)] for turns in (one, all_) for step in range(5)]
    assert pages[:5] == pages[5:] and sorted(sum(pages[:5], [])) == sorted([*range(5)] * 3)
    assert len({arm.name for step in range(9) for _, arm in all_.batch(step)}) > 3
