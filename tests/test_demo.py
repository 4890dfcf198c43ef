"""The demo's parts without a browser: answers in steps, what a visitor holds, choices, what the page is told."""

import asyncio
import re
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from helpers import Cli, tiny_model

from arr_coc.demo.steps import answer_in_steps, budgets, strategies
from arr_coc.modeling.budgets import NAMED_BUDGETS

QUESTION = "What is the total?"
LENGTH = 12
"""Tokens of an answer."""


@pytest.fixture(scope="module")
def model() -> Any:
    model = tiny_model()
    model.generation_config.update(max_new_tokens=LENGTH, min_new_tokens=LENGTH)
    return model


@pytest.fixture
def content(picture: Path) -> bytes:
    """An image file."""
    return picture.read_bytes()


# ---- steps
def test_steps_show_what_is_fetched_grow_by_tokens_and_end_with_the_offline_answer(model: Any, content: bytes) -> None:
    encoding = model.encode_image(content)
    steps = list(answer_in_steps(model, encoding, QUESTION, strategy="saliency", budget=9))
    whole = model.generate(encoding, QUESTION, strategy="saliency", budget=9, return_fetch=True)
    assert (steps[0].text, steps[0].probability) == ("", None)
    texts = [step.text for step in steps]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert len(set(texts)) > LENGTH // 2  # not all at once
    assert (steps[-1].text, steps[-1].probability) == (whole.text, whole.probability)
    for step in steps:
        assert torch.equal(step.fetch.indices, whole.fetch.indices) and step.fetch.strategy == "saliency"


def test_what_generate_refuses_is_raised_where_the_steps_are_read(model: Any, content: bytes) -> None:
    with pytest.raises(ValueError, match="budget: expected .* got 'lots'"):
        list(answer_in_steps(model, model.encode_image(content), QUESTION, budget="lots"))


def test_generation_ends_when_no_one_reads_it(model: Any, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, generate = SimpleQueue[Any](), model.generate
    monkeypatch.setattr(model, "generate", lambda *args, **kwargs: answers.put(generate(*args, **kwargs)))
    long = {"max_new_tokens": 900, "min_new_tokens": 900, "return_dict_in_generate": True}
    steps = answer_in_steps(model, model.encode_image(content), QUESTION, **long)
    for _ in range(3):
        next(steps)
    steps.close()
    output = answers.get(timeout=60).output
    assert 2 <= len(output.logits) < 900


# ---- a visitor
def test_what_may_be_chosen_is_what_the_model_has(model: Any, content: bytes) -> None:
    names = strategies(model.config)
    assert {"none", "saliency", "realizer"} <= {*names} and "oracle" not in names
    untrained = tiny_model(fetcher={"scorers": ["clip_query"], "strategy": "clip_query"}).config
    assert "realizer" not in strategies(untrained) and "clip_query" in strategies(untrained)
    offered = dict((name, label) for label, name in budgets(model.config))
    assert {*NAMED_BUDGETS, "all", "auto"} == {*offered} and offered["standard"] == "standard: 17 patches"
    encoding = model.encode_image(content)
    for name in names:
        for budget in offered:
            *_, step = answer_in_steps(
                model, encoding, QUESTION, strategy=name, budget=budget, max_new_tokens=1, min_new_tokens=1
            )
            assert step.probability is not None


def test_without_gradio_the_command_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "arr_coc.demo.page", raising=False)
    code, _, said = cli("demo")
    assert code == 2 and 'pip install "arr-coc[demo]"' in said and said.count("\n") == 1


# ---- what the page is told
@pytest.fixture(scope="module")
def page(model: Any) -> Any:
    pytest.importorskip("gradio")
    from arr_coc.demo.page import DemoPage

    async def make() -> DemoPage:
        return DemoPage(model)

    return asyncio.run(make())  # where no loop runs, Gradio makes some, and leaves them open


def told(page: Any, updates: dict[Any, Any], part: str) -> Any:
    """What an update says of a part of the page: its new value."""
    value = updates.get(getattr(page, part, None))
    return value.value if hasattr(value, "value") else value


def test_the_page_shows_patches_first_then_the_answer_then_what_was_asked(page: Any, content: bytes) -> None:
    session = page.open(content)[page.session]
    updates = list(page.ask(session, QUESTION, "realizer", "saliency", "9"))
    first, second = page.sides
    pictures = [number for number, update in enumerate(updates) if first.picture in update]
    written = [number for number, update in enumerate(updates) if update.get(first.answer)]
    assert pictures[0] == 0 and pictures[1] < written[1]  # the image alone, then with its patches
    for side, strategy in ((first, "realizer"), (second, "saliency")):
        answer = page.model.generate(session.encoding, QUESTION, strategy=strategy, budget=9, return_fetch=True)
        *_, last = (update for update in updates if side.note in update)
        assert last[side.answer] == answer.text
        cut = "; the answer is cut after 12 tokens (max_new_tokens)"
        assert last[side.note] == f"9 of 256 patches fetched, confidence {answer.probability:.1%}{cut}"
    assert len(updates[-1][page.session].asked) == 2 and session.asked == ()


@pytest.mark.parametrize(
    ("question", "budget", "line"),
    [
        ("  ", "standard", "Write a question first."),
        (
            QUESTION,
            "lots & <lots>",
            "budget: expected 0 to .* patches .*, or fast .* got &#x27;lots &amp; &lt;lots&gt;&#x27;",
        ),
        (QUESTION, "-3", "budget: expected .* got &#x27;-3&#x27;"),
    ],
)
def test_a_bad_question_or_budget_is_one_line(page: Any, content: bytes, question: str, budget: str, line: str) -> None:
    session = page.open(content)[page.session]
    *_, last = page.ask(session, question, "realizer", "no other", budget)
    assert re.fullmatch(f'<p role="alert">{line}</p>', told(page, last, "message"))


def test_no_image_and_a_broken_one_are_one_line(page: Any) -> None:
    (update,) = page.ask(None, QUESTION, "realizer", "no other", "standard")
    assert told(page, update, "message") == '<p role="alert">Drop an image first, or choose an example.</p>'
    update = page.open(b"broken")
    assert "got text" in told(page, update, "message") and update[page.session] is None
