"""The probability of an answer that something other than the end token stopped."""

from typing import Any

import pytest
import torch
from helpers import tiny_model
from PIL import Image
from torch import Tensor
from transformers import StoppingCriteria

IMAGE = Image.linear_gradient("L").convert("RGB")


class FirstRowStops(StoppingCriteria):
    """Ends the first answer of a batch behind its first token."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        return torch.arange(len(input_ids)) == 0


def test_padding_behind_a_stop_does_not_count() -> None:
    """The other answers of the batch go on; padding fills the stopped row, and its probabilities were multiplied in."""
    model = tiny_model()
    questions = ["What is it?", "Who?"]
    stopped, whole = model.generate(IMAGE, questions, return_fetch=True, stopping_criteria=[FirstRowStops()])
    (first,) = model.generate(IMAGE, questions[:1], return_fetch=True, max_new_tokens=1)
    assert len(whole.text) > len(stopped.text) and stopped.text == first.text
    assert stopped.probability == pytest.approx(first.probability, rel=1e-3)
