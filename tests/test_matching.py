"""Where answers stand, from what an OCR system read: found, told apart, left unknown."""

import pytest

from arr_coc.data.formats.published import MOST_PLACES, OcrToken, locate, reading_order, spell, within


def row(*words: str, y: float = 0.0) -> list[OcrToken]:
    return [OcrToken(word, (10.0 * i, y, 10.0 * i + 8, y + 5)) for i, word in enumerate(words)]


@pytest.mark.parametrize(
    ("answer", "words", "places"),
    [
        ("total", ["The", "Total:", "is"], [1]),
        ("12.50", ["$12.50"], [0]),
        ("new york city", ["in", "NEW", "York", "City,", "USA"], [1, 2, 3]),
        ("coca-cola", ["COCA", "COLA"], [0, 1]),
        ("coca cola", ["Coca-Cola!"], [0]),
        ("o'neil", ["O", "'", "Neil"], [0, 2]),
        ("ﬁne café", ["FINE", "CAFÉ"], [0, 1]),
        ("a b", ["a", "a", "b"], [1, 2]),
        ("5", ["5", "x", "5"], [0, 2]),
        ("new york", ["york", "new"], []),
        ("12.5", ["125"], []),
        ("cat", ["category"], []),
        ("...", ["..."], []),
        ("no", ["no"], []),
        ("7", ["7"] * (MOST_PLACES + 1), []),
        ("anything", [], []),
    ],
)
def test_answers_are_found_where_consecutive_words_spell_them(answer: str, words: list[str], places: list[int]) -> None:
    tokens = row(*words)
    assert locate([answer], tokens) == tuple(tokens[place].box for place in places)


def test_the_answer_given_most_often_is_looked_for_first() -> None:
    tokens = row("red", "blue")
    assert locate(["Red", "blue", "blue", "green", "green", "green"], tokens) == (tokens[1].box,)


def test_reading_order_goes_line_by_line() -> None:
    lines = row("a", "b", "c") + row("d", "e", "f", y=20.0)
    lines[1] = OcrToken("b", (10.0, 1.5, 18.0, 7.0))  # a word that hangs a little lower stays in its line
    shuffled = [lines[i] for i in (4, 2, 0, 5, 1, 3)]
    assert "".join(token.text for token in reading_order(shuffled)) == "abcdef"


def test_boxes_end_at_the_edges_of_the_image() -> None:
    tokens = [OcrToken("a", (-5.0, 2.0, 5.0, 90.0)), OcrToken("b", (200.0, 0.0, 210.0, 5.0))]
    assert within(tokens, 90, 60) == [OcrToken("a", (0.0, 2.0, 5.0, 60.0))]


def test_spelling_keeps_what_stands_between_digits() -> None:
    assert [spell(text) for text in ("12/5/99", "1, 2", "(555) 12-34", "U.S.A.")] == [
        "12/5/99",
        "12",
        "55512-34",
        "usa",
    ]
