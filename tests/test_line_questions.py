"""Questions about lines: their answers are checked against the page's text, in another way than they were made."""

import json
import re
from collections import Counter, defaultdict
from random import Random

import numpy as np
import pytest

from arr_coc.pages.domains import draw_page
from arr_coc.pages.generator import layout_page
from arr_coc.pages.line_questions import KINDS, by_kind, line_questions, words_of
from arr_coc.pages.page import UNKNOWN, Line, TextPage
from arr_coc.pages.question_writer import WORDINGS, QuestionWriter
from arr_coc.pages.splits import SPLITS

SORTS = (
    {"follows": "detail", "both follow": "two places", "which is higher up": "two places"}
    | {"which is more": "two places", "line end": "two places", "second time": "two places", "how often": "spread"}
    | {"which more often": "spread", "most often": "spread", "highest number": "spread", "any above": "spread"}
    | {"largest": "gist", "most words in": "gist", "fewest words in": "gist", "number of words": "gist"}
    | {"words or numbers": "gist"}
)

QUARTERS = ("top left", "top right", "bottom left", "bottom right")


def line(text: str, y: float, height: float = 8.0) -> Line:
    """Text whose characters are half as wide as high, from x = 10."""
    left = 10 + height / 2 * np.arange(len(text), dtype=np.float32)
    return Line(text, np.stack([left, np.full_like(left, y), left + height / 2, np.full_like(left, y + height)], 1))


def page(*texts: str, height: float = 8.0) -> TextPage:
    """A page of 300 x 400 px with a line of text every 20 px."""
    return TextPage(None, (300, 400), tuple(line(text, 20 * (n + 1), height) for n, text in enumerate(texts)))


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that say their sort and names instead of a wording."""
    monkeypatch.setattr(QuestionWriter, "word", lambda self, kind, **names: json.dumps([kind, names]))


def told(page: TextPage, seed: int = 0) -> list[tuple[str, dict[str, str], str, str]]:
    """Sort, names, answer and kind of each question."""
    asked = line_questions(Random(seed), page, "train")
    return [(*json.loads(question.text), question.answers[0], question.kind) for question in asked]


def check(page: TextPage, sort: str, names: dict[str, str], answer: str) -> None:
    """Checks an answer against the page's text."""
    texts = [each.text for each in page.lines]
    text = " \n ".join(texts).casefold()
    words = [word.strip("()[]{}.,:;!?'\"*") for word in text.split()]
    if sort == "follows":
        assert text.count(f" {names['label']} {answer} ".casefold()) <= 1
        assert any(f" {names['label']} {answer} " in f" {each} " for each in texts)
    elif sort == "both follow":
        first, second = (re.escape(names[name]) for name in ("first", "second"))
        behind = [re.findall(rf"(?:^|\s){each} (\S+)", " \n ".join(texts)) for each in (first, second)]
        assert answer in {f"{one} and {other}" for one in behind[0] for other in behind[1]}
    elif sort == "which is higher up":
        at = {name: next(n for n, each in enumerate(texts) if names[name] in each) for name in names}
        lower = next(names[name] for name in names if names[name] != answer)
        top = {names[name]: page.lines[at[name]].boxes[0, 1] for name in names}
        assert top[answer] <= top[lower] and words.count(answer.casefold()) == words.count(lower.casefold()) == 1
    elif sort == "which is more":
        amounts = {}
        for name, label in names.items():
            (number,) = (found[1] for each in texts if (found := re.match(re.escape(label) + r"[: .]* (\S+)$", each)))
            amounts[name] = float(number.strip("$€£%"))
        assert names[max(amounts, key=lambda name: amounts[name])] == answer
    elif sort == "line end":
        (ended,) = (each for each in texts if each.casefold().startswith(names["label"].casefold() + " "))
        assert ended.split()[-1].strip("()[]{}.,:;!?'\"*") == answer or ended.endswith(answer)
    elif sort == "second time":
        behind = re.findall(rf"(?<!\S)[^\w\s]*{names['label']}[^\w\s]* (\S+)", " \n ".join(texts), re.I)
        assert words.count(names["label"]) == 2 and answer in "".join(behind)
    elif sort == "most often":
        counts = Counter(word for word in words if len(word) >= 5 and word.isalpha())
        assert counts[answer] == max(counts.values()) > 2 and [*counts.values()].count(counts[answer]) == 1
    elif sort == "how often":
        assert int(answer) == words.count(names["label"]) >= 1
    elif sort == "which more often":
        assert words.count(answer) == max(words.count(name) for name in names.values())
        assert words.count(names["first"]) != words.count(names["second"])
    elif sort in ("highest number", "any above"):
        numbers = [float(word.strip("$€£%")) for word in words if any(map(str.isdigit, word))]
        if sort == "any above":
            assert (max(numbers) > float(names["value"])) == (answer == "yes")
        else:
            assert float(answer.strip("$€£%")) == max(numbers)
    elif sort == "largest":
        heights = [float(np.median(each.boxes[:, 3] - each.boxes[:, 1])) for each in page.lines]
        assert texts[int(np.argmax(heights))].strip() == answer
    elif sort in ("most words in", "fewest words in"):
        middles = [
            (word.box[0] + word.box[2] > page.size[0], word.box[1] + word.box[3] > page.size[1])
            for line in words_of(page.lines)
            for word in line
        ]
        named = {("bottom" in name, "right" in name): name for name in QUARTERS}
        counts = Counter({name: middles.count((right, low)) for (low, right), name in named.items()})
        extreme = max if sort == "most words in" else min
        assert answer == extreme(QUARTERS, key=lambda name: counts[name])
    elif sort == "number of words":
        assert abs(int(answer) - len(words)) < 10
    else:
        digits = sum(any(map(str.isdigit, word)) for word in words)
        assert sort == "words or numbers" and (answer == "numbers") == (2 * digits > len(words))


def test_answers_are_right_on_generated_pages_and_on_one_of_amounts(bare: None) -> None:
    seen = set()
    for seed in range(25):
        each = layout_page(np.random.default_rng(seed), "train")
        for sort, names, answer, kind in told(each, seed):
            seen.add(sort)
            assert SORTS[sort] == kind
            check(each, sort, names, answer)
    assert len(seen) >= len(SORTS) - 1
    shown = page("Tea 3.50", "Coffee 12", "Milk 2", "old tea old Tea")
    asked = told(shown)
    for sort, names, answer, _ in asked:
        check(shown, sort, names, answer)
    assert {"which is more", "highest number", "any above", "how often"} <= {sort for sort, *_ in asked}
    assert ("highest number", {}, "12", "spread") in asked
    often = [
        (names["label"], answer)
        for seed in range(20)
        for sort, names, answer, _ in told(shown, seed)
        if sort == "how often"
    ]
    assert ("tea", "3") in often


def test_answers_cannot_be_guessed_from_the_question(bare: None) -> None:
    """No answer to a sort of questions is much more frequent than others, and no sort of a kind than others."""
    given: dict[str, Counter[str]] = defaultdict(Counter)
    for seed in range(150):
        for sort, _, answer, _ in told(layout_page(np.random.default_rng(seed), "train"), seed):
            given[sort][answer] += 1
    most = {"number of words": 0.6, "how often": 0.55, "most words in": 0.8, "fewest words in": 0.6}
    for sort, share in most.items():
        answers = given[sort]
        assert answers.total() > 20 and max(answers.values()) < share * answers.total(), (sort, answers)
    yes = [answers["yes"] + answers["no"] for answers in given.values()]
    assert sum(yes) < 0.1 * sum(answers.total() for answers in given.values())


def test_ambiguous_questions_are_not_asked(bare: None) -> None:
    sorts = {sort for sort, *_ in told(page("the cat sat", "the cat ran", "cat 1,200 or 7", "cats 3 or 4"))}
    assert not {"highest number", "any above"} & sorts  # 1,200 is no plain number
    asked = told(page("the cat sat", "the cat ran", "cats are here"))
    assert all(names.get("label") != "the cat" for sort, names, *_ in asked if sort == "follows")
    assert all(names.get("label") != "cat" for sort, names, *_ in asked if sort == "how often")  # "cats" holds it


def test_boxes_hold_the_answer(bare: None) -> None:
    shown = page("Tea costs 3.50", "Coffee costs 12")
    (first, second), places = shown.lines, {}
    for question in line_questions(Random(0), shown, "train"):
        sort, names = json.loads(question.text)
        if sort == "follows":
            places[names["label"]] = question.boxes[0]
    assert places["Tea costs"] == tuple(map(float, (first.boxes[10, 0], 20, first.boxes[-1, 2], 28)))
    assert places["Coffee costs"] == tuple(map(float, (second.boxes[13, 0], 40, second.boxes[-1, 2], 48)))


def test_wordings_of_the_splits_differ() -> None:
    made = {}
    for split in SPLITS:
        each = layout_page(np.random.default_rng(3), split)
        templates = {sort: set(WORDINGS[sort]) for sort in SORTS}
        names = {"label": "a", "first": "b", "second": "c", "value": "1", "count": "2"}
        writers = [QuestionWriter(Random(seed), split) for seed in range(30)]
        made[split] = {writer.word(sort, **names).casefold() for sort in templates for writer in writers}
        assert all(question.text for question in line_questions(Random(0), each, split))
    rest = {split: {text.rstrip("?.") for text in texts} for split, texts in made.items()}
    assert not rest["train"] & rest["test"] and not rest["train"] & rest["validation"]
    with pytest.raises(ValueError, match="split: expected one of train"):
        line_questions(Random(0), page("the cat sat"), "holdout")  # type: ignore[arg-type]


def test_kinds_come_in_turn() -> None:
    each = layout_page(np.random.default_rng(1), "train", "table")
    kinds = [question.kind for question in by_kind(Random(0), each, "train")]
    assert set(kinds[:4]) == set(KINDS) and set(kinds) == set(KINDS)
    drawn = draw_page("question_kinds", 0, 1, 256, "train")
    assert {question.kind for question in drawn.questions[:4]} == set(KINDS)
    assert max(drawn.image.size) == 256
    assert max(edge for question in drawn.questions for box in question.boxes for edge in box) <= 257


def test_words_have_the_boxes_of_their_characters_and_unknown_ones_are_not_asked_about() -> None:
    ((first, second),) = words_of([line("ab cde", 0)])
    assert (first.text, second.text, second.place) == ("ab", "cde", 1) and second.box == (22.0, 0.0, 34.0, 8.0)
    assert line_questions(Random(0), page(f"the cat {UNKNOWN} sat there"), "train") == ()
    assert line_questions(Random(0), TextPage(None, (10, 10), ()), "train") == ()
