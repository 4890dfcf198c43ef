"""The experiment of attached-pages: its scripts train a tiny share of a model, ask it, and report what is stored."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scripts import called, loaded_scripts

import arr_coc

FOLDER = Path(__file__).parents[1] / "examples" / "experiments" / "attached-pages"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return loaded_scripts(FOLDER, ("small_qwen", "train", "evaluate", "report"), monkeypatch)


def test_the_scripts_train_ask_and_report(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = ("--steps", "2", "2", "2", "2", "--batch", "2", "--held-out", "2")
    called(scripts["train"], monkeypatch, "--out", tmp_path, *sizes)
    predictions = tmp_path / "predictions.csv"
    options = ("--model", tmp_path, "--pages", "1", "--scorer", "2", "1", "--out", predictions)
    called(scripts["evaluate"], monkeypatch, *options)
    called(scripts["report"], monkeypatch, "--predictions", predictions, "--out", tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert "| keep all | 144 |" in table and "| realizer | 36 |" in table and "| smaller image | 36 |" in table
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(("count", "base"), [(144, False), (36, False), (36, True)])
def test_training_prompts_are_those_of_the_reader(scripts: dict[str, ModuleType], count: int, base: bool) -> None:
    train, small = scripts["train"], scripts["small_qwen"]
    student, rng = train.Student().eval(), np.random.default_rng(0)
    page = small.new_page(rng)
    image = small.draw_page(rng, page, "train")
    reader = arr_coc.attach(student.model, student.processor)
    (prompt,) = reader.encode_image(image, pool=small.POOL * base).prompts
    plain = reader.writer.plain(prompt, small.QUESTION.format(field=page.fields[0].name))
    chosen = train.some_tokens(rng, [page], count, 1, base)
    alone = reader.runner.place(prompt, plain, chosen.numbers[0] if count < small.GRID**2 else None)
    ids, targets, is_image, positions, _ = student.prompts([page], chosen)
    length = len(alone.ids)
    assert ids[0, :length].equal(alone.ids) and positions[:, 0, :length].equal(alone.positions.float())
    assert is_image.sum() == len(alone.tokens) == count + 9 * base
    torch.testing.assert_close(chosen.of(prompt.tokens[None])[0], alone.tokens)
    value = student.processor.tokenizer.decode(targets[0, 0][targets[0, 0] >= 0])
    assert value == f"{page.fields[0].value}<|im_end|>"


@pytest.mark.parametrize("beside", [1, -1, 0])
def test_dropping_tokens_keeps_those_under_the_boxes(scripts: dict[str, ModuleType], beside: int) -> None:
    train, small = scripts["train"], scripts["small_qwen"]
    page = small.new_page(np.random.default_rng(2))
    numbers = train.some_tokens(np.random.default_rng(3), [page], 40, beside, False).numbers[0]
    shown = torch.from_numpy(page.words).flatten()[numbers]
    expected = "".join(f" {field.name}{field.value}" for field in page.fields[: small.ASKED])
    assert set(expected) <= set("".join(small.WORDS[word] for word in shown)) and len(numbers) == 40
    under = sum(1 + len(field.value) for field in page.fields[: small.ASKED])
    assert {1: under < 40, -1: (shown > 0).sum() == under, 0: True}[beside]


def test_boxes_hold_what_they_name(scripts: dict[str, ModuleType]) -> None:
    small = scripts["small_qwen"]
    page = small.new_page(np.random.default_rng(1))
    assert len({field.name for field in page.fields}) == len(page.fields) == small.FIELDS
    for field in page.fields:
        x0, y0, x1, y1 = (edge // small.UNIT for edge in (*field.label_box[:2], *field.value_box[2:]))
        shown = "".join(small.WORDS[word] for word in page.words[y0:y1, x0:x1].flatten())
        assert shown == f" {field.name}{field.value}"


def test_the_stored_predictions_give_the_stored_table(scripts: dict[str, ModuleType]) -> None:
    report = scripts["report"]
    assert report.table(report.read(FOLDER / "predictions.csv")) == (FOLDER / "table.md").read_text()
