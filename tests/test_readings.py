"""Several readings of a page: they vote, the places of an answer are those on the page, sure answers are kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import READS_WORDS, loud_model, reads, refuses, tiny_model
from PIL import Image
from transformers import GenerationConfig, TextStreamer

from arr_coc.modeling import generation
from arr_coc.modeling.answers import Answer, agreed, surest
from arr_coc.modeling.rereading import MARGINS, on_sheets
from arr_coc.viewing import draw_sheet

QUESTIONS = ["What is the total?", "What is the tax?", "Who?"]


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 255, (height // 12, width // 12, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.NEAREST)


PAGE, OTHER = drawn(96, 60, seed=2), drawn(60, 84, seed=1)


@pytest.fixture(scope="module")
def model() -> Any:
    return reads(tiny_model(**READS_WORDS), 0, 1)


@pytest.fixture(autouse=True)
def every_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is so sure that further readings are not asked."""
    monkeypatch.setattr(generation.surest, "__defaults__", (1.1,))


def sheet(page: Image.Image, reading: int) -> Image.Image:
    """What `on_sheets` promises, drawn anew."""
    factor, share = MARGINS[reading - 1]
    size = (round(factor * page.width), round(factor * page.height))
    edges = [page.getpixel((x, y)) for y in range(page.height) for x in (0, page.width - 1)]
    edges += [page.getpixel((x, y)) for x in range(page.width) for y in (0, page.height - 1)]
    made = Image.new("RGB", size, tuple(int(np.median(channel)) for channel in zip(*edges, strict=True)))
    made.paste(page, (round(share * (size[0] - page.width)), round(share * (size[1] - page.height))))
    return made


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_answer_is_one_that_the_readings_agree_on(model: Any, count: int) -> None:
    found, seen = set(), model.encode_image(PAGE, readings=count)
    pages = [model.encode_image(page) for page in (PAGE, *(sheet(PAGE, reading) for reading in range(1, count)))]
    for question in QUESTIONS:
        each = [model.generate(page, question, return_fetch=True) for page in pages]
        expected = agreed(each)
        found.add([answer.text for answer in each].index(expected.text))
        answer = model.generate(seen, question, return_fetch=True)
        assert answer.text == expected.text
        assert answer.probability == pytest.approx(expected.probability, rel=1e-3)
    assert model.generate(PAGE, QUESTIONS[-1], readings=count) == answer.text
    assert count == 1 or len(found) > 1  # else nothing was chosen


def test_every_reading_bypasses_the_bridge() -> None:
    """The first alone answered: the encoding with other base tokens had lost its readings."""
    model = loud_model()
    each = [model.generate(page, "?", bypass=True, return_fetch=True) for page in (PAGE, sheet(PAGE, 1))]
    assert each[0].text != each[1].text
    answer = model.generate(PAGE, "?", readings=2, bypass=True, return_fetch=True)
    assert answer.text == agreed(each).text and answer.probability == pytest.approx(agreed(each).probability, rel=1e-3)


def test_every_reading_is_asked_with_the_present_model(model: Any) -> None:
    """Further readings began with the keys and values of the language model that had encoded the page."""
    other = reads(tiny_model(**READS_WORDS), 0, 1)
    for parameter in other.model.language_model.layers.parameters():
        parameter.data.mul_(1.2)
    seen, anew = model.encode_image(PAGE, readings=3), other.encode_image(PAGE, readings=3)
    for question in QUESTIONS:
        own = other.generate(anew, question, return_fetch=True)
        answer = other.generate(seen, question, return_fetch=True)
        assert answer.text == own.text and answer.probability == pytest.approx(own.probability, rel=1e-3)


def told(probability: float, text: str) -> Answer:
    return Answer(text, probability, None)  # type: ignore[arg-type]


def test_readings_vote_with_their_probabilities_and_sure_answers_are_not_asked_again() -> None:
    assert agreed([told(0.6, "a")]) == told(0.6, "a")
    assert agreed([told(0.6, "a"), told(0.4, "b")]) == told((0.6 + 0.3) / 2, "a")
    best = agreed([told(0.5, "B c"), told(0.6, "a"), told(0.4, "b  C")])
    assert (best.text, best.probability) == ("B c", pytest.approx((0.5 + 0.3) / 2))
    asked: list[list[int]] = []

    def again(numbers: list[int]) -> list[Answer]:
        asked.append(numbers)
        return [told(0.85 if len(asked) == 1 and number == 2 else 0.3, f"again {number}") for number in numbers]

    best = surest([told(0.9, "a"), told(0.2, "b"), told(0.4, "c")], [again, again, again], 0.8)
    assert [answer.text for answer in best] == ["a", "again 1", "again 2"]
    assert asked == [[1, 2], [1], [1]]
    assert surest([told(0.8, "a")], [again], 0.8)[0].text == "a" and len(asked) == 3


def test_encoded_once_it_answers_many_questions_of_several_pages(model: Any) -> None:
    asked = QUESTIONS[:2]
    alone = [model.generate(page, text, readings=3) for page in (PAGE, OTHER) for text in asked]
    encodings = [model.encode_image(page, readings=3) for page in (PAGE, OTHER)]
    assert [answer for each in encodings for answer in model.generate(each, asked)] == alone
    assert model.generate([PAGE, OTHER], asked, readings=3) == [alone[0], alone[3]]
    assert model.generate(encodings[0], "And the tax?", history=[("a?", "b")], return_fetch=True).text


def test_places_are_those_on_the_page(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of the second reading alone is that about its sheet, with its boxes moved by the sheet's margin."""
    monkeypatch.setattr(generation, "surest", lambda answers, again: again[0]([*range(len(answers))]))
    factor, share = MARGINS[0]
    left, top = (round(share * (round(factor * length) - length)) for length in PAGE.size)
    assert left and top
    seen = model.encode_image(PAGE, readings=2)
    answer = model.generate(seen, QUESTIONS[0], return_fetch=True)
    plain = model.generate(sheet(PAGE, 1), QUESTIONS[0], return_fetch=True)
    assert answer.text == plain.text and len(answer.sources) == len(plain.sources) > 0
    for own, on_sheet in zip(answer.sources, plain.sources, strict=True):
        x0, y0, x1, y1 = on_sheet.box
        expected = (max(0, x0 - left), max(0, y0 - top), min(PAGE.width, x1 - left), min(PAGE.height, y1 - top))
        assert own.box == pytest.approx(expected, abs=1e-3)
    (window,) = answer.fetch.seen.views.windows.tolist()
    side = round(factor * PAGE.width)
    above = (side - round(factor * PAGE.height)) / 2  # the sheet is in the middle of the model's square
    assert window == pytest.approx([-left, -above - top, side - left, side - above - top], abs=1.0)
    assert draw_sheet(seen.sources, answer, question="?").width > 0


def test_a_sure_page_is_not_encoded_again(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation.surest, "__defaults__", (0.0,))
    seen = model.encode_image(PAGE, readings=3)
    assert model.generate(seen, QUESTIONS[0]) == model.generate(PAGE, QUESTIONS[0])
    assert all(reading._encoding is None for reading in seen.readings)


def test_documents_are_read_page_by_page(model: Any, tmp_path: Path) -> None:
    PAGE.save(tmp_path / "pages.tiff", save_all=True, append_images=[OTHER])
    seen = model.encode_image(tmp_path / "pages.tiff", readings=2)
    sheets, places = on_sheets(seen.sources, 1)
    assert [each.page for each in sheets] == [1, 2] and places.shape == (2, 2)
    assert all(np.array_equal(each.load(), sheet(page, 1)) for each, page in zip(sheets, (PAGE, OTHER), strict=True))
    answer = model.generate(seen, QUESTIONS[0], return_fetch=True)
    assert {origin.page for origin in answer.sources} <= {1, 2} and len(seen.readings[0].encoding) == 2


@pytest.mark.parametrize("count", [0, 4, True, 1.5, "2"])
def test_other_numbers_are_refused(model: Any, count: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"readings: expected a whole number in 1\.\.3; got"):
        model.generate(PAGE, "?", readings=count)


def test_what_has_one_reading_is_refused(model: Any) -> None:
    seen = model.encode_image(PAGE, readings=2)
    with pytest.raises(ValueError, match="readings: expected with an image or in encode_image; got 2 for an encoding"):
        model.generate(seen, "?", readings=2)
    several = {"num_return_sequences": 2, "do_sample": True}
    cases: dict[str, dict[str, Any]] = {
        "streamer": {"streamer": TextStreamer(model.processor.tokenizer)},
        "num_passes": {"num_passes": 2},
        "patches": {"patches": torch.tensor([[1, 2]])},
        "relevance": {"strategy": "oracle", "choices": {"relevance": torch.ones(1, 256)}},
        "num_return_sequences": several,
        "return_dict_in_generate": {"generation_config": GenerationConfig(return_dict_in_generate=True)},
    }
    for name, settings in cases.items():
        refuses(f"readings: expected one reading with {name}; got 2", model.generate, seen, "?", **settings)
    with pytest.raises(ValueError, match="readings: expected one reading with num_return_sequences; got 3"):
        model.generate(PAGE, "?", readings=3, generation_config=GenerationConfig(**several))
    refuses("image: expected images, or one result of this model's encode_image", model.encode_image, seen)
    plain = {"num_passes": 1, "return_dict_in_generate": False, "num_return_sequences": 1}
    assert model.generate(seen, "?", **plain) == model.generate(seen, "?")
