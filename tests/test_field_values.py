"""Printed values: numbers of any currency, dates printed in any usual way, and what may mean two things."""

from datetime import date

import pytest

from arr_coc.modeling.extraction import date_in, day_comes_first, number_in, value_of

CHRISTMAS = date(2018, 12, 25)


@pytest.mark.parametrize(
    "text",
    [
        "2018-12-25", "25/12/2018 8:13:39 PM", "12/25/2018", "25.12.18", "25-12-18", "25 / 12 / 2018",
        "Date: 25 Dec 2018", "25-DEC-2018", "25Dec'18",
        "December 25, 2018", "Dec. 25th, 2018", "Tuesday, 25th of December 2018", "25 décembre 2018", 
        "25. Dezember 2018", "25 de diciembre 2018", "20181225", "2018/12/25",
    ],
)  # fmt: skip
def test_dates_in_any_usual_print(text: str) -> None:
    assert date_in(text.replace(" de ", " ")) == CHRISTMAS


@pytest.mark.parametrize("text", ["", "soon", "12", "12/2018", "31/02/2018", "99/99/2018", "Invoice 4711", "8:13 PM"])
def test_what_is_no_date(text: str) -> None:
    assert date_in(text, True) is None and date_in(text, False) is None


def test_day_or_month_first_is_not_guessed_but_told_by_the_rest_of_the_page() -> None:
    assert date_in("03/04/2018") is None
    assert date_in("03/04/2018", day_first=True) == date(2018, 4, 3)
    assert date_in("03/04/2018", day_first=False) == date(2018, 3, 4)
    assert date_in("03.04.2018") == date(2018, 4, 3)  # with points the day comes first
    assert date_in("04/04/2018") == date(2018, 4, 4)
    assert value_of("03/04/2018", "date") == (None, "'03/04/2018': day or month may come first")
    assert day_comes_first("Issued 25/12/2018, due 03/01/2019") is True
    assert day_comes_first("Issued 12/25/2018, due 01/03/2019") is False
    assert day_comes_first("Issued 05/06/2018") is None
    assert day_comes_first("Issued 25/12/2018, due 12/26/2018") is None


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("RM9.00", "money", 9), ("MYR 1,234.50", "money", 1234.5), ("(12.50)", "number", -12.5),
        ("6, 675.25", "money", 6675.25), ("CHF 1, 002, 676.40", "money", 1002676.4),
        ("yes", "yes/no", True), ("No.", "yes/no", False),
        (" as printed", "text", " as printed"), ("25.12.18", "date", "2018-12-25"),
    ],
)  # fmt: skip
def test_values_by_type(text: str, kind: str, value: object) -> None:
    assert value_of(text, kind) == (value, "")


def test_other_texts_have_no_value_and_say_why() -> None:
    assert value_of("soon", "money") == (None, "'soon' is no money")
    assert number_in("INV-20417") is None
    assert number_in("6, 675") is None, "may be two numbers"
