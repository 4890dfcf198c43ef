"""What engines that generate by themselves use: encodings joined into a batch, prompts embedded without generating."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from test_modeling import CARD, PAGE, QUESTION, loud_model
from torch import Tensor

from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.generation import AnswerGenerator, QuestionBatch
from arr_coc.modeling.image_encoding import ImageEncoding


@pytest.fixture(scope="module")
def answer_generator() -> AnswerGenerator:
    model = loud_model()
    return AnswerGenerator(model, model.processor)


def leaves(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list | tuple) else [value]


def test_joined_encodings_are_those_of_all_images(answer_generator: AnswerGenerator) -> None:
    page, card = answer_generator.encode(PAGE), answer_generator.encode(CARD)
    joined, both = page.join(card), answer_generator.encode([PAGE, CARD])
    assert len(joined) == 2 and page.join() is page
    for field in fields(ImageEncoding):
        for value, expected in zip(leaves(getattr(joined, field.name)), leaves(getattr(both, field.name)), strict=True):
            if isinstance(expected, Tensor):
                torch.testing.assert_close(value, expected, atol=1e-4, rtol=1e-4)
            else:
                assert value == expected, field.name


def test_an_embedded_prompt_is_what_the_answer_is_generated_from(answer_generator: AnswerGenerator) -> None:
    """Two images in two prompts, and both in a third."""
    encoding = answer_generator.encode([PAGE, CARD])
    choices = answer_generator.model.model.fetcher.resolve(FetchChoices(budget=5))
    asked = QuestionBatch(encoding, [[0], [1], [1, 0]], [QUESTION, "Who?", QUESTION])
    prompt = answer_generator.embed(asked, choices)
    tokens = answer_generator.model.generate_tokens(
        input_ids=prompt.inputs["input_ids"],
        attention_mask=prompt.inputs["attention_mask"],
        prompt_embeds=prompt.embeds,
    )
    start = prompt.inputs["input_ids"].shape[1]
    texts = answer_generator.processor.tokenizer.batch_decode(tokens[:, start:], skip_special_tokens=True)
    expected = answer_generator.ask([PAGE, CARD, [CARD, PAGE]], [QUESTION, "Who?", QUESTION], budget=5)
    assert [text.strip() for text in texts] == expected
