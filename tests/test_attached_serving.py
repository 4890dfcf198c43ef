"""The server with a published model: answers are those of `AttachedReader.generate`, whoever else asks."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import exp, prod
from pathlib import Path
from typing import Any

import openai
import pytest
from attached_models import picture, published
from helpers import Cli, png
from serving_client import ask, chat, data_url, serving, text_of, until

import arr_coc
from arr_coc.attached import AttachedReader
from arr_coc.serving.app import Server
from arr_coc.serving.settings import ServerSettings, UseSettings

SIZES = [(150, 220), (200, 120), (150, 220)]
PAGES = [picture(*size, seed=seed) for seed, size in enumerate(SIZES)]
URLS = [data_url(png(page)) for page in PAGES]
INVOICES = Path(__file__).parents[1] / "examples/images/invoices.pdf"
SETTINGS = ServerSettings(cache_tokens=2500, max_waiting=64, max_running=6, max_pixels=5_000_000)


@pytest.fixture(scope="module", params=["qwen3_vl", "gemma3"])
def reader(request: pytest.FixtureRequest) -> AttachedReader:
    return arr_coc.attach(*published(request.param))


@pytest.fixture(scope="module")
def served(reader: AttachedReader, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, Any]]:
    with serving(reader, SETTINGS, UseSettings(feedback=tmp_path_factory.mktemp("said"))) as running:
        yield running


@pytest.fixture(scope="module")
def client(served: tuple[Server, str, Any]) -> Any:
    return served[2]


def test_clients_get_what_reader_says(served: tuple[Server, str, Any], reader: AttachedReader, client: Any) -> None:
    """Images, strategies, budgets and lengths mixed in one batch."""
    cases = [
        (number % 3, f"What is {number}?", ("attention", "saliency", "similarity")[number % 3], budget, 3 + number % 5)
        for number, budget in enumerate([0.5, 8, 1.0, "fast", 0.3, 2] * 2)
    ]

    def answer(case: tuple[int, str, str, Any, int]) -> str:
        page, question, strategy, budget, length = case
        choices = {"strategy": strategy, "budget": budget}
        return text_of(ask(client, question, URLS[page], max_tokens=length, extra_body=choices))

    sizes, generate = list[int](), reader.runner.answers

    def watched(asked: Any, *args: Any) -> Any:
        sizes.append(len(asked))
        return generate(asked, *args)

    reader.runner.answers = watched  # type: ignore[method-assign]
    try:
        with ThreadPoolExecutor(12) as threads:
            answers = list(threads.map(answer, cases))
    finally:
        reader.runner.answers = generate  # type: ignore[method-assign]
    expected = [
        reader.generate(PAGES[page], question, strategy=strategy, budget=budget, max_new_tokens=length)
        for page, question, strategy, budget, length in cases
    ]
    assert answers == expected and len(set(answers)) > 6
    assert sum(sizes) == len(cases) and 1 < max(sizes) <= 6
    assert until(lambda: not served[0].engine.running)


def test_a_streamed_answer_comes_in_pieces(reader: AttachedReader, client: Any) -> None:
    """Most tokens of a model without training are special ones or parts of characters: one of eight answers has two."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    most = 0
    for question in ("Who?", "Why?", "Where?", "When?", "How?", "Which?", "Whose?", "What?"):
        *pieces, end, usage = ask(client, question, URLS[0], max_tokens=12, **options)
        expected = reader.generate(PAGES[0], question, max_new_tokens=12, return_fetch=True)
        parts = [content for piece in pieces if (content := piece.choices[0].delta.content)]
        assert "".join(parts) == expected.text
        most = max(most, len(parts))
    assert most > 1
    whole = ask(client, "What?", URLS[0], max_tokens=12, logprobs=True)
    told = [token.logprob for token in whole.choices[0].logprobs.content]
    assert text_of(whole) == expected.text and prod(map(exp, told)) == pytest.approx(expected.probability, rel=1e-2)
    assert end.choices[0].finish_reason == "length" and usage.usage.completion_tokens == 12
    seen = end.arr_coc["images"]
    assert [(page["height"], page["width"], page["warnings"]) for page in seen] == [(*SIZES[0], [])]
    assert (end.arr_coc["strategy"], end.arr_coc["patches"]) == ("attention", [len(expected.sources)])


def test_several_images_documents_and_earlier_turns(reader: AttachedReader, client: Any) -> None:
    both = ask(client, "What?", *URLS[:2], extra_body={"budget": 0.5})
    expected = reader.generate([PAGES[:2]], "What?", budget=0.5, return_fetch=True)[0]
    assert text_of(both) == expected.text and len(both.arr_coc["images"]) == 2
    assert both.arr_coc["patches"] == [sum(origin.source == page for origin in expected.sources) for page in (0, 1)]
    document = ask(client, "What?", data_url(INVOICES.read_bytes()), extra_body={"strategy": "saliency"})
    assert text_of(document) == reader.generate(INVOICES, "What?", strategy="saliency")
    turns = [*chat("Who?", URLS[0]), {"role": "assistant", "content": "Me."}, {"role": "user", "content": "What?"}]
    answer = client.chat.completions.create(model="tiny", messages=turns)
    assert text_of(answer) == reader.generate(PAGES[0], "What?", history=[("Who?", "Me.")])
    said = {"strategy": "words", "words": [["Total", [0, 0, 40, 20]]], "budget": 4}
    assert ask(client, "What is the total?", URLS[0], extra_body=said).arr_coc["strategy"] == "words"


def test_a_client_that_goes_takes_its_question_along(served: tuple[Server, str, Any], client: Any) -> None:
    stream = ask(client, "What?", URLS[0], stream=True, max_tokens=1000)
    next(iter(stream))
    assert served[0].engine.running == 1
    stream.close()
    assert until(lambda: not served[0].engine.running, 5)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an allocator": ({"extra_body": {"allocator": "window"}}, "allocator: expected none with a "),
    "passes": ({"extra_body": {"num_passes": 2}}, "num_passes: expected none with a "),
    "a share": ({"extra_body": {"budget": 1.5}}, "budget: expected a share in 0..1; got 1.5"),
    "a share below the base": ({"extra_body": {"budget": 0.001}}, "what the base takes; got 0.001"),
    "a budget": ({"extra_body": {"budget": "auto"}}, "budget: expected a share, a number of tokens or one of"),
    "a strategy": ({"extra_body": {"strategy": "clip_query"}}, "strategy: expected one of attention"),
    "no boxes": ({"extra_body": {"strategy": "oracle"}}, "boxes: expected boxes with strategy oracle"),
    "no words": ({"extra_body": {"strategy": "words"}}, "expected a PDF with a text layer, or words="),
    "no scorer": ({"extra_body": {"strategy": "realizer"}}, "expected a trained scorer"),
    "too many tokens": ({"max_tokens": 1024, "messages": chat("x" * 2000, URLS[0])}, "the context of 2500 holds no"),
    "a long question": ({"messages": chat("x" * 3000, URLS[0])}, "expected a prompt of fewer than 2500 tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_why(case: str, client: Any) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": chat("What?", URLS[0]), **changes})
    assert message in str(caught.value.body)


def test_a_generation_that_fails_is_tried_again_question_by_question(
    served: tuple[Server, str, Any], reader: AttachedReader, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, began = reader.runner.answers, list[int]()

    def failing(asked: Any, *args: Any) -> Any:
        began.append(len(asked))
        until(lambda: served[0].engine.waiting > 1 or len(began) > 1, 5)
        if len(asked) > 1:
            raise RuntimeError("out of memory")
        return generate(asked, *args)

    monkeypatch.setattr(reader.runner, "answers", failing)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: text_of(ask(client, "What?", URLS[0])), range(4)))
    assert len(set(answers)) == 1 and began.count(1) == 4 and len(began) > 4


def test_a_stop_in_the_middle_of_an_answer_is_told(reader: AttachedReader) -> None:
    with serving(reader, SETTINGS) as (server, _, own):
        stream = ask(own, "What?", URLS[0], stream=True, max_tokens=1000)
        next(iter(stream))
        server.engine.stop()
        with pytest.raises(openai.APIError, match="the server ended before the answer did"):
            list(stream)


def test_tokens_are_drawn_as_the_model_says_where_nobody_says_otherwise(
    served: tuple[Server, str, Any], reader: AttachedReader, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As published generation configs do: a narrow top_k leaves the likeliest token alone."""
    config, generate, given = reader.model.generation_config, reader.model.generate, list[dict[str, Any]]()

    def watched(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs)
        return generate(*args, **kwargs)

    monkeypatch.setattr(reader.model, "generate", watched)
    monkeypatch.setattr(config, "top_k", 1)
    cold, warm = (text_of(ask(client, "What?", URLS[0], temperature=value)) for value in (0.0, 2.0))
    assert cold == warm and [own["do_sample"] for own in given] == [False, True]
    assert (given[1]["temperature"], given[1]["top_p"], given[1]["top_k"]) == (2.0, 1.0, 1)


def test_what_only_our_own_models_have_is_refused(cli: Cli, attached_folder: Path, tmp_path: Path) -> None:
    for option in ("--examples", "--versions"):
        code, out, err = cli("serve", attached_folder, option, tmp_path / "kept")
        expected = f"{option.removeprefix('--')}: expected none with a idefics3 model; got a folder"
        assert (code, out) == (2, "") and err.endswith(f" ...\narr-coc: error: {expected}\n")  # behind "Loading"
