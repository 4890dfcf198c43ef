"""The server, asked by the official client: answers are those of `generate`, whoever else asks."""

import base64
import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import exp, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai
import pytest
from helpers import loud_model, png
from pydantic import BaseModel, create_model
from serving_client import IMAGES, QUESTION, SETTINGS, URLS, ask, chat, data_url, noise, serving, text_of, until
from tiny_pdf import text_at, write_pdf

from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.serving import image_workers
from arr_coc.serving.app import Server
from arr_coc.serving.question_queue import Ticket


@pytest.fixture(scope="module")
def served(model: ArrCocForConditionalGeneration) -> Iterator[tuple[Server, str, Any]]:
    with serving(model, SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def server(served: tuple[Server, str, Any]) -> Server:
    return served[0]


@pytest.fixture(scope="module")
def client(served: tuple[Server, str, Any]) -> Any:
    return served[2]


# ---- answers
@pytest.mark.versions
def test_answers_of_many_clients_are_those_of_generate(model: Any, client: Any) -> None:
    """Images, strategies and budgets mixed in one batch."""
    cases = [
        (number % 4, f"What is {number}?", ("realizer", "saliency", "none")[number % 3], 3 + number % 5)
        for number in range(24)
    ]

    def answer(case: tuple[int, str, str, int]) -> str:
        image, question, strategy, budget = case
        return text_of(ask(client, question, URLS[image], extra_body={"strategy": strategy, "budget": budget}))

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(answer, cases))
    expected = [model.generate(IMAGES[i], q, strategy=strategy, budget=k) for i, q, strategy, k in cases]
    assert answers == expected and len(set(answers)) > 12


@pytest.mark.versions
def test_a_streamed_answer_comes_in_pieces_and_is_the_same(model: Any, client: Any) -> None:
    events = list(ask(client, stream=True, max_tokens=12, logprobs=True, stream_options={"include_usage": True}))
    *pieces, end, usage = events
    expected = model.generate(IMAGES[0], QUESTION, max_new_tokens=12)
    assert "".join(piece.choices[0].delta.content for piece in pieces) == expected
    assert len(pieces) > 1 and end.choices[0].finish_reason == "length" and end.arr_coc["patches"]
    assert usage.usage.completion_tokens == 12 and usage.choices == []
    assert sum(len(piece.choices[0].logprobs.content) for piece in pieces if piece.choices[0].logprobs) <= 12


def test_stop_strings_and_lengths(model: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.generate(IMAGES[0], QUESTION, max_new_tokens=12)
    stop = whole[4:6]
    before = whole[: whole.index(stop)].strip()
    for stream in (False, True):
        answer = ask(client, max_tokens=12, stop=[stop, "never"], stream=stream)
        if stream:
            events = list(answer)
            assert "".join(event.choices[0].delta.content or "" for event in events) == before
            assert events[-1].choices[0].finish_reason == "stop"
        else:
            assert (text_of(answer), answer.choices[0].finish_reason) == (before, "stop")
    tokens = [token.token for token in ask(client, max_tokens=12, logprobs=True).choices[0].logprobs.content]
    count = next(count for count in range(len(tokens)) if stop in "".join(tokens[:count]))
    progress = Ticket.progress

    async def at_once(ticket: Ticket) -> Any:
        async for news in progress(ticket):
            if news.finished:
                yield news

    monkeypatch.setattr(Ticket, "progress", at_once)
    answer = ask(client, max_tokens=12, stop=stop, logprobs=True)  # tokens behind the stop string were counted
    assert (answer.usage.completion_tokens, len(answer.choices[0].logprobs.content)) == (count, count)
    monkeypatch.undo()
    short = ask(client, max_completion_tokens=2)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 2)


@pytest.mark.versions
def test_probabilities_are_the_models_own_whatever_is_drawn(model: Any, client: Any) -> None:
    def answer(case: tuple[int, dict[str, float]]) -> Any:
        image, drawn = case
        return ask(client, QUESTION, URLS[image], logprobs=True, max_tokens=5, **drawn)

    # Settings under which the likeliest tokens are drawn, in one batch.
    cold = ({"temperature": 0.001}, {"temperature": 2.0, "top_p": 1e-6}, {"temperature": 0.0})
    cases = [(image, drawn) for image in range(3) for drawn in cold]
    with ThreadPoolExecutor(len(cases)) as threads:
        answers = list(threads.map(answer, cases))
    expected = [model.generate(IMAGES[image], QUESTION, return_fetch=True, max_new_tokens=5) for image in range(3)]
    assert len({own.probability for own in expected}) == 3
    for (image, _), said in zip(cases, answers, strict=True):
        assert text_of(said) == expected[image].text
        assert said.arr_coc["probability"] == pytest.approx(expected[image].probability, rel=1e-2)
        logprobs = [token.logprob for token in said.choices[0].logprobs.content]
        assert prod(map(exp, logprobs)) == pytest.approx(expected[image].probability, rel=1e-2)
    seen = {"height": 60, "width": 90, "views": 1, "scale": 1.422, "warnings": []}
    fetched = {"strategy": "realizer", "allocator": "topk", "patches": [expected[0].fetch.budget], "images": [seen]}
    assert answers[0].arr_coc == {**fetched, "probability": answers[0].arr_coc["probability"]}
    assert ask(client, extra_body={"budget": 0}).arr_coc["warning"].startswith("few patches were fetched (0)")


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.versions
def test_several_passes_are_those_of_generate(temperature: float, model: Any, client: Any) -> None:
    choices = {"num_passes": 2, "budget": 4}
    answer = ask(client, max_tokens=6, logprobs=True, temperature=temperature, extra_body=choices)
    passes = answer.arr_coc["passes"]
    assert [own["patches"] for own in passes] == [4, 4] and answer.arr_coc["patches"] == [8]
    if not temperature:  # else tokens are drawn
        expected = model.generate(IMAGES[0], QUESTION, **choices, return_fetch=True, max_new_tokens=6)
        assert [own["text"] for own in passes] == [own.text for own in expected.passes]
        assert text_of(answer) == expected.text
        logprobs = [token.logprob for token in answer.choices[0].logprobs.content]
        assert prod(map(exp, logprobs)) == pytest.approx(expected.probability, rel=1e-2)


@pytest.mark.versions
def test_several_images_and_earlier_turns(model: Any, client: Any) -> None:
    assert text_of(ask(client, QUESTION, *URLS[:2])) == model.generate([IMAGES[:2]], [QUESTION])[0]
    first = chat("Who?", URLS[0])
    turns = [*first, {"role": "assistant", "content": "Me."}, {"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(model="tiny", messages=turns)
    assert text_of(answer) == model.generate(IMAGES[0], QUESTION, history=[("Who?", "Me.")])
    (turn,) = chat(QUESTION, URLS[0])
    turns = [{**turn, "content": turn["content"][::-1]}]  # the question first
    assert text_of(client.chat.completions.create(model="tiny", messages=turns)) == model.generate(IMAGES[0], QUESTION)
    own = ask(client, "Who?").choices[0].message  # as clients send it back, with null fields
    turns = [*first, own, {"role": "user", "content": QUESTION, "name": "me"}]
    again = client.chat.completions.create(model="tiny", messages=turns, extra_body={"logit_bias": None})
    assert text_of(again) == model.generate(IMAGES[0], QUESTION, history=[("Who?", own.content)])
    nothing: dict[str, Any] = {"response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "user": "u"} | {
        "metadata": {"a": "b"},
        "store": False,
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "seed": 7,
    }
    assert text_of(ask(client, **nothing)) == model.generate(IMAGES[0], QUESTION)


def pdf(*texts: str) -> bytes:
    """A PDF of pages of 125 x 150 px at 150 dpi."""
    with TemporaryDirectory() as folder:
        pages = [text_at(5, 30, text, size=12) for text in texts]
        return write_pdf(Path(folder, "pages.pdf"), *pages, size=(60, 72)).read_bytes()


@pytest.mark.parametrize("pages", [1, 2, 5])
def test_pdfs_are_answered_as_generate_answers_them(pages: int, model: Any, client: Any) -> None:
    content = pdf(*(f"Tax {number}" for number in range(pages)))
    url = "data:application/pdf;base64," + base64.b64encode(content).decode()
    file = {"type": "file", "file": {"file_data": url, "filename": "pages.pdf"}}
    expected = model.generate(content, QUESTION)
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": QUESTION}, file]}]
    for chats in (messages, chat(QUESTION, url)):
        answer = client.chat.completions.create(model="tiny", messages=chats)
        assert text_of(answer) == expected
        seen = answer.arr_coc["images"]
        assert [(page["height"], page["width"], page["views"]) for page in seen] == [(150, 125, 1)] * pages


@pytest.mark.parametrize(
    "shown", [[0, 1, 2, 3, 0], [0, 1, 2, 3, 0, 1, 2, 3], ["pdf", 0, 1], ["pdf", "pdf"], ["pdf", 0]]
)
def test_base_tokens_of_a_request_are_as_of_generate(shown: list[Any], server: Server, model: Any, client: Any) -> None:
    """Five images kept all their base tokens, and a PDF beside an image was refused."""
    content = [pdf("Tax 1", "Tax 2", "Tax 3") if each == "pdf" else IMAGES[each] for each in shown]
    urls = [data_url(each) for each in content]
    expected = model.generate([content], [QUESTION], return_fetch=True)[0]
    answer = ask(client, QUESTION, *urls, max_tokens=8, logprobs=True)
    assert text_of(answer) == model.generate([content], [QUESTION], max_new_tokens=8)[0]
    assert text_of(ask(client, QUESTION, *urls)) == expected.text
    assert len(answer.arr_coc["images"]) == len(expected.fetch.seen.views.slots)
    held = client.post("/encodings", cast_to=object, body={"image": URLS[0]})["id"]
    if len(shown) > 4:
        with pytest.raises(openai.BadRequestError, match="whole images where a request has . pages"):
            ask(client, QUESTION, held, *urls[1:])


def test_large_images_are_answered_in_tiles(model: Any, client: Any) -> None:
    """Each was looked at as one square, and the client was not told."""
    large, small = png(noise(5, (300, 300))), png(noise(6))
    questions = [(large, "Who?"), (small, "Who?"), (large, "What?"), (small, "What?")] * 3
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda case: ask(client, case[1], data_url(case[0])), questions))
    assert [text_of(answer) for answer in answers] == [model.generate(*case) for case in questions]
    tiles = model.encode_image(large).tiles
    assert answers[0].arr_coc["images"] == [
        {"height": 300, "width": 300, "views": 1 + len(tiles), "scale": 0.5, "warnings": []}
    ]
    both = ask(client, QUESTION, data_url(large), data_url(small))
    assert text_of(both) == model.generate([[large, small]], [QUESTION])[0] and len(both.arr_coc["images"]) == 2


def schema_of(**properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "receipt", "strict": True, "schema": schema}}


ENDED = {"max_tokens": 40, "stop": "J"}
"""Options with which this model's answers end before their tokens run out."""


def ended(model: Any, question: str) -> str:
    whole: str = model.generate(IMAGES[0], question, max_new_tokens=ENDED["max_tokens"])
    return whole.split("J")[0].strip()


def ask_for(client: Any, form: dict[str, Any], stream: bool, **options: Any) -> tuple[Any, str, dict[str, Any]]:
    """The message, the finish reason and `arr_coc` of an answer by a schema."""
    answer = ask(client, response_format=form, stream=stream, **options)
    if not stream:
        return answer.choices[0].message, answer.choices[0].finish_reason, answer.arr_coc
    said, end = list(answer)
    return said.choices[0].delta, end.choices[0].finish_reason, end.arr_coc


@pytest.mark.parametrize("stream", [False, True])
def test_json_by_a_schema_asks_each_field(stream: bool, server: Server, model: Any, client: Any) -> None:
    form = schema_of(total={"type": "string"}, seller={"type": "string", "description": "Who sells?"})
    message, finish, told = ask_for(client, form, stream, **ENDED)
    assert json.loads(message.content) == {"total": ended(model, QUESTION), "seller": ended(model, "Who sells?")}
    assert (finish, message.refusal) == ("stop", None)
    assert "probability" not in told
    assert told["fields"]["seller"]["question"] == "Who sells?" and 0 < told["fields"]["total"]["probability"] < 1
    assert until(lambda: not server.engine.running)
    form = schema_of(total={"type": "string"}, tax={"type": "integer"})
    message, finish, told = ask_for(client, form, stream, **ENDED)
    total, tax = ended(model, QUESTION), ended(model, "What is the tax?")
    assert message.refusal == f"tax: expected an answer that is integer; got {tax!r}"
    assert (finish, message.content) == ("stop", None)
    answers = {name: (own["text"], own["value"], own["error"]) for name, own in told["fields"].items()}
    assert answers == {"total": (total, total, None), "tax": (tax, None, message.refusal)}
    form = schema_of(total={"type": "string"}, tax={"type": ["integer", "null"]}, tip={"type": "integer"})
    form["json_schema"]["schema"]["required"].remove("tip")
    message, finish, told = ask_for(client, form, stream, **ENDED)
    assert json.loads(message.content) == {"total": ended(model, QUESTION), "tax": None}
    assert (finish, message.refusal) == ("stop", None)
    assert told["fields"]["tax"]["error"] and told["fields"]["tip"]["error"]


def of_text(*names: str) -> type[BaseModel]:
    """What is asked for as JSON: fields of text."""
    fields: dict[str, Any] = {name: (str, ...) for name in names}
    return create_model("Receipt", **fields)


def test_the_clients_own_forms_are_filled_or_refused_or_cut(model: Any, client: Any) -> None:
    parse, asked = client.chat.completions.parse, {"model": "tiny", "messages": chat(QUESTION, URLS[0])}
    parsed = parse(**asked, **ENDED, response_format=of_text("total", "date")).choices[0].message.parsed
    answers = {"total": ended(model, QUESTION), "date": ended(model, "What is the date?")}
    assert parsed.model_dump() == answers
    answer = parse(**asked, **ENDED, response_format=create_model("Sums", total=(int, ...)))
    message = answer.choices[0].message
    assert message.parsed is None and "total: expected an answer that is integer" in message.refusal
    assert answer.arr_coc["fields"]["total"]["text"] == answers["total"]
    with pytest.raises(openai.LengthFinishReasonError) as cut:
        parse(**asked, response_format=of_text("total"), max_tokens=2)
    assert answers["total"].startswith(cut.value.completion.arr_coc["fields"]["total"]["text"])


def test_an_image_is_encoded_once(server: Server, model: Any, client: Any) -> None:
    content = png(noise(77))
    held = client.post("/encodings", cast_to=object, body={"image": data_url(content)})
    assert held["size"] == {"height": 60, "width": 90} and held["id"].startswith("encoding:enc_")
    counter = server.metrics.encodings.labels("miss")
    before = counter._value.get()
    for url in (held["id"], data_url(content)):
        assert text_of(ask(client, QUESTION, url)) == model.generate(content, QUESTION)
    assert counter._value.get() == before
    assert client.post("/encodings", cast_to=object, body={"image": data_url(content)})["id"] == held["id"]


# ---- what is refused
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "gpt"}, "model: expected 'tiny', which is served here"),
    "an unknown part": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}]},
        "messages.0.content.1: expected type 'text', 'image_url', 'file'; got input_audio",
    ),
    "a tool": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools: expected none: this model"),
    "too many tokens": ({"max_tokens": 1020}, "tokens, images included, the context of 1024 holds no more"),
    "more tokens than an answer has": ({"max_tokens": 5000}, "at most 1024 (the server's --max-tokens"),
    "too many pages": ({"messages": chat("a", data_url(pdf(*["Tax 1"] * 9)))}, "got 9 of 168750: send fewer pages"),
    "no image": ({"messages": [{"role": "user", "content": "Hello?"}]}, "expected at least one image; got none"),
    "a system's turn": ({"messages": [{"role": "system", "content": "x"}]}, "put instructions before the question"),
    "an answer last": ({"messages": [*chat("a", URLS[0]), {"role": "assistant", "content": "b"}]}, "in turn"),
    "no question": ({"messages": chat("  ", URLS[0])}, "question: expected a non-empty string"),
    "control tokens": ({"messages": chat("<|im_end|>", URLS[0])}, "expected a non-empty string"),
    "a file": ({"messages": chat("a", "/etc/hostname")}, "image_url or file_data: expected a data: or http"),
    "a file's URL": ({"messages": chat("a", "file:///etc/hostname")}, "image_url or file_data: expected"),
    "a host": ({"messages": chat("a", "http://localhost/x.png")}, "no host is allowed here (the server's --image"),
    "no image in it": ({"messages": chat("a", data_url(b"nothing"))}, "got text"),
    "half an image": ({"messages": chat("a", data_url(IMAGES[0][:900]))}, "got a corrupt one"),
    "too many pixels": ({"messages": chat("a", data_url(png(noise(0, (400, 400)))))}, "at most 100000 pixels"),
    "too many images": ({"messages": chat("a", *URLS[:1] * 9)}, "at most 8 images; got 9"),
    "an unknown handle": ({"messages": chat("a", "encoding:enc_0")}, "encode the image again"),
    "a strategy": ({"extra_body": {"strategy": "best"}}, "random, realizer, saliency, variance (held"),
    "a budget": ({"extra_body": {"budget": 10_000}}, "budget: expected 0 to 256 patches (all that can be fetched)"),
    "a few pixels": ({"messages": chat("a", data_url(png(noise(0, (1, 1)))))}, "sides of at least 8 px"),
    "a budget that is no number": ({"extra_body": {"budget": True}}, "budget"),
    "tokens that are no number": ({"extra_body": {"max_tokens": True}}, "max_tokens"),
    "two limits": ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens: expected it alone, or max_compl"),
    "no passes": ({"extra_body": {"num_passes": 0}}, "num_passes: expected"),
    "passes over two images": ({"messages": chat("a", *URLS[:2]), "extra_body": {"num_passes": 2}}, "of one image "),
    "a field": ({"extra_body": {"stratgy": "none"}}, "stratgy"),
    "rows of a table": ({"response_format": schema_of(rows={"type": "array"})}, "rows: expected type string, num"),
    "any JSON": ({"response_format": {"type": "json_object"}}, "response_format.type"),
    "a seed of samples": ({"seed": 1, "temperature": 0.5}, "seed: expected temperature 0 with it (sampled"),
    "two answers": ({"n": 2}, "n: expected 1, one answer a request"),
    "other tokens' probabilities": ({"logprobs": True, "top_logprobs": 5}, "top_logprobs: expected 0; got 5"),
    "empty stops": ({"stop": [""]}, "stop: expected"),
    "a long question": ({"messages": chat("long " * 2000, URLS[0])}, "tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_why_and_nothing_of_the_server(case: str, server: Server, client: Any) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": chat(QUESTION, URLS[0]), **changes})
    status = 404 if case in ("another model", "an unknown handle") else 400
    assert caught.value.status_code == status and message in str(caught.value.body)
    body = caught.value.response.text
    assert len(body) < 1000 and not re.search(r"/(tmp|root|home|usr|work)/|Traceback|\.py", body)
    assert until(lambda: not server.engine.running)


ASKED = {"model": "tiny", "messages": chat(QUESTION, URLS[0])}
TEXT = {"type": "text", "text": "a"}
HALF = chat("a\ud83d", URLS[0])
MUCH_DETAIL = {"type": "image_url", "image_url": {"url": URLS[0], "detail": "much"}}
IMAGE = "messages.0.content.0.image_url"
DETAIL = f"{IMAGE}.detail"


def says(content: Any) -> dict[str, Any]:
    return {**ASKED, "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({**ASKED, "messages": HALF}, "question: expected text, which UTF-8 can hold; got 'a\\ud83d' (str)"),
        (b"", "body: expected a JSON object (Content-Type: application/json); got none"),
        (b"{", "body: expected JSON; got other content"),
        ([1], "body: expected a JSON object (Content-Type: application/json); got a list of 1"),
        ({}, "model: expected this field; got none"),
        ({"model": "tiny"}, "messages: expected this field; got none"),
        ({**ASKED, "model": 3}, "model: expected text; got 3"),
        ({**ASKED, "messages": "a"}, 'messages: expected a list; got "a"'),
        ({**ASKED, "messages": []}, "messages: expected a length of at least 1; got a list of 0"),
        ({**ASKED, "messages": [5]}, "messages.0: expected an object; got 5"),
        (says(5), "messages.0.content: expected text or a list; got 5"),
        (says([{"type": "text"}]), "messages.0.content.0.text: expected this field; got none"),
        (says([TEXT, {**TEXT, "x": 1}]), "messages.0.content.1.x: expected no such field; got 1"),
        (says([TEXT, 5]), "messages.0.content.1: expected an object; got 5"),
        (says([{"x": 1}]), "messages.0.content.0: expected an object with a type; got an object"),
        (says([{"type": "image_url", "image_url": "u"}]), f'{IMAGE}: expected an object; got "u"'),
        (says([MUCH_DETAIL]), f"{DETAIL}: expected 'auto', 'low', 'high' or 'original'; got \"much\""),
        ({**ASKED, "max_tokens": 1.5}, "max_tokens: expected an integer; got 1.5"),
        ({**ASKED, "max_tokens": 0}, "max_tokens: expected at least 1; got 0"),
        ({**ASKED, "temperature": "hot"}, 'temperature: expected a number; got "hot"'),
        ({**ASKED, "stop": [5]}, "stop.0: expected text; got 5"),
        ({**ASKED, "stream": "maybe"}, 'stream: expected true or false; got "maybe"'),
        ({**ASKED, "budget": {}}, "budget: expected an integer or a number or text; got an object"),
        ({**ASKED, "num_passes": True}, "num_passes: expected an integer or 'auto'; got true"),
    ],
)
def test_an_invalid_body_is_refused_by_field(served: tuple[Server, str, Any], body: Any, message: str) -> None:
    """The words were pydantic's: "Input should be a valid string", or "Field required", in `messages.0.content.str`."""
    content = body if isinstance(body, bytes) else json.dumps(body)
    with openai.DefaultHttpxClient() as http:
        headers = {"Content-Type": "application/json"}
        answer = http.post(f"{served[1]}/chat/completions", content=content, headers=headers)
    field = message.partition(":")[0]
    error = {"message": message, "type": "invalid_request_error", "code": None}
    error["param"] = None if field in ("body", "question") else field
    assert answer.status_code == 400 and answer.json()["error"] == error


def test_who_is_late_is_told_so(server: Server, client: Any) -> None:
    usual = server.chat.settings
    server.chat.settings = replace(usual, answer_seconds=1e-4)
    try:
        with pytest.raises(openai.APIStatusError) as caught:
            ask(client)
        assert caught.value.status_code == 504
    finally:
        server.chat.settings = usual


def test_a_full_queue_says_when_to_come_back(server: Server, client: Any) -> None:
    usual = server.engine.settings
    server.engine.settings = replace(usual, max_waiting=1)
    try:
        with ThreadPoolExecutor(24) as threads:
            jobs = [threads.submit(ask, client, max_tokens=60) for _ in range(48)]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        assert 0 < len(errors) < 48 and all(isinstance(error, openai.RateLimitError) for error in errors)
        assert all(int(error.response.headers["retry-after"]) >= 1 for error in errors)
    finally:
        server.engine.settings = usual


def test_a_client_that_goes_takes_its_question_along(server: Server, client: Any) -> None:
    """Streaming or not: what it held is given back."""
    assert until(lambda: not server.engine.running)
    free = server.engine.rows.free
    stream = ask(client, stream=True, max_tokens=600)
    next(iter(stream))
    assert server.engine.running == 1
    stream.close()
    assert until(lambda: not server.engine.running, 5) and server.engine.rows.free == free
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.5), max_tokens=700)
    assert until(lambda: not server.engine.running, 5) and server.engine.rows.free == free


@pytest.mark.versions
def test_generate_beside_a_running_batch_answers_as_alone(model: Any, client: Any) -> None:
    """Its first pass looked ahead: the batch wrote `is_causal=False` into the config that both have."""
    alone = model.generate(IMAGES[0], QUESTION, max_new_tokens=8)
    with ThreadPoolExecutor(6) as threads:
        jobs = [threads.submit(ask, client, "Who?", max_tokens=200) for _ in range(6)]
        beside = [model.generate(IMAGES[0], QUESTION, max_new_tokens=8) for _ in range(8)]
        assert not all(job.done() for job in jobs)
    assert beside == [alone] * 8


def test_a_served_model_with_eager_attention_answers_as_alone() -> None:
    """The batch wrote "paged|eager" into its config, with which `generate` and passes looked ahead."""
    model = loud_model()
    model.model.language_model.set_attn_implementation("eager")
    asked = [{"max_new_tokens": 8, **options} for options in ({}, {"num_passes": 2}, {"strategy": "attention"})]
    alone = [model.generate(IMAGES[0], QUESTION, return_fetch=True, **options) for options in asked]
    with serving(model, SETTINGS) as (_, _, own):
        assert text_of(ask(own, max_tokens=8)) == alone[0].text
        beside = [model.generate(IMAGES[0], QUESTION, return_fetch=True, **options) for options in asked]
    assert [answer.text for answer in beside] == [answer.text for answer in alone]
    assert [answer.probability for answer in beside] == pytest.approx([answer.probability for answer in alone])


def test_one_refused_question_of_a_batch_leaves_the_others_alone(server: Server, model: Any, client: Any) -> None:
    """They were embedded and handed on a second time."""
    ask(client, max_tokens=1)  # the image's base tokens stay
    before = server.engine.rows.free
    expected = {question: model.generate(IMAGES[0], question, max_new_tokens=40) for question in (QUESTION, "Who?")}
    questions = [QUESTION, "long " * 510, "Who?"] * 4
    with ThreadPoolExecutor(12) as threads:
        jobs = [threads.submit(ask, client, question, max_tokens=40) for question in questions]
    for question, job in zip(questions, jobs, strict=True):
        if question in expected:
            assert text_of(job.result()) == expected[question]
        else:
            assert isinstance(job.exception(), openai.BadRequestError)
    assert until(lambda: not server.engine.running) and server.engine.rows.free == before


def test_a_question_cancelled_early_never_runs(server: Server, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither waiting nor running, it was passed over, and answered for nobody."""
    embed, cancelled = server.engine.answer_generator.embed, []

    def slowly(asked: Any, *args: Any, **kwargs: Any) -> Any:
        cancelled.append(until(lambda: not server.app.open, 5))
        return embed(asked, *args, **kwargs)

    monkeypatch.setattr(server.engine.answer_generator, "embed", slowly)
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.3), max_tokens=700)
    assert until(lambda: cancelled == [True])
    monkeypatch.undo()
    assert text_of(ask(client, max_tokens=2)) and until(lambda: not server.engine.running, 0.3)


# ---- images
def test_workers_that_are_killed_or_hang_are_replaced(
    server: Server, model: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = server.metrics.worker_restarts._value.get()
    for process in server.workers.processes:
        os.kill(process, signal.SIGKILL)
    content = png(noise(78))
    assert text_of(ask(client, QUESTION, data_url(content))) == model.generate(content, QUESTION)
    assert server.metrics.worker_restarts._value.get() > restarts
    processes = server.workers.processes
    monkeypatch.setattr(image_workers, "SECONDS", 0.5)
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(openai.BadRequestError, match="decodes within 0.5 s; got a slower one"):
            ask(client, QUESTION, data_url(png(noise(79))))
    finally:
        monkeypatch.undo()
        for process in processes:
            if process in server.workers.processes:
                os.kill(process, signal.SIGCONT)
    assert text_of(ask(client, QUESTION, data_url(png(noise(79)))))


# ---- status
@pytest.mark.versions
def test_status_and_metrics(served: tuple[Server, str, Any], client: Any) -> None:
    root = client.with_options(base_url=served[1].removesuffix("/v1"))
    assert [model.id for model in client.models.list()] == ["tiny"]
    for path in ("/healthz", "/readyz"):
        assert root.get(path, cast_to=object) == {"ok": True}
    ask(client)
    lines = root.get("/metrics", cast_to=str)
    for name in ("first_token_seconds_count", "answer_seconds_bucket", "fetched_patches_sum", "encodings_total"):
        assert re.search(rf"^arr_coc_{name}\S* [1-9]", lines, re.M), name
    assert "arr_coc_waiting 0.0" in lines and "arr_coc_encoding_bytes" in lines
    with pytest.raises(openai.NotFoundError):
        root.get("/docs", cast_to=str)
