"""Domains of drawn pages: boxes hold what they say, and splits share nothing. For seeds see test_pages_stay.py."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers import refuses

from arr_coc.cli import main
from arr_coc.data.formats.own import Rendered
from arr_coc.pages.domains import DOMAINS, Page, Variations, browser, document, draw_page, values
from arr_coc.pages.domains.rasterising import CHARSET, MIN_FONT, Box, Ink, TextStyle, text_unit
from arr_coc.pages.domains.values import TEMPLATES, ask
from arr_coc.pages.fonts import family_names
from arr_coc.pages.page import Question
from arr_coc.pages.splits import SPLITS, Split, part, split_of

OURS = ("document", "form")
"""Domains whose letters we draw ourselves; test_browser.py and test_generated_pages.py test others."""

SQUARE = (*OURS, pytest.param("browser", marks=pytest.mark.slow))
"""And the one whose letters a browser draws on square pages, too."""

KIND_PATTERNS: dict[str, str] = {
    "amount": r"\$?\d{1,3}(,\d{3})?\.\d{2}",
    "date": r"\d{2}/\d{2}/\d{2}",
    "time": r"\d{2}:\d{2}",
    "number": r"\d{1,8}",
    "code": r"(?=.{2,6}$)[A-Z0-9]+(-[A-Z0-9]+)?",
    "seat": r"[A-Z]\d{1,2}|\d{1,2}[A-Z]",
    "name": r"[A-Z][a-z]+",
    "city": r"[A-Z][a-z]+( [A-Z][a-z]+)*",
    "company": r"[A-Z][a-z]+( (& )?[A-Z][a-z]+)*",
    "phone": r"\d{3,4}-\d{4}",
}
"""Full-match regular expressions of the values of each kind."""


def pages(domain: str, split: str, count: int = 4, size: int = 256) -> list[Page]:
    """The first pages of a split; each is drawn once. Read only."""
    return [drawn_page(domain, index, size, split) for index in range(count)]


@cache
def drawn_page(domain: str, index: int, size: int, split: str) -> Page:
    try:
        return draw_page(domain, 0, index, size, split)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def text_in(page: Page, box: Box) -> str:
    """The characters whose centre lies in the box, from left to right."""
    x0, y0, x1, y1 = box
    cells = [(char, *cell) for line in page.lines for char, cell in zip(line.text, line.boxes.tolist(), strict=True)]
    centres = sorted(((left + right) / 2, (top + low) / 2, char) for char, left, top, right, low in cells)
    return squeezed("".join(char for x, y, char in centres if x0 - 1 <= x <= x1 + 1 and y0 - 1 <= y <= y1 + 1))


def squeezed(text: str) -> str:
    """Without white space, which has no glyph."""
    return "".join(text.split())


def test_every_promised_domain_is_there() -> None:
    assert DOMAINS.noun == "domain"
    assert {*DOMAINS} == {"browser", "document", "form", "generated", "question_kinds", "stacked"}


@pytest.mark.parametrize("size", [256, 512, 1024])
@pytest.mark.parametrize("domain", SQUARE)
def test_boxes_are_in_the_image_and_hold_more_than_paper(domain: str, size: int) -> None:
    for page in pages(domain, "test", 2, size):
        assert page.image.size == (size, size) and page.image.mode == "RGB"
        pixels = np.asarray(page.image.convert("L"), np.float32)
        for question in page.questions:
            for x0, y0, x1, y1 in (*question.boxes, *question.label_boxes):
                assert 0 <= x0 < x1 <= size and 0 <= y0 < y1 <= size
            for box in question.boxes:
                x0, y0, x1, y1 = map(round, box)
                assert np.ptp(pixels[y0:y1, x0:x1]) > 40, "letters contrast with what is behind them"
                assert y1 - y0 > 0.4 * MIN_FONT * text_unit(size), "as high as small letters"


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("domain", SQUARE)
def test_the_answer_stands_in_its_box(domain: str, split: str) -> None:
    for page in pages(domain, split):
        assert len(page.questions) >= 3
        for question in page.questions:
            (answer,) = question.answers
            shown = "".join(text_in(page, box) for box in question.boxes)
            assert shown == squeezed(answer), question
        assert {char for line in page.lines for char in line.text} <= {*CHARSET, " "}


@pytest.mark.parametrize("domain", OURS)
def test_a_page_without_the_answer_differs_only_in_its_box(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes come from the drawn ink; what is left out here is the drawing of one text, wherever it is."""
    write = Ink.text
    for number in range(3):
        page = draw_page(domain, 1, number, 320, "test")
        question = page.questions[0]
        answer = question.answers[0]
        places = [q.boxes[0] for q in page.questions if q.answers[0] == answer]

        def blank(ink: Ink, text: str, x: float, y: float, style: TextStyle, answer: str = answer) -> tuple:
            return write(Ink(ink.size, ink.supersample) if text == answer else ink, text, x, y, style)

        monkeypatch.setattr(Ink, "text", blank)
        without = draw_page(domain, 1, number, 320, "test")
        monkeypatch.setattr(Ink, "text", write)
        changed = (np.asarray(page.image) != np.asarray(without.image)).any(-1)
        x0, y0, x1, y1 = map(round, question.boxes[0])
        assert changed[y0:y1, x0:x1].any()
        for x0, y0, x1, y1 in places:
            changed[max(0, round(y0) - 3) : round(y1) + 3, max(0, round(x0) - 3) : round(x1) + 3] = False
        assert not changed.any(), f"{question}: changed at {np.argwhere(changed)[:3].tolist()}"


@pytest.mark.parametrize("domain", OURS)
def test_questions_have_one_answer_each_and_fonts_and_layouts_one_split(domain: str) -> None:
    for page in pages(domain, "train", 5):
        answers: dict[str, str] = {}
        for question in page.questions:
            assert answers.setdefault(question.text, question.answers[0]) == question.answers[0]
    layouts = {}
    for split in SPLITS:
        drawn = pages(domain, split, 5)
        layouts[split] = {page.layout for page in drawn}
        for page in drawn:
            for font in page.font.split(" + "):
                assert any(font.startswith(family) for family in family_names(split))
    assert not (layouts["train"] | layouts["validation"]) & layouts["test"]
    assert layouts["validation"] <= set(document.LAYOUTS["train"])


def test_easy_questions_have_one_short_value_and_every_domain_has_both() -> None:
    short = Question("?", ("12",), ((0, 0, 1, 1),), ((2, 2, 3, 3),), "price")
    assert short.difficulty == "easy"
    assert (
        Question("?", ("a long answer of many letters",), short.boxes, short.label_boxes, "price").difficulty == "hard"
    )
    assert Question("?", ("12",), short.boxes, short.label_boxes * 4, "price").difficulty == "hard"


@pytest.mark.parametrize("layouts", [document.LAYOUTS, browser.LAYOUTS, browser.STACKED])
def test_layouts_of_the_splits_share_nothing(layouts: dict[Split, dict[str, object]]) -> None:
    train, test = layouts["train"], layouts["test"]
    assert len(train) >= 2 and len(test) >= 2
    assert not set(train) & set(test) and not set(train.values()) & set(test.values())


def test_train_and_test_pages_of_one_number_share_no_random_numbers() -> None:
    """Else a held-out page would repeat the numbers of a training page in another font."""
    train, test = (
        {a for page in pages("document", split, 6) for q in page.questions for a in q.answers if len(a) > 2}
        for split in ("train", "test")
    )
    numbers = {answer for answer in train if answer.isdigit()}
    assert len(numbers & test) < 0.2 * len(numbers)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("novel", 0, 0, 256, "test"), "domain: expected one of browser, document, .*; got 'novel'"),
        (("form", 0, 0, 256, "dev"), "split: expected one of train, validation, test; got 'dev'"),
        (("form", 0, 0, 32, "test"), "expected a size of at least 64 px.*got 32"),
        (("generated", 0, 0, 256, "test", {"photo": 1.0}), "photo: expected a domain of square pages; got 'generated'"),
        (("form", 0, -1, 256, "test"), "expected a seed and an index of at least 0; got seed=0, index=-1"),
    ],
)
def test_bad_arguments_say_what_was_expected(arguments: tuple, message: str) -> None:
    refuses(message, draw_page, *arguments[:5], variations=Variations(*arguments[5:] and arguments[5].values()))


def test_render_refuses_unknown_domains_and_names_missing_fonts_before_it_writes_anything(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["render", str(tmp_path / "pages"), "--domain", "form,novel"]) != 0
    assert "domain: expected one of" in capsys.readouterr().err and not (tmp_path / "pages").exists()
    monkeypatch.setenv("ARR_COC_FONT_PATH", str(tmp_path / "fonts"))
    for domain in OURS:
        assert main(["render", str(tmp_path / "pages"), "--domain", domain]) == 2
        assert "apt-get install fonts-liberation fonts-freefont-ttf " in capsys.readouterr().err
    assert main(["render", str(tmp_path / "pages"), "--size", "1"]) == 2
    assert main(["render", str(tmp_path / "pages"), "--pages", "0"]) == 2
    assert "pages: expected a number of at least 1; got 0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_documents_may_have_fields_of_their_own() -> None:
    fields = ("vendor", "balance", "deposit", "branch")
    records = Rendered(pages=2, questions=4, size=192, fields=fields).read()
    assert all(any(field in record.question.lower() for field in fields) for record in records)
    assert Rendered(pages=1, domains="form, stacked").domains == ("form", "stacked")  # type: ignore[arg-type]
    assert Rendered(pages=1, fields="Loss,Net gain").fields == ("Loss", "Net gain")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fields: expected domain document alone; got form, stacked"):
        Rendered(pages=6, domains=("form", "stacked"), fields=fields)
    refuses("fields: expected at least 4 distinct names", Rendered(pages=1, fields=("vendor",)).page, 0)


@pytest.mark.parametrize("split", SPLITS)
def test_documents_say_distinct_values_beside_their_labels_in_rows_that_do_not_overlap(split: Split) -> None:
    shown, layouts = set(), set()
    for page in pages("document", split, 40):
        rows = sorted(page.questions, key=lambda question: question.boxes[0][1])
        middles = [(row.boxes[0][1] + row.boxes[0][3]) / 2 for row in rows]
        assert (np.diff(middles) > 7).all(), "at least 11 px text below one another, top to bottom"
        fields = {text_in(page, row.label_boxes[0]).rstrip(":").lower() for row in rows}
        assert 4 <= len(rows) <= 14 and len(fields) == len({row.answers for row in rows}) == len(rows)
        for row in rows:
            assert row.label_boxes[0][2] <= row.boxes[0][0] + 6, "a value begins where its label ends"
            assert any(re.fullmatch(pattern, row.answers[0]) for pattern in KIND_PATTERNS.values()), row
        shown |= fields
        layouts.add(page.layout)
    assert shown == set(values.FIELDS) and len(layouts) > 2


@pytest.mark.parametrize("kind", values.KINDS)
@pytest.mark.parametrize("split", SPLITS)
def test_each_kind_matches_its_pattern_and_the_charset(kind: str, split: Split) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        value = values.draw_value(rng, kind, split)
        assert re.fullmatch(KIND_PATTERNS[kind], value) and set(value) - {" "} <= set(CHARSET), value


def test_wordings_share_one_and_ask_draws_from_its_split() -> None:
    def spelt(templates: Iterable[str]) -> set[str]:
        return set(re.findall(r"[a-z']+", re.sub(r"{\w+}", " ", " ".join(templates)).lower()))

    train, test = (
        {key.removeprefix(split): own for key, own in TEMPLATES.items() if key.startswith(split)}
        for split in ("train", "test")
    )
    for kind, texts in test.items():
        assert set(train[kind]) & set(texts) == ({"What is the {field}?"} if kind == " question" else set())
    assert spelt(itertools.chain(*test.values())) <= spelt(itertools.chain(*train.values()))
    rng = np.random.default_rng(0)
    asked = [ask(rng, "gate", split="test") for _ in range(400)]
    assert 0.4 < np.mean([text == "What is the gate?" for text in asked]) < 0.6
    assert set(asked) == {text.format(field="gate") for text in TEMPLATES["test question"]}
    trained = {ask(rng, "gate", split="train") for _ in range(600)}
    assert {"gate", "Gate?", "What's the gate?"} <= trained
    with pytest.raises(ValueError, match="split: expected one of train, validation, test; got 'dev'"):
        ask(rng, "gate", split="dev")  # type: ignore[arg-type]


@pytest.mark.parametrize("split", SPLITS)
def test_generated_pages_have_questions_at_any_size(split: str) -> None:
    for number in range(3):
        page, small = (draw_page("generated", 5, number, size, split) for size in (1024, 256))
        assert (max(page.image.size), max(small.image.size)) == (1024, 256) and page.questions
        assert [question.text for question in page.questions] == [question.text for question in small.questions]
        assert dict(page.tags)["page"] in page.layout
        width, height = page.image.size
        for question, other in zip(page.questions, small.questions, strict=True):
            assert bool(question.boxes) <= (not question.absent)
            for (x0, y0, x1, y1), box in zip(question.boxes, other.boxes, strict=True):
                assert 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height
                assert box == pytest.approx((x0 / 4, y0 / 4, x1 / 4, y1 / 4), abs=0.1)


# ---- words that one split shows, no other does
NAMES = (values.FIRST_NAMES, values.LAST_NAMES, values.CITIES, values.COMPANIES)
POOLS = (*NAMES, values.TITLES)
MADE_UP = "Madeup"


def everything(split: str) -> set[str]:
    return {word.casefold() for pool in POOLS for word in part(pool, split)}


def test_splits_share_no_word_of_any_two_pools() -> None:
    """Milan is a name and a city: drawn as either, it must not be both trained and tested."""
    assert "Milan" in values.FIRST_NAMES and "Milan" in values.CITIES
    for first, second in itertools.combinations(SPLITS, 2):
        assert not everything(first) & everything(second)
    assert sum(len(everything(split)) for split in SPLITS) == len({word.casefold() for pool in POOLS for word in pool})
    assert split_of("Receipt") == split_of("RECEIPT")
    assert part(("Oslo", "Zurich", "Oslo Bay"), split_of("Oslo"))[0] == "Oslo"


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool[0])
def test_half_of_each_pool_is_for_training_and_a_quarter_for_each_other_split(pool: tuple[str, ...]) -> None:
    assert len(set(pool)) == len(pool)
    shares = {split: len(part(pool, split)) / len(pool) for split in SPLITS}
    assert 0.35 < shares["train"] < 0.65 and min(shares["validation"], shares["test"]) > 0.15, shares


@pytest.mark.parametrize("split", SPLITS)
def test_names_and_cities_come_from_the_splits_part_of_the_pools(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "made_up_word", lambda rng: MADE_UP)
    rng = np.random.default_rng(0)
    drawn = [values.draw_value(rng, kind, split) for kind in ("name", "city", "company") for _ in range(1000)]
    assert {value for value in drawn if not value.startswith(MADE_UP)} <= {w for p in NAMES for w in part(p, split)}
    made_up = np.mean([value.startswith(MADE_UP) for value in drawn])
    assert 0.45 < made_up < 0.55 if split == "train" else made_up == 0
