"""The stage that teaches the language model to answer over several views."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_finding import begun

from arr_coc.training.attention import all_eager_attention
from arr_coc.training.from_scratch.multi_view import DrawnDocuments, MultiView, MultiViewStage, read_out
from arr_coc.training.from_scratch.questions import Prompts

STAGE = MultiViewStage(
    steps=2, warmup=1, evaluate_every=2, workers=0, bf16=False, sources=2, documents=2, questions=2,
    domains={"pages": 1.0}, budget=8, evaluate_documents=1, evaluate_split="train",
)  # fmt: skip


@pytest.fixture(scope="module")
def task() -> MultiView:
    torch.manual_seed(0)
    return MultiView(STAGE, begun())


def test_a_documents_questions_are_answered_together_as_one_by_one(task: MultiView) -> None:
    """Prompts of several lengths are padded on the left, which nothing must see."""
    document = task.reader.encode(task.pages(0).document(0), STAGE.tiles)
    questions = document.page.questions[:3]
    assert len({len(question.text) for question in questions}) > 1
    with torch.no_grad(), all_eager_attention(task.reader.model):
        together = task.reader(document, questions, "realizer", STAGE.budget)
        alone = [task.reader(document, [question], "realizer", STAGE.budget) for question in questions]
    lengths = torch.tensor([float(len(task.reader._answers([q.answers[0]])[1][0])) for q in questions])
    expected = (torch.stack([one["answer"] for one in alone]) * lengths).sum() / lengths.sum()
    assert together["answer"].item() == pytest.approx(expected.item(), rel=1e-3)
    assert together["right"].tolist() == [bool(one["right"]) for one in alone]


def test_answers_depend_on_what_was_fetched(task: MultiView) -> None:
    document = task.reader.encode(task.pages(0).document(0), STAGE.tiles)
    question = document.page.questions[0]
    elsewhere = replace(question, boxes=((0, 0, 9, 9),), box_sources=(0,), label_boxes=(), label_sources=())
    with torch.no_grad():
        losses = [task.reader(document, [asked], "oracle", STAGE.budget)["answer"] for asked in (question, elsewhere)]
    assert losses[0].item() != losses[1].item()


def test_documents_are_a_function_of_the_step(task: MultiView) -> None:
    first = [page.questions for _, batch in zip(range(3), task.pages(0), strict=False) for page in batch]
    assert len(first) == 3 * STAGE.documents and all(first.count(questions) == 1 for questions in first)
    assert [page.questions for page in next(iter(task.pages(2)))] == first[2 * STAGE.documents :]


def test_the_stage_trains_language_model_and_bridge_alone_and_resumes(tmp_path: Path) -> None:
    run = begun()
    before = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    STAGE.run(run, tmp_path)
    changed = {name for name, weight in run.model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed and all(".language_model." in name or ".bridge." in name or "lm_head" in name for name in changed)
    assert all(weight.requires_grad for weight in run.model.model.vision_tower.grid_encoder.parameters())
    again = begun()
    STAGE.run(again, tmp_path)  # finished: nothing to do
    for name, weight in run.model.model.language_model.state_dict().items():
        assert torch.equal(weight, again.model.model.language_model.state_dict()[name])


def test_earlier_turns_stand_before_a_question(task: MultiView) -> None:
    document = task.reader.encode(task.pages(0).document(0), STAGE.tiles)
    first, second = document.page.questions[:2]
    turned = replace(second, history=((first.text, first.answers[0]),))
    with torch.no_grad():
        losses = [task.reader(document, [asked], "realizer", STAGE.budget)["answer"] for asked in (second, turned)]
    assert losses[0].item() != losses[1].item()
    drawn = DrawnDocuments(replace(STAGE, turns=1.0), task.side, split="train").document(0)
    assert all(question.turn == "second" for question in drawn.questions)


def test_nothing_is_fetched_of_pages_that_can_be_read_so(task: MultiView) -> None:
    """A tiled page, or one of several, shows no print in its overview."""
    stage = replace(STAGE, unfetched=1.0, oracle=0.0, domains={"document": 1.0})
    task = MultiView(stage, begun())
    rng = np.random.default_rng(0)
    strategies = [task._strategy(task.pages(0).document(0, name), rng) for name in ("document", "invoice")]
    assert strategies == ["none", "realizer"]
    losses = task.losses(0, [task.pages(0).document(0)])
    assert {"answer/none", "loss"} == {*losses}


def test_pages_of_which_nothing_is_fetched_are_transcribed() -> None:
    """In the turn in which answering transcribes, so that what was learnt there is gone on with."""
    run = begun()
    task = MultiView(replace(STAGE, unfetched=1.0, transcribed=1.0, domains={"document": 1.0}), run)
    page = task.pages(0).document(0)
    said = page.text.split("\n")
    assert all(any(line.endswith(f" {question.answers[0]}") for line in said) for question in page.questions)
    assert {"transcript/none", "loss"} == {*task.losses(0, [page])}
    of_several = task.pages(0).document(0, "pages")
    assert {"answer/realizer", "answer/oracle"} & {*task.losses(0, [of_several])}
    tokenizer, question = run.processor.tokenizer, page.questions[0]
    asked = Prompts(tokenizer, run.model.config.image_token_id)(
        question.text, [(char, -1) for char in question.answers[0]], [(char, -1) for char in page.text]
    )
    read = read_out(page, behind=question)
    prompt = run.processor.prompt(read.text, images=1, history=read.history)
    ids = tokenizer(prompt + read.written, add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
    assert ids[-len(asked.after) :] == asked.after


def test_the_bridge_learns_from_base_tokens_too(task: MultiView) -> None:
    document = replace(STAGE, unfetched=1.0, domains={"document": 1.0})
    task = MultiView(document, begun())
    loss = task.losses(0, [task.pages(0).document(0)])["loss"]
    loss.backward()
    bridge = [weight for weight in task.module["bridge"].parameters() if weight.grad is not None]
    assert any(bool(weight.grad.abs().sum() > 0) for weight in bridge if weight.grad is not None)


def test_what_is_thought_is_taught_before_the_answer(task: MultiView) -> None:
    pairs = DrawnDocuments(replace(STAGE, domains={"pair": 1.0}), task.side, split="train")
    page = next(page for page in map(pairs.document, range(9)) if any(asked.thinking for asked in page.questions))
    question = next(asked for asked in page.questions if asked.thinking)
    document = task.reader.encode(page, STAGE.tiles)
    with torch.no_grad():
        losses = [
            task.reader(document, [asked], "oracle", STAGE.budget)["answer"].item()
            for asked in (question, replace(question, thinking=question.thinking[::-1]), replace(question, thinking=""))
        ]
    assert len(set(losses)) == 3


def test_what_was_read_is_decided_on_without_an_image() -> None:
    """The answer follows from the thought; each is learnt as if it were asked alone."""
    run = begun()
    task = MultiView(replace(STAGE, decided=3), run)
    asked = task._comparisons(0)
    assert len(asked) == 3 and asked == task._comparisons(0) != task._comparisons(1)
    for question in asked:
        amounts = [float(amount.replace(",", "").lstrip("$")) for amount in question.thinking.split("\n")]
        assert len(amounts) == 2 and question.answers[0] in question.thinking.split("\n")
        answer = float(question.answers[0].replace(",", "").lstrip("$"))
        assert answer == (max if question.kind == "highest" else min)(amounts)
    with torch.no_grad(), all_eager_attention(task.reader.model):
        together = task.reader.decide(asked)
        alone = [task.reader.decide([question]) for question in asked]
        other = task.reader.decide([replace(question, thinking=question.thinking[::-1]) for question in asked])
    lengths = task.reader._answers([question.answers[0] for question in asked])[1].sum(1)
    expected = (torch.stack([one["answer"] for one in alone]) * lengths).sum() / lengths.sum()
    assert together["answer"].item() == pytest.approx(expected.item(), rel=1e-3)
    assert other["answer"].item() != together["answer"].item()
    page = [task.pages(0).document(0)]
    losses, without = task.losses(0, page), MultiView(STAGE, run).losses(0, page)
    assert without["loss"].item() + losses["decided"].item() == pytest.approx(losses["loss"].item(), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"decided": -1}, "decided: expected at least 0; got -1"),
        ({"documents": 0}, "documents: expected at least 1; got 0"),
        ({"unfetched": 1.5}, "unfetched: expected a share in 0..1; got 1.5"),
    ],
)
def test_settings_of_no_meaning_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        replace(STAGE, **settings)


def test_a_strategy_that_sees_no_tiles_is_refused() -> None:
    run = begun()
    run.model.config.fetcher_config.strategy = "attention"
    with pytest.raises(ValueError, match="multi_view: expected a strategy that supports tiles; got 'attention'"):
        MultiView(STAGE, run)


def test_documents_that_there_are_not_are_refused() -> None:
    with pytest.raises(ValueError, match="domains: expected weights of .*; got {'letter': 1}"):
        replace(STAGE, domains={"letter": 1})
    with pytest.raises(ValueError, match="sources: expected at least 2; got 1"):
        replace(STAGE, sources=1)
