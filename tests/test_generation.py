"""transformers' ways to decode, with images: the same answers as plain greedy decoding, or a refusal by name."""

import re
from dataclasses import fields
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import CARD, PAGE, QUESTION, Calls, loud_model, noise, prompt, refuses, tiny_model
from PIL import Image
from torch import Tensor
from transformers import GenerationConfig, TextIteratorStreamer, TextStreamer
from transformers.utils import logging

from arr_coc.modeling.answers import Answer
from arr_coc.modeling.generation import AnswerGenerator
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.image_processing_arr_coc import boxes_to_patches
from arr_coc.modeling.pretrained import CACHE

pytestmark = pytest.mark.versions
QUESTIONS = [QUESTION, "Who?", "What is the user? What is the user?", "total total total price"]
THIRD = noise(50, 120, 3)
PAIRS = [(PAGE, QUESTION), (THIRD, "total price")]


# ---- assisted decoding
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("encoded", [False, True], ids=["image", "encoding"])
def test_prompt_lookup_gives_what_greedy_decoding_gives(model: Any, question: str, encoded: bool) -> None:
    """Assisted decoding misreads positions where there are `inputs_embeds`: 16 of 24 answers differed."""
    image = model.encode_image(PAGE) if encoded else PAGE
    plain = model.generate(image, question, max_new_tokens=16)
    assert model.generate(image, question, max_new_tokens=16, prompt_lookup_num_tokens=3) == plain


@pytest.mark.parametrize("image", [PAGE, CARD], ids=["page", "card"])
def test_prompt_lookup_of_the_standard_call(model: Any, image: Any) -> None:
    inputs = prompt(model, (image, QUESTION))
    plain = model.generate(**inputs, max_new_tokens=16)
    with Calls(model.model.language_model) as calls:
        assert torch.equal(model.generate(**inputs, max_new_tokens=16, prompt_lookup_num_tokens=3), plain)
    new = plain.shape[1] - inputs["input_ids"].shape[1]
    assert calls.positions - inputs["input_ids"].shape[1] > new - 1  # candidates ran too: it is assisted decoding


@pytest.mark.parametrize("form", ["question", "inputs"])
def test_an_assistant_is_refused_by_name(model: Any, form: str) -> None:
    inputs = {"image": PAGE, "question": QUESTION} if form == "question" else dict(prompt(model, (PAGE, QUESTION)))
    with pytest.raises(ValueError, match="assistant_model: expected .*prompt_lookup_num_tokens.*got Qwen3Model"):
        model.generate(**inputs, assistant_model=model.model.language_model)


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"return_fetch": True}], ids=str)
def test_stop_strings_end_an_answer(model: Any, options: dict[str, Any]) -> None:
    """transformers hands the tokenizer that it needs for them on to every step."""
    whole = model.generate(PAGE, QUESTION, max_new_tokens=16, **options)
    text = whole.text if "return_fetch" in options else whole
    stop = next(character for character in text[1:] if character.isascii())
    stopped = model.generate(
        PAGE, QUESTION, max_new_tokens=16, stop_strings=[stop], tokenizer=model.processor.tokenizer, **options
    )
    ended = stopped.text if "return_fetch" in options else stopped
    assert ended.count(stop) <= 1 and len(ended) < len(text)


# ---- what the standard call refuses
@pytest.mark.parametrize("form", ["question", "inputs"])
def test_a_cache_that_holds_tokens_is_refused_beside_images(model: Any, form: str) -> None:
    """The patches of the next turn's question are before them: they were fetched, and never read."""
    inputs = prompt(model, (PAGE, QUESTION))
    cache = getattr(model.generate(**inputs, max_new_tokens=2, return_dict_in_generate=True), CACHE)
    asked = {"image": PAGE, "question": QUESTION} if form == "question" else dict(inputs)
    refuses(r"cache: expected an empty cache beside images .*; got one of \d+", model.generate, **asked, cache=cache)


def test_what_the_standard_call_refuses_names_the_form_that_works(model: Any) -> None:
    inputs = dict(prompt(model, (PAGE, QUESTION)))
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    expected = "input_ids: expected the prompt's, and no inputs_embeds, beside images; got inputs_embeds"
    refuses(expected, model.generate, inputs_embeds=embeds, **inputs)
    inputs = prompt(model, (PAGE, QUESTION))
    with pytest.raises(ValueError, match=r"budget: expected it in the call of the processor, processor\(..., budget="):
        model.generate(**inputs, budget="fast")
    fewer = prompt(model, (PAGE, QUESTION), budget="fast")
    assert fewer["input_ids"].shape[1] < inputs["input_ids"].shape[1]
    assert model.generate(**fewer).shape[1] > fewer["input_ids"].shape[1]
    with pytest.raises(ValueError, match='strategy "none": expected prompts without placeholders.*a processor makes'):
        model.generate(**prompt(model, (PAGE, QUESTION)), strategy="none")
    inputs = prompt(model, (PAGE, QUESTION), strategy="none")
    output = model.generate(**inputs, strategy="none")[:, inputs["input_ids"].shape[1] :]
    answer = model.processor.tokenizer.decode(output[0], skip_special_tokens=True).strip()
    assert answer == model.generate(PAGE, QUESTION, strategy="none")


# ---- cache or none
@pytest.mark.parametrize("form", ["question", "inputs"])
@pytest.mark.parametrize("configured", [False, True], ids=["argument", "GenerationConfig"])
def test_without_a_cache_the_prompt_is_passed_again_each_step(model: Any, form: str, configured: bool) -> None:
    """use_cache=False had no effect with images: tests of "no cache" compared cache with cache."""
    inputs = prompt(model, *PAIRS)
    if form == "question":
        inputs = {"image": [image for image, _ in PAIRS], "question": [question for _, question in PAIRS]}
    length = prompt(model, *PAIRS)["input_ids"].shape[1]
    options: dict[str, Any] = {"use_cache": False}
    if configured:
        settings = {**model.generation_config.to_diff_dict(), "use_cache": False}
        options = {"generation_config": GenerationConfig(**settings)}
    with Calls(model.model.language_model) as cached:
        plain = model.generate(**inputs)
    with Calls(model.model.language_model) as uncached:
        other = model.generate(**inputs, **options)
    assert torch.equal(plain, other) if form == "inputs" else plain == other
    prefills = 2 if form == "question" else 1  # the base tokens first, as `encode_image` does
    assert uncached.count == cached.count + 1 - prefills > 1
    assert cached.positions == length + uncached.count - 1
    assert uncached.positions == sum(length + step for step in range(uncached.count))


@pytest.mark.parametrize("passes", [{}, {"num_passes": 2, "exploration": "none"}])
def test_an_answer_that_is_cut_has_a_warning(model: Any, passes: dict[str, Any]) -> None:
    """Its probability is that of the tokens that are there: "" had 94 %."""
    output = model.generate(PAGE, QUESTION, max_new_tokens=8, return_dict_in_generate=True, **passes).output
    end = int(output.sequences[0, -1])
    cut, whole = (
        model.generate(PAGE, QUESTION, return_fetch=True, max_new_tokens=8, **passes, **settings)
        for settings in ({}, {"eos_token_id": end})
    )
    assert cut.warning.endswith("the answer is cut after 8 tokens (max_new_tokens)")
    assert "cut after" not in whole.warning
    one = model.generate(PAGE, QUESTION, return_fetch=True, max_new_tokens=1, **passes)
    assert one.warning.endswith("the answer is cut after 1 token (max_new_tokens)")


@pytest.mark.parametrize("setting", ["max_time", "stopping_criteria"])
def test_an_answer_that_something_else_stopped_has_a_warning(model: Any, setting: str) -> None:
    """ "" had 98.6 %, and no warning."""
    value = {"max_time": 1e-6, "stopping_criteria": [lambda ids, scores: torch.ones(len(ids), dtype=torch.bool)]}
    answer = model.generate(PAGE, QUESTION, return_fetch=True, max_new_tokens=8, **{setting: value[setting]})
    assert answer.warning.endswith(f"the answer is cut after 1 token ({setting})")


# ---- budgets that the context cannot hold
def short_model(context: int) -> Any:
    return tiny_model(text={"max_position_embeddings": context})


def test_all_fetches_what_fits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """`budget="all"` always failed on the shipped model, and blamed the question."""
    said: list[str] = []
    monkeypatch.setattr(
        logging.get_logger("arr_coc.modeling.generation"), "warning", lambda text, *_: said.append(text)
    )
    model = short_model(200)
    answer = model.generate(PAGE, QUESTION, budget="all", return_fetch=True)
    (text,) = said
    fits = answer.fetch.budget
    assert 0 < fits < 256 and text == f'budget "all": fetching {fits} of 256 patches, what 200 tokens of context hold'
    processor = model.processor
    longest = processor.prompts([QUESTION], images=[1], placeholders=16 + fits)["input_ids"].shape[1]
    assert longest + model.generation_config.max_new_tokens == 200
    assert answer.text == model.generate(PAGE, QUESTION, budget=fits)


def test_a_number_that_does_not_fit_is_answered_with_the_largest_that_does() -> None:
    model = short_model(200)
    with pytest.raises(
        ValueError, match="budget: expected at most .* fill the 200 tokens of context; got 250"
    ) as refused:
        model.generate(PAGE, QUESTION, budget=250)
    largest = int(str(refused.value).split("at most ")[1].split()[0])
    model.generate(PAGE, QUESTION, budget=largest, max_new_tokens=1)
    refuses(f"at most {largest} patches", model.generate, PAGE, QUESTION, budget=largest + 1, max_new_tokens=1)
    with pytest.raises(ValueError, match="question: expected a prompt of fewer than 60 tokens, images included; got"):
        short_model(60).generate(PAGE, QUESTION * 20, budget="all")


# ---- The probability of an answer: the product of its tokens', first end included and nothing behind it
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


def test_the_probability_is_the_models_not_the_samplers_nor_that_of_padding(model: Any) -> None:
    """At a temperature of 0.01 every answer was certain."""
    answer = model.generate(PAGE, QUESTION, return_fetch=True, do_sample=True, temperature=0.01)
    greedy = model.generate(PAGE, QUESTION, return_fetch=True)
    assert answer.text == greedy.text
    assert answer.probability == pytest.approx(greedy.probability, rel=1e-3)
    # The other answers of the batch go on; padding fills the stopped row, and its probabilities were multiplied in.
    stops = [lambda ids, scores, **_: torch.arange(len(ids)) == 0]  # the first answer, behind its first token
    stopped, whole = model.generate(PAGE, [QUESTION, "Who?"], return_fetch=True, stopping_criteria=stops)
    first = model.generate(PAGE, QUESTION, return_fetch=True, max_new_tokens=1)
    assert len(whole.text) > len(stopped.text) and stopped.text == first.text
    assert stopped.probability == pytest.approx(first.probability, rel=1e-3)


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


# ---- Only the chat template writes control tokens: what looks like one in a question is text
BLANK = Image.new("RGB", (64, 64), "white")


def test_control_tokens_in_a_question_are_text() -> None:
    """`<|im_end|>` in a question closed the user's turn, and what followed it was the template's."""
    model = tiny_model()
    processor = model.processor
    for token in processor.control_tokens:
        question = f"What is {token} here?"
        prompts = processor.prompts([question, "What is"], images=[1, 1], placeholders=3)
        special = processor.tokenizer.convert_tokens_to_ids(processor.control_tokens)
        counts = torch.isin(prompts["input_ids"], torch.tensor(special)) & prompts["attention_mask"].bool()
        assert counts[0].sum() == counts[1].sum(), "only the template's"
        asked = prompts["input_ids"][0][prompts["query_mask"][0]]
        assert processor.tokenizer.decode(asked) == question
        assert isinstance(model.generate(BLANK, question, max_new_tokens=1), str)


# ---- Several questions about one image: each fetches for itself; what came before is text, where it is kept at all
FIRST, SECOND = "Who?", QUESTION


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


# ---- What engines that generate by themselves use: encodings joined into a batch, prompts embedded without generatin
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
    assert joined.joined and not both.joined  # one question is about all images of either
    for field in fields(ImageEncoding):
        if field.name == "joined":
            continue
        for value, expected in zip(leaves(getattr(joined, field.name)), leaves(getattr(both, field.name)), strict=True):
            if isinstance(expected, Tensor):
                torch.testing.assert_close(value, expected, atol=1e-4, rtol=1e-4)
            else:
                assert value == expected, field.name


# ---- Asking: every kind of image, of question and of decoding, and what is refused
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
    streamer = SimpleNamespace(put=events.append, end=lambda: events.append("end"))
    answer = model.generate(PAGE, QUESTION, return_fetch=True, on_fetch=events.append, streamer=streamer)
    assert torch.equal(events[0].indices, answer.fetch.indices) and events[-1] == "end"
    told: list[Any] = []
    answers = model.generate([PAGE, CARD], QUESTION, return_fetch=True, on_fetch=told.append)
    (fetch,) = told
    assert torch.equal(fetch.indices, torch.cat([answer.fetch.indices for answer in answers]))
    refuses(r"^on_fetch: expected a function; got 3", model.generate, PAGE, QUESTION, on_fetch=3)


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
        pairs = [[*each] for each in zip(*PAIRS, strict=True)]
        assert model.generate(*pairs, **decoding) == model.generate(*pairs)
    else:
        inputs = prompt(model, *PAIRS)
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
