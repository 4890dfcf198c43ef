"""Asking: every kind of image, of question and of decoding, and what is refused."""

import re
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from helpers import CARD, PAGE, QUESTION, Calls, noise, png, prompt, refuses
from transformers import GenerationConfig, TextIteratorStreamer, TextStreamer

from arr_coc.modeling.image_processing_arr_coc import boxes_to_patches

pytestmark = pytest.mark.versions

THIRD = noise(50, 120, 3)


@pytest.fixture(scope="module")
def expected(model: Any) -> str:
    return model.generate(PAGE, QUESTION)


# ---- what comes back
def test_a_string_for_one_and_a_list_for_lists_of_images_or_questions(model: Any, expected: str) -> None:
    assert isinstance(expected, str)
    assert model.generate(image=PAGE, question=QUESTION) == expected
    assert model.generate([PAGE], QUESTION) == model.generate(PAGE, [QUESTION]) == [expected]
    other = model.generate(CARD, "Who?")
    assert model.generate([PAGE, CARD], [QUESTION, "Who?"]) == [expected, other]
    assert model.generate((PAGE, CARD), (QUESTION, "Who?")) == [expected, other]
    assert model.generate(PAGE, [QUESTION, "Who?"]) == [expected, model.generate(PAGE, "Who?")]
    both = [expected, model.generate(CARD, QUESTION)]
    assert model.generate([PAGE, CARD], QUESTION) == both
    assert model.generate(model.encode_image([PAGE, CARD]), [QUESTION] * 2) == both
    # As for a list of images; it said "expected 1 or 1 (one per question)".
    assert model.generate(model.encode_image([PAGE, CARD]), QUESTION) == both


class Says:
    """Makes a model write a text, whatever it would."""

    def __init__(self, model: Any, text: str) -> None:
        tokenizer = model.processor.tokenizer
        self.tokens = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        self.start = self.last = -1

    def __call__(self, ids: Any, scores: Any) -> Any:
        if ids.shape[1] != self.last + 1:  # another pass begins
            self.start = ids.shape[1]
        self.last = ids.shape[1]
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.tokens[(ids.shape[1] - self.start) % len(self.tokens)]] = 0
        return forced


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize(
    ("written", "thinking", "said"),
    [
        ("<think> 8 or 9 </think> 9", "8 or 9", "9"),
        ("<think></think>9", "", "9"),
        ("<think>8</think>It ends with </think>.", "8", "It ends with </think>."),
        ("It ends with </think>.", "", "It ends with </think>."),
        ("<think>8 or", "8 or", ""),  # its tokens came to an end
        ("9", "", "9"),
    ],
)
def test_what_was_thought_is_not_the_answer(model: Any, written: str, thinking: str, said: str, passes: int) -> None:
    settings = {"max_new_tokens": 40, "num_passes": passes}
    assert model.generate(PAGE, QUESTION, logits_processor=[Says(model, written)], **settings) == said
    says = Says(model, written)
    answer = model.generate(PAGE, QUESTION, logits_processor=[says], return_fetch=True, **settings)
    assert (answer.thinking, answer.text) == (thinking, said)
    assert all(each.text == said for each in answer.passes)


def test_what_is_fetched_is_told_before_the_first_token(model: Any) -> None:
    events: list[Any] = []

    class Streamer:
        def put(self, value: Any) -> None:
            events.append(value)

        def end(self) -> None:
            events.append("end")

    answer = model.generate(PAGE, QUESTION, return_fetch=True, on_fetch=events.append, streamer=Streamer())
    assert torch.equal(events[0].indices, answer.fetch.indices) and events[-1] == "end"
    told: list[Any] = []
    answers = model.generate([PAGE, CARD], QUESTION, return_fetch=True, on_fetch=told.append)
    (fetch,) = told
    assert torch.equal(fetch.indices, torch.cat([answer.fetch.indices for answer in answers]))
    refuses(r"^on_fetch: expected a function; got 3", model.generate, PAGE, QUESTION, on_fetch=3)


def test_every_kind_of_image_gives_the_same_answer(model: Any, expected: str, tmp_path: Path) -> None:
    """Those of each door; test_image_loading.py has all kinds."""
    (tmp_path / "page.png").write_bytes(png(PAGE))
    array = torch.from_numpy(np.array(PAGE))
    for image in (str(tmp_path / "page.png"), png(PAGE), array.permute(2, 0, 1), {"bytes": png(PAGE), "path": None}):
        assert model.generate(image, QUESTION) == model.generate(model.encode_image(image), QUESTION) == expected


def test_several_images_in_one_prompt(model: Any) -> None:
    """They share one budget, whatever their order and whoever is asked beside them; in a chat each has its own."""
    asked = model.generate([[PAGE, CARD], THIRD], [QUESTION, "Who?"], return_fetch=True)
    budget = model.config.vision_tokens()[1]
    assert [answer.fetch.counts.sum().item() for answer in asked] == [budget, budget]
    alone = [model.generate([[PAGE, CARD]], QUESTION)[0], model.generate(THIRD, "Who?")]
    assert [answer.text for answer in asked] == alone
    swapped = model.generate([[CARD, PAGE]], QUESTION, return_fetch=True)[0]
    places = [[(origin.source, origin.box) for origin in answer.sources] for answer in (asked[0], swapped)]
    assert sorted(places[0]) == sorted((1 - source, box) for source, box in places[1])
    inputs = prompt(model, ([PAGE, CARD], QUESTION), (THIRD, "Who?"))
    counts = model(**inputs).fetch.counts
    assert counts.tolist() == [budget] * 3 and model.generate(**inputs).shape[0] == 2


# ---- oracle boxes
def test_oracle_fetches_what_lies_under_the_boxes(model: Any) -> None:
    box = (20, 10, 50, 30)
    answer = model.generate(PAGE, QUESTION, strategy="oracle", boxes=[box], return_fetch=True, max_new_tokens=1)
    under = boxes_to_patches(model.processor.image_processor.map_boxes([box], PAGE.height, PAGE.width), 16, 8)
    inside = set(np.flatnonzero(under).tolist())
    assert inside
    fetched = set(answer.fetch.indices[0].tolist())
    assert inside <= fetched or fetched <= inside
    first, second = [(0, 0, 9, 9)], [(5, 5, 20, 20)]

    def asked(boxes: Any) -> Any:
        settings = {"strategy": "oracle", "return_fetch": True, "max_new_tokens": 1}
        return model.generate([PAGE, CARD], [QUESTION, "Who?"], boxes=boxes, **settings)

    assert not any(answer.fetch.fell_back for answer in asked([first, second]))
    for boxes, number in (([[], second], 1), ([first, []], 2), ([[], []], 1)):
        refuses(f"boxes: expected at least one .*; got none for question {number}", asked, boxes)


# ---- decoding
def test_the_standard_call_gives_the_same_answer_behind_its_prompt(model: Any, expected: str) -> None:
    inputs = prompt(model, (PAGE, QUESTION))
    length = inputs.input_ids.shape[1]
    output = model.generate(**inputs)
    assert torch.equal(output[:, :length], inputs.input_ids)
    assert model.processor.tokenizer.decode(output[0, length:], skip_special_tokens=True).strip() == expected
    positional = model.generate(inputs.input_ids, **{n: t for n, t in inputs.items() if n != "input_ids"})
    assert torch.equal(positional, output)
    full = model.generate(**inputs, return_dict_in_generate=True, output_scores=True)
    assert torch.equal(full.sequences, output) and len(full.scores) == output.shape[1] - length


@pytest.mark.parametrize("configured", [False, True], ids=["argument", "GenerationConfig"])
@pytest.mark.parametrize("convenience", [True, False], ids=["question", "inputs"])
@pytest.mark.filterwarnings("ignore")
def test_every_cache_gives_the_same_tokens(model: Any, configured: bool, convenience: bool) -> None:
    """A cache set in the GenerationConfig met the prefix's own cache: "Passing both ... is unsupported"."""
    decoding: dict[str, Any] = {"cache_implementation": "static"}
    if configured:
        decoding = {"generation_config": GenerationConfig(**{**model.generation_config.to_diff_dict(), **decoding})}
    if convenience:
        pairs = [PAGE, THIRD], [QUESTION, "total price"]
        assert model.generate(*pairs, **decoding) == model.generate(*pairs)
    else:
        inputs = prompt(model, (PAGE, QUESTION), (THIRD, "total price"))
        assert torch.equal(model.generate(**inputs, **decoding), model.generate(**inputs))


def test_sampling_obeys_the_seed_and_several_sequences_are_all_returned(model: Any) -> None:
    def sample(seed: int) -> list[str]:
        torch.manual_seed(seed)
        return model.generate([PAGE, CARD], QUESTION, do_sample=True, temperature=3.0)

    assert sample(0) == sample(0) != sample(1)
    # For one image and one question only the first of them came back.
    answers = model.generate(PAGE, QUESTION, num_beams=3, num_return_sequences=2)
    assert isinstance(answers, list) and len(answers) == 2 and answers[0] != answers[1]
    detailed = model.generate([PAGE, CARD], QUESTION, num_beams=3, num_return_sequences=2, return_fetch=True)
    assert [answer.text for answer in detailed[:2]] == answers
    assert torch.equal(detailed[0].fetch.indices, detailed[1].fetch.indices)
    assert not torch.equal(detailed[1].fetch.indices, detailed[2].fetch.indices)


@pytest.mark.parametrize("cached", [True, False])
def test_beams_with_several_images_per_prompt(model: Any, cached: bool) -> None:
    """Beams repeat every tensor along the batch: images that belong to prompts in unequal numbers got mixed up."""
    inputs = prompt(model, ([PAGE, CARD], QUESTION), (THIRD, "Who?"))
    length, options = inputs.input_ids.shape[1], {"num_beams": 3, "num_return_sequences": 2, "use_cache": cached}
    with Calls(model.model.language_model) as steps:
        together = model.generate(**inputs, **options)[:, length:]
    read = length - model.config.vision_tokens()[1]  # two images share one budget
    assert cached == (steps.positions < steps.count * read)
    assert together.shape[0] == 4
    for i, pair in enumerate([([PAGE, CARD], QUESTION), (THIRD, "Who?")]):
        single = prompt(model, pair)
        alone = model.generate(**single, **options)[:, single.input_ids.shape[1] :]
        width = min(alone.shape[1], together.shape[1])
        assert torch.equal(together[2 * i : 2 * i + 2, :width], alone[:, :width])


@pytest.mark.parametrize("convenience", [True, False], ids=["question", "inputs"])
def test_streaming(model: Any, expected: str, convenience: bool) -> None:
    streamer = TextIteratorStreamer(model.processor.tokenizer, skip_prompt=True, timeout=120, skip_special_tokens=True)
    inputs = {"image": PAGE, "question": QUESTION} if convenience else dict(prompt(model, (PAGE, QUESTION)))
    thread = Thread(target=model.generate, kwargs={**inputs, "streamer": streamer})
    thread.start()
    streamed = "".join(streamer)
    thread.join()
    assert streamed.strip() == expected


def test_the_documented_streamer_prints_no_special_tokens(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It printed <|im_end|>."""
    text = (Path(__file__).parents[1] / "docs" / "transformers.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"TextStreamer\(.*?\)", text)
    streamer = eval(written, {"TextStreamer": TextStreamer, "processor": model.processor})
    end = model.processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generate(PAGE, QUESTION, streamer=streamer, forced_eos_token_id=end, max_new_tokens=6)
    shown = capsys.readouterr().out
    assert shown.strip() and "<|" not in shown


def test_encodings_in_forward_and_in_the_standard_call(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION), (CARD, "Who?"))
    encoding = model.encode_image([PAGE, CARD])
    text = {n: t for n, t in inputs.items() if n not in ("pixel_values", "patch_mask")}
    with torch.no_grad():
        assert torch.allclose(model(**text, image_encoding=encoding).logits, model(**inputs).logits, atol=1e-4)
        swapped = model(**text, image_encoding=encoding, image_index=torch.tensor([1, 0])).image_tokens
        other = prompt(model, (CARD, QUESTION), (PAGE, "Who?"))
        assert torch.allclose(swapped, model(**other).image_tokens, atol=1e-4)
    assert torch.equal(model.generate(**text, image_encoding=encoding), model.generate(**inputs))


def test_a_question_is_read_as_it_is_written(model: Any) -> None:
    """Case, spaces within and any alphabet belong to the question; Unicode must not break the prefix either."""
    encoding = model.encode_image(PAGE)
    for question in ("Wie heißt das?", "总计是多少？", "  what?  ", "a" * 300):
        assert model.generate(encoding, question) == model.generate(PAGE, question)
