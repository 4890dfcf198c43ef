"""A question about several pages: the most relevant page that has an answer is asked alone, wherever it stands."""

import itertools
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from helpers import LARGE_TEXT, READS_WORDS, SCORES_WORDS, png, refuses, tiny_model
from PIL import Image
from serving_client import SETTINGS, ask, data_url, serving, text_of
from torch import Tensor

from arr_coc.modeling.generation import AnswerGenerator
from arr_coc.modeling.prompt_format import NOT_ON_THE_PAGE
from arr_coc.modeling.scorers import FetchContext
from arr_coc.pages.generator import draw_page
from arr_coc.viewing import describe, draw_sheet
from benchmarks.several_pages import told_apart

QUESTION = "What is it?"
SIZES = ((90, 120), (200, 150), (640, 400))
WORDS = [[(f"w{at}", (5, 12 * at, 60, 12 * at + 10)) for at in range(count)] for count in (3, 6, 9)]
"""The more words a page has, the more relevant is each."""
ORDERS = [*permutations(range(3))]


def paper(number: int) -> Image.Image:
    grey = np.full((SIZES[number][1], SIZES[number][0], 3), 200, np.uint8)
    grey[:, ::7] = 40 * number
    return Image.fromarray(grey)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch.manual_seed(0)
    model = tiny_model(text=LARGE_TEXT, **READS_WORDS, fetcher=SCORES_WORDS)
    scorer = model.model.fetcher.scorer(model.config.fetcher_config.strategy)

    def forward(context: FetchContext) -> Tensor:
        filled = (context.pieces >= 0).flatten(2).sum(2)
        return (filled * filled.sum(1, keepdim=True) / 10 - 2).float()

    monkeypatch.setattr(scorer, "forward", forward)
    return model


def says(monkeypatch: pytest.MonkeyPatch, absent: list[int]) -> list[list[list[int]]]:
    """Questions about these pages alone are answered "not on the page"; returns the images of all that is asked."""
    asked: list[list[list[int]]] = []
    answers = AnswerGenerator.answers

    def replaced(self: Any, batch: Any, prompt: Any, *rest: Any) -> Any:
        asked.append(batch.images)
        given = answers(self, batch, prompt, *rest)
        for answer, images in zip(given, batch.images, strict=True):
            if len(images) == 1 and len(batch.encoding) > 1 and images[0] in absent:
                object.__setattr__(answer, "text", NOT_ON_THE_PAGE)
        return given

    monkeypatch.setattr(AnswerGenerator, "answers", replaced)
    return asked


@pytest.mark.parametrize("tiles", ["never", "all"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_answer_is_that_of_its_page_alone_in_any_order(model: Any, order: tuple[int, ...], tiles: str) -> None:
    options: dict[str, Any] = {"tiles": tiles, "max_base_tokens": 4096}
    pages, words = [paper(number) for number in order], [WORDS[number] for number in order]
    alone = model.generate([[paper(2)]], [QUESTION], words=[WORDS[2]], return_fetch=True, **options)[0]
    answer = model.generate([pages], [QUESTION], words=words, return_fetch=True, **options)[0]
    slot = order.index(2)
    assert (answer.text, answer.probability) == (alone.text, pytest.approx(alone.probability))
    assert [origin.box for origin in answer.sources] == [origin.box for origin in alone.sources]
    assert {origin.source for origin in answer.sources} == {slot} and len(answer.turned) == len(answer.words) == 3
    counts = answer.fetch.counts.tolist()
    assert counts[slot] == int(alone.fetch.counts.sum()) and sum(counts) == counts[slot]
    assert torch.equal(answer.fetch.boxes()[slot], alone.fetch.boxes()[0])
    assert torch.equal(answer.fetch.own_relevance()[slot], alone.fetch.own_relevance()[0])
    assert f" fetched (outlined) from source {slot + 1} of 3, of " in describe(answer.fetch)
    document = model.encode_image([pages], words=words, **options)
    assert model.generate(document, QUESTION, return_fetch=True).sources == answer.sources
    assert draw_sheet(document.sources, answer, question=QUESTION).width > 300


def test_pages_without_it_are_passed_over_or_read_as_one(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [paper(0), paper(2)], [WORDS[0], WORDS[2]]
    second = [paper(1)], [WORDS[1]]
    alone = [model.generate([pages], [QUESTION], words=words)[0] for pages, words in (first, second)]
    both = model.generate([first[0], second[0]], [QUESTION] * 2, words=first[1] + second[1])
    assert both == alone
    document = model.encode_image([[paper(number) for number in (1, 0, 2)]], words=[WORDS[n] for n in (1, 0, 2)])
    for absent, wanted in (([], [2]), ([2], [2, 0]), ([2, 0], [2, 0, 1])):
        with monkeypatch.context() as patch:
            asked = says(patch, absent)
            answer = model.generate(document, QUESTION, return_fetch=True)
        assert asked == [[[page]] for page in wanted]
        assert answer.text != NOT_ON_THE_PAGE and answer.fetch.counts.nonzero().tolist() == [[wanted[-1]]]
    document = model.encode_image([[paper(number) for number in range(3)]], words=WORDS)
    together = model.generate(document, QUESTION, spread="joint", return_fetch=True)
    asked = says(monkeypatch, [0, 1, 2])
    assert model.generate(document, QUESTION, return_fetch=True) == together
    assert asked == [[[2]], [[1]], [[0]], [[0, 1, 2]]]


def test_only_the_last_answer_is_streamed_or_one_of_several(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    document = model.encode_image([[paper(0), paper(2)]], words=[WORDS[0], WORDS[2]])
    streamed: list[Tensor] = []

    class Streamer:
        def put(self, value: Tensor) -> None:
            streamed.append(value)

        def end(self) -> None:
            streamed.append(torch.empty(0))

    text = model.generate(document, QUESTION, streamer=Streamer(), max_new_tokens=4)
    assert text == model.generate(document, QUESTION, max_new_tokens=4)
    assert sum(not len(value) for value in streamed) == 1
    with monkeypatch.context() as patch:
        patch.setattr(model.generation_config, "do_sample", True)
        asked = says(patch, [])
        model.generate(document, QUESTION, max_new_tokens=4)
    assert asked == [[[1]], [[1]]]  # greedily, then sampled
    several = model.generate(document, QUESTION, num_beams=2, num_return_sequences=2, return_dict_in_generate=True)
    assert [answer.fetch.counts.nonzero().tolist() for answer in several] == [[[1]]] * 2
    assert several[0].output is not None


def test_the_server_asks_as_generate_does(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answered from all images together, in one prompt."""
    pages = [paper(0), paper(2), paper(1)]
    expected = model.generate([pages], [QUESTION], max_new_tokens=4)[0]
    asked = says(monkeypatch, [])
    with serving(model, replace(SETTINGS, max_pixels=10**6)) as (_, _, client):
        told = ask(client, QUESTION, *(data_url(png(page)) for page in pages), max_tokens=4)
    assert text_of(told) == expected and len(asked) == 1 and len(asked[0][0]) == 1


@pytest.mark.parametrize("given", ["relevance", "boxes", "patches"])
def test_what_is_chosen_for_all_pages_is_refused_beside_ranked_ones(model: Any, given: str) -> None:
    document = model.encode_image([[paper(0), paper(1)]], words=WORDS[:2])
    options: dict[str, Any] = {
        "relevance": {"relevance": torch.rand(2, document.side**2)},
        "boxes": {"boxes": [[(0, 0, 9, 9)], [(0, 0, 9, 9)]], "strategy": "oracle"},
        "patches": {"patches": torch.tensor([[0], [1]])},
    }[given]
    refuses('spread: expected another than "ranked"', model.generate, document, QUESTION, spread="ranked", **options)


@pytest.mark.slow
def test_the_shipped_model_answers_about_two_pages_as_about_each(shipped: Any) -> None:
    """It answered 8 of 13 such questions about invoices from single pages, and 5 from two pages."""
    wrong_page = 0
    for kind, seed in itertools.product(["form", "invoice"], range(5)):
        rng = np.random.default_rng((seed, 7))
        pages = [draw_page(rng, "validation", kind) for _ in range(2)]
        number, question = next(told_apart(pages))
        images = [page.image for page in pages]
        alone = shipped.generate(shipped.encode_image(images[number], prefix=False), question.text)  # rounds alike
        told = [shipped.generate([order], [question.text], return_fetch=True)[0] for order in (images, images[::-1])]
        chosen = [answer.fetch.counts.argmax().item() for answer in told]
        assert chosen in ([number, 1 - number], [1 - number, number])  # the same page in either order
        wrong_page += chosen[0] != number
        assert chosen[0] != number or told[0].text == told[1].text == alone, (kind, seed)
    assert wrong_page <= 1
