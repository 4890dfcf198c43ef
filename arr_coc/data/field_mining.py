"""Fields of real pages: labels and their values, found by how often texts come up in pages of one kind.

A label is printed on many pages of a kind, and its value differs from page to page. So a text is a label if it begins
lines of many documents and what follows it (on its line, right of it, or under it) varies. Each label keeps to where
its values mostly are, and to the type that most of them have, such as dates.
"""

from __future__ import annotations

import calendar
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..modeling.image_processing_arr_coc import Box

TextLine = tuple[str, float, float, float, float]  # A text and its box, x0, y0, x1, y1

LEAST_DOCUMENTS = 6  # documents that a label is printed in, at least
LABEL_WORDS, VALUE_WORDS = 4, 7  # most words of each
DIVERSE, COMMON = 0.3, 0.35
"""Least number of different values per document of a label; most documents that have the same value, as a share."""
SUPPORT = 0.3  # share of a label's documents that have a value there, at least, to look for it there (right of it, say)
TYPED = 0.75  # share of a label's values of one type from which on values of other types are left out
STATIC = 0.04  # share of documents from which on a line is taken for a printed part of the form, not for a value
_CALENDAR = {name.lower() for names in (calendar.day_name, calendar.day_abbr, calendar.month_name) for name in names}
_NUMBERING = re.compile(r"^\(?\d{1,2}[a-z]?\s?[.),:]\s*(?=[A-Za-z])")
_TYPES = (
    ("dates", re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{2,4}\s*(-|to|thru)\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{2,4}")),
    (
        "date",
        re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{2,4}|(\d{1,2}[- ])?[A-Z][A-Za-z]{2,8}\.?[- ]?\d{0,2},?[- ]?\d{4}"),
    ),
    ("phone", re.compile(r"\+?\(?\d{2,4}\)?[- .]+\d{3,4}[- .]*\d{3,5}.{0,8}")),
    ("amount", re.compile(r"\(?(RM|MYR|USD)? ?-?[$]? ?\(?\d{1,3}(,?\d{3})*[.,]\d\d\)?( ?[A-Z]{1,3})?")),
    ("time", re.compile(r"\d{1,2}:\d\d(:\d\d)?( ?[AaPp][Mm])?")),
    ("number", re.compile(r"[#A-Z]{0,4}[-/ ]?\d[\d ,.:/()-]*[A-Z]{0,2}%?")),
)


def has_type(name: str, text: str) -> bool:
    """Whether a value of a type such as "date" is in a text; False of types without a form."""
    return any(pattern.search(text) for own, pattern in _TYPES if own == name)


def normal(text: str) -> str:
    """Letters and digits of a text in lower case, with single spaces."""
    return " ".join(re.sub(r"[^a-z0-9%$#&/]+", " ", text.lower()).split())


def type_of(value: str) -> str:
    """A value's type, such as "date"; "text" for others."""
    return next((name for name, pattern in _TYPES if pattern.fullmatch(value.strip())), "text")


@dataclass(frozen=True)
class MinedField:
    """A field of a page: its label as printed, without numbering and colon, its value, and where both are."""

    label: str
    value: str
    box: Box
    label_box: Box


@dataclass(frozen=True)
class _Found:
    """A possible field: the page's number and document, what it says, and where the value is from the label."""

    page: int
    group: str
    field: MinedField
    where: str


def _part(line: TextLine, start: int, end: int) -> TextLine:
    """Some characters of a line."""
    text, x0, y0, x1, y1 = line
    step = (x1 - x0) / max(len(text), 1)
    return text[start:end], x0 + start * step, y0, x0 + end * step, y1


def _prefixes(line: TextLine) -> Iterable[tuple[str, int, int, int]]:
    """How a line may begin: a possible label in normal form, where it starts and ends, and where the rest begins. A
    label is a whole line, or ends in a colon, or has a number as in "7. Occupation"."""
    text = line[0]
    numbering = _NUMBERING.match(text)
    start = numbering.end() if numbering else 0
    for number, word in enumerate(re.finditer(r"\S+", text[start:])):
        if number == LABEL_WORDS:
            return
        end = start + word.end()
        label = text[start:end].rstrip(" :.=")
        rest = re.match(r"[\s:=]*", text[end:])
        begins = end + (rest.end() if rest else 0)
        ends = begins == len(text) or numbering or re.search("[:=]", text[start + len(label) : begins])
        letters = sum(character.isalpha() for character in label)
        plain = letters >= 3 and letters > 0.7 * len(label.replace(" ", "")) and not label[0].isdigit()
        if ends and plain and not _CALENDAR & {*normal(label).split()}:
            yield normal(label), start, start + len(label), begins


def _right(lines: Sequence[TextLine], line: TextLine) -> TextLine | None:
    """The next line in the same row."""
    _, _, y0, x1, y1 = line
    high = y1 - y0
    row = [other for other in lines if abs(other[2] + other[4] - y0 - y1) < high and 0 <= other[1] - x1 < 25 * high]
    return min(row, key=lambda other: other[1], default=None)


def _under(lines: Sequence[TextLine], line: TextLine) -> TextLine | None:
    """The next line under a line or a part of one."""
    _, x0, y0, x1, y1 = line
    high = y1 - y0
    below = [
        other
        for other in lines
        if -0.4 * high < other[2] - y1 < 1.3 * high
        and other[1] - x0 < 3 * high
        and other[3] > x0
        and other[1] > x0 - 2 * high
        and other[1] < x1
    ]
    return min(below, key=lambda other: (other[2], abs(other[1] - x0)), default=None)


def mine(pages: Sequence[tuple[str, Sequence[TextLine]]], *, under: bool = True) -> list[list[MinedField]]:
    """The fields of pages of one kind (document, lines); of a label that is on a page twice none. `under`: whether
    values may stand under their labels."""
    # The documents of each line, and of each beginning of a line, in normal form.
    lines_in, begins_in = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for group, lines in pages:
        for line in lines:
            lines_in[normal(line[0])].add(group)
            for prefix, *_ in _prefixes(line):
                begins_in[prefix].add(group)
    documents = len({group for group, _ in pages})
    static = {text for text, groups in lines_in.items() if len(groups) >= max(3, STATIC * documents)}
    candidates = {text for text, groups in begins_in.items() if len(groups) >= LEAST_DOCUMENTS}
    by_label: defaultdict[str, list[_Found]] = defaultdict(list)
    for number, page in enumerate(pages):
        for each in _found(number, *page, candidates, static, under):
            by_label[normal(each.field.label)].append(each)
    kept: list[list[MinedField]] = [[] for _ in pages]
    for label, those in by_label.items():
        for each in _sifted(those, len(begins_in[label])):
            kept[each.page].append(each.field)
    return [_single(fields) for fields in kept]


def _found(
    number: int, group: str, lines: Sequence[TextLine], candidates: set[str], static: set[str], under: bool
) -> Iterable[_Found]:
    """Everything on a page that may be a field."""
    for line in lines:
        for label, start, end, rest in _prefixes(line):
            if label not in candidates:
                continue
            printed = _part(line, start, end)
            values: dict[str, TextLine | None] = {"right": _right(lines, line)}
            if rest < len(line[0]):
                values = {"rest": _part(line, rest, len(line[0]))}
            elif under:
                values["under"] = _under(lines, line)
            for where, value in values.items():
                if value is None or not _may_be_value(value[0]):
                    continue
                if normal(value[0]) in (static if where != "rest" else candidates):
                    continue
                below = _under(lines, value) if where == "under" else None
                if below is not None and normal(below[0]) not in static:
                    continue  # an address, or a column
                field = MinedField(printed[0], value[0].strip(), value[1:], printed[1:])
                yield _Found(number, group, field, where)


def _may_be_value(text: str) -> bool:
    label = re.search(r"(^|\s)[A-Za-z][A-Za-z. ]+:", text.lstrip(": ")) or text.rstrip().endswith(":")
    short = re.search(r"[A-Za-z0-9]", text) and len(text.split()) <= VALUE_WORDS
    return bool(short and not label and not _NUMBERING.match(text))


def _sifted(those: Sequence[_Found], documents: int) -> Iterable[_Found]:
    """Of everything found for a label what stands where its values mostly stand, if they vary, of their type."""
    by_place: defaultdict[str, list[_Found]] = defaultdict(list)
    for each in those:
        by_place[each.where].append(each)
    for here in by_place.values():
        groups = {each.group for each in here}
        if len(groups) < max(LEAST_DOCUMENTS, SUPPORT * documents):
            continue
        values = Counter(value for _, value in {(each.group, normal(each.field.value)) for each in here})
        if len(values) < DIVERSE * len(groups) or max(values.values()) > COMMON * len(groups):
            continue
        types = Counter(type_of(each.field.value) for each in here)
        name, count = types.most_common(1)[0]
        if count < TYPED * len(here):
            yield from here
        else:
            yield from (each for each in here if type_of(each.field.value) == name)


def _single(fields: Sequence[MinedField]) -> list[MinedField]:
    """Fields whose label is on the page once, and of several that share a value's place that with the longest label."""
    by_place: dict[Box, MinedField] = {}
    for field in sorted(fields, key=lambda field: len(field.label)):
        by_place[field.box] = field
    labels = Counter(normal(field.label) for field in by_place.values())
    return [field for field in by_place.values() if labels[normal(field.label)] == 1]
