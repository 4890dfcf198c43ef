"""The probability of an answer: the product of its tokens', first end included and nothing behind it."""

from typing import Any

import pytest
import torch
from test_modeling import CARD, PAGE, QUESTION, loud_model, prompt
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria

from arr_coc.modeling.generation import Answer


@pytest.fixture(scope="module")
def model() -> Any:
    return loud_model()


def by_hand(model: Any, image: Any, question: str, answer_tokens: torch.Tensor) -> float:
    """The product of the answer's softmax probabilities in one forward pass over prompt and answer."""
    inputs = prompt(model, (image, question))
    length = inputs.input_ids.shape[1]
    ids = torch.cat((inputs.input_ids, answer_tokens[None]), 1)
    query_mask = torch.nn.functional.pad(inputs.query_mask, (0, len(answer_tokens)))
    with torch.no_grad():
        logits = model(
            input_ids=ids, pixel_values=inputs.pixel_values, patch_mask=inputs.patch_mask, query_mask=query_mask
        ).logits
    chosen = logits[0, length - 1 : -1].log_softmax(-1).gather(1, answer_tokens[:, None])
    return float(chosen.sum().exp())


@pytest.mark.parametrize("decoding", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_the_probability_is_the_product_of_the_tokens_probabilities(model: Any, decoding: dict[str, Any]) -> None:
    answer = model.generate(PAGE, QUESTION, return_fetch=True, **decoding)
    assert isinstance(answer, Answer) and 0 <= answer.probability <= 1
    inputs = prompt(model, (PAGE, QUESTION))
    tokens = model.generate(**inputs, **decoding)[0, inputs.input_ids.shape[1] :]
    assert answer.probability == pytest.approx(by_hand(model, PAGE, QUESTION, tokens), rel=1e-3)


def test_the_probability_is_the_models_not_the_samplers(model: Any) -> None:
    """At a temperature of 0.01 every answer was certain."""
    answer = model.generate(PAGE, QUESTION, return_fetch=True, do_sample=True, temperature=0.01)
    greedy = model.generate(PAGE, QUESTION, return_fetch=True)
    assert answer.text == greedy.text
    assert answer.probability == pytest.approx(greedy.probability, rel=1e-3)


@pytest.mark.parametrize("same", [True, False], ids=["pad is end", "pad is another"])
def test_the_end_counts_once_in_a_batch_of_unequal_answers(same: bool) -> None:
    """With one token for padding and end, as many checkpoints have it, the end's own probability was left out."""
    model = loud_model()
    inputs = prompt(model, (PAGE, QUESTION))
    tokens = model.generate(**inputs)[0, inputs.input_ids.shape[1] :].tolist()
    end = tokens[2]
    assert end not in tokens[:2]
    pad = end if same else model.generation_config.pad_token_id
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad, max_new_tokens=6)
    answers = model.generate([PAGE, CARD], [QUESTION, "Who?"], return_fetch=True)
    assert answers[0].probability == pytest.approx(by_hand(model, PAGE, QUESTION, torch.tensor(tokens[:3])), rel=1e-3)


class FirstRowStops(StoppingCriteria):
    """Ends the first answer of a batch behind its first token."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        return torch.arange(len(input_ids)) == 0


def test_padding_behind_a_stop_does_not_count(model: Any) -> None:
    """The other answers of the batch go on; padding fills the stopped row, and its probabilities were multiplied in."""
    stopped, whole = model.generate(PAGE, [QUESTION, "Who?"], return_fetch=True, stopping_criteria=[FirstRowStops()])
    first = model.generate(PAGE, QUESTION, return_fetch=True, max_new_tokens=1)
    assert len(whole.text) > len(stopped.text) and stopped.text == first.text
    assert stopped.probability == pytest.approx(first.probability, rel=1e-3)
