"""transformers' ways to decode, with images: the same answers as plain greedy decoding, or a refusal by name."""

from typing import Any

import pytest
import torch
from helpers import tiny_model
from test_invariants import Calls
from test_modeling import CARD, PAGE, QUESTION, loud_model, noise, prompt
from transformers import GenerationConfig
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.utils import logging

from arr_coc.modeling.pretrained import CACHE

pytestmark = pytest.mark.versions

QUESTIONS = [QUESTION, "Who?", "What is the user? What is the user?", "total total total price"]
PAIRS = [(PAGE, QUESTION), (noise(50, 120, 3), "total price")]


@pytest.fixture(scope="module")
def model() -> Any:
    return loud_model()


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
    with pytest.raises(ValueError, match=r"cache: expected an empty cache beside images .*; got one of \d+"):
        model.generate(**asked, cache=cache)


def test_embeddings_beside_images_are_refused(model: Any) -> None:
    inputs = dict(prompt(model, (PAGE, QUESTION)))
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    expected = "input_ids: expected the prompt's, and no inputs_embeds, beside images; got inputs_embeds"
    with pytest.raises(ValueError, match=expected):
        model.generate(inputs_embeds=embeds, **inputs)


def test_a_budget_beside_inputs_names_the_form_that_works(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION))
    with pytest.raises(ValueError, match=r"budget: expected it in the call of the processor, processor\(..., budget="):
        model.generate(**inputs, budget="fast")
    fewer = prompt(model, (PAGE, QUESTION), budget="fast")
    assert fewer["input_ids"].shape[1] < inputs["input_ids"].shape[1]
    assert model.generate(**fewer).shape[1] > fewer["input_ids"].shape[1]


def test_strategy_none_beside_inputs_names_the_form_that_works(model: Any) -> None:
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


# ---- what comes back


@pytest.mark.parametrize("count", [1, 2])
def test_transformers_output_is_beside_the_text(model: Any, count: int) -> None:
    pairs = [PAIRS[0][0], PAIRS[1][0]][:count], [PAIRS[0][1], PAIRS[1][1]][:count]
    texts = model.generate(*pairs)
    answers = model.generate(*pairs, return_dict_in_generate=True, output_scores=True)
    assert [answer.text for answer in answers] == texts
    output = answers[0].output
    assert isinstance(output, GenerateDecoderOnlyOutput) and all(answer.output is output for answer in answers)
    assert len(output.sequences) == count and len(output.scores) <= model.generation_config.max_new_tokens
    ends = model.processor.tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    assert all(end.endswith(text) for end, text in zip(ends, texts, strict=True))
    assert all(0 < answer.probability <= 1 and len(answer.fetch.indices) == 1 for answer in answers)


def test_without_the_wish_there_is_no_output(model: Any) -> None:
    assert model.generate(PAGE, QUESTION, return_fetch=True).output is None
    assert isinstance(model.generate(PAGE, QUESTION), str)


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


def test_stop_strings_need_no_tokenizer(model: Any) -> None:
    whole = model.generate(PAGE, QUESTION, max_new_tokens=8)
    stopped = model.generate(PAGE, QUESTION, max_new_tokens=8, stop_strings=[whole[2]], return_fetch=True)
    assert whole.startswith(stopped.text) and len(stopped.text) < len(whole) and "cut after" not in stopped.warning
    long = model.generate(PAGE, ["total", QUESTION], max_new_tokens=3, stop_strings=[whole[2]], return_fetch=True)
    assert [whole[2] in answer.text for answer in long] == ["cut after" not in answer.warning for answer in long]
    assert whole[2] in long[1].text


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
    with pytest.raises(ValueError, match=f"at most {largest} patches"):
        model.generate(PAGE, QUESTION, budget=largest + 1, max_new_tokens=1)


def test_a_question_too_long_for_any_budget_is_to_blame_itself() -> None:
    with pytest.raises(ValueError, match="question: expected a prompt of fewer than 60 tokens, images included; got"):
        short_model(60).generate(PAGE, QUESTION * 20, budget="all")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"budget": 257}, "budget: expected 0 to 256 .* got 257"),
        ({"question": "w " * 800}, "question: expected at most 512 tokens; got"),
    ],
)
def test_what_no_image_can_answer_is_refused_before_the_image_is_read(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_model().generate("missing.png", **{"question": QUESTION, **asked})
