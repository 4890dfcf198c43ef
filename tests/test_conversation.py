"""Several questions about one image: each fetches for itself; what came before is text, where it is kept at all."""

from typing import Any

import pytest
import torch
from helpers import tiny_model
from test_invariants import Calls
from test_modeling import PAGE, QUESTION, loud_model

from arr_coc.modeling.generation import Answer

FIRST, SECOND = "Who?", QUESTION


@pytest.fixture(scope="module")
def model() -> Any:
    return loud_model()


@pytest.mark.versions
def test_a_conversation_asks_afresh(model: Any) -> None:
    """The fetch followed all questions at once: of 30 second answers 2 were right, asked afresh 30."""
    talk = model.converse(PAGE)
    assert [talk.ask(FIRST), talk.ask(SECOND)] == [model.generate(PAGE, FIRST), model.generate(PAGE, SECOND)]
    assert [question for question, _ in talk.turns] == [FIRST, SECOND]
    assert talk.turns[0][1] == model.generate(PAGE, FIRST)


@pytest.mark.versions
def test_the_image_is_encoded_once(model: Any) -> None:
    with Calls(model.model.vision_tower.grid_encoder) as encoder:
        talk = model.converse(PAGE)
        talk.ask(FIRST), talk.ask(SECOND)
    assert encoder.count == 1
    encoding = model.encode_image(PAGE)
    with Calls(model.model.vision_tower.grid_encoder) as encoder:
        assert model.converse(encoding).ask(FIRST) == model.generate(encoding, FIRST)
    assert encoder.count == 0


def prompts_of(model: Any, ask: Any) -> str:
    """The prompt that a question becomes, without its placeholders."""
    seen: list[torch.Tensor] = []
    select_slots = model.model.select_slots
    model.model.select_slots = lambda input_ids, **kwargs: seen.append(input_ids) or select_slots(input_ids, **kwargs)
    try:
        ask()
    finally:
        del model.model.select_slots
    (ids,) = seen
    return model.processor.tokenizer.decode(ids[0]).replace(model.processor.image_token, "")


def test_earlier_turns_are_kept_as_text_on_demand(model: Any) -> None:
    talk = model.converse(PAGE, keep_history=True)
    first = talk.ask(FIRST)
    text = prompts_of(model, lambda: talk.ask(SECOND))
    assert text.index(FIRST) < text.index(first) < text.index(SECOND)
    afresh = model.converse(PAGE)
    afresh.ask(FIRST)
    assert FIRST not in prompts_of(model, lambda: afresh.ask(SECOND))


@pytest.mark.parametrize("strategy", ["realizer", "clip_query"])
def test_the_last_question_decides_what_is_fetched(model: Any, strategy: str) -> None:
    afresh = model.generate(PAGE, SECOND, strategy=strategy, return_fetch=True)
    with_history = model.generate(
        PAGE, SECOND, strategy=strategy, history=[(FIRST, "nobody"), ("What?", "that")], return_fetch=True
    )
    assert torch.equal(with_history.fetch.indices, afresh.fetch.indices)
    assert torch.equal(with_history.fetch.scores, afresh.fetch.scores)
    other = model.generate(PAGE, FIRST, strategy=strategy, return_fetch=True)
    assert not torch.equal(other.fetch.indices, afresh.fetch.indices)


def test_history_changes_what_the_language_model_reads(model: Any) -> None:
    text = prompts_of(model, lambda: model.generate(PAGE, SECOND, history=[(FIRST, "nobody")]))
    assert text.index(FIRST) < text.index("nobody") < text.index(SECOND)


def test_turns_of_detailed_answers_hold_their_text() -> None:
    talk = tiny_model().converse(PAGE)
    answer = talk.ask(FIRST, return_fetch=True)
    assert isinstance(answer, Answer) and talk.turns == [(FIRST, answer.text)]
    several = talk.ask(SECOND, num_beams=2, num_return_sequences=2)
    assert talk.turns[1:] == [(SECOND, several[0])]
