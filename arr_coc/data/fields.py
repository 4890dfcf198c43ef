"""Checks of what data files hold. Errors say what was expected and what came; whoever reads the file says where."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..modeling.image_processing_arr_coc import Box


def shorten(value: Any, length: int = 60) -> str:
    """`repr` for an error message, of at most `length` characters."""
    text = repr(value.strip() if isinstance(value, str) else value)
    return text if len(text) <= length else f"{text[:length]}..."


def require(row: Any, *names: str) -> None:
    """Refuses a row that is no mapping, or that lacks one of the fields `names`.

    Raises:
        ValueError: the row is another thing, or the first field that it lacks.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object with {listed(names)}; got {shorten(row)}")
    for name in names:
        if name not in row:
            raise ValueError(f"expected {listed(names)}; got no {name}")


def listed(names: tuple[str, ...]) -> str:
    """ "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def text_of(row: Mapping[str, Any], name: str) -> str:
    """The string in the field `name`.

    Raises:
        ValueError: the field holds another thing, or a blank string.
    """
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}: expected a non-empty string; got {shorten(value)}")
    return value


def answers_of(value: Any, name: str = "answers") -> tuple[str, ...]:
    """The right answers, from a list of strings of which at least one is not blank.

    Raises:
        ValueError: another thing, an empty list, or nothing but blanks, which a model without an answer would match.
    """
    if not isinstance(value, list | tuple) or not value or not all(isinstance(answer, str) for answer in value):
        raise ValueError(f"{name}: expected a non-empty list of strings; got {shorten(value)}")
    if not any(answer.strip() for answer in value):
        raise ValueError(f"{name}: expected an answer that is not blank; got {shorten(value)}")
    return tuple(value)


def said_by_people(value: Any, name: str = "answers") -> tuple[str, ...]:
    """The right answers, from a list of strings or of `{"answer": str}`.

    Raises:
        ValueError: another thing, or an empty list.
    """
    if isinstance(value, list | tuple):
        value = [said.get("answer") if isinstance(said, Mapping) else said for said in value]
    return answers_of(value, name)


def numbers_of(value: Any, name: str, count: int) -> list[float]:
    """A list of `count` finite numbers.

    Raises:
        ValueError: another thing.
    """
    numbers = isinstance(value, list | tuple) and all(type(number) in (int, float) for number in value)
    if not numbers or len(value) != count or not all(map(_is_finite, value)):
        raise ValueError(f"{name}: expected {count} numbers; got {shorten(value)}")
    return [float(number) for number in value]


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that no float holds
        return False


def numbers_in(row: Mapping[str, Any], name: str, count: int | None, length: int | None = None) -> tuple[int, ...]:
    """Numbers of sources in the field `name`; none where it is missing.

    Args:
        row: the record's fields.
        name: of the field.
        count: of sources; None: not known.
        length: how many numbers there must be; None: any number.

    Raises:
        ValueError: another thing, or a number of no source.
    """
    value = row.get(name)
    if value is None:
        return ()
    whole = isinstance(value, list | tuple) and all(type(number) is int for number in value)
    if not whole or not all(0 <= number < (count or number + 1) for number in value):
        limit = "" if count is None else f" below {count}"
        raise ValueError(f"{name}: expected a list of numbers from 0{limit}; got {shorten(value)}")
    if length is not None and len(value) != length:
        raise ValueError(f"{name}: expected a number for each of {length} boxes; got {shorten(value)}")
    return tuple(value)


def boxes_of(value: Any, name: str = "boxes") -> tuple[Box, ...]:
    """Boxes from a list of [x0, y0, x1, y1]; none from None.

    Raises:
        ValueError: another thing.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name}: expected a list of [x0, y0, x1, y1]; got {shorten(value)}")
    return tuple(box_of(box, name) for box in value)


def box_of(box: Any, name: str) -> Box:
    """A box from [x0, y0, x1, y1].

    Raises:
        ValueError: no four finite numbers, or it ends before it starts.
    """
    try:
        x0, y0, x1, y1 = numbers_of(box, name, 4)
        ordered = x0 <= x1 and y0 <= y1
    except ValueError:
        ordered = False
    if not ordered:
        raise ValueError(f"{name}: expected [x0, y0, x1, y1] with x0 <= x1 and y0 <= y1; got {shorten(box)}")
    return (x0, y0, x1, y1)


def image_file(folder: Path, *names: str) -> Path:
    """The first of `names` that is a file in `folder`, as an absolute path.

    Raises:
        ValueError: none of `names` is a file there.
    """
    for name in names:
        path = os.path.join(os.getcwd(), folder, name)  # pathlib would take most of the time of a large file's reading
        if os.path.isfile(path):
            return Path(path)
    raise ValueError(f"image: expected a file, relative to {folder}; got {names[0]!r}")
