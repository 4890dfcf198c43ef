"""Extraction: the values of named fields of a page or a document, each with its probability and its place.

A page is encoded once, and all fields are asked about in one batch (`read_once` prefills what prompts share). Each
page of a document is asked about alone; a field's value comes from the page that is surest of it.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from difflib import get_close_matches
from itertools import product
from typing import Any

import torch
from PIL import Image

from .answers import Answer, wordpieces_read
from .generation import AnswerGenerator, is_encoding
from .image_encoding import ImageEncoding
from .image_loading import load_sources
from .image_processing_arr_coc import Box
from .prompt_format import NOT_ON_THE_PAGE
from .view_encoding import sources_of

# ---- what a printed text means --------------------------------------------------------------------------------------
#
# Nothing is guessed: a text that may mean two things has no value.

TRUE, FALSE = ("yes", "true"), ("no", "false")
PLAIN = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")  # what is a number even where text is allowed
_DIGITS = re.compile(r"\d{1,3}(?: \d{3})+(?:[.,]\d+)?(?!\d)|(?<![\w.])\.\d+|\d[\d.,]*")
_CODE = re.compile(r"[^\W\d_]-?$")
_MONEY = re.compile(
    r"(?:[A-Z]{2}\$|USD|EUR|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|AUD|CAD|NZD|BRL|MXN|MYR|SGD|HKD|ZAR|RM|Rs\.?|kr\.?)"
    r"-?$"
)
_MULTIPLES = re.compile(
    r" ?(?:k|mn|bn|(?-i:[MB]))\b| ?(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore)"
    r"| ?[\u00bc-\u00be\u2150-\u215e]",  # fractions
    re.IGNORECASE,
)
_GROUPED = re.compile(r"[\d ]*|\d{1,3}(,\d{3})*|\d{1,3}(,\d{2})*,\d{3}")
"""The digits before a decimal point; in India the groups before the last one have two digits."""

_MINUS_BEFORE = re.compile(r"(?:^|\W)-[^\w\s]?$|^\s*-\s?(?:[A-Z]{3}|[^\w\s])?\s?$|[A-Z]{3}-$")
_MINUS_BEHIND = re.compile(r"-\s?(?:[A-Z]{3}|[^\w\s])?\s*")  # A dash with spaces around it, as in "Tax - 3", is no sign
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(, \d{3})+\.\d\d(?!\d)")
"""An amount that was read with a space behind its commas, as 6, 675.25."""
_PLAIN_SIGNS = str.maketrans("\N{MINUS SIGN}\N{EN DASH}\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}", "--  ")
_BRACKET = re.compile(r"\s*(?:[A-Z]{3}|[^\w\s])?\s*\(")


def number_in(text: str) -> int | float | None:
    """The only number in a text: "$1,234.50" is 1234.5; a comma before one or two last digits is a decimal point.

    "-$3", "$3-", "(3)" and "$(3)" are negative. None for several numbers, codes as INV-20417, and what words multiply.
    """
    text = text.translate(_PLAIN_SIGNS)
    text = _SPACED.sub(lambda spaced: spaced[0].replace(" ", ""), text)
    found = list(_DIGITS.finditer(text))
    if len(found) != 1:
        return None
    digits, before, behind = found[0][0].rstrip(".,"), text[: found[0].start()], text[found[0].end() :]
    if (_CODE.search(before) and not _MONEY.search(before)) or _MULTIPLES.match(behind):
        return None
    if re.fullmatch(r"[\d. ]*,\d{1,2}", digits):
        digits = digits.replace(".", "").replace(",", ".")
    if digits.count(".") > 1 or not _GROUPED.fullmatch(digits.partition(".")[0]):
        return None
    digits = digits.replace(",", "").replace(" ", "")
    negative = _MINUS_BEFORE.search(before) or _MINUS_BEHIND.fullmatch(behind)
    bracketed = _BRACKET.match(before) and behind.rstrip().endswith(")")
    number = Decimal(f"-{digits}" if negative or bracketed else digits)
    if number == number.to_integral_value():
        return int(number)
    return float(number) if math.isfinite(float(number)) else None


def truth_of(text: str) -> bool | None:
    """Whether a text says yes or no; None: neither."""
    said = text.strip().casefold().rstrip(".")
    return said in TRUE if said in (*TRUE, *FALSE) else None


# ---- dates ----------------------------------------------------------------------------------------------------------

_MONTHS = (
    "jan ene gen janv", "feb fev fév febr", "mar mär mrz maa maerz", "apr avr abr", "may mai mag mei", "jun juin giu",
    "jul juil lug", "aug aou aoû ago août", "sep set sept", "oct okt ott", "nov", "dec dez déc dic",
)  # fmt: skip
"""How the names of months begin, in English, German, French, Spanish, Italian and Dutch."""
_MONTH_OF = {start: number for number, starts in enumerate(_MONTHS, 1) for start in starts.split()}
_YEAR = r"(?P<year>\d{4}|'?\d{2})"
_NAMED = (
    re.compile(
        rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.)?[\s./-]*(?:of\s+)?(?P<month>[^\W\d_]{{3,}})[\s.,/-]*{_YEAR}\b"
    ),
    re.compile(rf"\b(?P<month>[^\W\d_]{{3,}})[\s./-]*(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b[\s.,/-]+{_YEAR}\b"),
)
_YEAR_FIRST = re.compile(r"(?<!\d)(?P<year>\d{4})[\s./-]{1,2}(?P<month>\d{1,2})[\s./-]{1,2}(?P<day>\d{1,2})(?!\d)")
_COMPACT = re.compile(r"(?<!\d)(?P<year>(?:19|20)\d\d)(?P<month>[01]\d)(?P<day>[0-3]\d)(?!\d)")
_NUMERIC = re.compile(r"(?<![\d./-])(\d{1,2})(\s?[./-]\s?)(\d{1,2})\s?[./-]\s?(\d{4}|\d{2})(?![\d/-])")


def date_in(text: str, day_first: bool | None = None) -> date | None:
    """The first date in a text, printed in any usual way; None: there is none, or day and month may be exchanged.

    Args:
        text: such as "25/12/2018 8:13 PM", "Dec. 25, 2018", "25 décembre 2018", "2018-12-25".
        day_first: whether dates as 03/04/18 begin with the day (see `day_comes_first`); None: not known. Dates with
            points begin with it.
    """
    for pattern in (_YEAR_FIRST, *_NAMED, _COMPACT):
        for found in pattern.finditer(text):
            name = found["month"]
            month = int(name) if name.isdigit() else _MONTH_OF.get(name[:4].lower()) or _MONTH_OF.get(name[:3].lower())
            if month and (day := _date(found["year"], month, int(found["day"]))):
                return day
    for found in _NUMERIC.finditer(text):
        first, second, year = int(found[1]), int(found[3]), found[4]
        first_is_day = True if first > 12 or first == second or "." in found[2] else False if second > 12 else day_first
        if first_is_day is None:
            return None
        return _date(year, second, first) if first_is_day else _date(year, first, second)
    return None


def _date(year: str, month: int, day: int) -> date | None:
    number = int(year.lstrip("'"))
    if len(year) < 4:
        number += 2000 if number < 69 else 1900  # as POSIX has it
    try:
        return date(number, month, day)
    except ValueError:
        return None


def day_comes_first(text: str) -> bool | None:
    """Whether a page's dates begin with the day, by those that can be read in one way only; None: not known."""
    pairs = [(int(found[1]) > 12, int(found[3]) > 12) for found in _NUMERIC.finditer(text)]
    votes = {first for first, second in pairs if first != second}
    return votes.pop() if len(votes) == 1 else None


# ---- types of fields ------------------------------------------------------------------------------------------------

TYPES = ("text", "number", "money", "date", "yes/no")

Value = str | int | float | bool | None


def value_of(text: str, kind: str, day_first: bool | None = None) -> tuple[Value, str]:
    """The value of a printed text, and a warning if it has none.

    Args:
        text: of an answer that is on the page.
        kind: one of `TYPES`. A date becomes ISO 8601.
        day_first: see `date_in`.
    """
    if kind == "text":
        return text, ""
    found: Value
    if kind == "date":
        day = date_in(text, day_first)
        found = None if day is None else day.isoformat()
        if day is None and any(date_in(text, first) for first in (True, False)):
            return None, f"{text!r}: day or month may come first"
    else:
        found = truth_of(text) if kind == "yes/no" else number_in(text)
    return found, "" if found is not None else f"{text!r} is no {kind}"


# ---- fields ---------------------------------------------------------------------------------------------------------

MAX_FIELDS = 64
ALIKE = 0.8  # the similarity from which on a word is a misspelt type
RIVALS = 4  # answers of each field that compete where distinct fields have one place


@dataclass(frozen=True)
class FieldToExtract:
    """A field: its name, the question that asks for it, its type (one of `TYPES`), and the allowed values, if few."""

    name: str
    question: str
    kind: str = "text"
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Extracted:
    """A field's value on a page or in a document."""

    value: Value  # of the field's type, dates in ISO 8601; None: not on the page, not of the type, or not sure enough
    probability: float  # that it is right; of an empty field, that it is not on the page
    printed: str  # the answer as printed; "" if it is not on the page
    page: int | None = None  # from 1, or None if it is not on the page
    boxes: tuple[Box, ...] = ()  # x0, y0, x1, y1 of the answer's lines in px of its page; () if they are not known
    alternatives: tuple[tuple[str, float], ...] = ()  # other answers (printed, probability), the surest first
    warning: str = ""  # why a printed answer has no value, and what made the page hard to read


def fields_to_extract(fields: Any) -> list[FieldToExtract]:
    """Fields from "name, name: type, name: question, name: type: question", a list of these, or {name: type, ...}.
    Raises ValueError: no fields, too many, a name twice or none."""
    if isinstance(fields, str):
        fields = re.split(r",(?!\d)", fields)
    if isinstance(fields, Mapping):
        fields = [f"{name}: {told}" if isinstance(told, str) else told for name, told in fields.items()]
    if not isinstance(fields, Sequence):
        raise ValueError(f'fields: expected names such as "date: date, total: money"; got {fields!r}')
    made = [each if isinstance(each, FieldToExtract) else _field(each) for each in fields if each != ""]
    names = [each.name for each in made]
    if not 1 <= len(made) <= MAX_FIELDS or len(set(names)) < len(names):
        raise ValueError(f"fields: expected 1 to {MAX_FIELDS} different names; got {names}")
    return made


def _field(text: Any) -> FieldToExtract:
    if not isinstance(text, str) or not text.split(":")[0].strip():
        raise ValueError(f"fields: expected NAME, NAME: TYPE or NAME: QUESTION; got {text!r}")
    name, _, told = (part.strip() for part in text.partition(":"))
    kind, _, wording = (part.strip() for part in told.partition(":"))
    if kind.lower() in TYPES:
        kind = kind.lower()
    elif meant := get_close_matches(kind.lower(), TYPES, 1, ALIKE):
        raise ValueError(f"fields: expected a type ({', '.join(TYPES)}) or a question; got {kind!r}, like {meant[0]!r}")
    else:
        kind, wording = "text", told
    return FieldToExtract(name, question_about(wording or name), kind)


_ASKS = re.compile(r"(copy|extract|find|get|give|identify|list|locate|name|read|return|tell)( me)? the ", re.I)
"""Begins descriptions that can be asked as they are."""


def question_about(told: str) -> str:
    """A question for a field's name or description; one that is a question or an instruction stays as it is."""
    told = told.strip()
    if told.endswith("?") or _ASKS.match(told):
        return told
    name = told.rstrip(".")
    return f"What is {name}?" if name.lower().startswith("the ") else f"What is the {name}?"


def extract(
    answers: AnswerGenerator,
    image: Any,
    fields: Any,
    *,
    min_probability: float = 0.0,
    distinct: Sequence[Sequence[str]] = (),
    alternatives: int = 0,
    budget: int | str | None = None,
    **options: Any,
) -> dict[str, Extracted]:
    """See `ArrCocForConditionalGeneration.extract`."""
    asked = fields_to_extract(fields)
    names = [each.name for each in asked]
    if unknown := sorted({name for group in distinct for name in group} - set(names)):
        raise ValueError(f"distinct: expected names among {', '.join(names)}; got {', '.join(unknown)}")
    if not 0 <= min_probability <= 1:
        raise ValueError(f"min_probability: expected 0 to 1; got {min_probability}")
    encodings: Iterable[ImageEncoding] = [image]
    if not is_encoding(image):
        encodings = encode_pages(answers, image, **options)
    elif options or len(image) > 1:
        raise ValueError(f"image: expected an encoding of one page, without options; got {len(image)} pages")
    pages = [_page(answers, page, asked, distinct, alternatives, budget) for page in encodings]
    found = {name: _surest([page[name] for page in pages]) for name in names}
    return {
        name: replace(each, value=None) if each.probability < min_probability else each for name, each in found.items()
    }


@torch.no_grad()
def encode_pages(answers: AnswerGenerator, image: Any, **options: Any) -> Iterator[ImageEncoding]:
    """Encodes each page of an image or a document alone, one after the other; see `AnswerGenerator.encode`."""
    image, view_options = answers.opened(image, **options)
    processor = answers.processor.image_processor
    if isinstance(image, list | tuple):
        raise ValueError(f"image: expected one image or document; got {type(image).__name__}")
    (loaded,) = load_sources([image], max_image_pixels=processor.max_image_pixels, policy=processor.sources)
    if isinstance(loaded, Image.Image):
        yield answers.read([[loaded]], view_options)
        return
    for page in sources_of(loaded, view_options, processor.max_image_pixels):
        encoding = answers.encode_sheets([[page]], view_options)
        encoding.made_by = answers.model.model.maker()
        yield encoding


def _page(
    answers: AnswerGenerator,
    page: ImageEncoding,
    fields: Sequence[FieldToExtract],
    distinct: Sequence[Sequence[str]],
    alternatives: int,
    budget: int | str | None,
) -> dict[str, Extracted]:
    """The fields of one page, those of each group of `distinct` at different places."""

    def ask(some: Sequence[FieldToExtract], count: int) -> list[list[Answer]]:
        beams: dict[str, Any] = {"num_beams": count, "num_return_sequences": count} if count > 1 else {}
        told = answers.ask(page, [each.question for each in some], return_fetch=True, budget=budget, **beams)
        return [told[at : at + count] for at in range(0, len(told), count)]

    told = dict(zip([field.name for field in fields], ask(fields, 1 + alternatives), strict=True))
    for group in distinct:
        first = {name: told[name][0] for name in group}
        contested = {name for name in group for other in group if name != other and _overlap(first[name], first[other])}
        rivals = [field for field in fields if field.name in contested]
        if rivals:
            several = [told[each.name] for each in rivals] if alternatives >= RIVALS - 1 else ask(rivals, RIVALS)
            told.update(zip([each.name for each in rivals], _assigned(several), strict=True))
    tokens, _ = wordpieces_read(next(iter(told.values()))[0].fetch, page)
    text = answers.processor.tokenizer.decode(tokens)
    return {field.name: _extracted(field, told[field.name], page, day_comes_first(text)) for field in fields}


def _overlap(one: Answer, other: Answer) -> bool:
    """Whether two answers have one place."""
    for first, second in product(one.places, other.places):
        (a0, b0, a1, b1), (c0, d0, c1, d1) = first.box, second.box
        shared = max(0.0, min(a1, c1) - max(a0, c0)) * max(0.0, min(b1, d1) - max(b0, d0))
        if shared > 0.5 * min((a1 - a0) * (b1 - b0), (c1 - c0) * (d1 - d0)):
            return True
    return False


def _assigned(several: Sequence[Sequence[Answer]]) -> list[list[Answer]]:
    """The answers of fields, each list begun by its part of the likeliest choice in which no two have one place. A
    field may also stay empty, at a thousandth."""
    options = [[*enumerate(own)] + [(-1, None)] for own in several]
    best: tuple[float, Any] = (float("-inf"), None)
    for choice in product(*(options[:8])):
        chosen = [answer for _, answer in choice if answer is not None]
        if any(_overlap(one, other) for at, one in enumerate(chosen) for other in chosen[:at]):
            continue
        score = sum(math.log(max(1e-6, answer.probability)) if answer else math.log(1e-3) for _, answer in choice)
        best = max(best, (score, choice), key=lambda each: each[0])
    made = []
    for own, (number, answer) in zip(several, best[1], strict=False):
        if answer is None:
            made.append([replace(own[0], text=NOT_ON_THE_PAGE, places=()), *own])
        else:
            made.append([answer, *(other for at, other in enumerate(own) if at != number)])
    return [*made, *map(list, several[8:])]


def _extracted(field: FieldToExtract, told: Sequence[Answer], page: ImageEncoding, day_first: bool | None) -> Extracted:
    answer = told[0]
    others = tuple((each.text, each.probability) for each in told[1:] if each.text != answer.text)
    if " ".join(answer.text.casefold().split()) in ("", NOT_ON_THE_PAGE):
        return Extracted(None, answer.probability, "", None, (), others, answer.warning)
    value, warning = value_of(answer.text, field.kind, day_first)
    if field.values and value is not None:
        value = next((each for each in field.values if each.casefold() == str(value).casefold()), None)
        warning = "" if value is not None else f"{answer.text!r} is none of {', '.join(field.values)}"
    source = None if page.sources is None else page.sources[0]
    number = 1 if source is None or source.page is None else source.page
    boxes = tuple(origin.box for origin in answer.places)
    told_warning = "; ".join(filter(None, (warning, answer.warning)))
    return Extracted(value, answer.probability, answer.text, number, boxes, others, told_warning)


def _surest(pages: Sequence[Extracted]) -> Extracted:
    """A field's value in a document, from its value on each page: values go before unread texts, these before none."""
    rank = [(each.value is not None, each.printed != "", each.probability) for each in pages]
    best = pages[max(range(len(pages)), key=rank.__getitem__)]
    if best.printed == "":
        return replace(best, probability=min(each.probability for each in pages))
    others = {each.printed: each.probability for each in pages if each.printed not in ("", best.printed)}
    more = sorted([*best.alternatives, *others.items()], key=lambda each: -each[1])
    return replace(best, alternatives=tuple(more))
