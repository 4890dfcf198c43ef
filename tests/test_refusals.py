"""What is refused when a model is asked: one line that says what was expected and what came."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_calls import BAD, boxed
from helpers import PAGE, QUESTION, loud_model, prompt, refuses
from PIL import Image

from arr_coc import ArrCocForConditionalGeneration


@pytest.fixture(scope="module")
def expected(model: Any) -> str:
    return model.generate(PAGE, QUESTION)


def test_an_answer_ends_where_the_context_does(model: Any) -> None:
    """It went on for as many tokens as were asked for, beyond the positions that the language model knows."""
    short = loud_model(text={"max_position_embeddings": 110})
    length = prompt(short, (PAGE, QUESTION))["input_ids"].shape[1]
    options = {"max_new_tokens": 10**9, "eos_token_id": -1, "return_dict_in_generate": True}
    assert short.generate(PAGE, QUESTION, **options).output.sequences.shape[1] == 110
    tokens = short.generate(**prompt(short, (PAGE, QUESTION)), max_new_tokens=10**9, eos_token_id=-1)
    assert tokens.shape[1] == 110 > length


def test_a_box_is_cut_at_the_edges_of_its_page(model: Any) -> None:
    """In the square it also covered padding, whose patches were then fetched."""
    page, options = Image.new("RGB", (100, 50), "grey"), {"strategy": "oracle", "budget": 64, "return_fetch": True}
    whole, beyond = (
        model.generate(page, QUESTION, boxes=[box], **options) for box in ((0, 0, 100, 50), (-50, -90, 300, 400))
    )
    assert torch.equal(whole.fetch.relevance, beyond.fetch.relevance) and whole.fetch.relevance.sum() < 256
    expected = boxed(model, [(0, 0, 20, 20)])
    for boxes in (torch.tensor([[0, 0, 20, 20]]), np.array([[0, 0, 20, 20]]), [torch.tensor([0.0, 0.0, 20.0, 20.0])]):
        assert boxed(model, boxes) == expected


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_of_expected_and_got(model: Any, tmp_path: Path, case: str) -> None:
    call, message = BAD[case]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message) as error:
        call(model, tmp_path)
    assert "\n" not in str(error.value) and "expected" in str(error.value)


def test_a_checkpoint_without_a_processor_says_so(model: Any, tmp_path: Path, expected: str) -> None:
    model.save_pretrained(tmp_path)
    alone = ArrCocForConditionalGeneration.from_pretrained(tmp_path)
    refuses("^processor: expected .* to hold one", alone.generate, PAGE, QUESTION)
    inputs = prompt(model, (PAGE, QUESTION))  # the standard call does not need it
    assert torch.equal(alone.generate(**inputs, max_new_tokens=3), model.generate(**inputs, max_new_tokens=3))
    assert alone.encode_image(pixel_values=inputs.pixel_values).prefix_cache is None
    model.save_pretrained(tmp_path)
    model.processor.save_pretrained(tmp_path)
    assert ArrCocForConditionalGeneration.from_pretrained(tmp_path).generate(PAGE, QUESTION) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_passes": 0}, "num_passes: expected an integer from 1"),
        ({"num_passes": 2, "num_beams": 2}, "num_beams: expected 1 beside num_passes; got 2"),
        ({"strategy": "oracle"}, r'strategy "oracle": expected boxes \(or relevance\) of the answer; got none'),
        ({"num_return_sequences": 2}, r"num_return_sequences: expected do_sample=True beside it, or at most num_beams"),
        ({"seed": 3, "do_sample": True}, "seed: expected strategy random, .*set_seed seeds the tokens of do_sample; "),
        ({"history": "abc"}, r"history: expected turns \(question, answer\) .* for each of 1 questions; got 'abc'"),
        ({"image": [PAGE] * 3, "question": [QUESTION] * 2}, r"images: expected 1 or 2 \(one per question\); got 3"),
    ],
)
def test_what_no_image_changes_is_refused_before_any_is_encoded(
    model: Any, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    """A document of six pages took 12 s first."""
    monkeypatch.setattr(model.model, "encode_image", None)
    refuses(message, model.generate, **{"image": PAGE, "question": QUESTION, **arguments})
