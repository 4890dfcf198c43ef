"""Errors for requests whose body is invalid: which field, what was expected, what came."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..modeling.image_loading import shorten

ASKED = {
    "n": "1, one answer a request; send the request again for another",
    "tools": "none: this model answers questions about images, and calls no tools",
    "tool_choice": "none: this model answers questions about images, and calls no tools",
    "store": "false: nothing is stored for clients",
    "role": "user or assistant: put instructions before the question",
}
"""What is expected of fields of which the server supports one value only."""

EXPECTED = {
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "missing": "this field",
    "extra_forbidden": "no such field",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "a length of at least {min_length}",
    "too_long": "a length of at most {max_length}",
    "string_too_long": "at most {max_length} characters",
}
"""What was expected, by pydantic's type of an error; in braces: values of its context."""


Place = tuple[str | int, ...]


def invalid_field(errors: Sequence[Mapping[str, Any]], body: Any) -> tuple[str | None, str]:
    """The field that pydantic refused first, None for the whole body; and the error in one line.

    `errors`: pydantic's, in order; their places start with "body".
    """
    placed = [(_place(error, body), error) for error in errors]
    first = placed[0][0]
    # Where a field has several forms, pydantic tries them all: the one that came furthest was meant.
    place = max((place for place, _ in placed if place[: len(first)] == first), key=len)
    own = [error for other, error in placed if other == place]
    kind, received = own[0]["type"], _described(own[0])
    if not place:
        expected = "JSON" if kind == "json_invalid" else "a JSON object (Content-Type: application/json)"
        return None, f"body: expected {expected}; got {received}"
    name = ".".join(map(str, place))
    expected = ASKED.get(name) or ASKED.get(str(place[-1])) or " or ".join(dict.fromkeys(map(_expected, own)))
    if kind == "value_error" and name not in ASKED:
        return name, f"{name}: {_expected(own[0])}"
    return name, f"{name}: expected {expected}; got {received}"


def _place(error: Mapping[str, Any], body: Any) -> Place:
    """The names and numbers that lead to the value in the body, without the forms that pydantic tried on the way."""
    if error["type"] == "json_invalid":
        return ()
    parts = [*error["loc"][1:]]
    for number in reversed(range(len(parts))):
        if str(parts[number]).startswith("list[tagged-union"):
            del parts[number + 2 : number + 3], parts[number]  # the part's type is behind its number
    place, value = list[str | int](), body
    for number, part in enumerate(parts):
        last_of_missing = error["type"] == "missing" and number == len(parts) - 1
        try:
            value = None if last_of_missing else value[part]
        except (TypeError, LookupError):
            continue
        place.append(part)
    return tuple(place)


def _expected(error: Mapping[str, Any]) -> str:
    form = EXPECTED.get(error["type"])
    return str(error["msg"]).removeprefix("Value error, ") if form is None else form.format(**error.get("ctx") or {})


def _described(error: Mapping[str, Any]) -> str:
    """What came, in JSON's words; long values are shortened."""
    value = error.get("input")
    if error["type"] == "missing":
        return "none"
    if error["type"] == "json_invalid" or isinstance(value, bytes):
        return "other content"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return shorten(json.dumps(value, ensure_ascii=False, default=str), 40)
